//! Deferred work: moving records from segments to chunk files, and retiring segments.
//!
//! It runs in steps of at most [`STEP_BYTES`] between batches of writes, paced by them, and only when segments have
//! grown long or before sleep: an idle store writes nothing. The threshold differs between servers, so that the copies
//! of a group do not all do it at once. A *checkpoint* takes the chunks that have records only in segments, one after
//! another: data and metadata pages are written to the chunk file, and when that is synced the chunk's overlay is
//! dropped. Until then the segments define the blocks' content, so a crash in the middle costs nothing. Then segments
//! in which nothing is live are deleted; if a segment is mostly dead, its live records (offload, tombstones) are copied
//! to the open segment first.
//!
//! Segments are deleted in any order. A tombstone or a `Drop` record is therefore kept until no older segment is left,
//! so that what it voids does not come back at the next start.

use crate::StoreError;
use crate::core::{StoreCore, shortage};
use crate::disk::DiskFile;
use crate::index::{FileId, FileKey, Settled};
use crate::layout::{
    CHUNK_PAGE, Entry as BlockEntry, EntryKind, Head, HeadKind, MARKER_BYTES, PAGE_BLOCKS, Page, PageId,
    block_offset,
};
use crate::names::segment_path;
use crate::open::Staged;
use crate::overlay::{Extent, ExtentPlace, Position};
use crate::unsettled::Checkpoint;
use bytes::Bytes;
use ebb_types::{BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, GroupId, Role, Version};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Maximum chunk files written in one step: the first of their syncs commits the file system's journal for all.
const STEP_FILES: usize = 8;
/// Maximum data moved in one step: the next write waits for it.
const STEP_BYTES: u64 = 1 << 20;
/// Under load a step is due each time this many bytes were written: half of what it moves, so that it finishes in time.
const PACE_BYTES: u64 = STEP_BYTES / 2;
/// When unsettled bytes exceed `checkpoint_bytes` by this factor, writes wait for the checkpoint.
pub const OVERDUE: u64 = 4;

/// Pages of a chunk of the maximum size.
const PAGES_MAX: u32 = CHUNK_BYTES_MAX / BLOCK_BYTES as u32 / PAGE_BLOCKS;

const _: () = assert!(PAGES_MAX == CHUNK_PAGE, "a page for all blocks of the longest chunk");
const _: () = assert!(STEP_BYTES >= PAGE_BLOCKS as u64 * BLOCK_BYTES as u64, "a step moves a page's blocks");

/// No record is before this position.
const NOWHERE: Position = Position { segment: 0, offset: 0 };

/// An extent with the first of its blocks.
type Placed = (Role, GroupId, ChunkId, u32, Extent);

/// Metadata pages by number.
type Pages = Vec<(u32, Arc<Page>)>;

/// Part of what a chunk has only in segments.
struct Part {
    extents: Vec<(u32, Extent)>,
    /// Bytes to be copied.
    bytes: u64,
    /// The page at which the remainder begins.
    end: Option<u32>,
}

impl StoreCore {
    /// Takes one step of the deferred work; `true`: there is more to do. Writes nothing unless segments have grown
    /// long.
    pub fn settle(&mut self) -> bool {
        if self.is_poisoned() || !self.begun {
            return false;
        }
        let due = self.config.checkpoint_bytes;
        if !self.unsettled.is_moving() && self.unsettled.bytes < due {
            return false;
        }
        // A failure surfaces elsewhere: a full disk at the next write, a poisoned store at every operation. After a
        // shortage the next write finds it due again.
        loop {
            match self.step() {
                Ok(()) => {}
                Err(StoreError::NotNow { .. }) => {
                    self.unsettled.raise(due);
                    break;
                }
                Err(_) => break,
            }
            if !self.unsettled.is_moving() || self.unsettled.bytes < OVERDUE * due {
                return self.unsettled.is_moving();
            }
        }
        self.unsettled.checkpoint = None;
        false
    }

    /// [`StoreCore::settle`] under load, at the pace of the writes.
    pub fn settle_paced(&mut self) -> bool {
        if self.unsettled.is_early() {
            return true;
        }
        let more = self.settle();
        self.unsettled.pace(PACE_BYTES);
        more
    }

    /// Moves everything that can be moved.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if !self.begun {
            return self.rest();
        }
        self.unsettled.checkpoint = None;
        loop {
            if let Err(error) = self.step() {
                self.unsettled.checkpoint = None;
                return Err(error);
            }
            if !self.unsettled.is_moving() {
                return self.rest();
            }
        }
    }

    fn step(&mut self) -> Result<(), StoreError> {
        self.shared.moved();
        let Some(mut checkpoint) = self.unsettled.checkpoint.take() else {
            let chunks = self.shared.index().unsettled().into_iter().rev().map(|key| (key, 0)).collect();
            let began = self.segments_end();
            self.unsettled.begin(Checkpoint { chunks, segments: None, began });
            return Ok(());
        };
        if !checkpoint.chunks.is_empty() {
            self.move_chunks(&mut checkpoint.chunks, checkpoint.began)?;
        } else if let Some(segments) = &mut checkpoint.segments {
            match segments.pop() {
                Some(number) if self.retire(number)? => {}
                Some(number) => segments.push(number),
                None => return Ok(()),
            }
        } else {
            checkpoint.segments = Some(self.retirable()?);
        }
        self.unsettled.checkpoint = Some(checkpoint);
        Ok(())
    }

    /// Brings chunk files up to date with their overlays, records so durably, and drops the overlays: as much as one
    /// step may. The new content of a file is valid from that record on: after a crash before it the file is as it was,
    /// except for blocks that the segments have anyway.
    fn move_chunks(&mut self, chunks: &mut Vec<(FileKey, u32)>, began: Position) -> Result<(), StoreError> {
        let (mut moved, mut records) = (Vec::new(), Vec::new());
        let mut left = STEP_BYTES;
        while moved.len() < STEP_FILES
            && left > 0
            && let Some((key, from)) = chunks.pop()
        {
            let part = self.next_part(key, from, left);
            if !self.has_room_to_move(part.bytes) {
                continue; // it stays in segments until the next checkpoint
            }
            left = left.saturating_sub(part.bytes);
            if let Some(end) = part.end {
                debug_assert!(end > from, "{key:?} would be moved for ever");
                chunks.push((key, end));
                left = 0;
            }
            let before = match (from, part.end) {
                (0, None) => Some(self.segments_end()),
                (_, None) => Some(began),
                _ => None,
            };
            if let Some((record, pages)) = self.write_chunk(key, &part.extents, before)? {
                let range = from..part.end.unwrap_or(PAGES_MAX);
                moved.push((key, self.file(FileId::Chunk(key))?, pages, range));
                records.push(record);
            }
        }
        if moved.is_empty() {
            return Ok(());
        }
        for (_, file, ..) in &moved {
            file.sync().map_err(|_| self.poison())?;
            self.shared.moved();
        }
        debug_assert_eq!(moved.len(), records.len(), "a record for each chunk's new pages");
        self.append(&mut records)?;
        for (key, file, pages, range) in moved {
            let allocated = file.allocated().unwrap_or(0);
            let mut index = self.shared.index();
            for (number, page) in pages {
                index.pages.insert((key, number), page);
            }
            index.settle_chunk(key, range.start * PAGE_BLOCKS..range.end * PAGE_BLOCKS, allocated);
        }
        Ok(())
    }

    /// Whether so much may be copied to chunk files. On a full disk a checkpoint that cannot end would use up the
    /// reserve and free nothing: half of it stays for what protects acknowledged data (R18).
    fn has_room_to_move(&self, bytes: u64) -> bool {
        bytes == 0 || self.disk.free_bytes().unwrap_or(0) >= bytes + self.config.checkpoint_bytes / 2
    }

    /// What a chunk has only in segments from page `from` on, in whole pages: about `most` bytes to be copied, and at
    /// least one page's.
    fn next_part(&self, (group, chunk): FileKey, from: u32, most: u64) -> Part {
        let index = self.shared.index();
        let mut part = Part { extents: Vec::new(), bytes: 0, end: None };
        let Some(chunk) = index.chunk(Role::Replica, group, chunk) else { return part };
        // For the current page: index of its first extent, and bytes to copy.
        let (mut page, mut begin, mut bytes) = (from, 0, 0);
        for (start, extent) in chunk.overlay.touching(from * PAGE_BLOCKS, (PAGES_MAX - from) * PAGE_BLOCKS) {
            let mut first = start.max(from * PAGE_BLOCKS);
            while first < start + extent.count {
                let number = first / PAGE_BLOCKS;
                let end = ((number + 1) * PAGE_BLOCKS).min(start + extent.count);
                let slice = extent.slice(first - start, end - first);
                if number > page {
                    part.bytes += std::mem::take(&mut bytes);
                    (page, begin) = (number, part.extents.len());
                }
                bytes += if matches!(slice.place, ExtentPlace::Segment(_)) { slice.data_bytes() } else { 0 };
                if begin > 0 && part.bytes + bytes > most {
                    part.extents.truncate(begin);
                    part.end = Some(page);
                    return part;
                }
                part.extents.push((first, slice));
                first = end;
            }
        }
        part.bytes += bytes;
        part
    }

    /// Where the next record will be.
    fn segments_end(&self) -> Position {
        let end = self.open.as_ref().map(|open| open.end());
        Position::from_u64(end.unwrap_or(u64::from(self.next_segment) << 32))
    }

    /// Writes extents of a chunk's overlay to its file; returns the record that makes them valid, and the resulting
    /// metadata pages. `None`: there is nothing to move. `before`: where the records end that are all in the file then;
    /// `None`: where they did.
    fn write_chunk(
        &mut self,
        key: FileKey,
        extents: &[(u32, Extent)],
        before: Option<Position>,
    ) -> Result<Option<(Staged, Pages)>, StoreError> {
        let (group, chunk) = key;
        if extents.is_empty() {
            return Ok(None);
        }
        let file = self.chunk_file(key)?;
        let mut pages = self.write_blocks(key, &*file, extents)?;
        let mut summary = self.page_copy(key, CHUNK_PAGE)?;
        let newest = extents.iter().map(|(_, e)| e.version).max().unwrap_or(Version::ZERO);
        summary.set_newest(newest.max(summary.newest()));
        let settled = self.shared.index().chunk(Role::Replica, group, chunk).and_then(|c| c.settled);
        let generations: Vec<u32> = pages.keys().map(|number| summary.next_generation(*number)).collect();
        pages.iter().for_each(|(number, page)| summary.set_data_blocks(*number, page.data_entries()));
        let end = self.segments_end();
        // The end of the segments is a unique number: it advances with every record that names a file.
        let (file_number, generation) = settled.map_or((end.to_u64(), 1), |s| (s.file, s.generation + 1));
        let mut record = Settled {
            generation,
            file: file_number,
            newest: summary.newest(),
            blocks: 0,
            before: NOWHERE,
            at: end,
        };
        if group.column().is_some() {
            record.blocks = summary.data_blocks();
            record.before = before.or(settled.map(|settled| settled.before)).unwrap_or(NOWHERE);
        }
        pages.insert(CHUNK_PAGE, summary);
        for ((number, page), generation) in pages.iter_mut().zip(generations.into_iter().chain([generation]))
        {
            let at = PageId { group, chunk, file: file_number, page: *number };
            let (offset, bytes) = page.seal(&at, generation);
            file.write(&mut [IoSlice::new(bytes)], offset).map_err(|e| self.write_failed(&e))?;
        }
        Ok(Some((
            Staged::settled(key, &record),
            pages.into_iter().map(|(number, page)| (number, Arc::new(page))).collect(),
        )))
    }

    /// Writes the extents' blocks; returns the resulting pages that describe them.
    fn write_blocks(
        &mut self,
        key: FileKey,
        file: &dyn DiskFile,
        extents: &[(u32, Extent)],
    ) -> Result<BTreeMap<u32, Page>, StoreError> {
        let mut pages: BTreeMap<u32, Page> = BTreeMap::new();
        let mut writer = RunWriter::new(file);
        for (first, extent) in extents {
            let source = match extent.place {
                ExtentPlace::Segment(offset) => {
                    Some((self.file(FileId::Segment(extent.at.segment))?, offset as u64))
                }
                _ => None,
            };
            for block in *first..first + extent.count {
                let number = block / PAGE_BLOCKS;
                if let Entry::Vacant(slot) = pages.entry(number) {
                    slot.insert(self.page_copy(key, number)?);
                }
                let page = pages.get_mut(&number).expect("just inserted");
                let old = page.entry(block % PAGE_BLOCKS);
                let repairs = extent.repair && old.kind == EntryKind::Lost;
                if old.version > extent.version && !repairs {
                    continue;
                }
                let skip = block - first;
                let (crc, kind) = match extent.place {
                    ExtentPlace::Zero => (0, EntryKind::Zero),
                    _ => (extent.crcs()[skip as usize], EntryKind::Data),
                };
                page.set_entry(block % PAGE_BLOCKS, BlockEntry { version: extent.version, crc, kind });
                let written = match &source {
                    Some((segment, offset)) => {
                        writer.copy(block_offset(block), segment, offset + skip as u64 * BLOCK_BYTES as u64)
                    }
                    None if kind == EntryKind::Zero && old.kind != EntryKind::Zero => {
                        writer.punch(block_offset(block))
                    }
                    None => Ok(()),
                };
                written.map_err(|e| self.write_failed(&e))?;
            }
        }
        writer.finish().map_err(|e| self.write_failed(&e))?;
        Ok(pages)
    }

    /// A copy of a chunk file's page, to be changed.
    fn page_copy(&self, (group, chunk): FileKey, number: u32) -> Result<Page, StoreError> {
        let page = self.look(|index| index.page(group, chunk, number))?;
        Ok(page.map_or_else(Page::empty, |page| (*page).clone()))
    }

    /// Sealed segments to retire: those so dead that copying the rest pays. The last `tail_bytes` stay, for clients'
    /// retries. Newest first, because they are popped from the end.
    fn retirable(&mut self) -> Result<Vec<u32>, StoreError> {
        // A removed file that came back without its tombstone would undo a deletion.
        while let Some(key) = self.names.unneeded.first().copied() {
            self.remove_unneeded(key)?;
            self.names.unneeded.remove(&key);
        }
        while let Some(group) = self.names.removed_in.first().copied() {
            self.sync_removals(group)?;
        }
        let open = self.open.as_ref().map(|open| open.number);
        let mut index = self.shared.index();
        let index = &mut *index;
        index.bury();
        let oldest = index.segments.keys().next().copied().unwrap_or(0);
        // A drop mark is needed while a segment other than its own may hold what it voids.
        index.drops.retain(|mark| {
            let needed = oldest < mark.at.segment && oldest <= mark.before.segment;
            if !needed {
                index.segments.get_mut(&mark.at.segment).expect("a mark's segment exists").live -=
                    MARKER_BYTES;
            }
            needed
        });
        let tail_bytes = self.config.tail_bytes;
        let mut newer = 0;
        let mut retirable = Vec::new();
        for (number, segment) in index.segments.iter().rev().filter(|(number, _)| Some(**number) != open) {
            if newer >= tail_bytes && segment.live * 2 < segment.bytes {
                retirable.push(*number);
            }
            newer += segment.bytes;
        }
        Ok(retirable)
    }

    /// Copies what is live in a segment to the open one, as much as one step may; when all is copied, deletes it and
    /// returns true.
    fn retire(&mut self, number: u32) -> Result<bool, StoreError> {
        let open = self.open.as_ref().map(|open| open.number);
        debug_assert_ne!(open, Some(number), "it would be copied to itself");
        self.sync_segments()?;
        let (extents, last) = self.extents_of(number, STEP_BYTES);
        let mut batch = Vec::with_capacity(extents.len());
        for (role, group, chunk, first, extent) in extents {
            batch.push(self.copy_of(role, group, chunk, first, &extent)?);
        }
        if last {
            batch.extend(self.markers_of(number));
        }
        if !batch.is_empty() {
            self.append(&mut batch)?;
        }
        if !last {
            return Ok(false);
        }
        self.note_segments(|other| other != number)?;
        self.remove(&segment_path(number))?;
        self.names.segment_removed = true;
        self.forget_segment(number);
        self.sync_segments()?;
        Ok(true)
    }

    /// Makes the removal of a segment durable: before a newer one, which may void something in it, is deleted.
    fn sync_segments(&mut self) -> Result<(), StoreError> {
        self.names.sync_segments(&*self.disk).map_err(|e| self.unless_short(&e))
    }

    fn forget_segment(&mut self, number: u32) {
        let mut index = self.shared.index();
        index.forgotten_moved(number);
        let marks = index.drops.len();
        index.drops.retain(|mark| mark.at.segment != number);
        let marks = (marks - index.drops.len()) as u64;
        let segment = index.segments.remove(&number).expect("retired once");
        assert_eq!(segment.live, marks * MARKER_BYTES, "all that is needed of a segment was copied");
        index.files.forget(|file| *file == FileId::Segment(number));
        index.bury();
    }

    /// The tombstones, drops, `Settled` marks and open records of a segment, as records for another.
    fn markers_of(&self, number: u32) -> Vec<Staged> {
        let index = self.shared.index();
        let drops = index.drops.iter().filter(|mark| mark.at.segment == number).map(|mark| {
            let mut copy = Staged::marker(HeadKind::Drop, mark.role, mark.group);
            copy.head.version.seq = mark.before.to_u64();
            copy
        });
        let chunks =
            index.roles.iter().flat_map(|(place, chunks)| chunks.iter().map(move |(id, c)| (place, id, c)));
        let of_chunks = chunks.flat_map(|((role, group), id, chunk)| {
            let tombstone = chunk.tombstone.filter(|t| t.at.segment == number);
            let settled = chunk.settled.filter(|s| s.at.segment == number);
            let tombstone = tombstone.map(|t| Staged::deletion(*role, *group, *id, t.version));
            let settled = settled.map(|s| Staged::settled((*group, *id), &s));
            tombstone.into_iter().chain(settled)
        });
        let forgotten = index.forgotten_in(number).into_iter();
        let forgotten = forgotten
            .map(|(_, group, chunk, version)| Staged::deletion(Role::Replica, group, chunk, version));
        let mut markers: Vec<Staged> = drops.chain(of_chunks).chain(forgotten).collect();
        markers.iter_mut().for_each(|copy| copy.head.moved = true);
        let open = index.tails.of_segment(number);
        markers.extend(open.map(|(role, group, record)| Staged::open(role, group, record)));
        markers
    }

    /// About `most` bytes of what only this segment has, and whether that is all.
    fn extents_of(&self, number: u32, most: u64) -> (Vec<Placed>, bool) {
        let index = self.shared.index();
        let (mut extents, mut bytes) = (Vec::new(), 0);
        for ((role, group), chunks) in &index.roles {
            for (id, chunk) in chunks {
                for (first, extent) in chunk.overlay.iter().filter(|(_, e)| e.at.segment == number) {
                    if bytes >= most {
                        return (extents, false);
                    }
                    bytes += extent.segment_bytes();
                    extents.push((*role, *group, *id, first, extent.clone()));
                }
            }
        }
        (extents, true)
    }

    /// A record equivalent to the extent. Damaged data keeps its original checksum, so that it stays known as damaged.
    fn copy_of(
        &self,
        role: Role,
        group: GroupId,
        chunk: ChunkId,
        first: u32,
        extent: &Extent,
    ) -> Result<Staged, StoreError> {
        let mut payload = Vec::new();
        let kind = match extent.place {
            ExtentPlace::Zero => HeadKind::Zero,
            ExtentPlace::File => HeadKind::InFile,
            ExtentPlace::Segment(offset) => {
                let file = self.file(FileId::Segment(extent.at.segment))?;
                read_fully(&*file, &mut payload, extent.data_bytes() as usize, offset as u64)
                    .map_err(|e| self.unless_short(&e))?;
                HeadKind::Data
            }
        };
        let mut copy = Staged::marker(kind, role, group);
        copy.head = Head {
            chunk,
            first,
            count: extent.count,
            version: extent.version,
            moved: true,
            repair: extent.repair,
            crcs: extent.crcs().to_vec(),
            ..copy.head
        };
        copy.payload = Bytes::from(payload);
        Ok(copy)
    }
}

/// Reads what can be read; the rest becomes zeroes, which then fail their checksums. Only a shortage is an error.
fn read_fully(file: &dyn DiskFile, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
    let start = out.len();
    if let Err(error) = file.read(out, len, offset) {
        out.truncate(start);
        if shortage(&error).is_some() {
            return Err(error);
        }
    }
    out.resize(start + len, 0);
    Ok(())
}

/// Blocks that are contiguous both in a segment and in the chunk file.
struct Source {
    segment: Arc<dyn DiskFile>,
    offset: u64,
    len: usize,
}

/// Writes blocks to a chunk file, adjacent ones in one call.
struct RunWriter<'a> {
    file: &'a dyn DiskFile,
    /// File offset of `bytes`, followed by what is still to be read from `source`.
    offset: u64,
    bytes: Vec<u8>,
    source: Option<Source>,
    /// Start and length of the hole to be punched.
    hole: (u64, u64),
}

impl<'a> RunWriter<'a> {
    const RUN_BYTES: usize = 1 << 20;

    fn new(file: &'a dyn DiskFile) -> RunWriter<'a> {
        RunWriter { file, offset: 0, bytes: Vec::new(), source: None, hole: (0, 0) }
    }

    /// Copies a block from a segment.
    fn copy(&mut self, to: u64, segment: &Arc<dyn DiskFile>, from: u64) -> io::Result<()> {
        let pending = self.source.as_ref().map_or(0, |s| s.len);
        let adjoins = to == self.offset + (self.bytes.len() + pending) as u64
            && self.bytes.len() + pending < Self::RUN_BYTES;
        match &mut self.source {
            Some(s) if adjoins && Arc::ptr_eq(&s.segment, segment) && s.offset + s.len as u64 == from => {
                s.len += BLOCK_BYTES;
                return Ok(());
            }
            _ => self.load()?,
        }
        if !adjoins {
            self.write()?;
            self.offset = to;
        }
        self.source = Some(Source { segment: segment.clone(), offset: from, len: BLOCK_BYTES });
        Ok(())
    }

    fn punch(&mut self, at: u64) -> io::Result<()> {
        if at != self.hole.0 + self.hole.1 {
            self.make_hole()?;
            self.hole = (at, 0);
        }
        self.hole.1 += BLOCK_BYTES as u64;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.load()?;
        self.write()?;
        self.make_hole()
    }

    fn load(&mut self) -> io::Result<()> {
        match self.source.take() {
            Some(source) => read_fully(&*source.segment, &mut self.bytes, source.len, source.offset),
            None => Ok(()),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if !self.bytes.is_empty() {
            self.file.write(&mut [IoSlice::new(&self.bytes)], self.offset)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn make_hole(&mut self) -> io::Result<()> {
        if self.hole.1 > 0 {
            self.file.punch(self.hole.0, self.hole.1)?;
        }
        Ok(())
    }
}
