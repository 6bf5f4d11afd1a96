//! Which operation may touch which blocks now.
//!
//! An operation takes its blocks before it does anything, and gives them back at its end. Writers of a block exclude
//! each other, so that both disks apply them in the same order, and they exclude readers, so that a block never appears
//! to go back in time when two reads are served by different disks. Waiters are served in the order of arrival where
//! they overlap: none starves.

use std::collections::BTreeMap;
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
    /// By first block and operation: end, and how it uses them.
    granted: BTreeMap<(u64, u64), (u64, Use)>,
    /// By first block and place in the queue: end, operation, and how it is to use them.
    waiting: BTreeMap<(u64, u64), (u64, u64, Use)>,
    /// Place of the next that waits.
    next: u64,
    /// Longest range since the last time that there was none: bounds searches to the left.
    longest: u64,
}

fn clash(a: Use, b: Use) -> bool {
    a == Use::Alone || b == Use::Alone
}

impl Locks {
    /// Takes blocks for an operation. `false`: it waits; [`Locks::release`] of another one returns it.
    pub fn take(&mut self, op: u64, blocks: Range<u64>, usage: Use) -> bool {
        debug_assert!(!blocks.is_empty(), "operation {op} would exclude nothing");
        self.longest = self.longest.max(blocks.end - blocks.start);
        if self.is_behind(&blocks, usage, self.next) || !self.is_free(&blocks, usage) {
            self.waiting.insert((blocks.start, self.next), (blocks.end, op, usage));
            self.next += 1;
            return false;
        }
        self.granted.insert((blocks.start, op), (blocks.end, usage));
        true
    }

    /// An operation that waits is given up. Appends the operations that have theirs now.
    pub fn cancel(&mut self, op: u64, ready: &mut Vec<u64>) {
        let found = self.waiting.iter().find(|(_, (_, other, _))| *other == op);
        let (&key, &(end, ..)) = found.expect("it waits");
        self.waiting.remove(&key);
        self.serve(&(key.0..end), ready);
    }

    /// Gives back the blocks of an operation. Appends the operations that have theirs now: only such as overlap them.
    pub fn release(&mut self, op: u64, blocks: &Range<u64>, ready: &mut Vec<u64>) {
        let had = self.granted.remove(&(blocks.start, op));
        assert!(had.is_some(), "operation {op} gave back what it did not have");
        self.serve(blocks, ready);
    }

    /// Grants what waited for these blocks, if it can be.
    fn serve(&mut self, blocks: &Range<u64>, ready: &mut Vec<u64>) {
        if self.waiting.is_empty() {
            if self.granted.is_empty() {
                self.longest = 0;
            }
            return;
        }
        let near = self.waiting.range(self.near(blocks)).filter(|(_, (end, _, _))| *end > blocks.start);
        let mut places: Vec<(u64, u64)> = near.map(|((start, place), _)| (*place, *start)).collect();
        places.sort_unstable();
        for (place, start) in places {
            let (end, op, usage) = self.waiting[&(start, place)];
            if !self.is_behind(&(start..end), usage, place) && self.is_free(&(start..end), usage) {
                self.waiting.remove(&(start, place));
                self.granted.insert((start, op), (end, usage));
                ready.push(op);
            }
        }
    }

    /// Operations that wait for any of these blocks.
    pub fn waiting(&self, blocks: &Range<u64>) -> impl Iterator<Item = u64> {
        let start = blocks.start;
        let near = self.waiting.range(self.near(blocks));
        near.filter(move |(_, (end, _, _))| *end > start).map(|(_, (_, op, _))| *op)
    }

    /// Keys of ranges that may overlap the blocks.
    fn near(&self, blocks: &Range<u64>) -> Range<(u64, u64)> {
        (blocks.start.saturating_sub(self.longest), 0)..(blocks.end, 0)
    }

    /// Whether one that waits at an earlier place excludes this use.
    fn is_behind(&self, blocks: &Range<u64>, usage: Use, place: u64) -> bool {
        let mut near = self.waiting.range(self.near(blocks));
        near.any(|((_, other), (end, _, theirs))| {
            *other < place && *end > blocks.start && clash(usage, *theirs)
        })
    }

    fn is_free(&self, blocks: &Range<u64>, usage: Use) -> bool {
        let mut near = self.granted.range(self.near(blocks));
        !near.any(|(_, (end, theirs))| *end > blocks.start && clash(usage, *theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    #[test]
    fn who_waits_for_blocks_is_known_until_they_are_granted() {
        let mut locks = Locks::default();
        assert!(locks.take(1, 0..8, Use::Shared) && locks.waiting(&(0..8)).next().is_none());
        assert!(!locks.take(2, 5..7, Use::Alone));
        let waiting = [0..8, 0..5, 4..6, 6..7, 7..8].map(|blocks| locks.waiting(&blocks).next());
        assert_eq!(waiting, [Some(2), None, Some(2), Some(2), None]);
        locks.release(1, &(0..8), &mut Vec::new());
        assert!(locks.waiting(&(0..8)).next().is_none());
    }

    fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
        a.start < b.end && b.start < a.end
    }

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
                    let clashes = |(b, y): &&&(Range<u64>, Use)| overlap(a, b) && clash(*x, *y);
                    assert!(!list[n + 1..].iter().any(|other| clashes(&other)), "two hold the same block");
                }
                if held.is_empty() {
                    assert!(locks.waiting.is_empty(), "some wait for none");
                }
            }
        }
    }
}
