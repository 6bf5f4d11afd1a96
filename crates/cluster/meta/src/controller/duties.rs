//! What the chunk groups need of each server, by which it may drain or sleep (R7).

use crate::State;
use crate::controller::by_server::ByServer;
use crate::controller::census::Census;
use ebb_types::{GroupEntry, ServerId, Slot, SlotState};

/// Every group of the server has a successor that is already in sync and stays, so the handover delays no request. Nor
/// is what it keeps for others about to be fetched by one that `comes`: it would be re-sent to another holder first,
/// and meanwhile no server could take the primary's place.
pub(crate) fn may_drain(
    server: ServerId,
    state: &State,
    census: &Census,
    stays: &ByServer<()>,
    comes: &ByServer<()>,
) -> bool {
    !census.holds_for(server).any(|of| comes.has(of))
        && entries_of(server, state, census).all(|entry| {
            let succeeds = |slot: &Slot| slot.server != server && is_in_sync(slot) && stays.has(slot.server);
            entry.slot_of(server).is_some_and(is_in_sync)
                && entry.slots.iter().any(succeeds)
                && !is_at_risk(entry)
        })
}

/// No group depends on the server, and every group of it has its r copies without it (R7).
pub(crate) fn may_sleep(server: ServerId, state: &State, census: &Census) -> bool {
    census.primaries(server) == 0
        && census.holders(server) == 0
        && entries_of(server, state, census)
            .all(|entry| entry.slot_of(server).is_some_and(away) && !is_at_risk(entry))
}

fn entries_of<'a>(
    server: ServerId,
    state: &'a State,
    census: &'a Census,
) -> impl Iterator<Item = &'a GroupEntry> + 'a {
    census.groups_of(server).map(|group| state.group(group).expect("a group of the state"))
}

fn is_in_sync(slot: &Slot) -> bool {
    slot.state == SlotState::InSync
}

/// The group has fewer than r copies of some write, or no primary.
fn is_at_risk(entry: &GroupEntry) -> bool {
    entry.primary.is_none()
        || entry.slots.iter().any(|s| s.target().is_none())
        || entry.slots.iter().any(|s| away(s) && s.holder.is_some_and(|holder| !holder.covered))
}

pub(crate) fn away(slot: &Slot) -> bool {
    matches!(slot.state, SlotState::Away { .. })
}
