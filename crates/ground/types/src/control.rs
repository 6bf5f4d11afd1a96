//! Requests of clients and administrators to the metadata service, and its replies.
//!
//! One request, one reply, on one stream: the transport pairs them. Every reply is linearizable: the leader confirms
//! that it still leads before it replies. `--json` prints the same types (`docs/json.md`), so their field names are
//! stable. Nothing here wakes a server, except [`MetaRequest::Wake`], [`AdminRequest::GearSet`] and
//! [`AdminRequest::MarkLost`].

use crate::{
    ClusterParams, Depth, Epoch, GearGroup, GearPlan, GearSteps, Incarnation, Joules, LatencyStatus,
    LoadTerms, MapDelta, NamespaceAnswer, NamespaceCommand, NamespaceError, NamespaceQuery, NamespaceReply,
    NoticeRecord, ObjectId, PoolEntry, PoolId, RackId, Schedule, Seat, ServerId, ServerPlan, ServerState,
    ServerWish, SetEntry, SetId, StoreId, TestStep, Vitals, Watts, Why,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum object ids per request.
pub const ALLOCATE_MAX: u32 = 1 << 20;

/// A client or an administrator to the metadata service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaRequest {
    /// Asks for the cluster's parameters and the changes of its map since `map_version` (zero: the whole map). From
    /// then on [`crate::MetaPush::Map`] comes on the same stream whenever the map changes.
    Watch {
        map_version: u64,
    },
    /// Asks for a range of object ids that no other request gets, ever. `count`: 1 to [`ALLOCATE_MAX`].
    AllocateObjects {
        count: u32,
    },
    Namespace(NamespaceCommand),
    Query(NamespaceQuery),
    Admin(AdminRequest),
    /// A client needs this set, which hibernates.
    Wake {
        set: SetId,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MetaReply {
    Watch {
        params: ClusterParams,
        map: MapDelta,
    },
    /// Ids `first.0 .. first.0 + count`.
    Objects {
        first: ObjectId,
        count: u32,
    },
    Namespace(NamespaceReply),
    Query(Result<NamespaceAnswer, NamespaceError>),
    Admin(AdminReply),
    /// The set is awake, or will be within the time that nearly all sets took lately.
    Wakes {
        within_millis: u64,
    },
    /// This member does not lead. `leader`: the leader's address, if known. Retry there.
    NotLeader {
        leader: Option<String>,
    },
    Failed(MetaFailure),
}

/// Why the metadata service did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum MetaFailure {
    /// The leader was replaced before the outcome was known: the change may or may not have been made.
    #[error("the metadata leader changed; the outcome is not known: ask again")]
    Unknown,
    #[error(
        "the cluster is not created yet: start the metadata server with its configuration file and retry"
    )]
    NotCreated,
    /// Nothing was changed. Reads continue to work.
    #[error(
        "the metadata server's disk is full: make room on it; reads continue, and writes resume when there is room"
    )]
    Full,
    #[error("{0}")]
    Refused(String),
}

/// An administrator's request. `ebb status`, `ebb gear ...`, `ebb lost ...` are thin wrappers around these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminRequest {
    Status,
    /// Keep this many awake until another request.
    GearSet(GearWish),
    /// Let load and forecast choose the gear.
    GearAuto,
    /// Dry run: what the scheduler would do over the next day.
    GearPlan,
    /// Whether the load is in a trough: no hour of the coming day is to have fewer servers awake, no shift is under
    /// way, and no copies are missing.
    Trough,
    SetSchedule(Schedule),
    /// Add the erasure-coded pool of this name, which the metadata servers' configuration file has and the cluster does
    /// not.
    CreatePool {
        name: String,
    },
    /// The server is gone for good: rebuild its data on others of its gear group or set. Without `accept_loss` it is
    /// refused while a chunk group or rows of an erasure-coded set may depend on it.
    MarkLost {
        server: ServerId,
        accept_loss: bool,
    },
    /// For chunk groups without a complete copy: take the newest data that is left. Without `accept_loss` it is
    /// refused, stating what may be lost.
    Force {
        accept_loss: bool,
    },
    /// Recorded hours, oldest first.
    ListHours,
    /// Finished gear shifts, oldest first.
    ListShifts,
    /// The newest notices of the present leader with a higher number than `after`, oldest first.
    ListNotices {
        after: u64,
    },
    /// Put the server to sleep and wake it again by each of its wake paths in turn. It runs in the background: watch
    /// it with `Status`.
    PowerTest {
        server: ServerId,
    },
    /// Nothing is to depend on the server, and its switch is left alone, until `end`.
    Maintenance {
        server: ServerId,
        end: bool,
    },
    /// A server of the replicated pool comes, leaves, or gets another share. What moves moves in the background: watch
    /// it with `Status`.
    Server(ServerWish),
    /// What would move if this were asked for; `None`: what is left to move.
    ServerPlan(Option<ServerWish>),
}

impl AdminRequest {
    /// Whether it is read-only: then every client may send it. Changes are for administrators.
    pub fn only_asks(&self) -> bool {
        match self {
            AdminRequest::Status
            | AdminRequest::GearPlan
            | AdminRequest::Trough
            | AdminRequest::ListHours
            | AdminRequest::ListShifts
            | AdminRequest::ListNotices { .. }
            | AdminRequest::ServerPlan(_) => true,
            AdminRequest::GearSet(_)
            | AdminRequest::GearAuto
            | AdminRequest::SetSchedule(_)
            | AdminRequest::CreatePool { .. }
            | AdminRequest::MarkLost { .. }
            | AdminRequest::Force { .. }
            | AdminRequest::PowerTest { .. }
            | AdminRequest::Maintenance { .. }
            | AdminRequest::Server(_) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminReply {
    Status(Box<ClusterStatus>),
    /// The change is decided and durable. A gear shift continues in the background: watch it with `Status`.
    Done,
    Plan(Box<GearPlan>),
    Trough(bool),
    Hours(Vec<HourRecord>),
    Shifts(Vec<ShiftRecord>),
    Notices(Vec<NoticeRecord>),
    ServerPlan(Box<ServerPlan>),
}

/// What an administrator wants to be awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GearWish {
    /// A gear, 1 to r: the number of whole gear groups.
    Gear(u8),
    /// A number of servers, the lowest gear's among them.
    Servers(u32),
}

impl fmt::Display for GearWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GearWish::Gear(gear) => write!(f, "gear {gear}"),
            GearWish::Servers(servers) => write!(f, "{servers} servers"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GearMode {
    /// Load and forecast choose.
    Auto,
    /// An administrator chose.
    Manual,
}

/// Everything that `ebb status` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub params: ClusterParams,
    pub map_version: u64,
    pub gear: GearStatus,
    /// In order of their ids.
    pub servers: Vec<ServerStatus>,
    pub groups: GroupCounts,
    /// The erasure-coded pools, in order of their ids.
    pub pools: Vec<PoolStatus>,
    /// Offload that awake servers of the replicated pool keep for others, in bytes.
    pub debt_bytes: u64,
    pub schedule: Schedule,
    /// Notes to the operator: what the hardware cannot provide, what is not switched, which server is given up when.
    pub notes: Vec<String>,
    /// The metadata servers of the configuration file, in order of their ids.
    pub metadata: Vec<MetadataMember>,
    /// Of all servers that have not failed, and of the racks' switches; absent where no leader adds it up.
    pub power: Option<ClusterPower>,
    /// Of all servers, and of the racks' switches; absent where no leader adds it up.
    pub energy: Option<EnergyStatus>,
    /// Absent: the power model has none.
    pub rack_switches: Option<RackSwitchStatus>,
    /// How long clients' requests took, at the servers that answered; absent until the leader has listened for long
    /// enough.
    pub latency: Option<LatencyStatus>,
}

/// The switches of the racks. One whose servers all sleep could sleep, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackSwitchStatus {
    pub racks: u32,
    pub asleep: u32,
    pub modelled_watts: Watts,
}

/// What the cluster draws, and what it would. Modelled, not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPower {
    pub modelled_watts: Watts,
    /// Were all servers awake.
    pub always_on_modelled_watts: Watts,
    /// Were only the [`GearStatus::servers_needed`] of this moment awake, as if switching took neither time nor energy.
    /// What gears do not concern, and the racks' switches, count as they are. A policy that serves the load draws less
    /// only where it spreads it unevenly.
    pub oracle_modelled_watts: Watts,
}

/// Energy of some servers since the metadata leader took over. Modelled, not measured; a failed server counts as idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnergyStatus {
    pub modelled_joules: Joules,
    pub span_millis: u64,
}

/// An erasure-coded pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    pub pool: PoolEntry,
    /// Within this time nearly all sets that hibernated were awake lately, from a client's request on.
    pub wakes_within_millis: u64,
    /// Of its servers; absent where no leader adds it up.
    pub energy: Option<EnergyStatus>,
    pub sets: Vec<SetStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetStatus {
    pub id: SetId,
    pub entry: SetEntry,
    /// What the set's data servers keep for others, all together.
    pub parity_debt_bytes: u64,
    /// The part of that which is in memory only: a power cut of all loses it, and it is computed again.
    pub memory_bytes: u64,
    /// What the set's servers store, each by its last heartbeat: their own strips, and what they keep for others.
    /// Absent until all have been heard.
    pub stored_bytes: Option<u64>,
    /// The data in that. Absent until all data servers have been heard, and while a data column is not in sync.
    pub data_bytes: Option<u64>,
    /// How full the fullest data server's share for what it keeps is, 0 to 1; absent until it has been heard.
    pub fullest: Option<f64>,
    /// The fill at which parity servers are woken, 0 to 1.
    pub threshold: f64,
    /// When that is reached at the present rate; absent while nothing is written, or parity is awake.
    pub next_activation_millis: Option<u64>,
    /// Its servers that are on.
    pub servers_awake: u32,
    /// When it hibernates if no client uses it; absent while it does, and if its pool never lets it.
    pub hibernates_in_millis: Option<u64>,
    /// For how long it has hibernated; absent while it does not.
    pub hibernated_millis: Option<u64>,
}

/// State of a metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataMember {
    pub id: u64,
    /// Counts towards the majority.
    pub votes: bool,
    /// Has joined, and will vote when it has learnt everything. Neither `votes` nor `learns`: it never joined.
    pub learns: bool,
    pub leads: bool,
    /// Time since the leader last heard it, or began to lead; absent for the leader, and for one that never joined.
    pub heard_millis: Option<u64>,
}

impl MetadataMember {
    /// Members answer several times a second: one that has not for this long is down, or cut off.
    pub const SILENT_MILLIS: u64 = 5_000;

    pub fn is_silent(&self) -> bool {
        self.heard_millis.is_some_and(|millis| millis >= MetadataMember::SILENT_MILLIS)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GearStatus {
    pub mode: GearMode,
    /// The target gear: the number of gear groups that are awake, the last one perhaps in part. Servers may still be
    /// shifting.
    pub gear: u8,
    /// How many servers that is.
    pub servers: u32,
    pub steps: GearSteps,
    /// A shift is in progress: some server is not yet in the state that the gear asks for.
    pub shifting: bool,
    /// Servers have no power switches: the gear is hypothetical, and every server stays awake.
    pub dry_run: bool,
    /// More servers than the gear asks for are awake, because awake ones fill up (R10).
    pub short_of_room: bool,
    /// More servers than the gear asks for are awake, because copies are missing (R8).
    pub emergency: bool,
    pub servers_awake: u32,
    /// Load of the last full sample, in servers' worth of work.
    pub load: f64,
    /// Fewest servers that carry that load, and never fewer than gears keep awake: those of an oracle.
    pub servers_needed: u32,
    /// Forecast peak of this hour of day; absent until the hour has been seen once.
    pub forecast: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub id: ServerId,
    pub rack: RackId,
    pub pool: PoolId,
    pub gear_group: GearGroup,
    /// It holds offload only.
    pub logger: bool,
    /// How far it has come into the cluster or out of it, and its share; of no meaning in an erasure-coded pool.
    pub seat: Seat,
    /// Copies of chunk groups that it has.
    pub copies: u32,
    pub address: String,
    pub state: ServerState,
    /// Why it is awake, or may sleep.
    pub why: Why,
    /// How deep it sleeps; absent if it does not. One that has slept since before this leader counts as at the deepest
    /// configured.
    pub depth: Option<Depth>,
    pub incarnation: Incarnation,
    pub store: StoreId,
    /// From the last heartbeat; absent if there was none since this leader took over.
    pub vitals: Option<Vitals>,
    pub heartbeat_age_millis: Option<u64>,
    /// Time left of the lease by the leader's clock; absent without a lease.
    pub lease_left_millis: Option<u64>,
    /// Groups that it is primary of.
    pub primaries: u32,
    /// Slots that it is the holder for.
    pub holder_of: u32,
    /// When the longest-absent server that it holds for went away: none of its debt is older. Absent: it holds for
    /// none.
    pub debt_since_unix_millis: Option<u64>,
    /// Modelled, not measured. Absent where no power model is configured.
    pub modelled_watts: Option<Watts>,
    /// What it draws in that beyond its state, while it goes down to it or comes up; absent: it does neither.
    pub transition_modelled_watts: Option<Watts>,
    /// The last thing that went wrong with its power switch, if it still matters.
    pub switch_trouble: Option<String>,
    pub power: PowerStatus,
}

/// Whether a server may be put to sleep, and what that rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PowerStatus {
    /// The ways to wake it, in the order of the configuration file. Empty: it has no power switch.
    pub paths: Vec<PathStatus>,
    /// Why it is not put to sleep whatever the load, and the remedy; absent: it may sleep.
    pub kept_awake: Option<String>,
    /// Its power cycles since it is part of the cluster: sleeps of a depth that wears.
    pub cycles: u64,
    /// Power cycles that it has saved up; absent with whole gears, which have no budget of them, and where gears do not
    /// concern it.
    pub cycles_saved: Option<f64>,
    /// The last exam; absent until it has had one.
    pub exam: Option<Exam>,
    /// Unix time since when it is in maintenance; absent while it is not.
    pub maintenance_unix_millis: Option<u64>,
    /// It is in maintenance and nothing depends on it any more: it may be stopped.
    pub may_be_stopped: bool,
    /// The power test that runs, or the last one under this leader.
    pub test: Option<PowerTest>,
}

/// A way to wake a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    pub name: String,
    /// It woke the server when it was last tried; or it needs no proof, because both ends are on one machine.
    pub proven: bool,
    /// The last time that it woke the server; absent: never.
    pub success: Option<PathSuccess>,
    /// The last time that it did not; absent: never.
    pub failure: Option<PathFailure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathSuccess {
    pub at_unix_millis: u64,
    /// From the order to wake until the server's first heartbeat.
    pub took_millis: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFailure {
    pub at_unix_millis: u64,
    pub why: String,
}

/// What was found when a server had woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exam {
    pub at_unix_millis: u64,
    /// What is wrong with it, and the remedy. Empty: it passed.
    pub faults: Vec<String>,
}

/// A power test: the server sleeps and wakes once by each path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerTest {
    pub step: TestStep,
    /// The test is given up if this step takes longer; absent: it has ended.
    pub limit_millis: Option<u64>,
    /// The paths tested so far.
    pub results: Vec<PathTest>,
    /// Why the test was given up; absent while it runs, and when it came to its end.
    pub given_up: Option<String>,
}

impl PowerTest {
    /// Whether each of this many paths woke the server.
    pub fn has_passed(&self, paths: usize) -> bool {
        let good = |test: &PathTest| test.woke_millis.is_some();
        self.given_up.is_none() && self.results.len() == paths && self.results.iter().all(good)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTest {
    pub name: String,
    /// From the order to wake until the first heartbeat; absent: the path did not wake it.
    pub woke_millis: Option<u64>,
    /// From the order to wake until all its replicas were in sync.
    pub in_sync_millis: Option<u64>,
    /// Why the path does not count as proven.
    pub trouble: Option<String>,
}

/// Chunk groups by condition. A group counts in each condition that holds for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    pub total: u32,
    /// All r replicas are in sync.
    pub in_sync: u32,
    /// At least one slot is away.
    pub away: u32,
    /// At least one slot is catching up.
    pub catching_up: u32,
    pub without_primary: u32,
    /// No server serves it, or its primary does not serve all its blocks yet, by the servers' last heartbeats.
    pub not_served: u32,
    /// A slot has no target: writes are refused.
    pub without_target: u32,
    /// A holder lacks older offload: some writes have fewer than r copies.
    pub at_risk: u32,
    /// Two copies of current writes are in one rack (R13).
    pub sharing_rack: u32,
    /// A slot moves to another server.
    pub moving: u32,
    pub newest_epoch: Epoch,
}

/// One hour as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HourRecord {
    /// Number of the hour: Unix time divided by the schedule's hour. Its hour of day is `hour % hours_per_day`.
    pub hour: u64,
    /// Highest load of any sample, in servers' worth of work. [Sierra §3.4]
    pub peak_load: f64,
    /// Of that sample; absent where they were not counted.
    pub terms: Option<LoadTerms>,
    /// The forecast for it; absent if nothing was known.
    pub forecast: Option<f64>,
    /// Gear at the end of the hour.
    pub gear: u8,
    /// Servers awake at the end of the hour.
    pub servers_awake: u32,
    /// What continuous gears had learnt by its end; absent with whole gears.
    pub prices: Option<Prices>,
    /// Of all servers since the cluster was created, by its end.
    pub power_cycles: u64,
}

/// What continuous gears have learnt that shortage and wear are worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// Of too few servers, in servers awake for the same time, as a share of all.
    pub shortage: f64,
    /// Of a power cycle, in days of sleep.
    pub power_cycle: f64,
}

/// A gear shift that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShiftRecord {
    /// Unix time at which it was decided.
    pub at_unix_millis: u64,
    pub from_gear: u8,
    pub to_gear: u8,
    /// Servers that the gears before and after it ask for.
    pub from_servers: u32,
    pub to_servers: u32,
    pub why: String,
    pub woken: u32,
    pub put_to_sleep: u32,
    /// Primaries that moved during the shift.
    pub migrations: u32,
    /// From the decision until every server and slot was where the gear wants it.
    pub took_millis: u64,
}
