//! The disks of a mirror before it is served: opened for this process alone, looked at, written.
//!
//! They are opened through the page cache. Durability does not depend on that: what must be durable is written as such
//! or synced.

use crate::error::{NodeError, io};
use crate::mirror::MirrorError;
use crate::mirror::registry::Registry;
use bytes::Bytes;
use ebb_blockdev::{Caching, DiskFile, OpenError};
use ebb_mirror::open::Medium;
use ebb_mirror::{MirrorId, Superblock, geometry};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a disk may stay locked: a process that was killed lets go of it when the kernel has ended its operations.
const LOCKED_PATIENCE: Duration = Duration::from_secs(3);
const LOCKED_POLL: Duration = Duration::from_millis(10);

/// Bytes at the beginning in which content is sought.
const LOOKED_AT: u64 = 1 << 20;

/// Places and words by which content is recognised.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (1080, b"\x53\xef", "a file system (ext)"),
    (0, b"XFSB", "a file system (XFS)"),
    (65_600, b"_BHRfS_M", "a file system (Btrfs)"),
    (3, b"NTFS    ", "a file system (NTFS)"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a volume of LVM"),
    (4096, b"\xfc\x4e\x2b\xa9", "a disk of an array (md)"),
    (4086, b"SWAPSPACE2", "swap"),
    (0, b"QFI\xfb", "an image (QCOW)"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

pub fn open(path: &Path) -> Result<DiskFile, MirrorError> {
    let since = Instant::now();
    loop {
        match DiskFile::open(path, Caching::Cached) {
            Err(OpenError::Locked { .. } | OpenError::InUse { .. }) if since.elapsed() < LOCKED_PATIENCE => {
                std::thread::sleep(LOCKED_POLL);
            }
            opened => return Ok(opened?),
        }
    }
}

/// As [`open`]; `None`: there is no such disk now.
pub fn open_if_there(path: &Path) -> Result<Option<DiskFile>, MirrorError> {
    match open(path) {
        Ok(disk) => Ok(Some(disk)),
        Err(MirrorError::Disk(OpenError::Io { error, .. })) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    let gone = [libc::ENXIO, libc::ENODEV, libc::EIO, libc::ENOMEDIUM];
    error.kind() == ErrorKind::NotFound || error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// Whether two paths lead to one file or device.
pub fn are_same(a: &Path, b: &Path) -> Result<bool, NodeError> {
    let key = |path: &Path| {
        let about = std::fs::metadata(path).map_err(io("look at", path))?;
        let is_device = about.file_type().is_block_device();
        Ok::<_, NodeError>(if is_device { (None, about.rdev()) } else { (Some(about.dev()), about.ino()) })
    };
    Ok(key(a)? == key(b)?)
}

pub struct Reader<'a>(pub &'a DiskFile);

impl Medium for Reader<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
        self.0.read_at(offset, bytes).map(Bytes::from).map_err(|error| error.to_string())
    }
}

/// Writes, and makes it durable.
pub fn write(disk: &DiskFile, writes: &[(u64, Bytes)]) -> Result<(), NodeError> {
    for (offset, bytes) in writes {
        disk.write_at(*offset, bytes).map_err(io("write", disk.path()))?;
    }
    disk.sync().map_err(io("sync", disk.path()))
}

/// Refuses a disk whose content would be lost, unless the user accepts that. A disk of a mirror that is noted is
/// refused either way, but for `own`: the mirror that it is for.
pub fn check_unused(
    disk: &DiskFile,
    registry: &Registry,
    own: Option<MirrorId>,
    overwrite: bool,
) -> Result<(), NodeError> {
    let path = disk.path().to_owned();
    let beginning = disk.size().min(LOOKED_AT) as usize;
    let bytes = disk.read_at(0, beginning).map_err(io("read", disk.path()))?;
    let slot = |offset: u64| bytes.get(offset as usize..offset as usize + 4096).unwrap_or_default();
    let superblock = Superblock::newest(geometry::SUPERBLOCK_OFFSETS.map(slot)).ok();
    if let Some(block) = &superblock
        && own != Some(block.mirror)
        && let Some((mirror, file)) = registry.with_id(block.mirror)
    {
        return Err(MirrorError::OfAnother { path, mirror, file }.into());
    }
    let what = superblock.map(|block| format!("a disk of the mirror {}", block.name));
    match what.or_else(|| content(&bytes)) {
        Some(what) if !overwrite => Err(MirrorError::NotEmpty { path, what }.into()),
        _ => Ok(()),
    }
}

/// What a disk begins with; `None`: nothing but zeroes.
fn content(bytes: &[u8]) -> Option<String> {
    let has = |at: usize, word: &[u8]| bytes.get(at..at + word.len()) == Some(word);
    let known = SIGNATURES.iter().find(|(at, word, _)| has(*at, word)).map(|(_, _, what)| *what);
    let any = || bytes.iter().any(|byte| *byte != 0).then_some("data");
    known.or_else(any).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_recognised_and_zeroes_are_none() {
        let mut bytes = vec![0; LOOKED_AT as usize];
        assert_eq!(content(&bytes), None);
        assert_eq!(content(&bytes[..100]), None);
        for (at, word, what) in SIGNATURES {
            let mut bytes = bytes.clone();
            bytes[*at..at + word.len()].copy_from_slice(word);
            assert_eq!(content(&bytes).as_deref(), Some(*what));
        }
        bytes[LOOKED_AT as usize - 1] = 1;
        assert_eq!(content(&bytes).as_deref(), Some("data"));
    }
}
