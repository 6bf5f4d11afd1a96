//! Directed tests of the protocol: what a fault search once found, played by hand.

mod at_risk_first;
mod deletions;
mod dropped_offload;
mod late_retry;
mod listing_anew;
mod overload;
mod quick_changes;
mod repair;
mod scrub;
mod settlement;

use ebb_types::{GearGroup, Incarnation, RackId, ServerEntry, ServerId, ServerState, StoreId};

/// A server in a rack of its own, in its first run.
fn server(id: u16, gear_group: u8, state: ServerState) -> ServerEntry {
    ServerEntry {
        id: ServerId(id),
        rack: RackId(id),
        gear_group: GearGroup(gear_group),
        address: String::new(),
        state,
        incarnation: Incarnation(1),
        store: StoreId(1),
    }
}
