//! Gears: feeds the decider (load samples, recorded hours, the operator's requests, the servers' states) and keeps what
//! it says, the servers that should be awake; also tracks the shift in progress. Which decider it is, [`Fleet`] or
//! [`Scheduler`], matters only where it is made.

use crate::{Slept, State};
use ebb_gear::{
    Calendar, Command, Decider, Event, Fleet, FleetPolicy, History, Load, Mode, Planned, Policy, Scheduler,
    Sleep, load_terms, sample_interval,
};
use ebb_types::{
    Bug, Depth, GearGroup, GearSize, GearSteps, Incarnation, Lead, LeadFrom, LoadBand, LoadCount, LoadTerms,
    Moment, Notice, Prices, Schedule, ServerEntry, ServerId, ServerState, ShiftReason, ShiftRecord, Tenure,
    Vitals, Why,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Gears {
    decider: Option<Box<dyn Decider>>,
    /// What the decider was built from; it is rebuilt when this changes.
    basis: Option<(Schedule, BTreeMap<ServerId, GearGroup>)>,
    sleep: Sleep,
    /// Why there is no decider; without one every server stays awake.
    pub fault: Option<String>,
    pub history: History,
    last_hour: Option<u64>,
    count: LoadCount,
    /// The time that the servers counted it in, all together.
    counted_for: Duration,
    sample_start: Moment,
    /// Since when the present rates hold. What was counted before does not follow from them.
    rated_since: Moment,
    /// Of the last full sample; `None`: there was none yet.
    terms: Option<LoadTerms>,
    /// Those of the highest sample of each hour that is not recorded yet.
    peaks: BTreeMap<u64, LoadTerms>,
    /// What the wake-up time from each depth was taken from.
    lead_from: BTreeMap<Depth, LeadFrom>,
    gear: u8,
    awake: BTreeSet<ServerId>,
    pub shift: Option<Shift>,
    /// Shifts that began and were not announced yet.
    pub begun: Vec<Notice>,
    /// What the decider met that cannot happen, and that is not reported yet.
    pub bugs: Vec<Bug>,
    /// Hours that have ended but are not in the state yet.
    pub ended_hours: Vec<EndedHour>,
    /// Planted defect: no dwell time.
    forgets_dwell: bool,
}

pub(crate) struct EndedHour {
    pub hour: u64,
    pub peak: Load,
    pub terms: Option<LoadTerms>,
    pub forecast: Option<Load>,
    pub prices: Option<Prices>,
}

/// A shift in progress.
#[derive(Clone, Debug)]
pub(crate) struct Shift {
    started: Moment,
    from: GearSize,
    to: GearSize,
    why: ShiftReason,
    pub woken: u32,
    pub put_to_sleep: u32,
    pub migrations: u32,
}

/// The servers that gears concern: those of the replicated pool that are neither loggers nor lost, and that carry load.
/// One that joins does so once it was started, and one that leaves as long as anything is on it.
fn members(state: &State) -> impl Iterator<Item = &ServerEntry> {
    state.geared().filter(|e| e.state != ServerState::Lost && carries_load(e, state))
}

fn carries_load(entry: &ServerEntry, state: &State) -> bool {
    match state.seat(entry.id).tenure {
        Tenure::Joining => entry.incarnation > Incarnation(0),
        Tenure::InUse | Tenure::Draining => true,
        Tenure::Drained => false,
    }
}

/// The policy of whole gears, for the state's servers.
pub(crate) fn policy(schedule: &Schedule, state: &State) -> Policy {
    let mut sizes = vec![0; state.params().map_or(0, |p| usize::from(p.replicas))];
    members(state).for_each(|e| sizes[usize::from(e.gear_group.0)] += 1);
    Policy::of(schedule, sizes)
}

/// Whether the operator's settings make sense for the state's servers.
pub(crate) fn check(schedule: &Schedule, state: &State, sleep: &Sleep) -> Result<(), String> {
    let groups = policy(schedule, state);
    groups.check().map_err(|e| e.to_string())?;
    FleetPolicy::of(schedule, groups.replicas(), sleep).check().map_err(|e| e.to_string())
}

/// The gear that a new leader finds: the number of gear groups, lowest first, without a server asleep or draining. So
/// servers that were just woken keep their dwell time even before the shift is recorded.
fn gear_of(state: &State, policy: &Policy, hour: u64) -> u8 {
    let sleeps = |e: &ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Draining);
    let is_up = |group: &GearGroup| !state.replicated().any(|e| e.gear_group == *group && sleeps(e));
    policy.awake_groups(policy.replicas(), hour).iter().take_while(|group| is_up(group)).count() as u8
}

/// Share of outcomes on either side of a [`LoadBand`].
const OUTSIDE: f64 = 0.1;

/// The load that is exceeded with this probability, to a thousandth.
fn exceeded(exceeds: &impl Fn(Load) -> f64, probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while exceeds(Load(high)) > probability && high < f64::MAX / 2.0 {
        (low, high) = (high, high * 2.0);
    }
    while high - low > (low * 1e-3).max(1e-6) {
        let middle = (low + high) / 2.0;
        if exceeds(Load(middle)) > probability { low = middle } else { high = middle }
    }
    high
}

fn load_of(terms: Option<LoadTerms>) -> Load {
    terms.map_or(Load::ZERO, |terms| Load(terms.load()))
}

/// The terms of an hour's peak; forgets this hour and those before. A sample that spans the end of an hour may count in
/// the next one.
fn take_terms(peaks: &mut BTreeMap<u64, LoadTerms>, hour: u64, peak: Load) -> Option<LoadTerms> {
    let near = peaks.range(hour.saturating_sub(1)..=hour).map(|(_, terms)| *terms);
    let found = near.rev().find(|terms| terms.load() == peak.0);
    *peaks = peaks.split_off(&(hour + 1));
    found
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What a decider is told about a server.
pub(crate) fn standing(state: ServerState, late: bool, depth: Depth) -> ebb_gear::State {
    match state {
        ServerState::Awake | ServerState::Draining => ebb_gear::State::Awake,
        ServerState::Waking if !late => ebb_gear::State::Waking,
        ServerState::Asleep => ebb_gear::State::Asleep(depth),
        ServerState::Waking | ServerState::Failed | ServerState::Lost => ebb_gear::State::Gone,
    }
}

impl Gears {
    pub fn new(sleep: Sleep, forgets_dwell: bool) -> Gears {
        Gears { sleep, forgets_dwell, ..Gears::default() }
    }

    /// Takes in changes of the state.
    pub fn follow(&mut self, now: Moment, state: &State, since: Moment, unix_millis: u64) {
        let same = |(schedule, known): &(Schedule, BTreeMap<ServerId, GearGroup>)| {
            let there = members(state).map(|e| (&e.id, &e.gear_group));
            schedule == state.schedule() && there.eq(known)
        };
        let same = self.basis.as_ref().is_some_and(same);
        // History first: without it, a new leader's first decision would be to wake every server.
        let newest = state.hours().next_back().map(|h| h.hour);
        if newest != self.last_hour || !same {
            self.last_hour = newest;
            self.history = History::default();
            for hour in state.hours() {
                self.history.record(hour.hour, Load(hour.peak_load), state.schedule().hours_per_day);
            }
        }
        // Also drops an hour that ends again because this clock is behind the last leader's: it would be proposed
        // forever.
        self.ended_hours.retain(|ended| newest.is_none_or(|newest| ended.hour > newest));
        let mode = state.manual_gear().map_or(Mode::Auto, Mode::Manual);
        if !same {
            let zero = state.schedule().hour_zero_unix_millis;
            let millis = |from: u64, to: u64| Duration::from_millis(to.saturating_sub(from));
            // Until hour 0 begins, it is hour 0.
            let (origin, elapsed) = (since + millis(unix_millis, zero), millis(zero, unix_millis));
            self.make(now, state, Calendar { origin, elapsed }, mode);
        }
        if self.mode().is_some_and(|known| known != mode) {
            self.tell(now, Event::Mode(mode));
        }
    }

    fn make(&mut self, now: Moment, state: &State, calendar: Calendar, mode: Mode) {
        let there: BTreeMap<ServerId, GearGroup> = members(state).map(|e| (e.id, e.gear_group)).collect();
        let (schedule, whole) = (*state.schedule(), policy(state.schedule(), state));
        if self.basis.as_ref().is_none_or(|(known, _)| *known != schedule) {
            (self.count, self.counted_for) = (LoadCount::default(), Duration::ZERO);
            (self.sample_start, self.rated_since) = (now, now);
        }
        self.basis = Some((schedule, there.clone()));
        // Another decider watches the hour from now on.
        self.peaks.clear();
        if self.gear == 0 {
            self.gear = gear_of(state, &whole, calendar.hour(now, whole.hour));
        }
        let made = match schedule.steps {
            GearSteps::Servers => self.fleet(now, state, calendar, mode),
            GearSteps::Groups => self.scheduler(now, whole, there.clone(), calendar, mode),
        };
        match made {
            Ok(decider) => {
                (self.decider, self.fault) = (Some(decider), None);
                for depth in [Depth::Standby, Depth::Off] {
                    self.set_wake(depth, None, Duration::ZERO);
                }
                self.tell(now, Event::Tick);
            }
            Err(fault) => {
                (self.decider, self.fault) = (None, Some(fault));
                self.gear = state.params().map_or(1, |p| p.replicas);
                self.awake = there.into_keys().collect();
            }
        }
    }

    fn scheduler(
        &self,
        now: Moment,
        policy: Policy,
        members: BTreeMap<ServerId, GearGroup>,
        calendar: Calendar,
        mode: Mode,
    ) -> Result<Box<dyn Decider>, String> {
        let dwell = if self.forgets_dwell { Duration::ZERO } else { policy.dwell };
        let policy = Policy { dwell, ..policy };
        let made = Scheduler::new(policy, members, calendar, now, mode, self.gear);
        Ok(Box::new(made.map_err(|e| e.to_string())?))
    }

    /// It wants what it finds awake, so that is no shift.
    fn fleet(
        &mut self,
        now: Moment,
        state: &State,
        calendar: Calendar,
        mode: Mode,
    ) -> Result<Box<dyn Decider>, String> {
        check(state.schedule(), state, &self.sleep)?;
        let mut policy =
            FleetPolicy::of(state.schedule(), state.params().map_or(1, |p| p.replicas), &self.sleep);
        if self.forgets_dwell {
            policy.dwell = Duration::ZERO;
        }
        let usual = policy.depths[0].depth;
        let is_up = |e: &ServerEntry| matches!(e.state, ServerState::Awake | ServerState::Waking);
        let servers = members(state).map(|e| {
            let depth = state.slept_depth(e.id).unwrap_or(usual);
            (e.id, e.gear_group, standing(e.state, false, depth), is_up(e))
        });
        let mut fleet = Fleet::new(policy, calendar, now, mode, servers).map_err(|e| e.to_string())?;
        // Only what was learnt since the last recorded hour is lost.
        if let Some(prices) = state.hours().rev().find_map(|hour| hour.prices) {
            fleet.take_over_prices(prices);
        }
        let elapsed = calendar.elapsed(now).as_millis() as u64;
        let unix_millis = state.schedule().hour_zero_unix_millis + elapsed;
        for entry in members(state) {
            if let Some(Slept { at_unix_millis, credit: Some(credit), .. }) =
                state.power(entry.id).and_then(|record| record.slept)
            {
                let ago = Duration::from_millis(unix_millis.saturating_sub(at_unix_millis));
                fleet.take_over_credit(entry.id, credit, ago);
            }
        }
        self.gear = fleet.gear(now);
        self.awake = members(state).filter(|e| is_up(e)).map(|e| e.id).collect();
        Ok(Box::new(fleet))
    }

    /// Takes in the servers' states, and whether each may be put to sleep.
    pub fn see(&mut self, now: Moment, servers: impl IntoIterator<Item = (ServerId, ebb_gear::State, bool)>) {
        for (server, state, may_sleep) in servers {
            self.tell(now, Event::Is { server, state, may_sleep });
        }
        self.tell(now, Event::Seen);
    }

    /// Sets the expected wake-up time from this depth. `measured`: of so many wake-ups, nearly all took no longer.
    pub fn set_wake(&mut self, depth: Depth, measured: Option<(u32, Duration)>, catch_up: Duration) {
        let Some(decider) = &mut self.decider else { return };
        let configured = match depth {
            Depth::Standby => self.sleep.standby,
            Depth::Off => self.sleep.off,
        };
        let lead = self.basis.as_ref().map_or(0, |(schedule, _)| schedule.lead_millis);
        let catch_up_millis = millis(catch_up);
        let (wake, from) = match (measured, configured.and_then(|cost| cost.wake)) {
            (Some((wakes, wake)), _) => {
                let wake_millis = millis(wake);
                (wake.saturating_add(catch_up), LeadFrom::Measured { wakes, wake_millis, catch_up_millis })
            }
            (None, Some(wake)) => {
                let wake_millis = millis(wake);
                (wake.saturating_add(catch_up), LeadFrom::Configured { wake_millis, catch_up_millis })
            }
            (None, None) => (Duration::from_millis(lead), LeadFrom::Schedule),
        };
        decider.set_wake(depth, wake);
        self.lead_from.insert(depth, from);
    }

    /// Adds a server's load count. Returns whether something was decided.
    ///
    /// Heartbeats that were held up, by a stall of the leader or of the network, arrive at once, each with the work of
    /// some seconds: then the sample is of these seconds, and no peak.
    pub fn sample(&mut self, now: Moment, server: ServerId, vitals: &Vitals, state: &State) -> bool {
        let Some((schedule, _)) = &self.basis else { return false };
        let counted_for = Duration::from_millis(vitals.load_millis.into());
        if now.since(self.rated_since) >= counted_for {
            self.count += vitals.load;
            // One that has slept or failed counts from before that on.
            let live = state.server(server).is_some_and(|entry| entry.state.is_live());
            self.counted_for += if live { counted_for } else { Duration::ZERO };
        }
        let interval = now.since(self.sample_start);
        if interval < sample_interval(schedule) {
            return false;
        }
        let (count, counted_for) = (std::mem::take(&mut self.count), std::mem::take(&mut self.counted_for));
        let live = state.replicated().filter(|entry| entry.state.is_live()).count() as u32;
        let interval = interval.max(counted_for / live.max(1));
        let replicas = state.params().map_or(1, |params| params.replicas);
        self.terms = Some(load_terms(&count, interval, &schedule.into(), replicas));
        self.sample_start = now;
        self.note_peak(now, interval);
        self.tell(now, Event::Sample { load: self.load(), interval })
    }

    /// Keeps the terms of the sample that ends now, if it is the highest of its hour, which contains most of it.
    fn note_peak(&mut self, now: Moment, interval: Duration) {
        let middle = Moment(now.0.saturating_sub(interval.as_nanos() as u64 / 2));
        let (Some(decider), Some(terms)) = (&self.decider, self.terms) else { return };
        let hour = decider.hour(middle);
        self.peaks.retain(|known, _| known + 1 >= hour);
        let peak = self.peaks.entry(hour).or_insert(terms);
        if terms.load() > peak.load() {
            *peak = terms;
        }
    }

    /// Returns whether something was decided.
    fn tell(&mut self, now: Moment, event: Event) -> bool {
        let Some(decider) = &mut self.decider else { return false };
        let mut commands = Vec::new();
        decider.on(now, &self.history, event, &mut commands);
        let (decided, before) = (!commands.is_empty(), self.awake.len() as u32);
        let mut shifts = false;
        for command in commands {
            match command {
                Command::Wake(server) => (shifts, _) = (true, self.awake.insert(server)),
                Command::Sleep(server) => (shifts, _) = (true, self.awake.remove(&server)),
                Command::RecordHour { hour, peak, forecast, prices } => {
                    let terms = take_terms(&mut self.peaks, hour, peak);
                    self.ended_hours.push(EndedHour { hour, peak, terms, forecast, prices });
                }
                Command::Bug(bug) => self.bugs.push(bug),
            }
        }
        if shifts {
            let gear = decider.gear(now);
            self.begin_shift(now, gear, before);
        }
        decided
    }

    /// `before`: how many servers were wanted.
    fn begin_shift(&mut self, now: Moment, gear: u8, before: u32) {
        let (_, members) = self.basis.as_ref().expect("a decider has a basis");
        // Whole gears may have wanted one that was lost since.
        self.awake.retain(|server| members.contains_key(server));
        let from = GearSize { gear: self.gear, servers: before };
        let to = GearSize { gear, servers: self.awake.len() as u32 };
        let why = match self.mode() {
            Some(Mode::Manual(_)) => ShiftReason::Administrator,
            _ if to > from => ShiftReason::MoreNeeded,
            _ if to < from => ShiftReason::FewerNeeded,
            _ => ShiftReason::Turns,
        };
        self.begun.push(Notice::Shift { from, to, why });
        // A shift that is superseded continues as part of the next one.
        let shift = match self.shift.take() {
            Some(old) => Shift { to, why, ..old },
            None => Shift { started: now, from, to, why, woken: 0, put_to_sleep: 0, migrations: 0 },
        };
        self.shift = Some(shift);
        self.gear = gear;
    }

    /// Ends the shift in progress; `None` if it moved nothing.
    pub fn end_shift(
        &mut self,
        now: Moment,
        started_unix_millis: impl Fn(Moment) -> u64,
    ) -> Option<ShiftRecord> {
        let shift = self.shift.take()?;
        let moved = shift.from != shift.to || shift.woken + shift.put_to_sleep > 0;
        moved.then(|| ShiftRecord {
            at_unix_millis: started_unix_millis(shift.started),
            from_gear: shift.from.gear,
            to_gear: shift.to.gear,
            from_servers: shift.from.servers,
            to_servers: shift.to.servers,
            why: shift.why.to_string(),
            woken: shift.woken,
            put_to_sleep: shift.put_to_sleep,
            migrations: shift.migrations,
            took_millis: now.since(shift.started).as_millis() as u64,
        })
    }

    fn mode(&self) -> Option<Mode> {
        self.decider.as_ref().map(|decider| decider.mode())
    }

    /// The gear that the servers wanted awake make.
    pub fn gear(&self) -> u8 {
        self.gear
    }

    /// The servers that should be awake.
    pub fn awake(&self) -> &BTreeSet<ServerId> {
        &self.awake
    }

    /// How deep a server that should not be awake is to sleep; `None`: it makes no difference.
    pub fn depth(&self, server: ServerId) -> Option<Depth> {
        self.decider.as_ref()?.depth(server)
    }

    /// Power cycles that a server has saved up; `None`: they are not counted.
    pub fn saved_cycles(&self, now: Moment, server: ServerId) -> Option<f64> {
        self.decider.as_ref()?.saved_cycles(now, server)
    }

    /// Why the server is wanted for the load, or not; `None`: gears do not concern it.
    pub fn why(&self, now: Moment, server: ServerId) -> Option<Why> {
        self.decider.as_ref()?.why(now, server)
    }

    /// The gear groups that are awake in every gear.
    pub fn never_sleep(&self, now: Moment) -> Vec<GearGroup> {
        self.decider.as_ref().map(|decider| decider.never_sleep(now)).unwrap_or_default()
    }

    /// Bytes per second that a server writes.
    pub fn write_rate(&self) -> f64 {
        self.basis.as_ref().map_or(f64::INFINITY, |(schedule, _)| schedule.write_bytes_per_second)
    }

    pub fn load(&self) -> Load {
        load_of(self.terms)
    }

    /// The two terms of that; `None`: there was no full sample yet.
    pub fn terms(&self) -> Option<LoadTerms> {
        self.terms
    }

    /// How long before they are needed servers are woken, the shallowest sleepers first.
    pub fn leads(&self) -> Vec<Lead> {
        let from = |depth: Option<Depth>| depth.and_then(|depth| self.lead_from.get(&depth).copied());
        let lead = |(depth, time)| Lead {
            depth,
            millis: millis(time),
            from: from(depth).unwrap_or(LeadFrom::Schedule),
        };
        self.decider.iter().flat_map(|decider| decider.leads()).map(lead).collect()
    }

    /// The peak that is expected of the present hour; `None`: nothing is known.
    pub fn expected(&self, now: Moment) -> Option<Load> {
        self.decider.as_ref()?.expected(now, &self.history)
    }

    /// Between which loads the peaks of the coming hours lie, from the present one on: by the same possible futures by
    /// which is decided. Empty with whole gears, for which one number decides, and until a day has been seen.
    pub fn bands(&self) -> Vec<LoadBand> {
        let ahead = self.decider.as_ref().and_then(|decider| decider.ahead());
        let (Some(ahead), Some((schedule, _))) = (ahead, &self.basis) else { return Vec::new() };
        let band = |hour| {
            let exceeds = ahead.exceeds(hour as usize);
            LoadBand { low: exceeded(&exceeds, 1.0 - OUTSIDE), high: exceeded(&exceeds, OUTSIDE) }
        };
        (0..schedule.hours_per_day).map(band).collect()
    }

    /// The dry run over `hours` hours; the error says why nothing can be planned.
    pub fn plan(&self, now: Moment, hours: u32) -> Result<Vec<Planned>, String> {
        let untold = || "the leader has just taken over: ask again".to_owned();
        let why = || self.fault.clone().unwrap_or_else(untold);
        Ok(self.decider.as_ref().ok_or_else(why)?.plan(now, &self.history, hours))
    }
}
