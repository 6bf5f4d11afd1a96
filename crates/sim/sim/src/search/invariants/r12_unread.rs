//! R12: slow is not failed, and who cannot read is not one who hears nothing: a server calls no other one silent whose
//! messages lie unread in its own sockets.

use crate::search::harness::World;
use crate::search::scenario::Fault;
use ebb_types::{ServerId, ServerReport};

impl World<'_> {
    pub(super) fn r12_unread_is_not_silent(&mut self, from: ServerId, report: &ServerReport) {
        // A store that says that it failed is reported, too.
        let may_have_failed = self.harness.plan.faults.of(Fault::Poison) > 0;
        if let ServerReport::Suspect { server, .. } = report
            && self.servers[&from].has_unread(*server)
            && !may_have_failed
        {
            self.fail("R12", format!("{from} reports {server} as silent, and has not read what it sent"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SECOND;
    use crate::search::stories::{GROUP, begin, broken, cluster, entry, primary, secondary, write};
    use crate::world::happening::Message;
    use crate::world::net::Node;
    use bytes::Bytes;
    use ebb_types::{PeerMessage, Version};

    #[test]
    fn a_server_that_calls_one_silent_whose_messages_it_has_not_read_is_seen() {
        let mut world = cluster();
        world.harness.plan.faults.set(Fault::Poison, 0);
        let (id, peer, epoch) = (secondary(&world), primary(&world), entry(&world).epoch);
        let report = ServerReport::Suspect { group: GROUP, epoch, server: peer };
        world.r12_unread_is_not_silent(id, &report);
        assert_eq!(broken(&mut world), None);
        // While its disk has anything to write it reads nothing.
        world.settings.inbox_bytes = 0;
        world.server(id).slowness = 300;
        begin(&mut world, write(0, 1));
        let end = world.now + SECOND;
        while world.servers[&id].store.is_idle() && world.step(end) {}
        let message = PeerMessage::Committed { group: GROUP, epoch, committed: Version::ZERO };
        world.send(Node::Server(peer), Node::Server(id), Message::Peer { message, payload: Bytes::new() });
        while !world.servers[&id].has_unread(peer) && world.step(end) {}
        world.r12_unread_is_not_silent(id, &report);
        assert_eq!(broken(&mut world), Some("R12"));
    }
}
