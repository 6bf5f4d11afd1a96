//! The chunk servers, as their clients see them: versions per block, requests carried out once, claims.
//!
//! What is below this (copies, primaries, epochs) has a search of its own ([`crate::search`]). The model assumes what
//! that one checks: a request is carried out at one moment before its sender gives it up, or never. It judges claims
//! with the primary's own code.

use bytes::{Bytes, BytesMut};
use ebb_chunkserver::{Claims, Judged};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, Epoch, Looked, PoolId, RequestId, Unready,
    Version, group_of, piece_crcs,
};
use std::collections::{BTreeMap, BTreeSet};

/// Defects of the chunk servers, as they were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defects {
    /// Requests under a claim that has ended are carried out.
    pub ignores_claims: bool,
    /// A range that was set to zero counts as written.
    pub zeroes_exist: bool,
    /// A write brings a deleted chunk back.
    pub revives_deleted: bool,
    /// A deletion counts as carried out although its pool sleeps.
    pub deletes_asleep: bool,
}

/// Blocks with their versions; `None`: set to zero.
type Blocks = BTreeMap<u32, (Version, Option<Bytes>)>;

/// An erasure-coded pool.
#[derive(Default)]
struct Pool {
    /// When it was used last.
    used: u64,
    sleeps: bool,
    /// It was asked to, and is awake from then on.
    wakes_at: Option<u64>,
}

#[derive(Default)]
struct Group {
    /// As the present primary knows them.
    claims: Claims,
    /// Its last version.
    last: Version,
    /// It answers nothing until then.
    unserved_until: u64,
}

pub(super) struct Chunks {
    chunks: BTreeMap<ChunkId, Blocks>,
    deleted: BTreeSet<ChunkId>,
    groups: Vec<Group>,
    pools: BTreeMap<PoolId, Pool>,
    /// For how long a pool is unused before it sleeps.
    rest_after: Option<u64>,
    /// Writes that were carried out.
    done: BTreeSet<RequestId>,
    defects: Defects,
    /// A rule of the model that a client broke.
    pub broken: Option<String>,
}

impl Chunks {
    pub fn new(groups: u32, rest_after: Option<u64>, defects: Defects) -> Chunks {
        Chunks {
            chunks: BTreeMap::new(),
            deleted: BTreeSet::new(),
            groups: (0..groups).map(|_| Group::default()).collect(),
            pools: BTreeMap::new(),
            rest_after,
            done: BTreeSet::new(),
            defects,
            broken: None,
        }
    }

    /// The group is not served until this time.
    pub fn unserve(&mut self, group: usize, until: u64) {
        let group = &mut self.groups[group];
        group.unserved_until = group.unserved_until.max(until);
    }

    /// Until when the group of this operation is not served.
    pub fn unserved_until(&self, now: u64, op: &ChunkOp) -> Option<u64> {
        let group = group_of(op.chunk(), self.groups.len() as u32).0 as usize;
        Some(self.groups[group].unserved_until).filter(|until| *until > now)
    }

    pub fn serve_all(&mut self) {
        self.groups.iter_mut().for_each(|group| group.unserved_until = 0);
    }

    /// The group gets another primary, which knows no claims yet.
    pub fn move_primary(&mut self, group: usize) {
        let group = &mut self.groups[group];
        group.claims = Claims::default();
        group.last = Version { epoch: Epoch(group.last.epoch.0 + 1), seq: 0 };
    }

    /// Whether the request has to wait until its pool wakes. Else it is a use of it.
    pub fn sleeps(&mut self, now: u64, op: &ChunkOp) -> bool {
        let Some(pool) = self.pool(now, op.chunk().object.pool()) else { return false };
        let sleeps = pool.sleeps;
        if !sleeps {
            pool.used = now;
        }
        sleeps && !(self.defects.deletes_asleep && matches!(op, ChunkOp::Delete { .. }))
    }

    /// Has the pool wake by this time. Returns whether it sleeps.
    pub fn wake(&mut self, now: u64, pool: PoolId, by: u64) -> bool {
        let Some(pool) = self.pool(now, pool).filter(|pool| pool.sleeps) else { return false };
        pool.wakes_at.get_or_insert(by);
        true
    }

    /// The pool as it is now, if it is one that sleeps at times.
    fn pool(&mut self, now: u64, id: PoolId) -> Option<&mut Pool> {
        let after = self.rest_after.filter(|_| id != PoolId::REPLICATED)?;
        let pool = self.pools.entry(id).or_insert(Pool { used: now, ..Pool::default() });
        if let Some(at) = pool.wakes_at.take_if(|at| *at <= now) {
            (pool.sleeps, pool.used) = (false, at);
        }
        pool.sleeps |= now - pool.used > after;
        Some(pool)
    }

    /// Chunks with data, and how many bytes each has.
    pub fn with_data(&self) -> impl Iterator<Item = (ChunkId, usize)> {
        let data = |blocks: &Blocks| blocks.values().filter(|(_, data)| data.is_some()).count() * BLOCK_BYTES;
        self.chunks.iter().map(move |(chunk, blocks)| (*chunk, data(blocks))).filter(|(_, bytes)| *bytes > 0)
    }

    fn has_data(&self, chunk: ChunkId, block: u32) -> bool {
        self.block(chunk, block).is_some_and(|(_, data)| data.is_some())
    }

    pub fn serve(&mut self, now: u64, op: &ChunkOp, payload: &Bytes, claim: u64) -> (ClientReply, Bytes) {
        let chunk = op.chunk();
        let group = group_of(chunk, self.groups.len() as u32).0 as usize;
        if now < self.groups[group].unserved_until {
            return plain(ClientReply::Retry { why: Unready::TooFewCopies });
        }
        if claim > 0 && !self.defects.ignores_claims && !self.has_claim(group, op, claim) {
            return plain(ClientReply::Failed { why: ChunkError::Taken });
        }
        let last = &mut self.groups[group].last;
        if let Some(request) = op.request() {
            if !self.done.insert(request) {
                return plain(ClientReply::Done { newest: *last });
            }
            last.seq += 1;
        }
        let version = *last;
        match op {
            ChunkOp::Read { offset, len, must_exist, .. } => self.read(chunk, *offset, *len, *must_exist),
            ChunkOp::Look { offset, len, .. } => plain(ClientReply::Looked(self.look(chunk, *offset, *len))),
            ChunkOp::Delete { .. }
                if self.pools.get(&chunk.object.pool()).is_some_and(|pool| pool.sleeps) =>
            {
                plain(ClientReply::Done { newest: version })
            }
            ChunkOp::Delete { .. } => {
                self.chunks.remove(&chunk);
                self.deleted.insert(chunk);
                plain(ClientReply::Done { newest: version })
            }
            ChunkOp::Write { .. } if self.is_dead(chunk) => {
                plain(ClientReply::Failed { why: ChunkError::Deleted })
            }
            ChunkOp::Zero { .. } if self.is_dead(chunk) => plain(ClientReply::Done { newest: version }),
            ChunkOp::Write { offset, .. } => {
                self.write(chunk, *offset, payload, version);
                plain(ClientReply::Done { newest: version })
            }
            ChunkOp::Zero { offset, len, up_to, .. } => {
                self.zero(chunk, (*offset, *len), *up_to, version);
                plain(ClientReply::Done { newest: version })
            }
        }
    }

    fn is_dead(&self, chunk: ChunkId) -> bool {
        self.deleted.contains(&chunk) && !self.defects.revives_deleted
    }

    fn has_claim(&mut self, group: usize, op: &ChunkOp, claim: u64) -> bool {
        let chunk = op.chunk();
        let noted = ChunkId::of_claim(chunk.object, ebb_types::GroupId(group as u32));
        let note =
            self.chunks.get(&noted).and_then(|blocks| blocks.get(&0)).and_then(|(_, data)| data.clone());
        let claims = &mut self.groups[group].claims;
        let mut judged = claims.judge(op, claim);
        if judged == Judged::Unknown {
            claims.learn(chunk.object, &note.unwrap_or_default());
            judged = claims.judge(op, claim);
        }
        judged == Judged::Present
    }

    fn block(&self, chunk: ChunkId, block: u32) -> Option<&(Version, Option<Bytes>)> {
        self.chunks.get(&chunk)?.get(&block)
    }

    fn read(&self, chunk: ChunkId, offset: u32, len: u32, must_exist: bool) -> (ClientReply, Bytes) {
        let block_bytes = BLOCK_BYTES as u32;
        let (first, end) = (offset / block_bytes, (offset + len).div_ceil(block_bytes));
        let exists = |block: u32| match self.block(chunk, block) {
            Some((_, data)) => data.is_some() || self.defects.zeroes_exist,
            None => false,
        };
        if must_exist && !(first..end).all(exists) {
            return plain(ClientReply::Failed { why: ChunkError::Missing });
        }
        let mut bytes = BytesMut::with_capacity(len as usize + 2 * BLOCK_BYTES);
        for block in first..end {
            match self.block(chunk, block).and_then(|(_, data)| data.as_ref()) {
                Some(data) => bytes.extend_from_slice(data),
                None => bytes.resize(bytes.len() + BLOCK_BYTES, 0),
            }
        }
        let start = (offset - first * block_bytes) as usize;
        let bytes = bytes.freeze().slice(start..start + len as usize);
        (ClientReply::Data { crcs: piece_crcs(offset, &bytes) }, bytes)
    }

    fn look(&self, chunk: ChunkId, offset: u32, len: u32) -> Looked {
        let (first, end) = (offset / BLOCK_BYTES as u32, (offset + len) / BLOCK_BYTES as u32);
        let mut looked = Looked { runs: Vec::new(), newest: Version::ZERO };
        let blocks = self.chunks.get(&chunk).into_iter().flat_map(|blocks| blocks.range(first..end));
        for (block, (version, _)) in blocks.filter(|(_, (_, data))| data.is_some()) {
            looked.newest = looked.newest.max(*version);
            match looked.runs.last_mut() {
                Some((start, count)) if *start + *count == *block => *count += 1,
                _ => looked.runs.push((*block, 1)),
            }
        }
        looked
    }

    fn write(&mut self, chunk: ChunkId, offset: u32, payload: &Bytes, version: Version) {
        let mut at = 0;
        while at < payload.len() {
            let position = offset as usize + at;
            let (block, inside) = ((position / BLOCK_BYTES) as u32, position % BLOCK_BYTES);
            let part = payload.slice(at..payload.len().min(at + BLOCK_BYTES - inside));
            at += part.len();
            let before = self.block(chunk, block).cloned();
            if chunk.object.pool() != PoolId::REPLICATED && before.is_some() {
                self.broken =
                    Some(format!("block {block} of {chunk}, which is erasure-coded, was written twice"));
            }
            let whole = if part.len() == BLOCK_BYTES {
                part
            } else {
                let before = before.and_then(|(_, data)| data);
                let mut whole =
                    before.map_or_else(|| BytesMut::zeroed(BLOCK_BYTES), |data| BytesMut::from(&data[..]));
                whole[inside..inside + part.len()].copy_from_slice(&part);
                whole.freeze()
            };
            self.chunks.entry(chunk).or_default().insert(block, (version, Some(whole)));
        }
    }

    fn zero(&mut self, chunk: ChunkId, (offset, len): (u32, u32), up_to: Option<Version>, version: Version) {
        let block_bytes = BLOCK_BYTES as u32;
        let end = offset + len;
        let whole = offset.div_ceil(block_bytes)..end / block_bytes;
        // The edges are written, if there is anything.
        let (head, tail) = ((whole.start * block_bytes).min(end), (whole.end * block_bytes).max(offset));
        for (from, to) in [(offset, head), (tail.max(head), end)] {
            let has_data = from < to && self.has_data(chunk, from / block_bytes);
            if has_data {
                self.write(chunk, from, &Bytes::from(vec![0; (to - from) as usize]), version);
            }
        }
        let blocks = self.chunks.entry(chunk).or_default();
        for block in whole {
            let is_newer =
                blocks.get(&block).is_some_and(|(known, _)| up_to.is_some_and(|most| *known > most));
            if !is_newer {
                blocks.insert(block, (version, None));
            }
        }
    }
}

fn plain(reply: ClientReply) -> (ClientReply, Bytes) {
    (reply, Bytes::new())
}
