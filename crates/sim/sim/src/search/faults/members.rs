//! The metadata service: members that stop, crash and hang, and one that grows from one member to three and five.

use crate::world::clock::{Clock, MILLI, SECOND};
use crate::world::{Happening, World};

/// The most that an operator sets up.
const MEMBERS_MAX: u64 = 5;

impl World<'_> {
    pub(super) fn disturb_member(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        let id = *self.fault_random.pick(&members).expect("there is a member");
        // Sometimes longer than every lease.
        let long = self.fault_random.chance(200);
        let time = if long { SECOND * 3 } else { 0 } + self.fault_random.delay(300 * MILLI).min(6 * SECOND);
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

    /// Two more members join, as the operator's page says: first each member that there is starts again and knows them
    /// from then on, then they start with nothing and ask to join. Not while another member catches up.
    pub(super) fn grow(&mut self) {
        let members = self.scenario.members;
        if members + 2 > MEMBERS_MAX || self.members.values().any(|m| m.broken) {
            return;
        }
        self.count("metadata members added");
        self.note(|| format!("the metadata service grows to {} members", members + 2));
        self.scenario.members += 2;
        for id in 1..=members {
            let (begins, down) = (self.fault_random.below(2 * SECOND), self.fault_random.delay(100 * MILLI));
            self.after(begins, Happening::CrashMember { member: id, down: down.min(2 * SECOND) });
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
        self.member_log_hangs(id, time);
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

    /// The group's next epoch waits for the log, and comes then; or the member dies first.
    #[test]
    fn a_log_that_hangs_says_nothing_until_it_is_written() {
        for dies in [false, true] {
            let mut world = cluster();
            world.member_log_hangs(1, 10 * SECOND);
            world.ask_gear(1);
            world.run_until(world.now + 5 * SECOND, |_| false);
            assert!(world.members[&1].paused && world.gear_wanted.is_some());
            if dies {
                world.crash_member(1);
                world.restart_member(1);
            }
            world.run_until(world.now + 30 * SECOND, |world| world.gear_wanted.is_none());
            assert!(!world.members[&1].paused && world.gear_wanted.is_none());
            ask(&mut world, read(0, 2));
            assert!(world.violation.is_none());
        }
    }
}
