//! Inputs, outcomes and configuration of a metadata member.
//!
//! A driver (`ebb meta`, the simulator) only carries bytes: it calls `member.on(now, inputs, &mut outcomes)`, carries
//! out the outcomes in order, and calls again when something arrives or when `member.next_wake()` is reached.
//!
//! ```text
//! Member::<L: LogFile>::open(MemberConfig, L, now: Moment, unix_millis: u64) -> Result<Member<L>, RaftError>
//! member.on(now: Moment, Vec<Input>, &mut Vec<Outcome>) -> Result<(), RaftError>     an error: stop, the log is not safe
//! member.next_wake() -> Option<Moment>          None: nothing to do until an input comes
//! member.delta(from_version: u64) -> MapDelta,  member.state() -> &State,  member.is_leader() -> bool
//! trait LogFile: where the log is kept                                                     DiskLog, MemoryLog
//! ```

use ebb_erasure::standby;
use ebb_gear::{Layout, Place, Sleep};
use ebb_types::{
    Bug, ClusterParams, Depth, GearGroup, MapDelta, MetaPush, MetaReply, MetaRequest, Notice, PoolEntry,
    PoolId, RackId, Schedule, ServerId, ServerMessage, SetEntry, SleepOrder, SleepRefusal,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Names a client request that awaits its answer: by the driver's number of the connection, and the request's there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub connection: u64,
    pub id: u64,
}

/// A metadata server's number in the configuration, from 1.
pub type MemberId = u64;

/// Configuration of one member.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    pub id: MemberId,
    /// Every member with its `host:port`, this one included. With one member there are no timers and no messages.
    pub members: BTreeMap<MemberId, String>,
    /// Makes election timeouts differ between members and repeat between runs.
    pub seed: u64,
    /// A shorter log is never rewritten: [`crate::LOG_BYTES`].
    pub log_bytes: usize,
    /// Proposed by the first leader if the cluster does not exist yet. Once it does, these addresses replace the
    /// recorded ones.
    pub bootstrap: Option<Bootstrap>,
    pub timing: Timing,
    /// Servers with power switches. Without any, gears are a dry run and every server stays awake.
    pub switches: Switches,
}

/// The ways to wake each server, tried in this order. A server that is absent, or has none, has no power switch: it is
/// never put to sleep.
pub type Switches = BTreeMap<ServerId, Vec<WakePath>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakePath {
    /// By which its proof is recorded: the driver, and where it has several, which one.
    pub name: String,
    /// Both ends are on this machine: it needs no proof, and no second path beside it.
    pub reliable: bool,
    /// The longest a machine may take to go down or to boot; absent: [`Timing::wake_limit`]. Once it was measured, a
    /// wake-up is late after twice that.
    pub patience: Option<Duration>,
    /// It also puts the server to sleep. One that no path puts to sleep is ordered to do so itself.
    pub puts_to_sleep: bool,
    /// It is a packet, which other servers of the rack send, too.
    pub magic: bool,
}

impl WakePath {
    /// One that wakes a server and puts it to sleep.
    pub fn switch(name: &str, reliable: bool) -> WakePath {
        WakePath { name: name.into(), reliable, patience: None, puts_to_sleep: true, magic: false }
    }
}

/// The delays that the leader applies, all by its own clock.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often a server sends a heartbeat. A lease should be at least three times as long.
    pub heartbeat: Duration,
    /// Added to every lease before it counts as ended: covers the drift between two clocks.
    pub margin: Duration,
    /// A wake-up that takes longer is late: it is reported and retried.
    pub wake_limit: Duration,
    /// A server that has been failed for this long is declared lost and its data is rebuilt; `None`: only by an
    /// administrator. A sleeping server is never failed.
    pub lost_after: Option<Duration>,
    /// Offload that a server may hold, in percent of its capacity: those for which it is held wake when it is reached,
    /// until a quarter of it is left. [Sierra §3.6]
    pub offload_percent: u8,
    /// While there are writes, the positions of the servers' stores are recorded this often.
    pub witness: Duration,
    /// When parity servers of erasure-coded sets sleep and wake.
    pub standby: standby::Settings,
    /// What sleep saves and costs. Its power cycles per day also bound how often a set of an erasure-coded pool may
    /// hibernate: each time costs each of its servers one.
    pub sleep: Sleep,
    /// How deep servers of erasure-coded pools sleep, and all servers when whole gears are shifted.
    pub depth: Depth,
    /// A server that has slept for this long is woken for an exam; `None`: never.
    pub exam_after: Option<Duration>,
    /// A server's clock may differ from the leader's by this much.
    pub skew_limit: Duration,
    /// Time between two Raft ticks; only a group of several members ticks. An election takes 10 to 20 ticks.
    pub raft_tick: Duration,
    /// A defect that the test harness must find. Only builds with the feature `planted-bugs` have any.
    pub planted: Option<PlantedBug>,
}

/// Deliberate defects, to show that the harness finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Gears follow the load without any dwell time.
    ForgetDwell,
    /// Any store that appears under a server's id is taken for the one that was there.
    TrustAnyStore,
    /// A server that restarts before its lease has ended begins no epoch.
    RestartInEpoch,
    /// Every epoch is assumed to have served.
    ForgetFallback,
    /// Parts that the completion of an upload leaves out are not freed.
    KeepLeftOut,
    /// A lost replica does not cause a wake-up.
    LeaveAlone,
    /// A server that was woken to relieve a full one is drained again at once.
    ForgetRelief,
    /// A new holder counts as one that has everything, without its primary's word.
    CoverUnasked,
    /// Holders are chosen as if all servers stood in one rack.
    IgnoreRacks,
    /// A wake-up that does not come is asked for by the same path again.
    OnePath,
    /// Who takes a volume over from a silent owner gets that one's claim.
    SameClaim,
    /// Every wake path counts as proven.
    TrustAnyPath,
    /// A set sleeps as a whole as soon as no client uses it, whatever its columns lack.
    RestOwing,
    /// A server whose disk hangs gets leases.
    TrustStalled,
    /// The namespace keeps no answers: a command that comes twice is carried out twice.
    ForgetAnswers,
    /// A pack that names nothing is freed, although its writer may fill it yet.
    FreeOpenPacks,
    /// The namespace is told of no time that has passed.
    TellNoTime,
    /// A leader leads on, however few servers it hears.
    LeadDeaf,
    /// A server that failed long ago is given up, whatever depends on its disk.
    GiveUpNeeded,
    /// A newcomer counts as a copy from its first moment on.
    CountNewcomers,
}

/// The planted defect as the replicated state knows it, of which it is no part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Planted {
    bug: Option<PlantedBug>,
}

impl Planted {
    pub fn has(self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.bug == Some(bug)
    }
}

impl Timing {
    /// For the state.
    pub(crate) fn planted(&self) -> Planted {
        Planted { bug: self.planted }
    }

    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        self.planted().has(bug)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            heartbeat: Duration::from_millis(500),
            margin: Duration::from_millis(100),
            wake_limit: Duration::from_secs(10),
            lost_after: Some(Duration::from_secs(3600)),
            offload_percent: 20,
            witness: Duration::from_secs(60),
            standby: standby::Settings::default(),
            sleep: Sleep::default(),
            depth: Depth::default(),
            exam_after: Some(Duration::from_secs(30 * 86_400)),
            skew_limit: Duration::from_secs(60),
            raft_tick: Duration::from_millis(50),
            planted: None,
        }
    }
}

/// A new cluster. `groups` comes from `ebb_gear`'s layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    pub params: ClusterParams,
    pub servers: Vec<NewServer>,
    /// Per chunk group its r servers; the k-th belongs to gear group k.
    pub groups: Vec<Vec<ServerId>>,
    pub pools: Vec<PoolEntry>,
    /// The first configuration of each set, in order of their ids: all columns in sync, epoch 1.
    pub sets: Vec<SetEntry>,
    pub schedule: Schedule,
}

impl Bootstrap {
    /// A cluster of one replicated pool.
    pub fn of_layout(
        params: ClusterParams,
        layout: &Layout,
        schedule: Schedule,
        address: impl Fn(ServerId, RackId) -> String,
    ) -> Bootstrap {
        let server = |(id, place): (&ServerId, &Place)| NewServer {
            id: *id,
            rack: place.rack,
            pool: PoolId::REPLICATED,
            gear_group: place.gear_group,
            address: address(*id, place.rack),
        };
        let servers = layout.servers.iter().map(server).collect();
        let (groups, pools, sets) = (layout.groups.clone(), Vec::new(), Vec::new());
        Bootstrap { params, servers, groups, pools, sets, schedule }
    }

    /// The pool of that name.
    pub(crate) fn pool(&self, name: &str) -> Option<NewPool> {
        let pool = self.pools.iter().find(|pool| pool.name == name)?.clone();
        let sets = pool.sets.iter().filter_map(|id| self.sets.get(usize::from(id.0))).cloned().collect();
        let servers = self.servers.iter().filter(|server| server.pool == pool.id).cloned().collect();
        Some(NewPool { pool, sets, servers })
    }
}

/// An erasure-coded pool that comes to a cluster, with servers that are new to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPool {
    pub pool: PoolEntry,
    /// In order of their ids: all columns in sync, epoch 1.
    pub sets: Vec<SetEntry>,
    pub servers: Vec<NewServer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewServer {
    pub id: ServerId,
    pub rack: RackId,
    pub pool: PoolId,
    pub gear_group: GearGroup,
    pub address: String,
}

/// Something that arrived.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message from another member.
    Raft { from: MemberId, message: Vec<u8> },
    /// A message from a chunk server. Followers drop it, so a server that does not know the leader sends it to every
    /// member.
    Server(ServerMessage),
    /// The server was ordered to put its machine to sleep, and stays awake.
    Refuses { server: ServerId, refusal: SleepRefusal },
    /// A request. `is_admin`: of one who may change the cluster.
    Client { token: Token, is_admin: bool, request: MetaRequest },
    /// An [`Outcome::Switch`] finished. A server that woke also sends a heartbeat.
    Switched { server: ServerId, action: SwitchAction, result: Result<(), String> },
}

/// Something for the driver to carry out. What is for an end that has no connection is dropped.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// To another member. Raft sends again what is lost.
    SendRaft { to: MemberId, message: Vec<u8> },
    /// To a chunk server.
    Push { to: ServerId, push: MetaPush },
    /// To the connection that asked.
    Reply { token: Token, reply: MetaReply },
    /// What is new in the map, to a connection that watches it. Not taken: [`crate::Member::unwatch`].
    Map { to: u64, delta: MapDelta },
    /// To a chunk server, which is to put its machine to sleep.
    Order { to: ServerId, order: SleepOrder },
    /// Turn a server on or off, or wait until it has gone to sleep, then answer with [`Input::Switched`].
    Switch { server: ServerId, action: SwitchAction },
    /// Send the packet that wakes the server by this path, and have these others send it.
    Magic { server: ServerId, path: u8, by: Vec<ServerId> },
    /// For the operator's log: what was decided and why.
    Notice(Notice),
    /// The state refused one of the controller's own decisions because it breaks this rule: a bug, harmless so far.
    Broken(String),
    /// What cannot happen was met: log it.
    Bug(Bug),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwitchAction {
    /// By the path of this number in [`Switches`].
    Wake {
        path: u8,
    },
    Sleep(Depth),
}

impl fmt::Display for SwitchAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwitchAction::Wake { path: 0 } => f.write_str("wake"),
            SwitchAction::Wake { path } => write!(f, "wake by path {path}"),
            SwitchAction::Sleep(Depth::Standby) => f.write_str("sleep"),
            SwitchAction::Sleep(Depth::Off) => f.write_str("go off"),
        }
    }
}

impl SwitchAction {
    pub fn is_wake(self) -> bool {
        matches!(self, SwitchAction::Wake { .. })
    }
}
