//! What each disk knows of the pair, durably: its superblock. Changes are written one after another, each to every disk
//! that serves.
//!
//! The order keeps a stale disk from being taken for a current one: a disk that leaves for a change of speed notes
//! first that it falls behind; a disk that is lost is noted by the other before anything is acknowledged without it;
//! and both notes go only when the disk that was away has everything, durably.

use crate::api::Side;
use crate::superblock::{Other, Own, Superblock};
use std::collections::VecDeque;

/// A change of what the disks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This disk leaves for a change of speed.
    Leave(Side),
    /// This disk has everything again.
    Return(Side),
    /// This disk is lost.
    Lose(Side),
    /// The log of this disk begins again.
    RestartLog(Side),
    /// The rebuild of this disk has come to this block.
    Rebuilt(Side, u64),
    /// The program ends, and nothing is in progress. `copied`: both disks have the same content.
    Close { copied: bool },
    /// The program has begun.
    Open,
}

pub(crate) struct Members {
    blocks: [Superblock; 2],
    waiting: VecDeque<Change>,
    /// The change being written, and the writes that have not ended.
    under_way: Option<(Change, u32)>,
}

impl Members {
    pub fn new(blocks: [Superblock; 2]) -> Members {
        Members { blocks, waiting: VecDeque::new(), under_way: None }
    }

    pub fn block(&self, side: Side) -> &Superblock {
        &self.blocks[side.index()]
    }

    pub fn request(&mut self, change: Change) {
        self.waiting.push_back(change);
    }

    /// Whether the next change relies on marks of the intent map.
    pub fn needs_marks(&self) -> bool {
        matches!(self.waiting.front(), Some(Change::Leave(_) | Change::Return(_) | Change::Lose(_)))
    }

    pub fn is_busy(&self) -> bool {
        self.under_way.is_some() || !self.waiting.is_empty()
    }

    /// Applies the next change, if none is being written. The superblocks of all disks that serve are to be written: so
    /// many.
    pub fn begin(&mut self, disks: u32) -> Option<Change> {
        if self.under_way.is_some() {
            return None;
        }
        let change = self.waiting.pop_front()?;
        self.apply(change);
        self.blocks.iter_mut().for_each(|block| block.written += 1);
        self.under_way = Some((change, disks));
        Some(change)
    }

    fn apply(&mut self, change: Change) {
        let events = self.blocks.iter().map(|block| block.events).max().unwrap_or_default() + 1;
        self.blocks.iter_mut().for_each(|block| block.events = events);
        let mut own = |side: Side, own: Own| self.blocks[side.index()].own = own;
        match change {
            Change::Leave(side) | Change::Lose(side) => {
                own(side, Own::Behind { since_events: events });
                self.blocks[(!side).index()].other = match change {
                    Change::Leave(_) => Other::Away { since_events: events },
                    _ => Other::Lost { since_events: events },
                };
            }
            Change::Return(side) => {
                own(side, Own::InSync);
                self.blocks[(!side).index()].other = Other::InSync;
            }
            Change::Rebuilt(side, done_blocks) => own(side, Own::Rebuilding { done_blocks }),
            Change::RestartLog(side) => self.blocks[side.index()].log_epoch += 1,
            Change::Close { copied } => self.blocks.iter_mut().for_each(|block| block.clean = copied),
            Change::Open => self.blocks.iter_mut().for_each(|block| block.clean = false),
        }
    }

    /// One disk has its superblock; also for a disk that was lost meanwhile. Once all have, returns the change.
    pub fn written(&mut self) -> Option<Change> {
        let (change, left) = self.under_way.as_mut().expect("a change was being written");
        *left -= 1;
        let change = *change;
        (*left == 0).then(|| {
            self.under_way = None;
            change
        })
    }
}
