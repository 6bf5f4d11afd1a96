//! Observes the cluster during a replay: server states as the map changes; gear, load and debt as reported by the
//! metadata service. Observing wakes no server.

use super::energy::States;
use ebb_types::{ClusterStatus, ServerId, ServerState};
use std::collections::BTreeMap;
use std::time::Duration;

/// Times are since the start, by the clock.
#[derive(Default)]
pub(crate) struct Observer {
    states: BTreeMap<ServerId, ServerState>,
    /// Every change of a server's state, including the first state of each.
    pub changes: Vec<(Duration, ServerId, ServerState)>,
    /// Gear from that time on.
    gears: Vec<(Duration, u8)>,
    moved: BTreeMap<ServerId, Moved>,
    pub most_debt: u64,
    pub load: f64,
    pub debt: u64,
}

/// What the cluster did when a request was issued [Sierra §4.5, Figure 11].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    Steady,
    /// Servers woke, whatever else went on.
    UpShift,
    DownShift,
}

/// The times at which a server's state changed, and whether it woke.
#[derive(Clone, Default)]
pub struct Stretches(Vec<(Duration, bool)>);

/// A change counts for requests issued within this time before or after it.
const AROUND_SHIFT: Duration = Duration::from_secs(2);

impl Stretches {
    /// Of servers that were in these states. The first ones are no change.
    pub fn of(states: &States) -> Stretches {
        let woke = |state| matches!(state, ServerState::Waking | ServerState::Awake);
        let changes = states.iter().filter(|(when, ..)| !when.is_zero());
        Stretches(changes.map(|(when, _, state)| (*when, woke(*state))).collect())
    }

    pub fn at(&self, at: Duration) -> Stretch {
        let from = self.0.partition_point(|(when, _)| *when + AROUND_SHIFT < at);
        let near = self.0[from..].iter().take_while(|(when, _)| *when <= at + AROUND_SHIFT);
        match near.map(|(_, woke)| *woke).max() {
            None => Stretch::Steady,
            Some(false) => Stretch::DownShift,
            Some(true) => Stretch::UpShift,
        }
    }
}

/// Offload counted by a server. Its counters restart with each run of the server.
#[derive(Clone, Copy, Default)]
struct Moved {
    last: (u64, u64),
    total: (u64, u64),
}

/// Growth of a counter; one that is smaller than before has restarted.
fn grown(last: u64, now: u64) -> u64 {
    if now >= last { now - last } else { now }
}

impl Observer {
    /// Time begins anew: of what was before, only the last states stay.
    pub fn restart(&mut self) {
        let Observer { states, gears, moved, load, debt, .. } = std::mem::take(self);
        let restarted = |(server, moved)| (server, Moved { total: (0, 0), ..moved });
        *self = Observer {
            changes: states.iter().map(|(server, state)| (Duration::ZERO, *server, *state)).collect(),
            gears: gears.last().map(|(_, gear)| (Duration::ZERO, *gear)).into_iter().collect(),
            moved: moved.into_iter().map(restarted).collect(),
            states,
            most_debt: debt,
            load,
            debt,
        };
    }

    pub fn servers(&mut self, at: Duration, servers: &[(ServerId, ServerState)]) {
        for (server, state) in servers {
            if self.states.insert(*server, *state) != Some(*state) {
                self.changes.push((at, *server, *state));
            }
        }
    }

    pub fn status(&mut self, at: Duration, status: &ClusterStatus) {
        if self.gears.last().is_none_or(|(_, gear)| *gear != status.gear.gear) {
            self.gears.push((at, status.gear.gear));
        }
        self.load = status.gear.load;
        self.debt = status.debt_bytes;
        self.most_debt = self.most_debt.max(status.debt_bytes);
        for server in &status.servers {
            let Some(vitals) = &server.vitals else { continue };
            let now = (vitals.offloaded_bytes, vitals.reclaimed_bytes);
            // What a server counted before it was first seen does not belong to the replay.
            let moved = self.moved.entry(server.id).or_insert(Moved { last: now, total: (0, 0) });
            moved.total.0 += grown(moved.last.0, now.0);
            moved.total.1 += grown(moved.last.1, now.1);
            moved.last = now;
        }
    }

    /// Bytes offloaded and reclaimed so far.
    pub fn moved(&self) -> (u64, u64) {
        self.moved.values().fold((0, 0), |sum, moved| (sum.0 + moved.total.0, sum.1 + moved.total.1))
    }

    pub fn awake(&self) -> u32 {
        self.states.values().filter(|state| state.is_live()).count() as u32
    }

    pub fn gear(&self) -> u8 {
        self.gears.last().map_or(0, |(_, gear)| *gear)
    }

    /// Gear at a time; before the first status, that status's gear.
    pub fn gear_at(&self, at: Duration) -> u8 {
        let after = self.gears.partition_point(|(from, _)| *from <= at);
        self.gears.get(after.saturating_sub(1)).map_or(0, |(_, gear)| *gear)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServerState::{Asleep, Awake, Draining, Waking};
    use Stretch::{DownShift, Steady, UpShift};

    const A: ServerId = ServerId(1);

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn every_change_of_a_state_is_recorded_once_and_requests_near_any_are_around_shifts() {
        let mut seen = Observer::default();
        for (at, state) in [(0, Awake), (5, Awake), (10, Draining), (11, Asleep), (20, Waking), (21, Awake)] {
            seen.servers(seconds(at), &[(A, state)]);
        }
        assert_eq!((seen.changes.len(), seen.changes[2], seen.awake()), (5, (seconds(11), A, Asleep), 1));
        let stretches = Stretches::of(&seen.changes);
        let at = [1, 8, 13, 15, 18, 23, 24].map(|at| stretches.at(seconds(at)));
        assert_eq!(at, [Steady, DownShift, DownShift, Steady, UpShift, UpShift, Steady]);
    }

    #[test]
    fn what_was_before_a_restart_leaves_its_last_states_only() {
        let mut seen = Observer::default();
        for (at, state) in [(0, Awake), (5, Draining), (6, Asleep)] {
            seen.servers(seconds(at), &[(A, state)]);
        }
        let moved = Moved { last: (30, 20), total: (7, 5) };
        (seen.moved, seen.gears) = ([(A, moved)].into(), vec![(seconds(0), 3), (seconds(5), 1)]);
        (seen.debt, seen.most_debt) = (10, 90);
        seen.restart();
        assert_eq!((seen.changes.clone(), seen.most_debt), (vec![(Duration::ZERO, A, Asleep)], 10));
        assert_eq!((seen.moved(), seen.moved[&A].last, seen.gear_at(seconds(0))), ((0, 0), (30, 20), 1));
        seen.servers(seconds(1), &[(A, Asleep)]);
        assert_eq!((seen.changes.len(), seen.awake()), (1, 0), "it sleeps on");
    }

    #[test]
    fn a_counter_that_restarted_loses_nothing() {
        assert_eq!([grown(10, 15), grown(10, 10), grown(10, 3)], [5, 0, 3]);
    }
}
