//! Opening a regular file or a block device as a disk that belongs to this process alone.
//!
//! A block device is opened with `O_EXCL`: the kernel refuses it while a file system, swap, another device or another
//! such open uses it. A file is locked (`flock`), which keeps out processes that lock it, too. Positional I/O needs no
//! more than the descriptor; [`crate::Ring`] does it.

use rustix::fs::{AtFlags, FlockOperation, StatxFlags, flock, statx};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Assumed where a file system does not say how direct I/O must be aligned, in bytes.
const DIRECT_ALIGN: u32 = 4096;

/// How a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    Cached,
    /// Past it (`O_DIRECT`). Offsets and lengths must be multiples of the device's logical sector; memory may lie
    /// anywhere.
    Direct,
}

/// Why a disk was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot {action} {path}: {error}")]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error("{path} is neither a file nor a block device: name one of them")]
    Kind { path: PathBuf },
    #[error(
        "{path} is in use by a file system, swap, another device or another program: unmount it, or stop what uses it"
    )]
    InUse { path: PathBuf },
    #[error("{path} is locked by another program: stop it first")]
    Locked { path: PathBuf },
    #[error(
        "{path} cannot be opened past the page cache: its file system has no direct I/O, so open it cached"
    )]
    NoDirect { path: PathBuf },
}

/// An open file or block device.
#[derive(Debug)]
pub struct DiskFile {
    pub(crate) file: Arc<File>,
    path: PathBuf,
    is_device: bool,
    size: u64,
    align: u32,
}

impl DiskFile {
    /// Opens an existing file or device for reading and writing, for this process alone.
    pub fn open(path: &Path, caching: Caching) -> Result<DiskFile, OpenError> {
        let io = |action| move |error| OpenError::Io { action, path: path.to_owned(), error };
        let is_device = kind(path, &std::fs::metadata(path).map_err(io("look at"))?)?;
        let exclusive = if is_device { libc::O_EXCL } else { 0 };
        let direct = if caching == Caching::Direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).custom_flags(exclusive | direct).open(path);
        let mut file = opened.map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => OpenError::InUse { path: path.to_owned() },
            ErrorKind::InvalidInput if direct != 0 => OpenError::NoDirect { path: path.to_owned() },
            _ => io("open")(error),
        })?;
        // Another file may have taken the name meanwhile.
        if kind(path, &file.metadata().map_err(io("look at"))?)? != is_device {
            return Err(OpenError::Kind { path: path.to_owned() });
        }
        if !is_device {
            lock(path, &file)?;
        }
        let size = file.seek(SeekFrom::End(0)).map_err(io("find the size of"))?;
        let align = if caching == Caching::Direct { direct_align(&file) } else { 1 };
        Ok(DiskFile { file: Arc::new(file), path: path.to_owned(), is_device, size, align })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device; else a file.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Bytes, as found when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads exactly `bytes` bytes, before a [`crate::Ring`] has the disk. Blocks; for disks opened
    /// [`Caching::Cached`].
    pub fn read_at(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut found = vec![0; bytes];
        self.file.read_exact_at(&mut found, offset)?;
        Ok(found)
    }

    /// Writes, as [`DiskFile::read_at`] reads. Not durable before [`DiskFile::sync`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Everything that was written becomes durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Whether it is one hole, so that all of it reads as zeroes. A device never is: it cannot be asked.
    pub fn is_hole(&self) -> io::Result<bool> {
        if self.is_device {
            return Ok(false);
        }
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(0)) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::NXIO) => Ok(true),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is shorter than when it was opened, or cannot be asked. Devices do not shrink while they are open.
    pub(crate) fn is_cut(&self) -> bool {
        !self.is_device && !self.file.metadata().is_ok_and(|metadata| metadata.len() >= self.size)
    }

    /// What addresses of memory must be multiples of.
    pub(crate) fn align(&self) -> usize {
        self.align as usize
    }

    /// Whether the range lies on the disk.
    pub(crate) fn has(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.size)
    }
}

/// Whether it is a block device; an error if it is not a file either.
fn kind(path: &Path, metadata: &std::fs::Metadata) -> Result<bool, OpenError> {
    let is_device = metadata.file_type().is_block_device();
    match is_device || metadata.is_file() {
        true => Ok(is_device),
        false => Err(OpenError::Kind { path: path.to_owned() }),
    }
}

fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => OpenError::Locked { path: path.to_owned() },
        error => OpenError::Io { action: "lock", path: path.to_owned(), error: error.into() },
    })
}

fn direct_align(file: &File) -> u32 {
    let known = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let known = known.filter(|known| known.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let align = known.map_or(0, |known| known.stx_dio_offset_align.max(known.stx_dio_mem_align));
    if align.is_power_of_two() { align } else { DIRECT_ALIGN }
}
