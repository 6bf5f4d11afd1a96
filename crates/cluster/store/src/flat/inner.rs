//! What a disk and its open files share: the device, and the metadata under its lock.

use crate::flat::device::BlockDevice;
use crate::flat::extents::Run;
use crate::flat::format::MAP_BYTES;
use crate::flat::journal::Journal;
use crate::flat::state::State;
use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

/// A device and its metadata, shared by the disk and its open files.
pub struct Inner {
    pub device: Arc<dyn BlockDevice>,
    /// Most bytes of a checkpoint.
    pub limit: u64,
    /// Held while the journal is written, and not while data is.
    pub locked: Mutex<Locked>,
    /// Free blocks when they were last asked for.
    pub free_seen: AtomicU64,
}

pub struct Locked {
    pub state: State,
    pub journal: Journal,
    pub failed: bool,
}

pub fn no_room() -> io::Error {
    ErrorKind::StorageFull.into()
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().expect("the metadata is whole: nothing panics under this lock")
    }

    /// For a change.
    pub fn changing(&self) -> io::Result<MutexGuard<'_, Locked>> {
        let locked = self.lock();
        match locked.failed {
            true => Err(io::Error::other(
                "a write to the device failed: what it has is not known before a restart",
            )),
            false => Ok(locked),
        }
    }

    pub fn commit(&self, locked: &mut Locked) -> io::Result<()> {
        let done = locked.journal.commit(&*self.device, &mut locked.state);
        locked.failed |= done.is_err();
        done
    }

    /// Takes free blocks. If there are too few, files give back what was allocated ahead, and changes that freed blocks
    /// are made durable.
    pub fn allocate(&self, locked: &mut Locked, count: u64, near: Option<u64>) -> io::Result<Vec<Run>> {
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
