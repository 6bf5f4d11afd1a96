//! Writes the superblock: whose store this is.

use crate::disk::Disk;
use crate::layout::Superblock;
use std::io::{self, IoSlice};

pub const SUPERBLOCK: &str = "superblock";
pub const SUPERBLOCK_NEW: &str = "superblock.new";

/// As long as a superblock: what its replacement takes where nothing else is left.
const SPARE: &str = "superblock.spare";

/// Replaces the superblock atomically: after a crash there is the old one or the new one. This needs no room: a server
/// whose disk was filled to the last byte must start, or nothing in it could be read, nor deleted.
pub fn write_superblock(disk: &dyn Disk, owner: &Superblock) -> io::Result<()> {
    let bytes = owner.encode();
    if let Err(error) = write_new(disk, SUPERBLOCK_NEW, &bytes) {
        if error.kind() != io::ErrorKind::StorageFull || disk.remove(SPARE).is_err() {
            return Err(error);
        }
        disk.sync_dir("")?;
        write_new(disk, SUPERBLOCK_NEW, &bytes)?;
    }
    disk.rename(SUPERBLOCK_NEW, SUPERBLOCK)?;
    disk.sync_dir("")?;
    // The former superblock's room is free now. Without a spare the next replacement needs room elsewhere.
    let mut spare = Vec::new();
    let found = disk.open(SPARE, false).and_then(|file| file.read(&mut spare, bytes.len(), 0));
    if found.is_err() || spare.len() < bytes.len() {
        match write_new(disk, SPARE, &bytes) {
            Ok(()) => disk.sync_dir("")?,
            Err(_) => drop(disk.remove(SPARE)),
        }
    }
    Ok(())
}

fn write_new(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = disk.open(name, true)?;
    file.write(&mut [IoSlice::new(bytes)], 0)?;
    file.sync()
}
