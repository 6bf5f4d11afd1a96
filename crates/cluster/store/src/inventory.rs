//! The segments that must exist, and their minimum lengths: kept outside the segments, so that the next start notices
//! one that is gone or cut short. Without it, a shorter segment looks like the result of a crash, and an absent one
//! leaves no trace.
//!
//! Two files take turns, so that a crash while writing one leaves the other. Both are there from the beginning: if one
//! is gone, it may have been the newer one, and what only that named may be gone with it. The inventory is written when
//! a segment is begun, before one is removed, and when the store comes to rest ([`crate::StoreCore::rest`]): records
//! acknowledged in the last moments before a crash are in the segment only.

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
}

fn slot_of(generation: u32) -> usize {
    (generation % 2) as usize
}

fn path_of(slot: usize) -> String {
    format!("inventory.{slot}")
}

impl Inventory {
    /// Writes both files of a store without segments.
    pub fn create(disk: &dyn Disk, owner: &Superblock) -> io::Result<()> {
        let mut first = Inventory::default();
        first.write(disk, owner, BTreeMap::new())?;
        first.write(disk, owner, BTreeMap::new())
    }

    /// Reads the newest one that is intact. Only the first has no twin yet, in directories of 0.2.
    pub fn read(disk: &dyn Disk, owner: &Superblock) -> Result<Inventory, OpenError> {
        let read = |slot| {
            let path = path_of(slot);
            let mut bytes = Vec::new();
            let read = disk.open(&path, false).and_then(|file| {
                let size = file.size()?.min(BYTES_MAX);
                file.read(&mut bytes, size as usize, 0)
            });
            match read {
                Ok(()) => Ok(Some(decode_inventory(&bytes, owner))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(OpenError::Io { action: "read", path, source }),
            }
        };
        let found = [read(0)?, read(1)?];
        let gone = found.iter().position(Option::is_none);
        let newest = found.into_iter().flatten().flatten().max_by_key(|(generation, _)| *generation);
        let (generation, segments) = newest.ok_or_else(|| OpenError::Damaged {
            file: path_of(0),
            offset: 0,
            what: "neither it nor its twin says which segments there must be",
        })?;
        match gone {
            Some(slot) if generation > 1 => Err(OpenError::Damaged {
                file: path_of(slot),
                offset: 0,
                what: "it is gone, and may have named segments that are gone with it",
            }),
            _ => Ok(Inventory { generation, segments }),
        }
    }

    /// Makes this set of segments durable.
    pub fn write(
        &mut self,
        disk: &dyn Disk,
        owner: &Superblock,
        segments: BTreeMap<u32, u32>,
    ) -> io::Result<()> {
        let shorter =
            |(number, bytes): (&u32, &u32)| self.segments.get(number).is_some_and(|before| before > bytes);
        debug_assert!(!segments.iter().any(shorter), "no segment gets shorter");
        let generation = self.generation + 1;
        let bytes = encode_inventory(generation, owner, &segments);
        let path = path_of(slot_of(generation));
        // Each start makes the names of existing files durable, together with the superblock's.
        let (file, is_new) = match disk.open(&path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (disk.open(&path, true)?, true),
            opened => (opened?, false),
        };
        file.write(&mut [IoSlice::new(&bytes)], 0)?;
        file.sync()?;
        if is_new {
            disk.sync_dir("")?;
        }
        (self.generation, self.segments) = (generation, segments);
        Ok(())
    }
}
