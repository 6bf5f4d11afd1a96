//! Reading and writing a file's blocks.

use crate::disk::DiskFile;
use crate::flat::device::BLOCK;
use crate::flat::extents::Run;
use crate::flat::format::{FILE_BLOCKS_MAX, MAP_BYTES, Record};
use crate::flat::inner::{Inner, Locked};
use crate::flat::state::{FileNumber, Inode};
use bytes::Bytes;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::{Arc, RwLock, RwLockWriteGuard};

/// Appends shorter than this allocate ahead, in bytes.
const SMALL: u64 = 64 << 10;
/// How far ahead: as far as the file is long, within these bounds, in bytes.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 1 << 20;

/// An open file.
pub struct FlatFile {
    disk: Arc<Inner>,
    number: FileNumber,
    lock: Arc<RwLock<()>>,
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
    /// A handle, which the file counts.
    pub fn new(disk: Arc<Inner>, number: FileNumber, inode: &mut Inode) -> FlatFile {
        inode.handles += 1;
        FlatFile { disk, number, lock: inode.lock.clone() }
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
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
        debug_assert!(runs.is_empty(), "what was taken is used");
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
        debug_assert_eq!(bytes.len() as u64, offset - start, "the new bytes go where they were asked to");
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        if !end.is_multiple_of(BLOCK) && end < plan.len {
            let last = self.old(end / BLOCK, plan.len)?;
            bytes.extend_from_slice(last.get((end % BLOCK) as usize..).unwrap_or_default());
        }
        debug_assert!(bytes.len() <= whole, "no byte is cut off");
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
        debug_assert_eq!(state.file(self.number).len, plan.len, "what changes a file has it alone");
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
