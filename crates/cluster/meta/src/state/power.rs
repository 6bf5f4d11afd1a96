//! What is recorded of servers' power switches: which wake paths have proved to work, the last exam, maintenance, and
//! the last sleep.
//!
//! Small, and changed only by sleeps, wake-ups, tests, exams and administrators. A path is known by its name, because
//! its place in the configuration file may change.

use crate::{Reply, State};
use ebb_types::{Depth, Exam, PathFailure, PathSuccess, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Paths kept per server: more than a configuration has, so that names of earlier ones do not pile up.
const PATHS_KEPT: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PowerRecord {
    pub paths: BTreeMap<String, PathRecord>,
    pub exam: Option<Exam>,
    /// Unix time since when the server is in maintenance.
    pub maintenance: Option<u64>,
    /// Its last sleep.
    pub slept: Option<Slept>,
    /// Power cycles since it is part of the cluster: sleeps of a depth that wears.
    pub cycles: u64,
}

/// A sleep, recorded when it is decided: a new leader knows from it how deep a sleeper sleeps, and what is left of its
/// wear budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slept {
    pub at_unix_millis: u64,
    pub depth: Depth,
    /// Power cycles that the server had saved up then, after this one; `None`: they are not counted.
    pub credit: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRecord {
    /// It woke the server when it was last tried.
    pub proven: bool,
    pub success: Option<PathSuccess>,
    pub failure: Option<PathFailure>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PowerFact {
    Woke {
        path: String,
        took_millis: u64,
    },
    WakeFailed {
        path: String,
        why: String,
    },
    /// What is wrong with it; empty: it passed.
    Examined {
        faults: Vec<String>,
    },
    Maintenance {
        on: bool,
    },
    /// It is put to sleep, which is a power cycle if it `wears`. `credit`: [`Slept::credit`].
    Sleeps {
        depth: Depth,
        wears: bool,
        credit: Option<f64>,
    },
}

impl State {
    pub fn power(&self, server: ServerId) -> Option<&PowerRecord> {
        self.power.get(&server)
    }

    pub fn in_maintenance(&self, server: ServerId) -> bool {
        self.power(server).is_some_and(|record| record.maintenance.is_some())
    }

    /// Power cycles of all servers since the cluster was created.
    pub fn power_cycles(&self) -> u64 {
        self.retired_cycles + self.power.values().map(|record| record.cycles).sum::<u64>()
    }

    /// How deep the server sleeps, or slept last; `None`: it never did.
    pub fn slept_depth(&self, server: ServerId) -> Option<Depth> {
        self.power(server)?.slept.map(|slept| slept.depth)
    }

    pub(super) fn note_power(&mut self, server: ServerId, at_unix_millis: u64, fact: &PowerFact) -> Reply {
        if !self.servers.contains_key(&server) {
            return Reply::Refused(format!("{server} is not part of the cluster"));
        }
        let record = self.power.entry(server).or_default();
        match fact {
            PowerFact::Woke { path, took_millis } => {
                let success = Some(PathSuccess { at_unix_millis, took_millis: *took_millis });
                let known = record.path(path);
                (known.proven, known.success) = (true, success);
            }
            PowerFact::WakeFailed { path, why } => {
                let failure = Some(PathFailure { at_unix_millis, why: why.clone() });
                let known = record.path(path);
                (known.proven, known.failure) = (false, failure);
            }
            PowerFact::Examined { faults } => {
                record.exam = Some(Exam { at_unix_millis, faults: faults.clone() });
            }
            PowerFact::Maintenance { on: true } => _ = record.maintenance.get_or_insert(at_unix_millis),
            PowerFact::Maintenance { on: false } => record.maintenance = None,
            PowerFact::Sleeps { depth, wears, credit } => {
                record.cycles += u64::from(*wears);
                record.slept = Some(Slept { at_unix_millis, depth: *depth, credit: *credit });
            }
        }
        Reply::Done
    }
}

impl PowerRecord {
    fn path(&mut self, name: &str) -> &mut PathRecord {
        if self.paths.len() >= PATHS_KEPT && !self.paths.contains_key(name) {
            self.paths.clear();
        }
        debug_assert!(
            self.paths.len() < PATHS_KEPT || self.paths.contains_key(name),
            "the record stays small"
        );
        self.paths.entry(name.to_owned()).or_default()
    }
}
