//! A whole cluster on this machine: every server is its own process, as it would run on its own machine.

use crate::cluster::config::{
    ClusterSection, Config, GatewaySection, MetaSection, MirrorSection, PowerSection, SchedulerSection,
    ScrubSection, ServerSection,
};
use crate::cluster::connect::{Connector, status};
use crate::cluster::keys::{as_text, load_keys, new_key};
use crate::cluster::launch::{Process, private_directory, stop_all};
use crate::cluster::{random, secrets};
use crate::daemon;
use crate::error::{NodeError, io};
use crate::mirror::drivers::DriverKind;
use ebb_gateway::Right;
use ebb_gear::layout::Scheme;
use ebb_power::Depth;
use ebb_types::hex;
use ebb_types::{ClusterStatus, ServerState};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A new cluster on a busy machine takes a while to start; a broken one must not hang.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time for one status query; after it the processes are checked again.
const TRY_PATIENCE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(10);
const S3_PORT: u16 = 9000;

/// Shape of a development cluster. Absent: the default, or the value in the data directory.
#[derive(Clone, Debug, Default)]
pub struct DevOptions {
    pub servers: Option<u16>,
    pub racks: Option<u16>,
    pub replicas: Option<u8>,
    pub layout: Option<Scheme>,
    pub chunk_mib: Option<u32>,
    pub depth: Option<Depth>,
    /// The S3 port; the others follow at fixed distances. Without it an ephemeral cluster takes free ports.
    pub port: Option<u16>,
    pub meta: Option<u16>,
    /// Each server on a mirror of two files, as emulated disks of two speeds.
    pub mirrored: bool,
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
        let ephemeral = match data {
            None => {
                Some(tempfile::Builder::new().prefix("ebb-").tempdir().map_err(io("create", "a directory"))?)
            }
            Some(_) => None,
        };
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
            .ok_or_else(|| NodeError::Refused("no key has all rights: add one with `ebb key add`".into()))?;
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
        let client = self.client()?;
        let gateway = self.config.gateway[0].address.clone();
        let since = Instant::now();
        loop {
            if let Some(why) = self.processes.iter_mut().find_map(Process::has_failed) {
                return Err(NodeError::Refused(why));
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
                return Err(NodeError::Refused(why));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn client(&self) -> Result<Connector, NodeError> {
        Connector::new(&self.config)
    }

    /// Processes that exited without being stopped.
    pub fn failures(&mut self) -> Vec<String> {
        self.processes.iter_mut().filter_map(Process::has_failed).collect()
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

/// Writes a new cluster's configuration, secrets and keys.
fn create(data: &Path, options: &DevOptions, free_ports: bool) -> Result<(), NodeError> {
    let servers = options.servers.unwrap_or(9);
    let racks = options.racks.unwrap_or(3);
    if racks == 0 || servers == 0 {
        return Err(NodeError::Refused("a cluster has at least one rack and one server".into()));
    }
    let metas = options.meta.unwrap_or(1);
    let ports = ports(options.port, free_ports, usize::from(servers) + usize::from(metas) + 1)?;
    let address = |index: usize| format!("127.0.0.1:{}", ports[index]);
    let file = data.join("cluster.toml");
    let config = Config {
        cluster: ClusterSection {
            id: hex(&random::bytes::<8>()?),
            secret_file: "secret".into(),
            server_secret_file: Some("server.secret".into()),
            gateway_secret_file: Some("gateway.secret".into()),
            replicas: options.replicas.unwrap_or(3),
            chunk_mib: options.chunk_mib.unwrap_or(64),
            layout: options.layout.unwrap_or(Scheme::Rotated),
            lease_millis: 3000,
            heartbeat_millis: 1000,
            lost_after_seconds: 3600,
        },
        scheduler: SchedulerSection::default(),
        scrub: ScrubSection::default(),
        power: PowerSection { depth: options.depth.unwrap_or_default(), ..PowerSection::default() },
        mirror: match options.mirrored {
            true => {
                MirrorSection { log_mib: LOG_MIB, driver: DriverKind::Emulated, ..MirrorSection::default() }
            }
            false => MirrorSection::default(),
        },
        meta: (1..=metas)
            .map(|n| MetaSection {
                id: u64::from(n),
                address: address(usize::from(n)),
                data: format!("meta-{n}").into(),
            })
            .collect(),
        server: (1..=servers)
            .map(|n| ServerSection {
                id: n,
                rack: (n - 1) % racks + 1,
                address: address(usize::from(metas) + usize::from(n)),
                data: format!("server-{n}").into(),
                disks: options.mirrored.then(|| DISKS.map(|disk| format!("server-{n}/{disk}").into())),
                capacity_mib: None,
            })
            .collect(),
        gateway: vec![GatewaySection {
            address: address(0),
            keys_file: "keys.toml".into(),
            domains: Vec::new(),
        }],
        file: file.clone(),
    };
    secrets::make(&config)?;
    let (id, key) = new_key(Right::ALL.into(), None)?;
    secrets::write_new(&data.join("keys.toml"), &as_text(&[(id, key)].into())?)?;
    for disk in config.server.iter().flat_map(|server| server.disks.iter().flatten()) {
        make_disk(&config.path(disk))?;
    }
    daemon::meta::found(&config)?;
    let text = toml::to_string(&config).map_err(|e| NodeError::Refused(e.to_string()))?;
    // Last: a cluster with a configuration file is complete.
    std::fs::write(&file, text).map_err(io("write", &file))
}

/// A sparse file.
fn make_disk(path: &Path) -> Result<(), NodeError> {
    if let Some(directory) = path.parent() {
        private_directory(directory)?;
    }
    let file = std::fs::File::create(path).map_err(io("create", path))?;
    file.set_len(DISK_BYTES).map_err(io("size", path))
}

/// The S3 port, then the metadata servers', then the chunk servers'.
fn ports(base: Option<u16>, free: bool, count: usize) -> Result<Vec<u16>, NodeError> {
    if base.is_none() && free {
        let sockets: Result<Vec<TcpListener>, _> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
        let sockets = sockets.map_err(io("find", "free ports"))?;
        return sockets
            .iter()
            .map(|s| Ok(s.local_addr().map_err(io("find", "free ports"))?.port()))
            .collect();
    }
    let base = base.unwrap_or(S3_PORT);
    let others = (0..count as u16 - 1).map(|n| base.checked_add(100 + n));
    let all: Option<Vec<u16>> = std::iter::once(Some(base)).chain(others).collect();
    all.ok_or_else(|| {
        NodeError::Refused(format!("no room for the servers' ports above port {base}: use a lower one"))
    })
}

/// A cluster's shape is fixed when it is created: options that differ from it are refused, not ignored.
fn agree(config: &Config, options: &DevOptions, data: &Path) -> Result<(), NodeError> {
    let c = &config.cluster;
    let racks = config.server.iter().map(|s| s.rack).collect::<std::collections::BTreeSet<_>>().len();
    let differs = |name: &str, has: String, wanted: Option<String>| match wanted {
        Some(wanted) if wanted != has => Some(format!(
            "{} holds a cluster with --{name} {has}, not {wanted}: use another --data, or remove it",
            data.display()
        )),
        _ => None,
    };
    let differences = [
        differs("servers", config.server.len().to_string(), options.servers.map(|n| n.to_string())),
        differs("racks", racks.to_string(), options.racks.map(|n| n.to_string())),
        differs("replicas", c.replicas.to_string(), options.replicas.map(|n| n.to_string())),
        differs("layout", c.layout.to_string(), options.layout.map(|l| l.to_string())),
        differs("chunk-mib", c.chunk_mib.to_string(), options.chunk_mib.map(|n| n.to_string())),
        differs("meta", config.meta.len().to_string(), options.meta.map(|n| n.to_string())),
    ];
    if options.mirrored && config.server.iter().any(|server| server.disks.is_none()) {
        let data = data.display();
        let why = format!("{data} holds a cluster without --mirrored: use another --data, or remove it");
        return Err(NodeError::Refused(why));
    }
    match differences.into_iter().flatten().next() {
        Some(why) => Err(NodeError::Refused(why)),
        None if config.gateway.is_empty() => {
            Err(NodeError::Refused(format!("{} has no [[gateway]]", config.file.display())))
        }
        None => Ok(()),
    }
}
