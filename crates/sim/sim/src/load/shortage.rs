//! How long and how deep a policy is short, and whether it was still learning.
//!
//! The share of time short says neither: a minute now and then is borne by queues, the same time at a stretch is an
//! outage.

use serde::Serialize;
use std::time::Duration;

/// A load that is above the servers by no more than this share is a rounding error.
const ROUNDING: f64 = 1e-9;
/// Days from the first step in which Ebb has seen each hour of the day too seldom to know how it varies.
const LEARNING_DAYS: u32 = 3;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// How values are distributed: half, and 95 of 100, are no greater than these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub p95: f64,
    pub most: f64,
}

impl Spread {
    /// `None` if there are no values.
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let most = *values.last()?;
        Some(Spread {
            median: values[count.div_ceil(2) - 1],
            p95: values[(count * 19).div_ceil(20) - 1],
            most,
        })
    }
}

/// The steps in which fewer servers served than the load needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shortage {
    /// Runs of such steps. One that was not recorded ends a run.
    pub runs: usize,
    /// How long they last.
    pub run_seconds: Spread,
    /// Share of such a step's load that the servers could not carry at once.
    pub unserved: Spread,
}

/// Share of a load that these servers cannot carry at once; `None`: they carry it.
pub(super) fn unserved(load: f64, serving: u32) -> Option<f64> {
    let serving = f64::from(serving);
    (load * (1.0 - ROUNDING) > serving).then(|| (load - serving) / load)
}

/// Shortage as it is seen, step by step.
#[derive(Default)]
pub(super) struct Seen {
    is_short: bool,
    run_steps: Vec<usize>,
    unserved: Vec<f64>,
}

impl Seen {
    /// `None`: not short, or not recorded.
    pub fn step(&mut self, unserved: Option<f64>) {
        let was_short = std::mem::replace(&mut self.is_short, unserved.is_some());
        let Some(unserved) = unserved else { return };
        self.unserved.push(unserved);
        match self.run_steps.last_mut() {
            Some(steps) if was_short => *steps += 1,
            _ => self.run_steps.push(1),
        }
    }

    /// `None` if no step was short.
    pub fn shortage(self, step: Duration) -> Option<Shortage> {
        let seconds = self.run_steps.iter().map(|steps| *steps as f64 * step.as_secs_f64()).collect();
        Some(Shortage {
            runs: self.run_steps.len(),
            run_seconds: Spread::of(seconds)?,
            unserved: Spread::of(self.unserved)?,
        })
    }
}

/// Shortage while a policy learns, and after; both in days from the first step, whichever of them are training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Learning {
    pub days: u32,
    /// Share of the time short in these days; absent if nothing of them is recorded.
    pub short_time: Option<f64>,
    /// The same of all later days.
    pub short_time_after: Option<f64>,
}

impl Learning {
    /// Of loads in units of servers, and the servers that serve in each step.
    pub fn of(loads: &[Option<f64>], serving: &[u32], step: Duration) -> Learning {
        let steps = f64::from(LEARNING_DAYS) * SECONDS_PER_DAY / step.as_secs_f64();
        let split = (steps.round() as usize).min(loads.len());
        let share = |loads: &[Option<f64>], serving: &[u32]| {
            let (mut short, mut all) = (0u32, 0u32);
            for (load, serving) in loads.iter().zip(serving) {
                let Some(load) = load else { continue };
                all += 1;
                short += u32::from(unserved(*load, *serving).is_some());
            }
            (all > 0).then(|| f64::from(short) / f64::from(all))
        };
        Learning {
            days: LEARNING_DAYS,
            short_time: share(&loads[..split], &serving[..split]),
            short_time_after: share(&loads[split..], &serving[split..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn runs_and_depths_are_what_a_hand_counts() {
        let mut seen = Seen::default();
        // Runs of two, one and one: a step that was not recorded parts the last two.
        let loads = [Some(4.0), Some(8.0), Some(2.0), Some(3.0), None, Some(16.0), Some(1.0)];
        loads.iter().for_each(|load| seen.step(load.and_then(|load| unserved(load, 2))));
        let shortage = seen.shortage(HOUR).unwrap();
        assert_eq!(shortage.runs, 3);
        assert_eq!(shortage.run_seconds, Spread { median: 3600.0, p95: 7200.0, most: 7200.0 });
        // A third, a half, three quarters, seven eighths.
        assert_eq!(shortage.unserved, Spread { median: 0.5, p95: 0.875, most: 0.875 });
    }

    #[test]
    fn no_shortage_has_no_distribution() {
        let mut seen = Seen::default();
        // The first is above by a rounding error.
        [unserved(2.0 * (1.0 + 1e-12), 2), unserved(0.0, 0), None]
            .into_iter()
            .for_each(|step| seen.step(step));
        assert_eq!(seen.shortage(HOUR), None);
    }

    #[test]
    fn ninety_five_of_a_hundred_are_no_greater() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(spread, Some(Spread { median: 50.0, p95: 95.0, most: 100.0 }));
        assert_eq!(Spread::of(vec![7.0]), Some(Spread { median: 7.0, p95: 7.0, most: 7.0 }));
    }

    #[test]
    fn learning_ends_after_three_days_of_the_series() {
        let mut loads = vec![Some(1.0); 96];
        (loads[70], loads[71], loads[72]) = (Some(9.0), None, Some(9.0));
        let learning = Learning::of(&loads, &[1; 96], HOUR);
        assert_eq!((learning.short_time, learning.short_time_after), (Some(1.0 / 71.0), Some(1.0 / 24.0)));
        let short = Learning::of(&loads[..48], &[1; 48], HOUR);
        assert_eq!((short.short_time, short.short_time_after), (Some(0.0), None));
    }
}
