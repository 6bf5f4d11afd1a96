//! A server is given up without an administrator only if no acknowledged data depends on its disk: all of it is on
//! other servers' disks, which are not given up (`docs/protocol.md`).

use crate::search::coder::Stored;
use crate::search::harness::World;
use crate::search::invariants::GIVEN_UP;
use crate::world::server::Server;
use ebb_erasure::Codes;
use ebb_types::{ChunkId, GroupId, Role, ServerId, ServerState, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// A coder's write: its chunk, and where it begins.
type Write = (ChunkId, u32);
type Writes = BTreeMap<Write, Stored>;

impl World<'_> {
    pub(super) fn nothing_is_given_up_with_a_server(&mut self, member: u64) {
        let state = self.members[&member].member.state();
        let lost: BTreeSet<ServerId> =
            state.servers().filter(|e| e.state == ServerState::Lost).map(|e| e.id).collect();
        if lost == self.harness.invariants.given_up || state.version() < self.newest_state().version() {
            return;
        }
        let before = std::mem::replace(&mut self.harness.invariants.given_up, lost.clone());
        let fresh = |id: &&ServerId| !before.contains(id) && self.harness.lost != Some(**id);
        for id in lost.iter().filter(fresh).copied().collect::<Vec<_>>() {
            self.count("server given up");
            if let Some(what) = self.only_there(id, &lost).filter(|_| !self.wishes.accepts_loss()) {
                self.fail(GIVEN_UP, format!("{id} is declared lost, and it has {what}"));
            }
        }
    }

    /// Acknowledged data that no server has beside this one and those that are `lost`.
    fn only_there(&self, id: ServerId, lost: &BTreeSet<ServerId>) -> Option<String> {
        self.block_only_on(id, lost).or_else(|| self.row_that_needs(id, lost))
    }

    fn block_only_on(&self, id: ServerId, lost: &BTreeSet<ServerId>) -> Option<String> {
        let store = &self.servers[&id].store;
        let others = || self.servers.values().filter(|s| s.id != id && !s.lost && !lost.contains(&s.id));
        for (group, role) in store.roles().into_iter().filter(|(group, _)| group.column().is_none()) {
            for (chunk, block, value, version) in self.acknowledged_in(&store.kept(group, role)) {
                // What a fault took from another disk is not lost with this one (seed 30263034500).
                let has = |s: &Server| s.store.keeps(chunk, block, version) || s.store.has_lost(chunk, block);
                if !others().any(has) {
                    return Some(format!("the only copy of {value} in {chunk} block {block} ({version})"));
                }
            }
        }
        None
    }

    /// A row of which the others have too few strips, and with this server's enough.
    fn row_that_needs(&self, id: ServerId, lost: &BTreeSet<ServerId>) -> Option<String> {
        let state = self.newest_state();
        let (set, entry) = state.sets().find(|(_, entry)| entry.column_of(id).is_some())?;
        let stored = self.harness.coders.iter().flat_map(|c| &c.stored);
        let stored = stored.filter(|s| self.set_of(s.chunk) == Some(set));
        let stored: Writes = stored.map(|s| ((s.chunk, s.offset), *s)).collect();
        let mut strips: BTreeMap<Write, BTreeSet<usize>> = BTreeMap::new();
        let mut own = strips.clone();
        for server in self.servers.values().filter(|s| !s.lost && (s.id == id || !lost.contains(&s.id))) {
            // What a fault took from another disk is not lost with this one, and what it took from this one already is.
            let is_other = server.id != id;
            let found = if is_other { &mut strips } else { &mut own };
            for (write, strip) in self.strips_on(server, set, &stored, is_other) {
                found.entry(write).or_default().insert(strip);
            }
        }
        let (codes, data) = (Codes::new(entry.shape), Vec::from_iter(0..entry.shape.data()));
        stored.keys().find_map(|write| {
            let (chunk, offset) = write;
            let others = strips.get(write).cloned().unwrap_or_default();
            let all = own.get(write).map_or(others.clone(), |own| &others | own);
            // Extra strips are not worth as much as others.
            let code = codes.of(entry.turn(*chunk));
            let suffice = |strips: &BTreeSet<usize>| {
                code.sources(&strips.iter().copied().collect::<Vec<_>>(), &data).is_some()
            };
            let what = format!("strips of {chunk}+{offset}, of which {} are on other disks", others.len());
            (!suffice(&others) && suffice(&all)).then_some(what)
        })
    }

    /// The whole strips of writes that a server has on its disk, with what of them is damaged there or without.
    fn strips_on(
        &self,
        server: &Server,
        set: SetId,
        stored: &Writes,
        with_damaged: bool,
    ) -> Vec<(Write, usize)> {
        let mut found = Vec::new();
        let of_set = |(group, _): &(GroupId, Role)| group.column().is_some_and(|(of, _)| of == set);
        for (group, role) in server.store.roles().into_iter().filter(of_set) {
            let (_, strip) = group.column().expect("just asked");
            for (chunk, blocks) in server.store.written(group, role, with_damaged) {
                let writes = stored.range((chunk, 0)..=(chunk, u32::MAX));
                let whole =
                    writes.filter(|(_, s)| (s.first..s.first + s.blocks).all(|n| blocks.contains(&n)));
                found.extend(whole.map(|(write, _)| (*write, strip)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{GROUP, cluster, primary, secondary};
    use crate::world::store::{Block, Kept};
    use bytes::Bytes;
    use ebb_store::mem::MemDisk;
    use ebb_types::{BLOCK_BYTES, Epoch, ObjectId, PoolId, Random, Version};

    #[test]
    fn a_server_with_the_only_copy_is_needed() {
        let mut world = cluster();
        let (id, other) = (primary(&world), secondary(&world));
        let lost = |lost: &[ServerId]| lost.iter().copied().collect();
        assert_eq!(world.block_only_on(id, &lost(&[id])), None);
        assert!(world.block_only_on(id, &lost(&[id, other])).is_some(), "the other one is given up, too");
        world.server(other).store.drop_role(GROUP, Role::Replica);
        assert!(world.block_only_on(id, &lost(&[id])).is_some());
    }

    #[test]
    fn what_a_fault_took_from_another_disk_is_not_lost_with_a_server() {
        let mut world = cluster();
        let (id, other) = (primary(&world), secondary(&world));
        world.server(other).store.lose_file();
        world.crash(other);
        assert!(world.servers[&other].store.damaged_block(GROUP, u32::MAX).is_some());
        assert_eq!(world.block_only_on(id, &BTreeSet::from([id])), None);
        // An empty disk has lost nothing: it never had it.
        world.server(other).store.replace(MemDisk::new());
        assert!(world.block_only_on(id, &BTreeSet::from([id])).is_some());
    }

    /// A disk that was emptied, and then filled again in part, once counted as one that has what a fault had taken from
    /// the disk before.
    #[test]
    fn an_emptied_disk_has_no_strip_that_was_damaged_before() {
        let mut world = cluster();
        let members = [primary(&world), secondary(&world)];
        let id = world.servers.keys().copied().find(|id| !members.contains(id)).expect("there are four");
        let set = SetId(0);
        let chunk = ChunkId { object: ObjectId(1).in_pool(PoolId(1)), index: 0 };
        let write = (chunk, 0);
        let len = 4 * BLOCK_BYTES as u32;
        let stored = Stored { chunk, offset: 0, len, first: 0, blocks: 4, epoch: Epoch(1) };
        let stored = Writes::from([(write, stored)]);
        let strip_of = |blocks: u32| -> Kept {
            let version = Version { epoch: Epoch(1), seq: 1 };
            let block = |n: u32| {
                let data = Some(Bytes::from(vec![1 + n as u8; BLOCK_BYTES]));
                (n, Block { version, data })
            };
            [(chunk, (0..blocks).map(block).collect())].into()
        };
        let found = |world: &World| {
            let server = &world.servers[&id];
            [true, false].map(|with_damaged| world.strips_on(server, set, &stored, with_damaged))
        };
        let column = GroupId::of_column(set, 2);
        world.server(id).store.give(column, Role::Replica, &strip_of(4));
        assert_eq!(found(&world), [vec![(write, 2)], vec![(write, 2)]]);
        world.server(id).store.rot();
        let rotten = &world.servers[&id].store;
        let what = rotten.find(&rotten.disk).expect("it starts all the same");
        world.server(id).store.was_damaged(&what);
        assert_eq!(found(&world), [vec![(write, 2)], vec![]], "its last block is damaged");
        world.crash(id);
        world.server(id).store.replace(MemDisk::new());
        world.server(id).store.open(&mut Random::new(1)).expect("an empty disk");
        world.server(id).store.give(column, Role::Replica, &strip_of(3));
        assert!(found(&world).concat().is_empty(), "its last block is missing");
        let version = Version { epoch: Epoch(1), seq: 1 };
        assert!(!world.servers[&id].store.has(column, Role::Replica, chunk, 3, version));
    }
}
