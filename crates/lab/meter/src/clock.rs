//! The clock of all samples, and its relation to the wall clock.

use ebb_types::Moment;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The clock for every sample and every window: `CLOCK_MONOTONIC`, which `std::time::Instant` also reads.
pub fn now() -> Moment {
    Moment(nanos(ClockId::Monotonic) as u64)
}

fn nanos(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The wall clock's reading at [`Moment::ZERO`], taken once: later steps of the wall clock have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Clock {
    /// Nanoseconds since 1970 at [`Moment::ZERO`].
    pub unix_nanos_at_zero: i64,
}

impl Clock {
    pub fn read() -> Clock {
        // The two clocks are read one after the other: the quickest of three tries is the most precise.
        let tries = (0..3).map(|_| {
            let before = nanos(ClockId::Monotonic);
            let wall = nanos(ClockId::Realtime);
            let after = nanos(ClockId::Monotonic);
            (after - before, wall - (before + (after - before) / 2))
        });
        Clock { unix_nanos_at_zero: tries.min().expect("three tries").1 }
    }

    /// Nanoseconds since 1970.
    pub fn unix_nanos(self, at: Moment) -> i64 {
        self.unix_nanos_at_zero.saturating_add_unsigned(at.0)
    }

    /// `None`: before this clock's start.
    pub fn moment(self, unix_nanos: i64) -> Option<Moment> {
        u64::try_from(unix_nanos.checked_sub(self.unix_nanos_at_zero)?).ok().map(Moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_and_moments_translate_both_ways() {
        let clock = Clock { unix_nanos_at_zero: 1_000 };
        assert_eq!(clock.unix_nanos(Moment(5)), 1_005);
        assert_eq!(clock.moment(1_005), Some(Moment(5)));
        assert_eq!(clock.moment(999), None);
        assert_eq!(clock.moment(i64::MIN), None);
    }

    #[test]
    fn the_clock_is_the_systems() {
        let wall = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.unwrap().as_nanos() as i64
        };
        let before = wall();
        let ours = Clock::read().unix_nanos(now());
        let after = wall();
        // The clock is read in several steps, and its rate may be corrected between them.
        let step = 1_000_000;
        assert!((before - step..=after + step).contains(&ours), "{before} {ours} {after}");
    }
}
