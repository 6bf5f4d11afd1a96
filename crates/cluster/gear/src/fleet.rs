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
//! - **Depth**: a server sleeps at the depth that saves most in the quiet period that is expected: deeper saves more
//!   per second, costs more to go down and come up, and may cost a power cycle. Shallow sleepers are woken first.
//!
//! Safety comes before economy: nothing ever delays a wake-up, and without a forecast every server is awake. The
//! fleet stores no history: recorded hours go through the replicated metadata state and come back with every event.
//!
//! What a server does and what the fleet wants of it are two things. One that is let go but still busy stays awake and
//! is the first to be wanted again; one that fails, or does not wake in time, carries nothing and gets a substitute. A
//! fleet that takes over wants what it finds awake, and keeps to that for the rest of the hour: a new leader moves no
//! server.

mod members;
mod why;

use crate::schedule::{ROUNDING, lowest_gear, servers_for};
use crate::seasonal::Ahead;
use crate::{
    Calendar, Command, Decider, Event, History, HourMeter, Load, Mode, Planned, Seasonal, State,
    awake_groups, floor_servers, forecast,
};
use ebb_types::{Depth, GearGroup, GearWish, Joules, Moment, Prices, ServerId, Watts, Why, bug};
use members::{Line, Member, Members, Turn};
use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Days whose unspent power cycles a server may save up.
const CARRY_DAYS: f64 = 7.0;
/// Bounds of the price of shortage: the share of all servers that could stay awake for the same time instead.
/// Calibration starts at the lower one divided by the accepted share of time: the rarer shortage may be, the higher its
/// price.
const SHORT_PRICE: RangeInclusive<f64> = 0.05..=10.0;
/// Time without shortage after which the price of shortage is halved, in days.
const DARE: f64 = 2.0;
/// Most candidate numbers of servers compared for an hour; more would make no relevant difference.
const CHOICES: u32 = 256;
/// Bounds of the price of a power cycle, as the quiet time that must be expected, in days; then its initial value.
const CYCLE_PRICE: RangeInclusive<f64> = 1.0 / 1440.0..=1.0;
const CYCLE_PRICE_START: f64 = 1.0 / 24.0;
/// Share of the power-cycle budget that its price aims at: the rest is for worse days.
const AIM: f64 = 0.97;
/// The same for the shortage budget; shortage comes in runs.
const SHORT_AIM: f64 = 0.9;
/// Time in which a fleet without power cycles lowers their price to 1/e, in days.
const CHEAPEN: f64 = 1.0;
/// Outruns remembered, how many of them a new one is compared with, and which of those predicts its rise.
const OUTRUNS_KEPT: usize = 64;
const OUTRUNS_ALIKE: usize = 7;
const OUTRUN_QUANTILE: f64 = 0.75;

/// A depth of sleep: what it saves and costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthSpec {
    pub depth: Depth,
    pub watts: Watts,
    /// Of going down and coming up together.
    pub joules: Joules,
    /// From the wake-up until the server carries load, including its catch-up.
    pub wake: Duration,
    /// It costs a power cycle.
    pub wears: bool,
}

/// The operator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPolicy {
    pub replicas: u8,
    /// Gear groups that are awake at any load.
    pub g_min: u8,
    /// Length of the forecast's hour. A quarter of a real hour captures recurring bursts.
    pub hour: Duration,
    pub hours_per_day: u32,
    /// Draw of a server that is awake and does nothing.
    pub idle: Watts,
    /// The depths of sleep to choose from.
    pub depths: Vec<DepthSpec>,
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
    #[error("no depth of sleep is given: name at least one")]
    NoDepth,
    #[error("{depth:?} sleep draws {watts} and costs {joules}: both must be numbers that are not negative")]
    Depth { depth: Depth, watts: Watts, joules: Joules },
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
        if self.depths.is_empty() {
            return Err(FleetError::NoDepth);
        }
        let sane = |d: &&DepthSpec| d.watts.0 >= 0.0 && d.joules.0 >= 0.0;
        if let Some(DepthSpec { depth, watts, joules, .. }) = self.depths.iter().find(|d| !sane(d)) {
            return Err(FleetError::Depth { depth: *depth, watts: *watts, joules: *joules });
        }
        if !(self.cycles_per_day > 0.0 && self.cycles_per_day.is_finite()) {
            return Err(FleetError::Cycles(self.cycles_per_day));
        }
        if !(self.short_goal > 0.0 && self.short_goal <= 0.5) {
            return Err(FleetError::ShortGoal(self.short_goal));
        }
        Ok(())
    }

    /// Seconds of one of the schedule's days.
    fn day(&self) -> f64 {
        self.hour.as_secs_f64() * f64::from(self.hours_per_day)
    }

    fn spec(&self, depth: Depth) -> &DepthSpec {
        self.depths.iter().find(|spec| spec.depth == depth).unwrap_or(&self.depths[0])
    }

    /// How long a server takes to wake; `None`: it does not sleep.
    fn wake(&self, state: State) -> Option<Duration> {
        match state {
            State::Asleep(depth) => Some(self.spec(depth).wake),
            State::Awake | State::Waking | State::Gone => None,
        }
    }

    /// What sleeping for `quiet` seconds saves, if a power cycle costs as much as `cycle_price` seconds of it.
    fn gain(&self, spec: &DepthSpec, quiet: f64, cycle_price: f64) -> f64 {
        let price = if spec.wears { cycle_price } else { 0.0 };
        (self.idle.0 - spec.watts.0) * (quiet - price) - spec.joules.0
    }
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

/// Decides which servers are awake, one by one.
#[derive(Clone, Debug)]
pub struct Fleet {
    policy: FleetPolicy,
    calendar: Calendar,
    mode: Mode,
    /// Since when.
    mode_since: Moment,
    members: Members,
    /// Servers in each gear group.
    group_sizes: Vec<u32>,
    /// They may not be put to sleep, whatever the load.
    pinned: BTreeSet<ServerId>,
    /// The hour in which it took over.
    first_hour: u64,
    seasonal: Option<Seasonal>,
    /// The possible futures from the present hour on, then the hour and the newest record that they are based on.
    ahead: Option<Ahead>,
    basis: Option<(u64, Option<u64>)>,
    /// Cost-optimal number of awake servers for the present hour and for the next.
    prepared: u32,
    coming: u32,
    meter: HourMeter,
    watched: Duration,
    /// Price of a short step, in servers awake as a share of all; price of a power cycle, in days of quiet.
    short_price: Price,
    cycle_price: Price,
    outruns: VecDeque<Outrun>,
    outrun: Option<Outrun>,
    /// Servers requested for outruns within the dwell time, in descending order.
    asked: VecDeque<(Moment, u32)>,
    /// When a server was last woken.
    woke: Option<Moment>,
}

impl Fleet {
    /// Takes over at `now` the `servers`, each with its gear group and its state, and whether it is wanted: one that is
    /// on its way to sleep is awake and not wanted. `mode`: the operator's.
    pub fn new(
        policy: FleetPolicy,
        calendar: Calendar,
        now: Moment,
        mode: Mode,
        servers: impl IntoIterator<Item = (ServerId, GearGroup, State, bool)>,
    ) -> Result<Fleet, FleetError> {
        policy.check()?;
        let mut members = Members::default();
        let mut group_sizes = vec![0; policy.replicas.into()];
        for (server, group, state, wanted) in servers {
            if group.0 >= policy.replicas {
                return Err(FleetError::Group { server, group, replicas: policy.replicas });
            }
            let depth = policy.depths[0].depth;
            let credit = policy.cycles_per_day * CARRY_DAYS;
            let (since, counted, wake) = (now, now, policy.wake(state));
            members.put(server, Member { group, state, wanted, since, wake, depth, credit, counted });
            group_sizes[usize::from(group.0)] += 1;
        }
        let servers = members.count(|_, _| true) as usize;
        if servers < usize::from(policy.replicas) {
            return Err(FleetError::Servers { servers, replicas: policy.replicas });
        }
        let hour = calendar.hour(now, policy.hour);
        let short_price = Price::new(SHORT_PRICE.start() / policy.short_goal, SHORT_PRICE);
        Ok(Fleet {
            policy,
            calendar,
            mode,
            mode_since: now,
            members,
            group_sizes,
            pinned: BTreeSet::new(),
            first_hour: hour,
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
            woke: None,
        })
    }

    /// A server had saved up `credit` power cycles some time `ago`, by an earlier fleet: one that takes over refills no
    /// budget.
    pub fn take_over_credit(&mut self, server: ServerId, credit: f64, ago: Duration) {
        let credit = self.saved_up(credit, ago);
        self.members.change(server, |member| member.credit = credit);
    }

    /// What it has learnt so far.
    fn prices(&self) -> Prices {
        Prices { shortage: self.short_price.get(), power_cycle: self.cycle_price.get() }
    }

    /// Continues with what an earlier fleet had learnt.
    pub fn take_over_prices(&mut self, prices: Prices) {
        self.short_price = Price::new(prices.shortage, SHORT_PRICE);
        self.cycle_price = Price::new(prices.power_cycle, CYCLE_PRICE);
    }

    pub fn state(&self, server: ServerId) -> Option<State> {
        self.members.get(server).map(|member| member.state)
    }

    pub fn count(&self, which: impl Fn(State) -> bool) -> u32 {
        self.members.count(|_, state| which(state))
    }

    /// The servers that are to be awake.
    fn wants(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.members.iter().filter(|(_, member)| member.wanted).map(|(server, _)| server)
    }

    /// The median of the peak that this hour is expected to have.
    fn median(&self) -> Option<Load> {
        self.ahead.as_ref().map(|ahead| ahead.median(0))
    }

    fn pin(&mut self, server: ServerId, pinned: bool) {
        if pinned && self.members.get(server).is_some() {
            self.pinned.insert(server);
        } else {
            self.pinned.remove(&server);
        }
    }

    /// Going to sleep costs a power cycle, if the depth wears.
    fn set(&mut self, now: Moment, server: ServerId, state: State) {
        let Some(member) = self.members.get(server).filter(|member| member.state != state) else { return };
        let falls_asleep =
            !member.sleeps() && matches!(state, State::Asleep(depth) if self.policy.spec(depth).wears);
        let credit = self.credit(now, member) - f64::from(u8::from(falls_asleep));
        if falls_asleep {
            let budget = AIM * self.policy.cycles_per_day * f64::from(self.servers());
            self.cycle_price.change(1.0 / budget);
        }
        let wake = self.policy.wake(state);
        self.members.change(server, |member| {
            (member.state, member.since, member.wake) = (state, now, wake);
            (member.credit, member.counted) = (credit, now);
        });
    }

    fn servers(&self) -> u32 {
        self.members.count(|_, _| true)
    }

    fn need(&self, load: f64) -> u32 {
        servers_for(Load(load), self.servers())
    }

    fn sample(&mut self, now: Moment, load: Load, interval: Duration, out: &mut Vec<Command>) {
        // First, so that an hour that ends with this sample is recorded with what was learnt from it. What the first
        // day's poor forecast costs says nothing about the days to come.
        let short = self.seasonal.is_some()
            && load.0 * (1.0 - ROUNDING) > f64::from(self.members.awake_throughout(now, interval));
        let change = if short { 1.0 / (SHORT_AIM * self.policy.short_goal) - 1.0 } else { -1.0 };
        let days = interval.as_secs_f64() / self.policy.day();
        self.short_price.change(std::f64::consts::LN_2 * days / DARE * change);
        self.cycle_price.change(-days / CHEAPEN);
        self.begin_hour_before(now, interval, out);
        self.meter.add(load);
        self.watched += interval;
        self.begin_hour(now, out);
        // A sample as long as the forecast's hour is part of the forecast itself, as its drift.
        if interval < self.policy.hour {
            self.correct(now, load.0);
        }
    }

    /// Load above what the fleet is prepared for: requests the servers that it is likely to grow to need.
    fn correct(&mut self, now: Moment, load: f64) {
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
        let hour = self.hour(now);
        if hour <= self.meter.hour() {
            return;
        }
        if let (Some(peak), true) = (self.meter.peak(), self.watched * 2 >= self.policy.hour) {
            let (hour, forecast, prices) = (self.meter.hour(), self.median(), Some(self.prices()));
            out.push(Command::RecordHour { hour, peak, forecast, prices });
        }
        (self.meter, self.watched) = (HourMeter::new(hour), Duration::ZERO);
    }

    /// Forecasts the coming day, once an hour and whenever the history has grown.
    fn look_ahead(&mut self, now: Moment, history: &History) {
        let hour = self.hour(now);
        let basis = Some((hour, history.newest()));
        if self.basis == basis {
            return;
        }
        self.basis = basis;
        // No forecast can ask for more than all servers. A load of twenty times that, which wrong rates or a bulk load
        // give, would otherwise raise the forecasts of days.
        let history = &history.at_most(Load(f64::from(self.servers())));
        // Without the last hour of yesterday, which is not recorded yet: docs/constants.md has what learning it, too,
        // changes.
        let day = hour / u64::from(self.policy.hours_per_day);
        if self.seasonal.as_ref().is_none_or(|seasonal| seasonal.day() != day) {
            self.seasonal = Seasonal::fit(history, day, self.policy.hours_per_day);
        }
        let Some(ahead) = self.futures(history, hour) else { return };
        // What the last leader wanted for this hour is not known, but what is awake is.
        let found = (hour == self.first_hour).then(|| self.on_count());
        self.prepared = found.unwrap_or_else(|| self.worth(now, &ahead, 0));
        self.coming = self.worth(now, &ahead, 1);
        self.ahead = Some(ahead);
    }

    /// The possible futures; on the first day, of which no hour has come before, the one that Sierra's forecast gives.
    fn futures(&self, history: &History, hour: u64) -> Option<Ahead> {
        if let Some(seasonal) = &self.seasonal {
            return Some(seasonal.ahead(history, hour));
        }
        let day = self.policy.hours_per_day;
        let loads = (hour..hour + u64::from(day)).map(|h| Some(forecast(history, h, day)?.load));
        Some(Ahead::certain(loads.collect::<Option<Vec<Load>>>()?))
    }

    /// The number of servers for an hour ahead with the lowest total price: keeping them awake, waking those that
    /// sleep, and the remaining risk of shortage.
    fn worth(&self, now: Moment, ahead: &Ahead, hour: usize) -> u32 {
        let all = self.servers();
        let floor = self.floor(now);
        let short_price = f64::from(all) * self.short_price.get();
        let step = (all - floor).div_ceil(CHOICES).max(1);
        let on = self.on_count();
        let wears = self.policy.depths.iter().all(|spec| spec.wears);
        let cycle_price =
            if wears { self.cycle_price.get() * f64::from(self.policy.hours_per_day) } else { 0.0 };
        let exceeds = ahead.exceeds(hour);
        let (mut best, mut lowest) = (all, f64::INFINITY);
        for servers in (floor..all).step_by(step as usize).chain([all]) {
            let woken = f64::from(servers.saturating_sub(on));
            let awake = f64::from(servers) + woken * cycle_price;
            // From here on, every number costs more without any shortage.
            if awake >= lowest {
                break;
            }
            let short = if servers < all { exceeds(Load(f64::from(servers))) } else { 0.0 };
            let price = awake + short_price * short;
            if price < lowest {
                (best, lowest) = (servers, price);
            }
        }
        best
    }

    /// Servers that must be awake now: for this hour, for the hour that a server woken now would be ready for, and
    /// for outruns.
    fn wanted(&self, now: Moment) -> u32 {
        if self.ahead.is_none() {
            return self.servers();
        }
        let in_time = self.hour(now + self.lead());
        let forecast = if in_time > self.hour(now) { self.prepared.max(self.coming) } else { self.prepared };
        let asked = self.asked.front().map_or(0, |(_, servers)| *servers);
        forecast.max(asked).max(self.floor(now))
    }

    /// How long the servers that the next hour needs take to wake: those that wake soonest are woken.
    fn lead(&self) -> Duration {
        let rested = |wake: Duration| {
            let soon = |state: State| state != State::Gone && self.policy.wake(state) <= Some(wake);
            self.members.count(|wanted, state| !wanted && soon(state))
        };
        let missing = self.coming.saturating_sub(self.on_count()).min(rested(Duration::MAX));
        let wakes = self.policy.depths.iter().map(|spec| spec.wake).chain([Duration::ZERO]);
        wakes.filter(|wake| rested(*wake) >= missing).min().unwrap_or_default()
    }

    /// Seconds for which fewer than `servers` are expected to suffice.
    fn quiet(&self, now: Moment, servers: u32) -> f64 {
        let Some(ahead) = &self.ahead else { return 0.0 };
        let length = self.policy.hour.as_secs_f64();
        let into = self.calendar.into_hour(now, self.policy.hour).as_secs_f64() / length;
        let load = Load(f64::from(servers - 1));
        // Once an hour's peak exceeds `load`, the expected burst has already happened.
        let brought = self.meter.peak().is_some_and(|peak| peak.0 > load.0);
        let hours = if brought { ahead.quiet_from_next(load) + 1.0 } else { ahead.quiet(load) } - into;
        hours * length
    }

    /// The depth that saves most in `quiet` seconds; `None`: it is not worth going to sleep, or not affordable.
    fn best_depth(&self, quiet: f64, affordable: bool) -> Option<Depth> {
        let price = self.cycle_price.get() * self.policy.day();
        let allowed = self.policy.depths.iter().filter(|spec| affordable || !spec.wears);
        let gains = allowed.map(|spec| (self.policy.gain(spec, quiet, price), spec.depth));
        let best = gains.filter(|(gain, _)| *gain >= 0.0).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(_, depth)| depth)
    }

    /// The gear groups awake in `gear`. What an operator has just set stays for the dwell time, even when it is another
    /// one's turn.
    fn base(&self, now: Moment, gear: u8) -> Vec<GearGroup> {
        let settled = now.since(self.mode_since) >= self.policy.dwell;
        let day =
            self.hour(if settled { now } else { self.mode_since }) / u64::from(self.policy.hours_per_day);
        awake_groups(gear, day, self.policy.replicas, self.policy.rotate_days)
    }

    /// Fewest servers awake at `now`.
    fn floor(&self, now: Moment) -> u32 {
        let lowest = self.base(now, 1)[0];
        floor_servers(self.group_sizes[usize::from(lowest.0)], self.policy.replicas)
    }

    fn on_count(&self) -> u32 {
        self.members.count(|wanted, state| wanted && state != State::Gone)
    }

    /// None is let go at a moment at which another one is woken: such a swap costs a power cycle, and the one that
    /// wakes does not carry load yet. What an operator asks for is done at once.
    fn decide(&mut self, now: Moment, out: &mut Vec<Command>) {
        let gear = match self.mode {
            Mode::Manual(GearWish::Gear(gear)) => {
                let FleetPolicy { g_min, replicas, rotate_days, .. } = self.policy;
                gear.clamp(lowest_gear(g_min, &self.group_sizes, rotate_days), replicas)
            }
            _ => self.policy.g_min,
        };
        let base = self.base(now, gear);
        let others: Vec<GearGroup> =
            (0..self.policy.replicas).map(GearGroup).filter(|group| !base.contains(group)).collect();
        let mut more = self.missing(&base);
        let on = self.on_count() + more.len() as u32;
        let wanted = match self.mode {
            Mode::Auto => self.wanted(now),
            Mode::Manual(GearWish::Servers(servers)) => servers.clamp(self.floor(now), self.servers()),
            Mode::Manual(GearWish::Gear(_)) => {
                let goes = |(server, member): &(ServerId, &Member)| {
                    member.counts() && others.contains(&member.group) && !self.pinned.contains(server)
                };
                on - self.members.iter().filter(goes).count() as u32
            }
        };
        if wanted > on {
            let rested = self.members.in_turn(Line::Rested, &others);
            let rested = rested.filter(|server| !self.pinned.contains(server));
            more.extend(rested.take((wanted - on) as usize));
        } else if self.mode != Mode::Auto || (more.is_empty() && self.woke != Some(now)) {
            self.let_go(now, &others, on, wanted, out);
        }
        for server in more {
            self.woke = Some(now);
            self.members.change(server, |member| (member.wanted, member.since) = (true, now));
            out.push(Command::Wake(server));
        }
    }

    /// Servers that must not sleep and are not wanted yet: those of the gear groups in `base`, and those that are
    /// pinned.
    fn missing(&self, base: &[GearGroup]) -> Vec<ServerId> {
        let pinned = self.pinned.iter().copied().filter(|server| {
            let rests = |m: &Member| !m.wanted && m.state != State::Gone && !base.contains(&m.group);
            self.members.get(*server).is_some_and(rests)
        });
        let mut missing: Vec<ServerId> = self.members.in_turn(Line::Rested, base).chain(pinned).collect();
        missing.sort_unstable();
        missing
    }

    /// Lets some servers of the gear groups `others` go, of the `on` that are wanted now.
    fn let_go(&mut self, now: Moment, others: &[GearGroup], on: u32, wanted: u32, out: &mut Vec<Command>) {
        let kept = if self.mode == Mode::Auto { self.kept(now, on, wanted) } else { wanted };
        let (mut left, mut last) = (on, None);
        while left > kept
            && let Some((turn, depth)) = self.sleeper(now, others, last, left)
        {
            let (_, _, server) = turn;
            debug_assert!(!self.pinned.contains(&server), "what must not sleep is not let go");
            self.members.change(server, |member| (member.wanted, member.depth) = (false, depth));
            out.push(Command::Sleep(server));
            (left, last) = (left - 1, Some(turn));
        }
        if left < wanted {
            bug(out, "more servers are let go than are spare");
        }
    }

    /// Which of the `on` servers that are wanted is the next to be let go, and how deep it sleeps: the first of
    /// `others` behind `last` that may sleep and can afford it.
    fn sleeper(
        &self,
        now: Moment,
        others: &[GearGroup],
        last: Option<Turn>,
        on: u32,
    ) -> Option<(Turn, Depth)> {
        let by_hand = self.mode != Mode::Auto;
        let quiet = self.quiet(now, on);
        let best =
            |affordable| self.best_depth(quiet, affordable).or(by_hand.then(|| self.policy.depths[0].depth));
        // What is not worth it for one that can afford it is not for any.
        let (poor, rich) = (best(false), Some(best(true)?));
        let mut turn = self.members.next(Line::On, others, last);
        while let Some(next @ (_, since, server)) = turn {
            if !by_hand && now.since(since) < self.policy.dwell {
                // Those behind it have been up for less time.
                return None;
            }
            let member = self.members.get(server)?;
            if !self.pinned.contains(&server) && (by_hand || member.state == State::Awake) {
                let depth = if self.credit(now, member) >= 1.0 { rich } else { poor };
                if let Some(depth) = depth {
                    return Some((next, depth));
                }
            }
            turn = self.members.next(Line::On, others, turn);
        }
        None
    }

    /// How many of `on` servers to keep: those wanted, and those whose sleep would not be worth it.
    fn kept(&self, now: Moment, on: u32, wanted: u32) -> u32 {
        // The more servers, the longer they suffice: find the highest number for which that is not long enough.
        let (mut low, mut high) = (wanted, on);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.best_depth(self.quiet(now, middle + 1), true).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }

    fn credit(&self, now: Moment, member: &Member) -> f64 {
        self.saved_up(member.credit, now.since(member.counted))
    }

    /// What a credit has become after some time.
    fn saved_up(&self, credit: f64, time: Duration) -> f64 {
        let earned = time.as_secs_f64() / self.policy.day() * self.policy.cycles_per_day;
        (credit + earned).min(self.policy.cycles_per_day * CARRY_DAYS)
    }
}

impl Decider for Fleet {
    fn on(&mut self, now: Moment, history: &History, event: Event, out: &mut Vec<Command>) {
        let recorded = out.len();
        match event {
            Event::Sample { load, interval } => self.sample(now, load, interval, out),
            Event::Tick | Event::Seen => self.begin_hour(now, out),
            Event::Is { server, state, may_sleep } => {
                self.pin(server, !may_sleep);
                return self.set(now, server, state);
            }
            Event::Mode(mode) => (self.mode, self.mode_since) = (mode, now),
        }
        while self.asked.front().is_some_and(|(at, _)| now.since(*at) >= self.policy.dwell) {
            self.asked.pop_front();
        }
        self.look_ahead(now, history);
        // An hour that has just ended changes the forecast, and the next event has it: what the old one says now would
        // be undone then.
        if out.len() == recorded {
            self.decide(now, out);
        }
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn hour(&self, now: Moment) -> u64 {
        self.calendar.hour(now, self.policy.hour)
    }

    fn gear(&self, now: Moment) -> u8 {
        let all = self.base(now, self.policy.replicas);
        let of = |gear: u8| {
            let groups = &all[..usize::from(gear)];
            self.members.iter().filter(|(_, member)| groups.contains(&member.group)).count()
        };
        let wanted = self.wants().count();
        (self.policy.g_min..self.policy.replicas)
            .find(|gear| of(*gear) >= wanted)
            .unwrap_or(self.policy.replicas)
    }

    fn never_sleep(&self, now: Moment) -> Vec<GearGroup> {
        self.base(now, self.policy.g_min)
    }

    fn why(&self, now: Moment, server: ServerId) -> Option<Why> {
        let member = self.members.get(server)?;
        Some(if member.wanted { self.why_wanted(now, member) } else { Why::NotNeeded })
    }

    fn expected(&self, _now: Moment, _history: &History) -> Option<Load> {
        self.median()
    }

    fn leads(&self) -> Vec<(Option<Depth>, Duration)> {
        self.policy.depths.iter().map(|spec| (Some(spec.depth), spec.wake)).collect()
    }

    fn plan(&self, now: Moment, history: &History, hours: u32) -> Vec<Planned> {
        let (mut fleet, mut history, mut at) = (self.clone(), history.clone(), now);
        // No hour is recorded but those that are expected.
        fleet.watched = Duration::ZERO;
        let waking = self.members.iter().filter(|(_, member)| member.state == State::Waking);
        waking.for_each(|(server, _)| fleet.members.change(server, |member| member.state = State::Awake));
        let mut planned = Vec::new();
        for hour in self.hour(now)..self.hour(now) + u64::from(hours) {
            let mut commands = Vec::new();
            fleet.on(at, &history, Event::Tick, &mut commands);
            for command in commands {
                match command {
                    Command::Wake(server) => fleet.set(at, server, State::Awake),
                    Command::Sleep(server) => {
                        let depth = fleet.depth(server).expect("only its own are let go");
                        fleet.set(at, server, State::Asleep(depth));
                    }
                    Command::RecordHour { .. } | Command::Bug(_) => {}
                }
            }
            // Time makes power cycles cheaper again, but here none passes.
            fleet.cycle_price = self.cycle_price.clone();
            let (forecast, gear, awake) = (fleet.median(), fleet.gear(at), fleet.wants().collect());
            planned.push(Planned { hour, forecast, gear, awake });
            if let Some(load) = forecast {
                history.record(hour, load, self.policy.hours_per_day);
            }
            at = at + (self.policy.hour - self.calendar.into_hour(at, self.policy.hour));
        }
        planned
    }

    fn set_wake(&mut self, depth: Depth, wake: Duration) {
        let wake = wake.min(self.policy.hour);
        let mut changes = false;
        for spec in self.policy.depths.iter_mut().filter(|spec| spec.depth == depth && spec.wake != wake) {
            (spec.wake, changes) = (wake, true);
        }
        if changes {
            let sleepers: Vec<ServerId> =
                self.members.iter().filter(|(_, member)| member.sleeps()).map(|(server, _)| server).collect();
            for server in sleepers {
                let policy = &self.policy;
                self.members.change(server, |member| member.wake = policy.wake(member.state));
            }
        }
    }

    fn depth(&self, server: ServerId) -> Option<Depth> {
        self.members.get(server).map(|member| member.depth)
    }

    fn saved_cycles(&self, now: Moment, server: ServerId) -> Option<f64> {
        self.members.get(server).map(|member| self.credit(now, member))
    }

    fn ahead(&self) -> Option<&Ahead> {
        self.ahead.as_ref().filter(|_| self.seasonal.is_some())
    }
}

#[cfg(test)]
mod tests;
