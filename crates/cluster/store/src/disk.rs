//! The seam for all file I/O: the store sees a directory of files through [`Disk`], so that a test or the simulator can
//! stop it after any write, lose unsynced data, or run full. [`LinuxDisk`] is plain positional I/O through the page
//! cache, from which recently written small blocks are read back; large writes bypass it, which is an eighth of the
//! work. One `fdatasync` per batch of writes makes both durable.
//!
//! Paths are relative to the store's directory, with `/` between their parts.

use crate::OpenError;
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Alignment of memory, length and offset of direct I/O: the block size, and enough for any device.
pub(crate) const DIRECT_ALIGN: usize = 4096;

const _: () = assert!(DIRECT_ALIGN.is_power_of_two());

/// How far a growing file is written ahead, in bytes: a hundred small records, and a millisecond of a device's time.
pub(crate) const AHEAD_BYTES: u32 = 512 << 10;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
    /// Bytes allocated on disk: less than the length for a file with holes.
    pub allocated: u64,
}

/// A directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; `create`: creates an empty one if there is none.
    fn open(&self, path: &str, create: bool) -> io::Result<Arc<dyn DiskFile>>;
    fn remove(&self, path: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Succeeds if it already exists.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// In any order.
    fn list(&self, path: &str) -> io::Result<Vec<DirEntry>>;
    /// Makes creations, renames and removals in a directory durable.
    fn sync_dir(&self, path: &str) -> io::Result<()>;
    /// Bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;
    /// How far zeroes should be written ahead of a file that grows by small writes, each of them synced: most syncs
    /// then need not make a new length and new blocks durable. Zero: the directory does so itself.
    fn ahead_bytes(&self) -> u32 {
        AHEAD_BYTES
    }
}

/// An open file. It stays readable after removal.
pub trait DiskFile: Send + Sync {
    /// Appends up to `len` bytes from `offset` on to `out`; fewer only at the end of the file.
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()>;
    /// The same from the device, leaving nothing in the page cache. A file that cannot do so may read normally.
    fn read_through(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        self.read(out, len, offset)
    }
    /// The same as `read` without waiting for a device; `false`: not possible now, `out` is unchanged. A file of which
    /// nothing is kept in memory never can.
    fn read_cached(&self, _out: &mut Vec<u8>, _len: usize, _offset: u64) -> io::Result<bool> {
        Ok(false)
    }
    /// Writes all of `parts`, one after another, from `offset` on.
    fn write(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// The same for many bytes, which need not stay in the page cache.
    fn write_through(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(&mut [IoSlice::new(bytes)], offset)
    }
    /// Makes all writes to this file durable, including its length.
    fn sync(&self) -> io::Result<()>;
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Frees a range in the file system; it then reads as zeroes. A file system that cannot do so may leave the bytes.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
    fn allocated(&self) -> io::Result<u64>;
    /// Distinguishes it from all other files of the directory that exist while it is open, whatever their names.
    fn number(&self) -> io::Result<u64>;
}

/// A directory of a Linux file system, held by one process at a time.
pub struct LinuxDisk {
    root: PathBuf,
    /// Holds the lock.
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
        // Only opening it may fail for a shortage: a failed sync must not pass for one.
        File::open(self.root.join(path))?.sync_all().map_err(io::Error::other)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }
}

struct LinuxFile(File);

impl LinuxFile {
    /// The same file opened for direct I/O, if alignment and file system allow it.
    fn direct(&self, memory: usize, len: usize, offset: u64) -> Option<File> {
        let aligned = |number: u64| number.is_multiple_of(DIRECT_ALIGN as u64);
        if ![memory as u64, len as u64, offset].into_iter().all(aligned) {
            return None;
        }
        // Opened for each transfer: that costs a hundredth of the transfer, and keeps no descriptor from others.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()
    }

    /// Appends up to `len` bytes to `out` with one call; returns the number read.
    fn read_once(
        file: &File,
        out: &mut Vec<u8>,
        len: usize,
        offset: u64,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let at = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        out.reserve_exact(len);
        let room = out.spare_capacity_mut();
        let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len };
        // rustix's safe call wants a zeroed buffer, and zeroing took a sixth of a 1 MiB GET.
        // SAFETY: the descriptor is open, and `part` names `len` bytes of the vector's own spare room.
        let read = unsafe { libc::preadv2(file.as_raw_fd(), &part, 1, at, flags) };
        let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
        debug_assert!(read <= len);
        // SAFETY: the kernel has just filled these bytes.
        unsafe { out.set_len(out.len() + read) };
        Ok(read)
    }
}

impl DiskFile for LinuxFile {
    fn read(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        let (start, end) = (out.len(), out.len() + len);
        out.reserve_exact(len);
        while out.len() < end {
            let at = offset + (out.len() - start) as u64;
            // The vector may have more room than requested: bytes read past `end` are cut off.
            match rustix::io::pread(&self.0, rustix::buffer::spare_capacity(out), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        out.truncate(end);
        Ok(())
    }

    fn read_through(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<()> {
        let start = out.len();
        out.reserve_exact(len);
        if let Some(direct) = self.direct(out.as_ptr().addr() + start, len, offset) {
            let read = LinuxFile::read_once(&direct, out, len, offset, 0);
            if read.is_ok_and(|read| read == len) {
                return Ok(());
            }
        }
        // At the end of the file, or direct I/O is not possible: reads normally, and drops the range from the page
        // cache.
        out.truncate(start);
        let forget = || rustix::fs::fadvise(&self.0, offset, NonZeroU64::new(len as u64), Advice::DontNeed);
        let _ = forget();
        let read = self.read(out, len, offset);
        let _ = forget();
        read
    }

    fn read_cached(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<bool> {
        let start = out.len();
        let read = LinuxFile::read_once(&self.0, out, len, offset, libc::RWF_NOWAIT);
        let whole = read.is_ok_and(|read| read == len);
        if !whole {
            out.truncate(start);
        }
        Ok(whole)
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

    fn write_through(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        if let Some(direct) = self.direct(bytes.as_ptr().addr(), bytes.len(), offset) {
            while !bytes.is_empty() {
                match rustix::io::pwrite(&direct, bytes, offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        bytes = &bytes[written..];
                        offset += written as u64;
                    }
                    Err(Errno::INTR) => {}
                    // The device needs another alignment, or the rest of a short write is not aligned.
                    Err(Errno::INVAL) => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        match bytes.is_empty() {
            true => Ok(()),
            false => self.write(&mut [IoSlice::new(bytes)], offset),
        }
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

    fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `len` bytes that begin `shift` bytes after an aligned address.
    fn bytes(len: usize, shift: usize) -> (Vec<u8>, std::ops::Range<usize>) {
        let mut all: Vec<u8> = (0..len + shift + DIRECT_ALIGN).map(|n| (n % 251) as u8 + 1).collect();
        let start = all.as_ptr().align_offset(DIRECT_ALIGN) + shift;
        all[start] = 0;
        (all, start..start + len)
    }

    #[test]
    fn what_is_written_past_the_cache_is_read_through_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = LinuxDisk::new(dir.path()).unwrap();
        let file = disk.open("file", true).unwrap();
        let mut known = Vec::new();
        // Aligned, and misaligned in memory, length, offset; over a hole, over cached bytes, at the end.
        for (len, shift, offset) in [
            (1 << 20, 0, 1 << 20),
            (128 << 10, 512, 64 << 10),
            (5000, 0, 4096),
            (1 << 20, 0, 4096),
            (8192, 0, 100),
            (128 << 10, 0, (2 << 20) - 4096),
        ] {
            let (all, range) = bytes(len, shift);
            file.write_through(&all[range.clone()], offset).unwrap();
            let end = offset as usize + len;
            known.resize(known.len().max(end), 0);
            known[offset as usize..end].copy_from_slice(&all[range]);
            let mut found = Vec::new();
            file.read(&mut found, known.len() + 1, 0).unwrap();
            assert!(found == known, "{len} bytes, {shift} behind a page, at {offset}");
            // The same again bypassing the cache: all of it, some of it, more than there is.
            for (from, len) in [(0, known.len() / 4096 * 4096), (4096, 8192), (100, 5000), (4096, 4 << 20)] {
                let mut found: Vec<u8> = Vec::with_capacity(DIRECT_ALIGN + len);
                let skipped = found.as_ptr().addr().next_multiple_of(DIRECT_ALIGN) - found.as_ptr().addr();
                found.resize(skipped, 0);
                file.read_through(&mut found, len, from as u64).unwrap();
                assert!(
                    found[skipped..] == known[from..known.len().min(from + len)],
                    "{len} bytes from {from}"
                );
            }
        }
        file.sync().unwrap();
    }
}
