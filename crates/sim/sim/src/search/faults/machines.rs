//! Machines that are suspended, machines that boot again, and disks that hang or pause.

use crate::engine::{MILLI, SECOND};
use crate::world::coder::CODERS;
use crate::world::net::Node;
use crate::world::{Happening, World};
use ebb_types::ServerId;

/// The longest pause of a disk under too heavy a load, in leases.
const PAUSES: u64 = 3;

impl World<'_> {
    /// A server, a metadata member or a client stands still, often for longer than any lease.
    pub(super) fn suspend(&mut self, id: ServerId) {
        let long = self.fault_random.chance(300);
        let time = match long {
            true => self.fault_random.between(10, 100) * SECOND,
            false => self.fault_random.delay(2 * SECOND).min(20 * SECOND),
        };
        let kind = self.fault_random.below(10);
        let node = match kind {
            0..=3 if self.servers[&id].runs() => {
                self.suspend_server(id);
                self.after(time, Happening::Resume { server: id });
                Node::Server(id)
            }
            4..=5 => match self.member_that_runs() {
                Some(member) => {
                    self.suspend_member(member);
                    self.after(time, Happening::ResumeMember { member });
                    Node::Member(member)
                }
                None => return,
            },
            _ => match self.client_at_work() {
                Some(client) => {
                    self.suspend_client(client);
                    self.after(time, Happening::ResumeClient { client });
                    Node::Client(client)
                }
                None => return,
            },
        };
        self.note(|| format!("{node} is suspended"));
        self.count(match node {
            Node::Server(_) => "server suspended",
            Node::Member(_) => "metadata member suspended",
            Node::Client(_) => "client suspended",
        });
        // Those that send to it give up in the end.
        if time > 5 * SECOND && self.fault_random.chance(500) {
            self.net.reset_all(node);
            for other in self.all_nodes() {
                if other != node {
                    self.connection_breaks(node, other);
                }
            }
        }
    }

    fn member_that_runs(&mut self) -> Option<u64> {
        let runs = self.members.iter().filter(|(_, m)| m.up && !m.paused).map(|(id, _)| *id);
        let members: Vec<u64> = runs.collect();
        self.fault_random.pick(&members).copied()
    }

    fn client_at_work(&mut self) -> Option<u32> {
        let clients = self.clients.iter().filter(|c| !c.is_done()).map(|c| c.id);
        let coders = (CODERS..).zip(&self.coders).filter(|(_, c)| !c.is_done()).map(|(id, _)| id);
        let stands = |id: &u32| !self.still.contains_key(id);
        let all: Vec<u32> = clients.chain(coders).filter(stands).collect();
        self.fault_random.pick(&all).copied()
    }

    /// A disk answers nothing, and fails nothing, while its server lives.
    pub(super) fn hang(&mut self, id: ServerId) {
        let long = self.fault_random.chance(300);
        let time = match long {
            true => self.fault_random.between(8, 40) * SECOND,
            false => self.fault_random.delay(2 * SECOND).min(10 * SECOND),
        };
        self.server(id).hung = true;
        self.note(|| format!("the disk of {id} hangs"));
        self.count("hung disk");
        self.after(time, Happening::Heal { server: id });
    }

    /// The load is too heavy for all disks: again and again each of them answers nothing for half a lease to three, all
    /// together or one after the other. Any number of servers may be called hung, and service may stop: no more.
    pub(super) fn overload_disks(&mut self) {
        if self.is_overloaded() {
            return;
        }
        let lease = u64::from(self.scenario.params().lease_millis) * MILLI;
        let end = self.now + self.fault_random.between(self.scenario.round / 4, self.scenario.round);
        self.mishaps.overloaded_until = end;
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
                self.at(at, Happening::DiskPauses { server: *id, time });
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
        self.now < self.mishaps.overloaded_until
    }

    /// Unless it hangs already, or the load is over.
    pub fn pause_disk(&mut self, id: ServerId, time: u64) {
        if !self.stormy || !self.is_overloaded() || self.servers[&id].hung {
            return;
        }
        self.server(id).hung = true;
        self.note(|| format!("the disk of {id} pauses"));
        self.after(time, Happening::DiskGoesOn { server: id });
    }

    /// A machine boots again, sometimes within a moment: its boot clock begins again.
    pub(super) fn reboot(&mut self, id: ServerId) {
        let down = self.fault_random.delay(40 * MILLI).min(4 * SECOND);
        self.count("machine rebooted");
        if self.fault_random.chance(300)
            && let Some(member) = self.member_that_runs()
        {
            self.crash_member(member);
            let node = self.members.get_mut(&member).expect("it runs");
            node.clock = node.clock.restarted(self.now, &mut self.fault_random);
            return self.after(down, Happening::RestartMember { member });
        }
        // Sometimes what its former run sent is answered only when the next one runs.
        if self.fault_random.chance(500)
            && let Some(member) = self.member_that_runs()
        {
            self.suspend_member(member);
            let wait = self.fault_random.between(300 * MILLI, 1200 * MILLI);
            let time = wait + down + self.fault_random.between(5 * MILLI, SECOND / 2);
            self.after(time, Happening::ResumeMember { member });
            return self.after(wait, Happening::Reboot { server: id, down });
        }
        self.boot(id, down);
    }

    /// A while after it was to boot. Not once faults have ended, and not a machine that sleeps. Nor if a disk was lost
    /// meanwhile: the server may keep in memory by now what that disk can only be computed from.
    pub fn boot_late(&mut self, id: ServerId, down: u64) {
        if self.stormy && self.servers[&id].runs() && !self.rebuilds() {
            self.boot(id, down);
        }
    }

    /// Its power fails, and returns after `down`.
    pub fn boot(&mut self, id: ServerId, down: u64) {
        self.crash(id);
        let (now, random) = (self.now, &mut self.fault_random);
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        server.clock = server.clock.restarted(now, random);
        self.after(down, Happening::Restart { server: id });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{ask, begin, cluster, primary, read, secondary, write};
    use ebb_meta::SwitchAction;
    use ebb_types::Depth;

    #[test]
    fn no_machine_boots_late_while_a_lost_disk_is_rebuilt() {
        let mut world = cluster();
        let (id, other) = (primary(&world), secondary(&world));
        world.stormy = true;
        for (lost, boots) in [(Some(other), false), (None, true)] {
            world.lost_wanted = lost;
            world.boot_late(id, SECOND);
            assert_eq!(!world.servers[&id].up, boots);
        }
    }

    /// The order of a leader that was deposed, for one.
    #[test]
    fn no_late_switch_turns_off_a_server_that_takes_part_while_a_lost_disk_is_rebuilt() {
        let sleep = SwitchAction::Sleep(Depth::Standby);
        let mut world = cluster();
        let (id, other) = (primary(&world), secondary(&world));
        world.stormy = true;
        for (lost, sleeps) in [(Some(other), false), (None, true)] {
            world.lost_wanted = lost;
            let life = world.members[&1].life;
            world.switch((1, life), id, sleep, true);
            assert_eq!(world.servers[&id].asleep, sleeps);
        }
    }

    #[test]
    fn while_all_disks_pause_again_and_again_service_may_stop_and_nothing_is_lost() {
        let mut world = cluster();
        (world.stormy, world.scenario.round) = (true, 60 * SECOND);
        world.overload_disks();
        let (end, mut paused) = (world.mishaps.overloaded_until, false);
        while world.now < end {
            if world.clients[0].is_done() {
                begin(&mut world, write(0, 2));
            }
            world.run_until(world.now + SECOND / 2, |_| false);
            paused |= world.servers.values().any(|server| server.hung);
            assert!(!world.can_spare(&[ServerId(1)]) || world.now >= end, "others may be called hung");
        }
        world.heal_everything();
        assert!(world.servers.values().all(|server| !server.hung));
        ask(&mut world, read(0, 2));
        assert!(paused && world.violation.is_none());
    }
}
