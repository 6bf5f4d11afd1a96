//! A disk in memory that fails on demand: it stops after any operation, loses or tears unsynced data, fails a sync,
//! flips a bit, runs full. It assumes no more than POSIX promises: only a sync of a file makes its bytes durable, only
//! a sync of a directory makes names in it durable, and any part of unsynced data may survive, in any order.

use crate::disk::{DirEntry, Disk, DiskFile};
use ebb_types::Random;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: u64 = 4096;
/// A device writes whole sectors.
const SECTOR: usize = 512;

/// A file's bytes; absent pages are zeroes.
#[derive(Clone, Default)]
struct Image {
    pages: BTreeMap<u64, Arc<[u8; PAGE as usize]>>,
    len: u64,
}

impl Image {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let now = (PAGE as usize - within).min(bytes.len() - done);
            let target = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(target)[within..within + now].copy_from_slice(&bytes[done..done + now]);
            done += now;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) {
        let end = (offset + len as u64).min(self.len);
        let mut at = offset;
        while at < end {
            let within = (at % PAGE) as usize;
            let now = (PAGE as usize - within).min((end - at) as usize);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => out.extend_from_slice(&page[within..within + now]),
                None => out.resize(out.len() + now, 0),
            }
            at += now as u64;
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(offset, bytes) => self.write(*offset, bytes),
            Change::Truncate(len) => {
                if *len < self.len {
                    let rest = (self.len - len) as usize;
                    self.zero(*len, rest as u64);
                    self.pages.retain(|page, _| page * PAGE < *len);
                }
                self.len = *len;
            }
            Change::Punch(offset, len) => self.zero(*offset, (*len).min(self.len.saturating_sub(*offset))),
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let size = self.len;
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            let from = offset.max(page * PAGE);
            let to = (offset + len).min((page + 1) * PAGE);
            if to - from == PAGE {
                self.pages.remove(&page);
            } else if self.pages.contains_key(&page) {
                self.write(from, &vec![0; (to - from) as usize]);
            }
        }
        self.len = size;
    }
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
}

#[derive(Clone, Default)]
struct Inode {
    now: Image,
    durable: Image,
    /// Changes since the last sync.
    pending: Vec<Change>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
}

#[derive(Clone, Default)]
struct Tree {
    files: BTreeMap<String, usize>,
    dirs: BTreeSet<String>,
}

const DIR: usize = usize::MAX;

impl Tree {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Set(path, DIR) => {
                self.dirs.insert(path.clone());
            }
            NameChange::Set(path, inode) => {
                self.files.insert(path.clone(), *inode);
            }
            NameChange::Remove(path) => {
                self.files.remove(path);
            }
        }
    }
}

/// Counts the operations that change a disk, stops it and fails syncs.
#[derive(Clone, Default)]
pub(crate) struct Stops {
    pub operations: u64,
    pub after: Option<u64>,
    /// Syncs that will still fail.
    pub fail_syncs: u64,
}

impl Stops {
    /// Counts an operation that changes the disk. Error: the disk has stopped before it. True: this is the last one,
    /// which still happens.
    pub fn count(&mut self) -> io::Result<bool> {
        if self.after.is_some_and(|stop| self.operations > stop) {
            return Err(io::Error::other("the disk has stopped"));
        }
        self.operations += 1;
        Ok(self.after.is_some_and(|stop| self.operations > stop))
    }

    pub fn sync_fails(&mut self) -> bool {
        let fails = self.fail_syncs > 0;
        self.fail_syncs = self.fail_syncs.saturating_sub(1);
        fails
    }

    /// After so many more operations.
    pub fn stop_after(&mut self, operations: u64) {
        self.after = Some(self.operations + operations);
    }
}

#[derive(Clone, Default)]
struct State {
    inodes: Vec<Inode>,
    now: Tree,
    durable: Tree,
    pending: Vec<NameChange>,
    stops: Stops,
    written: u64,
    capacity: Option<u64>,
    /// So many calls from now on succeed, and so many after them find no descriptor.
    short: (u64, u64),
    /// Its files grow ahead by themselves, so that the store writes no zeroes ahead.
    grows_ahead: bool,
}

impl State {
    /// An error while the process has too few descriptors.
    fn lack(&mut self) -> io::Result<()> {
        match &mut self.short {
            (_, 0) => {}
            (0, fails) => {
                *fails -= 1;
                return Err(Errno::MFILE.into());
            }
            (succeed, _) => *succeed -= 1,
        }
        Ok(())
    }

    fn rename_now(&mut self, change: NameChange) {
        self.now.apply(&change);
        self.pending.push(change);
    }

    /// The files that have a name, or may have one after a crash.
    fn named(&self) -> BTreeSet<usize> {
        let set = self.pending.iter().filter_map(|change| match change {
            NameChange::Set(_, inode) => Some(*inode),
            NameChange::Remove(_) => None,
        });
        self.now.files.values().chain(self.durable.files.values()).copied().chain(set).collect()
    }

    fn used(&self) -> u64 {
        self.now.files.values().map(|inode| self.inodes[*inode].now.pages.len() as u64 * PAGE).sum()
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

pub(crate) fn stopped(last: bool) -> io::Result<()> {
    if last { Err(io::Error::other("the disk has stopped")) } else { Ok(()) }
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemDisk(Arc<Mutex<State>>);

impl MemDisk {
    pub fn new() -> MemDisk {
        MemDisk::default()
    }

    /// One whose files grow ahead by themselves, as those of a block device do: what is written there may find no room
    /// at any record.
    pub fn that_grows_ahead() -> MemDisk {
        let state = State { grows_ahead: true, ..State::default() };
        MemDisk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Before an operation that changes the disk. True: this is the last one.
    fn changing(&self) -> io::Result<(MutexGuard<'_, State>, bool)> {
        let mut state = self.state();
        state.lack()?;
        let last = state.stops.count()?;
        Ok((state, last))
    }

    /// Operations that changed the disk so far.
    pub fn operations(&self) -> u64 {
        self.state().stops.operations
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.state().written
    }

    /// Stops after `operations` more operations: the next one happens but fails, and all later ones fail without
    /// happening.
    pub fn stop_after(&self, operations: u64) {
        self.state().stops.stop_after(operations);
    }

    /// Makes a stopped disk work again.
    pub fn go_on(&self) {
        self.state().stops.after = None;
    }

    /// The next `times` syncs fail. What a failed sync should have made durable, no later one does, as on Linux: the
    /// bytes can still be read, until the power fails.
    pub fn fail_syncs(&self, times: u64) {
        self.state().stops.fail_syncs = times;
    }

    /// After `calls` more calls, the next `times` fail for want of a descriptor: any that reads or changes the disk but
    /// a sync of a file.
    pub fn be_short(&self, calls: u64, times: u64) {
        self.state().short = (calls, times);
    }

    /// Calls that are still to fail for want of a descriptor.
    pub fn short_for(&self) -> u64 {
        self.state().short.1
    }

    /// The capacity in bytes, if it is limited.
    pub fn capacity(&self) -> Option<u64> {
        self.state().capacity
    }

    /// Sets the capacity in bytes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    pub fn flip_bit(&self, path: &str, offset: u64) {
        let mut state = self.state();
        let inode = state.now.files[path];
        let inode = &mut state.inodes[inode];
        for image in [&mut inode.now, &mut inode.durable] {
            let mut byte = Vec::new();
            image.read(&mut byte, 1, offset);
            // The durable image may not reach that far yet.
            if let Some(byte) = byte.first() {
                image.write(offset, &[byte ^ 1]);
            }
        }
    }

    /// Damage: a range reads as zeroes.
    pub fn wipe(&self, path: &str, offset: u64, len: u64) {
        self.damage(path, &Change::Punch(offset, len));
    }

    /// Damage: a file is cut short.
    pub fn cut(&self, path: &str, len: u64) {
        self.damage(path, &Change::Truncate(len));
    }

    fn damage(&self, path: &str, change: &Change) {
        let mut state = self.state();
        let inode = state.now.files[path];
        let inode = &mut state.inodes[inode];
        inode.now.apply(change);
        inode.durable.apply(change);
    }

    /// Damage: a file reverts to its state in `earlier`, or is gone if it was not there.
    pub fn take_back(&self, path: &str, earlier: &MemDisk) {
        let old = {
            let earlier = earlier.state();
            earlier.now.files.get(path).map(|inode| earlier.inodes[*inode].clone())
        };
        let mut state = self.state();
        state.now.files.remove(path);
        state.durable.files.remove(path);
        if let Some(old) = old {
            let inode = state.inodes.len();
            state.inodes.push(old);
            state.now.files.insert(path.to_string(), inode);
            state.durable.files.insert(path.to_string(), inode);
        }
    }

    /// Another disk with the same content.
    pub fn copy(&self) -> MemDisk {
        let mut state = self.state().clone();
        let named = state.named();
        let gone = state.inodes.iter_mut().enumerate().filter(|(number, _)| !named.contains(number));
        gone.for_each(|(_, inode)| *inode = Inode::default());
        MemDisk(Arc::new(Mutex::new(state)))
    }

    /// Whether it may refuse writes.
    pub fn fails(&self) -> bool {
        let state = self.state();
        state.stops.fail_syncs > 0 || state.capacity.is_some()
    }

    /// Bytes allocated.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    pub fn len(&self, path: &str) -> u64 {
        let state = self.state();
        state.inodes[state.now.files[path]].now.len
    }

    pub fn files(&self) -> Vec<String> {
        self.state().now.files.keys().cloned().collect()
    }

    /// The disk after a power cut: a random part of the unsynced data survives.
    pub fn crash(&self, seed: u64) -> MemDisk {
        let mut random = Random::new(seed);
        let old = self.state();
        let (capacity, grows_ahead) = (old.capacity, old.grows_ahead);
        let mut state = State { capacity, grows_ahead, durable: old.durable.clone(), ..State::default() };
        let named = old.named();
        for (number, inode) in old.inodes.iter().enumerate() {
            if !named.contains(&number) {
                state.inodes.push(Inode::default());
                continue;
            }
            let mut image = inode.durable.clone();
            for change in &inode.pending {
                match (random.below(4), change) {
                    (0, _) => {}
                    (1, Change::Write(offset, bytes)) => {
                        for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                            if random.below(2) == 0 {
                                image.write(offset + (i * SECTOR) as u64, sector);
                            }
                        }
                    }
                    (_, change) => image.apply(change),
                }
            }
            state.inodes.push(Inode { now: image.clone(), durable: image, pending: Vec::new() });
        }
        // Names survive in order, per directory.
        let mut cut = BTreeSet::new();
        for change in &old.pending {
            let path = match change {
                NameChange::Set(path, _) | NameChange::Remove(path) => path,
            };
            if random.below(3) == 0 {
                cut.insert(parent(path).to_string());
            }
            if !cut.contains(parent(path))
                && (parent(path).is_empty() || state.durable.dirs.contains(parent(path)))
            {
                state.durable.apply(change);
            }
        }
        state.now = state.durable.clone();
        MemDisk(Arc::new(Mutex::new(state)))
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.lack()?;
        let inode = match state.now.files.get(path) {
            Some(inode) => *inode,
            None if !create || !(parent(path).is_empty() || state.now.dirs.contains(parent(path))) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {
                let last = state.stops.count()?;
                let inode = state.inodes.len();
                state.inodes.push(Inode::default());
                state.rename_now(NameChange::Set(path.to_string(), inode));
                stopped(last)?;
                inode
            }
        };
        Ok(Arc::new(MemFile { disk: self.clone(), inode }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (mut state, last) = self.changing()?;
        if !state.now.files.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.rename_now(NameChange::Remove(path.to_string()));
        stopped(last)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (mut state, last) = self.changing()?;
        let inode = *state.now.files.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.rename_now(NameChange::Set(to.to_string(), inode));
        state.rename_now(NameChange::Remove(from.to_string()));
        stopped(last)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let (mut state, last) = self.changing()?;
        if !state.now.dirs.contains(path) {
            state.rename_now(NameChange::Set(path.to_string(), DIR));
        }
        stopped(last)
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        let state = self.state();
        let name = |full: &String| full.rsplit('/').next().expect("split is never empty").to_string();
        let dirs = state.now.dirs.iter().filter(|dir| parent(dir) == path);
        let dirs = dirs.map(|dir| DirEntry { name: name(dir), is_dir: true, allocated: 0 });
        let files = state.now.files.iter().filter(|(file, _)| parent(file) == path).map(|(file, inode)| {
            let allocated = state.inodes[*inode].now.pages.len() as u64 * PAGE;
            DirEntry { name: name(file), is_dir: false, allocated }
        });
        Ok(dirs.chain(files).collect())
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        let (mut state, last) = self.changing()?;
        if state.stops.sync_fails() {
            return Err(io::Error::other("sync failed"));
        }
        let pending = std::mem::take(&mut state.pending);
        for change in pending {
            let (NameChange::Set(name, _) | NameChange::Remove(name)) = &change;
            if parent(name) == path {
                state.durable.apply(&change);
            } else {
                state.pending.push(change);
            }
        }
        stopped(last)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        Ok(state.capacity.map_or(1 << 40, |capacity| capacity.saturating_sub(state.used())))
    }

    /// Little, so that short segments grow several times.
    fn ahead_bytes(&self) -> u32 {
        if self.state().grows_ahead { 0 } else { 12 << 10 }
    }
}

struct MemFile {
    disk: MemDisk,
    inode: usize,
}

impl MemFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let (mut state, last) = self.disk.changing()?;
        let inode = &mut state.inodes[self.inode];
        inode.now.apply(&change);
        inode.pending.push(change);
        stopped(last)
    }
}

impl DiskFile for MemFile {
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.lack()?;
        state.inodes[self.inode].now.read(out, len, offset);
        Ok(())
    }

    fn read_cached(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<bool> {
        let start = out.len();
        self.read(out, len, offset)?;
        let whole = out.len() == start + len;
        if !whole {
            out.truncate(start);
        }
        Ok(whole)
    }

    fn write(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let full = {
            let state = self.disk.state();
            let pages = &state.inodes[self.inode].now.pages;
            let touched = offset / PAGE..(offset + bytes.len() as u64).div_ceil(PAGE);
            let new = touched.filter(|page| !pages.contains_key(page)).count() as u64 * PAGE;
            state.capacity.is_some_and(|capacity| state.used() + new > capacity)
        };
        if full {
            bytes.truncate(bytes.len() / 2);
        }
        self.disk.state().written += bytes.len() as u64;
        self.change(Change::Write(offset, bytes))?;
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let last = state.stops.count()?;
        let fails = state.stops.sync_fails();
        let inode = &mut state.inodes[self.inode];
        let pending = std::mem::take(&mut inode.pending);
        if fails {
            return Err(io::Error::other("sync failed"));
        }
        pending.iter().for_each(|change| inode.durable.apply(change));
        stopped(last)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(Change::Truncate(len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(Change::Punch(offset, len))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].now.len)
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].now.pages.len() as u64 * PAGE)
    }

    fn number(&self) -> io::Result<u64> {
        Ok(self.inode as u64)
    }
}
