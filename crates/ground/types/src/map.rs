//! The cluster map: decided by the metadata service and followed by all others.
//!
//! It holds servers and chunk groups and nothing per chunk: a chunk's group is a hash of its id. Maps travel as deltas
//! between map versions. A [`GroupEntry`] is the configuration of one chunk group under one epoch; it says where every
//! copy of every write goes, and it changes only through the replicated metadata service (R3).

use crate::{
    CLAIMS_FROM, ChunkId, Column, Epoch, GearGroup, GroupId, Incarnation, NO_GEAR, PoolEntry, PoolId, RackId,
    Role, ServerId, SetEntry, SetId, StoreId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Parameters set when a cluster is created; they never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterParams {
    /// Identifies the cluster; a server refuses to join another.
    pub cluster: u64,
    /// Drawn when the cluster was founded: distinguishes it from any other founded with the same configuration file.
    /// Zero when read from a configuration file.
    pub instance: u64,
    pub chunk_bytes: u32,
    /// r: copies of every write.
    pub replicas: u8,
    /// Number of chunk groups.
    pub groups: u32,
    /// Longest time that a primary serves on one lease grant.
    pub lease_millis: u32,
}

impl ClusterParams {
    /// Whether a configuration file describes this cluster. A file cannot know the instance.
    pub fn is_described_by(&self, file: &ClusterParams) -> bool {
        *self == ClusterParams { instance: self.instance, ..file.clone() }
    }

    /// What the cluster was founded with and what the configuration file says, where they differ.
    pub fn unlike(&self, file: &ClusterParams) -> String {
        let all = [
            ("chunk groups (servers times groups_per_server)", self.groups.into(), file.groups.into()),
            ("copies (replicas)", self.replicas.into(), file.replicas.into()),
            ("bytes per chunk (chunk_mib)", u64::from(self.chunk_bytes), u64::from(file.chunk_bytes)),
            ("ms of lease (lease_millis)", self.lease_millis.into(), file.lease_millis.into()),
        ];
        let cluster = (self.cluster != file.cluster)
            .then(|| format!("it is cluster {:016x}, the file has {:016x}", self.cluster, file.cluster));
        let other = all.into_iter().filter(|(_, founded, file)| founded != file);
        let words = other.map(|(what, founded, file)| format!("it has {founded} {what}, the file {file}"));
        cluster.into_iter().chain(words).collect::<Vec<_>>().join("; ")
    }
}

/// State of a server. `Asleep` is intended, `Failed` is not: they are never confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServerState {
    /// Serves.
    Awake,
    /// Hands its work over, then sleeps.
    Draining,
    /// Standby or off on purpose.
    Asleep,
    /// Switched on; has not reported yet.
    Waking,
    /// Stopped answering. May come back.
    Failed,
    /// Gone for good; its data is rebuilt elsewhere.
    Lost,
}

impl ServerState {
    /// Whether the server takes part in its groups: peers send to it.
    pub fn is_live(self) -> bool {
        matches!(self, ServerState::Awake | ServerState::Draining)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    pub id: ServerId,
    pub rack: RackId,
    /// Gears concern the servers of the replicated pool only.
    pub pool: PoolId,
    pub gear_group: GearGroup,
    /// `host:port` of the server's one listening socket.
    pub address: String,
    pub state: ServerState,
    pub incarnation: Incarnation,
    /// The store that this incarnation serves from.
    pub store: StoreId,
}

impl ServerEntry {
    /// It holds offload only: no slot is its, no gear concerns it, and it never sleeps. [Sierra §3.6]
    pub fn is_logger(&self) -> bool {
        self.pool == PoolId::REPLICATED && self.gear_group == NO_GEAR
    }
}

/// Whether a slot's server has its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlotState {
    /// Has every acknowledged write.
    InSync,
    /// Awake: takes every write of this epoch and later, and fetches the writes from `since` on that it missed.
    CatchingUp { since: Epoch },
    /// Asleep or failed: complete before epoch `since`; its holder keeps newer writes for it.
    Away { since: Epoch },
}

impl SlotState {
    /// The epoch from which on writes may be missing; `None`: it has all.
    pub fn lacks_since(self) -> Option<Epoch> {
        match self {
            SlotState::InSync => None,
            SlotState::CatchingUp { since } | SlotState::Away { since } => Some(since),
        }
    }
}

/// A slot's holder: the server that keeps its offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub server: ServerId,
    /// It has every write from the slot's `since` on. Until then those have fewer than r copies and are at risk (R8).
    pub covered: bool,
    /// While it is not covered: who kept all that the slot's server missed before this one was chosen. The server and
    /// these two together have everything.
    pub former: Option<ServerId>,
}

impl Holder {
    pub fn new(server: ServerId, covered: bool) -> Holder {
        Holder { server, covered, former: None }
    }

    /// It has everything now.
    pub fn cover(&mut self) {
        (self.covered, self.former) = (true, None);
    }

    /// From here on the slot's server itself gets what this one does not.
    pub fn share(&mut self) {
        if std::mem::take(&mut self.covered) {
            self.former = Some(self.server);
        }
    }

    /// Nothing is known of what it has.
    pub fn doubt(&mut self) {
        (self.covered, self.former) = (false, None);
    }

    /// Who keeps, together, all that the slot's server lacks. Empty: nobody is known to.
    pub fn sources(&self) -> impl Iterator<Item = ServerId> + use<> {
        let known = self.covered || self.former.is_some();
        self.servers().filter(move |_| known)
    }

    /// It, and the former one.
    pub fn servers(&self) -> impl Iterator<Item = ServerId> + use<> {
        let former = self.former.filter(|former| *former != self.server);
        former.into_iter().chain([self.server])
    }
}

/// One of the r places of a chunk group, or a newcomer's. Slot k belongs to gear group k and never leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    pub server: ServerId,
    pub state: SlotState,
    /// Kept while the slot is away, and while it catches up (the missing writes are fetched from it).
    pub holder: Option<Holder>,
}

impl Slot {
    /// Where this slot's copy of a write goes now; `None`: there is no server for it, so no write is acknowledged.
    #[inline]
    pub fn target(&self) -> Option<(ServerId, Role)> {
        match self.state {
            SlotState::InSync | SlotState::CatchingUp { .. } => Some((self.server, Role::Replica)),
            SlotState::Away { .. } => {
                self.holder.map(|s| (s.server, Role::Offload { stands_for: self.server }))
            }
        }
    }
}

/// Configuration of a chunk group under one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEntry {
    pub epoch: Epoch,
    /// `None`: no server can serve the group now.
    pub primary: Option<ServerId>,
    pub slots: Vec<Slot>,
    /// No complete copy is left, and an administrator wants the newest data that is: until a slot is in sync again,
    /// members take whatever is newer from all others.
    pub salvage: bool,
    /// The r slots of the newest epoch that may have served, while the present one has not and a slot has lost its
    /// complete copy since. Nothing was ordered after that epoch. `None`: the present epoch may serve.
    pub fallback: Option<Vec<Slot>>,
    /// Nothing that was written is left: every server that may have had any of it was declared lost, and none has been
    /// primary since. Said once one of them is back, on another store; until then their states say it.
    pub gone: bool,
    /// How far each member's memory of requests reaches. Maintained by [`GroupEntry::follow`].
    pub received: Vec<Received>,
    /// The slot that moves. Then the last of `slots` is beyond the r: a newcomer of the same gear group, which takes
    /// every write and copies all older ones, and takes the slot's place once it has all. Until then it counts as no
    /// copy.
    pub moving: Option<u8>,
}

/// The epochs (`from..until`) of which a member received every record of the group. `until`: the first epoch before the
/// present one that may have ordered without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    pub server: ServerId,
    pub from: Epoch,
    pub until: Option<Epoch>,
}

/// How far a group's configuration has advanced: a new epoch, or permission to serve in the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stage {
    pub epoch: Epoch,
    pub serves: bool,
}

impl GroupEntry {
    /// The entry of a group of which nothing is known.
    pub fn unknown() -> GroupEntry {
        GroupEntry::default()
    }

    /// Updates `received`, inherited from the previous configuration. A member that was not a target of that
    /// configuration missed what it ordered, if it may have served.
    pub fn follow(&mut self, before: &GroupEntry) {
        let mut received = std::mem::take(&mut self.received);
        if before.fallback.is_none() {
            let was_target = |t: &Received| before.targets().any(|server| server == t.server);
            let missed = received.iter_mut().filter(|t| t.until.is_none() && !was_target(t));
            missed.for_each(|t| t.until = Some(before.epoch));
        }
        let served = self.fallback.as_deref().unwrap_or_default();
        let takes_part =
            |server| self.members().any(|(id, _)| id == server) || targets_of(served).any(|id| id == server);
        received.retain(|t| takes_part(t.server));
        for server in self.targets() {
            if !received.iter().any(|t| t.server == server && t.until.is_none()) {
                received.retain(|t| t.server != server);
                received.push(Received { server, from: self.epoch, until: None });
            }
        }
        self.received = received;
    }

    /// The servers that a write goes to.
    pub fn targets(&self) -> impl Iterator<Item = ServerId> + '_ {
        targets_of(&self.slots)
    }

    pub fn stage(&self) -> Stage {
        Stage { epoch: self.epoch, serves: self.fallback.is_none() }
    }

    /// Whether the primary may serve. While a target is missing nothing can be ordered, so reads need no permission.
    pub fn may_serve(&self) -> bool {
        self.fallback.is_none() || self.slots.iter().any(|slot| slot.target().is_none())
    }

    /// Whether `server` is the holder of the slot of `stands_for`, and has all that the slot missed.
    pub fn is_covered_by(&self, server: ServerId, stands_for: ServerId) -> bool {
        let holder = self.slot_of(stands_for).and_then(|slot| slot.holder);
        holder.is_some_and(|s| s.covered && s.server == server)
    }

    /// Whether `server` keeps all that the server of the slot of `stands_for` lacks, alone or with another one.
    pub fn is_source(&self, server: ServerId, stands_for: ServerId) -> bool {
        let holder = self.slot_of(stands_for).and_then(|slot| slot.holder);
        holder.is_some_and(|holder| holder.sources().any(|source| source == server))
    }

    pub fn slot_of(&self, server: ServerId) -> Option<&Slot> {
        self.slots.iter().find(|s| s.server == server)
    }

    /// The r slots, without a newcomer.
    pub fn copies(&self) -> &[Slot] {
        &self.slots[..self.slots.len() - usize::from(self.moving.is_some() && !self.slots.is_empty())]
    }

    /// The slot on its way to take another one's place.
    pub fn newcomer(&self) -> Option<&Slot> {
        self.moving.and(self.slots.last())
    }

    /// Every server that may have records of this group, with the role in which it has them.
    pub fn members(&self) -> impl Iterator<Item = (ServerId, Role)> + '_ {
        self.slots.iter().flat_map(|slot| {
            let role = Role::Offload { stands_for: slot.server };
            let offload = slot.holder.into_iter().flat_map(|s| s.servers()).map(move |id| (id, role));
            std::iter::once((slot.server, Role::Replica)).chain(offload)
        })
    }

    /// Every server that may have something that was acknowledged. A holder that was chosen in an epoch which has never
    /// served, for a slot that was in sync before, has nothing.
    pub fn keepers(&self) -> impl Iterator<Item = ServerId> + '_ {
        let served = self.fallback.as_deref().unwrap_or(self.copies());
        let has_not_served = self.fallback.is_some();
        let both = |slot: &Slot, holder: Option<Holder>| {
            std::iter::once(slot.server).chain(holder.into_iter().flat_map(|holder| holder.servers()))
        };
        let present = self.copies().iter().zip(served).flat_map(move |(slot, before)| {
            let was_in_sync = before.server == slot.server && before.state == SlotState::InSync;
            both(slot, slot.holder.filter(|_| !(has_not_served && was_in_sync)))
        });
        let copied = self.newcomer().map(|newcomer| newcomer.server);
        present.chain(served.iter().flat_map(move |slot| both(slot, slot.holder))).chain(copied)
    }

    /// A newcomer, too.
    pub fn is_in_sync(&self) -> bool {
        self.slots.iter().all(|s| s.state == SlotState::InSync)
    }

    /// Whether members have r copies of every acknowledged write: each slot's on its server, or shared with its holder.
    /// What a server keeps that is no longer a member is needed by none of them.
    pub fn is_complete(&self) -> bool {
        let complete =
            |s: &Slot| s.state == SlotState::InSync || s.holder.is_some_and(|holder| holder.covered);
        self.copies().iter().all(complete)
    }
}

fn targets_of(slots: &[Slot]) -> impl Iterator<Item = ServerId> + '_ {
    slots.iter().filter_map(Slot::target).map(|(server, _)| server)
}

/// The whole map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    pub version: u64,
    pub servers: BTreeMap<ServerId, ServerEntry>,
    /// Indexed by group id.
    pub groups: Vec<GroupEntry>,
    /// The erasure-coded pools.
    pub pools: BTreeMap<PoolId, PoolEntry>,
    /// Indexed by set id.
    pub sets: Vec<SetEntry>,
}

/// What changed between two map versions. `from` zero is the whole map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapDelta {
    pub from: u64,
    pub to: u64,
    pub servers: Vec<ServerEntry>,
    /// Servers that left the cluster.
    pub removed: Vec<ServerId>,
    pub groups: Vec<(GroupId, GroupEntry)>,
    pub pools: Vec<PoolEntry>,
    pub sets: Vec<(SetId, SetEntry)>,
}

impl ClusterMap {
    /// Applies `delta`. False: it leaves a gap, and the caller must ask for the whole map. A delta that brings nothing
    /// new leaves none.
    pub fn apply(&mut self, delta: &MapDelta) -> bool {
        if delta.to <= self.version {
            return true;
        }
        if delta.from > self.version {
            return false;
        }
        if delta.from == 0 {
            // Whom it does not name has left.
            let named: BTreeSet<ServerId> = delta.servers.iter().map(|server| server.id).collect();
            self.servers.retain(|id, _| named.contains(id));
        }
        for id in &delta.removed {
            self.servers.remove(id);
        }
        for server in &delta.servers {
            self.servers.insert(server.id, server.clone());
        }
        for (id, entry) in &delta.groups {
            let index = id.0 as usize;
            if index >= self.groups.len() {
                self.groups.resize(index + 1, GroupEntry::unknown());
            }
            if self.groups[index].stage() < entry.stage() {
                self.groups[index] = entry.clone();
            }
        }
        self.pools.extend(delta.pools.iter().map(|pool| (pool.id, pool.clone())));
        for (id, entry) in &delta.sets {
            let index = usize::from(id.0);
            if index >= self.sets.len() {
                self.sets.resize(index + 1, SetEntry::unknown());
            }
            if self.sets[index].epoch < entry.epoch {
                self.sets[index] = entry.clone();
            }
        }
        self.version = delta.to;
        true
    }

    /// All of it.
    pub fn whole(&self) -> MapDelta {
        MapDelta {
            from: 0,
            to: self.version,
            servers: self.servers.values().cloned().collect(),
            removed: Vec::new(),
            groups: (0u32..).map(GroupId).zip(self.groups.iter().cloned()).collect(),
            pools: self.pools.values().cloned().collect(),
            sets: (0u16..).map(SetId).zip(self.sets.iter().cloned()).collect(),
        }
    }

    pub fn set(&self, id: SetId) -> Option<&SetEntry> {
        self.sets.get(usize::from(id.0)).filter(|set| set.epoch > Epoch(0))
    }

    /// The set that a chunk of an erasure-coded pool is in.
    pub fn set_of(&self, chunk: ChunkId) -> Option<SetId> {
        let pool = self.pools.get(&chunk.object.pool())?;
        let nth = chunk_hash(chunk) % pool.sets.len().max(1) as u64;
        pool.sets.get(nth as usize).copied()
    }

    pub fn group(&self, id: GroupId) -> Option<&GroupEntry> {
        self.groups.get(id.0 as usize)
    }

    /// Whether the server can be woken.
    pub fn sleeps(&self, server: ServerId) -> bool {
        let asleep = |s: &ServerEntry| matches!(s.state, ServerState::Asleep | ServerState::Waking);
        self.servers.get(&server).is_some_and(asleep)
    }

    pub fn is_live(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|s| s.state.is_live())
    }

    /// Declared lost: what it had never comes back.
    pub fn is_lost(&self, server: ServerId) -> bool {
        self.servers.get(&server).is_some_and(|s| s.state == ServerState::Lost)
    }

    /// Whether all that was written to the chunks of a group, or of a set, is gone for good, and nothing serves it: the
    /// servers that may have had it were declared lost, though some may be back with nothing, or of a set so many that
    /// no row can be completed. Its data servers alone keep strips for others.
    pub fn is_gone(&self, group: GroupId) -> bool {
        let Some((set, _)) = group.column() else {
            let entry = self.group(group).filter(|entry| entry.primary.is_none() && !entry.slots.is_empty());
            return entry.is_some_and(|e| e.gone || e.keepers().all(|server| self.is_lost(server)));
        };
        let is_left = |column: &&Column| !self.is_lost(column.server);
        self.set(set).is_some_and(|entry| {
            let (needed, columns) = (entry.shape.data(), &entry.columns);
            let data_left = columns.iter().take(needed).filter(is_left).count();
            columns.len() > needed && data_left == 0 && columns.iter().filter(is_left).count() < needed
        })
    }
}

/// The chunk group of a chunk. A hash, so that the metadata service stores nothing per chunk; a chunk of claims names
/// its group.
pub fn group_of(chunk: ChunkId, groups: u32) -> GroupId {
    if chunk.is_of_claim() {
        return GroupId((chunk.index - CLAIMS_FROM) % groups.max(1));
    }
    GroupId((chunk_hash(chunk) % u64::from(groups.max(1))) as u32)
}

pub(crate) fn chunk_hash(chunk: ChunkId) -> u64 {
    let mut key = [0u8; 12];
    key[..8].copy_from_slice(&chunk.object.0.to_le_bytes());
    key[8..].copy_from_slice(&chunk.index.to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::ObjectId;

    #[test]
    fn other_parameters_are_named_in_words() {
        let founded = ClusterParams {
            cluster: 0xa7,
            instance: 1,
            chunk_bytes: 1 << 26,
            replicas: 3,
            groups: 320,
            lease_millis: 3000,
        };
        assert_eq!(founded.unlike(&founded), "");
        let file = ClusterParams { groups: 384, cluster: 0xa8, ..founded.clone() };
        assert_eq!(
            founded.unlike(&file),
            "it is cluster 00000000000000a7, the file has 00000000000000a8; it has 320 chunk groups (servers times groups_per_server), \
             the file 384"
        );
    }

    #[test]
    fn chunks_spread_evenly_over_groups() {
        let mut counts = vec![0u32; 64];
        for object in 0..6400 {
            let chunk = ChunkId { object: ObjectId(object), index: 3 };
            counts[group_of(chunk, 64).0 as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (50..=160).contains(&n)), "{counts:?}");
    }

    /// A map with servers 0 to 8, of which these were declared lost.
    fn without(lost: &[u16]) -> ClusterMap {
        let server = |id: u16| ServerEntry {
            id: ServerId(id),
            rack: RackId(id % 3),
            pool: PoolId::REPLICATED,
            gear_group: GearGroup(0),
            address: String::new(),
            state: if lost.contains(&id) { ServerState::Lost } else { ServerState::Failed },
            incarnation: Incarnation(1),
            store: StoreId(1),
        };
        ClusterMap { servers: (0..9).map(|id| (ServerId(id), server(id))).collect(), ..ClusterMap::default() }
    }

    #[test]
    fn a_group_is_gone_when_every_server_that_may_have_any_of_it_was_declared_lost() {
        let slot = |id, state, holder: Option<u16>| {
            let holder = holder.map(|id| Holder::new(ServerId(id), true));
            Slot { server: ServerId(id), state, holder }
        };
        let (in_sync, away) = (SlotState::InSync, SlotState::Away { since: Epoch(4) });
        let all = vec![slot(0, in_sync, None), slot(1, in_sync, None), slot(2, in_sync, None)];
        let some = vec![slot(0, away, Some(5)), slot(1, in_sync, None), slot(2, in_sync, None)];
        let is_gone = |lost: &[u16], slots: &[Slot], fallback: Option<&[Slot]>, primary| {
            let (slots, fallback) = (slots.to_vec(), fallback.map(<[Slot]>::to_vec));
            let entry = GroupEntry { epoch: Epoch(5), primary, slots, fallback, ..GroupEntry::unknown() };
            ClusterMap { groups: vec![entry], ..without(lost) }.is_gone(GroupId(0))
        };
        assert!(is_gone(&[0, 1, 2], &all, None, None));
        assert!(!is_gone(&[0, 1], &all, None, None), "one may come back");
        assert!(!is_gone(&[0, 1, 2], &all, None, Some(ServerId(4))), "it is served again");
        assert!(!is_gone(&[0, 1, 2], &some, None, None), "its holder has what was written since");
        assert!(is_gone(&[0, 1, 2], &some, Some(&all[..]), None), "nothing was written since");
        assert!(!is_gone(&[0, 1, 2], &all, Some(&some[..]), None));
        assert!(is_gone(&[0, 1, 2, 5], &some, None, None));
        assert!(!without(&[0, 1, 2]).is_gone(GroupId(0)), "nothing is known of it");
        let since = |primary| {
            let slots = all.clone();
            let entry = GroupEntry { epoch: Epoch(6), primary, slots, gone: true, ..GroupEntry::unknown() };
            ClusterMap { groups: vec![entry], ..without(&[1, 2]) }.is_gone(GroupId(0))
        };
        assert!(since(None), "what came back has nothing");
        assert!(!since(Some(ServerId(0))), "it is served again");
    }

    #[test]
    fn a_set_is_gone_when_no_data_server_and_too_few_others_are_left() {
        let is_gone = |lost: &[u16]| {
            let shape = crate::Shape::new(4, 2).unwrap();
            let state = SlotState::Away { since: Epoch(0) };
            let columns = (0..6).map(|id| Column { server: ServerId(id), state }).collect();
            let entry = SetEntry { shape, epoch: Epoch(5), columns, ..SetEntry::unknown() };
            let map = ClusterMap { sets: vec![entry], ..without(lost) };
            map.is_gone(GroupId::of_column(SetId(0), 1))
        };
        assert!(is_gone(&[0, 1, 2, 3]));
        assert!(!is_gone(&[0, 1, 2, 4, 5]), "it may have strips of other columns, too");
    }

    #[test]
    fn a_delta_with_a_gap_does_not_fit() {
        let mut map = ClusterMap::default();
        assert!(map.apply(&MapDelta { from: 0, to: 3, ..MapDelta::default() }));
        assert!(!map.apply(&MapDelta { from: 5, to: 6, ..MapDelta::default() }));
        assert_eq!(map.version, 3);
        assert!(map.apply(&MapDelta { from: 2, to: 4, ..MapDelta::default() }));
    }

    #[test]
    fn a_delta_never_brings_back_an_older_epoch() {
        let mut map = ClusterMap::default();
        let entry = |epoch| GroupEntry { epoch: Epoch(epoch), ..GroupEntry::unknown() };
        map.apply(&MapDelta { from: 0, to: 1, groups: vec![(GroupId(0), entry(7))], ..MapDelta::default() });
        map.apply(&MapDelta { from: 0, to: 2, groups: vec![(GroupId(0), entry(4))], ..MapDelta::default() });
        assert_eq!(map.groups[0].epoch, Epoch(7));
        let unserved = GroupEntry { fallback: Some(Vec::new()), ..entry(8) };
        for (to, next, serves) in [(3, unserved.clone(), false), (4, entry(8), true), (5, unserved, true)] {
            map.apply(&MapDelta { from: 0, to, groups: vec![(GroupId(0), next)], ..MapDelta::default() });
            assert_eq!(map.groups[0].stage(), Stage { epoch: Epoch(8), serves });
        }
    }
}
