//! Machines behind emulators of real controllers and networks: `tests/emulators`. The whole life of such a machine is
//! the process of a server: it goes off when that ends, and boots into it again.

use super::{Cluster, PATIENCE, Who, wait};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use toml::{Table, Value};

/// A file of `tests/emulators`.
pub fn emulator(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulators").join(name)
}

/// Compiles a C file of `tests/emulators` into a library to preload, `NAME.so` of the cluster's directory.
pub fn library(cluster: &Cluster, name: &str) -> PathBuf {
    let library = cluster.directory().join(name).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(emulator(&format!("{name}.c")));
    let made = cc.output().expect("run cc");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    library
}

/// Whether all these programs are installed; the test that calls this is skipped otherwise.
pub fn has_programs(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|directory| directory.join(name).exists());
    let missing = names.iter().find(|name| !is_there(name));
    if let Some(name) = missing {
        ebb_testing::skip(format!("{name} is not installed"));
    }
    missing.is_none()
}

/// A program that runs beside a cluster, and is killed at the end.
pub struct Beside(Child);

impl Beside {
    /// Returns when `is_ready`. Its output goes to a file.
    pub fn start(command: &mut Command, output: &Path, is_ready: impl Fn() -> bool) -> Beside {
        let file = File::create(output).expect("a file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a file")).stderr(file);
        let mut beside = Beside(command.spawn().expect("start a program"));
        wait(&format!("{command:?} is ready"), PATIENCE, || {
            let ended = beside.0.try_wait().expect("a child");
            let said = || std::fs::read_to_string(output).unwrap_or_default();
            assert!(ended.is_none(), "{command:?} has ended: {}", said());
            is_ready().then_some(())
        });
        beside
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has these servers sleep by themselves and be woken by these power paths of each; the others stay processes. In the
/// lowest gear servers 1 to 3 are awake. Servers 7 to 9 may have a single path: of each chunk group one of 4 to 6
/// sleeps, too.
pub fn set_paths(cluster: &Cluster, paths: impl Fn(u16) -> Option<Table>) {
    cluster.edit(|table| {
        // The machine takes this long to go down after its server has closed its store: still on, it is woken too
        // early.
        table["power"].as_table_mut().expect("a table").insert("off".into(), vec!["sleep", "2"].into());
        for server in table["server"].as_array_mut().expect("an array") {
            let server = server.as_table_mut().expect("a table");
            let id = server["id"].as_integer().expect("a number") as u16;
            if let Some(path) = paths(id) {
                server.insert("power".into(), vec![Value::Table(path)].into());
            }
        }
        table["scheduler"].as_table_mut().expect("a table").insert("rotate_days".into(), 0.into());
    });
}

/// Makes a server's process a machine, and writes the program into which that boots.
pub fn install(cluster: &mut Cluster, id: u16) {
    let who = Who::Server(id);
    let lock = lock_of(cluster, id).display().to_string();
    // It holds the lock for as long as it lives. To look at the lock takes no fifth of a second.
    let holds = ["flock", "--wait", "0.2", "--no-fork", &lock].map(str::to_owned);
    let command: Vec<String> = holds.into_iter().chain(cluster.command(who)).collect();
    let words: Vec<String> = command.iter().map(|word| format!("'{word}'")).collect();
    let path = cluster.data(who).with_extension("start");
    std::fs::write(&path, format!("#!/bin/sh\nexec {}\n", words.join(" "))).expect("write a program");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("make it a program");
    cluster.commands.insert(who, command);
}

fn lock_of(cluster: &Cluster, id: u16) -> PathBuf {
    cluster.data(Who::Server(id)).with_extension("on")
}

/// Whether the machine of the server with this data directory, which was on before, is off.
pub fn is_off(data: &Path) -> bool {
    File::open(data.with_extension("on")).expect("it was on").try_lock().is_ok()
}

/// Waits until none of these machines is on: their servers have ended, and what turns them off, too.
pub fn wait_off(cluster: &Cluster, ids: &[u16]) {
    let is_off = |id: &u16| is_off(&cluster.data(Who::Server(*id)));
    wait("the sleepers' machines are off", PATIENCE, || ids.iter().all(is_off).then_some(()));
}

/// Has these servers prove that they can be woken; else they are not put to sleep. A server that is needed meanwhile,
/// because a disk here paused for longer than a lease, is tested again, as the command asks.
pub fn prove(cluster: &Cluster, ids: &[u16]) {
    for id in ids {
        wait(&format!("server {id} passes its test"), PATIENCE, || {
            let tested = cluster.ebb(&["power", "test", &id.to_string()]);
            let (said, why) =
                (String::from_utf8_lossy(&tested.stdout), String::from_utf8_lossy(&tested.stderr));
            let again = ["test it again", "copies are missing", "wait until"];
            let again = again.iter().any(|words| said.contains(words) || why.contains(words));
            assert!(tested.status.success() || again, "{said}{why}");
            tested.status.success().then_some(())
        });
    }
}

/// Orders that a server's controller was given.
pub fn orders(cluster: &Cluster, id: u16) -> Vec<String> {
    let path = cluster.data(Who::Server(id)).with_extension("orders");
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}
