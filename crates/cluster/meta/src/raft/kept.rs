//! Storage for the Raft library: the entries of the log, in memory, and where they start. The state before them is not
//! kept a second time: a snapshot is made of the present state when a member needs one.

use super::error::RaftError;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::Cell;

#[derive(Default)]
pub(super) struct Kept {
    pub hard: HardState,
    pub members: ConfState,
    /// Index of the entry that last changed the membership.
    pub members_at: u64,
    /// Index and term of the last entry before `entries`.
    pub base: (u64, u64),
    /// Without gaps.
    pub entries: Vec<Entry>,
    /// Size of the entries.
    pub bytes: usize,
    /// A snapshot that a member is waiting for.
    pub offered: Option<Snapshot>,
    /// A member needs a snapshot.
    pub wanted: Cell<bool>,
}

impl Kept {
    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    /// An entry replaces everything from its index on.
    pub fn append(&mut self, entry: Entry) -> Result<(), RaftError> {
        if entry.index <= self.base.0 || entry.index > self.last() + 1 {
            return Err(RaftError::Gap { index: entry.index });
        }
        let cut_off = self.entries.split_off((entry.index - self.base.0 - 1) as usize);
        self.bytes = self.bytes + entry.data.len() - bytes_of(&cut_off);
        debug_assert_eq!(entry.index, self.last() + 1, "entries have no gaps");
        self.entries.push(entry);
        Ok(())
    }

    /// Everything up to entry `index` is in the state, whose members are `members`.
    pub fn begin_after(&mut self, index: u64, term: u64, members: ConfState) {
        let keep = self.last().saturating_sub(index) as usize;
        let same = self.term(index).is_ok_and(|own| own == term);
        self.entries = if same { self.entries.split_off(self.entries.len() - keep) } else { Vec::new() };
        debug_assert!(self.entries.first().is_none_or(|e| e.index == index + 1), "entries have no gaps");
        self.bytes = bytes_of(&self.entries);
        self.base = (index, term);
        self.members = members;
        self.members_at = self.members_at.max(index);
        self.hard.commit = self.hard.commit.max(index);
    }
}

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(|e| e.data.len()).sum()
}

impl Storage for Kept {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.members.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let first = self.base.0 + 1;
        if low < first {
            return Err(StorageError::Compacted.into());
        }
        let mut entries = self.entries[(low - first) as usize..(high - first) as usize].to_vec();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            return Err(StorageError::Compacted.into());
        }
        let entry = self.entries.get((index - self.base.0 - 1) as usize);
        entry.map(|e| e.term).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// A new member would refuse a snapshot whose membership lacks it.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let least = request_index.max(self.members_at).max(self.base.0);
        match &self.offered {
            Some(snapshot) if snapshot.get_metadata().index >= least => Ok(snapshot.clone()),
            _ => {
                self.wanted.set(true);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}
