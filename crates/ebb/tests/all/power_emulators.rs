//! Servers that put themselves to sleep and are woken through emulated management controllers: sushy-tools for Redfish,
//! `ipmi_sim` for IPMI. The machine behind a controller is the process of a real server.

use crate::harness::load::{Load, Options};
use crate::harness::machines::{Beside, emulator, has_programs, install, orders, prove, set_paths, wait_off};
use crate::harness::{Cluster, PATIENCE, Shape, Who, free_port, wait, write_private};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use toml::{Table, toml};

fn cluster() -> Cluster {
    let cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    write_private(&cluster.directory().join("bmc.password"), "secret\n");
    cluster
}

/// Waits for something that machines do when they go down.
type Until = fn(&Cluster, &[u16]);

/// Waits until the servers have closed their stores. Their machines are still going down, and are said to be on.
fn wait_closed(cluster: &Cluster, machines: &[u16]) {
    let has_closed = |id: &u16| cluster.pid(Who::Server(*id)).is_none();
    wait("the servers have closed their stores", PATIENCE, || machines.iter().all(has_closed).then_some(()));
}

/// Goes to the lowest gear and back under verified load, once for each moment at which the servers are woken.
/// `machines`: of the servers that sleep, those with an emulated controller.
fn sleep_and_wake(cluster: &mut Cluster, machines: &[u16], moments: &[Until]) {
    cluster.start_all();
    prove(cluster, machines);
    let options = Options { workers: 8, pause: Duration::from_millis(50), ..Options::default() };
    let load = Load::start(cluster.client_config(), options);
    for until in moments {
        let down = cluster.shift(1);
        until(cluster, machines);
        let up = cluster.shift(3);
        load.go_on_for(200);
        println!("down in {down:.2?}, up in {up:.2?}");
    }
    println!("debt paid in {:.2?}", cluster.heal());
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    assert!(cluster.verify(&["--read"]).blocks > 0);
}

/// The Python that has sushy-tools.
fn python() -> Option<PathBuf> {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python"));
    let python = if own.exists() { own } else { "python3".into() };
    let has = Command::new(&python).args(["-c", "import sushy_tools"]).output();
    if !has.is_ok_and(|ran| ran.status.success()) {
        ebb_testing::skip("sushy-tools is not installed");
        return None;
    }
    Some(python)
}

#[test]
fn servers_sleep_and_are_woken_through_redfish() {
    let Some(python) = python() else { return };
    let mut cluster = cluster();
    let port = free_port();
    let slept = cluster.servers[6..].to_vec();
    set_paths(&cluster, |id| {
        let url = format!("http://127.0.0.1:{port}");
        let nth = slept.iter().position(|server| *server == id)? + 1;
        let system = format!("/redfish/v1/Systems/00000000-0000-0000-0000-{nth:012x}");
        let mut path = toml! {
            driver = "redfish"
            insecure = true
            user = "ebb"
            password_file = "bmc.password"
        };
        path.insert("url".into(), url.into());
        path.insert("system".into(), system.into());
        Some(path)
    });
    let directory = cluster.directory().join("redfish");
    std::fs::create_dir(&directory).expect("a directory");
    // The bcrypt digest of "secret".
    let user = "ebb:$2b$04$KZ0qvikBk.vvrmW14LWfi.zy5nvc50dt0ozQIS9zhDrfgcJvobIsy\n";
    std::fs::write(directory.join("users"), user).expect("write");
    let mut command = Command::new(python);
    command.arg(emulator("redfish.py")).arg(&directory).arg(port.to_string());
    for id in &slept {
        install(&mut cluster, *id);
        command.arg(cluster.data(Who::Server(*id)));
    }
    let _controllers = Beside::start(&mut command, &directory.join("log"), || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    sleep_and_wake(&mut cluster, &slept, &[wait_off, wait_closed]);
    for id in slept {
        let orders = orders(&cluster, id);
        assert!(orders.len() >= 3, "server {id}: {orders:?}");
        assert!(orders.iter().all(|order| order == "On"), "server {id}: {orders:?}");
    }
}

/// A simulated controller of a server.
fn controller(cluster: &Cluster, id: u16, port: u16) -> Beside {
    let directory = cluster.directory().join(format!("ipmi-{id}"));
    std::fs::create_dir_all(directory.join("state")).expect("a directory");
    let program = emulator("chassis");
    let config = format!(
        "name \"ebb\"\nset_working_mc 0x20\n startlan 1\n  addr 127.0.0.1 {port}\n  priv_limit admin\n  \
         allowed_auths_admin md5\n  guid a123456789abcdefa123456789abcdef\n endlan\n \
         chassis_control \"{} {}\"\n user 2 true \"ebb\" \"secret\" admin 10 md5\n",
        program.display(),
        cluster.data(Who::Server(id)).display()
    );
    std::fs::write(directory.join("lan.conf"), config).expect("write");
    let commands =
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\nmc_enable 0x20\n";
    std::fs::write(directory.join("commands"), commands).expect("write");
    let mut command = Command::new("ipmi_sim");
    command.arg("-n").current_dir(&directory).args(["-c", "lan.conf", "-f", "commands", "-s", "state"]);
    let is_ready = || std::net::UdpSocket::bind(("127.0.0.1", port)).is_err();
    Beside::start(&mut command, &directory.join("log"), is_ready)
}

fn ipmi_path(port: u16) -> Table {
    let mut path = toml! {
        driver = "ipmi"
        user = "ebb"
        password_file = "bmc.password"
    };
    path.insert("host".into(), format!("127.0.0.1:{port}").into());
    path
}

/// One server; the others are switched as processes. A controller takes five seconds between two commands.
#[test]
fn servers_sleep_and_are_woken_through_ipmi() {
    if !has_programs(&["ipmi_sim", "ipmitool"]) {
        return;
    }
    let mut cluster = cluster();
    let last = cluster.servers[8..].to_vec();
    // Not by `free_port`, which keeps the UDP port of that number.
    let held: Vec<_> =
        last.iter().map(|_| std::net::UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
    let ports: Vec<u16> = held.iter().map(|socket| socket.local_addr().expect("bound").port()).collect();
    drop(held);
    let port_of = |id: u16| last.iter().position(|server| *server == id).map(|index| ports[index]);
    set_paths(&cluster, |id| port_of(id).map(ipmi_path));
    let start = |id: &u16| {
        install(&mut cluster, *id);
        controller(&cluster, *id, port_of(*id).expect("it has one"))
    };
    let _controllers: Vec<Beside> = last.iter().map(start).collect();
    sleep_and_wake(&mut cluster, &last, &[wait_closed]);
    for id in last {
        let orders = orders(&cluster, id);
        assert!(
            !orders.is_empty() && orders.iter().all(|order| order == "power 1"),
            "server {id}: {orders:?}"
        );
    }
}
