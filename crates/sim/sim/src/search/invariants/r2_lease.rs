//! R2: a primary serves only under an unexpired lease, and a lease ends before the metadata service may appoint
//! another: at any true time at most one server serves a group. [Sierra §3.5]

use crate::search::harness::World;
use ebb_types::{GroupId, ServerId};

impl World<'_> {
    pub(super) fn r2_one_serves(&mut self, id: ServerId) {
        let now = self.now;
        let serves = |id: &ServerId, group| {
            let server = &self.servers[id];
            server.up && server.replica().serves(server.clock.at(now), group)
        };
        let server = &self.servers[&id];
        if !server.up {
            return;
        }
        let (at, replica) = (server.clock.at(now), server.replica());
        for group in (0..self.settings.params().groups).map(GroupId) {
            if !replica.serves(at, group) {
                continue;
            }
            let other = self.servers.keys().find(|other| **other != id && serves(other, group));
            if let Some(other) = other.copied() {
                return self.fail("R2", format!("{id} and {other} both serve {group}"));
            }
            let epoch = replica.fence_of(group);
            let newest = self.harness.invariants.served.entry(group).or_default();
            *newest = epoch.max(*newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::SECOND;
    use crate::search::stories::{GROUP, broken, cluster, entry, primary, secondary};
    use ebb_chunkserver::{Event, shell};
    use ebb_types::{GroupEntry, MapDelta, Slot, SlotState};
    use std::time::Duration;

    #[test]
    fn two_servers_that_serve_a_group_are_seen() {
        let mut world = cluster();
        let (first, second) = (primary(&world), secondary(&world));
        world.r2_one_serves(first);
        assert_eq!(broken(&mut world), None);
        // The other server receives an epoch of its own, in which it is alone.
        let slots = vec![Slot { server: second, state: SlotState::InSync, holder: None }];
        let lone = GroupEntry {
            epoch: entry(&world).epoch.next(),
            primary: Some(second),
            slots,
            ..GroupEntry::unknown()
        };
        let (from, now) = (world.servers[&second].replica().map().version, world.now);
        let delta = MapDelta { from, to: from + 1, groups: vec![(GROUP, lone)], ..MapDelta::default() };
        let server = world.server(second);
        let local = server.clock.at(now);
        let until = local + Duration::from_nanos(SECOND);
        server.shell.on(local, shell::Event::Core(Event::Lease { until }), &mut Vec::new());
        server.shell.on(local, shell::Event::Core(Event::Map(delta)), &mut Vec::new());
        assert!(server.replica().serves(local, GROUP));
        world.r2_one_serves(second);
        assert_eq!(broken(&mut world), Some("R2"));
    }
}
