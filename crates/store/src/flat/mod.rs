//! Files on one block device: a [`Disk`] for a server whose data lies on a mirror or a raw device, without a file system.
//!
//! All metadata (names, files, where their blocks are, what is free) is in memory, and changes of it go to a journal of
//! checksummed commits ([`journal`]). Data is written in place, outside of the lock. Why this way: the store has few, large
//! files and syncs each batch itself, so a general file system's caches, directories and allocation groups would only add
//! writes. `docs/disk-format.md` draws the bytes.
//!
//! Invariants:
//! - The journal names a block only when what was written to it is durable, so no crash shows another file's bytes.
//! - A block is given away again only when the change that freed it is durable.
//! - Mapped blocks behind a file's end are zeroes, but for the rest of the last one ([`Inode::stale_tail`]).
//! - A small append allocates ahead, and fills that with zeroes; the journal has the length up to there. So most syncs of a
//!   growing file are one flush. After a crash this one file may be longer than it was, by zeroes.
//! - After a failed write of the journal, or a failed flush, nothing is changed any more: what is durable is not known.

mod device;
mod extents;
mod format;
mod journal;
#[cfg(test)]
pub(crate) mod mem;
mod state;
#[cfg(test)]
mod tests;

pub use device::{BLOCK, BlockDevice};

use crate::disk::{DirEntry, Disk, DiskFile};
use bytes::Bytes;
use extents::Run;
use format::{DEVICE_MIN, FILE_BLOCKS_MAX, FILE_BYTES, FORMAT, MAP_BYTES, PATH_MAX, Record, Superblock};
use journal::Journal;
use state::{FileNumber, Inode, State, parent};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Appends shorter than this allocate ahead, in bytes.
const SMALL: u64 = 64 << 10;
/// How far ahead: as far as the file is long, within these bounds, in bytes.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 1 << 20;

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum FlatError {
    #[error("cannot {action} the device: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error("a device of {found} bytes is too small for files: give one of {DEVICE_MIN} bytes or more")]
    Small { found: u64 },
    #[error("the device contains something else: give an empty one, or remove what is there")]
    NotFlat,
    #[error("the device has format {found}, this program writes {FORMAT}: run the release that wrote it")]
    OtherFormat { found: u32 },
    #[error("the device has {found} bytes, and had {needed} when it was first used: give the whole device")]
    Short { found: u64, needed: u64 },
    #[error(
        "the device is damaged at its block {block}: {what}. Keep it for examination, and start the server on an empty one: the \
         cluster then copies to it what it lacks"
    )]
    Damaged { block: u64, what: &'static str },
}

struct Inner {
    device: Arc<dyn BlockDevice>,
    limit: u64,
    /// Held while the journal is written, and not while data is.
    locked: Mutex<Locked>,
}

struct Locked {
    state: State,
    journal: Journal,
    failed: bool,
}

/// Files on one block device.
pub struct FlatDisk(Arc<Inner>);

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> FlatError {
    move |source| FlatError::Io { action, source }
}

fn no_room() -> io::Error {
    ErrorKind::StorageFull.into()
}

impl FlatDisk {
    /// Makes a device empty: what it contains is lost. `id`: random.
    pub fn format(device: &dyn BlockDevice, id: u64) -> Result<(), FlatError> {
        let found = device.size();
        if found < DEVICE_MIN {
            return Err(FlatError::Small { found });
        }
        let superblock = Superblock::new(id, found);
        let mut state = State::new(superblock.data());
        let begun = Journal::new(superblock).checkpoint(device, &mut state);
        begun.map_err(failed("write"))?;
        let block = Bytes::from(superblock.encode());
        device.write(vec![(0, block.clone()), (BLOCK, block)]).map_err(failed("write"))?;
        device.flush().map_err(failed("sync"))
    }

    /// Opens a device, and formats it with `id` if it begins with zeroes. Only one may be open on a device.
    pub fn open(device: Arc<dyn BlockDevice>, id: u64) -> Result<FlatDisk, FlatError> {
        let superblock = match find(&*device)? {
            Some(superblock) => superblock,
            None => {
                FlatDisk::format(&*device, id)?;
                find(&*device)?.ok_or(FlatError::NotFlat)?
            }
        };
        let (mut journal, mut state) = Journal::read(&*device, superblock)?;
        // What was found counts from here on, and a torn end is gone.
        journal.checkpoint(&*device, &mut state).map_err(failed("write"))?;
        let limit = Journal::checkpoint_max(&superblock);
        let locked = Mutex::new(Locked { state, journal, failed: false });
        Ok(FlatDisk(Arc::new(Inner { device, limit, locked })))
    }
}

/// Reads the superblock; `None`: there are zeroes.
fn find(device: &dyn BlockDevice) -> Result<Option<Superblock>, FlatError> {
    let found = device.size();
    if found < DEVICE_MIN {
        return Err(FlatError::Small { found });
    }
    let mut bytes = Vec::new();
    device.read(&mut bytes, 2 * BLOCK, 0).map_err(failed("read"))?;
    let mut slots = bytes.chunks(BLOCK as usize).filter_map(Superblock::decode);
    let Some((format, superblock)) = slots.next() else {
        return if bytes.iter().all(|byte| *byte == 0) { Ok(None) } else { Err(FlatError::NotFlat) };
    };
    if format != FORMAT {
        return Err(FlatError::OtherFormat { found: format });
    }
    let needed = superblock.blocks * BLOCK;
    if found < needed {
        return Err(FlatError::Short { found, needed });
    }
    Ok(Some(superblock))
}

impl Drop for FlatDisk {
    /// Notes what was not synced, and exact lengths, so that the next start finds no file that is too long.
    fn drop(&mut self) {
        let mut locked = self.0.lock();
        locked.state.tail = None;
        if !locked.failed && !(locked.state.pending.is_empty() && locked.state.lengths.is_empty()) {
            // What is not synced may be lost.
            let _ = self.0.commit(&mut locked);
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().expect("the metadata is whole: nothing panics under this lock")
    }

    /// For a change.
    fn changing(&self) -> io::Result<MutexGuard<'_, Locked>> {
        let locked = self.lock();
        match locked.failed {
            true => Err(io::Error::other(
                "a write to the device failed: what it has is not known before a restart",
            )),
            false => Ok(locked),
        }
    }

    fn commit(&self, locked: &mut Locked) -> io::Result<()> {
        let done = locked.journal.commit(&*self.device, &mut locked.state);
        locked.failed |= done.is_err();
        done
    }

    /// Takes free blocks. If there are too few, files give back what was allocated ahead, and changes that freed blocks are made
    /// durable.
    fn allocate(&self, locked: &mut Locked, count: u64, near: Option<u64>) -> io::Result<Vec<Run>> {
        if count > locked.state.free.blocks() {
            locked.state.give_back();
            if locked.state.freed_blocks > 0 {
                self.commit(locked)?;
            }
        }
        let state = &mut locked.state;
        let runs = state.free.allocate(count, near).ok_or_else(no_room)?;
        if state.checkpoint_bytes() + MAP_BYTES * runs.len() as u64 > self.limit {
            runs.into_iter().for_each(|run| state.free.release(run));
            return Err(no_room());
        }
        Ok(runs)
    }
}

impl Disk for FlatDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut locked = if create { self.0.changing()? } else { self.0.lock() };
        let number = match locked.state.names.get(path) {
            Some(number) => *number,
            None if !create => return Err(ErrorKind::NotFound.into()),
            None => {
                let state = &mut locked.state;
                check_place(state, path)?;
                if state.checkpoint_bytes() + FILE_BYTES + PATH_MAX as u64 > self.0.limit {
                    return Err(no_room());
                }
                let file = state.next_file;
                state.change(Record::Create { file, path: path.to_owned() });
                file
            }
        };
        let inode = locked.state.file_mut(number);
        inode.handles += 1;
        Ok(Arc::new(FlatFile { disk: self.0.clone(), number, lock: inode.lock.clone() }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut locked = self.0.changing()?;
        if !locked.state.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        locked.state.change(Record::Remove(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut locked = self.0.changing()?;
        let state = &mut locked.state;
        if !state.names.contains_key(from) {
            return Err(ErrorKind::NotFound.into());
        }
        check_place(state, to)?;
        if from != to {
            state.change(Record::Rename { from: from.to_owned(), to: to.to_owned() });
        }
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut locked = self.0.changing()?;
        let state = &mut locked.state;
        if state.dirs.contains(path) {
            return Ok(());
        }
        check_place(state, path)?;
        if state.names.contains_key(path) {
            return Err(ErrorKind::NotADirectory.into());
        }
        if state.checkpoint_bytes() + FILE_BYTES + PATH_MAX as u64 > self.0.limit {
            return Err(no_room());
        }
        state.change(Record::Dir(path.to_owned()));
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let locked = self.0.lock();
        let state = &locked.state;
        if !path.is_empty() && !state.dirs.contains(path) {
            return Err(ErrorKind::NotFound.into());
        }
        let name = |full: &str| full.rsplit('/').next().expect("split is never empty").to_owned();
        let dirs = state.dirs.iter().filter(|dir| parent(dir) == path);
        let dirs = dirs.map(|dir| DirEntry { name: name(dir), is_dir: true, allocated: 0 });
        let files = state.names.iter().filter(|(file, _)| parent(file) == path).map(|(file, number)| {
            let allocated = state.file(*number).extents.blocks() * BLOCK;
            DirEntry { name: name(file), is_dir: false, allocated }
        });
        Ok(dirs.chain(files).collect())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        let mut locked = self.0.changing()?;
        match locked.state.pending.is_empty() {
            true => Ok(()),
            false => self.0.commit(&mut locked),
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let locked = self.0.lock();
        Ok((locked.state.free.blocks() + locked.state.freed_blocks) * BLOCK)
    }
}

/// Whether a file may have this path.
fn check_place(state: &State, path: &str) -> io::Result<()> {
    let dir = parent(path);
    match path {
        _ if path.is_empty() || path.len() > PATH_MAX => Err(ErrorKind::InvalidFilename.into()),
        _ if !dir.is_empty() && !state.dirs.contains(dir) => Err(ErrorKind::NotFound.into()),
        _ if state.dirs.contains(path) => Err(ErrorKind::IsADirectory.into()),
        _ => Ok(()),
    }
}

/// An open file.
struct FlatFile {
    disk: Arc<Inner>,
    number: FileNumber,
    lock: Arc<std::sync::RwLock<()>>,
}

impl Drop for FlatFile {
    fn drop(&mut self) {
        let mut locked = self.disk.lock();
        locked.state.file_mut(self.number).handles -= 1;
        let freed = locked.state.forget_unused(self.number);
        locked.state.free_later(freed);
    }
}

/// What a write does to the device.
struct Plan {
    /// Blocks of the file.
    blocks: Range<u64>,
    /// Blocks that were a hole.
    new: Vec<(u64, Run)>,
    /// (place, blocks of the file).
    places: Vec<(u64, Range<u64>)>,
    /// Length before.
    len: u64,
    /// The file's blocks up to here are zeroes behind the new end: allocated ahead, in bytes.
    ahead: Option<u64>,
}

impl FlatFile {
    fn exclusive(&self) -> std::sync::RwLockWriteGuard<'_, ()> {
        self.lock.write().expect("nothing panics under this lock")
    }

    /// Decides where a write goes, and takes blocks for it.
    fn plan(&self, offset: u64, end: u64) -> io::Result<Plan> {
        let mut locked = self.disk.changing()?;
        let inode = locked.state.file(self.number);
        let (len, ahead) = (inode.len, inode.ahead);
        if offset == len && end - offset < SMALL && end > ahead {
            let until = (end + end.clamp(AHEAD_MIN, AHEAD_MAX)).next_multiple_of(BLOCK);
            match self.plan_until(&mut locked, offset, end, until) {
                Err(error) if error.kind() == ErrorKind::StorageFull => {}
                planned => return planned,
            }
        }
        self.plan_until(&mut locked, offset, end, end)
    }

    fn plan_until(&self, locked: &mut Locked, offset: u64, end: u64, until: u64) -> io::Result<Plan> {
        let blocks = offset / BLOCK..until.div_ceil(BLOCK);
        let inode = locked.state.file(self.number);
        let len = inode.len;
        let pieces = inode.extents.pieces(blocks.clone());
        let missing = pieces.iter().filter(|(_, at, _)| at.is_none()).map(|(_, _, count)| count).sum();
        let near = pieces.iter().find(|(_, at, _)| at.is_none()).and_then(|(b, ..)| inode.extents.near(*b));
        let mut runs = match missing {
            0 => Vec::new(),
            _ => self.disk.allocate(locked, missing, near)?,
        };
        runs.reverse();
        let (mut new, mut places) = (Vec::new(), Vec::new());
        for (mut block, at, mut count) in pieces {
            if let Some(at) = at {
                places.push((at, block..block + count));
                continue;
            }
            while count > 0 {
                let run = runs.pop().expect("as many were allocated");
                let now = Run { start: run.start, count: run.count.min(count) };
                if now.count < run.count {
                    runs.push(Run { start: run.start + now.count, count: run.count - now.count });
                }
                new.push((block, now));
                places.push((now.start, block..block + now.count));
                (block, count) = (block + now.count, count - now.count);
            }
        }
        Ok(Plan { blocks, new, places, len, ahead: (until > end).then_some(until) })
    }

    /// The old content of a block of the file, up to its end.
    fn old(&self, block: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_blocks(&mut bytes, block..block + 1)?;
        bytes.truncate(len.saturating_sub(block * BLOCK).min(BLOCK) as usize);
        Ok(bytes)
    }

    /// The bytes of the plan's blocks.
    fn content(&self, plan: &Plan, parts: &[IoSlice<'_>], offset: u64, end: u64) -> io::Result<Vec<u8>> {
        let start = plan.blocks.start * BLOCK;
        let whole = ((plan.blocks.end - plan.blocks.start) * BLOCK) as usize;
        let mut bytes = Vec::with_capacity(whole);
        if !offset.is_multiple_of(BLOCK) {
            bytes = self.old(plan.blocks.start, plan.len)?;
            bytes.reserve_exact(whole);
            bytes.resize((offset - start) as usize, 0);
        }
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        if !end.is_multiple_of(BLOCK) && end < plan.len {
            let last = self.old(end / BLOCK, plan.len)?;
            bytes.extend_from_slice(last.get((end % BLOCK) as usize..).unwrap_or_default());
        }
        bytes.resize(whole, 0);
        Ok(bytes)
    }

    /// What must be zeroed before the file may grow over the rest of its last block.
    fn zeroed_tail(&self, len: u64) -> io::Result<Option<(u64, Bytes)>> {
        if len.is_multiple_of(BLOCK) {
            return Ok(None);
        }
        let at = self.disk.lock().state.file(self.number).extents.pieces(len / BLOCK..len / BLOCK + 1)[0].1;
        let Some(at) = at else { return Ok(None) };
        let mut bytes = self.old(len / BLOCK, len)?;
        bytes.resize(BLOCK as usize, 0);
        Ok(Some((at * BLOCK, bytes.into())))
    }

    fn read_blocks(&self, out: &mut Vec<u8>, blocks: Range<u64>) -> io::Result<()> {
        let pieces = self.disk.lock().state.file(self.number).extents.pieces(blocks);
        for (_, at, count) in pieces {
            match at {
                Some(at) => self.disk.device.read(out, count * BLOCK, at * BLOCK)?,
                None => out.resize(out.len() + (count * BLOCK) as usize, 0),
            }
        }
        Ok(())
    }

    /// What was written is there: the file has its new blocks and length.
    fn written(&self, plan: Plan, end: u64) -> io::Result<()> {
        let mut locked = self.disk.changing()?;
        let state = &mut locked.state;
        let named = state.file(self.number).named;
        state.unflushed |= !plan.new.is_empty();
        for (block, run) in plan.new {
            let record = Record::Map { file: self.number, block, at: run.start, count: run.count };
            match named {
                true => state.change(record),
                // Gone after a crash, so that the journal need not know.
                false => drop(state.apply(&record).expect("the blocks were a hole")),
            }
        }
        if end > plan.len {
            let inode = state.file_mut(self.number);
            inode.ahead = plan.ahead.unwrap_or(inode.ahead);
            let stale = std::mem::take(&mut inode.stale_tail);
            state.grow(self.number, end);
            state.unflushed |= stale;
        }
        Ok(())
    }

    /// Frees whole blocks, unless the metadata has no room for another hole: then they stay as they are.
    fn free(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut locked = self.disk.changing()?;
        let room = locked.state.checkpoint_bytes() + MAP_BYTES <= self.disk.limit;
        let (file, block, count) = (self.number, blocks.start, blocks.end - blocks.start);
        let inode = locked.state.file(file);
        if inode.extents.pieces(blocks.clone()).iter().all(|(_, at, _)| at.is_none()) {
            return Ok(());
        }
        let splits = inode.extents.pieces(block.saturating_sub(1)..blocks.end + 1).len() == 1;
        if splits && !room {
            return Ok(());
        }
        let record = Record::Unmap { file, block, count };
        if inode.named {
            locked.state.change(record);
        } else {
            let freed = locked.state.apply(&record).expect("the range is within a file");
            locked.state.free_later(freed);
        }
        Ok(())
    }

    /// Overwrites with zeroes what is mapped of a range within one block.
    fn zero(&self, range: Range<u64>, len: u64) -> io::Result<()> {
        let block = range.start / BLOCK;
        let at = self.disk.changing()?.state.file(self.number).extents.pieces(block..block + 1)[0].1;
        let Some(at) = at.filter(|_| !range.is_empty()) else { return Ok(()) };
        let mut bytes = self.old(block, len)?;
        bytes.resize(BLOCK as usize, 0);
        bytes[(range.start % BLOCK) as usize..][..(range.end - range.start) as usize].fill(0);
        self.disk.device.write(vec![(at * BLOCK, bytes.into())])
    }
}

impl DiskFile for FlatFile {
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        let _shared = self.lock.read().expect("nothing panics under this lock");
        let end = offset.saturating_add(len as u64).min(self.disk.lock().state.file(self.number).len);
        if end <= offset {
            return Ok(());
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        if offset.is_multiple_of(BLOCK) {
            let keep = out.len() + (end - offset) as usize;
            self.read_blocks(out, blocks)?;
            out.truncate(keep);
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.read_blocks(&mut bytes, blocks)?;
        out.extend_from_slice(&bytes[(offset % BLOCK) as usize..][..(end - offset) as usize]);
        Ok(())
    }

    /// Never: nothing is kept in memory.
    fn read_cached(&self, _out: &mut Vec<u8>, _len: usize, _offset: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn write(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let end = offset.checked_add(len).filter(|end| *end <= (FILE_BLOCKS_MAX * BLOCK) - 2 * AHEAD_MAX);
        let end = end.ok_or(ErrorKind::FileTooLarge)?;
        if len == 0 {
            return Ok(());
        }
        let _exclusive = self.exclusive();
        let plan = self.plan(offset, end)?;
        let done = self.content(&plan, parts, offset, end).and_then(|bytes| {
            let bytes = Bytes::from(bytes);
            let slice = |blocks: &Range<u64>| {
                let from = (blocks.start - plan.blocks.start) * BLOCK;
                bytes.slice(from as usize..(from + (blocks.end - blocks.start) * BLOCK) as usize)
            };
            let mut writes: Vec<_> = plan.places.iter().map(|(at, b)| (at * BLOCK, slice(b))).collect();
            if plan.blocks.start > plan.len / BLOCK {
                writes.extend(self.zeroed_tail(plan.len)?);
            }
            self.disk.device.write(writes)
        });
        if let Err(error) = done {
            let mut locked = self.disk.lock();
            plan.new.into_iter().for_each(|(_, run)| locked.state.free.release(run));
            return Err(error);
        }
        self.written(plan, end)
    }

    fn sync(&self) -> io::Result<()> {
        let mut locked = self.disk.changing()?;
        if locked.state.must_note() {
            return self.disk.commit(&mut locked);
        }
        drop(locked);
        let flushed = self.disk.device.flush();
        if flushed.is_err() {
            self.disk.lock().failed = true;
        }
        flushed
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let _exclusive = self.exclusive();
        let before = self.size()?;
        if len > before {
            if let Some(write) = self.zeroed_tail(before)? {
                self.disk.device.write(vec![write])?;
            }
        } else {
            self.free(len.div_ceil(BLOCK)..FILE_BLOCKS_MAX)?;
        }
        let mut locked = self.disk.changing()?;
        let inode: &mut Inode = locked.state.file_mut(self.number);
        (inode.len, inode.ahead, inode.stale_tail) = (len, 0, true);
        if inode.named {
            locked.state.unflushed |= len > before;
            locked.state.change(Record::Length { file: self.number, bytes: len });
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let _exclusive = self.exclusive();
        let size = self.size()?;
        let end = offset.saturating_add(len).min(size);
        if end <= offset {
            return Ok(());
        }
        let (first, last) =
            (offset.div_ceil(BLOCK), if end == size { end.div_ceil(BLOCK) } else { end / BLOCK });
        if first >= last {
            // Within one block, or parts of two.
            let middle = (last * BLOCK).clamp(offset, end);
            self.zero(offset..middle, size)?;
            return self.zero(middle..end, size);
        }
        self.zero(offset..first * BLOCK, size)?;
        self.zero((last * BLOCK).min(end)..end, size)?;
        self.free(first..last)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.lock().state.file(self.number).len)
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.disk.lock().state.file(self.number).extents.blocks() * BLOCK)
    }

    fn number(&self) -> io::Result<u64> {
        Ok(self.number)
    }
}
