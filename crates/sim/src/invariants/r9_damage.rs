//! R9: a store that failed a sync serves nothing any more. [DESIGN, R9]

use crate::world::World;
use ebb_types::{ClientReply, ServerId};

impl World<'_> {
    pub(super) fn r9_poisoned_is_silent(&mut self, from: ServerId, reply: &ClientReply) {
        let poisoned = self.servers[&from].replica.stats().poisoned;
        if poisoned && matches!(reply, ClientReply::Data { .. }) {
            self.fail("R9", format!("{from} answers a read from a store that failed a sync"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::SECOND;
    use crate::stories::{begin, broken, cluster, primary, write};
    use ebb_types::ClientReply;

    #[test]
    fn an_answer_from_a_poisoned_store_is_seen() {
        let mut world = cluster();
        let id = primary(&world);
        world.r9_poisoned_is_silent(id, &ClientReply::Data { crcs: Vec::new() });
        assert_eq!(broken(&mut world), None);
        world.server(id).store.poisoned = true;
        begin(&mut world, write(0, 1));
        let end = world.now + SECOND;
        while !world.servers[&id].replica.stats().poisoned && world.step(end) {}
        world.r9_poisoned_is_silent(id, &ClientReply::Data { crcs: Vec::new() });
        assert_eq!(broken(&mut world), Some("R9"));
    }

    #[test]
    fn damage_that_nobody_did_is_seen() {
        let mut world = cluster();
        world.invariants.rot_seen = true;
        world.check_corrupt(0);
        assert_eq!(broken(&mut world), None);
        world.invariants.rot_seen = false;
        world.check_corrupt(0);
        assert_eq!(broken(&mut world), Some("R9"));
    }
}
