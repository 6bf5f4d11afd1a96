//! What each server was sent of the map, and whom a change concerns.
//!
//! Servers that a change concerns are sent it at once. The others ask with their next heartbeat: each hand-over changes
//! its group twice, and sixty servers that take in every one of them have no time left for clients.

use crate::State;
use crate::controller::event::Output;
use ebb_types::{MapDelta, MetaPush, Moment, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Maps {
    /// Map version that each server was sent last, and when.
    sent: BTreeMap<ServerId, (u64, Moment)>,
    /// The newest map version that the servers it concerns were sent, and those of the groups that changed since.
    announced: u64,
    concerned: BTreeSet<ServerId>,
    /// The newest map version that a server has seen and this metadata has not: while it is ahead, this member leads
    /// nothing (R11).
    behind: u64,
}

impl Maps {
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// A server has seen this version, and this metadata has not. Returns whether it is the newest such version.
    pub fn fall_behind(&mut self, seen: u64) -> bool {
        let is_news = self.behind < seen;
        self.behind = self.behind.max(seen);
        is_news
    }

    /// Groups of these servers changed.
    pub fn concern(&mut self, servers: BTreeSet<ServerId>) {
        self.concerned.extend(servers);
    }

    /// A new run knows nothing of the map.
    pub fn restart(&mut self, server: ServerId) {
        self.sent.entry(server).or_default().0 = 0;
    }

    pub fn forget(&mut self, server: ServerId) {
        self.sent.remove(&server);
    }

    /// The version that the server was sent last.
    pub fn sent(&self, server: ServerId) -> u64 {
        self.sent.get(&server).map_or(0, |(version, _)| *version)
    }

    /// A heartbeat says which version the server `has`. Returns whether it is to be sent what it lacks: a delta sent a
    /// moment ago may be in flight. A server with a gap in its map asks for the whole map.
    pub fn lacks(&mut self, now: Moment, server: ServerId, has: u64, newest: u64, resend: Duration) -> bool {
        debug_assert!(has <= newest, "who is behind answers nothing (R11)");
        let (sent, at) = self.sent.entry(server).or_default();
        let is_answered = *sent > has && has > 0 && now.since(*at) <= resend;
        let lacks = has < newest && !is_answered;
        if lacks {
            *sent = has;
        }
        lacks
    }

    /// The servers that changes since the last time concern.
    pub fn announce(&mut self, state: &State) -> BTreeSet<ServerId> {
        debug_assert!(self.announced <= state.version(), "no map is announced that there is not");
        let announced = std::mem::replace(&mut self.announced, state.version());
        if announced == state.version() {
            return BTreeSet::new();
        }
        let mut concerned = std::mem::take(&mut self.concerned);
        concerned.extend(state.columns_since(announced));
        if state.concerns_all_since(announced) {
            concerned.extend(state.servers().map(|entry| entry.id));
        }
        concerned
    }

    /// Sends what the server lacks. `deltas`: by the version that they begin at.
    pub fn push(
        &mut self,
        now: Moment,
        server: ServerId,
        state: &State,
        deltas: &mut BTreeMap<u64, MapDelta>,
        out: &mut Vec<Output>,
    ) {
        let from = self.sent(server);
        debug_assert!(from <= state.version(), "no map was sent that there is not");
        if from == 0 {
            let params = state.params().expect("only a created cluster has servers").clone();
            out.push(Output::Push { to: server, push: MetaPush::Params(params) });
        }
        let delta = deltas.entry(from).or_insert_with(|| state.delta(from)).clone();
        self.sent.insert(server, (delta.to, now));
        out.push(Output::Push { to: server, push: MetaPush::Map(delta) });
    }
}
