//! What the gateway needs of a cluster: chunks, fresh object ids, and the namespace.
//!
//! A trait, so that the whole gateway is tested against an in-memory cluster ([`super::memory`]).

use ebb_client::Summed;
use ebb_types::{
    ChunkId, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, NamespaceReply, ObjectId,
};
use std::future::Future;

/// Offsets and lengths are bytes within a chunk. Every call retries inside until it is answered or its deadline passes.
pub trait Backend: Send + Sync + 'static {
    fn chunk_bytes(&self) -> u32;

    /// The first of `count` object ids that nobody else was or will be given.
    fn allocate(&self, count: u32) -> impl Future<Output = Result<ObjectId, BackendError>> + Send;

    /// `len` bytes that were written, an error where no copy has them. They fit their checksums.
    fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
    ) -> impl Future<Output = Result<Summed, BackendError>> + Send;

    /// Returns when the bytes are durable on all copies.
    fn write(
        &self,
        chunk: ChunkId,
        offset: u32,
        data: Summed,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Sets a range to zero and frees its whole blocks.
    fn zero(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Removes a chunk for good. One that never was counts as removed.
    fn delete(&self, chunk: ChunkId) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Carries out namespace ops, exactly once.
    fn commit(
        &self,
        ops: Vec<NamespaceOp>,
    ) -> impl Future<Output = Result<NamespaceReply, BackendError>> + Send;

    fn query(
        &self,
        query: NamespaceQuery,
    ) -> impl Future<Output = Result<Result<NamespaceAnswer, NamespaceError>, BackendError>> + Send;
}

/// Why the cluster did not do what the gateway asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Too few copies can be written, or nobody answered in time. Whether a change was made is not known.
    #[error("the cluster cannot serve this now ({0}): retry in a few seconds")]
    Unavailable(String),
    #[error("the cluster is full: delete data or add servers")]
    NoSpace,
    /// For good: a retry meets the same.
    #[error("{0}")]
    Failed(String),
}
