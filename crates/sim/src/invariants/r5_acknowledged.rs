//! R5: a write is acknowledged only when all r copies are durable: on the disk of every target of the configuration that
//! ordered it, and these are r different servers. [Sierra §3.6]

use crate::client::CELLS_PER_BLOCK;
use crate::history::Action;
use crate::world::World;
use ebb_types::{ClientReply, ServerId, Space, group_of};

impl World<'_> {
    pub(super) fn r5_every_copy_is_durable(&mut self, from: ServerId, op: usize, reply: &ClientReply) {
        let asked = &self.history.ops[op];
        let (ClientReply::Done, Action::Write { first, cells }) = (reply, asked.action) else { return };
        if !self.invariants.acknowledged.insert(op) {
            return; // said again: the copies may have moved on since
        }
        let (chunk, value) = (asked.chunk, op as u64 + 1);
        let group = group_of(chunk, self.scenario.params().groups);
        let Some(&version) = self.invariants.first_version.get(&value) else {
            return self.fail("R5", format!("{from} acknowledges op {op}, which nobody ever stored"));
        };
        let Some(entry) = self.servers[&from].replica.map().group(group).cloned() else { return };
        if version.epoch != entry.epoch {
            return; // a retry of what an earlier configuration ordered
        }
        for slot in &entry.slots {
            let Some((target, space)) = slot.target() else {
                return self
                    .fail("R5", format!("{from} acknowledges op {op} with fewer than r targets: {entry:?}"));
            };
            for block in first / CELLS_PER_BLOCK..(first + cells).div_ceil(CELLS_PER_BLOCK) {
                // The answers may have been slow, and the sleeper awake and in sync meanwhile.
                let at = |server, space| self.has(server, group, space, chunk, block, version);
                if !at(target, space) && !at(slot.server, Space::Replica) {
                    let what = format!(
                        "{from} acknowledges op {op} ({version}); {target} lacks {chunk} block {block}"
                    );
                    return self.fail("R5", what);
                }
            }
        }
    }
}
