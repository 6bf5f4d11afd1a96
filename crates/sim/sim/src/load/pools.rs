//! What it saves to keep cold data in erasure-coded sets that sleep, computed from the load curve. [ECS² §3.5, §4.3]
//!
//! Four clusters keep the same data and carry the same load: replicas on servers that are always on; replicas with
//! gears; hot data in replicas with gears and cold data in sets of k+m servers whose parity sleeps; the same with sets
//! that sleep as a whole. How many servers a part needs follows from its data, and for the hot part also from the
//! highest load: the data given, all servers in replicas are just full.
//!
//! Requests to cold data are those of a trace, or come at random (seeded) at a mean rate that follows the load's shape.
//! They are few, so the hot part is charged with all of the load. Left out: the hours in which parity synchronises, and
//! what moving data costs, once for each object.

use super::{Case, LoadError, Policy, Provision, Series, Setup, Touch, percent};
use ebb_types::{Joules, Random, Shape};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

const SEED: u64 = 1;

/// What is cold, and where it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Cold {
    pub shape: Shape,
    /// Share of the data, above 0 and below 1.
    pub share: f64,
    pub requests: Requests,
    /// Idle time after which a whole set sleeps.
    pub hibernate_after: Duration,
}

/// Requests to all cold data.
#[derive(Clone, Debug, PartialEq)]
pub enum Requests {
    /// Mean number per second.
    Rate(f64),
    /// Those of a trace.
    Seen(Vec<Touch>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    AlwaysOn,
    Gears,
    ParitySleeps,
    SetsSleep,
}

impl Kept {
    pub fn words(self) -> &'static str {
        match self {
            Kept::AlwaysOn => "all in replicas, always on",
            Kept::Gears => "all in replicas, gears",
            Kept::ParitySleeps => "cold data coded, parity asleep",
            Kept::SetsSleep => "cold data coded, sets sleep",
        }
    }
}

/// A way to keep the data, and its modelled energy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolOutcome {
    pub kept: Kept,
    pub replicated_servers: u32,
    pub coded_servers: u32,
    pub modelled_joules: Joules,
    /// Relative to replicas on servers that are always on.
    pub savings: f64,
    pub mean_awake: f64,
    /// Power cycles of a data server of a set; absent if they never sleep.
    pub wakes_per_set_per_day: Option<f64>,
    /// Share of the requests to cold data that wait for their set to wake; absent if there are none.
    pub waiting: Option<f64>,
}

impl PoolOutcome {
    pub const HEADER: [&str; 7] = [
        "data",
        "servers",
        "mean awake",
        "kWh",
        "savings",
        "wakes per set and day",
        "cold requests that wait",
    ];

    pub fn cells(&self) -> Vec<String> {
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        vec![
            self.kept.words().to_owned(),
            format!("{} + {}", self.replicated_servers, self.coded_servers),
            format!("{:.1}", self.mean_awake),
            format!("{:.2}", self.modelled_joules.0 / 3.6e6),
            percent(self.savings),
            or_none(self.wakes_per_set_per_day.map(|wakes| format!("{wakes:.2}"))),
            or_none(self.waiting.map(percent)),
        ]
    }
}

/// Sleep of the sets' data servers over the steps that count.
#[derive(Default)]
struct Sleep {
    joules: Joules,
    awake_steps: f64,
    wakes: u64,
    waiting: f64,
    requests: f64,
}

impl Cold {
    pub fn check(&self) -> Result<(), LoadError> {
        if !(self.share > 0.0 && self.share < 1.0) {
            return Err(LoadError::ColdShare { share: self.share });
        }
        match self.requests {
            Requests::Rate(rate) if !(rate >= 0.0 && rate.is_finite()) => {
                Err(LoadError::ColdRequests { rate })
            }
            _ => Ok(()),
        }
    }

    /// Sets that hold the cold part of what `setup`'s servers hold as replicas; whole sets.
    pub fn sets(&self, setup: &Setup) -> u32 {
        let data = f64::from(setup.servers) / f64::from(setup.replicas) * self.share;
        (data / self.shape.data() as f64 - 1e-9).ceil().max(1.0) as u32
    }

    /// The energy of all four ways. `case`: everything in replicas; `gears`: who decides about replicas' servers.
    pub fn play(&self, case: &Case, series: &Series, gears: Policy) -> Result<Vec<PoolOutcome>, LoadError> {
        self.check()?;
        let hot = self.hot(case, series)?;
        let (all, _) = case.play(gears)?;
        let (part, _) = hot.play(gears)?;
        let (always, _) = case.play(Policy::AlwaysOn)?;
        let outcome = |kept, servers, joules: Joules, awake, sleep: Option<&Sleep>| {
            let days = case.seconds() / 86_400.0;
            let sets = f64::from(self.sets(&case.setup));
            PoolOutcome {
                kept,
                replicated_servers: servers,
                coded_servers: 0,
                modelled_joules: joules,
                savings: 1.0 - joules / always.modelled_joules,
                mean_awake: awake,
                wakes_per_set_per_day: sleep.map(|sleep| sleep.wakes as f64 / sets / days),
                waiting: sleep.filter(|sleep| sleep.requests > 0.0).map(|s| s.waiting / s.requests),
            }
        };
        let (servers, fewer) = (case.setup.servers, hot.setup.servers);
        let mut outcomes = vec![
            outcome(Kept::AlwaysOn, servers, always.modelled_joules, always.mean_awake, None),
            outcome(Kept::Gears, servers, all.modelled_joules, all.mean_awake, None),
        ];
        let sets = self.sets(&case.setup);
        for (kept, after) in [(Kept::ParitySleeps, None), (Kept::SetsSleep, Some(self.hibernate_after))] {
            let sleep = self.sleep(case, after);
            let awake = part.mean_awake + sleep.awake_steps / case.counted() as f64;
            let shown = after.map(|_| &sleep);
            let one = outcome(kept, fewer, part.modelled_joules + sleep.joules, awake, shown);
            outcomes.push(PoolOutcome { coded_servers: sets * self.shape.servers() as u32, ..one });
        }
        Ok(outcomes)
    }

    /// The replicated part: enough servers for its data and for all of the load.
    fn hot(&self, case: &Case, series: &Series) -> Result<Case, LoadError> {
        let peak = case.loads[case.first..].iter().flatten().copied().fold(0.0, f64::max);
        let data = f64::from(case.setup.servers) * (1.0 - self.share);
        let needed = (data.max(peak) - 1e-9).ceil().max(f64::from(case.setup.replicas));
        let servers = (needed as u32).min(case.setup.servers);
        let provision = Provision::PerServer(case.per_server);
        Case::new(Setup { servers, provision, ..case.setup.clone() }, series)
    }

    /// How many of a trace's requests reach which set in which step.
    fn by_step(&self, case: &Case, sets: u32) -> BTreeMap<(u32, usize), u32> {
        let mut seen = BTreeMap::new();
        if let Requests::Seen(touches) = &self.requests {
            for touch in touches {
                let step = (touch.at.as_nanos() / case.step.as_nanos()) as usize;
                *seen.entry(((touch.chunk % u64::from(sets)) as u32, step)).or_default() += 1;
            }
        }
        seen
    }

    /// The sets over the steps that count. Without `after` their data servers never sleep.
    fn sleep(&self, case: &Case, after: Option<Duration>) -> Sleep {
        let counted = &case.loads[case.first..];
        let mean = counted.iter().flatten().sum::<f64>() / case.counted() as f64;
        let sets = self.sets(&case.setup);
        let seen = self.by_step(case, sets);
        let mut random = Random::new(SEED);
        let mut all = Sleep::default();
        for set in 0..sets {
            // Steps since the last request; `None`: asleep.
            let mut quiet = Some(0u32);
            for (t, load) in counted.iter().enumerate().filter_map(|(t, load)| Some((t, (*load)?))) {
                let (requests, comes) = match self.requests {
                    Requests::Rate(rate) => {
                        let shape = if mean > 0.0 { load / mean } else { 1.0 };
                        let requests = rate / f64::from(sets) * shape * case.step.as_secs_f64();
                        (requests, random.unit() < 1.0 - (-requests).exp())
                    }
                    Requests::Seen(_) => {
                        let requests = seen.get(&(set, case.first + t)).copied().unwrap_or(0);
                        (f64::from(requests), requests > 0)
                    }
                };
                all.requests += requests;
                let power = &case.setup.power;
                let data = self.shape.data() as f64;
                let of = |joules: Joules, seconds: f64| {
                    let instead =
                        power.standby * Duration::from_secs_f64(seconds.min(case.step.as_secs_f64()));
                    (joules - instead) * data
                };
                match (quiet, comes) {
                    (None, true) => {
                        all.wakes += 1;
                        // The one that wakes it, and those that come until it is awake.
                        let share = (power.up.seconds / case.step.as_secs_f64()).min(1.0);
                        all.waiting += 1.0 + (requests - 1.0).max(0.0) * share;
                        all.joules += of(power.up.joules, power.up.seconds);
                        quiet = Some(0);
                    }
                    (_, true) => quiet = Some(0),
                    (Some(steps), false) if after.is_some_and(|after| case.step * (steps + 1) > after) => {
                        all.joules += of(power.down.joules, power.down.seconds);
                        quiet = None;
                    }
                    (Some(steps), false) => quiet = Some(steps + 1),
                    (None, false) => {}
                }
                let awake = if quiet.is_some() { data } else { 0.0 };
                let asleep = self.shape.servers() as f64 - awake;
                all.joules += power.on(0.0) * case.step * awake + power.standby * case.step * asleep;
                all.awake_steps += awake;
            }
        }
        all
    }
}
