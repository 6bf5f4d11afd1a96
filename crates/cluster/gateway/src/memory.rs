//! An in-memory cluster for tests: chunks in a map, and the real namespace. It can be made to fail, and it insists on
//! the rules for writes to erasure-coded pools.

use crate::bytes::backend::{Backend, BackendError, Pool};
use ebb_client::Summed;
use ebb_meta::Namespace;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, Moment, NamespaceAnswer, NamespaceCommand, NamespaceError, NamespaceOp,
    NamespaceQuery, NamespaceReply, ObjectId, PoolId, RequestId, piece_crcs,
};
use md5::{Digest, Md5};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::RwLock;
use tokio::time::Instant;

/// One gateway's connection to the cluster.
pub struct Memory {
    chunk_bytes: u32,
    pools: Vec<Pool>,
    state: Arc<Mutex<State>>,
    client: u64,
    /// Its listings of parts wait while a test holds this.
    pub listings: RwLock<()>,
    /// Changes that are carried out before the gateway is cut off; it gets no reply to the last one.
    fuse: AtomicU64,
    deletion_seconds: AtomicU64,
    started: Instant,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, Vec<u8>>,
    /// Rows of erasure-coded chunks that were ever written.
    rows: BTreeSet<(ChunkId, usize)>,
    /// Chunks that were deleted: they take no writes.
    deleted: BTreeSet<ChunkId>,
    /// Blocks that were set to zero.
    freed: BTreeSet<(ChunkId, usize)>,
    /// For how long the machine was suspended.
    suspended: Duration,
    namespace: Namespace,
    next_object: u64,
    next_request: u64,
    writes: u64,
    commands: u64,
    broken: Option<BackendError>,
    namespace_is_broken: bool,
    delay: Duration,
    hibernates: bool,
    /// The namespace does not say what time it is.
    clocks_apart: bool,
    is_busy: bool,
}

impl Memory {
    pub fn new(chunk_bytes: u32) -> Memory {
        Memory::with_pools(chunk_bytes, Vec::new())
    }

    pub fn with_pools(chunk_bytes: u32, pools: Vec<Pool>) -> Memory {
        let (fuse, started) = (AtomicU64::new(u64::MAX), Instant::now());
        let (state, listings, deletion_seconds) = Default::default();
        Memory { chunk_bytes, pools, state, client: 1, listings, fuse, deletion_seconds, started }
    }

    /// Another gateway's connection to the same cluster.
    pub fn another(&self, client: u64, fuse: u64) -> Memory {
        let (state, pools, fuse) = (self.state.clone(), self.pools.clone(), AtomicU64::new(fuse));
        let (chunk_bytes, started) = (self.chunk_bytes, self.started);
        let (listings, deletion_seconds) = Default::default();
        Memory { chunk_bytes, pools, state, client, listings, fuse, deletion_seconds, started }
    }

    /// Whether the namespace refuses to say what time it is.
    pub fn set_clocks_apart(&self, apart: bool) {
        self.state.lock().unwrap().clocks_apart = apart;
    }

    /// Whether the gateway was cut off.
    pub fn is_cut_off(&self) -> bool {
        self.fuse.load(Ordering::Relaxed) == 0
    }

    /// Waits forever once the fuse has burnt.
    async fn is_connected(&self) {
        if self.is_cut_off() {
            std::future::pending::<()>().await;
        }
    }

    /// A change was made: its sender may never hear of it.
    async fn has_changed(&self) {
        self.fuse.fetch_sub(1, Ordering::Relaxed);
        self.is_connected().await;
    }

    /// Objects that have bytes.
    pub fn objects(&self) -> BTreeSet<ObjectId> {
        self.state.lock().unwrap().chunks.keys().map(|chunk| chunk.object).collect()
    }

    /// The erasure-coded pools hibernate until they are woken.
    pub fn hibernate(&self) {
        self.state.lock().unwrap().hibernates = true;
    }

    /// The machine stands still for this long, and its other clocks with it.
    pub fn suspend(&self, time: Duration) {
        self.state.lock().unwrap().suspended += time;
    }

    /// From now on chunk operations fail with this error.
    pub fn break_chunks(&self, error: Option<BackendError>) {
        self.state.lock().unwrap().broken = error;
    }

    /// From now on the namespace does not answer, or does again.
    pub fn break_namespace(&self, broken: bool) {
        self.state.lock().unwrap().namespace_is_broken = broken;
    }

    fn namespace_answers(&self) -> Result<(), BackendError> {
        let broken = self.state.lock().unwrap().namespace_is_broken;
        if broken { Err(BackendError::Unavailable("it has no leader".into())) } else { Ok(()) }
    }

    /// From now on this gateway's deletions of chunks take this long.
    pub fn hang_deletions(&self, time: Duration) {
        self.deletion_seconds.store(time.as_secs(), Ordering::Relaxed);
    }

    /// The next read takes this long.
    pub fn delay_next_read(&self, delay: Duration) {
        self.state.lock().unwrap().delay = delay;
    }

    /// From now on the cluster is in no trough, or is again.
    pub fn be_busy(&self, is_busy: bool) {
        self.state.lock().unwrap().is_busy = is_busy;
    }

    /// Replaces the first block of every chunk by other bytes with matching checksums: no store notices.
    pub fn garble(&self) {
        let mut state = self.state.lock().unwrap();
        state.chunks.values_mut().flat_map(|chunk| chunk.first_mut()).for_each(|byte| *byte ^= 1);
    }

    /// Chunk writes and namespace commands so far.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap();
        (state.writes, state.commands)
    }

    /// Bytes in blocks that are not all zero.
    pub fn used_bytes(&self) -> usize {
        let state = self.state.lock().unwrap();
        let blocks = state.chunks.values().flat_map(|chunk| chunk.chunks(BLOCK_BYTES));
        blocks.filter(|block| block.iter().any(|b| *b != 0)).count() * BLOCK_BYTES
    }

    /// Notes the rows of a write to an erasure-coded pool.
    fn take_rows(&self, chunk: ChunkId, offset: u32, len: usize) {
        let id = chunk.object.pool();
        if id == PoolId::REPLICATED {
            return;
        }
        let pool = self.pools.iter().find(|pool| pool.id == id).expect("an object in a pool that exists");
        let (start, end) = (offset as usize, offset as usize + len);
        assert!(start.is_multiple_of(pool.row_bytes), "{chunk}: a write at {start}, inside a row");
        for row in start / pool.row_bytes..end.div_ceil(pool.row_bytes) {
            let is_new = self.state.lock().unwrap().rows.insert((chunk, row));
            assert!(is_new, "{chunk}: row {row} was written before");
        }
    }

    fn change(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: usize,
        set: impl FnOnce(&mut [u8]),
    ) -> Result<(), BackendError> {
        let mut state = self.state.lock().unwrap();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if state.deleted.contains(&chunk) {
            return Err(BackendError::GivenUp);
        }
        let (from, to) = (offset as usize, offset as usize + len);
        assert!(to <= self.chunk_bytes as usize, "{chunk}: {from}..{to} lies outside");
        state.writes += 1;
        state.freed.retain(|(of, block)| *of != chunk || !(from..to).contains(&(block * BLOCK_BYTES)));
        let bytes = state.chunks.entry(chunk).or_default();
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        set(&mut bytes[from..to]);
        Ok(())
    }
}

impl Backend for Memory {
    fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    fn now(&self) -> Moment {
        Moment::ZERO + self.started.elapsed() + self.state.lock().unwrap().suspended
    }

    fn pools(&self) -> Vec<Pool> {
        self.pools.clone()
    }

    /// Nobody attacks a test.
    fn code(&self, parts: &[&[u8]]) -> Result<[u8; 32], BackendError> {
        let mut code = [0; 32];
        code[..16].copy_from_slice(&Md5::digest(parts.concat()));
        Ok(code)
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, BackendError> {
        self.is_connected().await;
        let first = {
            let mut state = self.state.lock().unwrap();
            state.next_object += u64::from(count);
            ObjectId(state.next_object - u64::from(count))
        };
        self.has_changed().await;
        Ok(first)
    }

    async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, BackendError> {
        let delay = std::mem::take(&mut self.state.lock().unwrap().delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let state = self.state.lock().unwrap();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let (start, end) = (offset as usize, (offset + len) as usize);
        let bytes = state.chunks.get(&chunk).and_then(|bytes| bytes.get(start..end));
        let blocks = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        let is_freed = state.freed.range((chunk, blocks.start)..(chunk, blocks.end)).next().is_some();
        match bytes.filter(|_| !is_freed) {
            Some(bytes) => Ok(Summed { crcs: piece_crcs(offset, bytes), bytes: bytes.to_vec().into() }),
            None => Err(BackendError::Failed(ChunkError::Missing.to_string())),
        }
    }

    async fn write(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), BackendError> {
        let Summed { bytes: data, crcs } = data;
        assert_eq!(crcs, piece_crcs(offset, &data));
        assert!(data.len().is_multiple_of(BLOCK_BYTES) && (offset as usize).is_multiple_of(BLOCK_BYTES));
        self.is_connected().await;
        self.take_rows(chunk, offset, data.len());
        let outcome = self.change(chunk, offset, data.len(), |bytes| bytes.copy_from_slice(&data));
        self.has_changed().await;
        outcome
    }

    async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), BackendError> {
        self.is_connected().await;
        assert_eq!(chunk.object.pool(), PoolId::REPLICATED, "a coded chunk has no parts to set to zero");
        let outcome = match self.change(chunk, offset, len as usize, |bytes| bytes.fill(0)) {
            Err(BackendError::GivenUp) => Ok(()), // it is gone
            outcome => outcome,
        };
        let blocks = (offset as usize).div_ceil(BLOCK_BYTES)..(offset + len) as usize / BLOCK_BYTES;
        self.state.lock().unwrap().freed.extend(blocks.map(|block| (chunk, block)));
        self.has_changed().await;
        outcome
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), BackendError> {
        self.is_connected().await;
        tokio::time::sleep(Duration::from_secs(self.deletion_seconds.load(Ordering::Relaxed))).await;
        {
            let mut state = self.state.lock().unwrap();
            state.chunks.remove(&chunk);
            state.deleted.insert(chunk);
        }
        self.has_changed().await;
        Ok(())
    }

    async fn wake(&self, chunks: Vec<ChunkId>) -> Result<bool, BackendError> {
        let coded = chunks.iter().any(|chunk| chunk.object.pool() != PoolId::REPLICATED);
        Ok(coded && std::mem::take(&mut self.state.lock().unwrap().hibernates))
    }

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        self.is_connected().await;
        self.namespace_answers()?;
        let reply = {
            let mut state = self.state.lock().unwrap();
            state.next_request += 1;
            state.commands += 1;
            let request = RequestId { client: self.client, seq: state.next_request };
            let clock_millis = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
            let has_pool = |id| self.pools.iter().any(|pool| pool.id == id);
            state.namespace.pass_time(0, clock_millis, true);
            let session = Some(state.namespace.introduce(self.client));
            state.namespace.apply(&NamespaceCommand { request, session, clock_millis, ops }, has_pool)
        };
        self.has_changed().await;
        Ok(reply)
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        self.is_connected().await;
        self.namespace_answers()?;
        if matches!(query, NamespaceQuery::Parts { .. }) {
            drop(self.listings.read().await);
        }
        let state = self.state.lock().unwrap();
        if state.clocks_apart && query == NamespaceQuery::Now {
            return Ok(Err(NamespaceError::ClocksApart { why: "as the test says".into() }));
        }
        Ok(state.namespace.query(&query))
    }

    async fn is_in_trough(&self) -> Result<bool, BackendError> {
        self.is_connected().await;
        Ok(!self.state.lock().unwrap().is_busy)
    }
}
