//! The leader's memory of how one erasure-coded set is used, and how often it may hibernate ([`super::hibernation`]).

use crate::State;
use ebb_types::{Column, Moment, ServerState, SetEntry};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// When a client last used the set; `None`: not since before this leader.
    pub last: Option<Moment>,
    /// Since when clients wait for it to wake.
    pub awaited: Option<Moment>,
    hibernated: bool,
    /// How often it may go to sleep, as of `counted`.
    credit: f64,
    counted: Moment,
}

impl Usage {
    /// Takes over a set as an earlier leader left it. One that this leader was waking is still wanted.
    pub fn new(now: Moment, entry: &SetEntry, state: &State, cycles_per_day: f64) -> Usage {
        let wakes = |c: &Column| state.server(c.server).is_some_and(|e| e.state == ServerState::Waking);
        let used = !entry.hibernates() || entry.columns.iter().any(wakes);
        Usage {
            last: used.then_some(now),
            awaited: None,
            hibernated: entry.hibernates(),
            credit: cycles_per_day,
            counted: now,
        }
    }

    /// Returns how long clients waited, if the set has woken for them.
    pub fn follow(&mut self, now: Moment, entry: &SetEntry, cycles_per_day: f64) -> Option<Duration> {
        let slept = entry.hibernates() && !self.hibernated;
        self.hibernated = entry.hibernates();
        if slept {
            let earned = now.since(self.counted).div_duration_f64(DAY) * cycles_per_day;
            (self.credit, self.counted) = ((self.credit + earned).min(cycles_per_day) - 1.0, now);
        }
        if self.hibernated { None } else { self.awaited.take().map(|since| now.since(since)) }
    }

    /// From when on the set may sleep if no client uses it.
    pub fn rests_at(&self, after: Duration, cycles_per_day: f64) -> Moment {
        debug_assert!(cycles_per_day > 0.0, "it would never earn a sleep");
        let quiet = self.last.map_or(Moment::ZERO, |last| last + after);
        let lacking = if self.hibernated { 0.0 } else { (1.0 - self.credit).max(0.0) };
        quiet.max(self.counted + DAY.mul_f64(lacking / cycles_per_day))
    }
}
