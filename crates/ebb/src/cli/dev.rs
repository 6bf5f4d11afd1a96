//! A whole cluster on this machine: every server is its own process, as it would run on its own machine.

use crate::cli::page::{Opened, s3};
use crate::cluster::config::{
    ClusterSection, Config, GatewaySection, MetaSection, MirrorSection, PowerSection, ReclaimSection, Role,
    SchedulerSection, ScrubSection, ServerSection, expired_at_most, moved_per_second,
};
use crate::cluster::connect::{Connector, status};
use crate::cluster::keys::{as_text, load_keys, new_key};
use crate::cluster::launch::{Process, private_directory, stop_all};
use crate::cluster::pools::PoolSection;
use crate::cluster::{random, secrets};
use crate::daemon;
use crate::error::{NodeError, io, refused};
use crate::mirror::drivers::DriverKind;
use clap::Args;
use ebb_gateway::Right;
use ebb_gear::layout::Scheme;
use ebb_types::hex;
use ebb_types::{ClusterStatus, Depth, ServerState, Shape, ShapeError};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A new cluster on a busy machine takes a while to start; a broken one must not hang.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time for one status query; after it the processes are checked again.
const TRY_PATIENCE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(10);
const S3_PORT: u16 = 9000;
/// The port of a process's `/metrics` is so far above its own.
const METRICS_ABOVE: u16 = 1000;
/// The page's port, above the S3 port; the servers' begin at 100.
const PAGE_ABOVE: u16 = 80;

/// Shape of a development cluster. Absent: the default, or the value in the data directory.
#[derive(Args, Clone, Debug, Default)]
pub struct DevOptions {
    /// Chunk servers [default: 9]
    #[arg(long)]
    pub servers: Option<u16>,
    /// Additional servers that only hold writes for sleeping ones, and never sleep [default: 0]
    #[arg(long)]
    pub loggers: Option<u16>,
    /// Racks that the servers are spread over [default: 3]
    #[arg(long)]
    pub racks: Option<u16>,
    /// Copies of all data, 2 to 4 [default: 3]
    #[arg(long)]
    pub replicas: Option<u8>,
    /// rotated or rack-aligned [default: rotated]
    #[arg(long)]
    pub layout: Option<Scheme>,
    /// Chunk size in MiB, a power of two up to 64 [default: 64]
    #[arg(long)]
    pub chunk_mib: Option<u32>,
    /// Metadata servers, 1, 3 or 5 [default: 1]
    #[arg(long)]
    pub meta: Option<u16>,
    /// S3 port; the servers' ports follow 100 above it, those of their /metrics 1,000 above their own [default: 9000,
    /// or free ones with --ephemeral]
    #[arg(long)]
    pub port: Option<u16>,
    /// How deeply servers sleep: standby or off [default: standby]
    #[arg(long, value_parser = parse_depth)]
    pub depth: Option<Depth>,
    /// Put each server on a mirror of two files, as emulated disks of two speeds
    #[arg(long)]
    pub mirrored: bool,
    /// An erasure-coded pool of the last k+m servers; may be repeated
    #[arg(long = "pool", value_name = "NAME=K+M")]
    pub pools: Vec<DevPool>,
}

fn parse_depth(text: &str) -> Result<Depth, String> {
    match text {
        "standby" => Ok(Depth::Standby),
        "off" => Ok(Depth::Off),
        other => Err(format!("invalid depth {other:?}: use standby or off")),
    }
}

/// An erasure-coded pool, written `archive=6+3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevPool {
    pub name: String,
    code: Shape,
}

impl DevPool {
    #[cfg(feature = "lab")]
    pub fn servers(&self) -> u16 {
        self.code.servers() as u16
    }
}

impl std::fmt::Display for DevPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.code)
    }
}

impl FromStr for DevPool {
    type Err = String;

    fn from_str(text: &str) -> Result<DevPool, String> {
        let (name, code) = text.split_once('=').ok_or("write it as name and code, such as archive=6+3")?;
        let code = code.parse().map_err(|error: ShapeError| error.to_string())?;
        Ok(DevPool { name: name.to_owned(), code })
    }
}

/// A server's files of `--mirrored` in its directory, their sizes and that of their logs. The files are sparse.
const DISKS: [&str; 2] = ["disk-a", "disk-b"];
const DISK_BYTES: u64 = 8 << 30;
const LOG_MIB: u64 = 256;

/// A running cluster that owns its processes.
pub struct DevCluster {
    pub config: Config,
    pub access_key: String,
    pub secret_key: String,
    processes: Vec<Process>,
    /// Removed when the cluster stops.
    ephemeral: Option<tempfile::TempDir>,
}

impl DevCluster {
    /// Starts the cluster in `data`, creating it if needed; `None`: in a temporary directory that is removed with it.
    pub async fn start(data: Option<&Path>, options: &DevOptions) -> Result<DevCluster, NodeError> {
        let new = || tempfile::Builder::new().prefix("ebb-").tempdir().map_err(io("create", "a directory"));
        let ephemeral = data.is_none().then(new).transpose()?;
        let data = data.unwrap_or_else(|| ephemeral.as_ref().expect("one of the two").path());
        private_directory(data)?;
        let file = data.join("cluster.toml");
        if !file.exists() {
            create(data, options, ephemeral.is_some())?;
        }
        let config = Config::load(&file)?;
        agree(&config, options, data)?;
        let keys = load_keys(&config.path(&config.gateway[0].keys_file))?;
        let (access_key, key) = keys
            .into_iter()
            .find(|(_, key)| key.rights.len() == Right::ALL.len() && key.buckets.is_none())
            .ok_or_else(|| refused("no key has all rights: add one with `ebb key add`"))?;
        let secret_key = key.secret;
        let mut cluster = DevCluster { config, access_key, secret_key, processes: Vec::new(), ephemeral };
        cluster.stop_leftovers().await;
        let started = cluster.start_all();
        let ready = match started {
            Ok(()) => cluster.wait_until_ready().await,
            failed => failed,
        };
        if let Err(error) = ready {
            cluster.stop().await;
            return Err(error);
        }
        Ok(cluster)
    }

    /// Stops processes of an earlier run whose parent was killed: they lock the directories.
    async fn stop_leftovers(&self) {
        let mut leftovers =
            self.places().map(|(name, _, data)| Process::found(name, data)).collect::<Vec<_>>();
        stop_all(&mut leftovers).await;
    }

    /// Name, arguments and data directory of every process.
    fn places(&self) -> impl Iterator<Item = (String, Vec<String>, PathBuf)> + '_ {
        let c = &self.config;
        let args = |words: &[&str]| words.iter().map(|w| w.to_string()).collect::<Vec<_>>();
        let metas = c.meta.iter().map(move |m| {
            (format!("meta {}", m.id), args(&["meta", "--id", &m.id.to_string()]), c.path(&m.data))
        });
        let servers = c.server.iter().map(move |s| {
            (format!("server {}", s.id), args(&["server", "--id", &s.id.to_string()]), c.path(&s.data))
        });
        let gateways = c
            .gateway
            .iter()
            .map(move |_| ("gateway".to_string(), args(&["gateway"]), c.path(Path::new("gateway"))));
        metas.chain(servers).chain(gateways)
    }

    fn start_all(&mut self) -> Result<(), NodeError> {
        for (name, args, data) in self.places().collect::<Vec<_>>() {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let process = Process::start(&self.config, name, &args, data)?;
            self.processes.push(process);
        }
        Ok(())
    }

    async fn wait_until_ready(&mut self) -> Result<(), NodeError> {
        let client = Connector::new(&self.config)?;
        let gateway = self.config.gateway[0].address.clone();
        let since = Instant::now();
        loop {
            if let Some(why) = self.processes.iter_mut().find_map(Process::has_failed) {
                return Err(refused(why));
            }
            if let Ok(connected) = tokio::time::timeout(TRY_PATIENCE, client.clone().connect()).await
                && let Ok(client) = connected
                && let Ok(status) = status(&client).await
                && is_ready(&status)
                && tokio::net::TcpStream::connect(&gateway).await.is_ok()
            {
                return Ok(());
            }
            if since.elapsed() > START_PATIENCE {
                let why = format!(
                    "the cluster was not ready after {START_PATIENCE:?}; see the logs in {}",
                    self.config.file.parent().unwrap_or(Path::new(".")).display()
                );
                return Err(refused(why));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Where the first metadata server is scraped; absent: a cluster that was created without.
    pub fn metrics(&self) -> Option<String> {
        self.config.meta[0].metrics.as_ref().map(|address| format!("http://{address}/metrics"))
    }

    /// Processes that exited without being stopped.
    pub fn failures(&mut self) -> Vec<String> {
        self.processes.iter_mut().filter_map(Process::has_failed).collect()
    }

    /// The page of this cluster: at a free port if the others are free ones.
    pub async fn page(&self) -> Result<Opened, NodeError> {
        let address = &self.config.gateway[0].address;
        let mut address: SocketAddr =
            address.parse().map_err(|_| refused(format!("the gateway's address {address} is a name")))?;
        let port = if self.ephemeral.is_some() { 0 } else { address.port().saturating_add(PAGE_ABOVE) };
        address.set_port(port);
        let s3 = s3(&self.config, &self.access_key, &self.secret_key)?;
        Opened::new(&self.config, address, &[], Some(s3), None).await
    }

    /// Pids by process name.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        self.processes.iter().filter_map(|p| Some((p.name.clone(), p.pid()?))).collect()
    }

    pub async fn stop(mut self) {
        // Chunk servers first: while the metadata server runs, no server must be declared failed needlessly.
        self.processes.reverse();
        stop_all(&mut self.processes).await;
        drop(self.ephemeral);
    }
}

fn is_ready(status: &ClusterStatus) -> bool {
    let running = |s: &ebb_types::ServerStatus| {
        matches!(
            s.state,
            ServerState::Awake | ServerState::Draining | ServerState::Asleep | ServerState::Lost
        )
    };
    status.servers.iter().all(running)
        && status.metadata.iter().all(|m| m.votes)
        && status.groups.without_primary == 0
        && status.groups.without_target == 0
}

/// Chunk servers without `--servers`: three per copy.
pub const SERVERS: u16 = 9;

/// The pool of each server, from the first on: those of the pools are the last.
fn pools_of_servers(servers: u16, replicas: u8, pools: &[DevPool]) -> Result<Vec<Option<String>>, NodeError> {
    let coded: usize = pools.iter().map(|pool| pool.code.servers()).sum();
    let needed = coded + if pools.is_empty() { 0 } else { usize::from(replicas) };
    if usize::from(servers) < needed {
        return Err(refused(format!(
            "{servers} servers are too few: the pools need {coded}, and {replicas} copies need at least {replicas} more; give \
             --servers {needed}, or more"
        )));
    }
    let mut names = vec![None; usize::from(servers) - coded];
    for pool in pools {
        names.extend(std::iter::repeat_n(Some(pool.name.clone()), pool.code.servers()));
    }
    Ok(names)
}

/// Writes a new cluster's configuration, secrets and keys.
fn create(data: &Path, options: &DevOptions, free_ports: bool) -> Result<(), NodeError> {
    let config = configuration(data, options, free_ports)?;
    config.check()?;
    secrets::make(&config)?;
    let (id, key) = new_key(Right::ALL.into(), None)?;
    secrets::write_new(&data.join("keys.toml"), &as_text(&[(id, key)].into())?)?;
    for disk in config.server.iter().flat_map(|server| server.disks.iter().flatten()) {
        make_disk(&config.path(disk))?;
    }
    daemon::meta::found(&config)?;
    let text = toml::to_string(&config).map_err(refused)?;
    // Last: a cluster with a configuration file is complete.
    ebb_files::replace_file(&config.file, text.as_bytes(), 0o600).map_err(io("write", &config.file))
}

fn configuration(data: &Path, options: &DevOptions, free_ports: bool) -> Result<Config, NodeError> {
    let servers = options.servers.unwrap_or(SERVERS);
    let racks = options.racks.unwrap_or(3);
    if racks == 0 || servers == 0 {
        return Err(refused("a cluster has at least one rack and one server"));
    }
    let replicas = options.replicas.unwrap_or(3);
    let pools = pools_of_servers(servers, replicas, &options.pools)?;
    let metas = options.meta.unwrap_or(1);
    let loggers = options.loggers.unwrap_or(0);
    let ports = ports(options.port, free_ports, usize::from(servers + loggers) + usize::from(metas) + 1)?;
    let address = |index: usize| format!("127.0.0.1:{}", ports[index].own);
    let metrics = |index: usize| Some(format!("127.0.0.1:{}", ports[index].metrics));
    let meta = |n: u16| MetaSection {
        id: u64::from(n),
        address: address(usize::from(n)),
        metrics: metrics(usize::from(n)),
        data: format!("meta-{n}").into(),
    };
    // Loggers are the last, in the racks from the first on.
    let server = |(n, pool): (u16, Option<String>)| ServerSection {
        id: n,
        rack: if n > servers { (n - servers - 1) % racks + 1 } else { (n - 1) % racks + 1 },
        role: if n > servers { Role::Logger } else { Role::Chunks },
        pool,
        address: address(usize::from(metas) + usize::from(n)),
        metrics: metrics(usize::from(metas) + usize::from(n)),
        data: format!("server-{n}").into(),
        disks: options.mirrored.then(|| DISKS.map(|disk| format!("server-{n}/{disk}").into())),
        capacity_mib: None,
        power: Vec::new(),
    };
    let emulated =
        || MirrorSection { log_mib: LOG_MIB, driver: DriverKind::Emulated, ..MirrorSection::default() };
    Ok(Config {
        cluster: ClusterSection {
            id: hex(&random::bytes::<8>()?),
            secret_file: "secret".into(),
            server_secret_file: Some("server.secret".into()),
            gateway_secret_file: Some("gateway.secret".into()),
            replicas,
            chunk_mib: options.chunk_mib.unwrap_or(64),
            groups_per_server: 64,
            groups: None,
            layout: options.layout.unwrap_or(Scheme::Rotated),
            lease_millis: 3000,
            heartbeat_millis: 1000,
            lost_after_seconds: 3600,
            offload_percent: 20,
        },
        scheduler: SchedulerSection::default(),
        scrub: ScrubSection::default(),
        reclaim: ReclaimSection::default(),
        power: PowerSection { depth: options.depth.unwrap_or_default(), ..PowerSection::default() },
        mirror: if options.mirrored { emulated() } else { MirrorSection::default() },
        meta: (1..=metas).map(meta).collect(),
        pool: options.pools.iter().map(|pool| PoolSection::of_code(pool.name.clone(), pool.code)).collect(),
        server: (1..=servers + loggers)
            .zip(pools.into_iter().chain(std::iter::repeat(None)))
            .map(server)
            .collect(),
        gateway: vec![gateway_section(address(0), metrics(0))],
        file: data.join("cluster.toml"),
    })
}

fn gateway_section(address: String, metrics: Option<String>) -> GatewaySection {
    GatewaySection {
        address,
        metrics,
        keys_file: "keys.toml".into(),
        domains: Vec::new(),
        move_bytes_per_second: moved_per_second(),
        expire_most: expired_at_most(),
    }
}

/// A sparse file.
fn make_disk(path: &Path) -> Result<(), NodeError> {
    if let Some(directory) = path.parent() {
        private_directory(directory)?;
    }
    let file = std::fs::File::create(path).map_err(io("create", path))?;
    file.set_len(DISK_BYTES).map_err(io("size", path))
}

/// A process's port, and that of its `/metrics`.
struct Ports {
    own: u16,
    metrics: u16,
}

/// The S3 port, then the metadata servers', then the chunk servers'.
fn ports(base: Option<u16>, free: bool, count: usize) -> Result<Vec<Ports>, NodeError> {
    if base.is_none() && free {
        let sockets: Result<Vec<TcpListener>, _> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
        let sockets = sockets.map_err(io("find", "free ports"))?;
        let port = |s: &TcpListener| s.local_addr().map(|a| a.port()).map_err(io("find", "free ports"));
        return sockets
            .chunks(2)
            .map(|two| Ok(Ports { own: port(&two[0])?, metrics: port(&two[1])? }))
            .collect();
    }
    let base = base.unwrap_or(S3_PORT);
    let others = (0..count as u16 - 1).map(|n| base.checked_add(100 + n));
    let with_metrics = |own: u16| Some(Ports { own, metrics: own.checked_add(METRICS_ABOVE)? });
    let all: Option<Vec<Ports>> =
        std::iter::once(Some(base)).chain(others).map(|own| with_metrics(own?)).collect();
    all.ok_or_else(|| refused(format!("no room for the servers' ports above port {base}: use a lower one")))
}

/// A cluster's shape is fixed when it is created: options that differ from it are refused, not ignored.
fn agree(config: &Config, options: &DevOptions, data: &Path) -> Result<(), NodeError> {
    let c = &config.cluster;
    let racks = config.server.iter().map(|s| s.rack).collect::<std::collections::BTreeSet<_>>().len();
    let loggers = config.server.iter().filter(|s| s.role == Role::Logger).count();
    let has_pools: Vec<DevPool> =
        config.pool.iter().map(|pool| DevPool { name: pool.name.clone(), code: pool.code }).collect();
    let wanted_pools = Some(options.pools.as_slice()).filter(|pools| !pools.is_empty());
    if options.mirrored && config.server.iter().any(|server| server.disks.is_none()) {
        let data = data.display();
        let why = format!("{data} holds a cluster without --mirrored: use another --data, or remove it");
        return Err(refused(why));
    }
    let servers = config.server.len() - loggers;
    for (name, has, wanted) in [
        ("servers", servers.to_string(), options.servers.map(|n| n.to_string())),
        ("loggers", loggers.to_string(), options.loggers.map(|n| n.to_string())),
        ("racks", racks.to_string(), options.racks.map(|n| n.to_string())),
        ("replicas", c.replicas.to_string(), options.replicas.map(|n| n.to_string())),
        ("layout", c.layout.to_string(), options.layout.map(|l| l.to_string())),
        ("chunk-mib", c.chunk_mib.to_string(), options.chunk_mib.map(|n| n.to_string())),
        ("pool", list(&has_pools), wanted_pools.map(list)),
        ("meta", config.meta.len().to_string(), options.meta.map(|n| n.to_string())),
    ] {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
            return Err(refused(format!(
                "{} holds a cluster with --{name} {has}, not {wanted}: use another --data, or remove it",
                data.display()
            )));
        }
    }
    match config.gateway.is_empty() {
        true => Err(refused(format!("{} has no [[gateway]]", config.file.display()))),
        false => Ok(()),
    }
}

fn list(pools: &[DevPool]) -> String {
    match pools {
        [] => "none".to_owned(),
        pools => pools.iter().map(DevPool::to_string).collect::<Vec<_>>().join(" --pool "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(servers: u16, pools: &[&str]) -> DevOptions {
        let pools = pools.iter().map(|pool| pool.parse().unwrap()).collect();
        DevOptions { servers: Some(servers), pools, ..DevOptions::default() }
    }

    #[test]
    fn loggers_come_after_the_servers_one_rack_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let wanted = DevOptions { loggers: Some(4), ..options(9, &[]) };
        create(directory.path(), &wanted, true).unwrap();
        let config = Config::load(&directory.path().join("cluster.toml")).unwrap();
        let loggers = config.server.iter().filter(|server| server.role == Role::Logger);
        let places: Vec<(u16, u16)> = loggers.map(|server| (server.id, server.rack)).collect();
        assert_eq!(places, [(10, 1), (11, 2), (12, 3), (13, 1)]);
        agree(&config, &wanted, directory.path()).unwrap();
        let other = DevOptions { loggers: Some(1), ..wanted };
        let error = agree(&config, &other, directory.path()).unwrap_err().to_string();
        assert!(error.contains("--loggers 4, not 1"), "{error}");
    }

    #[test]
    fn the_last_servers_belong_to_the_pools() {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), &options(24, &["archive=6+3", "cold=2+1"]), true).unwrap();
        let config = Config::load(&directory.path().join("cluster.toml")).unwrap();
        let of = |pool: Option<&str>| -> Vec<u16> {
            let members = config.server.iter().filter(|server| server.pool.as_deref() == pool);
            members.map(|server| server.id).collect()
        };
        assert_eq!(of(None), (1..=12).collect::<Vec<_>>());
        assert_eq!(of(Some("archive")), (13..=21).collect::<Vec<_>>());
        assert_eq!(of(Some("cold")), (22..=24).collect::<Vec<_>>());
        let again = |pools: &[&str]| {
            agree(&config, &options(24, pools), directory.path()).map_err(|error| error.to_string())
        };
        assert_eq!(again(&["archive=6+3", "cold=2+1"]), Ok(()));
        assert_eq!(again(&[]), Ok(()), "what is left out is as it was");
        let error = again(&["archive=4+2"]).unwrap_err();
        let expected = "with --pool archive=6+3 --pool cold=2+1, not archive=4+2";
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }

    #[test]
    fn a_pool_that_cannot_be_leaves_no_cluster_behind() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |servers, pools: &[&str]| {
            let error = create(directory.path(), &options(servers, pools), true).unwrap_err().to_string();
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{error}");
            error
        };
        let error = refused(11, &["archive=6+3"]);
        assert!(error.contains("give --servers 12, or more"), "{error}");
        let error = refused(18, &["Archive=6+3"]);
        assert!(error.contains("the name \"Archive\""), "{error}");
        let error = refused(24, &["archive=6+3", "archive=6+3"]);
        assert!(error.contains("twice"), "{error}");
        let wrong = |text: &str| text.parse::<DevPool>().unwrap_err().to_string();
        assert!(wrong("6+3").contains("archive=6+3"));
        assert!(wrong("archive=6+0").contains("give it 1 to 4"));
    }
}
