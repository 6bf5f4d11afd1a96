//! The log's blocks go to their own places, when there is little else to do [LogStore §3.1].
//!
//! In the order of the log, one run at a time, and only while no client has the disk busy. A run's blocks stay locked
//! against writers from the read until the entries are void; some runs are synced and voided together, so that a sync
//! is paid once for them, but at once if a client waits for them. A log that has become empty begins again at its
//! start.

use crate::api::{Command, DiskOp, Reply, Side};
use crate::disk::{Restarting, Serving};
use crate::log::Place;
use crate::members::Change as Membership;
use crate::mirror::Mirror;
use crate::op::{Op, Step, Wait, Work};
use crate::settings::PlantedBug;

/// Runs that are synced and voided together.
const GROUP: usize = 32;

impl Mirror {
    pub(crate) fn pump_replay(&mut self, side: Side, out: &mut Vec<Command>) {
        let calm = self.change.is_none() && self.pair.may_replay(side);
        let disk = &mut self.disks[side.index()];
        if !disk.is_writable() {
            return;
        }
        let wanted = disk.serves() && (calm || disk.must_replay());
        if disk.replay.busy.is_none() && wanted && (disk.is_idle() || disk.must_replay()) {
            if disk.replay.runs.is_empty() && disk.replay.is_idle() {
                disk.replay.runs = disk.log.to_replay().into();
            }
            if (disk.replay.placed.len() < GROUP || !disk.log.can_void()) && disk.replay.voiding == 0 {
                while let Some((slot, blocks)) = disk.replay.runs.pop_front() {
                    if disk.log.is_current(slot, &blocks) {
                        let id = self.ops.start(Op::new(None, Work::Replay { side, slot }, blocks));
                        self.disk(side).replay.busy = Some(id);
                        return;
                    }
                }
            }
        }
        self.pump_void(side, wanted, out);
    }

    /// Voids what is in its own place, when there is a group of it or nothing more.
    fn pump_void(&mut self, side: Side, wanted: bool, out: &mut Vec<Command>) {
        let disk = &mut self.disks[side.index()];
        let replay = &mut disk.replay;
        // An operation that waits for blocks may wait for one that waits for the blocks of the group.
        let blocked = replay.busy.is_some_and(|id| self.ops[id].step == Step::Waiting);
        if replay.busy.is_some() && !blocked || replay.voiding > 0 {
            return;
        }
        let waited_for = |id: &u64| self.ops.is_waited_for(*id);
        let last = replay.runs.is_empty() || !wanted || blocked || replay.placed.iter().any(waited_for);
        let full = replay.placed.len() >= GROUP && disk.log.can_void();
        if !replay.placed.is_empty() && (last || full) {
            replay.voiding = replay.placed.len() as u32;
            match self.has(PlantedBug::VoidUnsynced) {
                true => self.replay_synced(side, out),
                false => self.issue(side, Wait::ReplaySync, DiskOp::Sync, out),
            }
        } else if disk.restarting == Restarting::Draining && !disk.reads_log() {
            disk.restarting = Restarting::No;
            self.ops.release_held();
        } else if wanted
            && disk.log.is_empty()
            && disk.log.used_bytes() > 0
            && disk.restarting == Restarting::No
        {
            disk.restarting = Restarting::Noting;
            self.members.request(Membership::RestartLog(side));
        }
    }

    pub(crate) fn run_replay(&mut self, id: u64, side: Side, slot: u64, out: &mut Vec<Command>) {
        let blocks = self.ops[id].blocks.clone();
        let disk = &self.disks[side.index()];
        if !disk.serves() || !disk.log.is_current(slot, &blocks) {
            // Written again while it waited for its blocks.
            self.disk(side).replay.busy = None;
            return self.finish(id, Reply::Done, out);
        }
        self.read_from(id, side, out);
    }

    pub(crate) fn replay_read(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let op = &mut self.ops[id];
        let blocks = op.blocks.clone();
        if op.failed {
            self.unreadable += 1;
            self.disk(side).replay.busy = None;
            self.finish(id, Reply::Failed, out);
            if self.disks[(!side).index()].serves() {
                self.ops.start(Op::new(None, Work::Copy { from: !side }, blocks));
            }
            return;
        }
        let pieces = op.take_found();
        op.step = Step::Writing;
        let (offset, _) = self.at(blocks.start, Place::Regular);
        self.part(id, side, DiskOp::Write { offset, pieces, durable: false }, out);
    }

    /// Gives up a run that waits for its blocks: a write may hold them until this disk has left.
    pub(crate) fn cancel_replay(&mut self, side: Side) {
        let replay = &mut self.disks[side.index()].replay;
        if replay.busy.is_some_and(|id| self.ops.cancel(id)) {
            replay.busy = None;
        }
    }

    /// The disk is lost: its log does not matter any more.
    pub(crate) fn drop_replay(&mut self, side: Side, out: &mut Vec<Command>) {
        let replay = std::mem::take(&mut self.disk(side).replay);
        self.disk(side).replay.busy = replay.busy;
        for id in replay.placed {
            self.finish(id, Reply::Failed, out);
        }
    }

    pub(crate) fn replay_placed(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        if self.disks[side.index()].serving == Serving::Lost {
            self.disk(side).replay.busy = None;
            return self.finish(id, Reply::Failed, out);
        }
        self.ops[id].step = Step::Voiding;
        let replay = &mut self.disk(side).replay;
        debug_assert_eq!(replay.busy, Some(id), "one run at a time");
        replay.busy = None;
        replay.placed.push(id);
    }

    pub(crate) fn replay_synced(&mut self, side: Side, out: &mut Vec<Command>) {
        let disk = &mut self.disks[side.index()];
        if !disk.log.can_void() {
            return self.restart_full(side, out);
        }
        for id in std::mem::take(&mut disk.replay.placed) {
            let Some(op) = self.ops.get_mut(id) else { continue };
            op.left[side.index()] += 1;
            disk.log.void(id, op.blocks.clone());
        }
    }

    /// The log has no room for the entries that void what was placed. If that is everything, it begins again instead.
    fn restart_full(&mut self, side: Side, out: &mut Vec<Command>) {
        let disk = &mut self.disks[side.index()];
        let placed = disk.replay.placed.iter().map(|id| self.ops[*id].blocks.clone());
        if disk.log.has_only(placed) && disk.log.is_quiet() {
            disk.restarting = Restarting::Noting;
            return self.members.request(Membership::RestartLog(side));
        }
        disk.replay.voiding = 0;
        for id in std::mem::take(&mut disk.replay.placed) {
            self.finish(id, Reply::Done, out);
        }
    }

    /// The log has begun again.
    pub(crate) fn restarted(&mut self, side: Side, out: &mut Vec<Command>) {
        let disk = self.disk(side);
        disk.restart_log();
        for id in std::mem::take(&mut disk.replay.placed) {
            self.finish(id, Reply::Done, out);
        }
    }

    pub(crate) fn replay_voided(&mut self, id: u64, side: Side, out: &mut Vec<Command>) {
        let disk = self.disk(side);
        disk.replay.voiding = disk.replay.voiding.saturating_sub(1);
        if disk.replay.voiding == 0 && disk.must_replay() {
            disk.calm();
            self.ops.release_held();
        }
        self.finish(id, Reply::Done, out);
    }
}
