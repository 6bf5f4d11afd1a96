//! The clock of deadlines, claims and ages. It keeps running while the machine is suspended, which the runtime's clock
//! ([`Instant`]) does not: after a suspend, what was to be done or trusted for a while is over here.
//!
//! It is the runtime's clock and how long the machine was suspended meanwhile. So where a test's runtime has a time of
//! its own, this clock has it, too.

use ebb_types::Moment;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Clones are the same clock. Its moments count from its beginning: others' mean nothing here.
#[derive(Clone, Debug)]
pub struct Clock {
    started: Instant,
    /// How long the machine had been suspended by then; `None`: it is a machine of a simulation.
    suspended: Option<Duration>,
    /// By [`Clock::suspend`], in nanoseconds.
    pretended: Arc<AtomicU64>,
}

impl Clock {
    #[expect(clippy::new_without_default, reason = "two new clocks are not equal")]
    pub fn new() -> Clock {
        Clock { suspended: Some(suspended()), ..Clock::simulated() }
    }

    /// Of a machine that is suspended by [`Clock::suspend`] alone: nothing of this machine's clocks is in it.
    pub fn simulated() -> Clock {
        Clock { started: Instant::now(), suspended: None, pretended: Arc::default() }
    }

    /// Never smaller than before.
    pub fn now(&self) -> Moment {
        let pretended = Duration::from_nanos(self.pretended.load(Ordering::Relaxed));
        let really = self.suspended.map_or(Duration::ZERO, |before| suspended() - before);
        Moment::ZERO + self.started.elapsed() + really + pretended
    }

    /// When the runtime's timers are at this moment, unless the machine is suspended before: then they are late, and
    /// what they end looks at [`Clock::now`].
    pub fn timer(&self, at: Moment) -> Instant {
        Instant::now() + at.since(self.now())
    }

    /// For tests: as if the machine had been suspended for that long just now.
    pub fn suspend(&self, time: Duration) {
        self.pretended.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Since the machine was booted, suspends included: what programs pass to decision makers.
pub fn since_boot() -> Moment {
    Moment(nanos(clock_gettime(ClockId::Boottime)))
}

fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// For how long the machine has been suspended since it was booted.
fn suspended() -> Duration {
    // Largest found. What is found is too small if the process had to wait between the two.
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    let with = nanos(clock_gettime(ClockId::Boottime));
    let without = nanos(clock_gettime(ClockId::Monotonic));
    let found = with.saturating_sub(without);
    Duration::from_nanos(LONGEST.fetch_max(found, Ordering::Relaxed).max(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_has_the_runtimes_time_and_that_of_suspends() {
        let clock = Clock::new();
        tokio::time::advance(Duration::from_secs(3)).await;
        // What the machine's own clocks say meanwhile is nanoseconds.
        let seconds = |clock: &Clock| clock.now().since(Moment::ZERO).as_secs();
        assert_eq!(seconds(&clock), 3);
        let other = clock.clone();
        clock.suspend(Duration::from_secs(60));
        assert_eq!((seconds(&clock), seconds(&other), seconds(&Clock::new())), (63, 63, 0));
        let left = clock.timer(clock.now() + Duration::from_secs(5)) - Instant::now();
        assert_eq!(left.as_secs_f64().round(), 5.0);
        assert_eq!(clock.timer(Moment::ZERO), Instant::now(), "it is over");
    }

    #[test]
    fn it_never_goes_back() {
        let clock = Clock::new();
        let mut last = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
