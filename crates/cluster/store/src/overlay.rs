//! The blocks of one chunk that are in segments and not in its chunk file: runs by first block, never overlapping. The
//! newest version of a block wins; of equal ones the later copy, which is how a damaged copy is replaced. Only a repair
//! keeps its place until another one comes: it alone says that its version is the newest of a block that the chunk file
//! has lost.

use ebb_types::{BLOCK_BYTES, Version, lost_block_crc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where in the segments a record starts: segment number, then byte offset. Later records have larger positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub segment: u32,
    pub offset: u32,
}

impl Position {
    pub fn to_u64(self) -> u64 {
        (self.segment as u64) << 32 | self.offset as u64
    }

    pub fn from_u64(value: u64) -> Position {
        Position { segment: (value >> 32) as u32, offset: value as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentPlace {
    Zero,
    /// At its offset in the chunk file.
    File,
    /// At this offset of the record's segment.
    Segment(u32),
}

/// Blocks that one record set.
#[derive(Clone, Debug)]
pub struct Extent {
    pub count: u32,
    pub version: Version,
    /// Position of the record.
    pub at: Position,
    pub place: ExtentPlace,
    /// It is the newest version of its blocks, even of lost ones.
    pub repair: bool,
    /// Checksums of the record's blocks; those of this extent start at `crc_from`. Empty for zeroes.
    pub crcs: Arc<[u32]>,
    pub crc_from: u32,
    /// The chunk file has it too, and counts it.
    pub in_file: bool,
}

impl Extent {
    /// The part that starts `skip` blocks in.
    pub fn slice(&self, skip: u32, count: u32) -> Extent {
        debug_assert!(count > 0 && skip + count <= self.count, "a part has blocks of the whole only");
        let place = match self.place {
            ExtentPlace::Segment(offset) => ExtentPlace::Segment(offset + skip * BLOCK_BYTES as u32),
            other => other,
        };
        Extent { count, place, crc_from: self.crc_from + skip, ..self.clone() }
    }

    pub fn crcs(&self) -> &[u32] {
        match self.place {
            ExtentPlace::Zero => &[],
            _ => &self.crcs[self.crc_from as usize..][..self.count as usize],
        }
    }

    pub fn data_bytes(&self) -> u64 {
        if self.place == ExtentPlace::Zero { 0 } else { self.count as u64 * BLOCK_BYTES as u64 }
    }

    /// Whether its blocks stay where `new` sets them, too. Equal versions are equal bytes, except those that a repair
    /// stored as lost.
    fn outlasts(&self, new: &Extent) -> bool {
        let keeps_place = || self.repair && !new.repair && !self.crcs().contains(&lost_block_crc());
        self.version > new.version || (self.version == new.version && keeps_place())
    }

    /// Bytes that it keeps alive in its segment.
    pub fn segment_bytes(&self) -> u64 {
        let payload = if matches!(self.place, ExtentPlace::Segment(_)) { self.data_bytes() } else { 0 };
        payload + crate::layout::RECORD_ALIGN as u64
    }
}

#[derive(Clone, Debug, Default)]
pub struct Overlay(BTreeMap<u32, Extent>);

impl Overlay {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Extents that touch the range, whole.
    pub fn touching(&self, first: u32, count: u32) -> impl Iterator<Item = (u32, &Extent)> {
        let before =
            self.0.range(..first).next_back().filter(|(start, extent)| **start + extent.count > first);
        before.into_iter().chain(self.0.range(first..first + count)).map(|(start, extent)| (*start, extent))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Extent)> {
        self.0.iter().map(|(start, extent)| (*start, extent))
    }

    /// Sets the blocks of `new`, but for those that outlast it. `changed` is called for every extent added (true) or
    /// removed.
    pub fn insert(&mut self, first: u32, new: Extent, changed: &mut impl FnMut(&Extent, bool)) {
        debug_assert!(new.count > 0, "a record without blocks sets none");
        let end = first + new.count;
        let old: Vec<(u32, Extent)> =
            self.touching(first, new.count).map(|(start, e)| (start, e.clone())).collect();
        let mut add = |map: &mut BTreeMap<u32, Extent>, start: u32, extent: Extent| {
            debug_assert!(
                map.range(..start + extent.count).next_back().is_none_or(|(at, e)| at + e.count <= start),
                "extents do not overlap"
            );
            changed(&extent, true);
            map.insert(start, extent);
        };
        let mut free_from = first;
        let mut gone = Vec::new();
        for (start, extent) in old {
            let stop = start + extent.count;
            if extent.outlasts(&new) {
                if start > free_from {
                    add(&mut self.0, free_from, new.slice(free_from - first, start - free_from));
                }
                free_from = stop;
                continue;
            }
            self.0.remove(&start);
            if start < first {
                add(&mut self.0, start, extent.slice(0, first - start));
            }
            if stop > end {
                add(&mut self.0, end, extent.slice(end - start, stop - end));
            }
            gone.push(extent);
        }
        if free_from < end {
            add(&mut self.0, free_from, new.slice(free_from - first, end - free_from));
        }
        for extent in gone {
            changed(&extent, false);
        }
    }

    /// Removes these blocks.
    pub fn clear(&mut self, blocks: Range<u32>, changed: &mut impl FnMut(&Extent, bool)) {
        let touching = self.touching(blocks.start, blocks.end - blocks.start);
        let old: Vec<(u32, Extent)> = touching.map(|(start, e)| (start, e.clone())).collect();
        for (start, extent) in old {
            self.0.remove(&start);
            let stop = start + extent.count;
            for (from, to) in [(start, stop.min(blocks.start)), (start.max(blocks.end), stop)] {
                if from < to {
                    let rest = extent.slice(from - start, to - from);
                    changed(&rest, true);
                    self.0.insert(from, rest);
                }
            }
            changed(&extent, false);
        }
    }

    /// The chunk file has everything of records before this position. Returns the bytes of data that were not known to
    /// be there.
    pub fn mark_in_file(&mut self, before: Position) -> u64 {
        let news = self.0.values_mut().filter(|extent| extent.at < before && !extent.in_file);
        news.map(|extent| {
            extent.in_file = true;
            extent.data_bytes()
        })
        .sum()
    }

    /// Takes the repairs before this position for other records: no newest version of what is lost.
    pub fn doubt_repairs(&mut self, before: Position) {
        self.0.values_mut().filter(|extent| extent.at < before).for_each(|extent| extent.repair = false);
    }

    /// Removes the extents that `gone` picks.
    pub fn remove(&mut self, gone: impl Fn(&Extent) -> bool, changed: &mut impl FnMut(&Extent, bool)) {
        self.0.retain(|_, extent| {
            let go = gone(extent);
            if go {
                changed(extent, false);
            }
            !go
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Epoch;

    fn extent(count: u32, seq: u64, offset: u32) -> Extent {
        Extent {
            count,
            version: Version { epoch: Epoch(1), seq },
            at: Position { segment: 1, offset: seq as u32 },
            place: ExtentPlace::Segment(offset),
            repair: false,
            crcs: (0..count).map(|i| seq as u32 * 1000 + i).collect(),
            crc_from: 0,
            in_file: false,
        }
    }

    /// A record that is sent again after a repair, with more blocks than the repair has.
    #[test]
    fn a_plain_copy_of_equal_version_takes_no_repairs_place() {
        let repair = |offset| Extent { repair: true, ..extent(2, 5, offset) };
        let after = |first: Extent, new: Extent| {
            let mut overlay = Overlay::default();
            let mut account = 0i64;
            for (at, extent) in [(2, first), (0, new)] {
                overlay.insert(at, extent, &mut |e, came| {
                    account += if came { 1 } else { -1 } * i64::from(e.count);
                });
            }
            assert_eq!(account, 6);
            let repairs = overlay.iter().filter(|(_, e)| e.repair);
            repairs.map(|(start, e)| (start, e.count, e.place)).collect::<Vec<_>>()
        };
        let kept = vec![(2, 2, ExtentPlace::Segment(9))];
        assert_eq!(after(repair(9), extent(6, 5, 0)), kept);
        assert!(after(repair(9), extent(6, 6, 0)).is_empty(), "it is newer");
        let again = Extent { repair: true, ..extent(6, 5, 0) };
        assert_eq!(after(repair(9), again), [(0, 6, ExtentPlace::Segment(0))], "it repairs, too");
        let lost = Extent { crcs: [lost_block_crc(); 2].into(), ..repair(9) };
        assert!(after(lost, extent(6, 5, 0)).is_empty(), "no copy had these blocks, and now one has");
    }

    /// Checked against the obvious model: an array of the newest write per block.
    #[test]
    fn the_newest_version_of_every_block_wins_and_the_account_balances() {
        for seed in 0..300u64 {
            let mut state = seed;
            let mut next = |below: u32| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as u32 % below
            };
            let mut overlay = Overlay::default();
            let mut model = [None::<(u64, u32, u32)>; 40];
            let mut account = 0i64;
            for step in 0..30 {
                let (first, seq) = (next(30), next(20) as u64);
                let count = 1 + next(10);
                overlay.insert(first, extent(count, seq, step * 1_000_000), &mut |e, came| {
                    account += if came { 1 } else { -1 } * e.count as i64;
                });
                for i in 0..count {
                    let block = &mut model[(first + i) as usize];
                    if block.is_none_or(|(old, ..)| old <= seq) {
                        *block =
                            Some((seq, seq as u32 * 1000 + i, step * 1_000_000 + i * BLOCK_BYTES as u32));
                    }
                }
            }
            let mut seen = [None; 40];
            for (start, e) in overlay.iter() {
                let ExtentPlace::Segment(offset) = e.place else { unreachable!() };
                for (i, crc) in e.crcs().iter().enumerate() {
                    let slot = &mut seen[start as usize + i];
                    assert_eq!(*slot, None, "overlap, seed {seed}");
                    *slot = Some((e.version.seq, *crc, offset + i as u32 * BLOCK_BYTES as u32));
                }
            }
            assert_eq!(seen, model, "seed {seed}");
            assert_eq!(account, model.iter().flatten().count() as i64, "seed {seed}");
        }
    }
}
