//! The seam for all file I/O: the store sees a directory of files through [`Disk`], so that a test or the simulator can stop it
//! after every write, lose what was not synced, or run full. [`LinuxDisk`] is plain positional I/O through the page cache:
//! recently written blocks are read back from it, and one `fdatasync` per batch of writes makes them durable.
//!
//! Paths are relative to the store's directory, with `/` between their parts.

use crate::OpenError;
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
    /// Bytes taken on disk: less than the length for a file with holes.
    pub allocated: u64,
}

/// A directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; `create`: makes an empty one if there is none.
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// No error if it exists.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// In any order.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file. It stays readable after its removal.
pub trait DiskFile: Send + Sync {
    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file.
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()>;
    /// Lets memory forget a range, so that the next read comes from the device. What cannot do so may leave it.
    fn forget(&self, _offset: u64, _len: u64) {}
    /// The same as `read` without waiting for a device; `false`: not possible now, `out` is as it was.
    fn read_cached(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<bool>;
    /// Writes all of `parts`, one after another, from `offset` on.
    fn write(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes all writes to this file durable, with the length that they need.
    fn sync(&self) -> io::Result<()>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Gives a range back to the file system; it reads as zeroes. A file system that cannot may leave the bytes.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
    fn allocated(&self) -> io::Result<u64>;
}

/// A directory of a Linux file system, held by one process at a time.
pub struct LinuxDisk {
    root: PathBuf,
    /// Keeps the lock.
    _lock: File,
}

impl LinuxDisk {
    /// Opens a directory, creating it if there is none.
    pub fn new(root: &Path) -> Result<LinuxDisk, OpenError> {
        let failed = |source| OpenError::Io { action: "open", path: root.display().to_string(), source };
        fs::create_dir_all(root).map_err(failed)?;
        let lock = File::open(root).map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(LinuxDisk { root: root.to_path_buf(), _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(OpenError::InUse),
            Err(e) => Err(failed(e.into())),
        }
    }
}

impl Disk for LinuxDisk {
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .open(self.root.join(path))?;
        Ok(Arc::new(LinuxFile(file)))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        match fs::create_dir(self.root.join(path)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>> {
        fs::read_dir(self.root.join(path))?
            .map(|entry| {
                let entry = entry?;
                let meta = entry.metadata()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok(DirEntry { name, is_dir: meta.is_dir(), allocated: meta.blocks() * 512 })
            })
            .collect()
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        File::open(self.root.join(path))?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

struct LinuxFile(File);

impl DiskFile for LinuxFile {
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        let (start, end) = (out.len(), out.len() + len);
        out.reserve_exact(len);
        while out.len() < end {
            let at = offset + (out.len() - start) as u64;
            // The vector may have more room than was asked for: what is read past the end is cut off.
            match rustix::io::pread(&self.0, rustix::buffer::spare_capacity(out), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        out.truncate(end);
        Ok(())
    }

    fn forget(&self, offset: u64, len: u64) {
        // What is not written back yet stays: it is not on the device.
        let _ = rustix::fs::fadvise(&self.0, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
    }

    fn read_cached(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<bool> {
        let Ok(at) = i64::try_from(offset) else { return Ok(false) };
        let start = out.len();
        out.reserve_exact(len);
        let room = out.spare_capacity_mut();
        let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len };
        // Zeroing the buffer first, which rustix's safe call asks for, was a sixth of a 1 MiB GET.
        // SAFETY: the descriptor is open, and `part` names `len` bytes of the vector's own spare room.
        let read = unsafe { libc::preadv2(self.0.as_raw_fd(), &part, 1, at, libc::RWF_NOWAIT) };
        if read != len as isize {
            return Ok(false);
        }
        // SAFETY: the kernel has just filled these bytes.
        unsafe { out.set_len(start + len) };
        Ok(true)
    }

    fn write(&self, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        const PARTS_MAX: usize = 1024; // the kernel's IOV_MAX
        while !parts.is_empty() {
            let now = parts.len().min(PARTS_MAX);
            match rustix::io::pwritev(&self.0, &parts[..now], offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(
            &self.0,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            len,
        ) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.blocks() * 512)
    }
}
