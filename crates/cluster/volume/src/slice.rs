//! One slice of an open volume: which of its blocks the front has, and which object has the others.
//!
//! Two locks. `gate` is held shared by writes, alone to move the slice or to find out about it. `object` is held
//! shared by everything that reads, alone while blocks leave the front. `gate` is taken first. A block is marked as
//! present after its write is done: until then a read returns what was there before it.

use ebb_types::{BLOCK_BYTES, ObjectId, SLICE_BYTES, Version};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::RwLock;

const BLOCKS: u32 = SLICE_BYTES / BLOCK_BYTES as u32;
const WORDS: usize = BLOCKS as usize / 64;
const _: () = assert!(WORDS * 64 * BLOCK_BYTES == SLICE_BYTES as usize, "whole words of whole blocks");

pub(crate) struct Slice {
    pub number: u32,
    pub gate: RwLock<()>,
    pub object: RwLock<Option<ObjectId>>,
    /// Whether `present` is right. Not before the first look, and not after a write with an unknown outcome.
    known: AtomicBool,
    present: [AtomicU64; WORDS],
    /// The number of its last write.
    written: AtomicU64,
    /// Up to which version blocks of the front may still be cleared. It changes under `object` alone.
    owed: Mutex<Option<Version>>,
}

/// Consecutive blocks of a slice that are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes in the slice.
    pub offset: u32,
    pub len: u32,
    pub in_front: bool,
}

impl Slice {
    pub fn new(number: u32, object: Option<ObjectId>) -> Slice {
        Slice {
            number,
            gate: RwLock::new(()),
            object: RwLock::new(object),
            known: AtomicBool::new(false),
            present: Default::default(),
            written: AtomicU64::new(0),
            owed: Mutex::new(None),
        }
    }

    pub fn owed(&self) -> Option<Version> {
        *self.owed.lock().expect("nothing panics under this lock")
    }

    pub fn owe(&self, up_to: Option<Version>) {
        *self.owed.lock().expect("nothing panics under this lock") = up_to;
    }

    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub fn doubt(&self) {
        self.known.store(false, Ordering::Release);
    }

    pub fn has(&self, block: u32) -> bool {
        let word = self.present[block as usize / 64].load(Ordering::Acquire);
        word >> (block % 64) & 1 == 1
    }

    /// Marks blocks as present. Returns by how many blocks the front is larger than was known.
    pub fn mark(&self, (first, count): (u32, u32), written: u64) -> i64 {
        self.written.fetch_max(written, Ordering::Relaxed);
        let fresh = |block: &u32| {
            let bit = 1 << (block % 64);
            self.present[*block as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
        };
        (first..first + count).filter(fresh).count() as i64
    }

    /// Replaces what is known by what a look found. Returns by how many blocks the front is larger than was known.
    pub fn learn(&self, runs: &[(u32, u32)]) -> i64 {
        let before = i64::from(self.count());
        let mut found = [0; WORDS];
        for block in runs.iter().flat_map(|(first, count)| *first..first + count) {
            found[block as usize / 64] |= 1 << (block % 64);
        }
        // At once: who reads meanwhile must not miss a block that stays.
        self.present.iter().zip(found).for_each(|(word, found)| word.store(found, Ordering::Release));
        self.known.store(true, Ordering::Release);
        i64::from(self.count()) - before
    }

    /// Blocks in the front.
    pub fn count(&self) -> u32 {
        self.present.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
    }

    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// A range of bytes, divided by where its blocks are.
    pub fn stretches(&self, offset: u32, len: u32) -> Vec<Stretch> {
        let mut all: Vec<Stretch> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / BLOCK_BYTES as u32;
            let until = ((block + 1) * BLOCK_BYTES as u32).min(end);
            let in_front = self.has(block);
            match all.last_mut().filter(|last| last.in_front == in_front) {
                Some(last) => last.len += until - at,
                None => all.push(Stretch { offset: at, len: until - at, in_front }),
            }
            at = until;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_a_range_and_divide_it_where_the_place_changes() {
        let slice = Slice::new(0, None);
        assert_eq!(slice.mark((1, 2), 5), 2);
        assert_eq!(slice.mark((2, 2), 6), 1, "one of them is new");
        assert_eq!((slice.count(), slice.written()), (3, 6));
        let block = BLOCK_BYTES as u32;
        let stretch = |offset, len, in_front| Stretch { offset, len, in_front };
        assert_eq!(
            slice.stretches(100, 5 * block),
            [
                stretch(100, block - 100, false),
                stretch(block, 3 * block, true),
                stretch(4 * block, block + 100, false)
            ]
        );
        assert_eq!(slice.stretches(block + 7, 9), [stretch(block + 7, 9, true)]);
        assert_eq!(slice.learn(&[(0, BLOCKS)]), i64::from(BLOCKS) - 3);
        assert_eq!(slice.stretches(0, SLICE_BYTES), [stretch(0, SLICE_BYTES, true)]);
        assert_eq!(slice.learn(&[]), -i64::from(BLOCKS));
        assert!(slice.is_known());
    }
}
