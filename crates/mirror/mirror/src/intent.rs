//! The intent map: which regions of the mirror may differ between the disks. Each disk has one, in two slots as the
//! superblock.
//!
//! A region is marked, and the map durable, before the first write to it begins; it is cleared some time after the last
//! one has reached both disks. So after a crash only marked regions have to be compared or copied, as with the
//! write-intent bitmap of Linux md. The paper's prototype loses writes that were pending at a crash [LogStore §3.2];
//! this map is how Ebb does not.

use crate::BLOCK_BYTES;
use crate::fields::{id_at, is_intact, put, seal, u32_at, u64_at};
use crate::geometry::{Geometry, REGIONS_MAX};
use crate::superblock::MirrorId;
use bytes::Bytes;
use std::ops::Range;

/// Length of a slot: one block, so that a note costs one short access.
pub const MAP_BYTES: usize = BLOCK_BYTES as usize;
const MAGIC: [u8; 8] = *b"EBBINTEN";
const DIRTY_AT: usize = 128;
const WORDS: usize = REGIONS_MAX.div_ceil(64) as usize;
const AHEAD_AT: usize = DIRTY_AT + 8 * WORDS;
const _: () = assert!(AHEAD_AT + 8 * WORDS == MAP_BYTES);
const _: () = assert!(40 + size_of::<u64>() <= DIRTY_AT, "the regions follow the last field");

/// A set of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSet {
    words: Box<[u64; WORDS]>,
    len: u32,
}

impl RegionSet {
    fn empty() -> RegionSet {
        RegionSet { words: Box::new([0; WORDS]), len: 0 }
    }

    pub fn contains(&self, region: u32) -> bool {
        self.words[region as usize / 64] & bit(region) != 0
    }

    /// Whether it is new.
    pub fn insert(&mut self, region: u32) -> bool {
        let is_new = !self.contains(region);
        self.words[region as usize / 64] |= bit(region);
        self.len += u32::from(is_new);
        is_new
    }

    /// Whether it was there.
    pub fn remove(&mut self, region: u32) -> bool {
        let was_there = self.contains(region);
        self.words[region as usize / 64] &= !bit(region);
        self.len -= u32::from(was_there);
        was_there
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().zip((0..).step_by(64)).flat_map(|(&word, first)| {
            let rest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
            let words = std::iter::successors(Some(word).filter(|word| *word != 0), rest);
            words.map(move |word| first + word.trailing_zeros())
        })
    }

    fn encode(&self, out: &mut [u8]) {
        for (n, word) in self.words.iter().enumerate() {
            put(out, 8 * n, &word.to_le_bytes());
        }
    }

    /// `None`: a region beyond the last one is set.
    fn decode(bytes: &[u8], regions: u32) -> Option<RegionSet> {
        let mut set = RegionSet::empty();
        for (n, word) in set.words.iter_mut().enumerate() {
            *word = u64_at(bytes, 8 * n);
            set.len += word.count_ones();
        }
        let fits = set.iter().all(|region| region < regions);
        fits.then_some(set)
    }
}

fn bit(region: u32) -> u64 {
    1 << (region % 64)
}

/// The map of one disk, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentMap {
    mirror: MirrorId,
    region_blocks: u64,
    data_blocks: u64,
    regions: u32,
    /// A write to the region may have reached only one disk.
    pub dirty: RegionSet,
    /// This disk has acknowledged data in the region that the other one lacks.
    pub ahead: RegionSet,
}

impl IntentMap {
    /// Nothing is marked.
    pub fn new(mirror: MirrorId, geometry: &Geometry) -> IntentMap {
        IntentMap {
            mirror,
            region_blocks: geometry.region_bytes() / BLOCK_BYTES,
            data_blocks: geometry.data_blocks(),
            regions: geometry.regions(),
            dirty: RegionSet::empty(),
            ahead: RegionSet::empty(),
        }
    }

    /// Number of regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    pub fn region_of(&self, block: u64) -> u32 {
        assert!(block < self.data_blocks, "block {block} is beyond the mirror");
        u32::try_from(block / self.region_blocks).expect("there are few regions")
    }

    pub fn blocks_of(&self, region: u32) -> Range<u64> {
        assert!(region < self.regions, "region {region} is beyond the mirror");
        let first = u64::from(region) * self.region_blocks;
        first..(first + self.region_blocks).min(self.data_blocks)
    }

    /// The slot that map number `written` goes to.
    pub fn slot(written: u64) -> usize {
        (written % 2) as usize
    }

    /// [`MAP_BYTES`] for that slot. `written` grows by one with each map that is written.
    pub fn encode(&self, written: u64) -> Bytes {
        let mut out = vec![0; MAP_BYTES];
        put(&mut out, 12, &self.regions.to_le_bytes());
        put(&mut out, 16, &written.to_le_bytes());
        put(&mut out, 24, &self.mirror.0);
        put(&mut out, 40, &(self.region_blocks * BLOCK_BYTES).to_le_bytes());
        self.dirty.encode(&mut out[DIRTY_AT..AHEAD_AT]);
        self.ahead.encode(&mut out[AHEAD_AT..]);
        seal(&mut out, &MAGIC);
        out.into()
    }

    /// Number and content of one slot. `None`: never written, damaged, or of another mirror or geometry.
    pub fn decode(bytes: &[u8], mirror: MirrorId, geometry: &Geometry) -> Option<(u64, IntentMap)> {
        let bytes = bytes.get(..MAP_BYTES).filter(|bytes| bytes[..8] == MAGIC && is_intact(bytes))?;
        let map = IntentMap::new(mirror, geometry);
        let is_ours = id_at(bytes, 24) == mirror.0
            && u32_at(bytes, 12) == map.regions
            && u64_at(bytes, 40) == map.region_blocks * BLOCK_BYTES;
        let set = |at: usize| RegionSet::decode(&bytes[at..], map.regions).filter(|_| is_ours);
        Some((u64_at(bytes, 16), IntentMap { dirty: set(DIRTY_AT)?, ahead: set(AHEAD_AT)?, ..map }))
    }

    /// The newer one of the slots that count, with its number. `None`: neither does, and every region may differ.
    pub fn newest(slots: [&[u8]; 2], mirror: MirrorId, geometry: &Geometry) -> Option<(u64, IntentMap)> {
        let maps = slots.into_iter().filter_map(|slot| IntentMap::decode(slot, mirror, geometry));
        maps.max_by_key(|(written, _)| *written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Random, crc32c};
    use std::collections::BTreeSet;

    const MIRROR: MirrorId = MirrorId([7; 16]);

    fn geometry() -> Geometry {
        Geometry::new((3 << 30) + 12345, 1 << 24).unwrap()
    }

    fn map(seed: u64) -> IntentMap {
        let (mut map, mut random) = (IntentMap::new(MIRROR, &geometry()), Random::new(seed));
        for _ in 0..200 {
            map.dirty.insert(random.below(u64::from(map.regions())) as u32);
            map.ahead.insert(random.below(u64::from(map.regions())) as u32);
        }
        map
    }

    #[test]
    fn a_map_comes_back_and_only_to_its_mirror_and_geometry() {
        let map = map(1);
        let bytes = map.encode(5);
        assert_eq!(bytes.len(), MAP_BYTES);
        assert_eq!(IntentMap::decode(&bytes, MIRROR, &geometry()), Some((5, map)));
        assert_eq!(IntentMap::decode(&bytes, MirrorId([8; 16]), &geometry()), None);
        for other in [4 << 30, 400 << 30] {
            let other = Geometry::new(other, 1 << 24).unwrap();
            assert_eq!(IntentMap::decode(&bytes, MIRROR, &other), None);
        }
        // As many regions, but of other lengths.
        let [short, long] =
            [40_000 << 16, 40_000 << 17].map(|bytes| Geometry::new((1 << 20) + bytes, 0).unwrap());
        assert_eq!((short.regions(), 2 * short.region_bytes()), (long.regions(), long.region_bytes()));
        let bytes_of_short = IntentMap::new(MIRROR, &short).encode(1);
        assert_eq!(IntentMap::decode(&bytes_of_short, MIRROR, &long), None);
        assert!((0..MAP_BYTES).all(|len| IntentMap::decode(&bytes[..len], MIRROR, &geometry()).is_none()));
        // If this fails, the format is another one: change FORMAT and docs/mirror-format.md.
        assert_eq!(crc32c(&bytes), 3_658_825_010);
    }

    #[test]
    fn every_flipped_bit_of_a_map_is_noticed() {
        let mut bytes = map(1).encode(5).to_vec();
        for bit in 0..MAP_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IntentMap::decode(&bytes, MIRROR, &geometry()), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_write_torn_at_any_sector_leaves_the_map_before_it() {
        let mut slots = [vec![0; MAP_BYTES], vec![0; MAP_BYTES]];
        for written in 1..=4 {
            let (new, slot) = (map(written), IntentMap::slot(written));
            for cut in (0..=MAP_BYTES).step_by(32) {
                let mut torn = slots.clone();
                torn[slot][..cut].copy_from_slice(&new.encode(written)[..cut]);
                match IntentMap::newest([&torn[0], &torn[1]], MIRROR, &geometry()) {
                    Some((found, map_found)) => {
                        assert!(found == written || found == written - 1);
                        assert_eq!(map_found, map(found));
                    }
                    // The first write of all.
                    None => assert!(written == 1 && cut < MAP_BYTES),
                }
            }
            slots[slot] = new.encode(written).to_vec();
        }
    }

    #[test]
    fn sets_of_regions_are_sets() {
        let (mut set, mut model) = (RegionSet::empty(), BTreeSet::new());
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let region = match random.below(3) {
                0 => random.below(REGIONS_MAX) as u32,
                1 => 60 + random.below(10) as u32,
                _ => REGIONS_MAX as u32 - 1 - random.below(3) as u32,
            };
            if random.chance(600) {
                assert_eq!(set.insert(region), model.insert(region));
            } else {
                assert_eq!(set.remove(region), model.remove(&region));
            }
            assert_eq!(set.contains(region), model.contains(&region));
            assert_eq!((set.len() as usize, set.is_empty()), (model.len(), model.is_empty()));
        }
        assert!(set.iter().eq(model.iter().copied()));
    }

    #[test]
    fn regions_and_blocks_correspond_to_the_last_block() {
        for device in [16 << 20, (3 << 30) + 12345, 1 << 40, (1 << 48) - 4096] {
            let geometry = Geometry::new(device, 0).unwrap();
            let map = IntentMap::new(MIRROR, &geometry);
            let last = map.regions() - 1;
            assert_eq!(map.blocks_of(0).start, 0);
            assert_eq!(map.blocks_of(last).end, geometry.data_blocks());
            assert_eq!(map.region_of(geometry.data_blocks() - 1), last);
            for region in [0, last / 2, last] {
                let blocks = map.blocks_of(region);
                assert_eq!([blocks.start, blocks.end - 1].map(|block| map.region_of(block)), [region; 2]);
                assert!(region == last || map.blocks_of(region + 1).start == blocks.end);
            }
        }
    }

    #[test]
    fn made_up_maps_are_refused_or_read() {
        let samples = [map(1).encode(5), IntentMap::new(MIRROR, &geometry()).encode(1)];
        ebb_testing::fuzz(&[&samples[0], &samples[1]], |bytes| {
            let _ = IntentMap::decode(bytes, MIRROR, &geometry());
            // As if the checksum were right.
            let mut bytes = bytes.to_vec();
            bytes.resize(MAP_BYTES, 0);
            seal(&mut bytes, &MAGIC);
            if let Some((_, map)) = IntentMap::decode(&bytes, MIRROR, &geometry()) {
                for set in [&map.dirty, &map.ahead] {
                    assert!(set.iter().all(|region| !map.blocks_of(region).is_empty()));
                    assert_eq!(set.iter().count(), set.len() as usize);
                }
            }
        });
    }
}
