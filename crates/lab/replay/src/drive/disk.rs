//! Opening a file or a block device as a target, without destroying data that may be needed.

use super::error::TargetError;
use super::guard;
use super::memory::{Pages, fill};
use super::options::DriveProgress;
use super::report::TargetInfo;
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags, fallocate, statx};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Used if a file system or device does not report the block size of direct I/O.
const BLOCK: u32 = 4096;
/// Bytes of one write while a file is filled.
const PIECE: usize = 1 << 20;

/// Progress of filling a file.
#[derive(Default)]
pub(super) struct Filled {
    bytes: AtomicU64,
    of: AtomicU64,
}

impl Filled {
    pub fn progress(&self) -> DriveProgress {
        DriveProgress::Preparing {
            bytes: self.bytes.load(Ordering::Relaxed),
            of: self.of.load(Ordering::Relaxed),
        }
    }
}

/// An open file or device.
pub(super) struct Disk {
    pub file: File,
    pub info: TargetInfo,
    /// Requests that the device accepts before it blocks the issuing thread; `None`: unknown.
    pub takes: Option<usize>,
}

/// Three quarters of the device's own queue: the schedulers reserve a part of it for reads. A thread that issues more
/// sleeps in the kernel, where its lateness cannot be distinguished from waiting for the device.
fn takes(file: &File) -> Option<usize> {
    let about = file.metadata().ok()?;
    let device = if about.file_type().is_block_device() { about.rdev() } else { about.dev() };
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has no queue of its own.
    let queue = [format!("{device}/queue/nr_requests"), format!("{device}/../queue/nr_requests")];
    let told = queue.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    Some((told.trim().parse::<usize>().ok()? * 3 / 4).max(1))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TargetError {
    move |error| TargetError::Io { action, target: path.display().to_string(), error }
}

/// Bypasses the page cache if the file system permits it, as the flag reports.
fn open(path: &Path, exclusive: i32, create: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create);
    match options.custom_flags(libc::O_DIRECT | exclusive).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            options.custom_flags(exclusive).open(path).map(|file| (file, false))
        }
        Err(error) => Err(error),
    }
}

/// Block size of direct I/O; one byte through the page cache.
fn block(file: &File, direct: bool) -> u32 {
    if !direct {
        return 1;
    }
    let told = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = told.filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let block = told.map_or(0, |told| told.stx_dio_offset_align.max(told.stx_dio_mem_align));
    if block.is_power_of_two() && block <= BLOCK { block } else { BLOCK }
}

fn info(name: String, file: &File, direct: bool, size: u64) -> Result<TargetInfo, TargetError> {
    let block_bytes = block(file, direct);
    if size < block_bytes.into() {
        return Err(TargetError::TooSmall { target: name, size, block: block_bytes });
    }
    let mut notes = Vec::new();
    if !direct {
        notes.push(
            "the file system refuses direct I/O: the page cache serves requests, so the figures include memory"
                .to_owned(),
        );
    }
    let size_bytes = size - size % u64::from(block_bytes);
    Ok(TargetInfo { name, size_bytes, block_bytes, direct: Some(direct), checkable: false, notes })
}

/// Opens a file as a target of `size` bytes, or of its own size. A new file, or the new end of one, is filled with data
/// (`filled` reports progress): a read of a file that is only reserved would never reach a disk.
pub(super) fn open_file(
    name: String,
    path: &Path,
    size: Option<u64>,
    overwrite: bool,
    filled: &Filled,
) -> Result<Disk, TargetError> {
    let old = match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => {
            return Err(TargetError::Kind { target: name, what: "a block device: name it as /dev/..." });
        }
        Ok(metadata) if !metadata.is_file() => {
            return Err(TargetError::Kind { target: name, what: "not a file" });
        }
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(io_error("look at", path)(error)),
    };
    if old > 0 && !overwrite {
        return Err(TargetError::NotEmpty { target: name, found: format!("{old} bytes of data") });
    }
    let size = match size {
        Some(size) => size,
        None if old > 0 => old,
        None => return Err(TargetError::NoSize { target: name }),
    };
    let (file, direct) = open(path, 0, true).map_err(io_error("open", path))?;
    let info = info(name, &file, direct, size)?;
    let start = old - old % PIECE as u64;
    if start < info.size_bytes && old < info.size_bytes {
        fill_file(&file, start, info.size_bytes, filled).map_err(io_error("fill", path))?;
    }
    Ok(Disk { takes: takes(&file), file, info })
}

fn fill_file(file: &File, start: u64, end: u64, filled: &Filled) -> io::Result<()> {
    filled.of.store(end - start, Ordering::Relaxed);
    match fallocate(file, FallocateFlags::empty(), 0, end) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let mut piece = Pages::new(PIECE)?;
    let mut at = start;
    while at < end {
        let len = (end - at).min(PIECE as u64) as usize;
        fill(at, piece.bytes_mut());
        file.write_all_at(&piece.bytes()[..len], at)?;
        at += len as u64;
        filled.bytes.store(at - start, Ordering::Relaxed);
    }
    file.sync_all()
}

/// Opens a block device. A device in use is never opened; one with data only with `overwrite`.
pub(super) fn open_device(
    name: String,
    path: &Path,
    size: Option<u64>,
    overwrite: bool,
) -> Result<Disk, TargetError> {
    let metadata = std::fs::metadata(path).map_err(io_error("look at", path))?;
    if !metadata.file_type().is_block_device() {
        return Err(TargetError::Kind { target: name, what: "not a block device" });
    }
    // The kernel grants exclusive access only if no file system, swap, partition in use or other device is on it.
    let (mut file, direct) = open(path, libc::O_EXCL, false).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => TargetError::InUse { target: name.clone() },
        _ => io_error("open", path)(error),
    })?;
    let whole = file.seek(SeekFrom::End(0)).map_err(io_error("find the size of", path))?;
    if size.is_some_and(|size| size > whole) {
        return Err(TargetError::TooSmall { target: name, size: whole, block: block(&file, direct) });
    }
    if !overwrite {
        let mut ends = Pages::new(2 * guard::LOOKED_AT).map_err(io_error("look at", path))?;
        let len = guard::LOOKED_AT.min(whole as usize);
        let (first, last) = ends.bytes_mut().split_at_mut(guard::LOOKED_AT);
        let read = file
            .read_exact_at(&mut first[..len], 0)
            .and_then(|()| file.read_exact_at(&mut last[..len], whole - len as u64));
        read.map_err(io_error("read", path))?;
        guard::empty(&name, &first[..len], &last[..len])?;
    }
    let info = info(name, &file, direct, size.unwrap_or(whole))?;
    Ok(Disk { takes: takes(&file), file, info })
}
