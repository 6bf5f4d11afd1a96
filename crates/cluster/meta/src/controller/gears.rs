//! Gears: feeds the decider (load samples, recorded hours, the operator's requests, the servers' states) and keeps its
//! answer, the servers that should be awake. [`ebb_gear::Fleet`] decides server by server, or [`ebb_gear::Scheduler`]
//! by whole gears; this module also tracks the shift in progress.

use crate::{Slept, State};
use ebb_gear::fleet::{Command as Order, Event as News, State as Standing};
use ebb_gear::{
    Calendar, Command, Event, Fleet, FleetPolicy, History, Load, Mode, Policy, Scheduler, Sleep, forecast,
    load_terms, sample_interval,
};
use ebb_types::{
    Bug, Depth, GearGroup, GearSize, GearSteps, Lead, LeadFrom, LoadBand, LoadCount, LoadTerms, Moment,
    Notice, Prices, Schedule, ServerEntry, ServerId, ServerState, ShiftReason, ShiftRecord, Vitals, Why,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Decides which servers are awake.
enum Decider {
    Servers(Box<Fleet>),
    Groups(Box<Scheduler>),
}

pub(crate) struct Gears {
    decider: Option<Decider>,
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
    /// By depth of sleep, as the fleet was told.
    leads: BTreeMap<Depth, Lead>,
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

/// One hour of the dry run.
pub(crate) struct Planned {
    pub hour: u64,
    pub forecast: Option<Load>,
    pub gear: u8,
    pub awake: BTreeSet<ServerId>,
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

/// The servers that gears concern: those of the replicated pool that are neither loggers nor lost.
fn members(state: &State) -> impl Iterator<Item = &ServerEntry> {
    state.geared().filter(|e| e.state != ServerState::Lost)
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

/// The servers of these gear groups.
fn of_groups(members: &BTreeMap<ServerId, GearGroup>, groups: &[GearGroup]) -> BTreeSet<ServerId> {
    members.iter().filter(|(_, group)| groups.contains(group)).map(|(server, _)| *server).collect()
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

/// What the fleet knows about a server.
pub(crate) fn standing(state: ServerState, late: bool, depth: Depth) -> Standing {
    match state {
        ServerState::Awake | ServerState::Draining => Standing::Awake,
        ServerState::Waking if !late => Standing::Waking,
        ServerState::Asleep => Standing::Asleep(depth),
        ServerState::Waking | ServerState::Failed | ServerState::Lost => Standing::Gone,
    }
}

impl Gears {
    pub fn new(sleep: Sleep, forgets_dwell: bool) -> Gears {
        Gears {
            decider: None,
            basis: None,
            sleep,
            fault: None,
            history: History::default(),
            last_hour: None,
            count: LoadCount::default(),
            counted_for: Duration::ZERO,
            sample_start: Moment::ZERO,
            rated_since: Moment::ZERO,
            terms: None,
            peaks: BTreeMap::new(),
            leads: BTreeMap::new(),
            gear: 0,
            awake: BTreeSet::new(),
            shift: None,
            begun: Vec::new(),
            bugs: Vec::new(),
            ended_hours: Vec::new(),
            forgets_dwell,
        }
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
        let decider = match schedule.steps {
            GearSteps::Servers => {
                self.fleet(now, state, calendar, mode).map(|f| Decider::Servers(Box::new(f)))
            }
            GearSteps::Groups => {
                self.scheduler(now, whole, calendar, mode).map(|s| Decider::Groups(Box::new(s)))
            }
        };
        match decider {
            Ok(decider) => {
                if let Decider::Servers(fleet) = &decider {
                    (self.gear, self.awake) = (fleet.gear(now), fleet.wants().collect());
                }
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
        calendar: Calendar,
        mode: Mode,
    ) -> Result<Scheduler, String> {
        let dwell = if self.forgets_dwell { Duration::ZERO } else { policy.dwell };
        let policy = Policy { dwell, ..policy };
        Scheduler::new(policy, calendar, now, mode, self.gear).map_err(|e| e.to_string())
    }

    fn fleet(&self, now: Moment, state: &State, calendar: Calendar, mode: Mode) -> Result<Fleet, String> {
        check(state.schedule(), state, &self.sleep)?;
        let mut policy =
            FleetPolicy::of(state.schedule(), state.params().map_or(1, |p| p.replicas), &self.sleep);
        if self.forgets_dwell {
            policy.dwell = Duration::ZERO;
        }
        let usual = policy.depths[0].depth;
        let servers = members(state).map(|e| {
            let wanted = matches!(e.state, ServerState::Awake | ServerState::Waking);
            let depth = state.slept_depth(e.id).unwrap_or(usual);
            (e.id, e.gear_group, standing(e.state, false, depth), wanted)
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
        Ok(fleet)
    }

    /// Takes in the servers' states, and whether each may be put to sleep.
    pub fn see(&mut self, now: Moment, servers: impl IntoIterator<Item = (ServerId, Standing, bool)>) {
        let Some(Decider::Servers(fleet)) = &mut self.decider else { return };
        for (server, standing, may_sleep) in servers {
            fleet.pin(server, !may_sleep);
            fleet.on(now, &self.history, News::Is(server, standing), &mut Vec::new());
        }
        self.tell(now, Event::Tick);
    }

    /// Sets the expected wake-up time from this depth. `measured`: of so many wake-ups, nearly all took no longer.
    pub fn set_wake(&mut self, depth: Depth, measured: Option<(u32, Duration)>, catch_up: Duration) {
        let Some(Decider::Servers(fleet)) = &mut self.decider else { return };
        let configured = match depth {
            Depth::Standby => self.sleep.standby,
            Depth::Off => self.sleep.off,
        };
        let lead = self.basis.as_ref().map_or(0, |(schedule, _)| schedule.lead_millis);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
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
        fleet.set_wake(depth, wake);
        if let Some(spec) = fleet.policy().depths.iter().find(|spec| spec.depth == depth) {
            self.leads.insert(depth, Lead { depth: Some(depth), millis: millis(spec.wake), from });
        }
    }

    /// Adds a server's load count. `dirty` is set when something was decided.
    ///
    /// Heartbeats that were held up, by a stall of the leader or of the network, arrive at once, each with the work of
    /// some seconds: then the sample is of these seconds, and no peak.
    pub fn sample(
        &mut self,
        now: Moment,
        server: ServerId,
        vitals: &Vitals,
        state: &State,
        dirty: &mut bool,
    ) {
        let Some((schedule, _)) = &self.basis else { return };
        let counted_for = Duration::from_millis(vitals.load_millis.into());
        if now.since(self.rated_since) >= counted_for {
            self.count += vitals.load;
            // One that has slept or failed counts from before that on.
            let live = state.server(server).is_some_and(|entry| entry.state.is_live());
            self.counted_for += if live { counted_for } else { Duration::ZERO };
        }
        let interval = now.since(self.sample_start);
        if interval < sample_interval(schedule) {
            return;
        }
        let (count, counted_for) = (std::mem::take(&mut self.count), std::mem::take(&mut self.counted_for));
        let live = state.replicated().filter(|entry| entry.state.is_live()).count() as u32;
        let interval = interval.max(counted_for / live.max(1));
        let replicas = state.params().map_or(1, |params| params.replicas);
        self.terms = Some(load_terms(&count, interval, &schedule.into(), replicas));
        self.sample_start = now;
        self.note_peak(now, interval);
        *dirty |= self.tell(now, Event::Sample { count, interval });
    }

    /// Keeps the terms of the sample that ends now, if it is the highest of its hour, which contains most of it.
    fn note_peak(&mut self, now: Moment, interval: Duration) {
        let middle = Moment(now.0.saturating_sub(interval.as_nanos() as u64 / 2));
        let hour = match &self.decider {
            Some(Decider::Servers(fleet)) => fleet.hour(middle),
            Some(Decider::Groups(scheduler)) => scheduler.hour(middle),
            None => return,
        };
        let Some(terms) = self.terms else { return };
        self.peaks.retain(|known, _| known + 1 >= hour);
        let peak = self.peaks.entry(hour).or_insert(terms);
        if terms.load() > peak.load() {
            *peak = terms;
        }
    }

    /// Returns whether something was decided.
    fn tell(&mut self, now: Moment, event: Event) -> bool {
        let mut commands = Vec::new();
        match &mut self.decider {
            None => {}
            Some(Decider::Servers(_)) => return self.tell_fleet(now, event),
            Some(Decider::Groups(scheduler)) => scheduler.on(now, &self.history, event, &mut commands),
        }
        let decided = !commands.is_empty();
        for command in commands {
            let (schedule, members) = self.basis.as_ref().expect("a decider has a basis");
            match command {
                Command::RecordHour { hour, peak } => {
                    let forecast = forecast(&self.history, hour, schedule.hours_per_day).map(|f| f.load);
                    let terms = take_terms(&mut self.peaks, hour, peak);
                    self.ended_hours.push(EndedHour { hour, peak, terms, forecast, prices: None });
                }
                Command::Shift { gear, awake } => {
                    let awake = of_groups(members, &awake);
                    self.begin_shift(now, gear, awake);
                }
            }
        }
        decided
    }

    fn tell_fleet(&mut self, now: Moment, event: Event) -> bool {
        let Some(Decider::Servers(fleet)) = &mut self.decider else { return false };
        let news = match event {
            Event::Sample { interval, .. } => News::Sample { load: load_of(self.terms), interval },
            Event::Tick => News::Tick,
            Event::Mode(mode) => News::Mode(mode),
        };
        let (mut orders, forecast) = (Vec::new(), fleet.expected());
        fleet.on(now, &self.history, news, &mut orders);
        let prices = Some(fleet.prices());
        for order in &orders {
            match *order {
                Order::RecordHour { hour, peak } => {
                    let terms = take_terms(&mut self.peaks, hour, peak);
                    self.ended_hours.push(EndedHour { hour, peak, terms, forecast, prices });
                }
                Order::Bug(bug) => self.bugs.push(bug),
                // What the fleet wants now is asked for below.
                Order::Wake(_) | Order::Sleep(..) => {}
            }
        }
        let (gear, awake) = (fleet.gear(now), fleet.wants().collect());
        if self.awake != awake {
            self.begin_shift(now, gear, awake);
        }
        !orders.is_empty()
    }

    fn begin_shift(&mut self, now: Moment, gear: u8, awake: BTreeSet<ServerId>) {
        debug_assert!(
            self.basis.as_ref().is_some_and(|(_, members)| awake.iter().all(|id| members.contains_key(id))),
            "only servers that gears concern are shifted"
        );
        let from = GearSize { gear: self.gear, servers: self.awake.len() as u32 };
        let to = GearSize { gear, servers: awake.len() as u32 };
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
        (self.gear, self.awake) = (gear, awake);
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
        self.decider.as_ref().map(|decider| match decider {
            Decider::Servers(fleet) => fleet.mode(),
            Decider::Groups(scheduler) => scheduler.mode(),
        })
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
        match &self.decider {
            Some(Decider::Servers(fleet)) => fleet.depth(server),
            _ => None,
        }
    }

    /// Power cycles that a server has saved up; `None`: they are not counted.
    pub fn saved_cycles(&self, now: Moment, server: ServerId) -> Option<f64> {
        match &self.decider {
            Some(Decider::Servers(fleet)) => fleet.saved_cycles(now, server),
            _ => None,
        }
    }

    /// Why the server is wanted for the load, or not; `None`: gears do not concern it.
    pub fn why(&self, now: Moment, server: ServerId) -> Option<Why> {
        match &self.decider {
            Some(Decider::Servers(fleet)) => fleet.why(now, server),
            Some(Decider::Groups(_)) => self.why_of_group(now, server),
            None => None,
        }
    }

    fn why_of_group(&self, now: Moment, server: ServerId) -> Option<Why> {
        let (_, members) = self.basis.as_ref()?;
        let group = members.get(&server)?;
        Some(if self.mode() != Some(Mode::Auto) && self.awake.contains(&server) {
            Why::Administrator
        } else if self.never_sleep(now).contains(group) {
            Why::LowestGear
        } else if self.awake.contains(&server) {
            Why::Gear { gear: self.gear }
        } else {
            Why::NotNeeded
        })
    }

    /// The gear groups that are awake in every gear.
    pub fn never_sleep(&self, now: Moment) -> Vec<GearGroup> {
        match &self.decider {
            Some(Decider::Servers(fleet)) => fleet.never_sleep(now),
            Some(Decider::Groups(s)) => s.policy().awake_groups(s.policy().lowest_gear(), s.hour(now)),
            None => Vec::new(),
        }
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
        match &self.decider {
            Some(Decider::Servers(_)) => self.leads.values().copied().collect(),
            Some(Decider::Groups(scheduler)) => {
                let millis = scheduler.policy().lead.as_millis() as u64;
                vec![Lead { depth: None, millis, from: LeadFrom::Schedule }]
            }
            None => Vec::new(),
        }
    }

    /// The peak that is expected of the present hour; `None`: nothing is known.
    pub fn expected(&self, now: Moment) -> Option<Load> {
        match self.decider.as_ref()? {
            Decider::Servers(fleet) => fleet.expected(),
            Decider::Groups(s) => {
                forecast(&self.history, s.hour(now), s.policy().hours_per_day).map(|f| f.load)
            }
        }
    }

    /// Between which loads the peaks of the coming hours lie, from the present one on: by the same possible futures by
    /// which the fleet decides. Empty with whole gears, which decide by one number, and until a day has been seen.
    pub fn bands(&self) -> Vec<LoadBand> {
        let (Some(Decider::Servers(fleet)), Some((schedule, _))) = (&self.decider, &self.basis) else {
            return Vec::new();
        };
        let Some(ahead) = fleet.ahead() else { return Vec::new() };
        let band = |hour| {
            let exceeds = ahead.exceeds(hour as usize);
            LoadBand { low: exceeded(&exceeds, 1.0 - OUTSIDE), high: exceeded(&exceeds, OUTSIDE) }
        };
        (0..schedule.hours_per_day).map(band).collect()
    }

    /// The dry run over `hours` hours; the error says why nothing can be planned.
    pub fn plan(&self, now: Moment, hours: u32) -> Result<Vec<Planned>, String> {
        let (_, members) = self.basis.as_ref().ok_or("the leader has just taken over: ask again")?;
        match self.decider.as_ref().ok_or_else(|| self.fault.clone().unwrap_or_default())? {
            Decider::Servers(fleet) => {
                let planned = fleet.plan(now, &self.history, hours).into_iter();
                Ok(planned
                    .map(|p| Planned { hour: p.hour, forecast: p.forecast, gear: p.gear, awake: p.awake })
                    .collect())
            }
            Decider::Groups(scheduler) => {
                let planned = scheduler.plan(now, &self.history, hours).into_iter();
                let one = |p: ebb_gear::PlannedHour| {
                    let awake = of_groups(members, &p.awake);
                    Planned { hour: p.hour, forecast: p.forecast, gear: p.gear, awake }
                };
                Ok(planned.map(one).collect())
            }
        }
    }
}
