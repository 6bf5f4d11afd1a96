//! R5: a write is acknowledged only when all r copies are durable: on the disk of every target of the configuration
//! that ordered it, and these are r different servers. [Sierra §3.6]

use crate::search::client::CELLS_PER_BLOCK;
use crate::search::harness::World;
use crate::search::history::Action;
use crate::world::brief::brief_entry;
use ebb_types::{ClientReply, Epoch, GroupId, Role, ServerId, SlotState, group_of};

impl World<'_> {
    pub(super) fn r5_every_copy_is_durable(&mut self, from: ServerId, op: usize, reply: &ClientReply) {
        let asked = &self.harness.history.ops[op];
        let (ClientReply::Done { .. }, Action::Write { first, cells }) = (reply, asked.action) else {
            return;
        };
        if !self.harness.invariants.acknowledged.insert(op) {
            return; // a repeated answer: the copies may have moved since
        }
        let (chunk, value) = (asked.chunk, op as u64 + 1);
        if self.harness.history.was_to_be_deleted(chunk) {
            return; // a late repeat: that the chunk was written may be forgotten
        }
        let group = group_of(chunk, self.settings.params().groups);
        let Some(&version) = self.harness.invariants.first_version.get(&value) else {
            return self.fail("R5", format!("{from} acknowledges op {op}, which no server ever stored"));
        };
        let Some(entry) = self.servers[&from].replica().map().group(group).cloned() else { return };
        if version.epoch != entry.epoch {
            return; // a retry of what an earlier configuration ordered
        }
        for slot in &entry.slots {
            let Some((target, role)) = slot.target() else {
                let what =
                    format!("{from} acknowledges op {op} with fewer than r targets: {}", brief_entry(&entry));
                return self.fail("R5", what);
            };
            for block in first / CELLS_PER_BLOCK..(first + cells).div_ceil(CELLS_PER_BLOCK) {
                // The answers may have been slow, and the sleeping server awake and in sync meanwhile. And its store
                // may have been emptied after it answered. And one that was a target then may have left the group
                // since, or lost all, if the primary stood still and does not know.
                let at = |server, role| {
                    self.has(server, group, role, chunk, block, version)
                        || self.has_forgotten(server)
                        || self.has_nothing_any_more(server, group)
                };
                if !at(target, role) && !at(slot.server, Role::Replica) {
                    let what = format!(
                        "{from} acknowledges op {op} ({version}); {target} lacks {chunk} block {block}"
                    );
                    return self.fail("R5", what);
                }
            }
        }
    }

    /// By the newest configuration.
    fn has_nothing_any_more(&self, server: ServerId, group: GroupId) -> bool {
        let nothing = SlotState::CatchingUp { since: Epoch(0) };
        let entry = self.newest_state().group(group);
        entry.is_some_and(|entry| {
            entry.members().all(|(member, _)| member != server)
                || entry.slot_of(server).is_some_and(|slot| slot.state == nothing)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::client::shared_chunk;
    use crate::search::stories::{
        GROUP, ask, broken, cluster, holder, in_low_gear, primary, secondary, write,
    };
    use ebb_types::Version;

    const DONE: ClientReply = ClientReply::Done { newest: Version::ZERO };

    #[test]
    fn an_acknowledgement_without_a_copy_is_seen() {
        let mut world = cluster();
        let from = primary(&world);
        world.harness.invariants.acknowledged.clear();
        world.r5_every_copy_is_durable(from, 0, &DONE);
        assert_eq!(broken(&mut world), None);
        let other = secondary(&world);
        world.server(other).store.drop_role(GROUP, Role::Replica);
        world.harness.invariants.acknowledged.clear();
        world.r5_every_copy_is_durable(from, 0, &DONE);
        assert_eq!(broken(&mut world), Some("R5"));
    }

    #[test]
    fn an_acknowledgement_without_the_offload_is_seen() {
        let mut world = in_low_gear();
        ask(&mut world, write(2, 1));
        let (from, holder, sleeper) = (primary(&world), holder(&world), secondary(&world));
        world.harness.invariants.acknowledged.clear();
        world.r5_every_copy_is_durable(from, 1, &DONE);
        assert_eq!(broken(&mut world), None);
        world.server(holder).store.drop_role(GROUP, Role::Offload { stands_for: sleeper });
        world.harness.invariants.acknowledged.clear();
        world.r5_every_copy_is_durable(from, 1, &DONE);
        assert_eq!(broken(&mut world), Some("R5"));
    }

    #[test]
    fn an_acknowledgement_of_what_no_server_stored_is_seen() {
        let mut world = cluster();
        let op = world.harness.history.begin(shared_chunk(0), write(0, 1), world.now);
        world.r5_every_copy_is_durable(primary(&world), op, &DONE);
        assert_eq!(broken(&mut world), Some("R5"));
    }
}
