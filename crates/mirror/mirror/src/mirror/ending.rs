//! How operations end: the disks' answers, part by part, until a request is replied.

use crate::BLOCK_BYTES;
use crate::api::{Command, DiskOp, Found, Reply, Side, Spent, Token};
use crate::disk::Serving;
use crate::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use crate::intent::IntentMap;
use crate::members::Change as Membership;
use crate::mirror::Mirror;
use crate::op::{Op, Step, Wait, Work};
use crate::settings::Ack;
use bytes::Bytes;
use std::ops::Range;

impl Mirror {
    /// A disk has ended an operation.
    pub(crate) fn done(
        &mut self,
        side: Side,
        token: Token,
        found: Found,
        spent: Spent,
        out: &mut Vec<Command>,
    ) {
        let ok = found != Found::Failed;
        let wait = self.disk(side).ended(token, ok);
        self.observe(side, &wait, spent);
        // Reads are served by the other disk; whatever else fails has failed the disk.
        if !ok && !matches!(wait, Wait::Read { .. } | Wait::Status { .. }) {
            self.lose(side, out);
        }
        match wait {
            Wait::Read { op, block, slot } => self.read_done(op, side, (block, slot), found, out),
            Wait::Status { op } => self.status_done(op, found, out),
            Wait::Part { op, .. } => self.part_done(op, side, out),
            Wait::Batch => {
                for op in self.disk(side).log.landed() {
                    self.part_done(op, side, out);
                }
            }
            Wait::Map => {
                let ready = self.marks.written();
                self.ops.make_ready(ready);
            }
            Wait::Superblock => {
                if let Some(change) = self.members.written() {
                    self.noted(change, out);
                }
            }
            Wait::CloseSync => self.close_synced(),
            _ if !ok => {}
            Wait::ReplaySync => self.replay_synced(side, out),
            Wait::ClearSync => self.marks.clear_synced(self.epochs.number()),
            Wait::ReturnSync => self.return_synced(side),
            Wait::LeaveSync => self.leave_synced(side),
            Wait::RebuildSync => self.rebuild_synced(side),
        }
    }

    /// A part of an operation has ended on this disk. On a disk that is lost it ends when the other one has noted the
    /// loss: the acknowledgement relies on that disk alone.
    fn part_done(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let disk = &self.disks[side.index()];
        if disk.serving == Serving::Lost && !disk.lost_noted {
            return self.orphans.push((id, side));
        }
        let Some(op) = self.ops.get_mut(id) else { return };
        op.left[side.index()] -= 1;
        let first = op.left[side.index()] == 0 && op.left != [0; 2];
        if first
            && self.settings.ack == Ack::One
            && matches!(op.work, Work::Write { fua: false, .. })
            && !op.replied
        {
            op.replied = true;
            out.extend(op.client.map(|id| Command::Reply { id, reply: Reply::Done }));
        }
        self.advance(id, out);
    }

    /// Goes to the operation's next step if the present one has no part left.
    pub(crate) fn advance(&mut self, id: u64, out: &mut Vec<Command>) {
        let Some(op) = self.ops.get(id) else { return };
        if op.left != [0; 2] {
            return;
        }
        match (&op.work, op.step) {
            (Work::Read { .. }, _) => self.end_read(id, out),
            (Work::Copy { from }, Step::Reading) => self.copy_read(id, *from, out),
            (Work::Compare { .. }, _) => self.compared(id, out),
            (Work::Replay { side, .. }, Step::Reading) => self.replay_read(id, *side, out),
            (Work::Replay { side, .. }, Step::Writing) => self.replay_placed(id, *side, out),
            (Work::Replay { side, .. }, _) => self.replay_voided(id, *side, out),
            (_, Step::Writing) if op.is_durable() || op.voids() => self.sync(id, out),
            (_, Step::Syncing) if op.voids() => self.void(id, out),
            (_, Step::Voiding) if op.is_durable() => self.sync(id, out),
            _ => self.finish(id, Reply::Done, out),
        }
    }

    /// Whether a disk that takes operations has any of the blocks in its log. One that is away gets what it misses
    /// through its log.
    fn is_logged(&self, blocks: &Range<u64>) -> bool {
        self.disks.iter().any(|disk| disk.is_writable() && disk.log.has_any(blocks))
    }

    /// What the operation wrote is durable in its own place: older entries of the log are void.
    fn void(&mut self, id: u64, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        op.step = Step::Voiding;
        for disk in &mut self.disks {
            let overwrites = std::mem::take(&mut op.overwrites[disk.side.index()]);
            let writable = disk.is_writable();
            for blocks in overwrites.into_iter().filter(|_| writable) {
                op.left[disk.side.index()] += 1;
                disk.log.void(id, blocks);
            }
        }
        self.advance(id, out);
    }

    fn read_done(
        &mut self,
        id: u64,
        side: Side,
        (block, slot): (u64, Option<u64>),
        found: Found,
        out: &mut Vec<Command>,
    ) {
        let sound = |data: &Bytes| slot.is_none_or(|slot| self.disks[side.index()].log.is_sound(slot, data));
        let data = match found {
            Found::Data(data) if sound(&data) => Some(data),
            _ => None,
        };
        let Some(op) = self.ops.get_mut(id) else { return };
        op.left[side.index()] -= 1;
        match data {
            Some(data) => op.found.push((block, data)),
            None => op.failed = true,
        }
        self.advance(id, out);
    }

    /// A read has all its parts. If one failed, the other disk serves it, and repairs this one.
    fn end_read(&mut self, id: u64, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        let Work::Read { side, other } = op.work else { unreachable!("a read ends") };
        let blocks = op.blocks.clone();
        if !op.failed {
            let data = op.take_found();
            self.finish(id, Reply::Data(data), out);
            if other && self.disks[(!side).index()].serves() {
                self.ops.start(Op::new(None, Work::Copy { from: side }, blocks));
            }
            return;
        }
        self.unreadable += 1;
        if other {
            return self.finish(id, Reply::Failed, out);
        }
        let op = &mut self.ops[id];
        op.work = Work::Read { side: !side, other: true };
        self.run_read(id, out);
    }

    /// Holes of the blocks' own places, but for blocks that are in the log.
    fn status_done(&mut self, id: u64, found: Found, out: &mut Vec<Command>) {
        let Some(op) = self.ops.get(id) else { return };
        let blocks = op.blocks.clone();
        let extents = match found {
            Found::Extents(extents) if !self.is_logged(&blocks) => {
                extents.into_iter().map(|(bytes, hole)| (bytes / BLOCK_BYTES, hole)).collect()
            }
            _ => vec![(blocks.end - blocks.start, false)],
        };
        self.finish(id, Reply::Extents(extents), out);
    }

    /// Ends an operation: replies, and gives back its blocks.
    pub(crate) fn finish(&mut self, id: u64, reply: Reply, out: &mut Vec<Command>) {
        let op = self.ops.end(id);
        if op.is_marked() {
            self.marks.end(&op.blocks, self.epochs.number());
        }
        if op.replied {
            self.ops.release_held();
        } else if reply == Reply::Done && self.is_alone_behind() {
            self.late.extend(op.client);
        } else {
            out.extend(op.client.map(|id| Command::Reply { id, reply }));
        }
        match op.work {
            Work::Copy { .. } => self.copy_ended(id, op.failed),
            Work::Return { .. } => self.return_ended(id),
            _ => {}
        }
    }

    /// A disk failed: the other one notes it before anything more is acknowledged.
    pub(crate) fn lose(&mut self, side: Side, out: &mut Vec<Command>) {
        let disk = self.disk(side);
        if disk.serving == Serving::Lost {
            return;
        }
        disk.serving = Serving::Lost;
        disk.forget_postponed();
        let queued = disk.log.abandon();
        self.orphans.extend(queued.into_iter().map(|op| (op, side)));
        self.change = self.change.take().filter(|change| change.side != side);
        self.end_copies(side);
        self.marks.stop_clearing();
        self.marks.lead(!side);
        self.members.request(Membership::Lose(side));
        self.drop_replay(side, out);
        self.ops.release_held();
        if self.is_lost() {
            self.fail_all(out);
        }
    }

    /// Both disks are lost.
    fn fail_all(&mut self, out: &mut Vec<Command>) {
        self.orphans.clear();
        for op in self.ops.abandon().into_iter().filter(|op| !op.replied) {
            out.extend(op.client.map(|id| Command::Reply { id, reply: Reply::Failed }));
        }
        out.extend(self.late.drain(..).map(|id| Command::Reply { id, reply: Reply::Failed }));
    }

    /// The disks know of a change.
    fn noted(&mut self, change: Membership, out: &mut Vec<Command>) {
        match change {
            Membership::Leave(side) => self.leave_noted(side),
            Membership::Return(side) => self.return_noted(side, out),
            Membership::Lose(side) => {
                self.disk(side).lost_noted = true;
                let (ended, kept) =
                    std::mem::take(&mut self.orphans).into_iter().partition(|(_, of)| *of == side);
                self.orphans = kept;
                for (id, side) in ended {
                    self.part_done(id, side, out);
                }
            }
            Membership::RestartLog(side) => self.restarted(side, out),
            Membership::Ahead(_) | Membership::Rebuilt(..) | Membership::Open => {}
            Membership::Close { .. } => out.push(Command::Closed),
        }
    }

    /// Appends what waits to a log, if no batch is being written.
    pub(crate) fn pump_log(&mut self, side: Side, out: &mut Vec<Command>) {
        if !self.disks[side.index()].is_writable() {
            return;
        }
        if let Some(write) = self.disk(side).log.next_batch() {
            let offset = self.geometry.log_offset() + write.offset;
            self.issue(
                side,
                Wait::Batch,
                DiskOp::Write { offset, pieces: write.pieces, durable: false },
                out,
            );
        }
    }

    fn writable(&self) -> Vec<Side> {
        Side::BOTH.into_iter().filter(|side| self.disks[side.index()].is_writable()).collect()
    }

    /// Writes the intent map, if it changed. A disk that has the former number, after a crash, first gets the number of
    /// the other, alone: else another crash in the next write could leave the two further apart than one.
    pub(crate) fn pump_marks(&mut self, out: &mut Vec<Command>) {
        let sides = self.writable();
        if sides.is_empty() || !self.marks.is_due() || self.members.is_opening() {
            return;
        }
        let older = self.members.map_behind_by_one().filter(|side| sides.contains(side));
        let newest = self.members.newest_map();
        let (sides, number) = match older {
            Some(side) => {
                self.marks.begin_level();
                (vec![side], newest)
            }
            None => {
                self.marks.begin_write(sides.len() as u32);
                (sides, newest + 1)
            }
        };
        for side in sides {
            let offset = MAP_OFFSETS[IntentMap::slot(number)];
            let pieces = vec![self.marks.map(side).encode(number)];
            self.members.map_sent(side, number);
            self.issue(side, Wait::Map, DiskOp::Write { offset, pieces, durable: true }, out);
        }
    }

    /// Writes the superblocks, if they changed.
    pub(crate) fn pump_members(&mut self, out: &mut Vec<Command>) {
        let mut sides = self.writable();
        if let Some(alone) = self.members.notes_alone().filter(|side| sides.contains(side)) {
            sides = vec![alone];
        }
        // Which regions differ is noted before that they do.
        let early = self.members.needs_marks() && self.marks.is_busy();
        if sides.is_empty() || early || self.members.begin(sides.len() as u32).is_none() {
            return;
        }
        for side in sides {
            let block = self.members.block(side);
            let offset = SUPERBLOCK_OFFSETS[block.slot()];
            let pieces = vec![Bytes::copy_from_slice(&block.encode())];
            self.issue(side, Wait::Superblock, DiskOp::Write { offset, pieces, durable: true }, out);
        }
    }
}
