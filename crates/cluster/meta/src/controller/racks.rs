//! Keeps the copies of a group in different racks, at every gear and after every rebuild, if the hardware allows (R13).
//!
//! The layout ensures it at first. In low gears holders preserve it, if awake servers stand in enough racks;
//! [`racks_apart`] returns which more must be awake. A rebuild with few racks puts speed first
//! ([`ebb_gear::rebuild_choice`]) and leaves groups with two replicas in one rack; then, with every replica in sync and
//! few groups at a time, one replica of each moves to a rack of its own. During the move the old server keeps its data
//! until the group is in sync again, but takes no part: so with two replicas, where only one would remain, nothing
//! moves.

use crate::controller::census::Census;
use crate::controller::groups::Moves;
use crate::controller::servers::{Servers, is_gone};
use crate::{Change, State};
use ebb_gear::{Place, parting, spread_awake};
use ebb_types::{Epoch, GroupEntry, RackId, ServerEntry, ServerId, ServerState, Slot, SlotState};
use std::collections::{BTreeMap, BTreeSet};

/// Groups that move to one server at a time.
const MOVES_PER_SERVER: u32 = 4;
/// Fewest replicas for which one may be moved.
const REPLICAS_MIN: usize = 3;

/// Servers that must be awake in addition to `wanted`, so that the copies of a write can be in different racks; servers
/// already awake come first. One that leaves the cluster takes no copy.
pub(crate) fn racks_apart<'a>(
    servers: impl Iterator<Item = &'a ServerEntry>,
    wanted: &BTreeSet<ServerId>,
    state: &State,
) -> Vec<ServerId> {
    let takes = |e: &&ServerEntry| !is_gone(e) && !state.seat(e.id).tenure.leaves();
    let mut able: Vec<&ServerEntry> = servers.filter(takes).collect();
    able.sort_by_key(|e| (!e.state.is_live(), e.id));
    let places: Vec<(ServerId, RackId)> = able.iter().map(|e| (e.id, e.rack)).collect();
    spread_awake(&places, wanted, state.params().map_or(1, |p| p.replicas))
}

/// Chooses moves that put replicas in different racks, one group at a time; each move counts towards its destination's
/// load.
pub(crate) struct Partings {
    places: BTreeMap<ServerId, Place>,
    /// Those of them that leave the cluster: nothing moves to them.
    leave: BTreeSet<ServerId>,
    /// Replicas by server.
    load: BTreeMap<ServerId, u32>,
}

impl Partings {
    /// Destinations: any server that is not failed or lost and stays, asleep or awake.
    pub fn new(servers: &Servers, state: &State, census: &Census) -> Partings {
        let leave = servers.keys().copied().filter(|id| state.seat(*id).tenure.leaves()).collect();
        let able = servers.values().filter(|e| !is_gone(e));
        let places = able.map(|e| (e.id, Place { rack: e.rack, gear_group: e.gear_group })).collect();
        let load = servers.keys().map(|id| (*id, census.replicas(*id))).filter(|(_, n)| *n > 0).collect();
        Partings { places, leave, load }
    }

    /// For a group with two replicas in one rack, the slot to move and its destination; `None`: not now. A missing
    /// replica is replaced first, and one slot moves at a time.
    pub fn next(&mut self, entry: &GroupEntry, stays: Option<ServerId>) -> Option<(usize, ServerId)> {
        let there = |s: &Slot| self.places.contains_key(&s.server);
        if entry.moving.is_some() || entry.slots.len() < REPLICAS_MIN || !entry.slots.iter().all(there) {
            return None;
        }
        let group: Vec<ServerId> = entry.slots.iter().map(|s| s.server).collect();
        let able = |id: &ServerId| !self.leave.contains(id) || group.contains(id);
        let places = self.places.iter().filter(|(id, _)| able(id)).map(|(id, place)| (*id, *place)).collect();
        let (k, to) = parting(&group, stays, &places, &self.load)?;
        *self.load.entry(to).or_default() += 1;
        Some((k, to))
    }
}

/// The next few moves: for groups in sync, to awake servers. If only the primary can move, it is asked to hand over
/// first.
pub(crate) fn part_racks(state: &State, servers: &Servers, census: &Census) -> (Vec<Change>, Moves) {
    let mut partings = Partings::new(servers, state, census);
    partings.places.retain(|id, _| servers[id].state == ServerState::Awake);
    let mut moving: BTreeMap<ServerId, u32> = BTreeMap::new();
    let (mut changes, mut moves) = (Vec::new(), Moves::new());
    for group in census.sharing_rack.iter().copied() {
        let entry = state.group(group).expect("a group of the state");
        if !entry.is_in_sync() {
            continue;
        }
        let Some((k, to)) = partings.next(entry, entry.primary) else {
            let others = entry.slots.iter().map(|s| s.server).filter(|s| Some(*s) != entry.primary);
            if let (Some(_), Some(successor)) = (partings.next(entry, None), others.min()) {
                moves.insert(group, (entry.epoch, successor));
            }
            continue;
        };
        let busy = moving.entry(to).or_default();
        if *busy == MOVES_PER_SERVER {
            continue;
        }
        *busy += 1;
        debug_assert!(entry.slot_of(to).is_none(), "a server has one slot of a group");
        let mut next = GroupEntry { epoch: entry.epoch.next(), ..entry.clone() };
        next.slots[k] = Slot { server: to, state: SlotState::CatchingUp { since: Epoch(0) }, holder: None };
        changes.push(Change { group, expected: entry.stage(), entry: next });
    }
    (changes, moves)
}
