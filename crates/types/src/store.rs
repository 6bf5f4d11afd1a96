//! The protocol core and the store of a chunk server, in each other's words: what is asked, what comes of it, and what a restart
//! finds. `ebb_replica` asks, `ebb_store` answers.

use crate::{
    ChunkId, Cursor, Epoch, GroupId, ListPage, Record, Refusal, Run, ScrubMark, Space, TailRun, Version,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What the protocol core asks of the store. Each ends in one [`StoreOutcome`]. The store may run them in any order; the core
/// waits where order matters.
#[derive(Clone, Debug)]
pub enum StoreCommand {
    /// Make the record durable. Blocks that are there in a newer version stay. `must_fit`: it may use the reserve (R10).
    /// `committed`: everything of the group up to this version is on all targets.
    Apply { space: Space, record: Record, payload: Bytes, must_fit: bool, committed: Version },
    /// As `Apply`, but equal versions are written too: the block that is there fails its checksum (R9). A record of version
    /// zero says that its blocks were never written, and takes effect on those that are lost.
    Repair { space: Space, record: Record, payload: Bytes },
    /// Read blocks. Checked against their checksums.
    Read { space: Space, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// As `Read`, but what is on disk, not what is in memory; and the bytes are not wanted.
    Check { space: Space, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// One page of the runs with versions of epoch `since` or later, in chunk and block order, deletions first.
    List { space: Space, group: GroupId, since: Epoch, after: Option<Cursor> },
    /// Which (parts) of these runs are newer than what is here?
    Newer { space: Space, group: GroupId, runs: Vec<Run> },
}

#[derive(Clone, Debug)]
pub enum StoreOutcome {
    Applied,
    /// The blocks asked for, whole and in order, as maximal runs of equal version and kind; never-written blocks are runs
    /// of version zero and kind `Zero`. `records` carry checksums for data runs; `payload` is their bytes, concatenated.
    Read {
        records: Vec<Record>,
        payload: Bytes,
    },
    Listed(ListPage),
    Newer(Vec<Run>),
    /// Of a read, a check or a listing: this block must be fetched from another copy (R9). `lost`: not even its version is
    /// known, only this one that it was not newer than.
    Damaged {
        chunk: ChunkId,
        block: u32,
        lost: Option<Version>,
    },
    Failed(Refusal),
}

/// The last records of a group, as a server finds them when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredTail {
    /// Everything up to this version is on all targets.
    pub committed: Version,
    /// The records of which that is not known. All of them.
    pub open: Vec<TailRun>,
    /// The last of those of which it is, for their request ids.
    pub done: Vec<TailRun>,
}

/// What a server found at its start, for the protocol core.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub tails: BTreeMap<GroupId, RecoveredTail>,
    /// What is kept for which group, and as what.
    pub spaces: Vec<(GroupId, Space)>,
    /// What the core had kept of its scrubs. Without it replicas are scrubbed sooner or later than need be.
    pub scrubs: Vec<ScrubMark>,
}
