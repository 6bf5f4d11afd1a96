//! A chunk server's store, as the protocol core may rely on it and no better: the newest version of a block wins; what was
//! completed is durable; what was not may be lost in a crash, or not; operations end in any order.
//!
//! A record is there whole or not at all: of a torn one the checksum tells, and it counts as lost.
//!
//! An operation that writes takes effect at one moment and is completed at a later one. Between the two it is seen by reads
//! and may still be lost.

use bytes::{Bytes, BytesMut};
use ebb_replica::{Recovered, StoreCommand, StoreOutcome, StoreToken};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Incarnation, Kind, ListPage, RECORD_BLOCKS_MAX,
    Record, Refusal, Run, Space, StoreId, StoreMark, TailRun, Version, block_crcs,
};
use std::collections::BTreeMap;

use crate::random::Random;

/// A block as it is kept. `data` is `None` for zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub version: Version,
    pub data: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    pub deleted: Option<Version>,
    pub blocks: BTreeMap<u32, Block>,
}

/// What one server keeps of one group in one role.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub chunks: BTreeMap<ChunkId, Chunk>,
    /// The last records, oldest first.
    tail: Vec<TailRun>,
}

type Key = (GroupId, Space);

/// A write that was handed in and is not completed.
#[derive(Clone, Debug)]
struct Pending {
    token: StoreToken,
    key: Key,
    record: Record,
    payload: Bytes,
    repair: bool,
    /// It was dropped while it was under way: it leaves no trace.
    void: bool,
}

/// Records that a restart shows, as with the real store.
const TAIL_RECORDS: usize = 1024;

#[derive(Clone, Default)]
pub struct Store {
    /// Its identity, and the number of writes that it ever made durable.
    pub mark: StoreMark,
    /// Of the run that opened it last.
    pub run: Incarnation,
    /// What reads see.
    seen: BTreeMap<Key, Kept>,
    /// What surely outlives a crash.
    durable: BTreeMap<Key, Kept>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Blocks whose bytes have rotted, until they are repaired or overwritten.
    rotten: BTreeMap<(Key, ChunkId, u32), Version>,
    /// Blocks whose metadata have rotted, with a version that they were not newer than: what they contained is not known.
    lost: BTreeMap<(Key, ChunkId, u32), Version>,
    /// Spaces that were dropped lately: a crash may bring them back.
    dropped: Vec<(Key, Kept)>,
    pub poisoned: bool,
    /// No room for anything at all.
    pub full: bool,
}

impl Kept {
    fn apply(&mut self, record: &Record, payload: &Bytes, repair: bool) {
        if record.version == Version::ZERO {
            return; // the blocks were never written
        }
        if record.content == Content::Note {
            return self.remember(record);
        }
        let chunk = self.chunks.entry(record.chunk).or_default();
        if record.content == Content::Delete {
            if chunk.deleted.is_none_or(|v| v < record.version) {
                chunk.deleted = Some(record.version);
                chunk.blocks.retain(|_, b| b.version > record.version);
            }
        } else {
            for n in 0..record.count {
                chunk.set(record, payload, n, repair);
            }
        }
        self.remember(record);
    }

    fn remember(&mut self, record: &Record) {
        let run = TailRun { run: record.run(), request: record.request };
        self.tail.push(run);
        if self.tail.len() > TAIL_RECORDS {
            self.tail.remove(0);
        }
    }

    pub fn version_of(&self, chunk: ChunkId, block: u32) -> Version {
        let Some(chunk) = self.chunks.get(&chunk) else { return Version::ZERO };
        let written = chunk.blocks.get(&block).map_or(Version::ZERO, |b| b.version);
        written.max(chunk.deleted.unwrap_or(Version::ZERO))
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Chunk {
    fn set(&mut self, record: &Record, payload: &Bytes, n: u32, repair: bool) {
        if self.deleted.is_some_and(|v| v >= record.version) {
            return;
        }
        let data = match record.content {
            Content::Data { .. } => {
                let at = n as usize * BLOCK_BYTES;
                Some(payload.slice(at..at + BLOCK_BYTES))
            }
            _ => None,
        };
        let fits = |b: &Block| b.version < record.version || (repair && b.version == record.version);
        let block = record.first + n;
        if self.blocks.get(&block).is_none_or(fits) {
            self.blocks.insert(block, Block { version: record.version, data });
        }
    }
}

impl Store {
    /// A store made in an empty directory.
    pub fn new(id: StoreId) -> Store {
        Store { mark: StoreMark { store: id, position: 0 }, ..Store::default() }
    }

    /// As the production store does at each start.
    pub fn open(&mut self, random: &mut Random) -> Incarnation {
        self.run = self.run.next(random.next());
        self.run
    }

    /// It does not continue the run `known`: another identity.
    pub fn supersede(&mut self, known: Incarnation, id: StoreId) {
        self.mark.store = id;
        self.run = self.run.max(known);
    }

    pub fn durable(&self, group: GroupId, space: Space) -> Option<&Kept> {
        self.durable.get(&(group, space))
    }

    pub fn spaces(&self) -> impl Iterator<Item = (GroupId, Space)> + '_ {
        self.seen.iter().filter(|(_, kept)| !kept.is_empty()).map(|(key, _)| *key)
    }

    pub fn offload_bytes(&self) -> u64 {
        let offload = self.seen.iter().filter(|((_, space), _)| *space != Space::Replica);
        let blocks = offload.flat_map(|(_, kept)| kept.chunks.values()).map(|c| c.blocks.len() as u64);
        blocks.sum::<u64>() * BLOCK_BYTES as u64
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes a write in; it is told apart by the number that comes back. Reads need no such thing: see [`Store::answer`].
    #[allow(clippy::result_large_err, reason = "the command comes back whole")]
    pub fn submit(&mut self, token: StoreToken, command: StoreCommand) -> Result<u64, StoreCommand> {
        let (space, record, payload, repair) = match command {
            StoreCommand::Apply { space, record, payload, .. } => (space, record, payload, false),
            StoreCommand::Repair { space, record, payload } => (space, record, payload, true),
            read => return Err(read),
        };
        let id = self.next;
        self.next += 1;
        let key = (record.group, space);
        self.pending.insert(id, Pending { token, key, record, payload, repair, void: false });
        Ok(id)
    }

    /// The write becomes visible.
    pub fn take_effect(&mut self, id: u64) {
        let Some(p) = self.pending.get(&id) else { return };
        if !p.void && !self.poisoned && !self.full {
            self.seen.entry(p.key).or_default().apply(&p.record, &p.payload, p.repair);
        }
    }

    /// The write ends: it is durable, or it failed.
    pub fn complete(&mut self, id: u64) -> Option<(StoreToken, StoreOutcome)> {
        let p = self.pending.remove(&id)?;
        if self.poisoned {
            return Some((p.token, StoreOutcome::Failed(Refusal::Poisoned)));
        }
        let visible = self.seen.get(&p.key).is_some_and(|kept| reaches(kept, &p.record));
        if self.full && !visible {
            return Some((p.token, StoreOutcome::Failed(Refusal::NoSpace)));
        }
        if !p.void {
            if p.record.content != Content::Note {
                self.find(&p);
            }
            for map in [&mut self.seen, &mut self.durable] {
                map.entry(p.key).or_default().apply(&p.record, &p.payload, p.repair);
            }
            self.mark.position += 1;
            self.forget_rot(&p);
        }
        Some((p.token, StoreOutcome::Applied))
    }

    /// A repair says what lost blocks contain, and so does a record that is surely newer. It is believed, whatever there was:
    /// an older version would be served from here on.
    fn find(&mut self, p: &Pending) {
        let blocks = p.record.first..p.record.first.saturating_add(p.record.count);
        let deletes = p.record.content == Content::Delete;
        let found: Vec<(Key, ChunkId, u32)> = self
            .lost
            .iter()
            .filter(|((key, chunk, block), newest)| {
                let touched = deletes || blocks.contains(block);
                let known = p.repair || p.record.version > **newest;
                (*key, *chunk) == (p.key, p.record.chunk) && touched && known
            })
            .map(|(block, _)| *block)
            .collect();
        for place in found {
            self.lost.remove(&place);
            let (key, chunk, block) = place;
            for map in [&mut self.seen, &mut self.durable] {
                let chunk = map.get_mut(&key).and_then(|kept| kept.chunks.get_mut(&chunk));
                if let (Some(chunk), false) = (chunk, deletes) {
                    chunk.blocks.remove(&block);
                }
            }
        }
    }

    fn forget_rot(&mut self, p: &Pending) {
        let seen = &self.seen;
        self.rotten.retain(|(key, chunk, block), version| {
            let touched = *key == p.key
                && *chunk == p.record.chunk
                && (p.record.first..p.record.first + p.record.count).contains(block);
            let repaired = touched && p.repair && p.record.version >= *version;
            !repaired && seen.get(key).is_some_and(|kept| kept.version_of(*chunk, *block) == *version)
        });
    }

    /// Answers a read as of now.
    pub fn answer(&self, command: &StoreCommand, page: usize) -> StoreOutcome {
        if self.poisoned {
            return StoreOutcome::Failed(Refusal::Poisoned);
        }
        match command {
            StoreCommand::Read { space, group, chunk, first, count }
            | StoreCommand::Check { space, group, chunk, first, count } => {
                self.read((*group, *space), *chunk, *first, *count)
            }
            StoreCommand::List { space, group, since, after } => {
                let key = (*group, *space);
                let listed = |((k, chunk, _), newest): &(&(Key, ChunkId, u32), &Version)| {
                    *k == key && newest.epoch >= *since && after.is_none_or(|a| a.chunk <= *chunk)
                };
                match self.lost.iter().find(listed) {
                    Some((&(_, chunk, block), newest)) => {
                        StoreOutcome::Damaged { chunk, block, lost: Some(*newest) }
                    }
                    None => StoreOutcome::Listed(self.list(key, *since, *after, page)),
                }
            }
            StoreCommand::Newer { space, group, runs } => {
                StoreOutcome::Newer(self.newer((*group, *space), runs))
            }
            StoreCommand::Apply { .. } | StoreCommand::Repair { .. } => unreachable!("writes are submitted"),
        }
    }

    fn read(&self, key: Key, chunk: ChunkId, first: u32, count: u32) -> StoreOutcome {
        assert!((1..=RECORD_BLOCKS_MAX).contains(&count), "a read of {count} blocks");
        let range = (key, chunk, first)..=(key, chunk, first + count - 1);
        let kept = self.seen.get(&key);
        let has = |block, version| kept.is_some_and(|kept| kept.version_of(chunk, block) == version);
        if let Some(((_, _, block), newest)) = self.lost.range(range.clone()).next() {
            return StoreOutcome::Damaged { chunk, block: *block, lost: Some(*newest) };
        }
        let rotten = self.rotten.range(range).find(|((_, _, block), version)| has(*block, **version));
        if let Some(((_, _, block), _)) = rotten {
            return StoreOutcome::Damaged { chunk, block: *block, lost: None };
        }
        let blocks = kept.and_then(|kept| kept.chunks.get(&chunk)).map(|c| &c.blocks);
        let mut records: Vec<Record> = Vec::new();
        let mut payload = BytesMut::new();
        for n in first..first + count {
            let block = blocks.and_then(|b| b.get(&n));
            let version = block.map_or(Version::ZERO, |b| b.version);
            let data = block.and_then(|b| b.data.as_ref());
            let same = records.last_mut().filter(|r| {
                r.version == version && matches!(r.content, Content::Data { .. }) == data.is_some()
            });
            let crcs = data.map(|data| block_crcs(data));
            payload.extend_from_slice(data.map_or(&[], |d| d));
            match same {
                Some(record) => {
                    record.count += 1;
                    if let (Content::Data { crcs: all }, Some(crcs)) = (&mut record.content, crcs) {
                        all.extend(crcs);
                    }
                }
                None => {
                    let content = crcs.map_or(Content::Zero, |crcs| Content::Data { crcs });
                    let (group, request) = (key.0, None);
                    records.push(Record { group, chunk, first: n, count: 1, version, request, content });
                }
            }
        }
        StoreOutcome::Read { records, payload: payload.freeze() }
    }

    fn list(&self, key: Key, since: Epoch, after: Option<Cursor>, limit: usize) -> ListPage {
        let mut runs: Vec<Run> = Vec::new();
        let Some(kept) = self.seen.get(&key) else { return ListPage::default() };
        let from = after.map_or(ChunkId::default(), |c| c.chunk);
        for (&chunk, content) in kept.chunks.range(from..) {
            let skip = after.filter(|c| c.chunk == chunk).map(|c| c.block);
            if let Some(version) = content.deleted.filter(|v| skip.is_none() && v.epoch >= since) {
                runs.push(Run { chunk, first: 0, count: 0, version, kind: Kind::Delete });
            }
            let blocks = content.blocks.iter().filter(|(n, _)| skip.is_none_or(|s| **n > s));
            for (&first, block) in blocks.filter(|(_, b)| b.version.epoch >= since) {
                let kind = if block.data.is_some() { Kind::Data } else { Kind::Zero };
                let run = Run { chunk, first, count: 1, version: block.version, kind };
                if push_run(&mut runs, run) && runs.len() > limit && first > 0 {
                    runs.pop();
                    return ListPage { runs, next: Some(Cursor { chunk, block: first - 1 }) };
                }
            }
            if runs.len() >= limit {
                return ListPage { runs, next: Some(Cursor { chunk, block: u32::MAX }) };
            }
        }
        ListPage { runs, next: None }
    }

    fn newer(&self, key: Key, runs: &[Run]) -> Vec<Run> {
        let nothing = Kept::default();
        let kept = self.seen.get(&key).unwrap_or(&nothing);
        let mut newer = Vec::new();
        for run in runs {
            let deleted = kept.chunks.get(&run.chunk).and_then(|c| c.deleted);
            if deleted.is_some_and(|v| v >= run.version) {
                continue;
            }
            if run.kind == Kind::Delete {
                newer.push(*run);
            }
            for first in run.first..run.first + run.count {
                let lost = self.lost.contains_key(&(key, run.chunk, first));
                if lost || kept.version_of(run.chunk, first) < run.version {
                    push_run(&mut newer, Run { first, count: 1, ..*run });
                }
            }
        }
        newer
    }

    /// Forgets a space. Writes handed in before leave no trace; a crash soon after may bring it back.
    pub fn drop_space(&mut self, group: GroupId, space: Space) {
        let key = (group, space);
        self.pending.values_mut().filter(|p| p.key == key).for_each(|p| p.void = true);
        self.seen.remove(&key);
        if let Some(kept) = self.durable.remove(&key) {
            self.dropped.push((key, kept));
            if self.dropped.len() > 4 {
                self.dropped.remove(0);
            }
        }
        self.rotten.retain(|(k, ..), _| *k != key);
        self.lost.retain(|(k, ..), _| *k != key);
    }

    /// Everything that was dropped is gone for good.
    pub fn flush(&mut self) {
        self.dropped.clear();
    }

    /// The process or the machine dies: of what was not completed, any part may be lost. Returns how many writes were.
    pub fn crash(&mut self, random: &mut Random) -> u64 {
        for (key, kept) in std::mem::take(&mut self.dropped) {
            if random.chance(200) {
                self.durable.entry(key).or_insert(kept);
            }
        }
        let mut lost = 0;
        for p in std::mem::take(&mut self.pending).into_values() {
            if !p.void && !self.full && random.chance(500) {
                self.durable.entry(p.key).or_default().apply(&p.record, &p.payload, p.repair);
                self.mark.position += 1;
            } else {
                lost += 1;
            }
        }
        self.seen = self.durable.clone();
        self.poisoned = false;
        lost
    }

    pub fn recovered(&self) -> Recovered {
        let mut tails: BTreeMap<GroupId, Vec<TailRun>> = BTreeMap::new();
        for ((group, _), kept) in &self.seen {
            tails.entry(*group).or_default().extend(kept.tail.iter().copied());
        }
        let spaces = self.seen.keys().copied().collect();
        Recovered { tails: tails.into_iter().collect(), spaces, scrubs: Vec::new() }
    }

    /// Of a replica's blocks the first that is damaged.
    pub fn damaged(&self, group: GroupId) -> Option<(ChunkId, u32)> {
        let key = (group, Space::Replica);
        let kept = self.durable.get(&key);
        let present = |chunk, block| kept.map(|kept| kept.version_of(chunk, block));
        let rotten = self
            .rotten
            .iter()
            .find(|((k, chunk, block), version)| *k == key && present(*chunk, *block) == Some(**version));
        let lost = || self.lost.iter().find(|((k, ..), _)| *k == key);
        rotten.or_else(lost).map(|((_, chunk, block), _)| (*chunk, *block))
    }

    pub fn is_rotten(&self, chunk: ChunkId) -> bool {
        self.rotten.keys().chain(self.lost.keys()).any(|(_, c, _)| *c == chunk)
    }

    /// Whether a block is durable here in this version or a newer one, in any role.
    pub fn keeps(&self, chunk: ChunkId, block: u32, version: Version) -> bool {
        self.durable.values().any(|kept| kept.version_of(chunk, block) >= version)
    }

    /// Damages a block at random, but none that is `spared`. Returns what was damaged.
    pub fn rot(
        &mut self,
        random: &mut Random,
        spared: impl Fn(ChunkId, u32, Version) -> bool,
    ) -> Option<(GroupId, Space, ChunkId, u32)> {
        let with_data = self.durable.iter().flat_map(|(key, kept)| {
            kept.chunks.iter().flat_map(move |(chunk, c)| {
                c.blocks
                    .iter()
                    .filter(|(_, b)| b.data.is_some())
                    .map(move |(n, b)| (*key, *chunk, *n, b.version))
            })
        });
        let all: Vec<_> = with_data.collect();
        let &(key, chunk, block, version) = random.pick(&all)?;
        if spared(chunk, block, version)
            || self.seen.get(&key).is_none_or(|kept| kept.version_of(chunk, block) != version)
        {
            return None;
        }
        self.rotten.insert((key, chunk, block), version);
        Some((key.0, key.1, chunk, block))
    }

    /// The file of a replica's chunk is gone, at random, but none that is `spared`: what its `blocks` contained is not known
    /// any more. Returns what was lost.
    pub fn lose_file(
        &mut self,
        random: &mut Random,
        blocks: u32,
        spared: impl Fn(GroupId, ChunkId) -> bool,
    ) -> Option<(GroupId, ChunkId)> {
        let replicas = self.durable.iter().filter(|((_, space), _)| *space == Space::Replica);
        let all: Vec<(Key, ChunkId, Version)> = replicas
            .flat_map(|(key, kept)| kept.chunks.iter().map(move |(chunk, c)| (*key, *chunk, c)))
            .filter(|(_, _, c)| c.deleted.is_none())
            .filter_map(|(key, chunk, c)| Some((key, chunk, c.blocks.values().map(|b| b.version).max()?)))
            .collect();
        let &(key, chunk, newest) = random.pick(&all)?;
        let busy = self.pending.values().any(|p| p.key == key && p.record.chunk == chunk);
        if busy || spared(key.0, chunk) {
            return None;
        }
        self.lost.extend((0..blocks).map(|block| ((key, chunk, block), newest)));
        Some((key.0, chunk))
    }
}

/// What tests put there by hand.
#[cfg(test)]
impl Store {
    pub fn put(&mut self, space: Space, record: Record) {
        let mut kept = Kept::default();
        let group = record.group;
        kept.apply(&record, &Bytes::new(), false);
        self.give(group, space, kept);
    }

    pub fn give(&mut self, group: GroupId, space: Space, kept: Kept) {
        for map in [&mut self.seen, &mut self.durable] {
            let all = map.entry((group, space)).or_default();
            for (chunk, content) in &kept.chunks {
                all.chunks.entry(*chunk).or_default().blocks.extend(content.blocks.clone());
            }
        }
    }
}

/// Adds a run, joined to the last one where it continues it. Returns whether it stands alone.
fn push_run(runs: &mut Vec<Run>, run: Run) -> bool {
    if let Some(last) = runs.last_mut()
        && last.count > 0
        && (last.chunk, last.version, last.kind) == (run.chunk, run.version, run.kind)
        && last.first + last.count == run.first
    {
        last.count += run.count;
        return false;
    }
    runs.push(run);
    true
}

/// Whether all that the record sets is there, in its version or a newer one.
fn reaches(kept: &Kept, record: &Record) -> bool {
    match record.content {
        Content::Note => false,
        Content::Delete => {
            kept.chunks.get(&record.chunk).and_then(|c| c.deleted).is_some_and(|v| v >= record.version)
        }
        _ => (record.first..record.first + record.count)
            .all(|block| kept.version_of(record.chunk, block) >= record.version),
    }
}
