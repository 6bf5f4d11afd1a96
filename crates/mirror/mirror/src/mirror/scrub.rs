//! A pass over all blocks: what the disks have is compared. Regular places have no checksums, so a difference cannot be
//! repaired here: it is counted, and where it is is kept. What the log holds has been checked by its checksums on the
//! way.
//!
//! One run of blocks at a time, and only while no client is served: a pass takes nothing from clients but the wait for
//! one read.

use crate::BLOCK_BYTES;
use crate::api::{Command, Reply, Side};
use crate::mirror::Mirror;
use crate::op::{Op, Work};
use crate::state::Scrub;
use bytes::Bytes;

/// Blocks compared at once.
const COMPARED: u64 = 64;
/// Differing blocks whose numbers are kept.
const KEPT: usize = 16;

impl Mirror {
    pub(crate) fn begin_scrub(&mut self) {
        if !self.scrub.is_running() {
            let passes = self.scrub.passes;
            self.scrub = Scrub { next: Some(0), passes, ..Scrub::default() };
        }
    }

    pub(crate) fn pump_scrub(&mut self) {
        let Some(next) = self.scrub.next else { return };
        let able = self.change.is_none() && self.copies.is_none() && self.serving().count() == 2;
        if self.scrub.busy || !able || !self.ops.is_empty() {
            return;
        }
        let end = (next + COMPARED).min(self.geometry.data_blocks());
        if next == end {
            self.scrub.next = None;
            self.scrub.passes += 1;
            return;
        }
        (self.scrub.busy, self.scrub.next) = (true, Some(end));
        self.ops.start(Op::new(None, Work::Compare { first: None }, next..end));
    }

    pub(crate) fn run_compare(&mut self, id: u64, out: &mut Vec<Command>) {
        match self.serving().count() {
            2 => self.read_from(id, Side::A, out),
            _ => self.end_compare(id, out),
        }
    }

    /// One disk has answered, or both.
    pub(crate) fn compared(&mut self, id: u64, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        let data = Bytes::from(op.take_found().concat());
        let (failed, blocks) = (op.failed, op.blocks.clone());
        let Work::Compare { first } = &mut op.work else { unreachable!("a comparison") };
        if failed {
            self.unreadable += 1;
            return self.end_compare(id, out);
        }
        let Some(first) = first.take() else {
            *first = Some(data);
            return self.read_from(id, Side::B, out);
        };
        let size = BLOCK_BYTES as usize;
        let differs =
            first.chunks(size).zip(data.chunks(size)).zip(blocks.clone()).filter(|((a, b), _)| a != b);
        for (_, block) in differs {
            self.scrub.differing_blocks += 1;
            if self.scrub.first_differing.len() < KEPT {
                self.scrub.first_differing.push(block);
            }
        }
        self.scrub.compared_blocks += blocks.end - blocks.start;
        self.end_compare(id, out);
    }

    fn end_compare(&mut self, id: u64, out: &mut Vec<Command>) {
        self.scrub.busy = false;
        self.finish(id, Reply::Done, out);
    }
}
