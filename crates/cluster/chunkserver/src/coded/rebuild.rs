//! Rebuilds runs of blocks of a column: copies the strip from a server that has it, or decodes it from others.
//!
//! A job asks its candidates in order of preference, no more of them than suffice if all have what they should, and
//! others in place of those that do not. What is found is stored; what is not is judged: surely never written as a
//! whole, perhaps with servers that do not answer now, or lost: every server that may have it answered, and too few
//! strips are sound. A fill stores a lost block as such, and goes on: one row must not keep a column out of sync for
//! ever.
//!
//! What a lost column lacks is fetched no faster than its pool allows [ECS² §5.3.2]. What clients and scrubs want, and
//! what a server missed while it was away, is not held back, and does not wait behind it.
//!
//! Invariant: the [`Budget`](crate::common::budget::Budget) counts the started jobs of fills and scrubs as fetches, and
//! the bytes of all started jobs.

use super::known::{Known, is_no_strip};
use super::plan::REBUILD_BLOCKS;
use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::blocks::{BLOCK, split_payload};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::limit::Limit;
use crate::common::wait::{ColumnWait, Wait};
use bytes::{Bytes, BytesMut};
use ebb_erasure::Code;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Moment, PeerMessage, Record, Refusal, Role, ServerId, Version, block_crcs,
    lost_block_crc,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    pub column: usize,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
}

/// A server that may have blocks of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub column: usize,
    pub server: ServerId,
    pub first: u32,
    pub count: u32,
}

impl Candidate {
    fn covers(&self, block: u32) -> bool {
        (self.first..self.first + self.count).contains(&block)
    }
}

/// Who wants the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum For {
    Fill {
        pass: u64,
    },
    Reads(Vec<u64>),
    /// `compares`: what is found is not stored.
    Scrub {
        token: u64,
        compares: bool,
    },
}

/// What became of a job. Blocks in neither list are here now.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub of: Blocks,
    pub wanted: For,
    /// What a scrub compares.
    pub found: BTreeMap<u32, Bytes>,
    /// Never written as a whole: too few strips exist.
    pub absent: Vec<u32>,
    /// Too few strips can be had now.
    pub lacking: Vec<u32>,
    /// Too few strips are sound, and no other server may have any: these blocks are lost for good.
    pub ruined: Vec<u32>,
    /// Another server knows a newer epoch.
    pub stale: bool,
    /// The store did not take them.
    pub failed: bool,
}

struct Job {
    of: Blocks,
    wanted: For,
    /// The blocks here fail their checksum.
    repair: bool,
    /// It is part of the rebuild of a lost column.
    limited: bool,
    started: bool,
    /// Newest known version of the blocks.
    version: Version,
    oldest: Option<Version>,
    candidates: Vec<Candidate>,
    asked: BTreeMap<u64, (Candidate, Moment)>,
    /// Sound blocks by block and column.
    strips: BTreeMap<u32, BTreeMap<usize, Bytes>>,
    open: BTreeSet<u32>,
    found: BTreeMap<u32, Bytes>,
    absent: Vec<u32>,
    lacking: Vec<u32>,
    ruined: Vec<u32>,
    /// Blocks of which a candidate has a damaged strip.
    damaged: BTreeSet<u32>,
    /// A candidate did not say whether it has the blocks.
    unsure: bool,
    stale: bool,
    failed: bool,
    applying: usize,
}

#[derive(Default)]
pub(super) struct Rebuilds {
    next: u64,
    jobs: BTreeMap<u64, Job>,
    queue: VecDeque<u64>,
    /// Those that are limited wait by themselves.
    limited: VecDeque<u64>,
    limit: Limit,
    by_token: BTreeMap<u64, u64>,
    ended: Vec<Ended>,
}

impl Job {
    fn is_of_client(&self) -> bool {
        matches!(self.wanted, For::Reads(_))
    }

    fn compares(&self) -> bool {
        matches!(self.wanted, For::Scrub { compares: true, .. })
    }

    fn cost(&self, known: &Known) -> usize {
        (self.of.count * BLOCK) as usize * (known.entry.shape.data() + 1)
    }

    fn resolve(&mut self, code: &Code) {
        let column = self.of.column;
        let mut found = Vec::new();
        for block in &self.open {
            let Some(strips) = self.strips.get(block) else { continue };
            if let Some(bytes) = strips.get(&column) {
                found.push((*block, bytes.clone()));
                continue;
            }
            let present: Vec<(usize, &[u8])> = strips.iter().map(|(nth, bytes)| (*nth, &bytes[..])).collect();
            let mut out = vec![0; BLOCK_BYTES];
            if code.recover(&present, &[column], &mut [&mut out]).is_ok() {
                found.push((*block, Bytes::from(out)));
            }
        }
        for (block, bytes) in found {
            self.open.remove(&block);
            self.found.insert(block, bytes);
        }
    }

    /// The candidates to ask for a block: the one that has the strip itself, or as few as suffice. Empty: they do not
    /// suffice.
    fn take_sources(&mut self, code: &Code, block: u32) -> Vec<Candidate> {
        let column = self.of.column;
        if let Some(nth) = self.candidates.iter().position(|c| c.column == column && c.covers(block)) {
            return vec![self.candidates.remove(nth)];
        }
        let mut hoped: Vec<usize> =
            self.strips.get(&block).into_iter().flat_map(|s| s.keys().copied()).collect();
        let mut picks: Vec<Candidate> = Vec::new();
        for candidate in self.candidates.iter().filter(|c| c.covers(block)) {
            if hoped.contains(&candidate.column) {
                continue;
            }
            hoped.push(candidate.column);
            picks.push(*candidate);
            if let Some(sources) = code.sources(&hoped, &[column]) {
                picks.retain(|pick| sources.contains(&pick.column));
                self.candidates.retain(|c| !picks.contains(c));
                return picks;
            }
        }
        Vec::new()
    }

    /// Notes what a candidate has.
    fn take(&mut self, of: Candidate, parts: Vec<(Record, Bytes)>) {
        for (record, payload) in parts {
            if is_no_strip(&record) {
                continue;
            }
            self.version = self.version.max(record.version);
            self.oldest = Some(self.oldest.map_or(record.version, |oldest| oldest.min(record.version)));
            for nth in 0..record.count {
                let bytes = match record.content {
                    Content::Data { .. } => {
                        payload.slice(nth as usize * BLOCK_BYTES..(nth as usize + 1) * BLOCK_BYTES)
                    }
                    _ => Bytes::from_static(&[0; BLOCK_BYTES]),
                };
                self.strips.entry(record.first + nth).or_default().insert(of.column, bytes);
            }
        }
    }
}

impl Rebuilds {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Rebuilds blocks for a client's read, or lets it wait for the same rebuild.
    pub fn demand(&mut self, known: &Known, of: Blocks, repair: bool, read: u64, candidates: Vec<Candidate>) {
        let same = |job: &&mut Job| job.of == of && job.repair == repair && job.applying == 0;
        for job in self.jobs.values_mut().filter(same) {
            if let For::Reads(reads) = &mut job.wanted {
                return reads.push(read);
            }
        }
        let id = self.add(known, of, For::Reads(vec![read]), (Version::ZERO, repair), candidates);
        self.queue.push_front(id);
    }

    /// `limited`: as part of the rebuild of a lost column.
    pub fn fill(
        &mut self,
        known: &Known,
        (of, limited): (Blocks, bool),
        (pass, version, repair): (u64, Version, bool),
        candidates: Vec<Candidate>,
    ) {
        let id = self.add(known, of, For::Fill { pass }, (version, repair), candidates);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.limited = limited;
        }
        let queue = if limited { &mut self.limited } else { &mut self.queue };
        queue.push_back(id);
    }

    /// Has blocks stored as lost: too few of their strips are sound anywhere. `version`, `oldest`: of what is.
    pub fn give_up(&mut self, known: &Known, of: Blocks, (pass, version): (u64, Version), oldest: Version) {
        let id = self.add(known, of, For::Fill { pass }, (version, false), Vec::new());
        if let Some(job) = self.jobs.get_mut(&id) {
            job.oldest = Some(oldest);
            job.damaged = job.open.clone();
        }
        self.queue.push_back(id);
    }

    /// `version`: of what is here; what is found is stored under the newest one.
    pub fn scrub(
        &mut self,
        known: &Known,
        of: Blocks,
        (token, compares): (u64, bool),
        (version, repair): (Version, bool),
        candidates: Vec<Candidate>,
    ) {
        let id = self.add(known, of, For::Scrub { token, compares }, (version, repair), candidates);
        self.queue.push_back(id);
    }

    fn add(
        &mut self,
        known: &Known,
        of: Blocks,
        wanted: For,
        (version, repair): (Version, bool),
        candidates: Vec<Candidate>,
    ) -> u64 {
        assert!(of.count <= REBUILD_BLOCKS, "jobs are small");
        let strips = known.code(of.chunk).strips();
        // Numbers never repeat while the set lives: late completions of ended jobs are not mistaken for those of
        // others.
        self.next += 1;
        let id = self.next;
        let job = Job {
            of,
            wanted,
            repair,
            limited: false,
            started: false,
            version,
            oldest: None,
            candidates: candidates.into_iter().filter(|c| c.column < strips).collect(),
            asked: BTreeMap::new(),
            strips: BTreeMap::new(),
            open: (of.first..of.first + of.count).filter(|_| of.column < strips).collect(),
            found: BTreeMap::new(),
            absent: Vec::new(),
            lacking: Vec::new(),
            ruined: Vec::new(),
            damaged: BTreeSet::new(),
            unsure: false,
            stale: false,
            failed: false,
            applying: 0,
        };
        self.jobs.insert(id, job);
        id
    }

    /// Starts as many jobs as the server's budget allows, those of clients first, and of those that are limited as
    /// many as the pool allows.
    pub fn pump(&mut self, cx: &mut Context, known: &mut Known) {
        let pool = cx.map.pools.get(&known.entry.pool);
        self.limit.rate = pool.and_then(|pool| pool.rebuild_bytes_per_second);
        self.queue.retain(|id| self.jobs.contains_key(id));
        self.limited.retain(|id| self.jobs.contains_key(id));
        loop {
            let may = self.limit.allows(cx.now);
            let next = self.queue.front().or(self.limited.front().filter(|_| may)).copied();
            // None waits, or may begin now.
            let Some((id, job)) = next.and_then(|id| Some((id, self.jobs.get_mut(&id)?))) else { return };
            let cost = job.cost(known);
            let is_fill = !job.is_of_client();
            let budget = &mut cx.shared.budget;
            if !budget.may_rebuild(cost) || (is_fill && !budget.may_fetch()) {
                return;
            }
            let queue = if job.limited { &mut self.limited } else { &mut self.queue };
            queue.pop_front();
            job.started = true;
            budget.begin_rebuild(cost, is_fill);
            self.advance(cx, known, id);
        }
    }

    fn advance(&mut self, cx: &mut Context, known: &mut Known, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return cx.bug("a rebuild that does not exist went on");
        };
        if !job.asked.is_empty() || job.applying > 0 {
            return;
        }
        let code = known.code(job.of.chunk);
        loop {
            job.resolve(code);
            let Some(&block) = job.open.first() else { break };
            let sources = job.take_sources(code, block);
            if !sources.is_empty() {
                for candidate in sources {
                    self.ask(cx, known, id, candidate);
                }
                return;
            }
            job.open.remove(&block);
            let present: Vec<usize> =
                job.strips.get(&block).into_iter().flat_map(|s| s.keys().copied()).collect();
            let untried = job.candidates.iter().filter(|c| c.covers(block)).map(|c| c.column);
            let hoped: Vec<usize> = present.into_iter().chain(untried).collect();
            let oldest = job.oldest.map(|version| version.epoch);
            let of = (job.of.chunk, job.of.column);
            let may = job.unsure || known.may_be_elsewhere(cx.map, of, &hoped, oldest);
            match may {
                true => job.lacking.push(block),
                false if job.damaged.contains(&block) => job.ruined.push(block),
                false => job.absent.push(block),
            }
        }
        self.keep(cx, known, id);
    }

    fn ask(&mut self, cx: &mut Context, known: &Known, id: u64, candidate: Candidate) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return cx.bug("a rebuild that does not exist asked a server");
        };
        let (chunk, Candidate { column, server, first, count }) = (job.of.chunk, candidate);
        let (token, group) = (cx.shared.peer_token(), known.group(column));
        job.asked.insert(token, (candidate, cx.now));
        let before = self.by_token.insert(token, id);
        debug_assert!(before.is_none(), "a token is of one question");
        if server == cx.me {
            let role = known.role_of(cx.me, column).unwrap_or(Role::Replica);
            let command = StoreCommand::Read { role, group, chunk, first, count };
            cx.store(Wait::Column(ColumnWait::Source { token }), command);
        } else {
            if job.limited {
                self.limit.spend(cx.now, u64::from(count * BLOCK));
            }
            // The receiver knows in which role it keeps it.
            let (epoch, role, whole) = (known.epoch(), Role::Replica, false);
            cx.send(server, PeerMessage::Fetch { group, epoch, token, role, chunk, first, count, whole });
        }
    }

    /// A server answered. An answer to a job that has ended is ignored.
    pub fn on_reply(
        &mut self,
        cx: &mut Context,
        known: &mut Known,
        (from, token): (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
        payload: &Bytes,
    ) {
        let Some(&id) = self.by_token.get(&token) else { return };
        let Some(job) = self.jobs.get_mut(&id) else {
            return cx.bug("a rebuild that does not exist waits for an answer");
        };
        if job.asked.get(&token).is_none_or(|(candidate, _)| candidate.server != from) {
            return;
        }
        let Some((of, _)) = job.asked.remove(&token) else {
            return cx.bug("a rebuild was answered what it did not ask");
        };
        self.by_token.remove(&token);
        match result {
            Ok(records) => match sound_parts(job.of.chunk, of, records, payload) {
                Some(parts) => {
                    let copies = of.column == job.of.column && matches!(job.wanted, For::Fill { .. });
                    if copies && of.server != cx.me && !known.is_own(from, of.column) {
                        cx.shared.stats.reclaimed_bytes += payload.len() as u64;
                    }
                    job.take(of, parts);
                }
                None => {
                    cx.shared.stats.damage.garbled += 1;
                    job.unsure = true;
                }
            },
            // Usually one block is damaged: the others can be had from there.
            Err(Refusal::Corrupt) if of.count > 1 => {
                let half = of.count / 2;
                let rest = Candidate { first: of.first + half, count: of.count - half, ..of };
                job.candidates.splice(0..0, [Candidate { count: half, ..of }, rest]);
            }
            Err(Refusal::Corrupt) if !cx.config.has(PlantedBug::LostRowLacks) => {
                job.damaged.insert(of.first);
            }
            Err(refusal) => {
                job.unsure = true;
                job.stale |= matches!(refusal, Refusal::Stale { .. });
            }
        }
        self.advance(cx, known, id);
    }

    /// A strip that is kept here was read.
    pub fn on_source(&mut self, cx: &mut Context, known: &mut Known, token: u64, outcome: StoreOutcome) {
        let (result, payload) = match outcome {
            StoreOutcome::Read { records, payload } => (Ok(records), payload),
            StoreOutcome::Failed(refusal) => (Err(refusal), Bytes::new()),
            _ => (Err(Refusal::Corrupt), Bytes::new()),
        };
        self.on_reply(cx, known, (cx.me, token), result, &payload);
    }

    /// Stores what was found, as few records.
    fn keep(&mut self, cx: &mut Context, known: &mut Known, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return cx.bug("a rebuild that does not exist kept what it found");
        };
        let Blocks { column, chunk, .. } = job.of;
        if job.compares() {
            return self.end(cx, known, id);
        }
        let lost = || (Content::Data { crcs: vec![lost_block_crc()] }, Bytes::from_static(&[0; BLOCK_BYTES]));
        let fills = matches!(job.wanted, For::Fill { .. });
        let mut parts: Vec<_> =
            job.ruined.iter().filter(|_| fills).map(|block| ((*block, 1), lost())).collect();
        let found = std::mem::take(&mut job.found);
        if job.repair {
            cx.shared.stats.repaired_blocks += found.len() as u64;
        }
        parts.extend(runs(found).into_iter().map(|(first, count, bytes)| match bytes {
            Some(bytes) => ((first, count), (Content::Data { crcs: block_crcs(&bytes) }, bytes)),
            None => ((first, count), (Content::Zero, Bytes::new())),
        }));
        if parts.is_empty() {
            return self.end(cx, known, id);
        }
        let role = known.role_for(cx.me, column);
        for ((first, count), (content, payload)) in parts {
            let version = job.version;
            let record =
                Record { group: known.group(column), chunk, first, count, version, request: None, content };
            debug_assert!(record.fault(payload.len()).is_none(), "what is rebuilt is sound");
            let command = match job.repair {
                true => StoreCommand::Repair { role, record, payload, lost: Version::MAX },
                false => StoreCommand::Apply { role, record, payload, must_fit: true, committed: version },
            };
            job.applying += 1;
            cx.store(Wait::Column(ColumnWait::Rebuilt { job: id, kept: (column, role) }), command);
        }
    }

    pub fn on_stored(&mut self, cx: &mut Context, known: &Known, id: u64, failed: bool) {
        // It was given up meanwhile.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.failed |= failed;
        debug_assert!(job.applying > 0, "the store answers each record once");
        job.applying -= 1;
        if job.applying == 0 {
            self.end(cx, known, id);
        }
    }

    fn end(&mut self, cx: &mut Context, known: &Known, id: u64) {
        let Some(job) = self.jobs.remove(&id) else {
            return cx.bug("a rebuild ended twice");
        };
        self.give_back(cx, known, &job);
        let beyond_repair = (job.lacking.len() + job.ruined.len()) as u64;
        cx.shared.stats.damage.unrepaired += if job.compares() { 0 } else { beyond_repair };
        let Job { of, wanted, found, absent, lacking, ruined, stale, failed, .. } = job;
        self.ended.push(Ended { of, wanted, found, absent, lacking, ruined, stale, failed });
    }

    fn give_back(&mut self, cx: &mut Context, known: &Known, job: &Job) {
        if job.started {
            cx.shared.budget.end_rebuild(job.cost(known), !job.is_of_client());
        }
        self.by_token.retain(|token, _| !job.asked.contains_key(token));
    }

    /// The connection to a server broke: it is not asked again.
    pub fn peer_lost(&mut self, cx: &mut Context, known: &mut Known, peer: ServerId) {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let lost: Vec<u64> =
                job.asked.extract_if(.., |_, (c, _)| c.server == peer).map(|(t, _)| t).collect();
            if lost.is_empty() {
                continue;
            }
            job.unsure = true;
            self.by_token.retain(|token, _| !lost.contains(token));
            self.advance(cx, known, id);
        }
    }

    /// Reports servers that owe blocks and are silent.
    pub fn tick(&self, cx: &mut Context, known: &Known) {
        for (candidate, since) in self.jobs.values().flat_map(|job| job.asked.values()) {
            if candidate.server != cx.me {
                cx.suspect_if_silent(known.epoch(), candidate.server, *since);
            }
        }
    }

    /// Gives up the jobs of fills, or all.
    pub fn clear(&mut self, cx: &mut Context, known: &Known, only_fills: bool) {
        let gone = |job: &mut Job| !only_fills || matches!(job.wanted, For::Fill { .. });
        for (_, job) in self.jobs.extract_if(.., |_, job| gone(job)).collect::<Vec<_>>() {
            self.give_back(cx, known, &job);
        }
    }
}

/// The records of a reply, if they are exactly the blocks asked for, with sound checksums.
fn sound_parts(
    chunk: ChunkId,
    of: Candidate,
    records: Vec<Record>,
    payload: &Bytes,
) -> Option<Vec<(Record, Bytes)>> {
    let parts = split_payload(records, payload)?;
    let mut at = of.first;
    for (record, payload) in &parts {
        let sound = match &record.content {
            Content::Data { crcs } => *crcs == block_crcs(payload),
            content => *content == Content::Zero,
        };
        let faulty = record.fault(payload.len()).is_some() || record.first != at || record.chunk != chunk;
        if !sound || faulty {
            return None;
        }
        at += record.count;
    }
    (at == of.first + of.count).then_some(parts)
}

/// Consecutive blocks that are all zero, or all not; `None` for zeroes.
fn runs(found: BTreeMap<u32, Bytes>) -> Vec<(u32, u32, Option<Bytes>)> {
    let mut all: Vec<(u32, u32, Option<BytesMut>)> = Vec::new();
    for (block, bytes) in found {
        let zero = bytes.iter().all(|byte| *byte == 0);
        match all.last_mut().filter(|(first, count, data)| first + count == block && data.is_none() == zero) {
            Some((_, count, data)) => {
                *count += 1;
                data.iter_mut().for_each(|data| data.extend_from_slice(&bytes));
            }
            None => all.push((block, 1, (!zero).then(|| BytesMut::from(&bytes[..])))),
        }
    }
    all.into_iter().map(|(first, count, data)| (first, count, data.map(BytesMut::freeze))).collect()
}
