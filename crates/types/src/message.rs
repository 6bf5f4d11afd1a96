//! The messages of the wire: between chunk servers, from clients to chunk servers, and to the metadata service.
//!
//! Bodies are postcard; bulk data travels as the frame's payload beside the body ([`crate::frame`]). Every message that
//! concerns a chunk group carries the sender's epoch: a receiver refuses older ones (R1) and fences itself to newer ones.

use crate::{
    ChunkId, ClusterParams, Epoch, GroupEntry, GroupId, Incarnation, Kind, LoadCount, MapDelta, Record,
    RequestId, Run, ServerId, Space, StoreMark, Version,
};
use serde::{Deserialize, Serialize};

/// Chunk server to chunk server. One-way: answers are messages of their own and name what they answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// The new primary of `epoch` asks a member to refuse everything older and to show its tail (R4).
    /// `done`: the last records that the primary knows to be committed, for their request ids.
    Fence {
        group: GroupId,
        epoch: Epoch,
        done: Vec<TailRun>,
    },
    /// The records that the member has and does not know to be committed; and the last that it does, for their request ids.
    /// `forgotten`: of what took effect after this version, as far as the member was told of it ([`crate::Told`]), nothing is
    /// missing in these.
    FenceReply {
        group: GroupId,
        epoch: Epoch,
        tail: Vec<TailRun>,
        done: Vec<TailRun>,
        forgotten: Version,
    },
    /// The primary asks the member to make a record durable. Payload: the record's blocks. `must_fit`: it completes or
    /// protects what is acknowledged elsewhere, and may use the space that a full server keeps in reserve (R10).
    Replicate {
        epoch: Epoch,
        space: Space,
        record: Record,
        committed: Version,
        must_fit: bool,
    },
    /// `first`: the record's first block.
    ReplicateReply {
        group: GroupId,
        epoch: Epoch,
        version: Version,
        first: u32,
        result: Result<(), Refusal>,
    },
    /// Every write up to `committed` is on all its targets.
    Committed {
        group: GroupId,
        epoch: Epoch,
        committed: Version,
    },
    /// Asks for the runs of `space` with versions of epoch `since` or later, from `after` on.
    List {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        space: Space,
        since: Epoch,
        after: Option<Cursor>,
    },
    ListReply {
        group: GroupId,
        token: u64,
        result: Result<ListPage, Refusal>,
    },
    /// Asks for the content of a run of blocks as it is now. `whole`: only if a replica that answers misses none of them.
    Fetch {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        space: Space,
        chunk: ChunkId,
        first: u32,
        count: u32,
        whole: bool,
    },
    /// The records that the blocks consist of. Payload: their payloads, one after another.
    FetchReply {
        group: GroupId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    },
    /// A replica is to be scrubbed: compare the group's copies from `after` on. `overdue`: also under load.
    Scrub {
        group: GroupId,
        epoch: Epoch,
        after: Option<Cursor>,
        overdue: bool,
    },
    /// Read these blocks from disk, check them, and say what they are. The primary orders no write of them meanwhile.
    Check {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        space: Space,
        chunk: ChunkId,
        first: u32,
        count: u32,
    },
    /// The records that the blocks consist of, with their checksums and without their bytes.
    CheckReply {
        group: GroupId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    },
    /// The receiver's replica was read and compared from `after` to `end`, or to the end of the group. `sound`: whatever was wrong
    /// with it is right again.
    Scrubbed {
        group: GroupId,
        epoch: Epoch,
        after: Option<Cursor>,
        end: Option<Cursor>,
        sound: bool,
    },
}

/// A record of a member's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailRun {
    pub run: Run,
    pub request: Option<RequestId>,
}

/// Where a listing continues: after this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    pub chunk: ChunkId,
    pub block: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    pub runs: Vec<Run>,
    /// `None`: that was all.
    pub next: Option<Cursor>,
}

/// How far the scrub of one replica is: kept over restarts by the server that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubMark {
    pub group: GroupId,
    /// When all of it was last found right, in seconds since 1970.
    pub sound_at: u64,
    /// The present pass has come to here; `None`: none has begun.
    pub after: Option<Cursor>,
    /// It has found nothing that could not be repaired.
    pub sound_so_far: bool,
    /// Nor has the last whole pass.
    pub sound: bool,
}

/// Why a member did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("a newer epoch ({newest}) has been seen")]
    Stale { newest: Epoch },
    #[error("no space left")]
    NoSpace,
    #[error("the store failed a sync and stopped serving")]
    Poisoned,
    #[error("a stored block fails its checksum")]
    Corrupt,
    #[error("the message is malformed")]
    Malformed,
    #[error("not known here yet")]
    NotReady,
}

/// What a client asks of a chunk's primary. Offsets and lengths are bytes within the chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkOp {
    /// Never-written bytes read as zero; or, if they `must_exist`, are damage: sought elsewhere, and an error where no copy has
    /// them.
    Read { chunk: ChunkId, offset: u32, len: u32, must_exist: bool },
    /// Payload: the bytes. One checksum per block that they touch: [`crate::piece_crcs`].
    Write { chunk: ChunkId, offset: u32, len: u32, request: RequestId, crcs: Vec<u32> },
    /// Sets a range to zero and frees its whole blocks.
    Zero { chunk: ChunkId, offset: u32, len: u32, request: RequestId },
    /// Removes the chunk for good.
    Delete { chunk: ChunkId, request: RequestId },
}

impl ChunkOp {
    pub fn chunk(&self) -> ChunkId {
        match *self {
            ChunkOp::Read { chunk, .. }
            | ChunkOp::Write { chunk, .. }
            | ChunkOp::Zero { chunk, .. }
            | ChunkOp::Delete { chunk, .. } => chunk,
        }
    }

    pub fn request(&self) -> Option<RequestId> {
        match *self {
            ChunkOp::Read { .. } => None,
            ChunkOp::Write { request, .. }
            | ChunkOp::Zero { request, .. }
            | ChunkOp::Delete { request, .. } => Some(request),
        }
    }

    /// Byte range within the chunk; empty for a delete.
    pub fn range(&self) -> (u32, u32) {
        match *self {
            ChunkOp::Read { offset, len, .. }
            | ChunkOp::Write { offset, len, .. }
            | ChunkOp::Zero { offset, len, .. } => (offset, len),
            ChunkOp::Delete { .. } => (0, 0),
        }
    }

    /// What the op sets its blocks to; `None` for a read.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            ChunkOp::Read { .. } => None,
            ChunkOp::Write { .. } => Some(Kind::Data),
            ChunkOp::Zero { .. } => Some(Kind::Zero),
            ChunkOp::Delete { .. } => Some(Kind::Delete),
        }
    }
}

/// A client's request with the epoch of the map entry that it was routed by.
///
/// `since`: what a copy of it wrote has a later version. The client knew of this one before it sent the first copy that may be
/// carried out. So a primary that has forgotten requests up to a version knows for sure whether it may have forgotten this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRequest {
    pub group: GroupId,
    pub epoch: Epoch,
    pub since: Version,
    pub op: ChunkOp,
}

/// Answer to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// Payload: the bytes read. One checksum per block that they touch: [`crate::piece_crcs`].
    Data {
        crcs: Vec<u32>,
    },
    /// All r copies are durable. `newest`: the newest version that the primary has given in the group.
    Done {
        newest: Version,
    },
    /// This copy of the request is not carried out. Whether an earlier one was is not known any more here. If there is no such, the
    /// request may be sent again as one that was begun after `newest`. `in_part`: some of it was carried out.
    Forgotten {
        newest: Version,
        in_part: bool,
    },
    /// Not served here: the group's configuration as this server knows it. Retry there at once.
    Moved {
        entry: GroupEntry,
    },
    /// Not served now; retry after a pause.
    Retry {
        why: Unready,
    },
    Failed {
        why: ChunkError,
    },
}

/// Why a request cannot be served this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unready {
    #[error("the server's lease has ended")]
    NoLease,
    #[error("the server does not know this configuration yet")]
    Behind,
    #[error("fewer servers than copies are awake; servers are being woken")]
    TooFewCopies,
    #[error("the server is overloaded")]
    Busy,
    #[error("the bytes were damaged on their way to the server, or do not fit their checksums")]
    Garbled,
    /// To a write that may have been carried out.
    #[error("a change of the group's configuration interrupted it")]
    Interrupted,
    /// To a write that is on some copies already, and is carried out as soon as there is room for the others.
    #[error("a server that is to keep it is full: delete data or add servers")]
    Full,
}

/// Why a request failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ChunkError {
    #[error("the range lies outside the chunk")]
    OutOfRange,
    #[error("the store is full: delete data or add servers")]
    NoSpace,
    #[error("no copy of this block passes its checksum")]
    Corrupt,
    #[error("no copy has these bytes: they were never written, or were removed")]
    Missing,
    #[error("the request is malformed")]
    Malformed,
}

/// What a chunk server tells the metadata service about its groups. Delivered at least once; applying twice is harmless
/// because each names the epoch that it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerReport {
    /// I am a slot's server that catches up, and I have everything now.
    CaughtUp { group: GroupId, epoch: Epoch },
    /// I am the primary: the stand-in of `stands_for` has everything now.
    Covered { group: GroupId, epoch: Epoch, stands_for: ServerId },
    /// I am the primary: `server` does not answer or failed to store.
    Suspect { group: GroupId, epoch: Epoch, server: ServerId },
    /// I was the primary: I have drained, appoint another. [Sierra §3.5 step 2]
    Released { group: GroupId, epoch: Epoch },
    /// I am the primary, all targets are fenced, and the epoch has not the leave to serve yet: record that it does, and I
    /// shall.
    Serving { group: GroupId, epoch: Epoch },
    /// I am the primary: a block of mine is damaged, and no awake member has it. Those asleep may.
    Damaged { group: GroupId, epoch: Epoch },
}

/// What every heartbeat carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vitals {
    /// Client work since the last heartbeat that was answered, and the time that it covers.
    pub load: LoadCount,
    pub load_millis: u32,
    /// Bytes used and usable on the store.
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    /// Offload kept here for others.
    pub debt_bytes: u64,
    /// Requests in flight, and writes waiting for the disk: the holder choice's "disk load".
    pub in_flight: u32,
    /// Catch-ups not finished here.
    pub catching_up: u32,
    /// Offload bytes taken, and given back to returning replicas, since start.
    pub offloaded_bytes: u64,
    pub reclaimed_bytes: u64,
    /// Blocks that were damaged here and were repaired, since start.
    pub repaired_blocks: u64,
    pub damage: DamageVitals,
    pub scrub: ScrubVitals,
    /// The store failed and refuses to serve (R9).
    pub poisoned: bool,
}

/// What a server found wrong with bytes, since start. What was repaired is in [`Vitals::repaired_blocks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageVitals {
    /// Reads and listings of the own store that met a block which fails its checksum.
    pub corrupt: u64,
    /// The same for blocks of which not even the version is known any more: their metadata or their file is gone.
    pub lost: u64,
    /// Bytes that clients or other servers sent and that arrived as others. They were refused, and sent again.
    pub garbled: u64,
    /// As primary: reads of what was surely written and is not here. Other copies were asked.
    pub sought: u64,
    /// Repairs that were given up, and reads that failed for it: no copy that was awake had the blocks.
    pub unrepaired: u64,
}

/// How a server's scrubs stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubVitals {
    /// Replicas here that are in sync.
    pub replicas: u32,
    /// Those that are scrubbed, or wait to be, because half of the period is over; and those of which all of it is.
    pub due: u32,
    pub overdue: u32,
    /// Those of which something could not be repaired when it was last looked at.
    pub unsound: u32,
    /// Those that an administrator asked to have scrubbed, and that were not found right since.
    pub asked: u32,
    /// Since all of a replica was found right, of the one where that is longest ago.
    pub oldest_seconds: u64,
    /// Bytes read here for scrubs, since start.
    pub checked_bytes: u64,
    /// As primary: blocks in which copies differed, and those of them that were made equal again, since start.
    pub differing_blocks: u64,
    pub equalled_blocks: u64,
}

/// Chunk server to metadata service. `ServerMessage` needs no request id: answers are [`MetaPush`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// "I am alive." `sent` is the server's own clock and comes back in the answer, so that the lease is counted from
    /// before the request left. `map_version`: the newest map that the server has.
    Heartbeat {
        server: ServerId,
        incarnation: Incarnation,
        mark: StoreMark,
        sent: crate::Moment,
        map_version: u64,
        vitals: Vitals,
    },
    Reports {
        server: ServerId,
        incarnation: Incarnation,
        reports: Vec<ServerReport>,
    },
    /// Everything is handed over and flushed: switch me. `map_version`: the map by which nobody needs the server, so that an
    /// answer to an earlier drain is told apart.
    ReadyToSleep {
        server: ServerId,
        incarnation: Incarnation,
        map_version: u64,
    },
}

impl ServerMessage {
    /// Who says that it sent this.
    pub fn server(&self) -> ServerId {
        match self {
            ServerMessage::Heartbeat { server, .. }
            | ServerMessage::Reports { server, .. }
            | ServerMessage::ReadyToSleep { server, .. } => *server,
        }
    }
}

/// Metadata service to chunk servers and to watching clients, unasked or as the answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaPush {
    /// The lease runs for `ClusterParams::lease_millis` from `sent` on the receiver's clock. The next heartbeat is wanted after
    /// `next_millis`: more often than usual where a day is rehearsed in minutes, because each carries a load sample.
    Lease {
        sent: crate::Moment,
        next_millis: u32,
    },
    Map(MapDelta),
    Params(ClusterParams),
    /// Hand over all you are primary of; then say `ReadyToSleep`. Repeated until done.
    Drain,
    /// Release these groups, if you are primary of them under these epochs: another server shall serve them. The balancing
    /// half of a gear shift; you stay awake. Repeated until done.
    HandOver {
        groups: Vec<(GroupId, Epoch)>,
    },
    /// Your store is not the one that served under this id last, or it went back: run `known` of another store is on record, or
    /// of yours with more in it. Give your store a new identity, number your run higher, and register again: then it is taken
    /// for a store that may lack anything, and fetches what it lacks (R11).
    Superseded {
        known: Incarnation,
    },
    /// This run of yours is not known (any more), or the cluster is another: register anew or stop.
    Rejected {
        why: String,
    },
}

/// An administrator to a chunk server: questions that change nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectRequest {
    /// What the group's blocks contain, as this server keeps them as a replica. `verify`: read and check every block.
    Digest { group: GroupId, verify: bool },
    /// Scrub all replicas of this server now.
    Scrub,
}

/// Answer to an [`InspectRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectReply {
    /// Equal content gives equal digests, whatever the writes that led to it. `blocks` counts those that are not all zero;
    /// `chunks` names the chunks that have any.
    Digest {
        digest: u64,
        blocks: u64,
        chunks: Vec<(ChunkId, u64)>,
    },
    /// So many replicas wait to be scrubbed here, those that catch up when they are in sync.
    Scrub {
        replicas: u32,
    },
    Failed {
        why: String,
    },
}
