//! What the leader knows of the chunk groups beyond the state: what servers reported of them, which primaries are to
//! move, and what they amount to together.
//!
//! A report counts only in the epoch to which it refers, and is forgotten with it.

use crate::State;
use crate::controller::census::Census;
use crate::controller::group::{Facts, Standing, World};
use ebb_types::{Epoch, GroupEntry, GroupId, Moment, ServerEntry, ServerId, ServerReport, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After a report of damage the group's sleeping servers are kept awake for this long. A client that still waits
/// reports again.
const DAMAGE_WAKES: Duration = Duration::from_secs(15);

/// Primaries that are to move: the epoch in which the move starts, and the successor.
pub(crate) type Moves = BTreeMap<GroupId, (Epoch, ServerId)>;

#[derive(Default)]
pub(crate) struct Groups {
    released: BTreeMap<GroupId, Epoch>,
    /// Epochs that wait for permission to serve.
    serving: BTreeMap<GroupId, Epoch>,
    caught_up: BTreeSet<(GroupId, Epoch, ServerId)>,
    covered: BTreeSet<(GroupId, Epoch, ServerId)>,
    /// When a primary, or a server of a set, last reported a block that no awake member has; dropped after
    /// [`DAMAGE_WAKES`]. Also of columns.
    damaged: BTreeMap<GroupId, Moment>,
    moves: Moves,
    seen: Seen,
    census: Census,
    /// Unix time since when another server keeps something for it, of each server for which one does.
    owed_since: BTreeMap<ServerId, u64>,
}

/// What the last plan saw of the groups. Whether an entry is right depends on the entry, on reports about it and on the
/// servers' standings: a group for which none of these changed is not examined again, so a report costs as much in a
/// large cluster as in a small one.
#[derive(Default)]
pub(crate) struct Seen {
    version: u64,
    /// Also whether the server restarted, and whether it is full.
    standings: Vec<(ServerId, Standing, bool, bool)>,
}

impl Seen {
    pub fn of(state: &State, world: &World) -> Seen {
        let standings = world.iter().map(|(id, c)| (id, c.standing, c.restarted, c.full)).collect();
        Seen { version: state.version(), standings }
    }
}

impl Groups {
    /// Brings up to date what is known of all groups together, and since when servers are owed something. What sleepers
    /// were owed before this leader, they were owed from their sleep on; others as of now. Returns the servers of the
    /// groups that changed.
    pub fn follow(&mut self, unix_now: u64, state: &State) -> BTreeSet<ServerId> {
        let first = self.census == Census::default();
        let mut concerned = BTreeSet::new();
        if !self.census.follow(state, &mut concerned) {
            return concerned;
        }
        let since = |id: ServerId| {
            let sleeps = |e: &&ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Waking);
            let entry = state.server(id).filter(|e| first && sleeps(e))?;
            Some(state.power(entry.id)?.slept?.at_unix_millis)
        };
        let mut before = std::mem::take(&mut self.owed_since);
        let one = |id| (id, before.remove(&id).or_else(|| since(id)).unwrap_or(unix_now));
        self.owed_since = self.census.owed().map(one).collect();
        concerned
    }

    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Unix time since when the server keeps something for others that it still keeps.
    pub fn holds_since(&self, server: ServerId) -> Option<u64> {
        self.census.holds_for(server).filter_map(|id| self.owed_since.get(&id).copied()).min()
    }

    /// A report about a group in the present epoch, which `entry` is. Under a primary that `fails` nothing is ordered:
    /// what was complete before its epoch still is then. Returns whether the report counts.
    pub fn report(&mut self, from: ServerId, fails: bool, report: &ServerReport, entry: &GroupEntry) -> bool {
        let is_primary = entry.primary == Some(from);
        match *report {
            ServerReport::CaughtUp { group, epoch } if entry.slot_of(from).is_some() => {
                self.caught_up.insert((group, epoch, from));
            }
            ServerReport::Covered { group, epoch, stands_for } if is_primary => {
                self.covered.insert((group, epoch, stands_for));
            }
            ServerReport::Released { group, epoch } if is_primary => {
                self.released.insert(group, epoch);
            }
            ServerReport::Serving { group, epoch } if is_primary && !fails && !entry.stage().serves => {
                self.serving.insert(group, epoch);
            }
            _ => return false,
        }
        true
    }

    /// A server of the group, or of the set that it is a column of, needs what sleeps.
    pub fn note_damage(&mut self, now: Moment, group: GroupId) {
        self.damaged.insert(group, now);
    }

    pub fn is_damaged(&self, group: GroupId) -> bool {
        self.damaged.contains_key(&group)
    }

    /// Groups and columns with damage that was reported lately.
    pub fn damaged(&self) -> impl Iterator<Item = GroupId> {
        self.damaged.keys().copied()
    }

    /// When each report of damage is dropped.
    pub fn damage_ends(&self) -> impl Iterator<Item = Moment> {
        self.damaged.values().map(|at| *at + DAMAGE_WAKES)
    }

    pub fn drop_damage(&mut self, now: Moment) {
        self.damaged.retain(|_, at| now < *at + DAMAGE_WAKES);
    }

    /// Changes were made: what refers to earlier epochs is forgotten.
    pub fn applied(&mut self, state: &State) {
        let current = |group: &GroupId, epoch: &Epoch| state.group(*group).is_some_and(|e| e.epoch == *epoch);
        self.released.retain(|group, epoch| current(group, epoch));
        let waits = |group: &GroupId| state.group(*group).is_some_and(|e| !e.stage().serves);
        self.serving.retain(|group, epoch| current(group, epoch) && waits(group));
        self.caught_up.retain(|(group, epoch, _)| current(group, epoch));
        self.covered.retain(|(group, epoch, _)| current(group, epoch));
        self.moves.retain(|group, (epoch, _)| current(group, epoch));
    }

    /// Epochs of which the primary said that they could serve.
    pub fn serving(&self) -> impl Iterator<Item = (GroupId, Epoch)> {
        self.serving.iter().map(|(group, epoch)| (*group, *epoch))
    }

    /// What is known of the group in its present epoch. `wait`: [`Facts::wait`].
    pub fn facts(&self, group: GroupId, entry: &GroupEntry, wait: bool) -> Facts {
        let range = (group, entry.epoch, ServerId(0))..=(group, entry.epoch, ServerId(u16::MAX));
        let of = |set: &BTreeSet<(GroupId, Epoch, ServerId)>| {
            set.range(range.clone()).map(|(_, _, s)| *s).collect()
        };
        Facts {
            released: self.released.get(&group) == Some(&entry.epoch),
            successor: self.moves.get(&group).filter(|(epoch, _)| *epoch == entry.epoch).map(|(_, to)| *to),
            caught_up: of(&self.caught_up),
            covered: of(&self.covered),
            wait,
            recalled: false,
        }
    }

    /// Groups for which something changed since the last plan, and those that wait for a server. `seen`: what this plan
    /// sees.
    pub fn to_see(
        &self,
        state: &State,
        seen: &Seen,
        replaced: &BTreeMap<GroupId, GroupEntry>,
    ) -> BTreeSet<GroupId> {
        let since = if self.seen.standings == seen.standings { self.seen.version } else { 0 };
        let told = self.caught_up.iter().chain(&self.covered).map(|(group, ..)| *group);
        let told = told.chain(self.released.keys().copied()).chain(replaced.keys().copied());
        let waiting = self.census.headless.iter().chain(&self.census.moving).copied();
        state.groups_since(since).map(|(group, _)| group).chain(waiting).chain(told).collect()
    }

    /// A plan has seen the groups so.
    pub fn saw(&mut self, seen: Seen) {
        debug_assert!(self.seen.version <= seen.version, "the map does not go back");
        self.seen = seen;
    }

    /// The next plan is to see all groups: what the last one decided is still to be made.
    pub fn see_all_again(&mut self) {
        self.seen = Seen::default();
    }

    pub fn is_moving(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether the group's primary is asked to hand over.
    pub fn moves(&self, group: GroupId) -> bool {
        self.moves.contains_key(&group)
    }

    /// Primaries are to move, unless they do.
    pub fn begin_moves(&mut self, moves: Moves) {
        moves.into_iter().for_each(|(group, to)| _ = self.moves.entry(group).or_insert(to));
    }

    /// The groups that the server is to hand over.
    pub fn hand_overs(&self, server: ServerId, state: &State) -> Vec<(GroupId, Epoch)> {
        let own = |(group, (epoch, _)): (&GroupId, &(Epoch, ServerId))| {
            let entry = state.group(*group)?;
            (entry.primary == Some(server) && entry.epoch == *epoch).then_some((*group, *epoch))
        };
        self.moves.iter().filter_map(own).collect()
    }
}
