//! Surviving data is served: while a complete copy of a group runs, no failure of other servers takes it out of service
//! permanently. The newest configuration that served, or was recorded as serving, determines which copies are complete:
//! nothing was ordered without them since.

use crate::search::harness::World;
use crate::world::brief::brief_entry;
use ebb_types::{GroupEntry, GroupId, ServerId, Slot, SlotState};

impl World<'_> {
    /// A group that is not served, and a server that could serve it.
    pub fn forsaken(&self) -> Option<String> {
        let groups = self.newest_state().groups();
        let mut unserved = groups.filter(|(group, entry)| !self.is_served(*group, entry));
        unserved.find_map(|(group, entry)| {
            let slot = self.survivor(group, entry)?;
            Some(format!("{group} is not served, {}, though {slot} survived", brief_entry(entry)))
        })
    }

    /// Whether the group has a primary that serves.
    pub fn is_served(&self, group: GroupId, entry: &GroupEntry) -> bool {
        entry.primary.is_some_and(|primary| {
            let server = &self.servers[&primary];
            server.runs() && server.replica().serves(server.clock.at(self.now), group)
        })
    }

    fn survivor(&self, group: GroupId, entry: &GroupEntry) -> Option<ServerId> {
        let served = self.harness.invariants.served.get(&group);
        let newest = served.and_then(|epoch| self.harness.invariants.entries.get(&(group, *epoch)));
        let sound = |id: ServerId| self.is_sound(id);
        let complete = |slot: &&Slot| {
            let kept = slot.holder.is_some_and(|s| s.sources().next().is_some() && s.sources().all(sound));
            self.is_sound(slot.server) && (slot.state == SlotState::InSync || kept)
        };
        newest.unwrap_or(entry).slots.iter().find(complete).map(|slot| slot.server)
    }

    /// Runs on its original store.
    fn is_sound(&self, id: ServerId) -> bool {
        let server = &self.servers[&id];
        server.runs() && server.store.is_the_first()
    }
}
