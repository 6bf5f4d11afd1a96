//! Epochs: what the disks did is measured, modes and speeds change, and marks of quiet regions go. When both disks are
//! at rest there is no next epoch: an idle mirror does nothing.

use crate::api::{Command, DiskOp, Mode, Side, Speed, Spent};
use crate::disk::{Disk, Serving};
use crate::marks::QUIET_EPOCHS;
use crate::mirror::Mirror;
use crate::op::{Wait, Work};
use crate::policy::Access;
use ebb_types::Moment;

/// Utilisation below which a disk is at rest.
const AT_REST: f64 = 0.001;

impl Mirror {
    /// Records the time that an operation of a disk took, for the policy: of clients' requests, not of the mirror's own
    /// work.
    pub(crate) fn observe(&mut self, side: Side, wait: &Wait, spent: Spent) {
        let own = |op: &u64| {
            self.ops.get(*op).is_none_or(|op| matches!(op.work, Work::Replay { .. } | Work::Copy { .. }))
        };
        let (access, requests) = match wait {
            Wait::Read { op, .. } | Wait::Part { op, .. } if own(op) => return,
            Wait::ReplaySync => return,
            Wait::Read { .. } => (Access::Read, 1),
            Wait::Part { write, .. } => (Access::Write, u32::from(*write)),
            Wait::Batch => (Access::Write, self.disks[side.index()].log.flying_requests()),
            _ => (Access::Write, 0),
        };
        self.pair.record(side, access, requests, spent);
    }

    /// Ends an epoch: modes and speeds change.
    pub(crate) fn tick(&mut self, now: Moment, out: &mut Vec<Command>) {
        let Some(length) = self.epochs.end(now, self.settings.epoch) else { return };
        let fills = self.disks.each_ref().map(|disk| disk.log.fill());
        let may_change = self.may_change();
        let decisions = self.pair.end_epoch(length, fills, may_change);
        for (side, decision) in Side::BOTH.into_iter().zip(decisions) {
            if let Some(mode) = decision.mode {
                self.disk(side).mode = mode;
            }
            match decision.speed {
                Some(_) if self.asleep() == Some(side) => self.note_sleep(now, true),
                Some(speed) => self.begin_change(side, speed),
                None => {}
            }
        }
        self.note_sleep(now, false);
        self.clear_quiet(out);
    }

    /// Whether time changes nothing: both disks are at rest.
    fn is_settled(&self) -> bool {
        let at_rest = |disk: &Disk| {
            let stays = disk.speed() == Speed::Low || self.pair.stays_high(disk.side);
            let busy = self.pair.utilisation(disk.side).is_some_and(|util| util > AT_REST);
            stays
                && !busy
                && disk.mode != Mode::Replay
                && (disk.log.logged_blocks() == 0 || disk.serving == Serving::Lost)
        };
        let alone = self.disks.iter().any(|disk| disk.serving == Serving::Lost);
        self.ops.is_empty()
            && self.change.is_none()
            && (alone || self.disks.iter().all(at_rest))
            && (alone || !self.marks.has_dirty())
    }

    pub(crate) fn set_alarm(&mut self, now: Moment, out: &mut Vec<Command>) {
        let length = (!self.is_settled()).then_some(self.settings.epoch);
        out.extend(self.epochs.await_end(now, length));
    }

    /// Clears the marks of regions that have been quiet, after a sync of both disks.
    fn clear_quiet(&mut self, out: &mut Vec<Command>) {
        let may = !self.marks.is_clearing() && self.serving().count() == 2 && self.copies.is_none();
        let epoch = self.epochs.number();
        if !may || !epoch.is_multiple_of(QUIET_EPOCHS) || !self.marks.begin_clearing(epoch) {
            return;
        }
        for side in Side::BOTH {
            self.issue(side, Wait::ClearSync, DiskOp::Sync, out);
        }
    }
}
