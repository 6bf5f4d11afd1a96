//! What the gateway needs from a cluster: pools, chunks, fresh object ids, and the namespace.
//!
//! A trait, so that the whole gateway is tested against an in-memory cluster (`memory.rs`).

use ebb_client::Summed;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Moment, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery,
    NamespaceReply, ObjectId, PoolId,
};
use std::future::Future;
use std::time::Duration;

/// A pool of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub id: PoolId,
    /// Empty: the replicated pool.
    pub name: String,
    /// A write to a chunk begins at a multiple of this. No row is written twice, except in the replicated pool.
    pub row_bytes: usize,
}

impl Pool {
    pub fn replicated() -> Pool {
        Pool { id: PoolId::REPLICATED, name: String::new(), row_bytes: BLOCK_BYTES }
    }
}

/// What a cluster answers.
type Answer<T> = Result<T, BackendError>;

/// Offsets and lengths are in bytes within a chunk. Every call retries internally until it is answered or its deadline
/// passes.
pub trait Backend: Send + Sync + 'static {
    fn chunk_bytes(&self) -> u32;

    /// The time since some start, with the time that this machine was suspended.
    fn now(&self) -> Moment;

    /// The erasure-coded pools.
    fn pools(&self) -> Vec<Pool>;

    /// A code over `parts` that all gateways of this cluster can make, and nobody else. The first part says what it is
    /// for.
    fn code(&self, parts: &[&[u8]]) -> Answer<[u8; 32]>;

    /// The first of `count` serial numbers of objects that are unique forever.
    fn allocate(&self, count: u32) -> impl Future<Output = Answer<ObjectId>> + Send;

    /// Reads `len` written bytes; an error if no copy has them. They match their checksums.
    fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> impl Future<Output = Answer<Summed>> + Send;

    /// Returns when the bytes are durable on all copies, or all strips.
    fn write(&self, chunk: ChunkId, offset: u32, data: Summed) -> impl Future<Output = Answer<()>> + Send;

    /// Zeroes a range and frees its whole blocks. Only in the replicated pool.
    fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> impl Future<Output = Answer<()>> + Send;

    /// Removes a chunk permanently. Removing a chunk that never existed succeeds.
    fn delete(&self, chunk: ChunkId) -> impl Future<Output = Answer<()>> + Send;

    /// Has the servers woken that these chunks need. Returns whether any of them hibernated.
    fn wake(&self, chunks: Vec<ChunkId>) -> impl Future<Output = Answer<bool>> + Send;

    /// Carries out namespace ops, exactly once.
    fn commit(&self, ops: Vec<NamespaceOp>) -> impl Future<Output = Answer<NamespaceReply>> + Send;

    fn query(
        &self,
        query: NamespaceQuery,
    ) -> impl Future<Output = Answer<Result<NamespaceAnswer, NamespaceError>>> + Send;

    /// Whether the load is in a trough, as the metadata leader says.
    fn is_in_trough(&self) -> impl Future<Output = Answer<bool>> + Send;
}

/// Why the cluster did not carry out a request of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Too few copies can be written, or no server answered in time. Whether a change was made is unknown.
    #[error("the cluster cannot serve this now ({0}): retry in a few seconds")]
    Unavailable(String),
    /// What the request needs sleeps and is being woken. Nothing was changed.
    #[error("{why}")]
    Hibernates { why: String, retry_after: Duration },
    #[error("the cluster is full: delete data or add servers")]
    NoSpace,
    /// Of a write to a chunk that was deleted: this gateway was taken for dead, and what it had leased was freed.
    #[error("the data was given up because this gateway was silent for too long: send the object again")]
    GivenUp,
    /// No server has some of the bytes any more, nor may come back with them.
    #[error("{0}")]
    Lost(String),
    /// Permanent: a retry fails the same way.
    #[error("{0}")]
    Failed(String),
}
