//! Which members hear the chunk servers. A network can part a leader from some or all servers and leave it its members:
//! to the Raft library it leads as ever, and what only those servers have is not served. Servers send their heartbeats
//! to every member, so the others know better; they say how many they hear, and a leader that hears fewer hands over.
//!
//! One server is reason enough, for the leader would soon call it failed: that costs epochs and a catch-up, and in a
//! low gear it waits for a server to wake, while to hand over costs two round trips. The leader does so after a lease
//! of silence, and calls a server failed a margin later; while it hands over it can decide nothing.
//!
//! Each hand-over leads to a member that hears more. So while the network stays as it is, there is an end to them, and
//! two members that hear equally many do not change places, whichever servers those are. A network that changes all the
//! time could want another leader in each lease, and none would outlast the one in which a new leader only waits: so a
//! leader leads for a few leases before it hands over for little. It does so at once if the other hears more than twice
//! as many: then the successor cannot want to hand back, whatever the network does to the messages between.
//!
//! Servers may fall silent to all members at once, as when they go to sleep, and one that starts or wakes may be heard
//! by one member before the others. So others count whom they have heard for a lease without a gap, the last time
//! within half of one, and a leader whom it heard within a whole one. What others said counts for less than the other
//! half: by the time that the leader hears too few, the others have said so of themselves.

use crate::MemberId;
use ebb_types::{Moment, ServerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// For so many leases a new leader, and one that handed over in vain, does not hand over for little. In the first one a
/// new leader waits (R2), in the second it decides.
const SETTLES: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Hearing {
    servers: BTreeMap<ServerId, Heard>,
    /// What other members said last, and when.
    members: BTreeMap<MemberId, (Moment, u32)>,
    /// From then on this process ran without a pause: silence before means nothing.
    since: Moment,
    turn: Moment,
    said: Moment,
    /// Since when this member leads, if it does.
    leads: Option<Moment>,
    handed: Moment,
}

#[derive(Debug)]
struct Heard {
    /// From then on without a gap.
    since: Moment,
    last: Moment,
}

impl Hearing {
    /// A turn of this process. `lease`: how long a server may be silent.
    pub fn turn(&mut self, now: Moment, lease: Duration) {
        if now.since(self.turn) > lease / 4 {
            self.since = now;
        }
        self.turn = now;
        for heard in self.servers.values_mut().filter(|heard| now.since(heard.last) > lease / 2) {
            heard.since = now;
        }
    }

    pub fn heard(&mut self, now: Moment, server: ServerId) {
        self.servers.entry(server).or_insert(Heard { since: now, last: now }).last = now;
    }

    pub fn told(&mut self, now: Moment, member: MemberId, servers: u32) {
        self.members.insert(member, (now, servers));
    }

    /// Those whom this member has heard for a lease without a gap. What it reads after a pause may be old.
    fn steady(&self, now: Moment, lease: Duration) -> u32 {
        let steady = |heard: &&Heard| {
            now.since(heard.last) <= lease / 2 && now.since(heard.since.max(self.since)) >= lease
        };
        self.servers.values().filter(steady).count() as u32
    }

    /// What a member that follows says to the leader; `None`: it was said lately.
    pub fn news(&mut self, now: Moment, lease: Duration) -> Option<u32> {
        self.leads = None;
        let due = now.since(self.said) >= lease / 4;
        if due {
            self.said = now;
        }
        due.then(|| self.steady(now, lease))
    }

    /// The member that should lead instead of this one, with what it hears and what this one does. Asked again after a
    /// while if that comes to nothing.
    pub fn successor(&mut self, now: Moment, lease: Duration) -> Option<(MemberId, u32, u32)> {
        let leads = *self.leads.get_or_insert(now);
        if now.since(self.since) < lease || now.since(self.handed) < lease {
            return None;
        }
        let fresh = self.members.iter().filter(|(_, (at, _))| now.since(*at) <= lease * 3 / 8);
        let (member, hears) = fresh.map(|(id, (_, hears))| (*id, *hears)).max_by_key(|(_, hears)| *hears)?;
        let own = self.servers.values().filter(|heard| now.since(heard.last) <= lease).count() as u32;
        let settled = now.since(leads.max(self.handed)) >= lease * SETTLES;
        let enough = if settled { own } else { own * 2 };
        if hears <= enough {
            return None;
        }
        debug_assert!(hears > own, "hand-overs have an end");
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
            assert_eq!(hearing.successor(at(millis), LEASE), None);
            if millis <= 5000 {
                (0..9).for_each(|id| hearing.heard(at(millis), ServerId(id)));
            }
        }
        hearing
    }

    /// Who leads three members for a minute, and since when: member 1 at first. `hears`: whether a heartbeat of then
    /// reaches the member from the server, of which there are nine.
    fn led(hears: impl Fn(u64, MemberId, u16) -> bool) -> Vec<(u64, MemberId)> {
        let mut members: BTreeMap<MemberId, Hearing> = (1..=3).map(|id| (id, Hearing::default())).collect();
        let mut led = vec![(0, 1)];
        for millis in (0..60_000).step_by(50) {
            let (now, leader) = (at(millis), led[led.len() - 1].1);
            let mut said = Vec::new();
            for (id, member) in &mut members {
                member.turn(now, LEASE);
                let beats = (0..9).filter(|server| millis % 500 == 0 && hears(millis, *id, *server));
                beats.for_each(|server| member.heard(now, ServerId(server)));
                if *id != leader {
                    said.extend(member.news(now, LEASE).map(|servers| (*id, servers)));
                }
            }
            let member = members.get_mut(&leader).expect("one of the three");
            said.into_iter().for_each(|(id, servers)| member.told(now, id, servers));
            led.extend(member.successor(now, LEASE).map(|(next, ..)| (millis, next)));
        }
        led
    }

    #[test]
    fn a_leader_that_hears_fewer_servers_hands_over() {
        for (servers, own) in [(9, 9), (0, 0), (1, 0), (9, 8), (9, 6), (8, 9)] {
            let mut hearing = running(7050);
            (0..own).for_each(|id| hearing.heard(at(7050), ServerId(id)));
            hearing.told(at(7000), 2, servers);
            let expected = (servers > u32::from(own)).then_some((2, servers, u32::from(own)));
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

    /// It calls them failed 2.1 s after it last heard them, at 9.5 s.
    #[test]
    fn a_leader_that_is_deaf_to_some_servers_hands_over_once_and_before_it_calls_them_failed() {
        for deaf in [1, 3, 9] {
            let led = led(|millis, id, server| millis < 10_000 || id != 1 || server >= deaf);
            assert_eq!(led, [(0, 1), (11_550, 3)], "deaf to {deaf}");
        }
    }

    #[test]
    fn members_that_each_hear_another_part_do_not_change_places() {
        let parts = |from: u16| {
            move |_: u64, id: MemberId, server: u16| if id == 2 { server >= from } else { server < 6 }
        };
        assert_eq!(led(parts(3)), [(0, 1)], "six each");
        assert_eq!(led(parts(2)), [(0, 1), (4000, 2)], "seven are more than six");
        assert_eq!(led(|_, id, server| u64::from(server) % 3 == id - 1), [(0, 1)], "three each");
    }

    #[test]
    fn in_a_network_that_changes_all_the_time_each_leader_has_the_time_to_decide() {
        let led = led(|millis, id, server| server < 8 || id == 1 + millis / 3000 % 3);
        assert!(led.len() > 3, "{led:?}");
        assert!(led.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 4000), "{led:?}");
    }

    #[test]
    fn a_server_that_others_hear_a_little_sooner_or_longer_changes_no_leader() {
        let starts = |id: MemberId| if id == 1 { 11_500 } else { 10_000 };
        assert_eq!(led(|millis, id, server| server < 8 || millis >= starts(id)), [(0, 1)]);
        let ends = |id: MemberId| if id == 1 { 10_000 } else { 10_500 };
        assert_eq!(led(|millis, id, server| server < 8 || millis < ends(id)), [(0, 1)]);
    }

    #[test]
    fn servers_that_fall_silent_to_all_members_at_once_change_no_leader() {
        let (mut leader, mut other) = (running(5000), running(5000));
        for millis in (5050..=12_000).step_by(50) {
            leader.turn(at(millis), LEASE);
            other.turn(at(millis), LEASE);
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
        (0..9).for_each(|id| hearing.heard(at(60_000), ServerId(id)));
        assert_eq!(hearing.news(at(60_000), LEASE), Some(0), "and be as old as the pause is long");
        assert_eq!(hearing.news(at(60_100), LEASE), None);
    }
}
