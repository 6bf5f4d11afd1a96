//! A chunk server's store as a target of the load generator: what a server does for a request, without network and
//! protocol.
//!
//! A write is answered when it is durable, as one of a group commit. Its move from a segment to a chunk file is
//! deferred, as in a server: [`StoreTarget::flush`] waits for it, so that it can be counted. Every block that is read
//! passes its checksum.

use crate::error::{NodeError, io};
use ebb_replay::drive::{Answering, Failure, Storage};
use ebb_store::{Completion, Config, LinuxDisk, Op, Outcome, StoreCore, StoreHandle};
use ebb_types::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Content, Epoch, GroupId, ObjectId, Record, Role, ServerId,
    StoreId, Version, block_crcs,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Chunk groups that the chunks are spread over.
const GROUPS: u32 = 64;
/// Writes before the newest that may be unanswered: those before them are on all targets.
const OPEN: u64 = 1024;

type Waiting = Mutex<HashMap<u64, oneshot::Sender<Outcome>>>;

pub struct StoreTarget {
    handle: StoreHandle,
    waiting: Arc<Waiting>,
    next: AtomicU64,
    /// Reads come from the device, whatever the page cache has.
    past_cache: AtomicBool,
}

/// Where a byte is: its group, chunk and block. Requests do not cross chunks.
fn place(offset: u64) -> (GroupId, ChunkId, u32) {
    let index = (offset / u64::from(CHUNK_BYTES_MAX)) as u32;
    let block = (offset % u64::from(CHUNK_BYTES_MAX)) as usize / BLOCK_BYTES;
    (GroupId(index % GROUPS), ChunkId { object: ObjectId(1), index }, block as u32)
}

impl StoreTarget {
    /// A new store in an empty directory.
    pub fn open(directory: &Path, cluster: u64, server: ServerId) -> Result<StoreTarget, NodeError> {
        let disk = Arc::new(LinuxDisk::new(directory)?);
        let (core, _) = StoreCore::open(disk, Config::new(cluster, server, StoreId(1)))?;
        let waiting = Arc::<Waiting>::default();
        let of_thread = waiting.clone();
        let deliver = move |batch: Vec<Completion>| {
            let mut waiting = of_thread.lock().expect("nothing panics under this lock");
            for Completion { token, outcome } in batch {
                // Who does not wait any more was stopped.
                let _ = waiting.remove(&token).map(|asker| asker.send(outcome));
            }
        };
        let handle = StoreHandle::start(core, deliver).map_err(io("start", "the store's thread"))?;
        Ok(StoreTarget { handle, waiting, next: AtomicU64::new(1), past_cache: AtomicBool::new(false) })
    }

    /// From now on reads come from the device, or from the page cache if it has the bytes.
    pub fn read_past_cache(&self, past_cache: bool) {
        self.past_cache.store(past_cache, Ordering::Relaxed);
    }

    /// Waits until everything written is where it stays.
    pub async fn flush(&self) -> Result<(), Failure> {
        self.ask(self.number(), Op::Flush).await.map(|_| ())
    }

    #[cfg(test)]
    pub fn figures(&self) -> ebb_types::StoreFigures {
        self.handle.figures()
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    async fn ask(&self, number: u64, op: Op) -> Result<Outcome, Failure> {
        let (asker, answer) = oneshot::channel();
        self.waiting.lock().expect("nothing panics under this lock").insert(number, asker);
        self.handle.submit(number, op);
        self.handle.wake();
        match answer.await {
            Ok(Outcome::Failed(error)) => Err(Failure::Request(error.to_string())),
            Ok(outcome) => Ok(outcome),
            Err(_) => Err(Failure::Lost("the store's thread ended".into())),
        }
    }
}

impl Storage for StoreTarget {
    fn read(&self, _: u32, offset: u64, len: u32) -> Answering<'_, bytes::Bytes> {
        let (role, (group, chunk, first)) = (Role::Replica, place(offset));
        let count = len / BLOCK_BYTES as u32;
        Box::pin(async move {
            let op = match self.past_cache.load(Ordering::Relaxed) {
                true => Op::Check { role, group, chunk, first, count, bytes: false },
                // As a server does: on the caller's thread if it can.
                false => match self.handle.try_read(role, group, chunk, first, count) {
                    Some(read) => return Ok(read.payload),
                    None => Op::Read { role, group, chunk, first, count },
                },
            };
            match self.ask(self.number(), op).await? {
                Outcome::Read(read) => Ok(read.payload),
                other => Err(Failure::Lost(format!("a read gave {other:?}"))),
            }
        })
    }

    fn write(&self, _: u32, offset: u64, payload: bytes::Bytes) -> Answering<'_, ()> {
        let (group, chunk, first) = place(offset);
        Box::pin(async move {
            let number = self.number();
            let version = Version { epoch: Epoch(1), seq: number };
            let content = Content::Data { crcs: block_crcs(&payload) };
            let count = (payload.len() / BLOCK_BYTES) as u32;
            let record = Record { group, chunk, first, count, version, request: None, content };
            let committed = Version { seq: number.saturating_sub(OPEN), ..version };
            let op =
                Op::Apply { role: Role::Replica, record, payload, must_fit: false, repair: None, committed };
            self.ask(number, op).await.map(|_| ())
        })
    }
}
