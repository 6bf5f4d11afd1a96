//! What goes into the store and what comes out. `StoreCore` carries operations out on the caller's thread;
//! `StoreHandle` does the same on one I/O thread and delivers [`Completion`]s.

use ebb_types::{
    Bytes, CHUNK_BYTES_MAX, ChunkId, Cursor, Epoch, GroupId, Incarnation, ListPage, Record, RecoveredTail,
    Refusal, Run, ServerId, Space, StoreCommand, StoreId, StoreMark, StoreOutcome, Version,
};
use std::collections::BTreeMap;

/// Bounds of [`Config::checkpoint_bytes`]: a write goes to several servers, which are not to reach it together.
const CHECKPOINT_LEAST: u64 = 48 << 20;
const CHECKPOINT_SPREAD: u64 = 32 << 20;

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster that the directory must belong to; written into a new one.
    pub cluster: u64,
    pub server: ServerId,
    /// Drawn at random by the caller for each start: the identity that the store takes where it needs a new one. Its low bits
    /// go into the run's number.
    pub fresh_id: StoreId,
    /// The metadata service knows a run of this number of the server that the directory does not continue: the store takes a
    /// new identity, and numbers its runs from there on.
    pub supersedes: Option<Incarnation>,
    /// Of the cluster's chunks: what is behind it cannot be lost.
    pub chunk_bytes: u32,
    /// Most bytes to use; `None`: what the file system has, less a reserve of `checkpoint_bytes`. What must fit may use as much
    /// more.
    pub capacity: Option<Bytes>,
    /// A new segment is started when the open one is this long.
    pub segment_bytes: u32,
    /// Segments together longer than this are moved to chunk files.
    pub checkpoint_bytes: u64,
    /// Replica payloads of at least this size go straight to their chunk file where they overwrite nothing.
    pub direct_bytes: usize,
    /// Segments are kept, though all in them is in chunk files, until so many bytes follow them: for the requests that a restart
    /// knows to be done.
    pub tail_bytes: u64,
    /// Pages of block metadata (4 KiB each) kept in memory.
    pub cached_pages: usize,
    /// Files kept open: what is not open or not in these pages takes a read through the store's thread.
    pub open_files: usize,
    /// Defects that the fault search must find. Nothing sets them outside tests.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<PlantedBug>,
}

/// Defects on purpose, to show that the fault search finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A write is called durable before it is synced.
    SkipSync,
    /// A page of a chunk file that is not what it must be counts as empty.
    LostPageIsEmpty,
}

impl Config {
    pub fn new(cluster: u64, server: ServerId, fresh_id: StoreId) -> Config {
        // Neighbours far apart: multiples of the golden ratio.
        let turn = u64::from(u32::from(server.0).wrapping_mul(0x9e37_79b9));
        let spread = (turn * CHECKPOINT_SPREAD) >> 32;
        Config {
            cluster,
            server,
            fresh_id,
            supersedes: None,
            chunk_bytes: CHUNK_BYTES_MAX,
            capacity: None,
            segment_bytes: 16 << 20,
            checkpoint_bytes: CHECKPOINT_LEAST + spread,
            direct_bytes: 128 << 10,
            tail_bytes: 8 << 20,
            cached_pages: 2048,
            open_files: 512,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn has(&self, _bug: PlantedBug) -> bool {
        false
    }
}

/// Names an operation that waits for its completion; the caller's own.
pub type Token = u64;

/// What the store is asked. Each ends in one [`Completion`]. Operations that are under way together may run in any order,
/// except that writes and drops run in the order in which they were handed in.
#[derive(Clone, Debug)]
pub enum Op {
    /// Make the record durable: it takes effect on exactly those blocks that are older. Payload: its data, if any; whoever
    /// received it has compared it with its checksums.
    /// `must_fit`: acknowledged data depends on it, so it may use the reserve too. `repair`: it is known to be the newest, and
    /// takes effect on lost blocks too, which another one does not unless it is surely newer. Then version zero says that the
    /// blocks were never written.
    /// `committed`: everything of the group up to this version is on all targets; a restart tells the rest.
    Apply {
        space: Space,
        record: Record,
        payload: bytes::Bytes,
        must_fit: bool,
        repair: bool,
        committed: Version,
    },
    /// Read `count` blocks (at most `RECORD_BLOCKS_MAX`).
    Read { space: Space, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// As `Read`, from the device and not from the page cache, and the payload of the answer is empty: for scrubs.
    Check { space: Space, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// About `limit` runs with versions of epoch `since` or later in (chunk, block) order, from `after` on. A chunk's
    /// deletion is a run with no blocks and stands before its blocks.
    List { space: Space, group: GroupId, since: Epoch, after: Option<Cursor>, limit: usize },
    /// The parts of `runs` that are newer than what is here.
    Newer { space: Space, group: GroupId, runs: Vec<Run> },
    /// Forget all offload kept for `stands_for` in this group.
    DropOffload { group: GroupId, stands_for: ServerId },
    /// Forget all that is kept as replica of the group.
    DropReplica { group: GroupId },
    /// The replica's deletions up to this version need not be remembered any longer: every replica has carried them out.
    ForgetTombstones { group: GroupId, up_to: Version },
    /// Keep this in the superblock.
    Remember(Membership),
    /// Move everything that can be moved from segments to chunk files. Then an idle store has nothing left to write.
    Flush,
    /// What the group's blocks contain, without how they came to it. `verify` reads every block and checks it.
    Digest { space: Space, group: GroupId, verify: bool },
}

impl Op {
    /// What the protocol core asks. `page`: runs in one page of a listing.
    pub fn asked(command: StoreCommand, page: usize) -> Op {
        match command {
            StoreCommand::Apply { space, record, payload, must_fit, committed } => {
                Op::Apply { space, record, payload, must_fit, repair: false, committed }
            }
            StoreCommand::Repair { space, record, payload } => {
                let committed = Version::ZERO;
                Op::Apply { space, record, payload, must_fit: true, repair: true, committed }
            }
            StoreCommand::Read { space, group, chunk, first, count } => {
                Op::Read { space, group, chunk, first, count }
            }
            StoreCommand::Check { space, group, chunk, first, count } => {
                Op::Check { space, group, chunk, first, count }
            }
            StoreCommand::List { space, group, since, after } => {
                Op::List { space, group, since, after, limit: page }
            }
            StoreCommand::Newer { space, group, runs } => Op::Newer { space, group, runs },
        }
    }

    /// Whether it belongs to a group commit.
    pub fn is_write(&self) -> bool {
        matches!(self, Op::Apply { .. } | Op::DropOffload { .. } | Op::DropReplica { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Also for a record that was wholly older than what is here.
    Applied,
    Read(ReadBlocks),
    Listed(ListPage),
    Newer(Vec<Run>),
    Digest(GroupDigest),
    /// Of the operations that return nothing.
    Done,
    Failed(StoreError),
}

impl From<Outcome> for StoreOutcome {
    fn from(outcome: Outcome) -> StoreOutcome {
        match outcome {
            Outcome::Applied | Outcome::Done => StoreOutcome::Applied,
            Outcome::Read(ReadBlocks { records, payload }) => StoreOutcome::Read { records, payload },
            Outcome::Listed(page) => StoreOutcome::Listed(page),
            Outcome::Newer(runs) => StoreOutcome::Newer(runs),
            Outcome::Failed(StoreError::Corrupt { chunk, block }) => {
                StoreOutcome::Damaged { chunk, block, lost: None }
            }
            Outcome::Failed(StoreError::Lost { chunk, block, newest }) => {
                StoreOutcome::Damaged { chunk, block, lost: Some(newest) }
            }
            Outcome::Failed(error) => StoreOutcome::Failed(error.refusal()),
            Outcome::Digest(_) => unreachable!("the protocol core asks for no digest"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub token: Token,
    pub outcome: Outcome,
}

/// The blocks asked for, whole and in order, as maximal runs of equal version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBlocks {
    /// Never-written and deleted blocks have version zero and kind `Zero`.
    pub records: Vec<Record>,
    /// The bytes of the data runs, one after another. Every block has passed its checksum.
    pub payload: bytes::Bytes,
}

/// Equal visible content gives equal digests, whatever the writes that led to it: blocks of zeroes, never-written blocks
/// and deleted blocks are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDigest {
    pub digest: u64,
    /// Blocks that are not all zero.
    pub blocks: u64,
    /// Digest of every chunk that has such blocks, so that a difference can be named.
    pub chunks: BTreeMap<ChunkId, u64>,
}

/// Figures for the heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// On disk, segments included.
    pub used: Bytes,
    pub capacity: Bytes,
    /// Data kept as offload: the debt.
    pub offload: Bytes,
    pub poisoned: bool,
    pub mark: StoreMark,
}

/// What the store knows of the metadata that it served under. Kept so that a cluster that was founded again, or metadata that
/// went back, is not obeyed: what such metadata says of this data is not true (R11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// `ClusterParams::instance`; zero: the store never served.
    pub instance: u64,
    /// The newest version of the cluster map that was seen here, or one from shortly before.
    pub map_version: u64,
}

/// What the protocol needs to know after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// This run's number.
    pub incarnation: Incarnation,
    pub membership: Membership,
    /// Per group what is known of the last records.
    pub tails: BTreeMap<GroupId, RecoveredTail>,
    /// What is kept here for which group, and as what.
    pub spaces: Vec<(GroupId, Space)>,
    /// Segment bytes that a crash left half written, and that were cut off. They were never acknowledged.
    pub torn_bytes: u64,
}

impl Recovered {
    /// What the protocol core needs to know of it.
    pub fn for_the_core(self) -> ebb_types::Recovered {
        ebb_types::Recovered { tails: self.tails, spaces: self.spaces, scrubs: Vec::new() }
    }
}

/// Runs in one page of a listing that a server asks for.
pub const LIST_RUNS: usize = 1024;

/// Most records of a group that are known to be on all targets and still told at a start, for their requests.
pub const DONE_RUNS: usize = 1024;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the store is full ({used} of {capacity}): delete data, raise the capacity or add servers")]
    NoSpace { used: Bytes, capacity: Bytes },
    #[error(
        "the disk failed to make data durable; the store serves nothing until it is opened again: check the disk"
    )]
    Poisoned,
    #[error("block {block} of {chunk} fails its checksum: fetch it from another copy")]
    Corrupt { chunk: ChunkId, block: u32 },
    /// Its metadata are damaged or gone: not even its version is known, only one that it was not newer than.
    #[error("what block {block} of {chunk} contained is not known any more: fetch it from another copy")]
    Lost { chunk: ChunkId, block: u32, newest: Version },
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

impl StoreError {
    /// The same, as it is told to other servers.
    pub fn refusal(&self) -> Refusal {
        match self {
            StoreError::NoSpace { .. } => Refusal::NoSpace,
            StoreError::Poisoned => Refusal::Poisoned,
            StoreError::Corrupt { .. } | StoreError::Lost { .. } => Refusal::Corrupt,
            StoreError::Malformed(_) => Refusal::Malformed,
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the directory belongs to cluster {found:016x}, not {expected:016x}: name another directory, or remove this one"
    )]
    OtherCluster { found: u64, expected: u64 },
    #[error("the directory belongs to {found}, not {expected}: give every server a directory of its own")]
    OtherServer { found: ServerId, expected: ServerId },
    #[error(
        "the directory has store format {found}, this program writes {known}: run the release that wrote it"
    )]
    OtherFormat { found: u32, known: u32 },
    #[error("the directory has no superblock but is not empty ({found}): name an empty directory")]
    NotAStore { found: String },
    #[error("another process uses the directory: stop it first")]
    InUse,
    #[error(
        "{file} is damaged at byte {offset}: {what}. Move the directory away and start the server on an empty one: the cluster \
         then copies to it what it lacks. Keep the old one until `ebb status` shows no replica catching up"
    )]
    Damaged { file: String, offset: u64, what: &'static str },
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: String, source: std::io::Error },
}
