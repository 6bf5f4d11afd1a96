//! Operates power switches: one action at a time per server, retried until the server is in the state on record.
//!
//! The state decides (`Waking`, `Asleep`); [`super::switch`] remembers what was asked of the switch. A wake-up that
//! fails or is late is reported and goes to the server's next path; it never turns a sleeping server into a failed one.
//! The switch of a server in maintenance is left alone.

use crate::controller::event::Output;
use crate::controller::leading::Leading;
use crate::controller::switch::Ways;
use crate::controller::trust::bounded;
use crate::{PowerFact, State, SwitchAction, WakePath};
use ebb_types::{Moment, Notice, PoolId, PowerGoal, ServerEntry, ServerId, ServerState, bug};
use std::time::Duration;

impl Leading {
    pub(crate) fn throw_switches(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        for entry in state.servers().filter(|e| !state.in_maintenance(e.id)) {
            let ways = self.ways(entry.id, state);
            let depth = state.slept_depth(entry.id).unwrap_or(self.timing.depth);
            let live = self.servers.entry(entry.id).or_default();
            if ways.count == 0 {
                let stuck = entry.state == ServerState::Waking;
                live.power.trouble = stuck.then(|| "it has no power switch: start it by hand".to_owned());
                continue;
            }
            let before = live.power.waking();
            let Some(action) = live.power.next(now, entry.state, live.heard, ways, depth, &self.timing)
            else {
                continue;
            };
            if live.power.is_late() {
                let tries = live.power.tries;
                let late = Notice::Late { server: entry.id, goal: goal(action), attempt: tries };
                let why = live.power.trouble.get_or_insert_with(|| late.to_string()).clone();
                out.push(Output::Notice(late));
                // Other servers may be wanted in its place.
                self.dirty = true;
                // Each path once: a machine that stays off would fill the log.
                if let Some(failed) = before.filter(|_| tries <= u32::from(ways.count) + 1) {
                    self.note_failure(entry.id, failed.path, why);
                }
            }
            if !action.is_wake() && entry.state != ServerState::Asleep {
                bug(out, "a server is switched off that does not sleep on record");
                continue;
            }
            out.push(Output::Switch { server: entry.id, action });
        }
    }

    pub(crate) fn ways(&self, server: ServerId, state: &State) -> Ways {
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

    /// Whether a server that is asleep on record is up all the same.
    pub(crate) fn resists(&self, now: Moment, server: ServerId, state: &State) -> bool {
        let live = self.servers.get(&server);
        live.is_some_and(|live| live.power.resists(now, live.heard, self.lease(state)))
    }

    /// The longest that a server's machine may take to go down or to come up.
    pub(crate) fn longest(&self, server: ServerId) -> Duration {
        let times = self.paths(server).iter().map(|path| self.patience(path));
        times.max().unwrap_or(self.timing.wake_limit)
    }

    fn note_failure(&mut self, server: ServerId, path: u8, why: String) {
        if let Some(path) = self.paths(server).get(usize::from(path)) {
            let path = path.name.clone();
            self.facts.push((server, PowerFact::WakeFailed { path, why: bounded(&why) }));
        }
    }

    /// The server has woken up: the path that was asked has proved to work, unless another one was asked too.
    pub(crate) fn note_wake_up(&mut self, now: Moment, entry: &ServerEntry) {
        let server = entry.id;
        let Some(live) = self.servers.get_mut(&server) else { return };
        live.examine = true;
        let (Some(woken), Some(heard)) = (live.power.waking(), live.heard) else { return };
        if entry.pool == PoolId::REPLICATED {
            self.wakes.entry(woken.depth).or_default().note(now.since(woken.since));
        }
        let alone = woken.from_sleep && !live.power.is_late();
        if let Some(path) = self.paths(server).get(usize::from(woken.path)).filter(|_| alone) {
            let took_millis = heard.since(woken.since).as_millis() as u64;
            let path = path.name.clone();
            self.facts.push((server, PowerFact::Woke { path, took_millis }));
        }
    }
}

fn goal(action: SwitchAction) -> PowerGoal {
    if action.is_wake() { PowerGoal::Awake } else { PowerGoal::Asleep }
}
