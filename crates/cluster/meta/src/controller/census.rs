//! What plans and figures ask of all chunk groups, kept from event to event: only the groups that changed are counted
//! again.
//!
//! While servers drain, wake and catch up the leader plans at nearly every report, and a page or a scraper asks it
//! every second. If each of these looked at all groups, a shift would cost the square of the cluster's size.
//!
//! Invariant: after [`Census::follow`] it equals a census taken from nothing (the tests and the fault search compare
//! them).

use crate::State;
use ebb_types::{GroupCounts, GroupEntry, GroupId, RackId, ServerId, Slot, SlotState};
use std::collections::{BTreeMap, BTreeSet};

/// Of one server.
#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    /// Groups of which it has a replica.
    groups: BTreeSet<GroupId>,
    primaries: u32,
    /// For how many replicas of each server it keeps what they miss.
    holds_for: BTreeMap<ServerId, u32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Census {
    /// Map version of the last count.
    version: u64,
    /// The groups as they were counted.
    counted: Vec<GroupEntry>,
    /// By the server's id.
    parts: Vec<Part>,
    /// For how many replicas of each server another keeps what they miss.
    owed: BTreeMap<ServerId, u32>,
    /// Groups by condition.
    pub groups: GroupCounts,
    /// Groups without a primary.
    pub headless: BTreeSet<GroupId>,
    /// Groups with a slot whose copy of a write goes nowhere.
    pub lacking: BTreeSet<GroupId>,
    /// Groups with a replica that catches up.
    pub catching_up: BTreeSet<GroupId>,
    /// Groups with two replicas in one rack.
    pub sharing_rack: BTreeSet<GroupId>,
    /// Groups with a slot that moves.
    pub moving: BTreeSet<GroupId>,
}

impl Census {
    pub fn of(state: &State) -> Census {
        let mut census = Census::default();
        census.follow(state, &mut BTreeSet::new());
        census
    }

    /// Counts what changed since the last call, and adds the servers `concerned`: the members of the groups that
    /// changed, as they were and as they are. `false`: nothing changed.
    pub fn follow(&mut self, state: &State, concerned: &mut BTreeSet<ServerId>) -> bool {
        if self.version == state.version() {
            return false;
        }
        let since = if self.counted.is_empty() { 0 } else { self.version };
        self.version = state.version();
        let places = state.servers().last().map_or(0, |server| usize::from(server.id.0) + 1);
        // A server that has left since may be in an entry that was counted before.
        self.parts.resize_with(places.max(self.parts.len()), Part::default);
        for (group, entry) in state.groups_since(since) {
            let place = group.0 as usize;
            if let Some(before) = self.counted.get_mut(place) {
                let before = std::mem::replace(before, entry.clone());
                concerned.extend(members(&before).chain(members(entry)));
                self.forget(group, &before, state);
            } else {
                // The first count, in the order of their numbers.
                debug_assert_eq!(place, self.counted.len(), "groups are counted without gaps");
                self.counted.push(entry.clone());
            }
            self.count(group, entry, state);
        }
        debug_assert!(
            self.parts[places..].iter().all(|part| *part == Part::default()),
            "no configuration names a server that has left"
        );
        self.parts.truncate(places);
        debug_assert_eq!(self.groups.total as usize, self.counted.len(), "each group counts once");
        debug_assert_eq!(
            [&self.headless, &self.lacking, &self.catching_up, &self.moving]
                .map(|groups| groups.len() as u32),
            [
                self.groups.without_primary,
                self.groups.without_target,
                self.groups.catching_up,
                self.groups.moving
            ],
            "a group that counts in a condition is in its set"
        );
        true
    }

    fn count(&mut self, group: GroupId, entry: &GroupEntry, state: &State) {
        for slot in &entry.slots {
            self.part(slot.server).groups.insert(group);
        }
        entry.primary.into_iter().for_each(|id| self.part(id).primaries += 1);
        for (holder, stands_for) in holders(entry) {
            *self.part(holder).holds_for.entry(stands_for).or_default() += 1;
            *self.owed.entry(stands_for).or_default() += 1;
        }
        add(&mut self.groups, &conditions(entry, state));
        let any = |what: fn(&Slot) -> bool| entry.copies().iter().any(what);
        let in_set = [
            (&mut self.headless, entry.primary.is_none()),
            (&mut self.lacking, any(|s| s.target().is_none())),
            (&mut self.catching_up, any(|s| matches!(s.state, SlotState::CatchingUp { .. }))),
            (&mut self.sharing_rack, shares_rack(entry, state)),
            (&mut self.moving, entry.moving.is_some()),
        ];
        for (set, _) in in_set.into_iter().filter(|(_, is_in)| *is_in) {
            set.insert(group);
        }
    }

    fn forget(&mut self, group: GroupId, entry: &GroupEntry, state: &State) {
        for slot in &entry.slots {
            self.part(slot.server).groups.remove(&group);
        }
        entry.primary.into_iter().for_each(|id| self.part(id).primaries -= 1);
        for (holder, stands_for) in holders(entry) {
            take_one(&mut self.part(holder).holds_for, stands_for);
            take_one(&mut self.owed, stands_for);
        }
        subtract(&mut self.groups, &conditions(entry, state));
        let in_set = [
            &mut self.headless,
            &mut self.lacking,
            &mut self.catching_up,
            &mut self.sharing_rack,
            &mut self.moving,
        ];
        in_set.into_iter().for_each(|set| _ = set.remove(&group));
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
        self.parts.get(usize::from(server.0)).map_or(0, |part| part.holds_for.values().sum())
    }

    /// The servers for which another keeps what they miss.
    pub fn owed(&self) -> impl Iterator<Item = ServerId> + '_ {
        self.owed.keys().copied()
    }

    /// The servers for which the server keeps what they miss.
    pub fn holds_for(&self, server: ServerId) -> impl Iterator<Item = ServerId> + '_ {
        self.parts.get(usize::from(server.0)).into_iter().flat_map(|part| part.holds_for.keys()).copied()
    }
}

/// A count that was one is gone.
fn take_one(counts: &mut BTreeMap<ServerId, u32>, of: ServerId) {
    let left = counts.remove(&of).expect("it was counted") - 1;
    if left > 0 {
        counts.insert(of, left);
    }
}

fn members(entry: &GroupEntry) -> impl Iterator<Item = ServerId> + '_ {
    entry.members().map(|(server, _)| server)
}

/// Holders, former ones too, and the server that each stands for.
fn holders(entry: &GroupEntry) -> impl Iterator<Item = (ServerId, ServerId)> + '_ {
    let of = |slot: &Slot| slot.holder.into_iter().flat_map(|holder| holder.servers());
    entry.slots.iter().flat_map(move |slot| of(slot).map(|holder| (holder, slot.server)))
}

/// Of one group: each condition that holds counts one. A newcomer is no copy yet.
fn conditions(entry: &GroupEntry, state: &State) -> GroupCounts {
    let rack = |server: ServerId| state.server(server).map(|e| e.rack);
    let copies = entry.copies();
    let targets: Vec<Option<RackId>> =
        copies.iter().filter_map(Slot::target).map(|(server, _)| rack(server)).collect();
    let shares = (1..targets.len()).any(|k| targets[..k].contains(&targets[k]));
    let any = |what: fn(&Slot) -> bool| u32::from(copies.iter().any(what));
    GroupCounts {
        total: 1,
        in_sync: u32::from(copies.iter().all(|s| s.state == SlotState::InSync)),
        away: any(|s| matches!(s.state, SlotState::Away { .. })),
        catching_up: any(|s| matches!(s.state, SlotState::CatchingUp { .. })),
        without_primary: u32::from(entry.primary.is_none()),
        not_served: 0, // the servers know
        without_target: any(|s| s.target().is_none()),
        at_risk: any(|s| {
            matches!(s.state, SlotState::Away { .. }) && s.holder.is_some_and(|holder| !holder.covered)
        }),
        sharing_rack: u32::from(shares),
        moving: u32::from(entry.moving.is_some()),
        newest_epoch: entry.epoch,
    }
}

fn each(sum: &mut GroupCounts, one: &GroupCounts, op: fn(u32, u32) -> u32) {
    for (sum, one) in [
        (&mut sum.total, one.total),
        (&mut sum.in_sync, one.in_sync),
        (&mut sum.away, one.away),
        (&mut sum.catching_up, one.catching_up),
        (&mut sum.without_primary, one.without_primary),
        (&mut sum.without_target, one.without_target),
        (&mut sum.at_risk, one.at_risk),
        (&mut sum.sharing_rack, one.sharing_rack),
        (&mut sum.moving, one.moving),
    ] {
        *sum = op(*sum, one);
    }
}

fn add(sum: &mut GroupCounts, one: &GroupCounts) {
    each(sum, one, |sum, one| sum + one);
    sum.newest_epoch = sum.newest_epoch.max(one.newest_epoch);
}

/// The newest epoch stays: a group's epoch only rises.
fn subtract(sum: &mut GroupCounts, one: &GroupCounts) {
    each(sum, one, |sum, one| sum - one);
}

/// A server never changes its rack.
fn shares_rack(entry: &GroupEntry, state: &State) -> bool {
    let copies = entry.copies();
    let rack = |k: usize| state.server(copies[k].server).map(|server| server.rack);
    (1..copies.len()).any(|k| (0..k).any(|j| rack(j) == rack(k)))
}
