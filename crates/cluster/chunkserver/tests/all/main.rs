//! Directed tests of the protocol: bugs that a fault search once found, replayed by hand.

mod at_risk_first;
mod claims;
mod columns;
mod deletions;
mod dropped_offload;
mod late_retry;
mod listing_anew;
mod look;
mod overload;
mod quick_changes;
mod reclaim;
mod repair;
mod scrub;
mod settlement;
mod shell;
mod too_late;

use ebb_types::{GearGroup, Incarnation, PoolId, RackId, ServerEntry, ServerId, ServerState, StoreId};

/// A server alone in its rack, in its first incarnation.
fn server(id: u16, gear_group: u8, state: ServerState) -> ServerEntry {
    ServerEntry {
        id: ServerId(id),
        rack: RackId(id),
        pool: PoolId::REPLICATED,
        gear_group: GearGroup(gear_group),
        address: String::new(),
        state,
        incarnation: Incarnation(1),
        store: StoreId(1),
    }
}
