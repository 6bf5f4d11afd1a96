//! A write may be given up as unknown only if no server can remember its outcome: a server that was a target from the
//! client's epoch on, without a restart, received every request and can answer for it.
//! [`ebb_client_core::Failure::Unknown`]

use crate::search::harness::World;
use ebb_types::{Epoch, GroupEntry, GroupId, ServerId};

impl World<'_> {
    /// The first map that includes this run.
    pub fn server_begins_to_remember(&mut self, id: ServerId) {
        let (server, remembers) = (&self.servers[&id], &mut self.harness.invariants.remembers);
        let known = remembers.get(&id).filter(|(life, groups)| *life == server.life && !groups.is_empty());
        if known.is_none() && server.replica().is_registered() {
            let groups = (0..).map(GroupId).zip(&server.replica().map().groups);
            let groups = groups.map(|(group, entry)| (group, entry.epoch)).collect();
            remembers.insert(id, (server.life, groups));
        }
    }

    /// A client reported an unknown outcome for a write that may have been carried out. It knew `epoch` when it first
    /// sent it.
    pub fn check_unknown(&mut self, op: usize, group: GroupId, epoch: Epoch) {
        // Expected if servers remember few records by design.
        if self.settings.remembered < ebb_chunkserver::REMEMBERED {
            return;
        }
        let since = self.harness.invariants.entries.range((group, epoch)..=(group, Epoch(u32::MAX)));
        let since: Vec<&GroupEntry> = since.map(|(_, entry)| entry).collect();
        let remembers = &self.harness.invariants.remembers;
        let witness = self.servers.values().find(|server| {
            let groups = remembers.get(&server.id).filter(|(life, _)| *life == server.life);
            let began = groups.and_then(|(_, groups)| groups.get(&group));
            server.runs() && began.is_some_and(|began| *began <= epoch) && stays_target(server.id, &since)
        });
        if let Some(server) = witness {
            let what =
                format!("op {op} is given up as unknown, and {} was told of all since {epoch:?}", server.id);
            self.fail("liveness", what);
        }
    }
}

/// In consecutive configurations.
fn stays_target(server: ServerId, entries: &[&GroupEntry]) -> bool {
    let is_target = |entry: &&GroupEntry| !entry.salvage && entry.targets().any(|target| target == server);
    !entries.is_empty() && entries.iter().all(is_target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{GROUP, broken, cluster, entry};

    #[test]
    fn a_write_that_is_given_up_although_a_server_remembers_is_seen() {
        let mut world = cluster();
        let now = entry(&world);
        let began = |world: &mut World, server: ServerId, epoch: Epoch| {
            let (_, groups) = world.harness.invariants.remembers.get_mut(&server).expect("it has had a map");
            groups.insert(GROUP, epoch);
        };
        let later = Epoch(now.epoch.0 + 1);
        let (first, others) = now.slots.split_first().expect("there are replicas");
        others.iter().for_each(|slot| began(&mut world, slot.server, later));
        let mut none_left = cluster();
        none_left.harness.invariants.entries.insert((GROUP, now.epoch), now.clone());
        now.slots.iter().for_each(|slot| began(&mut none_left, slot.server, later));
        none_left.check_unknown(0, GROUP, now.epoch);
        assert_eq!(broken(&mut none_left), None);
        began(&mut world, first.server, now.epoch);
        world.check_unknown(0, GROUP, now.epoch);
        assert_eq!(broken(&mut world), Some("liveness"));
    }
}
