//! A server's settings, and the defects that tests plant.

use ebb_types::{Incarnation, ServerId, StoreId};
use std::time::Duration;

/// Records remembered per group, so that a client's late retry is recognised.
pub const REMEMBERED: usize = 1024;

/// Requests that wait in one group, or in all sets, and questions of other servers that wait in one set; more are
/// turned away.
pub const WAITING: usize = 4096;

/// Deletions that a column remembers: some MiB in memory, and a file of the store's log.
const DELETIONS: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct Config {
    pub me: ServerId,
    pub incarnation: Incarnation,
    pub store: StoreId,
    /// Newest map version that the store has served under: an older map is not obeyed.
    pub known_map: u64,
    pub chunk_bytes: u32,
    pub groups: u32,
    /// Resend interval for an unanswered request or report without payload, and for a record that was refused.
    pub resend_after: Duration,
    /// A server that owes a reply and sends nothing at all for this time is reported to the metadata service. Long,
    /// because a server that answers anything is slow, not failed, and a slow disk may sync for seconds.
    pub suspect_after: Duration,
    /// Number of committed records remembered per group, for their request ids.
    pub remembered: usize,
    /// Deletions of one epoch that a column remembers before its server asks for another epoch, to forget them under.
    pub deletions: usize,
    /// Requests that wait in one group, or in all sets, and questions of other servers that wait in one set.
    pub waiting: usize,
    /// Every replica is read and compared with the other copies once per period; zero: never.
    pub scrub_period: Duration,
    /// Bytes per second that a primary may have read for its scrubs, over all copies; under load a fraction of it.
    pub scrub_bytes_per_second: u64,
    /// Once awake, a server fetches what others held for it at the rate that takes this long, whatever its clients ask
    /// for out of turn; zero: as fast as it can.
    pub reclaim_within: Duration,
    /// A defect that the test harness must find. Only builds with the feature `planted-bugs` have any.
    pub planted: Option<PlantedBug>,
}

/// Deliberate defects, to show that the harness finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Serve without waiting until the members are fenced, and accept older epochs.
    SkipFence,
    /// Acknowledge a write while one copy is still missing.
    AckEarly,
    /// Let a reclaimed record overwrite a newer one.
    ReclaimOlder,
    /// Drop offload when the sleeper wakes, before the sleeper has fetched it.
    DropEarly,
    /// Drop the copy of a slot that moves, before the newcomer has everything.
    DropMoving,
    /// Catch up from a holder alone that lacks what the former one keeps.
    SkipFormer,
    /// Serve before the metadata service has recorded that this epoch serves.
    ServeUnrecorded,
    /// Serve without a lease.
    IgnoreLease,
    /// Count a lease from when it came, not from when the heartbeat was sent that it answers.
    LeaseFromArrival,
    /// Report readiness to sleep while the store still works.
    SleepBusy,
    /// Treat a server that was full once as full forever.
    RememberFull,
    /// Let a scrub skip blocks that are damaged on another server.
    OverlookDamage,
    /// Reply to a read of part of a block with the checksum of the whole block.
    WholeChecksums,
    /// Rewrite the tails' blocks without noting which requests are in them.
    ForgetRequests,
    /// Carry out a request that may have been carried out before and forgotten since.
    RepeatForgotten,
    /// Forget deletions while some slot may have missed them.
    ForgetEarly,
    /// Drop the strips kept for a column as soon as its server catches up, before it has them.
    DropStripsEarly,
    /// Take strips of epochs that have ended.
    SkipColumnFence,
    /// Sleep with the whole set while strips are in memory that their column's server lacks.
    SleepIndebted,
    /// Take a column for full although no complete server was heard.
    TrustAnyListing,
    /// Say of what a column lacks, while it catches up or is away, that it was never written.
    AnswerBehind,
    /// Requests under a claim that has ended are carried out.
    IgnoreClaims,
    /// A primary believes the first claim that it hears in its epoch.
    BelieveAnyClaim,
    /// A look answers with a version that the next write has.
    LookAhead,
    /// Take a row that cannot be read for one that may be elsewhere, for ever.
    LostRowLacks,
    /// In a salvage, too, a holder lists nothing unless it has all that the replica misses.
    WithholdFromSalvage,
    /// Never forget deletions of columns.
    KeepTombstones,
    /// Take a lease that an earlier run asked for, by a clock that began again since.
    LeaseOfAnyRun,
    /// Record nothing of what is on all targets while the store fills up.
    NoteNothing,
    /// Wait on for what was lost with a connection.
    OverlookBreaks,
    /// Count a request that was turned away as one that is under way, for ever.
    KeepTurnedAway,
    /// Take a server for silent whose messages lie unread.
    SuspectUnread,
    /// Pass over a whole chunk of an erasure-coded pool for the rest of one write in it.
    RemnantOfChunk,
}

impl Config {
    /// `incarnation` and `store`: the incarnation and store identity that the metadata service has on record while it
    /// counts on this incarnation.
    pub fn new(
        me: ServerId,
        incarnation: Incarnation,
        store: StoreId,
        chunk_bytes: u32,
        groups: u32,
    ) -> Config {
        Config {
            me,
            incarnation,
            store,
            known_map: 0,
            chunk_bytes,
            groups,
            resend_after: Duration::from_millis(500),
            suspect_after: Duration::from_secs(3),
            remembered: REMEMBERED,
            deletions: DELETIONS,
            waiting: WAITING,
            scrub_period: Duration::ZERO,
            scrub_bytes_per_second: 16 << 20,
            reclaim_within: Duration::ZERO,
            planted: None,
        }
    }

    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.planted == Some(bug)
    }
}
