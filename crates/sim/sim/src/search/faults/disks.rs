//! Disks that are slow, hang, fail, are full, or rot.

use super::TRIES;
use crate::engine::SECOND;
use crate::search::harm::Harm;
use crate::search::harness::{Event, World};
use crate::world::store::{Damage, Found, Place};
use ebb_types::{ChunkId, ServerId, Slot, SlotState, Version};

impl World<'_> {
    pub(super) fn slow_down(&mut self, id: ServerId) {
        self.server(id).slowness = self.fault_random.between(5, 300);
        self.note(|| format!("the disk of {id} is slow"));
        self.count("slow disk");
        let time = self.fault_random.delay(SECOND).min(10 * SECOND);
        self.its_after(time, Event::Heal { server: id });
    }

    /// A disk answers nothing, and fails nothing, while its server lives.
    pub(super) fn hang(&mut self, id: ServerId) {
        let long = self.fault_random.chance(300);
        let time = match long {
            true => self.fault_random.between(8, 40) * SECOND,
            false => self.fault_random.delay(2 * SECOND).min(10 * SECOND),
        };
        self.server(id).hang();
        self.note(|| format!("the disk of {id} hangs"));
        self.count("hung disk");
        self.its_after(time, Event::Heal { server: id });
    }

    /// R9: a sync fails. The operator restarts the server after a while.
    pub(super) fn poison(&mut self, id: ServerId) {
        if !self.server(id).up {
            return;
        }
        let once = self.fault_random.chance(500);
        self.server(id).store.disk.fail_syncs(if once { 1 } else { u64::MAX });
        self.note(|| format!("the store of {id} fails a sync"));
        self.count("failed sync");
        let time = self.fault_random.delay(2 * SECOND).min(10 * SECOND);
        self.its_after(time, Event::Heal { server: id });
    }

    pub(super) fn fill_up(&mut self, id: ServerId) {
        let hard = self.fault_random.chance(300);
        let room = self.fault_random.below(48 << 10);
        self.count("full disk");
        self.fill(id, hard.then_some(room));
        let time = self.fault_random.delay(SECOND).min(10 * SECOND);
        self.its_after(time, Event::Heal { server: id });
    }

    /// `room`: bytes that are left, if that is known.
    pub fn fill(&mut self, id: ServerId, room: Option<u64>) {
        self.server(id).fill_up();
        if let Some(room) = room {
            let disk = &self.server(id).store.disk;
            disk.set_capacity(Some(disk.used() + room));
        }
        self.note(|| format!("the disk of {id} is {}full", if room.is_some() { "" } else { "nearly " }));
        self.tell_space(id);
    }

    /// Restores the disk. A poisoned store needs a restart.
    pub fn heal_disk(&mut self, id: ServerId) {
        self.disk_moves_again(id);
        let server = self.server(id);
        server.slowness = 1;
        server.store.disk.set_capacity(None);
        server.store.disk.fail_syncs(0);
        let poisoned = server.store.is_poisoned();
        if server.make_room() {
            self.harness.invariants.full_at = Some(self.now);
        }
        if poisoned {
            self.crash(id);
            self.restart(id);
        } else {
            self.tell_space(id);
        }
    }

    /// Part of a store file rots, or a chunk's file vanishes: while the server runs, and only where other servers have
    /// what is lost.
    pub(super) fn rot(&mut self, id: ServerId) {
        if self.harness.lost.is_some() || self.wishes.lost().is_some() || self.servers[&id].store.disk_fails()
        {
            return;
        }
        let store = &self.servers[&id].store;
        let Some(before) = store.find(&store.disk) else { return };
        for _ in 0..TRIES {
            let store = &self.servers[&id].store;
            let Some(harm) = Harm::draw(&mut self.fault_random, &store.disk) else { return };
            if harm.is_loss() && !harm.path().starts_with("chunks/") {
                continue;
            }
            let trial = store.disk.copy();
            harm.happen(&trial);
            let Some(after) = store.find(&trial) else { continue };
            if let Some(what) = gone_unnoticed(&before, &after) {
                return self.fail("R9", format!("{id} does not notice the damage in {harm}: {what}"));
            }
            if let Some(chunk) = self.bearable(id, &before, &after) {
                self.note(|| format!("{id} has damage in {harm}: what it has of {chunk}"));
                self.harness.invariants.rot_seen = true;
                self.count(if harm.is_loss() { "lost file" } else { "bit rot" });
                let store = &mut self.server(id).store;
                harm.happen(&store.disk);
                return store.was_damaged(&after);
            }
        }
    }

    /// The chunk of the new damage in `after`, if it is confined to one chunk, no other copy of that chunk is damaged,
    /// and the other servers have the data.
    fn bearable(&self, id: ServerId, before: &Found, after: &Found) -> Option<ChunkId> {
        let fresh = after.damaged.keys().filter(|place| !before.damaged.contains_key(place));
        let places: Vec<Place> = fresh.copied().collect();
        let &(group, _, chunk, _) = places.first()?;
        let others = || self.servers.values().filter(|s| !s.lost && s.id != id);
        let one_chunk = places.iter().all(|place| place.2 == chunk);
        if after.mark != before.mark || !one_chunk || others().any(|s| s.store.is_rotten(chunk)) {
            return None;
        }
        // The only copy of a write was not acknowledged, and no server can tell. If blocks are lost together with their
        // version, a replica in sync has them all.
        if let Some((set, _)) = group.column() {
            let entry = self.newest_state().set(set)?;
            let bears = self.can_decode(entry, &[id]) && !self.parity_is_in_memory(id);
            return bears.then_some(chunk);
        }
        let entry = self.newest_state().group(group)?;
        let in_sync = |s: &Slot| {
            let other = self.servers.get(&s.server).filter(|other| s.server != id && !other.lost);
            s.state == SlotState::InSync && other.is_some()
        };
        let known = |place: &Place| match after.damaged[place] {
            Damage::Rot(version) => others().any(|s| s.store.keeps(chunk, place.3, version)),
            Damage::Lost => {
                let has = |version: &Version| others().any(|s| s.store.keeps(chunk, place.3, *version));
                let unknown = before.sound.get(place).is_none_or(has);
                unknown && entry.slot_of(id).is_some() && entry.slots.iter().any(in_sync)
            }
        };
        places.iter().all(known).then_some(chunk)
    }
}

/// A block that was sound and now reads differently without being reported as damaged.
pub(super) fn gone_unnoticed(before: &Found, after: &Found) -> Option<String> {
    let noticed = after.mark.position < before.mark.position;
    let gone = |(place, version): &(&Place, &Version)| {
        !after.damaged.contains_key(place) && after.sound.get(place) != Some(version)
    };
    let (place, version) = before.sound.iter().find(gone).filter(|_| !noticed)?;
    let found = after.sound.get(place).copied().unwrap_or_default();
    Some(format!("{} block {} was {version} and is {found}", place.2, place.3))
}
