//! A server in a virtual machine, which really powers off or suspends and boots or resumes. QEMU runs it by software,
//! so it is slow and needs no rights. `make test-vm`.

use crate::harness::load::{Load, Options};
use crate::harness::machines::{emulator, has_programs, prove, set_paths};
use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, array, wait};
use ebb_types::ServerState;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use toml::toml;

/// The server in the machine.
const GUEST: u16 = 9;

/// The directory of an unpacked kernel package.
fn kernel() -> Option<PathBuf> {
    if !has_programs(&["qemu-system-x86_64", "busybox", "cpio", "mkfs.ext4", "strip"]) {
        return None;
    }
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.vm/kernel");
    if !kernel.exists() {
        ebb_testing::skip("no kernel for virtual machines in .vm");
        return None;
    }
    Some(kernel)
}

/// Packs a machine whose disk has the cluster's files.
fn make_machine(cluster: &mut Cluster, kernel: &Path) {
    let vm = cluster.directory().join("vm");
    let guest = vm.join("guest");
    std::fs::create_dir_all(&guest).expect("a directory");
    set_paths(cluster, |id| {
        let qemu = toml! {
            driver = "qemu"
            qmp = "vm/qmp"
        };
        (id == GUEST).then_some(qemu)
    });
    let mut table: toml::Table =
        std::fs::read_to_string(&cluster.config).expect("a file").parse().expect("TOML");
    let address = array(&table, "server")[usize::from(GUEST) - 1]["address"].as_str().expect("text");
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    // In the machine, the host's ports come in at the card, and the usual commands turn it off.
    table["server"][usize::from(GUEST) - 1]["address"] = format!("0.0.0.0:{port}").into();
    table["power"].as_table_mut().expect("a table").remove("off");
    std::fs::write(guest.join("cluster.toml"), toml::to_string(&table).expect("TOML")).expect("write");
    std::fs::copy(cluster.directory().join("server.secret"), guest.join("server.secret")).expect("copy");
    let made =
        Command::new(emulator("vm")).arg("make").arg(&vm).arg(kernel).arg(EBB).output().expect("run sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let words = [emulator("vm").display().to_string(), "run".into(), vm.display().to_string()];
    let run = words.into_iter().chain([GUEST.to_string(), port]).collect();
    cluster.commands.insert(Who::Server(GUEST), run);
}

/// What QEMU says about the machine.
fn machine_status(qmp: &Path) -> Option<String> {
    let stream = UnixStream::connect(qmp).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    (&stream).write_all(b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"query-status\"}").ok()?;
    let mut lines = BufReader::new(stream).lines();
    let answer: serde_json::Value = lines.find_map(|line| {
        let line = line.ok()?;
        line.contains("\"status\"").then(|| serde_json::from_str(&line).expect("JSON"))
    })?;
    answer["return"]["status"].as_str().map(str::to_owned)
}

/// The server in the machine sleeps and comes back, as deep as the cluster's servers do: once for a power test, and
/// `gears` times in the lowest gear.
fn sleeps_and_comes_back(depth_off: bool, gears: usize) {
    let Some(kernel) = kernel() else { return };
    let since = Instant::now();
    // Emulated, the machine may hold still for a while.
    let shape = Shape { depth_off, lease: Some((8000, 1000)), ..Shape::lively() };
    let mut cluster = Cluster::create(&shape);
    make_machine(&mut cluster, &kernel);
    let qmp = cluster.directory().join("vm/qmp");
    cluster.start_all();
    println!("served after {:.2?}", since.elapsed());
    // The others serve everything, and it boots for as long as that takes here.
    cluster.wait_status("the machine's server is awake", |status| {
        status.servers.iter().any(|s| s.id.0 == GUEST && s.state == ServerState::Awake)
    });
    let options = Options { workers: 4, cells: 8, pause: Duration::from_millis(100), ..Options::default() };
    let load = Load::start(cluster.client_config(), options);
    prove(&cluster, &[GUEST]);
    for _ in 0..gears {
        let took = cluster.shift(1);
        let status = cluster.status();
        let guest = status.servers.iter().find(|s| s.id.0 == GUEST).expect("it is known");
        assert_eq!(guest.state, ServerState::Asleep);
        let down = if depth_off { "shutdown" } else { "suspended" };
        wait("the machine is down", PATIENCE, || {
            (machine_status(&qmp).as_deref() == Some(down)).then_some(())
        });
        load.go_on_for(100);
        println!("down in {took:.2?}, up in {:.2?}", cluster.shift(3));
    }
    assert_eq!(machine_status(&qmp).as_deref(), Some("running"));
    println!("debt paid in {:.2?}", cluster.heal());
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    assert!(cluster.verify(&["--read"]).blocks > 0);
    let console = std::fs::read_to_string(cluster.directory().join("vm/console")).expect("the console");
    assert_eq!(console.matches("booted in").count(), if depth_off { 2 + gears } else { 1 }, "{console}");
    println!("{:.2?} in all\n{console}", since.elapsed());
}

#[test]
#[ignore = "minutes where the processor is busy: make test-vm"]
fn a_virtual_machine_powers_off_and_boots() {
    sleeps_and_comes_back(true, 1);
}

#[test]
#[ignore = "minutes where the processor is busy: make test-vm"]
fn a_virtual_machine_suspends_and_resumes_twice() {
    sleeps_and_comes_back(false, 1);
}
