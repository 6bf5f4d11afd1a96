//! Clients' requests, as operations in parts on one disk or both.

use crate::BLOCK_BYTES;
use crate::api::{Command, DiskOp, Reply, Side};
use crate::disk::{Disk, Serving};
use crate::log::Place;
use crate::marks::Mark;
use crate::mirror::Mirror;
use crate::op::{Step, Wait, Work};
use crate::settings::{Ack, PlantedBug};
use crate::state::Copies;
use bytes::Bytes;
use std::ops::Range;

/// Blocks of zeroes that a disk in transition may get later, block by block; a longer range waits.
const POSTPONED_ZEROES: u64 = 256;

impl Mirror {
    pub(crate) fn run_read(&mut self, id: u64, out: &mut Vec<Command>) {
        let op = &self.ops[id];
        let mut able = self.able(&op.blocks);
        if let Work::Read { side, other: true } = op.work {
            able[(!side).index()] = false;
            if self.disks[side.index()].serving == Serving::Lost {
                return self.finish(id, Reply::Failed, out);
            }
        }
        if able == [false; 2] {
            return self.wait_or_fail(id, out);
        }
        let side = self.pair.choose(able).unwrap_or(if able[0] { Side::A } else { Side::B });
        self.read_from(id, side, out);
    }

    /// No disk has the blocks that the operation reads: until one does, or for good.
    fn wait_or_fail(&mut self, id: u64, out: &mut Vec<Command>) {
        if self.is_lost() || self.lost_its_source() {
            self.finish(id, Reply::Failed, out);
        } else {
            self.ops.give_way(id);
        }
    }

    /// The disks that have the newest content of the blocks and take operations.
    pub(crate) fn able(&self, blocks: &Range<u64>) -> [bool; 2] {
        Side::BOTH.map(|side| {
            let disk = &self.disks[side.index()];
            let copied = |copies: &Copies| copies.to() != side || !copies.concerns(blocks);
            let has = !disk.lacks(blocks) && self.copies.as_ref().is_none_or(copied);
            disk.serves() && (has || self.has(PlantedBug::ReadBehind))
        })
    }

    /// Reads the operation's blocks from this disk.
    pub(crate) fn read_from(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        if let Work::Read { side: chosen, .. } = &mut op.work {
            *chosen = side;
        }
        let runs = self.disks[side.index()].log.runs(op.blocks.clone());
        (op.step, op.left[side.index()], op.failed) = (Step::Reading, runs.len() as u32, false);
        op.found.clear();
        for (run, place) in runs {
            let (offset, slot) = self.at(run.start, place);
            let bytes = (run.end - run.start) * BLOCK_BYTES;
            self.issue(
                side,
                Wait::Read { op: id, block: run.start, slot },
                DiskOp::Read { offset, bytes },
                out,
            );
        }
    }

    /// Whether one disk is lost and the other lacks what memory alone has: nothing is acknowledged until it has that.
    pub(crate) fn is_alone_behind(&self) -> bool {
        self.change.is_some() && self.disks.iter().any(|disk| disk.serving == Serving::Lost)
    }

    /// Whether clients' writes must wait: for the notes before a change of speed, or for memory.
    fn holds_writes(&self, blocks: &Range<u64>) -> bool {
        let leaving = self.disks.iter().any(|disk| disk.serving == Serving::Leaving);
        let away = |disk: &Disk| {
            let held = disk.postponed_blocks() + blocks.end - blocks.start;
            disk.serving == Serving::Away && held * BLOCK_BYTES > self.settings.postponed_bytes
        };
        leaving || self.disks.iter().any(away)
    }

    pub(crate) fn run_write(&mut self, id: u64, out: &mut Vec<Command>) {
        let op = &self.ops[id];
        let (blocks, zero) = (op.blocks.clone(), matches!(op.work, Work::Zero { .. }));
        let serving: Vec<Side> = self.serving().collect();
        let long = zero && blocks.end - blocks.start > POSTPONED_ZEROES;
        let away = self.disks.iter().any(|disk| disk.serving == Serving::Away);
        if self.is_lost() {
            return self.finish(id, Reply::Failed, out);
        }
        if self.must_replay(&serving, &blocks, zero) {
            return self.ops.give_way(id);
        }
        let waits = away && (long || self.settings.ack == Ack::Both)
            || serving.is_empty()
            || self.holds_writes(&blocks);
        if waits {
            return self.ops.hold(id);
        }
        let mark = if serving.len() == 2 { Mark::Dirty } else { Mark::Ahead(serving[0]) };
        if !self.marks.mark(id, &blocks, mark) && !self.has(PlantedBug::WriteUnmarked) {
            return;
        }
        self.marks.begin(&blocks);
        self.ops[id].step = Step::Writing;
        for side in Side::BOTH {
            self.write_side(id, side, out);
        }
    }

    /// Whether a log must shrink before the blocks can be written. If so, it is replayed, whatever its mode.
    pub(crate) fn must_replay(&mut self, sides: &[Side], blocks: &Range<u64>, zero: bool) -> bool {
        let mut must = false;
        for &side in sides {
            let disk = self.disk(side);
            let stuck = if zero {
                disk.log.has_any(blocks) && !disk.log.can_overwrite()
            } else {
                disk.logs(blocks).is_none()
            };
            if stuck {
                disk.urge(blocks);
            }
            must |= stuck;
        }
        must
    }

    /// The part of a write or of zeroes on one disk.
    fn write_side(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let op = &self.ops[id];
        let blocks = op.blocks.clone();
        match (&op.work, self.disks[side.index()].serving) {
            (_, Serving::Lost) => {}
            (Work::Write { payload, .. }, Serving::Away) => {
                let payload = payload.clone();
                self.disk(side).postpone(blocks.start, &payload);
            }
            (Work::Zero { .. }, Serving::Away) => {
                let zeroes = Bytes::from(vec![0; ((blocks.end - blocks.start) * BLOCK_BYTES) as usize]);
                self.disk(side).postpone(blocks.start, &zeroes);
            }
            (Work::Write { payload, .. }, _) => {
                let payload = payload.clone();
                self.write_to(id, side, blocks.start, &payload, out);
            }
            (Work::Zero { may_trim, .. }, _) => {
                let (may_trim, (offset, _)) = (*may_trim, self.at(blocks.start, Place::Regular));
                let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
                self.disk(side).drop_postponed(&blocks);
                self.overwrite(id, side, blocks);
                self.part(id, side, DiskOp::Zero { offset, bytes, may_trim }, out);
            }
            _ => unreachable!("only writes are written"),
        }
    }

    /// Writes blocks on a disk that takes operations: to its log, or to their own places.
    pub(crate) fn write_to(
        &mut self,
        id: u64,
        side: Side,
        block: u64,
        payload: &Bytes,
        out: &mut Vec<Command>,
    ) {
        let blocks = block..block + payload.len() as u64 / BLOCK_BYTES;
        let disk = self.disk(side);
        disk.drop_postponed(&blocks);
        if disk.logs(&blocks).expect("it was asked whether there is room") {
            disk.log.append(id, block, payload);
            self.ops[id].left[side.index()] += 1;
            return;
        }
        self.overwrite(id, side, blocks);
        let (offset, _) = self.at(block, Place::Regular);
        self.part(id, side, DiskOp::Write { offset, pieces: vec![payload.clone()], durable: false }, out);
    }

    /// Notes that blocks are written to their own places: what the log has of them is void once they are durable there.
    fn overwrite(&mut self, id: u64, side: Side, blocks: Range<u64>) {
        if self.disks[side.index()].log.has_any(&blocks) {
            self.ops[id].overwrites[side.index()].push(blocks);
        }
    }

    /// Issues a part of an operation.
    pub(crate) fn part(&mut self, id: u64, side: Side, op: DiskOp, out: &mut Vec<Command>) {
        self.ops[id].left[side.index()] += 1;
        let write = !matches!(op, DiskOp::Sync);
        self.issue(side, Wait::Part { op: id, write }, op, out);
    }

    pub(crate) fn run_flush(&mut self, id: u64, out: &mut Vec<Command>) {
        if self.is_lost() {
            return self.finish(id, Reply::Failed, out);
        }
        let behind = self.ops.iter().any(|(_, op)| op.replied);
        if self.serving().next().is_none() || behind {
            return self.ops.hold(id);
        }
        self.sync(id, out);
    }

    /// Syncs both disks, or the one that serves.
    pub(crate) fn sync(&mut self, id: u64, out: &mut Vec<Command>) {
        self.ops[id].step = Step::Syncing;
        for side in Side::BOTH {
            if self.disks[side.index()].is_writable() {
                self.part(id, side, DiskOp::Sync, out);
            }
        }
        self.advance(id, out);
    }

    pub(crate) fn run_status(&mut self, id: u64, out: &mut Vec<Command>) {
        let blocks = self.ops[id].blocks.clone();
        let able = self.able(&blocks);
        let Some(side) = Side::BOTH.into_iter().find(|side| able[side.index()]) else {
            return self.wait_or_fail(id, out);
        };
        let (offset, _) = self.at(blocks.start, Place::Regular);
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
        self.ops[id].step = Step::Reading;
        self.issue(side, Wait::Status { op: id }, DiskOp::Status { offset, bytes }, out);
    }
}
