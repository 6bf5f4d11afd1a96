//! A chunk server's store that keeps lengths only: which blocks it has, in which versions, and no bytes. All data is
//! zeros in shared memory, so a cluster's memory grows with the number of extents and not with their length.
//!
//! The newest version of a block wins, as in every store of Ebb. A record takes effect when its write is done.

use bytes::Bytes;
use ebb_chunkserver::{Recovered, StoreOutcome};
use ebb_store::LIST_RUNS;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Kind, ListPage, RECORD_BLOCKS_MAX, Record, Role,
    Run, Version, block_crcs,
};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// As long as the longest record.
static ZEROES: [u8; RECORD_BLOCKS_MAX as usize * BLOCK_BYTES] = [0; RECORD_BLOCKS_MAX as usize * BLOCK_BYTES];

/// `len` zero bytes in shared memory. `len`: at most one record.
pub fn zeroes(len: usize) -> Bytes {
    Bytes::from_static(&ZEROES[..len])
}

fn zero_crc() -> u32 {
    static CRC: OnceLock<u32> = OnceLock::new();
    *CRC.get_or_init(|| block_crcs(&ZEROES[..BLOCK_BYTES])[0])
}

/// A chunk on a server, with data from its first block on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkData {
    pub group: GroupId,
    pub chunk: ChunkId,
    pub blocks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    count: u32,
    version: Version,
    kind: Kind,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    deleted: Option<Version>,
    /// By first block; they do not overlap.
    extents: BTreeMap<u32, Extent>,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    chunks: BTreeMap<ChunkId, Chunk>,
    /// Blocks of data.
    blocks: u64,
}

#[derive(Clone, Debug, Default)]
pub struct LengthStore {
    roles: BTreeMap<(GroupId, Role), Kept>,
    /// Blocks of data kept as offload.
    offload_blocks: u64,
    blocks: u64,
    /// Counts drops: a write submitted before a drop of its role has no effect.
    drops: BTreeMap<(GroupId, Role), u32>,
}

impl Chunk {
    /// Extents that touch blocks `first..end`.
    fn overlapping(&self, first: u32, end: u32) -> impl Iterator<Item = (u32, Extent)> + '_ {
        let before = self.extents.range(..first).next_back().filter(|(at, e)| **at + e.count > first);
        before.into_iter().chain(self.extents.range(first..end)).map(|(at, e)| (*at, *e))
    }

    /// Sets blocks that are older. Returns the growth in blocks of data.
    fn set(&mut self, first: u32, count: u32, version: Version, kind: Kind) -> i64 {
        if self.deleted.is_some_and(|v| v >= version) {
            return 0;
        }
        let end = first + count;
        let data = |kind: Kind, count: u32| if kind == Kind::Data { i64::from(count) } else { 0 };
        let old: Vec<(u32, Extent)> = self.overlapping(first, end).collect();
        let mut grown = 0;
        let mut at = first;
        for (start, extent) in old {
            let stop = start + extent.count;
            if extent.version >= version {
                // Newer blocks stay; the gap before them is filled.
                if at < start {
                    self.extents.insert(at, Extent { count: start - at, version, kind });
                    grown += data(kind, start - at);
                }
                at = at.max(stop);
                continue;
            }
            self.extents.remove(&start);
            grown -= data(extent.kind, stop.min(end) - start.max(first));
            if start < first {
                self.extents.insert(start, Extent { count: first - start, ..extent });
            }
            if stop > end {
                self.extents.insert(end, Extent { count: stop - end, ..extent });
            }
        }
        if at < end {
            self.extents.insert(at, Extent { count: end - at, version, kind });
            grown += data(kind, end - at);
        }
        grown
    }

    /// The blocks `first..first + count` as runs of one version and kind; blocks never written form a zero run.
    fn runs(&self, first: u32, count: u32, mut each: impl FnMut(u32, u32, Version, Kind)) {
        let (mut at, end) = (first, first + count);
        for (start, extent) in self.overlapping(first, end) {
            let (from, to) = (start.max(first), (start + extent.count).min(end));
            if at < from {
                each(at, from - at, Version::ZERO, Kind::Zero);
            }
            each(from, to - from, extent.version, extent.kind);
            at = to;
        }
        if at < end {
            each(at, end - at, Version::ZERO, Kind::Zero);
        }
    }
}

impl LengthStore {
    pub fn offload_bytes(&self) -> u64 {
        self.offload_blocks * BLOCK_BYTES as u64
    }

    pub fn used_bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }

    pub fn recovered(&self) -> Recovered {
        Recovered { roles: self.roles.keys().copied().collect(), ..Recovered::default() }
    }

    /// Chunks of which it has a replica, each with its end.
    pub fn replicas(&self) -> impl Iterator<Item = ChunkData> + '_ {
        let replicas = self.roles.iter().filter(|((_, role), _)| *role == Role::Replica);
        replicas.flat_map(|((group, _), kept)| {
            kept.chunks.iter().map(|(chunk, content)| {
                let blocks = content.extents.last_key_value().map_or(0, |(at, extent)| at + extent.count);
                ChunkData { group: *group, chunk: *chunk, blocks }
            })
        })
    }

    pub fn has_chunk(&self, group: GroupId, role: Role, chunk: ChunkId) -> bool {
        self.roles.get(&(group, role)).is_some_and(|kept| kept.chunks.contains_key(&chunk))
    }

    /// Whether any of these blocks was ever written.
    pub fn has_data(&self, group: GroupId, role: Role, chunk: ChunkId, first: u32, count: u32) -> bool {
        let kept = self.roles.get(&(group, role)).and_then(|kept| kept.chunks.get(&chunk));
        kept.is_some_and(|chunk| chunk.overlapping(first, first + count).next().is_some())
    }

    /// Pass this to [`LengthStore::apply`] when the write is done.
    pub fn drops_of(&self, group: GroupId, role: Role) -> u32 {
        self.drops.get(&(group, role)).copied().unwrap_or(0)
    }

    pub fn apply(&mut self, role: Role, record: &Record, drops: u32) {
        let key = (record.group, role);
        if record.content == Content::Note {
            return;
        }
        if !self.drops.is_empty() && self.drops_of(record.group, role) != drops {
            return;
        }
        let kept = self.roles.entry(key).or_default();
        let chunk = kept.chunks.entry(record.chunk).or_default();
        let grown = match record.content.kind() {
            Kind::Delete => {
                let version = record.version;
                if chunk.deleted.is_some_and(|v| v >= version) {
                    return;
                }
                chunk.deleted = Some(version);
                let data = |e: &Extent| if e.kind == Kind::Data { i64::from(e.count) } else { 0 };
                let gone: i64 = chunk.extents.values().filter(|e| e.version <= version).map(data).sum();
                chunk.extents.retain(|_, e| e.version > version);
                -gone
            }
            kind => chunk.set(record.first, record.count, record.version, kind),
        };
        kept.blocks = kept.blocks.saturating_add_signed(grown);
        self.blocks = self.blocks.saturating_add_signed(grown);
        if role != Role::Replica {
            self.offload_blocks = self.offload_blocks.saturating_add_signed(grown);
        }
    }

    pub fn drop_role(&mut self, group: GroupId, role: Role) {
        *self.drops.entry((group, role)).or_default() += 1;
        if let Some(kept) = self.roles.remove(&(group, role)) {
            self.blocks -= kept.blocks;
            if role != Role::Replica {
                self.offload_blocks -= kept.blocks;
            }
        }
    }

    pub fn read(&self, group: GroupId, role: Role, chunk: ChunkId, first: u32, count: u32) -> StoreOutcome {
        assert!((1..=RECORD_BLOCKS_MAX).contains(&count), "a read of {count} blocks");
        let nothing = Chunk::default();
        let kept = self.roles.get(&(group, role)).and_then(|kept| kept.chunks.get(&chunk));
        let mut records: Vec<Record> = Vec::new();
        let mut data = 0;
        kept.unwrap_or(&nothing).runs(first, count, |first, count, version, kind| {
            let content = match kind {
                Kind::Data => {
                    data += count as usize;
                    Content::Data { crcs: vec![zero_crc(); count as usize] }
                }
                _ => Content::Zero,
            };
            match records.last_mut() {
                Some(last) if last.version == version && last.content.kind() == kind => {
                    last.count += count;
                    if let (Content::Data { crcs: all }, Content::Data { crcs }) =
                        (&mut last.content, content)
                    {
                        all.extend(crcs);
                    }
                }
                _ => records.push(Record { group, chunk, first, count, version, request: None, content }),
            }
        });
        StoreOutcome::Read { records, payload: zeroes(data * BLOCK_BYTES) }
    }

    pub fn list(&self, group: GroupId, role: Role, since: Epoch, after: Option<Cursor>) -> ListPage {
        let mut runs: Vec<Run> = Vec::new();
        let Some(kept) = self.roles.get(&(group, role)) else { return ListPage::default() };
        let from = after.map_or(ChunkId::default(), |c| c.chunk);
        for (&chunk, content) in kept.chunks.range(from..) {
            let skip = after.filter(|c| c.chunk == chunk).map(|c| c.block);
            if let Some(version) = content.deleted.filter(|v| skip.is_none() && v.epoch >= since) {
                runs.push(Run { chunk, first: 0, count: 0, version, kind: Kind::Delete });
            }
            let extents = content.extents.iter().filter(|(at, _)| skip.is_none_or(|s| **at > s));
            for (&first, extent) in extents.filter(|(_, e)| e.version.epoch >= since) {
                if runs.len() >= LIST_RUNS
                    && let Some(last) = runs.last().filter(|r| r.chunk == chunk && r.kind != Kind::Delete)
                {
                    let block = last.first + last.count - 1;
                    return ListPage { runs, next: Some(Cursor { chunk, block }) };
                }
                let Extent { count, version, kind } = *extent;
                push(&mut runs, Run { chunk, first, count, version, kind });
            }
            if runs.len() >= LIST_RUNS {
                return ListPage { runs, next: Some(Cursor { chunk, block: u32::MAX }) };
            }
        }
        ListPage { runs, next: None }
    }

    pub fn newer(&self, group: GroupId, role: Role, runs: &[Run]) -> Vec<Run> {
        let nothing = Chunk::default();
        let kept = self.roles.get(&(group, role));
        let mut newer = Vec::new();
        for run in runs {
            let chunk = kept.and_then(|k| k.chunks.get(&run.chunk)).unwrap_or(&nothing);
            if chunk.deleted.is_some_and(|v| v >= run.version) {
                continue;
            }
            if run.kind == Kind::Delete {
                newer.push(*run);
            }
            if run.count > 0 {
                chunk.runs(run.first, run.count, |first, count, version, _| {
                    if version < run.version {
                        push(&mut newer, Run { first, count, ..*run });
                    }
                });
            }
        }
        newer
    }
}

/// Appends a run, merging it with the last one if they are adjacent and alike.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if last.chunk == run.chunk
                && last.version == run.version
                && last.kind == run.kind
                && last.first + last.count == run.first =>
        {
            last.count += run.count;
        }
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::store::write_of;
    use ebb_store::mem::MemDisk;
    use ebb_store::{Config, Op, StoreCore};
    use ebb_types::Random;
    use ebb_types::{ObjectId, ServerId, StoreId};
    use std::sync::Arc;

    fn chunk(n: u64) -> ChunkId {
        ChunkId { object: ObjectId(1), index: n as u32 }
    }

    fn record(random: &mut Random) -> Record {
        let version = Version { epoch: Epoch(random.below(3) as u32), seq: random.between(1, 40) };
        // A version is used once, for one content: what it sets follows from it.
        let first = (version.seq * 7 + u64::from(version.epoch.0)) as u32 % 20;
        let count = 1 + (version.seq as u32 * 3) % 9;
        let (kind, chunk) = (version.seq % 11, chunk(version.seq % 3));
        let (first, count, content) = match kind {
            0 => (0, 0, Content::Delete),
            1..=2 => (first, count, Content::Zero),
            _ => (first, count, Content::Data { crcs: vec![zero_crc(); count as usize] }),
        };
        Record { group: GroupId(0), chunk, first, count, version, request: None, content }
    }

    fn ask(store: &mut StoreCore, op: Op) -> StoreOutcome {
        let mut done = Vec::new();
        store.execute(vec![(0, op)], &mut done);
        done.pop().expect("one completion").outcome.into()
    }

    /// The production store is the reference: the same writes give the same answers.
    #[test]
    fn it_answers_as_the_store_that_keeps_bytes() {
        let mut random = Random::new(11);
        let (role, group) = (Role::Offload { stands_for: ServerId(3) }, GroupId(0));
        for round in 0..300 {
            let mut short = LengthStore::default();
            let config = Config::new(1, ServerId(1), StoreId(1));
            let (mut long, _) = StoreCore::open(Arc::new(MemDisk::new()), config).expect("an empty disk");
            for _ in 0..random.between(1, 30) {
                let record = record(&mut random);
                short.apply(role, &record, 0);
                let payload = zeroes(record.payload_len());
                ask(&mut long, write_of(role, record, payload));
            }
            assert_eq!(short.offload_bytes(), long.figures().offload.0, "round {round}");
            for n in 0..3 {
                let read = Op::Read { role, group, chunk: chunk(n), first: 2, count: 25 };
                let (a, b) = (short.read(group, role, chunk(n), 2, 25), ask(&mut long, read));
                assert_eq!(format!("{a:?}"), format!("{b:?}"), "round {round}");
            }
            let since = Epoch(random.below(3) as u32);
            let list = Op::List { role, group, since, after: None, limit: 9999 };
            let StoreOutcome::Listed(right) = ask(&mut long, list) else { panic!("a listing") };
            let page = short.list(group, role, since, None);
            assert_eq!(page, right, "round {round}");
            let asked: Vec<Run> = (0..5).map(|_| self::record(&mut random).run()).collect();
            let newer = Op::Newer { role, group, runs: asked.clone() };
            let StoreOutcome::Newer(right) = ask(&mut long, newer) else { panic!("runs") };
            assert_eq!(short.newer(group, role, &asked), right, "round {round}");
        }
    }

    #[test]
    fn pages_of_a_listing_follow_on_each_other() {
        let mut store = LengthStore::default();
        for n in 0..10_000u32 {
            let version = Version { epoch: Epoch(1), seq: u64::from(n) + 1 };
            let content = Content::Data { crcs: vec![0] };
            let chunk = chunk(u64::from(n) / 3000);
            let record = Record {
                group: GroupId(0),
                chunk,
                first: n % 3000,
                count: 1,
                version,
                request: None,
                content,
            };
            store.apply(Role::Replica, &record, 0);
        }
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let page = store.list(GroupId(0), Role::Replica, Epoch(0), after);
            assert!(page.runs.len() <= LIST_RUNS);
            all.extend(page.runs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(all.len(), 10_000);
        assert!(all.windows(2).all(|w| (w[0].chunk, w[0].first) < (w[1].chunk, w[1].first)));
    }

    #[test]
    fn a_drop_voids_what_was_handed_in_before() {
        let mut store = LengthStore::default();
        let mut random = Random::new(1);
        let record = loop {
            let record = record(&mut random);
            if record.content.kind() == Kind::Data {
                break record;
            }
        };
        let before = store.drops_of(GroupId(0), Role::Replica);
        store.drop_role(GroupId(0), Role::Replica);
        store.apply(Role::Replica, &record, before);
        assert_eq!(store.used_bytes(), 0);
        store.apply(Role::Replica, &record, store.drops_of(GroupId(0), Role::Replica));
        assert_eq!(store.used_bytes(), u64::from(record.count) * BLOCK_BYTES as u64);
    }
}
