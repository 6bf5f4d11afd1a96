//! R6: offload is deleted only when the server that it is held for has it durably, or another holder does. [Sierra
//! §3.6]

use crate::search::harness::World;
use crate::world::brief::{brief_entry, brief_role};
use ebb_types::{Epoch, GroupEntry, GroupId, Role, ServerId, ServerState, Slot, SlotState};

impl World<'_> {
    pub(super) fn r6_nothing_is_lost_with_it(&mut self, id: ServerId, group: GroupId, role: Role) {
        let Some(entry) = self.servers[&id].replica().map().group(group).cloned() else { return };
        let lost = self.only_copy(id, group, role, &entry);
        // A server that drops late, by an old map, may find that its successor as holder was replaced too (seed
        // 1403842).
        let newest = self.newest_state().group(group);
        let still_lost = newest.is_none_or(|now| self.only_copy(id, group, role, now).is_some());
        if let Some(what) = lost.filter(|_| still_lost) {
            self.fail("R6", format!("{id} drops its {} of {group}: {what}", brief_role(&role)));
        }
    }

    /// An acknowledged value that this server keeps and that the server entitled to it lacks.
    pub(super) fn only_copy(
        &self,
        id: ServerId,
        group: GroupId,
        role: Role,
        entry: &GroupEntry,
    ) -> Option<String> {
        let kept = self.servers[&id].store.kept(group, role);
        let slots: Vec<&Slot> = match role {
            Role::Offload { stands_for } => {
                let slot = entry.slot_of(stands_for);
                slot.map_or_else(|| entry.slots.iter().collect(), |slot| vec![slot])
            }
            Role::Replica => entry.slots.iter().collect(),
        };
        for (chunk, block, value, version) in self.acknowledged_in(&kept) {
            for slot in &slots {
                // Its data may be gone without any member knowing: until they do, every record of it is wrong.
                let own = self.has(slot.server, group, Role::Replica, chunk, block, version)
                    || self.has_forgotten(slot.server);
                let offload = Role::Offload { stands_for: slot.server };
                let holders = slot.holder.into_iter().flat_map(|s| s.servers());
                let theirs = holders
                    .filter(|s| (*s, offload) != (id, role))
                    .any(|s| self.has(s, group, offload, chunk, block, version) || self.has_forgotten(s));
                let away = slot.state != SlotState::InSync;
                // A server whose data is known to be gone copies all of it from a complete replica (seed 4043654: its
                // holder hears of that later than of the time when the server was in sync). One that was declared
                // lost may be empty before another has its place (seed 31030004440).
                let gone =
                    slot.state == SlotState::CatchingUp { since: Epoch(0) } || self.is_given_up(slot.server);
                let replaced = gone
                    && entry
                        .slots
                        .iter()
                        .filter(|s| s.state == SlotState::InSync)
                        .any(|s| self.has(s.server, group, Role::Replica, chunk, block, version));
                if !(own || away && theirs || replaced) {
                    return Some(format!(
                        "{} lacks value {value} ({version}) of {chunk} block {block}; {group} {}",
                        slot.server,
                        brief_entry(entry)
                    ));
                }
            }
        }
        None
    }

    fn is_given_up(&self, server: ServerId) -> bool {
        self.newest_state().server(server).is_some_and(|e| e.state == ServerState::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{GROUP, ask, broken, entry, holder, in_low_gear, secondary, write};

    #[test]
    fn offload_that_is_dropped_before_the_sleeper_has_it_is_seen() {
        let mut world = in_low_gear();
        let (holder, sleeper) = (holder(&world), secondary(&world));
        let role = Role::Offload { stands_for: sleeper };
        world.r6_nothing_is_lost_with_it(holder, GROUP, role);
        assert_eq!(broken(&mut world), None, "nothing was written since it sleeps");
        ask(&mut world, write(0, 1));
        world.r6_nothing_is_lost_with_it(holder, GROUP, role);
        assert_eq!(broken(&mut world), Some("R6"));
        // The sleeping server has it after all.
        let kept = world.servers[&holder].store.kept(GROUP, role);
        world.server(sleeper).store.give(GROUP, Role::Replica, &kept);
        world.r6_nothing_is_lost_with_it(holder, GROUP, role);
        assert_eq!(broken(&mut world), None, "{:?}", entry(&world));
    }
}
