//! Which operation may touch which blocks now.
//!
//! An operation takes its blocks before it does anything, and gives them back at its end. Writers of a block exclude each
//! other, so that both disks apply them in the same order, and they exclude readers, so that a block never appears to go back
//! in time when two reads are served by different disks. Waiters are served in the order of arrival where they overlap: none
//! starves.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// How an operation uses its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Beside others that share.
    Shared,
    Alone,
}

#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// By first block and operation.
    granted: BTreeMap<(u64, u64), (u64, Use)>,
    /// Longest range granted since the last time that there was none: bounds the search to the left.
    longest: u64,
    waiting: VecDeque<(u64, Range<u64>, Use)>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Locks {
    /// Takes blocks for an operation. `false`: it waits; [`Locks::release`] of another one returns it.
    pub fn take(&mut self, op: u64, blocks: Range<u64>, usage: Use) -> bool {
        let behind = self.waiting.iter().any(|(_, other, theirs)| {
            overlap(&blocks, other) && (usage == Use::Alone || *theirs == Use::Alone)
        });
        if behind || !self.is_free(&blocks, usage) {
            self.waiting.push_back((op, blocks, usage));
            return false;
        }
        self.grant(op, &blocks, usage);
        true
    }

    /// An operation that waits is given up. Appends the operations that have theirs now.
    pub fn cancel(&mut self, op: u64, ready: &mut Vec<u64>) {
        self.waiting.retain(|(other, _, _)| *other != op);
        self.serve(ready);
    }

    /// Gives back the blocks of an operation. Appends the operations that have theirs now.
    pub fn release(&mut self, op: u64, blocks: &Range<u64>, ready: &mut Vec<u64>) {
        let had = self.granted.remove(&(blocks.start, op));
        assert!(had.is_some(), "operation {op} gave back what it did not have");
        if self.granted.is_empty() {
            self.longest = 0;
        }
        self.serve(ready);
    }

    fn serve(&mut self, ready: &mut Vec<u64>) {
        if self.waiting.is_empty() {
            return;
        }
        let mut still: VecDeque<(u64, Range<u64>, Use)> = VecDeque::new();
        for (op, blocks, usage) in std::mem::take(&mut self.waiting) {
            let behind = still.iter().any(|(_, other, theirs)| {
                overlap(&blocks, other) && (usage == Use::Alone || *theirs == Use::Alone)
            });
            if !behind && self.is_free(&blocks, usage) {
                self.grant(op, &blocks, usage);
                ready.push(op);
            } else {
                still.push_back((op, blocks, usage));
            }
        }
        self.waiting = still;
    }

    fn grant(&mut self, op: u64, blocks: &Range<u64>, usage: Use) {
        self.longest = self.longest.max(blocks.end - blocks.start);
        self.granted.insert((blocks.start, op), (blocks.end, usage));
    }

    fn is_free(&self, blocks: &Range<u64>, usage: Use) -> bool {
        let from = (blocks.start.saturating_sub(self.longest), 0);
        let mut near = self.granted.range(from..(blocks.end, 0));
        !near.any(|(_, (end, theirs))| *end > blocks.start && (usage == Use::Alone || *theirs == Use::Alone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    #[test]
    fn writers_exclude_all_and_readers_share() {
        let mut locks = Locks::default();
        assert!(locks.take(1, 0..8, Use::Shared));
        assert!(locks.take(2, 4..6, Use::Shared));
        assert!(!locks.take(3, 5..9, Use::Alone));
        assert!(!locks.take(4, 8..9, Use::Shared), "an earlier writer waits for that block");
        assert!(locks.take(5, 9..10, Use::Alone));
        let mut ready = Vec::new();
        locks.release(1, &(0..8), &mut ready);
        assert!(ready.is_empty());
        locks.release(2, &(4..6), &mut ready);
        assert_eq!(ready, [3]);
        locks.release(3, &(5..9), &mut ready);
        assert_eq!(ready, [3, 4]);
    }

    /// Against a plain list: no two that exclude each other hold a block, and everything is served in the end.
    #[test]
    fn random_operations_never_overlap_and_none_starves() {
        let mut random = Random::new(7);
        let mut locks = Locks::default();
        let mut held: BTreeMap<u64, (Range<u64>, Use)> = BTreeMap::new();
        let mut all: BTreeMap<u64, (Range<u64>, Use)> = BTreeMap::new();
        for op in 0..20_000 {
            let first = random.below(200);
            let most = if random.chance(50) { 100 } else { 4 };
            let blocks = first..first + 1 + random.below(most);
            let usage = if random.chance(500) { Use::Alone } else { Use::Shared };
            all.insert(op, (blocks.clone(), usage));
            if locks.take(op, blocks.clone(), usage) {
                held.insert(op, (blocks, usage));
            }
            while held.len() > random.index(12) {
                let (&done, _) = held.iter().nth(random.index(held.len())).expect("one is held");
                let (blocks, _) = held.remove(&done).expect("it is held");
                let mut ready = Vec::new();
                locks.release(done, &blocks, &mut ready);
                held.extend(ready.into_iter().map(|op| (op, all[&op].clone())));
                let list: Vec<_> = held.values().collect();
                for (n, (a, x)) in list.iter().enumerate() {
                    let clash = |(b, y): &&&(Range<u64>, Use)| {
                        overlap(a, b) && (*x == Use::Alone || *y == Use::Alone)
                    };
                    assert!(!list[n + 1..].iter().any(|other| clash(&other)), "two hold the same block");
                }
                if held.is_empty() {
                    assert!(locks.waiting.is_empty(), "some wait for none");
                }
            }
        }
    }
}
