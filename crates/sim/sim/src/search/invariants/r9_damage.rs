//! R9: a store that failed a sync no longer serves anything, and damage is found and repaired even if it is never read.

use crate::search::harness::World;
use crate::search::run::copies;
use ebb_types::{BLOCK_BYTES, ClientReply, Rows, ServerId, SetEntry};

impl World<'_> {
    /// After a scrub of everything: no replica and no column has a damaged block.
    pub fn r9_all_is_sound(&mut self) {
        self.fail_if("R9", self.damaged());
    }

    fn damaged(&self) -> Option<String> {
        copies(self).find_map(|(group, server)| {
            // A lost chunk file may have had more blocks than a column has.
            let set = group.column().and_then(|(set, _)| self.newest_state().set(set));
            let of_column =
                |set: &SetEntry| Rows::new(set.shape, self.settings.params().chunk_bytes).column_bytes();
            let blocks = set.map_or(u32::MAX, |set| of_column(set) / BLOCK_BYTES as u32);
            let (chunk, block) = self.servers[&server].store.damaged_block(group, blocks)?;
            Some(format!("{chunk} block {block} of {group} is damaged on {server}, and was not repaired"))
        })
    }

    /// A client got the answer that a block fails its checksum everywhere.
    pub fn check_corrupt(&mut self, op: usize) {
        if !self.harness.invariants.rot_seen {
            self.fail("R9", format!("op {op} was answered with damage, and nothing was damaged"));
        }
    }

    pub(super) fn r9_poisoned_is_silent(&mut self, from: ServerId, reply: &ClientReply) {
        let poisoned = self.servers[&from].replica().stats().poisoned;
        if poisoned && matches!(reply, ClientReply::Data { .. }) {
            self.fail("R9", format!("{from} answers a read from a store that failed a sync"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SECOND;
    use crate::search::run::scrub;
    use crate::search::stories::{begin, broken, cluster, cluster_that_scrubs, primary, secondary, write};
    use ebb_types::ClientReply;

    #[test]
    fn an_answer_from_a_poisoned_store_is_seen() {
        let mut world = cluster();
        let id = primary(&world);
        world.r9_poisoned_is_silent(id, &ClientReply::Data { crcs: Vec::new() });
        assert_eq!(broken(&mut world), None);
        world.server(id).store.disk.fail_syncs(u64::MAX);
        begin(&mut world, write(0, 1));
        let end = world.now + SECOND;
        while !world.servers[&id].replica().stats().poisoned && world.step(end) {}
        world.r9_poisoned_is_silent(id, &ClientReply::Data { crcs: Vec::new() });
        assert_eq!(broken(&mut world), Some("R9"));
    }

    #[test]
    fn unread_rot_is_found_and_repaired() {
        for victim in [primary, secondary] {
            let mut world = cluster_that_scrubs();
            let id = victim(&world);
            world.server(id).store.rot();
            world.r9_all_is_sound();
            assert_eq!(broken(&mut world), Some("R9"));
            scrub(&mut world);
            assert_eq!(broken(&mut world), None);
            assert_eq!(world.servers[&id].replica().stats().repaired_blocks, 1);
        }
    }

    #[test]
    fn a_cluster_that_scrubs_nothing_does_nothing_between_heartbeats() {
        let mut world = cluster_that_scrubs();
        scrub(&mut world);
        let quiet =
            |world: &World| world.servers.values().all(|s| s.is_idle() && !s.replica().is_scrubbing());
        assert!(quiet(&world), "every replica was found right just now");
        let end = world.now + 2 * SECOND;
        let mut always = true;
        world.run_until(end, |world| {
            always &= quiet(world);
            false
        });
        assert!(always, "none is due before half of the period is over");
    }

    #[test]
    fn damage_that_was_not_injected_is_seen() {
        let mut world = cluster();
        world.harness.invariants.rot_seen = true;
        world.check_corrupt(0);
        assert_eq!(broken(&mut world), None);
        world.harness.invariants.rot_seen = false;
        world.check_corrupt(0);
        assert_eq!(broken(&mut world), Some("R9"));
    }
}
