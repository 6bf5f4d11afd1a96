//! What an operator should know about the sets of erasure-coded pools.

use crate::State;
use crate::controller::servers::is_gone;
use ebb_types::{Column, RackId, ServerEntry, ServerId, ServerState, SetEntry, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// One note per column without a server, and per set that shares racks without need.
pub(crate) fn set_notes(state: &State) -> Vec<String> {
    let mut notes = Vec::new();
    for (id, entry) in state.sets() {
        let server = |column: &Column| state.server(column.server).filter(|e| is_gone(e));
        let gone = entry.columns.iter().enumerate().filter_map(|(nth, c)| Some((nth, c, server(c)?)));
        notes.extend(gone.filter(|(_, c, _)| c.is_away()).map(|(nth, _, server)| {
            // With one parity column no other server has a place for its strips: `docs/coded.md`.
            let others = match entry.shape.parity() == 1 && nth < entry.shape.data() {
                true => "the set takes no writes until it has",
                false => "its strips are kept by others",
            };
            format!(
                "{id}: {} has no server; {others}; give the pool a spare server or bring {} back",
                name(entry, nth),
                server.id
            )
        }));
        notes.extend(shared_rack(id, entry, state));
    }
    notes
}

/// Counted from 1, as the paper and `ebb pool` do: "data column 2", "parity column 1".
fn name(entry: &SetEntry, nth: usize) -> String {
    let k = entry.shape.data();
    if nth < k { format!("data column {}", nth + 1) } else { format!("parity column {}", nth - k + 1) }
}

/// Two columns in one rack, although the pool has a rack in which the set has none.
fn shared_rack(id: SetId, entry: &SetEntry, state: &State) -> Option<String> {
    let of_pool = |e: &&ServerEntry| e.pool == entry.pool && e.state != ServerState::Lost;
    let racks: BTreeSet<RackId> = state.servers().filter(of_pool).map(|e| e.rack).collect();
    let mut used: BTreeMap<RackId, ServerId> = BTreeMap::new();
    let mut shared = None;
    for column in &entry.columns {
        let rack = state.server(column.server)?.rack;
        if let Some(other) = used.insert(rack, column.server) {
            shared.get_or_insert((rack, other, column.server));
        }
    }
    let free = racks.iter().find(|rack| !used.contains_key(rack))?;
    let (rack, one, other) = shared?;
    Some(format!(
        "{id}: {one} and {other} share {rack}, and would both fail with it; a server of {free} in place of one would part them"
    ))
}
