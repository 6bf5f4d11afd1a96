//! The leader's memory: what it knows beyond the state.

use crate::controller::census::Census;
use crate::controller::failure::Failure;
use crate::controller::gears::Gears;
use crate::controller::group::Standing;
use crate::controller::latency::LatencySpan;
use crate::controller::switch::Power;
use crate::controller::trial::Trial;
use crate::controller::wake_times::WakeTimes;
use crate::controller::watch::Watch;
use crate::{PowerFact, Switches, Timing};
use ebb_types::{
    Depth, Epoch, Grace, GroupId, Incarnation, Moment, ServerEntry, ServerId, ServerState, SetId, StoreId,
    Vitals,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the leader knows about a server beyond the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// The run that sent the newest heartbeat, and its store.
    pub run: Incarnation,
    pub store: StoreId,
    /// The highest position that the store on record is known to have made durable.
    pub position: u64,
    pub heard: Option<Moment>,
    /// The server's own clock in its newest heartbeat: older ones are stale.
    pub sent: Option<Moment>,
    /// A heartbeat whose lease waits until the state says that the server is awake.
    pub owed: Option<Moment>,
    /// By this leader's clock no lease of the server lasts beyond this moment.
    pub granted_until: Moment,
    pub vitals: Vitals,
    pub room: Room,
    pub failed: Option<Failure>,
    /// It failed by silence: how much of it had been borne. Until the same run is heard again.
    pub silenced: Option<Duration>,
    pub grace: Grace,
    /// Its lease is not renewed, so that it can be called failed.
    pub condemned: bool,
    /// A server that its peers could not work with is not taken back before this moment.
    pub shunned_until: Moment,
    pub ready_to_sleep: bool,
    /// Map version that was sent last, and when.
    pub sent_version: u64,
    pub pushed: Moment,
    pub power: Power,
    /// It has woken and is to be asked for its exam.
    pub examine: bool,
    /// When it last answered.
    pub examined: Moment,
}

/// Room left on a server's disk, by its last heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Nearly full: it cannot be a holder.
    pub full: bool,
    /// It holds more offload than it should.
    pub indebted: bool,
}

impl Room {
    /// Each flag stays set until the figure is clearly lower, so that no server is woken and put to sleep again over a
    /// few bytes. `offload_percent`: the debt budget.
    pub fn follow(self, vitals: &Vitals, offload_percent: u8) -> Room {
        let budget = u64::from(offload_percent);
        let percent = |bytes: u64| bytes.saturating_mul(100).checked_div(vitals.capacity_bytes).unwrap_or(0);
        let above = |was: bool, now: u64, (falls, rises): (u64, u64)| now >= if was { falls } else { rises };
        Room {
            full: above(self.full, percent(vitals.used_bytes), FULL_PERCENT),
            indebted: above(self.indebted, percent(vitals.debt_bytes), (budget.div_ceil(4), budget)),
        }
    }
}

/// Used share of its capacity, in percent: below the first a full server counts as free again, from the second on a
/// server is full. Both are below the share at which it refuses writes.
const FULL_PERCENT: (u64, u64) = (85, 90);
const _: () = assert!(FULL_PERCENT.0 < FULL_PERCENT.1 && FULL_PERCENT.1 < 100);

/// Reports about groups, kept until their epoch is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports {
    pub released: BTreeMap<GroupId, Epoch>,
    /// Epochs that wait for permission to serve.
    pub serving: BTreeMap<GroupId, Epoch>,
    pub caught_up: BTreeSet<(GroupId, Epoch, ServerId)>,
    pub covered: BTreeSet<(GroupId, Epoch, ServerId)>,
    /// Columns of sets whose servers have caught up.
    pub columns: BTreeSet<(SetId, Epoch, usize)>,
    /// Sets that want another epoch, to forget deletions under.
    pub remembering: BTreeMap<SetId, Epoch>,
    /// Reporter and suspect: times of the first and the latest report.
    pub suspicions: BTreeMap<(ServerId, ServerId), (Moment, Moment)>,
    /// When a primary, or a server of a set, last reported a block that no awake member has; dropped after
    /// [`DAMAGE_WAKES`].
    pub damaged: BTreeMap<GroupId, Moment>,
}

/// After a report of damage the group's sleeping servers are kept awake for this long. A client that still waits
/// reports again.
pub(crate) const DAMAGE_WAKES: Duration = Duration::from_secs(15);

/// The leader's memory.
pub(crate) struct Leading {
    pub timing: Timing,
    pub switches: Switches,
    pub since: Moment,
    /// From this moment on the process ran without a pause, so it received every heartbeat that was sent.
    pub watching: Moment,
    pub turn: Moment,
    pub unix_millis: u64,
    pub servers: BTreeMap<ServerId, Live>,
    pub reports: Reports,
    pub sets: BTreeMap<SetId, Watch>,
    /// Sets that the last plan wants asleep as a whole.
    pub resting: BTreeSet<SetId>,
    /// How long clients waited for the last sets that were woken.
    pub set_wakes: WakeTimes,
    /// How long servers of the replicated pool took to wake lately, from each depth.
    pub wakes: BTreeMap<Depth, WakeTimes>,
    /// Primaries being moved to even out the awake servers: the epoch in which the move starts, and the successor.
    pub moves: BTreeMap<GroupId, (Epoch, ServerId)>,
    pub gears: Gears,
    /// The newest map version that the servers it concerns were sent, and those of the groups that changed since.
    pub announced: u64,
    pub concerned: BTreeSet<ServerId>,
    /// A batch has been proposed and is not applied yet.
    pub in_flight: bool,
    /// Facts changed since the last plan.
    pub dirty: bool,
    /// Copies are missing, so more servers are kept awake than the gear asks for.
    pub emergency: bool,
    /// Awake servers lack room, so more are kept awake than the gear asks for (R10).
    pub short_of_room: bool,
    /// Servers that are awake since who stood in for them is short of room, and who that is.
    pub relieves: BTreeMap<ServerId, ServerId>,
    /// Servers that the last plan wants awake.
    pub wanted: BTreeSet<ServerId>,
    /// Those of them that are awake because others rely on their waking.
    pub insured: BTreeSet<ServerId>,
    /// A long sleeper that is woken for an exam.
    pub examinee: Option<ServerId>,
    /// What was learnt about switches and is not proposed yet.
    pub facts: Vec<(ServerId, PowerFact)>,
    /// The power test that runs, or the last one.
    pub trial: Option<Trial>,
    /// The newest map version that a server has seen and this metadata has not: while it is ahead, this member leads
    /// nothing (R11).
    pub behind: u64,
    /// When the positions of stores were last recorded.
    pub witnessed: Moment,
    /// When the last plan was made, and what it saw of the groups.
    pub planned: Moment,
    pub seen: Seen,
    pub census: Census,
    /// Unix time since when another server keeps something for it, of each server for which one does.
    pub owed_since: BTreeMap<ServerId, u64>,
    pub latency: LatencySpan,
}

/// What the last plan saw of the groups. Whether an entry is right depends on the entry, on reports about it and on the
/// servers' standings: a group for which none of these changed is not examined again, so a report costs as much in a
/// large cluster as in a small one.
#[derive(Default)]
pub(crate) struct Seen {
    pub version: u64,
    /// Also whether the server restarted, and whether it is full.
    pub standings: Vec<(ServerId, Standing, bool, bool)>,
}

/// Servers as they will be once the batch is applied: those of the replicated pool, or those of erasure-coded ones.
pub(crate) type Servers = BTreeMap<ServerId, ServerEntry>;

/// Whether the server can do nothing for now.
pub(crate) fn is_gone(entry: &ServerEntry) -> bool {
    matches!(entry.state, ServerState::Failed | ServerState::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_in_debt_from_its_budget_on_until_a_quarter_of_it() {
        for (budget, in_debt, still, paid) in [(20, 20, 5, 4), (40, 40, 10, 9), (1, 1, 1, 0)] {
            let owes = |percent| Vitals { debt_bytes: percent, capacity_bytes: 100, ..Vitals::default() };
            let room = Room::default().follow(&owes(in_debt - 1), budget);
            assert!(!room.indebted, "{budget}");
            let mut room = room;
            for (percent, expected) in [(in_debt, true), (still, true), (paid, false), (in_debt - 1, false)] {
                room = room.follow(&owes(percent), budget);
                assert_eq!(room.indebted, expected, "{percent} of {budget}");
            }
        }
    }
}
