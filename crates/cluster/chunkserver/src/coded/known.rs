//! What a server knows of a set: its configuration, its fence, and the columns of which it keeps strips.
//!
//! Invariant: `fence >= entry.epoch`. Messages and requests of an epoch below the fence are refused (R1).

use super::memory::Memory;
use crate::common::api::StoreCommand;
use bytes::Bytes;
use ebb_erasure::{Code, Codes};
use ebb_types::{
    ChunkId, ClusterMap, Column, Content, Epoch, GroupId, Kind, Record, Refusal, Role, Run, ServerId,
    SetEntry, SetId, SlotState, Version,
};
use std::collections::{BTreeMap, BTreeSet};

/// The sequence of a deletion in its epoch: newer than all that was written, which has 1. Zeroes of it stand for a
/// block of a failed write that rotted: newer than the strip, and itself none.
pub(super) const DELETION: u64 = 2;

pub(super) struct Known {
    pub id: SetId,
    pub entry: SetEntry,
    pub fence: Epoch,
    codes: Codes,
    /// By turn, whether rows survive the loss of any one more server; computed when first asked.
    bears: BTreeMap<usize, bool>,
    /// What the store keeps, or is about to keep.
    kept: BTreeSet<(usize, Role)>,
}

impl Default for Known {
    fn default() -> Known {
        let entry = SetEntry::unknown();
        let codes = Codes::new(entry.shape);
        let (bears, kept) = (BTreeMap::new(), BTreeSet::new());
        Known { id: SetId(0), entry, fence: Epoch(0), codes, bears, kept }
    }
}

impl Known {
    pub fn adopt(&mut self, entry: SetEntry) {
        if entry.shape != self.entry.shape {
            self.codes = Codes::new(entry.shape);
        }
        debug_assert!(entry.epoch > self.entry.epoch, "a set's configuration does not go back");
        self.fence = self.fence.max(entry.epoch);
        self.entry = entry;
        self.bears.clear();
    }

    pub fn epoch(&self) -> Epoch {
        self.entry.epoch
    }

    pub fn group(&self, column: usize) -> GroupId {
        GroupId::of_column(self.id, column)
    }

    pub fn code(&self, chunk: ChunkId) -> &Code {
        self.codes.of(self.entry.turn(chunk))
    }

    /// Whether a row of the chunk survives the loss of any one server, with its strips where they go now. Nothing less
    /// is acknowledged: like the other pools', a write waits until servers are back.
    pub fn bears_a_loss(&mut self, chunk: ChunkId) -> bool {
        let turn = self.entry.turn(chunk);
        if let Some(known) = self.bears.get(&turn) {
            return *known;
        }
        let (targets, code) = (self.entry.targets(chunk), self.codes.of(turn));
        let data: Vec<usize> = (0..self.entry.shape.data()).collect();
        let left = |lost: &ServerId| -> Vec<usize> {
            let has = |(nth, target): (usize, &Option<ServerId>)| target.filter(|t| t != lost).map(|_| nth);
            targets.iter().enumerate().filter_map(has).collect()
        };
        let bears = targets.iter().flatten().all(|server| code.sources(&left(server), &data).is_some());
        self.bears.insert(turn, bears);
        bears
    }

    /// Whether every acknowledged row and deletion is in the listings of these servers and of this one: one of them has
    /// a column in sync, so it has a strip of each; or all are there but one, and none lost what it had. Nothing is
    /// acknowledged that only one column's own server took.
    pub fn all_is_listed(&self, me: ServerId, members: &[ServerId]) -> bool {
        let listed = |own: &Column| own.server == me || members.contains(&own.server);
        let mut others = self.entry.columns.iter().filter(|own| own.server != me);
        let nothing = |own: &Column| own.state == SlotState::Away { since: Epoch(0) };
        let emptied = |own: &Column| own.state == SlotState::CatchingUp { since: Epoch(0) } || nothing(own);
        let hides = |own: &&Column| !listed(own) || emptied(own);
        self.one_has_all(me, members)
            || others.all(|own| listed(own) || nothing(own))
            || self.entry.columns.iter().filter(hides).count() <= 1
    }

    /// Whether one of these servers, another than this one, has a column in sync.
    pub fn one_has_all(&self, me: ServerId, members: &[ServerId]) -> bool {
        let has_all = |own: &Column| own.server != me && own.state == SlotState::InSync;
        self.entry.columns.iter().any(|own| has_all(own) && members.contains(&own.server))
    }

    /// R1. Epochs come from the replicated metadata service: a higher one proves that the older configuration has
    /// ended.
    pub fn fence_to(&mut self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch < self.fence {
            return Err(Refusal::Stale { newest: self.fence });
        }
        self.fence = epoch;
        debug_assert!(self.fence >= self.epoch(), "what is older than the configuration is refused (R1)");
        Ok(())
    }

    pub fn is_own(&self, me: ServerId, column: usize) -> bool {
        self.entry.columns.get(column).is_some_and(|own| own.server == me)
    }

    /// Whether this server has every strip of the column, so that what is not here was never written.
    pub fn is_whole(&self, me: ServerId, column: usize) -> bool {
        let own = self.entry.columns.get(column).filter(|own| own.server == me);
        own.is_some_and(|own| own.state == SlotState::InSync) && self.fence == self.epoch()
    }

    /// The role in which strips of the column are kept here; `None`: there are none.
    pub fn role_of(&self, me: ServerId, column: usize) -> Option<Role> {
        if self.is_own(me, column) {
            return Some(Role::Replica);
        }
        self.kept.iter().rev().find(|(kept, _)| *kept == column).map(|(_, role)| *role)
    }

    /// The role in which a strip of the column is to be kept here. One role per column, even if the column gets another
    /// server meanwhile: so a listing has all of it.
    pub fn role_for(&mut self, me: ServerId, column: usize) -> Role {
        let last = self.entry.columns.len().saturating_sub(1);
        let server = self.entry.columns.get(column.min(last)).map_or(me, |own| own.server);
        let role = self.role_of(me, column).unwrap_or(Role::Offload { stands_for: server });
        self.kept.insert((column, role));
        role
    }

    /// Notes that the store keeps this. Returns whether that is new.
    pub fn keep(&mut self, column: usize, role: Role) -> bool {
        self.kept.insert((column, role))
    }

    pub fn kept_columns(&self) -> BTreeSet<usize> {
        self.kept.iter().map(|(column, _)| *column).collect()
    }

    /// A column of which something is in memory only. Its server lacks that: what it has is dropped here.
    pub fn in_memory(&self, memory: &Memory) -> Option<usize> {
        let kept = self.kept.iter().find(|(column, role)| memory.has(self.group(*column), *role));
        kept.map(|(column, _)| *column)
    }

    pub fn keeps_offload(&self) -> bool {
        self.kept.iter().any(|(_, role)| matches!(role, Role::Offload { .. }))
    }

    /// Forgets and returns what no configuration needs any more (R6): strips that are kept for a column, as soon as
    /// that column has everything; and own ones of a server that left the set, as soon as the whole set has. A fence
    /// newer than the configuration proves that there is another, whose needs are not known yet. `early`: a planted
    /// bug.
    pub fn take_unneeded(&mut self, me: ServerId, early: bool) -> Vec<(usize, Role)> {
        if self.fence > self.epoch() || self.entry.columns.is_empty() {
            return Vec::new();
        }
        let all_have = self.entry.is_in_sync();
        let left = self.entry.column_of(me).is_none();
        let catches_up = |column: usize| {
            let state = self.entry.columns.get(column).map(|own| own.state);
            matches!(state, Some(SlotState::CatchingUp { .. }))
        };
        let needed = |&(column, role): &(usize, Role)| match role {
            Role::Replica if self.is_own(me, column) => true,
            Role::Offload { .. } if early && catches_up(column) => false,
            _ if left => !all_have,
            _ => self.entry.missing_since(column).is_some(),
        };
        let unneeded: Vec<(usize, Role)> = self.kept.iter().filter(|kept| !needed(kept)).copied().collect();
        self.kept.retain(|kept| !unneeded.contains(kept));
        unneeded
    }

    /// The columns that this server fills, and the epoch from which on it may lack strips: its own while it catches up,
    /// and as holder those that are away. What a column lacks since this very epoch, holders take directly. While the
    /// set hibernates, no server fills anything: the epoch in which it wakes comes later.
    pub fn to_fill(&self, me: ServerId) -> Vec<(usize, Epoch)> {
        let own = self.entry.column_of(me).filter(|_| !self.entry.hibernates());
        let Some(own) = own else { return Vec::new() };
        let mut all = Vec::new();
        if let SlotState::CatchingUp { since } = self.entry.columns[own].state {
            all.push((own, since));
        }
        let is_holder = own < self.entry.shape.data() && !self.entry.columns[own].is_away();
        for column in (0..self.entry.strips()).filter(|column| is_holder && *column != own) {
            let away = self.entry.columns.get(column).map_or(self.entry.parity_is_away(), |c| c.is_away());
            let since = self.entry.missing_since(column).filter(|since| away && *since < self.epoch());
            all.extend(since.map(|since| (column, since)));
        }
        all
    }

    /// Since which epoch a parity column lacks strips that were written, but is not lost: it sleeps, or catches up.
    pub fn parity_lacks_since(&self) -> Option<Epoch> {
        let parity = self.entry.shape.data()..self.entry.columns.len();
        parity.filter_map(|column| self.entry.missing_since(column)).filter(|since| *since > Epoch(0)).min()
    }

    /// The servers of the set that can be asked.
    pub fn others(&self, me: ServerId, map: &ClusterMap) -> Vec<ServerId> {
        let servers = self.entry.columns.iter().map(|column| column.server);
        servers.filter(|server| *server != me && map.is_live(*server)).collect()
    }

    /// Whether a server that was asked has its own column in sync and nothing of a row: it has a strip of each
    /// acknowledged one, so this is the rest of a failed write, wherever else strips of it are.
    pub fn is_remnant(&self, me: ServerId, asked: &[ServerId], is_listed: impl Fn(usize) -> bool) -> bool {
        let in_sync = |own: &Column| own.server != me && own.state == SlotState::InSync;
        let lacks =
            |(nth, own): (usize, &Column)| in_sync(own) && asked.contains(&own.server) && !is_listed(nth);
        self.entry.columns.iter().enumerate().any(lacks)
    }

    /// Whether blocks that cannot be rebuilt from `present` might be with the strips of servers that do not answer now.
    /// One that sleeps has what is older than the epoch since which its column lacks strips. One that failed may have
    /// caught up before, unless its data is gone, and may have strips that it kept for others. One that was declared
    /// lost never answers.
    pub fn may_be_elsewhere(
        &self,
        map: &ClusterMap,
        (chunk, column): (ChunkId, usize),
        present: &[usize],
        oldest: Option<Epoch>,
    ) -> bool {
        let code = self.code(chunk);
        let mut hoped: BTreeSet<usize> = present.iter().copied().collect();
        let before = hoped.len();
        for (nth, own) in self.entry.columns.iter().enumerate() {
            let lacks = self.entry.missing_since(nth).is_some_and(|since| {
                let caught_up = since > Epoch(0) && !map.sleeps(own.server);
                !caught_up && oldest.is_some_and(|oldest| since <= oldest)
            });
            if map.is_live(own.server) || map.is_lost(own.server) || lacks {
                continue;
            }
            hoped.insert(nth);
            if nth < self.entry.shape.data() {
                let kept = |column: &usize| {
                    *column >= self.entry.shape.data() || self.entry.missing_since(*column).is_some()
                };
                hoped.extend((0..code.strips()).filter(kept));
            }
        }
        let all: Vec<usize> = hoped.into_iter().collect();
        all.len() > before && code.sources(&all, &[column]).is_some()
    }
}

/// Whether this is a block of a failed write that rotted and was cleared. With the sound strips of such a write, zeroes
/// that counted as one might be enough to make content that was never written (seed 32500010034).
pub(super) fn is_cleared(kind: Kind, version: Version) -> bool {
    kind == Kind::Zero && version.seq == DELETION
}

/// A damaged block becomes zeroes of this version.
pub(super) fn cleared(group: GroupId, role: Role, at: (ChunkId, u32), version: Version) -> StoreCommand {
    let ((chunk, first), content) = (at, Content::Zero);
    let record = Record { group, chunk, first, count: 1, version, request: None, content };
    StoreCommand::Repair { role, record, payload: Bytes::new(), lost: Version::MAX }
}

/// Whether a store's answer is that it has no strip of these blocks.
pub(super) fn is_no_strip(record: &Record) -> bool {
    record.is_never_written() || is_cleared(record.content.kind(), record.version)
}

/// Whether a run that another server listed lies within a chunk.
pub(super) fn is_sane(run: &Run, column_blocks: u32) -> bool {
    run.first.checked_add(run.count).is_some_and(|end| end <= column_blocks)
}
