//! Queries of stored data: read, list, compare, digest. Each is a loop of short lookups in the [`Index`]; what a lookup
//! misses is loaded before the next.

use crate::core::{StoreCore, shortage};
use crate::disk::{DIRECT_ALIGN, DiskFile};
use crate::index::{Cell, FileId, Index, Miss, Place};
use crate::layout::{CHUNK_BLOCKS_MAX, CHUNK_PAGE, DATA_OFFSET, PAGE_BLOCKS, block_offset};
use crate::{GroupDigest, ReadBlocks, StoreError};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Kind, ListPage, ObjectId, RECORD_BLOCKS_MAX,
    Record, Role, Run, Version, crc32c, lost_block_crc, zero_block_crc,
};
use std::io;
use xxhash_rust::xxh3::Xxh3;

/// Pieces of at least this size bypass the page cache, because filling it costs CPU and pays only if they are read
/// again. A piece that is among the last [`PIECES_REMEMBERED`] read goes through the cache.
const PIECE_LARGE: usize = 128 << 10;
pub const PIECES_REMEMBERED: usize = 512;

const _: () =
    assert!(DATA_OFFSET.is_multiple_of(DIRECT_ALIGN as u64) && BLOCK_BYTES.is_multiple_of(DIRECT_ALIGN));

/// A read that needs only the bytes of its pieces.
pub struct ReadPlan {
    cells: Vec<Cell>,
    pub pieces: Vec<Piece>,
}

/// Blocks that are contiguous in one file.
pub struct Piece {
    pub file: FileId,
    offset: u64,
    blocks: u32,
}

impl Piece {
    pub fn len(&self) -> usize {
        self.blocks as usize * BLOCK_BYTES
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl ReadPlan {
    pub fn new(
        index: &mut Index,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        first: u32,
        count: u32,
    ) -> Result<ReadPlan, Miss> {
        let cells = index.cells(role, group, chunk, first, count)?;
        let mut pieces: Vec<Piece> = Vec::new();
        for (block, cell) in (first..).zip(&cells) {
            let (id, offset) = match cell.place {
                Place::Nothing | Place::Lost => continue,
                Place::File => (FileId::Chunk((group, chunk)), block_offset(block)),
                Place::Segment { segment, offset } => (FileId::Segment(segment), offset as u64),
            };
            match pieces.last_mut() {
                Some(p) if p.file == id && p.offset + p.blocks as u64 * BLOCK_BYTES as u64 == offset => {
                    p.blocks += 1
                }
                _ => pieces.push(Piece { file: id, offset, blocks: 1 }),
            }
        }
        Ok(ReadPlan { cells, pieces })
    }

    /// Reads and checks the bytes. `read` appends a piece's bytes.
    pub fn run(
        self,
        group: GroupId,
        chunk: ChunkId,
        first: u32,
        mut read: impl FnMut(&Piece, &mut Vec<u8>) -> Result<(), StoreError>,
    ) -> Result<ReadBlocks, StoreError> {
        let is_given_up = |cell: &Cell| cell.kind() == Kind::Data && cell.crc == lost_block_crc();
        let all = self.cells.iter().all(|cell| cell.place == Place::Lost || is_given_up(cell));
        if let Some(lost) = self.cells.iter().position(|c| c.place == Place::Lost) {
            let newest = self.cells[lost].version;
            return Err(StoreError::Lost { chunk, block: first + lost as u32, newest, all });
        }
        let blocks: u32 = self.pieces.iter().map(|p| p.blocks).sum();
        let (mut payload, start) = room(blocks as usize * BLOCK_BYTES);
        for piece in &self.pieces {
            let end = payload.len() + piece.len();
            read(piece, &mut payload)?;
            debug_assert!(payload.len() <= end, "the next piece's bytes would be elsewhere");
            // Bytes that could not be read fail their checksum below.
            payload.resize(end, 0);
        }
        let data = self.cells.iter().enumerate().filter(|(_, cell)| cell.kind() == Kind::Data);
        let mut given_up = None;
        for ((i, cell), bytes) in data.zip(payload[start..].chunks(BLOCK_BYTES)) {
            if crc32c(bytes) == cell.crc {
                continue;
            }
            if !is_given_up(cell) {
                return Err(StoreError::Corrupt { chunk, block: first + i as u32 });
            }
            given_up.get_or_insert(first + i as u32);
        }
        if let Some(block) = given_up {
            return Err(StoreError::GivenUp { chunk, block, all });
        }
        let payload = bytes::Bytes::from(payload).split_off(start);
        Ok(ReadBlocks { records: records(&self.cells, group, chunk, first), payload })
    }
}

/// A buffer with room for `len` bytes, and their offset in it: large ones are aligned for direct I/O.
fn room(len: usize) -> (Vec<u8>, usize) {
    if len < PIECE_LARGE {
        return (Vec::with_capacity(len), 0);
    }
    let mut room: Vec<u8> = Vec::with_capacity(len + DIRECT_ALIGN);
    let start = room.as_ptr().align_offset(DIRECT_ALIGN);
    room.resize(start, 0);
    (room, start)
}

/// Maximal runs of equal version and kind.
fn records(cells: &[Cell], group: GroupId, chunk: ChunkId, first: u32) -> Vec<Record> {
    let mut records = Vec::new();
    let mut start = first;
    for same in cells.chunk_by(|a, b| a.version == b.version && a.kind() == b.kind()) {
        let content = match same[0].kind() {
            Kind::Data => Content::Data { crcs: same.iter().map(|c| c.crc).collect() },
            _ => Content::Zero,
        };
        let count = same.len() as u32;
        records.push(Record {
            group,
            chunk,
            first: start,
            count,
            version: same[0].version,
            request: None,
            content,
        });
        start += count;
    }
    records
}

/// Refuses ranges outside any chunk, and ranges longer than `most`.
pub fn check_range(first: u32, count: u32, most: u32) -> Result<(), StoreError> {
    if count == 0 || count > most || first as u64 + count as u64 > CHUNK_BLOCKS_MAX as u64 {
        return Err(StoreError::Malformed("block range outside any chunk, or too long"));
    }
    Ok(())
}

/// Appends a run, merged with the last one if it continues it.
fn push_run(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if last.chunk == run.chunk
                && last.first + last.count == run.first
                && (last.version, last.kind) == (run.version, run.kind)
                && run.kind != Kind::Delete =>
        {
            last.count += run.count;
        }
        _ => runs.push(run),
    }
}

/// The least chunk id after `chunk`.
fn successor(chunk: ChunkId) -> Option<ChunkId> {
    match chunk.index.checked_add(1) {
        Some(index) => Some(ChunkId { index, ..chunk }),
        None => Some(ChunkId { object: ObjectId(chunk.object.0.checked_add(1)?), index: 0 }),
    }
}

impl StoreCore {
    pub(crate) fn read(
        &self,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        first: u32,
        count: u32,
    ) -> Result<ReadBlocks, StoreError> {
        self.read_with(role, group, chunk, (first, count), |file, piece, out| {
            let through = piece.len() >= PIECE_LARGE && !self.was_read(piece);
            match through {
                true => file.read_through(out, piece.len(), piece.offset()),
                false => file.read(out, piece.len(), piece.offset()),
            }
        })
    }

    /// Whether the same piece was read recently.
    fn was_read(&self, piece: &Piece) -> bool {
        let mut reads = self.reads.borrow_mut();
        let key = (piece.file, piece.offset);
        let known = reads.get(&key).is_some();
        if !known {
            reads.insert(key, ());
        }
        known
    }

    /// Reads from the device and leaves nothing of it in the page cache, so that it evicts nothing that clients use.
    pub(crate) fn check(
        &self,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        (first, count): (u32, u32),
        bytes: bool,
    ) -> Result<ReadBlocks, StoreError> {
        if role == Role::Replica {
            self.look_up_chunk((group, chunk))?;
            self.shared.index().forget_pages((group, chunk));
        }
        let blocks = self.read_with(role, group, chunk, (first, count), |file, piece, out| {
            file.read_through(out, piece.len(), piece.offset())
        })?;
        Ok(if bytes { blocks } else { ReadBlocks { payload: bytes::Bytes::new(), ..blocks } })
    }

    fn read_with(
        &self,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        (first, count): (u32, u32),
        read: impl Fn(&dyn DiskFile, &Piece, &mut Vec<u8>) -> io::Result<()>,
    ) -> Result<ReadBlocks, StoreError> {
        check_range(first, count, RECORD_BLOCKS_MAX)?;
        let plan = self.look(|index| ReadPlan::new(index, role, group, chunk, first, count))?;
        let read = |piece: &Piece, out: &mut Vec<u8>| {
            let file = self.file(piece.file)?;
            let start = out.len();
            // Bytes that the disk does not give fail their checksum; a shortage says nothing about them.
            if let Err(error) = read(&*file, piece, out) {
                out.truncate(start);
                return shortage(&error).map_or(Ok(()), Err);
            }
            Ok(())
        };
        plan.run(group, chunk, first, read)
    }

    /// Cells of one page's worth of blocks.
    fn window(&self, role: Role, group: GroupId, chunk: ChunkId, page: u32) -> Result<Vec<Cell>, StoreError> {
        let first = page * PAGE_BLOCKS;
        self.look(|index| index.cells(role, group, chunk, first, PAGE_BLOCKS))
    }

    pub(crate) fn list(
        &self,
        role: Role,
        group: GroupId,
        since: Epoch,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage, StoreError> {
        let limit = limit.max(1);
        let mut runs = Vec::new();
        let mut from = after.map(|cursor| cursor.chunk);
        // First block of the first chunk that was not listed yet.
        let mut skip = after.map_or(0, |cursor| cursor.block.saturating_add(1));
        loop {
            let lookup = from.unwrap_or_default();
            let found = self.look(|index| {
                Ok(index.next_chunk(role, group, lookup).map(|(id, chunk)| (id, chunk.tombstone)))
            })?;
            let Some((chunk, tombstone)) = found else { return Ok(ListPage { runs, next: None }) };
            if after.is_none_or(|cursor| cursor.chunk != chunk) {
                skip = 0;
                if let Some(version) = tombstone.map(|t| t.version).filter(|v| v.epoch >= since) {
                    runs.push(Run { chunk, first: 0, count: 0, version, kind: Kind::Delete });
                }
            }
            let windows = self.look(|index| index.windows(role, group, chunk, since))?;
            for page in (skip / PAGE_BLOCKS..CHUNK_PAGE).filter(|page| windows & (1 << page) != 0) {
                let cells = self.window(role, group, chunk, page)?;
                for (block, cell) in (page * PAGE_BLOCKS..).zip(&cells) {
                    if block < skip || cell.version == Version::ZERO || cell.version.epoch < since {
                        continue;
                    }
                    push_run(
                        &mut runs,
                        Run { chunk, first: block, count: 1, version: cell.version, kind: cell.kind() },
                    );
                    if runs.len() > limit {
                        // One run too many, so the one before it is complete.
                        let next = runs.pop().expect("just pushed");
                        if next.first > 0 {
                            let cursor = Cursor { chunk, block: next.first - 1 };
                            debug_assert!(after.is_none_or(|after| after < cursor), "a listing has an end");
                            return Ok(ListPage { runs, next: Some(cursor) });
                        }
                        runs.push(next);
                    }
                }
            }
            let Some(next) = successor(chunk) else { return Ok(ListPage { runs, next: None }) };
            if runs.len() >= limit {
                return Ok(ListPage { runs, next: Some(Cursor { chunk, block: u32::MAX }) });
            }
            from = Some(next);
        }
    }

    pub(crate) fn newer(&self, role: Role, group: GroupId, runs: &[Run]) -> Result<Vec<Run>, StoreError> {
        let mut newer = Vec::new();
        for run in runs {
            let tombstone = self.look(|index| Ok(index.tombstone(role, group, run.chunk)))?;
            if tombstone.is_some_and(|t| t >= run.version) {
                continue;
            }
            if run.kind == Kind::Delete {
                newer.push(*run);
                continue;
            }
            check_range(run.first, run.count, CHUNK_BLOCKS_MAX)?;
            let end = run.first + run.count;
            let mut first = run.first;
            while first < end {
                let count = ((first / PAGE_BLOCKS + 1) * PAGE_BLOCKS).min(end) - first;
                let cells = self.look(|index| index.cells(role, group, run.chunk, first, count))?;
                for (block, _) in
                    (first..).zip(&cells).filter(|(_, c)| c.place == Place::Lost || c.version < run.version)
                {
                    push_run(&mut newer, Run { first: block, count: 1, ..*run });
                }
                first += count;
            }
        }
        Ok(newer)
    }

    pub(crate) fn digest(&self, role: Role, group: GroupId, verify: bool) -> Result<GroupDigest, StoreError> {
        let mut digest = GroupDigest::default();
        let mut from = ChunkId::default();
        while let Some(chunk) = self.look(|i| Ok(i.next_chunk(role, group, from).map(|(id, _)| id)))? {
            let (hash, blocks) = self.chunk_digest(role, group, chunk, verify)?;
            if blocks > 0 {
                digest.chunks.insert(chunk, hash);
                digest.blocks += blocks;
            }
            match successor(chunk) {
                Some(next) => from = next,
                None => break,
            }
        }
        let mut hash = Xxh3::new();
        for (chunk, chunk_hash) in &digest.chunks {
            hash.update(&chunk.object.0.to_le_bytes());
            hash.update(&chunk.index.to_le_bytes());
            hash.update(&chunk_hash.to_le_bytes());
        }
        digest.digest = hash.digest();
        Ok(digest)
    }

    /// Hash over number and checksum of every block that is not all zero, and the number of such blocks.
    fn chunk_digest(
        &self,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        verify: bool,
    ) -> Result<(u64, u64), StoreError> {
        let zero_crc = zero_block_crc();
        let mut hash = Xxh3::new();
        let mut blocks = 0;
        let windows = self.look(|index| index.windows(role, group, chunk, Epoch(0)))?;
        for page in (0..CHUNK_PAGE).filter(|page| windows & (1 << page) != 0) {
            let first = page * PAGE_BLOCKS;
            if verify {
                self.read(role, group, chunk, first, PAGE_BLOCKS)?;
            }
            for (block, cell) in (first..).zip(self.window(role, group, chunk, page)?) {
                if cell.place == Place::Lost {
                    return Err(StoreError::Lost { chunk, block, newest: cell.version, all: false });
                }
                if cell.kind() == Kind::Data && cell.crc != zero_crc {
                    hash.update(&block.to_le_bytes());
                    hash.update(&cell.crc.to_le_bytes());
                    blocks += 1;
                }
            }
        }
        Ok((hash.digest(), blocks))
    }
}
