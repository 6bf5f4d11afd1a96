//! The log of one disk: what is appended, where each logged block is, and what may still be appended [LogStore §3.1].
//!
//! - A block that is in the table has its newest content on this disk in the log, so an entry is never older than what
//!   it would be replayed over.
//! - A block leaves the table when an entry that voids it is in the log. That entry is appended only after the block's
//!   content is durable in its own place, be it replayed or a client's: with a volatile write cache, the paper's
//!   invalidation could otherwise outlive the write that it speaks of.
//! - One batch is written at a time: entries of a batch count only if all earlier batches are complete, so recovery may
//!   stop at the first that is not.
//! - The last part of the log is kept for voiding entries. Without it a full log could not be emptied; when even that
//!   is used up, an emptied log begins a new epoch, which needs no space.

use crate::BLOCK_BYTES;
use crate::log_format::{BATCH_BLOCKS_MAX, LogBatch, LogId, Logged, Stamp};
use crate::policy::LogFill;
use crate::superblock::MirrorId;
use crate::table::Table;
use bytes::Bytes;
use ebb_types::crc32c;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Data blocks of one batch, at most: bounds the time that the next one waits.
const BATCH_BLOCKS: u64 = 128;
/// One block in this many is kept for entries that void, and one in [`REPLAY_PART`] of them for those of the replay: it
/// voids many blocks with one entry, so that a log that is used up can still be emptied.
const VOID_PART: u64 = 16;
const REPLAY_PART: u64 = 32;
/// One block in this many is room for the writes that come before both disks, one after the other, have gone up.
const RISE_PART: u64 = 32;
/// Blocks that are replayed together, at most: clients' writes to them wait.
const REPLAY_BLOCKS: u64 = 16;

const _: () = assert!(BATCH_BLOCKS < BATCH_BLOCKS_MAX, "a start looks no farther for the next header");
const _: () =
    assert!(VOID_PART <= REPLAY_PART, "what is kept for the replay is kept from clients' data, too");

/// An entry that waits to be appended, and the operation that waits for it, if this is its last.
#[derive(Debug)]
enum Entry {
    Data { block: u64, payload: Bytes },
    Void { blocks: Range<u64> },
}

/// Where blocks are on this disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In their own place.
    Regular,
    /// In the log, from this slot on.
    Slot(u64),
}

/// A batch to be written.
pub(crate) struct Write {
    /// Bytes from the beginning of the log.
    pub offset: u64,
    pub pieces: Vec<Bytes>,
}

pub(crate) struct Log {
    table: Table,
    /// Checksum of each data block, by slot.
    crcs: Vec<u32>,
    id: LogId,
    /// Number of the superblock that this run of the program began with.
    run: u64,
    /// Of the next batch.
    sequence: u64,
    /// Batches up to this one are durable.
    synced: u64,
    /// The next free block.
    head: u64,
    /// Blocks of the log.
    slots: u64,
    queue: VecDeque<(Entry, Option<u64>)>,
    /// Of queued entries: the blocks that they take, without headers.
    queued_blocks: u64,
    /// The batch being written, and the operations that it ends.
    flying: Option<(Vec<Logged>, Vec<u64>)>,
}

impl Log {
    /// An empty log of `slots` blocks; 0: there is no log.
    pub fn new(slots: u64, mirror: MirrorId, epoch: u64, run: u64) -> Log {
        Log {
            table: Table::new(slots),
            crcs: Vec::new(),
            id: LogId { mirror, epoch },
            run,
            sequence: 1,
            synced: 0,
            head: 0,
            slots,
            queue: VecDeque::new(),
            queued_blocks: 0,
            flying: None,
        }
    }

    /// Takes entries that were found on the disk, in order.
    pub fn recover(&mut self, found: impl IntoIterator<Item = Logged>) {
        found.into_iter().for_each(|logged| self.apply(logged));
    }

    /// Continues where the log on the disk ends.
    pub fn resume(&mut self, head: u64, sequence: u64) {
        (self.head, self.sequence) = (head, sequence);
    }

    /// Blocks that are in the log and not in their own places.
    pub fn logged_blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// Whether every block is in its own place, and nothing is being appended.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.is_quiet()
    }

    pub fn fill(&self) -> LogFill {
        match self.is_empty() {
            true => LogFill::Empty,
            false if self.has_room(BATCH_BLOCKS.max(self.slots / RISE_PART)) => LogFill::Partial,
            false => LogFill::Full,
        }
    }

    /// Operations that the batch being written ends.
    pub fn flying_requests(&self) -> u32 {
        self.flying.as_ref().map_or(0, |(_, ended)| ended.len() as u32)
    }

    /// Whether nothing is being appended.
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.flying.is_none()
    }

    pub fn used_bytes(&self) -> u64 {
        self.head * BLOCK_BYTES
    }

    /// Whether any of the blocks is in the log.
    pub fn has_any(&self, blocks: &Range<u64>) -> bool {
        match self.table.len() {
            0 => false,
            len if (len as u64) < blocks.end - blocks.start => {
                self.table.iter().any(|(block, _)| blocks.contains(&block))
            }
            _ => blocks.clone().any(|block| self.table.get(block).is_some()),
        }
    }

    /// The blocks in runs that one access can serve.
    pub fn runs(&self, blocks: Range<u64>) -> Vec<(Range<u64>, Place)> {
        if self.table.is_empty() {
            return vec![(blocks, Place::Regular)];
        }
        let mut runs: Vec<(Range<u64>, Place)> = Vec::new();
        for block in blocks {
            let place = self.table.get(block).map_or(Place::Regular, Place::Slot);
            match (runs.last_mut(), place) {
                (Some((run, Place::Regular)), Place::Regular) => run.end = block + 1,
                (Some((run, Place::Slot(first))), Place::Slot(slot))
                    if slot == *first + (run.end - run.start) =>
                {
                    run.end = block + 1;
                }
                _ => runs.push((block..block + 1, place)),
            }
        }
        runs
    }

    /// Whether the data of the slots `first..` has the checksums that it was appended with.
    pub fn is_sound(&self, first: u64, data: &[u8]) -> bool {
        let blocks = data.chunks_exact(BLOCK_BYTES as usize);
        let crcs = &self.crcs[first as usize..];
        blocks.zip(crcs).all(|(block, crc)| crc32c(block) == *crc)
    }

    /// Whether `blocks` blocks of data may be appended.
    pub fn has_room(&self, blocks: u64) -> bool {
        let queued = self.queued_blocks + blocks;
        let headers = queued.div_ceil(BATCH_BLOCKS) + 1;
        self.head + queued + headers + self.slots / VOID_PART < self.slots
    }

    /// Whether a client's write may void blocks: what it leaves is for the replay.
    pub fn can_overwrite(&self) -> bool {
        let queued = self.queued_blocks + self.queue.len() as u64;
        self.slots > self.head + queued + 2 + self.slots / REPLAY_PART
    }

    /// Whether the replay may void blocks.
    pub fn can_void(&self) -> bool {
        self.slots > self.head + self.queued_blocks + self.queue.len() as u64 + 2
    }

    /// Appends whole blocks from `block` on, for an operation.
    pub fn append(&mut self, op: u64, block: u64, payload: &Bytes) {
        let count = payload.len() / BLOCK_BYTES as usize;
        for n in 0..count {
            let at = n * BLOCK_BYTES as usize;
            let payload = payload.slice(at..at + BLOCK_BYTES as usize);
            let waits = (n + 1 == count).then_some(op);
            self.queue.push_back((Entry::Data { block: block + n as u64, payload }, waits));
        }
        self.queued_blocks += count as u64;
    }

    /// Voids what the log has of these blocks. Their content must be durable in their own places.
    pub fn void(&mut self, op: u64, blocks: Range<u64>) {
        self.queue.push_back((Entry::Void { blocks }, Some(op)));
    }

    /// The next batch, if there is one and none is being written.
    pub fn next_batch(&mut self) -> Option<Write> {
        if self.flying.is_some() || self.queue.is_empty() {
            return None;
        }
        let (mut batch, mut ended) = (LogBatch::default(), Vec::new());
        while batch.room() > 0 && batch.blocks() <= BATCH_BLOCKS {
            let Some((entry, waits)) = self.queue.pop_front() else { break };
            match entry {
                Entry::Data { block, payload } => {
                    batch.push_data(block, payload);
                    self.queued_blocks -= 1;
                }
                Entry::Void { blocks } => batch.push_void(blocks.start, blocks.end - blocks.start),
            }
            ended.extend(waits);
        }
        let offset = self.head * BLOCK_BYTES;
        let stamp = Stamp { run: self.run, seq: self.sequence, synced: self.synced };
        let pieces = batch.encode(&self.id, stamp);
        self.flying = Some((batch.logged(self.head).collect(), ended));
        self.head += batch.blocks();
        self.sequence += 1;
        assert!(self.head <= self.slots, "the log has no room for what was appended");
        debug_assert!(batch.blocks() <= BATCH_BLOCKS_MAX, "a start would not find what follows it");
        debug_assert!(!self.queue.is_empty() || self.queued_blocks == 0, "what waits for room is counted");
        Some(Write { offset, pieces })
    }

    /// The disk is lost: nothing more is appended. Returns the operations that wait for it, but for those of the batch
    /// being written.
    pub fn abandon(&mut self) -> Vec<u64> {
        self.queued_blocks = 0;
        std::mem::take(&mut self.queue).into_iter().filter_map(|(_, waits)| waits).collect()
    }

    /// The batch is complete: returns the operations whose last entry it had.
    pub fn landed(&mut self) -> Vec<u64> {
        let (logged, ended) = self.flying.take().expect("a batch was being written");
        logged.into_iter().for_each(|logged| self.apply(logged));
        ended
    }

    fn apply(&mut self, logged: Logged) {
        match logged {
            Logged::Data { block, slot, crc32c } => {
                self.table.insert(block, slot);
                if self.crcs.len() <= slot as usize {
                    self.crcs.resize(slot as usize + 1, 0);
                }
                self.crcs[slot as usize] = crc32c;
            }
            Logged::Void { block, count } => drop(self.table.remove_range(block, count)),
        }
    }

    /// The last batch that is complete.
    pub fn complete(&self) -> u64 {
        self.sequence - 1 - u64::from(self.flying.is_some())
    }

    /// Batches up to this one are durable.
    pub fn synced(&mut self, sequence: u64) {
        debug_assert!(sequence <= self.complete(), "a sync covers what ended before it, of this epoch");
        self.synced = self.synced.max(sequence);
    }

    /// What is to be replayed, in the order of the log, as it is now: runs of blocks and their first slots. [LogStore
    /// §3.1]
    pub fn to_replay(&self) -> Vec<(u64, Range<u64>)> {
        let mut all: Vec<(u64, u64)> = self.table.iter().map(|(block, slot)| (slot, block)).collect();
        all.sort_unstable();
        let mut runs: Vec<(u64, Range<u64>)> = Vec::new();
        for (slot, block) in all {
            match runs.last_mut() {
                Some((first, run))
                    if block == run.end
                        && slot == *first + (run.end - run.start)
                        && run.end - run.start < REPLAY_BLOCKS =>
                {
                    run.end += 1;
                }
                _ => runs.push((slot, block..block + 1)),
            }
        }
        runs
    }

    /// Whether these blocks still have their newest content in these slots.
    pub fn is_current(&self, first: u64, blocks: &Range<u64>) -> bool {
        blocks.clone().zip(first..).all(|(block, slot)| self.table.get(block) == Some(slot))
    }

    /// Whether these are all the blocks that the log has. They may overlap: what a client waits for is replayed out of
    /// turn, and perhaps again.
    pub fn has_only(&self, runs: impl Iterator<Item = Range<u64>>) -> bool {
        let placed: BTreeSet<u64> = runs.flatten().collect();
        self.table.iter().all(|(block, _)| placed.contains(&block))
    }

    /// Everything is in its own place, durably, and the disk knows the next epoch: the log begins at its start. Nothing
    /// may be appended while reads of the old entries are in flight.
    pub fn restart(&mut self) {
        assert!(self.is_quiet(), "a log that is being written began again");
        self.table = Table::new(self.slots);
        self.id.epoch += 1;
        (self.sequence, self.synced, self.head) = (1, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Their number alone once let a log begin again that still had a block.
    #[test]
    fn runs_that_overlap_are_not_more_blocks() {
        let mut log = Log::new(1 << 10, MirrorId([1; 16]), 1, 1);
        log.append(1, 7, &Bytes::from(vec![1; 3 * BLOCK_BYTES as usize]));
        log.next_batch().expect("a batch");
        log.landed();
        assert_eq!(log.logged_blocks(), 3);
        assert!(log.has_only([7..9, 8..10].into_iter()) && log.has_only(std::iter::once(0..20)));
        assert!(!log.has_only([7..8, 7..8, 9..10].into_iter()), "8 is nowhere else");
    }
}
