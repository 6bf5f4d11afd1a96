//! What a mirror begins with: new disks, or what is found on two disks after an orderly end, a crash, a power failure
//! or a loss.
//!
//! A disk that may lack what was acknowledged is never taken for a complete one: it is a source only if nothing says
//! that the other is ahead. A missing disk does not justify a start alone unless the one that is there knows that it
//! was lost, or the user says so.

use crate::BLOCK_BYTES;
use crate::api::Side;
use crate::geometry::{Geometry, MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use crate::intent::{IntentMap, MAP_BYTES};
use crate::log::Log;
use crate::log_format::{LogDamaged, LogId, Scan};
use crate::superblock::{DiskId, MirrorId, Other, Own, Superblock, SuperblockError};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Bytes of the log that are read at once.
const SCAN_BYTES: u64 = 1 << 20;

/// A disk that can be read before the mirror runs.
pub trait Medium {
    fn size(&self) -> u64;
    /// Exactly `bytes` bytes, or why not.
    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String>;
}

/// Why a mirror does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("disk {side:?}: {error}")]
    Superblock { side: Side, error: SuperblockError },
    #[error(
        "disk {side:?} cannot be read at byte {offset}: {error}; start without it (--degraded), then replace it"
    )]
    Unreadable { side: Side, offset: u64, error: String },
    #[error("the disks belong to two mirrors ({a} and {b}): check which disks are meant")]
    TwoMirrors { a: String, b: String },
    #[error("both are disk {side:?} of the mirror: one of them is a copy; give the other disk")]
    Twice { side: Side },
    #[error("the disk given as {expected:?} is the mirror's disk {found:?}: exchange the two")]
    Exchanged { expected: Side, found: Side },
    #[error("disk {side:?} is not the one that the mirror has now: it was replaced; give the new one")]
    Replaced { side: Side },
    #[error(
        "disk {side:?} has {bytes} bytes and the mirror needs {needed}: it was truncated, or is a partial copy; replace it"
    )]
    Truncated { side: Side, bytes: u64, needed: u64 },
    #[error(
        "the disks say that they have different layouts: one of them is damaged or of another time; replace it"
    )]
    Layouts,
    #[error(
        "each disk was used without the other, and their contents differ: decide which one counts (--keep A or B)"
    )]
    Split,
    #[error(
        "disk {side:?} lacks what was written later on the other disk: give both, or accept the loss (--force)"
    )]
    Stale { side: Side },
    #[error("disk {side:?} is missing: give it, or start without it (--degraded)")]
    Missing { side: Side },
    #[error("disk {side:?}: {error}")]
    Log { side: Side, error: LogDamaged },
    #[error("no disk is given")]
    NoDisk,
}

/// What the user accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// A disk is missing.
    pub degraded: bool,
    /// The disk that is there lacks what was acknowledged.
    pub loss: bool,
}

/// Regions in which the disks may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub from: Side,
    /// The source has what was acknowledged and the other disk lacks. Otherwise either copy is as good.
    pub ahead: bool,
    pub regions: BTreeSet<u64>,
}

/// What was found on the disks, for [`crate::Mirror::new`].
pub struct Opened {
    pub geometry: Geometry,
    pub superblocks: [Superblock; 2],
    pub maps: [IntentMap; 2],
    pub map_written: u64,
    pub(crate) logs: [Log; 2],
    pub copy: Option<Copy>,
    pub lost: Option<Side>,
}

/// What a new mirror's disks begin with, by side: offsets and bytes to be written and synced. `name` has at most 64
/// bytes.
pub fn create(
    mirror: MirrorId,
    name: &str,
    disks: [DiskId; 2],
    geometry: Geometry,
) -> [Vec<(u64, Bytes)>; 2] {
    let map = IntentMap::new(mirror, &geometry);
    Side::BOTH.map(|side| {
        let mut block = Superblock {
            written: 1,
            mirror,
            name: name.to_owned(),
            side,
            disk: disks[side.index()],
            other_disk: disks[(!side).index()],
            geometry,
            events: 1,
            other: Other::InSync,
            own: Own::InSync,
            log_epoch: 1,
            clean: true,
        };
        let mut writes = Vec::new();
        for written in 1..=2 {
            block.written = written;
            writes.push((MAP_OFFSETS[IntentMap::slot(written)], map.encode(written)));
            writes.push((SUPERBLOCK_OFFSETS[block.slot()], Bytes::copy_from_slice(&block.encode())));
        }
        writes
    })
}

/// Puts a new disk in the place of one of a mirror's: what is to be written and synced, first to the new disk, then to
/// the other one, whose superblock this is. The next start copies everything.
pub fn replace(block: &Superblock, disk: DiskId) -> [Vec<(u64, Bytes)>; 2] {
    let mut own = Superblock { other_disk: disk, events: block.events + 1, clean: false, ..block.clone() };
    own.own = Own::InSync;
    own.other = Other::Away { since_events: own.events };
    let mut new = Superblock { side: !block.side, disk, other_disk: block.disk, log_epoch: 1, ..own.clone() };
    (new.own, new.other) = (Own::Rebuilding { done_blocks: 0 }, Other::InSync);
    let map = IntentMap::new(block.mirror, &block.geometry);
    let mut writes = [Vec::new(), Vec::new()];
    for written in block.written + 1..=block.written + 2 {
        new.written = written;
        writes[0].push((MAP_OFFSETS[IntentMap::slot(written)], map.encode(written)));
        writes[0].push((SUPERBLOCK_OFFSETS[new.slot()], Bytes::copy_from_slice(&new.encode())));
    }
    own.written += 1;
    writes[1].push((SUPERBLOCK_OFFSETS[own.slot()], Bytes::copy_from_slice(&own.encode())));
    writes
}

/// One disk as it was found.
struct Found {
    block: Superblock,
    map: IntentMap,
    map_written: u64,
    log: Log,
}

/// Reads the superblock of a disk.
pub fn superblock(side: Side, medium: &mut dyn Medium) -> Result<Superblock, OpenError> {
    let [first, second] = [
        read(side, medium, SUPERBLOCK_OFFSETS[0], BLOCK_BYTES)?,
        read(side, medium, SUPERBLOCK_OFFSETS[1], BLOCK_BYTES)?,
    ];
    let block =
        Superblock::newest([&first, &second]).map_err(|error| OpenError::Superblock { side, error })?;
    let (bytes, needed) = (medium.size(), block.geometry.device_bytes());
    if bytes < needed {
        return Err(OpenError::Truncated { side, bytes, needed });
    }
    if block.side != side {
        return Err(OpenError::Exchanged { expected: side, found: block.side });
    }
    Ok(block)
}

fn read(side: Side, medium: &mut dyn Medium, offset: u64, bytes: u64) -> Result<Bytes, OpenError> {
    medium.read(offset, bytes).map_err(|error| OpenError::Unreadable { side, offset, error })
}

fn find(side: Side, medium: &mut dyn Medium) -> Result<Found, OpenError> {
    let block = superblock(side, medium)?;
    let [first, second] = [
        read(side, medium, MAP_OFFSETS[0], MAP_BYTES as u64)?,
        read(side, medium, MAP_OFFSETS[1], MAP_BYTES as u64)?,
    ];
    let map = IntentMap::newest([&first, &second], block.mirror, &block.geometry);
    // Without a map every region may differ.
    let (map_written, map) = map.unwrap_or_else(|| {
        let mut map = IntentMap::new(block.mirror, &block.geometry);
        for region in 0..map.regions() {
            map.dirty.insert(region);
        }
        (0, map)
    });
    let log = scan(side, medium, &block)?;
    Ok(Found { block, map, map_written, log })
}

/// Rebuilds the table of a log from its headers.
fn scan(side: Side, medium: &mut dyn Medium, block: &Superblock) -> Result<Log, OpenError> {
    let geometry = &block.geometry;
    let mut scan = Scan::new(LogId { mirror: block.mirror, epoch: block.log_epoch }, geometry);
    let mut log = Log::new(geometry.log_blocks(), block.mirror, block.log_epoch, block.written + 1);
    let mut logged = Vec::new();
    while let Some(wanted) = scan.wants() {
        let end = (wanted.start + SCAN_BYTES / BLOCK_BYTES).min(geometry.log_blocks()).max(wanted.end);
        let bytes = read(side, medium, geometry.log_at(wanted.start), (end - wanted.start) * BLOCK_BYTES)?;
        scan.feed(&bytes, &mut logged);
        log.recover(logged.drain(..));
    }
    let end = scan.end().expect("nothing more is wanted").map_err(|error| OpenError::Log { side, error })?;
    log.resume(end.slot, end.seq);
    Ok(log)
}

/// Finds out what the disks have.
pub fn open(media: [Option<&mut dyn Medium>; 2], accept: Accept) -> Result<Opened, OpenError> {
    let [a, b] = media;
    match (a, b) {
        (Some(a), Some(b)) => both(find(Side::A, a)?, find(Side::B, b)?),
        (Some(a), None) => alone(Side::A, find(Side::A, a)?, accept),
        (None, Some(b)) => alone(Side::B, find(Side::B, b)?, accept),
        (None, None) => Err(OpenError::NoDisk),
    }
}

fn both(a: Found, b: Found) -> Result<Opened, OpenError> {
    if a.block.mirror != b.block.mirror {
        return Err(OpenError::TwoMirrors { a: a.block.name, b: b.block.name });
    }
    if a.block.geometry != b.block.geometry {
        return Err(OpenError::Layouts);
    }
    let behind =
        |own: &Found, other: &Found| own.block.own != Own::InSync || other.block.other != Other::InSync;
    let stale = [behind(&a, &b), behind(&b, &a)];
    for (side, own, other) in [(Side::A, &a, &b), (Side::B, &b, &a)] {
        if stale[(!side).index()] && own.block.other_disk != other.block.disk {
            return Err(OpenError::Replaced { side: !side });
        }
    }
    let regions = |found: &Found, of: fn(&IntentMap) -> &crate::intent::RegionSet| {
        of(&found.map).iter().map(u64::from).collect::<BTreeSet<_>>()
    };
    let mut dirty = regions(&a, |map| &map.dirty);
    dirty.extend(regions(&b, |map| &map.dirty));
    let clean = a.block.clean && b.block.clean && a.block.events == b.block.events;
    let copy = match stale {
        [true, true] => return Err(OpenError::Split),
        [false, false] if clean || dirty.is_empty() => None,
        [false, false] => Some(Copy { from: Side::A, ahead: false, regions: dirty }),
        [stale_a, _] => {
            let (from, source, target) = if stale_a { (Side::B, &b, &a) } else { (Side::A, &a, &b) };
            dirty.extend(regions(source, |map| &map.ahead));
            if let Own::Rebuilding { done_blocks } = target.block.own {
                let first = source.map.region_of(done_blocks.min(source.block.geometry.data_blocks() - 1));
                dirty.extend((first..source.map.regions()).map(u64::from));
            }
            Some(Copy { from, ahead: true, regions: dirty })
        }
    };
    let mut maps = [a.map, b.map];
    // What is to be copied stays marked on both until it is.
    if let Some(Copy { from, ahead, regions }) = &copy {
        for &region in regions {
            for map in &mut maps {
                map.dirty.insert(region as u32);
            }
            if *ahead {
                maps[from.index()].ahead.insert(region as u32);
            }
        }
    }
    Ok(Opened {
        geometry: a.block.geometry,
        map_written: a.map_written.max(b.map_written),
        superblocks: level([a.block, b.block]),
        maps,
        logs: [a.log, b.log],
        copy,
        lost: None,
    })
}

/// The next superblock of each disk is newer than all that either has.
fn level(mut blocks: [Superblock; 2]) -> [Superblock; 2] {
    let written = blocks.iter().map(|block| block.written).max().unwrap_or_default();
    blocks.iter_mut().for_each(|block| block.written = written);
    blocks
}

fn alone(side: Side, found: Found, accept: Accept) -> Result<Opened, OpenError> {
    let Found { block, map, map_written, log } = found;
    if block.own != Own::InSync && !accept.loss {
        return Err(OpenError::Stale { side });
    }
    if !matches!(block.other, Other::Lost { .. }) && !accept.degraded && !accept.loss {
        return Err(OpenError::Missing { side: !side });
    }
    let geometry = block.geometry;
    let mut other =
        Superblock { side: !side, disk: block.other_disk, other_disk: block.disk, ..block.clone() };
    other.own = Own::Behind { since_events: block.events };
    let no_log = Log::new(0, block.mirror, 1, 0);
    let own = Superblock { own: Own::InSync, ..block };
    let no_map = map.clone();
    let pair = |own, other| if side == Side::A { (own, other) } else { (other, own) };
    let (a, b) = pair(own, other);
    let (map_a, map_b) = if side == Side::A { (map, no_map) } else { (no_map, map) };
    let logs = if side == Side::A { [log, no_log] } else { [no_log, log] };
    Ok(Opened {
        geometry,
        superblocks: [a, b],
        maps: [map_a, map_b],
        map_written,
        logs,
        copy: None,
        lost: Some(!side),
    })
}
