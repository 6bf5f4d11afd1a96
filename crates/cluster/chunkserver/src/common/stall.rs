//! Whether the store moves. A disk that hangs answers nothing and fails nothing, while the rest of the server is alive:
//! it would keep its lease, and its groups would wait with it. Slow is not hung (R12): every call that the disk answers
//! counts as a move.
//!
//! A disk that pauses under its load is not hung either: [`Grace`].

use ebb_types::{Grace, Moment};
use std::time::Duration;

/// What the store has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moves {
    /// It has operations to carry out.
    pub busy: bool,
    /// Calls that its disk answered.
    pub count: u64,
    /// It lacks descriptors or memory, and tries the same again.
    pub short: bool,
}

#[derive(Debug)]
pub struct Stall {
    seen: Moves,
    looked: Moment,
    /// Since when it has not moved.
    since: Moment,
    /// Called hung: since when it had not moved, and what was borne.
    stalled: Option<(Moment, Duration)>,
    grace: Grace,
}

impl Stall {
    pub fn new(now: Moment) -> Stall {
        let seen = Moves { busy: false, count: 0, short: false };
        Stall { seen, looked: now, since: now, stalled: None, grace: Grace::default() }
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// For how long it may not move.
    pub fn borne(&self, now: Moment, lease: Duration) -> Duration {
        self.grace.borne(now, lease)
    }

    /// Returns for how long it has not moved, if it has just stalled. It is not taken for moving again before a flush
    /// that is asked for now has ended ([`Stall::flushed`]). If this process itself stood still, that says nothing
    /// about the disk.
    pub fn look(&mut self, now: Moment, moves: Moves, lease: Duration) -> Option<Duration> {
        let moved = !moves.short && moves.count != self.seen.count;
        let stood_still = now.since(self.looked) > lease / 2;
        if moved || !moves.busy || !self.seen.busy || stood_still {
            self.since = now;
        }
        (self.seen, self.looked) = (moves, now);
        if self.is_stalled() {
            return None;
        }
        let (borne, still) = (self.borne(now, lease), now.since(self.since));
        let stalls = still > borne;
        self.stalled = stalls.then_some((self.since, borne));
        stalls.then_some(still)
    }

    pub fn flushed(&mut self, now: Moment) {
        if let Some((since, borne)) = self.stalled.take() {
            self.grace.ended(now, borne, now.since(since));
        }
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);
    const NEVER: [u64; 0] = [];

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    fn busy(count: u64) -> Moves {
        Moves { busy: true, count, short: false }
    }

    /// Looks once a second for these seconds, and returns in which of them it stalled.
    fn looks(stall: &mut Stall, seconds: std::ops::Range<u64>, moves: impl Fn(u64) -> Moves) -> Vec<u64> {
        seconds.filter(|second| stall.look(at(*second), moves(*second), LEASE).is_some()).collect()
    }

    #[test]
    fn a_store_that_does_not_move_for_longer_than_a_lease_hangs_until_a_flush_ends() {
        let mut stall = Stall::new(at(0));
        let idle = Moves { busy: false, count: 5, short: false };
        assert_eq!(looks(&mut stall, 1..10, |_| idle), NEVER);
        assert_eq!(looks(&mut stall, 10..15, |_| busy(5)), [13], "once, and not for just a lease");
        assert_eq!(looks(&mut stall, 15..20, busy), NEVER);
        assert!(stall.is_stalled(), "some calls are not yet all that waits");
        stall.flushed(at(20));
        assert!(!stall.is_stalled());
        assert_eq!(looks(&mut stall, 20..25, |_| busy(19)), [23], "and again");
    }

    #[test]
    fn slow_and_idle_are_not_hung_and_short_is() {
        let mut stall = Stall::new(at(0));
        assert_eq!(looks(&mut stall, 1..100, |second| busy(second / 2)), NEVER, "each call takes a lease");
        let short = |count| Moves { short: true, ..busy(count) };
        assert_eq!(looks(&mut stall, 100..105, short), [101], "it does the same again and again");
    }

    #[test]
    fn a_process_that_stood_still_does_not_blame_its_disk() {
        let mut stall = Stall::new(at(0));
        assert_eq!(looks(&mut stall, 1..3, |_| busy(7)), NEVER);
        assert_eq!(stall.look(at(30), busy(7), LEASE), None);
        assert_eq!(looks(&mut stall, 31..34, |_| busy(7)), [33]);
    }
    #[test]
    fn a_disk_that_goes_on_soon_is_given_more_time() {
        let mut stall = Stall::new(at(0));
        for (from, until, verdict) in [(10, 13, Some(12)), (20, 24, None), (30, 36, Some(34))] {
            looks(&mut stall, from - 1..from, |_| busy(from));
            let verdicts = looks(&mut stall, from..until, |_| busy(from));
            assert_eq!(verdicts.first().copied(), verdict);
            stall.flushed(at(until));
        }
    }
}
