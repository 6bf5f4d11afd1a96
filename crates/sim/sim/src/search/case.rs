//! The part of a seed that is played: shrinking plays less and less of it.

use crate::search::scenario::{Plan, Scenario};
use std::collections::BTreeSet;

/// The part of a seed that is played: all of it, or less.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    /// Faults that do not happen, by number.
    pub left_out: BTreeSet<u64>,
    pub rounds: u32,
    pub clients: u32,
    /// Client operations per round, over all clients.
    pub ops: u32,
}

impl Case {
    pub fn whole(seed: u64) -> Case {
        let Plan { rounds, clients, ops, .. } = Scenario::draw(seed).plan;
        Case { seed, left_out: BTreeSet::new(), rounds, clients, ops }
    }

    pub(crate) fn scenario(&self) -> Scenario {
        let Case { rounds, clients, ops, .. } = *self;
        let Scenario { settings, plan } = Scenario::draw(self.seed);
        Scenario { settings, plan: Plan { rounds, clients, ops, ..plan } }
    }
}
