//! The orderly end: nothing is in progress, both disks are synced, and they note that they are the same.

use crate::api::{Command, DiskOp, Side};
use crate::members::Change;
use crate::mirror::Mirror;
use crate::op::Wait;
use crate::state::Closing;

impl Mirror {
    /// Ends the mirror when nothing is in progress: a sync, and the note that both disks are the same.
    pub(crate) fn pump_close(&mut self, out: &mut Vec<Command>) {
        let idle = self.ops.is_empty()
            && self.change.is_none()
            && !self.members.is_busy()
            && !self.marks.is_busy()
            && self.disks.iter().all(|disk| disk.is_idle() && disk.replay.is_idle());
        match self.closing {
            Closing::Asked if self.is_lost() => {
                self.closing = Closing::Noting;
                out.push(Command::Closed);
            }
            Closing::Asked if idle => {
                let sides: Vec<Side> = self.serving().collect();
                self.closing = Closing::Syncing(sides.len() as u32);
                for side in sides {
                    self.issue(side, Wait::CloseSync, DiskOp::Sync, out);
                }
            }
            Closing::Syncing(0) => {
                self.closing = Closing::Noting;
                self.members.request(Change::Close { copied: self.copies.is_none() });
                self.pump_members(out);
            }
            _ => {}
        }
    }

    pub(crate) fn close_synced(&mut self) {
        if let Closing::Syncing(left) = &mut self.closing {
            *left -= 1;
        }
    }
}
