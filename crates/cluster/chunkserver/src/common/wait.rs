//! What is to happen when the store completes a command.

use crate::common::api::ClientToken;
use ebb_types::{ChunkId, Cursor, Epoch, GroupId, Record, Role, Run, ServerId, Version};

/// Why a store command was given: what to do when it ends.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// The primary's own copy of an ordered record.
    Own {
        seq: u64,
        epoch: Epoch,
    },
    /// A note of what is on all targets.
    CommitNoted,
    /// A record from other servers: reply to each sender, under the epoch that its copy came with.
    Foreign {
        askers: Vec<(ServerId, Epoch)>,
        place: Place,
    },
    /// Blocks that an operation needs.
    OpRead {
        op: u64,
        epoch: Epoch,
        first: u32,
    },
    /// A repair writes records from another copy; `RepairChecked` then reads the blocks back.
    RepairWritten {
        repair: u64,
    },
    RepairChecked {
        repair: u64,
    },
    /// A listing of this replica, to be compared with the other copies.
    ScrubList {
        token: u64,
    },
    /// Blocks that the primary compares: reply with their versions and checksums.
    CheckFor {
        to: ServerId,
        check: CheckFor,
    },
    /// Another server's listing or fetch: reply to it.
    ListFor {
        to: ServerId,
        list: ListFor,
    },
    FetchFor {
        to: ServerId,
        epoch: Epoch,
        token: u64,
        role: Role,
    },
    /// Which blocks of the tails does the store have?
    Settlement {
        epoch: Epoch,
    },
    /// Which of the listed runs do we lack?
    CatchUpNewer {
        token: u64,
    },
    /// Which runs do we have that no source listed?
    CatchUpOwn {
        token: u64,
    },
    /// A fetched record.
    CatchUpApplied {
        token: u64,
    },
    /// Cover: the runs that the holder must get, then their content.
    CoverList {
        epoch: Epoch,
        stands_for: ServerId,
    },
    CoverRead {
        epoch: Epoch,
        stands_for: ServerId,
        run: Run,
    },
    /// Of an erasure-coded set.
    Column(ColumnWait),
}

/// What an erasure-coded set waits for. `kept`: the column whose strip is stored, and in which role.
#[derive(Clone, Debug)]
pub(crate) enum ColumnWait {
    /// A client's strip, zeroes or deletion.
    Written {
        client: ClientToken,
        version: Version,
        kept: (usize, Role),
    },
    /// Blocks that a client reads.
    Read {
        read: u64,
    },
    /// A rebuilt strip.
    Rebuilt {
        job: u64,
        kept: (usize, Role),
    },
    /// A strip here from which another is rebuilt.
    Source {
        token: u64,
    },
    /// What is here, for a fill.
    FillList {
        token: u64,
    },
    /// A deletion that a fill found.
    FillDeleted {
        pass: u64,
        kept: (usize, Role),
    },
    /// Whether strips of a chunk that a client deletes are kept here for another column.
    KeptList {
        kept: (usize, Role),
        chunk: ChunkId,
        version: Version,
    },
    /// The deletion of such strips.
    KeptDeleted {
        kept: (usize, Role),
    },
    /// What the own column has that others lack, as a set goes to sleep.
    ForgottenList {
        epoch: Epoch,
    },
    /// What is here, and blocks of it, for a scrub.
    ScrubList {
        token: u64,
    },
    ScrubRead {
        token: u64,
    },
    /// A block that a scrub marks as never written.
    ScrubCleared {
        token: u64,
    },
    /// Blocks are marked as never written.
    Cleared {
        read: u64,
    },
    /// Another server's listing or fetch.
    For(Ask),
}

/// What another server asks of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub from: ServerId,
    pub group: GroupId,
    pub epoch: Epoch,
    pub token: u64,
    pub what: Asked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    List { since: Epoch, after: Option<Cursor> },
    Blocks { chunk: ChunkId, first: u32, count: u32 },
}

/// A listing that another server requested, with the epoch of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListFor {
    /// Arrival number: later requests have larger ones.
    pub came: u64,
    pub epoch: Epoch,
    pub token: u64,
    pub role: Role,
    pub since: Epoch,
    pub after: Option<Cursor>,
    /// Repair of lost blocks was tried up to here.
    pub tried: Option<Cursor>,
}

/// Blocks that the primary asked for, to compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckFor {
    pub epoch: Epoch,
    pub token: u64,
    pub role: Role,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
}

/// Identifies a record: pieces of one large write share a version.
pub(crate) type Place = (Role, ChunkId, Version, u32, u32);

pub(crate) fn place(role: Role, record: &Record) -> Place {
    (role, record.chunk, record.version, record.first, record.count)
}
