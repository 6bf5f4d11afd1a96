//! Repair: blocks that are damaged here are fetched from other copies (R9), by the primary for an operation that needs them, by
//! any member for its own sake. It ends when they can be read again, or when nobody is left to ask.
//!
//! A block that fails its checksum has a version still, and the store takes no older one for it: any copy may be tried. Of a
//! *lost* block (its metadata are damaged, or its file is gone) not even the version is known: what somebody answers is
//! believed, so only those may be asked who surely have everything: a replica that is in sync; one that was so until an epoch
//! that the block is older than; or one that was, together with the covered stand-in that has everything since then. That
//! one's word comes first, so that nothing older is ever seen. Of the others only what is as new as the block can have been. A replica that still misses some of the blocks does not answer,
//! unless they are older than what it misses: it could be waiting for a listing of this replica, which waits for the repair.

use crate::api::{StoreCommand, StoreOutcome};
use crate::group::{Context, Group, Wait};
use crate::run_map::Source;
use crate::secondary::split_payload;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, Content, Cursor, Epoch, PeerMessage, Record, Refusal, ServerId,
    ServerReport, Slot, SlotState, Space, Version, block_crcs,
};

/// Lost blocks that are repaired together: a metadata page of the store is lost as a whole.
const AROUND: u32 = 256;

pub(crate) struct Repair {
    /// The operation that waits for it. Without one it is for the members' own sake.
    op: Option<u64>,
    chunk: ChunkId,
    first: u32,
    count: u32,
    /// Not even the version of some of the blocks is known, only this one that they were not newer than.
    lost: Option<Version>,
    /// The blocks are not damaged here but missing, as if never written, and `op` knows better.
    sought: bool,
    /// Those to ask, and how many were.
    copies: Vec<Copy>,
    tried: usize,
    step: Step,
}

enum Step {
    /// The last of those who were asked.
    Asked {
        question: u64,
    },
    /// Records still to be written.
    Writing {
        left: usize,
    },
    Checking,
}

/// A copy that may have the blocks.
#[derive(Clone, Copy)]
struct Copy {
    source: Source,
    /// What it does not have was never written, at least not before what the copy before it in the list has.
    whole: bool,
    /// The blocks are older than all that it misses.
    older: bool,
    /// It may miss some, and have older ones: believed is only what is as new as a lost block can have been.
    partial: bool,
    /// It is asked only if the one before it in the list has answered.
    second: bool,
}

impl Copy {
    fn any(source: Source) -> Copy {
        Copy { source, whole: false, older: false, partial: false, second: false }
    }
}

impl Group {
    /// Those who have everything first, then everybody else.
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
            if let Some(stand_in) = slot.stand_in.filter(|s| s.covered && live(s.server)) {
                let kept = (stand_in.server, Space::Offload { stands_for: slot.server });
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

    /// Begins to repair blocks. What is being repaired already is not begun again.
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

    /// Looks for blocks that are not here, as if never written, and that the client of `op` knows to be written. What once had
    /// them and lost them without noticing may be any copy, this one too: so only those are asked who should have everything.
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

    /// Repairs a block and its neighbours, for nobody in particular: where one is lost, they mostly are. Returns the last of them.
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

    /// Takes blocks from a copy that has them newer, for an operation.
    pub fn fetch_newer(&mut self, cx: &mut Context, op: u64, source: Source, (first, count): (u32, u32)) {
        let Some((chunk, ..)) = self.blocks_of_check(op) else { return };
        let copies = vec![Copy::any(source)];
        let (op, lost, step) = (Some(op), None, Step::Checking);
        let repair = Repair { op, chunk, first, count, lost, sought: false, copies, tried: 0, step };
        self.begin_repair(cx, repair);
    }

    /// Asks the next copy. `answered`: whether the one before it had an answer.
    fn ask_next(&mut self, cx: &mut Context, id: u64, answered: bool) {
        let Some(repair) = self.repairs.get_mut(&id) else { return };
        // The second of a pair is asked right behind the first, or not at all.
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

    /// The answer to a question of [`Group::ask_next`]. Returns whether it was one.
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
        // That a block was never written is an answer only of one who would have it.
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
        // The second half of a pair has what is older than the first: only both together are the truth.
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
            // The copy was older than what is damaged here, or had only some of it.
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

    /// Nobody has the blocks. Where some members sleep, those are woken, but not for a scrub.
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

    /// Whether a copy may be had of members that can be woken.
    pub fn others_sleep(&self, cx: &Context) -> bool {
        self.entry.slots.iter().any(|slot| cx.map.sleeps(slot.server))
    }

    /// What waited for the blocks goes on.
    fn repairs_ended(&mut self, cx: &mut Context) {
        if !self.is_repairing() {
            self.give_listings(cx);
            self.give_checks(cx);
            self.tick_covers(cx);
        }
    }

    /// Whether blocks are being repaired for the members' own sake: listings wait for that.
    pub fn is_repairing(&self) -> bool {
        self.repairs.values().any(|r| r.op.is_none())
    }

    /// The connection to a server broke, or it sleeps: it counts as one that cannot help. However long another takes, it is waited for.
    pub fn repairs_lost(&mut self, cx: &mut Context, peer: ServerId) {
        let asked =
            |r: &Repair| matches!(r.step, Step::Asked { .. }) && r.copies[r.tried - 1].source.0 == peer;
        let lost: Vec<u64> = self.repairs.iter().filter(|(_, r)| asked(r)).map(|(id, _)| *id).collect();
        for id in lost {
            self.ask_next(cx, id, false);
        }
    }
}
