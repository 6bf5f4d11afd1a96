//! Opening a store: whose directory it is, what its segments hold, what a crash left behind.
//!
//! Segments are read in order and their records added to the index; payloads are not read, because data that a
//! completed sync covered is checked when it is read. A crash can have torn only what follows the last completed sync
//! of the last segment: every record says how much of its segment was durable before its batch was written, so the
//! first bad byte after that point starts the torn tail, which is cut off with the zeroes ahead of it, and a bad byte
//! before it is damage. The rest of the tail is written again and synced before it is reported to anyone.

use crate::core::{Shared, StoreCore};
use crate::disk::{DirEntry, Disk, DiskFile};
use crate::index::{FileKey, Index, Segment};
use crate::inventory::Inventory;
use crate::layout::{
    FORMAT, Head, HeadKind, RECORD_ALIGN, RECORD_HEAD_MAX, SEGMENT_HEADER_BYTES, SUPERBLOCK_BYTES,
    Superblock, segment_header,
};
use crate::names::{Names, chunk_path, group_path, segment_path};
use crate::overlay::Position;
use crate::query::PIECES_REMEMBERED;
use crate::recent::Recent;
use crate::superblock::{SUPERBLOCK, SUPERBLOCK_NEW, write_superblock};
use crate::unsettled::Unsettled;
use crate::{Config, DONE_RUNS, OpenError, Recovered};
use ebb_types::{ChunkId, GroupId, Incarnation, Membership, ObjectId, Role, are_sound_or_lost};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::sync::{Arc, Mutex};

fn failed(action: &'static str, path: &str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { action, path: path.to_string(), source }
}

impl StoreCore {
    /// Opens the store in `disk`, or creates one in an empty directory.
    pub fn open(disk: Arc<dyn Disk>, config: Config) -> Result<(StoreCore, Recovered), OpenError> {
        let owner = claim(&*disk, &config)?;
        let mut index = Index::new(config.cached_pages, config.open_files);
        index.tails.keep_done = DONE_RUNS;
        let mut scan =
            Scan { disk: &*disk, owner, torn_bytes: 0, dropped: BTreeMap::new(), unlink: BTreeSet::new() };
        let inventory = Inventory::read(&*disk, &owner)?;
        let last = scan.segments(&mut index, &inventory)?;
        let (torn_bytes, unlink) = (scan.torn_bytes, scan.unlink);
        let tails = index.tails.recovered();
        let group_dirs = find_chunk_files(&*disk, &mut index)?;
        let unsettled_bytes = index.segments.values().map(|s| s.bytes).sum();
        let shared = Shared {
            index: Mutex::new(index),
            poisoned: AtomicBool::new(false),
            short: AtomicI32::new(0),
            moves: AtomicU64::new(0),
            disk,
            config,
            store: owner.store,
        };
        let names = Names { groups: group_dirs, half_dropped: unlink.clone(), ..Names::default() };
        let mut core = StoreCore {
            disk: shared.disk.clone(),
            config: shared.config.clone(),
            shared: Arc::new(shared),
            owner,
            inventory,
            open: None,
            next_segment: last + 1,
            unsettled: Unsettled { bytes: unsettled_bytes, ..Unsettled::default() },
            begun: false,
            names,
            reads: RefCell::new(Recent::new(PIECES_REMEMBERED)),
        };
        core.finish_removals(unlink)?;
        let roles = core.roles().into_iter().collect();
        Ok((
            core,
            Recovered { incarnation: owner.run, membership: owner.membership, tails, roles, torn_bytes },
        ))
    }

    /// Removes the files whose removal a crash interrupted: of these replicas, and of deleted chunks.
    fn finish_removals(&mut self, half_dropped: BTreeSet<GroupId>) -> Result<(), OpenError> {
        let gave_up = |path: String| {
            move |error: crate::StoreError| OpenError::Io {
                action: "finish a removal in",
                path,
                source: io::Error::other(error.to_string()),
            }
        };
        for group in half_dropped {
            self.remove_files(group).map_err(gave_up(group_path(group)))?;
        }
        let with_file: Vec<FileKey> = {
            let index = self.shared.index();
            let replicas = index.roles.iter().filter(|((role, _), _)| *role == Role::Replica);
            let chunks = replicas
                .flat_map(|((_, group), chunks)| chunks.iter().map(move |(id, c)| ((*group, *id), c)));
            chunks.filter(|(_, c)| c.has_file).map(|(key, _)| key).collect()
        };
        for key in with_file {
            self.remove_unneeded(key).map_err(gave_up(chunk_path(key)))?;
        }
        Ok(())
    }
}

/// Records this run's incarnation in the superblock, or writes the first superblock into an empty directory. Durable
/// before anyone learns of this run, so that no two runs of a server have the same incarnation.
fn claim(disk: &dyn Disk, config: &Config) -> Result<Superblock, OpenError> {
    let found = find_superblock(disk, config)?;
    let is_new = found.is_none();
    let mut owner = found.unwrap_or(Superblock {
        format: FORMAT,
        server: config.server,
        cluster: config.cluster,
        store: config.fresh_id,
        run: Incarnation(0),
        membership: Membership::default(),
    });
    if let Some(known) = config.supersedes {
        owner.store = config.fresh_id;
        owner.run = owner.run.max(known);
    }
    owner.run = owner.run.next(config.fresh_id.0);
    if is_new {
        // Directories first: the superblock means that the store is complete.
        for dir in ["segments", "chunks"] {
            disk.create_dir(dir).map_err(failed("create", dir))?;
        }
        Inventory::create(disk, &owner).map_err(failed("write", "the inventories"))?;
    }
    write_superblock(disk, &owner).map_err(failed("write", SUPERBLOCK))?;
    Ok(owner)
}

/// Reads and checks the superblock; `None` in an empty directory.
fn find_superblock(disk: &dyn Disk, config: &Config) -> Result<Option<Superblock>, OpenError> {
    let entries = disk.list("").map_err(failed("list", "the directory"))?;
    if entries.iter().any(|e| e.name == SUPERBLOCK) {
        let mut bytes = Vec::new();
        let file = disk.open(SUPERBLOCK, false).map_err(failed("open", SUPERBLOCK))?;
        file.read(&mut bytes, SUPERBLOCK_BYTES, 0).map_err(failed("read", SUPERBLOCK))?;
        let damaged = OpenError::Damaged {
            file: SUPERBLOCK.into(),
            offset: 0,
            what: "not a superblock, or a damaged one",
        };
        let found = Superblock::decode(&bytes).ok_or(damaged)?;
        return match found {
            _ if found.format != FORMAT => Err(OpenError::OtherFormat { found: found.format, known: FORMAT }),
            _ if found.cluster != config.cluster => {
                Err(OpenError::OtherCluster { found: found.cluster, expected: config.cluster })
            }
            _ if found.server != config.server => {
                Err(OpenError::OtherServer { found: found.server, expected: config.server })
            }
            _ => Ok(Some(found)),
        };
    }
    let known = ["segments", "chunks", SUPERBLOCK_NEW, "inventory.0", "inventory.1", "lost+found"];
    let ours = |e: &DirEntry| known.contains(&e.name.as_str());
    if let Some(other) = entries.iter().find(|e| !ours(e)) {
        return Err(OpenError::NotAStore { found: other.name.clone() });
    }
    for dir in entries.iter().filter(|e| matches!(e.name.as_str(), "segments" | "chunks")) {
        if let Some(other) = disk.list(&dir.name).map_err(failed("list", &dir.name))?.first() {
            return Err(OpenError::NotAStore { found: format!("{}/{}", dir.name, other.name) });
        }
    }
    Ok(None)
}

/// Lists the chunk files; returns the groups that have a directory.
fn find_chunk_files(disk: &dyn Disk, index: &mut Index) -> Result<BTreeSet<GroupId>, OpenError> {
    let mut dirs = BTreeSet::new();
    for dir in disk.list("chunks").map_err(failed("list", "chunks"))? {
        let Some(group) = hex(&dir.name, 8).filter(|_| dir.is_dir).map(|n| GroupId(n as u32)) else {
            continue;
        };
        dirs.insert(group);
        for entry in disk.list(&group_path(group)).map_err(failed("list", &group_path(group)))? {
            let Some((object, number)) = entry.name.split_once('.') else { continue };
            let (Some(object), Some(number)) = (hex(object, 16), hex(number, 8)) else { continue };
            let chunk = ChunkId { object: ObjectId(object), index: number as u32 };
            index.chunk_mut(group, chunk).has_file = true;
            index.set_allocated((group, chunk), entry.allocated);
        }
        disk.sync_dir(&group_path(group)).map_err(failed("sync", &group_path(group)))?;
    }
    // These may have been created just before the process crashed; from here on they are relied upon.
    for dir in ["chunks", "segments"] {
        disk.sync_dir(dir).map_err(failed("sync", dir))?;
    }
    Ok(dirs)
}

fn hex(text: &str, digits: usize) -> Option<u64> {
    (text.len() == digits).then(|| u64::from_str_radix(text, 16).ok())?
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    owner: Superblock,
    torn_bytes: u64,
    /// Everything of a role and group before this position is void.
    dropped: BTreeMap<(Role, GroupId), u64>,
    /// Groups whose files were about to be removed.
    unlink: BTreeSet<GroupId>,
}

/// A record and its offset.
type Found = (u32, Head);

impl Scan<'_> {
    /// Reads all segments; returns the number of the last. Everything in the inventory must be there.
    fn segments(&mut self, index: &mut Index, inventory: &Inventory) -> Result<u32, OpenError> {
        let entries = self.disk.list("segments").map_err(failed("list", "segments"))?;
        let mut numbers: Vec<u32> =
            entries.iter().filter_map(|e| Some(hex(e.name.strip_suffix(".seg")?, 8)? as u32)).collect();
        numbers.sort_unstable();
        // A number is not reused, even if its file is gone.
        let noted = inventory.segments.keys().next_back().copied().unwrap_or(0);
        let last = numbers.last().copied().unwrap_or(0).max(noted);
        // First collect what is void, then admit the rest: a drop may have been copied to a segment after records that
        // it does not void.
        for &number in &numbers {
            let path = segment_path(number);
            let file = self.disk.open(&path, false).map_err(failed("open", &path))?;
            let size = file.size().map_err(failed("read", &path))?;
            let (records, mut end) = self.records(&*file, number, &path, size)?;
            if number == last {
                let durable = inventory.segments.get(&number).copied().unwrap_or(0);
                end = self.cut_tail(&*file, &path, size, (&records, end), durable)?;
            } else if end < size {
                return Err(damaged(&path, end));
            }
            if end <= SEGMENT_HEADER_BYTES as u64 {
                self.disk.remove(&path).map_err(failed("remove", &path))?;
                continue;
            }
            index.segments.insert(number, Segment { bytes: end, live: 0 });
            for (_, head) in
                records.iter().filter(|(at, head)| head.kind == HeadKind::Drop && (*at as u64) < end)
            {
                let before = self.dropped.entry((head.role, head.group)).or_default();
                *before = head.version.seq.max(*before);
            }
        }
        for (number, bytes) in &inventory.segments {
            let found = index.segments.get(number).map_or(0, |segment| segment.bytes);
            if found < u64::from(*bytes) {
                let what = "records that were durable are gone";
                return Err(OpenError::Damaged { file: segment_path(*number), offset: found, what });
            }
        }
        let sizes: Vec<(u32, u64)> = index.segments.iter().map(|(number, s)| (*number, s.bytes)).collect();
        for (number, size) in sizes {
            let path = segment_path(number);
            let file = self.disk.open(&path, false).map_err(failed("open", &path))?;
            let (records, _) = self.records(&*file, number, &path, size)?;
            self.admit(index, number, records);
        }
        index.doubt_moved_repairs();
        Ok(last)
    }

    /// The chain of records from the start of a segment, and where it ends.
    fn records(
        &self,
        file: &dyn DiskFile,
        number: u32,
        path: &str,
        size: u64,
    ) -> Result<(Vec<Found>, u64), OpenError> {
        let (header, salt) = segment_header(number, &self.owner);
        let mut bytes = Vec::new();
        file.read(&mut bytes, SEGMENT_HEADER_BYTES, 0).map_err(failed("read", path))?;
        if bytes != header {
            return Ok((Vec::new(), 0));
        }
        let mut records = Vec::new();
        let mut at = SEGMENT_HEADER_BYTES as u64;
        while at < size {
            bytes.clear();
            file.read(&mut bytes, RECORD_HEAD_MAX, at).map_err(failed("read", path))?;
            let Some(head) = Head::decode(&bytes, salt).filter(Head::is_sound) else { break };
            let end = at + head.record_len() as u64;
            if end > size {
                break;
            }
            records.push((at as u32, head));
            at = end;
        }
        Ok((records, at))
    }

    /// Finds the end of the intact records in the last segment, cuts off the rest and makes the intact part durable.
    /// `durable`: the number of durable bytes by the inventory.
    fn cut_tail(
        &mut self,
        file: &dyn DiskFile,
        path: &str,
        size: u64,
        (records, chain_end): (&[Found], u64),
        durable: u32,
    ) -> Result<u64, OpenError> {
        // A bad payload before `synced` was not torn: a copy of damaged data stays known as damaged.
        let synced = records.iter().map(|(_, head)| head.synced).fold(durable, u32::max);
        let mut end = chain_end;
        let mut payload = Vec::new();
        for (at, head) in records.iter().filter(|(at, head)| *at >= synced && head.kind == HeadKind::Data) {
            payload.clear();
            let from = *at as u64 + head.head_len() as u64;
            file.read(&mut payload, head.payload_len(), from).map_err(failed("read", path))?;
            if payload.len() != head.payload_len() || !are_sound_or_lost(&head.crcs, &payload) {
                end = *at as u64;
                break;
            }
        }
        let written_end = self.behind(file, path, chain_end, size)?;
        if end < size {
            self.torn_bytes += written_end - end;
            file.truncate(end).map_err(failed("truncate", path))?;
        }
        if size > 0 {
            // A sync may have failed before this start: then the kernel has these bytes, considers them clean, and
            // never writes them back unless they are written again.
            let (from, mut tail) = (u64::from(synced).min(end), Vec::new());
            if from < end {
                file.read(&mut tail, (end - from) as usize, from).map_err(failed("read", path))?;
                file.write_through(&tail, from).map_err(failed("write", path))?;
            }
            file.sync().map_err(failed("sync", path))?;
        }
        Ok(end)
    }

    /// Where the zeroes ahead begin behind `from`. A record there that shows that `from` had been synced is damage.
    fn behind(&self, file: &dyn DiskFile, path: &str, from: u64, size: u64) -> Result<u64, OpenError> {
        const STEP: usize = 1 << 20;
        let number_of =
            path.strip_prefix("segments/").and_then(|p| p.strip_suffix(".seg")).and_then(|n| hex(n, 8));
        let (_, salt) = segment_header(number_of.expect("a segment's path") as u32, &self.owner);
        let mut start = from.next_multiple_of(RECORD_ALIGN as u64);
        let mut written_end = from;
        let mut bytes = Vec::new();
        while start < size {
            bytes.clear();
            file.read(&mut bytes, STEP + RECORD_HEAD_MAX, start).map_err(failed("read", path))?;
            let within = bytes.len().min(STEP);
            let mut heads =
                (0..within).step_by(RECORD_ALIGN).filter_map(|at| Head::decode(&bytes[at..], salt));
            if heads.any(|head| head.synced as u64 > from) {
                return Err(damaged(path, from));
            }
            let last = bytes[..within].iter().rposition(|byte| *byte != 0);
            written_end = last.map_or(written_end, |at| start + at as u64 + 1);
            start += STEP as u64;
        }
        Ok(written_end)
    }

    fn admit(&mut self, index: &mut Index, number: u32, records: Vec<Found>) {
        for (offset, head) in records {
            let at = Position { segment: number, offset };
            let of = (head.role, head.group);
            let is_drop = head.kind == HeadKind::Drop;
            if !is_drop && self.dropped.get(&of).is_some_and(|before| at.to_u64() < *before) {
                continue;
            }
            index.admit(&head, at);
            if head.kind == HeadKind::DropFiles {
                self.unlink.insert(head.group);
            }
        }
    }
}

fn damaged(path: &str, offset: u64) -> OpenError {
    OpenError::Damaged { file: path.into(), offset, what: "a record fails its checksum" }
}
