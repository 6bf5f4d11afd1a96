//! Writes the superblock: whose store this is.

use crate::disk::Disk;
use crate::layout::Superblock;
use std::io::{self, IoSlice};

pub const SUPERBLOCK: &str = "superblock";
pub const SUPERBLOCK_NEW: &str = "superblock.new";

/// Replaces the superblock atomically: after a crash there is the old one or the new one.
pub fn write_superblock(disk: &dyn Disk, owner: &Superblock) -> io::Result<()> {
    let file = disk.open(SUPERBLOCK_NEW, true)?;
    file.write(&mut [IoSlice::new(&owner.encode())], 0)?;
    file.sync()?;
    disk.rename(SUPERBLOCK_NEW, SUPERBLOCK)?;
    disk.sync_dir("")
}
