//! What travels between nodes, and what is to happen.

use crate::world::net::Node;
use bytes::Bytes;
use ebb_chunkserver::{StoreCommand, StoreToken};
use ebb_meta::SwitchAction;
use ebb_types::{
    ClientReply, ClientRequest, MetaPush, MetaReply, MetaRequest, PeerMessage, ServerId, ServerMessage,
    SleepOrder, SleepRefusal, StoreTask,
};

/// What travels between nodes. `op`: whatever a client calls its operation.
#[derive(Clone, Debug)]
pub enum Message {
    Peer { message: PeerMessage, payload: Bytes },
    Request { attempt: u64, op: usize, request: ClientRequest, payload: Bytes },
    Reply { attempt: u64, reply: ClientReply, payload: Bytes },
    ToMeta(ServerMessage),
    Push(MetaPush),
    Order(SleepOrder),
    Refuses(SleepRefusal),
    AskMeta { number: u64, request: MetaRequest },
    MetaReply { number: u64, reply: MetaReply },
    Raft(Vec<u8>),
}

/// A future event of the world's own. `life` identifies one run of a process: events for an earlier run are void.
#[derive(Clone, Debug)]
pub enum Happening {
    Deliver {
        from: Node,
        to: Node,
        generation: u64,
        message: Message,
    },
    PeerLost {
        server: ServerId,
        life: u64,
        peer: ServerId,
    },
    LinkLost {
        client: u32,
        server: ServerId,
    },
    Effect {
        server: ServerId,
        life: u64,
        id: u64,
    },
    Complete {
        server: ServerId,
        life: u64,
        id: u64,
    },
    Answer {
        server: ServerId,
        life: u64,
        token: StoreToken,
        command: StoreCommand,
    },
    Lull {
        server: ServerId,
        life: u64,
        writes: u64,
        rest: bool,
    },
    Task {
        server: ServerId,
        life: u64,
        token: StoreToken,
        task: StoreTask,
    },
    /// A server knows whether its machine can be put to sleep.
    Checked {
        server: ServerId,
        life: u64,
        order: SleepOrder,
        outcome: Result<(), String>,
    },
    Tick {
        server: ServerId,
        life: u64,
        timer: u64,
    },
    Beat {
        server: ServerId,
        life: u64,
        timer: u64,
    },
    MemberWake {
        member: u64,
        stamp: u64,
    },
    Switch {
        member: u64,
        life: u64,
        server: ServerId,
        action: SwitchAction,
        /// It was thrown while faults were injected.
        stormy: bool,
    },
    Restart {
        server: ServerId,
    },
    RestartMember {
        member: u64,
    },
    ResumeMember {
        member: u64,
    },
    Admin {
        question: u64,
    },
}

/// What the agenda has: the world's own events, and those of its harness.
#[allow(
    clippy::large_enum_variant,
    reason = "most events are the world's own, and how large the others are is not known here"
)]
pub enum Next<E> {
    World(Happening),
    Harness(E),
}
