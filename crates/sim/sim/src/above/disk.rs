//! A volume server, and what its clients ask it for.

use crate::above::library::Remote;
use crate::above::messages::{BlockRequest, Reply, Sent};
use crate::above::object::Objects;
use crate::above::process::Process;
use bytes::{Bytes, BytesMut};
use ebb_client::{ClientError, Clock};
use ebb_gateway::tend;
use ebb_types::{
    BLOCK_BYTES, CHUNK_BYTES_MIN, CLAIMS_FROM, ChunkId, ChunkOp, ClientReply, Extent, Looked,
    NamespaceAnswer, NamespaceDone, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId, Piece,
    SLICE_BYTES, Version, VolumeHome, group_of, pieces,
};
use ebb_volume::{Backend, PlantedBug, Volume, VolumeError};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The volumes that there may be. The servers of each serve it in turn.
pub(super) const VOLUMES: [&str; 3] = ["v", "w", "x"];
pub(super) const VOLUME_BYTES: u64 = 2 * SLICE_BYTES as u64 + 8 * BLOCK_BYTES as u64;
/// A chunk is a slice.
const CHUNK_BYTES: u32 = CHUNK_BYTES_MIN;

/// The library as a volume's backend.
#[derive(Clone)]
pub(super) struct Blocks {
    remote: Remote,
    planted: Option<PlantedBug>,
}

impl Blocks {
    pub fn new(remote: Remote, planted: Option<PlantedBug>) -> Blocks {
        Blocks { remote, planted }
    }

    /// Carries out all ops at the same time, each to its end.
    async fn each(&self, ops: Vec<(ChunkOp, Bytes, u64)>) -> Result<Vec<(u64, Bytes)>, ClientError> {
        let mut running = JoinSet::new();
        for (op, payload, start) in ops {
            let remote = self.remote.clone();
            running.spawn(async move { remote.chunk(op, payload).await.map(|(_, bytes)| (start, bytes)) });
        }
        let mut all = Ok(Vec::new());
        while let Some(done) = running.join_next().await {
            match (done.expect("a piece does not panic"), &mut all) {
                (Ok(piece), Ok(all)) => all.push(piece),
                (Err(error), Ok(_)) => all = Err(error),
                (_, Err(_)) => {}
            }
        }
        all
    }

    fn pieces(front: ObjectId, offset: u64, len: u64) -> impl Iterator<Item = Piece> {
        pieces(front, offset, len, CHUNK_BYTES).expect("a small volume")
    }

    fn of_claim(&self, front: ObjectId, len: u64) -> BTreeSet<ChunkId> {
        let chunks =
            (0..len.div_ceil(CHUNK_BYTES.into()) as u32).map(|index| ChunkId { object: front, index });
        chunks.map(|chunk| ChunkId::of_claim(front, group_of(chunk, self.remote.groups()))).collect()
    }

    async fn delete_chunk(&self, chunk: ChunkId) -> Result<(), ClientError> {
        let request = self.remote.next_request();
        self.remote.chunk(ChunkOp::Delete { chunk, request }, Bytes::new()).await.map(drop)
    }
}

/// The only chunk of a slice's object.
fn moved(object: ObjectId) -> ChunkId {
    ChunkId { object, index: 0 }
}

impl Backend for Blocks {
    fn planted(&self) -> Option<PlantedBug> {
        self.planted
    }

    fn clock(&self) -> &Clock {
        &self.remote.library().clock
    }

    /// Each process has a machine of its own.
    fn has_ended(&self, _: u64) -> bool {
        false
    }

    fn claimed(&self, claim: u64) -> Blocks {
        Blocks { remote: self.remote.under(claim), ..self.clone() }
    }

    fn noted(&self, object: ObjectId) -> Extent {
        let chunk_bytes = u64::from(CHUNK_BYTES);
        let (offset, len) =
            (u64::from(CLAIMS_FROM) * chunk_bytes, u64::from(self.remote.groups()) * chunk_bytes);
        Extent { object, offset, len, shared: false, crc: 0 }
    }

    async fn raise_claim(&self, front: ObjectId, len: u64) -> Result<(), ClientError> {
        let note = Bytes::copy_from_slice(&self.remote.claim.to_le_bytes());
        let write = |chunk| {
            let (request, len) = (self.remote.next_request(), note.len() as u32);
            (ChunkOp::Write { chunk, offset: 0, len, request, crcs: Vec::new() }, note.clone(), 0)
        };
        self.each(self.of_claim(front, len).into_iter().map(write).collect()).await.map(drop)
    }

    async fn namespace(&self, op: NamespaceOp) -> Result<Result<NamespaceDone, NamespaceError>, ClientError> {
        Ok(self.remote.namespace(vec![op]).await?.results.remove(0))
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, ClientError> {
        self.remote.query(query).await
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, ClientError> {
        self.remote.allocate(count).await
    }

    async fn read(&self, front: ObjectId, offset: u64, len: u64) -> Result<Bytes, ClientError> {
        let read = |Piece { chunk, offset, len, start }| {
            (ChunkOp::Read { chunk, offset, len, must_exist: false }, Bytes::new(), start)
        };
        let mut parts = self.each(Blocks::pieces(front, offset, len).map(read).collect()).await?;
        parts.sort_by_key(|(start, _)| *start);
        let mut whole = BytesMut::with_capacity(len as usize);
        parts.iter().for_each(|(_, part)| whole.extend_from_slice(part));
        Ok(whole.freeze())
    }

    async fn write(&self, front: ObjectId, offset: u64, bytes: Bytes) -> Result<(), ClientError> {
        let write = |Piece { chunk, offset, len, start }| {
            let (request, part) =
                (self.remote.next_request(), bytes.slice(start as usize..start as usize + len as usize));
            (ChunkOp::Write { chunk, offset, len, request, crcs: Vec::new() }, part, start)
        };
        self.each(Blocks::pieces(front, offset, bytes.len() as u64).map(write).collect()).await.map(drop)
    }

    async fn zero(&self, front: ObjectId, offset: u64, len: u64) -> Result<(), ClientError> {
        let zero = |Piece { chunk, offset, len, start }| {
            let request = self.remote.next_request();
            (ChunkOp::Zero { chunk, offset, len, up_to: None, request }, Bytes::new(), start)
        };
        self.each(Blocks::pieces(front, offset, len).map(zero).collect()).await.map(drop)
    }

    async fn delete(&self, front: ObjectId, len: u64) -> Result<(), ClientError> {
        let data = (0..len.div_ceil(CHUNK_BYTES.into()) as u32).map(|index| ChunkId { object: front, index });
        for chunk in data.chain(self.of_claim(front, len)) {
            self.delete_chunk(chunk).await?;
        }
        Ok(())
    }

    async fn look(&self, front: ObjectId, slice: u32) -> Result<Looked, ClientError> {
        let op =
            ChunkOp::Look { chunk: ChunkId { object: front, index: slice }, offset: 0, len: SLICE_BYTES };
        match self.remote.chunk(op, Bytes::new()).await? {
            (ClientReply::Looked(looked), _) => Ok(looked),
            other => unreachable!("{other:?} to a look"),
        }
    }

    async fn clear(&self, front: ObjectId, slice: u32, up_to: Version) -> Result<(), ClientError> {
        let (chunk, request) = (ChunkId { object: front, index: slice }, self.remote.next_request());
        let op = ChunkOp::Zero { chunk, offset: 0, len: SLICE_BYTES, up_to: Some(up_to), request };
        self.remote.chunk(op, Bytes::new()).await.map(drop)
    }

    // Objects of slices are not written under a claim: each is written once.
    async fn read_moved(&self, object: ObjectId, offset: u32, len: u32) -> Result<Bytes, ClientError> {
        let op = ChunkOp::Read { chunk: moved(object), offset, len, must_exist: true };
        Ok(self.remote.under(0).chunk(op, Bytes::new()).await?.1)
    }

    async fn write_moved(&self, object: ObjectId, bytes: Bytes) -> Result<(), ClientError> {
        let (chunk, request, len) = (moved(object), self.remote.next_request(), bytes.len() as u32);
        let op = ChunkOp::Write { chunk, offset: 0, len, request, crcs: Vec::new() };
        self.remote.under(0).chunk(op, bytes).await.map(drop)
    }

    async fn delete_moved(&self, object: ObjectId) -> Result<(), ClientError> {
        self.claimed(0).delete_chunk(moved(object)).await
    }
}

/// What the world knows of a volume server.
#[derive(Clone, Default)]
pub(super) struct Served {
    volume: Arc<Mutex<Option<Volume<Blocks>>>>,
    stop: Arc<Notify>,
}

impl Served {
    fn volume(&self) -> Option<Volume<Blocks>> {
        self.volume.lock().expect("nothing panics under this lock").clone()
    }

    /// Starts to serve this volume, as `ebb volume serve` does: until it is told to stop, or taken over.
    pub fn start(
        process: &Process,
        name: &'static str,
        home: Option<VolumeHome>,
        planted: Option<PlantedBug>,
    ) -> Served {
        let served = Served::default();
        let (here, outbox) = (served.clone(), process.outbox().clone());
        let blocks = Blocks::new(process.remote(), planted);
        let objects = Arc::new(Objects::new(process.remote(), None));
        process.inside(|| {
            tokio::spawn(async move {
                // The first one does.
                let _ = Volume::create(&blocks, name, VOLUME_BYTES, home).await;
                if let Ok(volume) = Volume::open(blocks, name, || {}).await {
                    *here.volume.lock().expect("nothing panics under this lock") = Some(volume.clone());
                    tokio::select! {
                        biased;
                        () = volume.taken() => {}
                        () = tend(objects) => {}
                        () = here.stop.notified() => {
                            here.volume.lock().expect("nothing panics under this lock").take();
                            // Whatever becomes of it: the process ends.
                            let _ = volume.close().await;
                        }
                    }
                }
                outbox.send(Sent::Ended);
            })
        });
        served
    }

    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// A client's request arrives. Returns `false` if the volume is not served here.
    pub fn request(
        &self,
        process: &Process,
        (client, attempt): (usize, u64),
        request: &BlockRequest,
    ) -> bool {
        let Some(volume) = self.volume() else { return false };
        let outbox = process.outbox().clone();
        process.inside(|| {
            // Here, not in a task: requests take their turns as they arrive.
            let carried = carry_out(volume, request.clone());
            tokio::spawn(async move {
                let what = match tokio::spawn(carried).await {
                    Ok(result) => Sent::Reply { client, attempt, reply: Reply::Block(result) },
                    Err(error) => Sent::Panicked(error.to_string()),
                };
                outbox.send(what);
            });
        });
        true
    }
}

type Carried = std::pin::Pin<Box<dyn Future<Output = Result<Bytes, VolumeError>> + Send>>;

fn carry_out(volume: Volume<Blocks>, request: BlockRequest) -> Carried {
    match request {
        BlockRequest::Read { offset, len } => Box::pin(async move { volume.read(offset, len).await }),
        BlockRequest::Write { offset, bytes } => {
            let written = volume.write(offset, bytes);
            Box::pin(async move { written.await.map(|()| Bytes::new()) })
        }
        BlockRequest::Zero { offset, len } => {
            let zeroed = volume.zero(offset, len);
            Box::pin(async move { zeroed.await.map(|()| Bytes::new()) })
        }
        BlockRequest::Flush => {
            let flushed = volume.flush();
            Box::pin(async move {
                flushed.await;
                Ok(Bytes::new())
            })
        }
    }
}
