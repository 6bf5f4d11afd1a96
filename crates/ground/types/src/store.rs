//! The interface between a chunk server's protocol core and its store: commands, outcomes, and what recovery finds.
//! `ebb_chunkserver` sends commands, `ebb_store` carries them out.

use crate::{
    ChunkId, Cursor, Epoch, GroupId, ListPage, Record, Refusal, Role, Run, ScrubMark, TailRun, Version,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A command from the protocol core to the store. Each ends in one [`StoreOutcome`]. The store may run them in any
/// order; the core waits where order matters.
#[derive(Clone, Debug)]
pub enum StoreCommand {
    /// Make the record durable. Blocks present at a newer version stay. `must_fit`: it may use the reserve (R10).
    /// `committed`: everything of the group up to this version is on all targets.
    Apply { role: Role, record: Record, payload: Bytes, must_fit: bool, committed: Version },
    /// As `Apply`, but equal versions are written too, because the present block fails its checksum (R9). It is known
    /// to be the newest version of each block that is lost and was not newer than `lost`, and takes effect on these,
    /// too; a record of version zero says that they were never written.
    Repair { role: Role, record: Record, payload: Bytes, lost: Version },
    /// Read blocks and verify their checksums.
    Read { role: Role, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// As `Read`, but from disk, not from memory, and without returning the bytes unless `bytes` says so.
    Check { role: Role, group: GroupId, chunk: ChunkId, first: u32, count: u32, bytes: bool },
    /// One page of the runs with versions of epoch `since` or later, in chunk and block order, deletions first.
    List { role: Role, group: GroupId, since: Epoch, after: Option<Cursor> },
    /// Which of these runs, or parts of them, are newer than what is here?
    Newer { role: Role, group: GroupId, runs: Vec<Run> },
}

/// What a server has its store do besides what its protocol core commands. Each ends in one [`StoreOutcome`].
#[derive(Clone, Debug)]
pub enum StoreTask {
    /// Drop all that is kept for the group in this role.
    Drop {
        group: GroupId,
        role: Role,
    },
    /// The replica of the group need not remember deletions up to this version. Takes effect after all that was given
    /// before it.
    ForgetTombstones {
        group: GroupId,
        up_to: Version,
    },
    Remember(Membership),
    /// Make everything durable that was given before, such that a start has nothing to do.
    Flush,
}

#[derive(Clone, Debug)]
pub enum StoreOutcome {
    Applied,
    /// The blocks asked for, whole and in order, as maximal runs of equal version and kind; never-written blocks are
    /// runs of version zero and kind `Zero`. `records` carry checksums for data runs; `payload` is their bytes,
    /// concatenated.
    Read {
        records: Vec<Record>,
        payload: Bytes,
    },
    Listed(ListPage),
    Newer(Vec<Run>),
    /// To a read, a check or a listing: this block must be fetched from another copy (R9). `lost`: not even its version
    /// is known, only that it was not newer than this one. `given_up`: no copy had it, and it was stored as lost
    /// ([`lost_block_crc`](crate::lost_block_crc)); no other block is damaged. `all`: every block that was to be read
    /// is lost or given up.
    Damaged {
        chunk: ChunkId,
        block: u32,
        lost: Option<Version>,
        given_up: bool,
        all: bool,
    },
    Failed(Refusal),
}

/// The metadata that the store served under. Kept so that it does not obey a cluster that was founded again, or
/// metadata that was rolled back: what such metadata says about this data is not true (R11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// `ClusterParams::instance`; zero: the store never served.
    pub instance: u64,
    /// The newest version of the cluster map seen here, or one from shortly before.
    pub map_version: u64,
}

/// What the store says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// On disk, segments included.
    pub used: crate::Bytes,
    pub capacity: crate::Bytes,
    /// Bytes of data kept as strips of the server's own columns.
    pub own: crate::Bytes,
    /// Bytes of data kept as offload: the debt.
    pub offload: crate::Bytes,
    pub poisoned: bool,
    /// The errno for which its thread waits and tries again.
    pub not_now: Option<i32>,
    pub mark: crate::StoreMark,
}

/// The last records of a group, as found at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredTail {
    /// Everything up to this version is on all targets.
    pub committed: Version,
    /// All records that are not known to be on all targets.
    pub open: Vec<TailRun>,
    /// The last records that are, for their request ids.
    pub done: Vec<TailRun>,
}

/// What recovery found at start, for the protocol core.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub tails: BTreeMap<GroupId, RecoveredTail>,
    /// The groups that data is kept for, and in which role.
    pub roles: Vec<(GroupId, Role)>,
    /// Scrub progress that the core had saved. Without it replicas are scrubbed sooner or later than necessary.
    pub scrubs: Vec<ScrubMark>,
}
