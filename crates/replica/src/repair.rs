//! Repair: blocks that are damaged here are fetched from other copies (R9), by the primary for an operation that needs them, or
//! by any member for its own copy. It ends when they can be read again, or when no copy is left to ask.
//!
//! A block that fails its checksum still has a version, and the store takes no older one for it: any copy may be tried. Of a
//! *lost* block (its metadata is damaged, or its file is gone) not even the version is known, so any reply would be believed.
//! Therefore only copies that surely have everything are asked: a replica that is in sync; one that was in sync until an epoch
//! that the block is older than; or one that was in sync, together with the covered holder that has everything since then. The
//! holder's reply comes first, so that nothing older is ever visible. From other copies only a version as new as the block can
//! have been is accepted. A replica that still misses some of the blocks refuses, unless they are older than what it misses:
//! then it must answer, because it could be waiting for a listing of this replica, which waits for the repair.

use crate::api::{StoreCommand, StoreOutcome};
use crate::group::{Context, Group, Wait};
use crate::run_map::Source;
use crate::secondary::split_payload;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, Content, Cursor, Epoch, PeerMessage, Record, Refusal, ServerId,
    ServerReport, Slot, SlotState, Space, Version, block_crcs,
};

/// Lost blocks that are repaired together: the store loses a metadata page as a whole.
const AROUND: u32 = 256;

pub(crate) struct Repair {
    /// The operation that waits for it. `None`: the member repairs its own copy.
    op: Option<u64>,
    chunk: ChunkId,
    first: u32,
    count: u32,
    /// The version of some blocks is not known: they were not newer than this one.
    lost: Option<Version>,
    /// The blocks are not damaged here but missing, as if never written, and the client of `op` knows that they were written.
    sought: bool,
    /// Copies to ask, and how many were asked.
    copies: Vec<Copy>,
    tried: usize,
    step: Step,
}

enum Step {
    /// Waiting for the reply of the last copy asked; `question` is the correlation id.
    Asked {
        question: u64,
    },
    /// `left` records are still being written.
    Writing {
        left: usize,
    },
    Checking,
}

/// A copy that may have the blocks.
#[derive(Clone, Copy)]
struct Copy {
    source: Source,
    /// Blocks that it does not have were never written, apart from writes that the preceding copy in the list has.
    whole: bool,
    /// The blocks are older than everything it misses.
    older: bool,
    /// It may miss blocks or have older ones: only a version as new as a lost block can have been is believed.
    partial: bool,
    /// Asked only if the preceding copy in the list has answered.
    second: bool,
}

impl Copy {
    fn any(source: Source) -> Copy {
        Copy { source, whole: false, older: false, partial: false, second: false }
    }
}

impl Group {
    /// The copies to ask: first those that have everything, then all others.
    fn copies(&self, cx: &Context, lost: Option<Version>) -> Vec<Copy> {
        let live = |server| server != cx.me && cx.map.is_live(server);
        let replica = |slot: &Slot, older, second| {
            let source = (slot.server, Space::Replica);
            Copy { source, whole: true, older, partial: false, second }
        };
        let older = |slot: &Slot| match slot.state {
            SlotState::InSync => false,
            SlotState::CatchingUp { since } | SlotState::Away { since } => {
                lost.is_some_and(|newest| newest.epoch < since)
            }
        };
        let is_whole = |slot: &Slot| slot.state == SlotState::InSync || older(slot);
        let slots = self.entry.slots.iter().filter(|slot| live(slot.server));
        let (complete, partial): (Vec<&Slot>, Vec<&Slot>) = slots.partition(|slot| is_whole(slot));
        let mut copies: Vec<Copy> = complete.iter().map(|slot| replica(slot, older(slot), false)).collect();
        for slot in partial {
            if let Some(holder) = slot.holder.filter(|s| s.covered && live(s.server)) {
                let kept = (holder.server, Space::Offload { stands_for: slot.server });
                copies.push(Copy::any(kept));
                copies.push(replica(slot, false, true));
            }
        }
        for source in self.other_copies(cx) {
            if !copies.iter().any(|c| c.source == source && !c.second) {
                copies.push(Copy { partial: lost.is_some(), ..Copy::any(source) });
            }
        }
        copies
    }

    /// Begins to repair blocks, unless the same repair is already in progress.
    pub fn repair(
        &mut self,
        cx: &mut Context,
        op: Option<u64>,
        chunk: ChunkId,
        (first, count): (u32, u32),
        lost: Option<Version>,
    ) {
        let same = |r: &Repair| (r.op, r.chunk, r.first) == (op, chunk, first);
        if self.repairs.values().any(same) {
            return;
        }
        let (copies, step) = (self.copies(cx, lost), Step::Checking);
        let repair = Repair { op, chunk, first, count, lost, sought: false, copies, tried: 0, step };
        self.begin_repair(cx, repair);
    }

    /// Looks for blocks that are not here, as if never written, and that the client of `op` knows to be written. Any copy,
    /// including this one, may have lost them without noticing: so only copies that should have everything are asked.
    pub fn seek(&mut self, cx: &mut Context, op: u64, chunk: ChunkId, (first, count): (u32, u32)) {
        let lost = Some(Version { epoch: Epoch(u32::MAX), seq: u64::MAX });
        cx.shared.stats.damage.sought += 1;
        let (mut copies, step) = (self.copies(cx, lost), Step::Checking);
        copies.retain(|copy| !copy.partial);
        let repair = Repair { op: Some(op), chunk, first, count, lost, sought: true, copies, tried: 0, step };
        self.begin_repair(cx, repair);
    }

    fn begin_repair(&mut self, cx: &mut Context, repair: Repair) {
        let id = cx.shared.token();
        self.repairs.insert(id, repair);
        self.ask_next(cx, id, false);
    }

    /// Repairs a block for this member's own copy, and if it is lost its neighbours too, which usually are as well. Returns the
    /// last block.
    pub fn repair_around(
        &mut self,
        cx: &mut Context,
        chunk: ChunkId,
        block: u32,
        lost: Option<Version>,
    ) -> Cursor {
        let blocks = cx.config.chunk_bytes / BLOCK_BYTES as u32;
        let first = if lost.is_some() { block / AROUND * AROUND } else { block };
        let count = if lost.is_some() { AROUND.min(blocks.saturating_sub(first)).max(1) } else { 1 };
        self.repair(cx, None, chunk, (first, count), lost);
        Cursor { chunk, block: first + count - 1 }
    }

    /// Fetches blocks for an operation from a copy that has a newer version.
    pub fn fetch_newer(&mut self, cx: &mut Context, op: u64, source: Source, (first, count): (u32, u32)) {
        let Some((chunk, ..)) = self.blocks_of_check(op) else { return };
        let copies = vec![Copy::any(source)];
        let (op, lost, step) = (Some(op), None, Step::Checking);
        let repair = Repair { op, chunk, first, count, lost, sought: false, copies, tried: 0, step };
        self.begin_repair(cx, repair);
    }

    /// Asks the next copy. `answered`: whether the preceding copy sent a usable reply.
    fn ask_next(&mut self, cx: &mut Context, id: u64, answered: bool) {
        let Some(repair) = self.repairs.get_mut(&id) else { return };
        // The second of a pair is asked right after the first, or not at all.
        let tried = repair.tried;
        let may = |(n, copy): &(usize, &Copy)| {
            cx.map.is_live(copy.source.0) && (!copy.second || (answered && *n == tried))
        };
        let next = repair.copies.iter().enumerate().skip(tried).find(may).map(|(n, copy)| (n, *copy));
        let Some((n, Copy { source: (to, space), whole, older, .. })) = next else {
            return self.give_up_repair(cx, id);
        };
        let whole = whole && !older;
        let token = cx.shared.question();
        repair.tried = n + 1;
        repair.step = Step::Asked { question: token };
        let Repair { chunk, first, count, .. } = *repair;
        let (group, epoch) = (self.id, self.entry.epoch);
        cx.send(to, PeerMessage::Fetch { group, epoch, token, space, chunk, first, count, whole });
    }

    /// Handles a reply to a request of [`Group::ask_next`]. Returns whether it was one.
    pub fn on_repair_reply(
        &mut self,
        cx: &mut Context,
        token: u64,
        result: &Result<Vec<Record>, Refusal>,
        payload: &Bytes,
    ) -> bool {
        let asked = |r: &Repair| matches!(r.step, Step::Asked { question } if question == token);
        let Some((&id, repair)) = self.repairs.iter().find(|(_, r)| asked(r)) else { return false };
        let Repair { chunk, first, count, lost, sought, tried, .. } = *repair;
        let Copy { source, whole, partial, .. } = repair.copies[tried - 1];
        let group = self.id;
        let sound = |(record, payload): &(Record, Bytes)| {
            let inside = record.first >= first && record.first + record.count <= first + count;
            let fits = match &record.content {
                Content::Data { crcs } => *crcs == block_crcs(payload),
                content => *content == Content::Zero,
            };
            record.fault(payload.len()).is_none()
                && (record.group, record.chunk) == (group, chunk)
                && inside
                && fits
        };
        let parts = result.clone().ok().and_then(|records| split_payload(records, payload));
        let Some(mut parts) = parts.filter(|p| p.iter().all(sound)) else {
            self.ask_next(cx, id, false);
            return true;
        };
        // "Never written" counts only from a copy that would have the block.
        parts.retain(|(record, _)| !record.is_never_written() || (whole && lost.is_some() && !sought));
        let since = self.asked_since(source, Epoch(0));
        parts.retain(|(record, _)| record.is_never_written() || record.version.epoch >= since);
        parts.retain(|(record, _)| !partial || lost.is_none_or(|newest| record.version >= newest));
        if parts.is_empty() {
            self.ask_next(cx, id, true);
            return true;
        }
        if let Some(repair) = self.repairs.get_mut(&id) {
            repair.step = Step::Writing { left: parts.len() };
        }
        for (record, payload) in parts {
            if record.version > Version::ZERO {
                cx.shared.stats.repaired_blocks += u64::from(record.count);
            }
            let command = StoreCommand::Repair { space: Space::Replica, record, payload };
            cx.store(group, Wait::RepairWritten { repair: id }, command);
        }
        true
    }

    pub fn on_repair_written(&mut self, cx: &mut Context, id: u64) {
        let Some(repair) = self.repairs.get(&id) else { return };
        let Step::Writing { left } = repair.step else { return };
        if left > 1 {
            if let Some(repair) = self.repairs.get_mut(&id) {
                repair.step = Step::Writing { left: left - 1 };
            }
            return;
        }
        // The second copy of a pair has what is older than the first: only both together are complete.
        if repair.copies.get(repair.tried).is_some_and(|next| next.second) {
            return self.ask_next(cx, id, true);
        }
        let Some(repair) = self.repairs.get_mut(&id) else { return };
        repair.step = Step::Checking;
        let Repair { chunk, first, count, .. } = *repair;
        let command = StoreCommand::Read { space: Space::Replica, group: self.id, chunk, first, count };
        cx.store(self.id, Wait::RepairChecked { repair: id }, command);
    }

    pub fn on_repair_checked(&mut self, cx: &mut Context, id: u64, outcome: StoreOutcome) {
        match outcome {
            // The copy was older than the damaged blocks, or had only some of them.
            StoreOutcome::Damaged { lost, .. } => {
                let copies = self.copies(cx, lost);
                let Some(repair) = self.repairs.get_mut(&id) else { return };
                if lost > repair.lost {
                    (repair.lost, repair.copies, repair.tried) = (lost, copies, 0);
                }
                self.ask_next(cx, id, false);
            }
            StoreOutcome::Read { records, .. } => {
                let sought = self.repairs.get(&id).is_some_and(|r| r.sought);
                if sought && records.iter().any(Record::is_never_written) {
                    return self.ask_next(cx, id, false);
                }
                let Some(repair) = self.repairs.remove(&id) else { return };
                if let Some(op) = repair.op {
                    self.advance_op(cx, op);
                }
                self.repairs_ended(cx);
            }
            _ => self.give_up_repair(cx, id),
        }
    }

    /// No live copy has the blocks. If members sleep, they are woken, but not for a scrub.
    fn give_up_repair(&mut self, cx: &mut Context, id: u64) {
        let Some(repair) = self.repairs.remove(&id) else { return };
        cx.shared.stats.damage.unrepaired += 1;
        let (group, epoch) = (self.id, self.entry.epoch);
        let scrubbed = repair.op.is_some_and(|op| self.blocks_of_check(op).is_some());
        if self.others_sleep(cx) && self.primary.is_some() && !scrubbed {
            cx.report(ServerReport::Damaged { group, epoch });
        }
        match repair.op {
            Some(op) => {
                let why = if repair.sought { ChunkError::Missing } else { ChunkError::Corrupt };
                self.fail_damaged(cx, op, why, (repair.first, repair.count));
            }
            None => {
                self.refuse_checks(cx, Refusal::Corrupt);
                self.give_listings(cx);
            }
        }
    }

    /// Whether members that can be woken may have a copy.
    pub fn others_sleep(&self, cx: &Context) -> bool {
        self.entry.slots.iter().any(|slot| cx.map.sleeps(slot.server))
    }

    /// Listings, checks and covers that waited for the blocks continue.
    fn repairs_ended(&mut self, cx: &mut Context) {
        if !self.is_repairing() {
            self.give_listings(cx);
            self.give_checks(cx);
            self.tick_covers(cx);
        }
    }

    /// Whether this member is repairing blocks for its own copy: listings wait for that.
    pub fn is_repairing(&self) -> bool {
        self.repairs.values().any(|r| r.op.is_none())
    }

    /// The connection to a server broke, or it sleeps: its copy counts as useless. Any other server is waited for, however long
    /// it takes.
    pub fn repairs_lost(&mut self, cx: &mut Context, peer: ServerId) {
        let asked =
            |r: &Repair| matches!(r.step, Step::Asked { .. }) && r.copies[r.tried - 1].source.0 == peer;
        let lost: Vec<u64> = self.repairs.iter().filter(|(_, r)| asked(r)).map(|(id, _)| *id).collect();
        for id in lost {
            self.ask_next(cx, id, false);
        }
    }
}
