//! A gateway, and what its clients ask it for.

use crate::above::library::{Remote, TOMORROW};
use crate::above::messages::{Found, NumberedPart, ObjectRequest, Part, Reply, Sent, Upload};
use crate::above::meta::{NEW_POOL, NEW_POOL_NAME, POOL, POOL_NAME};
use crate::above::planted::Bug;
use crate::above::process::Process;
use bytes::Bytes;
use ebb_client::Summed;
use ebb_gateway::{Backend, BackendError, Body, Direct, Parts, Pool, Refused};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, Moment, NamespaceAnswer, NamespaceError, NamespaceOp,
    NamespaceQuery, NamespaceReply, ObjectId, PoolId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::sleep;

pub(super) const BUCKET: &str = "b";
/// Below this objects go after a day.
pub(super) const EXPIRE: &str = "e/";
/// Below this they go at midnight.
pub(super) const DATED: &str = "d/";
/// Below this they move to the erasure-coded pool.
pub(super) const MOVED: &str = "m/";
/// So small that objects have several chunks, and so large that several small objects share one.
pub(super) const CHUNK_BYTES: u32 = 64 << 10;
/// Two data servers.
const ROW_BYTES: usize = 2 * BLOCK_BYTES;

/// The library as the backend of a gateway, and of the janitor beside a volume's server.
pub(super) struct Objects {
    remote: Remote,
    planted: Option<Bug>,
}

impl Objects {
    pub fn new(remote: Remote, planted: Option<Bug>) -> Objects {
        Objects { remote, planted }
    }

    async fn change(&self, op: ChunkOp, payload: Bytes) -> Result<(), BackendError> {
        Ok(self.remote.chunk(op, payload).await.map(drop)?)
    }
}

impl Backend for Objects {
    fn chunk_bytes(&self) -> u32 {
        CHUNK_BYTES
    }

    fn now(&self) -> Moment {
        self.remote.library().clock.now()
    }

    fn pools(&self) -> Vec<Pool> {
        let pools = [(POOL, POOL_NAME), (NEW_POOL, NEW_POOL_NAME)].into_iter();
        let known = pools.filter(|(id, _)| self.remote.library().knows(*id));
        known.map(|(id, name)| Pool { id, name: name.to_owned(), row_bytes: ROW_BYTES }).collect()
    }

    /// Nobody attacks a simulation.
    fn code(&self, parts: &[&[u8]]) -> Result<[u8; 32], BackendError> {
        let mut code = [0; 32];
        parts.concat().iter().enumerate().for_each(|(at, byte)| code[at % 32] ^= byte);
        Ok(code)
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, BackendError> {
        Ok(self.remote.allocate(count).await?)
    }

    async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, BackendError> {
        let op = ChunkOp::Read { chunk, offset, len, must_exist: true };
        match self.remote.chunk(op, Bytes::new()).await? {
            (ClientReply::Data { crcs }, bytes) => Ok(Summed { bytes, crcs }),
            other => unreachable!("{other:?} to a read"),
        }
    }

    async fn write(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), BackendError> {
        let (request, Summed { bytes, crcs }) = (self.remote.next_request(), data);
        self.change(ChunkOp::Write { chunk, offset, len: bytes.len() as u32, request, crcs }, bytes).await
    }

    async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), BackendError> {
        let request = self.remote.next_request();
        self.change(ChunkOp::Zero { chunk, offset, len, up_to: None, request }, Bytes::new()).await
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), BackendError> {
        let request = self.remote.next_request();
        self.change(ChunkOp::Delete { chunk, request }, Bytes::new()).await
    }

    async fn wake(&self, chunks: Vec<ChunkId>) -> Result<bool, BackendError> {
        let pools: BTreeSet<PoolId> = chunks.iter().map(|chunk| chunk.object.pool()).collect();
        let mut any = false;
        for pool in pools.into_iter().filter(|pool| *pool != PoolId::REPLICATED) {
            any |= self.remote.wake(pool).await?;
        }
        Ok(any)
    }

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        Ok(self.remote.namespace(ops).await?)
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        if self.planted == Some(Bug::JudgeByOwnClock) && query == NamespaceQuery::Now {
            return Ok(Ok(NamespaceAnswer::Now { unix_millis: self.remote.library().wall_millis() }));
        }
        let mut answer = self.remote.query(query).await?;
        match (self.planted, &mut answer) {
            // Who begins later has a higher id.
            (Some(Bug::PartsAsTheyCame), Ok(NamespaceAnswer::Objects(found))) => {
                found.iter_mut().flatten().for_each(|meta| meta.extents.sort_by_key(|extent| extent.object));
            }
            (Some(Bug::FreeSparse), Ok(NamespaceAnswer::Packs(packs))) => {
                for object in packs.iter() {
                    self.delete(ChunkId { object: *object, index: 0 }).await?;
                }
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn is_in_trough(&self) -> Result<bool, BackendError> {
        Ok(true)
    }
}

/// What the world knows of a gateway.
pub(super) struct Gateway {
    direct: Arc<Direct<Objects>>,
    /// Requests under way, by client and attempt.
    running: BTreeMap<(usize, u64), AbortHandle>,
}

impl Gateway {
    /// `first`: where in a page of keys it begins to move objects.
    pub fn start(process: &Process, planted: Option<Bug>, first: usize) -> Gateway {
        let backend = Arc::new(Objects::new(process.remote(), planted));
        process.inside(|| {
            let direct = Arc::new(Direct::start(backend, 1 << 20, u64::MAX, first));
            let weak = Arc::downgrade(&direct);
            tokio::spawn(async move {
                // The first gateway makes the bucket; for the others it is there.
                let Some(direct) = weak.upgrade() else { return };
                let _ = direct.create_bucket(BUCKET).await;
                let _ = direct.set_rules(BUCKET, (EXPIRE, 1), (DATED, TOMORROW), (MOVED, POOL_NAME)).await;
            });
            Gateway { direct, running: BTreeMap::new() }
        })
    }

    /// A client's request arrives.
    pub fn request(&mut self, process: &Process, (client, attempt): (usize, u64), request: &ObjectRequest) {
        let (direct, outbox, request) = (self.direct.clone(), process.outbox().clone(), request.clone());
        let running = process.inside(|| {
            let carried = tokio::spawn(async move { carry_out(&direct, request).await });
            let running = carried.abort_handle();
            tokio::spawn(async move {
                let what = match carried.await {
                    Ok(result) => Sent::Reply { client, attempt, reply: Reply::Object(result) },
                    Err(error) if error.is_cancelled() => return,
                    Err(error) => Sent::Panicked(error.to_string()),
                };
                outbox.send(what);
            });
            running
        });
        self.running.retain(|_, other| !other.is_finished());
        self.running.insert((client, attempt), running);
    }

    /// The client has gone: what it asked for is dropped where it is.
    pub fn broken(&mut self, from: (usize, u64)) {
        self.running.remove(&from).into_iter().for_each(|running| running.abort());
    }
}

fn body(parts: Vec<Part>) -> Body {
    Box::pin(futures_util::stream::unfold(parts.into_iter(), |mut parts| async move {
        let (pause, bytes) = parts.next()?;
        sleep(Duration::from_millis(pause)).await;
        Some((bytes, parts))
    }))
}

fn bodies(upload: &Upload) -> Parts {
    let some = |sent: &Vec<NumberedPart>| {
        sent.iter().map(|(number, parts)| (*number, body(parts.clone()))).collect()
    };
    Parts { first: upload.sent.iter().map(some).collect(), late: some(&upload.late) }
}

async fn carry_out(direct: &Direct<Objects>, request: ObjectRequest) -> Result<Found, Refused> {
    match request {
        ObjectRequest::Put { key, class, parts } => {
            direct.put((BUCKET, &key), class, body(parts)).await?;
        }
        ObjectRequest::Upload { key, class, upload } => {
            let ended = (&upload.named[..], upload.times);
            direct.put_in_parts((BUCKET, &key), class, bodies(&upload), ended).await?;
        }
        ObjectRequest::Get { key, range } => {
            return Ok(Found::Bytes(direct.get((BUCKET, &key), range).await?));
        }
        ObjectRequest::Abandon { key, upload } => direct.abandon((BUCKET, &key), bodies(&upload)).await?,
        ObjectRequest::Restore { key } => return Ok(Found::Woken(direct.restore((BUCKET, &key)).await?)),
        ObjectRequest::Delete { key } => direct.delete((BUCKET, &key)).await?,
        ObjectRequest::Copy { from, to, class, in_parts } => {
            match in_parts {
                true => direct.copy_in_parts(BUCKET, &from, &to, class).await?,
                false => direct.copy(BUCKET, &from, &to, class).await?,
            }
            let copied = direct.get((BUCKET, &to), None).await;
            // Else it would pass for what is answered if there is nothing to copy.
            assert!(!copied.as_ref().is_err_and(Refused::is_no_such_key), "{to}, a copy of {from}, is gone");
            direct.delete((BUCKET, &to)).await?;
            return copied.map(Found::Bytes);
        }
        ObjectRequest::DeleteAll { keys } => return Ok(Found::Left(direct.delete_all(BUCKET, keys).await?)),
        ObjectRequest::List { page } => return Ok(Found::Listed(direct.list(BUCKET, page).await?)),
    }
    Ok(Found::Nothing)
}
