//! Where data is: per role, group and chunk the [`Overlay`] of records that are only in segments, on top of the chunk
//! file's metadata pages. It never does I/O: if something it needs is not in memory it returns a [`Miss`], which the
//! I/O thread loads. So a reader on another thread holds the lock for microseconds and never waits for a disk.
//!
//! A block's content is its newest version in overlay and chunk file, unless the chunk's tombstone is newer. On a tie
//! the overlay wins: equal versions are equal bytes, but a crash may have left the file's half written.

use crate::GroupSpace;
use crate::disk::DiskFile;
use crate::layout::{CHUNK_PAGE, EntryKind, Head, HeadKind, MARKER_BYTES, PAGE_BLOCKS, Page};
use crate::overlay::{Extent, ExtentPlace, Overlay, Position};
use crate::recent::Recent;
use crate::tails::Tails;
use ebb_types::{BLOCK_BYTES, ChunkId, Epoch, GroupId, Kind, RECORD_BLOCKS_MAX, Role, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Minimum number of cached pages. A query is repeated whenever a page that it needs was loaded: with less room than
/// the longest read needs, each load would evict another of its pages, endlessly. Half of these are sure to stay: all
/// pages that consecutive blocks may touch, and the chunk page.
const PAGES_LEAST: usize = 2 * (RECORD_BLOCKS_MAX / PAGE_BLOCKS + 2) as usize;

/// Identifies a chunk file. Only replicas have one.
pub type FileKey = (GroupId, ChunkId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileId {
    Segment(u32),
    Chunk(FileKey),
}

/// What must be loaded before the index can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    Page(FileKey, u32),
    File(FileId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    pub version: Version,
    pub at: Position,
}

/// A `Settled` record: what the chunk file must hold. Without one, its pages mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Generation of the chunk page.
    pub generation: u32,
    /// The file's number.
    pub file: u64,
    /// No version in the file's pages is newer.
    pub newest: Version,
    /// Of a column: blocks of data in the file, and the position in the segments before which it has all records of the
    /// chunk.
    pub blocks: u32,
    pub before: Position,
    pub at: Position,
}

impl Settled {
    fn data_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }
}

#[derive(Clone, Debug, Default)]
pub struct Chunk {
    pub overlay: Overlay,
    pub tombstone: Option<Tombstone>,
    pub settled: Option<Settled>,
    pub has_file: bool,
    /// Bytes of the chunk file on disk.
    pub allocated: u64,
}

#[derive(Clone, Debug)]
pub struct Segment {
    pub bytes: u64,
    /// Bytes that are still needed.
    pub live: u64,
}

/// A `Drop` record that must be kept: an older segment may hold records that it voids.
#[derive(Clone, Copy, Debug)]
pub struct DropMark {
    pub role: Role,
    pub group: GroupId,
    pub before: Position,
    pub at: Position,
}

/// Where a block's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: zeroes.
    Nothing,
    /// In the chunk file.
    File,
    Segment {
        segment: u32,
        offset: u32,
    },
    /// The chunk file's metadata is damaged here.
    Lost,
}

/// A block as visible to readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Zero: never written, or deleted. For a lost block: it was not newer than this.
    pub version: Version,
    pub crc: u32,
    pub place: Place,
}

impl Cell {
    const NEVER: Cell = Cell { version: Version::ZERO, crc: 0, place: Place::Nothing };

    pub fn kind(&self) -> Kind {
        match self.place {
            Place::Nothing => Kind::Zero,
            Place::Lost => Kind::Lost,
            Place::File | Place::Segment { .. } => Kind::Data,
        }
    }
}

type Chunks = BTreeMap<ChunkId, Chunk>;

pub struct Index {
    pub roles: BTreeMap<(Role, GroupId), Chunks>,
    pub segments: BTreeMap<u32, Segment>,
    pub drops: Vec<DropMark>,
    /// The tombstones of the replicas, oldest first.
    tombstones: BTreeSet<(GroupId, Version, ChunkId)>,
    /// Deletions that the protocol no longer needs. Their records stay while an older segment may have what they void.
    forgotten: BTreeMap<Position, (GroupId, ChunkId, Version)>,
    pub pages: Recent<(FileKey, u32), Arc<Page>>,
    pub files: Recent<FileId, Arc<dyn DiskFile>>,
    pub kept: Kept,
    /// Bytes of all chunk files on disk.
    pub file_bytes: u64,
    pub tails: Tails,
}

/// Bytes of data that are kept, without heads, metadata pages and what is not needed any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// As replicas of columns. Data that was overwritten or set to zero counts until its chunk file is brought up to
    /// date.
    pub own: u64,
    pub offload: u64,
}

impl Kept {
    /// The figure for this role and group, if there is one.
    fn figure(&mut self, role: Role, group: GroupId) -> Option<&mut u64> {
        match role {
            Role::Replica => group.column().map(|_| &mut self.own),
            Role::Offload { .. } => Some(&mut self.offload),
        }
    }
}

/// Updates the segments' live bytes and what is kept as extents come and go.
fn account<'a>(
    segments: &'a mut BTreeMap<u32, Segment>,
    kept: &'a mut Kept,
    (role, group): (Role, GroupId),
) -> impl FnMut(&Extent, bool) + 'a {
    let mut kept = kept.figure(role, group);
    move |extent, came| {
        let live = &mut segments.get_mut(&extent.at.segment).expect("an extent's segment exists").live;
        *live = if came { *live + extent.segment_bytes() } else { *live - extent.segment_bytes() };
        if let Some(kept) = kept.as_mut().filter(|_| !extent.in_file) {
            **kept = if came { **kept + extent.data_bytes() } else { **kept - extent.data_bytes() };
        }
    }
}

/// The same for open records, whose heads must stay.
fn account_open(segments: &mut BTreeMap<u32, Segment>) -> impl FnMut(Position, bool) + '_ {
    |at, came| {
        let live = &mut segments.get_mut(&at.segment).expect("an open record's segment exists").live;
        *live = if came { *live + MARKER_BYTES } else { *live - MARKER_BYTES };
    }
}

impl Index {
    pub fn new(cached_pages: usize, open_files: usize) -> Index {
        Index {
            roles: BTreeMap::new(),
            segments: BTreeMap::new(),
            drops: Vec::new(),
            tombstones: BTreeSet::new(),
            forgotten: BTreeMap::new(),
            pages: Recent::new(cached_pages.max(PAGES_LEAST)),
            files: Recent::new(open_files),
            kept: Kept::default(),
            file_bytes: 0,
            tails: Tails::default(),
        }
    }

    pub fn chunk(&self, role: Role, group: GroupId, chunk: ChunkId) -> Option<&Chunk> {
        self.roles.get(&(role, group))?.get(&chunk)
    }

    pub fn chunk_mut(&mut self, group: GroupId, chunk: ChunkId) -> &mut Chunk {
        self.roles.entry((Role::Replica, group)).or_default().entry(chunk).or_default()
    }

    pub fn tombstone(&self, role: Role, group: GroupId, chunk: ChunkId) -> Option<Version> {
        self.chunk(role, group, chunk)?.tombstone.map(|t| t.version)
    }

    /// Bytes on disk.
    pub fn used(&self) -> u64 {
        self.file_bytes + self.segments.values().map(|s| s.bytes).sum::<u64>()
    }

    /// End of the durable records: [`ebb_types::StoreMark::position`]. The newest segment is never deleted, so it only
    /// grows.
    pub fn position(&self) -> u64 {
        let newest = self.segments.iter().next_back();
        newest.map_or(0, |(number, segment)| u64::from(*number) << 32 | segment.bytes)
    }

    /// The first chunk at or after `from`.
    pub fn next_chunk(&self, role: Role, group: GroupId, from: ChunkId) -> Option<(ChunkId, &Chunk)> {
        self.roles.get(&(role, group))?.range(from..).next().map(|(id, chunk)| (*id, chunk))
    }

    /// What is kept of the group: needs no page, so no I/O.
    pub fn space(&self, group: GroupId) -> GroupSpace {
        let mut space = GroupSpace::default();
        let of_group = self.roles.iter().filter(|((_, of), _)| *of == group);
        for (id, chunk) in of_group.flat_map(|(_, chunks)| chunks) {
            space.tombstones += u64::from(chunk.tombstone.is_some());
            // The file of a deleted chunk is removed soon; nothing says that it must exist.
            if chunk.settled.is_some() || !chunk.overlay.is_empty() {
                let in_segments = chunk.overlay.iter().filter(|(_, extent)| !extent.in_file);
                let bytes = in_segments.map(|(_, extent)| extent.data_bytes()).sum::<u64>();
                *space.chunks.entry(*id).or_default() += chunk.allocated + bytes;
            }
        }
        space
    }

    /// Adds a record that is durable at `at`. The caller must remove the chunk files of a dropped or deleted chunk.
    pub fn admit(&mut self, head: &Head, at: Position) {
        let (role, group) = (head.role, head.group);
        self.tails.admit(head, at, &mut account_open(&mut self.segments));
        match head.kind {
            HeadKind::Drop => {
                self.void(role, group, Position::from_u64(head.version.seq));
                self.drops.push(DropMark { role, group, before: Position::from_u64(head.version.seq), at });
                self.segment_mut(at).live += MARKER_BYTES;
            }
            HeadKind::DropFiles => self.void(role, group, at),
            HeadKind::Delete => self.admit_delete(head, at),
            HeadKind::Settled => self.admit_settled(head, at),
            HeadKind::Note | HeadKind::Open => {}
            HeadKind::Data | HeadKind::InFile | HeadKind::Zero => {
                let chunks = self.roles.entry((role, group)).or_default();
                let chunk = chunks.entry(head.chunk).or_default();
                // "Never written" is true of a deleted chunk too.
                let says_so = head.version == Version::ZERO;
                if !says_so && chunk.tombstone.is_some_and(|t| t.version >= head.version) {
                    return;
                }
                let place = match head.kind {
                    HeadKind::Data => ExtentPlace::Segment(at.offset + head.head_len() as u32),
                    HeadKind::InFile => ExtentPlace::File,
                    _ => ExtentPlace::Zero,
                };
                let crcs = head.crcs.as_slice().into();
                let Head { count, version, repair, .. } = *head;
                let extent = Extent { count, version, at, place, repair, crcs, crc_from: 0, in_file: false };
                chunk.overlay.insert(
                    head.first,
                    extent,
                    &mut account(&mut self.segments, &mut self.kept, (role, group)),
                );
            }
        }
    }

    fn admit_delete(&mut self, head: &Head, at: Position) {
        let chunks = self.roles.entry((head.role, head.group)).or_default();
        let chunk = chunks.entry(head.chunk).or_default();
        if let Some(old) = chunk.tombstone {
            if old.version > head.version {
                return;
            }
            self.segments.get_mut(&old.at.segment).expect("a tombstone's segment exists").live -=
                MARKER_BYTES;
            if head.role == Role::Replica {
                let listed = self.tombstones.remove(&(head.group, old.version, head.chunk));
                debug_assert!(listed, "every tombstone of a replica is listed");
            }
        }
        if head.role == Role::Replica {
            self.tombstones.insert((head.group, head.version, head.chunk));
        }
        chunk.tombstone = Some(Tombstone { version: head.version, at });
        if let Some(void) = chunk.settled.take_if(|settled| settled.newest <= head.version) {
            self.segments.get_mut(&void.at.segment).expect("a mark's segment exists").live -= MARKER_BYTES;
            self.kept.own -= void.data_bytes();
        }
        chunk.overlay.remove(
            |extent| extent.version <= head.version,
            &mut account(&mut self.segments, &mut self.kept, (head.role, head.group)),
        );
        self.segment_mut(at).live += MARKER_BYTES;
    }

    fn admit_settled(&mut self, head: &Head, at: Position) {
        let chunk = self.chunk_mut(head.group, head.chunk);
        if chunk.tombstone.is_some_and(|t| t.version >= head.version) {
            return;
        }
        let (file, before) = head.request.map_or((0, 0), |r| (r.client, r.seq));
        let before = Position::from_u64(before);
        let settled =
            Settled { generation: head.first, file, newest: head.version, blocks: head.count, before, at };
        let in_file = chunk.overlay.mark_in_file(before);
        let old = chunk.settled.replace(settled);
        self.segment_mut(at).live += MARKER_BYTES;
        self.kept.own = self.kept.own + settled.data_bytes() - in_file;
        if let Some(old) = old {
            self.segment_mut(old.at).live -= MARKER_BYTES;
            self.kept.own -= old.data_bytes();
        }
    }

    /// All segments are read. What a repair wrote before its chunk was last moved to the file may have been moved as
    /// well, and been overwritten there by a write whose segment is gone: it says nothing of what the file has lost.
    pub fn doubt_moved_repairs(&mut self) {
        let chunks = self.roles.values_mut().flat_map(|chunks| chunks.values_mut());
        for chunk in chunks {
            if let Some(settled) = chunk.settled {
                chunk.overlay.doubt_repairs(settled.at);
            }
        }
    }

    fn segment_mut(&mut self, at: Position) -> &mut Segment {
        self.segments.get_mut(&at.segment).expect("records are admitted to existing segments")
    }

    /// Forgets the records of a role and group before `before`.
    fn void(&mut self, role: Role, group: GroupId, before: Position) {
        self.tails.void(role, group, before, &mut account_open(&mut self.segments));
        let Some(chunks) = self.roles.get_mut(&(role, group)) else { return };
        for (id, chunk) in chunks.iter_mut() {
            if let Some(tombstone) = chunk.tombstone.take_if(|t| t.at < before) {
                if role == Role::Replica {
                    let listed = self.tombstones.remove(&(group, tombstone.version, *id));
                    debug_assert!(listed, "every tombstone of a replica is listed");
                }
                let segment = self.segments.get_mut(&tombstone.at.segment);
                segment.expect("a tombstone's segment exists").live -= MARKER_BYTES;
            }
            if let Some(settled) = chunk.settled.take_if(|s| s.at < before) {
                let segment = self.segments.get_mut(&settled.at.segment);
                segment.expect("a mark's segment exists").live -= MARKER_BYTES;
                self.kept.own -= settled.data_bytes();
            }
            chunk.overlay.remove(
                |extent| extent.at < before,
                &mut account(&mut self.segments, &mut self.kept, (role, group)),
            );
        }
        if role == Role::Replica {
            let void = |at: &Position, of: &mut (GroupId, ChunkId, Version)| of.0 == group && *at < before;
            for (at, _) in self.forgotten.extract_if(.., void) {
                self.segments.get_mut(&at.segment).expect("a deletion's segment exists").live -= MARKER_BYTES;
            }
        }
        self.tidy(role, group);
    }

    /// Forgets chunks that have nothing left.
    pub fn tidy(&mut self, role: Role, group: GroupId) {
        if let Some(chunks) = self.roles.get_mut(&(role, group)) {
            let kept = |c: &Chunk| c.has_file || c.settled.is_some() || c.tombstone.is_some();
            chunks.retain(|_, chunk| kept(chunk) || !chunk.overlay.is_empty());
            if chunks.is_empty() {
                self.roles.remove(&(role, group));
            }
        }
    }

    /// Forgets these blocks of a chunk's overlay: the chunk file has them.
    pub fn settle_chunk(&mut self, (group, id): FileKey, blocks: Range<u32>, allocated: u64) {
        let chunks = self.roles.get_mut(&(Role::Replica, group)).expect("the chunk was moved");
        let chunk = chunks.get_mut(&id).expect("the chunk was moved");
        chunk.overlay.clear(blocks, &mut account(&mut self.segments, &mut self.kept, (Role::Replica, group)));
        let is_known = chunk.settled.is_some() || chunk.tombstone.is_some();
        debug_assert!(is_known, "a record says what the file has before the segments' blocks are forgotten");
        chunk.has_file = true;
        self.set_allocated((group, id), allocated);
    }

    pub fn set_allocated(&mut self, (group, id): FileKey, allocated: u64) {
        let chunk = self.chunk_mut(group, id);
        let before = std::mem::replace(&mut chunk.allocated, allocated);
        self.file_bytes = self.file_bytes + allocated - before;
    }

    /// Drops a chunk's cached pages, so that they are read again.
    pub fn forget_pages(&mut self, chunk: FileKey) {
        self.pages.forget(|(key, _)| *key == chunk);
    }

    /// The chunk's file is gone; if it should exist, its pages are lost from now on.
    pub fn forget_file(&mut self, (group, id): FileKey) {
        self.set_allocated((group, id), 0);
        self.chunk_mut(group, id).has_file = false;
        self.forget_pages((group, id));
        self.files.forget(|file| *file == FileId::Chunk((group, id)));
    }

    /// Forgets the replica's tombstones up to this version, except those of chunks that still have a file.
    pub fn forget_tombstones(&mut self, group: GroupId, up_to: Version) {
        let end = Version { seq: up_to.seq.saturating_add(1), ..up_to };
        let old = (group, Version::ZERO, ChunkId::default())..(group, end, ChunkId::default());
        let Some(chunks) = self.roles.get_mut(&(Role::Replica, group)) else { return };
        let forgotten = &mut self.forgotten;
        let forget = |(_, version, id): &(GroupId, Version, ChunkId)| {
            let chunk = chunks.get_mut(id).expect("a tombstone's chunk is known");
            if chunk.has_file || chunk.settled.is_some() {
                return false;
            }
            let tombstone = chunk.tombstone.take().expect("every one is listed");
            forgotten.insert(tombstone.at, (group, *id, *version));
            if chunk.overlay.is_empty() {
                chunks.remove(id);
            }
            true
        };
        self.tombstones.extract_if(old, forget).for_each(drop);
        if chunks.is_empty() {
            self.roles.remove(&(Role::Replica, group));
        }
        self.bury();
    }

    /// Releases the records of forgotten deletions in the oldest segment: no segment has anything that they void.
    pub fn bury(&mut self) {
        let Some(mut oldest) = self.segments.first_entry() else { return };
        let number = *oldest.key();
        while let Some(first) = self.forgotten.first_entry().filter(|e| e.key().segment <= number) {
            first.remove();
            oldest.get_mut().live -= MARKER_BYTES;
        }
    }

    /// The forgotten deletions whose records are in this segment.
    pub fn forgotten_in(&self, segment: u32) -> Vec<(Position, GroupId, ChunkId, Version)> {
        let here = Position { segment, offset: 0 }..Position { segment: segment + 1, offset: 0 };
        self.forgotten
            .range(here)
            .map(|(at, &(group, chunk, version))| (*at, group, chunk, version))
            .collect()
    }

    /// The forgotten deletions of this segment have been copied to a newer one.
    pub fn forgotten_moved(&mut self, segment: u32) {
        for (at, group, _, version) in self.forgotten_in(segment) {
            self.forgotten.remove(&at);
            self.segment_mut(at).live -= MARKER_BYTES;
            self.forget_tombstones(group, version);
        }
    }

    /// Page of a chunk file; `None`: the chunk has none. If the file should exist and does not, the page is lost.
    pub fn page(&mut self, group: GroupId, chunk: ChunkId, page: u32) -> Result<Option<Arc<Page>>, Miss> {
        if self.chunk(Role::Replica, group, chunk).is_none_or(|c| c.settled.is_none()) {
            return Ok(None);
        }
        let key = ((group, chunk), page);
        self.pages.get(&key).map(Some).ok_or(Miss::Page(key.0, page))
    }

    /// Blocks `first..first + count` as visible to readers.
    pub fn cells(
        &mut self,
        role: Role,
        group: GroupId,
        id: ChunkId,
        first: u32,
        count: u32,
    ) -> Result<Vec<Cell>, Miss> {
        let mut cells = vec![Cell::NEVER; count as usize];
        if role == Role::Replica {
            self.file_cells(group, id, first, &mut cells)?;
        }
        let Some(chunk) = self.chunk(role, group, id) else { return Ok(cells) };
        if let Some(tombstone) = chunk.tombstone {
            for cell in cells.iter_mut().filter(|c| c.version <= tombstone.version && c.place != Place::Lost)
            {
                *cell = Cell::NEVER;
            }
        }
        for (start, extent) in chunk.overlay.touching(first, count) {
            let from = start.max(first);
            let to = (start + extent.count).min(first + count);
            for block in from..to {
                let cell = &mut cells[(block - first) as usize];
                if extent.version >= cell.version || (extent.repair && cell.place == Place::Lost) {
                    *cell = extent_cell(extent, block - start);
                }
            }
        }
        Ok(cells)
    }

    fn file_cells(
        &mut self,
        group: GroupId,
        id: ChunkId,
        first: u32,
        cells: &mut [Cell],
    ) -> Result<(), Miss> {
        let end = first + cells.len() as u32;
        let mut block = first;
        while block < end {
            let page_end = ((block / PAGE_BLOCKS + 1) * PAGE_BLOCKS).min(end);
            let Some(page) = self.page(group, id, block / PAGE_BLOCKS)? else { return Ok(()) };
            for b in block..page_end {
                let entry = page.entry(b % PAGE_BLOCKS);
                let place = match entry.kind {
                    EntryKind::Zero => Place::Nothing,
                    EntryKind::Data => Place::File,
                    EntryKind::Lost => Place::Lost,
                };
                cells[(b - first) as usize] = Cell { version: entry.version, crc: entry.crc, place };
            }
            block = page_end;
        }
        Ok(())
    }

    /// The pages whose blocks may hold a version of epoch `since` or later, as a bit set: bit p for page p.
    pub fn windows(&mut self, role: Role, group: GroupId, id: ChunkId, since: Epoch) -> Result<u64, Miss> {
        let mut windows = 0;
        if role == Role::Replica
            && let Some(summary) = self.page(group, id, CHUNK_PAGE)?
            && summary.newest().epoch >= since
        {
            windows = summary.written();
        }
        if let Some(chunk) = self.chunk(role, group, id) {
            for (start, extent) in chunk.overlay.iter().filter(|(_, e)| e.version.epoch >= since) {
                for page in start / PAGE_BLOCKS..=(start + extent.count - 1) / PAGE_BLOCKS {
                    windows |= 1 << page;
                }
            }
        }
        Ok(windows)
    }

    /// The open file, to be read after the lock is released.
    pub fn file(&mut self, id: FileId) -> Result<Arc<dyn DiskFile>, Miss> {
        self.files.get(&id).ok_or(Miss::File(id))
    }

    /// Replica chunks that have records only in segments.
    pub fn unsettled(&self) -> BTreeSet<FileKey> {
        let replicas = self.roles.iter().filter(|((role, _), _)| *role == Role::Replica);
        replicas
            .flat_map(|((_, group), chunks)| {
                chunks.iter().filter(|(_, c)| !c.overlay.is_empty()).map(|(id, _)| (*group, *id))
            })
            .collect()
    }
}

fn extent_cell(extent: &Extent, skip: u32) -> Cell {
    let place = match extent.place {
        ExtentPlace::Zero => return Cell { version: extent.version, crc: 0, place: Place::Nothing },
        ExtentPlace::File => Place::File,
        ExtentPlace::Segment(offset) => {
            Place::Segment { segment: extent.at.segment, offset: offset + skip * BLOCK_BYTES as u32 }
        }
    };
    Cell { version: extent.version, crc: extent.crcs()[skip as usize], place }
}
