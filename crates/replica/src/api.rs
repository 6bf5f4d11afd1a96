//! What goes into the protocol core and what comes out.

use bytes::Bytes;
use ebb_types::{
    ClientReply, ClientRequest, DamageVitals, Epoch, GroupId, LoadCount, MapDelta, Moment, PeerMessage,
    ScrubMark, ScrubVitals, ServerId, ServerReport, Space, Version,
};
pub use ebb_types::{Recovered, StoreCommand, StoreOutcome};

/// Bytes of clients' writes, and of their reads, that are under way on a server at a time (R12). The driver takes in no more, and
/// leaves the rest in the sockets.
pub const CLIENT_BYTES: usize = 16 << 20;

/// Names a client request that waits for its answer; the driver's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientToken(pub u64);

/// Names a store command that waits for its completion; the core's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreToken(pub u64);

#[derive(Clone, Debug)]
pub enum Event {
    /// The cluster map moved on. A delta that leaves a gap is answered by [`Command::MapGap`].
    Map(MapDelta),
    /// The metadata service granted a lease that ends then on this server's clock.
    Lease { until: Moment },
    /// The metadata service wants this server to sleep: hand over. Repeated; harmless to repeat. Void where the
    /// map does not say so too.
    Drain,
    /// The metadata service moves these primaries elsewhere: hand over just them.
    HandOver { groups: Vec<(GroupId, Epoch)> },
    /// The store passed its soft limit, or is below it again. A full server takes no new client writes, but still what
    /// keeps acknowledged data safe: rewrites, reclaim, offload that is moved (R10).
    Space { full: bool },
    /// A client's request. Payload: the bytes of a write.
    Client { token: ClientToken, request: ClientRequest, payload: Bytes },
    /// A message of another server.
    Peer { from: ServerId, message: PeerMessage, payload: Bytes },
    /// The connection to a server broke: what was sent to it may be lost.
    PeerLost { peer: ServerId },
    /// A [`StoreCommand`] ended.
    Stored { token: StoreToken, outcome: StoreOutcome },
    /// The store had no room to note that this is dropped, and keeps it.
    NotDropped { group: GroupId, space: Space },
    /// A heartbeat is due: a moment to look whether replicas should be scrubbed. `unix_seconds`: by the wall clock. Before
    /// [`crate::Replica::take_load`].
    Beat { unix_seconds: u64 },
    /// An administrator wants all replicas here scrubbed now. They are asked for with the next [`Event::Beat`].
    ScrubAll,
    /// Time passed: at least every [`crate::TICK`] while [`crate::Replica::wants_ticks`], else not at all.
    Tick,
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
    /// To the metadata service, at least once.
    Report(ServerReport),
    Store {
        token: StoreToken,
        command: StoreCommand,
    },
    /// Forget all offload kept for this slot of the group: it has everything. Only a failure is heard of (R6):
    /// [`Event::NotDropped`].
    DropOffload {
        group: GroupId,
        stands_for: ServerId,
    },
    /// Forget all that is kept as replica of the group: this server is no longer in it.
    DropReplica {
        group: GroupId,
    },
    /// Every copy of the group has carried out the deletions up to this version: the replica here need not remember them. After all
    /// that was given to the store before.
    ForgetTombstones {
        group: GroupId,
        up_to: Version,
    },
    /// How far the scrubs of this server's replicas are: for [`crate::Recovered`], after a restart. All of them; not urgent.
    KeepScrubs {
        marks: Vec<ScrubMark>,
    },
    /// A map delta did not fit: ask for the whole map.
    MapGap,
    /// A metadata member offered a map older than what this store has served under, which is not obeyed: on its word data would be
    /// destroyed (R11). The service went back to an older copy; or the member led once, was away, and does not know yet that
    /// another leads.
    OldMetadata {
        known: u64,
        offered: u64,
    },
    /// By this version of the map nothing depends on this server any more, and nothing is in flight: flush, and tell the
    /// metadata service so (R7). By a later version it may be needed again.
    ReadyToSleep {
        map_version: u64,
    },
}

/// Figures for the heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Client work since the last call of [`crate::Replica::take_load`].
    pub load: LoadCount,
    pub in_flight: u32,
    pub catching_up: u32,
    pub offloaded_bytes: u64,
    pub reclaimed_bytes: u64,
    pub repaired_blocks: u64,
    pub damage: DamageVitals,
    pub scrub: ScrubVitals,
    pub poisoned: bool,
}
