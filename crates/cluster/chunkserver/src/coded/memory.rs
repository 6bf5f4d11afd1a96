//! The strips that a data server keeps in memory for parity servers that are away: `parity_debt = "ram"`,
//! `docs/coded.md`.
//!
//! It stands in front of the store, and carries out the commands that concern such strips as the store would, but at
//! once. So nothing else here knows where strips are. A restart loses them, and begins a new epoch, in which holders
//! compute again what they lack.
//!
//! What the budget has no room for goes to the store. A column may then have strips in both, and reads and listings
//! join the two.
//!
//! Invariants
//! - `bytes` is the cost of all that is here; only deletions, which make room, take it over the budget.
//! - A deletion is remembered until the column is dropped: a strip that comes after it is not taken.

use crate::common::api::{KeptBlock, StoreCommand, StoreOutcome, StoreToken};
use crate::common::blocks::split_payload;
use bytes::{Bytes, BytesMut};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Kind, ListPage, Record, Role, Run, Version,
    lost_block_crc,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a block or a deletion takes beside its bytes, about.
const ENTRY_BYTES: u64 = 96;
/// A page of a listing ends with the chunk that exceeds this.
const PAGE_RUNS: usize = 512;

/// A column, and the role in which it is kept.
type Place = (GroupId, Role);

#[derive(Default)]
pub(crate) struct Memory {
    columns: BTreeMap<Place, BTreeMap<ChunkId, Chunk>>,
    /// Columns of which the store may have something.
    on_disk: BTreeSet<Place>,
    /// What the store was asked for and is here in part.
    in_both: BTreeMap<StoreToken, StoreCommand>,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    deleted: Option<Version>,
    blocks: BTreeMap<u32, Block>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    version: Version,
    /// `None`: zeroes.
    data: Option<(u32, Bytes)>,
}

impl Block {
    fn kind(&self) -> Kind {
        if self.data.is_some() { Kind::Data } else { Kind::Zero }
    }

    /// Known to be beyond repair: stored under a checksum that never matches, as the store does it.
    fn is_lost(&self) -> bool {
        self.data.as_ref().is_some_and(|(crc, _)| *crc == lost_block_crc())
    }

    fn cost(&self) -> u64 {
        cost(self.data.is_some())
    }
}

fn cost(has_data: bool) -> u64 {
    ENTRY_BYTES + if has_data { BLOCK_BYTES as u64 } else { 0 }
}

impl Memory {
    /// `recovered`: what the store has.
    pub fn new(recovered: &[(GroupId, Role)]) -> Memory {
        Memory { on_disk: recovered.iter().copied().collect(), ..Memory::default() }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The columns of which a strip or a deletion is here.
    pub fn roles(&self) -> impl Iterator<Item = (GroupId, Role)> + '_ {
        self.columns.keys().copied()
    }

    /// Whether a strip or a deletion of the column is here.
    pub fn has(&self, group: GroupId, role: Role) -> bool {
        self.columns.contains_key(&(group, role))
    }

    /// The store has, or is about to have, something of the column.
    pub fn is_on_disk(&mut self, group: GroupId, role: Role) {
        self.on_disk.insert((group, role));
    }

    /// Forgets a column.
    pub fn drop_all(&mut self, group: GroupId, role: Role) {
        let chunks = self.columns.remove(&(group, role)).unwrap_or_default();
        self.bytes -= chunks.values().map(Chunk::cost).sum::<u64>();
        debug_assert!(!self.columns.is_empty() || self.bytes == 0, "bytes are counted as they come and go");
    }

    /// Carries out a command; `None`: it is for the store. `budget`: the most bytes that may be here.
    pub fn take(&mut self, budget: u64, token: StoreToken, command: &StoreCommand) -> Option<StoreOutcome> {
        match command {
            StoreCommand::Apply { role, record, payload, .. } => {
                let place = (record.group, *role);
                let done = match record.content {
                    Content::Delete => {
                        self.delete(place, record);
                        !self.on_disk.contains(&place)
                    }
                    _ => self.insert(place, budget, record, payload),
                };
                if done {
                    return Some(StoreOutcome::Applied);
                }
                self.on_disk.insert(place);
            }
            StoreCommand::Read { role, group, chunk, first, count } => {
                let cells = self.cells((*group, *role), *chunk, *first, *count);
                let here = cells.iter().flatten().count();
                if here == cells.len() || !self.on_disk.contains(&(*group, *role)) {
                    return Some(answer(*group, *chunk, *first, &cells));
                }
                if here > 0 {
                    self.in_both.insert(token, command.clone());
                }
            }
            StoreCommand::List { role, group, since, after } => {
                let place = (*group, *role);
                if !self.on_disk.contains(&place) {
                    return Some(StoreOutcome::Listed(self.list(place, *since, *after)));
                }
                if self.columns.contains_key(&place) {
                    self.in_both.insert(token, command.clone());
                }
            }
            StoreCommand::Repair { role, record, .. } => {
                self.forget_lost((record.group, *role), record);
                self.is_on_disk(record.group, *role);
            }
            // Sets ask for nothing else.
            _ => {}
        }
        None
    }

    /// Adds what is here to the store's answer.
    pub fn join(&mut self, token: StoreToken, outcome: StoreOutcome) -> StoreOutcome {
        match (self.in_both.remove(&token), outcome) {
            (
                Some(StoreCommand::Read { role, group, chunk, first, count }),
                StoreOutcome::Read { records, payload },
            ) => {
                let here = self.cells((group, role), chunk, first, count);
                let mut cells = cells_of(records, &payload);
                for (cell, here) in cells.iter_mut().zip(here) {
                    let newer = |here: &Block| cell.as_ref().is_none_or(|cell| here.version >= cell.version);
                    if let Some(here) = here.filter(newer) {
                        *cell = Some(here);
                    }
                }
                answer(group, chunk, first, &cells)
            }
            (Some(StoreCommand::List { role, group, since, after }), StoreOutcome::Listed(page)) => {
                StoreOutcome::Listed(joined(page, self.list((group, role), since, after)))
            }
            (_, outcome) => outcome,
        }
    }

    /// Blocks as they are here.
    fn cells(&self, place: Place, chunk: ChunkId, first: u32, count: u32) -> Vec<Option<Block>> {
        let chunk = self.columns.get(&place).and_then(|chunks| chunks.get(&chunk));
        let block = |nth: u32| chunk.and_then(|chunk| chunk.blocks.get(&nth).cloned());
        (first..first + count).map(block).collect()
    }

    fn chunk(&mut self, place: Place, chunk: ChunkId) -> &mut Chunk {
        self.columns.entry(place).or_default().entry(chunk).or_default()
    }

    fn delete(&mut self, place: Place, record: &Record) {
        let chunk = self.chunk(place, record.chunk);
        let is_first = chunk.deleted.is_none();
        chunk.deleted = chunk.deleted.max(Some(record.version));
        let gone = chunk.blocks.extract_if(.., |_, block| block.version <= record.version);
        let freed: u64 = gone.map(|(_, block)| block.cost()).sum();
        self.bytes += if is_first { ENTRY_BYTES } else { 0 };
        self.bytes -= freed;
    }

    /// Blocks that were beyond repair are repaired in the store.
    fn forget_lost(&mut self, place: Place, record: &Record) {
        let chunk = self.columns.get_mut(&place).and_then(|chunks| chunks.get_mut(&record.chunk));
        // Nothing of it is in memory.
        let Some(chunk) = chunk else { return };
        let blocks = record.first..record.first + record.count;
        let lost = |_: &u32, block: &mut Block| block.is_lost() && block.version <= record.version;
        let freed: u64 = chunk.blocks.extract_if(blocks, lost).map(|(_, block)| block.cost()).sum();
        self.bytes -= freed;
    }

    /// Returns false if there is no room.
    fn insert(&mut self, place: Place, budget: u64, record: &Record, payload: &Bytes) -> bool {
        let Record { chunk: id, first, count, version, .. } = *record;
        let known = self.columns.get(&place).and_then(|chunks| chunks.get(&id));
        if known.and_then(|chunk| chunk.deleted).is_some_and(|deleted| deleted >= version) {
            return true;
        }
        let block = |nth: usize| {
            let data = match &record.content {
                // A copy: a part of a message would keep all of it.
                Content::Data { crcs } => Some((crcs[nth], Bytes::copy_from_slice(&block_of(payload, nth)))),
                _ => None,
            };
            Block { version, data }
        };
        let lacks = |nth: &u32| known.is_none_or(|chunk| !chunk.blocks.contains_key(nth));
        let more = (first..first + count).filter(lacks).count() as u64;
        if self.bytes + more * cost(matches!(record.content, Content::Data { .. })) > budget {
            return false;
        }
        let chunk = self.chunk(place, id);
        let (mut came, mut went) = (0, 0);
        for nth in 0..count {
            let old = chunk.blocks.get(&(first + nth));
            if old.is_none_or(|old| old.version < version) {
                went += old.map_or(0, Block::cost);
                let new = block(nth as usize);
                came += new.cost();
                chunk.blocks.insert(first + nth, new);
            }
        }
        self.bytes = self.bytes + came - went;
        true
    }

    fn list(&self, place: Place, since: Epoch, after: Option<Cursor>) -> ListPage {
        let mut runs: Vec<Run> = Vec::new();
        let from = after.map_or(ChunkId::default(), |after| after.chunk);
        for (&chunk, content) in self.columns.get(&place).into_iter().flat_map(|all| all.range(from..)) {
            if runs.len() >= PAGE_RUNS
                && let Some(last) = runs.last()
            {
                let next = Some(Cursor { chunk: last.chunk, block: u32::MAX });
                return ListPage { runs, next };
            }
            let begun = after.filter(|after| after.chunk == chunk);
            if let Some(version) = content.deleted.filter(|v| begun.is_none() && v.epoch >= since) {
                runs.push(Run { chunk, first: 0, count: 0, version, kind: Kind::Delete });
            }
            let Some(from) = begun.map_or(Some(0), |begun| begun.block.checked_add(1)) else { continue };
            for (&first, block) in content.blocks.range(from..) {
                let run = Run { chunk, first, count: 1, version: block.version, kind: block.kind() };
                let continues = |last: &&mut Run| {
                    (last.chunk, last.version, last.kind, last.first + last.count)
                        == (chunk, run.version, run.kind, first)
                };
                match runs.last_mut().filter(continues) {
                    Some(last) => last.count += 1,
                    None if block.version.epoch >= since => runs.push(run),
                    None => {}
                }
            }
        }
        ListPage { runs, next: None }
    }

    pub fn kept(&self, group: GroupId, role: Role) -> Vec<KeptBlock> {
        let chunks = self.columns.get(&(group, role)).into_iter().flatten();
        let blocks = |(id, content): (&ChunkId, &Chunk)| {
            let chunk = *id;
            let all = content.blocks.clone().into_iter();
            all.map(move |(block, Block { version, data })| {
                let data = data.map(|(_, bytes)| bytes);
                KeptBlock { chunk, block, version, data }
            })
        };
        chunks.flat_map(blocks).collect()
    }
}

impl Chunk {
    fn cost(&self) -> u64 {
        let deleted = if self.deleted.is_some() { ENTRY_BYTES } else { 0 };
        deleted + self.blocks.values().map(Block::cost).sum::<u64>()
    }
}

fn block_of(payload: &Bytes, nth: usize) -> Bytes {
    payload.slice(nth * BLOCK_BYTES..(nth + 1) * BLOCK_BYTES)
}

/// The blocks of a store's answer; `None`: never written.
fn cells_of(records: Vec<Record>, payload: &Bytes) -> Vec<Option<Block>> {
    let mut cells = Vec::new();
    for (record, payload) in split_payload(records, payload).unwrap_or_default() {
        for nth in 0..record.count as usize {
            let data = match &record.content {
                Content::Data { crcs } => Some((crcs[nth], block_of(&payload, nth))),
                _ => None,
            };
            let block = Block { version: record.version, data };
            cells.push((!record.is_never_written()).then_some(block));
        }
    }
    cells
}

/// The answer to a read: maximal runs of equal version and kind.
fn answer(group: GroupId, chunk: ChunkId, first: u32, cells: &[Option<Block>]) -> StoreOutcome {
    if let Some(nth) = cells.iter().position(|cell| cell.as_ref().is_some_and(Block::is_lost)) {
        let block = first + nth as u32;
        return StoreOutcome::Damaged { chunk, block, lost: None, given_up: true, all: false };
    }
    let never = Block { version: Version::ZERO, data: None };
    let cells: Vec<&Block> = cells.iter().map(|cell| cell.as_ref().unwrap_or(&never)).collect();
    let (mut records, mut payload, mut at) = (Vec::new(), BytesMut::new(), first);
    for run in cells.chunk_by(|a, b| (a.version, a.kind()) == (b.version, b.kind())) {
        let crcs: Vec<u32> =
            run.iter().filter_map(|block| block.data.as_ref()).map(|(crc, _)| *crc).collect();
        let content = if crcs.is_empty() { Content::Zero } else { Content::Data { crcs } };
        let (count, version) = (run.len() as u32, run[0].version);
        records.push(Record { group, chunk, first: at, count, version, request: None, content });
        run.iter()
            .filter_map(|block| block.data.as_ref())
            .for_each(|(_, bytes)| payload.extend_from_slice(bytes));
        at += count;
    }
    StoreOutcome::Read { records, payload: payload.freeze() }
}

/// One page of what two listings from the same place on have, as far as both go.
fn joined(one: ListPage, other: ListPage) -> ListPage {
    let next = [one.next, other.next].into_iter().flatten().min();
    let within = |mut run: Run| {
        let Some(end) = next else { return Some(run) };
        match run.chunk.cmp(&end.chunk) {
            std::cmp::Ordering::Less => Some(run),
            std::cmp::Ordering::Greater => None,
            std::cmp::Ordering::Equal if run.kind == Kind::Delete => Some(run),
            std::cmp::Ordering::Equal if run.first > end.block => None,
            std::cmp::Ordering::Equal => {
                run.count = run.count.min((end.block - run.first).saturating_add(1));
                Some(run)
            }
        }
    };
    let mut runs: Vec<Run> = one.runs.into_iter().chain(other.runs).filter_map(within).collect();
    runs.sort_by_key(|run| (run.chunk, run.kind != Kind::Delete, run.first));
    ListPage { runs, next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ServerId, SetId, block_crcs};

    /// As from the store: whoever asks for it must not take it for bytes that were damaged on the way, and ask again.
    #[test]
    fn a_strip_beyond_repair_is_damaged_until_it_is_repaired() {
        let (group, role) = (GroupId::of_column(SetId(0), 5), Role::Offload { stands_for: ServerId(3) });
        let (chunk, version) = (ChunkId::default(), Version { epoch: Epoch(2), seq: 1 });
        let payload = Bytes::from(vec![0; BLOCK_BYTES]);
        let record = |crcs| {
            let content = Content::Data { crcs };
            Record { group, chunk, first: 1, count: 1, version, request: None, content }
        };
        let mut memory = Memory::default();
        let mut take = |command| memory.take(u64::MAX, StoreToken(1), &command);
        let (lost, must_fit) = (record(vec![lost_block_crc()]), true);
        let apply = StoreCommand::Apply {
            role,
            record: lost,
            payload: payload.clone(),
            must_fit,
            committed: version,
        };
        assert!(matches!(take(apply), Some(StoreOutcome::Applied)));
        let read = StoreCommand::Read { role, group, chunk, first: 0, count: 3 };
        assert!(matches!(take(read.clone()), Some(StoreOutcome::Damaged { block: 1, lost: None, .. })));
        let repair =
            StoreCommand::Repair { role, record: record(block_crcs(&payload)), payload, lost: Version::MAX };
        assert!(take(repair).is_none() && take(read).is_none(), "the store has it");
        assert_eq!(memory.bytes(), 0);
    }
}
