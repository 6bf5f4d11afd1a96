//! Events and commands of the shell.

use crate::common::api::{self as core, ClientToken, StoreToken};
use crate::common::stall::Moves;
use bytes::Bytes;
use ebb_types::{
    ClientReply, ClusterParams, GroupId, Incarnation, Membership, MetaPush, PeerMessage, Refusal, ScrubMark,
    ServerId, ServerMessage, SleepOrder, SleepRefusal, StoreCommand, StoreFigures, StoreOutcome, StoreTask,
};
use std::time::Duration;

/// Store tokens from here on belong to the shell.
pub const OWN_TOKENS: u64 = 1 << 62;
/// Store tokens from here on belong to those who obey.
pub const EDGE_TOKENS: u64 = 1 << 63;
const _: () = assert!(OWN_TOKENS < EDGE_TOKENS);

/// What never changes while the server runs.
#[derive(Clone, Debug)]
pub struct About {
    pub me: ServerId,
    pub incarnation: Incarnation,
    /// By the configuration file.
    pub params: ClusterParams,
    pub heartbeat: Duration,
    /// As read from the store at its start.
    pub membership: Membership,
}

/// What is true as a heartbeat leaves.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Wall clock.
    pub unix_seconds: u64,
    pub store: StoreFigures,
    /// Operations that wait in the store.
    pub queued: usize,
    pub moves: Moves,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// For the core: a request, a message, a connection that broke, time that passed.
    Core(core::Event),
    /// A [`StoreCommand`] or a [`StoreTask`] ended.
    Stored { token: StoreToken, outcome: StoreOutcome },
    /// The store has done something since.
    Space(StoreFigures),
    /// A heartbeat is due, or [`Command::Heartbeat`] asked for one.
    Beat(Facts),
    /// A metadata member says something.
    Push(MetaPush),
    /// The metadata leader wants the machine to sleep.
    Order(SleepOrder),
    /// The answer to [`Command::Check`]: whether the machine can sleep so deep and be woken again.
    Checked { order: SleepOrder, outcome: Result<(), String> },
    /// The answer to [`Command::Suspend`]: the machine is awake again, or could not be suspended.
    Suspended { order: SleepOrder, outcome: Result<(), String> },
}

#[derive(Clone, Debug)]
pub enum Command {
    Send {
        to: ServerId,
        message: PeerMessage,
        payload: Bytes,
    },
    Reply {
        token: ClientToken,
        reply: ClientReply,
        payload: Bytes,
    },
    /// To be answered with [`Event::Stored`].
    Store {
        token: StoreToken,
        command: StoreCommand,
    },
    /// Likewise.
    Task {
        token: StoreToken,
        task: StoreTask,
    },
    /// To all metadata members: a server need not know who leads. Followers ignore it.
    Tell(ServerMessage),
    /// Likewise: whether the store took a flush. What else an exam asks is for who obeys to say.
    Exam {
        writable: bool,
    },
    /// An [`Event::Tick`](core::Event::Tick) within [`TICK`](core::TICK).
    Tick,
    /// An [`Event::Beat`] at once.
    Heartbeat,
    KeepScrubs {
        marks: Vec<ScrubMark>,
    },
    /// Look whether the machine can sleep so deep and be woken again.
    Check(SleepOrder),
    /// Suspend the machine.
    Suspend(SleepOrder),
    /// To all metadata members: the machine stays awake.
    Refuse(SleepRefusal),
    Say(News),
    /// This run is over.
    End(Ended),
}

/// What an operator should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The store is full: used, of what capacity.
    Full(ebb_types::Bytes, ebb_types::Bytes),
    /// The store has not moved for this long; with an errno: it lacks memory or descriptors.
    Hangs(Duration, Option<i32>),
    /// It moves again.
    Moves,
    /// The map's version could not be kept.
    Forgets(Refusal),
    /// A metadata member offered an older map than the one that this store served under.
    OldMetadata { known: u64, offered: u64 },
    /// What cannot happen unless this program has a bug.
    Bug { group: GroupId, what: &'static str },
    /// No metadata leader has been heard for this long.
    Silent(Duration),
    /// One is heard again, after this long.
    Heard(Duration),
    /// The machine could not be put to sleep.
    StaysAwake(String),
}

/// Why a run ends on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The metadata service rejects this server.
    Rejected { why: String },
    /// The store is not the one that served last: it needs a new identity.
    Superseded { known: Incarnation },
    /// Its machine is to power off.
    PowerOff,
}
