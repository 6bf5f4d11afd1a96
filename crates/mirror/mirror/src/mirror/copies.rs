//! One disk is brought to what the other has: after a crash, the regions that the map names; a new disk, everything.
//!
//! Until a region is copied it is read from the source alone. Clients write to both disks meanwhile. A region that the
//! source cannot read stays as it is: its blocks fail where they are read, and the disks are never called equal.

use crate::api::{Command, DiskOp, Reply, Side};
use crate::disk::Serving;
use crate::members::Change as Membership;
use crate::mirror::Mirror;
use crate::op::{Op, Step, Wait, Work};
use crate::superblock::Own;
use bytes::BytesMut;

/// Regions of a rebuild between two notes of its progress.
const NOTED: u32 = 64;

impl Mirror {
    pub(crate) fn pump_copies(&mut self, out: &mut Vec<Command>) {
        let data_blocks = self.geometry.data_blocks();
        while let Some(copies) = &mut self.copies {
            let from = copies.from;
            let Some(blocks) = copies.next(data_blocks) else { break };
            let id = self.ops.start(Op::new(None, Work::Copy { from }, blocks));
            self.copies.as_mut().expect("it copies").busy.insert(id);
        }
        self.note_progress(out);
        let Some(copies) = &mut self.copies else { return };
        if copies.pending.is_empty() && !copies.settling {
            copies.settling = true;
            let to = copies.to();
            self.issue(to, Wait::ReturnSync, DiskOp::Sync, out);
        }
    }

    /// Notes how far a rebuild is, from time to time, so that the next start continues there.
    fn note_progress(&mut self, out: &mut Vec<Command>) {
        let Some(copies) = &mut self.copies else { return };
        let to = copies.to();
        let rebuilding = matches!(self.members.block(to).own, Own::Rebuilding { .. });
        if rebuilding && copies.unnoted >= NOTED && !copies.any_failed && !copies.settling {
            copies.unnoted = 0;
            copies.noting = copies.pending.first().map(|region| region * copies.region_blocks);
            self.issue(to, Wait::RebuildSync, DiskOp::Sync, out);
        }
    }

    pub(crate) fn rebuild_synced(&mut self, side: Side) {
        // Once everything is copied, the note that the disk is in sync must be the last.
        let copies = self.copies.as_mut().filter(|copies| !copies.settling);
        let noting = copies.and_then(|copies| copies.noting.take());
        if let Some(done_blocks) = noting {
            self.members.request(Membership::Rebuilt(side, done_blocks));
        }
    }

    pub(crate) fn run_copy(&mut self, id: u64, from: Side, out: &mut Vec<Command>) {
        if !self.disks.iter().all(|disk| disk.serves()) {
            // Repairs of single blocks are not that urgent; a disk that is lost ends all copies.
            self.ops[id].failed = true;
            return self.finish(id, Reply::Failed, out);
        }
        self.read_from(id, from, out);
    }

    pub(crate) fn copy_read(&mut self, id: u64, from: Side, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        let blocks = op.blocks.clone();
        let serves = self.disks.iter().all(|disk| disk.serves());
        let turns = self
            .copies
            .as_ref()
            .is_some_and(|copies| !copies.ahead && copies.from == from && copies.busy.contains(&id));
        if op.failed && turns && serves {
            op.work = Work::Copy { from: !from };
            return self.read_from(id, !from, out);
        }
        if op.failed || !serves {
            op.failed = true;
            return self.finish(id, Reply::Failed, out);
        }
        if self.must_replay(&[!from], &blocks, false) {
            return self.ops.give_way(id);
        }
        let op = &mut self.ops[id];
        op.step = Step::Writing;
        let mut data = BytesMut::new();
        op.take_found().iter().for_each(|piece| data.extend_from_slice(piece));
        self.write_to(id, !from, blocks.start, &data.freeze(), out);
    }

    /// A disk is lost: nothing is copied any more. What a source that is ahead took with it stays unreadable; the other
    /// disk has older content there.
    pub(crate) fn end_copies(&mut self, lost: Side) {
        self.copies = self.copies.take().filter(|copies| copies.ahead && copies.from == lost);
        if let Some(copies) = &mut self.copies {
            copies.waiting.clear();
            copies.current = None;
        }
    }

    /// Whether no disk that is left will ever have blocks that are still to be copied.
    pub(crate) fn lost_its_source(&self) -> bool {
        self.copies.as_ref().is_some_and(|copies| self.disks[copies.from.index()].serving == Serving::Lost)
    }

    pub(crate) fn copy_ended(&mut self, id: u64, failed: bool) {
        let Some(copies) = &mut self.copies else { return };
        if !copies.busy.remove(&id) {
            return;
        }
        copies.failed |= failed;
        if let Some((region, rest)) = &copies.current
            && rest.is_empty()
            && copies.busy.is_empty()
        {
            if !copies.failed {
                copies.pending.remove(region);
                copies.unnoted += 1;
            }
            copies.any_failed |= std::mem::take(&mut copies.failed);
            copies.current = None;
        }
    }
}
