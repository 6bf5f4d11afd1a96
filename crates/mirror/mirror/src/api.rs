//! What goes into the decision makers and what comes out: clients' requests, the disks' answers, and commands to both.

use bytes::Bytes;
use ebb_types::{Bug, Moment};
use serde::{Deserialize, Serialize};
use std::ops::Not;
use std::time::Duration;

/// One of the two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    A,
    B,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// Index of a pair's array.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The other disk.
impl Not for Side {
    type Output = Side;
    fn not(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Rotation speed of a disk, or operational power state of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speed {
    Low,
    High,
}

/// Where a disk's writes go [LogStore §3.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// To the block's own place.
    Regular,
    /// To the end of the disk's log.
    Log,
    /// As regular; besides, the log's blocks are written to their own places while there is little traffic.
    Replay,
}

/// Names an operation of a disk until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A client's request. Addresses and counts are in blocks of the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Read {
        block: u64,
        count: u32,
    },
    /// The payload is of whole blocks. `fua`: durable before the reply.
    Write {
        block: u64,
        payload: Bytes,
        fua: bool,
    },
    /// Everything replied before becomes durable.
    Flush,
    /// The blocks read as zeroes afterwards. `may_trim`: they may become a hole.
    Zero {
        block: u64,
        count: u64,
        fua: bool,
        may_trim: bool,
    },
    /// Which parts are holes.
    Status {
        block: u64,
        count: u64,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    /// What was read, in order.
    Data(Vec<Bytes>),
    /// Runs (blocks, whether they are a hole), in order.
    Extents(Vec<(u64, bool)>),
    /// Both copies failed, or the mirror is closing.
    Failed,
}

/// Operation of one disk. Offsets and lengths are bytes of the device, multiples of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOp {
    Read {
        offset: u64,
        bytes: u64,
    },
    /// The pieces follow each other on the disk. `durable`: they are before the answer.
    Write {
        offset: u64,
        pieces: Vec<Bytes>,
        durable: bool,
    },
    Zero {
        offset: u64,
        bytes: u64,
        may_trim: bool,
    },
    /// Everything that ended before becomes durable.
    Sync,
    Status {
        offset: u64,
        bytes: u64,
    },
}

/// How an operation of a disk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Done,
    Data(Bytes),
    /// Runs (bytes, whether they are a hole), in order.
    Extents(Vec<(u64, bool)>),
    Failed,
}

/// Mean times of an access, as far as the disk or its model knows them [LogStore §3.1].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    pub seek: Duration,
    pub rotation: Duration,
    pub transfer: Duration,
}

/// Time that a disk was busy with an operation: without the time that it waited for others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub parts: Parts,
}

impl Spent {
    pub fn total(&self) -> Duration {
        self.parts.seek + self.parts.rotation + self.parts.transfer
    }
}

#[derive(Clone, Debug)]
pub enum Event {
    /// `id` is the caller's, and comes back with the reply.
    Request { id: u64, request: Request },
    /// An operation of a disk ended.
    Done { side: Side, token: Token, found: Found, spent: Spent },
    /// A change of speed ended; `false`: the disk stays at the old one.
    Changed { side: Side, changed: bool },
    /// The moment of [`Command::WakeAt`] has come.
    Tick,
    /// Compares all that the disks have, when no other pass is under way.
    Scrub,
    /// Ends what is in progress, and leaves both disks so that the next start need not copy anything.
    Close,
}

#[derive(Clone, Debug)]
pub enum Command {
    Disk {
        side: Side,
        token: Token,
        op: DiskOp,
    },
    /// The disk serves nothing until [`Event::Changed`].
    SetSpeed {
        side: Side,
        speed: Speed,
    },
    Reply {
        id: u64,
        reply: Reply,
    },
    /// Replaces the last one; `None`: nothing is due.
    WakeAt(Option<Moment>),
    /// The answer to [`Event::Close`]: nothing follows.
    Closed,
    /// Something that cannot happen, has.
    Bug(Bug),
}

impl From<Bug> for Command {
    fn from(bug: Bug) -> Command {
        Command::Bug(bug)
    }
}
