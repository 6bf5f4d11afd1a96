//! Which members hear the chunk servers. A network can part a leader from servers and gateways and leave it its
//! members: to the Raft library it leads as ever, and nothing is served. Servers send their heartbeats to every member,
//! so the others know better; they say how many they hear, and a leader that hears less than half as many hands over.
//!
//! Less than half: then the successor cannot want to hand back, whatever the network does to the messages between.
//!
//! Servers may fall silent to all members at once. So others count whom they heard within half a lease, a leader whom
//! it heard within a whole one, and what others said counts for less than the other half: by the time that the leader
//! hears too few, the others have said so of themselves.

use crate::MemberId;
use ebb_types::{Moment, ServerId};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Hearing {
    servers: BTreeMap<ServerId, Moment>,
    /// What other members said last, and when.
    members: BTreeMap<MemberId, (Moment, u32)>,
    /// From then on this process ran without a pause: silence before means nothing.
    since: Moment,
    turn: Moment,
    said: Moment,
    handed: Moment,
}

impl Hearing {
    /// A turn of this process. `lease`: how long a server may be silent.
    pub fn turn(&mut self, now: Moment, lease: Duration) {
        if now.since(self.turn) > lease / 4 {
            self.since = now;
        }
        self.turn = now;
    }

    pub fn heard(&mut self, now: Moment, server: ServerId) {
        self.servers.insert(server, now);
    }

    pub fn told(&mut self, now: Moment, member: MemberId, servers: u32) {
        self.members.insert(member, (now, servers));
    }

    fn count(&self, now: Moment, within: Duration) -> u32 {
        self.servers.values().filter(|at| now.since(**at) <= within).count() as u32
    }

    /// What to say to the leader; `None`: it was said lately.
    pub fn news(&mut self, now: Moment, lease: Duration) -> Option<u32> {
        let due = now.since(self.said) >= lease / 4;
        if due {
            self.said = now;
        }
        due.then(|| self.count(now, lease / 2))
    }

    /// The member that should lead instead of this one, with what it hears and what this one does. Asked again after a
    /// lease if that comes to nothing.
    pub fn successor(&mut self, now: Moment, lease: Duration) -> Option<(MemberId, u32, u32)> {
        if now.since(self.since) < lease || now.since(self.handed) < lease {
            return None;
        }
        let fresh = self.members.iter().filter(|(_, (at, _))| now.since(*at) <= lease * 3 / 8);
        let (member, hears) = fresh.map(|(id, (_, hears))| (*id, *hears)).max_by_key(|(_, hears)| *hears)?;
        let own = self.count(now, lease);
        if own * 2 >= hears {
            return None;
        }
        self.handed = now;
        Some((member, hears, own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    /// A leader that runs, and has heard nine servers until five seconds.
    fn running(until: u64) -> Hearing {
        let mut hearing = Hearing::default();
        for millis in (0..=until).step_by(50) {
            hearing.turn(at(millis), LEASE);
            if millis <= 5000 {
                (0..9).for_each(|id| hearing.heard(at(millis), ServerId(id)));
            }
        }
        hearing
    }

    #[test]
    fn a_leader_that_hears_less_than_half_as_many_servers_hands_over() {
        for (servers, own) in [(9, 9), (0, 0), (1, 0)] {
            let mut hearing = running(7050);
            (0..own).for_each(|id| hearing.heard(at(7050), ServerId(id)));
            hearing.told(at(7000), 2, servers);
            let expected = (servers > own as u32 * 2).then_some((2, servers, own as u32));
            assert_eq!(hearing.successor(at(7050), LEASE), expected);
        }
        let mut hearing = running(7050);
        (2..4).for_each(|member| hearing.told(at(7000), member, 3 * member as u32));
        assert_eq!(hearing.successor(at(7050), LEASE), Some((3, 9, 0)), "to the one that hears most");
        assert_eq!(hearing.successor(at(7100), LEASE), None, "that takes its time");
        hearing.turn(at(7100), LEASE);
        hearing.told(at(9000), 3, 9);
        assert_eq!(hearing.successor(at(9100), LEASE), Some((3, 9, 0)), "it came to nothing");
    }

    #[test]
    fn servers_that_fall_silent_to_all_members_at_once_change_no_leader() {
        let (mut leader, mut other) = (running(5000), running(5000));
        for millis in (5050..=12_000).step_by(50) {
            leader.turn(at(millis), LEASE);
            if let Some(servers) = other.news(at(millis), LEASE) {
                leader.told(at(millis), 2, servers);
            }
            assert_eq!(leader.successor(at(millis), LEASE), None, "at {millis}");
        }
    }

    #[test]
    fn what_is_old_and_what_a_process_did_not_hear_because_it_stood_still_do_not_count() {
        let mut hearing = running(7050);
        hearing.told(at(4000), 2, 9);
        assert_eq!(hearing.successor(at(7050), LEASE), None, "the other member said so three seconds ago");
        let mut hearing = running(5000);
        hearing.turn(at(60_000), LEASE);
        hearing.told(at(60_000), 2, 9);
        assert_eq!(hearing.successor(at(60_000), LEASE), None, "their heartbeats may lie in its socket");
        assert_eq!(hearing.news(at(60_000), LEASE), Some(0));
        assert_eq!(hearing.news(at(60_100), LEASE), None);
    }
}
