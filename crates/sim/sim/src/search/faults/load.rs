//! More load than the disks can bear, at once or for long.

use crate::engine::{MILLI, SECOND};
use crate::search::harness::{Event, World};
use ebb_types::ServerId;

/// The longest pause of a disk under too heavy a load, in leases.
const PAUSES: u64 = 3;

impl World<'_> {
    /// A burst: all disks get more work than they can do.
    pub(super) fn burst(&mut self) {
        self.note(|| "a burst of load".into());
        self.count("overload");
        let slowness = self.fault_random.between(10, 100);
        let time = self.fault_random.between(SECOND, 4 * SECOND);
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.server(id).slowness = slowness;
            self.its_after(time, Event::Heal { server: id });
        }
        let usual = self.harness.plan.clients;
        for client in usual..usual + self.harness.plan.burst_clients {
            let ops = self.fault_random.between(1, 8) as u32;
            if self.client(client).is_done() {
                self.employ(client, ops);
            }
        }
    }

    /// The load is too heavy for all disks: again and again each of them answers nothing for half a lease to three, all
    /// together or one after the other. Any number of servers may be called hung, and service may stop: no more.
    pub(super) fn overload_disks(&mut self) {
        if self.is_overloaded() {
            return;
        }
        let lease = u64::from(self.settings.params().lease_millis) * MILLI;
        let end = self.now + self.fault_random.between(self.harness.plan.round / 4, self.harness.plan.round);
        self.harness.mishaps.overloaded_until = end;
        self.note(|| "the load is too heavy for all disks".into());
        let mut ids: Vec<ServerId> = self.servers.keys().copied().collect();
        let mut at = self.now;
        while at < end {
            let together = self.fault_random.chance(500);
            self.count(if together { "all disks pause" } else { "disks pause in turn" });
            self.fault_random.shuffle(&mut ids);
            let mut last = at;
            for id in &ids {
                let time = self.fault_random.between(lease / 2, PAUSES * lease);
                self.its_at(at, Event::DiskPauses { server: *id, time });
                last = last.max(at + time);
                if !together {
                    at += self.fault_random.below(time);
                }
            }
            // Meanwhile they do some of what has waited.
            at = last + self.fault_random.below(2 * lease);
        }
    }

    pub(super) fn is_overloaded(&self) -> bool {
        self.now < self.harness.mishaps.overloaded_until
    }

    /// Unless it hangs already, or the load is over.
    pub fn pause_disk(&mut self, id: ServerId, time: u64) {
        if !self.stormy || !self.is_overloaded() || self.servers[&id].is_hung() {
            return;
        }
        self.server(id).hang();
        self.note(|| format!("the disk of {id} pauses"));
        self.its_after(time, Event::DiskGoesOn { server: id });
    }
}
