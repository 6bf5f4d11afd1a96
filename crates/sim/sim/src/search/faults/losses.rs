//! Servers that are gone for good, disks that die while their set hibernates, and outages that are worse than can be
//! borne, and end.

use crate::search::harness::World;
use crate::world::happening::Happening;
use crate::world::net::Node;
use ebb_store::mem::MemDisk;
use ebb_types::{Epoch, Incarnation, PoolId, ServerId, SetEntry, SlotState};

impl World<'_> {
    /// A server is gone for good; at most one per run.
    pub(super) fn lose(&mut self, id: ServerId) {
        let state = self.newest_state();
        let peers =
            state.servers().filter(|s| Some(s.gear_group) == state.server(id).map(|e| e.gear_group)).count();
        if self.harness.lost.is_some() || peers < 2 || !self.can_spare(&[id]) {
            return;
        }
        self.note(|| format!("{id} is gone for good"));
        self.count("server lost for good");
        self.crash(id);
        self.server(id).lost = true;
        self.harness.lost = Some(id);
        self.wishes.want_lost(Some(id));
        self.ask();
    }

    /// While a set hibernates its power fails, and before it wakes some disks are found empty. What was in memory is
    /// gone; whatever is on the other disks must be enough.
    pub(super) fn lose_asleep(&mut self) {
        let sleeps = |entry: &&SetEntry| {
            let asleep =
                |id: ServerId| self.servers.get(&id).is_some_and(|s| s.is_asleep() && !s.lost && !s.missing);
            entry.hibernates() && entry.columns.iter().all(|c| asleep(c.server))
        };
        let sleeping: Vec<SetEntry> =
            self.newest_state().sets().map(|(_, entry)| entry).filter(sleeps).cloned().collect();
        let Some(entry) = self.fault_random.pick(&sleeping).cloned() else { return };
        let most = entry.shape.awake_tolerance().min(entry.shape.parity()) as u64;
        let count = self.fault_random.between(1, most) as usize;
        let mut ids: Vec<ServerId> = entry.columns.iter().map(|c| c.server).collect();
        self.fault_random.shuffle(&mut ids);
        let all = ids.clone();
        ids.truncate(count);
        let whole = |since: SlotState| match since {
            SlotState::InSync => true,
            SlotState::Away { since } => since > Epoch(0),
            SlotState::CatchingUp { .. } => false,
        };
        let known =
            |id: &ServerId| self.newest_state().server(*id).filter(|e| e.incarnation > Incarnation(0));
        let known: Vec<_> = ids.iter().filter_map(known).map(|e| e.store).collect();
        if self.harness.invariants.rot_seen
            || known.len() < count
            || all.iter().any(|id| self.has_forgotten(*id))
            || !entry.columns.iter().all(|c| whole(c.state))
        {
            return;
        }
        self.count("disk lost while its set hibernates");
        all.iter().for_each(|id| self.crash(*id));
        for (id, known) in ids.into_iter().zip(known) {
            self.note(|| format!("{id}: its disk is lost while it sleeps"));
            self.server(id).exchange_directory(MemDisk::new(), Some(known));
        }
    }

    /// Servers of a pool fail together, often more than can be borne, and return one by one with all that they had. Or
    /// they are cut off from the metadata service.
    pub(super) fn outage(&mut self) {
        let Some(lost_after) = self.settings.timing.lost_after else { return };
        let ids = self.victims();
        let away = lost_after.as_nanos() as u64;
        let is_cut = self.fault_random.chance(300);
        self.count("outage");
        for id in ids {
            let time = away / 1000 * self.fault_random.between(500, 4000);
            if is_cut {
                self.note(|| format!("{id} is cut off from the metadata service"));
                for member in self.members.keys().copied() {
                    self.net.cut(Node::Server(id), Node::Member(member), self.now + time, false);
                    self.net.cut(Node::Member(member), Node::Server(id), self.now + time, false);
                }
                continue;
            }
            self.crash(id);
            self.after(time, Happening::Restart { server: id });
        }
    }

    /// Up to half of a pool's servers; or of a set as many data servers as it has parity servers, which is more than it
    /// bears while these sleep.
    fn victims(&mut self) -> Vec<ServerId> {
        let replicated = self.harness.coders.is_empty() || self.fault_random.chance(300);
        let pool = if replicated { PoolId::REPLICATED } else { PoolId(1) };
        let state = self.newest_state();
        let of_pool: Vec<ServerId> = state.servers().filter(|e| e.pool == pool).map(|e| e.id).collect();
        let sets: Vec<SetEntry> = state.sets().map(|(_, entry)| entry.clone()).collect();
        let of_a_set = self.fault_random.chance(600);
        let (mut ids, most) = match self.fault_random.pick(&sets).filter(|_| !replicated && of_a_set) {
            Some(set) => {
                let data = set.columns.iter().take(set.shape.data()).map(|c| c.server);
                (data.collect(), set.shape.parity())
            }
            None => {
                let most = (of_pool.len() as u64 / 2).max(1);
                (of_pool, self.fault_random.between(1, most) as usize)
            }
        };
        ids.retain(|id| !self.servers[id].lost);
        self.fault_random.shuffle(&mut ids);
        ids.truncate(most);
        ids
    }
}
