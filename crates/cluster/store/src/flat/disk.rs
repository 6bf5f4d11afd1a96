//! The directory of files: names, and opening a device.

use crate::disk::{DirEntry, Disk, DiskFile};
use crate::flat::device::{BLOCK, BlockDevice};
use crate::flat::error::FlatError;
use crate::flat::file::FlatFile;
use crate::flat::format::{DEVICE_MIN, FILE_BYTES, FORMAT, PATH_MAX, Record, Superblock};
use crate::flat::inner::{Inner, Locked, no_room};
use crate::flat::journal::Journal;
use crate::flat::state::{State, parent};
use bytes::Bytes;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Files on one block device.
pub struct FlatDisk(Arc<Inner>);

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> FlatError {
    move |source| FlatError::Io { action, source }
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
        let free_seen = AtomicU64::new(state.free_blocks());
        let locked = Mutex::new(Locked { state, journal, failed: false });
        Ok(FlatDisk(Arc::new(Inner { device, limit, locked, free_seen })))
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
        let noted = locked.state.pending.is_empty() && locked.state.lengths.is_empty();
        if !(noted || locked.failed) {
            // What is not synced may be lost.
            let _ = self.0.commit(&mut locked);
        }
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
        Ok(Arc::new(FlatFile::new(self.0.clone(), number, inode)))
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

    /// A file here grows ahead by itself ([`FlatFile`]).
    fn ahead_bytes(&self) -> u32 {
        0
    }

    /// Heartbeats ask for it: they must not wait for a disk.
    fn free_bytes(&self) -> io::Result<u64> {
        if let Ok(locked) = self.0.locked.try_lock() {
            self.0.free_seen.store(locked.state.free_blocks(), Ordering::Relaxed);
        }
        Ok(self.0.free_seen.load(Ordering::Relaxed) * BLOCK)
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
