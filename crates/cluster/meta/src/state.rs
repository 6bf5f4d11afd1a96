//! The cluster state machine, on which all metadata members agree.
//!
//! `apply` is deterministic and never fails halfway: the same commands in the same order give the same state on every
//! member. The leader's [`crate::Controller`] proposes commands; the state checks that they keep the rules (R3),
//! because a rule broken here would be broken everywhere. Servers and groups record the map version of their last
//! change, so that a reader of any age gets just what is new to it. Nothing is stored per chunk.

mod power;
mod rescue;
mod seats;
mod sets;

use crate::api::Planted;
use crate::namespace::names::Names;
use crate::{Bootstrap, Namespace, NewPool};
use ebb_gear::forecast::DAYS_KEPT;
use ebb_types::{
    ClusterParams, Epoch, GearWish, GroupEntry, GroupId, HourRecord, Incarnation, MapDelta, NamespaceCommand,
    NamespaceReply, ObjectId, PoolEntry, PoolId, Schedule, Seat, ServerEntry, ServerId, ServerState,
    SetEntry, SetId, ShiftRecord, Slot, SlotState, Stage, StoreMark,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use power::{PathRecord, PowerFact, PowerRecord, Slept};
pub use rescue::Recalled;
pub(crate) use rescue::Unsure;
pub use seats::{Joiner, SeatChange, SeatRefusal};
pub use sets::SetChange;

/// Finished gear shifts kept.
pub const SHIFTS_KEPT: usize = 1000;

/// A change of the state. Several may share one entry of the Raft log; they are applied together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Creates the cluster. Refused if it exists.
    Init(Bootstrap),
    SetAddress {
        server: ServerId,
        address: String,
    },
    /// Refused if the server is no longer what `expected` says: an administrator's verdict and the leader's own are
    /// made side by side, and the later one did not know of the other.
    SetServer {
        server: ServerId,
        expected: (ServerState, Incarnation),
        state: ServerState,
        incarnation: Incarnation,
        mark: StoreMark,
    },
    /// How much servers' stores have made durable.
    Witness(Vec<(ServerId, u64)>),
    /// New configurations of chunk groups. A change whose `expected` stage is outdated does nothing.
    Reconfigure(Vec<Change>),
    /// The same for sets of erasure-coded pools. A change whose `expected` epoch is over does nothing.
    ReconfigureSets(Vec<SetChange>),
    /// These epochs serve from now on. One that is over, or needs no permission, is left alone.
    Serve(Vec<(GroupId, Epoch)>),
    AllocateObjects {
        count: u32,
    },
    RecordHour(HourRecord),
    RecordShift(ShiftRecord),
    /// `Some`: hold this. `None`: load and forecast decide.
    SetGear {
        manual: Option<GearWish>,
    },
    SetSchedule(Schedule),
    Namespace(NamespaceCommand),
    /// Time elapsed by the leader's steady clock since the last such command or since it became leader, and its wall
    /// clock. `agreed`: other clocks agree with that.
    Elapsed {
        millis: u64,
        unix_millis: u64,
        agreed: bool,
    },
    /// The pool's settings that may change become those of this entry.
    SetPool(PoolEntry),
    AddPool(NewPool),
    /// Who is a server of the replicated pool, and what for.
    ChangeSeat(SeatChange),
    /// Something about a server's power switch; at this time by the leader's clock.
    NotePower {
        server: ServerId,
        at_unix_millis: u64,
        fact: PowerFact,
    },
    /// The first of a generation, after a rescue from a minority of the members. Refused if it is not a later one.
    Rescue(Recalled),
}

impl Command {
    /// Changes the server from what it is in `state`.
    ///
    /// # Panics
    ///
    /// If the server is not part of the cluster.
    pub fn set_server(
        state: &State,
        server: ServerId,
        to: ServerState,
        incarnation: Incarnation,
        mark: StoreMark,
    ) -> Command {
        let entry = state.server(server).expect("a server of the cluster");
        let expected = (entry.state, entry.incarnation);
        Command::SetServer { server, expected, state: to, incarnation, mark }
    }
}

/// A chunk group's next configuration, derived from the one at `expected`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub group: GroupId,
    pub expected: Stage,
    pub entry: GroupEntry,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done,
    /// Numbers of changes that were made, and that were outdated.
    Reconfigured {
        made: usize,
        stale: usize,
    },
    Objects {
        first: ObjectId,
        count: u32,
    },
    Namespace(NamespaceReply),
    Refused(String),
    /// Nothing was changed: the command breaks a configuration rule (R3), which is a bug in the controller.
    Broken(String),
}

/// An item of the map with the map version of its last change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Versioned<T> {
    item: T,
    changed: u64,
}

/// Everything that the metadata members agree on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    params: Option<ClusterParams>,
    generation: u32,
    version: u64,
    servers: BTreeMap<ServerId, Versioned<ServerEntry>>,
    /// The highest position that each server's store is known to have made durable. Not part of the map: only the
    /// metadata needs it.
    positions: BTreeMap<ServerId, u64>,
    /// What is known of servers' switches. Not part of the map either.
    power: BTreeMap<ServerId, PowerRecord>,
    /// What an administrator set of servers of the replicated pool, where it is not the default.
    seats: BTreeMap<ServerId, Seat>,
    arrangement: u64,
    /// Servers that left, and the map version as of which they are gone. Not more than there are numbers.
    removed: BTreeMap<ServerId, u64>,
    roster: u64,
    /// Power cycles of servers that left.
    retired_cycles: u64,
    groups: Vec<Versioned<GroupEntry>>,
    pools: BTreeMap<PoolId, Versioned<PoolEntry>>,
    sets: Vec<Versioned<SetEntry>>,
    next_object: u64,
    schedule: Schedule,
    manual_gear: Option<GearWish>,
    hours: VecDeque<HourRecord>,
    shifts: VecDeque<ShiftRecord>,
    namespace: Namespace,
}

impl State {
    /// `None` until the cluster is created.
    pub fn params(&self) -> Option<&ClusterParams> {
        self.params.as_ref()
    }

    /// Version of the map. Grows with every change of a server or a group.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn server(&self, id: ServerId) -> Option<&ServerEntry> {
        self.servers.get(&id).map(|v| &v.item)
    }

    /// [`StoreMark::position`] of the server's store, as last recorded.
    pub fn position(&self, id: ServerId) -> u64 {
        self.positions.get(&id).copied().unwrap_or(0)
    }

    /// The map version of the last change of the server's entry.
    pub fn server_changed(&self, id: ServerId) -> u64 {
        self.servers.get(&id).map_or(0, |v| v.changed)
    }

    /// In order of their ids.
    pub fn servers(&self) -> impl Iterator<Item = &ServerEntry> + '_ {
        self.servers.values().map(|v| &v.item)
    }

    /// Servers of the replicated pool, in order of their ids: holders and racks of copies concern only them.
    pub fn replicated(&self) -> impl Iterator<Item = &ServerEntry> + '_ {
        self.servers().filter(|e| e.pool == PoolId::REPLICATED)
    }

    /// Those of them that gears concern: all but loggers.
    pub fn geared(&self) -> impl Iterator<Item = &ServerEntry> + '_ {
        self.replicated().filter(|e| !e.is_logger())
    }

    pub fn group(&self, id: GroupId) -> Option<&GroupEntry> {
        self.groups.get(id.0 as usize).map(|v| &v.item)
    }

    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &GroupEntry)> + '_ {
        self.groups.iter().enumerate().map(|(i, v)| (GroupId(i as u32), &v.item))
    }

    /// Groups that changed after map version `from`.
    pub fn groups_since(&self, from: u64) -> impl Iterator<Item = (GroupId, &GroupEntry)> + '_ {
        let all = (0u32..).map(GroupId).zip(&self.groups);
        all.filter(move |(_, v)| v.changed > from).map(|(id, v)| (id, &v.item))
    }

    /// Whether a server or a pool changed after map version `from`: that concerns every server.
    pub(crate) fn concerns_all_since(&self, from: u64) -> bool {
        self.roster > from
            || self.servers.values().any(|v| v.changed > from)
            || self.pools.values().any(|v| v.changed > from)
    }

    /// The servers of the sets that changed after map version `from`.
    pub(crate) fn columns_since(&self, from: u64) -> impl Iterator<Item = ServerId> + '_ {
        let changed = self.sets.iter().filter(move |v| v.changed > from);
        changed.flat_map(|v| v.item.columns.iter().map(|column| column.server))
    }

    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What an administrator asked for.
    pub fn manual_gear(&self) -> Option<GearWish> {
        self.manual_gear
    }

    /// Recorded hours, oldest first.
    pub fn hours(&self) -> impl DoubleEndedIterator<Item = &HourRecord> + '_ {
        self.hours.iter()
    }

    /// Finished gear shifts, oldest first.
    pub fn shifts(&self) -> impl DoubleEndedIterator<Item = &ShiftRecord> + '_ {
        self.shifts.iter()
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn plant(&mut self, planted: Planted) {
        self.namespace.plant(planted);
    }

    pub(crate) fn names(&self) -> &Names {
        self.namespace.names()
    }

    pub(crate) fn names_mut(&mut self) -> &mut Names {
        self.namespace.names_mut()
    }

    /// All but what refers to chunks.
    pub(crate) fn clone_without_names(&self) -> State {
        State {
            params: self.params.clone(),
            generation: self.generation,
            version: self.version,
            servers: self.servers.clone(),
            positions: self.positions.clone(),
            power: self.power.clone(),
            seats: self.seats.clone(),
            arrangement: self.arrangement,
            removed: self.removed.clone(),
            roster: self.roster,
            retired_cycles: self.retired_cycles,
            groups: self.groups.clone(),
            pools: self.pools.clone(),
            sets: self.sets.clone(),
            next_object: self.next_object,
            schedule: self.schedule,
            manual_gear: self.manual_gear,
            hours: self.hours.clone(),
            shifts: self.shifts.clone(),
            namespace: Namespace::default(),
        }
    }

    /// Passes the state without its names to `look`.
    pub(crate) fn without_names<T>(&mut self, look: impl FnOnce(&State) -> T) -> T {
        let names = std::mem::take(self.names_mut());
        let seen = look(self);
        *self.names_mut() = names;
        seen
    }

    /// What changed in the map after version `from`. A version that this state never had gets the whole map.
    pub fn delta(&self, from: u64) -> MapDelta {
        let from = if from > self.version { 0 } else { from };
        let servers = self.servers.values().filter(|v| v.changed > from).map(|v| v.item.clone()).collect();
        let removed = self.removed.iter().filter(|(_, at)| **at > from).map(|(id, _)| *id).collect();
        let groups = self.groups_since(from).map(|(id, entry)| (id, entry.clone())).collect();
        let pools = self.pools.values().filter(|v| v.changed > from).map(|v| v.item.clone()).collect();
        let sets = (0u16..).map(SetId).zip(&self.sets).filter(|(_, v)| v.changed > from);
        let sets = sets.map(|(id, v)| (id, v.item.clone())).collect();
        MapDelta { from, to: self.version, servers, removed, groups, pools, sets }
    }

    /// The same commands give the same state on every member, and a refused one changes nothing.
    pub fn apply(&mut self, command: &Command) -> Reply {
        let (version, next_object, generation) = (self.version, self.next_object, self.generation);
        let reply = self.carry_out(command);
        let is_refused = matches!(reply, Reply::Refused(_) | Reply::Broken(_));
        debug_assert!(self.version >= version && self.generation >= generation, "the map does not go back");
        debug_assert!(self.next_object >= next_object, "no object's number is given twice");
        debug_assert!(!is_refused || self.version == version, "what is refused changes nothing");
        reply
    }

    fn carry_out(&mut self, command: &Command) -> Reply {
        match command {
            Command::Init(bootstrap) => self.init(bootstrap),
            Command::SetAddress { server, address } => {
                let address = address.clone();
                self.change_server(*server, |entry| entry.address = address)
            }
            Command::SetServer { server, expected, state, incarnation, mark } => {
                if self.server(*server).is_some_and(|entry| (entry.state, entry.incarnation) != *expected) {
                    return Reply::Refused(format!(
                        "the state of {server} changed before this was decided: look at `ebb status`, then ask again"
                    ));
                }
                let reply = self.change_server(*server, |entry| {
                    entry.state = *state;
                    entry.incarnation = *incarnation;
                    entry.store = mark.store;
                });
                if reply == Reply::Done {
                    self.positions.insert(*server, mark.position);
                }
                reply
            }
            Command::Witness(positions) => self.witness(positions),
            Command::Reconfigure(changes) => self.reconfigure(changes),
            Command::ReconfigureSets(changes) => self.reconfigure_sets(changes),
            Command::Serve(epochs) => self.serve(epochs),
            Command::AllocateObjects { count } => {
                let first = ObjectId(self.next_object);
                self.next_object += u64::from(*count);
                Reply::Objects { first, count: *count }
            }
            Command::RecordHour(hour) => {
                if self.hours.back().is_none_or(|last| last.hour < hour.hour) {
                    // All that a forecast looks at.
                    let days = DAYS_KEPT as usize;
                    let kept = days * self.schedule.hours_per_day as usize;
                    push_bounded(&mut self.hours, hour.clone(), kept);
                }
                Reply::Done
            }
            Command::RecordShift(shift) => {
                push_bounded(&mut self.shifts, shift.clone(), SHIFTS_KEPT);
                Reply::Done
            }
            Command::SetGear { manual } => {
                self.manual_gear = *manual;
                Reply::Done
            }
            Command::SetSchedule(schedule) => self.set_schedule(schedule),
            Command::Namespace(command) => {
                let pools = &self.pools;
                Reply::Namespace(self.namespace.apply(command, |pool| pools.contains_key(&pool)))
            }
            Command::Elapsed { millis, unix_millis, agreed } => {
                self.namespace.pass_time(*millis, *unix_millis, *agreed);
                Reply::Done
            }
            Command::SetPool(pool) => self.set_pool(pool),
            Command::AddPool(new) => self.add_pool(new),
            Command::ChangeSeat(change) => self.change_seat(change),
            Command::NotePower { server, at_unix_millis, fact } => {
                self.note_power(*server, *at_unix_millis, fact)
            }
            Command::Rescue(recalled) => self.rescue(recalled),
        }
    }

    fn init(&mut self, bootstrap: &Bootstrap) -> Reply {
        if self.params.is_some() {
            return Reply::Refused("the cluster exists already".into());
        }
        if let Some(fault) = bootstrap.fault() {
            return Reply::Refused(fault);
        }
        self.version = 1;
        self.add_servers(&bootstrap.servers);
        // Nothing has been written yet, so every replica has everything.
        let fresh = |&server: &ServerId| Slot { server, state: SlotState::InSync, holder: None };
        let groups = bootstrap.groups.iter().map(|servers| {
            let slots = servers.iter().map(fresh).collect();
            let mut item = GroupEntry { epoch: Epoch(1), slots, ..GroupEntry::unknown() };
            item.follow(&GroupEntry::unknown());
            Versioned { item, changed: 1 }
        });
        self.groups = groups.collect();
        let fresh = |pool: &PoolEntry| (pool.id, Versioned { item: pool.clone(), changed: 1 });
        self.pools = bootstrap.pools.iter().map(fresh).collect();
        self.sets = bootstrap.sets.iter().map(|set| Versioned { item: set.clone(), changed: 1 }).collect();
        debug_assert_eq!(self.groups.len(), bootstrap.params.groups as usize, "every group has its servers");
        self.next_object = 1;
        self.schedule = bootstrap.schedule;
        self.params = Some(bootstrap.params.clone());
        Reply::Done
    }

    fn witness(&mut self, positions: &[(ServerId, u64)]) -> Reply {
        debug_assert!(positions.iter().all(|(id, at)| *at >= self.position(*id)), "stores go on");
        // A server may have left since it was decided.
        let known = positions.iter().copied().filter(|(id, _)| self.servers.contains_key(id));
        self.positions.extend(known);
        Reply::Done
    }

    fn set_schedule(&mut self, schedule: &Schedule) -> Reply {
        // Hours of another length, or counted from another time, are numbered differently: they cannot be compared with
        // the new ones.
        let numbered = |schedule: &Schedule| (schedule.hour_millis, schedule.hour_zero_unix_millis);
        if numbered(schedule) != numbered(&self.schedule) {
            self.hours.clear();
        }
        self.schedule = *schedule;
        Reply::Done
    }

    fn change_server(&mut self, id: ServerId, change: impl FnOnce(&mut ServerEntry)) -> Reply {
        let Some(server) = self.servers.get_mut(&id) else {
            return Reply::Refused(format!("{id} is not part of the cluster"));
        };
        let before = server.item.clone();
        change(&mut server.item);
        let place = |e: &ServerEntry| (e.id, e.rack, e.pool, e.gear_group);
        debug_assert_eq!(place(&server.item), place(&before), "a server stays in its place");
        if server.item != before {
            self.version += 1;
            server.changed = self.version;
        }
        Reply::Done
    }

    fn reconfigure(&mut self, changes: &[Change]) -> Reply {
        let is_fresh = |state: &State, change: &Change| {
            state.group(change.group).is_some_and(|group| group.stage() == change.expected)
        };
        // Before anything changes: a panic here would hit every member again at every start.
        let broken = changes.iter().filter(|c| is_fresh(self, c)).find_map(|c| self.broken_rule(c));
        if let Some(rule) = broken {
            return Reply::Broken(rule);
        }
        let (mut made, mut stale) = (0, 0);
        for change in changes {
            if !is_fresh(self, change) {
                stale += 1;
                continue;
            }
            if made == 0 {
                self.version += 1;
            }
            made += 1;
            let group = &mut self.groups[change.group.0 as usize];
            let mut item = change.entry.clone();
            item.follow(&group.item);
            debug_assert!(item.epoch > group.item.epoch, "a group's epoch only rises (R3)");
            let receives = |id: ServerId| item.received.iter().any(|r| r.server == id && r.until.is_none());
            debug_assert!(item.targets().all(receives), "a target gets each record of its epoch");
            *group = Versioned { item, changed: self.version };
        }
        Reply::Reconfigured { made, stale }
    }

    fn serve(&mut self, epochs: &[(GroupId, Epoch)]) -> Reply {
        let version = self.version + 1;
        for (group, epoch) in epochs {
            let group = self.groups.get_mut(group.0 as usize).filter(|g| g.item.epoch == *epoch);
            if let Some(group) = group.filter(|g| g.item.fallback.is_some()) {
                debug_assert!(group.item.primary.is_some(), "only under a primary anything is served");
                (group.item.fallback, group.changed) = (None, version);
                self.version = version;
            }
        }
        Reply::Done
    }

    /// The configuration rule that the change breaks, if any.
    fn broken_rule(&self, change: &Change) -> Option<String> {
        let rule = self.check(change).err()?;
        Some(format!("{}: {rule}: {:?}", change.group, change.entry))
    }

    fn check(&self, change: &Change) -> Result<(), &'static str> {
        let new = &change.entry;
        let holds = |rule: &'static str, holds: bool| if holds { Ok(()) } else { Err(rule) };
        let r = self.params.as_ref().map_or(0, |p| usize::from(p.replicas));
        holds("the epoch grows by one", new.epoch == change.expected.epoch.next())?;
        holds("r slots, and a newcomer", new.slots.len() == r + usize::from(new.moving.is_some()))?;
        let members: BTreeSet<ServerId> = new.slots.iter().map(|s| s.server).collect();
        holds("one slot per server", members.len() == new.slots.len())?;
        let served = new.fallback.as_deref();
        holds("r slots served", served.is_none_or(|served| served.len() == r))?;
        if let (Some(k), Some(newcomer)) = (new.moving, new.newcomer()) {
            holds("a slot moves", usize::from(k) < r)?;
            holds("a newcomer has no holder", newcomer.holder.is_none())?;
            let copies =
                matches!(newcomer.state, SlotState::InSync | SlotState::CatchingUp { since: Epoch(0) });
            holds("a newcomer takes part, and copies everything", copies)?;
        }
        let mut targets = BTreeSet::new();
        for (k, slot) in new.slots.iter().enumerate() {
            let k = new.moving.filter(|_| k == r).map_or(k, usize::from);
            let server = self.server(slot.server).ok_or("a slot's server is part of the cluster")?;
            holds("slot k stays in gear group k", usize::from(server.gear_group.0) == k)?;
            if let Some(holder) = slot.holder {
                holds("an in-sync slot needs no holder", slot.state != SlotState::InSync)?;
                holds("a covered holder has no former one", !holder.covered || holder.former.is_none())?;
                for server in holder.servers() {
                    holds("a holder has no slot of the group", !members.contains(&server))?;
                    holds("a holder is part of the cluster", self.servers.contains_key(&server))?;
                }
            }
            if let Some(since) = slot.state.lacks_since() {
                holds("nothing is missed from the future", since <= new.epoch)?;
            }
            if let Some((target, _)) = slot.target() {
                holds("one target per copy", targets.insert(target))?;
            }
        }
        let Some(primary) = new.primary else { return Ok(()) };
        let slot = new.slot_of(primary).ok_or("the primary has a slot")?;
        holds("the primary is not away", !matches!(slot.state, SlotState::Away { .. }))
    }
}

impl Bootstrap {
    /// Why this is not a valid cluster, if so: worded so that the operator can fix the configuration file.
    pub fn fault(&self) -> Option<String> {
        let r = usize::from(self.params.replicas);
        let servers: BTreeMap<ServerId, &crate::NewServer> = self.servers.iter().map(|s| (s.id, s)).collect();
        if servers.len() != self.servers.len() {
            return Some("two servers have the same id: give each its own".into());
        }
        if self.groups.len() != self.params.groups as usize || self.groups.is_empty() {
            return Some(format!(
                "{} chunk groups announced, {} laid out",
                self.params.groups,
                self.groups.len()
            ));
        }
        for (group, slots) in self.groups.iter().enumerate() {
            if slots.len() != r {
                return Some(format!("group-{group} has {} servers, not {r}", slots.len()));
            }
            for (k, id) in slots.iter().enumerate() {
                match servers.get(id) {
                    None => return Some(format!("group-{group} names {id}, which is not configured")),
                    Some(s) if s.pool != PoolId::REPLICATED => {
                        return Some(format!("group-{group} names {id}, which is in {}", s.pool));
                    }
                    Some(s) if usize::from(s.gear_group.0) != k => {
                        return Some(format!("group-{group} has {id} of {} in slot {k}", s.gear_group));
                    }
                    Some(_) => {}
                }
            }
        }
        self.fault_of_pools(&servers)
    }
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    list.push_back(item);
    while list.len() > most {
        list.pop_front();
    }
}

#[cfg(test)]
pub(crate) mod tests;
