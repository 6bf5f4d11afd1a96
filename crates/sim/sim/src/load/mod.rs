//! Load-level simulation: what a service would save, computed from its load curve alone. [Sierra §4.1]
//!
//! Every policy decides how many servers are awake in each step of a load series; energy follows from a power model,
//! quality from the steps in which fewer were awake than the load needed. All results are modelled. Loads are in units
//! of servers, so a load of 2.5 needs three.
//!
//! Steps without a record enter no figure but that of power cycles. Servers of several types are assumed to be mixed
//! evenly and to take turns, so a server draws the mean of the types.

mod bound;
mod cells;
mod cold;
mod compare;
mod csv;
mod fleet;
mod frontier;
mod oracle;
mod page;
mod pools;
mod power;
mod score;
mod separators;
mod series;
mod shortage;

pub use bound::Bound;
pub use cold::{Split, Touch, split};
pub use compare::{Row, rows, table_csv, table_latex, table_text};
pub use csv::csv;
pub use fleet::{Spell, Timeline, World};
pub use frontier::{Point, SETTINGS, frontier};
pub use oracle::{Oracles, Shares};
pub use page::{
    POINT_HEADER, Price, QUALITY_CAPTION, QUALITY_HEADER, Report, cells, gaps_text, header, html,
    point_cells, quality_rows, verdict,
};
pub use pools::{Cold, Kept, PoolOutcome, Requests};
pub use power::{PowerError, free_transitions, power};
pub use score::{Score, scores};
pub use series::{Fold, Found, Gaps, Given, LoadColumns, Outlier, Series, SeriesError, read, read_found};
pub use shortage::{Learning, Shortage, Spread};

pub use crate::depths::Suspend;

use crate::depths;
use ebb_gear::Sleep;
use ebb_gear::fleet::{FleetError, FleetPolicy};
use ebb_power::PowerModel;
use ebb_types::{Joules, Schedule};
use serde::Serialize;
use shortage::{Seen, unserved};
use std::time::Duration;

/// Decides which servers are awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Today's clusters.
    AlwaysOn,
    /// Sierra's schedule with randomly placed replicas: only r-g servers in total may sleep.
    NaiveRandom,
    /// Sierra's schedule with fixed groups of r servers: the same savings, but a rebuild uses one server.
    NaiveGrouped,
    /// Hour-of-day mean, whole gear groups. [Sierra §3.4]
    Sierra,
    /// Whole gear groups with perfect knowledge of each hour's peak.
    Oracle,
    /// Continuous gears: `ebb_gear::Fleet`.
    Ebb,
    /// Continuous gears with perfect knowledge of each step's load.
    ContinuousOracle,
    /// The same, with Ebb's budget of power cycles in the steps that count.
    CyclesOracle,
    /// Energy strictly proportional to load.
    Ideal,
}

impl Policy {
    pub const ALL: [Policy; 9] = [
        Policy::AlwaysOn,
        Policy::NaiveRandom,
        Policy::NaiveGrouped,
        Policy::Sierra,
        Policy::Oracle,
        Policy::Ebb,
        Policy::ContinuousOracle,
        Policy::CyclesOracle,
        Policy::Ideal,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Policy::AlwaysOn => "always-on",
            Policy::NaiveRandom => "naive-random",
            Policy::NaiveGrouped => "naive-grouped",
            Policy::Sierra => "sierra",
            Policy::Oracle => "oracle",
            Policy::Ebb => "ebb",
            Policy::ContinuousOracle => "continuous-oracle",
            Policy::CyclesOracle => "cycles-oracle",
            Policy::Ideal => "ideal",
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = String;
    fn from_str(text: &str) -> Result<Policy, String> {
        let found = Policy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
            format!("{text:?} is not a policy: use {}", names.join(", "))
        })
    }
}

/// How much load a server sustains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Provision {
    /// The series' highest step needs all servers.
    Peak,
    /// Load that a server sustains, in the series' unit.
    PerServer(f64),
}

impl Provision {
    /// The load that one of this many servers sustains, in the series' unit.
    pub fn per_server(self, series: &Series, servers: u32) -> Result<f64, LoadError> {
        let peak = series.values.iter().flatten().copied().fold(0.0, f64::max);
        match self {
            Provision::Peak if peak > 0.0 => Ok(peak / f64::from(servers)),
            Provision::Peak => Err(LoadError::NoLoad),
            Provision::PerServer(each) if each > 0.0 && each.is_finite() => Ok(each),
            Provision::PerServer(each) => Err(LoadError::Provision { provision: each }),
        }
    }
}

/// The cluster, its power and its policy.
#[derive(Clone, Debug)]
pub struct Setup {
    pub servers: u32,
    pub replicas: u8,
    pub g_min: u8,
    /// Days of training for forecasts; not counted in results.
    pub train_days: u32,
    pub provision: Provision,
    pub power: PowerModel,
    /// From the decision to wake a server until it serves.
    pub wake: Duration,
    pub dwell: Duration,
    pub cycles_per_day: f64,
    /// A second depth of sleep, shallower than that of `power` and `wake`; it wears nothing.
    pub suspend: Option<Suspend>,
    pub short_goal: f64,
    pub rotate_days: u32,
}

impl Setup {
    /// Ebb's policy for a series in steps of `step`, of the schedule that an operator would set: the forecast's hour is
    /// a quarter of an hour, or the step if that is longer.
    pub fn fleet(&self, step: Duration) -> FleetPolicy {
        let hour = step.max(SHORTEST_HOUR);
        let schedule = Schedule {
            hour_millis: hour.as_millis() as u64,
            hours_per_day: (86_400.0 / hour.as_secs_f64()).round().max(1.0) as u32,
            g_min: self.g_min,
            dwell_millis: self.dwell.as_millis() as u64,
            short_goal: self.short_goal,
            rotate_days: self.rotate_days,
            ..Schedule::default()
        };
        FleetPolicy::of(&schedule, self.replicas, &self.sleep(step))
    }

    fn sleep(&self, step: Duration) -> Sleep {
        let mut sleep = depths::sleep(&self.power, Some(self.wake), self.suspend, self.cycles_per_day);
        for cost in [&mut sleep.standby, &mut sleep.off].into_iter().flatten() {
            // A wake-up shorter than a tenth of a step counts as instant.
            cost.wake = cost.wake.map(|wake| if step > wake * 10 { Duration::ZERO } else { wake });
        }
        sleep
    }
}

/// The forecast's hour in fine series: it captures recurring bursts.
const SHORTEST_HOUR: Duration = Duration::from_secs(900);

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("a dwell time of {dwell:?} is longer than the forecast's hour of {hour:?}: shorten it")]
    Dwell { dwell: Duration, hour: Duration },
    #[error(
        "{servers} servers with {replicas} replicas cannot be: use at least as many servers as replicas, and at most 65535"
    )]
    Cluster { servers: u32, replicas: u8 },
    #[error("{provision} as the load that a server sustains: use a number above 0, or peak")]
    Provision { provision: f64 },
    #[error("the series has no load above zero: there is nothing to provision for")]
    NoLoad,
    #[error(
        "the series is {days:.1} days long: after {train} days of training at least one day must be left; use a shorter --train"
    )]
    TooShort { days: f64, train: u32 },
    #[error("a step of {0:?} does not divide a day, or is longer than an hour: use --step 1m or 1h")]
    Step(Duration),
    #[error("{share} as the share of the data that is cold: use a number above 0 and below 1")]
    ColdShare { share: f64 },
    #[error("{rate} requests per second to cold data: use a number that is not negative")]
    ColdRequests { rate: f64 },
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("the power model: {0}")]
    Power(#[from] ebb_power::ModelError),
}

/// The result of a policy. Energy is modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    pub policy: Policy,
    pub modelled_joules: Joules,
    /// The same for a year like the steps that count.
    pub modelled_kwh_per_year: f64,
    /// Relative to always-on.
    pub savings: f64,
    pub mean_awake: f64,
    /// Share of the time in which fewer servers were awake than the load needed, also where it needed more than there
    /// are.
    pub short_time: f64,
    /// Share of the load that arrived during that time.
    pub short_load: f64,
    /// Share of the load that the awake servers could not carry at once.
    pub excess_load: f64,
    /// How long and how deep the shortage is; absent if there is none.
    pub shortage: Option<Shortage>,
    /// Gaps included: servers sleep in them, too.
    pub cycles_per_server_per_day: f64,
}

/// A prepared series: loads in units of servers, and the first step that counts.
#[derive(Clone, Debug)]
pub struct Case {
    pub setup: Setup,
    pub step: Duration,
    pub loads: Vec<Option<f64>>,
    pub first: usize,
    /// Load that one server sustains, in the series' unit.
    pub per_server: f64,
}

impl Case {
    pub fn new(setup: Setup, series: &Series) -> Result<Case, LoadError> {
        let (servers, replicas) = (setup.servers, setup.replicas);
        if replicas == 0 || servers < u32::from(replicas) || servers > u32::from(u16::MAX) {
            return Err(LoadError::Cluster { servers, replicas });
        }
        setup.power.check()?;
        let step = series.interval;
        if step.is_zero() || step > Duration::from_secs(3600) || 86_400_000 % step.as_millis().max(1) != 0 {
            return Err(LoadError::Step(step));
        }
        let (dwell, hour) = (setup.dwell, step.max(SHORTEST_HOUR));
        if dwell > hour {
            return Err(LoadError::Dwell { dwell, hour });
        }
        setup.fleet(step).check()?;
        let per_server = setup.provision.per_server(series, servers)?;
        let first = setup.train_days as usize * series.per_day();
        let days = series.values.len() as f64 / series.per_day() as f64;
        if series.values.len() < first + series.per_day() {
            return Err(LoadError::TooShort { days, train: setup.train_days });
        }
        let loads: Vec<Option<f64>> = series.values.iter().map(|v| v.map(|v| v / per_server)).collect();
        if loads[first..].iter().all(Option::is_none) {
            return Err(LoadError::TooShort { days, train: setup.train_days });
        }
        Ok(Case { setup, step, loads, first, per_server })
    }

    /// The same with as much shortage accepted as Sierra's policy has, within what can be accepted, and at least as
    /// many power cycles: where the two can be compared by their savings.
    pub fn at_sierras_shortage(mut self) -> Result<Case, LoadError> {
        let (sierra, _) = self.play(Policy::Sierra)?;
        self.setup.short_goal = sierra.short_time.clamp(0.001, 0.5);
        self.setup.cycles_per_day = self.setup.cycles_per_day.max(sierra.cycles_per_server_per_day);
        Ok(self)
    }

    /// Steps that count: those with a record, after the training.
    pub fn counted(&self) -> usize {
        self.loads[self.first..].iter().flatten().count()
    }

    /// Their time.
    pub fn seconds(&self) -> f64 {
        self.counted() as f64 * self.step.as_secs_f64()
    }

    /// Days that count, gaps included.
    pub fn days(&self) -> f64 {
        self.world().days()
    }

    pub fn world(&self) -> World<'_> {
        World { setup: &self.setup, step: self.step, loads: &self.loads, first: self.first }
    }

    /// Runs one policy. The timeline includes the training, the outcome does not; the ideal has no timeline.
    pub fn play(&self, policy: Policy) -> Result<(Outcome, Option<Timeline>), LoadError> {
        self.play_heard(policy, &mut |_| {})
    }

    /// The same; `tell` hears how many steps are done.
    pub fn play_heard(
        &self,
        policy: Policy,
        tell: &mut dyn FnMut(usize),
    ) -> Result<(Outcome, Option<Timeline>), LoadError> {
        let line = self.world().play(policy, tell)?;
        Ok((self.account(policy, line.as_ref()), line))
    }

    /// Modelled energy of one step.
    pub(crate) fn joules(&self, line: &Timeline, t: usize, load: f64) -> Joules {
        let power = &self.setup.power;
        let (serving, waking) = (f64::from(line.serving[t]), f64::from(line.waking[t]));
        let (woken, slept) = (f64::from(line.woken[t]), f64::from(line.slept[t]));
        let asleep = f64::from(self.setup.servers) - serving - waking;
        let dt = self.step;
        let on = power.on(if serving > 0.0 { load / serving } else { 0.0 });
        let steady = on * dt * serving + power.standby * dt * asleep + power.idle * dt * waking;
        let (up, down) = self.world().transitions();
        steady + up * woken + down * slept + self.suspension(line, t)
    }

    /// What servers that were suspended draw beyond what they would in the deeper sleep.
    fn suspension(&self, line: &Timeline, t: usize) -> Joules {
        let (Some(suspend), Some(shallow)) = (self.setup.suspend, line.suspended.get(t)) else {
            return Joules(0.0);
        };
        let PowerModel { standby, up, down, .. } = self.setup.power;
        let suspended = suspend.model(&self.setup.power);
        let [asleep, woken, slept] = [shallow.asleep, shallow.woken, shallow.slept].map(f64::from);
        (suspend.watts - standby) * self.step * asleep
            + (suspended.up.joules - up.joules) * woken
            + (suspended.down.joules - down.joules) * slept
    }

    /// Energy and quality of a timeline over the steps that count.
    pub fn account(&self, policy: Policy, line: Option<&Timeline>) -> Outcome {
        let n = f64::from(self.setup.servers);
        let mut always = Joules(0.0);
        let (mut joules, mut awake, mut cycles) = (Joules(0.0), 0.0, 0u64);
        let (mut steps, mut short, mut total, mut in_short, mut excess) = (0u64, 0u64, 0.0, 0.0, 0.0);
        let mut seen = Seen::default();
        for t in self.first..self.loads.len() {
            let suspended = |line: &Timeline| line.suspended.get(t).map_or(0, |s| s.slept);
            cycles += line.map_or(0, |line| u64::from(line.slept[t] - suspended(line)));
            let missing = self.loads[t].and_then(|load| unserved(load, line?.serving[t]));
            seen.step(missing);
            let Some(load) = self.loads[t] else { continue };
            steps += 1;
            total += load;
            always += self.setup.power.on(load / n) * self.step * n;
            match line {
                Some(line) => {
                    joules += self.joules(line, t, load);
                    awake += f64::from(line.serving[t] + line.waking[t]);
                    if missing.is_some() {
                        short += 1;
                        in_short += load;
                        excess += load - f64::from(line.serving[t]);
                    }
                }
                None => {
                    joules += self.setup.power.busy * self.step * load.min(n);
                    awake += load.min(n);
                }
            }
        }
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Outcome {
            policy,
            modelled_joules: joules,
            modelled_kwh_per_year: share(joules.0 / 3.6e6 * YEAR, steps as f64 * self.step.as_secs_f64()),
            savings: 1.0 - share(joules.0, always.0),
            mean_awake: share(awake, steps as f64),
            short_time: share(short as f64, steps as f64),
            short_load: share(in_short, total),
            excess_load: share(excess, total),
            shortage: seen.shortage(self.step),
            cycles_per_server_per_day: share(cycles as f64, n * self.days()),
        }
    }
}

/// Seconds of a year of 365.25 days.
const YEAR: f64 = 31_557_600.0;

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The same with two digits, for what is small.
fn fine_percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Formats a time.
fn how_long(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests;
