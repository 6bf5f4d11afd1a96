//! The messages of the wire: between chunk servers, from clients to chunk servers, and to the metadata service.
//!
//! Bodies are postcard; bulk data travels as the frame's payload beside the body ([`crate::frame`]). Every message that
//! concerns a chunk group carries the sender's epoch: a receiver refuses older ones (R1) and fences itself to newer
//! ones.

use crate::{
    BLOCK_BYTES, ChunkId, ClusterParams, Depth, Epoch, GroupEntry, GroupId, Incarnation, Kind, LoadCount,
    MapDelta, ObjectId, Record, RequestId, Role, Run, ServedLatencies, ServerId, SetEntry, SetId, StoreId,
    StoreMark, Version,
};
use serde::{Deserialize, Serialize};

/// Chunk server to chunk server. One-way: replies are separate messages that identify what they reply to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// The new primary of `epoch` asks a member to refuse everything older and to send its tail (R4).
    /// `done`: the last records that the primary knows to be committed, for their request ids.
    Fence {
        group: GroupId,
        epoch: Epoch,
        done: Vec<TailRun>,
    },
    /// `tail`: the records that the member has and does not know to be committed. `done`: the last that it knows to be,
    /// for their request ids. `forgotten`: these are complete for every request that took effect after this version and
    /// that the member received ([`crate::Received`]).
    FenceReply {
        group: GroupId,
        epoch: Epoch,
        tail: Vec<TailRun>,
        done: Vec<TailRun>,
        forgotten: Version,
    },
    /// The primary asks the member to make a record durable. Payload: the record's blocks. `must_fit`: it completes or
    /// protects data that is acknowledged elsewhere, and may use a full server's reserve (R10).
    Replicate {
        epoch: Epoch,
        role: Role,
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
    /// Asks for the runs of `role` with versions of epoch `since` or later, from `after` on.
    List {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        role: Role,
        since: Epoch,
        after: Option<Cursor>,
    },
    ListReply {
        group: GroupId,
        token: u64,
        result: Result<ListPage, Refusal>,
    },
    /// Asks for the present content of a run of blocks. `whole`: a replica must refuse if it misses any of them.
    Fetch {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        role: Role,
        chunk: ChunkId,
        first: u32,
        count: u32,
        whole: bool,
    },
    /// The records that make up the blocks. Payload: their payloads, concatenated.
    FetchReply {
        group: GroupId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    },
    /// The sender's replica is due for a scrub: compare the group's copies from `after` on. `overdue`: even under load.
    Scrub {
        group: GroupId,
        epoch: Epoch,
        after: Option<Cursor>,
        overdue: bool,
    },
    /// Asks the member to read these blocks from disk, check them, and report them. The primary orders no write to them
    /// meanwhile.
    Check {
        group: GroupId,
        epoch: Epoch,
        token: u64,
        role: Role,
        chunk: ChunkId,
        first: u32,
        count: u32,
    },
    /// The records that make up the blocks, with their checksums and without their bytes.
    CheckReply {
        group: GroupId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    },
    /// The receiver's replica was read and compared from `after` to `end`; `None`: to the end of the group. `sound`:
    /// nothing was wrong with it, or everything was repaired.
    Scrubbed {
        group: GroupId,
        epoch: Epoch,
        after: Option<Cursor>,
        end: Option<Cursor>,
        sound: bool,
    },
}

impl PeerMessage {
    /// The group that it is about.
    pub fn group(&self) -> GroupId {
        match self {
            PeerMessage::Replicate { record, .. } => record.group,
            PeerMessage::Fence { group, .. }
            | PeerMessage::FenceReply { group, .. }
            | PeerMessage::ReplicateReply { group, .. }
            | PeerMessage::Committed { group, .. }
            | PeerMessage::List { group, .. }
            | PeerMessage::ListReply { group, .. }
            | PeerMessage::Fetch { group, .. }
            | PeerMessage::FetchReply { group, .. }
            | PeerMessage::Scrub { group, .. }
            | PeerMessage::Check { group, .. }
            | PeerMessage::CheckReply { group, .. }
            | PeerMessage::Scrubbed { group, .. } => *group,
        }
    }
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

impl Cursor {
    /// Of a listing that begins with this chunk; `None`: that is where listings begin.
    pub fn before(chunk: ChunkId) -> Option<Cursor> {
        let last = |object| ChunkId { object, index: u32::MAX };
        let before = match chunk.index.checked_sub(1) {
            Some(index) => ChunkId { index, ..chunk },
            None => last(ObjectId(chunk.object.0.checked_sub(1)?)),
        };
        Some(Cursor { chunk: before, block: u32::MAX })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    pub runs: Vec<Run>,
    /// `None`: this is the last page.
    pub next: Option<Cursor>,
}

/// Scrub progress of one replica, kept across restarts by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubMark {
    pub group: GroupId,
    /// When all of it was last found sound (Unix seconds).
    pub sound_at: u64,
    /// When it came to its server, until a whole pass finds it sound: `sound_at` is an assumption then.
    #[serde(default)]
    pub new_at: Option<u64>,
    /// How far the present pass has come; `None`: none has begun.
    pub after: Option<Cursor>,
    /// The present pass has found nothing that could not be repaired.
    pub sound_so_far: bool,
    /// Nothing is known that could not be repaired: neither the last whole pass nor the present one found any.
    pub sound: bool,
}

/// Why a member refused a request.
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
    /// To a fetch: not one of the blocks can be read.
    #[error("all of these blocks are lost here")]
    Lost,
    #[error("the message is malformed")]
    Malformed,
    #[error("not known here yet")]
    NotReady,
}

/// A client's operation, for a chunk's primary. Offsets and lengths are bytes within the chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkOp {
    /// Blocks that were never written, or were zeroed, read as zero. With `must_exist` the reader knows that data was
    /// written there. Then never-written blocks count as damage: they are looked for on other copies, and it is an
    /// error if no copy has them. Zeroed ones were freed meanwhile, which is the same error.
    Read { chunk: ChunkId, offset: u32, len: u32, must_exist: bool },
    /// Payload: the bytes. One checksum per block touched: [`crate::piece_crcs`].
    Write { chunk: ChunkId, offset: u32, len: u32, request: RequestId, crcs: Vec<u32> },
    /// Sets a range to zero and frees its whole blocks. With `up_to` it leaves alone every block with a newer version;
    /// the range is then whole blocks, at most one record.
    Zero { chunk: ChunkId, offset: u32, len: u32, up_to: Option<Version>, request: RequestId },
    /// Asks which blocks of a range of whole blocks have data.
    Look { chunk: ChunkId, offset: u32, len: u32 },
    /// Removes the chunk for good.
    Delete { chunk: ChunkId, request: RequestId },
}

impl ChunkOp {
    pub fn chunk(&self) -> ChunkId {
        match *self {
            ChunkOp::Read { chunk, .. }
            | ChunkOp::Look { chunk, .. }
            | ChunkOp::Write { chunk, .. }
            | ChunkOp::Zero { chunk, .. }
            | ChunkOp::Delete { chunk, .. } => chunk,
        }
    }

    pub fn request(&self) -> Option<RequestId> {
        match *self {
            ChunkOp::Read { .. } | ChunkOp::Look { .. } => None,
            ChunkOp::Write { request, .. }
            | ChunkOp::Zero { request, .. }
            | ChunkOp::Delete { request, .. } => Some(request),
        }
    }

    /// Byte range within the chunk; empty for a delete.
    pub fn range(&self) -> (u32, u32) {
        match *self {
            ChunkOp::Read { offset, len, .. }
            | ChunkOp::Look { offset, len, .. }
            | ChunkOp::Write { offset, len, .. }
            | ChunkOp::Zero { offset, len, .. } => (offset, len),
            ChunkOp::Delete { .. } => (0, 0),
        }
    }

    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(self, ChunkOp::Read { .. } | ChunkOp::Look { .. })
    }

    /// What the op sets its blocks to; `None` for a read.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            ChunkOp::Read { .. } | ChunkOp::Look { .. } => None,
            ChunkOp::Write { .. } => Some(Kind::Data),
            ChunkOp::Zero { .. } => Some(Kind::Zero),
            ChunkOp::Delete { .. } => Some(Kind::Delete),
        }
    }

    /// Whether a full server refuses it: it is data. The note of a claim is a block per group, and without it what is
    /// stored could not even be read again.
    pub fn takes_space(&self) -> bool {
        match self {
            ChunkOp::Write { chunk, offset, len, .. } => {
                !(chunk.is_of_claim() && *offset == 0 && *len as usize <= BLOCK_BYTES)
            }
            _ => false,
        }
    }
}

/// A client's request with the epoch of the map entry that it was routed by.
///
/// `since`: any write by this request has a later version. The client knew this version before it sent the first
/// attempt that may be carried out. So a primary that has forgotten requests up to some version can tell whether it may
/// have forgotten this one.
///
/// `claim`: the number of the claim under which the sender acts; zero: it needs none. A primary carries the request out
/// only under the newest claim on the object (R16).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRequest {
    pub group: GroupId,
    pub epoch: Epoch,
    pub since: Version,
    pub claim: u64,
    pub op: ChunkOp,
}

/// Reply to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// Payload: the bytes read. One checksum per block touched: [`crate::piece_crcs`].
    Data {
        crcs: Vec<u32>,
    },
    /// To a look.
    Looked(Looked),
    /// All r copies are durable. `newest`: the newest version that the primary has assigned in the group.
    Done {
        newest: Version,
    },
    /// This attempt is not carried out, and it is no longer known here whether an earlier one was. If there was no
    /// earlier attempt, the request may be sent again as one that began after `newest`. `in_part`: part of it was
    /// carried out.
    Forgotten {
        newest: Version,
        in_part: bool,
    },
    /// Not served here. `entry`: the group's configuration as this server knows it. Retry there at once.
    Moved {
        entry: GroupEntry,
    },
    /// The same for a column of an erasure-coded set.
    SetMoved {
        set: SetId,
        entry: SetEntry,
    },
    /// Not served now; retry after a pause.
    Retry {
        why: Unready,
    },
    Failed {
        why: ChunkError,
    },
}

/// Which blocks of a range have data. All others are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// First block in the chunk, and number; ascending.
    pub runs: Vec<(u32, u32)>,
    /// The newest version of these blocks. A later write to any of them gets a newer one.
    pub newest: Version,
}

/// Why a request cannot be served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unready {
    #[error("the server's lease has ended")]
    NoLease,
    #[error("the server does not know this configuration yet")]
    Behind,
    #[error("fewer servers than copies are awake; servers are being woken")]
    TooFewCopies,
    /// Reply to a write of an erasure-coded set that lacks servers. With one parity column, one is enough.
    #[error(
        "too few servers of its set take part for what is written to survive the failure of one more: bring a failed server back, \
         or give the pool a spare one (`ebb pool status`)"
    )]
    Exposed,
    #[error("the server is overloaded")]
    Busy,
    #[error("the bytes do not match their checksums: they were damaged on the way to the server, or before")]
    Garbled,
    /// Reply to a write that may have been carried out.
    #[error("a change of the group's configuration interrupted it")]
    Interrupted,
    /// Reply to a write that is already on some copies, and is carried out as soon as there is room for the others.
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
    #[error("another process has claimed the object since")]
    Taken,
    /// Reply to a write. Ids are never used again.
    #[error("the chunk was deleted: what is written to it now would belong to nothing")]
    Deleted,
}

impl ChunkError {
    /// Whether the same request may succeed later.
    pub fn may_pass(self) -> bool {
        matches!(self, ChunkError::NoSpace | ChunkError::Corrupt)
    }
}

/// What a chunk server reports to the metadata service about its groups. Delivered at least once; idempotent, because
/// each report carries its epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerReport {
    /// From a slot's server that was catching up: it has everything now.
    CaughtUp { group: GroupId, epoch: Epoch },
    /// From the primary: the holder of `stands_for` has everything now.
    Covered { group: GroupId, epoch: Epoch, stands_for: ServerId },
    /// From the primary: `server` does not answer or failed to store.
    Suspect { group: GroupId, epoch: Epoch, server: ServerId },
    /// From the former primary: it has drained, appoint another. [Sierra §3.5 step 2]
    Released { group: GroupId, epoch: Epoch },
    /// From the primary: all targets are fenced and the epoch may not serve yet. Record that it serves, and the primary
    /// will.
    Serving { group: GroupId, epoch: Epoch },
    /// From the primary: one of its blocks is damaged, and no awake member has it. Sleeping members may.
    Damaged { group: GroupId, epoch: Epoch },
    /// From a server of a set that hibernates: it has strips in memory only of a column whose server lacks them, or had
    /// until it was started again. It does not sleep before that one has them.
    Owes { group: GroupId, epoch: Epoch },
    /// From a server of a set whose columns are all in sync: it remembers many deletions of this epoch. It forgets them
    /// under the next one.
    Remembers { group: GroupId, epoch: Epoch },
}

/// The figures in every heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vitals {
    /// Client work since the last acknowledged heartbeat, and the time that it covers.
    pub load: LoadCount,
    pub load_millis: u32,
    /// How long the requests took that were answered in that time, at the server: the network is not in it.
    pub latencies: ServedLatencies,
    /// Bytes used and usable in the store.
    pub used_bytes: u64,
    pub capacity_bytes: u64,
    /// Bytes of strips kept here as the server's own columns; zero in the replicated pool.
    pub own_bytes: u64,
    /// Bytes of offload kept here for others.
    pub debt_bytes: u64,
    /// The part of them that is in memory only.
    pub memory_bytes: u64,
    /// Requests in flight, and writes waiting for the disk: the "disk load" by which holders are chosen.
    pub in_flight: u32,
    /// Catch-ups in progress here.
    pub catching_up: u32,
    /// Groups whose primary is here and that do not serve all their blocks: it is being activated, or waits for room or
    /// copies to settle what its predecessor left open.
    pub unsettled: u32,
    /// Bytes of offload taken, and bytes reclaimed by returning replicas, since start.
    pub offloaded_bytes: u64,
    pub reclaimed_bytes: u64,
    /// Damaged blocks repaired here, since start.
    pub repaired_blocks: u64,
    pub damage: DamageVitals,
    pub scrub: ScrubVitals,
    /// The store failed and refuses to serve (R9).
    pub poisoned: bool,
    /// The store has not moved for a lease or longer, although it has work: the disk hangs. The server asks for no
    /// lease.
    pub stalled: bool,
    /// Things that cannot happen unless the server's program has a bug, counted since it started. Its log says which.
    pub bugs: u64,
}

/// Damage that a server found, since start. Repaired blocks are counted in [`Vitals::repaired_blocks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageVitals {
    /// Reads and listings of the own store that met a block that fails its checksum.
    pub corrupt: u64,
    /// The same for blocks whose version is no longer known: their metadata or their file is gone.
    pub lost: u64,
    /// Payloads from clients or other servers that arrived corrupted. They were refused, and sent again.
    pub garbled: u64,
    /// As primary: reads of blocks that were surely written and are not here. Other copies were asked.
    pub sought: u64,
    /// Repairs given up because no awake copy had the blocks.
    pub unrepaired: u64,
}

/// State of a server's scrubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubVitals {
    /// Replicas here that are in sync.
    pub replicas: u32,
    /// Replicas due for a scrub because half of the period has passed; and those for which all of it has.
    pub due: u32,
    pub overdue: u32,
    /// Replicas in which something could not be repaired when last scrubbed.
    pub unsound: u32,
    /// Replicas that an administrator asked to scrub and that were not found sound since.
    pub asked: u32,
    /// Seconds since all of a replica was last found sound, or since it came if it was not yet; the maximum over all
    /// replicas.
    pub oldest_seconds: u64,
    /// Bytes read here for scrubs, since start.
    pub checked_bytes: u64,
    /// As primary: blocks in which copies differed, and how many of them were made equal again, since start.
    pub differing_blocks: u64,
    pub equalled_blocks: u64,
}

/// Chunk server to metadata service. `ServerMessage` needs no request id: replies are [`MetaPush`].
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
        vitals: Box<Vitals>,
    },
    Reports {
        server: ServerId,
        incarnation: Incarnation,
        reports: Vec<ServerReport>,
    },
    /// Everything is handed over and flushed: the server may be switched off. `map_version`: the map under which no
    /// group needs the server, which distinguishes this from the answer to an earlier drain.
    ReadyToSleep {
        server: ServerId,
        incarnation: Incarnation,
        map_version: u64,
    },
    /// The answer to [`MetaPush::Exam`].
    Exam {
        server: ServerId,
        incarnation: Incarnation,
        exam: ExamReport,
    },
    /// The answer to [`MetaPush::Recall`].
    Recalls {
        server: ServerId,
        recollection: Box<Recollection>,
    },
}

/// What a chunk server knows of the configurations that served: asked for when the metadata was rescued from a minority
/// of its members, which may be behind (docs/protocol.md, section 12).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recollection {
    /// From which it speaks: another store than the one on record remembers nothing.
    pub store: StoreId,
    /// The newest map version that it ever served under, also in earlier runs.
    pub seen: u64,
    /// Its whole map; version zero: it has none since it started.
    pub map: MapDelta,
    /// The newest epoch that it knows of each group it has something of: of a configuration, a fence or a record.
    pub epochs: Vec<(GroupId, Epoch)>,
}

/// What a server finds about itself after a wake-up. That it arrives shows that the network is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExamReport {
    /// Time of day by the server's clock.
    pub unix_millis: u64,
    /// Its store is open and takes writes.
    pub writable: bool,
    /// Whether the network card still wakes on a magic packet; absent where that is not configured.
    pub wake_on_lan: Option<bool>,
}

impl ServerMessage {
    /// The server that claims to have sent this.
    pub fn server(&self) -> ServerId {
        match self {
            ServerMessage::Heartbeat { server, .. }
            | ServerMessage::Reports { server, .. }
            | ServerMessage::ReadyToSleep { server, .. }
            | ServerMessage::Exam { server, .. }
            | ServerMessage::Recalls { server, .. } => *server,
        }
    }
}

/// Metadata service to chunk servers and to watching clients, unsolicited or in reply to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaPush {
    /// To run `incarnation`: the lease runs for `ClusterParams::lease_millis` from `sent` on the receiver's clock
    /// ([`lease_end`]). The next heartbeat is due after `next_millis`: more often than usual when a day is rehearsed in
    /// minutes, because each carries a load sample.
    Lease {
        incarnation: Incarnation,
        sent: crate::Moment,
        next_millis: u32,
    },
    Map(MapDelta),
    Params(ClusterParams),
    /// Hand over every group you are primary of, then send `ReadyToSleep`. Repeated until done.
    Drain,
    /// Release these groups, if you are primary of them under these epochs: other servers are to serve them. The
    /// balancing half of a gear shift; you stay awake. Repeated until done.
    HandOver {
        groups: Vec<(GroupId, Epoch)>,
    },
    /// Your store is not the one that last served under this id, or it was rolled back: on record is incarnation
    /// `known` of another store, or of yours with more in it. Give your store a new identity, draw a higher
    /// incarnation, and register again: then your store counts as one that may lack anything, and fetches what it lacks
    /// (R11).
    Superseded {
        known: Incarnation,
    },
    /// To run `incarnation`: it has no part in this cluster. Stop.
    Rejected {
        incarnation: Incarnation,
        why: String,
    },
    /// Say what state you are in ([`ServerMessage::Exam`]). Repeated until answered.
    Exam,
    /// Say what you know of the cluster's configurations ([`ServerMessage::Recalls`]). Repeated until answered.
    Recall,
}

impl MetaPush {
    /// Whether it would end run `own` and was meant for an earlier one: it waited meanwhile, in a socket or for the
    /// proof that its leader still leads.
    pub fn is_late(&self, own: Incarnation) -> bool {
        match self {
            MetaPush::Superseded { known } => *known < own,
            MetaPush::Rejected { incarnation, .. } => *incarnation != own,
            _ => false,
        }
    }
}

/// When the lease ends that was granted to run `to` for its heartbeat of `sent`, by the receiver's clock. `None`: none
/// was granted to this run. A clock that counts from the machine's start begins again with it, so a grant that waited
/// meanwhile would count from another beginning, and last for as long as the machine ran before.
pub fn lease_end(
    own: Incarnation,
    now: crate::Moment,
    (to, sent): (Incarnation, crate::Moment),
    lease: std::time::Duration,
) -> Option<crate::Moment> {
    (to == own && sent <= now).then(|| sent + lease)
}

/// The metadata leader to a chunk server about machines. One-way, and given again until the effect shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineOrder {
    /// Put your machine to sleep, if no group and no set needs you.
    Sleep(SleepOrder),
    /// Send the magic packet of this network card to that address: a server of your rack is to wake.
    Magic { mac: [u8; 6], to: String },
}

/// An order to sleep, and what it was decided by: a server obeys none that is older than what it knows itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepOrder {
    pub incarnation: Incarnation,
    /// The map by which the leader has the server asleep. One that was deposed may not know of a newer one, in which
    /// others count on the server again.
    pub map_version: u64,
    pub depth: Depth,
    /// The time in the server's last heartbeat that the leader received: an order that waited in a socket while the
    /// machine slept would put it to sleep again.
    pub heard: crate::Moment,
}

impl SleepOrder {
    /// Whether it counts for run `own`, which knows the map of version `known`. It is void a lease after the heartbeat
    /// that it answers.
    pub fn counts(
        &self,
        own: Incarnation,
        known: u64,
        now: crate::Moment,
        lease: std::time::Duration,
    ) -> bool {
        let is_fresh = self.heard <= now && now.since(self.heard) <= lease;
        self.incarnation == own && self.map_version >= known && is_fresh
    }
}

/// Chunk server to metadata service: it was told to put its machine to sleep and stays awake, because it could not be
/// woken, or cannot sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepRefusal {
    pub depth: Depth,
    pub why: String,
}

/// An administrator to a chunk server: inspect a group, or start scrubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectRequest {
    /// A digest of the blocks that this server keeps as a replica of the group. `verify`: read and check every block.
    Digest { group: GroupId, verify: bool },
    /// What this server keeps of the group, in whichever role.
    Space { group: GroupId },
    /// Scrub all replicas of this server now.
    Scrub,
}

/// Reply to an [`InspectRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectReply {
    /// Equal content gives equal digests, whatever writes led to it. `blocks` counts the blocks that are not all zero;
    /// `chunks` lists the chunks that have any.
    Digest {
        digest: u64,
        blocks: u64,
        chunks: Vec<(ChunkId, u64)>,
    },
    /// Bytes on disk of every chunk, and the number of deletions that are remembered.
    Space {
        chunks: Vec<(ChunkId, u64)>,
        tombstones: u64,
    },
    /// Number of replicas here that wait to be scrubbed; those catching up are scrubbed once in sync.
    Scrub {
        replicas: u32,
    },
    Failed {
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Moment;
    use std::time::Duration;

    #[test]
    fn a_lease_that_waited_while_the_machine_started_again_is_void() {
        let (own, lease) = (Incarnation(7), Duration::from_nanos(100));
        let end = |now, to, sent| lease_end(own, Moment(now), (Incarnation(to), Moment(sent)), lease);
        assert_eq!(end(50, 7, 40), Some(Moment(140)));
        assert_eq!(end(50, 7, 50), Some(Moment(150)));
        assert_eq!(end(50, 6, 40), None, "to the run before");
        assert_eq!(end(50, 7, 900_000), None, "by the clock of an earlier boot");
    }

    #[test]
    fn what_would_end_an_earlier_run_ends_no_later_one() {
        let own = Incarnation(7);
        let why = String::new();
        let rejected = |run| MetaPush::Rejected { incarnation: Incarnation(run), why: why.clone() };
        let superseded = |run| MetaPush::Superseded { known: Incarnation(run) };
        assert!(rejected(6).is_late(own) && superseded(6).is_late(own));
        assert!(!rejected(7).is_late(own) && !superseded(7).is_late(own) && !superseded(8).is_late(own));
        assert!(!MetaPush::Drain.is_late(own));
    }

    #[test]
    fn an_order_to_sleep_that_is_older_than_what_the_server_knows_is_void() {
        let lease = Duration::from_nanos(300);
        let order = |run, map_version, heard| {
            let (incarnation, depth, heard) = (Incarnation(run), Depth::Off, Moment(heard));
            SleepOrder { incarnation, map_version, depth, heard }
        };
        let counts = |order: SleepOrder| order.counts(Incarnation(7), 20, Moment(1000), lease);
        assert!(counts(order(7, 20, 900)) && counts(order(7, 21, 700)));
        assert!(!counts(order(6, 20, 900)), "to the run before");
        assert!(!counts(order(7, 19, 900)), "by a leader that was deposed: the server may have a part again");
        assert!(!counts(order(7, 20, 699)), "the machine slept since");
        assert!(!counts(order(7, 20, 1001)), "from before a reboot");
    }
}
