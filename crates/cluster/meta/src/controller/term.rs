//! The time of one leader: since when it leads, the time of day, and the delays that it applies.

use crate::{State, Timing};
use ebb_types::Moment;
use std::time::Duration;

pub(crate) struct Term {
    pub timing: Timing,
    since: Moment,
    /// Time of day when the term began.
    unix_millis: u64,
}

impl Term {
    pub fn new(timing: Timing, now: Moment, unix_millis: u64) -> Term {
        Term { timing, since: now, unix_millis }
    }

    /// There was nothing to lead before.
    pub fn begin(&mut self, now: Moment) {
        self.since = now;
    }

    pub fn since(&self) -> Moment {
        self.since
    }

    pub fn unix_millis(&self) -> u64 {
        self.unix_millis
    }

    /// Time of day.
    pub fn unix_now(&self, now: Moment) -> u64 {
        debug_assert!(now >= self.since, "the past of another leader has another time of day");
        self.unix_millis + now.since(self.since).as_millis() as u64
    }

    /// When it is that time of day; at the beginning of the term, if that was before it.
    pub fn moment_of(&self, unix_millis: u64) -> Moment {
        self.since + Duration::from_millis(unix_millis.saturating_sub(self.unix_millis))
    }

    /// After this time no lease is valid, by the clock of this leader.
    pub fn longest_lease(&self, state: &State) -> Duration {
        lease(state) + self.timing.margin
    }

    /// From this moment on no lease of an earlier leader is valid.
    pub fn trusted_from(&self, state: &State) -> Moment {
        self.since + self.longest_lease(state)
    }
}

pub(crate) fn lease(state: &State) -> Duration {
    Duration::from_millis(state.params().map_or(0, |p| u64::from(p.lease_millis)))
}
