//! The gateway's cluster: [`Backend`] over the client library.

use super::backend::{Backend, BackendError, Pool};
use ebb_client::{Client, ClientError, Summed};
use ebb_types::{
    ChunkError, ChunkId, MetaFailure, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery,
    NamespaceReply, ObjectId, Rows,
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
        u64::from(chunk.index) * u64::from(self.chunk_bytes) + u64::from(offset)
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> BackendError {
        match error {
            ClientError::Chunk { why: ChunkError::NoSpace, .. } | ClientError::Meta(MetaFailure::Full) => {
                BackendError::NoSpace
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

    fn pools(&self) -> Vec<Pool> {
        let row_bytes = |shape| Rows::new(shape, self.chunk_bytes).row_bytes() as usize;
        let pools = self.client.pools().into_iter();
        pools.map(|pool| Pool { id: pool.id, name: pool.name, row_bytes: row_bytes(pool.shape) }).collect()
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

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        Ok(self.client.namespace(ops).await?)
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        Ok(self.client.query(query).await?)
    }
}
