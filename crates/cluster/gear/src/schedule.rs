//! The gear scheduler: from load to the gear groups that must be awake. [Sierra §3.4]
//!
//! The gear follows the forecast of the hour or the present load, whichever needs more. It goes up at once. It goes
//! down only when both the forecast of the present hour and the highest load of the dwell time allow it, and not
//! within the dwell time after another shift: a burst costs one wake-up and never makes the gear flap. Without any
//! history every server stays awake.
//!
//! The scheduler keeps no history of its own: recorded hours go through the replicated metadata state and come back
//! with every event, so a new leader forecasts what the old one would have.
//!
//! Floor: a write has r copies on r awake servers at every gear, and the copies for sleeping replicas are held by
//! other chunk servers, so at least r servers stay awake. [`Policy::lowest_gear`] is the lowest gear that respects it.
//!
//! Gear groups differ in size where racks do. The formula counts N/r servers per gear, so it gives the least gear, and
//! a higher one is chosen where its gear groups are too small. A gear counts what it has when the smallest take their
//! turn: what it sustains, and whether it may be set, does not change with the day.

use crate::{
    Command, Decider, Event, History, HourMeter, Load, Mode, Planned, RatesError, ServerRates, forecast,
};
use ebb_types::{Depth, GearGroup, GearWish, Moment, ServerId, Why};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Relative rounding error that must not cost a gear: a load of exactly one gear's capacity fits that gear.
pub(crate) const ROUNDING: f64 = 1e-9;

/// `ceil(L / (N/r))`: the gear whose servers sustain `load`, were there enough gears, and none too low.
pub fn gear_by_formula(load: Load, servers: u32, replicas: u8) -> u32 {
    let gears = load.0 * f64::from(replicas) / f64::from(servers.max(1));
    (gears * (1.0 - ROUNDING)).ceil() as u32
}

/// `clamp(ceil(L / (N/r)), g_min, r)`: the lowest gear whose servers sustain `load`.
pub fn gear_for(load: Load, servers: u32, replicas: u8, g_min: u8) -> u8 {
    let needed = gear_by_formula(load, servers, replicas);
    (needed.min(u32::from(u8::MAX)) as u8).max(g_min).min(replicas)
}

/// Fewest of `servers` that sustain `load`, one by one; all of them if they do not.
pub(crate) fn servers_for(load: Load, servers: u32) -> u32 {
    (load.0 * (1.0 - ROUNDING)).ceil().min(f64::from(servers)) as u32
}

/// Fewest awake servers where a gear group of `lowest` is the lowest gear: one replica of everything, and r places for
/// r copies of every write.
pub fn floor_servers(lowest: u32, replicas: u8) -> u32 {
    lowest.max(u32::from(replicas))
}

/// The servers that `gear` keeps awake, turn by turn.
pub(crate) fn sizes_in_turn(
    gear: u8,
    group_sizes: &[u32],
    rotate_days: u32,
) -> impl Iterator<Item = u32> + '_ {
    let replicas = group_sizes.len() as u8;
    (0..u64::from(replicas)).map(move |turn| {
        let groups = awake_groups(gear, turn * u64::from(rotate_days), replicas, rotate_days);
        groups.iter().map(|group| group_sizes[usize::from(group.0)]).sum()
    })
}

/// The lowest gear from `g_min` on that has r servers awake in every turn. Where gear groups are alike, it is gear 1
/// from N = r² on.
pub(crate) fn lowest_gear(g_min: u8, group_sizes: &[u32], rotate_days: u32) -> u8 {
    let replicas = group_sizes.len() as u8;
    let suffices = |gear: &u8| {
        sizes_in_turn(*gear, group_sizes, rotate_days).all(|servers| servers >= u32::from(replicas))
    };
    (g_min..replicas).find(suffices).unwrap_or(replicas)
}

/// The gear groups that are awake in `gear` on `day`, the lowest gear first.
///
/// Every `rotate_days` days the order advances by one gear group, so that over r such periods all servers are awake
/// for the same time and each gets idle time for scrubbing. Zero never rotates: gear group 0 is always awake.
pub fn awake_groups(gear: u8, day: u64, replicas: u8, rotate_days: u32) -> Vec<GearGroup> {
    let turn = day.checked_div(u64::from(rotate_days)).unwrap_or(0) % u64::from(replicas.max(1));
    let group = |position: u8| GearGroup(((turn + u64::from(position)) % u64::from(replicas)) as u8);
    (0..gear.min(replicas)).map(group).collect()
}

/// The gears of consecutive hours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    pub first_hour: u64,
    pub gears: Vec<u8>,
}

/// The schedule with perfect knowledge of the peaks: the baseline for a forecast. [Sierra §4.4]
pub fn oracle(first_hour: u64, peaks: &[Load], policy: &Policy) -> Schedule {
    Schedule { first_hour, gears: peaks.iter().map(|peak| policy.gear_for(*peak)).collect() }
}

/// The operator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Servers in each gear group; there are r gear groups.
    pub group_sizes: Vec<u32>,
    /// Fewest replicas awake: 1 saves most, 2 tolerates the failure of an awake server.
    pub g_min: u8,
    pub rates: ServerRates,
    /// Length of the scheduler's hour: 3600 s, or less when a day is rehearsed.
    pub hour: Duration,
    pub hours_per_day: u32,
    /// How long the load must have been low, and the gear unchanged, before a down-shift.
    pub dwell: Duration,
    /// How long before the start of an hour its up-shift is made.
    pub lead: Duration,
    /// Days after which the order of the gear groups advances; zero: never.
    pub rotate_days: u32,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    #[error("there are {groups} gear groups; there must be one per replica, 1 to 255")]
    Groups { groups: usize },
    #[error("{group} has no server: add one to it")]
    EmptyGroup { group: GearGroup },
    #[error("g_min is {g_min} and must be between 1 and {replicas}, the number of replicas")]
    GMin { g_min: u8, replicas: u8 },
    #[error("the scheduler's hour is {hour:?}: it must be at least 100 ms")]
    Hour { hour: Duration },
    #[error("a day has no hours: set hours_per_day, 24 for a real day")]
    Day,
    #[error("the lead time of {lead:?} is longer than the scheduler's hour of {hour:?}: shorten it")]
    Lead { lead: Duration, hour: Duration },
    #[error(transparent)]
    Rates(#[from] RatesError),
}

/// A requested gear that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "gear {asked} is not possible: this cluster runs in gears {lowest} to {highest} (g_min is {g_min}, and r copies of \
     every write need r awake servers{})", has_only(*asked, *few)
)]
pub struct GearError {
    pub asked: u8,
    pub lowest: u8,
    pub highest: u8,
    pub g_min: u8,
    /// The servers of the gear's gear groups, in the turn in which they are fewest; `None`: they suffice.
    pub few: Option<u32>,
}

fn has_only(gear: u8, few: Option<u32>) -> String {
    few.map_or(String::new(), |servers| format!("; the gear groups of gear {gear} can have only {servers}"))
}

impl Policy {
    pub fn check(&self) -> Result<(), PolicyError> {
        let groups = self.group_sizes.len();
        let replicas = u8::try_from(groups).map_err(|_| PolicyError::Groups { groups })?;
        if replicas == 0 {
            return Err(PolicyError::Groups { groups });
        }
        if let Some(group) = self.group_sizes.iter().position(|size| *size == 0) {
            return Err(PolicyError::EmptyGroup { group: GearGroup(group as u8) });
        }
        if self.g_min == 0 || self.g_min > replicas {
            return Err(PolicyError::GMin { g_min: self.g_min, replicas });
        }
        if self.hour < Duration::from_millis(100) {
            return Err(PolicyError::Hour { hour: self.hour });
        }
        if self.hours_per_day == 0 {
            return Err(PolicyError::Day);
        }
        if self.lead > self.hour {
            return Err(PolicyError::Lead { lead: self.lead, hour: self.hour });
        }
        Ok(self.rates.check()?)
    }

    pub fn replicas(&self) -> u8 {
        self.group_sizes.len() as u8
    }

    pub fn servers(&self) -> u32 {
        self.group_sizes.iter().sum()
    }

    /// The lowest gear that `g_min` and the floor of r awake servers allow.
    pub fn lowest_gear(&self) -> u8 {
        lowest_gear(self.g_min, &self.group_sizes, self.rotate_days)
    }

    /// Whether the cluster may run in `gear`.
    pub fn check_gear(&self, gear: u8) -> Result<(), GearError> {
        let (lowest, highest) = (self.lowest_gear(), self.replicas());
        if (lowest..=highest).contains(&gear) {
            return Ok(());
        }
        let few = (1..lowest).contains(&gear).then(|| self.fewest_awake(gear));
        let few = few.filter(|servers| *servers < u32::from(highest));
        Err(GearError { asked: gear, lowest, highest, g_min: self.g_min, few })
    }

    /// The gear that comes closest to the wish.
    fn gear_of(&self, wish: GearWish) -> u8 {
        match wish {
            GearWish::Gear(gear) => gear.clamp(self.lowest_gear(), self.replicas()),
            GearWish::Servers(servers) => self.gear_for(Load(f64::from(servers))),
        }
    }

    /// The lowest gear whose servers sustain `load`, by the formula and by their number.
    pub fn gear_for(&self, load: Load) -> u8 {
        let least = gear_for(load, self.servers(), self.replicas(), self.lowest_gear());
        let needed = servers_for(load, self.servers());
        (least..self.replicas()).find(|gear| self.fewest_awake(*gear) >= needed).unwrap_or(self.replicas())
    }

    /// Fewest servers that `gear` keeps awake, whichever gear groups' turn it is.
    pub fn fewest_awake(&self, gear: u8) -> u32 {
        sizes_in_turn(gear, &self.group_sizes, self.rotate_days).min().unwrap_or(0)
    }

    /// The gear groups awake in `gear` during `hour`, the lowest gear first.
    pub fn awake_groups(&self, gear: u8, hour: u64) -> Vec<GearGroup> {
        awake_groups(gear, hour / u64::from(self.hours_per_day.max(1)), self.replicas(), self.rotate_days)
    }

    pub fn servers_awake(&self, groups: &[GearGroup]) -> u32 {
        groups.iter().map(|group| self.group_sizes[usize::from(group.0)]).sum()
    }
}

/// Maps the driver's clock to the cluster's hours: at `origin` the time `elapsed` had passed since hour 0 began.
///
/// A new leader has another clock; it passes its own moment and the same cluster time (such as the time since 1970,
/// or since a rehearsal began), and continues to count the same hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub origin: Moment,
    pub elapsed: Duration,
}

impl Calendar {
    /// Since hour 0 began.
    pub fn elapsed(&self, now: Moment) -> Duration {
        self.elapsed.saturating_add(now.since(self.origin))
    }

    /// Time from the start of its hour to `now`.
    pub fn into_hour(&self, now: Moment, hour: Duration) -> Duration {
        let nanos = self.elapsed(now).as_nanos() % hour.as_nanos().max(1);
        Duration::from_nanos(nanos as u64)
    }

    /// The hour that contains `now`.
    pub fn hour(&self, now: Moment, hour: Duration) -> u64 {
        (self.elapsed(now).as_nanos() / hour.as_nanos().max(1)) as u64
    }
}

/// Decides the gear. With rotation the gear groups that are awake can change while it stays.
#[derive(Clone, Debug)]
pub struct Scheduler {
    policy: Policy,
    /// Its servers, each with its gear group.
    members: BTreeMap<ServerId, GearGroup>,
    calendar: Calendar,
    mode: Mode,
    gear: u8,
    /// The gear groups that are to be awake; `None`: nothing is decided yet.
    awake: Option<Vec<GearGroup>>,
    /// When the gear or its awake gear groups last changed, or when watching started.
    settled: Moment,
    /// The hour that determines the rotation: the present one, except during the dwell time after a change.
    turn: u64,
    meter: HourMeter,
    /// The meter has watched its hour from the start.
    whole_hour: bool,
    /// Samples of the dwell time, oldest first, without those that a later one equals or exceeds: the first is the
    /// highest, the last the latest, which is kept whatever its age.
    recent: VecDeque<(Moment, Load)>,
}

impl Scheduler {
    /// `gear`: the present gear of the `members`; a new cluster is in gear r. The first event and every change say of
    /// each member whether it is wanted.
    pub fn new(
        policy: Policy,
        members: BTreeMap<ServerId, GearGroup>,
        calendar: Calendar,
        now: Moment,
        mode: Mode,
        gear: u8,
    ) -> Result<Scheduler, PolicyError> {
        policy.check()?;
        debug_assert_eq!(policy.servers() as usize, members.len(), "the policy is that of these servers");
        let meter = HourMeter::new(calendar.hour(now, policy.hour));
        let gear = gear.clamp(policy.lowest_gear(), policy.replicas());
        let hour_nanos = policy.hour.as_nanos();
        let turn = meter.hour();
        Ok(Scheduler {
            turn,
            policy,
            members,
            calendar,
            mode,
            gear,
            awake: None,
            settled: now,
            meter,
            whole_hour: calendar.elapsed(now).as_nanos().is_multiple_of(hour_nanos),
            recent: VecDeque::new(),
        })
    }

    /// A sample belongs to the hour that contains most of it, as long as that hour is still open.
    fn sample(
        &mut self,
        now: Moment,
        history: &History,
        sample: Load,
        interval: Duration,
        out: &mut Vec<Command>,
    ) {
        if interval.is_zero() {
            return self.begin_hour(now, history, out);
        }
        let middle = self.calendar.elapsed(now).saturating_sub(interval / 2);
        let hour = (middle.as_nanos() / self.policy.hour.as_nanos()) as u64;
        if hour <= self.meter.hour() {
            self.meter.add(sample);
            self.begin_hour(now, history, out);
        } else {
            self.begin_hour(now, history, out);
            self.meter.add(sample);
        }
        while self.recent.back().is_some_and(|(_, earlier)| *earlier <= sample) {
            self.recent.pop_back();
        }
        self.recent.push_back((now, sample));
        while self.recent.len() > 1 && now.since(self.recent[0].0) > self.policy.dwell {
            self.recent.pop_front();
        }
    }

    /// Closes the hour being watched once `now` is past it. Hours that were not watched completely are not
    /// recorded.
    fn begin_hour(&mut self, now: Moment, history: &History, out: &mut Vec<Command>) {
        let hour = self.hour(now);
        if hour <= self.meter.hour() {
            return;
        }
        let next = hour == self.meter.hour() + 1;
        if let (true, Some(peak)) = (self.whole_hour && next, self.meter.peak()) {
            let hour = self.meter.hour();
            let forecast = self.forecast(history, hour);
            out.push(Command::RecordHour { hour, peak, forecast, prices: None });
        }
        self.whole_hour = next;
        self.meter = HourMeter::new(hour);
    }

    fn forecast(&self, history: &History, hour: u64) -> Option<Load> {
        forecast(history, hour, self.policy.hours_per_day).map(|forecast| forecast.load)
    }

    fn forecast_gear(&self, history: &History, hour: u64) -> u8 {
        let forecast = self.forecast(history, hour);
        forecast.map_or(self.policy.replicas(), |load| self.policy.gear_for(load))
    }

    fn shift(&mut self, now: Moment, history: &History, out: &mut Vec<Command>) {
        let hour = self.hour(now);
        let gear = match self.mode {
            Mode::Manual(wish) => self.policy.gear_of(wish),
            Mode::Auto => {
                let ahead = self.hour(now + self.policy.lead);
                let expected = self.forecast_gear(history, hour).max(self.forecast_gear(history, ahead));
                let live = self.recent.front().map(|(_, highest)| self.policy.gear_for(*highest));
                let wanted = expected.max(live.unwrap_or(0));
                let may_sink = !self.recent.is_empty() && now.since(self.settled) >= self.policy.dwell;
                if wanted > self.gear || may_sink { wanted } else { self.gear }
            }
        };
        // Servers that were just woken stay up for the dwell time, even when the rotation advances.
        if now.since(self.settled) >= self.policy.dwell || self.gear == self.policy.replicas() {
            self.turn = hour;
        }
        let awake = self.policy.awake_groups(gear, self.turn);
        let changes = self.awake.as_ref() != Some(&awake);
        if gear != self.gear || (changes && self.awake.is_some()) {
            self.settled = now;
            self.gear = gear;
        }
        if changes {
            let command = |(server, group): (&ServerId, &GearGroup)| {
                if awake.contains(group) { Command::Wake(*server) } else { Command::Sleep(*server) }
            };
            out.extend(self.members.iter().map(command));
            self.awake = Some(awake);
        }
    }
}

impl Decider for Scheduler {
    fn on(&mut self, now: Moment, history: &History, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Sample { load, interval } => self.sample(now, history, load, interval, out),
            Event::Tick => self.begin_hour(now, history, out),
            Event::Is { .. } | Event::Seen => return,
            Event::Mode(mode) => self.mode = mode,
        }
        self.shift(now, history, out);
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn hour(&self, now: Moment) -> u64 {
        self.calendar.hour(now, self.policy.hour)
    }

    fn gear(&self, _now: Moment) -> u8 {
        self.gear
    }

    fn never_sleep(&self, now: Moment) -> Vec<GearGroup> {
        self.policy.awake_groups(self.policy.lowest_gear(), self.hour(now))
    }

    fn why(&self, now: Moment, server: ServerId) -> Option<Why> {
        let group = self.members.get(&server)?;
        let is_wanted = self.awake.as_ref().is_some_and(|awake| awake.contains(group));
        Some(if is_wanted && self.mode != Mode::Auto {
            Why::Administrator
        } else if self.never_sleep(now).contains(group) {
            Why::LowestGear
        } else if is_wanted {
            Why::Gear { gear: self.gear }
        } else {
            Why::NotNeeded
        })
    }

    fn expected(&self, now: Moment, history: &History) -> Option<Load> {
        self.forecast(history, self.hour(now))
    }

    fn leads(&self) -> Vec<(Option<Depth>, Duration)> {
        vec![(None, self.policy.lead)]
    }

    fn plan(&self, now: Moment, history: &History, hours: u32) -> Vec<Planned> {
        let first = self.hour(now);
        let planned = |hour: u64| {
            let gear = match self.mode {
                Mode::Auto => self.forecast_gear(history, hour),
                Mode::Manual(wish) => self.policy.gear_of(wish),
            };
            let groups = self.policy.awake_groups(gear, hour);
            let awake = self.members.iter().filter(|(_, group)| groups.contains(group));
            let awake = awake.map(|(server, _)| *server).collect();
            Planned { hour, forecast: self.forecast(history, hour), gear, awake }
        };
        (first..first + u64::from(hours)).map(planned).collect()
    }
}

#[cfg(test)]
mod tests;
