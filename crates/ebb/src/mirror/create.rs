//! New mirrors, and new disks in old ones. Everything is checked before anything is written; the registry comes last,
//! so that a name in it stands for finished disks.
//!
//! The disks of a new mirror must agree on blocks that no one has written yet. Two files without data do. Otherwise the
//! second disk begins as one that is to be rebuilt, and the first start copies to it whatever the first disk has.

use crate::cluster::random;
use crate::error::{NodeError, io};
use crate::mirror::MirrorError;
use crate::mirror::disks::{self, Reader};
use crate::mirror::drivers::DriverConfig;
use crate::mirror::registry::{Entry, Name, Registry, Tuning};
use ebb_blockdev::DiskFile;
use ebb_mirror::open::{self, OpenError};
use ebb_mirror::superblock::Own;
use ebb_mirror::{BLOCK_BYTES, DiskId, Geometry, MirrorId, Other, Side, Superblock};
use ebb_types::Bytes;
use std::path::{Path, PathBuf};

/// Bytes of a new mirror that are zeroed where its disks may have content.
const BEGINNING: u64 = 64 << 10;

/// What a new mirror is like.
pub struct Created {
    pub size: Bytes,
    pub log: Bytes,
    /// Bytes of the larger disk that are not used.
    pub unused: Bytes,
    /// The first start copies this much.
    pub to_copy: Bytes,
}

pub fn create(
    registry: &Registry,
    name: &Name,
    paths: [PathBuf; 2],
    log: Bytes,
    overwrite: bool,
) -> Result<Created, NodeError> {
    registry.check_free(name)?;
    let paths = [absolute(&paths[0])?, absolute(&paths[1])?];
    let [a, b] = paths;
    if disks::are_same(&a, &b)? {
        return Err(MirrorError::Same { a, b }.into());
    }
    let disks = [disks::open(&a)?, disks::open(&b)?];
    let sizes = disks.each_ref().map(DiskFile::size);
    let geometry = Geometry::common(sizes[0], sizes[1], log.0).map_err(MirrorError::from)?;
    for disk in &disks {
        disks::check_unused(disk, registry, None, overwrite)?;
    }
    let are_holes = disks.iter().all(|disk| disk.is_hole().unwrap_or(false));
    let mirror = MirrorId(random::bytes()?);
    let ids = [DiskId(random::bytes()?), DiskId(random::bytes()?)];
    let first = open::create(mirror, name.as_str(), ids, geometry);
    // What the data begins with is no longer what it was taken for: a chunk server expects zeroes there.
    let zeroes = [(geometry.data_offset(), vec![0; BEGINNING as usize].into())];
    for (disk, writes) in disks.iter().zip(&first) {
        if !are_holes {
            disks::write(disk, &zeroes)?;
        }
        disks::write(disk, writes)?;
    }
    let size = Bytes(geometry.data_blocks() * BLOCK_BYTES);
    if !are_holes {
        let entry = |error| open_error(name, [&a, &b], error);
        let block = open::superblock(Side::A, &mut Reader(&disks[0])).map_err(entry)?;
        rebuild(&block, ids[1], &disks[1], &disks[0])?;
    }
    let (driver, settings) = (DriverConfig::default(), Tuning::default());
    registry.add(name, &Entry { mirror, disk_a: a, disk_b: b, driver, settings })?;
    Ok(Created {
        size,
        log: Bytes(geometry.log_blocks() * BLOCK_BYTES),
        unused: Bytes(sizes[0].abs_diff(sizes[1])),
        to_copy: if are_holes { Bytes::ZERO } else { size },
    })
}

/// The path as it is noted.
fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    let path = std::path::absolute(path).map_err(io("find", path))?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(MirrorError::NotText { path }.into()),
    }
}

fn open_error(name: &Name, [a, b]: [&Path; 2], error: OpenError) -> NodeError {
    MirrorError::Open { name: name.to_string(), a: a.to_owned(), b: b.to_owned(), error }.into()
}

/// Makes `new` the partner of the disk with this superblock.
fn rebuild(block: &Superblock, id: DiskId, new: &DiskFile, old: &DiskFile) -> Result<(), NodeError> {
    let [to_new, to_old] = open::replace(block, id);
    disks::write(new, &to_new)?;
    disks::write(old, &to_old)
}

/// The disk that stays, when the other one is lost or `new` is to take its place.
fn survivor(
    registry: &Registry,
    name: &Name,
    entry: &Entry,
    new: &Path,
) -> Result<(Side, DiskFile, Superblock), NodeError> {
    let paths = [entry.disk_a.as_path(), entry.disk_b.as_path()];
    let mut found = Vec::new();
    let mut why = None;
    for side in Side::BOTH {
        let Some(disk) = disks::open_if_there(entry.disk(side))? else { continue };
        match open::superblock(side, &mut Reader(&disk)) {
            Ok(block) if block.mirror == entry.mirror => found.push((side, disk, block)),
            Ok(_) => {}
            Err(error) => why = Some(error),
        }
    }
    if let [a, b] = &found[..] {
        // Whether the other one knows it as lost, or has another partner.
        let is_out = |own: &Superblock, other: &Superblock| {
            matches!(other.other, Other::Lost { .. }) || other.other_disk != own.disk
        };
        let out = [is_out(&a.2, &b.2), is_out(&b.2, &a.2)];
        let is_new = [disks::are_same(new, paths[0])?, disks::are_same(new, paths[1])?];
        let gone = match (out, is_new) {
            ([true, false], [_, false]) | ([true, true] | [false, false], [true, _]) => Side::A,
            ([false, true], [false, _]) | ([true, true] | [false, false], [_, true]) => Side::B,
            ([true, false], _) => return Err(open_error(name, paths, OpenError::Stale { side: Side::A })),
            ([false, true], _) => return Err(open_error(name, paths, OpenError::Stale { side: Side::B })),
            _ => {
                let [a, b] = paths.map(Path::to_owned);
                return Err(MirrorError::NothingLost { name: name.to_string(), a, b }.into());
            }
        };
        found.retain(|(side, _, _)| *side != gone);
    }
    let Some((side, disk, block)) = found.pop() else {
        let [a, b] = paths.map(Path::to_owned);
        return Err(match why {
            Some(error) => open_error(name, [&a, &b], error),
            None if a.exists() || b.exists() => {
                MirrorError::NotTheMirrors { name: name.to_string(), a, b, file: registry.file(name) }.into()
            }
            None => open_error(name, [&a, &b], OpenError::NoDisk),
        });
    };
    if block.own != Own::InSync {
        return Err(open_error(name, paths, OpenError::Stale { side }));
    }
    Ok((side, disk, block))
}

/// Puts a disk in the place of the one that was lost; returns which.
pub fn replace(registry: &Registry, name: &Name, path: &Path, overwrite: bool) -> Result<Side, NodeError> {
    let mut entry = registry.load(name)?;
    let path = absolute(path)?;
    let (kept, old, block) = survivor(registry, name, &entry, &path)?;
    if disks::are_same(&path, entry.disk(kept))? {
        let (a, b) = (path, entry.disk(kept).to_owned());
        return Err(MirrorError::Same { a, b }.into());
    }
    let new = disks::open(&path)?;
    let needed = block.geometry.device_bytes();
    if new.size() < needed {
        let found = Bytes(new.size());
        return Err(MirrorError::Small { path, found, needed: Bytes(needed) }.into());
    }
    disks::check_unused(&new, registry, Some(entry.mirror), overwrite)?;
    rebuild(&block, DiskId(random::bytes()?), &new, &old)?;
    entry.set_disk(!kept, path);
    registry.replace(name, &entry)?;
    Ok(!kept)
}
