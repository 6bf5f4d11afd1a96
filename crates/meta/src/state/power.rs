//! What is recorded of servers' power switches: which wake paths have proved to work, the last exam, and maintenance.
//!
//! Small, and changed only by wake-ups, tests, exams and administrators. A path is known by its name, because its place in the
//! configuration file may change.

use crate::{Reply, State};
use ebb_types::{Exam, PathFailure, PathSuccess, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Paths kept per server: more than a configuration has, so that names of earlier ones do not pile up.
const PATHS_KEPT: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerRecord {
    pub paths: BTreeMap<String, PathRecord>,
    pub exam: Option<Exam>,
    /// Unix time since when the server is in maintenance.
    pub maintenance: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRecord {
    /// It woke the server when it was last tried.
    pub proven: bool,
    pub success: Option<PathSuccess>,
    pub failure: Option<PathFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl State {
    pub fn power(&self, server: ServerId) -> Option<&PowerRecord> {
        self.power.get(&server)
    }

    pub fn in_maintenance(&self, server: ServerId) -> bool {
        self.power(server).is_some_and(|record| record.maintenance.is_some())
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
        }
        Reply::Done
    }
}

impl PowerRecord {
    fn path(&mut self, name: &str) -> &mut PathRecord {
        if self.paths.len() >= PATHS_KEPT && !self.paths.contains_key(name) {
            self.paths.clear();
        }
        self.paths.entry(name.to_owned()).or_default()
    }
}
