//! Continuous gears: decides server by server which ones are awake. Every chunk group has a replica in each gear
//! group, so once the servers of the lowest gear are awake, any subset of the others may be: the fleet wakes only
//! the servers that the load needs, not a whole gear group at a time.
//!
//! - **Forecast**: what may happen next is what happened after moments like this one ([`crate::seasonal`]). For
//!   every hour, servers are woken ahead of time until one more would cost more than the shortage that it is likely
//!   to prevent.
//! - **Correction**: load above the forecast wakes servers at once, and as many as similar outruns ended up
//!   needing, because waking takes longer than a burst takes to rise.
//! - **Calibration**: the price of shortage follows from how often too few servers were awake, relative to the
//!   share of time that the operator accepts. Nothing is tuned to one load.
//! - **Wear**: a woken server stays awake for the dwell time; each has a budget of power cycles, spent on the quiet
//!   periods that are expected to be the longest. Servers take turns: the one awake longest sleeps first, the one
//!   asleep longest wakes first, and the lowest gear moves to another gear group every few days.
//!
//! Safety comes before economy: nothing ever delays a wake-up, and without a forecast every server is awake. The
//! fleet stores no history: recorded hours go through the replicated metadata state and come back with every event.

use crate::schedule::ROUNDING;
use crate::seasonal::Ahead;
use crate::{Calendar, History, HourMeter, Load, Seasonal, awake_groups, floor_servers};
use ebb_types::{GearGroup, Moment, ServerId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

const DAY: f64 = 86_400.0;
/// Days whose unspent power cycles a server may save up.
const CARRY_DAYS: f64 = 7.0;
/// Bounds of the price of shortage: the share of all servers that could stay awake for the same time instead. Calibration
/// starts at the lower one divided by the accepted share of time: the rarer shortage may be, the higher its price.
const SHORT_PRICE: RangeInclusive<f64> = 0.05..=10.0;
/// Time without shortage after which the price of shortage is halved.
const DARE: f64 = 2.0 * DAY;
/// Most candidate numbers of servers compared for an hour; more would make no relevant difference.
const CHOICES: u32 = 256;
/// Bounds of the price of a power cycle, as the quiet time that must be expected; then its initial value.
const CYCLE_PRICE: RangeInclusive<f64> = 60.0..=DAY;
const CYCLE_PRICE_START: f64 = 3600.0;
/// Share of the power-cycle budget that its price aims at: the rest is for worse days.
const AIM: f64 = 0.97;
/// The same for the shortage budget; shortage comes in runs.
const SHORT_AIM: f64 = 0.9;
/// Time in which a fleet without power cycles lowers their price to 1/e.
const CHEAPEN: f64 = DAY;
/// Outruns remembered, how many of them a new one is compared with, and which of those predicts its rise.
const OUTRUNS_KEPT: usize = 64;
const OUTRUNS_ALIKE: usize = 7;
const OUTRUN_QUANTILE: f64 = 0.75;

/// The operator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPolicy {
    pub replicas: u8,
    /// Gear groups that are awake at any load.
    pub g_min: u8,
    /// Length of the forecast's hour. A quarter of a real hour captures recurring bursts.
    pub hour: Duration,
    pub hours_per_day: u32,
    /// From the wake-up until the server carries load, including its catch-up.
    pub wake: Duration,
    /// Shortest time that a server stays awake, and for which load above the forecast is remembered.
    pub dwell: Duration,
    /// Power cycles allowed per server and day, on average.
    pub cycles_per_day: f64,
    /// Share of time with too few servers awake that the operator accepts, above 0 and at most 0.5.
    pub short_goal: f64,
    /// Days after which the lowest gear moves to the next gear group; zero: never.
    pub rotate_days: u32,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FleetError {
    #[error("{replicas} replicas with g_min {g_min}: g_min must be between 1 and the number of replicas")]
    GMin { replicas: u8, g_min: u8 },
    #[error(
        "the forecast's hour is {hour:?} and a day has {hours_per_day} of them: both must be more than nothing"
    )]
    Day { hour: Duration, hours_per_day: u32 },
    #[error("cycles per day is {0}: use a number above 0; 2 is usual")]
    Cycles(f64),
    #[error(
        "the accepted share of time with too few servers is {0}: use a number above 0 and up to 0.5, such as 0.01"
    )]
    ShortGoal(f64),
    #[error("there are {servers} servers: {replicas} replicas need at least that many")]
    Servers { servers: usize, replicas: u8 },
    #[error("{server} is in {group}, but {replicas} replicas have gear groups 0 to {}", replicas - 1)]
    Group { server: ServerId, group: GearGroup, replicas: u8 },
}

impl FleetPolicy {
    pub fn check(&self) -> Result<(), FleetError> {
        if self.g_min == 0 || self.g_min > self.replicas {
            return Err(FleetError::GMin { replicas: self.replicas, g_min: self.g_min });
        }
        if self.hour < Duration::from_millis(100) || self.hours_per_day == 0 {
            return Err(FleetError::Day { hour: self.hour, hours_per_day: self.hours_per_day });
        }
        if !(self.cycles_per_day > 0.0 && self.cycles_per_day.is_finite()) {
            return Err(FleetError::Cycles(self.cycles_per_day));
        }
        if !(self.short_goal > 0.0 && self.short_goal <= 0.5) {
            return Err(FleetError::ShortGoal(self.short_goal));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Load of all servers together over the `interval` that ends now.
    Sample { load: Load, interval: Duration },
    /// Time has passed without a sample, or the history changed.
    Tick,
    /// The server is up and carries load.
    Awake(ServerId),
    /// The server failed or was removed.
    Gone(ServerId),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    Wake(ServerId),
    /// Only for a server that is awake.
    Sleep(ServerId),
    /// An hour ended that was watched for the most part: put its peak into the replicated [`History`].
    RecordHour {
        hour: u64,
        peak: Load,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Awake,
    Waking,
    Asleep,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    group: GearGroup,
    state: State,
    /// When the state began.
    since: Moment,
    /// Power cycles saved up, as of `counted`.
    credit: f64,
    counted: Moment,
}

/// Load above the expected: its excess when it began, and its highest excess. Bursts add to the usual load and do
/// not grow with it.
#[derive(Clone, Copy, Debug)]
struct Outrun {
    began: f64,
    rose: f64,
}

/// A price that rises and falls by factors, within bounds.
#[derive(Clone, Debug)]
struct Price {
    /// As natural logarithms.
    now: f64,
    bounds: (f64, f64),
}

impl Price {
    fn new(start: f64, bounds: RangeInclusive<f64>) -> Price {
        let bounds = (bounds.start().ln(), bounds.end().ln());
        Price { now: start.ln().clamp(bounds.0, bounds.1), bounds }
    }

    fn get(&self) -> f64 {
        self.now.exp()
    }

    /// Multiplies the price by e^`by`.
    fn change(&mut self, by: f64) {
        self.now = (self.now + by).clamp(self.bounds.0, self.bounds.1);
    }
}

/// Decides which servers are awake. One per metadata leader.
#[derive(Clone, Debug)]
pub struct Fleet {
    policy: FleetPolicy,
    calendar: Calendar,
    members: BTreeMap<ServerId, Member>,
    seasonal: Option<Seasonal>,
    /// The possible futures from the present hour on, then the hour and the newest record that they are based on.
    ahead: Option<Ahead>,
    basis: Option<(u64, Option<u64>)>,
    /// Cost-optimal number of awake servers for the present hour and for the next.
    prepared: u32,
    coming: u32,
    meter: HourMeter,
    watched: Duration,
    /// Price of a short step, in servers awake as a share of all; price of a power cycle, in seconds of quiet.
    short_price: Price,
    cycle_price: Price,
    outruns: VecDeque<Outrun>,
    outrun: Option<Outrun>,
    /// Servers requested for outruns within the dwell time, in descending order.
    asked: VecDeque<(Moment, u32)>,
}

impl Fleet {
    /// Starts at `now`; `servers` with their gear groups and whether each is awake.
    pub fn new(
        policy: FleetPolicy,
        calendar: Calendar,
        now: Moment,
        servers: impl IntoIterator<Item = (ServerId, GearGroup, bool)>,
    ) -> Result<Fleet, FleetError> {
        policy.check()?;
        let mut members = BTreeMap::new();
        for (server, group, awake) in servers {
            if group.0 >= policy.replicas {
                return Err(FleetError::Group { server, group, replicas: policy.replicas });
            }
            let state = if awake { State::Awake } else { State::Asleep };
            let credit = policy.cycles_per_day * CARRY_DAYS;
            let member = Member { group, state, since: now, credit, counted: now };
            members.insert(server, member);
        }
        if members.len() < usize::from(policy.replicas) {
            return Err(FleetError::Servers { servers: members.len(), replicas: policy.replicas });
        }
        let hour = calendar.hour(now, policy.hour);
        let short_price = Price::new(SHORT_PRICE.start() / policy.short_goal, SHORT_PRICE);
        Ok(Fleet {
            policy,
            calendar,
            members,
            seasonal: None,
            ahead: None,
            basis: None,
            prepared: 0,
            coming: 0,
            meter: HourMeter::new(hour),
            watched: Duration::ZERO,
            short_price,
            cycle_price: Price::new(CYCLE_PRICE_START, CYCLE_PRICE),
            outruns: VecDeque::new(),
            outrun: None,
            asked: VecDeque::new(),
        })
    }

    pub fn on(&mut self, now: Moment, history: &History, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Sample { load, interval } => self.sample(now, load, interval, out),
            Event::Tick => self.begin_hour(now, out),
            // It was counted when it was woken: nothing to decide.
            Event::Awake(server) => return self.set(now, server, State::Awake),
            Event::Gone(server) => self.set(now, server, State::Gone),
        }
        self.look_ahead(now, history);
        self.decide(now, out);
    }

    pub fn state(&self, server: ServerId) -> Option<State> {
        self.members.get(&server).map(|member| member.state)
    }

    pub fn count(&self, state: State) -> u32 {
        self.members.values().filter(|member| member.state == state).count() as u32
    }

    fn set(&mut self, now: Moment, server: ServerId, state: State) {
        if let Some(member) = self.members.get_mut(&server).filter(|member| member.state != state) {
            (member.state, member.since) = (state, now);
        }
    }

    /// Servers that carried load for the whole of the `interval` that ends now.
    fn awake_throughout(&self, now: Moment, interval: Duration) -> u32 {
        let throughout =
            |member: &&Member| member.state == State::Awake && now.since(member.since) >= interval;
        self.members.values().filter(throughout).count() as u32
    }

    fn servers(&self) -> u32 {
        self.members.len() as u32
    }

    fn need(&self, load: f64) -> u32 {
        (load * (1.0 - ROUNDING)).ceil().min(f64::from(self.servers())) as u32
    }

    fn sample(&mut self, now: Moment, load: Load, interval: Duration, out: &mut Vec<Command>) {
        self.begin_hour_before(now, interval, out);
        self.meter.add(load);
        self.watched += interval;
        self.begin_hour(now, out);
        let short = load.0 * (1.0 - ROUNDING) > f64::from(self.awake_throughout(now, interval));
        let change = if short { 1.0 / (SHORT_AIM * self.policy.short_goal) - 1.0 } else { -1.0 };
        self.short_price.change(std::f64::consts::LN_2 * interval.as_secs_f64() / DARE * change);
        self.cycle_price.change(-interval.as_secs_f64() / CHEAPEN);
        // A sample as long as the forecast's hour is part of the forecast itself, as its drift.
        if interval < self.policy.hour {
            self.correct(now, load.0);
        }
    }

    /// Load above what the fleet is prepared for: requests the servers that it is likely to grow to need.
    fn correct(&mut self, now: Moment, load: f64) {
        while self.asked.front().is_some_and(|(at, _)| now.since(*at) >= self.policy.dwell) {
            self.asked.pop_front();
        }
        let prepared = f64::from(self.prepared);
        let Some(ahead) = self.ahead.as_ref().filter(|_| load > prepared) else {
            if self.asked.is_empty()
                && let Some(ended) = self.outrun.take()
            {
                self.outruns.push_back(ended);
                if self.outruns.len() > OUTRUNS_KEPT {
                    self.outruns.pop_front();
                }
            }
            return;
        };
        let median = ahead.median(0).0;
        let above = load - median;
        let ask = match &mut self.outrun {
            Some(outrun) => {
                outrun.rose = outrun.rose.max(above);
                load
            }
            None => {
                self.outrun = Some(Outrun { began: above, rose: above });
                median + self.likely_rise(above)
            }
        };
        let ask = self.need(ask);
        while self.asked.back().is_some_and(|(_, lower)| *lower <= ask) {
            self.asked.pop_back();
        }
        self.asked.push_back((now, ask));
    }

    /// How far above the expected load an outrun that begins at `above` is likely to rise: as far as the most
    /// similar outruns rose.
    fn likely_rise(&self, above: f64) -> f64 {
        let mut alike: Vec<(f64, f64)> =
            self.outruns.iter().map(|outrun| ((outrun.began - above).abs(), outrun.rose)).collect();
        alike.sort_by(|a, b| a.0.total_cmp(&b.0));
        alike.truncate(OUTRUNS_ALIKE);
        alike.sort_by(|a, b| a.1.total_cmp(&b.1));
        let at = (alike.len() as f64 * OUTRUN_QUANTILE) as usize;
        alike.get(at).map_or(above, |(_, rose)| rose.max(above))
    }

    /// Closes the hour before the one that most of the sample lies in.
    fn begin_hour_before(&mut self, now: Moment, interval: Duration, out: &mut Vec<Command>) {
        let middle = Moment(now.0.saturating_sub(interval.as_nanos() as u64 / 2));
        self.begin_hour(middle, out);
    }

    fn begin_hour(&mut self, now: Moment, out: &mut Vec<Command>) {
        let hour = self.calendar.hour(now, self.policy.hour);
        if hour <= self.meter.hour() {
            return;
        }
        if let (Some(peak), true) = (self.meter.peak(), self.watched * 2 >= self.policy.hour) {
            out.push(Command::RecordHour { hour: self.meter.hour(), peak });
        }
        (self.meter, self.watched) = (HourMeter::new(hour), Duration::ZERO);
    }

    /// Forecasts the coming day, once an hour and whenever the history has grown.
    fn look_ahead(&mut self, now: Moment, history: &History) {
        let hour = self.calendar.hour(now, self.policy.hour);
        let basis = Some((hour, history.newest()));
        if self.basis == basis {
            return;
        }
        self.basis = basis;
        let day = hour / u64::from(self.policy.hours_per_day);
        if self.seasonal.as_ref().is_none_or(|seasonal| seasonal.day() != day) {
            self.seasonal = Seasonal::fit(history, day, self.policy.hours_per_day);
        }
        let Some(seasonal) = &self.seasonal else { return };
        let ahead = seasonal.ahead(history, hour);
        self.prepared = self.worth(&ahead, 0);
        self.coming = self.worth(&ahead, 1);
        self.ahead = Some(ahead);
    }

    /// The number of servers for an hour ahead with the lowest total price: keeping them awake, waking those that
    /// sleep, and the remaining risk of shortage.
    fn worth(&self, ahead: &Ahead, hour: usize) -> u32 {
        let all = self.servers();
        let floor = floor_servers(all, self.policy.replicas);
        let short_price = f64::from(all) * self.short_price.get();
        let step = (all - floor).div_ceil(CHOICES).max(1);
        let on = self.count(State::Awake) + self.count(State::Waking);
        let cycle_price = self.cycle_price.get() / self.policy.hour.as_secs_f64();
        let price = |servers: u32| {
            let short = if servers < all { ahead.exceeds(hour, Load(f64::from(servers))) } else { 0.0 };
            let woken = f64::from(servers.saturating_sub(on));
            f64::from(servers) + woken * cycle_price + short_price * short
        };
        let choices = (floor..all).step_by(step as usize).chain([all]);
        let best = choices.map(|servers| (price(servers), servers)).min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(all, |(_, servers)| servers)
    }

    /// Servers that must be awake now: for this hour, for the hour that a server woken now would be ready for, and
    /// for outruns.
    fn wanted(&self, now: Moment) -> u32 {
        if self.ahead.is_none() {
            return self.servers();
        }
        let in_time = self.calendar.hour(now + self.policy.wake, self.policy.hour);
        let next = in_time > self.calendar.hour(now, self.policy.hour);
        let forecast = if next { self.prepared.max(self.coming) } else { self.prepared };
        let asked = self.asked.front().map_or(0, |(_, servers)| *servers);
        forecast.max(asked).max(floor_servers(self.servers(), self.policy.replicas))
    }

    /// Whether reducing to fewer than `servers` is worth a power cycle: whether the load is expected to stay low
    /// enough for long enough.
    fn worthwhile(&self, now: Moment, servers: u32) -> bool {
        let Some(ahead) = &self.ahead else { return false };
        let length = self.policy.hour.as_secs_f64();
        let into = self.calendar.into_hour(now, self.policy.hour).as_secs_f64() / length;
        let load = Load(f64::from(servers - 1));
        // Once an hour's peak exceeds `load`, the expected burst has already happened.
        let brought = self.meter.peak().is_some_and(|peak| peak.0 > load.0);
        let quiet = if brought { ahead.quiet_from_next(load) + 1.0 } else { ahead.quiet(load) } - into;
        quiet * length >= self.cycle_price.get() + self.policy.wake.as_secs_f64()
    }

    fn decide(&mut self, now: Moment, out: &mut Vec<Command>) {
        let day = self.calendar.hour(now, self.policy.hour) / u64::from(self.policy.hours_per_day);
        let base = awake_groups(self.policy.g_min, day, self.policy.replicas, self.policy.rotate_days);
        let mut wake: Vec<ServerId> = self.asleep(|member| base.contains(&member.group));
        let on = self.count(State::Awake) + self.count(State::Waking) + wake.len() as u32;
        let wanted = self.wanted(now);
        if wanted > on {
            let mut others = self.asleep(|member| !base.contains(&member.group));
            others.sort_by_key(|server| self.members[server].since);
            wake.extend(others.into_iter().take((wanted - on) as usize));
        } else {
            let sleep = self.sleepers(now, &base, on - self.kept(now, on, wanted));
            for server in sleep {
                self.charge(now, server);
                let budget = AIM * self.policy.cycles_per_day * f64::from(self.servers());
                self.cycle_price.change(1.0 / budget);
                self.set(now, server, State::Asleep);
                out.push(Command::Sleep(server));
            }
        }
        for server in wake {
            self.set(now, server, State::Waking);
            out.push(Command::Wake(server));
        }
    }

    /// How many of `on` servers to keep: those wanted, and those whose sleep would not be worth it.
    fn kept(&self, now: Moment, on: u32, wanted: u32) -> u32 {
        // The more servers, the longer they suffice: find the highest number for which that is not long enough.
        let (mut low, mut high) = (wanted, on);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.worthwhile(now, middle + 1) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }

    fn asleep(&self, which: impl Fn(&Member) -> bool) -> Vec<ServerId> {
        let asleep = self.members.iter().filter(|(_, m)| m.state == State::Asleep && which(m));
        asleep.map(|(server, _)| *server).collect()
    }

    fn credit(&self, now: Moment, member: &Member) -> f64 {
        let earned = now.since(member.counted).as_secs_f64() / DAY * self.policy.cycles_per_day;
        (member.credit + earned).min(self.policy.cycles_per_day * CARRY_DAYS)
    }

    fn charge(&mut self, now: Moment, server: ServerId) {
        let credit = self.credit(now, &self.members[&server]) - 1.0;
        if let Some(member) = self.members.get_mut(&server) {
            (member.credit, member.counted) = (credit, now);
        }
    }

    /// Up to `count` servers that may go to sleep, those awake longest first.
    fn sleepers(&self, now: Moment, base: &[GearGroup], count: u32) -> Vec<ServerId> {
        if count == 0 {
            return Vec::new();
        }
        let may = |member: &Member| {
            member.state == State::Awake
                && !base.contains(&member.group)
                && now.since(member.since) >= self.policy.dwell
                && self.credit(now, member) >= 1.0
        };
        let mut may: Vec<ServerId> =
            self.members.iter().filter(|(_, m)| may(m)).map(|(server, _)| *server).collect();
        may.sort_by_key(|server| self.members[server].since);
        may.truncate(count as usize);
        may
    }
}

#[cfg(test)]
mod tests;
