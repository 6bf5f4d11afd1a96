//! What the chunk groups need of each server, by which it may drain or sleep (R7).

use crate::State;
use crate::controller::census::Census;
use crate::controller::leading::Servers;
use ebb_types::{GroupEntry, ServerEntry, ServerId, Slot, SlotState};

/// A value per server, with constant-time lookup by id: a plan looks at every slot of every group.
pub(crate) struct ByServer<T>(Vec<T>);

impl<T: Copy + Default> ByServer<T> {
    pub fn new(servers: &Servers, value: impl Fn(&ServerEntry) -> T) -> ByServer<T> {
        let mut all = vec![T::default(); servers.keys().next_back().map_or(0, |id| usize::from(id.0) + 1)];
        servers.values().for_each(|e| all[usize::from(e.id.0)] = value(e));
        ByServer(all)
    }

    pub fn get(&self, id: ServerId) -> T {
        self.0.get(usize::from(id.0)).copied().unwrap_or_default()
    }
}

/// Every group of the server has a successor that is already in sync and stays, so the handover delays no request.
pub(crate) fn may_drain(server: ServerId, state: &State, census: &Census, stays: &ByServer<bool>) -> bool {
    entries_of(server, state, census).all(|entry| {
        let succeeds = |slot: &Slot| slot.server != server && is_in_sync(slot) && stays.get(slot.server);
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
