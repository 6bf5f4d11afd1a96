//! The primary of a group in one epoch: its phases, its operations, and the records that it ordered.
//!
//! | phase | what it does | next |
//! |---|---|---|
//! | `Fencing` | gathers the tails of all members; then lists what it misses, and gets the epoch on record as serving | `Comparing` |
//! | `Comparing` | compares the tails with the own store | `Serving`, or `Fencing` again if it has to list again |
//! | `Serving` | orders operations | `Draining` |
//! | `Draining` | completes what is in flight, admits nothing new | `Released` |
//! | `Released` | another primary may be appointed at once | none in this epoch |
//!
//! Until the epoch is on record nothing is ordered, not even records from the tails: so an epoch that never served
//! leaves no trace, and the slots are as they were before it. (R3, R4; [Sierra §3.5])

pub(crate) mod claims;
mod in_flight;
mod memory;
mod op;
mod ops;
mod parts;

use crate::common::api::StoreCommand;
use crate::common::blocks::BLOCK;
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use crate::replicated::settlement::Settlement;
use claims::Claims;
use ebb_types::{
    ChunkError, ChunkId, ChunkOp, ClientRequest, Epoch, Moment, PeerMessage, RECORD_BLOCKS_MAX, Record,
    RequestId, Role, ServerId, ServerReport, TailRun, Version, group_of,
};
use in_flight::InFlight;
use memory::Memory;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use in_flight::Replied;
pub(crate) use op::{Arrived, Got, Op, Plan, Work};
pub(crate) use ops::Ops;
pub(crate) use parts::{Part, contents};

pub(crate) struct Primary {
    epoch: Epoch,
    phase: Phase,
    pub ops: Ops,
    pub in_flight: InFlight,
    committed_sent: Version,
    /// Targets whose connection broke, so that what was said last of the commit point may not have arrived, and when it
    /// is said again: not at once, for a server that is down breaks that connection, too.
    unheard: BTreeMap<ServerId, Moment>,
    memory: Memory,
    /// The newest claim on each object that is written under claims, as far as it was asked for in this epoch.
    pub claims: Claims,
    /// When this primary last sent a report or fence that is resent until it takes effect.
    reported: Option<Moment>,
}

enum Phase {
    Fencing {
        awaiting: BTreeSet<ServerId>,
        foreign: Vec<TailRun>,
        since: Moment,
        /// When the metadata service was last asked for permission to serve.
        asked: Option<Moment>,
    },
    Comparing(Settlement),
    Serving,
    Draining,
    Released,
}

impl Primary {
    /// Begins with the fence of these servers. The caller sends it ([`Primary::fence_others`]).
    pub fn new(cx: &Context, member: &Member, awaiting: BTreeSet<ServerId>) -> Primary {
        let epoch = member.epoch();
        let mut memory = Memory::new(epoch);
        memory.add(member.entry(), cx.me, member.tail.forgotten());
        Primary {
            epoch,
            phase: Phase::Fencing { awaiting, foreign: Vec::new(), since: cx.now, asked: None },
            ops: Ops::default(),
            in_flight: InFlight::default(),
            committed_sent: Version::first_of(epoch),
            unheard: BTreeMap::new(),
            memory,
            claims: Claims::default(),
            reported: None,
        }
    }

    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving | Phase::Draining)
    }

    /// Another primary may be appointed.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Released)
    }

    pub fn takes_requests(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    pub fn is_busy(&self, member: &Member) -> bool {
        !self.takes_requests()
            || self.ops.any_running()
            || !self.in_flight.is_empty()
            || member.tail.committed() > self.committed_sent
            || !self.unheard.is_empty()
    }

    /// The newest version assigned in this epoch: a request that begins now gets a newer one, whenever it is carried
    /// out.
    pub fn newest(&self) -> Version {
        Version { epoch: self.epoch, seq: self.in_flight.last() }
    }

    /// Every record of this epoch up to this version is on all targets.
    pub fn replicated(&self) -> Version {
        Version { epoch: self.epoch, seq: self.in_flight.committed() }
    }

    /// Every request of earlier epochs that took effect after this version is remembered by some member.
    pub fn forgotten(&self) -> Version {
        self.memory.forgotten()
    }

    /// Sends a fence to every server whose tail is still missing.
    pub fn fence_others(&self, cx: &mut Context, member: &Member) {
        let Phase::Fencing { awaiting, .. } = &self.phase else {
            return cx.bug("a primary that does not fence sent fences");
        };
        for &to in awaiting {
            let (group, epoch, done) = (cx.group, self.epoch, member.tail.done());
            cx.send(to, PeerMessage::Fence { group, epoch, done });
        }
    }

    /// Stops waiting for the tails of other servers than these.
    pub fn await_only(&mut self, needed: &BTreeSet<ServerId>) {
        if let Phase::Fencing { awaiting, .. } = &mut self.phase {
            awaiting.retain(|server| needed.contains(server));
        }
    }

    /// A server sent its tail, and what it remembers of requests that are done.
    pub fn on_fence_reply(
        &mut self,
        member: &mut Member,
        from: ServerId,
        tail: Vec<TailRun>,
        (done, forgotten): (Vec<TailRun>, Version),
    ) {
        // Late, or twice.
        let Phase::Fencing { awaiting, foreign, .. } = &mut self.phase else { return };
        if awaiting.remove(&from) {
            foreign.extend(tail);
            self.memory.add(member.entry(), from, forgotten);
            done.into_iter().for_each(|run| member.tail.remember(run));
        }
    }

    /// Compares the tails with the store, if all are there, this replica is `listed` (it knows what it misses) and the
    /// epoch is on record as serving. Returns whether nothing is to be compared.
    pub fn begin_comparing(&mut self, cx: &mut Context, member: &Member, listed: bool) -> bool {
        let Phase::Fencing { awaiting, foreign, asked, .. } = &mut self.phase else { return false };
        let fenced = awaiting.is_empty() || cx.config.has(PlantedBug::SkipFence);
        // A rewrite that reads before a tail record is in the store would undo that record.
        if !fenced || !listed || member.applying.has_direct() {
            return false;
        }
        let (group, epoch) = (cx.group, self.epoch);
        if !member.entry().may_serve() && !cx.config.has(PlantedBug::ServeUnrecorded) {
            if asked.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after) {
                *asked = Some(cx.now);
                cx.report(ServerReport::Serving { group, epoch });
            }
            return false;
        }
        let (committed, own) = (member.tail.committed(), member.tail.uncommitted());
        let settlement = Settlement::new(committed, own, std::mem::take(foreign));
        let runs = settlement.questions();
        self.phase = Phase::Comparing(settlement);
        if runs.is_empty() {
            return true;
        }
        let command = StoreCommand::Newer { role: Role::Replica, group, runs };
        cx.store(Wait::Settlement { epoch }, command);
        false
    }

    pub fn is_comparing(&self) -> bool {
        matches!(self.phase, Phase::Comparing(_))
    }

    /// The source of this replica's catch-up is gone: it lists again what it misses, then compares again.
    pub fn become_fencing(&mut self, cx: &mut Context) {
        let Phase::Comparing(settlement) = &mut self.phase else {
            return cx.bug("a primary that does not compare began to fence");
        };
        let (awaiting, foreign) = (BTreeSet::new(), settlement.take_foreign());
        self.phase = Phase::Fencing { awaiting, foreign, since: cx.now, asked: None };
    }

    /// Returns what is to be settled first.
    pub fn become_serving(&mut self, cx: &mut Context) -> Option<Settlement> {
        match std::mem::replace(&mut self.phase, Phase::Serving) {
            Phase::Comparing(settlement) => Some(settlement),
            other => {
                self.phase = other;
                cx.bug("a primary that has not compared began to serve");
                None
            }
        }
    }

    /// [Sierra §3.5 step 1]: no new requests; those in flight complete normally. Returns whether it drains now.
    pub fn become_draining(&mut self) -> bool {
        let serves = self.takes_requests();
        if serves {
            self.phase = Phase::Draining;
        }
        serves
    }

    /// [Sierra §3.5 step 2], once nothing is in flight.
    pub fn release_if_drained(&mut self, cx: &mut Context, member: &Member) -> bool {
        let idle = self.ops.is_empty() && self.in_flight.is_empty();
        let drained = matches!(self.phase, Phase::Draining) && idle;
        if drained {
            self.phase = Phase::Released;
            self.reported = Some(cx.now);
            self.send_committed(cx, member);
        }
        drained
    }

    pub fn send_committed(&mut self, cx: &mut Context, member: &Member) {
        self.committed_sent = member.tail.committed();
        self.unheard.clear();
        let others = member.targets().flatten().map(|(to, _)| to).filter(|to| *to != cx.me).collect();
        self.say_committed(cx, member, others);
    }

    fn say_committed(&self, cx: &mut Context, member: &Member, to: Vec<ServerId>) {
        let (group, epoch, committed) = (cx.group, self.epoch, member.tail.committed());
        to.into_iter().for_each(|to| cx.send(to, PeerMessage::Committed { group, epoch, committed }));
    }

    /// Whether the targets should hear that everything is committed: no record says so.
    pub fn owes_committed(&self, member: &Member) -> bool {
        self.in_flight.is_empty() && member.tail.committed() > self.committed_sent
    }

    /// Whether some may not have heard it.
    pub fn has_unheard(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// The connection to a server broke, or the server is not live.
    pub fn peer_lost(&mut self, cx: &Context, member: &Member, peer: ServerId) {
        self.in_flight.peer_lost(peer);
        if self.is_serving() && member.targets().flatten().any(|(to, _)| to == peer) {
            self.unheard.insert(peer, cx.now + cx.config.suspect_after);
        }
    }

    /// Says the commit point again where it may not have arrived.
    fn repeat_committed(&mut self, cx: &mut Context, member: &Member) {
        let due: Vec<ServerId> =
            self.unheard.extract_if(.., |_, at| *at <= cx.now).map(|(server, _)| server).collect();
        self.say_committed(cx, member, due);
    }

    /// Commits everything below the oldest record in flight: it is on all targets. An older epoch's tail is settled
    /// only when all of it is rewritten and on all targets.
    pub fn commit(&self, member: &mut Member) {
        debug_assert_eq!(self.epoch, member.epoch(), "a primary is of one epoch");
        if !self.ops.any_unsettled() {
            member.tail.commit(self.replicated());
        }
    }

    /// Assigns a version to a part of an operation and sends it to every target.
    pub fn order(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        op: u64,
        (chunk, request): (ChunkId, Option<RequestId>),
        Part { first, count, content, payload }: Part,
    ) {
        if !self.is_serving() {
            cx.bug("a primary that does not serve ordered a record");
        }
        let version = Version { epoch: self.epoch, seq: self.in_flight.next() };
        let record = Record { group: cx.group, chunk, first, count, version, request, content };
        debug_assert!(record.fault(payload.len()).is_none(), "what is ordered is sound");
        debug_assert_eq!(self.epoch, member.epoch(), "a primary is of one epoch");
        let must_fit = self.ops.get(op).is_some_and(|op| !op.takes_space());
        self.committed_sent = self.committed_sent.max(member.tail.committed());
        self.unheard.clear();
        self.in_flight.send(cx, member, op, (record, payload), must_fit);
    }

    /// Sends again what may be lost, and reports servers that owe an answer and send nothing.
    pub fn tick(&mut self, cx: &mut Context, member: &mut Member) {
        self.repeat_committed(cx, member);
        let (group, epoch) = (cx.group, self.epoch);
        let again = self.reported.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after);
        match &self.phase {
            Phase::Fencing { awaiting, since, .. } if again => {
                for &to in awaiting {
                    cx.suspect_if_silent(epoch, to, *since);
                }
                self.reported = Some(cx.now);
                self.fence_others(cx, member);
            }
            Phase::Released if again => {
                self.reported = Some(cx.now);
                cx.report(ServerReport::Released { group, epoch });
            }
            // It was said a moment ago, or there is nothing to say.
            _ => {}
        }
        self.in_flight.resend(cx, member);
        self.in_flight.suspect_silent(cx, member);
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
    let (any_length, whole_blocks) = match request.op {
        ChunkOp::Zero { up_to, .. } => (up_to.is_none(), up_to.is_some()),
        ChunkOp::Look { .. } => (false, true),
        _ => (false, false),
    };
    if whole_blocks && (offset % BLOCK != 0 || len % BLOCK != 0) {
        return Some(ChunkError::Malformed);
    }
    let largest = if any_length { chunk_bytes } else { RECORD_BLOCKS_MAX * BLOCK };
    if len == 0 || offset.checked_add(len).is_none_or(|end| end > chunk_bytes) {
        return Some(ChunkError::OutOfRange);
    }
    // An unaligned range of the maximum size touches one block more than a record holds.
    let blocks = (offset + len).div_ceil(BLOCK) - offset / BLOCK;
    let too_many = !any_length && blocks > RECORD_BLOCKS_MAX;
    (len > largest || too_many).then_some(ChunkError::OutOfRange)
}
