//! Slots move because servers come, leave or get another share.
//!
//! One mechanism, one epoch for each step, and no copy is missing in any:
//!
//! 1. **It begins.** The group gets a newcomer beyond its r slots: a server of the same gear group that takes every
//!    write from now on and copies all older ones from the primary, at the pace of a reclaim, which yields to clients.
//! 2. **It has everything.** The newcomer is in sync. If the server that it relieves is primary, that one hands over,
//!    to the newcomer.
//! 3. **It takes the place** ([`crate::controller::group`]). The server that had the slot is no member any more and
//!    drops its copy, as every server does that finds itself superseded.
//!
//! Nothing is kept of a move but the entry of its group, so a new leader goes on with it. A newcomer that fails is
//! dropped as soon as a write would wait for it; a server that fails while it is relieved leaves the newcomer to finish
//! as its heir. What is left to do is planned anew whenever the plan has run out or who is to have what has changed
//! ([`ebb_gear::rearrange`]): a plan is a memory, never a promise.
//!
//! A move begins only while no copy of any group is missing or being restored, only to a server that is awake, and only
//! a few at a time. Servers that join are kept awake until they have their share; no other server is woken for a move.

use crate::controller::census::Census;
use crate::controller::group::{Standing, World};
use crate::controller::groups::Moves;
use crate::{Change, PlantedBug, SeatChange, State, Timing};
use ebb_gear::{Claimant, Move, Place, Rearrangement, rearrange};
use ebb_types::{
    Epoch, GroupEntry, GroupId, RackId, ServerEntry, ServerId, ServerState, Slot, SlotState, Tenure,
};
use std::collections::{BTreeMap, BTreeSet};

/// Slots that move to one server at a time, and that one server copies to others.
const MOVES_PER_SERVER: u32 = 4;

#[derive(Default)]
pub(crate) struct Relocations {
    /// What is still to begin, in this order.
    plan: Vec<Move>,
    /// The arrangement that it leads to, and the map version as of which that was last looked at.
    seen: Option<(u64, u64)>,
    /// The last plan was made when nothing moved, and has nothing: all have their shares, as far as racks allow.
    done: bool,
}

impl Relocations {
    /// Takes in what has moved. Plans anew if who is to have what has changed, or if all that was planned has begun and
    /// ended.
    pub fn follow(&mut self, state: &State, census: &Census) {
        if !state.rearranges() {
            *self = Relocations::default();
            return;
        }
        let now = (state.arrangement(), state.version());
        if self.seen == Some(now) {
            return;
        }
        let is_same = self.seen.is_some_and(|(arrangement, _)| arrangement == now.0);
        self.seen = Some(now);
        self.drop_overtaken(state);
        self.done = false;
        if !is_same || self.plan.is_empty() && census.moving.is_empty() {
            self.plan = state.rearrangement().moves;
            self.done = self.plan.is_empty() && census.moving.is_empty();
        }
    }

    /// The first move of each group is from the server that has the slot, to one that stays, and into no fewer racks;
    /// or it is overtaken, and the next one is the first.
    fn drop_overtaken(&mut self, state: &State) {
        let mut met = BTreeSet::new();
        self.plan.retain(|m| {
            if met.contains(&m.group) {
                return true;
            }
            let entry = state.group(GroupId(m.group as u32)).expect("a group of the state");
            let is_there = state.server(m.to).is_some() && !state.seat(m.to).tenure.leaves();
            let servers = seated(entry);
            let stands = is_there && servers[m.slot] == m.from && keeps_racks(m, &servers, state);
            stands && met.insert(m.group)
        });
    }

    /// Nothing moves, and nothing has to.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How many moves are still to begin.
    pub fn left(&self) -> usize {
        self.plan.len()
    }

    /// The moves that begin now, in groups other than those `changed`.
    pub fn begin(
        &self,
        state: &State,
        (census, world): (&Census, &World),
        (changed, timing): (&BTreeSet<GroupId>, &Timing),
    ) -> Vec<Change> {
        let counts = &census.groups;
        if self.plan.is_empty() || counts.without_target + counts.catching_up + counts.at_risk > 0 {
            return Vec::new();
        }
        let mut busy: BTreeMap<ServerId, u32> = BTreeMap::new();
        for entry in census.moving.iter().filter_map(|group| state.group(*group)) {
            let ends = entry.newcomer().map(|newcomer| newcomer.server).into_iter().chain(entry.primary);
            ends.for_each(|server| *busy.entry(server).or_default() += 1);
        }
        let (mut changes, mut met) = (Vec::new(), BTreeSet::new());
        for m in &self.plan {
            let group = GroupId(m.group as u32);
            let entry = state.group(group).expect("a group of the state");
            if !met.insert(m.group) || changed.contains(&group) || !may_begin(m, entry, state, world) {
                continue;
            }
            let ends = [Some(m.to), entry.primary.filter(|primary| *primary != m.to)];
            let is_free = |server: &ServerId| busy.get(server).is_none_or(|moves| *moves < MOVES_PER_SERVER);
            if !ends.iter().flatten().all(is_free) {
                continue;
            }
            ends.into_iter().flatten().for_each(|server| *busy.entry(server).or_default() += 1);
            let begins = match timing.has(PlantedBug::CountNewcomers) {
                true => SlotState::InSync,
                false => SlotState::CatchingUp { since: Epoch(0) },
            };
            changes.push(Change { group, expected: entry.stage(), entry: with_newcomer(m, entry, begins) });
        }
        changes
    }
}

fn with_newcomer(m: &Move, entry: &GroupEntry, state: SlotState) -> GroupEntry {
    let mut next = GroupEntry { epoch: entry.epoch.next(), moving: Some(m.slot as u8), ..entry.clone() };
    next.slots.push(Slot { server: m.to, state, holder: None });
    next
}

/// Whether the group lacks nothing, its primary can copy all of it, and the server can take it.
fn may_begin(m: &Move, entry: &GroupEntry, state: &State, world: &World) -> bool {
    let is_up = |server: ServerId| world.get(server).is_some_and(|c| c.standing == Standing::Up);
    let sound = |slot: &Slot| match slot.state {
        SlotState::InSync => is_up(slot.server),
        SlotState::CatchingUp { .. } => false,
        SlotState::Away { .. } => slot.holder.is_some_and(|holder| holder.covered && is_up(holder.server)),
    };
    let is_lost = |slot: &Slot| state.server(slot.server).is_none_or(|e| e.state == ServerState::Lost);
    let leads = |slot: &Slot| Some(slot.server) == entry.primary && slot.state == SlotState::InSync;
    let takes = world.get(m.to).is_some_and(|c| c.standing == Standing::Up && !c.full);
    entry.moving.is_none()
        && entry.stage().serves
        && !entry.salvage
        && entry.slots[m.slot].server == m.from
        && entry.slots.iter().all(|slot| sound(slot) && !is_lost(slot))
        && entry.slots.iter().any(leads)
        && entry.members().all(|(member, _)| member != m.to)
        && takes
        && keeps_racks(m, &seated(entry), state)
}

/// R13: the copies of a group with these servers are in no fewer racks afterwards.
fn keeps_racks(m: &Move, servers: &[ServerId], state: &State) -> bool {
    let racks = |slots: &[ServerId]| -> usize {
        let racks = slots.iter().filter_map(|id| state.server(*id)).map(|e| e.rack);
        racks.collect::<BTreeSet<RackId>>().len()
    };
    let mut then = servers.to_vec();
    then[m.slot] = m.to;
    racks(&then) >= racks(servers)
}

/// Primaries that are to make way for a newcomer that has everything.
pub(crate) fn hand_overs(state: &State, world: &World, census: &Census) -> Moves {
    let one = |group: &GroupId| {
        let entry = state.group(*group)?;
        let newcomer = entry.newcomer().filter(|newcomer| newcomer.state == SlotState::InSync)?;
        let moving = &entry.slots[usize::from(entry.moving?)];
        let is_up = world.get(newcomer.server).is_some_and(|c| c.standing == Standing::Up);
        let waits = is_up && entry.primary == Some(moving.server) && entry.stage().serves;
        waits.then_some((*group, (entry.epoch, newcomer.server)))
    };
    census.moving.iter().filter_map(one).collect()
}

/// The servers that have the group's slots once what moves has moved.
fn seated(entry: &GroupEntry) -> Vec<ServerId> {
    let mut servers: Vec<ServerId> = entry.copies().iter().map(|slot| slot.server).collect();
    if let (Some(k), Some(newcomer)) = (entry.moving, entry.newcomer()) {
        servers[usize::from(k)] = newcomer.server;
    }
    servers
}

impl State {
    /// What has to move, beyond what does; nothing where nobody comes, leaves or gets another share.
    pub fn rearrangement(&self) -> Rearrangement {
        if !self.rearranges() {
            return Rearrangement::default();
        }
        let groups: Vec<Vec<ServerId>> = self.groups().map(|(_, entry)| seated(entry)).collect();
        rearrange(&groups, &claimants(self))
    }
}

/// Lost servers claim nothing: they are rebuilt elsewhere.
pub(crate) fn claimants(state: &State) -> BTreeMap<ServerId, Claimant> {
    let one = |e: &ServerEntry| {
        let claim = if e.state == ServerState::Lost { 0 } else { state.seat(e.id).claim().0 };
        (e.id, Claimant { place: Place { rack: e.rack, gear_group: e.gear_group }, claim })
    };
    state.geared().map(one).collect()
}

/// Servers that are to be awake because they join.
pub(crate) fn joining(state: &State) -> impl Iterator<Item = ServerId> + '_ {
    let joins = |e: &&ServerEntry| state.seat(e.id).tenure == Tenure::Joining && e.state != ServerState::Lost;
    state.geared().filter(joins).map(|e| e.id)
}

/// What has come to its end: servers that leave and have nothing left, and those that joined.
pub(crate) fn settled(state: &State, census: &Census, relocations: &Relocations) -> Vec<SeatChange> {
    let has_nothing = |id: ServerId| census.replicas(id) == 0 && census.holders(id) == 0;
    let drains = |e: &&ServerEntry| state.seat(e.id).tenure == Tenure::Draining;
    let empty = state.replicated().filter(drains).map(|e| e.id).filter(|id| has_nothing(*id));
    let emptied = empty.map(SeatChange::Emptied).filter(|change| state.check_seat(change).is_ok());
    let joins = state.replicated().any(|e| state.seat(e.id).tenure == Tenure::Joining);
    let all = (relocations.is_done() && joins).then_some(SeatChange::Settle);
    emptied.chain(all).collect()
}
