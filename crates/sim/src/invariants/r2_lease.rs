//! R2: a primary serves only under an unexpired lease, and a lease ends before the metadata service may appoint another: at
//! any true time at most one server serves a group. [Sierra §3.5]

use crate::world::World;
use ebb_types::{GroupId, ServerId};

impl World<'_> {
    pub(super) fn r2_one_serves(&mut self, id: ServerId) {
        let now = self.now;
        let serves = |id: &ServerId, group| {
            let server = &self.servers[id];
            server.up && server.replica.serves(server.clock.at(now), group)
        };
        for group in (0..self.scenario.params().groups).map(GroupId) {
            if !serves(&id, group) {
                continue;
            }
            let other = self.servers.keys().find(|other| **other != id && serves(other, group));
            if let Some(other) = other.copied() {
                return self.fail("R2", format!("{id} and {other} both serve {group}"));
            }
        }
    }
}
