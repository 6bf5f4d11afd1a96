//! Gears never flap: a burst costs one wake-up. The load never takes a gear back within the dwell time after the gear was
//! raised, and no server that a gear woke is sent to sleep again within it, whoever leads meanwhile. Only an operator may.
//! [Sierra §3.4; DESIGN, Gears]
//!
//! Seen from outside: the gear that the leader asks for, and what the map says of each server. A server that woke to help with
//! a failure (R8) may go as soon as that is over.

use crate::world::World;
use ebb_types::{ServerId, ServerState};
use std::collections::BTreeMap;

/// What was seen of the gears so far.
#[derive(Default)]
pub(super) struct Gears {
    /// The newest leader's term, and its gear.
    term: u64,
    gear: u8,
    /// When this leader raised it last.
    raised: Option<u64>,
    /// Since when servers are awake because of a gear.
    woken: BTreeMap<ServerId, u64>,
    states: BTreeMap<ServerId, ServerState>,
    map_version: u64,
}

impl World<'_> {
    pub(super) fn dwell_of_gears(&mut self, member: u64) {
        let member = &self.members[&member].member;
        let Some((term, gear)) = member.gear() else { return };
        let by_load = member.state().manual_gear().is_none();
        let (now, dwell) = (self.now, self.dwell());
        let seen = &mut self.invariants.gears;
        if term > seen.term {
            let first = seen.term == 0;
            (seen.term, seen.gear, seen.raised) = (term, gear, None);
            if !first {
                self.count("metadata leader elected anew");
            }
            return;
        }
        if term < seen.term || gear == seen.gear {
            return;
        }
        let before = std::mem::replace(&mut seen.gear, gear);
        let soon = seen.raised.filter(|at| now < at + dwell);
        if gear > before {
            seen.raised = Some(now);
        } else if !by_load {
            seen.woken.clear();
        }
        if by_load {
            self.note(|| format!("the load moves gear {before} to gear {gear}"));
            self.count(if gear > before { "gear raised by load" } else { "gear lowered by load" });
        }
        if let (true, true, Some(at)) = (gear < before, by_load, soon) {
            let millis = (now - at) / 1_000_000;
            self.fail("dwell", format!("gear {before} goes down to {gear} {millis} ms after it was raised"));
        }
    }

    pub(super) fn dwell_of_servers(&mut self) {
        let (now, dwell) = (self.now, self.dwell());
        let members = self.members.values().map(|m| m.member.state());
        let state = members.max_by_key(|s| s.version()).expect("there is a member");
        let seen = &mut self.invariants.gears;
        if state.version() == seen.map_version {
            return;
        }
        seen.map_version = state.version();
        let mut trouble = None;
        for server in state.servers() {
            let before = seen.states.insert(server.id, server.state);
            if before == Some(server.state) {
                continue;
            }
            match server.state {
                ServerState::Waking | ServerState::Awake if before == Some(ServerState::Asleep) => {
                    seen.woken.remove(&server.id);
                    if server.gear_group.0 < seen.gear {
                        seen.woken.insert(server.id, seen.raised.unwrap_or(now));
                    }
                }
                ServerState::Draining if state.manual_gear().is_none() => {
                    let soon = seen.woken.get(&server.id).filter(|at| now < **at + dwell);
                    let millis = soon.map(|at| (now - at) / 1_000_000);
                    trouble = trouble.or(millis.map(|millis| (server.id, millis)));
                }
                _ => {}
            }
        }
        if let Some((id, millis)) = trouble {
            let what = format!("{id} is sent to sleep {millis} ms after a gear woke it");
            self.fail("dwell", what);
        }
    }

    /// The dwell time by the fastest clock.
    fn dwell(&self) -> u64 {
        let schedule = &self.scenario.bootstrap.schedule;
        schedule.dwell_millis.min(schedule.hour_millis) * (1_000_000 - 10_000)
    }
}
