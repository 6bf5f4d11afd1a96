//! What is where on a disk of a mirror, in bytes of the device. The same on both disks.
//!
//! ```text
//! 0            4096         8 KiB    12 KiB   1 MiB         multiple of 1 MiB
//! | superblock | superblock | map    | map    | log         | data
//! | slot 0     | slot 1     | slot 0 | slot 1 | log_blocks  | data_blocks
//! ```
//! Two numbers decide everything: the blocks of the mirror and those of the log. The rest follows from them, so a
//! geometry that exists is one that fits: no sum or product of its parts overflows.
//!
//! The log is statically allocated [LogStore §3.1]. The paper's is 3 GB; here its size is chosen when the mirror is
//! created.

use crate::BLOCK_BYTES;
use crate::table::SLOTS_MAX;

const MIB: u64 = 1 << 20;

/// Smallest disk, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 16 * MIB;
/// Largest mirror, in blocks (256 TiB): the log's table has 36 bits for a block.
pub const DATA_BLOCKS_MAX: u64 = 1 << 36;
/// Smallest log, in bytes, but for none at all.
pub const LOG_BYTES_MIN: u64 = MIB;
/// Longest log, in bytes (1 TiB less a block).
pub const LOG_BYTES_MAX: u64 = SLOTS_MAX * BLOCK_BYTES;
/// Smallest data area, in bytes.
const DATA_BYTES_MIN: u64 = MIB;
/// Areas start at multiples of this.
const AREA_ALIGN: u64 = MIB;
const LOG_OFFSET: u64 = MIB;

/// Where the two slots of the superblock are, in bytes. Each is one block long.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, BLOCK_BYTES];
/// Where the two slots of the intent map are, in bytes. Each is [`MAP_BYTES`](crate::intent::MAP_BYTES) long.
pub const MAP_OFFSETS: [u64; 2] = [2 * BLOCK_BYTES, 3 * BLOCK_BYTES];

/// Smallest part of the mirror that the intent map knows, in bytes.
const REGION_BYTES_MIN: u64 = 64 << 10;
/// Most regions of a mirror: both bitmaps fit into one block.
pub const REGIONS_MAX: u64 = 15_872;

const _: () = assert!(DATA_BLOCKS_MAX.ilog2() + (SLOTS_MAX + 1).ilog2() == u64::BITS, "a cell of the table");
const _: () = assert!(MAP_OFFSETS[1] + BLOCK_BYTES <= LOG_OFFSET && LOG_OFFSET.is_multiple_of(AREA_ALIGN));
const _: () =
    assert!(LOG_OFFSET + LOG_BYTES_MIN + DATA_BYTES_MIN <= DEVICE_BYTES_MIN, "the smallest disk has all");

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    #[error(
        "a disk of {device_bytes} bytes is too small for a mirror: use one of at least {DEVICE_BYTES_MIN} bytes"
    )]
    TooSmall { device_bytes: u64 },
    #[error(
        "a disk of {device_bytes} bytes is too large for a mirror: use a partition of at most {largest} bytes"
    )]
    TooLarge { device_bytes: u64, largest: u64 },
    #[error(
        "a log of {log_bytes} bytes is too small: give it {LOG_BYTES_MIN} bytes or more, or 0 for no log"
    )]
    LogTooSmall { log_bytes: u64 },
    #[error("a log of {log_bytes} bytes is too large: this disk has room for one of {largest} bytes")]
    LogTooLarge { log_bytes: u64, largest: u64 },
}

/// Places and sizes of the areas of both disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    data_blocks: u64,
    log_blocks: u64,
}

impl Geometry {
    /// For a disk of `device_bytes` with a log of `log_bytes`, which is rounded down to whole blocks; 0: no log.
    pub fn new(device_bytes: u64, log_bytes: u64) -> Result<Geometry, GeometryError> {
        if device_bytes < DEVICE_BYTES_MIN {
            return Err(GeometryError::TooSmall { device_bytes });
        }
        if (1..LOG_BYTES_MIN).contains(&log_bytes) {
            return Err(GeometryError::LogTooSmall { log_bytes });
        }
        let areas = device_bytes / AREA_ALIGN * AREA_ALIGN;
        let largest = (areas - LOG_OFFSET - DATA_BYTES_MIN).min(LOG_BYTES_MAX);
        if log_bytes > largest {
            return Err(GeometryError::LogTooLarge { log_bytes, largest });
        }
        let log_blocks = log_bytes / BLOCK_BYTES;
        let data_blocks = (device_bytes - data_offset(log_blocks)) / BLOCK_BYTES;
        if data_blocks > DATA_BLOCKS_MAX {
            let largest = Geometry { data_blocks: DATA_BLOCKS_MAX, log_blocks }.device_bytes();
            return Err(GeometryError::TooLarge { device_bytes, largest });
        }
        Ok(Geometry { data_blocks, log_blocks })
    }

    /// For two disks of `a_bytes` and `b_bytes`: what fits on the smaller one.
    pub fn common(a_bytes: u64, b_bytes: u64, log_bytes: u64) -> Result<Geometry, GeometryError> {
        Geometry::new(a_bytes.min(b_bytes), log_bytes)
    }

    /// As read from a superblock. `None`: no disk has such areas.
    pub(crate) fn of_areas(data_blocks: u64, log_bytes: u64) -> Option<Geometry> {
        let fits = data_blocks <= DATA_BLOCKS_MAX && log_bytes <= LOG_BYTES_MAX;
        let geometry = fits.then_some(Geometry { data_blocks, log_blocks: log_bytes / BLOCK_BYTES })?;
        (Geometry::new(geometry.device_bytes(), log_bytes) == Ok(geometry)).then_some(geometry)
    }

    /// Size of the mirror, in blocks.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Size of the log, in blocks; 0: there is none.
    pub fn log_blocks(&self) -> u64 {
        self.log_blocks
    }

    /// Where the log starts, in bytes.
    pub fn log_offset(&self) -> u64 {
        LOG_OFFSET
    }

    /// Where the mirror's block 0 is, in bytes.
    pub fn data_offset(&self) -> u64 {
        data_offset(self.log_blocks)
    }

    /// Where block `slot` of the log is, in bytes.
    pub fn log_at(&self, slot: u64) -> u64 {
        LOG_OFFSET + slot * BLOCK_BYTES
    }

    /// The regular place of a block of the mirror, in bytes.
    pub fn data_at(&self, block: u64) -> u64 {
        self.data_offset() + block * BLOCK_BYTES
    }

    /// Bytes that a disk must have. One that has fewer was truncated, or is a partial copy.
    pub fn device_bytes(&self) -> u64 {
        self.data_at(self.data_blocks)
    }

    /// The smallest power of two with which [`REGIONS_MAX`] regions suffice.
    pub fn region_bytes(&self) -> u64 {
        let needed = (self.data_blocks * BLOCK_BYTES).div_ceil(REGIONS_MAX);
        needed.next_power_of_two().max(REGION_BYTES_MIN)
    }

    /// Regions of the mirror; the last one may be shorter.
    pub fn regions(&self) -> u32 {
        let regions = (self.data_blocks * BLOCK_BYTES).div_ceil(self.region_bytes());
        u32::try_from(regions).expect("there are REGIONS_MAX at most")
    }
}

fn data_offset(log_blocks: u64) -> u64 {
    (LOG_OFFSET + log_blocks * BLOCK_BYTES).next_multiple_of(AREA_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::MAP_BYTES;
    use ebb_types::Random;

    const GIB: u64 = 1 << 30;

    #[test]
    fn areas_do_not_overlap_and_end_with_the_disk() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let largest = 1 << random.between(25, 47);
            let device = random.between(DEVICE_BYTES_MIN, largest);
            let log = match random.below(4) {
                0 => 0,
                _ => random.between(LOG_BYTES_MIN, (device - 2 * MIB) / MIB * MIB).min(LOG_BYTES_MAX),
            };
            let geometry = Geometry::new(device, log).unwrap();
            assert!(SUPERBLOCK_OFFSETS[1] >= SUPERBLOCK_OFFSETS[0] + BLOCK_BYTES);
            assert!(MAP_OFFSETS[0] >= SUPERBLOCK_OFFSETS[1] + BLOCK_BYTES);
            assert!(MAP_OFFSETS[1] >= MAP_OFFSETS[0] + MAP_BYTES as u64);
            assert!(geometry.log_at(0) >= MAP_OFFSETS[1] + MAP_BYTES as u64);
            assert!(geometry.data_at(0) >= geometry.log_at(geometry.log_blocks()));
            assert!(geometry.data_at(0).is_multiple_of(MIB) && geometry.log_at(0).is_multiple_of(MIB));
            assert!((geometry.device_bytes()..geometry.device_bytes() + BLOCK_BYTES).contains(&device));
            assert!(log - geometry.log_blocks() * BLOCK_BYTES < BLOCK_BYTES);
            let regions = u64::from(geometry.regions());
            assert!(regions <= REGIONS_MAX && geometry.region_bytes().is_power_of_two());
            assert!(geometry.region_bytes() == REGION_BYTES_MIN || regions > REGIONS_MAX / 2);
            assert!(regions * geometry.region_bytes() >= geometry.data_blocks() * BLOCK_BYTES);
            assert!((regions - 1) * geometry.region_bytes() < geometry.data_blocks() * BLOCK_BYTES);
            let again = Geometry::of_areas(geometry.data_blocks(), geometry.log_blocks() * BLOCK_BYTES);
            assert_eq!(again, Some(geometry));
        }
    }

    #[test]
    fn the_paper_s_log_and_two_unequal_disks() {
        let geometry = Geometry::common(500 * GIB, 400 * GIB + 1, 3 * GIB).unwrap();
        assert_eq!(geometry, Geometry::new(400 * GIB, 3 * GIB).unwrap());
        assert_eq!(geometry.log_blocks(), 786_432);
        assert_eq!(geometry.data_offset(), 3 * GIB + MIB);
        assert_eq!(geometry.data_blocks(), (397 * GIB - MIB) / BLOCK_BYTES);
        assert_eq!(geometry.region_bytes(), 32 * MIB);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_limit() {
        use GeometryError::*;
        let refused = |device, log| Geometry::new(device, log).unwrap_err();
        assert_eq!(refused(16 * MIB - 1, 0), TooSmall { device_bytes: 16 * MIB - 1 });
        assert_eq!(Geometry::common(GIB, 5, 0), Err(TooSmall { device_bytes: 5 }));
        assert_eq!(refused(GIB, 4096), LogTooSmall { log_bytes: 4096 });
        let largest = GIB - 2 * MIB;
        assert_eq!(refused(GIB, largest + 1), LogTooLarge { log_bytes: largest + 1, largest });
        assert_eq!(Geometry::new(GIB, largest).unwrap().data_blocks(), 256);
        assert_eq!(refused(GIB + 4097, largest + 4097), LogTooLarge { log_bytes: largest + 4097, largest });
        assert_eq!(refused(GIB, u64::MAX), LogTooLarge { log_bytes: u64::MAX, largest });
        assert_eq!(refused(1 << 47, 1 << 40), LogTooLarge { log_bytes: 1 << 40, largest: LOG_BYTES_MAX });
        let largest = (1 << 48) + MIB;
        assert_eq!(refused(largest + 4096, 0), TooLarge { device_bytes: largest + 4096, largest });
        assert_eq!(Geometry::new(largest, 0).unwrap().data_blocks(), DATA_BLOCKS_MAX);
        assert!(matches!(refused(u64::MAX, 3 * GIB), TooLarge { .. }));
    }

    #[test]
    fn impossible_areas_are_not_believed() {
        for (data_blocks, log_bytes) in [
            (0, 0),
            (u64::MAX, 0),
            (256, u64::MAX),
            (1 << 20, 4096),
            (DATA_BLOCKS_MAX + 1, LOG_BYTES_MIN),
            (1 << 20, LOG_BYTES_MAX + BLOCK_BYTES),
        ] {
            assert_eq!(Geometry::of_areas(data_blocks, log_bytes), None, "{data_blocks} {log_bytes}");
        }
    }
}
