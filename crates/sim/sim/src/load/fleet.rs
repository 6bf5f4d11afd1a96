//! The policies: which servers are awake in each step. The paper's follow from the load alone; Ebb's is the production
//! decision maker [`ebb_gear::Fleet`], fed step by step.

use super::oracle::Budget;
use super::{LoadError, Policy, Setup};
use ebb_gear::{Calendar, Command, Decider, Event, Fleet, History, Load, Mode, State, forecast, gear_for};
use ebb_types::{Depth, GearGroup, Joules, Moment, Schedule, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const HOURS_PER_DAY: u32 = 24;

/// Servers by state, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Awake for the whole step: these carry its load.
    pub serving: Vec<u32>,
    /// Up but not serving: on their way up.
    pub waking: Vec<u32>,
    /// Put to sleep at the beginning of the step.
    pub slept: Vec<u32>,
    /// Woken at the beginning of the step.
    pub woken: Vec<u32>,
    /// Those of the servers asleep that are suspended; empty without that depth.
    pub suspended: Vec<Suspended>,
    /// When each server was up, waking included; only for policies that decide about single servers.
    pub spells: Vec<Spell>,
}

/// Suspended servers in a step, by the names of [`Timeline`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    pub asleep: u32,
    pub slept: u32,
    pub woken: u32,
}

/// A server's time up, in steps: `from` inclusive, `to` exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spell {
    pub server: ServerId,
    pub from: usize,
    pub to: usize,
}

/// Loads in units of servers, and the other inputs of a policy.
pub struct World<'a> {
    pub setup: &'a Setup,
    pub step: Duration,
    pub loads: &'a [Option<f64>],
    /// The first step that counts.
    pub first: usize,
}

impl World<'_> {
    /// Steps between the decision to wake a server and the first step that it serves. A wake-up shorter than a tenth of
    /// a step counts as instant.
    pub fn late(&self) -> usize {
        self.steps_of(self.setup.wake)
    }

    fn steps_of(&self, wake: Duration) -> usize {
        (wake.as_secs_f64() / self.step.as_secs_f64() - 0.1).ceil().max(0.0) as usize
    }

    fn hour_steps(&self) -> usize {
        (HOUR.as_secs_f64() / self.step.as_secs_f64()).round().max(1.0) as usize
    }

    /// The timeline of `policy`; `None` for the ideal, which has no servers. `tell` hears how many steps are done.
    pub fn play(&self, policy: Policy, tell: &mut dyn FnMut(usize)) -> Result<Option<Timeline>, LoadError> {
        let n = self.setup.servers;
        let serving = match policy {
            Policy::Ideal => return Ok(None),
            Policy::Ebb => return self.drive(tell).map(Some),
            Policy::AlwaysOn => vec![n; self.loads.len()],
            Policy::ContinuousOracle => self.needed(),
            Policy::CyclesOracle => self.with_the_same_cycles(),
            Policy::Oracle => self.gears(|hour, peaks| peaks[hour].map(Load)),
            Policy::Sierra | Policy::NaiveGrouped => self.gears(self.hour_of_day()),
            // Servers may sleep only if no chunk has more than r-g replicas on them, and with random placement any
            // r-g+1 servers share a chunk. [Sierra Table 1]
            Policy::NaiveRandom => {
                let gears = self.gear_series(self.hour_of_day());
                gears.into_iter().map(|gear| n - u32::from(self.setup.replicas - gear)).collect()
            }
        };
        Ok(Some(self.scheduled(serving)))
    }

    /// Servers of the `gear` lowest gear groups; the first groups are the larger ones.
    fn gear_servers(&self, gear: u8) -> u32 {
        let (n, r) = (self.setup.servers, u32::from(self.setup.replicas));
        let gear = u32::from(gear);
        gear * (n / r) + gear.min(n % r)
    }

    /// Each hour's highest step; `None` if nothing was recorded.
    pub(crate) fn peaks(&self) -> Vec<Option<f64>> {
        let peak = |steps: &[Option<f64>]| steps.iter().flatten().copied().reduce(f64::max);
        self.loads.chunks(self.hour_steps()).map(peak).collect()
    }

    /// Sierra's forecast: hour `h` is the mean of that hour on earlier days.
    fn hour_of_day(&self) -> impl FnMut(usize, &[Option<f64>]) -> Option<Load> {
        let mut history = History::default();
        move |hour, peaks| {
            if let Some(peak) = hour.checked_sub(1).and_then(|before| peaks[before]) {
                history.record(hour as u64 - 1, Load(peak), HOURS_PER_DAY);
            }
            forecast(&history, hour as u64, HOURS_PER_DAY).map(|f| f.load)
        }
    }

    /// The gear of every step, from its hour's expected load.
    fn gear_series(&self, mut expected: impl FnMut(usize, &[Option<f64>]) -> Option<Load>) -> Vec<u8> {
        let (n, r) = (self.setup.servers, self.setup.replicas);
        let lowest = self.whole_gears().lowest_gear();
        let peaks = self.peaks();
        let gear = |load: Option<Load>| load.map_or(r, |load| gear_for(load, n, r, lowest));
        let gears: Vec<u8> = (0..peaks.len()).map(|hour| gear(expected(hour, &peaks))).collect();
        (0..self.loads.len()).map(|step| gears[step / self.hour_steps()]).collect()
    }

    fn gears(&self, expected: impl FnMut(usize, &[Option<f64>]) -> Option<Load>) -> Vec<u32> {
        self.gear_series(expected).into_iter().map(|gear| self.gear_servers(gear)).collect()
    }

    fn whole_gears(&self) -> ebb_gear::Policy {
        let sizes = (0..self.setup.replicas).map(|g| self.gear_servers(g + 1) - self.gear_servers(g));
        let schedule = Schedule { g_min: self.setup.g_min, ..Schedule::default() };
        ebb_gear::Policy::of(&schedule, sizes.collect())
    }

    /// Fewest servers that carry each step's load.
    fn needed(&self) -> Vec<u32> {
        let policy = self.whole_gears();
        self.loads.iter().map(|load| policy.servers_needed(Load(load.unwrap_or(0.0)))).collect()
    }

    /// Days that count, gaps included.
    pub(super) fn days(&self) -> f64 {
        (self.loads.len() - self.first) as f64 * self.step.as_secs_f64() / 86_400.0
    }

    /// What waking a server and putting it to sleep cost, beyond what it draws in these steps by its state.
    pub(super) fn transitions(&self) -> (Joules, Joules) {
        let power = &self.setup.power;
        let within = |seconds: f64| Duration::from_secs_f64(seconds.min(self.step.as_secs_f64()));
        // While it wakes, a server draws only the transition's energy: neither idle power nor, if it was woken ahead of
        // a step longer than its wake-up, standby power.
        let instead = if self.late() > 0 { power.idle } else { power.standby };
        let up = power.up.joules - instead * within(power.up.seconds);
        (up, power.down.joules - power.standby * within(power.down.seconds))
    }

    /// The oracle with a budget of power cycles. The budget is that of the steps that count, so those of the training
    /// are all like the first that does: what sleeps there slept before.
    fn with_the_same_cycles(&self) -> Vec<u32> {
        let (n, power) = (self.setup.servers, &self.setup.power);
        let (up, down) = self.transitions();
        // A cycle that is missing by rounding is there.
        let cycles = (self.setup.cycles_per_day * f64::from(n) * self.days() + 1e-6) as u64;
        let step = (power.idle - power.standby) * self.step;
        let budget = Budget { servers: n, cycles, late: self.late(), step, up, down };
        let counts = self.loads.iter().map(Option::is_some);
        let steps: Vec<(u32, bool)> = self.needed().into_iter().zip(counts).skip(self.first).collect();
        let serving = budget.serving(&steps);
        let before = serving.first().copied().unwrap_or(n);
        std::iter::repeat_n(before, self.first).chain(serving).collect()
    }

    /// A schedule known in advance: servers are woken early enough to serve on time.
    fn scheduled(&self, serving: Vec<u32>) -> Timeline {
        let late = self.late();
        let on = |t: usize| serving[t..serving.len().min(t + late + 1)].iter().copied().max().unwrap_or(0);
        let mut line = Timeline::default();
        let mut before = on(0);
        for (t, serves) in serving.iter().enumerate() {
            let now = on(t);
            line.waking.push(now - serves);
            line.woken.push(now.saturating_sub(before));
            line.slept.push(before.saturating_sub(now));
            before = now;
        }
        line.serving = serving;
        line
    }

    /// Ebb's own policy: the production decision maker on this clock. It knows nothing from before the first step.
    fn drive(&self, tell: &mut dyn FnMut(usize)) -> Result<Timeline, LoadError> {
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let r = self.setup.replicas;
        let servers = (0..self.setup.servers)
            .map(|id| (ServerId(id as u16), GearGroup((id % u32::from(r)) as u8), State::Awake, true));
        let policy = self.setup.fleet(self.step);
        let hours_per_day = policy.hours_per_day;
        let mut fleet = Fleet::new(policy, calendar, Moment::ZERO, Mode::Auto, servers)?;
        let mut history = History::default();
        let suspend = self.setup.suspend.map_or(0, |suspend| self.steps_of(suspend.wake));
        let mut due: BTreeSet<(usize, ServerId)> = BTreeSet::new();
        let mut line = Timeline::default();
        let mut commands = Vec::new();
        let mut up: BTreeMap<ServerId, usize> =
            (0..self.setup.servers).map(|id| (ServerId(id as u16), 0)).collect();
        for t in 0..self.loads.len() {
            tell(t);
            let now = Moment::ZERO + self.step * t as u32;
            arrive(&mut fleet, &history, now, &mut due, t);
            let load = t.checked_sub(1).and_then(|before| self.loads[before]);
            let event = load.map_or(Event::Tick, |l| Event::Sample { load: Load(l), interval: self.step });
            let (mut woken, mut slept, mut suspended) = (0, 0, Suspended::default());
            let mut event = Some(event);
            while let Some(next) = event.take() {
                fleet.on(now, &history, next, &mut commands);
                for command in commands.drain(..) {
                    let (server, state) = match command {
                        Command::Wake(server) => {
                            let shallow = fleet.state(server) == Some(State::Asleep(Depth::Standby));
                            woken += 1;
                            suspended.woken += u32::from(shallow);
                            up.insert(server, t);
                            due.insert((t + if shallow { suspend } else { self.late() }, server));
                            (server, State::Waking)
                        }
                        Command::Sleep(server) => {
                            let depth = fleet.depth(server).expect("it is one of the fleet's");
                            slept += 1;
                            suspended.slept += u32::from(depth == Depth::Standby);
                            let from = up.remove(&server).unwrap_or(t);
                            line.spells.push(Spell { server, from, to: t });
                            (server, State::Asleep(depth))
                        }
                        Command::RecordHour { hour, peak, .. } => {
                            history.record(hour, peak, hours_per_day);
                            event = Some(Event::Tick);
                            continue;
                        }
                        Command::Bug(bug) => panic!("{bug:?}"),
                    };
                    report(&mut fleet, &history, now, server, state);
                }
            }
            arrive(&mut fleet, &history, now, &mut due, t);
            line.serving.push(fleet.count(|state| state == State::Awake));
            line.waking.push(fleet.count(|state| state == State::Waking));
            line.woken.push(woken);
            line.slept.push(slept);
            if self.setup.suspend.is_some() {
                suspended.asleep = fleet.count(|state| state == State::Asleep(Depth::Standby));
                line.suspended.push(suspended);
            }
        }
        let end = self.loads.len();
        line.spells.extend(up.into_iter().map(|(server, from)| Spell { server, from, to: end }));
        Ok(line)
    }
}

/// Reports servers that are up by step `t` to the fleet.
fn arrive(
    fleet: &mut Fleet,
    history: &History,
    now: Moment,
    due: &mut BTreeSet<(usize, ServerId)>,
    t: usize,
) {
    while due.first().is_some_and(|(at, _)| *at <= t)
        && let Some((_, server)) = due.pop_first()
    {
        report(fleet, history, now, server, State::Awake);
    }
}

/// Reports a server's state to the fleet, which decides nothing by that alone.
fn report(fleet: &mut Fleet, history: &History, now: Moment, server: ServerId, state: State) {
    fleet.on(now, history, Event::Is { server, state, may_sleep: true }, &mut Vec::new());
}
