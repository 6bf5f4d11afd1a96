//! A chunk server's store in the virtual world: the production [`StoreCore`] over [`MemDisk`], a disk in memory that
//! loses, tears and reorders unsynced writes, stops after any write, rots and runs full.
//!
//! Only time is virtual. An operation is carried out at a moment drawn by the world, and its completion arrives later.
//! Writes and drops are carried out in the order of submission, all waiting ones as one group commit, as the store's
//! own thread does it (`ebb_store::StoreHandle`, which is not run here); queries overtake them.
//!
//! A server that dies during a write leaves the disk as it was after some operation of that write. What happens to
//! unsynced data then depends on what died: only the process, or the power.

use bytes::Bytes;
use ebb_chunkserver::shell::OWN_TOKENS;
use ebb_chunkserver::{Recovered, StoreOutcome, StoreToken};
use ebb_store::mem::MemDisk;
use ebb_store::{Completion, Config, GroupDigest, Op, OpenError, Outcome, ReadBlocks, StoreCore, StoreError};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, GroupId, Incarnation, Kind, Membership, Role, Run, ServerId, StoreId,
    StoreMark, Version,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebb_types::Random;

/// Blocks read at once by an observer of a store.
const LOOK_BLOCKS: u32 = 256;
/// Most disk operations of a write in progress that complete before its server dies.
const LAST_OPERATIONS: u64 = 12;

/// A stored block. `data` is `None` for zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub version: Version,
    pub data: Option<Bytes>,
}

/// The blocks of each chunk that were ever written, without damaged ones.
pub type Kept = BTreeMap<ChunkId, BTreeMap<u32, Block>>;

/// Names a block on a server.
pub type Place = (GroupId, Role, ChunkId, u32);

/// The kind of a block's damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It fails its checksum.
    Rot(Version),
    /// Its contents are unknown.
    Lost,
}

/// The contents of a disk as the next start would find them.
pub struct Found {
    pub mark: StoreMark,
    pub sound: BTreeMap<Place, Version>,
    pub damaged: BTreeMap<Place, Damage>,
}

/// A writing operation that is not carried out yet.
struct Waiting {
    id: u64,
    token: StoreToken,
    op: Op,
}

pub struct Store {
    pub disk: MemDisk,
    pub config: Config,
    chunk_blocks: u32,
    /// Of the running process.
    core: RefCell<Option<StoreCore>>,
    /// For observers while no process runs: the result of a start, on a copy of the disk.
    still: RefCell<Option<Option<StoreCore>>>,
    waiting: Vec<Waiting>,
    /// Carried out, completion not yet delivered.
    done: BTreeMap<u64, (StoreToken, Outcome)>,
    next: u64,
    /// Of the run that last opened it.
    pub run: Incarnation,
    pub membership: Membership,
    /// A recorded run that the next start must not be mistaken for.
    supersedes: Option<Incarnation>,
    /// Chunks damaged by a fault: data missing from them proves nothing.
    pub damaged: BTreeSet<ChunkId>,
    mark: StoreMark,
    /// Its identity at the first start.
    first: Option<StoreId>,
}

impl Store {
    pub fn new(server: ServerId, config: Config, chunk_blocks: u32) -> Store {
        let disk = if server.0.is_multiple_of(2) { MemDisk::that_grows_ahead() } else { MemDisk::new() };
        let config = Config { server, chunk_bytes: chunk_blocks * BLOCK_BYTES as u32, ..config };
        Store {
            disk,
            config,
            chunk_blocks,
            core: RefCell::default(),
            still: RefCell::default(),
            waiting: Vec::new(),
            done: BTreeMap::new(),
            next: 0,
            run: Incarnation::default(),
            membership: Membership::default(),
            supersedes: None,
            damaged: BTreeSet::new(),
            mark: StoreMark::default(),
            first: None,
        }
    }

    /// The first step of the process. Returns what it found, and whether a crash had left a partial write.
    pub fn open(&mut self, random: &mut Random) -> Result<(Recovered, bool), OpenError> {
        self.close();
        let config =
            Config { fresh_id: StoreId(random.next()), supersedes: self.supersedes, ..self.config.clone() };
        let (mut core, recovered) = StoreCore::open(Arc::new(self.disk.clone()), config)?;
        self.supersedes = None;
        (self.run, self.membership) = (recovered.incarnation, recovered.membership);
        core.settle();
        self.first = self.first.or(Some(core.figures().mark.store));
        self.core = RefCell::new(Some(core));
        let torn = recovered.torn_bytes > 0;
        Ok((recovered.for_the_core(), torn))
    }

    /// The directory is replaced by another. The disk stays as large as it is: a copy that was made while it was full
    /// does not fill it again. What a fault took from the former one is damage of this one only if it is damaged, too.
    pub fn replace(&mut self, disk: MemDisk) {
        let found = self.find(&disk);
        let is_damaged = |chunk: &ChunkId| {
            found.as_ref().is_some_and(|found| found.damaged.keys().any(|place| place.2 == *chunk))
        };
        self.damaged.retain(is_damaged);
        self.close();
        disk.set_capacity(self.disk.capacity());
        self.disk = disk;
    }

    fn close(&mut self) {
        self.mark = self.mark();
        self.core = RefCell::default();
        self.still = RefCell::default();
        self.waiting.clear();
        self.done.clear();
    }

    /// It does not continue the run `known`: the next start uses another identity.
    pub fn supersede(&mut self, known: Incarnation) {
        self.supersedes = Some(known);
    }

    /// Of the present run, or of the last one.
    pub fn mark(&self) -> StoreMark {
        self.core.borrow().as_ref().map_or(self.mark, |core| core.figures().mark)
    }

    /// Whether it is the server's original store.
    pub fn is_the_first(&self) -> bool {
        self.first == Some(self.mark().store)
    }

    pub fn is_poisoned(&self) -> bool {
        self.core.borrow().as_ref().is_some_and(|core| core.figures().poisoned)
    }

    pub fn own_bytes(&self) -> u64 {
        self.look(|core| core.figures().own.0).unwrap_or(0)
    }

    pub fn offload_bytes(&self) -> u64 {
        self.look(|core| core.figures().offload.0).unwrap_or(0)
    }

    /// Whether the protocol core waits for no write.
    pub fn is_idle(&self) -> bool {
        let tokens = self.done.values().map(|(token, _)| token).chain(self.waiting.iter().map(|w| &w.token));
        tokens.into_iter().all(|token| token.0 >= OWN_TOKENS)
    }

    /// Submits a writing operation; returns the number that identifies it. `token`: what waits for it.
    pub fn submit(&mut self, token: StoreToken, op: Op) -> u64 {
        self.next += 1;
        self.waiting.push(Waiting { id: self.next, token, op });
        self.next
    }

    /// Carries out everything submitted up to `id`, as one group commit.
    pub fn carry_out(&mut self, id: u64) {
        let count = self.waiting.iter().take_while(|w| w.id <= id).count();
        let now: Vec<Waiting> = self.waiting.drain(..count).collect();
        let tokens: BTreeMap<u64, StoreToken> = now.iter().map(|w| (w.id, w.token)).collect();
        let done = self.execute(now.into_iter().map(|w| (w.id, w.op)).collect());
        self.done
            .extend(done.into_iter().map(|Completion { token: id, outcome }| (id, (tokens[&id], outcome))));
    }

    /// Delivers the completion of a write.
    pub fn complete(&mut self, id: u64) -> Option<(StoreToken, StoreOutcome)> {
        self.carry_out(id);
        self.done.remove(&id).map(|(token, outcome)| (token, outcome.into()))
    }

    /// Carries out an operation that does not write, now.
    pub fn answer(&mut self, op: Op) -> Outcome {
        self.execute(vec![(0, op)]).pop().expect("one completion").outcome
    }

    fn execute(&mut self, ops: Vec<(u64, Op)>) -> Vec<Completion> {
        let mut done = Vec::new();
        if let (Some(core), false) = (self.core.get_mut(), ops.is_empty()) {
            core.execute(ops, &mut done);
            core.settle_paced();
        }
        done
    }

    /// The idle work of the store's thread. Returns whether there is more.
    pub fn settle(&mut self) -> bool {
        self.core.get_mut().as_mut().is_some_and(|core| core.settle())
    }

    /// Nothing was written for a while.
    pub fn rest(&mut self) {
        // A failure poisons the store, and shows at the next operation.
        self.core.get_mut().as_mut().map(|core| core.rest());
    }

    /// Number of writing operations submitted.
    pub fn writes(&self) -> u64 {
        self.next
    }

    /// The process or the machine dies. Returns how many writes were in flight.
    pub fn crash(&mut self, random: &mut Random) -> u64 {
        let lost = self.waiting.len();
        if self.core.get_mut().is_some() && random.chance(700) {
            let last = random.index(lost + 1);
            self.disk.stop_after(random.below(LAST_OPERATIONS));
            let ops = self.waiting.drain(..last).map(|w| (w.id, w.op)).collect();
            self.execute(ops);
            if random.chance(300) {
                self.answer(Op::Flush);
            }
        }
        self.close();
        self.disk.go_on();
        if random.chance(600) {
            self.disk = self.disk.crash(random.next());
        }
        lost as u64
    }

    /// A start that crashes halfway.
    pub fn crash_at_start(&mut self, random: &mut Random) {
        self.disk.stop_after(random.below(2 * LAST_OPERATIONS));
        let _ = self.open(random);
        self.close();
        self.disk.go_on();
        self.disk = self.disk.crash(random.next());
    }

    /// Whether the disk is full or fails.
    pub fn disk_fails(&self) -> bool {
        self.disk.fails()
    }

    /// Inspects the store as it runs, or as the next start would find it. `None`: a start would fail.
    fn look<T>(&self, ask: impl FnOnce(&mut StoreCore) -> T) -> Option<T> {
        let mut core = self.core.borrow_mut();
        if let Some(core) = core.as_mut().filter(|core| !core.figures().poisoned) {
            return Some(ask(core));
        }
        let mut still = self.still.borrow_mut();
        let still = still.get_or_insert_with(|| open_copy(&self.disk, &self.config));
        still.as_mut().map(ask)
    }

    /// The disk was changed behind the store's back; `found` is what is left.
    pub fn was_damaged(&mut self, found: &Found) {
        self.still = RefCell::default();
        self.damaged.extend(found.damaged.keys().map(|place| place.2));
    }

    /// Groups and roles for which the server has data.
    pub fn roles(&self) -> BTreeSet<(GroupId, Role)> {
        self.look(|core| roles_of(core)).unwrap_or_default()
    }

    /// All in which anything is kept, and all in which the next start would find data. Of a note that all targets have,
    /// that may find more, once the records that say so are gone: it then drops the role.
    pub fn all_roles(&self) -> BTreeSet<(GroupId, Role)> {
        let kept = self.look(|core| core.roles()).unwrap_or_default();
        let next = open_copy(&self.disk, &self.config);
        kept.into_iter().chain(next.map(|core| roles_of(&core)).unwrap_or_default()).collect()
    }

    /// How many records of each group the next start would find open: not known to be on all targets.
    pub fn open_records(&self) -> BTreeMap<GroupId, usize> {
        let tails = recover_copy(&self.disk, &self.config).map(|(_, found)| found.tails).unwrap_or_default();
        tails.into_iter().map(|(group, tail)| (group, tail.open.len())).collect()
    }

    /// Whether a block is here in this version or a newer one, as far as is known: data lost to a fault counts as
    /// present.
    pub fn has(&self, group: GroupId, role: Role, chunk: ChunkId, block: u32, version: Version) -> bool {
        let run = Run { chunk, first: block, count: 1, version, kind: Kind::Data };
        let ask = Op::Newer { role, group, runs: vec![run] };
        let lacks = |core: &mut StoreCore| one(core, ask) != Outcome::Newer(Vec::new());
        self.damaged.contains(&chunk) || !self.look(lacks).unwrap_or(true)
    }

    /// The blocks of a group in one role, among the first `blocks` of each chunk.
    fn blocks_of(&self, group: GroupId, role: Role, blocks: u32) -> Vec<(Place, Result<Block, Damage>)> {
        self.look(|core| walk(core, blocks, |s, g, _| (s, g) == (role, group))).unwrap_or_default()
    }

    /// The readable data of one chunk. A check that asks for each chunk reads no others with it.
    pub fn kept_of(&self, group: GroupId, role: Role, chunk: ChunkId) -> BTreeMap<u32, Block> {
        let here = |s, g, c| (s, g, c) == (role, group, chunk);
        let all = self.look(|core| walk(core, self.chunk_blocks, here)).unwrap_or_default();
        all.into_iter().filter_map(|((.., block), found)| Some((block, found.ok()?))).collect()
    }

    /// All readable data of a group in one role.
    pub fn kept(&self, group: GroupId, role: Role) -> Kept {
        let mut kept = Kept::new();
        for ((.., chunk, block), found) in self.blocks_of(group, role, self.chunk_blocks) {
            if let Ok(found) = found {
                kept.entry(chunk).or_default().insert(block, found);
            }
        }
        kept
    }

    /// The blocks of each chunk that were written here, with those that are damaged by now or without.
    pub fn written(
        &self,
        group: GroupId,
        role: Role,
        with_damaged: bool,
    ) -> BTreeMap<ChunkId, BTreeSet<u32>> {
        let mut written: BTreeMap<ChunkId, BTreeSet<u32>> = BTreeMap::new();
        for ((.., chunk, block), found) in self.blocks_of(group, role, self.chunk_blocks) {
            if with_damaged || found.is_ok() {
                written.entry(chunk).or_default().insert(block);
            }
        }
        written
    }

    /// Digest of a group's blocks. `None`: some of them are lost.
    pub fn digest(&self, group: GroupId) -> Option<GroupDigest> {
        let ask = Op::Digest { role: Role::Replica, group, verify: false };
        match self.look(|core| one(core, ask))? {
            Outcome::Digest(digest) => Some(digest),
            _ => None,
        }
    }

    /// What the next start would find on `disk`. `None`: it would fail.
    pub fn find(&self, disk: &MemDisk) -> Option<Found> {
        let mut core = open_copy(disk, &self.config)?;
        let mark = core.figures().mark;
        let (mut sound, mut damaged) = (BTreeMap::new(), BTreeMap::new());
        for (place, found) in walk(&mut core, self.chunk_blocks, |_, _, _| true) {
            match found {
                Ok(block) => _ = sound.insert(place, block.version),
                Err(damage) => _ = damaged.insert(place, damage),
            }
        }
        Some(Found { mark, sound, damaged })
    }

    /// The first of a replica's blocks that the running store finds damaged, among the first `blocks` of each chunk.
    pub fn damaged_block(&self, group: GroupId, blocks: u32) -> Option<(ChunkId, u32)> {
        let all = self.blocks_of(group, Role::Replica, blocks.min(self.chunk_blocks));
        all.into_iter().find(|(_, found)| found.is_err()).map(|((.., chunk, block), _)| (chunk, block))
    }

    /// Whether a start would find damage in the chunk.
    pub fn is_rotten(&self, chunk: ChunkId) -> bool {
        let Some(mut core) = open_copy(&self.disk, &self.config) else { return true };
        walk(&mut core, self.chunk_blocks, |_, _, c| c == chunk).iter().any(|(_, found)| found.is_err())
    }

    /// Whether a block is here in this version or a newer one, in any role.
    pub fn keeps(&self, chunk: ChunkId, block: u32, version: Version) -> bool {
        self.roles().into_iter().any(|(group, role)| {
            self.look(|core| {
                let run = Run { chunk, first: block, count: 1, version, kind: Kind::Data };
                one(core, Op::Newer { role, group, runs: vec![run] }) == Outcome::Newer(Vec::new())
            })
            .unwrap_or(false)
        })
    }

    /// Whether a fault took this block from the disk, with its version, and nothing has repaired it yet.
    pub fn has_lost(&self, chunk: ChunkId, block: u32) -> bool {
        let all = |core: &mut StoreCore| walk(core, self.chunk_blocks, |_, _, c| c == chunk);
        let all = if self.damaged.contains(&chunk) { self.look(all) } else { None };
        all.into_iter().flatten().any(|(place, found)| place.3 == block && found == Err(Damage::Lost))
    }
}

fn one(core: &mut StoreCore, op: Op) -> Outcome {
    let mut done = Vec::new();
    core.execute(vec![(0, op)], &mut done);
    done.pop().expect("one completion").outcome
}

fn open_copy(disk: &MemDisk, config: &Config) -> Option<StoreCore> {
    recover_copy(disk, config).map(|(core, _)| core)
}

/// Groups and roles in which data is kept.
fn roles_of(core: &StoreCore) -> BTreeSet<(GroupId, Role)> {
    core.chunks().into_iter().map(|(role, group, _)| (group, role)).collect()
}

fn recover_copy(disk: &MemDisk, config: &Config) -> Option<(StoreCore, ebb_store::Recovered)> {
    let copy = disk.copy();
    copy.go_on();
    copy.fail_syncs(0);
    copy.set_capacity(None);
    StoreCore::open(Arc::new(copy), config.clone()).ok()
}

/// Reads all blocks of the `wanted` chunks. Returns each one that was ever written.
fn walk(
    core: &mut StoreCore,
    chunk_blocks: u32,
    wanted: impl Fn(Role, GroupId, ChunkId) -> bool,
) -> Vec<(Place, Result<Block, Damage>)> {
    let mut all = Vec::new();
    let chunks: Vec<_> = core.chunks().into_iter().filter(|(s, g, c)| wanted(*s, *g, *c)).collect();
    for (role, group, chunk) in chunks {
        for first in (0..chunk_blocks).step_by(LOOK_BLOCKS as usize) {
            let count = LOOK_BLOCKS.min(chunk_blocks - first);
            let whole = one(core, Op::Read { role, group, chunk, first, count });
            if let Outcome::Read(blocks) = whole {
                take_apart(blocks, |block, found| all.push(((group, role, chunk, block), Ok(found))));
                continue;
            }
            for block in first..first + count {
                let place = (group, role, chunk, block);
                match one(core, Op::Read { role, group, chunk, first: block, count: 1 }) {
                    Outcome::Read(blocks) => take_apart(blocks, |_, found| all.push((place, Ok(found)))),
                    Outcome::Failed(StoreError::Corrupt { .. } | StoreError::GivenUp { .. }) => {
                        all.push((place, Err(Damage::Rot(version_of(core, place)))));
                    }
                    _ => all.push((place, Err(Damage::Lost))),
                }
            }
        }
    }
    all
}

/// The version of an unreadable block.
fn version_of(core: &mut StoreCore, (group, role, chunk, block): Place) -> Version {
    let after = block.checked_sub(1).map(|block| ebb_types::Cursor { chunk, block });
    let since = ebb_types::Epoch(0);
    let listed = one(core, Op::List { role, group, since, after, limit: 1 });
    let Outcome::Listed(page) = listed else { return Version::ZERO };
    let here = |run: &&Run| run.chunk == chunk && (run.first..run.first + run.count).contains(&block);
    page.runs.iter().find(here).map_or(Version::ZERO, |run| run.version)
}

/// The blocks of a read that were ever written.
fn take_apart(blocks: ReadBlocks, mut each: impl FnMut(u32, Block)) {
    let mut rest = blocks.payload;
    for record in blocks.records {
        let with_data = matches!(record.content, Content::Data { .. });
        for block in record.first..record.first + record.count {
            let data = with_data.then(|| rest.split_to(BLOCK_BYTES));
            if record.version != Version::ZERO {
                each(block, Block { version: record.version, data });
            }
        }
    }
}

/// Manipulations for tests.
#[cfg(test)]
impl Store {
    pub fn put(&mut self, role: Role, record: ebb_types::Record, payload: Bytes) {
        let outcome = self.answer(Op::Apply {
            role,
            record,
            payload,
            must_fit: true,
            repair: None,
            committed: Version::ZERO,
        });
        assert_eq!(outcome, Outcome::Applied);
    }

    pub fn give(&mut self, group: GroupId, role: Role, kept: &Kept) {
        for (chunk, blocks) in kept {
            for (first, Block { version, data }) in blocks {
                let payload = data.clone().unwrap_or_default();
                let content = match data {
                    Some(data) => Content::Data { crcs: ebb_types::block_crcs(data) },
                    None => Content::Zero,
                };
                let (chunk, first, version) = (*chunk, *first, *version);
                let record =
                    ebb_types::Record { group, chunk, first, count: 1, version, request: None, content };
                self.put(role, record, payload);
            }
        }
    }

    /// Damages the last block of a chunk's file.
    pub fn rot(&mut self) {
        assert_eq!(self.answer(Op::Flush), Outcome::Done);
        let file = self.disk.files().into_iter().find(|path| path.starts_with("chunks/"));
        let file = file.expect("a chunk is written");
        self.disk.flip_bit(&file, self.disk.len(&file) - 1);
    }

    /// A chunk's file is emptied by a fault.
    pub fn lose_file(&mut self) {
        assert_eq!(self.answer(Op::Flush), Outcome::Done);
        let file = self.disk.files().into_iter().find(|path| path.starts_with("chunks/"));
        self.disk.cut(&file.expect("a chunk is written"), 0);
        let found = self.find(&self.disk).expect("it starts all the same");
        self.was_damaged(&found);
    }

    pub fn drop_role(&mut self, group: GroupId, role: Role) {
        assert_eq!(self.answer(drop_of(group, role)), Outcome::Done);
    }
}

/// A protocol write, as tests submit it to a store.
#[cfg(test)]
pub fn write_of(role: Role, record: ebb_types::Record, payload: Bytes) -> Op {
    Op::Apply { role, record, payload, must_fit: false, repair: None, committed: Version::ZERO }
}

/// The operation that forgets a role.
#[cfg(test)]
pub fn drop_of(group: GroupId, role: Role) -> Op {
    match role {
        Role::Replica => Op::DropReplica { group },
        Role::Offload { stands_for } => Op::DropOffload { group, stands_for },
    }
}
