//! The primary: admits client operations, orders writes, waits for every copy, replies.
//!
//! Operations that touch the same blocks, at least one of them writing, run one after another in order of arrival; all others
//! run concurrently. So a read never sees a write that is not on all targets, and a write that needs the old edges of its first
//! and last block still finds them.

mod parts;

use crate::activate::forgotten_by_all;
use crate::api::{Command, StoreCommand, StoreOutcome};
use crate::catch_up::Cover;
use crate::group::{Context, Group, Tail, Wait, Waiting};
use crate::replica::PlantedBug;
use crate::run_map::without;
use crate::settlement::{Noted, Rewrite, Settlement, Unsettled};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, Epoch, GroupEntry, Kind,
    Moment, PeerMessage, RECORD_BLOCKS_MAX, Record, Refusal, RequestId, ServerId, ServerReport, Space,
    TailRun, Unready, Version, crc32c, group_of,
};
use parts::{Part, contents, crcs_of, whole};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const BLOCK: u32 = BLOCK_BYTES as u32;
/// Maximum blocks of tails being rewritten at a time: a tail may exceed memory.
const REWRITE_BLOCKS: u32 = 256;
/// For this long after a server refused a write for lack of space, no new write is ordered to it.
const FULL_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Primary {
    pub phase: Phase,
    next_seq: u64,
    next_op: u64,
    /// Admitted operations. Their block ranges do not conflict.
    ops: BTreeMap<u64, Op>,
    /// Operations that wait for a range, in order of arrival.
    blocked: VecDeque<Op>,
    /// Blocks from tails that must be rewritten before any other operation touches them.
    unsettled: Unsettled,
    /// Ordered records that are not yet on all targets, by sequence.
    in_flight: BTreeMap<u64, InFlight>,
    committed_told: Version,
    /// The version up to which each member has forgotten what it received; only members that answered.
    answered: BTreeMap<ServerId, Version>,
    /// Every request of earlier epochs that took effect after this version is remembered by some member.
    forgotten: Version,
    /// When this primary last sent a report or fence that is resent until it takes effect.
    pub reported: Option<Moment>,
    pub covers: BTreeMap<ServerId, Cover>,
}

pub(crate) enum Phase {
    Fencing {
        awaiting: BTreeSet<ServerId>,
        foreign: Vec<TailRun>,
        since: Moment,
        /// When the metadata service was last asked for permission to serve.
        asked: Option<Moment>,
    },
    /// Comparing the tails with the own store.
    Comparing(Settlement),
    Serving,
    /// Admits no new requests; those in flight complete.
    Draining,
    /// Will never serve again in this epoch: another primary may be appointed at once.
    Released,
}

struct Op {
    id: u64,
    chunk: ChunkId,
    /// First block and number of blocks it touches. The whole chunk: `0..u32::MAX`.
    first: u32,
    count: u32,
    work: Work,
    step: Step,
    /// Everyone to reply to: the sender, plus any client retrying the same request id.
    askers: Vec<Waiting>,
    request: Option<RequestId>,
    /// Blocks that no copy has any more (first, count): they cannot be rewritten.
    unreadable: Vec<(u32, u32)>,
}

enum Work {
    Client {
        op: ChunkOp,
        payload: Bytes,
    },
    /// Order the present content again: a tail has these blocks.
    Rewrite {
        kind: Kind,
    },
    /// Note that the request is in these blocks, before any of them is rewritten.
    Note,
    /// Compare the copies of these blocks while none of them is written.
    Check,
    /// Order the present content again: some copy differs.
    Heal {
        kind: Kind,
    },
}

enum Step {
    /// Blocks that it needs are being fetched.
    Fetching,
    /// Blocks that it needs are being read: `left` reads outstanding, `got` by first block.
    Reading { left: usize, got: BTreeMap<u32, (Vec<Record>, Bytes)> },
    /// Damaged blocks are being fetched from another copy.
    Repairing,
    /// The other copies are being compared.
    Comparing,
    /// `left` records are not yet on all targets.
    Replicating { left: usize },
}

struct InFlight {
    op: u64,
    record: Record,
    payload: Bytes,
    awaiting: BTreeMap<ServerId, Awaited>,
    ordered: Moment,
    /// It is not client data, or a target had no room for it: it may use the reserve.
    must_fit: bool,
}

/// A copy that is not known to be durable. It counts as in flight for as long as the connection to its server stands, however
/// long the server takes, and is not sent twice: a timed resend adds to the load that made the first copy late, so a busy
/// cluster would be brought down by its own retries.
struct Awaited {
    space: Space,
    /// When it was last sent, or given to the own store.
    asked: Moment,
    /// The connection broke or the copy was refused: the tick resends it.
    again: bool,
}

impl Awaited {
    fn is_due(&self, cx: &Context) -> bool {
        self.again && cx.now.since(self.asked) >= cx.config.resend_after
    }
}

/// What is wrong with a client request, if anything; checked before any work is done for it.
pub(crate) fn fault(
    request: &ClientRequest,
    payload_len: usize,
    chunk_bytes: u32,
    groups: u32,
) -> Option<ChunkError> {
    let (offset, len) = request.op.range();
    let carried = if matches!(request.op, ChunkOp::Write { .. }) { len as usize } else { 0 };
    if group_of(request.op.chunk(), groups) != request.group || payload_len != carried {
        return Some(ChunkError::Malformed);
    }
    if matches!(request.op, ChunkOp::Delete { .. }) {
        return None;
    }
    let largest = match request.op {
        ChunkOp::Zero { .. } => chunk_bytes,
        _ => RECORD_BLOCKS_MAX * BLOCK,
    };
    if len == 0 || offset.checked_add(len).is_none_or(|end| end > chunk_bytes) {
        return Some(ChunkError::OutOfRange);
    }
    // An unaligned range of the maximum size touches one block more than a record holds.
    let blocks = (offset + len).div_ceil(BLOCK) - offset / BLOCK;
    let whole = matches!(request.op, ChunkOp::Zero { .. }) || blocks <= RECORD_BLOCKS_MAX;
    (len > largest || !whole).then_some(ChunkError::OutOfRange)
}

impl Primary {
    pub fn new(epoch: Epoch, phase: Phase) -> Primary {
        Primary {
            phase,
            next_seq: 1,
            next_op: 1,
            ops: BTreeMap::new(),
            blocked: VecDeque::new(),
            unsettled: Unsettled::default(),
            in_flight: BTreeMap::new(),
            committed_told: Version::first_of(epoch),
            answered: BTreeMap::new(),
            forgotten: Version::first_of(epoch),
            reported: None,
            covers: BTreeMap::new(),
        }
    }

    /// A member sent what it remembers: all that it received, except requests up to `forgotten`.
    pub fn answered(&mut self, entry: &GroupEntry, member: ServerId, forgotten: Version) {
        self.answered.insert(member, forgotten);
        self.forgotten = forgotten_by_all(entry, &self.answered);
    }

    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving | Phase::Draining)
    }

    pub fn takes_requests(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    pub fn is_busy(&self, tail: &Tail) -> bool {
        !matches!(self.phase, Phase::Serving)
            || !self.ops.is_empty()
            || !self.in_flight.is_empty()
            || !self.covers.is_empty()
            || tail.committed() > self.committed_told
    }

    pub fn is_in_flight(&self, seq: u64) -> bool {
        self.in_flight.contains_key(&seq)
    }

    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.in_flight.keys().next().copied()
    }

    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub fn client_ops(&self) -> usize {
        self.ops.values().chain(&self.blocked).filter(|op| op.is_client()).count()
    }

    /// The unanswered client requests, in order of arrival.
    pub fn take_client_requests(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        let ops = std::mem::take(&mut self.ops).into_values();
        ops.chain(std::mem::take(&mut self.blocked)).flat_map(|op| {
            let ordered = matches!(op.step, Step::Replicating { .. });
            op.askers.into_iter().map(move |w| Waiting { ordered: ordered || w.ordered, ..w })
        })
    }

    /// No operation that could order a record overtakes a note: a server that has any record of this epoch has all its notes.
    fn conflicts(&self, op: &Op) -> bool {
        let waits_for = |other: &Op| match (&other.work, &op.work) {
            (_, Work::Note) => false,
            (Work::Note, _) => !op.is_read(),
            _ => (other.writes() || op.writes()) && other.touches(op.chunk, (op.first, op.count)),
        };
        let unsettled = !op.settles() && self.unsettled.touches(op.chunk, (op.first, op.count));
        // A settling operation never waits for an operation that waits for it.
        let waiting = self.blocked.iter().filter(|other| other.settles() || !op.settles());
        unsettled || self.ops.values().chain(waiting).any(waits_for)
    }

    /// Whether a rewrite of any of these blocks is pending or in flight.
    pub fn is_settling(&self, chunk: ChunkId, blocks: (u32, u32)) -> bool {
        let pending = |op: &Op| matches!(op.work, Work::Rewrite { .. }) && op.touches(chunk, blocks);
        let under_way = self.ops.values().any(pending) || self.blocked.iter().any(pending);
        under_way || self.unsettled.touches(chunk, blocks)
    }

    /// The next rewrite, if one may start now.
    fn next_rewrite(&mut self) -> Option<Rewrite> {
        let under_way = self.ops.values().chain(&self.blocked).filter(|op| op.settles());
        // A deletion has no blocks; it counts as one.
        let blocks: u32 = under_way.map(|op| if op.count == u32::MAX { 1 } else { op.count }).sum();
        if blocks < REWRITE_BLOCKS { self.unsettled.pop() } else { None }
    }
}

impl Op {
    fn is_client(&self) -> bool {
        matches!(self.work, Work::Client { .. })
    }

    /// Whether it is a client's data, which a full server may refuse.
    fn takes_space(&self) -> bool {
        matches!(self.work, Work::Client { op: ChunkOp::Write { .. }, .. })
    }

    fn is_read(&self) -> bool {
        matches!(self.work, Work::Client { op: ChunkOp::Read { .. }, .. })
    }

    fn writes(&self) -> bool {
        !self.is_read() && !matches!(self.work, Work::Check | Work::Note)
    }

    /// Whether it settles what an older epoch left open: it must be ordered, and is retried until it is.
    fn settles(&self) -> bool {
        matches!(self.work, Work::Rewrite { .. } | Work::Note)
    }

    /// Whether the operation touches any of these blocks. The whole chunk: `0..u32::MAX`.
    fn touches(&self, chunk: ChunkId, (first, count): (u32, u32)) -> bool {
        self.chunk == chunk
            && self.first < first.saturating_add(count)
            && first < self.first.saturating_add(self.count)
    }

    fn is_scrub(&self) -> bool {
        matches!(self.work, Work::Check | Work::Heal { .. })
    }

    /// Runs of blocks (first, count) whose present content it needs.
    fn needs(&self) -> Vec<(u32, u32)> {
        match &self.work {
            Work::Note
            | Work::Rewrite { kind: Kind::Delete }
            | Work::Heal { kind: Kind::Delete }
            | Work::Client { op: ChunkOp::Delete { .. }, .. } => Vec::new(),
            Work::Rewrite { .. } => {
                let all = vec![(self.first, self.first + self.count)];
                let unreadable = self.unreadable.iter();
                let left = unreadable.fold(all, |left, (first, count)| without(left, *first, first + count));
                left.into_iter().map(|(first, end)| (first, end - first)).collect()
            }
            Work::Heal { .. } | Work::Check | Work::Client { op: ChunkOp::Read { .. }, .. } => {
                vec![(self.first, self.count)]
            }
            Work::Client { op, .. } => {
                let (offset, len) = op.range();
                let end = offset + len;
                let mut edges = Vec::new();
                if !offset.is_multiple_of(BLOCK) {
                    edges.push((offset / BLOCK, 1));
                }
                if !end.is_multiple_of(BLOCK) && edges.last() != Some(&(end / BLOCK, 1)) {
                    edges.push((end / BLOCK, 1));
                }
                edges
            }
        }
    }
}

impl Group {
    pub fn on_client(&mut self, cx: &mut Context, mut waiting: Waiting) {
        let Some(primary) = &mut self.primary else {
            let entry = self.entry.clone();
            return waiting.turn_away(cx, ClientReply::Moved { entry });
        };
        if !matches!(primary.phase, Phase::Serving) || self.fence > self.entry.epoch {
            return self.waiting.push_back(waiting);
        }
        let Waiting { token, op, payload, since, .. } = waiting.clone();
        if !cx.has_lease() {
            return waiting.turn_away(cx, ClientReply::Retry { why: Unready::NoLease });
        }
        let blocks = blocks_of(&op);
        if let Some(request) = op.request() {
            let mut known = primary.ops.values_mut().chain(primary.blocked.iter_mut());
            if let Some(known) = known.find(|o| o.is_client() && o.request == Some(request)) {
                return known.askers.push(waiting);
            }
            if self.is_done(request, op.chunk(), blocks) {
                return cx.reply(token, ClientReply::Done { newest: self.newest() });
            }
            // If an earlier epoch ordered any of it, that takes effect: the request can no longer be refused.
            waiting.ordered |= self.tail.knows(request);
            if self.may_be_forgotten(cx, since) {
                let (newest, in_part) = (self.newest(), waiting.ordered);
                return cx.reply(token, ClientReply::Forgotten { newest, in_part });
            }
            if let (false, Err(reply)) = (waiting.ordered, self.can_write(cx, op.kind() == Some(Kind::Data)))
            {
                return cx.reply(token, reply);
            }
        }
        count(&mut cx.shared.stats.load, &op);
        let range = if matches!(op, ChunkOp::Delete { .. }) { (0, u32::MAX) } else { blocks };
        let (chunk, request) = (op.chunk(), op.request());
        self.admit_op(cx, chunk, range, Work::Client { op, payload }, vec![waiting], request);
    }

    /// The newest version assigned in this epoch: a request that begins now gets a newer one, whenever it is carried out.
    fn newest(&self) -> Version {
        let seq = self.primary.as_ref().map_or(0, |p| p.next_seq - 1);
        Version { epoch: self.entry.epoch, seq }
    }

    /// Whether a request may have been carried out although no record of it is remembered.
    fn may_be_forgotten(&self, cx: &Context, since: Version) -> bool {
        let inherited = self.primary.as_ref().map_or(Version::first_of(self.entry.epoch), |p| p.forgotten);
        since < inherited.max(self.tail.evicted()) && !cx.config.has(PlantedBug::RepeatForgotten)
    }

    /// Whether a new client write would find room for each of its r copies. An operation that frees space needs next to none and
    /// may use the reserve: otherwise a full cluster could not be emptied.
    fn can_write(&self, cx: &mut Context, takes_space: bool) -> Result<(), ClientReply> {
        if self.targets().any(|t| t.is_none()) {
            return Err(ClientReply::Retry { why: Unready::TooFewCopies });
        }
        let (now, remembers) = (cx.now, cx.config.has(PlantedBug::RememberFull));
        cx.shared.full_peers.retain(|_, since| remembers || now.since(*since) < FULL_PAUSE);
        let full = |(server, _): (ServerId, Space)| {
            (server == cx.me && cx.full) || cx.shared.full_peers.contains_key(&server)
        };
        if takes_space && self.targets().flatten().any(full) {
            return Err(ClientReply::Failed { why: ChunkError::NoSpace });
        }
        Ok(())
    }

    /// Starts to rewrite these blocks.
    pub fn settle(&mut self, cx: &mut Context, unsettled: Unsettled) {
        if let Some(primary) = &mut self.primary {
            primary.unsettled = unsettled;
            self.go_on_settling(cx);
        }
    }

    fn go_on_settling(&mut self, cx: &mut Context) {
        while let Some(rewrite) = self.primary.as_mut().and_then(Primary::next_rewrite) {
            let Rewrite { chunk, first, count, kind, request } = rewrite;
            self.admit_op(cx, chunk, (first, count), Work::Rewrite { kind }, Vec::new(), request);
        }
    }

    pub fn admit_note(&mut self, cx: &mut Context, Noted { request, chunk, first, count }: Noted) {
        self.admit_op(cx, chunk, (first, count), Work::Note, Vec::new(), Some(request));
    }

    pub fn admit_check(&mut self, cx: &mut Context, chunk: ChunkId, blocks: (u32, u32)) {
        self.admit_op(cx, chunk, blocks, Work::Check, Vec::new(), None);
    }

    /// Orders a chunk's deletion again.
    pub fn admit_heal(&mut self, cx: &mut Context, chunk: ChunkId) {
        self.admit_op(cx, chunk, (0, u32::MAX), Work::Heal { kind: Kind::Delete }, Vec::new(), None);
    }

    /// Turns a check into a heal: copies differ in these blocks, so their present content is ordered again.
    pub fn heal(&mut self, cx: &mut Context, id: u64, (first, count): (u32, u32)) {
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        (op.first, op.count, op.work) = (first, count, Work::Heal { kind: Kind::Data });
        self.advance_op(cx, id);
    }

    /// The blocks (first, count) of a scrub's operation that is in progress.
    pub fn blocks_of_check(&self, op: u64) -> Option<(ChunkId, u32, u32)> {
        let op = self.primary.as_ref()?.ops.get(&op).filter(|op| op.is_scrub())?;
        Some((op.chunk, op.first, op.count))
    }

    fn admit_op(
        &mut self,
        cx: &mut Context,
        chunk: ChunkId,
        (first, count): (u32, u32),
        work: Work,
        askers: Vec<Waiting>,
        request: Option<RequestId>,
    ) {
        let Some(primary) = &mut self.primary else { return };
        let id = primary.next_op;
        primary.next_op += 1;
        let op = Op {
            id,
            chunk,
            first,
            count,
            work,
            step: Step::Fetching,
            askers,
            request,
            unreadable: Vec::new(),
        };
        cx.shared.client_ops += usize::from(op.is_client());
        match primary.conflicts(&op) {
            true if op.settles() => primary.blocked.push_front(op),
            true => primary.blocked.push_back(op),
            false => {
                primary.ops.insert(id, op);
                self.advance_op(cx, id);
            }
        }
    }

    /// Takes an admitted operation as far as it can go without waiting.
    pub fn advance_op(&mut self, cx: &mut Context, id: u64) {
        let Some(primary) = &mut self.primary else { return };
        let Some(op) = primary.ops.get_mut(&id) else { return };
        let needs = op.needs();
        let chunk = op.chunk;
        if let Some(catch_up) = &mut self.catch_up {
            let lacks = needs.iter().any(|&(first, count)| catch_up.lacks(chunk, first, count));
            if lacks {
                op.step = Step::Fetching;
                let lost = needs.iter().find_map(|&(first, count)| catch_up.lost(chunk, first, count));
                if let Some(blocks) = lost {
                    return self.fail_damaged(cx, id, ChunkError::Corrupt, blocks);
                }
                for (first, count) in needs {
                    self.demand(cx, chunk, first, count);
                }
                return;
            }
        }
        if needs.is_empty() {
            return self.order_op(cx, id, BTreeMap::new());
        }
        op.step = Step::Reading { left: needs.len(), got: BTreeMap::new() };
        let (group, epoch) = (self.id, self.entry.epoch);
        let checks = matches!(op.work, Work::Check);
        for (first, count) in needs {
            let space = Space::Replica;
            let command = match checks {
                true => StoreCommand::Check { space, group, chunk, first, count },
                false => StoreCommand::Read { space, group, chunk, first, count },
            };
            cx.store(group, Wait::OpRead { op: id, epoch, first }, command);
        }
    }

    /// Blocks arrived: operations that waited for them continue.
    pub fn advance_fetching(&mut self, cx: &mut Context) {
        let Some(primary) = &self.primary else { return };
        let fetching = primary.ops.values().filter(|op| matches!(op.step, Step::Fetching));
        for id in fetching.map(|op| op.id).collect::<Vec<_>>() {
            self.advance_op(cx, id);
        }
    }

    pub fn on_op_read(&mut self, cx: &mut Context, epoch: Epoch, id: u64, first: u32, outcome: StoreOutcome) {
        if epoch != self.entry.epoch {
            return;
        }
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        // A reply from an earlier round: a repair or a fetch intervened.
        if !matches!(&op.step, Step::Reading { got, .. } if !got.contains_key(&first)) {
            return;
        }
        let (records, payload) = match outcome {
            StoreOutcome::Read { records, payload } => (records, payload),
            StoreOutcome::Damaged { chunk, block, lost }
                if op.settles() || (lost.is_none() && matches!(op.work, Work::Check)) =>
            {
                op.step = Step::Repairing;
                return self.repair(cx, Some(id), chunk, (block, 1), lost);
            }
            StoreOutcome::Damaged { chunk, lost, .. } => {
                let count = op.needs().iter().find(|n| n.0 == first).map_or(1, |n| n.1);
                op.step = Step::Repairing;
                return self.repair(cx, Some(id), chunk, (first, count), lost);
            }
            _ => return self.fail_op(cx, id, ClientReply::Retry { why: Unready::Busy }),
        };
        let Step::Reading { left, got } = &mut op.step else { return };
        got.insert(first, (records, payload));
        *left -= 1;
        if *left > 0 {
            return;
        }
        // Fenced while it read: it may have seen a write of the next configuration that is not acknowledged there.
        if self.fence > self.entry.epoch {
            op.step = Step::Fetching;
            return;
        }
        let got = std::mem::take(got);
        if let Work::Client { op: ChunkOp::Read { .. }, .. } = op.work {
            let (records, data) = got.into_values().next().unwrap_or_default();
            return self.answer_read(cx, id, records, data);
        }
        if matches!(op.work, Work::Check) {
            op.step = Step::Comparing;
            let own: Vec<Record> = got.into_values().flat_map(|(records, _)| records).collect();
            return self.compare(cx, id, &own);
        }
        self.order_op(cx, id, got);
    }

    /// Replies to a read with the store's blocks, whose checksums the store has verified.
    fn answer_read(&mut self, cx: &mut Context, id: u64, records: Vec<Record>, data: Bytes) {
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        let Work::Client { op: ChunkOp::Read { offset, len, must_exist, .. }, .. } = op.work else { return };
        if must_exist && records.iter().any(Record::is_never_written) {
            let (chunk, blocks) = (op.chunk, (op.first, op.count));
            op.step = Step::Repairing;
            return self.seek(cx, id, chunk, blocks);
        }
        let start = (offset % BLOCK) as usize;
        let range = start..start + len as usize;
        let mut crcs = crcs_of(&records);
        let blocks = whole(&records, data);
        // Only part of the first and of the last block may be returned.
        for index in [0, crcs.len().saturating_sub(1)] {
            let from = (index * BLOCK_BYTES).max(range.start);
            let to = ((index + 1) * BLOCK_BYTES).min(range.end);
            if to - from < BLOCK_BYTES && !cx.config.has(PlantedBug::WholeChecksums) {
                crcs[index] = crc32c(&blocks[from..to]);
            }
        }
        let payload = blocks.slice(range);
        for Waiting { token, .. } in std::mem::take(&mut op.askers) {
            let reply = ClientReply::Data { crcs: crcs.clone() };
            cx.out.push(Command::Reply { token, reply, payload: payload.clone() });
        }
        self.end_op(cx, id);
    }

    /// Assigns versions to the operation's records and sends them to every target.
    fn order_op(&mut self, cx: &mut Context, id: u64, got: BTreeMap<u32, (Vec<Record>, Bytes)>) {
        // Fenced by a newer configuration: a record ordered now would be in no tail. The operation is carried over.
        if self.fence > self.entry.epoch && !cx.config.has(PlantedBug::SkipFence) {
            return;
        }
        if self.targets().any(|t| t.is_none()) {
            return self.fail_op(cx, id, ClientReply::Retry { why: Unready::TooFewCopies });
        }
        let epoch = self.entry.epoch;
        let Some(op) = self.primary.as_ref().and_then(|p| p.ops.get(&id)) else { return };
        let (chunk, request) = (op.chunk, op.request);
        if let Work::Rewrite { kind: Kind::Data | Kind::Zero } = op.work
            && !got.values().flat_map(|(records, _)| records).any(|r| r.version.epoch < epoch)
        {
            return self.finish_op(cx, id); // rewritten already, under another tail's record
        }
        let mut parts = contents(op, got);
        // What an earlier attempt of the request did is not repeated: others may have written there since.
        if let (true, Some(request)) = (op.is_client(), request) {
            let ordered = op.askers.iter().filter(|waiting| waiting.ordered);
            if ordered
                .map(|waiting| waiting.since)
                .min()
                .is_some_and(|since| self.may_be_forgotten(cx, since))
            {
                return self.fail_op(cx, id, ClientReply::Retry { why: Unready::Interrupted });
            }
            parts.retain(|p| !self.is_done(request, chunk, (p.first, p.count)));
        }
        if parts.is_empty() {
            return self.finish_op(cx, id);
        }
        if let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) {
            op.step = Step::Replicating { left: parts.len() };
        }
        for Part { first, count, content, payload } in parts {
            self.order(cx, id, chunk, (first, count), content, payload, request);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one record")]
    fn order(
        &mut self,
        cx: &mut Context,
        op: u64,
        chunk: ChunkId,
        (first, count): (u32, u32),
        content: Content,
        payload: Bytes,
        request: Option<RequestId>,
    ) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let targets: Vec<(ServerId, Space)> = self.targets().flatten().collect();
        let Some(primary) = &mut self.primary else { return };
        let seq = primary.next_seq;
        primary.next_seq += 1;
        let version = Version { epoch, seq };
        let record = Record { group, chunk, first, count, version, request, content };
        let awaited = |(to, space)| (to, Awaited { space, asked: cx.now, again: false });
        let mut awaiting: BTreeMap<ServerId, Awaited> = targets.into_iter().map(awaited).collect();
        let must_fit = primary.ops.get(&op).is_some_and(|op| !op.takes_space());
        self.tail.push(TailRun { run: record.run(), request });
        let committed = self.tail.committed();
        primary.committed_told = primary.committed_told.max(committed);
        for (&to, &Awaited { space, .. }) in &awaiting {
            if to == cx.me {
                let wait = Wait::Own { seq, epoch };
                let own = (space, record.clone());
                self.applying.apply(cx, wait, own, payload.clone(), must_fit, committed);
            } else {
                let message =
                    PeerMessage::Replicate { epoch, space, record: record.clone(), committed, must_fit };
                cx.send_with(to, message, payload.clone());
            }
        }
        if cx.config.has(PlantedBug::AckEarly)
            && let Some(last) = awaiting.keys().copied().rfind(|&s| s != cx.me)
        {
            awaiting.remove(&last);
        }
        primary.in_flight.insert(seq, InFlight { op, record, payload, awaiting, ordered: cx.now, must_fit });
    }

    pub fn on_own_stored(&mut self, cx: &mut Context, epoch: Epoch, seq: u64, outcome: StoreOutcome) {
        let result = match outcome {
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => Ok(()),
        };
        self.pump_catch_up(cx);
        self.on_replicate_reply(cx, cx.me, epoch, (Version { epoch, seq }, 0), result);
    }

    pub fn on_replicate_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        epoch: Epoch,
        (version, first): (Version, u32),
        result: Result<(), Refusal>,
    ) {
        if epoch != self.entry.epoch {
            return;
        }
        if version.epoch < epoch {
            return self.on_cover_reply(cx, from, (version, first), result);
        }
        let Some(primary) = &mut self.primary else { return };
        let Some(in_flight) = primary.in_flight.get_mut(&version.seq) else { return };
        let Some(awaited) = in_flight.awaiting.get_mut(&from) else { return };
        match result {
            Ok(()) => {
                in_flight.awaiting.remove(&from);
                if in_flight.awaiting.is_empty() {
                    self.on_committed(cx, version.seq);
                }
            }
            Err(Refusal::NoSpace) => {
                // R10: the write is already on other targets, so it is completed from the reserve; later ones are refused
                // before they are ordered. A full server is not a failed server: it is never suspected for that.
                cx.shared.full_peers.insert(from, cx.now);
                awaited.again = true;
                if !std::mem::replace(&mut in_flight.must_fit, true) {
                    awaited.asked = Moment::ZERO;
                    self.resend(cx);
                } else if let Some(op) = primary.ops.get_mut(&in_flight.op) {
                    // The reserve is full too: the clients learn the reason for the delay, and retry.
                    let askers = std::mem::take(&mut op.askers);
                    askers.into_iter().for_each(|waiting| cx.reply_retry(waiting.token, Unready::Full));
                }
            }
            Err(Refusal::Poisoned) => {
                let group = self.id;
                cx.report(ServerReport::Suspect { group, epoch, server: from });
            }
            // A copy that cannot succeed in this epoch ends with the epoch.
            Err(_) => awaited.again = true,
        }
    }

    fn on_committed(&mut self, cx: &mut Context, seq: u64) {
        let Some(primary) = &mut self.primary else { return };
        let Some(in_flight) = primary.in_flight.remove(&seq) else { return };
        let id = in_flight.op;
        self.advance_commit();
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        let Step::Replicating { left } = &mut op.step else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.finish_op(cx, id);
    }

    fn finish_op(&mut self, cx: &mut Context, id: u64) {
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        let askers = std::mem::take(&mut op.askers);
        let done = ClientReply::Done { newest: self.newest() };
        let Some(op) = self.primary.as_ref().and_then(|p| p.ops.get(&id)) else { return };
        askers.into_iter().for_each(|waiting| cx.reply(waiting.token, done.clone()));
        let scrubs = op.is_scrub();
        self.end_op(cx, id);
        if scrubs {
            self.scrub_op_ended(cx, true);
        }
    }

    /// Commits everything below the oldest record in flight: it is on all targets.
    pub fn advance_commit(&mut self) {
        let Some(primary) = &mut self.primary else { return };
        if !primary.unsettled.is_empty() || primary.ops.values().chain(&primary.blocked).any(Op::settles) {
            return; // an older epoch's tail is settled only when all of it is rewritten and on all targets
        }
        let seq = primary.in_flight.keys().next().copied().unwrap_or(primary.next_seq) - 1;
        self.tail.commit(Version { epoch: self.entry.epoch, seq });
    }

    fn fail_op(&mut self, cx: &mut Context, id: u64, reply: ClientReply) {
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id)) else { return };
        if op.settles() {
            op.step = Step::Fetching; // the tick resumes it
            return;
        }
        for waiting in std::mem::take(&mut op.askers) {
            waiting.turn_away(cx, reply.clone());
        }
        let scrubs = op.is_scrub();
        self.end_op(cx, id);
        if scrubs {
            self.scrub_op_ended(cx, false);
        }
    }

    /// Releases the operation's blocks and admits operations that waited for them.
    pub fn end_op(&mut self, cx: &mut Context, id: u64) {
        let Some(primary) = &mut self.primary else { return };
        if let Some(op) = primary.ops.remove(&id) {
            cx.shared.client_ops -= usize::from(op.is_client());
        }
        let blocked = std::mem::take(&mut primary.blocked);
        let settled = primary.unsettled.is_empty();
        let mut admitted = Vec::new();
        for op in blocked {
            if primary.conflicts(&op) {
                primary.blocked.push_back(op);
            } else {
                admitted.push(op.id);
                primary.ops.insert(op.id, op);
            }
        }
        for id in admitted {
            self.advance_op(cx, id);
        }
        if !settled {
            self.go_on_settling(cx);
        }
        self.advance_commit();
        self.release_if_drained(cx);
    }

    /// [Sierra §3.5 step 1]: no new requests; those in flight complete normally.
    pub fn drain(&mut self, cx: &mut Context) {
        if let Some(primary) = &mut self.primary
            && matches!(primary.phase, Phase::Serving)
        {
            primary.phase = Phase::Draining;
            self.release_if_drained(cx);
        }
    }

    /// [Sierra §3.5 step 2]
    fn release_if_drained(&mut self, cx: &mut Context) {
        let Some(primary) = &mut self.primary else { return };
        let idle = primary.ops.is_empty() && primary.blocked.is_empty() && primary.unsettled.is_empty();
        let idle = idle && primary.in_flight.is_empty();
        if matches!(primary.phase, Phase::Draining) && idle {
            primary.phase = Phase::Released;
            primary.reported = Some(cx.now);
            self.tell_committed(cx);
            cx.report(ServerReport::Released { group: self.id, epoch: self.entry.epoch });
        }
    }

    pub fn tell_committed(&mut self, cx: &mut Context) {
        let (group, epoch, committed) = (self.id, self.entry.epoch, self.tail.committed());
        let targets: Vec<ServerId> = self.targets().flatten().map(|t| t.0).filter(|&s| s != cx.me).collect();
        let Some(primary) = &mut self.primary else { return };
        primary.committed_told = committed;
        for to in targets {
            cx.send(to, PeerMessage::Committed { group, epoch, committed });
        }
        self.forget_deletions(cx);
    }

    /// The connection to a server broke, or the server is not live: outstanding requests to it may never be answered.
    pub fn on_peer_lost(&mut self, cx: &mut Context, peer: ServerId) {
        if let Some(primary) = &mut self.primary {
            for in_flight in primary.in_flight.values_mut() {
                if let Some(awaited) = in_flight.awaiting.get_mut(&peer) {
                    (awaited.again, awaited.asked) = (true, Moment::ZERO); // the next tick resends it
                }
            }
            for cover in primary.covers.values_mut() {
                cover.peer_lost(peer);
            }
        }
        self.repairs_lost(cx, peer);
        self.scrub_lost(cx, peer);
        if let Some(catch_up) = &mut self.catch_up {
            cx.shared.fetches -= catch_up.source_lost(peer);
        }
    }

    pub fn on_tick(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let due =
            |at: Option<Moment>, cx: &Context| at.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after);
        let lease = cx.has_lease();
        self.await_live_sources(cx);
        if let Some(primary) = &mut self.primary {
            let again = due(primary.reported, cx);
            match &primary.phase {
                Phase::Fencing { awaiting, since, .. } if again => {
                    for &to in awaiting {
                        cx.suspect_if_silent((group, epoch), to, *since);
                    }
                    primary.reported = Some(cx.now);
                    self.fence_others(cx);
                }
                Phase::Released if again => {
                    primary.reported = Some(cx.now);
                    cx.report(ServerReport::Released { group, epoch });
                }
                _ => {}
            }
            self.resend(cx);
            self.suspect_silent(cx);
            self.advance_fetching(cx);
        }
        if self
            .primary
            .as_ref()
            .is_some_and(|p| p.in_flight.is_empty() && self.tail.committed() > p.committed_told)
        {
            self.tell_committed(cx);
        }
        if !lease {
            for waiting in self.waiting.drain(..) {
                waiting.turn_away(cx, ClientReply::Retry { why: Unready::NoLease });
            }
        }
        self.forget_deletions(cx);
        self.tick_catch_up(cx);
        self.tick_covers(cx);
        self.go_on_scrubbing(cx);
    }

    /// Resends copies that were refused, or in flight when a connection broke.
    fn resend(&mut self, cx: &mut Context) {
        let (epoch, committed) = (self.entry.epoch, self.tail.committed());
        let Some(primary) = &mut self.primary else { return };
        for InFlight { record, payload, awaiting, must_fit, .. } in primary.in_flight.values_mut() {
            for (&to, awaited) in awaiting.iter_mut().filter(|(_, a)| a.again) {
                if !awaited.is_due(cx) {
                    continue;
                }
                (awaited.again, awaited.asked) = (false, cx.now);
                let (space, must_fit, record, payload) =
                    (awaited.space, *must_fit, record.clone(), payload.clone());
                if to == cx.me {
                    let wait = Wait::Own { seq: record.version.seq, epoch };
                    self.tail.push(TailRun { run: record.run(), request: record.request });
                    self.applying.apply(cx, wait, (space, record), payload, must_fit, committed);
                } else {
                    let message = PeerMessage::Replicate { epoch, space, record, committed, must_fit };
                    cx.send_with(to, message, payload);
                }
            }
        }
    }

    /// No awake member has a sound copy of the operation's blocks.
    pub fn fail_damaged(&mut self, cx: &mut Context, id: u64, why: ChunkError, blocks: (u32, u32)) {
        let others_sleep = self.others_sleep(cx);
        let op = self.primary.as_mut().and_then(|p| p.ops.get_mut(&id));
        if let Some(op) = op.filter(|op| op.settles() && !others_sleep) {
            op.unreadable.push(blocks);
            return self.advance_op(cx, id);
        }
        let reply = match others_sleep {
            true => ClientReply::Retry { why: Unready::Busy },
            false => ClientReply::Failed { why },
        };
        self.fail_op(cx, id, reply);
    }

    /// Reports the targets that owe a reply and send nothing at all.
    fn suspect_silent(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(primary) = &self.primary else { return };
        let mut owing: BTreeMap<ServerId, Moment> = BTreeMap::new();
        for InFlight { awaiting, ordered, .. } in primary.in_flight.values() {
            for &to in awaiting.keys().filter(|to| **to != cx.me) {
                owing.entry(to).or_insert(*ordered); // the oldest comes first
            }
        }
        for (to, since) in owing {
            cx.suspect_if_silent((group, epoch), to, since);
        }
    }
}

/// The blocks that an operation touches (first, count); none for a deletion.
fn blocks_of(op: &ChunkOp) -> (u32, u32) {
    let (offset, len) = op.range();
    (offset / BLOCK, (offset + len).div_ceil(BLOCK) - offset / BLOCK)
}

fn count(load: &mut ebb_types::LoadCount, op: &ChunkOp) {
    let bytes = u64::from(op.range().1);
    match op {
        ChunkOp::Read { .. } => {
            load.reads += 1;
            load.read_bytes += bytes;
        }
        ChunkOp::Write { .. } => {
            load.writes += 1;
            load.written_bytes += bytes;
        }
        ChunkOp::Zero { .. } | ChunkOp::Delete { .. } => load.writes += 1,
    }
}
