//! Clients' strips: writes, zeroes and deletions are stored under the epoch that they came with; reads are served from
//! the store, and what is missing or damaged there is rebuilt first.
//!
//! A block that is here is right under any epoch, because rows are immutable. That a block was never written is said
//! only by a server with a lease: without one, it may have been replaced, and others may have written since.

use super::known::{DELETION, cleared};
use super::page::runs_of;
use super::read::{Next, Read};
use super::rebuild::{Blocks, Candidate, Ended, For};
use super::set::CodedSet;
use crate::common::api::{ClientToken, StoreCommand, StoreOutcome};
use crate::common::blocks::{BLOCK, blocks_of};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::wait::{ColumnWait, Wait};
use bytes::Bytes;
use ebb_types::{
    ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, Cursor, Epoch, Kind,
    RECORD_BLOCKS_MAX, Record, Refusal, Role, Rows, ServerReport, Unready, Version, block_crcs,
};

impl CodedSet {
    pub fn on_client(
        &mut self,
        cx: &mut Context,
        token: ClientToken,
        request: ClientRequest,
        payload: Bytes,
    ) {
        let Some((_, column)) = request.group.column() else {
            return cx.bug("a set was asked for a chunk group");
        };
        if let Err(reply) = self.admit(cx, column, &request, &payload) {
            return cx.reply(token, reply);
        }
        cx.shared.budget.begin_client();
        let (chunk, (offset, len)) = (request.op.chunk(), request.op.range());
        let write = !matches!(request.op, ChunkOp::Read { .. });
        cx.shared.streams.count(&mut cx.shared.stats.load, write, chunk, offset, len);
        match request.op {
            ChunkOp::Read { must_exist, .. } => {
                let (first, count) = blocks_of(&request.op);
                let of = Blocks { column, chunk, first, count };
                let read = Read::new(token, of, (offset, len), must_exist);
                let id = cx.shared.token();
                let before = self.reads.insert(id, read);
                debug_assert!(before.is_none(), "a number is of one read");
                self.read_on(cx, id);
            }
            op => self.write(cx, token, (column, request.epoch), op, payload),
        }
    }

    /// Why a request is not carried out, if it is not.
    fn admit(
        &mut self,
        cx: &mut Context,
        column: usize,
        request: &ClientRequest,
        payload: &Bytes,
    ) -> Result<(), ClientReply> {
        let retry = |why| Err(ClientReply::Retry { why });
        let takes_old = cx.config.has(PlantedBug::SkipColumnFence) && request.op.kind().is_some();
        if request.epoch < self.epoch() && !takes_old {
            return Err(self.moved());
        }
        self.known.fence = self.known.fence.max(request.epoch);
        if self.known.fence > self.epoch() && !takes_old {
            return retry(Unready::Behind);
        }
        if cx.shared.stats.poisoned || cx.shared.budget.clients() >= cx.config.waiting {
            if cx.config.has(PlantedBug::KeepTurnedAway) {
                cx.shared.budget.begin_client();
            }
            return retry(Unready::Busy);
        }
        if cx.map.set_of(request.op.chunk()) != Some(self.known.id) || column >= self.known.entry.strips() {
            return Err(ClientReply::Failed { why: ChunkError::Malformed });
        }
        let rows = Rows::new(self.known.entry.shape, cx.config.chunk_bytes);
        if let Some(why) = fault(&request.op, payload.len(), rows.column_bytes()) {
            return Err(ClientReply::Failed { why });
        }
        if self.known.entry.targets(request.op.chunk()).get(column) != Some(&Some(cx.me)) && !takes_old {
            return Err(self.moved());
        }
        if let ChunkOp::Write { crcs, .. } = &request.op
            && *crcs != block_crcs(payload)
        {
            cx.shared.stats.damage.garbled += 1;
            return retry(Unready::Garbled);
        }
        // R10: deletions make room.
        let adds = matches!(request.op, ChunkOp::Write { .. } | ChunkOp::Zero { .. });
        if adds && self.deleted.has(request.op.chunk()) {
            return Err(ClientReply::Failed { why: ChunkError::Deleted });
        }
        if adds && !self.known.bears_a_loss(request.op.chunk()) {
            return retry(Unready::Exposed);
        }
        // A deletion, too, is to be known to two servers: `Known::all_is_listed`.
        let deletes = matches!(request.op, ChunkOp::Delete { .. });
        if deletes && self.known.entry.columns.iter().filter(|own| !own.is_away()).count() < 2 {
            return retry(Unready::Exposed);
        }
        if adds && cx.full {
            return Err(ClientReply::Failed { why: ChunkError::NoSpace });
        }
        Ok(())
    }

    /// Its version says which epoch it was taken under: the client compares that over all strips.
    fn write(
        &mut self,
        cx: &mut Context,
        client: ClientToken,
        (column, epoch): (usize, Epoch),
        op: ChunkOp,
        payload: Bytes,
    ) {
        let role = self.known.role_for(cx.me, column);
        if !self.known.is_own(cx.me, column) {
            cx.shared.stats.offloaded_bytes += payload.len() as u64;
        }
        let (chunk, request) = (op.chunk(), op.request());
        let (content, seq) = match op {
            ChunkOp::Delete { .. } => {
                self.deleted.note(chunk);
                (Content::Delete, DELETION)
            }
            ChunkOp::Write { ref crcs, .. } => (Content::Data { crcs: crcs.clone() }, 1),
            _ => (Content::Zero, 1),
        };
        let (first, count) = if content == Content::Delete { (0, 0) } else { blocks_of(&op) };
        let (version, must_fit) = (Version { epoch, seq }, content == Content::Delete);
        let record =
            Record { group: self.known.group(column), chunk, first, count, version, request, content };
        let wait = Wait::Column(ColumnWait::Written { client, version, kept: (column, role) });
        // With `committed` it leaves no tail: nothing of columns is ever settled.
        let token =
            cx.store(wait, StoreCommand::Apply { role, record, payload, must_fit, committed: version });
        self.storing.insert(token, epoch);
        if must_fit && self.known.is_own(cx.me, column) {
            self.delete_kept(cx, chunk, version);
        }
    }

    /// Strips of a deleted chunk may be kept here for columns whose target is another server by now: no request comes
    /// for those. If this is cut short, the next fill finds the tombstone.
    fn delete_kept(&self, cx: &mut Context, chunk: ChunkId, version: Version) {
        let targets = self.known.entry.targets(chunk);
        let of_others = |column: &usize| targets.get(*column) != Some(&Some(cx.me));
        for column in self.known.kept_columns().into_iter().filter(of_others).collect::<Vec<_>>() {
            let Some(role) = self.known.role_of(cx.me, column) else { continue };
            let wait = ColumnWait::KeptList { kept: (column, role), chunk, version };
            let (group, since, after) = (self.known.group(column), Epoch(0), Cursor::before(chunk));
            cx.store(Wait::Column(wait), StoreCommand::List { role, group, since, after });
        }
    }

    pub(super) fn delete_listed(
        &self,
        cx: &mut Context,
        kept: (usize, Role),
        (chunk, version): (ChunkId, Version),
        outcome: StoreOutcome,
    ) {
        // A store that has failed answers nothing more.
        let StoreOutcome::Listed(page) = outcome else { return };
        if page.runs.iter().any(|run| run.chunk == chunk && run.kind != Kind::Delete) {
            self.delete_in(cx, kept, chunk, version);
        }
    }

    /// Deletes a chunk of which another column has a tombstone.
    pub(super) fn delete_in(&self, cx: &mut Context, kept: (usize, Role), chunk: ChunkId, version: Version) {
        let (group, role, content) = (self.known.group(kept.0), kept.1, Content::Delete);
        let record = Record { group, chunk, first: 0, count: 0, version, request: None, content };
        let (payload, must_fit, committed) = (Bytes::new(), true, version);
        let wait = Wait::Column(ColumnWait::KeptDeleted { kept });
        cx.store(wait, StoreCommand::Apply { role, record, payload, must_fit, committed });
    }

    pub(super) fn on_written(
        &mut self,
        cx: &mut Context,
        client: ClientToken,
        version: Version,
        outcome: &StoreOutcome,
    ) {
        let reply = match outcome {
            StoreOutcome::Failed(Refusal::NoSpace) => ClientReply::Failed { why: ChunkError::NoSpace },
            StoreOutcome::Failed(_) => ClientReply::Retry { why: Unready::Busy },
            _ => ClientReply::Done { newest: version },
        };
        self.finish(cx, client, reply, Bytes::new());
    }

    pub(super) fn finish(&self, cx: &mut Context, token: ClientToken, reply: ClientReply, payload: Bytes) {
        cx.shared.budget.end_clients(1);
        cx.reply_with(token, reply, payload);
    }

    fn end_read(&mut self, cx: &mut Context, id: u64, reply: ClientReply) {
        if let Some(read) = self.reads.remove(&id) {
            self.finish(cx, read.token, reply, Bytes::new());
        }
    }

    /// Reads the blocks from the store, at first or again.
    pub(super) fn read_on(&mut self, cx: &mut Context, id: u64) {
        // Its epoch ended.
        let Some(read) = self.reads.get(&id) else { return };
        let Blocks { column, chunk, first, count } = read.of;
        let group = self.known.group(column);
        let role = self.known.role_for(cx.me, column);
        cx.store(
            Wait::Column(ColumnWait::Read { read: id }),
            StoreCommand::Read { role, group, chunk, first, count },
        );
    }

    pub(super) fn on_read(&mut self, cx: &mut Context, id: u64, outcome: StoreOutcome) {
        if !self.reads.contains_key(&id) {
            return; // its epoch ended
        }
        match outcome {
            StoreOutcome::Read { records, payload } => self.on_blocks(cx, id, &records, payload),
            StoreOutcome::Damaged { block, lost, .. } => self.on_damaged(cx, id, (block, lost.is_some())),
            _ => self.end_read(cx, id, ClientReply::Retry { why: Unready::Busy }),
        }
    }

    fn on_blocks(&mut self, cx: &mut Context, id: u64, records: &[Record], payload: Bytes) {
        let Some(read) = self.reads.get_mut(&id) else {
            return cx.bug("a read that does not exist was answered");
        };
        let gaps = read.gaps(records);
        let knows = self.known.is_whole(cx.me, read.of.column) || cx.config.has(PlantedBug::AnswerBehind);
        if !gaps.is_empty() && !knows {
            read.tried.extend(&gaps);
            return self.rebuild(cx, id, &gaps, false);
        }
        if records.iter().any(Record::is_never_written) && !cx.has_lease() {
            return self.end_read(cx, id, ClientReply::Retry { why: Unready::NoLease });
        }
        if read.misses(records) {
            return self.end_read(cx, id, ClientReply::Failed { why: ChunkError::Missing });
        }
        let (crcs, bytes) = read.cut_out(records, payload);
        if let Some(read) = self.reads.remove(&id) {
            self.finish(cx, read.token, ClientReply::Data { crcs }, bytes);
        }
    }

    fn on_damaged(&mut self, cx: &mut Context, id: u64, (block, lost): (u32, bool)) {
        let Some(read) = self.reads.get_mut(&id) else {
            return cx.bug("a read that does not exist met damage");
        };
        if !read.met_damage(block, lost) {
            return self.end_read(cx, id, ClientReply::Retry { why: Unready::Busy });
        }
        self.rebuild(cx, id, &[block], true);
    }

    fn rebuild(&mut self, cx: &mut Context, id: u64, blocks: &[u32], repair: bool) {
        let Some(read) = self.reads.get(&id) else {
            return cx.bug("a read that does not exist had blocks rebuilt");
        };
        let Blocks { column, chunk, .. } = read.of;
        let runs = runs_of(blocks);
        let waiting = runs.len();
        for (first, count) in runs {
            let candidates = self.candidates(cx, Blocks { column, chunk, first, count });
            self.rebuilds.demand(&self.known, Blocks { column, chunk, first, count }, repair, id, candidates);
        }
        if let Some(read) = self.reads.get_mut(&id) {
            read.waiting = waiting;
        }
    }

    /// Who may have the strip itself, then who may have others: data, parity, extra ones; own servers and present
    /// holders before those that may have been holders.
    pub(super) fn candidates(&self, cx: &Context, of: Blocks) -> Vec<Candidate> {
        let entry = &self.known.entry;
        let targets = entry.targets(of.chunk);
        let live = self.known.others(cx.me, cx.map);
        let order =
            std::iter::once(of.column).chain((0..entry.strips()).filter(|column| *column != of.column));
        let (mut likely, mut perhaps) = (Vec::new(), Vec::new());
        for column in order {
            let own = entry.columns.get(column).map(|own| own.server);
            let here = self.known.role_of(cx.me, column).is_some() && column != of.column;
            for server in live.iter().copied().chain(here.then_some(cx.me)) {
                let candidate = Candidate { column, server, first: of.first, count: of.count };
                if own == Some(server) || targets[column] == Some(server) || server == cx.me {
                    likely.push(candidate);
                } else if entry.missing_since(column).is_some() {
                    perhaps.push(candidate);
                }
            }
        }
        likely.append(&mut perhaps);
        likely
    }

    pub(super) fn on_rebuilt(&mut self, cx: &mut Context, ended: &Ended) {
        // It was for a fill or a scrub.
        let For::Reads(reads) = &ended.wanted else { return };
        for &id in reads {
            // Its epoch ended.
            let Some(read) = self.reads.get_mut(&id) else { continue };
            match read.on_rebuilt(ended) {
                None => {}
                Some(Next::Retry) => self.read_on(cx, id),
                Some(Next::Lacks) => {
                    self.report_damage(cx, ended.of.column);
                    self.end_read(cx, id, ClientReply::Retry { why: Unready::TooFewCopies });
                }
                Some(Next::Clear(block)) => self.clear(cx, id, block),
                Some(Next::End(reply)) => self.end_read(cx, id, reply),
            }
        }
    }

    /// A block whose version is lost was never written as a whole.
    fn clear(&mut self, cx: &mut Context, id: u64, block: u32) {
        let Some(read) = self.reads.get(&id) else {
            return cx.bug("a read that does not exist cleared a block");
        };
        let Blocks { column, chunk, .. } = read.of;
        let (group, role) = (self.known.group(column), self.known.role_for(cx.me, column));
        let command = cleared(group, role, (chunk, block), Version::ZERO);
        cx.store(Wait::Column(ColumnWait::Cleared { read: id }), command);
    }

    /// Wakes the servers that may have what is needed.
    fn report_damage(&mut self, cx: &mut Context, column: usize) {
        if self.damage_reported.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after) {
            self.damage_reported = Some(cx.now);
            cx.report(ServerReport::Damaged { group: self.known.group(column), epoch: self.epoch() });
        }
    }
}

/// Why a request can never be carried out, if so.
fn fault(op: &ChunkOp, payload_len: usize, column_bytes: u32) -> Option<ChunkError> {
    let (offset, len) = op.range();
    let carried = if matches!(op, ChunkOp::Write { .. }) { len as usize } else { 0 };
    if payload_len != carried {
        return Some(ChunkError::Malformed);
    }
    if matches!(op, ChunkOp::Delete { .. }) {
        return None;
    }
    if len == 0 || offset.checked_add(len).is_none_or(|end| end > column_bytes) {
        return Some(ChunkError::OutOfRange);
    }
    // Rows are immutable and their blocks have one version: there is nothing to look for.
    if matches!(op, ChunkOp::Look { .. } | ChunkOp::Zero { up_to: Some(_), .. }) {
        return Some(ChunkError::Malformed);
    }
    let reads = matches!(op, ChunkOp::Read { .. });
    if !reads && (offset % BLOCK != 0 || len % BLOCK != 0) {
        return Some(ChunkError::Malformed);
    }
    (blocks_of(op).1 > RECORD_BLOCKS_MAX).then_some(ChunkError::OutOfRange)
}
