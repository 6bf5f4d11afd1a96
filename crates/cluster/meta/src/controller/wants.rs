//! What the last plan wants: which servers are awake, and what beyond the load they are awake for. Each plan replaces
//! it as a whole.

use crate::State;
use ebb_types::{ServerId, SetEntry, SetId, SlotState};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Wants {
    /// The servers that are to be awake.
    pub awake: BTreeSet<ServerId>,
    /// Those of them that are awake because others rely on their waking.
    pub insured: BTreeSet<ServerId>,
    /// A long sleeper that is woken for an exam.
    pub examinee: Option<ServerId>,
    /// Copies are missing, so more servers are kept awake than the gear asks for.
    pub emergency: bool,
    /// Awake servers lack room, so more are kept awake than the gear asks for (R10).
    pub short_of_room: bool,
    /// Servers that are awake since who stood in for them is short of room, and who that is.
    pub relieves: BTreeMap<ServerId, ServerId>,
    /// Sets that are to sleep as a whole.
    pub resting: BTreeSet<SetId>,
}

impl Wants {
    /// Whether the server has a data column of a set that is not to sleep as a whole.
    pub fn has_data_in_use(&self, server: ServerId, state: &State) -> bool {
        state.sets().any(|(id, set)| {
            let data = set.column_of(server).is_some_and(|column| column < set.shape.data());
            data && !(set.hibernates() && self.resting.contains(&id))
        })
    }

    /// Whether chunk groups lack copies, or the server's set lacks a data column, whose strips parity stands in for.
    /// Then it is needed, whatever was so when its test began.
    pub fn lacks_copies(&self, server: ServerId, state: &State) -> bool {
        let lacks = |set: &SetEntry| {
            set.columns[..set.shape.data()].iter().any(|column| column.state != SlotState::InSync)
        };
        self.emergency || state.sets().any(|(_, set)| set.column_of(server).is_some() && lacks(set))
    }
}
