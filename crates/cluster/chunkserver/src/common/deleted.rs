//! The chunks of a group, or of a set, that were deleted last. Ids are never used again: whatever a client still sends
//! to such a chunk comes too late. Nothing would name its bytes, so they would stay for ever.
//!
//! A memory and no proof: it is bounded, and a restart keeps only what the tails remember. What slips through is found
//! by `ebb verify --space`.

use ebb_types::ChunkId;
use std::collections::{BTreeSet, VecDeque};

/// A writer that lost its chunk stops within a minute: enough for 17 deletions a second in each group.
const REMEMBERED: usize = 1024;

#[derive(Default)]
pub(crate) struct Deleted {
    chunks: BTreeSet<ChunkId>,
    /// Oldest first.
    order: VecDeque<ChunkId>,
}

impl Deleted {
    pub fn note(&mut self, chunk: ChunkId) {
        if !self.chunks.insert(chunk) {
            return;
        }
        self.order.push_back(chunk);
        debug_assert_eq!(self.order.len(), self.chunks.len(), "each stands in the order once");
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.chunks.remove(&oldest);
        }
    }

    pub fn has(&self, chunk: ChunkId) -> bool {
        self.chunks.contains(&chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::ObjectId;

    #[test]
    fn the_newest_are_remembered() {
        let chunk = |n: usize| ChunkId { object: ObjectId(n as u64), index: 0 };
        let mut deleted = Deleted::default();
        (0..REMEMBERED + 2).chain(REMEMBERED..REMEMBERED + 2).for_each(|n| deleted.note(chunk(n)));
        assert!(!deleted.has(chunk(1)) && (2..REMEMBERED + 2).all(|n| deleted.has(chunk(n))));
        assert_eq!((deleted.chunks.len(), deleted.order.len()), (REMEMBERED, REMEMBERED));
    }
}
