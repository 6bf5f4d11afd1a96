//! The scheduler's settings, and the dry run that `ebb gear plan` shows: the coming hours, and everything that they
//! follow from.
//!
//! A reader can repeat the arithmetic: here are the load with its two terms, the rates that it is divided by, the days
//! that a forecast rests on, the gear by the formula, and what constrains it. [Sierra §3.4]

use crate::{Depth, GearGroup, ServerId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the scheduler wakes and puts to sleep at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GearSteps {
    /// Single servers: continuous gears.
    #[default]
    Servers,
    /// Whole gear groups. [Sierra §3.4]
    Groups,
}

/// The scheduler's parameters. The four rates are what one server sustains of one kind of work alone. [Sierra §3.4]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Length of the scheduler's "hour": 3,600,000, or less to rehearse a day in minutes.
    pub hour_millis: u64,
    /// Unix time at which hour 0 begins, and day 0 with it: 0, or when a rehearsal began.
    pub hour_zero_unix_millis: u64,
    pub hours_per_day: u32,
    pub steps: GearSteps,
    /// Small random requests per second.
    pub read_iops: f64,
    pub write_iops: f64,
    /// Streamed bytes per second.
    pub read_bytes_per_second: f64,
    pub write_bytes_per_second: f64,
    /// Lowest gear that the scheduler may choose: 1 saves the most, 2 keeps two awake replicas of everything.
    pub g_min: u8,
    /// With [`GearSteps::Groups`], how long the load must have been low, and the gear unchanged, before servers are put
    /// to sleep; else how long a woken server stays awake.
    pub dwell_millis: u64,
    /// Lead time: how long before they are needed servers are woken, as long as nothing is known about how long they
    /// take.
    pub lead_millis: u64,
    /// Share of the time with too few servers awake that is accepted; with [`GearSteps::Servers`].
    pub short_goal: f64,
    /// Days after which another gear group is the one that never sleeps; zero: never.
    pub rotate_days: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            hour_millis: 3_600_000,
            hour_zero_unix_millis: 0,
            hours_per_day: 24,
            steps: GearSteps::default(),
            read_iops: 200.0,
            write_iops: 200.0,
            read_bytes_per_second: 100e6,
            write_bytes_per_second: 100e6,
            g_min: 1,
            dwell_millis: 300_000,
            lead_millis: 60_000,
            short_goal: 0.01,
            rotate_days: 7,
        }
    }
}

impl Schedule {
    /// Unix time in milliseconds at which an hour begins.
    pub fn hour_begins(&self, hour: u64) -> u64 {
        self.hour_zero_unix_millis.saturating_add(hour.saturating_mul(self.hour_millis))
    }
}

/// The two terms of a load, in servers' worth of work: the larger one is the load. [Sierra §3.4]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadTerms {
    /// Of random requests, by operations.
    pub random: f64,
    /// Of all bytes, by bandwidth.
    pub streaming: f64,
}

impl LoadTerms {
    pub fn load(self) -> f64 {
        self.random.max(self.streaming)
    }

    fn rules(self) -> LoadTerm {
        if self.random >= self.streaming { LoadTerm::Random } else { LoadTerm::Streaming }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadTerm {
    Random,
    Streaming,
}

impl fmt::Display for LoadTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadTerm::Random => "random",
            LoadTerm::Streaming => "streaming",
        })
    }
}

/// A load as it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLoad {
    pub load: f64,
    /// Absent where only the load is known, as of a load series.
    pub terms: Option<LoadTerms>,
    /// The larger of them.
    pub rules: Option<LoadTerm>,
}

impl MeasuredLoad {
    pub fn new(load: f64, terms: Option<LoadTerms>) -> MeasuredLoad {
        MeasuredLoad { load, terms, rules: terms.map(LoadTerms::rules) }
    }
}

impl From<LoadTerms> for MeasuredLoad {
    fn from(terms: LoadTerms) -> MeasuredLoad {
        MeasuredLoad::new(terms.load(), Some(terms))
    }
}

/// A load of which one tenth of all outcomes is expected below `low`, and one tenth above `high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadBand {
    pub low: f64,
    pub high: f64,
}

/// How long before they are needed servers are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lead {
    /// From how deep; absent with whole gears, which have one lead.
    pub depth: Option<Depth>,
    /// At most an hour.
    pub millis: u64,
    pub from: LeadFrom,
}

/// What a lead was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeadFrom {
    /// Nearly all of the last `wakes` wake-ups took no longer; then the catch-up that the debt predicts.
    Measured { wakes: u32, wake_millis: u64, catch_up_millis: u64 },
    /// The configured time of this depth, and that catch-up: no wake-up was measured yet.
    Configured { wake_millis: u64, catch_up_millis: u64 },
    /// The schedule's lead time: no wake-up was measured yet, or whole gears are shifted.
    Schedule,
}

/// What the scheduler would do over the next day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GearPlan {
    /// The load of the last full sample; absent before the first one.
    pub load_now: Option<MeasuredLoad>,
    /// Its four rates are what a load is divided by.
    pub schedule: Schedule,
    /// Those that gears concern.
    pub servers: u32,
    pub replicas: u8,
    /// The scheduler goes no lower.
    pub lowest_gear: u8,
    /// Hours that the forecast may look at.
    pub hours_recorded: u32,
    /// The schedule's dwell time, at most an hour.
    pub dwell_millis: u64,
    /// By depth of sleep, the shallowest first.
    pub leads: Vec<Lead>,
    /// Unix time from which on other gear groups never sleep; absent: they take no turns.
    pub turn_ends_unix_millis: Option<u64>,
    pub hours: Vec<PlannedHour>,
}

/// One hour as the scheduler would run it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedHour {
    pub hour: u64,
    /// Unix time at which it begins.
    pub from_unix_millis: u64,
    /// The peak of this hour of the day when it was last recorded; absent: it never was.
    pub last_peak: Option<MeasuredLoad>,
    /// Recorded days with this hour of the day, and the mean of its peaks. [Sierra §3.4]
    pub days: u32,
    pub mean_peak: Option<f64>,
    /// By which servers are woken ahead; absent: nothing is known, and every server is awake.
    pub forecast: Option<f64>,
    /// Between which loads its peak lies, as far as is known now; absent with whole gears, and until a day has been
    /// seen.
    pub band: Option<LoadBand>,
    /// `ceil(L / (N/r))` of the forecast, before any constraint. [Sierra §3.4]
    pub gear_by_formula: Option<u32>,
    /// What becomes of it.
    pub gear: u8,
    /// The gear groups that do not sleep in any gear: whose turn it is.
    pub turn: Vec<GearGroup>,
    pub awake: Vec<ServerId>,
    pub asleep: Vec<ServerId>,
    /// What keeps more servers from sleeping, if it is not the load.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_term_is_the_load_and_a_load_without_terms_has_none_that_rules() {
        let of = |random, streaming| MeasuredLoad::from(LoadTerms { random, streaming });
        assert_eq!((of(2.0, 1.5).load, of(2.0, 1.5).rules), (2.0, Some(LoadTerm::Random)));
        assert_eq!((of(0.5, 1.5).load, of(0.5, 1.5).rules), (1.5, Some(LoadTerm::Streaming)));
        assert_eq!(MeasuredLoad::new(3.0, None), MeasuredLoad { load: 3.0, terms: None, rules: None });
    }
}
