//! The segments that must exist, and their minimum lengths: kept outside the segments, so that the next start notices
//! one that is gone or cut short. Without it, a shorter segment looks like the result of a crash, and an absent one
//! leaves no trace.
//!
//! Two files take turns, so that a crash while writing one leaves the other. The inventory is written when a segment is
//! begun, before one is removed, and when the store comes to rest ([`crate::StoreCore::rest`]): records acknowledged in
//! the last moments before a crash are in the segment only.

use crate::OpenError;
use crate::disk::Disk;
use crate::layout::{Superblock, decode_inventory, encode_inventory};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};

/// Maximum bytes read of a file: far more segments than fit on a disk.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Default)]
pub struct Inventory {
    generation: u32,
    /// Durable bytes by segment.
    pub segments: BTreeMap<u32, u32>,
    /// Whether each file's name is durable. A file that was removed from outside is created again.
    named: [bool; 2],
}

fn slot_of(generation: u32) -> usize {
    (generation % 2) as usize
}

fn path_of(slot: usize) -> String {
    format!("inventory.{slot}")
}

impl Inventory {
    /// Writes the first inventory, of a store without segments.
    pub fn create(disk: &dyn Disk, owner: &Superblock) -> io::Result<()> {
        Inventory::default().write(disk, owner, BTreeMap::new())
    }

    /// Reads the newest one that is intact.
    pub fn read(disk: &dyn Disk, owner: &Superblock) -> Result<Inventory, OpenError> {
        let read = |slot| {
            let path = path_of(slot);
            let mut bytes = Vec::new();
            let read = disk.open(&path, false).and_then(|file| {
                let size = file.size()?.min(BYTES_MAX);
                file.read(&mut bytes, size as usize, 0)
            });
            match read {
                Ok(()) => Ok(decode_inventory(&bytes, owner)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(OpenError::Io { action: "read", path, source }),
            }
        };
        let found = [read(0)?, read(1)?];
        // This start made the names of existing files durable together with the superblock's.
        let named = [0, 1].map(|slot: usize| found[slot].is_some());
        let newest = found.into_iter().flatten().max_by_key(|(generation, _)| *generation);
        let (generation, segments) = newest.ok_or_else(|| OpenError::Damaged {
            file: path_of(0),
            offset: 0,
            what: "neither it nor its twin says which segments there must be",
        })?;
        Ok(Inventory { generation, segments, named })
    }

    /// Makes this set of segments durable.
    pub fn write(
        &mut self,
        disk: &dyn Disk,
        owner: &Superblock,
        segments: BTreeMap<u32, u32>,
    ) -> io::Result<()> {
        let generation = self.generation + 1;
        let bytes = encode_inventory(generation, owner, &segments);
        let slot = slot_of(generation);
        let file = disk.open(&path_of(slot), true)?;
        file.write(&mut [IoSlice::new(&bytes)], 0)?;
        file.sync()?;
        if !self.named[slot] {
            disk.sync_dir("")?;
            self.named[slot] = true;
        }
        (self.generation, self.segments) = (generation, segments);
        Ok(())
    }
}
