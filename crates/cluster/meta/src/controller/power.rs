//! The servers' power: what was asked of their switches and is to be asked next, how long they took to wake, whether
//! they said that they are ready to sleep, their exams and the power test. One action at a time per server, retried
//! until the server is in the state on record.
//!
//! The state decides (`Waking`, `Asleep`); [`super::switch`] remembers what was asked of one switch. A wake-up that
//! fails or is late is reported and goes to the server's next path; it never turns a sleeping server into a failed one.
//! The switch of a server in maintenance is left alone.
//!
//! Invariant: a switch is thrown only after the state records it: asleep and failed are never confused.

use crate::controller::event::Output;
use crate::controller::switch::{Switch, Ways};
use crate::controller::trial::Trial;
use crate::controller::wake_times::WakeTimes;
use crate::{PlantedBug, PowerFact, State, SwitchAction, Switches, Timing, WakePath};
use ebb_types::{
    Depth, Incarnation, Moment, Notice, PoolId, PowerGoal, ServerEntry, ServerId, ServerState, TestStep, bug,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A server that did not pass its exam is examined again after this time.
const EXAM_AGAIN: Duration = Duration::from_secs(60);
/// Longest text about a path that is recorded.
const WHY_MAX: usize = 300;

#[derive(Clone, Debug, Default)]
struct Machine {
    switch: Switch,
    /// It has woken and is to be asked for its exam.
    examine: bool,
    /// When it last answered.
    examined: Moment,
}

#[derive(Default)]
pub(crate) struct Power {
    timing: Timing,
    switches: Switches,
    machines: BTreeMap<ServerId, Machine>,
    /// Draining servers that have handed over everything.
    ready: BTreeSet<ServerId>,
    /// How long servers of the replicated pool took to wake lately, from each depth.
    wakes: BTreeMap<Depth, WakeTimes>,
    /// What was learnt about switches and is not proposed yet.
    facts: Vec<(ServerId, PowerFact)>,
    /// The power test that runs, or the last one.
    trial: Option<Trial>,
}

impl Power {
    pub fn new(timing: Timing, switches: Switches) -> Power {
        Power { timing, switches, ..Power::default() }
    }

    /// A server as an earlier leader left it: an action in progress gets as long as one of this leader's may take.
    pub fn inherit(&mut self, entry: &ServerEntry, since: Moment, state: &State) {
        let until = since + self.ways(entry.id, state).limit;
        let ran = entry.incarnation != Incarnation(0);
        let depth = state.slept_depth(entry.id).unwrap_or(self.timing.depth);
        self.machine(entry.id).switch.inherit(entry.state, ran, until, depth);
    }

    fn machine(&mut self, server: ServerId) -> &mut Machine {
        self.machines.entry(server).or_default()
    }

    pub fn forget(&mut self, server: ServerId) {
        self.machines.remove(&server);
        self.ready.remove(&server);
        self.facts.retain(|(id, _)| *id != server);
        self.trial = self.trial.take().filter(|trial| trial.server != server);
    }

    pub fn paths(&self, server: ServerId) -> &[WakePath] {
        self.switches.get(&server).map_or(&[], |paths| paths)
    }

    /// Whether any server has a power switch. Without one, gears are a dry run.
    pub fn has_switches(&self) -> bool {
        self.switches.values().any(|paths| !paths.is_empty())
    }

    pub fn is_proven(&self, server: ServerId, path: &WakePath, state: &State) -> bool {
        let known = state.power(server).and_then(|record| record.paths.get(&path.name));
        path.reliable || known.is_some_and(|path| path.proven) || self.timing.has(PlantedBug::TrustAnyPath)
    }

    /// What was asked of the server's switch; `None`: nothing is known of it.
    pub fn switch(&self, server: ServerId) -> Option<&Switch> {
        self.machines.get(&server).map(|machine| &machine.switch)
    }

    /// Whether what was asked of the server's switch is late.
    pub fn is_late(&self, server: ServerId) -> bool {
        self.switch(server).is_some_and(Switch::is_late)
    }

    /// The server sent a heartbeat.
    pub fn heard(&mut self, now: Moment, server: ServerId) {
        self.machine(server).switch.heard(now);
    }

    /// A server that is asleep on record sent a heartbeat.
    pub fn still_awake(&mut self, now: Moment, server: ServerId) {
        let (limit, quiet) = (self.timing.wake_limit, self.timing.heartbeat * 2);
        self.machine(server).switch.still_awake(now, limit, quiet);
    }

    /// The server's switch has acted, or failed to.
    pub fn ended(&mut self, now: Moment, server: ServerId, action: SwitchAction, result: Result<(), String>) {
        let limit = self.timing.wake_limit;
        self.machine(server).switch.ended(now, action, result, limit);
    }

    /// A new run is not ready to sleep.
    pub fn restart(&mut self, server: ServerId) {
        self.ready.remove(&server);
    }

    /// A draining server says that it may be switched off. Returns whether that is news.
    pub fn note_ready(&mut self, server: ServerId) -> bool {
        self.ready.insert(server)
    }

    pub fn is_ready(&self, server: ServerId) -> bool {
        self.ready.contains(&server)
    }

    /// Only those that drain still are ready.
    pub fn keep_ready(&mut self, draining: &BTreeSet<ServerId>) {
        self.ready.retain(|server| draining.contains(server));
    }

    /// Throws the switches of servers that are not in the state on record. `heard`: when its last heartbeat came.
    /// Returns whether one is late: other servers may be wanted in its place.
    pub fn throw_switches(
        &mut self,
        now: Moment,
        heard: impl Fn(ServerId) -> Option<Moment>,
        state: &State,
        out: &mut Vec<Output>,
    ) -> bool {
        let mut is_late = false;
        for entry in state.servers().filter(|e| !state.in_maintenance(e.id)) {
            let ways = self.ways(entry.id, state);
            let depth = state.slept_depth(entry.id).unwrap_or(self.timing.depth);
            let switch = &mut self.machines.entry(entry.id).or_default().switch;
            if ways.count == 0 {
                let stuck = entry.state == ServerState::Waking;
                switch.trouble = stuck.then(|| "it has no power switch: start it by hand".to_owned());
                continue;
            }
            let before = switch.waking();
            let Some(action) = switch.next(now, entry.state, heard(entry.id), ways, depth, &self.timing)
            else {
                continue;
            };
            if switch.is_late() {
                is_late = true;
                let tries = switch.tries;
                let late = Notice::Late { server: entry.id, goal: goal(action), attempt: tries };
                let why = switch.trouble.get_or_insert_with(|| late.to_string()).clone();
                out.push(Output::Notice(late));
                // Each path once: a machine that stays off would fill the log.
                if let Some(failed) = before.filter(|_| tries <= u32::from(ways.count) + 1) {
                    self.note_failure(entry.id, failed.path, &why);
                }
            }
            if !action.is_wake() && entry.state != ServerState::Asleep {
                bug(out, "a server is switched off that does not sleep on record");
                continue;
            }
            out.push(Output::Switch { server: entry.id, action });
        }
        is_late
    }

    fn ways(&self, server: ServerId, state: &State) -> Ways {
        let paths = self.paths(server);
        let tested = self.tested_path(server);
        let proven = || paths.iter().position(|path| self.is_proven(server, path, state));
        let first = tested.or_else(proven).unwrap_or(0);
        let limit = paths.get(first).map_or(self.timing.wake_limit, |path| self.limit(server, path, state));
        Ways { count: paths.len() as u8, first: first as u8, limit }
    }

    /// A wake-up by this path that takes longer is late.
    fn limit(&self, server: ServerId, path: &WakePath, state: &State) -> Duration {
        let (least, most) = (self.timing.wake_limit, self.patience(path));
        let known =
            state.power(server).and_then(|record| record.paths.get(&path.name)).filter(|known| known.proven);
        let measured = known.and_then(|known| known.success).map(|s| Duration::from_millis(s.took_millis));
        measured.map_or(most, |took| (took * 2).clamp(least, most))
    }

    fn patience(&self, path: &WakePath) -> Duration {
        path.patience.unwrap_or_default().max(self.timing.wake_limit)
    }

    /// The longest that a server's machine may take to go down or to come up.
    pub fn longest(&self, server: ServerId) -> Duration {
        let times = self.paths(server).iter().map(|path| self.patience(path));
        times.max().unwrap_or(self.timing.wake_limit)
    }

    fn note_failure(&mut self, server: ServerId, path: u8, why: &str) {
        if let Some(path) = self.paths(server).get(usize::from(path)) {
            let path = path.name.clone();
            // It may come from a machine.
            let why = why.chars().take(WHY_MAX).collect();
            self.note(server, PowerFact::WakeFailed { path, why });
        }
    }

    /// The server has woken up: the path that was asked has proved to work, unless another one was asked too. `heard`:
    /// when its last heartbeat came.
    pub fn note_wake_up(&mut self, now: Moment, entry: &ServerEntry, heard: Option<Moment>) {
        let server = entry.id;
        let machine = self.machine(server);
        machine.examine = true;
        let (woken, is_late) = (machine.switch.waking(), machine.switch.is_late());
        let (Some(woken), Some(heard)) = (woken, heard) else { return };
        if entry.pool == PoolId::REPLICATED {
            self.wakes.entry(woken.depth).or_default().note(now.since(woken.since));
        }
        let alone = woken.from_sleep && !is_late;
        if let Some(path) = self.paths(server).get(usize::from(woken.path)).filter(|_| alone) {
            let took_millis = heard.since(woken.since).as_millis() as u64;
            let path = path.name.clone();
            self.note(server, PowerFact::Woke { path, took_millis });
        }
    }

    /// Number of wake-ups from this depth that are remembered, and the time that nearly all took at most; `None`: there
    /// was none.
    pub fn wake_times(&self, depth: Depth) -> Option<(u32, Duration)> {
        let times = self.wakes.get(&depth)?;
        Some((times.count(), times.high()?))
    }

    /// To be recorded with the next plan.
    pub fn note(&mut self, server: ServerId, fact: PowerFact) {
        self.facts.push((server, fact));
    }

    /// What is to be recorded.
    pub fn take_facts(&mut self) -> Vec<(ServerId, PowerFact)> {
        std::mem::take(&mut self.facts)
    }

    /// Whether the server is to be asked for its exam.
    pub fn is_to_be_examined(&self, server: ServerId) -> bool {
        self.machines.get(&server).is_some_and(|machine| machine.examine)
    }

    /// A server that did not pass is asked again from time to time.
    pub fn examine_again(&mut self, now: Moment, server: ServerId, state: &State) {
        let exam = state.power(server).and_then(|record| record.exam.as_ref());
        if exam.is_some_and(|exam| !exam.faults.is_empty()) {
            let machine = self.machine(server);
            machine.examine |= now >= machine.examined + EXAM_AGAIN;
        }
    }

    /// The server has answered. Returns whether it had been asked.
    pub fn take_exam(&mut self, now: Moment, server: ServerId) -> bool {
        let machine = self.machine(server);
        if machine.examine {
            machine.examined = now;
        }
        std::mem::take(&mut machine.examine)
    }

    /// The power test that runs, or the last one.
    pub fn trial(&self) -> Option<&Trial> {
        self.trial.as_ref()
    }

    /// The power test that runs.
    pub fn running_trial(&self) -> Option<&Trial> {
        self.trial().filter(|trial| trial.runs())
    }

    /// A power test begins, or has come this far.
    pub fn follow_trial(&mut self, trial: Trial) {
        self.trial = Some(trial);
    }

    /// The server under test, and whether it is to be awake.
    pub fn tested_state(&self) -> Option<(ServerId, bool)> {
        let trial = self.running_trial()?;
        Some((trial.server, matches!(trial.status.step, TestStep::Waking | TestStep::CatchingUp)))
    }

    /// It may sleep although its paths are not proven: that is what the test is for.
    pub fn is_put_to_the_test(&self, server: ServerId) -> bool {
        self.tested_state() == Some((server, false))
    }

    /// The path that the next wake-up of this server is to try first.
    fn tested_path(&self, server: ServerId) -> Option<usize> {
        let trial = self.running_trial().filter(|trial| trial.server == server)?;
        let done = trial.status.results.len() - usize::from(trial.status.step == TestStep::CatchingUp);
        (done < self.paths(server).len()).then_some(done)
    }
}

fn goal(action: SwitchAction) -> PowerGoal {
    if action.is_wake() { PowerGoal::Awake } else { PowerGoal::Asleep }
}
