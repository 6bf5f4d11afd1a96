//! Follows the cluster through its gears: its phase, each phase's effect on queues, the data moved by a shift.

mod drive;

use crate::request::measure::{Migration, Phase, Reclaim, Sample};
use crate::request::pairs::Pairs;
use ebb_meta::State;
use ebb_power::ModelledEnergy;
use ebb_types::{GearGroup, Joules, ServerId, ServerState, SlotState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A period of one phase and gear.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub phase: Phase,
    pub gear: u8,
    pub from: u64,
    pub to: u64,
    /// Number of holders at its end, and the mean lengths of their queues.
    pub holders: usize,
    pub queue: f64,
    pub offload_queue: f64,
    /// The longest queue of any holder.
    pub longest_queue: u32,
}

/// Migration of primaries in progress.
struct Moving {
    from: u64,
    primaries: Vec<Option<ServerId>>,
    moved: u32,
    last: u64,
}

/// Reclaim in progress.
struct Returning {
    debt: u64,
    /// When the first server was back.
    from: Option<u64>,
    moved: u64,
}

#[derive(Default)]
pub struct Watch {
    pub gear: u8,
    pub phase: Phase,
    map_version: u64,
    since: u64,
    areas: BTreeMap<ServerId, (u128, u128)>,
    holders: BTreeSet<ServerId>,
    pub spans: Vec<Span>,
    moving: Option<Moving>,
    pub migrations: Vec<Migration>,
    returning: Option<Returning>,
    pub reclaims: Vec<Reclaim>,
    pub samples: Vec<Sample>,
    known: BTreeMap<ServerId, ServerState>,
    /// Servers' states by the clock since the start of the trace: the first of each at zero, then each change.
    pub states: Vec<(Duration, ServerId, ServerState)>,
    sampled: Sampled,
    /// What the disks' work adds to the energy of servers that idle: by the clock, and at the trace's own speed.
    pub work: Joules,
    pub own_work: Joules,
    /// The same disk work on a cluster that never sleeps.
    pub always_on: Joules,
    pub pairs: Pairs,
}

/// The cluster at the last sample.
#[derive(Default)]
struct Sampled {
    at: u64,
    arrived: u64,
    /// Busy time of each disk.
    busy: BTreeMap<ServerId, u64>,
    /// As if no server had any work.
    energy: ModelledEnergy,
    /// Server-seconds switched on, at the trace's own speed.
    own_on_seconds: f64,
}

/// The map's state of gears.
struct View {
    gear: u8,
    phase: Phase,
    holders: BTreeSet<ServerId>,
}

fn view(state: &State) -> View {
    let replicas = state.params().map_or(0, |p| p.replicas);
    let mut live = vec![true; usize::from(replicas)];
    let (mut draining, mut waking) = (false, false);
    for server in state.servers() {
        let GearGroup(group) = server.gear_group;
        if !server.is_logger() {
            live[usize::from(group)] &= server.state.is_live() || server.state == ServerState::Lost;
        }
        draining |= server.state == ServerState::Draining;
        waking |= server.state == ServerState::Waking;
    }
    let (mut catching_up, mut holds) = (false, Vec::new());
    for slot in state.groups().flat_map(|(_, g)| &g.slots) {
        catching_up |= matches!(slot.state, SlotState::CatchingUp { .. });
        let Some(holder) = slot.holder else { continue };
        let place = usize::from(holder.server.0);
        holds.resize(holds.len().max(place + 1), false);
        holds[place] = true;
    }
    let phase = match (waking, draining, catching_up) {
        (true, ..) => Phase::Up,
        (_, true, _) => Phase::Down,
        (_, _, true) => Phase::Reclaim,
        _ => Phase::Steady,
    };
    let gear = live.iter().filter(|all| **all).count() as u8;
    let holders = (0..).map(ServerId).zip(holds).filter(|(_, does)| *does).map(|(id, _)| id).collect();
    View { gear, phase, holders }
}

impl Watch {
    fn follow_states(&mut self, at: Duration, state: &State) {
        for server in state.servers() {
            if self.known.insert(server.id, server.state) != Some(server.state) {
                self.states.push((at, server.id, server.state));
            }
        }
    }

    fn follow_primaries(&mut self, now: u64, start: u64, view: &View, state: &State) {
        if view.phase != Phase::Down {
            if let Some(Moving { from, moved, last, .. }) = self.moving.take()
                && moved > 0
            {
                self.migrations.push(Migration {
                    at_seconds: from.saturating_sub(start) as f64 / 1e9,
                    migrations: moved,
                    took_millis: (last - from) as f64 / 1e6,
                });
            }
            return;
        }
        let moving = self.moving.get_or_insert_with(|| Moving {
            from: now,
            primaries: state.groups().map(|(_, g)| g.primary).collect(),
            moved: 0,
            last: now,
        });
        let moved = state.groups().zip(&moving.primaries).filter(|((_, g), before)| g.primary != **before);
        let moved = moved.count() as u32;
        if moved > moving.moved {
            (moving.moved, moving.last) = (moved, now);
        }
    }

    fn follow_offload(&mut self, now: u64, start: u64, view: &View, debt: u64, fetched: u64) {
        match view.phase {
            Phase::Up => {
                self.returning.get_or_insert(Returning { debt, from: None, moved: fetched });
            }
            Phase::Reclaim => {
                let returning = self.returning.get_or_insert(Returning { debt, from: None, moved: fetched });
                returning.from.get_or_insert(now);
            }
            Phase::Steady | Phase::Down => {
                let Some(Returning { debt, from, moved }) = self.returning.take() else { return };
                let Some(from) = from else { return };
                let seconds = (now - from) as f64 / 1e9;
                self.reclaims.push(Reclaim {
                    at_seconds: from.saturating_sub(start) as f64 / 1e9,
                    debt_bytes: debt,
                    fetched_bytes: fetched - moved,
                    took_seconds: seconds,
                    bytes_per_second: (fetched - moved) as f64 / seconds.max(1e-9),
                });
            }
        }
    }
}
