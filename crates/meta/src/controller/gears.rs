//! Gears: feeds the scheduler (load samples, recorded hours, the operator's requests) and keeps its answer, the gear
//! groups that should be awake. [`ebb_gear::Scheduler`] decides; this module also tracks the shift in progress.

use crate::State;
use ebb_gear::{
    Calendar, Event, History, Load, Mode, Policy, Scheduler, ServerRates, forecast, sample_interval,
};
use ebb_types::{GearGroup, LoadCount, Moment, Schedule, ServerEntry, ServerState, ShiftRecord, Vitals};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Gears {
    scheduler: Option<Scheduler>,
    /// What the scheduler was built from; it is rebuilt when this changes.
    basis: Option<(Schedule, Vec<u32>)>,
    /// Why there is no scheduler; without one every server stays awake.
    pub fault: Option<String>,
    pub history: History,
    last_hour: Option<u64>,
    count: LoadCount,
    sample_start: Moment,
    gear: u8,
    awake: Vec<GearGroup>,
    pub shift: Option<Shift>,
    /// Hours that have ended but are not in the state yet.
    pub ended_hours: Vec<(u64, Load)>,
    /// Planted defect: no dwell time.
    forgets_dwell: bool,
}

/// A shift in progress.
#[derive(Clone, Debug)]
pub(crate) struct Shift {
    started: Moment,
    from: u8,
    to: u8,
    why: &'static str,
    pub woken: u32,
    pub put_to_sleep: u32,
    pub migrations: u32,
}

/// The operator's schedule as a scheduler policy. `dwell` and `lead` are capped at one hour, so that rehearsing a day
/// in minutes needs only one setting, the hour.
pub(crate) fn policy(schedule: &Schedule, group_sizes: Vec<u32>) -> Policy {
    let hour = Duration::from_millis(schedule.hour_millis);
    Policy {
        group_sizes,
        g_min: schedule.g_min,
        rates: ServerRates::from(schedule),
        hour,
        hours_per_day: schedule.hours_per_day,
        dwell: Duration::from_millis(schedule.dwell_millis).min(hour),
        lead: Duration::from_millis(schedule.lead_millis).min(hour),
        rotate_days: schedule.rotate_days,
    }
}

/// Number of servers in each gear group that are not lost. Gears concern the replicated pool only.
pub(crate) fn group_sizes(state: &State) -> Vec<u32> {
    let mut sizes = vec![0; state.params().map_or(0, |p| usize::from(p.replicas))];
    for entry in state.replicated().filter(|e| e.state != ServerState::Lost) {
        sizes[usize::from(entry.gear_group.0)] += 1;
    }
    sizes
}

/// The gear that a new leader finds: the number of gear groups, lowest first, without a server asleep or draining. So
/// servers that were just woken keep their dwell time even before the shift is recorded.
fn gear_of(state: &State, policy: &Policy, hour: u64) -> u8 {
    let sleeps = |e: &ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Draining);
    let is_up = |group: &GearGroup| !state.replicated().any(|e| e.gear_group == *group && sleeps(e));
    policy.awake_groups(policy.replicas(), hour).iter().take_while(|group| is_up(group)).count() as u8
}

impl Gears {
    pub fn new(forgets_dwell: bool) -> Gears {
        Gears { forgets_dwell, ..Gears::default() }
    }

    /// Takes in changes of the state.
    pub fn follow(&mut self, now: Moment, state: &State, since: Moment, unix_millis: u64) {
        let sizes = group_sizes(state);
        let same =
            self.basis.as_ref().is_some_and(|(schedule, s)| schedule == state.schedule() && *s == sizes);
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
        self.ended_hours.retain(|(hour, _)| newest.is_none_or(|newest| *hour > newest));
        if !same {
            self.make(now, state, sizes, since, unix_millis);
        }
        let wish = state.manual_gear().map_or(Mode::Auto, Mode::Manual);
        if self.scheduler.as_ref().is_some_and(|s| s.mode() != wish) {
            self.tell(now, state.manual_gear().map_or(Event::Auto, Event::Set));
        }
    }

    fn make(&mut self, now: Moment, state: &State, sizes: Vec<u32>, since: Moment, unix_millis: u64) {
        self.basis = Some((*state.schedule(), sizes.clone()));
        let calendar = Calendar { origin: since, elapsed: Duration::from_millis(unix_millis) };
        let r = sizes.len() as u8;
        let mut policy = policy(state.schedule(), sizes);
        if self.forgets_dwell {
            policy.dwell = Duration::ZERO;
        }
        if self.awake.is_empty() {
            self.gear = gear_of(state, &policy, calendar.hour(now, policy.hour));
            self.sample_start = now;
        }
        let mode = state.manual_gear().map_or(Mode::Auto, Mode::Manual);
        match Scheduler::new(policy, calendar, now, mode, self.gear) {
            Ok(scheduler) => {
                (self.scheduler, self.fault) = (Some(scheduler), None);
                self.tell(now, Event::Tick);
            }
            Err(fault) => {
                (self.scheduler, self.fault) = (None, Some(fault.to_string()));
                (self.gear, self.awake) = (r, (0..r).map(GearGroup).collect());
            }
        }
    }

    /// Adds a server's load count. `dirty` is set when the scheduler decided something.
    pub fn sample(&mut self, now: Moment, vitals: &Vitals, dirty: &mut bool) {
        self.count += vitals.load;
        let Some((schedule, _)) = &self.basis else { return };
        let interval = now.since(self.sample_start);
        if interval < sample_interval(schedule) {
            return;
        }
        let count = std::mem::take(&mut self.count);
        self.sample_start = now;
        *dirty |= self.tell(now, Event::Sample { count, interval });
    }

    fn tell(&mut self, now: Moment, event: Event) -> bool {
        let Some(scheduler) = &mut self.scheduler else { return false };
        let mut commands = Vec::new();
        scheduler.on(now, &self.history, event, &mut commands);
        let mode = scheduler.mode();
        for command in &commands {
            match command {
                ebb_gear::Command::RecordHour { hour, peak } => self.ended_hours.push((*hour, *peak)),
                ebb_gear::Command::Shift { gear, awake } => self.begin_shift(now, *gear, awake.clone(), mode),
            }
        }
        !commands.is_empty()
    }

    fn begin_shift(&mut self, now: Moment, to: u8, awake: Vec<GearGroup>, mode: Mode) {
        let from = self.gear;
        let why = match mode {
            Mode::Manual(_) => "an administrator set the gear",
            Mode::Auto if to > from => "load or forecast needs more servers",
            Mode::Auto if to < from => "load and forecast need fewer servers",
            Mode::Auto => "the gear groups take turns",
        };
        let fresh = Shift { started: now, from, to, why, woken: 0, put_to_sleep: 0, migrations: 0 };
        // A shift that is superseded continues as part of the next one.
        let shift = match self.shift.take() {
            Some(old) => Shift { started: old.started, from: old.from, ..old }.towards(to, why),
            None => fresh,
        };
        self.shift = Some(shift);
        (self.gear, self.awake) = (to, awake);
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
            from_gear: shift.from,
            to_gear: shift.to,
            why: shift.why.to_owned(),
            woken: shift.woken,
            put_to_sleep: shift.put_to_sleep,
            migrations: shift.migrations,
            took_millis: now.since(shift.started).as_millis() as u64,
        })
    }

    pub fn gear(&self) -> u8 {
        self.gear
    }

    pub fn awake(&self) -> &[GearGroup] {
        &self.awake
    }

    /// The gear groups that are awake in every gear.
    pub fn never_sleep(&self, now: Moment) -> Vec<GearGroup> {
        let lowest = |s: &Scheduler| s.policy().awake_groups(s.policy().lowest_gear(), s.hour(now));
        self.scheduler.as_ref().map(lowest).unwrap_or_default()
    }

    pub fn load(&self) -> Load {
        self.scheduler.as_ref().and_then(|s| s.load()).unwrap_or(Load::ZERO)
    }

    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_ref()
    }

    pub fn forecast(&self, hour: u64, hours_per_day: u32) -> Option<f64> {
        forecast(&self.history, hour, hours_per_day).map(|f| f.load.0)
    }
}

impl Shift {
    fn towards(self, to: u8, why: &'static str) -> Shift {
        Shift { to, why, ..self }
    }
}
