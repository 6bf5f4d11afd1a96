//! What the cluster can bear: whether the loss of some servers' data is one too many.

use crate::search::harness::World;
use crate::world::server::Server;
use ebb_types::{Column, Epoch, GroupEntry, ParityDebt, ServerId, SetEntry, Slot, SlotState};

impl World<'_> {
    /// Whether the cluster survives the loss of these servers' data: nothing else is broken, and every group of theirs
    /// has another complete replica awake. r = 2 does not survive two losses at once, and under too heavy a load any
    /// number of servers may be called hung.
    pub(super) fn can_spare(&self, ids: &[ServerId]) -> bool {
        let is_part = |s: &Server| self.newest_state().server(s.id).is_some();
        let sound = |s: &Server| !is_part(s) || s.is_asleep() || (s.runs() && !s.store.is_poisoned());
        let alone = self.net.is_whole(self.now)
            && self.members.values().all(|m| m.up && !m.paused)
            && self.servers.values().all(sound);
        if self.harness.invariants.rot_seen || !alone || self.is_overloaded() {
            return false;
        }
        let state = self.newest_state();
        let complete = |s: &Slot| {
            let up = self.servers.get(&s.server).is_some_and(|other| other.runs());
            !ids.contains(&s.server) && s.state == SlotState::InSync && up
        };
        let of_set = |entry: &SetEntry| entry.columns.iter().any(|c| ids.contains(&c.server));
        if state.sets().any(|(_, entry)| of_set(entry) && !self.can_decode(entry, ids)) {
            return false;
        }
        let needed = |entry: &GroupEntry| entry.members().any(|(s, _)| ids.contains(&s));
        state.groups().filter(|(_, e)| needed(e)).all(|(_, e)| e.slots.iter().any(complete))
    }

    /// Whether a set bears that these servers lose what they have: the other data servers have everything, and parity
    /// is complete, or sleeps while they keep it.
    pub(super) fn can_decode(&self, entry: &SetEntry, ids: &[ServerId]) -> bool {
        let k = entry.shape.data();
        let gone = entry.columns.iter().filter(|c| ids.contains(&c.server)).count();
        let sound = |(n, column): (usize, &Column)| {
            let server = &self.servers[&column.server];
            ids.contains(&column.server)
                || column.state == SlotState::InSync && server.runs()
                || n >= k && column.is_away() && server.is_asleep() && !server.lost
        };
        gone <= entry.shape.awake_tolerance().min(entry.shape.parity())
            && entry.columns.iter().enumerate().all(sound)
            && (!self.is_in_memory(entry) || self.holders_have_all(entry))
    }

    /// Whether the pool's data servers keep the parity of sleepers in memory.
    pub fn is_in_memory(&self, entry: &SetEntry) -> bool {
        self.newest_state().pool(entry.pool).is_some_and(|pool| pool.parity_debt == ParityDebt::Ram)
    }

    /// Damage of the server's disk that is not noticed yet would meet a power cut that takes what others have in
    /// memory.
    pub(super) fn parity_is_in_memory(&self, id: ServerId) -> bool {
        let mut sets = self.newest_state().sets().map(|(_, entry)| entry);
        let of_it = sets.find(|entry| entry.column_of(id).is_some());
        let whole = |entry: &SetEntry| entry.is_in_sync();
        of_it.is_some_and(|entry| self.is_in_memory(entry) && !whole(entry))
    }

    /// No data server that takes part lacks anything that it keeps for others, and none is about to be restarted.
    fn holders_have_all(&self, entry: &SetEntry) -> bool {
        let id = self.newest_state().sets().find(|(_, of)| *of == entry).map(|(id, _)| id);
        let data = entry.columns[..entry.shape.data()].iter().filter(|c| !c.is_away());
        let mut servers = data.map(|c| &self.servers[&c.server]);
        servers.all(|server| {
            let has = id.and_then(|id| server.replica().keeps_all_since(id)) == Some(entry.epoch);
            server.runs() && !server.store.disk_fails() && has
        })
    }

    /// Whether the server's store is not the original, and no metadata member knows.
    pub fn has_forgotten(&self, id: ServerId) -> bool {
        let Some(known) = self.servers[&id].forgot else { return false };
        self.newest_state().server(id).is_some_and(|entry| entry.store == known)
    }

    /// Whether a lost server's data is not yet copied. Another failure may then be one too many for r = 2.
    pub fn rebuilds(&self) -> bool {
        let state = self.newest_state();
        if self.wishes.lost().is_some() || self.servers.keys().any(|id| self.has_forgotten(*id)) {
            return true;
        }
        let of_lost =
            |e: &GroupEntry| self.harness.lost.is_some_and(|lost| e.members().any(|(s, _)| s == lost));
        let all = |s: &Slot| match s.state {
            SlotState::CatchingUp { since } | SlotState::Away { since } => since == Epoch(0),
            SlotState::InSync => false,
        };
        let rebuilt = |c: &Column| !matches!(c.state, SlotState::CatchingUp { since: Epoch(0) });
        state.groups().any(|(_, entry)| of_lost(entry) || entry.copies().iter().any(all))
            || state.sets().any(|(_, entry)| !entry.columns.iter().all(rebuilt))
            || self.needs_memory()
    }

    /// Whether a lost server's strips can still only be computed from what others have in memory.
    pub fn needs_memory(&self) -> bool {
        let waits = |entry: &SetEntry| {
            entry.columns.iter().any(|c| match c.state {
                SlotState::CatchingUp { since: Epoch(0) } => true,
                SlotState::Away { since: Epoch(0) } => !self.holders_have_all(entry),
                _ => self.wishes.lost() == Some(c.server) || self.has_forgotten(c.server),
            })
        };
        let mut sets = self.newest_state().sets();
        sets.any(|(_, entry)| self.is_in_memory(entry) && waits(entry))
    }
}
