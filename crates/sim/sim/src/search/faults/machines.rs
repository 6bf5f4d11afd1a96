//! Servers that crash, alone or together, machines that are suspended, and machines that boot again.

use crate::engine::{MILLI, SECOND};
use crate::search::coder::CODERS;
use crate::search::harness::{Event, World};
use crate::world::happening::Happening;
use crate::world::net::Node;
use ebb_types::ServerId;

impl World<'_> {
    /// A server with writes in flight, if there is one: a fault there endangers more.
    pub(super) fn busy_or(&self, id: ServerId) -> ServerId {
        self.servers.values().find(|s| s.runs() && !s.store.is_idle()).map_or(id, |s| s.id)
    }

    pub(super) fn crash_for_a_while(&mut self, id: ServerId) {
        self.crash(id);
        let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
        self.after(down, Happening::Restart { server: id });
    }

    /// All servers of a rack at once.
    pub(super) fn crash_rack(&mut self, id: ServerId) {
        let racks = &self.settings.bootstrap.servers;
        let rack = racks.iter().find(|s| s.id == id).map(|s| s.rack);
        let all = racks.iter().filter(|s| Some(s.rack) == rack).map(|s| s.id).collect();
        self.count("rack crash");
        self.crash_together(all);
    }

    /// All servers at once. The metadata service keeps running.
    pub fn cut_power(&mut self) {
        self.count("power cut");
        self.crash_together(self.servers.keys().copied().collect());
    }

    /// Each returns in its own time; sometimes all are away for longer than any lease. Sleeping servers are found
    /// switched off.
    fn crash_together(&mut self, all: Vec<ServerId>) {
        let pause = if self.fault_random.chance(500) { self.fault_random.delay(6 * SECOND) } else { 0 };
        for id in all {
            let server = &self.servers[&id];
            if server.lost {
                continue;
            }
            self.crash(id);
            let down = pause.min(10 * SECOND) + self.fault_random.delay(400 * MILLI).min(12 * SECOND);
            self.after(down, Happening::Restart { server: id });
        }
    }

    pub(super) fn pause_for_a_while(&mut self, id: ServerId) {
        self.server(id).pause();
        self.note(|| format!("{id} stops"));
        self.count("server stopped");
        let time = self.fault_random.delay(500 * MILLI).min(10 * SECOND);
        self.its_after(time, Event::Resume { server: id });
    }

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
                self.its_after(time, Event::Resume { server: id });
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
                    self.its_after(time, Event::ResumeClient { client });
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
        let clients = self.harness.clients.iter().filter(|c| !c.is_done()).map(|c| c.id);
        let coders = (CODERS..).zip(&self.harness.coders).filter(|(_, c)| !c.is_done()).map(|(id, _)| id);
        let stands = |id: &u32| !self.harness.still.contains_key(id);
        let all: Vec<u32> = clients.chain(coders).filter(stands).collect();
        self.fault_random.pick(&all).copied()
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
            return self.its_after(wait, Event::Reboot { server: id, down });
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
    use crate::search::stories::{ask, begin, cluster, entry, primary, read, rest, secondary, write};
    use ebb_meta::SwitchAction;
    use ebb_types::Depth;

    #[test]
    fn a_server_wakes_from_suspend_without_its_lease_and_with_what_is_left_of_its_timers() {
        let mut world = cluster();
        let id = primary(&world);
        let left = world.servers[&id].beat_at - world.now;
        world.suspend_server(id);
        world.run_until(world.now + 30 * SECOND, |_| false);
        assert_ne!(entry(&world).primary, Some(id), "others have taken over");
        world.resume(id);
        let now = world.now;
        let server = &world.servers[&id];
        assert!(!server.replica().has_lease(server.clock.at(now)) && server.beat_at == now + left);
        rest(&mut world);
        assert!(world.violation.is_none());
    }

    #[test]
    fn no_machine_boots_late_while_a_lost_disk_is_rebuilt() {
        let mut world = cluster();
        let (id, other) = (primary(&world), secondary(&world));
        world.stormy = true;
        for (lost, boots) in [(Some(other), false), (None, true)] {
            world.wishes.want_lost(lost);
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
            world.wishes.want_lost(lost);
            let life = world.members[&1].life;
            world.switch((1, life), id, sleep, true);
            assert_eq!(world.servers[&id].is_asleep(), sleeps);
        }
    }

    #[test]
    fn while_all_disks_pause_again_and_again_service_may_stop_and_nothing_is_lost() {
        let mut world = cluster();
        (world.stormy, world.harness.plan.round) = (true, 60 * SECOND);
        world.overload_disks();
        let (end, mut paused) = (world.harness.mishaps.overloaded_until, false);
        while world.now < end {
            if world.harness.clients[0].is_done() {
                begin(&mut world, write(0, 2));
            }
            world.run_until(world.now + SECOND / 2, |_| false);
            paused |= world.servers.values().any(|server| server.is_hung());
            assert!(!world.can_spare(&[ServerId(1)]) || world.now >= end, "others may be called hung");
        }
        world.heal_everything();
        assert!(world.servers.values().all(|server| !server.is_hung()));
        ask(&mut world, read(0, 2));
        assert!(paused && world.violation.is_none());
    }
}
