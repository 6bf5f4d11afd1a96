//! A backend that serves one disk as it is: the tests' storage, and what `examples/nbd_file.rs` measures.

use ebb_blockdev::{Backend, Completion, DiskFile, Replies, RequestId, Ring};
use ebb_mirror::{DiskOp, Found, Token};
use ebb_nbd::{BlockSizes, Errno, Export, Extent, Piece, Reply, Request};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

/// A request whose disk operation runs. `sync`: another one follows, for durability.
struct Begun {
    id: RequestId,
    sync: bool,
}

struct Inner {
    ring: Ring,
    disk: usize,
    begun: Vec<Option<Begun>>,
    free: Vec<usize>,
}

pub struct FileBackend {
    inner: RefCell<Inner>,
    replies: Replies,
}

/// The whole disk, for several connections at once.
pub fn export(disk: &DiskFile) -> Export {
    let block = BlockSizes { minimum: 4096, preferred: 4096, maximum: 32 << 20 };
    Export {
        name: "disk".to_owned(),
        description: disk.path().display().to_string(),
        size: disk.size() / 4096 * 4096,
        block,
        read_only: false,
        rotational: false,
        multi_conn: true,
    }
}

impl FileBackend {
    pub fn new(mut ring: Ring, disk: DiskFile, replies: Replies) -> FileBackend {
        let disk = ring.add(disk);
        FileBackend {
            inner: RefCell::new(Inner { ring, disk, begun: Vec::new(), free: Vec::new() }),
            replies,
        }
    }

    /// Carries the disk's answers to the clients. Ends only with an error of the runtime.
    pub async fn run(&self) -> io::Error {
        poll_fn(|context| {
            loop {
                let next = self.inner.borrow_mut().ring.poll_next(context);
                match next {
                    Poll::Ready(Ok(completion)) => self.on_end(completion),
                    Poll::Ready(Err(error)) => return Poll::Ready(error),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    fn on_end(&self, completion: Completion) {
        let mut inner = self.inner.borrow_mut();
        let index = completion.token.0 as usize;
        let begun = inner.begun[index].as_mut().expect("its operation runs");
        if begun.sync && completion.found == Found::Done {
            begun.sync = false;
            let disk = inner.disk;
            return inner.ring.submit(disk, completion.token, DiskOp::Sync);
        }
        let id = begun.id;
        inner.begun[index] = None;
        inner.free.push(index);
        drop(inner);
        self.replies.reply(id, reply(completion.found));
    }
}

impl Backend for FileBackend {
    fn request(&self, id: RequestId, export: usize, request: Request) {
        assert_eq!(export, 0);
        let (op, sync) = match request {
            Request::Read { offset, length, .. } => (DiskOp::Read { offset, bytes: length.into() }, false),
            Request::Write { offset, payload, fua } => {
                (DiskOp::Write { offset, pieces: vec![payload], durable: false }, fua)
            }
            Request::Flush => (DiskOp::Sync, false),
            Request::Trim { offset, length, fua } => {
                (DiskOp::Zero { offset, bytes: length.into(), may_trim: true }, fua)
            }
            Request::WriteZeroes { fast: true, .. } => {
                return self.replies.reply(id, Reply::Failed(Errno::NotSupported));
            }
            Request::WriteZeroes { offset, length, fua, may_trim, .. } => {
                (DiskOp::Zero { offset, bytes: length.into(), may_trim }, fua)
            }
            Request::Cache { .. } => return self.replies.reply(id, Reply::Done),
            Request::Status { offset, length, .. } => {
                (DiskOp::Status { offset, bytes: length.into() }, false)
            }
        };
        let inner = &mut *self.inner.borrow_mut();
        let index = inner.free.pop().unwrap_or_else(|| {
            inner.begun.push(None);
            inner.begun.len() - 1
        });
        inner.begun[index] = Some(Begun { id, sync });
        inner.ring.submit(inner.disk, Token(index as u64), op);
    }
}

fn reply(found: Found) -> Reply {
    match found {
        Found::Done => Reply::Done,
        Found::Data(bytes) => Reply::Data(vec![Piece::Data(bytes)]),
        Found::Extents(runs) => {
            let runs = runs.into_iter();
            Reply::Extents(runs.map(|(length, hole)| Extent { length, hole, zero: hole }).collect())
        }
        Found::Failed => Reply::Failed(Errno::Io),
    }
}
