//! `ebb power test`: a server sleeps and wakes once by each of its wake paths, which shows whether they work and how
//! long they take.
//!
//! It sleeps as any server does, after R7; its switch is never used to force it off. If a path does not wake it, the
//! wake-up escalates to the others as always, and the result says so. One test at a time, so that the cluster lacks one
//! server more than usual at most. The test is in the leader's memory: if the leader changes, the server returns to its
//! gear, and the test is to be asked for again. What the paths have shown is recorded either way ([`super::power`]).

use crate::State;
use crate::controller::event::Output;
use crate::controller::hibernation::pool_hibernates;
use crate::controller::leading::Leading;
use crate::controller::maintenance::can_do_without;
use crate::controller::trial::Trial;
use ebb_types::{
    Moment, Notice, PathTest, PoolId, PowerTest, ServerId, ServerState, SetEntry, SlotState, TestStep,
};
use std::time::Duration;

/// Longest time for handing over and for catching up.
const DATA_LIMIT: Duration = Duration::from_secs(1800);
/// Tries of a wake-up, beyond what each path may take, until a test gives up on it. The wake-up itself continues.
const WAKE_TRIES: u32 = 20;

impl Leading {
    pub(crate) fn begin_test(&mut self, now: Moment, server: ServerId, state: &State) -> Result<(), String> {
        let entry = state.server(server).ok_or_else(|| format!("{server} is not part of the cluster"))?;
        if self.power.paths(server).is_empty() {
            return Err(format!(
                "{server} has no power switch: configure one, and restart the metadata servers"
            ));
        }
        if let Some(trial) = self.power.running_trial() {
            return Err(format!("{} is being tested: wait until that has ended", trial.server));
        }
        if state.in_maintenance(server) {
            return Err(format!(
                "{server} is in maintenance: end that first (`ebb maintenance {server} --end`)"
            ));
        }
        if !matches!(entry.state, ServerState::Awake | ServerState::Draining | ServerState::Asleep) {
            return Err(format!("{server} is neither awake nor asleep: wait until it is"));
        }
        if self.wants.lacks_copies(server, state) {
            return Err("copies are missing, so every server is needed: wait until they are complete".into());
        }
        if self.wants.short_of_room {
            return Err("awake servers fill up, so every server is needed: delete data or add servers".into());
        }
        can_do_without(entry, state)?;
        let spare = entry.pool != PoolId::REPLICATED
            && !state.sets().any(|(_, set)| set.column_of(server).is_some())
            && !pool_hibernates(entry.pool, state);
        if spare || self.wants.has_data_in_use(server, state) {
            return Err(format!(
                "{server} sleeps only with its whole erasure-coded pool or set, which is in use: test it while that hibernates"
            ));
        }
        let (step, results) = (TestStep::Draining, Vec::new());
        let status = PowerTest { step, limit_millis: None, results, given_up: None };
        self.power.follow_trial(Trial { server, status, since: now, ordered: now });
        self.dirty = true;
        Ok(())
    }

    pub(crate) fn test_status(&self, server: ServerId) -> Option<PowerTest> {
        let trial = self.power.trial().filter(|trial| trial.server == server)?;
        let limit_millis = self.limit_of(trial).map(|limit| limit.as_millis() as u64);
        Some(PowerTest { limit_millis, ..trial.status.clone() })
    }

    pub(crate) fn follow_test(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let Some(mut trial) = self.power.running_trial().cloned() else { return };
        let before = trial.status.step;
        self.follow_step(now, &mut trial, state);
        if trial.status.step != before {
            let (server, step, given_up) = (trial.server, trial.status.step, trial.status.given_up.clone());
            out.push(Output::Notice(Notice::PowerTest { server, step, given_up }));
        }
        self.power.follow_trial(trial);
    }

    fn follow_step(&self, now: Moment, trial: &mut Trial, state: &State) {
        let server = trial.server;
        let (Some(entry), Some(switch)) = (state.server(server), self.power.switch(server)) else { return };
        let quiet = self.term.timing.heartbeat * 2;
        let late = self.limit_of(trial).is_some_and(|limit| now.since(trial.since) > limit);
        if matches!(entry.state, ServerState::Failed | ServerState::Lost) {
            return trial.give_up(now, format!("{server} failed meanwhile: look at its log"));
        }
        match trial.status.step {
            TestStep::Draining if entry.state == ServerState::Asleep => trial.step(now, TestStep::GoingDown),
            TestStep::Draining if self.wants.lacks_copies(server, state) => {
                trial.give_up(now, "copies are missing, so every server is needed".into());
            }
            TestStep::Draining if late => {
                trial.give_up(now, "its chunk groups could not be handed over: look at `ebb status`".into());
            }
            TestStep::GoingDown if entry.state != ServerState::Asleep => {
                trial.give_up(now, "it was needed or started while it should sleep: test it again".into());
            }
            TestStep::GoingDown if switch.is_down(now, self.liveness.heard(server), quiet) => {
                trial.ordered = now;
                trial.step(now, TestStep::Waking);
            }
            TestStep::GoingDown if switch.trouble.is_some() || late => {
                let why = switch.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
                trial.give_up(now, format!("it does not go down{why}; look at its log and its switch"));
            }
            TestStep::Waking if entry.state == ServerState::Awake => self.woken(now, trial, state),
            TestStep::Waking if late => {
                trial.give_up(now, "no path wakes it: switch it on by hand, and look at its switch".into());
            }
            TestStep::CatchingUp if !self.has_settled(server, state) && late => {
                trial.give_up(now, "it is awake and does not catch up: look at `ebb status`".into());
            }
            TestStep::CatchingUp if self.has_settled(server, state) => {
                let millis = now.since(trial.ordered).as_millis() as u64;
                debug_assert!(!trial.status.results.is_empty(), "it has woken by a path");
                if let Some(test) = trial.status.results.last_mut() {
                    test.in_sync_millis = Some(millis);
                }
                let all = trial.status.results.len() >= self.power.paths(server).len();
                trial.step(now, if all { TestStep::Ended } else { TestStep::Draining });
            }
            _ => {}
        }
    }

    /// How long the present step may take.
    fn limit_of(&self, trial: &Trial) -> Option<Duration> {
        let longest = self.power.longest(trial.server);
        match trial.status.step {
            TestStep::Draining | TestStep::CatchingUp => Some(DATA_LIMIT),
            TestStep::GoingDown => Some(longest * 2),
            // Each path has had its time, and some more.
            TestStep::Waking => {
                let paths = self.power.paths(trial.server).len() as u32;
                Some(longest * paths + self.term.timing.wake_limit * WAKE_TRIES)
            }
            TestStep::Ended => None,
        }
    }

    /// The path is judged by what was recorded of this wake-up.
    fn woken(&self, now: Moment, trial: &mut Trial, state: &State) {
        let nth = trial.status.results.len();
        let Some(path) = self.power.paths(trial.server).get(nth) else {
            return trial.give_up(now, "its wake paths changed".into());
        };
        let known = state.power(trial.server).and_then(|record| record.paths.get(&path.name));
        let since = self.term.unix_now(trial.ordered);
        let success = known.and_then(|p| p.success).filter(|s| s.at_unix_millis >= since);
        let failure = known.and_then(|p| p.failure.as_ref()).filter(|f| f.at_unix_millis >= since);
        let trouble = match (success, failure) {
            (Some(_), _) => None,
            (None, Some(failure)) => Some(failure.why.clone()),
            (None, None) => Some("it was awake before the path can have woken it".to_owned()),
        };
        trial.status.results.push(PathTest {
            name: path.name.clone(),
            woke_millis: success.map(|s| s.took_millis),
            in_sync_millis: None,
            trouble,
        });
        trial.step(now, TestStep::CatchingUp);
    }

    /// Everything that the server has is in sync, and its exam is in.
    fn has_settled(&self, server: ServerId, state: &State) -> bool {
        let examined = !self.power.is_to_be_examined(server);
        let in_sync = |entry: &ebb_types::GroupEntry| {
            entry.slot_of(server).is_none_or(|slot| slot.state == SlotState::InSync)
        };
        let of_set = |set: &SetEntry| {
            set.column_of(server).is_none_or(|nth| set.columns[nth].state == SlotState::InSync)
        };
        examined
            && state.groups().all(|(_, entry)| in_sync(entry))
            && state.sets().all(|(_, set)| set.hibernates() || of_set(set))
    }
}
