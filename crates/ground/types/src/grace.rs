//! How long silence is borne before it counts as a failure, learned from verdicts that were wrong.
//!
//! Under a heavy load a disk or a server may be silent for longer than a lease and then go on. To call it failed costs
//! more than it gives: every change of primaries is work for the others, which suffer from the same load, until one
//! after the other is called failed. So a verdict that a little more time would have avoided doubles the time, and a
//! while without one halves it again. Who was never called failed wrongly has just a lease.

use crate::Moment;
use std::time::Duration;

/// Most doublings: four leases.
const MOST_DOUBLED: u32 = 2;
/// Without a verdict, one doubling is forgotten in this time.
const FORGETS: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, Default)]
pub struct Grace {
    doubled: u32,
    /// The end of the last silence that was called a failure.
    judged: Moment,
}

impl Grace {
    fn doubled(&self, now: Moment) -> u32 {
        let forgotten = now.since(self.judged).as_secs() / FORGETS.as_secs();
        self.doubled.saturating_sub(forgotten.try_into().unwrap_or(u32::MAX))
    }

    /// The silence that is borne now.
    pub fn borne(&self, now: Moment, lease: Duration) -> Duration {
        lease * (1 << self.doubled(now))
    }

    /// A silence that was longer than what was `borne` has ended after `whole`.
    pub fn ended(&mut self, now: Moment, borne: Duration, whole: Duration) {
        let wrong = u32::from(whole <= borne * 2);
        *self = Grace { doubled: (self.doubled(now) + wrong).min(MOST_DOUBLED), judged: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    #[test]
    fn wrong_verdicts_double_it_and_time_halves_it() {
        let mut grace = Grace::default();
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut silence = |second: u64, whole: u64| {
            let borne = grace.borne(at(second), LEASE);
            if Duration::from_secs(whole) > borne {
                grace.ended(at(second + whole), borne, Duration::from_secs(whole));
            }
            borne.as_secs()
        };
        assert_eq!(silence(10, 60), 2, "a failure");
        assert_eq!(silence(100, 3), 2, "no failure");
        assert_eq!(silence(110, 3), 4, "borne");
        assert_eq!(silence(120, 7), 4);
        assert_eq!(silence(130, 15), 8);
        assert_eq!(silence(150, 15), 8, "the most");
        assert_eq!(silence(284, 1), 8);
        assert_eq!(silence(286, 1), 4);
        assert_eq!(silence(410, 1), 2);
    }
}
