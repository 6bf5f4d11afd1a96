//! How many more servers of an erasure-coded set may fail now, with nothing lost: what a person asks first.

use crate::{
    Column, Epoch, ParityDebt, PoolStatus, ServerId, ServerState, ServerStatus, SetEntry, SetStatus,
    SlotState,
};
use std::collections::BTreeMap;

type States = BTreeMap<ServerId, ServerState>;

impl PoolStatus {
    /// At least this many. At 0 the set is exposed.
    pub fn survives(&self, set: &SetStatus, servers: &[ServerStatus]) -> usize {
        self.survives_by(set, servers, &states_of(servers))
    }

    fn survives_by(&self, set: &SetStatus, servers: &[ServerStatus], states: &States) -> usize {
        survives(&set.entry, states).saturating_sub(self.recomputing(set, servers))
    }

    /// How many sets may not survive another failure.
    pub fn exposed(&self, servers: &[ServerStatus]) -> usize {
        let states = states_of(servers);
        self.sets.iter().filter(|set| self.survives_by(set, servers, &states) == 0).count()
    }

    /// The data servers that lost what they kept in memory, and do not have it again yet: each is like one that has
    /// failed.
    fn recomputing(&self, set: &SetStatus, servers: &[ServerStatus]) -> usize {
        if self.pool.parity_debt != ParityDebt::Ram {
            return 0;
        }
        let busy = |id: ServerId| {
            let vitals = servers.iter().find(|server| server.id == id).and_then(|s| s.vitals.as_ref());
            vitals.is_none_or(|vitals| vitals.catching_up > 0)
        };
        let data = &set.entry.columns[..self.pool.shape.data()];
        data.iter().filter(|c| c.state == SlotState::InSync && busy(c.server)).count()
    }
}

fn states_of(servers: &[ServerStatus]) -> States {
    servers.iter().map(|server| (server.id, server.state)).collect()
}

/// Columns in sync have all strips, and any k of them suffice. Where that says less, three kinds of rows are to be
/// thought of:
/// - those that parity servers have: a failed or replaced server's column of them is gone, a sleeping one's is not;
/// - those written since parity slept: data servers survive [`crate::Shape::awake_tolerance`] failures with what they
///   keep;
/// - those written since a data server failed: several strips of a row are then on one server.
fn survives(entry: &SetEntry, states: &States) -> usize {
    let (k, r) = (entry.shape.data(), entry.shape.parity());
    let (data, parity) = entry.columns.split_at(k);
    let count_behind =
        |columns: &[Column]| columns.iter().filter(|column| column.state != SlotState::InSync).count();
    let (data_behind, parity_behind) = (count_behind(data), count_behind(parity));
    let in_sync_alone = r.saturating_sub(data_behind + parity_behind);
    if parity_behind == 0 || data_behind == k || entry.shape.may_sleep().is_err() {
        return in_sync_alone;
    }
    let gone = entry.columns.iter().filter(|column| has_nothing(column, states)).count();
    let before_sleep = r.saturating_sub(gone);
    let since_sleep = entry.shape.awake_tolerance().saturating_sub(data_behind);
    let kept = data_behind + parity_behind + entry.shape.extra();
    let since_failure = match data_behind {
        0 => since_sleep,
        _ => r / (1 + kept.div_ceil(k - data_behind)),
    };
    in_sync_alone.max(before_sleep.min(since_sleep).min(since_failure))
}

/// Whether the column's server has failed, or took the place of a lost one.
fn has_nothing(column: &Column, states: &States) -> bool {
    let is_down = matches!(states.get(&column.server), None | Some(ServerState::Failed | ServerState::Lost));
    is_down || column.state.lacks_since() == Some(Epoch(0))
}
