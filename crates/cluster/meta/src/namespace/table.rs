//! A sorted table that is written once and never changed: it has most names of a large namespace, on disk.
//!
//! ```text
//! table  = block* | index | filter | footer                        all numbers little endian
//! block  = entry* | CRC-32C of the entries u32                     4 KiB, more if its last entry is long
//! entry  = key bytes u16 | value bytes u32 | key | value           keys ascend
//! index  = per block: where it ends u64 | key bytes u16 | its first key
//! filter = words u64: a key's bits are set; of other keys one in a hundred finds all of its bits set
//! footer = entries u64 | where the index starts u64 | where the filter starts u64 | CRC-32C of index and filter u32
//!        | CRC-32C of these u32
//! ```
//! Offsets count from the start of the table, so that it can be sent to another member unchanged. Memory has the index
//! (a hundredth of the table) and the filter (10 bits per key): so a new key costs no read, and a present one costs
//! one. Every block is checked when it is read. No other part of a table is kept in memory: the kernel's page cache
//! does that.

use ebb_types::crc32c;
use std::io::{self, Write};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that can be read and never change.
pub trait Blob: Send + Sync {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()>;
}

impl Blob for Vec<u8> {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why a table cannot be read; `at` counts from the start of its blob.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TableError {
    #[error("the table of names cannot be read or written: {0}")]
    Io(Arc<io::Error>),
    #[error("the table of names is damaged at byte {at}")]
    Damaged { at: u64 },
}

impl From<io::Error> for TableError {
    fn from(error: io::Error) -> TableError {
        TableError::Io(Arc::new(error))
    }
}

const BLOCK_BYTES: usize = 4096;
const ENTRY_HEADER: usize = 6;
const FOOTER: usize = 32;
const CRC: usize = 4;
// As drawn above.
const _: () = assert!(ENTRY_HEADER == 2 + 4 && FOOTER == 3 * 8 + 2 * CRC);
const FILTER_BITS: u64 = 10;
const FILTER_PROBES: u64 = 6;

/// Appends a table to a file, entry by entry.
pub struct TableWriter<'a> {
    out: &'a mut dyn Write,
    block: Vec<u8>,
    first: Vec<u8>,
    index: Vec<u8>,
    filter: Vec<u64>,
    entries: u64,
    written: u64,
}

impl<'a> TableWriter<'a> {
    /// `most`: upper estimate of the number of entries.
    pub fn new(out: &'a mut dyn Write, most: u64) -> TableWriter<'a> {
        let words = (most * FILTER_BITS / 64 + 1) as usize;
        TableWriter {
            out,
            block: Vec::new(),
            first: Vec::new(),
            index: Vec::new(),
            filter: vec![0; words],
            entries: 0,
            written: 0,
        }
    }

    /// Keys must come in ascending order, each once.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        debug_assert!(self.entries == 0 || key > &self.first[..], "keys ascend");
        if self.block.is_empty() {
            self.first = key.to_vec();
        }
        let length = u16::try_from(key.len()).expect("names are short");
        self.block.extend_from_slice(&length.to_le_bytes());
        self.block.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.entries += 1;
        let words = self.filter.len() as u64;
        for bit in filter_bits(key, words * 64) {
            self.filter[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        if self.block.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let crc = crc32c(&self.block);
        self.block.extend_from_slice(&crc.to_le_bytes());
        self.out.write_all(&self.block)?;
        self.written += self.block.len() as u64;
        self.block.clear();
        self.index.extend_from_slice(&self.written.to_le_bytes());
        self.index.extend_from_slice(&(self.first.len() as u16).to_le_bytes());
        self.index.extend_from_slice(&self.first);
        Ok(())
    }

    /// Returns the length of the table; an empty one is not written.
    pub fn finish(mut self) -> io::Result<u64> {
        if self.entries == 0 {
            return Ok(0);
        }
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let index_at = self.written;
        let filter_at = index_at + self.index.len() as u64;
        let mut tail = std::mem::take(&mut self.index);
        self.filter.iter().for_each(|word| tail.extend_from_slice(&word.to_le_bytes()));
        let tail_crc = crc32c(&tail);
        let footer_at = tail.len();
        for number in [self.entries, index_at, filter_at] {
            tail.extend_from_slice(&number.to_le_bytes());
        }
        tail.extend_from_slice(&tail_crc.to_le_bytes());
        let footer_crc = crc32c(&tail[footer_at..]);
        tail.extend_from_slice(&footer_crc.to_le_bytes());
        debug_assert_eq!(tail.len() - footer_at, FOOTER);
        self.out.write_all(&tail)?;
        Ok(index_at + tail.len() as u64)
    }
}

/// The bits that represent a key in a filter of `bits` bits.
fn filter_bits(key: &[u8], bits: u64) -> impl Iterator<Item = u64> {
    let hash = xxh3_64(key);
    let (low, step) = (hash, hash.rotate_left(32) | 1);
    (0..FILTER_PROBES).map(move |i| low.wrapping_add(i.wrapping_mul(step)) % bits)
}

/// A finished table.
pub struct Table {
    blob: Arc<dyn Blob>,
    /// Its offset in the blob, and its length.
    at: u64,
    bytes: u64,
    entries: u64,
    /// Per block: the offset of its end, and the end of its first key in `first_keys`.
    blocks: Vec<(u64, usize)>,
    first_keys: Vec<u8>,
    filter: Vec<u64>,
}

impl Table {
    pub fn open(blob: Arc<dyn Blob>, at: u64, bytes: u64) -> Result<Table, TableError> {
        let damaged = TableError::Damaged { at };
        let body = bytes.checked_sub(FOOTER as u64).ok_or(damaged.clone())?;
        let mut footer = [0; FOOTER];
        blob.read_at(at + body, &mut footer)?;
        let number = |i: usize| u64::from_le_bytes(footer[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let crc = |i: usize| u32::from_le_bytes(footer[i..i + 4].try_into().expect("four bytes"));
        let (entries, index_at, filter_at) = (number(0), number(1), number(2));
        if crc(28) != crc32c(&footer[..28]) || index_at > filter_at || filter_at > body {
            return Err(damaged);
        }
        let mut tail = vec![0; (body - index_at) as usize];
        blob.read_at(at + index_at, &mut tail)?;
        let (index, filter) = tail.split_at((filter_at - index_at) as usize);
        let (words, rest) = filter.as_chunks::<8>();
        if crc(24) != crc32c(&tail) || words.is_empty() || !rest.is_empty() {
            return Err(damaged);
        }
        let filter = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (blocks, first_keys) = read_index(index, index_at).ok_or(damaged)?;
        Ok(Table { blob, at, bytes, entries, blocks, first_keys, filter })
    }

    pub fn entries(&self) -> u64 {
        self.entries
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The table's own bytes, as sent to another member; the blocks they belong to are checked.
    pub fn read_checked(&self, at: u64, out: &mut [u8]) -> Result<(), TableError> {
        let end = at + out.len() as u64;
        let first = self.blocks.partition_point(|(block_end, _)| *block_end <= at);
        for number in first..self.blocks.len() {
            if self.block_at(number) >= end {
                break;
            }
            self.block(number)?;
        }
        Ok(self.read_at(at, out)?)
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.blob.read_at(self.at + at, out)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TableError> {
        let bits = self.filter.len() as u64 * 64;
        if filter_bits(key, bits).any(|bit| self.filter[(bit / 64) as usize] >> (bit % 64) & 1 == 0) {
            return Ok(None);
        }
        let Some(number) = self.block_of(key) else { return Ok(None) };
        let block = self.block(number)?;
        let mut at = 0;
        while at < block.len() {
            let entry = entry_at(&block, at).ok_or(self.damaged(number))?;
            if entry.key(&block) >= key {
                return Ok((entry.key(&block) == key).then(|| entry.value(&block).to_vec()));
            }
            at = entry.end;
        }
        Ok(None)
    }

    /// The only block that can have the key, if any.
    fn block_of(&self, key: &[u8]) -> Option<usize> {
        let (mut low, mut high) = (0, self.blocks.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.first_key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    fn first_key(&self, block: usize) -> &[u8] {
        let start = block.checked_sub(1).map_or(0, |before| self.blocks[before].1);
        &self.first_keys[start..self.blocks[block].1]
    }

    fn block_at(&self, number: usize) -> u64 {
        number.checked_sub(1).map_or(0, |before| self.blocks[before].0)
    }

    fn damaged(&self, number: usize) -> TableError {
        TableError::Damaged { at: self.at + self.block_at(number) }
    }

    /// The entries of a block.
    fn block(&self, number: usize) -> Result<Vec<u8>, TableError> {
        let start = self.block_at(number);
        let mut block = vec![0; (self.blocks[number].0 - start) as usize];
        self.read_at(start, &mut block)?;
        let (entries, crc) = block.split_last_chunk::<CRC>().ok_or(self.damaged(number))?;
        if crc32c(entries).to_le_bytes() != *crc {
            return Err(self.damaged(number));
        }
        block.truncate(block.len() - CRC);
        Ok(block)
    }
}

/// [`Table::blocks`] and [`Table::first_keys`].
type Blocks = (Vec<(u64, usize)>, Vec<u8>);

fn read_index(mut index: &[u8], end: u64) -> Option<Blocks> {
    let (mut blocks, mut keys) = (Vec::new(), Vec::new());
    let mut last = 0;
    while !index.is_empty() {
        let (block_end, rest) = index.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let block_end = u64::from_le_bytes(*block_end);
        if block_end <= last || block_end > end {
            return None;
        }
        keys.extend_from_slice(key);
        blocks.push((block_end, keys.len()));
        (index, last) = (rest, block_end);
    }
    (last == end && !blocks.is_empty()).then_some((blocks, keys))
}

/// Position of an entry's key and value in its block.
#[derive(Clone, Copy)]
struct Entry {
    key: usize,
    value: usize,
    end: usize,
}

impl Entry {
    fn key(self, block: &[u8]) -> &[u8] {
        &block[self.key..self.value]
    }

    fn value(self, block: &[u8]) -> &[u8] {
        &block[self.value..self.end]
    }
}

fn entry_at(block: &[u8], at: usize) -> Option<Entry> {
    let header = block.get(at..at + ENTRY_HEADER)?;
    let key_bytes = u16::from_le_bytes([header[0], header[1]]) as usize;
    let value_bytes = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
    let key = at + ENTRY_HEADER;
    let entry = Entry { key, value: key + key_bytes, end: key + key_bytes + value_bytes };
    (entry.end <= block.len()).then_some(entry)
}

/// Reads a table in order.
pub struct Cursor {
    table: Arc<Table>,
    next_block: usize,
    block: Vec<u8>,
    entry: Option<Entry>,
}

impl Cursor {
    /// Positioned at the first key that is not less than `from`.
    pub fn new(table: Arc<Table>, from: &[u8]) -> Result<Cursor, TableError> {
        let next_block = table.block_of(from).unwrap_or(0);
        let mut cursor = Cursor { table, next_block, block: Vec::new(), entry: None };
        cursor.advance()?;
        while cursor.entry().is_some_and(|(key, _)| key < from) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// The present entry; `None` at the end.
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        let entry = self.entry?;
        Some((entry.key(&self.block), entry.value(&self.block)))
    }

    pub fn advance(&mut self) -> Result<(), TableError> {
        let mut at = self.entry.map_or(0, |entry| entry.end);
        if at == self.block.len() {
            self.entry = None;
            self.block.clear();
            if self.next_block == self.table.blocks.len() {
                return Ok(());
            }
            self.block = self.table.block(self.next_block)?;
            self.next_block += 1;
            at = 0;
        }
        let damaged = self.table.damaged(self.next_block - 1);
        self.entry = Some(entry_at(&self.block, at).ok_or(damaged)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u32) -> (Vec<u8>, Vec<u8>) {
        (format!("key/{n:08}").into_bytes(), vec![n as u8; n as usize % 300])
    }

    /// Every third number below `n` has an entry; one entry is longer than a block.
    fn table_of(n: u32) -> (Vec<u8>, u64) {
        let mut bytes = b"before".to_vec();
        let mut writer = TableWriter::new(&mut bytes, u64::from(n / 3));
        for i in (0..n).step_by(3) {
            let (key, value) = entry(i);
            writer.push(&key, if i == 99 { &[7; 9000] } else { &value }).unwrap();
        }
        let length = writer.finish().unwrap();
        (bytes, length)
    }

    #[test]
    fn what_was_written_is_found_and_nothing_else() {
        let (bytes, length) = table_of(3000);
        assert_eq!(bytes.len() as u64, 6 + length);
        let table = Arc::new(Table::open(Arc::new(bytes), 6, length).unwrap());
        assert_eq!(table.entries(), 1000);
        for i in 0..3000 {
            let (key, value) = entry(i);
            let value = if i == 99 { vec![7; 9000] } else { value };
            assert_eq!(table.get(&key).unwrap(), i.is_multiple_of(3).then_some(value), "{i}");
            let cursor = Cursor::new(table.clone(), &key).unwrap();
            let next = (i < 2998).then(|| entry(i.next_multiple_of(3)).0);
            assert_eq!(cursor.entry().map(|(key, _)| key.to_vec()), next, "{i}");
        }
        let mut cursor = Cursor::new(table.clone(), b"").unwrap();
        for i in (0..3000).step_by(3) {
            assert_eq!(cursor.entry().unwrap().0, entry(i).0);
            cursor.advance().unwrap();
        }
        assert!(cursor.entry().is_none());
        let read = (0..3000u32).filter(|i| {
            let key = format!("other/{i}");
            filter_bits(key.as_bytes(), table.filter.len() as u64 * 64)
                .all(|bit| table.filter[(bit / 64) as usize] >> (bit % 64) & 1 == 1)
        });
        let read = read.count();
        assert!(read < 100, "the filter let {read} of 3000 absent keys through");
        let mut none = Vec::new();
        assert_eq!(TableWriter::new(&mut none, 0).finish().unwrap(), 0);
        assert!(none.is_empty());
    }

    #[test]
    fn a_changed_or_missing_byte_is_damage_and_never_an_answer() {
        let (good, length) = table_of(300);
        let read_all = |bytes: Vec<u8>, length: u64| -> Result<Vec<Vec<u8>>, TableError> {
            let mut cursor = Cursor::new(Arc::new(Table::open(Arc::new(bytes), 6, length)?), b"")?;
            let mut keys = Vec::new();
            while let Some((key, _)) = cursor.entry() {
                keys.push(key.to_vec());
                cursor.advance()?;
            }
            Ok(keys)
        };
        assert_eq!(read_all(good.clone(), length).unwrap().len(), 100);
        for at in 6..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            assert!(matches!(read_all(bad, length), Err(TableError::Damaged { .. })), "byte {at}");
        }
        for cut in 0..length {
            assert!(read_all(good[..6 + cut as usize].to_vec(), length).is_err());
            assert!(matches!(read_all(good.clone(), cut), Err(TableError::Damaged { .. })), "{cut} bytes");
        }
    }
}
