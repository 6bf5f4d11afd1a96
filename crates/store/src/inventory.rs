//! Which segments there must be, and how long they are at least: kept outside of them, so that one that is gone or cut short is
//! noticed at the next start. Without it a shorter segment is what a crash leaves, and an absent one is nothing at all.
//!
//! Two files take turns, so that a crash in the middle of writing one leaves the other. It is written when a segment is begun,
//! before one is removed, and when the store comes to rest ([`crate::StoreCore::rest`]): what was acknowledged in the last
//! moments before a crash is in the segment only.

use crate::OpenError;
use crate::disk::Disk;
use crate::layout::{Superblock, decode_inventory, encode_inventory};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};

/// Longest file that is read: far more segments than a disk has room for.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Default)]
pub struct Inventory {
    generation: u32,
    /// Bytes that were durable, by segment.
    pub segments: BTreeMap<u32, u32>,
    /// Of which of the two files the name is durable. One that somebody removed is made anew.
    named: [bool; 2],
}

fn slot_of(generation: u32) -> usize {
    (generation % 2) as usize
}

fn path_of(slot: usize) -> String {
    format!("inventory.{slot}")
}

impl Inventory {
    /// Writes the first one, of a store that has no segments.
    pub fn create(disk: &dyn Disk, owner: &Superblock) -> io::Result<()> {
        Inventory::default().write(disk, owner, BTreeMap::new())
    }

    /// The newest one that is whole.
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
        // Those that are there got their names made durable with the superblock's, at this start.
        let named = [0, 1].map(|slot: usize| found[slot].is_some());
        let newest = found.into_iter().flatten().max_by_key(|(generation, _)| *generation);
        let (generation, segments) = newest.ok_or_else(|| OpenError::Damaged {
            file: path_of(0),
            offset: 0,
            what: "neither it nor its twin says which segments there must be",
        })?;
        Ok(Inventory { generation, segments, named })
    }

    /// Makes durable that there are these segments.
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
