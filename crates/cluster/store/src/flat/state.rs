//! The metadata in memory: names, files, and what blocks are free. [`State::apply`] makes each change, both in
//! operation and when the journal is read.

use crate::flat::device::BLOCK;
use crate::flat::extents::{Extents, Free, Run};
use crate::flat::format::{FILE_BLOCKS_MAX, FILE_BYTES, MAP_BYTES, PATH_MAX, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, RwLock};

pub type FileNumber = u64;

/// A file, with or without a name.
#[derive(Default)]
pub struct Inode {
    pub extents: Extents,
    pub len: u64,
    /// The length that a restart finds, once everything pending is durable.
    pub noted: u64,
    /// End of what was allocated ahead and is zeroes, in bytes.
    pub ahead: u64,
    /// The last block may have old bytes behind the file's end.
    pub stale_tail: bool,
    pub named: bool,
    /// Open handles.
    pub handles: usize,
    /// Readers share it; what changes the file has it alone.
    pub lock: Arc<RwLock<()>>,
}

/// A change that the metadata refuses: the journal is damaged.
#[derive(Debug)]
pub struct Unsound(pub &'static str);

#[derive(Default)]
pub struct State {
    /// Blocks that files may have.
    data: Range<u64>,
    pub names: BTreeMap<String, FileNumber>,
    pub dirs: BTreeSet<String>,
    pub files: BTreeMap<FileNumber, Inode>,
    pub next_file: FileNumber,
    pub free: Free,
    /// Freed by changes that may not be durable.
    pub freed: Vec<Run>,
    pub freed_blocks: u64,
    /// Changes that are not in the journal.
    pub pending: Vec<Record>,
    /// Blocks were mapped whose content may not be durable: it must be, before the journal names them.
    pub unflushed: bool,
    /// Files whose length in memory and `noted` differ.
    pub lengths: BTreeSet<FileNumber>,
    /// The file that grew last: the only one that may be longer after a crash than it was.
    pub tail: Option<FileNumber>,
    extents: u64,
    path_bytes: u64,
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl State {
    pub fn new(data: Range<u64>) -> State {
        State { free: Free::new(data.clone()), data, next_file: 1, ..State::default() }
    }

    pub fn file(&self, number: FileNumber) -> &Inode {
        self.files.get(&number).expect("open files stay")
    }

    pub fn file_mut(&mut self, number: FileNumber) -> &mut Inode {
        self.files.get_mut(&number).expect("open files stay")
    }

    /// Blocks that can still be allocated, those included that are free once everything pending is durable.
    pub fn free_blocks(&self) -> u64 {
        self.free.blocks() + self.freed_blocks
    }

    /// Bytes of a checkpoint, at most.
    pub fn checkpoint_bytes(&self) -> u64 {
        let names = (self.names.len() + self.dirs.len()) as u64;
        self.extents * MAP_BYTES + names * FILE_BYTES + self.path_bytes
    }

    /// Makes a change and notes it for the journal.
    pub fn change(&mut self, record: Record) {
        let free = self.apply(&record).expect("the change was checked");
        self.free_later(free);
        self.pending.push(record);
    }

    pub fn free_later(&mut self, runs: Vec<Run>) {
        self.freed_blocks += runs.iter().map(|run| run.count).sum::<u64>();
        self.freed.extend(runs);
    }

    /// Everything pending is durable.
    pub fn noted(&mut self) {
        let will_be_free = self.free_blocks();
        for run in self.freed.drain(..) {
            self.free.release(run);
        }
        self.freed_blocks = 0;
        debug_assert_eq!(self.free_blocks(), will_be_free, "every block that was freed counts");
    }

    /// Makes a change; returns the blocks that it frees. Mapped blocks must have been taken from the free ones.
    pub fn apply(&mut self, record: &Record) -> Result<Vec<Run>, Unsound> {
        match record {
            Record::Dir(path) => {
                self.check_new(path)?;
                self.path_bytes += path.len() as u64;
                self.dirs.insert(path.clone());
            }
            Record::Create { file, path } => {
                self.check_new(path)?;
                if self.files.contains_key(file) || *file == u64::MAX {
                    return Err(Unsound("a file is created twice"));
                }
                self.next_file = self.next_file.max(file + 1);
                self.files.insert(*file, Inode { named: true, ..Inode::default() });
                self.path_bytes += path.len() as u64;
                self.names.insert(path.clone(), *file);
            }
            Record::Remove(path) => return self.remove(path),
            Record::Rename { from, to } => {
                let freed = if self.names.contains_key(to) { self.remove(to)? } else { Vec::new() };
                self.check_new(to)?;
                let file = self.names.remove(from).ok_or(Unsound("a name is missing"))?;
                self.path_bytes = self.path_bytes + to.len() as u64 - from.len() as u64;
                self.names.insert(to.clone(), file);
                return Ok(freed);
            }
            Record::Map { file, block, at, count } => {
                let run = Run { start: *at, count: *count };
                self.map(*file, *block, run)?;
            }
            Record::Unmap { file, block, count } => {
                let inode = self.files.get_mut(file).ok_or(Unsound("a file is missing"))?;
                let before = inode.extents.len() as u64;
                let freed = inode.extents.remove(*block..block + count);
                self.extents = self.extents + inode.extents.len() as u64 - before;
                return Ok(freed);
            }
            Record::Length { file, bytes } => {
                let inode = self.files.get_mut(file).ok_or(Unsound("a file is missing"))?;
                if *bytes > FILE_BLOCKS_MAX * BLOCK {
                    return Err(Unsound("a file is too long"));
                }
                inode.noted = *bytes;
            }
            Record::Moved => {}
        }
        Ok(Vec::new())
    }

    fn check_new(&self, path: &str) -> Result<(), Unsound> {
        let known = self.names.contains_key(path) || self.dirs.contains(path);
        let has_place = parent(path).is_empty() || self.dirs.contains(parent(path));
        match !known && has_place && (1..=PATH_MAX).contains(&path.len()) {
            true => Ok(()),
            false => Err(Unsound("a name is there already, or has no directory")),
        }
    }

    fn map(&mut self, file: FileNumber, block: u64, run: Run) -> Result<(), Unsound> {
        let inode = self.files.get_mut(&file).ok_or(Unsound("a file is missing"))?;
        let end = block.checked_add(run.count).filter(|end| run.count > 0 && *end <= FILE_BLOCKS_MAX);
        let end = end.ok_or(Unsound("a file is too long"))?;
        let last = run.start.checked_add(run.count).ok_or(Unsound("a block is beyond the device"))?;
        if run.start < self.data.start || last > self.data.end {
            return Err(Unsound("a block is beyond the device"));
        }
        if inode.extents.pieces(block..end).iter().any(|(_, at, _)| at.is_some()) {
            return Err(Unsound("a block of a file is in two places"));
        }
        let before = inode.extents.len() as u64;
        inode.extents.insert(block, run);
        self.extents = self.extents + inode.extents.len() as u64 - before;
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<Vec<Run>, Unsound> {
        let file = self.names.remove(path).ok_or(Unsound("a name is missing"))?;
        self.path_bytes -= path.len() as u64;
        self.file_mut(file).named = false;
        Ok(self.forget_unused(file))
    }

    /// Forgets a file without name and handles; returns its blocks.
    pub fn forget_unused(&mut self, file: FileNumber) -> Vec<Run> {
        let inode = self.file(file);
        if inode.named || inode.handles > 0 {
            return Vec::new();
        }
        let inode = self.files.remove(&file).expect("it was just there");
        self.extents -= inode.extents.len() as u64;
        self.lengths.remove(&file);
        self.tail = self.tail.filter(|tail| *tail != file);
        inode.extents.iter().map(|(_, run)| run).collect()
    }

    /// A file has grown to this length. The one that grew before is to be noted with its exact length.
    pub fn grow(&mut self, file: FileNumber, len: u64) {
        let inode = self.file_mut(file);
        debug_assert!(len > inode.len, "it has grown");
        inode.len = len;
        if !inode.named {
            return;
        }
        self.lengths.insert(file);
        self.tail = Some(file);
    }

    /// Frees what was allocated ahead, except of files that are being changed now.
    pub fn give_back(&mut self) {
        let ahead = self.files.iter().filter(|(_, inode)| inode.named && inode.ahead > inode.len);
        let idle: Vec<FileNumber> =
            ahead.filter(|(_, inode)| inode.lock.try_write().is_ok()).map(|(file, _)| *file).collect();
        for file in idle {
            let inode = self.file_mut(file);
            let (block, end) = (inode.len.div_ceil(BLOCK), inode.ahead.div_ceil(BLOCK));
            inode.ahead = 0;
            self.tail = self.tail.filter(|tail| *tail != file);
            self.change(Record::Unmap { file, block, count: end - block });
        }
    }

    /// Whether a sync has to write to the journal.
    pub fn must_note(&self) -> bool {
        let longer = |file: &FileNumber| self.file(*file).len > self.file(*file).noted;
        !self.pending.is_empty() || self.lengths.iter().any(longer)
    }

    /// Adds the lengths to what is pending: exact ones, but for the file that grew last, which is expected to grow
    /// further.
    pub fn note_lengths(&mut self) {
        for file in std::mem::take(&mut self.lengths) {
            let inode = self.file(file);
            if !inode.named {
                continue;
            }
            let ahead = self.tail == Some(file) && inode.ahead > inode.len;
            let (len, bytes) = (inode.len, if ahead { inode.ahead } else { inode.len });
            if bytes != inode.noted {
                self.change(Record::Length { file, bytes });
            }
            if bytes != len {
                self.lengths.insert(file);
            }
        }
    }

    /// Everything, as changes of an empty state.
    pub fn checkpoint(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut dirs: Vec<&String> = self.dirs.iter().collect();
        dirs.sort_by_key(|dir| dir.len());
        dirs.into_iter().for_each(|dir| Record::Dir(dir.clone()).encode(&mut out));
        for (path, number) in &self.names {
            let (file, inode) = (*number, self.file(*number));
            Record::Create { file, path: path.clone() }.encode(&mut out);
            Record::Length { file, bytes: inode.noted }.encode(&mut out);
            for (block, run) in inode.extents.iter() {
                Record::Map { file, block, at: run.start, count: run.count }.encode(&mut out);
            }
        }
        debug_assert!(
            out.len() as u64 <= self.checkpoint_bytes(),
            "the growth of the metadata is bounded by this"
        );
        out
    }

    /// Completes a state that was read from the journal: which blocks are free, and what no name leads to is gone.
    pub fn finish(&mut self) -> Result<(), Unsound> {
        let mut cut = 0;
        for inode in self.files.values_mut() {
            (inode.len, inode.stale_tail) = (inode.noted, !inode.noted.is_multiple_of(BLOCK));
            let before = inode.extents.len() as u64;
            inode.extents.remove(inode.len.div_ceil(BLOCK)..FILE_BLOCKS_MAX);
            cut += before - inode.extents.len() as u64;
            for (_, run) in inode.extents.iter() {
                if !self.free.take(run) {
                    return Err(Unsound("a block belongs to two files"));
                }
            }
        }
        self.extents -= cut;
        let mapped: u64 = self.files.values().map(|inode| inode.extents.blocks()).sum();
        debug_assert_eq!(
            self.free_blocks() + mapped,
            self.data.end - self.data.start,
            "each block is somewhere"
        );
        Ok(())
    }
}
