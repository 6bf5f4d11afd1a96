//! What survives is served: while a complete copy of a group runs, nothing that happened to the others takes it out of service
//! for good. Which copies are complete is told by the newest configuration that served, or was put on record to: nothing was ordered without
//! them since.

use crate::brief::brief_entry;
use crate::world::World;
use ebb_types::{GroupEntry, GroupId, ServerId, Slot, SlotState};

impl World<'_> {
    /// A group that nobody serves, and who could.
    pub fn forsaken(&self) -> Option<String> {
        let serves = |group: GroupId, primary: ServerId| {
            let server = &self.servers[&primary];
            server.runs() && server.replica.serves(server.clock.at(self.now), group)
        };
        let groups = self.newest_state().groups();
        let mut unserved = groups.filter(|(group, e)| !e.primary.is_some_and(|p| serves(*group, p)));
        unserved.find_map(|(group, entry)| {
            let slot = self.survivor(group, entry)?;
            Some(format!("{group} is not served, {}, though {slot} survived", brief_entry(entry)))
        })
    }

    fn survivor(&self, group: GroupId, entry: &GroupEntry) -> Option<ServerId> {
        let served = self.invariants.served.get(&group);
        let newest = served.and_then(|epoch| self.invariants.entries.get(&(group, *epoch)));
        let complete = |slot: &&Slot| {
            let kept = slot.stand_in.is_some_and(|s| s.covered && self.is_sound(s.server));
            self.is_sound(slot.server) && (slot.state == SlotState::InSync || kept)
        };
        newest.unwrap_or(entry).slots.iter().find(complete).map(|slot| slot.server)
    }

    /// Runs, on the store that it began with.
    fn is_sound(&self, id: ServerId) -> bool {
        let server = &self.servers[&id];
        server.runs() && server.store.is_the_first()
    }
}
