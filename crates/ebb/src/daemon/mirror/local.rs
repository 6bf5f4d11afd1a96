//! A mirror for this process: a chunk server's own disks. The mirror runs on a thread of its own, with a runtime of its
//! own, as [`crate::daemon::mirror::run`] runs one for NBD clients. The store's threads put requests into a queue and
//! wait for the replies, so several of them have requests in flight at once.
//!
//! Dropping [`LocalMirror`] closes the mirror in order and waits for that; its devices fail afterwards.

use crate::daemon::mirror::{Options, begin, standing};
use crate::error::{NodeError, io};
use crate::mirror::registry::{Name, Registry};
use bytes::Bytes;
use ebb_mirror::{BLOCK_BYTES, Reply, Request};
use ebb_store::BlockDevice;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

/// Longest request, in bytes: longer reads and writes become several at once.
const REQUEST_MAX: u64 = 1 << 20;

enum Message {
    Request { request: Request, reply: SyncSender<Reply> },
    Close,
}

/// A mirror on its thread.
pub struct LocalMirror {
    device: MirrorDevice,
    thread: Option<JoinHandle<()>>,
}

impl LocalMirror {
    /// Opens a mirror that is noted. Returns when it serves.
    pub fn start(registry: Registry, name: Name, options: Options) -> Result<LocalMirror, NodeError> {
        let (queue, messages) = unbounded_channel();
        let (ready, opened) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("mirror".into())
            .spawn(move || {
                if let Err(error) = serve(&registry, &name, &options, messages, &ready) {
                    // Before it was ready, the caller reports it.
                    if let Err(unheard) = ready.try_send(Err(error)) {
                        tracing::error!("the mirror has ended: {unheard:?}");
                    }
                }
            })
            .map_err(io("start", "the mirror's thread"))?;
        let size = opened.recv().expect("the thread says how it began")?;
        Ok(LocalMirror { device: MirrorDevice { queue, size }, thread: Some(thread) })
    }

    pub fn device(&self) -> MirrorDevice {
        self.device.clone()
    }
}

impl Drop for LocalMirror {
    fn drop(&mut self) {
        // Gone already: it has failed.
        let _ = self.device.queue.send(Message::Close);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

type Ready = SyncSender<Result<u64, NodeError>>;

fn serve(
    registry: &Registry,
    name: &Name,
    options: &Options,
    mut messages: UnboundedReceiver<Message>,
    ready: &Ready,
) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("start", "the mirror's runtime"))?;
    LocalSet::new().block_on(&runtime, async {
        let (begun, control) = begin(registry, name, options)?;
        tracing::info!("mirror {name}: {}", standing(&begun.status(None)));
        let _ = ready.send(Ok(begun.size_bytes));
        let server = begun.server.clone();
        let requests = async {
            while let Some(Message::Request { request, reply }) = messages.recv().await {
                // The one who asked waits, unless its thread has ended.
                server.request(request, move |answer| drop(reply.try_send(answer)));
            }
        };
        let ended = tokio::select! {
            ended = server.run() => Some(ended),
            () = control.serve(|question| begun.answer(question, None)) => None,
            () = requests => None,
        };
        match ended {
            Some(ended) => ended,
            None => {
                server.close();
                server.end().await
            }
        }
        .map_err(io("serve", name.as_str()))
    })
}

/// The blocks of a mirror, for any thread.
#[derive(Clone)]
pub struct MirrorDevice {
    queue: UnboundedSender<Message>,
    size: u64,
}

impl MirrorDevice {
    fn begin(&self, request: Request) -> std::io::Result<Receiver<Reply>> {
        let (reply, answer) = sync_channel(1);
        let closed = |_| std::io::Error::other("the mirror is closed");
        self.queue.send(Message::Request { request, reply }).map_err(closed)?;
        Ok(answer)
    }
}

fn wait(answer: &Receiver<Reply>) -> std::io::Result<Reply> {
    match answer.recv() {
        Ok(Reply::Failed) => {
            Err(std::io::Error::other("the mirror failed: both disks are lost, or it is closing"))
        }
        Ok(reply) => Ok(reply),
        Err(_) => Err(std::io::Error::other("the mirror has ended")),
    }
}

impl BlockDevice for MirrorDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, out: &mut Vec<u8>, len: u64, offset: u64) -> std::io::Result<()> {
        let starts = (offset..offset + len).step_by(REQUEST_MAX as usize);
        let begun: Result<Vec<_>, _> = starts
            .map(|start| {
                let count = REQUEST_MAX.min(offset + len - start) / BLOCK_BYTES;
                self.begin(Request::Read { block: start / BLOCK_BYTES, count: count as u32 })
            })
            .collect();
        out.reserve_exact(len as usize);
        for answer in begun? {
            let Reply::Data(pieces) = wait(&answer)? else { unreachable!("a read gets data") };
            pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        }
        Ok(())
    }

    fn write(&self, writes: Vec<(u64, Bytes)>) -> std::io::Result<()> {
        let mut begun = Vec::new();
        for (offset, bytes) in writes {
            for start in (0..bytes.len()).step_by(REQUEST_MAX as usize) {
                let payload = bytes.slice(start..bytes.len().min(start + REQUEST_MAX as usize));
                let block = (offset + start as u64) / BLOCK_BYTES;
                begun.push(self.begin(Request::Write { block, payload, fua: false })?);
            }
        }
        begun.iter().try_for_each(|answer| wait(answer).map(|_| ()))
    }

    fn flush(&self) -> std::io::Result<()> {
        wait(&self.begin(Request::Flush)?).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::mirror::Driver;
    use crate::mirror::create::create;
    use ebb_mirror::open::Accept;
    use ebb_mirror::{Ack, TwoSpeedModel};
    use ebb_store::{Config, FlatDisk, Op, Outcome, StoreCore};
    use ebb_types::{
        ChunkId, Content, Epoch, GroupId, ObjectId, Record, Role, ServerId, StoreId, Version, block_crcs,
    };
    use std::path::Path;
    use std::sync::Arc;

    const NAME: &str = "server-1";

    fn start(directory: &Path, driver: Driver) -> LocalMirror {
        let registry = Registry::find(Some(directory.join("registry"))).unwrap();
        let accept = Accept { degraded: false, loss: false };
        let options = Options { accept, keep: None, policy: None, ack: Ack::Safe, driver };
        LocalMirror::start(registry, NAME.parse().unwrap(), options).unwrap()
    }

    fn store(mirror: &LocalMirror) -> StoreCore {
        let disk = FlatDisk::open(Arc::new(mirror.device()), 9).unwrap();
        let config = Config { checkpoint_bytes: 1 << 20, ..Config::new(7, ServerId(1), StoreId(1)) };
        StoreCore::open(Arc::new(disk), config).unwrap().0
    }

    fn one(store: &mut StoreCore, op: Op) -> Outcome {
        let mut done = Vec::new();
        store.execute(vec![(1, op)], &mut done);
        done.pop().unwrap().outcome
    }

    const CHUNK: ChunkId = ChunkId { object: ObjectId(5), index: 0 };

    /// Small ones go to a segment, large ones to the chunk's file.
    fn write(store: &mut StoreCore, first: u32, count: u32) {
        let payload = vec![first as u8 + 1; count as usize * BLOCK_BYTES as usize];
        let record = Record {
            group: GroupId(1),
            chunk: CHUNK,
            first,
            count,
            version: Version { epoch: Epoch(1), seq: u64::from(first) + 1 },
            request: None,
            content: Content::Data { crcs: block_crcs(&payload) },
        };
        let (role, payload) = (Role::Replica, payload.into());
        let op = Op::Apply { role, record, payload, must_fit: false, repair: None, committed: Version::ZERO };
        assert_eq!(one(store, op), Outcome::Applied);
    }

    fn verify(store: &mut StoreCore, writes: &[(u32, u32)]) {
        for (first, count) in writes {
            let group = GroupId(1);
            let read = Op::Read { role: Role::Replica, group, chunk: CHUNK, first: *first, count: *count };
            let Outcome::Read(found) = one(store, read) else { panic!("block {first} is gone") };
            assert!(found.payload.iter().all(|byte| *byte == *first as u8 + 1), "block {first}");
        }
    }

    /// A copy of the disks as they are: what a crash leaves.
    fn copy(from: &Path, to: &Path) {
        let note = format!("registry/{NAME}.toml");
        for disk in ["a", "b"] {
            std::fs::copy(from.join(disk), to.join(disk)).unwrap();
        }
        let text = std::fs::read_to_string(from.join(&note)).unwrap();
        std::fs::create_dir(to.join("registry")).unwrap();
        std::fs::write(to.join(note), text.replace(from.to_str().unwrap(), to.to_str().unwrap())).unwrap();
    }

    #[test]
    fn a_store_recovers_from_a_mirror_after_a_crash() {
        for driver in [Driver::None, Driver::Emulated(Box::new(TwoSpeedModel::paper()))] {
            let directory = tempfile::tempdir().unwrap();
            let disks = ["a", "b"].map(|disk| directory.path().join(disk));
            for disk in &disks {
                std::fs::File::create(disk).unwrap().set_len(32 << 20).unwrap();
            }
            let registry = Registry::find(Some(directory.path().join("registry"))).unwrap();
            create(&registry, &NAME.parse().unwrap(), disks, ebb_types::Bytes::mib(4), false).unwrap();
            let mirror = start(directory.path(), driver.clone());
            let mut first = store(&mirror);
            let writes = [(0, 1), (1, 2), (3, 40), (43, 1), (44, 300)];
            for (at, (block, count)) in writes.iter().enumerate() {
                write(&mut first, *block, *count);
                let crashed = tempfile::tempdir().unwrap();
                copy(directory.path(), crashed.path());
                let mirror = start(crashed.path(), driver.clone());
                let mut again = store(&mirror);
                verify(&mut again, &writes[..=at]);
            }
            drop(first);
            let device = mirror.device();
            drop(mirror);
            assert!(device.flush().is_err(), "it is closed");
            let mirror = start(directory.path(), driver);
            verify(&mut store(&mirror), &writes);
        }
    }
}
