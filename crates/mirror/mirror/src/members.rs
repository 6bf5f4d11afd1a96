//! What each disk knows of the pair, durably: its superblock. Changes are written one after another, each to every disk
//! that serves.
//!
//! The order keeps a stale disk from being taken for a current one: before a disk leaves for a change of speed, the
//! other one notes alone that it is ahead, then both note that this one falls behind, so a disk that falls behind is a
//! witness that the other one has noted it; a disk that is lost is noted by the other before anything is acknowledged
//! without it; and both notes go only when the disk that was away has everything, durably.

use crate::api::Side;
use crate::superblock::{Other, Own, Superblock};
use std::collections::VecDeque;

/// A change of what the disks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This disk is ahead of the other one. It notes that alone, before the other one notes anything.
    Ahead(Side),
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
    /// The number of the last intent map that each disk was sent.
    maps: [u64; 2],
    waiting: VecDeque<Change>,
    /// The change being written, and the writes that have not ended.
    under_way: Option<(Change, u32)>,
}

impl Members {
    pub fn new(blocks: [Superblock; 2], maps: [u64; 2]) -> Members {
        Members { blocks, maps, waiting: VecDeque::new(), under_way: None }
    }

    pub fn map_sent(&mut self, side: Side, map: u64) {
        debug_assert!(map > self.maps[side.index()], "the newest map has the largest number");
        self.maps[side.index()] = map;
    }

    /// The number of the last intent map that was written.
    pub fn newest_map(&self) -> u64 {
        self.maps[0].max(self.maps[1])
    }

    /// The disk whose last map is the one before the other's.
    pub fn map_behind_by_one(&self) -> Option<Side> {
        let [a, b] = self.maps;
        match (a + 1 == b, b + 1 == a) {
            (true, _) => Some(Side::A),
            (_, true) => Some(Side::B),
            _ => None,
        }
    }

    pub fn block(&self, side: Side) -> &Superblock {
        &self.blocks[side.index()]
    }

    pub fn request(&mut self, change: Change) {
        self.waiting.push_back(change);
    }

    /// Whether the next change relies on marks of the intent map.
    pub fn needs_marks(&self) -> bool {
        use Change::{Ahead, Leave, Lose, Return};
        matches!(self.waiting.front(), Some(Ahead(_) | Leave(_) | Return(_) | Lose(_))) && !self.is_opening()
    }

    /// Whether it is not noted yet that the program has begun, and what was found. No mark is set before: a disk that
    /// was closed in order is clean only if nothing was written since, and a mark would make an older copy look newer.
    pub fn is_opening(&self) -> bool {
        let under_way = self.under_way.iter().map(|(change, _)| change);
        self.waiting.iter().chain(under_way).any(|change| *change == Change::Open)
    }

    /// The disk that notes the next change alone.
    pub fn notes_alone(&self) -> Option<Side> {
        match self.waiting.front() {
            Some(Change::Ahead(side)) => Some(*side),
            _ => None,
        }
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
            Change::Ahead(side) => self.lead(side, Other::Away { since_events: events }),
            Change::Leave(side) => {
                own(side, Own::Behind { since_events: events });
                self.blocks[(!side).index()].other_map = self.maps[side.index()];
            }
            Change::Lose(side) => {
                own(side, Own::Behind { since_events: events });
                self.lead(!side, Other::Lost { since_events: events });
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

    /// This disk is ahead of the other one. What the other one had when it left stays on record.
    fn lead(&mut self, side: Side, other: Other) {
        let block = &mut self.blocks[side.index()];
        if block.other == Other::InSync {
            block.other_map = self.maps[(!side).index()];
        }
        if block.other == Other::InSync || matches!(other, Other::Lost { .. }) {
            block.other = other;
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
