//! What a plan asks of all chunk groups, kept from plan to plan: only the groups that changed are counted again.
//!
//! While servers drain, wake and catch up the leader plans at nearly every report. A plan that looked at all groups would make a
//! shift cost the square of the cluster's size.
//!
//! Invariant: after [`Census::follow`] it equals a census taken from nothing (the tests and the fault search compare them).

use crate::State;
use ebb_types::{GroupEntry, GroupId, ServerId, Slot, SlotState};
use std::collections::BTreeSet;

/// Of one server.
#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    /// Groups of which it has a replica.
    groups: BTreeSet<GroupId>,
    primaries: u32,
    holders: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Census {
    /// Map version of the last count.
    version: u64,
    /// The groups as they were counted.
    counted: Vec<GroupEntry>,
    /// By the server's id.
    parts: Vec<Part>,
    /// Groups without a primary.
    pub headless: BTreeSet<GroupId>,
    /// Groups with a slot whose copy of a write goes nowhere.
    pub lacking: BTreeSet<GroupId>,
    /// Groups with a replica that catches up.
    pub catching_up: BTreeSet<GroupId>,
    /// Groups with two replicas in one rack.
    pub sharing_rack: BTreeSet<GroupId>,
}

impl Census {
    pub fn of(state: &State) -> Census {
        let mut census = Census::default();
        census.follow(state);
        census
    }

    /// Counts what changed since the last call.
    pub fn follow(&mut self, state: &State) {
        if self.version == state.version() {
            return;
        }
        let since = if self.counted.is_empty() { 0 } else { self.version };
        self.version = state.version();
        let places = state.servers().last().map_or(0, |server| usize::from(server.id.0) + 1);
        self.parts.resize_with(places, Part::default);
        for (group, entry) in state.groups_since(since) {
            let place = group.0 as usize;
            if let Some(before) = self.counted.get_mut(place) {
                let before = std::mem::replace(before, entry.clone());
                self.forget(group, &before);
            } else {
                // The first count, in the order of their numbers.
                self.counted.push(entry.clone());
            }
            self.count(group, entry, state);
        }
    }

    fn count(&mut self, group: GroupId, entry: &GroupEntry, state: &State) {
        for slot in &entry.slots {
            self.part(slot.server).groups.insert(group);
        }
        entry.primary.into_iter().for_each(|id| self.part(id).primaries += 1);
        holders(entry).for_each(|id| self.part(id).holders += 1);
        let any = |what: fn(&Slot) -> bool| entry.slots.iter().any(what);
        let in_set = [
            (&mut self.headless, entry.primary.is_none()),
            (&mut self.lacking, any(|s| s.target().is_none())),
            (&mut self.catching_up, any(|s| matches!(s.state, SlotState::CatchingUp { .. }))),
            (&mut self.sharing_rack, shares_rack(entry, state)),
        ];
        for (set, _) in in_set.into_iter().filter(|(_, is_in)| *is_in) {
            set.insert(group);
        }
    }

    fn forget(&mut self, group: GroupId, entry: &GroupEntry) {
        for slot in &entry.slots {
            self.part(slot.server).groups.remove(&group);
        }
        entry.primary.into_iter().for_each(|id| self.part(id).primaries -= 1);
        holders(entry).for_each(|id| self.part(id).holders -= 1);
        for set in [&mut self.headless, &mut self.lacking, &mut self.catching_up, &mut self.sharing_rack] {
            set.remove(&group);
        }
    }

    fn part(&mut self, server: ServerId) -> &mut Part {
        &mut self.parts[usize::from(server.0)]
    }

    /// Groups of which the server has a replica.
    pub fn groups_of(&self, server: ServerId) -> impl Iterator<Item = GroupId> + '_ {
        self.parts.get(usize::from(server.0)).into_iter().flat_map(|part| &part.groups).copied()
    }

    /// How many replicas the server has.
    pub fn replicas(&self, server: ServerId) -> u32 {
        self.parts.get(usize::from(server.0)).map_or(0, |part| part.groups.len() as u32)
    }

    /// Of how many groups the server is primary.
    pub fn primaries(&self, server: ServerId) -> u32 {
        self.parts.get(usize::from(server.0)).map_or(0, |part| part.primaries)
    }

    /// For how many replicas the server keeps what they miss.
    pub fn holders(&self, server: ServerId) -> u32 {
        self.parts.get(usize::from(server.0)).map_or(0, |part| part.holders)
    }
}

fn holders(entry: &GroupEntry) -> impl Iterator<Item = ServerId> + '_ {
    entry.slots.iter().filter_map(|slot| slot.holder).map(|holder| holder.server)
}

/// A server never changes its rack.
fn shares_rack(entry: &GroupEntry, state: &State) -> bool {
    let rack = |k: usize| state.server(entry.slots[k].server).map(|server| server.rack);
    (1..entry.slots.len()).any(|k| (0..k).any(|j| rack(j) == rack(k)))
}
