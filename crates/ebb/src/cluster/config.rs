//! The cluster's configuration: one TOML file, the same on every machine. `examples/cluster.toml` is an annotated
//! example.
//!
//! Every process of the cluster is started with this file and, if there are several of its kind, its id. Unknown keys
//! are errors: a misspelt option that is silently ignored costs an operator a night. Relative paths are relative to the
//! file's directory. TOML has no word for `None`: such a field is left out.

use crate::cluster::pools::{self, Placed, PoolError, PoolSection};
use crate::mirror::drivers::DriverKind;
use ebb_erasure::standby;
use ebb_gear::layout::{Scheme, groups, layout};
use ebb_gear::{DepthCost, Sleep};
use ebb_meta::{Bootstrap, SEAT_MAX, Timing};
use ebb_mirror::{Ack, PolicyKind};
use ebb_power::switch::{Fields, open};
use ebb_power::{Launch, Managed, OwnMachine, PowerModel, SwitchError, Switches};
use ebb_types::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, ClusterParams, Depth, GearSteps, Joules, RackId, Schedule, ServerId,
    Watts, numbers_in_words,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most chunk groups of a server: each is a configuration that the metadata service keeps and looks at.
const GROUPS_PER_SERVER_MOST: u32 = 4096;
const MIB: u64 = 1 << 20;
/// What `[[server.power]]` is for a server without one, if the cluster's switch is `process`.
const PROCESS: &str = "driver = \"process\"";
/// Longer than any sleep: for servers that save nothing by sleeping.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

const DAY_SECONDS: u64 = 86_400;
/// Fill at which parity servers are woken while a data server of their set is failed or rebuilt: about half of what is
/// owed else, since the disks that would send it are read for the rebuild [ECS² §6].
const THRESHOLD_WHILE_FAILED: f64 = 0.5;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub cluster: ClusterSection,
    #[serde(default)]
    pub scheduler: SchedulerSection,
    #[serde(default)]
    pub scrub: ScrubSection,
    #[serde(default)]
    pub reclaim: ReclaimSection,
    #[serde(default)]
    pub power: PowerSection,
    #[serde(default)]
    pub mirror: MirrorSection,
    pub meta: Vec<MetaSection>,
    /// Erasure-coded pools, beside the replicated one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pool: Vec<PoolSection>,
    pub server: Vec<ServerSection>,
    #[serde(default)]
    pub gateway: Vec<GatewaySection>,
    /// The file this was read from. Relative paths start at its directory.
    #[serde(skip)]
    pub file: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// 16 hexadecimal digits, unique to this cluster: `head -c 8 /dev/urandom | xxd -p`.
    pub id: String,
    /// Secret from which all keys are derived: for metadata servers and administrators. Readable by its owner only,
    /// like the next two.
    pub secret_file: PathBuf,
    /// The keys of chunk servers; absent: `secret_file`.
    pub server_secret_file: Option<PathBuf>,
    /// The keys of gateways, which cannot change the cluster; absent: `secret_file`.
    pub gateway_secret_file: Option<PathBuf>,
    #[serde(default = "small::<3>")]
    pub replicas: u8,
    #[serde(default = "number::<64>")]
    pub chunk_mib: u32,
    /// Chunk groups: as many per server of the replicated pool. [Sierra §3.5]
    #[serde(default = "number::<64>")]
    pub groups_per_server: u32,
    /// Chunk groups that the cluster was founded with; absent: `groups_per_server` for each `[[server]]` of the
    /// replicated pool. Needed once servers have come or left.
    pub groups: Option<u32>,
    #[serde(default = "rotated")]
    pub layout: Scheme,
    #[serde(default = "number::<3000>")]
    pub lease_millis: u32,
    #[serde(default = "number::<1000>")]
    pub heartbeat_millis: u32,
    /// A server that has failed for this long is declared lost, and its data is rebuilt on others. Zero: only by `ebb
    /// lost`.
    #[serde(default = "number::<3600>")]
    pub lost_after_seconds: u32,
    /// Offload that a server may hold for sleepers, in percent of its capacity: then those for which it holds any are
    /// woken and take it, until a quarter of that is left.
    #[serde(default = "small::<20>")]
    pub offload_percent: u8,
}

impl ClusterSection {
    pub fn secret_of_servers(&self) -> &Path {
        self.server_secret_file.as_deref().unwrap_or(&self.secret_file)
    }

    pub fn secret_of_gateways(&self) -> &Path {
        self.gateway_secret_file.as_deref().unwrap_or(&self.secret_file)
    }
}

fn small<const N: u8>() -> u8 {
    N
}
fn number<const N: u32>() -> u32 {
    N
}
fn rotated() -> Scheme {
    Scheme::Rotated
}

/// Initial settings of the gear scheduler; `ebb gear` and `ebb lab replay` change it at run time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerSection {
    /// Length of the scheduler's hour: a shorter one rehearses a day in minutes.
    pub hour_seconds: f64,
    pub hours_per_day: u32,
    /// What is woken and put to sleep at a time: single servers, or whole gears.
    pub steps: GearSteps,
    /// What one server sustains.
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_mb_per_second: f64,
    pub write_mb_per_second: f64,
    pub g_min: u8,
    pub dwell_seconds: f64,
    pub lead_seconds: f64,
    /// Share of the time with too few servers awake that is accepted.
    pub short_goal: f64,
    pub rotate_days: u32,
}

impl Default for SchedulerSection {
    fn default() -> Self {
        let s = Schedule::default();
        SchedulerSection {
            hour_seconds: s.hour_millis as f64 / 1e3,
            hours_per_day: s.hours_per_day,
            steps: s.steps,
            read_iops: s.read_iops,
            write_iops: s.write_iops,
            read_mb_per_second: s.read_bytes_per_second / 1e6,
            write_mb_per_second: s.write_bytes_per_second / 1e6,
            g_min: s.g_min,
            dwell_seconds: s.dwell_millis as f64 / 1e3,
            lead_seconds: s.lead_millis as f64 / 1e3,
            short_goal: s.short_goal,
            rotate_days: s.rotate_days,
        }
    }
}

/// Reading and comparing all copies, so that damage is found while another copy still exists to repair it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScrubSection {
    /// Every replica is scrubbed once in this time: in quiet hours once half of it has passed, whatever the load once
    /// all of it has. Zero: never.
    pub period_seconds: u64,
    /// Read rate per server for scrubbing, all copies together; a quarter of it under load.
    pub bytes_per_second: u64,
}

impl Default for ScrubSection {
    fn default() -> Self {
        ScrubSection { period_seconds: 30 * 24 * 3600, bytes_per_second: 16 << 20 }
    }
}

/// What a server that wakes fetches from those that held it meanwhile.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReclaimSection {
    /// It fetches at the rate that takes this long. Zero: as fast as it can.
    pub within_seconds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchDriver {
    /// They are processes on the metadata server's machine.
    #[default]
    Process,
    /// They are not switched. If none is, gears are planned, but no server sleeps.
    None,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PowerSection {
    /// Of servers without a `[[server.power]]`.
    pub switch: SwitchDriver,
    /// How deep servers sleep, if `depths` does not say what they can choose from.
    pub depth: Depth,
    /// The commands by which a server's machine suspends itself, and turns itself off: program and arguments.
    pub suspend: Vec<String>,
    pub off: Vec<String>,
    /// How often a server may go to sleep in a day, on average, and a set of a pool with `hibernate_after`: each time
    /// is a power cycle.
    pub cycles_per_day: f64,
    /// Days of sleep after which a server is woken for an exam; 0: never.
    pub exam_days: u32,
    pub model: PowerModel,
    /// Absent: `depth`, which counts as a power cycle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depths: Vec<DepthSection>,
}

/// A depth of sleep that servers of the replicated pool choose from. Its watts are those of the power model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthSection {
    pub depth: Depth,
    /// From waking a server until it serves; needed until it has been measured.
    pub wake_seconds: Option<f64>,
    /// It counts as a power cycle. Absent: only `off` does.
    pub wears: Option<bool>,
    /// Of going down and coming up. Absent: those of the power model.
    pub joules: Option<f64>,
}

impl Default for PowerSection {
    fn default() -> Self {
        PowerSection {
            switch: SwitchDriver::default(),
            depth: Depth::default(),
            suspend: ["systemctl", "suspend"].map(str::to_owned).to_vec(),
            off: ["systemctl", "poweroff"].map(str::to_owned).to_vec(),
            cycles_per_day: Sleep::default().cycles_per_day,
            exam_days: 30,
            model: PowerModel::default(),
            depths: Vec::new(),
        }
    }
}

/// The mirrors of servers with two disks. The defaults are those of `ebb mirror`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MirrorSection {
    /// Part of each disk that takes writes at low speed; 0: none. Fixed with a server's first start.
    pub log_mib: u64,
    pub driver: DriverKind,
    /// Figures of the emulated disk, TOML; absent: the disk of the LogStore paper.
    pub disk_model: Option<PathBuf>,
    /// Absent: LogStore, or one speed with driver none.
    pub policy: Option<PolicyKind>,
    pub ack: Ack,
    /// A server starts although one of its disks is missing.
    pub degraded: bool,
}

impl Default for MirrorSection {
    fn default() -> Self {
        MirrorSection {
            log_mib: 3 << 10,
            driver: DriverKind::None,
            disk_model: None,
            policy: None,
            ack: Ack::Safe,
            degraded: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetaSection {
    pub id: u64,
    pub address: String,
    /// Where scrapers find `/metrics`, and in `/sd` what else there is; absent: nowhere.
    pub metrics: Option<String>,
    pub data: PathBuf,
}

/// What a server keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Chunks, and offload of others.
    #[default]
    Chunks,
    /// Offload only: it never sleeps. [Sierra §3.6]
    Logger,
}

impl Role {
    fn is_chunks(&self) -> bool {
        *self == Role::Chunks
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSection {
    pub id: u16,
    pub rack: u16,
    #[serde(default, skip_serializing_if = "Role::is_chunks")]
    pub role: Role,
    /// The `[[pool]]` that it belongs to; absent: the replicated one.
    pub pool: Option<String>,
    pub address: String,
    /// Where scrapers find `/metrics`; absent: nowhere.
    pub metrics: Option<String>,
    pub data: PathBuf,
    /// Block devices or files: the data lies on a mirror of both, and `data` has only what finds it. Absent: in `data`.
    pub disks: Option<[PathBuf; 2]>,
    /// Most space to use; absent: the size of the file system, or of the mirror.
    pub capacity_mib: Option<u64>,
    /// How it is woken, the usual way first: the driver's name and its fields (docs/switches.md). Absent: by
    /// `power.switch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power: Vec<toml::Table>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySection {
    pub address: String,
    /// Where scrapers find `/metrics`; absent: nowhere.
    pub metrics: Option<String>,
    /// TOML tables of access keys with their secrets and rights, see `ebb key`; readable by its owner only.
    pub keys_file: PathBuf,
    /// Domains that the gateway serves: `bucket.domain` is a bucket's host name. `localhost` is always one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// At this rate objects move to other pools by lifecycle rules, in troughs of the load. Zero: this gateway moves
    /// none.
    #[serde(default = "moved_per_second")]
    pub move_bytes_per_second: u64,
    /// Lifecycle rules remove at most this many objects and uploads in one round, which is a day.
    #[serde(default = "expired_at_most")]
    pub expire_most: u64,
}

/// So many that a gateway deletes them within minutes; a rule or a clock that is wrong does not empty a large bucket
/// overnight.
pub fn expired_at_most() -> u64 {
    100_000
}

/// Like that of a scrub.
pub fn moved_per_second() -> u64 {
    16 << 20
}

/// Why a configuration cannot be used. Each error names the setting and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}", unreadable(.path, .source))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {}", numbers_in_words(&.source.to_string()))]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error(
        "cluster.id is {found:?} and must be 16 hexadecimal digits, not all zero; make one with `head -c 8 /dev/urandom | xxd -p`"
    )]
    ClusterId { found: String },
    #[error("cluster.chunk_mib is {found} and must be a power of two from {min} to {max}")]
    ChunkSize { found: u32, min: u64, max: u64 },
    #[error(
        "cluster.groups_per_server is {found} and must be from 1 to {GROUPS_PER_SERVER_MOST}; 64 spreads a lost server's data well"
    )]
    GroupsPerServer { found: u32 },
    #[error(
        "cluster.offload_percent is {found} and must be from 1 to 80: from 85 % of its capacity on a server is full and holds nothing more"
    )]
    Offload { found: u8 },
    #[error("cluster.replicas is {found} and must be 2, 3 or 4")]
    Replicas { found: u8 },
    #[error(
        "cluster.layout: {name} spreads replicas without gear groups, so no server could sleep; use rotated or rack-aligned"
    )]
    Layout { name: String },
    #[error(
        "cluster.lease_millis ({lease}) must be at least three times cluster.heartbeat_millis ({heartbeat}), so that one lost heartbeat ends no lease"
    )]
    Lease { lease: u32, heartbeat: u32 },
    #[error("[[meta]] has id {found} and must have one from 1 to {SEAT_MAX}")]
    MetaId { found: u64 },
    #[error("[[{section}]] has id {id} twice: give each its own")]
    DuplicateId { section: &'static str, id: u64 },
    #[error("{first} and {second} share the address {address}: give each its own port")]
    OverlappingAddress { address: String, first: String, second: String },
    #[error("{first} and {second} share the data directory {data}: give each its own")]
    OverlappingData { data: PathBuf, first: String, second: String },
    #[error("{first} and {second} share the disk {disk}: a mirror has two disks of its own")]
    OverlappingDisk { disk: PathBuf, first: String, second: String },
    #[error(
        "server {server} is a logger of pool {pool:?}: loggers are for the replicated pool, so leave pool out"
    )]
    LoggerInPool { server: u16, pool: String },
    #[error("mirror.disk_model is for driver = \"emulated\": give both or neither")]
    ModelUnused,
    #[error("mirror.policy is for disks of two speeds: give mirror.driver, or leave it out")]
    PolicyUnused,
    #[error("{who}: {address:?} is not an address (host:port): {problem}")]
    Address { who: String, address: String, problem: String },
    #[error("there is no [[{section}]] with id {id}; the file has {known}")]
    UnknownId { section: &'static str, id: u64, known: String },
    #[error("the file has no [[{section}]]")]
    NoSection { section: &'static str },
    #[error("the number of [[meta]] servers is {found} and must be 1, 3 or 5: a majority decides")]
    MetaCount { found: usize },
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Layouting(#[from] ebb_gear::layout::LayoutError),
    #[error(transparent)]
    Power(#[from] ebb_power::ModelError),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error("power.{name} is empty: it is a program and its arguments, such as [\"systemctl\", \"{name}\"]")]
    NoCommand { name: &'static str },
    #[error(
        "power.cycles_per_day is {found} and must be at least 1: the power cycles that a server bears in a day"
    )]
    Cycles { found: f64 },
    #[error(
        "scrub.bytes_per_second is 0 and must be positive; to scrub nothing, set scrub.period_seconds to 0"
    )]
    ScrubRate,
    #[error(
        "power.depths: {depth} has no wake_seconds, or one that is not a positive number: set it to the time from waking such a \
         server until it serves; `ebb simulate load --suspend` shows what it is worth"
    )]
    DepthWake { depth: &'static str },
    #[error("power.depths: {depth} is listed twice: a depth has one set of figures")]
    DepthTwice { depth: &'static str },
    #[error("power.depths: {depth} takes {joules} joules, which must be a number that is not negative")]
    DepthJoules { depth: &'static str, joules: f64 },
    #[error("scheduler.{name} is {value} and must be {must}")]
    Scheduler { name: &'static str, value: f64, must: &'static str },
}

pub fn depth_name(depth: Depth) -> &'static str {
    match depth {
        Depth::Standby => "standby",
        Depth::Off => "off",
    }
}

impl Config {
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config: Config = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.file = std::path::absolute(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        config.check()?;
        Ok(config)
    }

    pub fn path(&self, relative: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new(".")).join(relative)
    }

    pub fn check(&self) -> Result<(), ConfigError> {
        let c = &self.cluster;
        self.cluster_id()?;
        let chunk = u64::from(c.chunk_mib) * MIB;
        if !c.chunk_mib.is_power_of_two()
            || chunk < u64::from(CHUNK_BYTES_MIN)
            || chunk > u64::from(CHUNK_BYTES_MAX)
        {
            let (min, max) = (u64::from(CHUNK_BYTES_MIN) / MIB, u64::from(CHUNK_BYTES_MAX) / MIB);
            return Err(ConfigError::ChunkSize { found: c.chunk_mib, min, max });
        }
        if !(1..=GROUPS_PER_SERVER_MOST).contains(&c.groups_per_server) {
            return Err(ConfigError::GroupsPerServer { found: c.groups_per_server });
        }
        if !(1..=80).contains(&c.offload_percent) {
            return Err(ConfigError::Offload { found: c.offload_percent });
        }
        if !(2..=4).contains(&c.replicas) {
            return Err(ConfigError::Replicas { found: c.replicas });
        }
        if !c.layout.is_power_aware() {
            return Err(ConfigError::Layout { name: c.layout.to_string() });
        }
        if c.heartbeat_millis == 0 || c.lease_millis < 3 * c.heartbeat_millis {
            return Err(ConfigError::Lease { lease: c.lease_millis, heartbeat: c.heartbeat_millis });
        }
        if ![1, 3, 5].contains(&self.meta.len()) {
            return Err(ConfigError::MetaCount { found: self.meta.len() });
        }
        if self.server.is_empty() {
            return Err(ConfigError::NoSection { section: "server" });
        }
        if let Some(found) = self.meta.iter().map(|m| m.id).find(|id| !(1..=SEAT_MAX).contains(id)) {
            return Err(ConfigError::MetaId { found });
        }
        unique("meta", self.meta.iter().map(|m| m.id))?;
        unique("server", self.server.iter().map(|s| u64::from(s.id)))?;
        let in_pool = |s: &ServerSection| s.pool.clone().filter(|_| s.role == Role::Logger);
        if let Some((server, pool)) = self.server.iter().find_map(|s| Some((s.id, in_pool(s)?))) {
            return Err(ConfigError::LoggerInPool { server, pool });
        }
        self.check_places()?;
        self.check_scheduler()?;
        self.check_mirror()?;
        if self.scrub.bytes_per_second == 0 {
            return Err(ConfigError::ScrubRate);
        }
        self.check_power()?;
        self.check_depths()?;
        let break_even = self
            .break_even(self.power.model.idle)
            .map(|time| time.saturating_add(Duration::from_secs_f64(self.power.model.down.seconds)));
        pools::check(&self.pool, &self.placed(), c.replicas, self.params()?.chunk_bytes, break_even)?;
        self.bootstrap().map(|_| ())
    }

    fn check_power(&self) -> Result<(), ConfigError> {
        self.power.model.check()?;
        let cycles = self.power.cycles_per_day;
        if !(cycles.is_finite() && cycles >= 1.0) {
            return Err(ConfigError::Cycles { found: cycles });
        }
        for (name, command) in [("suspend", &self.power.suspend), ("off", &self.power.off)] {
            if command.first().is_none_or(String::is_empty) {
                return Err(ConfigError::NoCommand { name });
            }
        }
        let (paths, depths) =
            (self.power_paths(|_| None)?, self.power.depths.iter().map(|section| section.depth));
        let depths: BTreeSet<Depth> = depths.chain([self.deepest()]).collect();
        Ok(depths.into_iter().try_for_each(|depth| paths.check(depth))?)
    }

    /// The power paths of all servers. Touches nothing: neither files nor controllers. `launch`: how a server's process
    /// is started.
    pub fn power_paths(
        &self,
        launch: impl Fn(&ServerSection) -> Option<Launch>,
    ) -> Result<Switches, SwitchError> {
        let base = self.file.parent().unwrap_or(Path::new(".")).to_owned();
        let mut switches = Switches::default();
        for section in &self.server {
            let server = ServerId(section.id);
            let process = Managed { data: self.path(&section.data), launch: launch(section) };
            let default = match self.power.switch {
                SwitchDriver::Process => vec![toml::from_str(PROCESS).expect("it is TOML")],
                SwitchDriver::None => Vec::new(),
            };
            let tables = if section.power.is_empty() { default } else { section.power.clone() };
            let opened = tables
                .into_iter()
                .map(|table| open(Fields::new(server, table, base.clone(), process.clone())).transpose());
            switches.add(server, opened.flatten().collect::<Result<_, _>>()?)?;
        }
        Ok(switches)
    }

    /// The machine of a server, which puts it to sleep.
    pub fn own_machine(&self, section: &ServerSection) -> Result<OwnMachine, SwitchError> {
        let switches = self.power_paths(|_| None)?;
        let paths = switches.paths(ServerId(section.id)).iter();
        let macs = paths.filter_map(|path| Some(path.about().magic.as_ref()?.mac)).collect();
        Ok(OwnMachine::new(self.power.suspend.clone(), self.power.off.clone(), macs))
    }

    /// No two processes share a port, and no two of one machine share a directory or a disk.
    fn check_places(&self) -> Result<(), ConfigError> {
        let meta = self
            .meta
            .iter()
            .map(|m| (format!("meta {}", m.id), [Some(&m.address), m.metrics.as_ref()], Some(&m.data)));
        let server = self
            .server
            .iter()
            .map(|s| (format!("server {}", s.id), [Some(&s.address), s.metrics.as_ref()], Some(&s.data)));
        let gateway = (1..)
            .zip(&self.gateway)
            .map(|(n, g)| (format!("gateway {n}"), [Some(&g.address), g.metrics.as_ref()], None));
        let mut addresses = BTreeMap::new();
        let mut data: BTreeMap<PathBuf, Vec<(String, String)>> = BTreeMap::new();
        for (who, of_it, directory) in meta.chain(server).chain(gateway) {
            for address in of_it.into_iter().flatten() {
                resolve(&who, address)?;
                if let Some(first) = addresses.insert(address.clone(), who.clone()) {
                    let address = address.clone();
                    return Err(ConfigError::OverlappingAddress { address, first, second: who });
                }
            }
            let Some((directory, address)) = directory.zip(of_it[0]) else { continue };
            let there = data.entry(directory.clone()).or_default();
            if let Some(first) = on_one_machine(there, address) {
                return Err(ConfigError::OverlappingData { data: directory.clone(), first, second: who });
            }
            there.push((address.clone(), who));
        }
        let mut disks: BTreeMap<PathBuf, Vec<(String, String)>> = BTreeMap::new();
        for server in &self.server {
            for disk in server.disks.iter().flatten() {
                let second = format!("server {}", server.id);
                let there = disks.entry(disk.clone()).or_default();
                if let Some(first) = on_one_machine(there, &server.address) {
                    return Err(ConfigError::OverlappingDisk { disk: disk.clone(), first, second });
                }
                there.push((server.address.clone(), second));
            }
        }
        Ok(())
    }

    fn check_mirror(&self) -> Result<(), ConfigError> {
        let mirror = &self.mirror;
        match (mirror.driver, mirror.policy) {
            (driver, _) if driver != DriverKind::Emulated && mirror.disk_model.is_some() => {
                Err(ConfigError::ModelUnused)
            }
            (DriverKind::None, Some(policy)) if policy != PolicyKind::OneSpeed => {
                Err(ConfigError::PolicyUnused)
            }
            _ => Ok(()),
        }
    }

    fn check_scheduler(&self) -> Result<(), ConfigError> {
        let s = &self.scheduler;
        let positive = [
            ("hour_seconds", s.hour_seconds),
            ("read_iops", s.read_iops),
            ("write_iops", s.write_iops),
            ("read_mb_per_second", s.read_mb_per_second),
            ("write_mb_per_second", s.write_mb_per_second),
            ("hours_per_day", f64::from(s.hours_per_day)),
        ];
        for (name, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::Scheduler { name, value, must: "a positive number" });
            }
        }
        for (name, value) in [("dwell_seconds", s.dwell_seconds), ("lead_seconds", s.lead_seconds)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(ConfigError::Scheduler { name, value, must: "a number that is not negative" });
            }
        }
        if s.g_min == 0 || s.g_min > self.cluster.replicas {
            let value = f64::from(s.g_min);
            return Err(ConfigError::Scheduler {
                name: "g_min",
                value,
                must: "between 1 and cluster.replicas",
            });
        }
        if !(s.short_goal > 0.0 && s.short_goal <= 0.5) {
            let value = s.short_goal;
            return Err(ConfigError::Scheduler {
                name: "short_goal",
                value,
                must: "above 0 and at most 0.5: the share of the time with too few servers awake",
            });
        }
        Ok(())
    }

    pub fn cluster_id(&self) -> Result<u64, ConfigError> {
        let id = &self.cluster.id;
        let parsed = if id.len() == 16 { u64::from_str_radix(id, 16).ok() } else { None };
        parsed.filter(|&id| id != 0).ok_or_else(|| ConfigError::ClusterId { found: id.clone() })
    }

    pub fn params(&self) -> Result<ClusterParams, ConfigError> {
        Ok(ClusterParams {
            cluster: self.cluster_id()?,
            instance: 0,
            chunk_bytes: self.cluster.chunk_mib << 20,
            replicas: self.cluster.replicas,
            groups: self.cluster.groups.unwrap_or_else(|| {
                groups(pools::of_pool(&self.placed(), None).len(), self.cluster.groups_per_server)
            }),
            lease_millis: self.cluster.lease_millis,
        })
    }

    fn placed(&self) -> Vec<Placed<'_>> {
        let all = self.server.iter().map(|s| Placed {
            id: ServerId(s.id),
            rack: RackId(s.rack),
            pool: s.pool.as_deref(),
            logger: s.role == Role::Logger,
            address: &s.address,
        });
        all.collect()
    }

    /// Of the replicated pool.
    pub fn layout(&self) -> Result<ebb_gear::layout::Layout, ConfigError> {
        let servers = pools::of_pool(&self.placed(), None);
        let params = self.params()?;
        Ok(layout(&servers, params.replicas, params.groups, params.cluster, self.cluster.layout)?)
    }

    pub fn schedule(&self) -> Schedule {
        let s = &self.scheduler;
        Schedule {
            hour_millis: ((s.hour_seconds * 1e3) as u64).max(1),
            hour_zero_unix_millis: 0,
            hours_per_day: s.hours_per_day,
            steps: s.steps,
            read_iops: s.read_iops,
            write_iops: s.write_iops,
            read_bytes_per_second: s.read_mb_per_second * 1e6,
            write_bytes_per_second: s.write_mb_per_second * 1e6,
            g_min: s.g_min,
            dwell_millis: (s.dwell_seconds * 1e3) as u64,
            lead_millis: (s.lead_seconds * 1e3) as u64,
            short_goal: s.short_goal,
            rotate_days: s.rotate_days,
        }
    }

    pub fn timing(&self) -> Timing {
        let lost_after = Duration::from_secs(self.cluster.lost_after_seconds.into());
        let exam_after = Duration::from_secs(u64::from(self.power.exam_days) * DAY_SECONDS);
        Timing {
            heartbeat: Duration::from_millis(self.cluster.heartbeat_millis.into()),
            lost_after: Some(lost_after).filter(|time| !time.is_zero()),
            offload_percent: self.cluster.offload_percent,
            standby: self.standby(),
            sleep: self.sleep(),
            depth: self.deepest(),
            exam_after: Some(exam_after).filter(|time| !time.is_zero()),
            ..Timing::default()
        }
    }

    fn check_depths(&self) -> Result<(), ConfigError> {
        for (nth, section) in self.power.depths.iter().enumerate() {
            let depth = depth_name(section.depth);
            if self.power.depths[..nth].iter().any(|other| other.depth == section.depth) {
                return Err(ConfigError::DepthTwice { depth });
            }
            if !section.wake_seconds.is_some_and(|seconds| seconds.is_finite() && seconds > 0.0) {
                return Err(ConfigError::DepthWake { depth });
            }
            if let Some(joules) = section.joules.filter(|joules| !(joules.is_finite() && *joules >= 0.0)) {
                return Err(ConfigError::DepthJoules { depth, joules });
            }
        }
        Ok(())
    }

    /// By the power model of this file.
    fn sleep(&self) -> Sleep {
        let PowerModel { idle, standby, off, up, down, .. } = self.power.model;
        let cost = |depth| {
            let section = self.power.depths.iter().find(|section| section.depth == depth);
            let alone = self.power.depths.is_empty() && depth == self.power.depth;
            (section.is_some() || alone).then(|| DepthCost {
                watts: if depth == Depth::Off { off } else { standby },
                joules: section.and_then(|s| s.joules).map_or(up.joules + down.joules, Joules),
                wake: section.and_then(|s| s.wake_seconds).map(Duration::from_secs_f64),
                wears: section.is_none_or(|s| s.wears.unwrap_or(depth == Depth::Off)),
            })
        };
        let cycles_per_day = self.power.cycles_per_day;
        Sleep { idle, standby: cost(Depth::Standby), off: cost(Depth::Off), cycles_per_day }
    }

    /// What a sleeper is taken for whose depth is not known.
    pub fn deepest(&self) -> Depth {
        self.power.depths.iter().map(|section| section.depth).max().unwrap_or(self.power.depth)
    }

    /// By the power model of this file. A parity server that stays awake takes writes, so it draws what a lightly
    /// loaded server does.
    fn standby(&self) -> standby::Settings {
        let PowerModel { light, up, down, .. } = self.power.model;
        standby::Settings {
            up: Duration::from_secs_f64(up.seconds),
            down: Duration::from_secs_f64(down.seconds),
            break_even: self.break_even(light).unwrap_or(NEVER),
            threshold_while_failed: THRESHOLD_WHILE_FAILED,
            ..standby::Settings::default()
        }
    }

    /// The shortest sleep that saves energy, of a server that else draws `awake`; `None`: none does.
    fn break_even(&self, awake: Watts) -> Option<Duration> {
        let PowerModel { up, down, .. } = self.power.model;
        let asleep = self.power.model.asleep(self.deepest()).watts;
        let saved = (awake.0 - asleep.0).max(f64::EPSILON);
        let time = Duration::try_from_secs_f64((up.joules.0 + down.joules.0) / saved).ok();
        time.filter(|time| *time < NEVER)
    }

    pub fn bootstrap(&self) -> Result<Bootstrap, ConfigError> {
        let address = |id: ServerId, _| {
            let section = self.server.iter().find(|s| s.id == id.0);
            section.expect("the layout has the file's servers").address.clone()
        };
        let mut bootstrap = Bootstrap::of_layout(self.params()?, &self.layout()?, self.schedule(), address);
        bootstrap.servers.extend(pools::loggers(&self.placed()));
        pools::found(&self.pool, &self.placed(), &mut bootstrap)?;
        Ok(bootstrap)
    }

    pub fn meta_addresses(&self) -> Vec<String> {
        self.meta.iter().map(|m| m.address.clone()).collect()
    }

    pub fn meta_section(&self, id: Option<u64>) -> Result<&MetaSection, ConfigError> {
        match &self.meta[..] {
            [only] if id.is_none() => Ok(only),
            all => section("meta", all, |m| m.id, id.unwrap_or(0)),
        }
    }

    pub fn server_section(&self, id: u16) -> Result<&ServerSection, ConfigError> {
        section("server", &self.server, |s| s.id.into(), id.into())
    }
}

fn section<'a, S>(
    section: &'static str,
    all: &'a [S],
    id_of: fn(&S) -> u64,
    id: u64,
) -> Result<&'a S, ConfigError> {
    let known = || format!("{:?}", all.iter().map(id_of).collect::<Vec<_>>());
    let found = all.iter().find(|one| id_of(one) == id);
    found.ok_or_else(|| ConfigError::UnknownId { section, id, known: known() })
}

fn unreadable(path: &Path, source: &std::io::Error) -> String {
    let path = path.display();
    match source.kind() {
        ErrorKind::NotFound => {
            format!("cannot read {path}: {source}; name the cluster's configuration file with --config")
        }
        ErrorKind::IsADirectory => {
            format!("{path} is a directory: name the file in it, such as --config {path}/cluster.toml")
        }
        _ => format!("cannot read {path}: {source}; it must be a text that this user may read"),
    }
}

fn unique(section: &'static str, ids: impl Iterator<Item = u64>) -> Result<(), ConfigError> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if !seen.insert(id) {
            return Err(ConfigError::DuplicateId { section, id });
        }
    }
    Ok(())
}

fn resolve(who: &str, address: &str) -> Result<SocketAddr, ConfigError> {
    let problem =
        |problem: String| ConfigError::Address { who: who.to_owned(), address: address.to_owned(), problem };
    let mut found = address.to_socket_addrs().map_err(|e| problem(e.to_string()))?;
    found.next().ok_or_else(|| problem("the name has no address".into()))
}

/// Which of these processes, each with its address, is on the machine of `address`. A machine of two names is not
/// recognised: there, the lock in the directory stops the second process.
fn on_one_machine(there: &[(String, String)], address: &str) -> Option<String> {
    let host = |address: &str| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_matches(['[', ']']).to_ascii_lowercase()
    };
    let is_this = |host: &str| {
        let ip = host.parse::<IpAddr>().ok();
        host == "localhost" || ip.is_some_and(|ip| ip.is_loopback() || ip.is_unspecified())
    };
    let one = host(address);
    let shares = |other: &str| other == one || (is_this(other) && is_this(&one));
    there.iter().find(|(other, _)| shares(&host(other))).map(|(_, who)| who.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::cluster::pools::Pause;
    use ebb_types::NO_GEAR;

    fn example() -> String {
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml")).unwrap()
    }

    fn check(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let said = |path: &Path| Config::load(path).unwrap_err().to_string();
        let missing = said(&directory.path().join("none.toml"));
        assert!(missing.contains("name the cluster's configuration file with --config"), "{missing}");
        let whole = said(directory.path());
        assert!(whole.contains("is a directory") && whole.ends_with("/cluster.toml"), "{whole}");
        let file = directory.path().join("bytes.toml");
        std::fs::write(&file, [0xff]).unwrap();
        assert!(said(&file).contains("it must be a text"), "{}", said(&file));
    }

    #[test]
    fn the_example_is_a_sound_configuration() {
        let config = check(&example()).unwrap();
        assert_eq!(config.params().unwrap().groups, 9 * 64);
        assert_eq!(config.bootstrap().unwrap().groups.len(), 9 * 64);
        let fewer = check(&example().replace("groups_per_server = 64", "groups_per_server = 21")).unwrap();
        assert_eq!(fewer.bootstrap().unwrap().groups.len(), 9 * 21);
    }

    /// (1270 J + 569 J) / (70.8 W - 5.4 W).
    #[test]
    fn parity_sleeps_by_the_power_model_of_the_file() {
        let mut config = check(&example()).unwrap();
        let seconds = |config: &Config| config.timing().standby.break_even.as_secs_f64();
        assert!((seconds(&config) - 28.1).abs() < 0.1, "{}", seconds(&config));
        config.power.model.standby = config.power.model.light;
        assert_eq!(config.timing().standby.break_even, NEVER);
    }

    #[test]
    fn depths_of_sleep_have_the_watts_of_the_model_and_wake_times_of_their_own() {
        let with = |depths: &str| check(&(example() + depths));
        const STANDBY: &str = "\n[[power.depths]]\ndepth = \"standby\"\nwake_seconds = 15.0\n";
        const OFF: &str = "\n[[power.depths]]\ndepth = \"off\"\nwake_seconds = 60.0\njoules = 4000.0\n";
        let config = with(&format!("{STANDBY}{OFF}")).unwrap();
        let Sleep { standby: Some(standby), off: Some(off), .. } = config.timing().sleep else {
            panic!("two depths")
        };
        assert_eq!((standby.watts, standby.wears), (config.power.model.standby, false));
        assert_eq!(standby.joules, config.power.model.up.joules + config.power.model.down.joules);
        assert_eq!((off.watts, off.joules, off.wears), (config.power.model.off, Joules(4000.0), true));
        assert_eq!(off.wake, Some(Duration::from_secs(60)));
        assert_eq!(config.timing().depth, Depth::Off, "what is not known is taken for the slowest to wake");
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        let alone = check(&example()).unwrap().timing();
        assert!(
            alone.sleep.standby.is_some_and(|cost| cost.wears && cost.wake.is_none())
                && alone.sleep.off.is_none()
        );
        for (depths, expected) in [
            ("\n[[power.depths]]\ndepth = \"off\"\n".to_owned(), "off has no wake_seconds"),
            (STANDBY.replace("15.0", "0.0"), "standby has no wake_seconds"),
            (format!("{STANDBY}{STANDBY}"), "standby is listed twice"),
            (OFF.replace("4000.0", "-1.0"), "off takes -1 joules"),
        ] {
            let error = with(&depths).unwrap_err();
            assert!(error.contains(expected), "{depths} gave {error}");
        }
    }

    /// The example with a pool `cold` of code 2+1, of servers 7 to 9.
    fn with_a_pool() -> String {
        let mut text = example();
        for id in 7..=9 {
            text = text.replacen(&format!("id = {id}\n"), &format!("id = {id}\npool = \"cold\"\n"), 1);
        }
        text + "\n[[pool]]\nname = \"cold\"\ncode = \"2+1\"\n"
    }

    #[test]
    fn a_pool_takes_its_servers_from_the_replicated_one() {
        let config = check(&with_a_pool()).unwrap();
        let bootstrap = config.bootstrap().unwrap();
        assert_eq!(bootstrap.params.groups, 6 * 64);
        let replicated: BTreeSet<ServerId> = bootstrap.groups.iter().flatten().copied().collect();
        assert_eq!(replicated, (1..=6).map(ServerId).collect());
        let coded: BTreeSet<ServerId> =
            bootstrap.sets[0].columns.iter().map(|column| column.server).collect();
        assert_eq!(coded, (7..=9).map(ServerId).collect());
        assert_eq!(bootstrap.servers.len(), 9);
        let nine = bootstrap.servers.iter().find(|server| server.id == ServerId(9)).unwrap();
        assert_eq!(nine.address, "127.0.0.1:9209");
        assert_eq!(bootstrap.pools[0].parity_buffer_bytes, 1 << 30);
    }

    /// The example with these servers as loggers.
    fn with_loggers(ids: &[u16]) -> String {
        ids.iter().fold(example(), |text, id| {
            text.replacen(&format!("id = {id}\nrack"), &format!("id = {id}\nrole = \"logger\"\nrack"), 1)
        })
    }

    #[test]
    fn loggers_have_no_chunks() {
        let config = check(&with_loggers(&[8, 9])).unwrap();
        let bootstrap = config.bootstrap().unwrap();
        assert_eq!((bootstrap.params.groups, bootstrap.servers.len()), (7 * 64, 9));
        let with_chunks: BTreeSet<ServerId> = bootstrap.groups.iter().flatten().copied().collect();
        assert_eq!(with_chunks, (1..=7).map(ServerId).collect());
        let loggers = bootstrap.servers.iter().filter(|server| server.gear_group == NO_GEAR);
        assert_eq!(loggers.map(|server| server.id).collect::<Vec<_>>(), [8, 9].map(ServerId));
        let ninth = |role: &str| {
            with_loggers(&[9]).replacen("id = 9\nrole = \"logger\"", &format!("id = 9\n{role}"), 1)
        };
        let error = check(&ninth("role = \"loger\"")).unwrap_err();
        assert!(error.contains("unknown variant `loger`"), "{error}");
        let error = check(&ninth("role = \"logger\"\npool = \"cold\"")).unwrap_err();
        assert!(error.contains("server 9 is a logger of pool \"cold\""), "{error}");
        let error = check(&with_loggers(&[3, 4, 5, 6, 7, 8, 9])).unwrap_err();
        assert!(error.contains("server"), "{error}");
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [example(), with_a_pool(), with_loggers(&[2])] {
            let config = check(&text).unwrap();
            let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
            assert_eq!(again, config);
        }
    }

    #[test]
    fn mistakes_in_pools_are_named_with_their_remedy() {
        let cases = [
            ("code = \"2+1\"", "code = \"2+0\"", "the code has 0 parity servers: give it 1 to 4"),
            ("code = \"2+1\"", "code = \"1+1\"", "the code has 1 data servers: give it 2 to 12"),
            ("code = \"2+1\"", "code = \"two\"", "such as 6+3"),
            ("code = \"2+1\"", "code = \"3+1\"", "has 3 servers and its code 3+1 needs at least 4"),
            ("code = \"2+1\"", "kode = \"2+1\"", "unknown field `kode`"),
            ("code = \"2+1\"", "code = \"2+1\"\nparity_debt = \"tape\"", "unknown variant `tape`"),
            ("name = \"cold\"", "name = \"warm\"", "server 7 is in pool \"cold\", which has no [[pool]]"),
        ];
        for (from, to, expected) in cases {
            let error = check(&with_a_pool().replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{to:?} gave {error:?}, expected {expected:?}");
        }
        let mut text = with_a_pool();
        for id in 3..=6 {
            text = text.replacen(&format!("id = {id}\n"), &format!("id = {id}\npool = \"cold\"\n"), 1);
        }
        let error = check(&text).unwrap_err();
        assert!(error.contains("leave 2 servers for the replicated pool"), "{error}");
    }

    /// It is a comment, so that nine servers suffice to try the example.
    #[test]
    fn the_pool_that_the_example_explains_is_sound() {
        let text = example();
        let (_, section) = text.split_once("#   [[pool]]\n").expect("the example explains pools");
        let lines = section.lines().map_while(|line| line.strip_prefix("#   "));
        let settings = lines.map(|line| line.split_once("  ").map_or(line, |(setting, _)| setting));
        let found: PoolSection = toml::from_str(&settings.collect::<Vec<_>>().join("\n")).unwrap();
        let (name, code) = ("archive".to_owned(), "6+3".parse().unwrap());
        let hibernate_after = Some(Pause(Duration::from_secs(900)));
        let rebuild_mib_per_second = Some(100);
        let expected =
            PoolSection { hibernate_after, rebuild_mib_per_second, ..PoolSection::of_code(name, code) };
        assert_eq!(found, expected, "but for these the defaults");
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let cases = [
            ("replicas = 3", "replicas = 7", "cluster.replicas is 7"),
            (
                "address = \"127.0.0.1:9203\"",
                "address = \"127.0.0.1:9203\"\nmetrics = \"127.0.0.1:9202\"",
                "share the address 127.0.0.1:9202",
            ),
            ("id = 1\naddress", "id = 1\nmetrics = \"nowhere\"\naddress", "\"nowhere\" is not an address"),
            ("replicas = 3", "replica = 3", "unknown field `replica`"),
            ("chunk_mib = 64", "chunk_mib = 48", "cluster.chunk_mib is 48"),
            ("chunk_mib = 64", "chunk_mib = 0", "cluster.chunk_mib is 0"),
            ("offload_percent = 20", "offload_percent = 0", "cluster.offload_percent is 0"),
            ("offload_percent = 20", "offload_percent = 81", "from 1 to 80"),
            ("groups_per_server = 64", "groups_per_server = 0", "cluster.groups_per_server is 0"),
            ("groups_per_server = 64", "groups_per_server = 4097", "from 1 to 4096"),
            ("layout = \"rotated\"", "layout = \"spiral\"", "spiral"),
            ("layout = \"rotated\"", "layout = \"naive-random\"", "use rotated or rack-aligned"),
            ("lease_millis = 3000", "lease_millis = 1500", "three times"),
            ("g_min = 1", "g_min = 4", "scheduler.g_min is 4"),
            ("hour_seconds = 3600.0", "hour_seconds = 0.0", "scheduler.hour_seconds is 0"),
            ("127.0.0.1:9202", "127.0.0.1:9201", "server 1 and server 2 share the address 127.0.0.1:9201"),
            ("127.0.0.1:9202", "127.0.0.1", "server 2: \"127.0.0.1\" is not an address"),
            ("data = \"server-2\"", "data = \"server-1\"", "share the data directory server-1"),
            ("data = \"server-2\"", "data = \"meta-1\"", "share the data directory meta-1"),
            ("id = 2\n", "id = 1\n", "[[server]] has id 1 twice"),
            ("data = \"server-1\"", "data = \"server-1\"\ndisks = [\"d\", \"d\"]", "share the disk d"),
            ("data = \"server-1\"", "data = \"server-1\"\ndisks = [\"d\"]", "array of length 2"),
            ("[power]", "[mirror]\npolicy = \"logstore\"\n[power]", "give mirror.driver"),
            ("[power]", "[mirror]\ndisk_model = \"d\"\n[power]", "mirror.disk_model is for"),
            ("id = \"", "id = \"x", "16 hexadecimal digits"),
            ("off = [\"systemctl\", \"poweroff\"]", "off = []", "power.off is empty"),
        ];
        for (from, to, expected) in cases {
            let text = example().replacen(from, to, 1);
            assert_ne!(text, example(), "the example has no {from:?}");
            let error = check(&text).unwrap_err();
            assert!(error.contains(expected), "{to:?} gave {error:?}, expected {expected:?}");
        }
    }

    #[test]
    fn servers_of_different_machines_may_have_equal_directories_and_disks() {
        let shared = |address: &str| {
            let text = example().replacen("127.0.0.1:9201", "10.0.0.1:9201", 1);
            let text = text.replacen("127.0.0.1:9202", address, 1);
            let text =
                text.replacen("\"server-1\"", "\"/var/lib/ebb\"\ndisks = [\"/dev/sda\", \"/dev/sdb\"]", 1);
            check(&text.replacen("\"server-2\"", "\"/var/lib/ebb\"\ndisks = [\"/dev/sda\", \"/dev/sdb\"]", 1))
        };
        for other in ["10.0.0.2:9201", "127.0.0.1:9202", "[::1]:9202"] {
            assert_eq!(shared(other).map(|_| ()), Ok(()), "{other}");
        }
        let error = shared("10.0.0.1:9202").unwrap_err();
        assert!(error.contains("server 1 and server 2 share the data directory /var/lib/ebb"), "{error}");
        let there = |address: &str| vec![(address.to_owned(), "server 1".to_owned())];
        for (one, other) in
            [("127.0.0.1:1", "[::1]:2"), ("localhost:1", "127.0.0.2:2"), ("Node7:1", "node7:2")]
        {
            assert!(on_one_machine(&there(one), other).is_some(), "{one} {other}");
        }
        assert_eq!(on_one_machine(&there("node7:1"), "node8:1"), None);
    }

    /// The example with these power paths of server 9.
    fn with_paths(paths: &str) -> Result<Config, String> {
        let at = "data = \"server-9\"\n";
        let text = example().replacen(at, &format!("{at}\n{paths}\n"), 1);
        check(&text.replacen("depth = \"standby\"", "depth = \"off\"", 1))
    }

    #[test]
    fn servers_have_paths_of_their_own_or_the_clusters_switch() {
        let redfish = "[[server.power]]\ndriver = \"redfish\"\nurl = \"https://bmc9\"\nuser = \"ebb\"\npassword_file = \"bmc9\"\n";
        let wol = "[[server.power]]\ndriver = \"wol\"\nmac = \"52:54:00:00:00:09\"\n";
        let config = with_paths(&(redfish.to_owned() + wol)).unwrap();
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        let switches = config.power_paths(|_| None).unwrap();
        let names =
            |id| -> Vec<&str> { switches.paths(ServerId(id)).iter().map(|p| p.about().driver).collect() };
        assert_eq!((names(8), names(9)), (vec!["process"], vec!["redfish", "wol"]));
        assert!(switches.sleeps_itself(ServerId(9)) && !switches.sleeps_itself(ServerId(8)));
        let switches =
            with_paths("[[server.power]]\ndriver = \"none\"").unwrap().power_paths(|_| None).unwrap();
        assert!(switches.paths(ServerId(9)).is_empty());
    }

    #[test]
    fn mistakes_in_power_paths_are_named_with_their_remedy() {
        let pin = "ab".repeat(32);
        let both =
            format!("driver = \"redfish\"\nurl = \"https://bmc9\"\nca_file = \"c\"\nfingerprint = \"{pin}\"");
        let cases = [
            ("driver = \"redfisch\"", "it is one of process, redfish"),
            ("url = \"https://bmc9\"", "driver is missing"),
            ("driver = \"redfish\"", "url is missing: url = \"https://bmc7\""),
            ("driver = \"redfish\"\nurl = \"https://bmc9\"\nuser = \"ebb\"", "password_file = "),
            (
                "driver = \"redfish\"\nurl = \"https://ebb:secret@bmc9\"",
                "the password does not belong in the URL",
            ),
            (
                "driver = \"redfish\"\nurl = \"https://bmc9\"\ncafile = \"x\"",
                "no field \"cafile\"; its fields: url",
            ),
            (
                "driver = \"redfish\"\nurl = \"http://bmc9\"\nuser = \"ebb\"\npassword_env = \"X\"",
                "can be read by everyone",
            ),
            (
                "driver = \"redfish\"\nurl = \"https://bmc9\"\nfingerprint = \"sha256:12\"",
                "64 hexadecimal digits",
            ),
            ("driver = \"redfish\"\nurl = \"http://bmc9\"\nfingerprint = \"sha256:12\"", "use https://"),
            (both.as_str(), "ca_file and fingerprint: give one of them"),
            ("driver = \"ipmi\"", "host is missing"),
            ("driver = \"ipmi\"\nhost = \"-x\"", "HOST:PORT"),
            ("driver = \"wol\"\nmac = \"52:54\"", "is not the address of a network card"),
            ("driver = \"wol\"\nmac = \"52:54:00:00:00:09\"\nbroadcast = \"lan\"", "10.0.7.255:9"),
            ("driver = \"command\"", "wake is missing"),
            ("driver = \"command\"\nwake = []", "a program and its arguments"),
            ("driver = \"command\"\nwake = [\"w\"]\ndepths = [\"deep\"]", "\"standby\" and \"off\""),
            ("driver = \"command\"\nwake = [\"w\"]\ndepths = [\"standby\"]", "can wake it from Off"),
            ("driver = \"qemu\"", "qmp is missing"),
        ];
        for (path, expected) in cases {
            let error = with_paths(&format!("[[server.power]]\n{path}")).unwrap_err();
            assert!(error.contains(expected), "{path:?} gave {error:?}, expected {expected:?}");
        }
        let bmc = "[[server.power]]\ndriver = \"ipmi\"\nhost = \"bmc\"";
        let both = format!(
            "{bmc}\n\n[[server]]\nid = 10\nrack = 1\naddress = \"127.0.0.1:9210\"\ndata = \"server-10\"\n{bmc}"
        );
        let error = with_paths(&both).unwrap_err();
        assert!(error.contains("are one machine, bmc: give each its own"), "{error}");
    }

    #[test]
    fn made_up_configurations_are_refused_or_read() {
        let example = example();
        ebb_testing::fuzz(&[example.as_bytes()], |bytes| {
            // Not checked: the check would resolve host names.
            if let Ok(config) = toml::from_str::<Config>(&String::from_utf8_lossy(bytes)) {
                let _ = (config.cluster_id(), config.check_scheduler(), config.schedule(), config.timing());
                let _ = pools::check(&config.pool, &config.placed(), 3, 64 << 20, None);
            }
        });
    }

    #[test]
    fn too_few_racks_for_the_layout_are_refused() {
        let text = example().replace("rotated", "rack-aligned").replace("rack = 3", "rack = 2");
        let error = check(&text).unwrap_err();
        assert!(error.contains("rack"), "{error}");
    }
}
