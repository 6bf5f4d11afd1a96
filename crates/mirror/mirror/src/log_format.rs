//! The log of one disk: batches one behind the other, from the beginning of the log area [LogStore §3.1].
//!
//! A *batch* is a header block and the data blocks that it lists. Its entries are applied in order: `Data` puts a
//! block's newest content into the log, `Void` says that newer content is in the regular place. So what the table of
//! logged blocks was before a crash follows from the headers alone, and a trim of any length is one entry. The paper
//! keeps a block's address with its data and overwrites entries to void them; here nothing is overwritten, and the head
//! never goes back.
//!
//! What ends a log: the first block that is not the next header. `seq` counts the batches of an epoch without gaps, and
//! an *epoch* ends when the log is empty: the next one starts at the beginning, and what is left of older ones is void.
//!
//! What a power cut may tear: batches that were not durable. Disks with a volatile cache write them in any order, so
//! each header says up to which batch (`synced`) everything was durable before it was written. [`Scan`] checks the data
//! of all later ones and ends at the first that is not whole. `run`, a number that grows with each opening of the
//! mirror, keeps a batch that was behind such an end from following a batch that was written there afterwards.
//!
//! What the writer owes: a `Void` is written only after the content in the regular place is durable.

use crate::BLOCK_BYTES;
use crate::fields::{BLOCK, id_at, is_intact, put, seal, u32_at, u64_at};
use crate::geometry::{DATA_BLOCKS_MAX, Geometry};
use crate::superblock::MirrorId;
use bytes::Bytes;
use ebb_types::crc32c;
use std::collections::VecDeque;
use std::ops::Range;

const MAGIC: [u8; 8] = *b"EBBMRLOG";
const ENTRIES_AT: usize = 64;
const ENTRY_BYTES: usize = 16;
/// Most entries of a batch.
pub const ENTRIES_MAX: usize = (BLOCK - ENTRIES_AT) / ENTRY_BYTES;
/// Most blocks of a batch, its header included.
pub const BATCH_BLOCKS_MAX: u64 = ENTRIES_MAX as u64 + 1;
/// In an entry's block number: it is void.
const VOID: u64 = 1 << 63;

const _: () = assert!(ENTRIES_AT == 56 + size_of::<u64>() && ENTRY_BYTES == 2 * size_of::<u64>());
const _: () = assert!(ENTRIES_AT + ENTRIES_MAX * ENTRY_BYTES <= BLOCK && DATA_BLOCKS_MAX < VOID);

/// Whose log it is, and since when: headers of others are no headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId {
    pub mirror: MirrorId,
    pub epoch: u64,
}

/// A batch's place in the order of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Grows with each opening of the mirror: the number of the superblock written then.
    pub run: u64,
    /// 1, 2, 3, ... within the epoch.
    pub seq: u64,
    /// Batches up to this one were durable before this one's first byte was written.
    pub synced: u64,
}

/// Numbers are blocks of the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The block's content is in the batch.
    Data { block: u64, crc32c: u32 },
    /// Newer content of the blocks is in their regular places.
    Void { block: u64, count: u64 },
}

impl Entry {
    fn encode(&self, out: &mut [u8]) {
        let (block, value) = match *self {
            Entry::Data { block, crc32c } => (block, u64::from(crc32c)),
            Entry::Void { block, count } => (block | VOID, count),
        };
        put(out, 0, &block.to_le_bytes());
        put(out, 8, &value.to_le_bytes());
    }

    /// `None`: it exceeds the mirror.
    fn decode(bytes: &[u8], data_blocks: u64) -> Option<Entry> {
        let (block, value) = (u64_at(bytes, 0), u64_at(bytes, 8));
        let (entry, count) = if block & VOID == 0 {
            (Entry::Data { block, crc32c: u32::try_from(value).ok()? }, 1)
        } else {
            (Entry::Void { block: block & !VOID, count: value }, value)
        };
        let end = (block & !VOID).checked_add(count)?;
        (count > 0 && end <= data_blocks).then_some(entry)
    }
}

/// An entry with the block of the log area that holds its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    Data { block: u64, slot: u64, crc32c: u32 },
    Void { block: u64, count: u64 },
}

/// The entries of a batch whose header is at `slot`.
fn logged(entries: &[Entry], slot: u64) -> impl Iterator<Item = Logged> {
    entries.iter().scan(slot, |last, entry| {
        Some(match *entry {
            Entry::Data { block, crc32c } => {
                *last += 1;
                Logged::Data { block, slot: *last, crc32c }
            }
            Entry::Void { block, count } => Logged::Void { block, count },
        })
    })
}

/// Collects entries until it is full or has to be written.
#[derive(Clone, Debug, Default)]
pub struct LogBatch {
    entries: Vec<Entry>,
    data: Vec<Bytes>,
    data_blocks: u64,
}

impl LogBatch {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries that still fit: one per block of data.
    pub fn room(&self) -> usize {
        ENTRIES_MAX - self.entries.len()
    }

    /// Length in the log, in blocks.
    pub fn blocks(&self) -> u64 {
        1 + self.data_blocks
    }

    /// Adds whole blocks, from `block` on, that fit into [`LogBatch::room`].
    pub fn push_data(&mut self, block: u64, payload: Bytes) {
        let count = payload.len() / BLOCK;
        assert!(count > 0 && payload.len().is_multiple_of(BLOCK), "{} bytes of data", payload.len());
        assert!(count <= self.room(), "{count} blocks for {} entries", self.room());
        assert!(block.saturating_add(count as u64) <= DATA_BLOCKS_MAX, "block {block} is in no mirror");
        let blocks = (block..).zip(payload.chunks(BLOCK));
        self.entries.extend(blocks.map(|(block, bytes)| Entry::Data { block, crc32c: crc32c(bytes) }));
        self.data_blocks += count as u64;
        self.data.push(payload);
    }

    /// Adds one entry, for which there must be [`LogBatch::room`].
    pub fn push_void(&mut self, block: u64, count: u64) {
        assert!(count > 0 && self.room() > 0, "{count} blocks for {} entries", self.room());
        assert!(block.saturating_add(count) <= DATA_BLOCKS_MAX, "block {block} is in no mirror");
        self.entries.push(Entry::Void { block, count });
    }

    /// What it contains once it has been written at `slot`, in order.
    pub fn logged(&self, slot: u64) -> impl Iterator<Item = Logged> {
        logged(&self.entries, slot)
    }

    /// The header and the payloads, which follow each other on the disk.
    pub fn encode(&self, id: &LogId, stamp: Stamp) -> Vec<Bytes> {
        assert!(!self.is_empty() && stamp.synced < stamp.seq, "a batch follows what is durable");
        let mut out = vec![0; BLOCK];
        put(&mut out, 12, &(self.entries.len() as u32).to_le_bytes());
        put(&mut out, 16, &id.mirror.0);
        put(&mut out, 32, &id.epoch.to_le_bytes());
        put(&mut out, 40, &stamp.run.to_le_bytes());
        put(&mut out, 48, &stamp.seq.to_le_bytes());
        put(&mut out, 56, &stamp.synced.to_le_bytes());
        for (n, entry) in self.entries.iter().enumerate() {
            entry.encode(&mut out[ENTRIES_AT + n * ENTRY_BYTES..]);
        }
        seal(&mut out, &MAGIC);
        [Bytes::from(out)].into_iter().chain(self.data.iter().cloned()).collect()
    }
}

/// The first block of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub stamp: Stamp,
    /// 1 to [`ENTRIES_MAX`].
    pub entries: Vec<Entry>,
}

impl Header {
    /// `None`: it is not a header of this log, or it is damaged.
    pub fn decode(bytes: &[u8], id: &LogId, geometry: &Geometry) -> Option<Header> {
        let bytes = bytes.get(..BLOCK).filter(|bytes| bytes[..8] == MAGIC)?;
        let is_ours = id_at(bytes, 16) == id.mirror.0 && u64_at(bytes, 32) == id.epoch;
        let count = u32_at(bytes, 12) as usize;
        let stamp = Stamp { run: u64_at(bytes, 40), seq: u64_at(bytes, 48), synced: u64_at(bytes, 56) };
        if !is_ours || !is_intact(bytes) || !(1..=ENTRIES_MAX).contains(&count) || stamp.synced >= stamp.seq {
            return None;
        }
        let entries = bytes[ENTRIES_AT..].chunks_exact(ENTRY_BYTES).take(count);
        let entries = entries.map(|entry| Entry::decode(entry, geometry.data_blocks()));
        Some(Header { stamp, entries: entries.collect::<Option<_>>()? })
    }

    /// Length of the batch, in blocks.
    pub fn blocks(&self) -> u64 {
        1 + self.crcs().count() as u64
    }

    /// What the batch contains if it is at `slot`, in order.
    pub fn logged(&self, slot: u64) -> impl Iterator<Item = Logged> {
        logged(&self.entries, slot)
    }

    /// Checksums of the data blocks, in order.
    fn crcs(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Data { crc32c, .. } => Some(*crc32c),
            Entry::Void { .. } => None,
        })
    }
}

/// Where the log ends: there the next batch goes, with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub slot: u64,
    pub seq: u64,
}

/// A durable batch cannot be read: what the log held is lost, and with it the newest content of unknown blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is damaged at its block {slot}: batch {seq} was durable and cannot be read; start with the mirror's other disk and rebuild this one"
)]
pub struct LogDamaged {
    pub slot: u64,
    pub seq: u64,
}

#[derive(Debug)]
enum Phase {
    /// The next block is a header, or the log ends.
    Headers,
    /// There is no next header. If the missing batch was durable, a later header says so: each of those is at most
    /// [`BATCH_BLOCKS_MAX`] blocks behind the one before.
    Behind {
        at: u64,
        last_header: u64,
    },
    /// Data of the batches that may be torn: as many blocks of the first one are right.
    Tail {
        right: usize,
    },
    Done(Result<LogEnd, LogDamaged>),
}

/// Reads a log after a start. It says which blocks it wants and takes them in parts of any length: with short ones it
/// reads hardly more than the headers, with long ones it seeks less.
///
/// ```text
/// while let Some(blocks) = scan.wants() {
///     scan.feed(<blocks of the log area from blocks.start on, at least one>, &mut logged);
/// }
/// ```
#[derive(Debug)]
pub struct Scan {
    id: LogId,
    geometry: Geometry,
    /// The next header's place, and the least that it may say.
    next: LogEnd,
    run: u64,
    synced: u64,
    /// Batches of which no header said that they were durable, with their places.
    unsynced: VecDeque<(u64, Header)>,
    phase: Phase,
}

impl Scan {
    pub fn new(id: LogId, geometry: &Geometry) -> Scan {
        let next = LogEnd { slot: 0, seq: 1 };
        let phase = if geometry.log_blocks() == 0 { Phase::Done(Ok(next)) } else { Phase::Headers };
        Scan { id, geometry: *geometry, next, run: 0, synced: 0, unsynced: VecDeque::new(), phase }
    }

    /// Blocks of the log area that it needs next; the first one at least must be fed. They may lie before those that it
    /// had. `None`: it has finished.
    pub fn wants(&self) -> Option<Range<u64>> {
        let end = self.geometry.log_blocks();
        match self.phase {
            Phase::Headers => Some(self.next.slot..self.next.slot + 1),
            Phase::Behind { at, last_header } => Some(at..(last_header + BATCH_BLOCKS_MAX + 1).min(end)),
            Phase::Tail { right } => {
                let (slot, header) = self.unsynced.front().expect("the tail has a batch");
                Some(slot + 1 + right as u64..slot + header.blocks())
            }
            Phase::Done(_) => None,
        }
    }

    /// Takes whole blocks of the log area, from the first wanted one on, and adds to `out` what is certain.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<Logged>) {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(BLOCK), "{} bytes of the log", bytes.len());
        let Some(Range { start, .. }) = self.wants() else { return };
        while let Some(wanted) = self.wants() {
            // Earlier blocks than these, or later ones: the next call brings them.
            let Some(ahead) = wanted.start.checked_sub(start) else { return };
            let Some(rest) = bytes.get((ahead * BLOCK_BYTES) as usize..).filter(|rest| !rest.is_empty())
            else {
                return;
            };
            self.step(&rest[..BLOCK], out);
        }
    }

    /// Where the log ends, once nothing is wanted any more.
    pub fn end(&self) -> Option<Result<LogEnd, LogDamaged>> {
        match self.phase {
            Phase::Done(end) => Some(end),
            _ => None,
        }
    }

    fn step(&mut self, block: &[u8], out: &mut Vec<Logged>) {
        match self.phase {
            Phase::Headers => match self.next_header(block) {
                Some(header) => self.add(header, out),
                None => self.look_behind(self.next.slot, self.next.slot, out),
            },
            Phase::Behind { at, last_header } => match Header::decode(block, &self.id, &self.geometry) {
                Some(header) if header.stamp.synced >= self.next.seq => self.damaged(),
                Some(_) => self.look_behind(at, at, out),
                None => self.look_behind(at, last_header, out),
            },
            Phase::Tail { right } => self.check(right, block, out),
            Phase::Done(_) => {}
        }
    }

    fn next_header(&self, block: &[u8]) -> Option<Header> {
        let header = Header::decode(block, &self.id, &self.geometry)?;
        let follows = header.stamp.seq == self.next.seq && header.stamp.run >= self.run;
        let fits = header.blocks() <= self.geometry.log_blocks() - self.next.slot;
        (follows && fits).then_some(header)
    }

    fn add(&mut self, header: Header, out: &mut Vec<Logged>) {
        self.synced = self.synced.max(header.stamp.synced);
        self.run = header.stamp.run;
        let slot = self.next.slot;
        self.next = LogEnd { slot: slot + header.blocks(), seq: self.next.seq + 1 };
        self.unsynced.push_back((slot, header));
        while self.unsynced.front().is_some_and(|(_, first)| first.stamp.seq <= self.synced) {
            self.release(out);
        }
        if self.next.slot == self.geometry.log_blocks() {
            self.tail(out);
        }
    }

    /// The first batch that waits is whole.
    fn release(&mut self, out: &mut Vec<Logged>) {
        let (slot, header) = self.unsynced.pop_front().expect("the caller saw it");
        out.extend(header.logged(slot));
    }

    /// Block `seen` was looked at.
    fn look_behind(&mut self, seen: u64, last_header: u64, out: &mut Vec<Logged>) {
        self.phase = Phase::Behind { at: seen + 1, last_header };
        if self.wants().is_none_or(|blocks| blocks.is_empty()) {
            self.tail(out);
        }
    }

    /// To the next batch whose data must be checked; batches without data need no check.
    fn tail(&mut self, out: &mut Vec<Logged>) {
        while self.unsynced.front().is_some_and(|(_, header)| header.blocks() == 1) {
            self.release(out);
        }
        self.phase = match self.unsynced.is_empty() {
            true => Phase::Done(Ok(self.next)),
            false => Phase::Tail { right: 0 },
        };
    }

    fn check(&mut self, right: usize, block: &[u8], out: &mut Vec<Logged>) {
        let (slot, header) = self.unsynced.front().expect("the tail has a batch");
        if header.crcs().nth(right) != Some(crc32c(block)) {
            let end = LogEnd { slot: *slot, seq: header.stamp.seq };
            self.unsynced.clear();
            self.phase = Phase::Done(Ok(end));
        } else if right as u64 + 2 < header.blocks() {
            self.phase = Phase::Tail { right: right + 1 };
        } else {
            self.release(out);
            self.tail(out);
        }
    }

    fn damaged(&mut self) {
        let LogEnd { slot, seq } = self.next;
        self.unsynced.clear();
        self.phase = Phase::Done(Err(LogDamaged { slot, seq }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Random;

    const ID: LogId = LogId { mirror: MirrorId([7; 16]), epoch: 3 };

    /// A log of 256 blocks.
    fn geometry() -> Geometry {
        Geometry::new(16 << 20, 1 << 20).unwrap()
    }

    fn block_of(random: &mut Random) -> Bytes {
        (0..BLOCK / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    }

    fn batch(random: &mut Random, longest: u64) -> LogBatch {
        let (mut batch, entries) = (LogBatch::default(), random.between(1, longest));
        for _ in 0..entries {
            let block = random.below(geometry().data_blocks() - 3);
            if random.chance(300) {
                batch.push_void(block, random.between(1, 3));
            } else if batch.blocks() < longest && random.chance(200) {
                let two = [block_of(random), block_of(random)].concat();
                batch.push_data(block, two.into());
            } else if batch.blocks() <= longest {
                batch.push_data(block, block_of(random));
            }
        }
        if batch.is_empty() {
            batch.push_void(0, 1);
        }
        batch
    }

    /// A batch as it was written.
    #[derive(Clone)]
    struct Written {
        slot: u64,
        blocks: u64,
        stamp: Stamp,
        logged: Vec<Logged>,
    }

    impl Written {
        fn end(&self) -> LogEnd {
            LogEnd { slot: self.slot + self.blocks, seq: self.stamp.seq + 1 }
        }
    }

    const BEGIN: LogEnd = LogEnd { slot: 0, seq: 1 };

    /// Appends batches as long as there is room for the longest and chance wants more.
    fn append(image: &mut [u8], id: &LogId, from: LogEnd, run: u64, random: &mut Random) -> Vec<Written> {
        let (mut all, mut at, mut synced) = (Vec::<Written>::new(), from, from.seq - 1);
        let longest = [3, 20, 100][random.index(3)];
        while at.slot + longest < geometry().log_blocks() && !random.chance(20) {
            let batch = batch(random, longest);
            if random.chance(400) {
                synced = at.seq - 1;
            }
            let stamp = Stamp { run, seq: at.seq, synced };
            put(image, at.slot as usize * BLOCK, &batch.encode(id, stamp).concat());
            let logged = batch.logged(at.slot).collect();
            all.push(Written { slot: at.slot, blocks: batch.blocks(), stamp, logged });
            at = all.last().expect("it was pushed").end();
        }
        all
    }

    /// What is in the log area before the log: nothing, an older epoch, or noise.
    fn ground(random: &mut Random) -> Vec<u8> {
        let mut image = vec![0; geometry().log_blocks() as usize * BLOCK];
        match random.index(3) {
            0 => drop(append(&mut image, &LogId { epoch: 2, ..ID }, BEGIN, 1, random)),
            1 => image.chunks_mut(BLOCK).for_each(|block| block.copy_from_slice(&block_of(random))),
            _ => {}
        }
        image
    }

    /// Reads parts of random lengths.
    fn scan(image: &[u8], random: &mut Random) -> (Vec<Logged>, Result<LogEnd, LogDamaged>) {
        let (mut scan, mut out) = (Scan::new(ID, &geometry()), Vec::new());
        let longest = [1, 3, 256][random.index(3)];
        while let Some(wanted) = scan.wants() {
            assert!(wanted.start < wanted.end && wanted.end <= geometry().log_blocks(), "{wanted:?}");
            assert_eq!(scan.end(), None);
            let bytes = &image[wanted.start as usize * BLOCK..];
            let len = bytes.len().min(random.between(1, longest) as usize * BLOCK);
            scan.feed(&bytes[..len], &mut out);
        }
        (out, scan.end().expect("it wants nothing"))
    }

    fn logged_by(all: &[Written]) -> Vec<Logged> {
        all.iter().flat_map(|batch| batch.logged.clone()).collect()
    }

    /// Where `all[..count]` end.
    fn end_of(all: &[Written], count: usize) -> LogEnd {
        count.checked_sub(1).map_or(BEGIN, |last| all[last].end())
    }

    /// Runs `test` with many seeds; a failure names its seed.
    fn seeds(count: u64, test: impl Fn(&mut Random)) {
        struct Seed(u64);
        impl Drop for Seed {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("seed {}", self.0);
                }
            }
        }
        for seed in 0..count {
            let seed = Seed(seed);
            test(&mut Random::new(seed.0));
        }
    }

    #[test]
    fn the_table_is_rebuilt_from_the_log_after_a_crash_at_any_block() {
        seeds(25, |random| {
            let ground = ground(random);
            let mut image = ground.clone();
            let all = append(&mut image, &ID, BEGIN, 1, random);
            for cut in (0..=geometry().log_blocks()).rev() {
                let from = cut as usize * BLOCK;
                image[from..].copy_from_slice(&ground[from..]);
                let whole = all.iter().take_while(|batch| batch.slot + batch.blocks <= cut).count();
                let expected = (logged_by(&all[..whole]), Ok(end_of(&all, whole)));
                assert_eq!(scan(&image, random), expected, "cut at {cut}");
            }
        });
    }

    #[test]
    fn a_batch_that_lacks_blocks_ends_the_log_whatever_the_disk_wrote_of_later_ones() {
        seeds(400, |random| {
            let ground = ground(random);
            let mut image = ground.clone();
            let all = append(&mut image, &ID, BEGIN, 1, random);
            let synced = all.last().map_or(0, |batch| batch.stamp.synced) as usize;
            let mut whole = all.len();
            for (n, batch) in all.iter().enumerate().skip(synced) {
                for slot in (batch.slot..batch.slot + batch.blocks).map(|slot| slot as usize) {
                    if random.chance(30) {
                        put(&mut image, slot * BLOCK, &ground[slot * BLOCK..][..BLOCK]);
                        whole = whole.min(n);
                    }
                }
            }
            // The header that knew of the last sync may be one of those that are lost.
            let (found, end) = scan(&image, random);
            assert_eq!((found, end), (logged_by(&all[..whole]), Ok(end_of(&all, whole))));
        });
    }

    #[test]
    fn a_flipped_bit_is_torn_data_or_damage_or_left_to_the_read() {
        seeds(40, |random| {
            let mut image = ground(random);
            let all = append(&mut image, &ID, BEGIN, 1, random);
            let synced = all.last().map_or(0, |batch| batch.stamp.synced);
            for (n, batch) in all.iter().enumerate() {
                for slot in batch.slot..batch.slot + batch.blocks {
                    let (at, bit) = (slot as usize * BLOCK + random.index(BLOCK), 1 << random.index(8));
                    image[at] ^= bit;
                    let (found, end) = scan(&image, random);
                    image[at] ^= bit;
                    let is_durable = batch.stamp.seq <= synced;
                    let expected = match (slot == batch.slot, is_durable) {
                        (true, true) => Err(LogDamaged { slot, seq: batch.stamp.seq }),
                        (false, true) => Ok(end_of(&all, all.len())),
                        (_, false) => Ok(end_of(&all, n)),
                    };
                    assert_eq!(end, expected, "block {slot}");
                    if let Ok(end) = end {
                        assert_eq!(found, logged_by(&all[..end.seq as usize - 1]));
                    }
                }
            }
        });
    }

    #[test]
    fn batches_behind_a_torn_one_never_follow_its_successor() {
        seeds(200, |random| {
            let mut image = ground(random);
            let all = append(&mut image, &ID, BEGIN, 1, random);
            let synced = all.last().map_or(0, |batch| batch.stamp.synced) as usize;
            if synced == all.len() {
                return;
            }
            // The first batch that was not durable is torn; the next run writes as long a one in its place.
            let torn = &all[synced];
            let mut batch = LogBatch::default();
            (1..torn.blocks).for_each(|n| batch.push_data(n, block_of(random)));
            if batch.is_empty() {
                batch.push_void(0, 1);
            }
            let stamp = Stamp { run: 2, ..torn.stamp };
            put(&mut image, torn.slot as usize * BLOCK, &batch.encode(&ID, stamp).concat());
            let mut expected = logged_by(&all[..synced]);
            expected.extend(batch.logged(torn.slot));
            assert_eq!(scan(&image, random), (expected, Ok(torn.end())));
        });
    }

    #[test]
    fn runs_continue_each_other_s_log() {
        seeds(100, |random| {
            let (mut image, mut all) = (ground(random), Vec::new());
            for run in 1..4 {
                let end = end_of(&all, all.len());
                all.extend(append(&mut image, &ID, end, run, random));
            }
            assert_eq!(scan(&image, random), (logged_by(&all), Ok(end_of(&all, all.len()))));
        });
    }

    #[test]
    fn a_log_may_end_with_its_area_and_none_is_empty() {
        let (mut random, mut image) = (Random::new(1), Vec::new());
        let mut batch = LogBatch::default();
        (0..252).for_each(|n| batch.push_data(n, block_of(&mut random)));
        assert_eq!((batch.room(), batch.blocks()), (0, BATCH_BLOCKS_MAX));
        image.extend(batch.encode(&ID, Stamp { run: 1, seq: 1, synced: 0 }).concat());
        let mut short = LogBatch::default();
        short.push_data(0, block_of(&mut random));
        short.push_void(0, 1);
        short.push_data(1, block_of(&mut random));
        image.extend(short.encode(&ID, Stamp { run: 1, seq: 2, synced: 1 }).concat());
        assert_eq!(image.len() as u64, geometry().log_blocks() * BLOCK_BYTES);
        let expected: Vec<Logged> = batch.logged(0).chain(short.logged(253)).collect();
        assert_eq!(scan(&image, &mut random), (expected, Ok(LogEnd { slot: 256, seq: 3 })));
        // A block longer than there is room for.
        short.push_data(2, block_of(&mut random));
        let header = &short.encode(&ID, Stamp { run: 1, seq: 2, synced: 1 })[0];
        put(&mut image, 253 * BLOCK, header);
        assert_eq!(scan(&image, &mut random), (batch.logged(0).collect(), Ok(LogEnd { slot: 253, seq: 2 })));
        let none = Scan::new(ID, &Geometry::new(16 << 20, 0).unwrap());
        assert_eq!((none.wants(), none.end()), (None, Some(Ok(BEGIN))));
    }

    #[test]
    fn a_gap_in_the_sequence_ends_the_log() {
        let (mut random, mut image) = (Random::new(1), vec![0; 256 * BLOCK]);
        let mut batch = LogBatch::default();
        batch.push_void(5, 6);
        for (slot, seq) in [(0, 1), (1, 2), (2, 4)] {
            put(&mut image, slot * BLOCK, &batch.encode(&ID, Stamp { run: 1, seq, synced: 0 })[0]);
        }
        let expected = [Logged::Void { block: 5, count: 6 }; 2].to_vec();
        assert_eq!(scan(&image, &mut random), (expected, Ok(LogEnd { slot: 2, seq: 3 })));
    }

    #[test]
    fn a_lost_batch_is_noticed_however_long_the_ones_up_to_the_next_sync_are() {
        let (mut random, mut image) = (Random::new(1), Vec::new());
        for (seq, data, synced) in [(1, 200, 0), (2, 53, 0), (3, 0, 2)] {
            let mut batch = LogBatch::default();
            (0..data).for_each(|n| batch.push_data(n, block_of(&mut random)));
            batch.push_void(0, 1);
            image.extend(batch.encode(&ID, Stamp { run: 1, seq, synced }).concat());
        }
        assert_eq!(image.len(), 256 * BLOCK);
        assert_eq!(scan(&image, &mut random).1, Ok(LogEnd { slot: 256, seq: 4 }));
        image[100] ^= 1;
        assert_eq!(scan(&image, &mut random), (vec![], Err(LogDamaged { slot: 0, seq: 1 })));
    }

    fn sample() -> Vec<u8> {
        let (mut random, mut batch) = (Random::new(5), LogBatch::default());
        batch.push_data(9, block_of(&mut random));
        batch.push_void(0, geometry().data_blocks());
        batch.encode(&ID, Stamp { run: 4, seq: 2, synced: 1 }).concat()
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let mut bytes = sample();
        let header = Header::decode(&bytes, &ID, &geometry()).unwrap();
        let crc = crc32c(&bytes[BLOCK..]);
        let count = geometry().data_blocks();
        let entries = [Entry::Data { block: 9, crc32c: crc }, Entry::Void { block: 0, count }];
        assert_eq!(header.entries, entries);
        assert_eq!(header.stamp, Stamp { run: 4, seq: 2, synced: 1 });
        let slots: Vec<Logged> = header.logged(8).collect();
        assert_eq!(slots[0], Logged::Data { block: 9, slot: 9, crc32c: crc });
        for id in [LogId { epoch: 4, ..ID }, LogId { mirror: MirrorId([8; 16]), ..ID }] {
            assert_eq!(Header::decode(&bytes, &id, &geometry()), None);
        }
        // If this fails, the format is another one: change FORMAT and docs/mirror-format.md.
        assert_eq!(crc32c(&bytes[..BLOCK]), 1_780_307_260);
        for bit in 0..BLOCK * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bytes, &ID, &geometry()), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..BLOCK).all(|len| Header::decode(&bytes[..len], &ID, &geometry()).is_none()));
    }

    #[test]
    fn entries_beyond_the_mirror_are_refused() {
        let last = geometry().data_blocks();
        let one = |block: u64, value: u64| {
            let mut bytes = sample();
            put(&mut bytes, ENTRIES_AT, &block.to_le_bytes());
            put(&mut bytes, ENTRIES_AT + 8, &value.to_le_bytes());
            seal(&mut bytes[..BLOCK], &MAGIC);
            Header::decode(&bytes, &ID, &geometry()).is_some()
        };
        let mut durable_before_it_was_written = sample();
        put(&mut durable_before_it_was_written, 56, &2u64.to_le_bytes());
        seal(&mut durable_before_it_was_written[..BLOCK], &MAGIC);
        assert_eq!(Header::decode(&durable_before_it_was_written, &ID, &geometry()), None);
        assert!(one(last - 1, 0) && one(VOID | (last - 1), 1) && one(VOID, last));
        for (block, value) in [
            (last, 0),
            (0, 1 << 32),
            (VOID, 0),
            (VOID, last + 1),
            (VOID | 1, last),
            (VOID | 1, u64::MAX),
            (u64::MAX, 1),
        ] {
            assert!(!one(block, value), "{block} {value}");
        }
    }

    #[test]
    fn made_up_headers_and_logs_are_refused_or_read() {
        let mut image = vec![0; geometry().log_blocks() as usize * BLOCK];
        let all = append(&mut image, &ID, BEGIN, 1, &mut Random::new(2));
        assert!(all.len() > 3);
        let parts: Vec<&[u8]> = all[..4]
            .iter()
            .map(|batch| &image[batch.slot as usize * BLOCK..batch.end().slot as usize * BLOCK])
            .collect();
        let log = parts.concat();
        ebb_testing::fuzz(&[&log, &sample(), parts[1]], |bytes| {
            let mut image = bytes.to_vec();
            image.resize(bytes.len().next_multiple_of(BLOCK), 0);
            // As if the checksums were right.
            for block in image.chunks_mut(BLOCK).filter(|block| block[..8] == MAGIC) {
                seal(block, &MAGIC);
            }
            image.resize(geometry().log_blocks() as usize * BLOCK, 0);
            let (found, end) = scan(&image, &mut Random::new(bytes.len() as u64));
            for logged in found {
                match logged {
                    Logged::Data { block, slot, .. } => {
                        assert!(block < geometry().data_blocks() && slot < geometry().log_blocks());
                    }
                    Logged::Void { block, count } => assert!(block + count <= geometry().data_blocks()),
                }
            }
            assert!(end.is_err() || end.is_ok_and(|end| end.slot <= geometry().log_blocks()));
        });
    }

    /// Scans a log of 3 GiB in batches of `data` blocks, all durable but the last, and gives the number of blocks it
    /// looked at. Data is not there: reading it would fail.
    fn blocks_looked_at(data: u64) -> u64 {
        let geometry = Geometry::new(400 << 30, 3 << 30).unwrap();
        let zeroes = Bytes::from(vec![0; BLOCK]);
        let (mut scan, mut out, mut looked) = (Scan::new(ID, &geometry), Vec::new(), 0);
        let batches = geometry.log_blocks() / (data + 1);
        let mut batch = LogBatch::default();
        (0..data).for_each(|n| batch.push_data(n, zeroes.clone()));
        let mut header = batch.encode(&ID, Stamp { run: 1, seq: 1, synced: 0 })[0].to_vec();
        while let Some(Range { start, .. }) = scan.wants() {
            looked += 1;
            let (number, part) = (start / (data + 1), start % (data + 1));
            if part > 0 || number == batches {
                assert!(number + 1 >= batches, "it reads the data of batch {number}");
                scan.feed(&zeroes, &mut out);
                continue;
            }
            put(&mut header, 48, &(number + 1).to_le_bytes());
            put(&mut header, 56, &number.to_le_bytes());
            seal(&mut header, &MAGIC);
            scan.feed(&header, &mut out);
        }
        assert_eq!(scan.end(), Some(Ok(LogEnd { slot: batches * (data + 1), seq: batches + 1 })));
        assert_eq!(out.len() as u64, batches * data);
        looked
    }

    #[test]
    fn a_full_log_is_scanned_by_its_headers() {
        assert!(blocks_looked_at(252) < 3109 + 3 * BATCH_BLOCKS_MAX);
        assert!(blocks_looked_at(1) < 393_216 + 3 * BATCH_BLOCKS_MAX);
    }
}
