//! The bytes on disk: superblock, segment header, record head and metadata page, as drawn in `docs/disk-format.md`.
//! Pure encoding and decoding. All numbers are little endian, and everything that is read back is protected by a
//! CRC-32C.

use ebb_types::Membership;
use ebb_types::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Epoch, GroupId, Incarnation, ObjectId, RECORD_BLOCKS_MAX,
    RequestId, Role, ServerId, StoreId, Version, crc32c,
};
use std::collections::BTreeMap;

/// Version of the format. A store of any other version is refused.
pub const FORMAT: u32 = 5;
/// Maximum blocks in a chunk.
pub const CHUNK_BLOCKS_MAX: u32 = CHUNK_BYTES_MAX / BLOCK_BYTES as u32;
/// Sequence numbers share their field in a page with two bits of kind.
pub const SEQ_MAX: u64 = (1 << 54) - 1;

const _: () = assert!(SEQ_MAX.count_ones() + 2 == 7 * 8, "seven bytes of an entry");

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

pub const SUPERBLOCK_BYTES: usize = 64;
const SUPERBLOCK_MAGIC: [u8; 8] = *b"EBBSTORE";

const _: () = assert!(SUPERBLOCK_BYTES == 60 + size_of::<u32>(), "its checksum ends it");

/// Identifies the owner of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub format: u32,
    pub server: ServerId,
    pub cluster: u64,
    pub store: StoreId,
    /// Incarnation of the run that last opened the store.
    pub run: Incarnation,
    pub membership: Membership,
}

impl Superblock {
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        put(&mut out, 0, &SUPERBLOCK_MAGIC);
        put(&mut out, 8, &self.format.to_le_bytes());
        put(&mut out, 12, &self.server.0.to_le_bytes());
        put(&mut out, 16, &self.cluster.to_le_bytes());
        put(&mut out, 24, &self.store.0.to_le_bytes());
        put(&mut out, 32, &self.run.0.to_le_bytes());
        put(&mut out, 40, &self.membership.instance.to_le_bytes());
        put(&mut out, 48, &self.membership.map_version.to_le_bytes());
        let crc = crc32c(&out[..60]);
        put(&mut out, 60, &crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Superblock> {
        if bytes.len() < SUPERBLOCK_BYTES
            || bytes[..8] != SUPERBLOCK_MAGIC
            || u32_at(bytes, 60) != crc32c(&bytes[..60])
        {
            return None;
        }
        Some(Superblock {
            format: u32_at(bytes, 8),
            server: ServerId(u16_at(bytes, 12)),
            cluster: u64_at(bytes, 16),
            store: StoreId(u64_at(bytes, 24)),
            run: Incarnation(u64_at(bytes, 32)),
            membership: Membership { instance: u64_at(bytes, 40), map_version: u64_at(bytes, 48) },
        })
    }
}

const INVENTORY_MAGIC: [u8; 8] = *b"EBBINVEN";
const INVENTORY_HEAD_BYTES: usize = 32;

const _: () = assert!(INVENTORY_HEAD_BYTES == 28 + size_of::<u32>(), "the number of segments ends it");

/// Numbers and lengths of the existing segments.
pub fn encode_inventory(generation: u32, owner: &Superblock, segments: &BTreeMap<u32, u32>) -> Vec<u8> {
    let mut out = vec![0; INVENTORY_HEAD_BYTES];
    put(&mut out, 0, &INVENTORY_MAGIC);
    put(&mut out, 8, &FORMAT.to_le_bytes());
    put(&mut out, 12, &generation.to_le_bytes());
    put(&mut out, 16, &owner.cluster.to_le_bytes());
    put(&mut out, 24, &owner.server.0.to_le_bytes());
    put(&mut out, 28, &(segments.len() as u32).to_le_bytes());
    for (number, bytes) in segments {
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    out
}

/// Generation and segments. Bytes after the checksum are left over from an older, longer one. `None`: damaged, or of
/// another store.
pub fn decode_inventory(bytes: &[u8], owner: &Superblock) -> Option<(u32, BTreeMap<u32, u32>)> {
    if bytes.len() < INVENTORY_HEAD_BYTES
        || bytes[..8] != INVENTORY_MAGIC
        || (u64_at(bytes, 16), u16_at(bytes, 24)) != (owner.cluster, owner.server.0)
    {
        return None;
    }
    let end = INVENTORY_HEAD_BYTES + 8 * u32_at(bytes, 28) as usize;
    if bytes.len() < end + 4 || u32_at(bytes, end) != crc32c(&bytes[..end]) {
        return None;
    }
    let entries = bytes[INVENTORY_HEAD_BYTES..end].chunks_exact(8);
    Some((u32_at(bytes, 12), entries.map(|entry| (u32_at(entry, 0), u32_at(entry, 4))).collect()))
}

pub const SEGMENT_HEADER_BYTES: usize = 64;
const SEGMENT_MAGIC: [u8; 8] = *b"EBBSEGMT";

const _: () = assert!(SEGMENT_HEADER_BYTES == 60 + size_of::<u32>(), "its checksum ends it");

/// First bytes of segment `number`. Their checksum is the segment's *salt*: every record in it repeats it, so that a
/// copy of a segment that a client stored as data is not mistaken for records.
pub fn segment_header(number: u32, owner: &Superblock) -> ([u8; SEGMENT_HEADER_BYTES], u32) {
    let mut out = [0; SEGMENT_HEADER_BYTES];
    put(&mut out, 0, &SEGMENT_MAGIC);
    put(&mut out, 8, &FORMAT.to_le_bytes());
    put(&mut out, 12, &number.to_le_bytes());
    put(&mut out, 16, &owner.cluster.to_le_bytes());
    put(&mut out, 24, &owner.server.0.to_le_bytes());
    let salt = crc32c(&out[..60]);
    put(&mut out, 60, &salt.to_le_bytes());
    (out, salt)
}

/// Records start at multiples of this.
pub const RECORD_ALIGN: usize = 64;
pub const RECORD_HEAD_BYTES: usize = 80;
/// Length of a record without checksums and payload.
pub const MARKER_BYTES: u64 = RECORD_HEAD_BYTES.next_multiple_of(RECORD_ALIGN) as u64;
/// Maximum length of a head, checksums included.
pub const RECORD_HEAD_MAX: usize = RECORD_HEAD_BYTES + 4 * RECORD_BLOCKS_MAX as usize;
const RECORD_MAGIC: [u8; 4] = *b"EBBR";

const _: () = assert!(RECORD_HEAD_BYTES == 72 + size_of::<u64>(), "the request's number ends it");
const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(RECORD_ALIGN), "the first record is aligned, too");
/// Instead of the number of open versions: unknown.
const OPEN_UNKNOWN: u32 = u32::MAX;
const HAS_REQUEST: u16 = 1;
const MOVED: u16 = 2;
const REPAIR: u16 = 4;

/// The kind of a record in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadKind {
    /// Blocks; their bytes follow.
    #[default]
    Data,
    /// Blocks; their bytes were written to the chunk file and synced before this record.
    InFile,
    Zero,
    /// The chunk is deleted.
    Delete,
    /// The files of the group are about to be removed. Implies `Drop`.
    DropFiles,
    /// All records of the role and group before segment position `version.seq` are void.
    Drop,
    /// The chunk file durably holds what generation `first` of its chunk page says; nothing in it is newer than
    /// `version`. The field of the request's client holds the file's number. Of a column, `count` is the number of
    /// blocks of data in the file, and the field of the request's sequence number the position before which it has all
    /// records of the chunk.
    Settled,
    /// Sets nothing: the request's write is in these blocks.
    Note,
    /// Sets nothing: a record of these blocks (without blocks: a deletion) was in an older segment and may not be on
    /// all targets.
    Open,
}

impl HeadKind {
    const ALL: [HeadKind; 9] = [
        Self::Data,
        Self::InFile,
        Self::Zero,
        Self::Delete,
        Self::DropFiles,
        Self::Drop,
        Self::Settled,
        Self::Note,
        Self::Open,
    ];
}

/// A record in a segment, without its payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub kind: HeadKind,
    pub role: Role,
    pub group: GroupId,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
    pub version: Version,
    pub request: Option<RequestId>,
    /// Copied from an older segment: not a recent write.
    pub moved: bool,
    /// It is the newest version of its blocks, even of lost ones.
    pub repair: bool,
    /// One per block of `Data` and `InFile`.
    pub crcs: Vec<u32>,
    /// Bytes of the segment that were durable before this record's batch was written.
    pub synced: u32,
    /// Everything of the group up to this version was known to be on all targets when it was written. In the record's
    /// epoch, and not above the record's version; zero: unknown.
    pub committed: Version,
}

impl Head {
    /// The value of [`Head::committed`] if everything up to `committed` is on all targets.
    pub fn committed_by(version: Version, committed: Version) -> Version {
        if committed.epoch < version.epoch { Version::ZERO } else { committed.min(version) }
    }

    /// Number of the epoch's versions up to this one that were not known to be on all targets.
    fn open(&self) -> u32 {
        let open = self.version.seq.checked_sub(self.committed.seq);
        let open = open.filter(|_| self.committed.epoch == self.version.epoch);
        open.and_then(|open| u32::try_from(open).ok()).unwrap_or(OPEN_UNKNOWN)
    }

    /// Whether a record has plausible fields: one that passed its checksum, and one that is to be written.
    pub fn is_sound(&self) -> bool {
        let within = u64::from(self.first) + u64::from(self.count) <= u64::from(CHUNK_BLOCKS_MAX);
        match self.kind {
            HeadKind::Data | HeadKind::InFile | HeadKind::Zero | HeadKind::Note => self.count > 0 && within,
            HeadKind::Delete | HeadKind::DropFiles | HeadKind::Drop => self.first == 0 && self.count == 0,
            HeadKind::Settled => {
                self.role == Role::Replica && self.first > 0 && self.count <= CHUNK_BLOCKS_MAX
            }
            HeadKind::Open => within,
        }
    }

    /// Length of the head with checksums: the payload starts there.
    pub fn head_len(&self) -> usize {
        RECORD_HEAD_BYTES + 4 * self.crcs.len()
    }

    pub fn payload_len(&self) -> usize {
        if self.kind == HeadKind::Data { self.count as usize * BLOCK_BYTES } else { 0 }
    }

    /// Distance to the start of the next record.
    pub fn record_len(&self) -> usize {
        (self.head_len() + self.payload_len()).next_multiple_of(RECORD_ALIGN)
    }

    pub fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        let sums = if matches!(self.kind, HeadKind::Data | HeadKind::InFile) { self.count } else { 0 };
        debug_assert_eq!(self.crcs.len(), sums as usize, "a checksum for each block that has bytes");
        debug_assert_eq!(self.committed, Head::committed_by(self.version, self.committed));
        let start = out.len();
        let mut head = [0u8; RECORD_HEAD_BYTES];
        let (role, stands_for) = match self.role {
            Role::Replica => (0u8, 0u16),
            Role::Offload { stands_for } => (1, stands_for.0),
        };
        let request = self.request.unwrap_or(RequestId { client: 0, seq: 0 });
        let has_request = if self.request.is_some() { HAS_REQUEST } else { 0 };
        let flags = has_request | if self.moved { MOVED } else { 0 } | if self.repair { REPAIR } else { 0 };
        put(&mut head, 0, &RECORD_MAGIC);
        put(&mut head, 8, &salt.to_le_bytes());
        put(&mut head, 12, &self.synced.to_le_bytes());
        put(&mut head, 16, &[self.kind as u8, role]);
        put(&mut head, 18, &stands_for.to_le_bytes());
        put(&mut head, 20, &flags.to_le_bytes());
        put(&mut head, 24, &self.group.0.to_le_bytes());
        put(&mut head, 28, &self.chunk.index.to_le_bytes());
        put(&mut head, 32, &self.chunk.object.0.to_le_bytes());
        put(&mut head, 40, &self.first.to_le_bytes());
        put(&mut head, 44, &self.count.to_le_bytes());
        put(&mut head, 48, &self.version.seq.to_le_bytes());
        put(&mut head, 56, &self.version.epoch.0.to_le_bytes());
        put(&mut head, 60, &self.open().to_le_bytes());
        put(&mut head, 64, &request.client.to_le_bytes());
        put(&mut head, 72, &request.seq.to_le_bytes());
        out.extend_from_slice(&head);
        for crc in &self.crcs {
            out.extend_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32c(&out[start + 8..]);
        put(&mut out[start..], 4, &crc.to_le_bytes());
    }

    /// Decodes the head at the start of `bytes`, which are [`RECORD_HEAD_MAX`] long or end with the segment. `None`:
    /// there is none, or it is damaged.
    pub fn decode(bytes: &[u8], salt: u32) -> Option<Head> {
        if bytes.len() < RECORD_HEAD_BYTES || bytes[..4] != RECORD_MAGIC || u32_at(bytes, 8) != salt {
            return None;
        }
        let kind = *HeadKind::ALL.get(bytes[16] as usize)?;
        let count = u32_at(bytes, 44);
        let sums = if matches!(kind, HeadKind::Data | HeadKind::InFile) { count as usize } else { 0 };
        if sums > RECORD_BLOCKS_MAX as usize || bytes.len() < RECORD_HEAD_BYTES + 4 * sums {
            return None;
        }
        let len = RECORD_HEAD_BYTES + 4 * sums;
        if crc32c(&bytes[8..len]) != u32_at(bytes, 4) {
            return None;
        }
        let flags = u16_at(bytes, 20);
        let version = Version { epoch: Epoch(u32_at(bytes, 56)), seq: u64_at(bytes, 48) };
        let open = Some(u32_at(bytes, 60)).filter(|open| *open != OPEN_UNKNOWN);
        let committed = open.and_then(|open| version.seq.checked_sub(u64::from(open)));
        let request = RequestId { client: u64_at(bytes, 64), seq: u64_at(bytes, 72) };
        Some(Head {
            kind,
            role: match bytes[17] {
                0 => Role::Replica,
                1 => Role::Offload { stands_for: ServerId(u16_at(bytes, 18)) },
                _ => return None,
            },
            group: GroupId(u32_at(bytes, 24)),
            chunk: ChunkId { object: ObjectId(u64_at(bytes, 32)), index: u32_at(bytes, 28) },
            first: u32_at(bytes, 40),
            count,
            version,
            request: (flags & HAS_REQUEST != 0).then_some(request),
            moved: flags & MOVED != 0,
            repair: flags & REPAIR != 0,
            crcs: (0..sums).map(|i| u32_at(bytes, RECORD_HEAD_BYTES + 4 * i)).collect(),
            synced: u32_at(bytes, 12),
            committed: committed.map_or(Version::ZERO, |seq| Version { seq, ..version }),
        })
    }
}

/// Blocks that one metadata page describes.
pub const PAGE_BLOCKS: u32 = 256;
/// Number of the page that describes the chunk as a whole; the pages before it describe its blocks.
pub const CHUNK_PAGE: u32 = CHUNK_BLOCKS_MAX / PAGE_BLOCKS;
pub const PAGE_BYTES: usize = 4096;
/// Where the blocks start in a chunk file: after two slots for every page.
pub const DATA_OFFSET: u64 = (CHUNK_PAGE as u64 + 1) * 2 * PAGE_BYTES as u64;
const PAGE_MAGIC: [u8; 4] = *b"EBBP";
const ENTRIES_AT: usize = 256;
const ENTRY_BYTES: usize = 15;
/// In the chunk page: offset of the generations of all other pages.
const GENERATIONS_AT: usize = 256;
/// In the chunk page: numbers of blocks of data in all other pages.
const DATA_BLOCKS_AT: usize = GENERATIONS_AT + 4 * CHUNK_PAGE as usize;
/// Generation of a page that was found damaged and was not written since.
const LOST: u32 = u32::MAX;

const _: () =
    assert!(CHUNK_BLOCKS_MAX.is_multiple_of(PAGE_BLOCKS) && CHUNK_PAGE <= u64::BITS, "a bit for each");
const _: () =
    assert!(ENTRY_BYTES == 4 + 4 + 7 && ENTRIES_AT + PAGE_BLOCKS as usize * ENTRY_BYTES == PAGE_BYTES);
const _: () =
    assert!(DATA_BLOCKS_AT + 2 * CHUNK_PAGE as usize <= PAGE_BYTES && PAGE_BLOCKS <= u16::MAX as u32);
const _: () =
    assert!(48 + size_of::<u64>() <= ENTRIES_AT && ENTRIES_AT <= GENERATIONS_AT, "behind the file's number");
const _: () = assert!(DATA_OFFSET.is_multiple_of(BLOCK_BYTES as u64), "blocks are aligned in their file");

/// Offset of block `block` in its chunk file.
pub fn block_offset(block: u32) -> u64 {
    DATA_OFFSET + block as u64 * BLOCK_BYTES as u64
}

/// Offset of a generation of a page.
pub fn slot_offset(page: u32, generation: u32) -> u64 {
    (page as u64 * 2 + (generation % 2) as u64) * PAGE_BYTES as u64
}

/// Content of a block of the chunk file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Zeroes; with version zero: never written.
    Zero = 0,
    Data = 1,
    /// Unknown: its page was found damaged. It was not newer than the entry's version.
    Lost = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub version: Version,
    pub crc: u32,
    pub kind: EntryKind,
}

/// Identifies a page of a chunk file.
#[derive(Clone, Copy, Debug)]
pub struct PageId {
    pub group: GroupId,
    pub chunk: ChunkId,
    /// The file's number: an earlier file of the same name, from before the chunk was dropped, had another.
    pub file: u64,
    pub page: u32,
}

/// A metadata page: version, kind and checksum of 256 blocks, or the chunk's summary.
///
/// A page is never overwritten: generation g goes to slot g mod 2, and the other slot keeps generation g - 1. The valid
/// generation is recorded elsewhere: for the chunk page in a `Settled` record, for the others in the chunk page. A
/// newer generation was never finished, and an older one is damage.
#[derive(Clone)]
pub struct Page(Box<[u8; PAGE_BYTES]>);

impl Page {
    pub fn empty() -> Page {
        Page(Box::new([0; PAGE_BYTES]))
    }

    pub fn entry(&self, index: u32) -> Entry {
        let at = ENTRIES_AT + index as usize * ENTRY_BYTES;
        let bytes = &self.0[at..at + ENTRY_BYTES];
        let mut seq = [0u8; 8];
        seq[..7].copy_from_slice(&bytes[8..]);
        let seq = u64::from_le_bytes(seq);
        let kind = match seq >> 54 {
            0 => EntryKind::Zero,
            1 => EntryKind::Data,
            _ => EntryKind::Lost,
        };
        let version = Version { epoch: Epoch(u32_at(bytes, 0)), seq: seq & SEQ_MAX };
        Entry { version, crc: u32_at(bytes, 4), kind }
    }

    pub fn set_entry(&mut self, index: u32, entry: Entry) {
        debug_assert!(index < PAGE_BLOCKS, "a page ends with its last block");
        debug_assert!(entry.version.seq <= SEQ_MAX, "such a record was refused");
        let at = ENTRIES_AT + index as usize * ENTRY_BYTES;
        let seq = (entry.version.seq & SEQ_MAX) | (entry.kind as u64) << 54;
        put(&mut self.0[..], at, &entry.version.epoch.0.to_le_bytes());
        put(&mut self.0[..], at + 4, &entry.crc.to_le_bytes());
        put(&mut self.0[..], at + 8, &seq.to_le_bytes()[..7]);
    }

    /// A page whose first `count` blocks are lost; nothing in it was newer than `newest`.
    pub fn lost(newest: Version, count: u32) -> Page {
        let mut page = Page::empty();
        for index in 0..count.min(PAGE_BLOCKS) {
            page.set_entry(index, Entry { version: newest, crc: 0, kind: EntryKind::Lost });
        }
        page
    }

    /// Chunk page only: no version in the pages is newer.
    pub fn newest(&self) -> Version {
        Version { epoch: Epoch(u32_at(&self.0[..], 32)), seq: u64_at(&self.0[..], 40) }
    }

    /// Chunk page only: bit p is set if page p has been written.
    pub fn written(&self) -> u64 {
        (0..CHUNK_PAGE).fold(0, |bits, page| bits | u64::from(self.page_generation(page) != 0) << page)
    }

    /// Chunk page only: the valid generation of `page`. Zero: none was written.
    pub fn page_generation(&self, page: u32) -> u32 {
        u32_at(&self.0[..], GENERATIONS_AT + 4 * page as usize)
    }

    /// Chunk page only: `page` is about to be written; returns its new generation.
    pub fn next_generation(&mut self, page: u32) -> u32 {
        let before = self.page_generation(page);
        let next = if before == LOST { 1 } else { before + 1 };
        put(&mut self.0[..], GENERATIONS_AT + 4 * page as usize, &next.to_le_bytes());
        next
    }

    /// Blocks of data among those that the page describes.
    pub fn data_entries(&self) -> u16 {
        (0..PAGE_BLOCKS).filter(|index| self.entry(*index).kind == EntryKind::Data).count() as u16
    }

    /// Chunk page only: how many blocks of data `page` describes.
    pub fn set_data_blocks(&mut self, page: u32, blocks: u16) {
        debug_assert!(page < CHUNK_PAGE && u32::from(blocks) <= PAGE_BLOCKS);
        put(&mut self.0[..], DATA_BLOCKS_AT + 2 * page as usize, &blocks.to_le_bytes());
    }

    /// Chunk page only: blocks of data in the file, those of lost pages apart.
    pub fn data_blocks(&self) -> u32 {
        (0..CHUNK_PAGE).map(|page| u32::from(u16_at(&self.0[..], DATA_BLOCKS_AT + 2 * page as usize))).sum()
    }

    pub fn set_newest(&mut self, newest: Version) {
        put(&mut self.0[..], 32, &newest.epoch.0.to_le_bytes());
        put(&mut self.0[..], 40, &newest.seq.to_le_bytes());
    }

    /// A chunk page that was found damaged: so all `pages` that it may have referred to count as damaged. Nothing was
    /// newer than `newest`.
    pub fn lost_summary(newest: Version, pages: u32) -> Page {
        let mut page = Page::empty();
        page.set_newest(newest);
        for number in 0..pages.min(CHUNK_PAGE) {
            put(&mut page.0[..], GENERATIONS_AT + 4 * number as usize, &LOST.to_le_bytes());
        }
        page
    }

    /// Prepares it for writing; returns the file offset of its slot and its bytes.
    pub fn seal(&mut self, at: &PageId, generation: u32) -> (u64, &[u8]) {
        debug_assert!(generation != 0 && generation != LOST, "neither is a page that was written");
        let PageId { group, chunk, file, page } = *at;
        put(&mut self.0[..], 0, &PAGE_MAGIC);
        put(&mut self.0[..], 8, &generation.to_le_bytes());
        put(&mut self.0[..], 12, &page.to_le_bytes());
        put(&mut self.0[..], 16, &group.0.to_le_bytes());
        put(&mut self.0[..], 20, &chunk.index.to_le_bytes());
        put(&mut self.0[..], 24, &chunk.object.0.to_le_bytes());
        put(&mut self.0[..], 48, &file.to_le_bytes());
        let crc = crc32c(&self.0[8..]);
        put(&mut self.0[..], 4, &crc.to_le_bytes());
        (slot_offset(page, generation), &self.0[..])
    }

    /// Decodes the slot of `generation`. `None`: it is damaged, or it is another page, another generation or from
    /// another file.
    pub fn decode(slot: &[u8], at: &PageId, generation: u32) -> Option<Page> {
        let PageId { group, chunk, file, page } = *at;
        let bytes: &[u8; PAGE_BYTES] = slot.try_into().ok()?;
        let valid = bytes[..4] == PAGE_MAGIC
            && u32_at(bytes, 4) == crc32c(&bytes[8..])
            && u32_at(bytes, 8) == generation
            && u32_at(bytes, 12) == page
            && u32_at(bytes, 16) == group.0
            && u32_at(bytes, 20) == chunk.index
            && u64_at(bytes, 24) == chunk.object.0
            && u64_at(bytes, 48) == file;
        valid.then(|| Page(Box::new(*bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            kind: HeadKind::Data,
            role: Role::Offload { stands_for: ServerId(7) },
            group: GroupId(3),
            chunk: ChunkId { object: ObjectId(1 << 40), index: 9 },
            first: 5,
            count: 2,
            version: Version { epoch: Epoch(4), seq: SEQ_MAX },
            request: Some(RequestId { client: 11, seq: 12 }),
            moved: true,
            repair: true,
            crcs: vec![1, 2],
            synced: 64,
            committed: Version { epoch: Epoch(4), seq: SEQ_MAX - 3 },
        }
    }

    #[test]
    fn made_up_heads_pages_and_superblocks_are_refused_or_read() {
        let mut bytes = Vec::new();
        head().encode(77, &mut bytes);
        let owner = Superblock {
            format: FORMAT,
            server: ServerId(7),
            cluster: 9,
            store: StoreId(5),
            run: Incarnation(6),
            membership: Membership::default(),
        };
        let (group, chunk) = (GroupId(3), ChunkId { object: ObjectId(4), index: 5 });
        let at = PageId { group, chunk, file: 8, page: 1 };
        let slot = Page::empty().seal(&at, 1).1.to_vec();
        let inventory = encode_inventory(5, &owner, &BTreeMap::from([(3, 640), (7, 128)]));
        ebb_testing::fuzz(&[&bytes, &owner.encode(), &slot, &inventory], |bytes| {
            let _ = Superblock::decode(bytes);
            let _ = Page::decode(bytes, &at, 1);
            let _ = decode_inventory(bytes, &owner);
            // As if the checksum were right: what it covers may be from another release.
            let mut bytes = bytes.to_vec();
            if bytes.len() >= RECORD_HEAD_BYTES {
                let sums = u32_at(&bytes, 44).min(RECORD_BLOCKS_MAX) as usize;
                for len in [RECORD_HEAD_BYTES, (RECORD_HEAD_BYTES + 4 * sums).min(bytes.len())] {
                    let crc = crc32c(&bytes[8..len]);
                    put(&mut bytes, 4, &crc.to_le_bytes());
                    if let Some(head) = Head::decode(&bytes, 77) {
                        assert!(head.record_len() >= head.head_len());
                    }
                }
            }
        });
    }

    #[test]
    fn a_record_head_comes_back_and_every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        head().encode(77, &mut bytes);
        assert_eq!(bytes.len(), head().head_len());
        assert_eq!(Head::decode(&bytes, 77), Some(head()));
        assert_eq!(Head::decode(&bytes, 78), None);
        let (version, older) = (head().version, Version { epoch: Epoch(3), seq: 5 });
        let before = Version { seq: SEQ_MAX - 1, ..version };
        let newer = Version { epoch: Epoch(5), seq: 1 };
        for (known, said) in [(older, Version::ZERO), (before, before), (version, version), (newer, version)]
        {
            let mut bytes = Vec::new();
            Head { committed: Head::committed_by(version, known), ..head() }.encode(77, &mut bytes);
            assert_eq!(Head::decode(&bytes, 77).map(|head| head.committed), Some(said));
        }
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&bytes, 77), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_page_counts_only_in_the_generation_asked_for() {
        let chunk = ChunkId { object: ObjectId(2), index: 3 };
        let id = PageId { group: GroupId(1), chunk, file: 7, page: 0 };
        let mut file = vec![0u8; 2 * PAGE_BYTES];
        let mut page = Page::empty();
        for seq in 1..=2 {
            let version = Version { epoch: Epoch(1), seq };
            page.set_entry(255, Entry { version, crc: 5, kind: EntryKind::Data });
            let (offset, bytes) = page.seal(&id, seq as u32);
            put(&mut file, offset as usize, bytes);
        }
        let seq = |file: &[u8], generation: u32| {
            let slot = &file[slot_offset(0, generation) as usize..][..PAGE_BYTES];
            assert!(Page::decode(slot, &PageId { file: 8, ..id }, generation).is_none());
            Page::decode(slot, &id, generation).map(|page| page.entry(255).version.seq)
        };
        assert_eq!([1, 2, 3, 4].map(|g| seq(&file, g)), [Some(1), Some(2), None, None]);
        file[100] ^= 1;
        assert_eq!(seq(&file, 2), None);
    }

    #[test]
    fn a_lost_chunk_page_says_that_every_page_is_lost_until_it_is_written() {
        let version = Version { epoch: Epoch(3), seq: 4 };
        let mut summary = Page::lost_summary(version, CHUNK_PAGE);
        assert_eq!(summary.written(), u64::MAX);
        assert_eq!(Page::lost_summary(version, 3).written(), 0b111);
        assert_eq!(summary.next_generation(7), 1);
        assert_eq!((summary.page_generation(7), summary.page_generation(8)), (1, LOST));
        assert_eq!(Page::empty().written(), 0);
    }

    #[test]
    fn an_inventory_comes_back_and_every_flipped_bit_is_noticed() {
        let (store, run) = (StoreId(5), Incarnation(6));
        let membership = Membership::default();
        let owner = Superblock { format: FORMAT, server: ServerId(4), cluster: 99, store, run, membership };
        let segments = BTreeMap::from([(3, 640), (7, 128)]);
        let mut bytes = encode_inventory(5, &owner, &segments);
        let whole = bytes.len();
        bytes.extend_from_slice(&[9; 8]);
        assert_eq!(decode_inventory(&bytes, &owner), Some((5, segments)));
        assert_eq!(decode_inventory(&bytes, &Superblock { server: ServerId(5), ..owner }), None);
        for bit in 0..whole * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_inventory(&bytes, &owner), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..whole).all(|len| decode_inventory(&bytes[..len], &owner).is_none()));
    }

    #[test]
    fn a_superblock_comes_back() {
        let superblock = Superblock {
            format: 1,
            server: ServerId(4),
            cluster: 99,
            store: StoreId(7),
            run: Incarnation(3),
            membership: Membership { instance: 5, map_version: 6 },
        };
        let mut bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Some(superblock));
        bytes[20] ^= 1;
        assert_eq!(Superblock::decode(&bytes), None);
    }
}
