//! What the chunk groups need of each server, by which it may drain or sleep (R7).

use crate::State;
use crate::controller::leading::Servers;
use ebb_types::{ServerEntry, ServerId, ServerState, Slot, SlotState};
use std::collections::BTreeSet;

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

    pub fn change(&mut self, id: ServerId, change: impl FnOnce(&mut T)) {
        if let Some(value) = self.0.get_mut(usize::from(id.0)) {
            change(value);
        }
    }
}

/// How the groups depend on one server, in the present state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Duties {
    primaries: u32,
    holders: u32,
    slots: u32,
    in_sync: u32,
    away: u32,
    /// Those of its groups for which another in-sync server that stays awake can become primary.
    succeeded: u32,
    /// Those of its groups that have fewer than r copies of some write, or no primary.
    at_risk: u32,
}

impl Duties {
    /// Every group of it has a successor that is already in sync, so the handover delays no request.
    pub fn may_drain(&self) -> bool {
        self.slots == self.in_sync && self.succeeded == self.slots && self.at_risk == 0
    }

    /// No group depends on it, and every group of it has its r copies without it (R7).
    pub fn may_sleep(&self) -> bool {
        self.primaries == 0 && self.holders == 0 && self.away == self.slots && self.at_risk == 0
    }
}

/// Counts for each server.
pub(crate) fn duties(state: &State, servers: &Servers, wanted: &BTreeSet<ServerId>) -> ByServer<Duties> {
    let stays = ByServer::new(servers, |e| e.state == ServerState::Awake && wanted.contains(&e.id));
    let mut duties = ByServer::new(servers, |_| Duties::default());
    for (_, entry) in state.groups() {
        entry.primary.into_iter().for_each(|primary| duties.change(primary, |d| d.primaries += 1));
        let at_risk = entry.primary.is_none()
            || entry.slots.iter().any(|s| s.target().is_none())
            || entry.slots.iter().any(|s| away(s) && s.holder.is_some_and(|holder| !holder.covered));
        for slot in &entry.slots {
            let succeeded = entry.slots.iter().any(|other| {
                other.server != slot.server && other.state == SlotState::InSync && stays.get(other.server)
            });
            duties.change(slot.server, |duty| {
                duty.slots += 1;
                duty.in_sync += u32::from(slot.state == SlotState::InSync);
                duty.away += u32::from(away(slot));
                duty.succeeded += u32::from(succeeded);
                duty.at_risk += u32::from(at_risk);
            });
            slot.holder.into_iter().for_each(|s| duties.change(s.server, |d| d.holders += 1));
        }
    }
    duties
}

pub(crate) fn away(slot: &Slot) -> bool {
    matches!(slot.state, SlotState::Away { .. })
}
