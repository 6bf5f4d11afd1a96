//! Columns of erasure-coded sets: takes strips, serves them, rebuilds those that are missing or damaged, and fills
//! columns. `docs/coded.md` is the protocol.
//!
//! A [`CodedSet`] is this server's part in one set, whatever columns it keeps strips of. Rows are immutable, so there
//! is no order, no tail and no primary here: only the fence (R1), and the rule that a listing never overtakes a strip
//! taken under an older epoch.
//!
//! - `known`: the configuration, the fence, and which columns are kept here in which role;
//! - `client`: writes, deletions and reads;
//! - `serve`: listings and fetches of other servers;
//! - `rebuild`: one run of blocks from the same strip elsewhere or from k others;
//! - `fill`: everything that a column lacks; `plan`: what of one chunk that is;
//! - `scrub`: reads a column that clients do not, and compares parity with data; `page`: where it is;
//! - `memory`: strips kept in memory instead of the store.

mod client;
mod fill;
mod known;
mod memory;
mod page;
mod plan;
mod read;
mod rebuild;
mod scrub;
mod serve;
mod set;

use ebb_types::{GroupId, Role, SetId};
pub(crate) use memory::Memory;
pub(crate) use set::CodedSet;
use std::collections::{BTreeMap, BTreeSet};

/// The sets that this server has, or had, a part in.
#[derive(Default)]
pub(crate) struct CodedSets {
    pub sets: BTreeMap<SetId, CodedSet>,
    /// Sets that need ticks.
    pub busy: BTreeSet<SetId>,
    /// Sets whose configuration must be compared with the next map.
    pub unsettled: BTreeSet<SetId>,
    /// Sets for which the store had no room to record a drop: retried at the next beat.
    pub not_dropped: BTreeSet<SetId>,
}

impl CodedSets {
    /// `roles`: what the store keeps, of chunk groups too.
    pub fn new(roles: &[(GroupId, Role)]) -> CodedSets {
        let mut coded = CodedSets::default();
        for &(group, role) in roles {
            if let Some((id, column)) = group.column() {
                coded.sets.entry(id).or_insert_with(|| CodedSet::new(id)).keep(column, role);
                coded.unsettled.insert(id);
            }
        }
        coded
    }

    /// Sets of which strips that should be here may be missing: of its own column, or of those that it keeps for
    /// others.
    pub fn catching_up(&self) -> usize {
        self.sets.values().filter(|set| set.is_catching_up() || set.recomputes()).count()
    }

    /// R7: no column here is needed, nothing is kept for others, and nothing is in flight.
    pub fn may_sleep(&self, memory: &Memory) -> bool {
        self.sets.values().all(|set| set.may_sleep(memory))
    }
}
