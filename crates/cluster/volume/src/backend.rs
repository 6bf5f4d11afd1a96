//! What a volume needs of a cluster. A trait, so that tests run volumes on memory.

use bytes::Bytes;
use ebb_client::{Client, ClientError, Clock};
use ebb_types::{
    ChunkId, Extent, Looked, NamespaceAnswer, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery,
    ObjectId, SLICE_BYTES, Version,
};
use std::future::Future;

/// Deliberate defects, to show that the harness finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A block counts as one that the front has before it is written there.
    MarkEarly,
    /// Of the blocks that a write covers in part, only the first is completed with what the slice's object has.
    FirstEdge,
    /// Requests do not wait for earlier ones of the same blocks, and a flush for none.
    SkipTurns,
    /// Which slices have moved is read before the claim: the owner until then may move others.
    ListFirst,
}

/// What a cluster answers.
type Answer<T> = Result<T, ClientError>;

/// A cluster. Offsets of the front are in the volume.
pub trait Backend: Clone + Send + Sync + 'static {
    /// A defect that the test harness must find. Only builds with the feature `planted-bugs` have any.
    fn planted(&self) -> Option<PlantedBug> {
        None
    }

    /// Of claims and deadlines: it runs while the machine is suspended.
    fn clock(&self) -> &Clock;

    /// Whether this run was a process of this machine, and has ended.
    fn has_ended(&self, run: u64) -> bool;

    /// Whose requests for the front are carried out only under this claim.
    fn claimed(&self, claim: u64) -> Self;

    /// Where claims on the front are noted.
    fn noted(&self, front: ObjectId) -> Extent;

    /// Notes the claim wherever the front has bytes. Afterwards no request under an older one is carried out.
    fn raise_claim(&self, front: ObjectId, len: u64) -> impl Future<Output = Answer<()>> + Send;

    fn namespace(
        &self,
        op: NamespaceOp,
    ) -> impl Future<Output = Answer<Result<NamespaceDone, NamespaceError>>> + Send;

    fn query(
        &self,
        query: NamespaceQuery,
    ) -> impl Future<Output = Answer<Result<NamespaceAnswer, NamespaceError>>> + Send;

    /// Fresh consecutive serial numbers; returns the first.
    fn allocate(&self, count: u32) -> impl Future<Output = Answer<ObjectId>> + Send;

    /// Never-written bytes are zero.
    fn read(&self, front: ObjectId, offset: u64, len: u64) -> impl Future<Output = Answer<Bytes>> + Send;

    fn write(&self, front: ObjectId, offset: u64, bytes: Bytes) -> impl Future<Output = Answer<()>> + Send;

    fn zero(&self, front: ObjectId, offset: u64, len: u64) -> impl Future<Output = Answer<()>> + Send;

    /// Removes all of the front, which has `len` bytes, and the claims on it.
    fn delete(&self, front: ObjectId, len: u64) -> impl Future<Output = Answer<()>> + Send;

    /// Which blocks of a slice the front has. Runs count from the slice's first block.
    fn look(&self, front: ObjectId, slice: u32) -> impl Future<Output = Answer<Looked>> + Send;

    /// Frees those of them whose version is not newer.
    fn clear(&self, front: ObjectId, slice: u32, up_to: Version) -> impl Future<Output = Answer<()>> + Send;

    /// Reads bytes of a slice's object, which must be there.
    fn read_moved(
        &self,
        object: ObjectId,
        offset: u32,
        len: u32,
    ) -> impl Future<Output = Answer<Bytes>> + Send;

    fn write_moved(&self, object: ObjectId, bytes: Bytes) -> impl Future<Output = Answer<()>> + Send;

    fn delete_moved(&self, object: ObjectId) -> impl Future<Output = Answer<()>> + Send;
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn has<B: Backend>(backend: &B, bug: PlantedBug) -> bool {
    backend.planted() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn has<B: Backend>(_backend: &B, _bug: PlantedBug) -> bool {
    false
}

/// The chunk of a slice of the front, and where it begins there: chunks are whole slices.
fn place(client: &Client, front: ObjectId, slice: u32) -> (ChunkId, u32) {
    let (start, chunk_bytes) =
        (u64::from(slice) * u64::from(SLICE_BYTES), u64::from(client.params().chunk_bytes));
    let index = (start / chunk_bytes) as u32;
    (ChunkId { object: front, index }, (start % chunk_bytes) as u32)
}

/// The only chunk of a slice's object.
fn chunk(object: ObjectId) -> ChunkId {
    ChunkId { object, index: 0 }
}

impl Backend for Client {
    fn clock(&self) -> &Clock {
        Client::clock(self)
    }

    fn has_ended(&self, run: u64) -> bool {
        self.run_has_ended(run)
    }

    fn claimed(&self, claim: u64) -> Client {
        Client::claimed(self, claim)
    }

    fn noted(&self, front: ObjectId) -> Extent {
        self.claims_of(front)
    }

    async fn raise_claim(&self, front: ObjectId, len: u64) -> Answer<()> {
        Client::raise_claim(self, front, len).await
    }

    async fn namespace(&self, op: NamespaceOp) -> Answer<Result<NamespaceDone, NamespaceError>> {
        let reply = Client::namespace(self, vec![op]).await?;
        Ok(reply.results.into_iter().next().expect("one result for each op"))
    }

    async fn query(&self, query: NamespaceQuery) -> Answer<Result<NamespaceAnswer, NamespaceError>> {
        Client::query(self, query).await
    }

    async fn allocate(&self, count: u32) -> Answer<ObjectId> {
        self.allocate_objects(count).await
    }

    async fn read(&self, front: ObjectId, offset: u64, len: u64) -> Answer<Bytes> {
        self.read_object(front, offset, len).await
    }

    async fn write(&self, front: ObjectId, offset: u64, bytes: Bytes) -> Answer<()> {
        self.write_object(front, offset, bytes).await
    }

    async fn zero(&self, front: ObjectId, offset: u64, len: u64) -> Answer<()> {
        self.zero_object(front, offset, len).await
    }

    async fn delete(&self, front: ObjectId, len: u64) -> Answer<()> {
        self.delete_object(front, len).await?;
        self.delete_claims(front, len).await
    }

    async fn look(&self, front: ObjectId, slice: u32) -> Answer<Looked> {
        let (chunk, offset) = place(self, front, slice);
        let looked = Client::look(self, chunk, offset, SLICE_BYTES).await?;
        let first = offset / ebb_types::BLOCK_BYTES as u32;
        let runs = looked.runs.into_iter().map(|(block, count)| (block - first, count)).collect();
        Ok(Looked { runs, ..looked })
    }

    async fn clear(&self, front: ObjectId, slice: u32, up_to: Version) -> Answer<()> {
        let (chunk, offset) = place(self, front, slice);
        self.zero_up_to(chunk, offset, SLICE_BYTES, Some(up_to)).await
    }

    async fn read_moved(&self, object: ObjectId, offset: u32, len: u32) -> Answer<Bytes> {
        Ok(self.read_written(chunk(object), offset, len).await?.bytes)
    }

    async fn write_moved(&self, object: ObjectId, bytes: Bytes) -> Answer<()> {
        Client::write(self, chunk(object), 0, bytes).await
    }

    async fn delete_moved(&self, object: ObjectId) -> Answer<()> {
        Client::delete(self, chunk(object)).await
    }
}
