//! A change of speed of one disk, without a failed request and without the loss of one byte [LogStore §3.2].
//!
//! | step | the disk | clients' writes |
//! |---|---|---|
//! | draining | ends what it has; then a sync | wait, for as long as the disk's queue |
//! | noting | both disks note that this one falls behind, and where | wait |
//! | moving | serves nothing | go to the other disk, under a mark, and to memory for this one |
//! | asleep, waking | as moving: only a disk that serves nothing at low speed | as moving |
//! | returning, landing | gets what it missed, then a sync; both note that it has everything | go to both |
//!
//! A disk that serves nothing at low speed sleeps there ([`Sleep`](crate::Sleep); ours, not the paper's). It is woken
//! when memory is half full, when the other disk is busy or lost, when a request, a pass of comparison or the end needs
//! it, and when it has lacked something for long. It serves after that whatever the answer: if it cannot, its
//! operations fail, and it is lost.
//!
//! Reads are served by the other disk until this one serves again; blocks that it missed, until it has them. The notes
//! are what the paper only sketches [LogStore §3.2]: without them, a disk that was away when the power failed could be
//! taken for a current one.

use crate::BLOCK_BYTES;
use crate::api::{Command, DiskOp, Reply, Side, Speed};
use crate::disk::Serving;
use crate::members::Change as Membership;
use crate::mirror::Mirror;
use crate::op::{Op, Step as OpStep, Wait, Work};
use crate::settings::PlantedBug;
use crate::state::{Change, Closing, Copies, Step};
use ebb_types::{Moment, bug};

/// Runs of missed blocks that a returned disk gets at once, and their longest.
const RETURNING: usize = 4;
const RETURN_BLOCKS: u64 = 64;

impl Mirror {
    /// Whether a disk may leave now: both have everything, nothing is being noted, and the mirror is not about to end.
    /// A pass of comparison would wake a disk that sleeps.
    pub(crate) fn may_change(&self) -> bool {
        self.closing == Closing::No
            && !(self.settings.sleep.is_some() && self.scrub.is_running())
            && self.change.is_none()
            && self.copies.is_none()
            && !self.members.is_busy()
            && self.disks.iter().all(|disk| disk.serves() && !disk.is_behind())
    }

    pub(crate) fn begin_change(&mut self, side: Side, to: Speed) {
        assert!(self.may_change(), "one disk at a time changes its speed");
        self.disk(side).serving = Serving::Leaving;
        self.change = Some(Change::new(side, to));
    }

    pub(crate) fn pump_change(&mut self, out: &mut Vec<Command>) {
        let Some(change) = &self.change else { return };
        let (side, to) = (change.side, change.to);
        if change.step == Step::Draining {
            self.cancel_replay(side);
        }
        if self.must_wake() {
            self.wake(side, out);
        }
        let Some(change) = &mut self.change else { return };
        let disk = &mut self.disks[side.index()];
        match change.step {
            Step::Draining if disk.is_idle() && disk.log.is_quiet() && disk.replay.is_idle() => {
                change.step = Step::Syncing;
                self.issue(side, Wait::LeaveSync, DiskOp::Sync, out);
            }
            Step::Noting if !self.members.is_busy() && disk.is_idle() => {
                change.step = Step::Moving;
                disk.serving = Serving::Away;
                out.push(Command::SetSpeed { side, speed: to });
                self.ops.release_held();
            }
            Step::Returning => self.pump_return(side, out),
            Step::Landing => self.pump_landing(side, out),
            _ => {}
        }
    }

    /// The disk that sleeps.
    pub(crate) fn asleep(&self) -> Option<Side> {
        self.change.as_ref().filter(|change| change.step == Step::Asleep).map(|change| change.side)
    }

    fn wake(&mut self, side: Side, out: &mut Vec<Command>) {
        let change = self.change.as_mut().expect("a disk sleeps");
        (change.step, change.to) = (Step::Waking, Speed::High);
        self.pair.wake(side);
        out.push(Command::SetSpeed { side, speed: Speed::High });
    }

    /// Whether a disk sleeps and something needs it.
    fn must_wake(&self) -> bool {
        let Some(side) = self.asleep() else { return false };
        let waits = self.ops.any_aside();
        let behind = self.disks[side.index()].postponed_blocks() * BLOCK_BYTES;
        self.change.as_ref().is_some_and(|change| change.wanted)
            || waits
            || self.closing != Closing::No
            || self.scrub.is_running()
            || self.disks[(!side).index()].serving == Serving::Lost
            || behind > 0 && behind >= self.settings.postponed_bytes / 2
    }

    /// At the end of an epoch: `wanted` by the policy, or because the sleeping disk has lacked something for long.
    pub(crate) fn note_sleep(&mut self, now: Moment, wanted: bool) {
        let (Some(side), Some(sleep)) = (self.asleep(), self.settings.sleep) else { return };
        let is_behind = self.disks[side.index()].is_behind();
        let change = self.change.as_mut().expect("a disk sleeps");
        if is_behind {
            let since = *change.behind_since.get_or_insert(now);
            change.wanted |= now.since(since) >= sleep.behind_longest;
        }
        change.wanted |= wanted;
    }

    pub(crate) fn leave_synced(&mut self, side: Side) {
        if self.is_at(side, Step::Syncing) && self.has(PlantedBug::LeaveUnnoted) {
            self.leave_noted(side);
        } else if self.is_at(side, Step::Syncing) {
            self.marks.lead(!side);
            self.members.request(Membership::Ahead(!side));
            self.members.request(Membership::Leave(side));
        }
    }

    pub(crate) fn leave_noted(&mut self, side: Side) {
        if self.is_at(side, Step::Syncing) {
            self.change.as_mut().expect("it is at a step").step = Step::Noting;
        }
    }

    fn is_at(&self, side: Side, step: Step) -> bool {
        self.change.as_ref().is_some_and(|change| (change.side, change.step) == (side, step))
    }

    /// The disk serves again, at the new speed or, if it could not change, at the old one; or it sleeps.
    pub(crate) fn changed(&mut self, side: Side, changed: bool) {
        let woken = self.is_at(side, Step::Waking);
        if !woken && !self.is_at(side, Step::Moving) {
            return;
        }
        let changed = changed || woken;
        if let Some(mode) = self.pair.changed(side, changed) {
            self.disk(side).mode = mode;
        }
        if woken && self.has(PlantedBug::WakeForgets) && self.disks[(!side).index()].serving == Serving::Lost
        {
            self.disk(side).forget_postponed();
        }
        let change = self.change.as_mut().expect("it is at a step");
        let disk = &mut self.disks[side.index()];
        if changed {
            disk.came_to(change.to);
        }
        if changed && change.to == Speed::Low && self.settings.sleep.is_some() {
            change.step = Step::Asleep;
            return;
        }
        change.step = Step::Returning;
        disk.serving = Serving::Yes;
        self.ops.release_held();
    }

    /// Writes what the disk missed. It is settled when all is written.
    fn pump_return(&mut self, side: Side, out: &mut Vec<Command>) {
        loop {
            let change = self.change.as_mut().expect("a disk returns");
            if change.returning.len() == RETURNING {
                return;
            }
            let disk = &self.disks[side.index()];
            let Some(blocks) = disk.next_postponed(change.next, RETURN_BLOCKS) else { break };
            change.next = blocks.end;
            let id = self.ops.start(Op::new(None, Work::Return { side }, blocks));
            self.change.as_mut().expect("a disk returns").returning.push(id);
        }
        let change = self.change.as_mut().expect("a disk returns");
        if change.returning.is_empty() {
            change.next = 0;
            if !self.disks[side.index()].is_behind() {
                change.step = Step::Landing;
                change.returning =
                    self.ops.iter().filter(|(_, op)| op.writes(side)).map(|(id, _)| id).collect();
                self.pump_landing(side, out);
            }
        }
    }

    /// Syncs the disk once all writes have ended that may have taken the place of what was postponed: a sync covers
    /// only what ended before it, and the other disk may have older content of their blocks durably.
    fn pump_landing(&mut self, side: Side, out: &mut Vec<Command>) {
        let change = self.change.as_mut().expect("a disk returns");
        change.returning.retain(|id| self.ops.get(*id).is_some_and(|op| op.writes(side)));
        if change.returning.is_empty() {
            change.step = Step::Settling;
            self.issue(side, Wait::ReturnSync, DiskOp::Sync, out);
        }
    }

    /// Writes one run of missed blocks, as far as no client has written them since.
    pub(crate) fn run_return(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let mut blocks = self.ops[id].blocks.clone();
        self.ops[id].step = OpStep::Writing;
        if self.disks[side.index()].serving != Serving::Yes {
            return self.advance(id, out);
        }
        if self.must_replay(&[side], &blocks, false) {
            return self.ops.give_way(id);
        }
        while !blocks.is_empty() {
            let (first, data) = self.disks[side.index()].missed(&blocks);
            if data.is_empty() {
                break;
            }
            blocks.start = first + data.len() as u64 / BLOCK_BYTES;
            self.write_to(id, side, first, &data, out);
        }
        self.advance(id, out);
    }

    pub(crate) fn return_ended(&mut self, id: u64) {
        if let Some(change) = &mut self.change {
            change.returning.retain(|other| *other != id);
        }
        self.ops.release_held();
    }

    pub(crate) fn return_synced(&mut self, side: Side) {
        let copied = self.copies.as_ref().is_some_and(|copies| copies.is_settling(side));
        if self.is_at(side, Step::Settling) || copied {
            if !self.has(PlantedBug::ReturnUnmarked) {
                self.marks.level(!side);
            }
            self.members.request(Membership::Return(side));
        }
    }

    pub(crate) fn return_noted(&mut self, side: Side, out: &mut Vec<Command>) {
        let is_copied_to = |copies: &Copies| copies.to() == side && !copies.pending.is_empty();
        let lacks = self.disks[side.index()].is_behind();
        if lacks || self.copies.as_ref().is_some_and(is_copied_to) {
            bug(out, "a disk is noted as in sync, and lacks something");
        }
        self.marks.follow(!side);
        if self.is_at(side, Step::Settling) {
            self.change = None;
            out.extend(self.late.drain(..).map(|id| Command::Reply { id, reply: Reply::Done }));
        }
        if self.copies.as_ref().is_some_and(|copies| copies.is_settling(side)) {
            self.copies = None;
        }
        self.ops.release_held();
    }
}
