//! The records that the store has not made durable yet.

use crate::common::api::{StoreCommand, StoreToken};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::wait::{Place, Wait};
use bytes::Bytes;
use ebb_types::{Content, Epoch, Record, Role, Run, ServerId, Version};
use std::collections::BTreeMap;

/// Records that the store has not made durable yet. A read may overtake them, or may see one that is lost after all.
#[derive(Default)]
pub(crate) struct Applying {
    /// With the run that the record sets in the replica, if any.
    records: BTreeMap<StoreToken, Option<Run>>,
    /// Records that this server ordered or was sent (not those it fetched), with the epoch that they came under.
    direct: BTreeMap<StoreToken, Epoch>,
    /// Records that another server sent.
    foreign: BTreeMap<Place, StoreToken>,
}

impl Applying {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn has_direct(&self) -> bool {
        !self.direct.is_empty()
    }

    /// Whether any direct record came under an older epoch.
    pub fn has_direct_before(&self, epoch: Epoch) -> bool {
        self.direct.values().any(|e| *e < epoch)
    }

    pub fn tokens(&self) -> impl Iterator<Item = StoreToken> + '_ {
        self.records.keys().copied()
    }

    pub fn apply(
        &mut self,
        cx: &mut Context,
        wait: Wait,
        (role, record): (Role, Record),
        payload: Bytes,
        must_fit: bool,
        committed: Version,
    ) {
        let sets = role == Role::Replica && record.content != Content::Note;
        let run = sets.then(|| record.run());
        let (direct, foreign) = match &wait {
            Wait::Own { epoch, .. } => (Some(*epoch), None),
            Wait::Foreign { askers, place } => (askers.first().map(|(_, epoch)| *epoch), Some(*place)),
            _ => (None, None),
        };
        let command = match wait {
            Wait::CatchUpApplied { .. } if cx.config.has(PlantedBug::ReclaimOlder) => {
                let version = Version { epoch: record.version.epoch.next(), seq: 1 << 40 };
                let record = Record { version, ..record };
                StoreCommand::Apply { role, record, payload, must_fit, committed }
            }
            _ => StoreCommand::Apply { role, record, payload, must_fit, committed },
        };
        let token = cx.store(wait, command);
        let before = self.records.insert(token, run);
        debug_assert!(before.is_none(), "a token is of one command");
        if let Some(epoch) = direct {
            self.direct.insert(token, epoch);
        }
        if let Some(place) = foreign {
            self.foreign.insert(place, token);
        }
    }

    /// If the store is already working on this record, lets its sender wait for the same completion and returns true.
    pub fn join(&self, cx: &mut Context, (from, epoch): (ServerId, Epoch), place: Place) -> bool {
        let Some(token) = self.foreign.get(&place) else { return false };
        let Some((_, Wait::Foreign { askers, .. })) = cx.shared.waits.get_mut(token) else { return false };
        if !askers.contains(&(from, epoch)) {
            askers.push((from, epoch));
        }
        true
    }

    /// The store is done with a command. If it was one of these records, returns the run that it set in the replica, if
    /// any.
    pub fn ended(&mut self, token: StoreToken, wait: &Wait) -> Option<Option<Run>> {
        self.direct.remove(&token);
        if let Wait::Foreign { place, .. } = wait
            && self.foreign.get(place) == Some(&token)
        {
            self.foreign.remove(place);
        }
        self.records.remove(&token)
    }

    /// All that is kept in this role is about to be dropped, with what the store works on: who sends a record of it
    /// from now on does not wait for that (seed 32200000691).
    pub fn dropped(&mut self, role: Role) {
        self.foreign.retain(|(of, ..), _| *of != role);
    }
}
