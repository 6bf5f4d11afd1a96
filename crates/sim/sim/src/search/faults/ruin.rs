//! More damage than can be borne: what is lost must be said, and what is left served.

use crate::engine::SECOND;
use crate::search::client::shared_chunk;
use crate::search::harness::{Event, World};
use ebb_store::Op;
use ebb_types::{BLOCK_BYTES, ChunkId, GroupId, ServerId, group_of};

impl World<'_> {
    /// A chunk rots on any number of its servers, up to all of them.
    pub(super) fn ruin(&mut self) {
        let Some((chunk, mut places)) = self.any_chunk() else { return };
        self.fault_random.shuffle(&mut places);
        let most = places.len() as u64;
        let few = self.fault_random.chance(300);
        places.truncate(self.fault_random.between(if few { 1 } else { most / 2 + 1 }, most) as usize);
        for (id, group) in places {
            self.spoil(id, group, chunk);
        }
    }

    /// A chunk that was stored, often one of the last, and where its replicas or strips should be.
    fn any_chunk(&mut self) -> Option<(ChunkId, Vec<(ServerId, GroupId)>)> {
        let mut stored: Vec<ChunkId> =
            self.harness.coders.iter().flat_map(|c| &c.stored).map(|s| s.chunk).collect();
        if self.fault_random.chance(600) {
            stored = self.harness.coders.iter().filter_map(|c| c.stored.last()).map(|s| s.chunk).collect();
        }
        let coded = self.fault_random.chance(800);
        if let Some(chunk) = self.fault_random.pick(&stored).copied().filter(|_| coded) {
            let set = self.set_of(chunk)?;
            let columns = self.newest_state().set(set)?.columns.iter().enumerate();
            return Some((chunk, columns.map(|(n, c)| (c.server, GroupId::of_column(set, n))).collect()));
        }
        let chunk = shared_chunk(self.fault_random.below(self.harness.plan.chunks.into()) as u32);
        let group = group_of(chunk, self.settings.params().groups);
        let slots = self.newest_state().group(group)?.slots.iter();
        Some((chunk, slots.map(|slot| (slot.server, group)).collect()))
    }

    /// A bit of every page of a chunk's file flips.
    fn spoil(&mut self, id: ServerId, group: GroupId, chunk: ChunkId) {
        let server = self.server(id);
        if !server.runs() || server.is_hung() || server.store.disk_fails() || server.store.is_poisoned() {
            return;
        }
        // What is not in the file yet is moved there.
        server.store.answer(Op::Flush);
        let path = format!("chunks/{:08x}/{:016x}.{:08x}", group.0, chunk.object.0, chunk.index);
        if !server.store.disk.files().contains(&path) {
            return;
        }
        let len = server.store.disk.len(&path);
        let store = &self.servers[&id].store;
        let trial = store.disk.copy();
        let pages = (0..len).step_by(BLOCK_BYTES);
        let random = &mut self.fault_random;
        let bits: Vec<u64> = pages.map(|at| at + random.below((len - at).min(BLOCK_BYTES as u64))).collect();
        bits.iter().for_each(|at| trial.flip_bit(&path, *at));
        let (Some(before), Some(after)) = (store.find(&store.disk), store.find(&trial)) else { return };
        let mut fresh = after.damaged.keys().filter(|place| !before.damaged.contains_key(place)).peekable();
        if fresh.peek().is_none() || fresh.any(|place| place.2 != chunk) || after.mark != before.mark {
            return;
        }
        self.note(|| format!("{id} has damage in all that it has of {chunk}"));
        self.count("damage beyond what can be borne");
        self.harness.invariants.rot_seen = true;
        self.harness.invariants.ruined.insert(chunk);
        let server = self.server(id);
        bits.iter().for_each(|at| server.store.disk.flip_bit(&path, *at));
        server.store.was_damaged(&after);
    }

    /// All disks are full, and stay so for a while.
    pub(super) fn fill_all(&mut self) {
        let time = self.fault_random.delay(2 * SECOND).min(12 * SECOND);
        self.count("all disks full");
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            let room = self.fault_random.below(32 << 10);
            self.fill(id, Some(room));
            self.its_after(time, Event::Heal { server: id });
        }
    }
}
