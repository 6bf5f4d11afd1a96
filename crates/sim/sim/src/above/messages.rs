//! What is sent: by processes to the cluster and to their clients, and to them.

use crate::search::history::Action;
use bytes::Bytes;
use ebb_gateway::Refused;
use ebb_types::{ChunkId, ChunkOp, ClientReply, MetaReply, MetaRequest, PoolId};
use ebb_volume::VolumeError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A request to the cluster.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Chunk {
        op: ChunkOp,
        payload: Bytes,
        claim: u64,
    },
    Meta(MetaRequest),
    /// Has this pool woken.
    Wake(PoolId),
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Chunk(ClientReply, Bytes),
    Meta(MetaReply),
    /// The pool of the chunk sleeps.
    Asleep,
    /// Whether the pool slept.
    Woken(bool),
}

/// One try of a request.
#[derive(Clone, Debug)]
pub(super) struct Try {
    pub call: u64,
    pub ask: Ask,
    /// Milliseconds until its sender gives it up.
    pub left: u64,
}

/// What a process sends.
pub(super) enum Sent {
    /// To the cluster.
    Ask(Try),
    /// To the client that has asked for it, in its attempt of this number.
    Reply { client: usize, attempt: u64, reply: Reply },
    /// It ends.
    Ended,
    /// A task of it panicked.
    Panicked(String),
}

/// What a client does: an action on a chunk, for the checks, and the request.
pub(super) type Wish = (ChunkId, Action, Request);

/// What a process has sent, with the time by its own clock.
pub(super) struct Outbox {
    sent: Mutex<Vec<(Instant, Sent)>>,
    pub stop: Notify,
}

impl Outbox {
    pub fn new() -> Arc<Outbox> {
        Arc::new(Outbox { sent: Mutex::default(), stop: Notify::new() })
    }

    pub fn send(&self, what: Sent) {
        self.sent.lock().expect("nothing panics under this lock").push((Instant::now(), what));
        self.stop.notify_one();
    }

    pub fn take(&self) -> Vec<(Instant, Sent)> {
        std::mem::take(&mut *self.sent.lock().expect("nothing panics under this lock"))
    }
}

/// A process's answer to its client.
#[derive(Debug)]
pub(super) enum Reply {
    /// Its connection broke, or was not taken: no process serves there.
    Gone,
    Block(Result<Bytes, VolumeError>),
    Object(Result<Found, Refused>),
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Block(BlockRequest),
    Object(ObjectRequest),
}

/// What a process receives.
pub(super) enum Parcel {
    Answer {
        call: u64,
        answer: Answer,
    },
    /// `op`: the number of the client's operation.
    Request {
        client: usize,
        attempt: u64,
        op: usize,
        request: Request,
    },
    /// A map with the pool that was created.
    Map,
    /// The client's connection broke.
    Broken {
        client: usize,
        attempt: u64,
    },
}

pub(super) enum Event {
    /// A try reaches the cluster.
    Arrive {
        host: usize,
        life: u64,
        tried: Try,
        until: u64,
    },
    /// A server reads what lay in its socket. Its sender has closed the connection.
    Late {
        op: ChunkOp,
        payload: Bytes,
        claim: u64,
    },
    /// Something reaches a process. `life`: `None`: whichever runs.
    Deliver {
        host: usize,
        life: Option<u64>,
        parcel: Parcel,
    },
    /// A process's answer reaches its client.
    Back {
        client: usize,
        attempt: u64,
        reply: Reply,
    },
    /// A client looks at what it does.
    Look {
        client: usize,
        attempt: u64,
        why: Look,
    },
    Ended {
        host: usize,
        life: u64,
    },
    Start {
        host: usize,
    },
    /// An administrator creates the pool.
    CreatePool,
    Resume {
        host: usize,
    },
    Fault(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Begin,
    Again,
    Timeout,
    Break,
}

#[derive(Clone, Debug)]
pub(super) enum BlockRequest {
    Read { offset: u64, len: u64 },
    Write { offset: u64, bytes: Bytes },
    Zero { offset: u64, len: u64 },
    Flush,
}

/// A part of a body, and the pause before it in milliseconds.
pub(super) type Part = (u64, Bytes);

/// A part of a multipart upload: its number, and its body.
pub(super) type NumberedPart = (i32, Vec<Part>);

#[derive(Clone, Debug)]
pub(super) struct Upload {
    /// Those of an entry at the same time, once those of the entry before are stored.
    pub sent: Vec<Vec<NumberedPart>>,
    /// At the same time as the request that ends the upload.
    pub late: Vec<NumberedPart>,
    /// The parts of which the object consists.
    pub named: Vec<i32>,
    /// How often the completion is sent.
    pub times: usize,
    /// What the object is: words, and how many bytes are of each.
    pub holds: Vec<(u64, u64)>,
}

/// A storage class, if an object has one.
pub(super) type Class = Option<&'static str>;

#[derive(Clone, Debug)]
pub(super) enum ObjectRequest {
    /// `class`: an erasure-coded pool, if it goes there.
    Put {
        key: String,
        class: Class,
        parts: Vec<Part>,
    },
    /// The same by a multipart upload.
    Upload {
        key: String,
        class: Class,
        upload: Upload,
    },
    /// An upload of it is begun, and aborted.
    Abandon {
        key: String,
        upload: Upload,
    },
    /// `range`: the first byte, and how many.
    Get {
        key: String,
        range: Option<(u64, u64)>,
    },
    Delete {
        key: String,
    },
    /// What it needs is to be woken.
    Restore {
        key: String,
    },
    /// `from` is copied to `to`, which no other request names; that is read and deleted. `in_parts`: to a part of an
    /// upload.
    Copy {
        from: String,
        to: String,
        class: Class,
        in_parts: bool,
    },
    DeleteAll {
        keys: Vec<String>,
    },
    /// All keys, a page of so many at a time.
    List {
        page: i32,
    },
}

/// What a gateway answers.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Bytes(Bytes),
    /// Whether that slept.
    Woken(bool),
    /// Keys that are there, each with its object's size.
    Listed(BTreeMap<String, u64>),
    /// Keys that were not deleted.
    Left(BTreeSet<String>),
}
