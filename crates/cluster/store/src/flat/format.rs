//! The bytes: superblock, commits, records. `docs/disk-format.md` draws them.

use crate::flat::device::BLOCK;
use ebb_types::crc32c;

pub const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"EBBFLATS";
const COMMIT_MAGIC: &[u8; 8] = b"EBBFLATJ";
pub const COMMIT_HEADER: usize = 40;
/// Longest commit but for a checkpoint, in blocks: how far behind a bad one the next may begin.
pub const COMMIT_BLOCKS_MAX: u64 = 256;
/// Blocks of the two superblocks.
const FIRST_AREA: u64 = 2;
/// Smallest and largest area, in blocks.
const AREA_MIN: u64 = 16;
const AREA_MAX: u64 = 65_536;
/// Blocks of the device per block of an area.
const AREA_SHARE: u64 = 256;
/// Smallest device, in bytes.
pub const DEVICE_MIN: u64 = 64 * BLOCK;
/// Longest path, in bytes.
pub const PATH_MAX: usize = 255;
/// Longest file, in blocks.
pub const FILE_BLOCKS_MAX: u64 = u32::MAX as u64;

const _: () = assert!(COMMIT_HEADER == COMMIT_MAGIC.len() + 4 + 4 + 3 * 8 && COMMIT_HEADER <= BLOCK as usize);
const _: () = assert!(AREA_MAX * BLOCK <= u32::MAX as u64, "the length of a commit has four bytes");
const _: () = assert!(PATH_MAX <= u8::MAX as usize, "that of a path has one");
const _: () =
    assert!(FIRST_AREA + 2 * AREA_MIN < DEVICE_MIN / BLOCK, "the smallest device has room for data");

/// What is where, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub id: u64,
    /// Of the device.
    pub blocks: u64,
    /// Of one area of the journal.
    pub area: u64,
}

impl Superblock {
    pub fn new(id: u64, device_bytes: u64) -> Superblock {
        debug_assert!(device_bytes >= DEVICE_MIN, "it has no room for data");
        let blocks = device_bytes / BLOCK;
        Superblock { id, blocks, area: (blocks / AREA_SHARE).clamp(AREA_MIN, AREA_MAX) }
    }

    /// The first block of the area of a generation.
    pub fn area_at(&self, generation: u64) -> u64 {
        FIRST_AREA + generation % 2 * self.area
    }

    pub fn data(&self) -> std::ops::Range<u64> {
        FIRST_AREA + 2 * self.area..self.blocks
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; BLOCK as usize];
        out[..8].copy_from_slice(MAGIC);
        out[12..16].copy_from_slice(&FORMAT.to_le_bytes());
        for (at, number) in [(16, self.id), (24, self.blocks), (32, self.area)] {
            out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Format and content; `None`: it is none, or a damaged one.
    pub fn decode(bytes: &[u8]) -> Option<(u32, Superblock)> {
        if bytes.len() != BLOCK as usize || &bytes[..8] != MAGIC || u32_at(bytes, 8) != crc32c(&bytes[12..]) {
            return None;
        }
        let block = Superblock { id: u64_at(bytes, 16), blocks: u64_at(bytes, 24), area: u64_at(bytes, 32) };
        let sound = block.blocks >= DEVICE_MIN / BLOCK
            && block.blocks <= u64::MAX / BLOCK
            && block == Superblock::new(block.id, block.blocks * BLOCK);
        let format = u32_at(bytes, 12);
        (sound || format != FORMAT).then_some((format, block))
    }
}

/// The beginning of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitHeader {
    pub id: u64,
    pub generation: u64,
    /// 0: a checkpoint.
    pub number: u64,
    /// Bytes of the records.
    pub len: u32,
}

impl CommitHeader {
    /// Blocks of the commit.
    pub fn blocks(&self) -> u64 {
        (COMMIT_HEADER as u64 + u64::from(self.len)).div_ceil(BLOCK)
    }

    /// The fields of a block, unchecked; `None`: no commit begins there.
    pub fn decode(bytes: &[u8]) -> Option<CommitHeader> {
        let is_one = bytes.len() >= COMMIT_HEADER && &bytes[..8] == COMMIT_MAGIC;
        is_one.then(|| CommitHeader {
            len: u32_at(bytes, 12),
            id: u64_at(bytes, 16),
            generation: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
        })
    }
}

/// A commit of whole blocks. `records`: encoded.
pub fn encode_commit(id: u64, generation: u64, number: u64, records: &[u8]) -> Vec<u8> {
    let len = u32::try_from(records.len()).expect("an area is smaller");
    let header = CommitHeader { id, generation, number, len };
    let mut out = Vec::with_capacity((header.blocks() * BLOCK) as usize);
    out.extend_from_slice(COMMIT_MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&len.to_le_bytes());
    for number in [id, generation, number] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    debug_assert_eq!(out.len(), COMMIT_HEADER);
    out.extend_from_slice(records);
    let crc = crc32c(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out.resize((header.blocks() * BLOCK) as usize, 0);
    out
}

/// The records of a commit whose bytes are all there; `None`: its checksum is wrong.
pub fn commit_records(bytes: &[u8]) -> Option<&[u8]> {
    let header = CommitHeader::decode(bytes)?;
    let bytes = bytes.get(..COMMIT_HEADER + header.len as usize)?;
    (u32_at(bytes, 8) == crc32c(&bytes[12..])).then(|| &bytes[COMMIT_HEADER..])
}

/// A change of the metadata. Blocks of files and their counts are below [`FILE_BLOCKS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Dir(String),
    Create {
        file: u64,
        path: String,
    },
    Remove(String),
    Rename {
        from: String,
        to: String,
    },
    Map {
        file: u64,
        block: u64,
        at: u64,
        count: u64,
    },
    Unmap {
        file: u64,
        block: u64,
        count: u64,
    },
    Length {
        file: u64,
        bytes: u64,
    },
    /// The journal continues in the other area.
    Moved,
}

impl Record {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Record::Dir(_) => 1,
            Record::Create { .. } => 2,
            Record::Remove(_) => 3,
            Record::Rename { .. } => 4,
            Record::Map { .. } => 5,
            Record::Unmap { .. } => 6,
            Record::Length { .. } => 7,
            Record::Moved => 8,
        };
        out.push(kind);
        let text = |out: &mut Vec<u8>, path: &str| {
            out.push(u8::try_from(path.len()).expect("paths are checked"));
            out.extend_from_slice(path.as_bytes());
        };
        let long = |out: &mut Vec<u8>, number: u64| out.extend_from_slice(&number.to_le_bytes());
        let short = |out: &mut Vec<u8>, number: u64| {
            let number = u32::try_from(number).expect("files are bounded");
            out.extend_from_slice(&number.to_le_bytes());
        };
        match self {
            Record::Dir(path) | Record::Remove(path) => text(out, path),
            Record::Create { file, path } => {
                long(out, *file);
                text(out, path);
            }
            Record::Rename { from, to } => {
                text(out, from);
                text(out, to);
            }
            Record::Map { file, block, at, count } => {
                long(out, *file);
                long(out, *at);
                short(out, *block);
                short(out, *count);
            }
            Record::Unmap { file, block, count } => {
                long(out, *file);
                short(out, *block);
                short(out, *count);
            }
            Record::Length { file, bytes } => {
                long(out, *file);
                long(out, *bytes);
            }
            Record::Moved => {}
        }
    }

    /// All records of a commit; `None`: they are none.
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Record>> {
        let mut from = Cursor(bytes);
        let mut all = Vec::new();
        while !from.0.is_empty() {
            all.push(from.record()?);
        }
        Some(all)
    }
}

/// Bytes of a [`Record::Map`].
pub const MAP_BYTES: u64 = 25;
/// Bytes of a file's other records, but for its path.
pub const FILE_BYTES: u64 = 27;

const _: () = assert!(MAP_BYTES == 1 + 8 + 8 + 4 + 4, "kind, file, place, block, count");
const _: () = assert!(FILE_BYTES == (1 + 8 + 1) + (1 + 8 + 8), "its name and its length");

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn long(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn short(&mut self) -> Option<u64> {
        self.bytes().map(|bytes| u32::from_le_bytes(bytes).into())
    }

    fn text(&mut self) -> Option<String> {
        let [len] = self.bytes()?;
        let (text, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }

    fn record(&mut self) -> Option<Record> {
        let [kind] = self.bytes()?;
        Some(match kind {
            1 => Record::Dir(self.text()?),
            2 => Record::Create { file: self.long()?, path: self.text()? },
            3 => Record::Remove(self.text()?),
            4 => Record::Rename { from: self.text()?, to: self.text()? },
            5 => {
                let (file, at, block) = (self.long()?, self.long()?, self.short()?);
                Record::Map { file, at, block, count: self.short()? }
            }
            6 => Record::Unmap { file: self.long()?, block: self.short()?, count: self.short()? },
            7 => Record::Length { file: self.long()?, bytes: self.long()? },
            8 => Record::Moved,
            _ => return None,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}
