//! The metadata service: members that stop, crash and hang, logs that fail, rot or are lost, wall clocks that jump,
//! leaders that fail amid a change of epochs, and a service that grows from one member to three and five.

use crate::engine::{Clock, MILLI, SECOND};
use crate::search::harness::{Event, World};
use crate::world::happening::Happening;
use crate::world::member::MetaNode;
use crate::world::net::Node;

/// The most that an operator sets up.
const MEMBERS_MAX: u64 = 5;
/// After a leader failed amid a change of epochs, the next ones get something done for this long.
const TRUCE: u64 = 10 * SECOND;

impl World<'_> {
    pub(super) fn disturb_member(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        let id = *self.fault_random.pick(&members).expect("there is a member");
        let time = self.absence();
        let node = self.members.get_mut(&id).expect("picked from them");
        if !node.up {
            return;
        }
        if self.fault_random.chance(500) {
            node.paused = true;
            self.note(|| format!("member-{id} stops"));
            self.count("metadata member stopped");
            self.after(time, Happening::ResumeMember { member: id });
        } else {
            self.crash_member(id);
            self.count("metadata member crash");
            self.after(time, Happening::RestartMember { member: id });
        }
    }

    /// For how long a member is away: sometimes longer than every lease.
    fn absence(&mut self) -> u64 {
        let least = if self.fault_random.chance(200) { SECOND * 3 } else { 0 };
        least + self.fault_random.delay(300 * MILLI).min(6 * SECOND)
    }

    /// The next leader that proposes a change of epochs fails before it knows that it is committed.
    pub(super) fn ambush_leader(&mut self) {
        self.harness.mishaps.ambush |= self.now >= self.harness.mishaps.truce_until;
    }

    /// A member has taken its inputs. If it leads and has just proposed a change of epochs, it may have milliseconds
    /// left. The others can go on without it: they are well.
    pub fn spring_ambush(&mut self, id: u64) {
        if !self.harness.mishaps.ambush || !self.stormy {
            return;
        }
        let node = &self.members[&id];
        let others_go_on =
            self.members.len() > 2 && self.members.values().all(|m| m.up && !m.paused && !m.broken);
        if !others_go_on || !node.member.is_leader() || !node.member.has_open_epochs() {
            return;
        }
        let life = node.life;
        (self.harness.mishaps.ambush, self.harness.mishaps.truce_until) = (false, self.now + TRUCE);
        // Others have the change by then, or not, and the leader knows that, or not.
        let delay = self.fault_random.below(2 * self.net.model.delay);
        self.its_after(delay, Event::LeaderStruck { member: id, life });
    }

    pub fn strike_leader(&mut self, id: u64, life: u64) {
        let node = &self.members[&id];
        if !self.stormy || !node.up || node.life != life {
            return;
        }
        let is_open = node.member.is_leader() && node.member.has_open_epochs();
        let crashes = self.fault_random.chance(500);
        if is_open {
            self.count(match crashes {
                true => "metadata leader crash amid a change of epochs",
                false => "metadata leader cut off amid a change of epochs",
            });
        }
        if crashes {
            self.crash_member(id);
            let time = self.absence();
            self.after(time, Happening::RestartMember { member: id });
        } else {
            self.cut_member_off(id);
        }
    }

    /// It does not hear the other members, or they do not hear it, or both; or so with all nodes.
    fn cut_member_off(&mut self, id: u64) {
        let until = self.now + self.fault_random.between(SECOND, 8 * SECOND);
        let (from_all, outlasted) = (self.fault_random.chance(500), self.fault_random.chance(400));
        let (hears, speaks) = [(false, false), (true, false), (false, true)][self.fault_random.index(3)];
        let node = Node::Member(id);
        self.note(|| format!("{node} is cut off (hears the others: {hears}, is heard: {speaks})"));
        for other in self.all_nodes() {
            if other == node || !(from_all || matches!(other, Node::Member(_))) {
                continue;
            }
            if !hears {
                self.net.cut(other, node, until, outlasted);
            }
            if !speaks {
                self.net.cut(node, other, until, outlasted);
            }
        }
    }

    /// Two more members join, as the operator's page says: first each member that there is starts again and knows them
    /// from then on, then they start with nothing and ask to join. Not while another member catches up.
    pub(super) fn grow(&mut self) {
        let members = self.settings.members;
        if members + 2 > MEMBERS_MAX || self.members.values().any(|m| m.broken) {
            return;
        }
        self.count("metadata members added");
        self.note(|| format!("the metadata service grows to {} members", members + 2));
        self.settings.members += 2;
        for id in 1..=members {
            let (begins, down) = (self.fault_random.below(2 * SECOND), self.fault_random.delay(100 * MILLI));
            self.its_after(begins, Event::CrashMember { member: id, down: down.min(2 * SECOND) });
        }
        for id in members + 1..=members + 2 {
            let clock = Clock::draw(&mut self.fault_random);
            self.start_member(id, clock);
        }
    }

    /// The next write of a member's log is answered only after a while, or never if the member dies before; then it may
    /// have been made or not. Nothing of what depends on it has happened until then.
    pub(super) fn hang_log(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        let id = *self.fault_random.pick(&members).expect("there is a member");
        let time = match self.fault_random.chance(300) {
            true => self.fault_random.between(5, 30) * SECOND,
            false => self.fault_random.delay(SECOND).min(10 * SECOND),
        };
        self.note(|| format!("the log of member-{id} will hang"));
        self.count("metadata log that hangs");
        self.member(id).hang_log(time);
    }

    /// A disk of the metadata service fails once, or is full; or a log rots or is lost, while the others are healthy.
    pub(super) fn disturb_log(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        let id = *self.fault_random.pick(&members).expect("there is a member");
        let well = |m: &MetaNode| m.up && !m.paused && !m.broken && m.member.votes();
        let spare = members.len() > 2 && self.members.values().all(well);
        let until = self.fault_random.delay(SECOND).min(10 * SECOND);
        let kind = self.fault_random.below(if spare { 4 } else { 2 });
        let bit = self.fault_random.next();
        let node = self.members.get_mut(&id).expect("picked from them");
        match kind {
            0 => {
                node.fail_log();
                self.count("metadata log that fails");
                return self.note(|| format!("member-{id} will fail to write its log"));
            }
            1 => {
                node.fill_log();
                self.count("metadata disk full");
                self.note(|| format!("the disk of member-{id} is full"));
                return self.its_after(until, Event::HealMember { member: id });
            }
            2 => node.rot_log(bit),
            _ => node.lose_log(),
        }
        node.broken = true;
        self.count(if kind == 2 { "metadata log rotten" } else { "metadata log lost" });
        self.crash_member(id);
        self.after(until, Happening::RestartMember { member: id });
    }

    /// A member's wall clock when it starts: right at first and once faults have ended.
    pub(super) fn wall_of(&mut self, was: Option<i64>) -> i64 {
        let Some(was) = was.filter(|_| self.stormy) else { return 0 };
        if !self.fault_random.chance(self.harness.plan.wall_jumps) {
            return was;
        }
        self.count("wall clock jumps");
        let most = [SECOND, 7200 * SECOND, 400 * 86_400 * SECOND][self.fault_random.index(3)] / MILLI;
        self.fault_random.between(0, 2 * most) as i64 - most as i64
    }

    /// The operator starts it again.
    pub fn operator_restarts(&mut self, id: u64, down: u64) {
        if self.member(id).up {
            self.crash_member(id);
            self.after(down, Happening::RestartMember { member: id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{ask, begin, cluster, read, write};

    #[test]
    fn a_metadata_service_grows_to_three_and_five_members_while_clients_work() {
        let mut world = cluster();
        for members in [3, 5, 5] {
            world.grow();
            begin(&mut world, write(1, 1));
            world.run_until(world.now + 60 * SECOND, |world| world.members.values().all(|m| !m.broken));
            assert_eq!(world.members.values().filter(|m| m.up && m.member.votes()).count(), members);
        }
        ask(&mut world, read(0, 2));
        assert!(world.violation.is_none());
    }

    /// Gears change the groups' epochs, whoever leads.
    #[test]
    fn a_leader_fails_between_a_proposal_and_its_commit() {
        let mut world = cluster();
        world.grow();
        world.run_until(world.now + 60 * SECOND, |world| world.members.values().all(|m| !m.broken));
        world.stormy = true;
        for gear in [1, 2, 1, 2, 1] {
            world.ambush_leader();
            world.ask_gear(gear);
            world.run_until(world.now + 20 * SECOND, |_| false);
        }
        let tally = world.tally();
        assert!(tally.keys().any(|what| what.ends_with("amid a change of epochs")), "{tally:?}");
        world.heal_everything();
        ask(&mut world, read(0, 2));
        assert!(world.violation.is_none());
    }

    /// The group's next epoch waits for the log, and comes then; or the member dies first.
    #[test]
    fn a_log_that_hangs_says_nothing_until_it_is_written() {
        for dies in [false, true] {
            let mut world = cluster();
            world.member(1).hang_log(10 * SECOND);
            world.ask_gear(1);
            world.run_until(world.now + 5 * SECOND, |_| false);
            assert!(world.members[&1].paused && world.wishes.gear().is_some());
            if dies {
                world.crash_member(1);
                world.restart_member(1);
            }
            world.run_until(world.now + 30 * SECOND, |world| world.wishes.gear().is_none());
            assert!(!world.members[&1].paused && world.wishes.gear().is_none());
            ask(&mut world, read(0, 2));
            assert!(world.violation.is_none());
        }
    }
}
