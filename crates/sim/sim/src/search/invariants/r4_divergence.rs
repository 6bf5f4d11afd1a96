//! R4: no divergence of replicas survives a failover. When nothing is broken and nothing is in flight, all r replicas
//! of a group are identical, block by block, and no other server keeps anything of it. [Sierra §3.7]

use crate::search::harness::World;
use crate::world::store::Block;
use ebb_types::{ChunkId, GroupId, Role, ServerId};

impl World<'_> {
    pub fn r4_replicas_are_equal(&mut self) {
        let state = self.newest_state();
        let mut trouble = None;
        for (group, entry) in state.groups() {
            let first = entry.slots[0].server;
            for slot in &entry.slots[1..] {
                if let Some(difference) = self.difference(group, first, slot.server) {
                    trouble = Some(format!("{group}: {difference}"));
                }
            }
        }
        self.fail_if("R4", trouble);
        self.deletions_are_complete();
    }

    /// A scrub compares copies while they are not being written: then they are always identical.
    pub(super) fn r4_scrubs_find_nothing(&mut self, id: ServerId) {
        if self.servers[&id].replica().stats().scrub.differing_blocks > 0 {
            self.fail("R4", format!("a scrub of {id} finds copies that differ"));
        }
    }

    /// Damage is the scrub's concern; damaged blocks are not compared.
    fn difference(&self, group: GroupId, a: ServerId, b: ServerId) -> Option<String> {
        let store = |id| &self.servers[&id].store;
        let digest = |id| store(id).digest(group).map(|digest| digest.chunks);
        let (Some(left), Some(right)) = (digest(a), digest(b)) else {
            if !self.harness.invariants.ruined.is_empty() {
                return None;
            }
            let lost =
                [a, b].into_iter().find(|id| digest(*id).is_none() && store(*id).damaged.is_empty())?;
            return Some(format!("{lost} does not know what it had"));
        };
        let is_damaged = |chunk: &ChunkId| [a, b].iter().any(|id| store(*id).damaged.contains(chunk));
        let spared = |chunk: &&ChunkId| is_damaged(chunk) || self.harness.invariants.ruined.contains(*chunk);
        let mut all = left.keys().chain(right.keys()).filter(|chunk| !spared(chunk));
        let chunk = *all.find(|chunk| left.get(chunk) != right.get(chunk))?;
        let blocks = |id| store(id).kept_of(group, Role::Replica, chunk);
        let (one, other) = (blocks(a), blocks(b));
        let data = |block: Option<&Block>| block.and_then(|b| b.data.clone());
        let differs = |n: &&u32| data(one.get(n)) != data(other.get(n));
        let what = one.keys().chain(other.keys()).find(differs).map_or("differs".into(), |n| {
            format!("block {n} {} on {a} and {} on {b}", says(one.get(n)), says(other.get(n)))
        });
        Some(format!("{chunk} {what}"))
    }

    /// A deleted chunk is gone everywhere. If only a returning store had data of a chunk whose deletion is forgotten, a
    /// primary orders it again, as zeros.
    fn deletions_are_complete(&mut self) {
        let deleted: Vec<ChunkId> = self.harness.history.deleted().collect();
        for chunk in deleted {
            let group = ebb_types::group_of(chunk, self.settings.params().groups);
            let entry = self.newest_state().group(group).expect("every group is configured");
            let keeps = |id: &ebb_types::ServerId| {
                let kept = self.servers[id].store.kept_of(group, Role::Replica, chunk);
                kept.values().any(|block| block.data.is_some())
            };
            if let Some(id) = entry.slots.iter().map(|s| s.server).find(|id| keeps(id)) {
                return self.fail("R4", format!("{chunk} was deleted and {id} still has blocks of it"));
            }
        }
    }
}

fn says(block: Option<&Block>) -> String {
    let Some(block) = block else { return "is absent".into() };
    let value = super::first_value(block).map_or("zero".into(), |value| value.to_string());
    format!("begins with {value} ({})", block.version)
}

#[cfg(test)]
mod tests {
    use crate::search::client::shared_chunk;
    use crate::search::history::{Action, Outcome};
    use crate::search::stories::{broken, cluster, secondary, stray};
    use ebb_types::Role;

    #[test]
    fn replicas_that_differ_are_seen() {
        let mut world = cluster();
        world.r4_replicas_are_equal();
        assert_eq!(broken(&mut world), None);
        let id = secondary(&world);
        world.server(id).store.put(Role::Replica, stray(), bytes::Bytes::new());
        world.r4_replicas_are_equal();
        assert_eq!(broken(&mut world), Some("R4"));
    }

    #[test]
    fn a_deleted_chunk_that_a_server_keeps_is_seen() {
        let mut world = cluster();
        let op = world.harness.history.begin(shared_chunk(0), Action::Delete, world.now);
        world.r4_replicas_are_equal();
        assert_eq!(broken(&mut world), None, "the deletion is not acknowledged yet");
        world.harness.history.end(op, world.now, Outcome::Done, Vec::new());
        world.r4_replicas_are_equal();
        assert_eq!(broken(&mut world), Some("R4"));
    }
}
