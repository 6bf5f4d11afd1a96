//! The fleet's servers, in the orders in which they are let go and woken.
//!
//! A fleet decides every second, or every minute of a simulated year, and mostly changes nothing. So no decision looks
//! at every server: each server stands in a line of its gear group, and a change moves that server alone. A moment at
//! which nothing switches costs about as much with 10,000 servers as with ten, and a shift as much as the servers that
//! it moves. Only those that have spent their power cycles are passed over, one by one, when others go to sleep before
//! them.
//!
//! Invariant: a server stands where its member says. So a member changes only through [`Members::change`].

use crate::State;
use ebb_types::{Depth, GearGroup, Moment, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub group: GearGroup,
    pub state: State,
    pub wanted: bool,
    /// When the state began, or when it was wanted, whichever is later.
    pub since: Moment,
    /// How long it takes to wake; `None`: it does not sleep.
    pub wake: Option<Duration>,
    /// The depth that was best when it was let go.
    pub depth: Depth,
    /// Power cycles saved up, as of `counted`.
    pub credit: f64,
    pub counted: Moment,
}

impl Member {
    /// It carries load, or soon will.
    pub fn counts(&self) -> bool {
        self.wanted && self.state != State::Gone
    }

    pub fn sleeps(&self) -> bool {
        matches!(self.state, State::Asleep(_))
    }

    /// Where it stands. `None`: it is gone.
    fn place(&self, server: ServerId) -> Option<((Line, GearGroup), Turn)> {
        if self.state == State::Gone {
            return None;
        }
        let (line, wake) = if self.wanted { (Line::On, None) } else { (Line::Rested, self.wake) };
        Some(((line, self.group), (wake, self.since, server)))
    }
}

/// Each gear group has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Those that count, in the order in which they are let go: the one that has been awake longest is the first.
    On,
    /// Those that are not wanted, in the order in which they are to be: those still up, then those that wake soonest,
    /// then those asleep longest.
    Rested,
}

/// A server's turn in its line: its time to wake, which does not matter among those that count; since when; which.
pub(super) type Turn = (Option<Duration>, Moment, ServerId);

/// Behind every server that is up, before every one that sleeps.
const END_OF_UP: Turn = (Some(Duration::ZERO), Moment::ZERO, ServerId(0));

#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    all: BTreeMap<ServerId, Member>,
    lines: BTreeMap<(Line, GearGroup), BTreeSet<Turn>>,
    /// How many servers are wanted, or not, and in which state.
    numbers: BTreeMap<(bool, State), u32>,
    /// How often a server was looked at, or the next in line was.
    #[cfg(test)]
    looked: std::cell::Cell<u64>,
}

impl Members {
    /// Takes a server in, in place of what was known of it.
    pub fn put(&mut self, server: ServerId, member: Member) {
        if let Some(before) = self.all.insert(server, member) {
            *self.numbers.entry((before.wanted, before.state)).or_default() -= 1;
            if let Some((line, turn)) = before.place(server) {
                let stood = self.lines.entry(line).or_default().remove(&turn);
                debug_assert!(stood, "a server stands where its member says");
            }
        }
        *self.numbers.entry((member.wanted, member.state)).or_default() += 1;
        if let Some((line, turn)) = member.place(server) {
            let is_new = self.lines.entry(line).or_default().insert(turn);
            debug_assert!(is_new, "a server stands in one place");
        }
    }

    pub fn change(&mut self, server: ServerId, change: impl FnOnce(&mut Member)) {
        let Some(mut member) = self.get(server).copied() else { return };
        change(&mut member);
        self.put(server, member);
    }

    pub fn get(&self, server: ServerId) -> Option<&Member> {
        self.look();
        self.all.get(&server)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ServerId, &Member)> {
        self.all.iter().map(move |(server, member)| {
            self.look();
            (*server, member)
        })
    }

    /// How many servers there are of which `which` holds, by whether they are wanted and by their state.
    pub fn count(&self, which: impl Fn(bool, State) -> bool) -> u32 {
        let these = self.numbers.iter().filter(|((wanted, state), _)| which(*wanted, *state));
        these.map(|(_, number)| number).sum()
    }

    /// Servers that carried load for the whole of the `time` that ends now: all that are awake but the latest.
    pub fn awake_throughout(&self, now: Moment, time: Duration) -> u32 {
        let is_awake = |server| self.get(server).is_some_and(|member| member.state == State::Awake);
        let late = self.lines.values().flat_map(|turns| {
            let up = turns.range(..END_OF_UP).rev();
            up.take_while(move |(_, since, _)| now.since(*since) < time)
        });
        let late = late.filter(|(_, _, server)| is_awake(*server)).count();
        self.count(|_, state| state == State::Awake) - late as u32
    }

    /// The next in the lines of these gear groups, behind `turn` or from the front.
    pub fn next(&self, line: Line, groups: &[GearGroup], turn: Option<Turn>) -> Option<Turn> {
        self.look();
        let behind: (Bound<Turn>, Bound<Turn>) =
            (turn.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let lines = groups.iter().filter_map(|group| self.lines.get(&(line, *group)));
        lines.filter_map(|turns| turns.range(behind).next()).min().copied()
    }

    /// The servers in the lines of these gear groups, by their turn.
    pub fn in_turn(&self, line: Line, groups: &[GearGroup]) -> impl Iterator<Item = ServerId> {
        let behind = move |turn: &Turn| self.next(line, groups, Some(*turn));
        std::iter::successors(self.next(line, groups, None), behind).map(|(_, _, server)| server)
    }

    #[cfg(test)]
    pub fn looked(&self) -> u64 {
        self.looked.get()
    }

    #[cfg(test)]
    fn look(&self) {
        self.looked.set(self.looked.get() + 1);
    }

    #[cfg(not(test))]
    fn look(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    const GROUPS: [GearGroup; 3] = [GearGroup(0), GearGroup(1), GearGroup(2)];

    fn member(server: u16) -> Member {
        let (group, zero) = (GROUPS[usize::from(server % 3)], Moment::ZERO);
        let (state, depth) = (State::Awake, Depth::Off);
        Member { group, state, wanted: true, since: zero, wake: None, depth, credit: 0.0, counted: zero }
    }

    /// What a look at every server finds.
    fn sorted(members: &Members, line: Line, groups: &[GearGroup]) -> Vec<ServerId> {
        let stands = |m: &Member| m.state != State::Gone && m.wanted == (line == Line::On);
        let these = members.iter().filter(|(_, m)| stands(m) && groups.contains(&m.group));
        let mut turns: Vec<Turn> =
            these.map(|(s, m)| (if m.wanted { None } else { m.wake }, m.since, s)).collect();
        turns.sort();
        turns.into_iter().map(|(_, _, server)| server).collect()
    }

    #[test]
    fn lines_and_numbers_are_what_a_look_at_every_server_finds() {
        let mut members = Members::default();
        (0..40).for_each(|id| members.put(ServerId(id), member(id)));
        let mut random = Random::new(7);
        let states = [
            State::Awake,
            State::Waking,
            State::Asleep(Depth::Standby),
            State::Asleep(Depth::Off),
            State::Gone,
        ];
        for second in 1..3000u64 {
            let now = Moment::ZERO + Duration::from_secs(second);
            members.change(ServerId(random.below(40) as u16), |member| {
                member.state = states[random.index(5)];
                let wake = Duration::from_secs(30 * random.below(2));
                member.wake = member.sleeps().then_some(wake);
                member.wanted = random.below(2) == 0;
                // Several servers have the same.
                member.since = Moment::ZERO + Duration::from_secs(second / 4 * 4);
            });
            for line in [Line::On, Line::Rested] {
                for groups in [&GROUPS[..], &GROUPS[1..], &GROUPS[..1]] {
                    let found: Vec<ServerId> = members.in_turn(line, groups).collect();
                    assert_eq!(found, sorted(&members, line, groups), "second {second}");
                }
            }
            let counts = members.iter().filter(|(_, member)| member.counts()).count() as u32;
            assert_eq!(members.count(|wanted, state| wanted && state != State::Gone), counts);
            for time in [0, 10, 60].map(Duration::from_secs) {
                let long = |m: &Member| m.state == State::Awake && now.since(m.since) >= time;
                let long = members.iter().filter(|(_, member)| long(member)).count() as u32;
                assert_eq!(members.awake_throughout(now, time), long, "second {second}");
            }
        }
    }

    #[test]
    fn a_server_that_is_not_there_changes_nothing() {
        let mut members = Members::default();
        members.put(ServerId(1), member(1));
        members.change(ServerId(2), |member| member.wanted = false);
        assert_eq!((members.count(|_, _| true), members.get(ServerId(2)).is_none()), (1, true));
        members.put(ServerId(1), Member { wanted: false, ..member(1) });
        assert_eq!(members.count(|_, _| true), 1, "it takes the place of what was known");
        assert_eq!(members.next(Line::On, &GROUPS, None), None);
    }
}
