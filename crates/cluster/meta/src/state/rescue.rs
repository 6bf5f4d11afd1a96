//! A state that was rescued from a minority of the members catches up with what the cluster did since its last entry.
//!
//! Numbers that it handed out later are unknown, or known by their traces only: so each of them jumps, and none is
//! given twice. What can be learned from chunk servers is taken from them: configurations, and that there were newer
//! ones. A group of which a newer configuration than any known one may have served has no copy that counts as complete:
//! what they have is compared when an administrator forces it. What is leased counts as nobody's from now on, and is
//! not freed: some of it may have been named after the last entry.

use super::{Reply, State, Versioned};
use ebb_types::{
    Column, Epoch, GroupEntry, GroupId, Holder, MapDelta, PoolEntry, ServerEntry, SetEntry, SetId, Slot,
    SlotState,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Map versions, and numbers of the namespace that are given one at a time: a million in each second of an hour.
pub(crate) const JUMP: u64 = 1 << 32;
/// Object ids are given by the thousand.
pub(crate) const OBJECT_JUMP: u64 = 1 << 44;
/// Configurations of one group or set: each takes the leader a moment.
pub(crate) const EPOCH_JUMP: u32 = 1 << 20;
const _: () = assert!(JUMP >= 3600 * 1_000_000 && OBJECT_JUMP >= 1000 * JUMP);

/// What chunk servers remember, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    pub generation: u32,
    /// Too few servers were heard to know of every configuration that served.
    pub unknown: bool,
    /// The newest map version that any of them ever served under.
    pub seen: u64,
    /// The newest map that one of them has; version zero: none has one. Of each group and set it has the newest entry
    /// that any of them has, in order of their ids.
    pub map: MapDelta,
    /// The newest epoch that any of them knows of each group.
    pub epochs: BTreeMap<GroupId, Epoch>,
}

/// Groups and sets of which it is not known which copies are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsure {
    pub groups: Vec<GroupId>,
    pub sets: Vec<SetId>,
}

impl Recalled {
    fn group(&self, id: GroupId) -> Option<&GroupEntry> {
        let groups = &self.map.groups;
        groups.binary_search_by_key(&id, |(group, _)| *group).ok().map(|at| &groups[at].1)
    }

    fn set(&self, id: SetId) -> Option<&SetEntry> {
        let sets = &self.map.sets;
        sets.binary_search_by_key(&id, |(set, _)| *set).ok().map(|at| &sets[at].1)
    }
}

impl State {
    /// How often it was rescued.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What will be unsure once [`crate::Command::Rescue`] is applied.
    pub(crate) fn unsure(&self, recalled: &Recalled) -> Unsure {
        let groups = self.groups().filter(|(id, own)| self.present_group(*id, own, recalled).1);
        let sets = self.sets().filter(|(id, own)| self.present_set(*id, own, recalled).1);
        Unsure { groups: groups.map(|(id, _)| id).collect(), sets: sets.map(|(id, _)| id).collect() }
    }

    pub(super) fn rescue(&mut self, recalled: &Recalled) -> Reply {
        if recalled.generation <= self.generation {
            return Reply::Refused(format!("it is of generation {} already", self.generation));
        }
        debug_assert!(
            recalled.map.groups.is_sorted_by_key(|(id, _)| *id),
            "a group is searched for by its id"
        );
        debug_assert!(recalled.map.sets.is_sorted_by_key(|(id, _)| *id), "so is a set");
        self.generation = recalled.generation;
        let version = self.version.max(recalled.seen).max(recalled.map.to) + JUMP;
        let groups: Vec<GroupEntry> =
            self.groups().map(|(id, own)| self.next_group(id, own, recalled)).collect();
        let added = (self.sets.len() as u16..).map_while(|id| recalled.set(SetId(id)).cloned());
        let sets: Vec<SetEntry> = self
            .sets()
            .map(|(id, own)| self.next_set(id, own, recalled))
            .chain(added.map(|set| SetEntry { epoch: set.epoch.after(EPOCH_JUMP), ..set }))
            .collect();
        debug_assert!(
            groups.iter().zip(self.groups()).all(|(next, (_, own))| next.epoch > own.epoch),
            "no epoch is given twice"
        );
        debug_assert!(
            sets.iter().zip(self.sets()).all(|(next, (_, own))| next.epoch > own.epoch),
            "no epoch of a set is given twice"
        );
        if recalled.map.to >= self.version {
            self.take_servers(&recalled.map.servers, &recalled.map.pools);
        }
        let changed = |item| Versioned { item, changed: version };
        self.groups = groups.into_iter().map(changed).collect();
        self.sets = sets.into_iter().map(|item| Versioned { item, changed: version }).collect();
        self.servers.values_mut().for_each(|server| server.changed = version);
        self.pools.values_mut().for_each(|pool| pool.changed = version);
        (self.version, self.roster) = (version, version);
        self.next_object = self.next_object.max(self.namespace.leased_to()) + OBJECT_JUMP;
        self.namespace.rescue(self.next_object, JUMP);
        Reply::Done
    }

    fn take_servers(&mut self, servers: &[ServerEntry], pools: &[PoolEntry]) {
        for server in servers {
            // Of another store the position is not known.
            if self.server(server.id).is_none_or(|own| own.store != server.store) {
                self.positions.remove(&server.id);
            }
            self.servers.insert(server.id, Versioned { item: server.clone(), changed: 0 });
        }
        for pool in pools {
            self.pools.insert(pool.id, Versioned { item: pool.clone(), changed: 0 });
        }
    }

    /// Whether a server has seen a map that is newer than every one that is known.
    fn is_behind(&self, recalled: &Recalled) -> bool {
        recalled.seen > self.version.max(recalled.map.to)
    }

    /// The newest configuration of the group that is known and may have served, and whether a newer one may have.
    ///
    /// An own one that is newer than everything that the servers know never served. Where the two have the same number,
    /// that of the servers is right: the own one may come from an entry that was never committed.
    fn present_group<'a>(
        &'a self,
        id: GroupId,
        own: &'a GroupEntry,
        recalled: &'a Recalled,
    ) -> (&'a GroupEntry, bool) {
        let epoch = recalled.epochs.get(&id).copied().unwrap_or_default();
        let Some(theirs) = recalled.group(id).filter(|entry| entry.epoch > Epoch(0)) else {
            return (own, recalled.unknown || epoch > own.epoch || self.is_behind(recalled));
        };
        let present = if epoch > theirs.epoch && own.epoch > theirs.epoch { own } else { theirs };
        (present, recalled.unknown || epoch > present.epoch || self.is_behind(recalled))
    }

    fn next_group(&self, id: GroupId, own: &GroupEntry, recalled: &Recalled) -> GroupEntry {
        let (present, unsure) = self.present_group(id, own, recalled);
        let newest = recalled.epochs.get(&id).copied().unwrap_or_default();
        let epoch = newest.max(own.epoch).max(present.epoch).after(EPOCH_JUMP);
        if unsure {
            let slots = present.copies().iter().map(doubted).collect();
            // `received` is empty: not all of the data may be there.
            return GroupEntry { epoch, slots, ..GroupEntry::unknown() };
        }
        // That it served may have been recorded after the last entry.
        let before = GroupEntry { fallback: None, ..present.clone() };
        let mut next = GroupEntry { epoch, ..before.clone() };
        next.follow(&before);
        next
    }

    /// The same for a set. Servers' epochs are not asked for: where it is unsure, columns compare what they have.
    fn present_set<'a>(
        &'a self,
        id: SetId,
        own: &'a SetEntry,
        recalled: &'a Recalled,
    ) -> (&'a SetEntry, bool) {
        let listed = recalled.set(id);
        match listed.filter(|entry| entry.epoch >= own.epoch) {
            Some(theirs) => (theirs, recalled.unknown || self.is_behind(recalled)),
            None => (own, listed.is_some() || recalled.unknown || self.is_behind(recalled)),
        }
    }

    fn next_set(&self, id: SetId, own: &SetEntry, recalled: &Recalled) -> SetEntry {
        let (present, unsure) = self.present_set(id, own, recalled);
        let epoch = present.epoch.max(own.epoch).after(EPOCH_JUMP);
        let mut next = SetEntry { epoch, ..present.clone() };
        if unsure {
            let since = recalled.set(id).map_or(own.epoch, |theirs| theirs.epoch.min(own.epoch));
            next.columns.iter_mut().for_each(|column| *column = doubted_column(*column, since));
        }
        next
    }
}

/// The slot without the claim to have anything.
fn doubted(slot: &Slot) -> Slot {
    let since = Epoch(0);
    let state = match slot.state {
        SlotState::Away { .. } => SlotState::Away { since },
        SlotState::InSync | SlotState::CatchingUp { .. } => SlotState::CatchingUp { since },
    };
    Slot { state, holder: slot.holder.map(|holder| Holder::new(holder.server, false)), ..*slot }
}

/// The column may lack strips since that epoch.
fn doubted_column(column: Column, doubt: Epoch) -> Column {
    let state = match column.state {
        SlotState::InSync => SlotState::CatchingUp { since: doubt },
        SlotState::CatchingUp { since } => SlotState::CatchingUp { since: since.min(doubt) },
        SlotState::Away { since } => SlotState::Away { since: since.min(doubt) },
    };
    Column { state, ..column }
}

#[cfg(test)]
mod tests;
