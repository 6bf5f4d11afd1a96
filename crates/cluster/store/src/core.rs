//! The store on the caller's thread: [`StoreCore::execute`] carries out operations, with all writes in one group
//! commit.
//!
//! A small record goes to the open segment: one write for the whole batch, one sync. Zeroes are written ahead of the
//! records, so that most syncs find length and blocks of the file as they were, and need not make them durable
//! (docs/cost.md). A sealed segment has none. The data of a large replica record goes directly to its chunk file if it
//! overwrites nothing there, so that it is written only once; that file is synced before the record, which then holds
//! only the checksums, is written to the segment. A torn write to the file thus hits only blocks that no record refers
//! to. Everything else reaches the chunk files later ([`crate::settle`]).
//!
//! A failed sync poisons the store (R9): the disk's content is then unknown, so nothing more is served. Shortage is not
//! damage (R18): what fails for want of descriptors or memory leaves everything as it was, and is tried again.

use crate::disk::{Disk, DiskFile};
use crate::index::{Cell, FileId, FileKey, Index, Miss, Place, Segment};
use crate::inventory::Inventory;
use crate::layout::{
    CHUNK_PAGE, Head, HeadKind, PAGE_BLOCKS, PAGE_BYTES, Page, PageId, SEQ_MAX, Superblock, block_offset,
    segment_header, slot_offset,
};
use crate::names::{Names, chunk_path, group_path, path_of, segment_path};
use crate::open::{OpenSegment, Staged, write_batch};
use crate::recent::Recent;
use crate::superblock::write_superblock;
use crate::unsettled::Unsettled;
use crate::{Completion, Config, Op, Outcome, PlantedBug, StoreError, Token};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, GroupId, RECORD_BLOCKS_MAX, Record, Role, StoreFigures, StoreId,
    StoreMark, Version, is_full,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum payload bytes in one group commit: bounds how long the first record waits for the others.
pub const BATCH_BYTES: usize = 8 << 20;

type Results = Vec<(Token, Result<Outcome, StoreError>)>;

/// The part of the store that readers on other threads share.
pub(crate) struct Shared {
    pub index: Mutex<Index>,
    pub poisoned: AtomicBool,
    /// The errno of what the I/O thread waits for; zero: for nothing.
    pub short: AtomicI32,
    /// Steps of the I/O thread that ended: a disk that hangs ends none.
    pub moves: AtomicU64,
    pub disk: Arc<dyn Disk>,
    pub config: Config,
    pub store: StoreId,
}

impl Shared {
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().expect("the index is whole: its methods do not panic")
    }

    /// A call of the disk has returned.
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub fn figures(&self) -> StoreFigures {
        let (used, kept, position) = {
            let index = self.index();
            (index.used(), index.kept, index.position())
        };
        StoreFigures {
            used: ebb_types::Bytes(used),
            capacity: ebb_types::Bytes(self.capacity(used)),
            own: ebb_types::Bytes(kept.own),
            offload: ebb_types::Bytes(kept.offload),
            poisoned: self.poisoned.load(Ordering::Relaxed),
            not_now: Some(self.short.load(Ordering::Relaxed)).filter(|errno| *errno != 0),
            mark: StoreMark { store: self.store, position },
        }
    }

    /// Bytes that may be used. The file system is never filled up: moving records from segments to chunk files takes
    /// space before it frees any.
    fn capacity(&self, used: u64) -> u64 {
        let free = self.disk.free_bytes().unwrap_or(0);
        let physical = (used + free).saturating_sub(self.config.checkpoint_bytes);
        self.config.capacity.map_or(physical, |limit| limit.0.min(physical))
    }
}

/// The store of one server. See the crate documentation for its use.
pub struct StoreCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) config: Config,
    pub(crate) owner: Superblock,
    /// The inventory as it is on disk.
    pub(crate) inventory: Inventory,
    pub(crate) open: Option<OpenSegment>,
    pub(crate) next_segment: u32,
    pub(crate) unsettled: Unsettled,
    /// Something was written in this run. Until then nothing is moved either: the metadata service recognises an older
    /// directory by how far its segments reach, and moves would extend them (R11).
    pub(crate) begun: bool,
    pub(crate) names: Names,
    /// Large pieces read recently past the page cache.
    pub(crate) reads: RefCell<Recent<(FileId, u64), ()>>,
}

/// What there was too little of, if the call failed for that. A failed sync is never a shortage: what it should have
/// made durable may be gone.
pub(crate) fn shortage(error: &io::Error) -> Option<StoreError> {
    const SHORT: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::AGAIN];
    let errno = error.raw_os_error()?;
    SHORT.iter().any(|short| short.raw_os_error() == errno).then_some(StoreError::NotNow { errno })
}

/// The first operation that has to be tried again.
pub(crate) fn not_now(done: &[Completion]) -> Option<StoreError> {
    done.iter().find_map(|completion| match &completion.outcome {
        Outcome::Failed(error @ StoreError::NotNow { .. }) => Some(error.clone()),
        _ => None,
    })
}

impl StoreCore {
    /// Carries out `ops` and adds a completion for each: first all writes, as one group commit, then the rest. But
    /// operations submitted before a drop are answered before the drop, and none overtakes one that has to be tried
    /// again.
    pub fn execute(&mut self, ops: Vec<(Token, Op)>, done: &mut Vec<Completion>) {
        let (before, asked) = (done.len(), ops.len());
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        let mut others = Vec::new();
        let mut short = None;
        for (token, op) in ops {
            let drops = matches!(op, Op::DropOffload { .. } | Op::DropReplica { .. });
            if drops && !others.is_empty() {
                self.commit(std::mem::take(&mut batch), done);
                batch_bytes = 0;
                self.answer_all(std::mem::take(&mut others), done);
                short = not_now(&done[before..]);
            }
            if matches!(op, Op::DropReplica { .. }) {
                self.commit(std::mem::take(&mut batch), done);
                batch_bytes = 0;
                short = not_now(&done[before..]);
            }
            if let Some(error) = short.clone() {
                done.push(Completion { token, outcome: Outcome::Failed(error) });
                continue;
            }
            match op {
                Op::Apply { ref payload, .. } => {
                    batch_bytes += payload.len();
                    batch.push((token, op));
                    if batch_bytes >= BATCH_BYTES {
                        self.commit(std::mem::take(&mut batch), done);
                        batch_bytes = 0;
                        short = not_now(&done[before..]);
                    }
                }
                Op::DropOffload { .. } => batch.push((token, op)),
                Op::DropReplica { group } => {
                    let outcome = self.guard(|store| store.drop_replica(group).map(|()| Outcome::Done));
                    done.push(Completion { token, outcome });
                    short = not_now(&done[before..]);
                }
                other => others.push((token, other)),
            }
        }
        self.commit(batch, done);
        self.answer_all(others, done);
        debug_assert_eq!(done.len() - before, asked, "every operation has one end");
    }

    fn answer_all(&mut self, ops: Vec<(Token, Op)>, done: &mut Vec<Completion>) {
        for (token, op) in ops {
            let outcome = self.guard(|store| store.answer(op));
            done.push(Completion { token, outcome });
        }
    }

    fn answer(&mut self, op: Op) -> Result<Outcome, StoreError> {
        Ok(match op {
            Op::Read { role, group, chunk, first, count } => {
                Outcome::Read(self.read(role, group, chunk, first, count)?)
            }
            Op::Check { role, group, chunk, first, count, bytes } => {
                Outcome::Read(self.check(role, group, chunk, (first, count), bytes)?)
            }
            Op::List { role, group, since, after, limit } => {
                Outcome::Listed(self.list(role, group, since, after, limit)?)
            }
            Op::Newer { role, group, runs } => Outcome::Newer(self.newer(role, group, &runs)?),
            Op::ForgetTombstones { group, up_to } => {
                self.shared.index().forget_tombstones(group, up_to);
                Outcome::Done
            }
            Op::Remember(membership) => {
                let owner = Superblock { membership, ..self.owner };
                write_superblock(&*self.disk, &owner).map_err(|e| self.write_failed(&e))?;
                self.owner = owner;
                Outcome::Done
            }
            Op::Flush => {
                self.flush()?;
                Outcome::Done
            }
            Op::Digest { role, group, verify } => Outcome::Digest(self.digest(role, group, verify)?),
            Op::Space { group } => Outcome::Space(self.shared.index().space(group)),
            Op::Apply { .. } | Op::DropOffload { .. } | Op::DropReplica { .. } => {
                unreachable!("handled as writes")
            }
        })
    }

    pub fn figures(&self) -> StoreFigures {
        self.shared.figures()
    }

    /// The chunks that data is kept of, with role and group.
    pub fn chunks(&self) -> Vec<(Role, GroupId, ChunkId)> {
        let index = self.shared.index();
        let all = index.roles.iter();
        all.flat_map(|((role, group), chunks)| chunks.keys().map(|chunk| (*role, *group, *chunk))).collect()
    }

    /// In which role anything is kept of a group: data, deletions, or records that are open.
    pub fn roles(&self) -> BTreeSet<(GroupId, Role)> {
        let index = self.shared.index();
        let kept = index.roles.keys().map(|&(role, group)| (group, role));
        kept.chain(index.tails.roles()).collect()
    }

    /// Runs `what` unless the store is poisoned.
    fn guard(&mut self, what: impl FnOnce(&mut Self) -> Result<Outcome, StoreError>) -> Outcome {
        if self.is_poisoned() {
            return Outcome::Failed(StoreError::Poisoned);
        }
        what(self).unwrap_or_else(Outcome::Failed)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.shared.poisoned.load(Ordering::Relaxed)
    }

    /// Poisons the store: a write or sync failed, so the disk's content is not known.
    pub(crate) fn poison(&self) -> StoreError {
        self.shared.poisoned.store(true, Ordering::Relaxed);
        StoreError::Poisoned
    }

    /// The error for a failed write: a full disk recovers, and so does a shortage; any other failure poisons the store.
    pub(crate) fn write_failed(&self, error: &io::Error) -> StoreError {
        if is_full(error) { self.no_space() } else { self.unless_short(error) }
    }

    /// The error for a call that must not fail: it poisons the store, unless it failed for a shortage.
    pub(crate) fn unless_short(&self, error: &io::Error) -> StoreError {
        shortage(error).unwrap_or_else(|| self.poison())
    }

    fn no_space(&self) -> StoreError {
        let figures = self.figures();
        StoreError::NoSpace { used: figures.used, capacity: figures.capacity }
    }

    /// Queries the index, and loads what it misses until it can answer.
    pub(crate) fn look<T>(&self, ask: impl Fn(&mut Index) -> Result<T, Miss>) -> Result<T, StoreError> {
        loop {
            self.shared.moved();
            let miss = match ask(&mut self.shared.index()) {
                Ok(answer) => return Ok(answer),
                Err(miss) => miss,
            };
            match miss {
                Miss::File(id) => {
                    self.file(id)?;
                }
                Miss::Page(key, page) => {
                    let loaded = Arc::new(self.load_page(key, page)?);
                    self.shared.index().pages.insert((key, page), loaded);
                }
            }
        }
    }

    /// Opens a file that should exist. One that does not reads as empty: its blocks then fail their checksums, as they
    /// should, and the rest of the store continues to work.
    pub(crate) fn file(&self, id: FileId) -> Result<Arc<dyn DiskFile>, StoreError> {
        if let Ok(file) = self.shared.index().file(id) {
            return Ok(file);
        }
        let opened = self.disk.open(&path_of(id), false);
        let mut index = self.shared.index();
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let FileId::Chunk(key) = id {
                    index.forget_file(key);
                }
                Arc::new(Absent)
            }
            Err(error) => return Err(self.unless_short(&error)),
        };
        index.files.insert(id, file.clone());
        Ok(file)
    }

    /// Checks whether an open chunk file is still the one that a restart would find under its name. If it was removed
    /// or replaced from outside, it counts as damaged from now on: anything written to it would be gone.
    pub(crate) fn look_up_chunk(&self, key: FileKey) -> Result<(), StoreError> {
        let open = self.shared.index().file(FileId::Chunk(key));
        let Ok(open) = open else {
            // The next page opens it by name. Cached pages may date from before it was closed.
            self.shared.index().forget_pages(key);
            return Ok(());
        };
        match self.disk.open(&chunk_path(key), false).and_then(|found| found.number()) {
            Ok(number) if open.number().is_ok_and(|known| known == number) => {}
            Ok(_) => self.shared.index().forget_file(key),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.shared.index().forget_file(key),
            Err(error) => return Err(self.unless_short(&error)),
        }
        Ok(())
    }

    /// Loads the valid generation of a page; a lost page if it is not there.
    fn load_page(&self, key: FileKey, number: u32) -> Result<Page, StoreError> {
        let settled = self.shared.index().chunk(Role::Replica, key.0, key.1).and_then(|c| c.settled);
        let Some(settled) = settled else { return Ok(Page::empty()) };
        let generation = if number == CHUNK_PAGE {
            settled.generation
        } else {
            let summary = self.look(|index| index.page(key.0, key.1, CHUNK_PAGE))?;
            summary.map_or(0, |summary| summary.page_generation(number))
        };
        if generation == 0 {
            return Ok(Page::empty());
        }
        let file = self.file(FileId::Chunk(key))?;
        let mut slot = Vec::new();
        let read = file.read(&mut slot, PAGE_BYTES, slot_offset(number, generation));
        if let Some(short) = read.as_ref().err().and_then(shortage) {
            return Err(short);
        }
        let at = PageId { group: key.0, chunk: key.1, file: settled.file, page: number };
        let found = read.ok().and_then(|()| Page::decode(&slot, &at, generation));
        // Blocks beyond the chunk size are not lost: no repair would reach them.
        let blocks = self.config.chunk_bytes.div_ceil(BLOCK_BYTES as u32);
        Ok(found.unwrap_or_else(|| match number {
            _ if self.config.has(PlantedBug::LostPageIsEmpty) => Page::empty(),
            CHUNK_PAGE => Page::lost_summary(settled.newest, blocks.div_ceil(PAGE_BLOCKS)),
            _ => Page::lost(settled.newest, blocks.saturating_sub(number * PAGE_BLOCKS)),
        }))
    }

    /// The chunk's file for writing; creates it, with a durable name, if there is none.
    pub(crate) fn chunk_file(&mut self, key: FileKey) -> Result<Arc<dyn DiskFile>, StoreError> {
        let exists = || self.shared.index().chunk(Role::Replica, key.0, key.1).is_some_and(|c| c.has_file);
        if exists() {
            self.look_up_chunk(key)?;
            let file = self.file(FileId::Chunk(key))?;
            // If the file was missing, the index knows by now.
            if exists() {
                return Ok(file);
            }
        }
        let dir = group_path(key.0);
        let made = (|| {
            if !self.names.groups.contains(&key.0) {
                self.disk.create_dir(&dir)?;
            }
            self.disk.open(&chunk_path(key), true)
        })();
        let file = made.map_err(|e| self.write_failed(&e))?;
        self.disk.sync_dir(&dir).map_err(|e| self.unless_short(&e))?;
        if !self.names.groups.contains(&key.0) {
            self.disk.sync_dir("chunks").map_err(|e| self.unless_short(&e))?;
            self.names.groups.insert(key.0);
        }
        let mut index = self.shared.index();
        index.files.insert(FileId::Chunk(key), file.clone());
        index.chunk_mut(key.0, key.1).has_file = true;
        Ok(file)
    }

    /// Called before anything is written.
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        self.begun = true;
        while let Some(group) = self.names.half_dropped.first().copied() {
            self.append(&mut [Staged::marker(HeadKind::Drop, Role::Replica, group)])?;
            self.names.half_dropped.remove(&group);
        }
        Ok(())
    }

    /// The records that a write appends; none if the store has its record already. `fits`: whether this commit fits,
    /// and whether what must fit does.
    fn staged(
        &mut self,
        op: Op,
        (fits, must_fits): (bool, bool),
        before: &[(usize, Staged)],
        direct: &mut BTreeMap<FileKey, Arc<dyn DiskFile>>,
    ) -> Result<Vec<Staged>, StoreError> {
        match op {
            Op::Apply { role, record, repair: None, .. } if self.is_known(role, &record, before) => {
                Ok(Vec::new())
            }
            Op::Apply { payload, must_fit, .. }
                if !payload.is_empty() && !(if must_fit { must_fits } else { fits }) =>
            {
                Err(self.no_space())
            }
            Op::Apply { role, record, payload, repair: None, committed, .. } => {
                let mut record = self.stage(role, record, payload, false, before, direct);
                if let Ok(Some(Staged { head, .. })) = &mut record {
                    head.committed = Head::committed_by(head.version, committed);
                }
                record.map(Vec::from_iter)
            }
            Op::Apply { role, record, payload, repair: Some(lost), .. } => {
                let committed = match record.group.column() {
                    // Columns have no tails.
                    Some(_) => record.version,
                    None => self.shared.index().tails.committed(record.group),
                };
                let mut staged = self.stage_repair((role, lost), record, payload, before, direct)?;
                for Staged { head, .. } in &mut staged {
                    head.committed = Head::committed_by(head.version, committed);
                }
                Ok(staged)
            }
            Op::DropOffload { group, stands_for } => {
                Ok(vec![Staged::marker(HeadKind::Drop, Role::Offload { stands_for }, group)])
            }
            _ => unreachable!("only writes are committed"),
        }
    }

    /// One group commit of applies and offload drops.
    fn commit(&mut self, ops: Vec<(Token, Op)>, done: &mut Vec<Completion>) {
        if ops.is_empty() {
            return;
        }
        let mut results: Results = Vec::with_capacity(ops.len());
        let mut staged: Vec<(usize, Staged)> = Vec::with_capacity(ops.len());
        let mut direct = BTreeMap::new();
        let begun = self.begin();
        let (fits, must_fits) = self.fits(&ops);
        if !fits {
            // A checkpoint may free segments.
            self.unsettled.raise(self.config.checkpoint_bytes);
        }
        let mut short = None;
        for (token, op) in ops {
            if let Some(error) = short.clone() {
                results.push((token, Err(error)));
                continue;
            }
            let outcome = if matches!(op, Op::Apply { .. }) { Outcome::Applied } else { Outcome::Done };
            let result = match &begun {
                _ if self.is_poisoned() => Err(StoreError::Poisoned),
                Err(error) => Err(error.clone()),
                Ok(()) => self.staged(op, (fits, must_fits), &staged, &mut direct),
            };
            if let Err(error @ StoreError::NotNow { .. }) = &result {
                short = Some(error.clone());
            }
            let result = result.map(|records| {
                staged.extend(records.into_iter().map(|record| (results.len(), record)));
                outcome
            });
            results.push((token, result));
        }
        for (key, file) in direct {
            if file.sync().is_err() {
                self.poison();
            }
            self.shared.moved();
            let allocated = file.allocated().unwrap_or(0);
            self.shared.index().set_allocated(key, allocated);
        }
        self.append_staged(staged, &mut results);
        let poisoned = self.is_poisoned();
        done.extend(results.into_iter().map(|(token, result)| {
            let outcome = match result {
                Ok(_) if poisoned => Outcome::Failed(StoreError::Poisoned),
                Ok(outcome) => outcome,
                Err(error) => Outcome::Failed(error),
            };
            Completion { token, outcome }
        }));
    }

    /// Appends; if that fails, tries once more without records that take space, so that deletes get through on a full
    /// disk.
    fn append_staged(
        &mut self,
        staged: Vec<(usize, Staged)>,
        results: &mut [(Token, Result<Outcome, StoreError>)],
    ) {
        let (slots, mut records): (Vec<usize>, Vec<Staged>) = staged.into_iter().unzip();
        if self.is_poisoned() || records.is_empty() {
            return;
        }
        let Err(error) = self.append(&mut records) else { return };
        if let StoreError::NotNow { .. } = error {
            slots.into_iter().for_each(|slot| results[slot].1 = Err(error.clone()));
            return;
        }
        let mut small = Vec::new();
        let mut small_slots = Vec::new();
        for (slot, record) in slots.into_iter().zip(records) {
            if record.payload.is_empty() && !self.is_poisoned() {
                small.push(record);
                small_slots.push(slot);
            } else {
                results[slot].1 = Err(error.clone());
            }
        }
        if !small.is_empty()
            && let Err(error) = self.append(&mut small)
        {
            for slot in small_slots {
                results[slot].1 = Err(error.clone());
            }
        }
    }

    /// Whether all data of a batch fits, and whether its `must_fit` data does: that may use the reserve too, because
    /// acknowledged data must not be stuck for lack of space.
    fn fits(&self, ops: &[(Token, Op)]) -> (bool, bool) {
        let (mut all, mut most) = (0, 0);
        for (_, op) in ops {
            if let Op::Apply { payload, must_fit, .. } = op {
                all += payload.len() as u64;
                most += if *must_fit { payload.len() as u64 } else { 0 };
            }
        }
        let used = self.shared.index().used();
        let capacity = self.shared.capacity(used);
        let reserve = self.config.checkpoint_bytes;
        (all == 0 || used + all <= capacity, most == 0 || used + most <= capacity + reserve)
    }

    /// Whether, judging by what is in memory, all blocks of a record are already here at its version or a newer one:
    /// then there is nothing to write. A record is resent when a connection broke, soon after the first time.
    fn is_known(&self, role: Role, record: &Record, staged: &[(usize, Staged)]) -> bool {
        let Record { group, chunk, first, count, version, .. } = *record;
        if staged.iter().any(|(_, s)| s.drops(role, group)) {
            return false;
        }
        let sound = |cell: &Cell| cell.version >= version && cell.place != Place::Lost;
        let sets_no_blocks = matches!(record.content, Content::Delete | Content::Note);
        if sets_no_blocks || count == 0 || count > RECORD_BLOCKS_MAX {
            return false;
        }
        let cells = self.shared.index().cells(role, group, chunk, first, count);
        cells.is_ok_and(|cells| cells.iter().all(sound))
    }

    /// Checks a record and decides where its data goes; large data is written to its chunk file here. `None`: the
    /// record sets nothing.
    fn stage(
        &mut self,
        role: Role,
        record: Record,
        payload: Bytes,
        repair: bool,
        staged: &[(usize, Staged)],
        direct: &mut BTreeMap<FileKey, Arc<dyn DiskFile>>,
    ) -> Result<Option<Staged>, StoreError> {
        if let Some(fault) = record.fault(payload.len()) {
            return Err(StoreError::Malformed(fault));
        }
        if record.version.seq > SEQ_MAX {
            return Err(StoreError::Malformed("sequence number out of range"));
        }
        let was_never_written = record.version == Version::ZERO;
        let says_nothing = was_never_written && !(repair && record.content == Content::Zero);
        if says_nothing || (!was_never_written && self.is_deleted(role, &record, staged)) {
            return Ok(None);
        }
        let (kind, crcs) = match record.content {
            Content::Data { crcs } => (HeadKind::Data, crcs),
            Content::Zero => (HeadKind::Zero, Vec::new()),
            Content::Delete => (HeadKind::Delete, Vec::new()),
            Content::Note => (HeadKind::Note, Vec::new()),
        };
        let mut out = Staged::marker(kind, role, record.group);
        (out.head.chunk, out.head.first, out.head.count) = (record.chunk, record.first, record.count);
        (out.head.version, out.head.request) = (record.version, record.request);
        // Then it is not a write that a primary may have to settle.
        out.head.moved = was_never_written;
        (out.head.repair, out.head.crcs, out.payload) = (repair, crcs, payload);
        let large = role == Role::Replica && out.payload.len() >= self.config.direct_bytes;
        if large && kind == HeadKind::Data && self.is_fresh(&out.head, staged)? {
            let key = (out.head.group, out.head.chunk);
            let file = self.chunk_file(key)?;
            file.write_through(&out.payload, block_offset(out.head.first))
                .map_err(|e| self.write_failed(&e))?;
            direct.insert(key, file);
            out.head.kind = HeadKind::InFile;
            out.payload = Bytes::new();
        }
        Ok(Some(out))
    }

    /// Cuts a repair to the blocks that it may set: those that are not here in a newer version, and of lost ones those
    /// that were not newer than `lost`. The record of any other would be in the log and be taken for the newest as soon
    /// as the newer one is lost (seeds 3249, 30263008774).
    ///
    /// A newer write or deletion of the same batch does not cut it: that one may yet be refused, and then the repair is
    /// right. If it is not, its record precedes the repair's in one segment. So whoever admits the repair, now or at a
    /// start, has admitted the newer record, which wins (`Overlay::insert`), and no segment is left with the repair
    /// alone. Nor are the newer one's bytes in the chunk file overwritten: `is_fresh` looks at the batch.
    fn stage_repair(
        &mut self,
        (role, lost): (Role, Version),
        record: Record,
        payload: Bytes,
        staged: &[(usize, Staged)],
        direct: &mut BTreeMap<FileKey, Arc<dyn DiskFile>>,
    ) -> Result<Vec<Staged>, StoreError> {
        if let Some(fault) = record.fault(payload.len()) {
            return Err(StoreError::Malformed(fault));
        }
        let Record { group, chunk, first, count, version, .. } = record;
        let drops = staged.iter().any(|(_, s)| s.drops(role, group));
        let may_set = |cell: &Cell| match cell.place {
            _ if drops => true,
            Place::Lost => cell.version <= lost.max(version),
            _ => cell.version <= version,
        };
        let cells = self.look(|index| index.cells(role, group, chunk, first, count))?;
        let mut out = Vec::new();
        let mut at = 0;
        for run in cells.chunk_by(|a, b| may_set(a) == may_set(b)) {
            let (from, to) = (at, at + run.len());
            at = to;
            if !may_set(&run[0]) {
                continue;
            }
            let (content, payload) = match &record.content {
                Content::Data { crcs } => (
                    Content::Data { crcs: crcs[from..to].to_vec() },
                    payload.slice(from * BLOCK_BYTES..to * BLOCK_BYTES),
                ),
                content => (content.clone(), Bytes::new()),
            };
            let (first, count) = (first + from as u32, run.len() as u32);
            let part = Record { first, count, content, ..record.clone() };
            out.extend(self.stage(role, part, payload, true, staged, direct)?);
        }
        Ok(out)
    }

    /// Whether a newer deletion of the chunk is known and not about to be dropped. Such a record must not reach a
    /// segment: it would reappear when the tombstone is forgotten.
    fn is_deleted(&self, role: Role, record: &Record, staged: &[(usize, Staged)]) -> bool {
        let tombstone = self.shared.index().tombstone(role, record.group, record.chunk);
        tombstone.is_some_and(|t| t >= record.version)
            && !staged.iter().any(|(_, s)| s.drops(role, record.group))
    }

    /// Whether the chunk file has nothing in these blocks that is or may become visible.
    fn is_fresh(&self, head: &Head, staged: &[(usize, Staged)]) -> Result<bool, StoreError> {
        let overlaps = |other: &Head| {
            other.role == head.role
                && other.chunk == head.chunk
                && other.first < head.first + head.count
                && head.first < other.first + other.count
        };
        if staged.iter().any(|(_, s)| overlaps(&s.head)) {
            return Ok(false);
        }
        let (group, chunk) = (head.group, head.chunk);
        let cells = self.look(|index| index.cells(Role::Replica, group, chunk, head.first, head.count))?;
        Ok(cells.iter().all(|c| c.place == Place::Nothing))
    }

    /// Drops a group's replica: records the intent, removes the files, records the completion. After a crash in
    /// between, the next open finishes it.
    fn drop_replica(&mut self, group: GroupId) -> Result<(), StoreError> {
        self.begin()?;
        self.append(&mut [Staged::marker(HeadKind::DropFiles, Role::Replica, group)])?;
        self.remove_files(group)?;
        self.append(&mut [Staged::marker(HeadKind::Drop, Role::Replica, group)])?;
        let is_left = self.shared.index().roles.contains_key(&(Role::Replica, group));
        debug_assert!(!is_left, "{group:?} is dropped, and something is left of it");
        Ok(())
    }

    /// Removes the chunk files of a group, durably.
    pub(crate) fn remove_files(&mut self, group: GroupId) -> Result<(), StoreError> {
        let keys: Vec<FileKey> = {
            let index = self.shared.index();
            let chunks = index.roles.get(&(Role::Replica, group));
            chunks.into_iter().flatten().filter(|(_, c)| c.has_file).map(|(id, _)| (group, *id)).collect()
        };
        for key in &keys {
            self.names.removed_in.insert(group);
            self.remove(&chunk_path(*key))?;
            self.shared.index().forget_file(*key);
            self.shared.moved();
        }
        self.sync_removals(group)?;
        self.shared.index().tidy(Role::Replica, group);
        Ok(())
    }

    /// Makes the removal of a group's chunk files durable.
    pub(crate) fn sync_removals(&mut self, group: GroupId) -> Result<(), StoreError> {
        self.names.sync_group(&*self.disk, group).map_err(|e| self.unless_short(&e))
    }

    /// Removes a chunk's file if nothing in it is valid: the chunk was deleted, or no record ever referred to the file.
    pub(crate) fn remove_unneeded(&mut self, key: FileKey) -> Result<(), StoreError> {
        let is_needed = {
            let index = self.shared.index();
            let chunk = index.chunk(Role::Replica, key.0, key.1);
            !chunk.is_some_and(|c| c.has_file && c.settled.is_none() && c.overlay.is_empty())
        };
        if is_needed {
            return Ok(());
        }
        self.names.removed_in.insert(key.0);
        self.remove(&chunk_path(key))?;
        self.shared.index().forget_file(key);
        Ok(())
    }

    /// Removes a file; succeeds if there is none.
    pub(crate) fn remove(&self, path: &str) -> Result<(), StoreError> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.unless_short(&error)),
            _ => Ok(()),
        }
    }

    /// Writes records to the open segment, makes them durable and adds them to the index: all or none.
    pub(crate) fn append(&mut self, records: &mut [Staged]) -> Result<(), StoreError> {
        debug_assert!(!records.is_empty(), "a sync for nothing");
        debug_assert!(!self.is_poisoned(), "nothing is written behind what may not be durable (R9)");
        if self.open.as_ref().is_some_and(|open| open.len >= self.config.segment_bytes) {
            self.seal()?;
        }
        if self.open.is_none() {
            self.open_segment()?;
        }
        if self.open.as_ref().is_some_and(|open| open.uncut) {
            self.cut()?;
        }
        self.write_ahead(records)?;
        let open = self.open.as_ref().expect("just opened");
        let (number, file, start, is_new) = (open.number, open.file.clone(), open.len, open.len == 0);
        let (positions, end) = match write_batch(open, records) {
            Ok(written) => written,
            Err(error) => return Err(self.take_back(&error)),
        };
        if !self.config.has(PlantedBug::SkipSync) && file.sync().is_err() {
            return Err(self.poison());
        }
        self.shared.moved();
        if is_new && let Err(error) = self.disk.sync_dir("segments") {
            return Err(match self.unless_short(&error) {
                StoreError::NotNow { .. } => self.take_back(&error),
                failure => failure,
            });
        }
        debug_assert!(end > start, "records take room");
        let open = self.open.as_mut().expect("still open");
        (open.len, open.ahead, open.cut) = (end, open.ahead.max(end), false);
        self.unsettled.bytes += (end - start) as u64;
        let mut index = self.shared.index();
        index.segments.entry(number).or_insert(Segment { bytes: 0, live: 0 }).bytes = end as u64;
        index.files.insert(FileId::Segment(number), file);
        let offload = index.kept.offload;
        for (record, at) in records.iter().zip(positions) {
            index.admit(&record.head, at);
        }
        // Dropped offload and zeroed blocks are space to be freed.
        self.unsettled.bytes += offload.saturating_sub(index.kept.offload);
        let zeroed = records.iter().filter(|r| r.head.kind == HeadKind::Zero && !r.head.moved);
        self.unsettled.bytes += zeroed.map(|r| u64::from(r.head.count) * BLOCK_BYTES as u64).sum::<u64>();
        drop(index);
        if is_new {
            self.rest()?;
        }
        for record in
            records.iter().filter(|r| r.head.kind == HeadKind::Delete && r.head.role == Role::Replica)
        {
            let key = (record.head.group, record.head.chunk);
            match self.remove_unneeded(key) {
                // The record is durable; only the file is left.
                Err(StoreError::NotNow { .. }) => {
                    self.names.unneeded.insert(key);
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Writes zeroes behind records that will reach beyond the file's end. On a full disk there are none.
    fn write_ahead(&mut self, records: &[Staged]) -> Result<(), StoreError> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        let open = self.open.as_ref().expect("a segment is open");
        let bytes: u64 = records.iter().map(|record| record.head.record_len() as u64).sum();
        let end = open.next() + bytes;
        let until = (end + u64::from(self.disk.ahead_bytes())).min(self.config.segment_bytes.into());
        if end <= open.ahead.into() || until <= end {
            return Ok(());
        }
        let starts = (end..until).step_by(ZEROES.len());
        let lens = starts.map(|at| ZEROES.len().min((until - at) as usize));
        let mut parts: Vec<IoSlice<'_>> = lens.map(|len| IoSlice::new(&ZEROES[..len])).collect();
        match open.file.write(&mut parts, end) {
            Ok(()) => self.open.as_mut().expect("still open").ahead = until as u32,
            Err(error) => match self.take_back(&error) {
                StoreError::NoSpace { .. } => {}
                failure => return Err(failure),
            },
        }
        Ok(())
    }

    /// Leaves no trace of a failed write to the open segment.
    fn take_back(&mut self, error: &io::Error) -> StoreError {
        match self.write_failed(error) {
            StoreError::Poisoned => StoreError::Poisoned,
            failure => self.cut().err().unwrap_or(failure),
        }
    }

    /// Cuts off whatever follows the records of the open segment.
    fn cut(&mut self) -> Result<(), StoreError> {
        let open = self.open.as_mut().expect("it was written to");
        let cut = open.cut();
        cut.map_err(|error| self.unless_short(&error))
    }

    /// Writes the segment lengths to the inventory, if they changed, so that vanished records are noticed. On a full
    /// disk, or in a shortage, it is done later.
    pub fn rest(&mut self) -> Result<(), StoreError> {
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        match self.note_segments(|_| true) {
            Err(StoreError::NoSpace { .. } | StoreError::NotNow { .. }) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn note_segments(&mut self, kept: impl Fn(u32) -> bool) -> Result<(), StoreError> {
        let segments: BTreeMap<u32, u32> = {
            let index = self.shared.index();
            let bytes_of = |number: u32| index.segments.get(&number).map_or(0, |segment| segment.bytes);
            debug_assert!(
                self.open.as_ref().is_none_or(|open| bytes_of(open.number) == u64::from(open.len)),
                "what is noted is durable, and all that is"
            );
            let all = index.segments.iter().filter(|(number, _)| kept(**number));
            all.map(|(number, segment)| (*number, segment.bytes as u32)).collect()
        };
        if segments == self.inventory.segments {
            return Ok(());
        }
        let written = self.inventory.write(&*self.disk, &self.owner, segments);
        written.map_err(|error| self.write_failed(&error))
    }

    fn open_segment(&mut self) -> Result<(), StoreError> {
        let number = self.next_segment;
        debug_assert!(self.open.is_none(), "the last one is sealed");
        let newest = self.shared.index().segments.keys().next_back().copied();
        debug_assert!(newest.is_none_or(|newest| newest < number), "no number is used twice");
        let file = self.disk.open(&segment_path(number), true).map_err(|e| self.write_failed(&e))?;
        self.next_segment += 1;
        let (header, salt) = segment_header(number, &self.owner);
        self.open =
            Some(OpenSegment { number, file, len: 0, salt, header, ahead: 0, cut: false, uncut: false });
        Ok(())
    }

    /// Seals the open segment. From then on anything in it but whole records is damage.
    fn seal(&mut self) -> Result<(), StoreError> {
        let Some(open) = &self.open else { return Ok(()) };
        if open.len == 0 {
            return Ok(());
        }
        if open.ahead > open.len || open.uncut {
            self.cut()?;
        }
        if self.open.as_ref().is_some_and(|open| open.cut && open.file.sync().is_err()) {
            return Err(self.poison());
        }
        let sealed = self.open.take();
        debug_assert!(sealed.is_none_or(|open| open.ahead == open.len), "it has whole records only");
        Ok(())
    }
}

/// Placeholder for a file that should exist and does not.
struct Absent;

impl DiskFile for Absent {
    fn read(&self, _out: &mut Vec<u8>, _len: usize, _offset: u64) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, _parts: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn truncate(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn allocated(&self) -> io::Result<u64> {
        Ok(0)
    }
    fn number(&self) -> io::Result<u64> {
        Err(io::ErrorKind::NotFound.into())
    }
}
