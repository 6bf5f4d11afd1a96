//! The gateway's cluster: [`Backend`] over the client library.

use crate::bytes::backend::{Backend, BackendError, Pool};
use ebb_client::{Client, ClientError, Summed};
use ebb_types::{
    AdminReply, AdminRequest, ChunkError, ChunkId, MetaFailure, MetaReply, MetaRequest, Moment,
    NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, NamespaceReply, ObjectId, Rows,
};

pub struct Cluster {
    client: Client,
    chunk_bytes: u32,
}

impl Cluster {
    pub fn new(client: Client) -> Cluster {
        let chunk_bytes = client.params().chunk_bytes;
        Cluster { client, chunk_bytes }
    }

    /// Position of a chunk's byte in its object: the object calls split what one request cannot carry.
    fn at(&self, chunk: ChunkId, offset: u32) -> u64 {
        debug_assert!(offset < self.chunk_bytes, "{chunk}: byte {offset} is of another chunk");
        u64::from(chunk.index) * u64::from(self.chunk_bytes) + u64::from(offset)
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> BackendError {
        match error {
            error if error.says_lost() => BackendError::Lost(error.to_string()),
            ClientError::Chunk { why: ChunkError::NoSpace, .. } | ClientError::Meta(MetaFailure::Full) => {
                BackendError::NoSpace
            }
            ClientError::Chunk { why: ChunkError::Deleted, .. } => BackendError::GivenUp,
            ClientError::Hibernates { retry_after, .. } => {
                BackendError::Hibernates { why: error.to_string(), retry_after }
            }
            ClientError::Unserved { .. }
            | ClientError::Unknown { .. }
            | ClientError::NoMeta { .. }
            | ClientError::Meta(_) => BackendError::Unavailable(error.to_string()),
            _ => BackendError::Failed(error.to_string()),
        }
    }
}

impl Backend for Cluster {
    fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    fn now(&self) -> Moment {
        ebb_client::since_boot()
    }

    fn pools(&self) -> Vec<Pool> {
        let row_bytes = |shape| Rows::new(shape, self.chunk_bytes).row_bytes() as usize;
        let pools = self.client.pools().into_iter();
        pools.map(|pool| Pool { id: pool.id, name: pool.name, row_bytes: row_bytes(pool.shape) }).collect()
    }

    fn code(&self, parts: &[&[u8]]) -> Result<[u8; 32], BackendError> {
        self.client.code(parts).map_err(|error| BackendError::Failed(error.to_string()))
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, BackendError> {
        Ok(self.client.allocate_objects(count).await?)
    }

    async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, BackendError> {
        Ok(self.client.read_written(chunk, offset, len).await?)
    }

    async fn write(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), BackendError> {
        Ok(self.client.write_summed(chunk, offset, data).await?)
    }

    async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), BackendError> {
        Ok(self.client.zero_object(chunk.object, self.at(chunk, offset), u64::from(len)).await?)
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), BackendError> {
        Ok(self.client.delete(chunk).await?)
    }

    async fn wake(&self, chunks: Vec<ChunkId>) -> Result<bool, BackendError> {
        Ok(self.client.wake(&chunks).await?)
    }

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        Ok(self.client.namespace(ops).await?)
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        Ok(self.client.query(query).await?)
    }

    async fn is_in_trough(&self) -> Result<bool, BackendError> {
        match self.client.call(MetaRequest::Admin(AdminRequest::Trough)).await? {
            MetaReply::Admin(AdminReply::Trough(is_in_trough)) => Ok(is_in_trough),
            _ => {
                let why = "the metadata service's reply does not match the request";
                Err(BackendError::Failed(why.into()))
            }
        }
    }
}
