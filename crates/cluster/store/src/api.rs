//! The store's operations and results. `StoreCore` carries operations out on the caller's thread;
//! `StoreHandle` does the same on one I/O thread and delivers [`Completion`]s.

use ebb_types::{
    Bytes, CHUNK_BYTES_MAX, ChunkId, Cursor, Epoch, GroupId, Incarnation, ListPage, Membership, Record,
    RecoveredTail, Refusal, Role, Run, ServerId, StoreCommand, StoreId, StoreOutcome, StoreTask, Version,
};
use std::collections::BTreeMap;

/// Bounds of [`Config::checkpoint_bytes`]: a write goes to several servers, which should not all start a checkpoint at
/// once.
const CHECKPOINT_LEAST: u64 = 48 << 20;
const CHECKPOINT_SPREAD: u64 = 32 << 20;

/// Parameters for opening a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster that the directory must belong to; a new directory records it.
    pub cluster: u64,
    pub server: ServerId,
    /// Drawn at random by the caller for each start: the identity that the store takes if it needs a new one. Its low
    /// bits go into the incarnation.
    pub fresh_id: StoreId,
    /// The metadata service knows this incarnation of the server, and the directory does not continue it: the store
    /// takes a new identity and counts incarnations from there on.
    pub supersedes: Option<Incarnation>,
    /// Size of the cluster's chunks: blocks beyond it cannot be lost.
    pub chunk_bytes: u32,
    /// Maximum bytes to use; `None`: the file system's size, less a reserve of `checkpoint_bytes`. `must_fit` writes
    /// may use that much more.
    pub capacity: Option<Bytes>,
    /// Length at which the open segment is sealed and a new one is started.
    pub segment_bytes: u32,
    /// A checkpoint moves records to chunk files when this much has been written to segments.
    pub checkpoint_bytes: u64,
    /// Replica payloads of at least this size go straight to their chunk file if they overwrite nothing.
    pub direct_bytes: usize,
    /// Segments are kept, even if chunk files have everything in them, until this many bytes follow them: a restart
    /// learns from them which requests are done.
    pub tail_bytes: u64,
    /// Pages of block metadata (4 KiB each) kept in memory.
    pub cached_pages: usize,
    /// Files kept open. A read that needs another file, or a page that is not cached, goes through the store's thread.
    pub open_files: usize,
    /// A defect that the fault search must find. Only builds with the feature `planted-bugs` have any.
    pub planted: Option<PlantedBug>,
}

/// Deliberate defects, to show that the fault search finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A write is reported durable before it is synced.
    SkipSync,
    /// A missing or damaged page of a chunk file counts as empty.
    LostPageIsEmpty,
}

impl Config {
    pub fn new(cluster: u64, server: ServerId, fresh_id: StoreId) -> Config {
        // Multiples of the golden ratio keep servers with adjacent ids far apart.
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
            planted: None,
        }
    }

    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.planted == Some(bug)
    }
}

/// Identifies an operation that awaits completion; chosen by the caller.
pub type Token = u64;

/// An operation of the store. Each ends in one [`Completion`]. Operations in flight together may run in any order,
/// except that writes and drops run in order of submission.
#[derive(Clone, Debug)]
pub enum Op {
    /// Make the record durable: it takes effect on exactly those blocks that are older. Payload: its data, if any; the
    /// receiver of the message has verified its checksums. `must_fit`: acknowledged data depends on it, so it may use
    /// the reserve. `repair`: it is known to be the newest version of each block that is lost and was not newer than
    /// this, and takes effect on these, too; any other record does so only if it is surely newer. Version zero in a
    /// repair says that the blocks were never written.
    /// `committed`: everything of the group up to this version is on all targets; recovery reports later records as
    /// open.
    Apply {
        role: Role,
        record: Record,
        payload: bytes::Bytes,
        must_fit: bool,
        repair: Option<Version>,
        committed: Version,
    },
    /// Read `count` blocks (at most `RECORD_BLOCKS_MAX`).
    Read { role: Role, group: GroupId, chunk: ChunkId, first: u32, count: u32 },
    /// As `Read`, but from the device instead of the page cache, and without payload in the result unless `bytes` says
    /// so: for scrubs.
    Check { role: Role, group: GroupId, chunk: ChunkId, first: u32, count: u32, bytes: bool },
    /// About `limit` runs with versions of epoch `since` or later in (chunk, block) order, from `after` on. A chunk's
    /// deletion is a run with no blocks and precedes the chunk's blocks.
    List { role: Role, group: GroupId, since: Epoch, after: Option<Cursor>, limit: usize },
    /// The parts of `runs` that are newer than what is here.
    Newer { role: Role, group: GroupId, runs: Vec<Run> },
    /// Drop all offload kept for `stands_for` in this group.
    DropOffload { group: GroupId, stands_for: ServerId },
    /// Drop all that is kept as a replica of the group.
    DropReplica { group: GroupId },
    /// Forget the replica's deletions up to this version: every replica has applied them.
    ForgetTombstones { group: GroupId, up_to: Version },
    /// Store this in the superblock.
    Remember(Membership),
    /// Move everything that can be moved from segments to chunk files. Then an idle store has nothing left to write.
    Flush,
    /// A digest of the group's visible content, whatever writes led to it. `verify` reads and checks every block.
    Digest { role: Role, group: GroupId, verify: bool },
    /// What is kept of the group, in whichever role.
    Space { group: GroupId },
}

impl Op {
    /// The operation for a command of the protocol core. `page`: maximum runs in one page of a listing.
    pub fn asked(command: StoreCommand, page: usize) -> Op {
        match command {
            StoreCommand::Apply { role, record, payload, must_fit, committed } => {
                Op::Apply { role, record, payload, must_fit, repair: None, committed }
            }
            StoreCommand::Repair { role, record, payload, lost } => {
                let committed = Version::ZERO;
                Op::Apply { role, record, payload, must_fit: true, repair: Some(lost), committed }
            }
            StoreCommand::Read { role, group, chunk, first, count } => {
                Op::Read { role, group, chunk, first, count }
            }
            StoreCommand::Check { role, group, chunk, first, count, bytes } => {
                Op::Check { role, group, chunk, first, count, bytes }
            }
            StoreCommand::List { role, group, since, after } => {
                Op::List { role, group, since, after, limit: page }
            }
            StoreCommand::Newer { role, group, runs } => Op::Newer { role, group, runs },
        }
    }

    /// Whether it is part of a group commit.
    pub fn is_write(&self) -> bool {
        matches!(self, Op::Apply { .. } | Op::DropOffload { .. } | Op::DropReplica { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Also for a record that is wholly older than what is here.
    Applied,
    Read(ReadBlocks),
    Listed(ListPage),
    Newer(Vec<Run>),
    Digest(GroupDigest),
    Space(GroupSpace),
    /// For operations that return nothing.
    Done,
    Failed(StoreError),
}

impl From<StoreTask> for Op {
    fn from(task: StoreTask) -> Op {
        match task {
            StoreTask::Drop { group, role: Role::Replica } => Op::DropReplica { group },
            StoreTask::Drop { group, role: Role::Offload { stands_for } } => {
                Op::DropOffload { group, stands_for }
            }
            StoreTask::ForgetTombstones { group, up_to } => Op::ForgetTombstones { group, up_to },
            StoreTask::Remember(membership) => Op::Remember(membership),
            StoreTask::Flush => Op::Flush,
        }
    }
}

impl From<Outcome> for StoreOutcome {
    fn from(outcome: Outcome) -> StoreOutcome {
        match outcome {
            Outcome::Applied | Outcome::Done => StoreOutcome::Applied,
            Outcome::Read(ReadBlocks { records, payload }) => StoreOutcome::Read { records, payload },
            Outcome::Listed(page) => StoreOutcome::Listed(page),
            Outcome::Newer(runs) => StoreOutcome::Newer(runs),
            Outcome::Failed(StoreError::Corrupt { chunk, block }) => {
                StoreOutcome::Damaged { chunk, block, lost: None, given_up: false, all: false }
            }
            Outcome::Failed(StoreError::Lost { chunk, block, newest, all }) => {
                StoreOutcome::Damaged { chunk, block, lost: Some(newest), given_up: false, all }
            }
            Outcome::Failed(StoreError::GivenUp { chunk, block, all }) => {
                StoreOutcome::Damaged { chunk, block, lost: None, given_up: true, all }
            }
            Outcome::Failed(error) => StoreOutcome::Failed(error.refusal()),
            Outcome::Digest(_) | Outcome::Space(_) => {
                unreachable!("no server asks for a digest or for space")
            }
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
    /// The bytes of the data runs, concatenated. Every block has passed its checksum.
    pub payload: bytes::Bytes,
}

/// Equal visible content gives equal digests, whatever writes led to it: blocks of zeroes, never-written blocks
/// and deleted blocks are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDigest {
    pub digest: u64,
    /// Blocks that are not all zero.
    pub blocks: u64,
    /// Digest of every chunk that has such blocks, so that a difference can be located.
    pub chunks: BTreeMap<ChunkId, u64>,
}

/// What a store keeps of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpace {
    /// Bytes on disk of every chunk that is there, without heads in segments.
    pub chunks: BTreeMap<ChunkId, u64>,
    /// Deletions that are remembered.
    pub tombstones: u64,
}

/// What recovery found at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The incarnation of this run.
    pub incarnation: Incarnation,
    pub membership: Membership,
    /// What is known of each group's last records.
    pub tails: BTreeMap<GroupId, RecoveredTail>,
    /// The groups of which anything is kept, be it an open record, and in which role.
    pub roles: Vec<(GroupId, Role)>,
    /// Segment bytes that a crash left half written and that were cut off. They were never acknowledged.
    pub torn_bytes: u64,
}

impl Recovered {
    /// The part that the protocol core needs.
    pub fn for_the_core(self) -> ebb_types::Recovered {
        ebb_types::Recovered { tails: self.tails, roles: self.roles, scrubs: Vec::new() }
    }
}

/// Maximum runs in one page of a listing for a server.
pub const LIST_RUNS: usize = 1024;

/// Maximum records per group that are known to be on all targets and that recovery still reports, for their request
/// ids.
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
    /// It lacks file descriptors or memory, or was interrupted: nothing is damaged, and the same operation may succeed
    /// later.
    #[error(
        "the store cannot do this now ({}) and tries again: raise the limit of open files, or free memory",
        std::io::Error::from_raw_os_error(*errno)
    )]
    NotNow { errno: i32 },
    #[error("block {block} of {chunk} fails its checksum: fetch it from another copy")]
    Corrupt { chunk: ChunkId, block: u32 },
    /// It is stored as lost ([`ebb_types::lost_block_crc`]), and no other block is damaged. `all`: so are all blocks
    /// that were asked for.
    #[error("block {block} of {chunk} is lost on all copies: write it again, from a backup")]
    GivenUp { chunk: ChunkId, block: u32, all: bool },
    /// Its metadata is damaged or gone: not even its version is known, only that it was not newer than `newest`. `all`:
    /// the other blocks that were asked for are lost or given up.
    #[error("the content of block {block} of {chunk} is lost here: fetch it from another copy")]
    Lost { chunk: ChunkId, block: u32, newest: Version, all: bool },
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

impl StoreError {
    /// The same, as reported to other servers.
    pub fn refusal(&self) -> Refusal {
        match self {
            StoreError::NoSpace { .. } => Refusal::NoSpace,
            StoreError::Poisoned => Refusal::Poisoned,
            StoreError::Corrupt { .. } | StoreError::GivenUp { .. } | StoreError::Lost { .. } => {
                Refusal::Corrupt
            }
            StoreError::Malformed(_) => Refusal::Malformed,
            StoreError::NotNow { .. } => Refusal::NotReady,
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
