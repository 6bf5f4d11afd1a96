//! Events and commands: the protocol core's inputs and outputs.

use bytes::Bytes;
use ebb_types::{
    ChunkId, ClientReply, ClientRequest, Epoch, GroupId, MapDelta, Moment, PeerMessage, Role, ScrubMark,
    ServerId, ServerReport, Version,
};
pub use ebb_types::{Recovered, StoreCommand, StoreOutcome};
use std::time::Duration;

/// Maximum bytes in flight on a server for client writes, and likewise for client reads (R12). The driver admits no
/// more and leaves the rest in the sockets.
pub const CLIENT_BYTES: usize = 16 << 20;
/// While the store has more than this to write, no more messages from other servers are read.
pub const INBOX_BYTES: usize = 64 << 20;
const _: () = assert!(CLIENT_BYTES < INBOX_BYTES);
/// Longest time between two [`Event::Tick`]s while [`crate::Replica::wants_ticks`].
pub const TICK: Duration = Duration::from_millis(100);

/// Identifies a client request that awaits its reply; chosen by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientToken(pub u64);

/// Identifies a store command that awaits completion; chosen by the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreToken(pub u64);

#[derive(Clone, Debug)]
pub enum Event {
    /// The cluster map changed. A delta that leaves a gap is answered with [`Command::MapGap`].
    Map(MapDelta),
    /// The metadata service granted a lease that ends at `until` on this server's clock.
    Lease { until: Moment },
    /// The metadata service wants this server to sleep: hand over. Repeated; idempotent. Ignored unless the map has
    /// this server draining.
    Drain,
    /// The metadata service moves these primaries elsewhere: hand over only these.
    HandOver { groups: Vec<(GroupId, Epoch)> },
    /// The store passed its soft limit, or is below it again. A full server takes no new client writes, but still takes
    /// whatever keeps acknowledged data safe: rewrites, reclaim, offload being moved (R10).
    Space { full: bool },
    /// The store is filling up: have it record what is on all targets. After a crash of all servers whatever none of
    /// them recorded as such is written once more, the last record of every group at least, and there may be no room.
    NoteCommits,
    /// A client request. `payload`: the bytes of a write.
    Client { token: ClientToken, request: ClientRequest, payload: Bytes },
    /// A message from another server.
    Peer { from: ServerId, message: PeerMessage, payload: Bytes },
    /// A message of the peer's lies unread, for want of room for what the store has to write: the peer is not silent,
    /// however long that lasts.
    Unread { peer: ServerId },
    /// The connection to a server broke: messages sent to it may be lost.
    PeerLost { peer: ServerId },
    /// A [`StoreCommand`] completed.
    Stored { token: StoreToken, outcome: StoreOutcome },
    /// The store had no room to record that this was dropped, so it still keeps it.
    NotDropped { group: GroupId, role: Role },
    /// A heartbeat is due: check whether replicas should be scrubbed. `unix_seconds`: wall clock. Must precede
    /// [`crate::Replica::take_load`].
    Beat { unix_seconds: u64 },
    /// An administrator wants all replicas here scrubbed now. They are requested at the next [`Event::Beat`].
    ScrubAll,
    /// Time passed: sent at least every [`TICK`] while [`crate::Replica::wants_ticks`], otherwise not at all.
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
    /// Drop all offload kept for a slot of the group, because the slot has everything, or all that is kept as a replica
    /// of the group, because this server is no longer in it. Only a failure is reported back (R6), as
    /// [`Event::NotDropped`].
    Drop {
        group: GroupId,
        role: Role,
    },
    /// Every copy of the group has applied the deletions up to this version, so the replica here need not remember
    /// them. Takes effect after all commands given to the store before it.
    ForgetTombstones {
        group: GroupId,
        up_to: Version,
    },
    /// Scrub progress of all of this server's replicas, to be returned in [`crate::Recovered`] after a restart. Not
    /// urgent.
    KeepScrubs {
        marks: Vec<ScrubMark>,
    },
    /// A map delta left a gap: ask for the whole map.
    MapGap,
    /// A metadata member offered a map older than the one this store has served under. It is not obeyed, because
    /// obeying it would destroy data (R11). Either the service reverted to an older copy, or the member is a former
    /// leader that does not know yet that another leads.
    OldMetadata {
        known: u64,
        offered: u64,
    },
    /// Something happened that cannot happen unless this program has a bug: log it. It is counted in
    /// [`ebb_types::Vitals::bugs`].
    Bug {
        group: GroupId,
        what: &'static str,
    },
    /// As of this map version nothing depends on this server and nothing is in flight: flush, then report so to the
    /// metadata service (R7). A later version may need the server again.
    ReadyToSleep {
        map_version: u64,
    },
}

/// A block that is kept in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    pub chunk: ChunkId,
    pub block: u32,
    pub version: Version,
    /// `None`: zeroes.
    pub data: Option<Bytes>,
}
