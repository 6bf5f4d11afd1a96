//! What a mirror begins with: new disks, or what is found on two disks after an orderly end, a crash, a power failure
//! or a loss.
//!
//! A disk that may lack what was acknowledged is never taken for a complete one: it is a source only if nothing says
//! that the other is ahead, neither its state nor its numbers. A disk with smaller numbers is an older copy of itself:
//! an image that was restored, a snapshot, a clone, a drive that dropped its cache. Only a copy that is no older than
//! the last note of the disks, superblock or intent map, is not known by them. A missing disk does not justify a start
//! alone unless the one that is there knows that it was lost, or the user says so.

use crate::BLOCK_BYTES;
use crate::api::Side;
use crate::geometry::{Geometry, MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use crate::intent::{IntentMap, MAP_BYTES};
use crate::log::Log;
use crate::log_format::{LogDamaged, LogId, Scan};
use crate::superblock::{DiskId, MirrorId, Other, Own, Superblock, SuperblockError};
use bytes::Bytes;
use std::cmp::Ordering;
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
    #[error(
        "disk {side:?} is an older copy of itself, and the other disk fell behind it since: give its newest copy, or start with one disk alone and accept the loss (--keep A or B)"
    )]
    Older { side: Side },
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
    /// By side: the number of the map that was found; 0: none.
    pub maps_written: [u64; 2],
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
            other_map: 0,
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
    (own.other, own.other_map) = (Other::Away { since_events: own.events }, 0);
    let mut new = Superblock { side: !block.side, disk, other_disk: block.disk, log_epoch: 1, ..own.clone() };
    (new.own, new.other) = (Own::Rebuilding { done_blocks: 0 }, Other::InSync);
    let map = IntentMap::new(block.mirror, &block.geometry);
    let mut writes = [Vec::new(), Vec::new()];
    // Its numbers are no larger than the source's: a map has number 2 in a new mirror.
    for (written, map_written) in [(block.written, 1), (block.written + 1, 2)] {
        new.written = written;
        writes[0].push((MAP_OFFSETS[IntentMap::slot(map_written)], map.encode(map_written)));
        writes[0].push((SUPERBLOCK_OFFSETS[new.slot()], Bytes::copy_from_slice(&new.encode())));
    }
    own.written += 1;
    debug_assert!(new.written <= own.written, "the new disk would be taken for the source");
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
    open_with(media, accept, newer)
}

/// As a mirror once opened that did not compare the counts of its disks.
#[cfg(feature = "planted-bugs")]
pub fn open_without_counts(media: [Option<&mut dyn Medium>; 2], accept: Accept) -> Result<Opened, OpenError> {
    open_with(media, accept, |_| Ok(None))
}

fn open_with(media: [Option<&mut dyn Medium>; 2], accept: Accept, newer: Newer) -> Result<Opened, OpenError> {
    let [a, b] = media;
    match (a, b) {
        (Some(a), Some(b)) => both(find(Side::A, a)?, find(Side::B, b)?, newer),
        (Some(a), None) => alone(Side::A, find(Side::A, a)?, accept),
        (None, Some(b)) => alone(Side::B, find(Side::B, b)?, accept),
        (None, None) => Err(OpenError::NoDisk),
    }
}

fn both(a: Found, b: Found, newer: Newer) -> Result<Opened, OpenError> {
    if a.block.mirror != b.block.mirror {
        return Err(OpenError::TwoMirrors { a: a.block.name, b: b.block.name });
    }
    if a.block.geometry != b.block.geometry {
        return Err(OpenError::Layouts);
    }
    let found = [a, b];
    let source = source(&found, newer(&found)?)?;
    let regions = |found: &Found, of: fn(&IntentMap) -> &crate::intent::RegionSet| {
        of(&found.map).iter().map(u64::from).collect::<BTreeSet<_>>()
    };
    let mut dirty = regions(&found[0], |map| &map.dirty);
    dirty.extend(regions(&found[1], |map| &map.dirty));
    let clean = found.iter().all(|found| found.block.clean);
    let copy = match source {
        None if clean || dirty.is_empty() => None,
        None => Some(Copy { from: Side::A, ahead: false, regions: dirty }),
        Some(from) => {
            let (source, target) = (&found[from.index()], &found[(!from).index()]);
            dirty.extend(found.iter().flat_map(|found| regions(found, |map| &map.ahead)));
            if let Own::Rebuilding { done_blocks } = target.block.own {
                let first = source.map.region_of(done_blocks.min(source.block.geometry.data_blocks() - 1));
                dirty.extend((first..source.map.regions()).map(u64::from));
            }
            if !maps_tell(source, target) {
                dirty.extend((0..source.map.regions()).map(u64::from));
            }
            Some(Copy { from, ahead: true, regions: dirty })
        }
    };
    let [mut a, mut b] = found;
    match source {
        Some(Side::A) => lead(&mut a, &mut b),
        Some(Side::B) => lead(&mut b, &mut a),
        None => {}
    }
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
        maps_written: [a.map_written, b.map_written],
        superblocks: level([a.block, b.block]),
        maps,
        logs: [a.log, b.log],
        copy,
        lost: None,
    })
}

/// The disk that has what the other one may lack; `None`: either is as good, but for regions that are dirty.
///
/// The disk with the larger numbers is the newer one. If it says that it is in sync it has everything, whatever the
/// older one says: that is past. If it says that it lacks something, then the other one must know that, and be no older
/// than a note that was under way.
fn source(found: &[Found; 2], newer: Option<(Side, bool)>) -> Result<Option<Side>, OpenError> {
    let blocks = found.each_ref().map(|found| &found.block);
    let replaced = |side: Side| match blocks[(!side).index()].other_disk == blocks[side.index()].disk {
        true => Ok(()),
        false => Err(OpenError::Replaced { side }),
    };
    let Some((newer, far)) = newer else {
        Side::BOTH.into_iter().try_for_each(replaced)?;
        let behind = |side: Side| {
            blocks[side.index()].own != Own::InSync || blocks[(!side).index()].other != Other::InSync
        };
        return match Side::BOTH.map(behind) {
            [true, true] => Err(OpenError::Split),
            [true, false] => Ok(Some(Side::B)),
            [false, true] => Ok(Some(Side::A)),
            [false, false] => Ok(None),
        };
    };
    let [new, old] = [newer, !newer].map(|side| blocks[side.index()]);
    if new.own == Own::InSync {
        replaced(!newer)?;
        // A disk that notes that the other one is lost was used alone after that. Only the note that a lost disk has
        // everything again may have been under way.
        let returned = !far && new.other == Other::InSync;
        let alone = match old.other {
            Other::InSync => false,
            Other::Away { .. } => matches!(new.other, Other::Lost { .. }),
            Other::Lost { .. } => !returned,
        };
        return if alone { Err(OpenError::Split) } else { Ok(Some(newer)) };
    }
    replaced(newer)?;
    match (old.own, old.other) {
        (Own::InSync, Other::InSync) => Err(OpenError::Older { side: !newer }),
        (Own::InSync, _) if far => Err(OpenError::Older { side: !newer }),
        (Own::InSync, _) if new.other == Other::InSync => Ok(Some(!newer)),
        _ => Err(OpenError::Split),
    }
}

type Newer = fn(&[Found; 2]) -> Result<Option<(Side, bool)>, OpenError>;

/// The disk with the larger numbers, and whether they are larger than a crash explains: both disks are written at once,
/// and one note of each kind is under way at a time. `None`: the numbers are the same.
fn newer(found: &[Found; 2]) -> Result<Option<(Side, bool)>, OpenError> {
    let [a, b] = found;
    let [notes, maps] = [
        (a.block.written, b.block.written),
        // A map that cannot be read says nothing.
        if a.map_written == 0 || b.map_written == 0 { (0, 0) } else { (a.map_written, b.map_written) },
    ];
    let side = |(a, b): (u64, u64)| match a.cmp(&b) {
        Ordering::Less => Some(Side::B),
        Ordering::Equal => None,
        Ordering::Greater => Some(Side::A),
    };
    let far = |(a, b): (u64, u64)| a.abs_diff(b) > 1;
    let newer = match (side(notes), side(maps)) {
        (Some(notes_say), Some(maps_say)) if notes_say != maps_say => match (far(notes), far(maps)) {
            (true, true) => return Err(OpenError::Split),
            (false, true) => maps_say,
            (_, false) => notes_say,
        },
        (by_notes, by_maps) => match by_notes.or(by_maps) {
            Some(side) => side,
            None => return Ok(None),
        },
    };
    Ok(Some((newer, far(notes) || far(maps))))
}

/// Whether the maps name all regions that the target may lack. A mark is in the map that was written before the first
/// write to its region, so a target that had that map, or the one before it, when it was last in sync says with the
/// source's present map all that was written since. Between other maps marks may have been set and cleared.
fn maps_tell(source: &Found, target: &Found) -> bool {
    let had = match source.block.other {
        Other::InSync => source.map_written,
        _ => source.block.other_map,
    };
    had != 0 && target.map_written != 0 && had.abs_diff(target.map_written) <= 1
}

/// What the source is to note first, alone, and the target then: who is ahead. What the target says of the source is
/// past.
fn lead(source: &mut Found, target: &mut Found) {
    let told = maps_tell(source, target);
    if source.block.other == Other::InSync {
        source.block.other = Other::Away { since_events: source.block.events };
        source.block.other_map = target.map_written;
    }
    if !told {
        source.block.other_map = 0;
    }
    if target.block.own == Own::InSync {
        target.block.own = Own::Behind { since_events: target.block.events };
    }
    target.block.other = Other::InSync;
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
        maps_written: [map_written; 2],
        logs,
        copy: None,
        lost: Some(!side),
    })
}
