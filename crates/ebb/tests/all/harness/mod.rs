//! Clusters of real processes for the end-to-end tests: started from `examples/cluster.toml`, disturbed, queried, and
//! always cleaned up.
//!
//! Two clusters run at once, the others wait for their turn. Nothing waits for a fixed time: [`wait`] polls for a
//! condition until a deadline, and a test that misses one reports what it waited for and shows the ends of the logs.
//! `EBB_KEEP=1` keeps the directory of a failed test.

pub mod bmc;
pub mod brake;
pub mod disks;
pub mod faults;
pub mod harm;
pub mod load;
pub mod machines;
pub mod objects;
pub mod pulses;
pub mod race;

use ebb_client::{Client, ClientConfig, Secret};
use ebb_power::Launch;
use ebb_types::{ClusterStatus, GroupEntry, ServerState, SlotState};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const EBB: &str = env!("CARGO_BIN_EXE_ebb");
pub const ACCESS_KEY: &str = "ebb";
pub const SECRET_KEY: &str = "a-secret-key-for-tests";
/// How long a condition may take: far longer than on the busiest machine, since it only ends tests that hang.
pub const PATIENCE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(20);
/// Each status query is a process.
const STATUS_POLL: Duration = Duration::from_millis(100);

/// Clusters that run at once: they mostly wait, but with more of them nine servers each would starve one another.
const CLUSTERS: usize = 2;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A cluster's turn, until it is dropped.
struct Turn;

impl Turn {
    fn take() -> Turn {
        let running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let wait = ENDED.wait_while(running, |running| *running >= CLUSTERS);
        *wait.unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) -= 1;
        ENDED.notify_one();
    }
}

/// How a cluster differs from the example.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Metadata servers; zero: as in the example.
    pub metas: u16,
    /// Lease and heartbeat in milliseconds.
    pub lease: Option<(u32, u32)>,
    pub chunk_mib: Option<u32>,
    pub depth_off: bool,
    /// For every chunk server.
    pub capacity_mib: Option<u64>,
    /// Gives each chunk server a file system of this size, on its own device, where permitted.
    pub disk_mib: Option<u64>,
    /// Every replica is scrubbed once in this time, at full speed.
    pub scrub_seconds: Option<u32>,
    /// Each chunk server on a mirror of two quick emulated disks: files of this size.
    pub mirror_mib: Option<u64>,
    /// The last servers, one for each column, form an erasure-coded pool `cold` of this code.
    pub code: Option<&'static str>,
    /// Each process answers scrapers.
    pub metrics: bool,
    /// Loggers, one rack after the other.
    pub loggers: u16,
    pub second_gateway: bool,
}

impl Shape {
    /// Small chunks, so that little data touches many groups, and a short lease, so that failures are over soon.
    pub fn lively() -> Shape {
        Shape { lease: Some((1500, 300)), chunk_mib: Some(1), ..Shape::default() }
    }
}

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Meta(u64),
    Server(u16),
    Gateway,
    SecondGateway,
}

/// Output of `ebb verify --json`.
#[derive(Debug, serde::Deserialize)]
pub struct Verdict {
    pub groups_compared: u32,
    pub groups_out_of_sync: u32,
    pub groups_different: u32,
    pub blocks: u64,
}

pub struct Cluster {
    pub config: PathBuf,
    pub servers: Vec<u16>,
    pub metas: Vec<u64>,
    pub gateway: String,
    pub second_gateway: Option<String>,
    /// What can be wrong with its processes, where they were prepared for it.
    pub faults: Option<faults::Faults>,
    /// What starts a process, where it is not just the program.
    pub commands: BTreeMap<Who, Vec<String>>,
    children: BTreeMap<Who, Child>,
    /// How the next start of a metadata server creates its log, or changes it.
    founding: BTreeMap<u64, &'static str>,
    directory: Option<TempDir>,
    /// File systems that are unmounted with the cluster.
    mounts: Vec<PathBuf>,
    _turn: Turn,
}

impl Cluster {
    /// Creates a cluster's files; nothing runs yet.
    pub fn create(shape: &Shape) -> Cluster {
        let turn = Turn::take();
        let directory = tempfile::Builder::new().prefix("ebb-test-").tempdir().expect("a directory");
        let mut table = example();
        apply(&mut table, shape);
        let config = directory.path().join("cluster.toml");
        std::fs::write(&config, toml::to_string(&table).expect("TOML")).expect("write the configuration");
        if let Some(mib) = shape.mirror_mib {
            std::fs::write(directory.path().join("model.toml"), disks::quick_disk())
                .expect("write the model");
            for path in array(&table, "server").iter().flat_map(|s| s["disks"].as_array().expect("two")) {
                let path = directory.path().join(path.as_str().expect("a path"));
                std::fs::File::create(path).and_then(|file| file.set_len(mib << 20)).expect("a disk");
            }
        }
        let secrets = Command::new(EBB).args(["secret", "--config"]).arg(&config).output().expect("run ebb");
        assert!(secrets.status.success(), "{}", String::from_utf8_lossy(&secrets.stderr));
        write_private(
            &directory.path().join("keys.toml"),
            &format!(
                "[{ACCESS_KEY}]\nsecret = \"{SECRET_KEY}\"\nrights = [\"read\", \"write\", \"admin\"]\n"
            ),
        );
        let ids = |section: &str| -> Vec<u64> {
            array(&table, section).iter().map(|t| t["id"].as_integer().expect("an id") as u64).collect()
        };
        let disks = |mib| {
            ids("server")
                .iter()
                .map_while(|id| mount(&directory.path().join(format!("server-{id}")), mib))
                .collect()
        };
        let mounts: Vec<PathBuf> = shape.disk_mib.map_or(Vec::new(), disks);
        let address = |t: &&toml::Table| t["address"].as_str().expect("an address").to_owned();
        let mut gateways: Vec<String> = array(&table, "gateway").iter().map(address).collect();
        let metas = ids("meta");
        let flag = |id: u64| if id == metas[0] { "--create" } else { "--join" };
        let founding = metas.iter().map(|id| (*id, flag(*id))).collect();
        Cluster {
            config,
            servers: ids("server").into_iter().map(|id| id as u16).collect(),
            metas,
            gateway: gateways.remove(0),
            second_gateway: gateways.pop(),
            faults: None,
            commands: BTreeMap::new(),
            children: BTreeMap::new(),
            founding,
            directory: Some(directory),
            mounts,
            _turn: turn,
        }
    }

    /// Whether every chunk server has its own file system.
    pub fn has_own_disks(&self) -> bool {
        self.mounts.len() == self.servers.len()
    }

    /// A serving cluster, without its gateway.
    pub fn start(shape: &Shape) -> Cluster {
        let mut cluster = Cluster::create(shape);
        cluster.start_all();
        cluster
    }

    /// Starts the metadata servers and the chunk servers, and waits until every group is served.
    pub fn start_all(&mut self) {
        for who in self.all() {
            self.launch(who);
        }
        self.wait_status("every group is served and every metadata server votes", |s| {
            s.groups.without_primary == 0
                && s.groups.without_target == 0
                && s.metadata.iter().all(|m| m.votes)
        });
    }

    pub fn all(&self) -> Vec<Who> {
        let metas = self.metas.iter().map(|id| Who::Meta(*id));
        metas.chain(self.servers.iter().map(|id| Who::Server(*id))).collect()
    }

    pub fn directory(&self) -> &Path {
        self.config.parent().expect("a file is in a directory")
    }

    pub fn data(&self, who: Who) -> PathBuf {
        self.directory().join(match who {
            Who::Meta(id) => format!("meta-{id}"),
            Who::Server(id) => format!("server-{id}"),
            Who::Gateway => "gateway".to_owned(),
            Who::SecondGateway => "gateway-2".to_owned(),
        })
    }

    pub fn log(&self, who: Who) -> String {
        std::fs::read_to_string(self.data(who).with_extension("log")).unwrap_or_default()
    }

    /// The next start of this metadata server creates a cluster.
    pub fn found_again(&mut self, id: u64) {
        self.founding.insert(id, "--create");
    }

    /// The next start of this metadata server, whose directory is empty, joins the others.
    pub fn join_again(&mut self, id: u64) {
        self.founding.insert(id, "--join");
    }

    /// The next start of this metadata server, the last one with its data, makes it the only one.
    pub fn rescue(&mut self, id: u64) {
        self.founding.insert(id, "--rescue --accept-loss");
    }

    /// What starts a process: a program and its arguments.
    pub fn command(&self, who: Who) -> Vec<String> {
        if let Some(command) = self.commands.get(&who) {
            return command.clone();
        }
        let (program, id) = match who {
            Who::Meta(id) => ("meta", Some(id)),
            Who::Server(id) => ("server", Some(id.into())),
            Who::Gateway | Who::SecondGateway => ("gateway", None),
        };
        let config = self.config.to_string_lossy().into_owned();
        let mut command = vec![EBB.into(), program.into(), "--config".into(), config];
        command.extend(id.into_iter().flat_map(|id| ["--id".into(), id.to_string()]));
        let second = self.second_gateway.iter().filter(|_| who == Who::SecondGateway);
        command.extend(second.flat_map(|address| ["--address".into(), address.clone()]));
        command
    }

    /// Where a process listens.
    pub fn port(&self, who: Who) -> u16 {
        let table: toml::Table =
            std::fs::read_to_string(&self.config).expect("a file").parse().expect("TOML");
        let (section, at) = match who {
            Who::Meta(id) => ("meta", id as usize - 1),
            Who::Server(id) => ("server", usize::from(id) - 1),
            Who::Gateway => ("gateway", 0),
            Who::SecondGateway => ("gateway", 1),
        };
        let address = array(&table, section)[at]["address"].as_str().expect("an address").to_owned();
        let (_, port) = address.rsplit_once(':').expect("an address has a port");
        port.parse().expect("a port")
    }

    /// Starts a process, as a machine's own start-up would.
    pub fn launch(&mut self, who: Who) {
        let mut command = self.command(who);
        if let Who::Meta(id) = who {
            let how = self.founding.remove(&id).unwrap_or_default();
            command.extend(how.split_whitespace().map(str::to_owned));
        }
        let data = self.data(who);
        std::fs::create_dir_all(&data).expect("a data directory");
        let program = command.remove(0).into();
        let launch = Launch { program, args: command, log: data.with_extension("log") };
        let child = ebb_power::launch(&launch, &data).expect("start a process");
        if let Some(mut old) = self.children.insert(who, child) {
            old.wait().expect("the process before it has ended");
        }
    }

    pub fn pid(&self, who: Who) -> Option<u32> {
        ebb_power::running_pid(&self.data(who))
    }

    /// Whether a process was suspended by a signal.
    pub fn is_stopped(&self, who: Who) -> bool {
        let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let state =
            self.pid(who).and_then(stat).and_then(|s| s.rsplit_once(") ").map(|(_, s)| s.starts_with('T')));
        state.unwrap_or(false)
    }

    /// Sends a signal, and returns the pid; panics if the process does not run.
    fn signal(&self, who: Who, signal: Signal) -> u32 {
        let pid = self.pid(who).unwrap_or_else(|| panic!("{who:?} does not run"));
        kill_process(Pid::from_raw(pid as i32).expect("a pid"), signal).expect("signal a process");
        pid
    }

    /// kill -9; returns when the process is gone.
    pub fn kill(&self, who: Who) {
        let pid = self.signal(who, Signal::KILL);
        wait(&format!("{who:?} is gone"), PATIENCE, || (self.pid(who) != Some(pid)).then_some(()));
    }

    /// Also when the metadata service starts it again.
    pub fn keep_down(&self, who: Who) {
        while self.pid(who).is_some() {
            self.kill(who);
        }
    }

    /// Starts a process, unless the metadata service has.
    pub fn launch_unless_it_runs(&mut self, who: Who) {
        if self.pid(who).is_none() {
            self.launch(who);
        }
    }

    /// Kills every process, including those that exited by themselves.
    pub fn kill_all(&mut self) {
        for child in self.children.values_mut() {
            // A process that has exited needs no signal.
            let _ = child.kill();
            child.wait().expect("a child that was killed ends");
        }
    }

    /// SIGTERM; returns when the process has exited, which it must do cleanly.
    pub fn terminate(&mut self, who: Who) {
        let pid = self.signal(who, Signal::TERM);
        // A suspended server handles it when it resumes. Others may have exited meanwhile.
        let _ = kill_process(Pid::from_raw(pid as i32).expect("a pid"), Signal::CONT);
        wait(&format!("{who:?} stops on SIGTERM"), PATIENCE, || (self.pid(who) != Some(pid)).then_some(()));
        // Another one may have been started when the server was woken.
        if let Some(mut child) = self.children.remove(&who)
            && child.id() == pid
        {
            let status = child.wait().expect("it has ended");
            assert!(status.success(), "{who:?} ended with {status}:\n{}", tail(&self.log(who), 20));
        }
    }

    pub fn pause(&self, who: Who) {
        self.signal(who, Signal::STOP);
    }

    pub fn resume(&self, who: Who) {
        self.signal(who, Signal::CONT);
    }

    /// Sends SIGTERM to everything, including sleeping servers, and waits until all have exited. Returns how long that
    /// took.
    pub fn stop_all(&mut self) -> Duration {
        let since = Instant::now();
        let mut all = self.all();
        all.extend([Who::Gateway, Who::SecondGateway]);
        for who in all.into_iter().rev() {
            if self.pid(who).is_some() {
                self.terminate(who);
            }
        }
        since.elapsed()
    }

    /// Runs an `ebb` command against this cluster.
    pub fn ebb(&self, args: &[&str]) -> Output {
        Command::new(EBB).args(args).arg("--config").arg(&self.config).output().expect("run ebb")
    }

    pub fn try_status(&self) -> Result<ClusterStatus, String> {
        let output = self.ebb(&["status", "--json"]);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
    }

    pub fn status(&self) -> ClusterStatus {
        self.try_status().expect("a status")
    }

    /// Waits until the status satisfies the condition, and returns it.
    pub fn wait_status(&self, what: &str, is: impl Fn(&ClusterStatus) -> bool) -> ClusterStatus {
        let found = try_wait(PATIENCE, STATUS_POLL, || self.try_status().ok().filter(&is));
        found.unwrap_or_else(|| panic!("{what}: not within {PATIENCE:?}; {}", self.trouble()))
    }

    /// A readable summary of what is wrong.
    pub fn trouble(&self) -> String {
        let status = self.try_status();
        format!("status: {}\n{}", summary(&status), self.troubled_groups())
    }

    /// Some chunk groups that are not served, or that have a replica which is not in sync.
    fn troubled_groups(&self) -> String {
        self.with_client(async |client| {
            let map = client.map();
            let mut troubled: Vec<_> =
                map.groups.iter().enumerate().filter(|(_, g)| !g.is_in_sync()).collect();
            let fetches = |g: &GroupEntry| {
                g.slots.iter().any(|slot| matches!(slot.state, SlotState::CatchingUp { .. }))
            };
            troubled.sort_by_key(|(_, g)| (g.primary.is_some(), !fetches(g)));
            troubled.iter().take(4).map(|(id, g)| format!("group {id}: {g:?}\n")).collect()
        })
    }

    pub fn gear(&self, args: &[&str]) {
        let mut all = vec!["gear"];
        all.extend(args);
        let output = self.ebb(&all);
        assert!(output.status.success(), "ebb gear {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Shifts, and waits until servers and slots match the gear. Returns how long that took.
    pub fn shift(&self, gear: u8) -> Duration {
        let since = Instant::now();
        self.gear(&["set", &format!("{gear}/3")]);
        self.wait_status(&format!("gear {gear} is reached"), |s| {
            s.gear.gear == gear && !s.gear.shifting && !s.gear.emergency && states_fit(s, gear)
        });
        since.elapsed()
    }

    /// Waits until every server is awake, every replica in sync and all offload reclaimed.
    pub fn heal(&self) -> Duration {
        let since = Instant::now();
        self.gear(&["set", "3/3"]);
        self.wait_status("all servers awake, all replicas in sync, no debt", |s| {
            s.groups.in_sync == s.groups.total
                && s.debt_bytes == 0
                && !s.gear.emergency
                && s.servers.iter().all(|v| matches!(v.state, ServerState::Awake | ServerState::Lost))
        });
        self.wait_until_awake_servers_listen();
        since.elapsed()
    }

    /// A leader that has just begun knows from its map that a server was awake, and nothing else: the process may still
    /// be starting.
    fn wait_until_awake_servers_listen(&self) {
        for server in self.status().servers.iter().filter(|v| v.state == ServerState::Awake) {
            wait(&format!("{} listens", server.id), PATIENCE, || TcpStream::connect(&server.address).ok());
        }
    }

    /// Compares all replicas block by block.
    pub fn verify(&self, args: &[&str]) -> Verdict {
        self.try_verify(args).unwrap_or_else(|why| panic!("replicas differ or cannot be compared: {why}"))
    }

    pub fn try_verify(&self, args: &[&str]) -> Result<Verdict, String> {
        let mut all = vec!["verify", "--json"];
        all.extend(args);
        let output = self.ebb(&all);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            return Err(text(&output.stdout) + &text(&output.stderr));
        }
        let verdict: Verdict = serde_json::from_slice(&output.stdout).expect("a verdict");
        assert_eq!((verdict.groups_different, verdict.groups_out_of_sync), (0, 0));
        Ok(verdict)
    }

    /// Every chunk is named, leased or garbage (R19). Returns the report.
    pub fn verify_space(&self) -> String {
        let output = self.ebb(&["verify", "--space"]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "something is left over, or was not listed: {said}");
        said
    }

    pub fn client_config(&self) -> ClientConfig {
        let table: toml::Table =
            std::fs::read_to_string(&self.config).expect("a file").parse().expect("TOML");
        let secret = Secret::load(&self.directory().join("secret")).expect("the secret");
        let addresses =
            array(&table, "meta").into_iter().map(|m| m["address"].as_str().expect("text").to_owned());
        ClientConfig::new(addresses.collect(), secret)
    }

    /// Runs something with a client of this cluster.
    pub fn with_client<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::connect(self.client_config()).await.expect("connect");
            work(client).await
        })
    }

    /// Changes the configuration file of a stopped cluster.
    pub fn edit(&self, change: impl FnOnce(&mut toml::Table)) {
        let mut table = std::fs::read_to_string(&self.config).expect("a file").parse().expect("TOML");
        change(&mut table);
        std::fs::write(&self.config, toml::to_string(&table).expect("TOML")).expect("write");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut all = self.all();
            all.extend([Who::Gateway, Who::SecondGateway]);
            for who in all {
                eprintln!("--- end of the log of {who:?}\n{}", tail(&self.log(who), 12));
            }
        }
        // The metadata servers first: they would start servers again.
        for who in self.all() {
            if let Some(pid) = self.pid(who) {
                kill_pid(pid);
            }
        }
        // Also processes between fork and writing the pid file: every one whose command line names this cluster's
        // directory.
        while !sweep(self.directory()).is_empty() {
            self.children.values_mut().for_each(|child| drop(child.try_wait()));
            std::thread::sleep(POLL);
        }
        self.children.values_mut().for_each(|child| drop(child.wait()));
        for mount in &self.mounts {
            // Otherwise the directory could not be removed.
            let _ = Command::new("umount").arg("--lazy").arg(mount).status();
        }
        if std::thread::panicking()
            && std::env::var_os("EBB_KEEP").is_some()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("kept: {}", directory.keep().display());
        }
    }
}

/// Mounts a file system from a file; `None` where that is not permitted.
fn mount(directory: &Path, mib: u64) -> Option<PathBuf> {
    std::fs::create_dir_all(directory).expect("a directory");
    let image = directory.with_extension("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("a file");
    let done = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let made = done(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image));
    let mounted = made && done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(directory));
    mounted.then(|| directory.to_owned())
}

/// Kills the processes whose command line names the directory; returns those that have not exited yet.
fn sweep(directory: &Path) -> Vec<u32> {
    let name = directory.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && String::from_utf8_lossy(&command).contains(&name) {
            kill_pid(pid);
            found.push(pid);
        }
    }
    found
}

/// Suspends or resumes a process. It may have exited.
fn pulse(pid: u32, stop: bool) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, if stop { Signal::STOP } else { Signal::CONT });
    }
}

fn kill_pid(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have exited meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Polls until there is a result; panics at the deadline, naming what was waited for.
pub fn wait<T>(what: &str, deadline: Duration, look: impl FnMut() -> Option<T>) -> T {
    try_wait(deadline, POLL, look).unwrap_or_else(|| panic!("{what}: not within {deadline:?}"))
}

fn try_wait<T>(deadline: Duration, pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if since.elapsed() > deadline {
            return None;
        }
        std::thread::sleep(pause);
    }
}

/// Whether as many gear groups are awake as the gear requires, and all others asleep.
fn states_fit(status: &ClusterStatus, gear: u8) -> bool {
    let mut awake: BTreeMap<u8, Vec<ServerState>> = BTreeMap::new();
    for server in status.servers.iter().filter(|s| s.state != ServerState::Lost && !s.logger) {
        awake.entry(server.gear_group.0).or_default().push(server.state);
    }
    let whole = |state: ServerState| awake.values().filter(|s| s.iter().all(|s| *s == state)).count();
    whole(ServerState::Awake) == usize::from(gear)
        && whole(ServerState::Asleep) == awake.len() - usize::from(gear)
}

fn summary(status: &Result<ClusterStatus, String>) -> String {
    match status {
        Err(error) => error.clone(),
        Ok(s) => {
            let states: Vec<String> = s.servers.iter().map(|v| format!("{}:{:?}", v.id.0, v.state)).collect();
            format!("{:?} {:?} debt {} {}", s.gear, s.groups, s.debt_bytes, states.join(" "))
        }
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, no number")))
}

pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

pub fn example() -> toml::Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml");
    std::fs::read_to_string(path).expect("the example").parse().expect("TOML")
}

pub fn array<'a>(table: &'a toml::Table, section: &str) -> Vec<&'a toml::Table> {
    let list = table[section].as_array().expect("an array of tables");
    list.iter().map(|v| v.as_table().expect("a table")).collect()
}

fn apply(table: &mut toml::Table, shape: &Shape) {
    if shape.metas > 0 {
        let meta = (1..=i64::from(shape.metas)).map(|id| {
            let mut section = toml::Table::new();
            section.insert("id".into(), id.into());
            section.insert("address".into(), String::new().into());
            section.insert("data".into(), format!("meta-{id}").into());
            toml::Value::Table(section)
        });
        table.insert("meta".into(), toml::Value::Array(meta.collect()));
    }
    if shape.second_gateway {
        let gateways = table["gateway"].as_array_mut().expect("an array");
        gateways.push(gateways[0].clone());
    }
    let cluster = table["cluster"].as_table_mut().expect("a table");
    if let Some((lease, heartbeat)) = shape.lease {
        cluster.insert("lease_millis".into(), i64::from(lease).into());
        cluster.insert("heartbeat_millis".into(), i64::from(heartbeat).into());
    }
    if let Some(mib) = shape.chunk_mib {
        cluster.insert("chunk_mib".into(), i64::from(mib).into());
    }
    if shape.depth_off {
        table["power"].as_table_mut().expect("a table").insert("depth".into(), "off".into());
    }
    if let Some(seconds) = shape.scrub_seconds {
        let scrub = table["scrub"].as_table_mut().expect("a table");
        scrub.insert("period_seconds".into(), i64::from(seconds).into());
        scrub.insert("bytes_per_second".into(), (1_i64 << 40).into());
    }
    if shape.mirror_mib.is_some() {
        let mirror = "log_mib = 16\ndriver = \"emulated\"\ndisk_model = \"model.toml\"";
        let mirror: toml::Table = mirror.parse().expect("TOML");
        table.insert("mirror".into(), toml::Value::Table(mirror));
    }
    let servers = table["server"].as_array_mut().expect("an array");
    for (id, rack) in (servers.len() + 1..).zip((1..=3).cycle()).take(shape.loggers.into()) {
        let text = format!("id = {id}\nrack = {rack}\nrole = \"logger\"\ndata = \"server-{id}\"");
        servers.push(toml::Value::Table(text.parse().expect("TOML")));
    }
    if let Some(code) = shape.code {
        let columns = code.parse::<ebb_types::Shape>().expect("a code").servers();
        let pool = toml::from_str(&format!("name = \"cold\"\ncode = \"{code}\"")).expect("a table");
        table.insert("pool".into(), toml::Value::Array(vec![toml::Value::Table(pool)]));
        for server in table["server"].as_array_mut().expect("an array").iter_mut().rev().take(columns) {
            server.as_table_mut().expect("a table").insert("pool".into(), "cold".into());
        }
    }
    for section in ["meta", "server", "gateway"] {
        for entry in table[section].as_array_mut().expect("an array") {
            let entry = entry.as_table_mut().expect("a table");
            entry.insert("address".into(), format!("127.0.0.1:{}", free_port()).into());
            if shape.metrics {
                entry.insert("metrics".into(), format!("127.0.0.1:{}", free_port()).into());
            }
            if let (Some(mib), "server") = (shape.capacity_mib, section) {
                entry.insert("capacity_mib".into(), (mib as i64).into());
            }
            if shape.mirror_mib.is_some() && section == "server" {
                let disks = ["a", "b"].map(|side| format!("disk-{}{side}", entry["id"]).into());
                entry.insert("disks".into(), toml::Value::Array(disks.into()));
            }
        }
    }
}

/// A free port, below those that the kernel assigns to outgoing connections: a killed server finds it free again.
///
/// The UDP port of the same number is held until this process ends: it shows concurrent test programs that the port is
/// taken, also while none of our servers listens on it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static TAKEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let start = (std::process::id() % 200) as u16 * 90;
    loop {
        let port = 12_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let claim = UdpSocket::bind(("127.0.0.1", port));
        if let (Ok(claim), Ok(_)) = (claim, TcpListener::bind(("127.0.0.1", port))) {
            TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(claim);
            return port;
        }
    }
}

pub fn write_private(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut f| f.write_all(text.as_bytes())).expect("write a private file");
}
