//! The operations of a primary, from a client's request to the reply: admitted, its old blocks read, ordered,
//! replicated.

use super::Group;
use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::blocks::{BLOCK, blocks_of, crcs_of, whole};
use crate::common::config::PlantedBug;
use crate::common::context::{Context, Shared, Waiting};
use crate::common::wait::Wait;
use crate::replicated::primary::claims::Judged;
use crate::replicated::primary::{Arrived, Got, Op, Plan, Primary, Replied, Work, contents};
use crate::replicated::settlement::{Noted, Rewrite, Unsettled};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, Epoch, Kind, Looked, Record, Refusal, RequestId,
    Role, ServerId, Unready, Version, crc32c,
};

impl Group {
    pub fn on_client(&mut self, cx: &mut Context, mut waiting: Waiting) {
        let Some(primary) = &mut self.primary else {
            let entry = self.entry().clone();
            return waiting.turn_away(cx, ClientReply::Moved { entry });
        };
        if !primary.takes_requests() || self.member.is_superseded() {
            return self.waiting.push_back(waiting);
        }
        let Waiting { token, op, payload, since, .. } = waiting.clone();
        if !cx.has_lease() {
            return waiting.turn_away(cx, ClientReply::Retry { why: Unready::NoLease });
        }
        let blocks = blocks_of(&op);
        if let Some(request) = op.request() {
            if let Some(known) = primary.ops.of_request(request) {
                return known.join(waiting);
            }
            let newest = primary.newest();
            if self.is_done(request, op.chunk(), blocks) {
                return cx.reply(token, ClientReply::Done { newest });
            }
            // If an earlier epoch ordered any of it, that takes effect: the request can no longer be refused.
            waiting.ordered |= self.member.tail.knows(request);
        }
        // Refused, or until its claim is known.
        let Some(waiting) = self.admit_claim(cx, waiting) else { return };
        if op.request().is_some() {
            let newest = self.primary.as_ref().map_or(Version::ZERO, Primary::newest);
            if self.may_be_forgotten(cx, since) {
                return cx.reply(token, ClientReply::Forgotten { newest, in_part: waiting.ordered });
            }
            if let (false, Err(reply)) = (waiting.ordered, self.can_write(cx, op.takes_space())) {
                return cx.reply(token, reply);
            }
        }
        count(cx.shared, &op);
        let blocks = if matches!(op, ChunkOp::Delete { .. }) { (0, u32::MAX) } else { blocks };
        let (chunk, request) = (op.chunk(), op.request());
        let (work, askers) = (Work::Client { op, payload }, vec![waiting]);
        self.admit_op(cx, Plan { chunk, blocks, work, askers, request });
    }

    /// Returns the request if its claim is the newest on its object, or if it needs none. Others are refused, also
    /// those that were ordered before and not carried out: their senders have lost the object (R16). If the newest
    /// claim is not known in this epoch, the request waits until it was read.
    fn admit_claim(&mut self, cx: &mut Context, waiting: Waiting) -> Option<Waiting> {
        let chunk = waiting.op.chunk();
        if waiting.claim == 0 || cx.config.has(PlantedBug::IgnoreClaims) {
            return Some(waiting);
        }
        let primary = self.primary.as_mut()?;
        if cx.config.has(PlantedBug::BelieveAnyClaim)
            && primary.claims.judge(&waiting.op, waiting.claim) == Judged::Unknown
        {
            primary.claims.learn(chunk.object, &waiting.claim.to_le_bytes());
        }
        match primary.claims.judge(&waiting.op, waiting.claim) {
            Judged::Present => return Some(waiting),
            Judged::Past => cx.reply(waiting.token, ClientReply::Failed { why: ChunkError::Taken }),
            Judged::Unknown => {
                let noted = ChunkId::of_claim(chunk.object, self.member.id());
                match primary.ops.of_claim(noted) {
                    Some(reads) => reads.join(waiting),
                    None => {
                        let askers = vec![waiting];
                        self.admit_op(cx, Plan { askers, ..Plan::own(noted, (0, 1), Work::Claim) });
                    }
                }
            }
        }
        None
    }

    /// The store's note of the newest claim was read: the requests that wait for it continue.
    fn learn_claim(&mut self, cx: &mut Context, id: u64, got: Got) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("a server that is not primary read a claim");
        };
        let Some(op) = primary.ops.get_mut(id) else {
            return cx.bug("a claim was read for an operation that does not exist");
        };
        let (object, askers) = (op.chunk().object, op.take_askers());
        let block = got.into_values().next().map(|(records, data)| whole(&records, data)).unwrap_or_default();
        primary.claims.learn(object, &block);
        self.end_op(cx, id);
        for waiting in askers {
            self.on_client(cx, waiting);
        }
    }

    /// Whether this request's write of these blocks is on all targets. A note on all targets does not prove it while
    /// the blocks are still to be rewritten.
    fn is_done(&self, request: RequestId, chunk: ChunkId, blocks: (u32, u32)) -> bool {
        let primary = self.primary.as_ref().filter(|p| !p.ops.is_settling(chunk, blocks));
        let epoch = self.member.epoch();
        let ordered_here =
            |v: Version| v.epoch == epoch && primary.is_some_and(|p| !p.in_flight.contains(v.seq));
        self.member.tail.covers(request, blocks, ordered_here)
    }

    /// Whether a request may have been carried out although no record of it is remembered.
    fn may_be_forgotten(&self, cx: &Context, since: Version) -> bool {
        let epoch = self.member.epoch();
        let inherited = self.primary.as_ref().map_or(Version::first_of(epoch), Primary::forgotten);
        since < inherited.max(self.member.tail.evicted) && !cx.config.has(PlantedBug::RepeatForgotten)
    }

    /// Whether a new client write would find room for each of its r copies. An operation that frees space needs next to
    /// none and may use the reserve: otherwise a full cluster could not be emptied, nor a volume in it be served.
    fn can_write(&self, cx: &mut Context, takes_space: bool) -> Result<(), ClientReply> {
        if !self.member.has_all_targets() {
            return Err(ClientReply::Retry { why: Unready::TooFewCopies });
        }
        if !cx.config.has(PlantedBug::RememberFull) {
            cx.shared.peers.forget_full(cx.now);
        }
        let full = |(server, _): (ServerId, Role)| {
            (server == cx.me && cx.full) || cx.shared.peers.full.contains_key(&server)
        };
        if takes_space && self.member.targets().flatten().any(full) {
            return Err(ClientReply::Failed { why: ChunkError::NoSpace });
        }
        Ok(())
    }

    /// Starts to rewrite these blocks.
    pub(super) fn settle(&mut self, cx: &mut Context, unsettled: Unsettled) {
        if let Some(primary) = &mut self.primary {
            primary.ops.settle(unsettled);
            self.go_on_settling(cx);
        }
    }

    fn go_on_settling(&mut self, cx: &mut Context) {
        while let Some(rewrite) = self.primary.as_mut().and_then(|p| p.ops.next_rewrite()) {
            let Rewrite { chunk, first, count, kind, request } = rewrite;
            self.admit_op(cx, Plan { request, ..Plan::own(chunk, (first, count), Work::Rewrite { kind }) });
        }
    }

    pub(super) fn admit_note(&mut self, cx: &mut Context, noted: Noted) {
        let Noted { request, chunk, first, count } = noted;
        let note = Plan { request: Some(request), ..Plan::own(chunk, (first, count), Work::Note) };
        self.admit_op(cx, note);
    }

    pub(super) fn admit_op(&mut self, cx: &mut Context, plan: Plan) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("a server that is not primary admitted an operation");
        };
        if matches!(plan.work, Work::Client { .. }) {
            cx.shared.budget.begin_client();
        }
        if let Some(id) = primary.ops.admit(plan) {
            self.advance_op(cx, id);
        }
    }

    pub(super) fn op_mut(&mut self, id: u64) -> Option<&mut Op> {
        self.primary.as_mut()?.ops.get_mut(id)
    }

    /// Takes an admitted operation as far as it can go without waiting.
    pub(super) fn advance_op(&mut self, cx: &mut Context, id: u64) {
        // It ended meanwhile: others that went on before it took it along.
        let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(id)) else { return };
        let (chunk, needs) = (op.chunk(), op.needs());
        if let Some(catch_up) = &mut self.catch_up
            && needs.iter().any(|&(first, count)| catch_up.lacks(chunk, first, count))
        {
            op.become_fetching(cx);
            let lost = needs.iter().find_map(|&(first, count)| catch_up.lost(chunk, first, count));
            if let Some(blocks) = lost {
                // A source said so of its own copy: that others have none either, the catch-up finds out.
                return self.fail_damaged(cx, id, ChunkError::Corrupt, (&[blocks], false, false));
            }
            for (first, count) in needs {
                self.demand(cx, (chunk, first, count));
            }
            return;
        }
        let checks = op.is_check();
        if needs.is_empty() {
            return match checks {
                true => self.compare(cx, id, Got::new()),
                false => self.order_op(cx, id, Got::new()),
            };
        }
        let (group, epoch, role) = (self.member.id(), self.member.epoch(), Role::Replica);
        for (first, count) in op.become_reading(cx) {
            let command = match checks {
                true => StoreCommand::Check { role, group, chunk, first, count, bytes: false },
                false => StoreCommand::Read { role, group, chunk, first, count },
            };
            cx.store(Wait::OpRead { op: id, epoch, first }, command);
        }
    }

    /// Blocks arrived: operations that waited for them continue.
    pub(super) fn advance_fetching(&mut self, cx: &mut Context) {
        // Only a primary has operations.
        let Some(primary) = &self.primary else { return };
        for id in primary.ops.fetching() {
            self.advance_op(cx, id);
        }
    }

    /// The own store read blocks that an operation needs. The operation may have ended meanwhile, or begun to read
    /// again.
    pub(super) fn on_op_read(
        &mut self,
        cx: &mut Context,
        (epoch, id, first): (Epoch, u64, u32),
        outcome: StoreOutcome,
    ) {
        let superseded = self.member.is_superseded();
        if epoch != self.member.epoch() {
            return;
        }
        let Some(op) = self.op_mut(id).filter(|op| op.awaits_read(first)) else { return };
        let (records, payload) = match outcome {
            StoreOutcome::Read { records, payload } => (records, payload),
            StoreOutcome::Damaged { chunk, block, lost, all, .. } => {
                let one = lost.is_none() && !all && (op.settles() || op.is_check());
                let count = op.needs().iter().find(|n| n.0 == first).map_or(1, |n| n.1);
                let (first, count) = if one { (block, 1) } else { (first, count) };
                op.become_repairing(cx);
                return self.repair(cx, Some(id), (chunk, first, count), lost);
            }
            _ => return self.fail_op(cx, id, ClientReply::Retry { why: Unready::Busy }),
        };
        // Others of its blocks are still being read.
        let Arrived::All(got) = op.take_read(first, records, payload) else { return };
        // Fenced while it read: it may have seen a write of the next configuration that is not acknowledged there.
        if superseded {
            return op.become_fetching(cx);
        }
        if op.is_claim() {
            return self.learn_claim(cx, id, got);
        }
        if op.is_read() {
            let (records, data) = got.into_values().next().unwrap_or_default();
            let looks = matches!(op.work(), Work::Client { op: ChunkOp::Look { .. }, .. });
            return match looks {
                true => self.answer_look(cx, id, &records),
                false => self.answer_read(cx, id, records, data),
            };
        }
        if op.is_check() {
            return self.compare(cx, id, got);
        }
        self.order_op(cx, id, got);
    }

    /// Replies to a read with the store's blocks, whose checksums the store has verified.
    fn answer_read(&mut self, cx: &mut Context, id: u64, records: Vec<Record>, data: Bytes) {
        let Some(op) = self.op_mut(id) else {
            return cx.bug("a read that does not exist was answered");
        };
        let Work::Client { op: ChunkOp::Read { offset, len, must_exist, .. }, .. } = *op.work() else {
            return cx.bug("an operation other than a read was answered with data");
        };
        // Zeroed blocks were freed, and no copy has anything newer: their bytes are gone, and zeroes are not they.
        let is_freed = |r: &Record| !r.is_never_written() && r.content.kind() == Kind::Zero;
        if must_exist && records.iter().any(is_freed) {
            return self.fail_op(cx, id, ClientReply::Failed { why: ChunkError::Missing });
        }
        if must_exist && records.iter().any(Record::is_never_written) {
            let (chunk, (first, count)) = (op.chunk(), op.blocks());
            op.become_repairing(cx);
            return self.seek(cx, id, (chunk, first, count));
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
        for Waiting { token, .. } in op.take_askers() {
            cx.reply_with(token, ClientReply::Data { crcs: crcs.clone() }, payload.clone());
        }
        self.end_op(cx, id);
    }

    fn answer_look(&mut self, cx: &mut Context, id: u64, records: &[Record]) {
        let Some(op) = self.op_mut(id) else {
            return cx.bug("a look that does not exist was answered");
        };
        let data = records.iter().filter(|record| record.content.kind() == Kind::Data);
        let newest = records.iter().map(|record| record.version).max().unwrap_or(Version::ZERO);
        let ahead = if cx.config.has(PlantedBug::LookAhead) { 1 } else { 0 };
        let looked = Looked {
            runs: data.map(|record| (record.first, record.count)).collect(),
            newest: Version { seq: newest.seq + ahead, ..newest },
        };
        for Waiting { token, .. } in op.take_askers() {
            cx.reply(token, ClientReply::Looked(looked.clone()));
        }
        self.end_op(cx, id);
    }

    /// Assigns versions to the operation's records and sends them to every target.
    fn order_op(&mut self, cx: &mut Context, id: u64, got: Got) {
        // Fenced by a newer configuration: a record ordered now would be in no tail. The operation is carried over.
        if self.member.is_superseded() && !cx.config.has(PlantedBug::SkipFence) {
            return;
        }
        if !self.member.has_all_targets() {
            return self.fail_op(cx, id, ClientReply::Retry { why: Unready::TooFewCopies });
        }
        let epoch = self.member.epoch();
        let Some(op) = self.primary.as_ref().and_then(|p| p.ops.get(id)) else {
            return cx.bug("an operation that does not exist was ordered");
        };
        let (chunk, request) = (op.chunk(), op.request());
        if self.member.tail.deleted.has(chunk)
            && let Work::Client { op: ChunkOp::Write { .. } | ChunkOp::Zero { .. }, .. } = op.work()
        {
            return self.end_too_late(cx, id);
        }
        if let Work::Rewrite { kind: Kind::Data | Kind::Zero } = op.work()
            && op.lost().is_empty()
            && !got.values().flat_map(|(records, _)| records).any(|r| r.version.epoch < epoch)
        {
            return self.finish_op(cx, id); // rewritten already, under another tail's record
        }
        let mut parts = contents(op, got);
        // What an earlier attempt of the request did is not repeated: others may have written there since.
        if let (true, Some(request)) = (op.is_client(), request) {
            if op.ordered_since().is_some_and(|since| self.may_be_forgotten(cx, since)) {
                return self.fail_op(cx, id, ClientReply::Retry { why: Unready::Interrupted });
            }
            parts.retain(|p| !self.is_done(request, chunk, (p.first, p.count)));
        }
        if parts.is_empty() {
            return self.finish_op(cx, id);
        }
        let Some(primary) = &mut self.primary else {
            return cx.bug("a server that is not primary ordered an operation");
        };
        if let Some(op) = primary.ops.get_mut(id) {
            op.become_replicating(cx, parts.len());
        }
        for part in parts {
            primary.order(cx, &mut self.member, id, (chunk, request), part);
        }
    }

    /// The operation's chunk is deleted on all targets: conflicting operations run one after another. Any copy of the
    /// request that was carried out is deleted, too. Whoever sets blocks to zero has what it wants.
    fn end_too_late(&mut self, cx: &mut Context, id: u64) {
        let Some(op) = self.op_mut(id) else {
            return cx.bug("an operation that does not exist came too late");
        };
        if matches!(op.work(), Work::Client { op: ChunkOp::Zero { .. }, .. }) {
            return self.finish_op(cx, id);
        }
        for waiting in op.take_askers() {
            cx.reply(waiting.token, ClientReply::Failed { why: ChunkError::Deleted });
        }
        self.end_op(cx, id);
    }

    /// The own store has an ordered record, or refused it.
    pub(super) fn on_own_stored(
        &mut self,
        cx: &mut Context,
        (epoch, seq): (Epoch, u64),
        outcome: StoreOutcome,
    ) {
        let result = match outcome {
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => Ok(()),
        };
        self.pump_catch_up(cx);
        self.on_replicate_reply(cx, (cx.me, epoch), (Version { epoch, seq }, 0), result);
    }

    /// A target has a record, or refused it. A record of an older epoch is one that a cover sent.
    pub(super) fn on_replicate_reply(
        &mut self,
        cx: &mut Context,
        (from, epoch): (ServerId, Epoch),
        (version, first): (Version, u32),
        result: Result<(), Refusal>,
    ) {
        if epoch != self.member.epoch() {
            return;
        }
        if version.epoch < epoch {
            return self.on_cover_reply(cx, from, (version, first), result);
        }
        // Only a primary asks: it is no answer to this server.
        let Some(primary) = &mut self.primary else { return };
        match primary.in_flight.on_reply(cx, &mut self.member, from, version.seq, result) {
            Replied::Nothing => {}
            Replied::Committed(id) => {
                self.advance_commit();
                if self.op_mut(id).is_some_and(|op| op.take_committed(cx)) {
                    self.finish_op(cx, id);
                }
            }
            Replied::Full(id) => {
                // The clients learn the reason for the delay, and retry.
                let askers = primary.ops.get_mut(id).map(Op::take_askers).unwrap_or_default();
                askers.into_iter().for_each(|waiting| cx.reply_retry(waiting.token, Unready::Full));
            }
        }
    }

    fn finish_op(&mut self, cx: &mut Context, id: u64) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("an operation was done on a server that is not primary");
        };
        let done = ClientReply::Done { newest: primary.newest() };
        let Some(op) = primary.ops.get_mut(id) else {
            return cx.bug("an operation that does not exist was done");
        };
        op.take_askers().into_iter().for_each(|waiting| cx.reply(waiting.token, done.clone()));
        let scrubs = op.is_scrub();
        self.end_op(cx, id);
        if scrubs {
            self.scrub_op_ended(cx, true);
        }
    }

    pub(super) fn fail_op(&mut self, cx: &mut Context, id: u64, reply: ClientReply) {
        // It ended while its blocks were sought.
        let Some(op) = self.op_mut(id) else { return };
        if op.settles() {
            return op.become_fetching(cx); // the tick resumes it
        }
        for waiting in op.take_askers() {
            waiting.turn_away(cx, reply.clone());
        }
        let scrubs = op.is_scrub();
        self.end_op(cx, id);
        if scrubs {
            self.scrub_op_ended(cx, false);
        }
    }

    /// No awake member has a sound copy of these parts of the operation's blocks; `sure`: each of them said so;
    /// `stale`: one of them knows a newer configuration. A scrub goes on with the other blocks of its window. What is
    /// to be rewritten waits for the members that are away, and is ordered as lost if there are none. It is not passed
    /// over: the request in it would count as carried out, and a member that never had it as complete.
    pub(super) fn fail_damaged(
        &mut self,
        cx: &mut Context,
        id: u64,
        why: ChunkError,
        (parts, sure, stale): (&[(u32, u32)], bool, bool),
    ) {
        let gone = sure && self.member.all_live(cx);
        if let Some(op) = self.op_mut(id).filter(|op| op.is_check() || (op.settles() && gone)) {
            op.give_up_blocks(parts);
            return self.advance_op(cx, id);
        }
        // What a primary that catches up lacks is not damaged: whoever has it may only be away.
        let lacks = why == ChunkError::Corrupt && self.catch_up.is_some();
        let waits = lacks && self.member.others_may_return(cx);
        let reply = match stale || waits || self.member.others_sleep(cx) {
            true => ClientReply::Retry { why: Unready::Busy },
            false => ClientReply::Failed { why },
        };
        self.fail_op(cx, id, reply);
    }

    /// Releases the operation's blocks and admits operations that waited for them.
    pub(super) fn end_op(&mut self, cx: &mut Context, id: u64) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("an operation ended on a server that is not primary");
        };
        let (ended, admitted) = primary.ops.end(id);
        match ended {
            Some(op) => cx.shared.budget.end_clients(usize::from(op.is_client())),
            None => cx.bug("an operation ended twice"),
        }
        let settling = primary.ops.has_rewrites();
        for id in admitted {
            self.advance_op(cx, id);
        }
        if settling {
            self.go_on_settling(cx);
        }
        self.advance_commit();
        self.release_if_drained(cx);
    }

    pub(super) fn advance_commit(&mut self) {
        if let Some(primary) = &self.primary {
            primary.commit(&mut self.member);
        }
    }
}

/// Operations that move no bytes are random ones.
fn count(shared: &mut Shared, op: &ChunkOp) {
    let (offset, len) = op.range();
    let load = &mut shared.stats.load;
    match op {
        ChunkOp::Read { chunk, .. } => shared.streams.count(load, false, *chunk, offset, len),
        ChunkOp::Write { chunk, .. } => shared.streams.count(load, true, *chunk, offset, len),
        ChunkOp::Look { .. } => {
            load.reads += 1;
            load.random_reads += 1;
        }
        ChunkOp::Zero { .. } | ChunkOp::Delete { .. } => {
            load.writes += 1;
            load.random_writes += 1;
        }
    }
}
