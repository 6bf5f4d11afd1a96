//! Servers that put their own machines to sleep, by the metadata leader's order, and are woken by another program: here
//! the "machine" is the server's process, which ends and is started again.

use crate::harness::load::{Load, Options};
use crate::harness::machines::prove;
use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, wait};
use ebb_types::{ClusterStatus, ServerState};
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};

/// Of the addresses of network cards that there are not; the server's number follows.
const PREFIX: &str = "52:54:00:00:00:";

/// What turns the machine of a server on, and says whether it is: a plug in a wall would do the same.
fn path(cluster: &Cluster, id: u16) -> toml::Table {
    let (data, config) = (cluster.data(Who::Server(id)), cluster.config.display());
    let (pid, log) = (data.join("server.pid"), data.with_extension("log"));
    let (pid, log) = (pid.display(), log.display());
    let wake = format!("setsid {EBB} server --id {id} --config {config} </dev/null >>{log} 2>&1 &");
    let state = format!("if read pid <{pid} && kill -0 $pid; then echo on; else echo off; fi 2>/dev/null");
    let program = |script: String| toml::Value::from(vec!["sh".to_owned(), "-c".to_owned(), script]);
    let mut table = toml::Table::new();
    table.insert("driver".into(), "command".into());
    table.insert("wake".into(), program(wake));
    table.insert("state".into(), program(state));
    table
}

/// The servers with machines of their own; the others are switched as processes.
const MACHINES: std::ops::RangeInclusive<u16> = 7..=9;

/// A cluster whose machines turn themselves off, each with these power paths.
fn cluster(paths: impl Fn(&Cluster, u16) -> Vec<toml::Table>) -> Cluster {
    let mut cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    let tables = |id: u16| paths(&cluster, id).into_iter().map(toml::Value::from).collect::<Vec<_>>();
    let all: Vec<toml::Value> = MACHINES.map(|id| tables(id).into()).collect();
    cluster.edit(|table| {
        table["power"]["off"] = vec!["true".to_owned()].into();
        let servers = table["server"].as_array_mut().expect("servers");
        let own = servers.iter_mut().skip(usize::from(*MACHINES.start()) - 1);
        for (server, paths) in own.zip(all) {
            server.as_table_mut().expect("a table").insert("power".into(), paths);
        }
        // In the lowest gear servers 1 to 3 are awake, and of each chunk group one of 4 to 6 sleeps, too: the others
        // may have a single path.
        table["scheduler"].as_table_mut().expect("a table").insert("rotate_days".into(), 0.into());
    });
    cluster.start_all();
    cluster
}

/// Whether the servers that are to sleep have ended, and the others are awake.
fn has_settled(cluster: &Cluster, status: &ClusterStatus) -> bool {
    status.servers.iter().all(|server| match server.state {
        ServerState::Asleep => cluster.pid(Who::Server(server.id.0)).is_none(),
        state => state == ServerState::Awake,
    })
}

#[test]
fn no_request_fails_while_machines_turn_themselves_off_and_are_turned_on() {
    let cluster = cluster(|cluster, id| vec![path(cluster, id)]);
    prove(&cluster, &MACHINES.collect::<Vec<_>>());
    let load = Load::start(cluster.client_config(), Options::default());
    for gear in [1, 3] {
        cluster.shift(gear);
        load.go_on_for(200);
        let status =
            cluster.wait_status("every switch has done its work", |status| has_settled(&cluster, status));
        let asleep = status.servers.iter().filter(|server| server.state == ServerState::Asleep);
        assert_eq!(asleep.count(), if gear == 1 { 6 } else { 0 });
    }
    cluster.heal();
    load.stop().assert_flawless();
    let told = |id: &u16| cluster.log(Who::Server(*id)).contains("the machine powers off");
    assert_eq!(MACHINES.filter(|id| told(id)).count(), 3, "they turned themselves off");
    assert!(cluster.verify(&["--read"]).blocks > 0);
}

#[test]
fn a_machine_that_could_not_be_woken_stays_awake_and_its_neighbours_send_what_would_wake_it() {
    let listener = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    listener.set_nonblocking(true).expect("a setting");
    let to = listener.local_addr().expect("an address");
    let wol = |id: u16| format!("driver = \"wol\"\nmac = \"{PREFIX}{id:02}\"\nbroadcast = \"{to}\"");
    let cluster = cluster(|_, id| vec![wol(id).parse().expect("TOML")]);
    let (sleeper, before) = (*MACHINES.end(), cluster.pid(Who::Server(*MACHINES.end())));
    let test = cluster.ebb(&["power", "test", "9"]);
    let why = format!("refused to sleep: no network card here has the address {PREFIX}");
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.code() == Some(1) && said.contains(&why), "{said}");
    cluster.heal();
    assert_eq!(cluster.pid(Who::Server(sleeper)), before, "it has not ended");
    let wanted = [0x52, 0x54, 0, 0, 0, sleeper as u8];
    wait("the packet that wakes it", PATIENCE, || {
        let mut packet = [0; 200];
        let length = listener.recv(&mut packet).ok()?;
        (length == 102 && packet[96..102] == wanted).then_some(())
    });
    let sent = format!("sent the magic packet that wakes {PREFIX}{sleeper:02}");
    let neighbour = |id: &u16| cluster.log(Who::Server(*id)).contains(&sent);
    assert!(cluster.servers.iter().any(neighbour), "an awake server of the rack sends, too");
}

#[test]
fn a_controller_that_hangs_delays_no_lease_and_no_end() {
    let hang: Vec<TcpListener> =
        MACHINES.map(|_| TcpListener::bind("127.0.0.1:0").expect("a socket")).collect();
    let bmc = |id: u16| {
        let address = hang[usize::from(id - MACHINES.start())].local_addr().expect("an address");
        format!("driver = \"redfish\"\nurl = \"http://{address}\"\ntimeout = \"1h\"")
    };
    let mut cluster = cluster(|_, id| vec![bmc(id).parse().expect("TOML")]);
    let load = Load::start(cluster.client_config(), Options::default());
    let mut test = Command::new(EBB);
    test.args(["power", "test", "9", "--config"]).arg(&cluster.config).stdout(Stdio::null());
    let mut test = test.spawn().expect("start ebb");
    cluster.wait_status("the machine under test turned itself off", |status| {
        let server = status.servers.iter().find(|s| s.id.0 == 9).expect("it is known");
        server.state == ServerState::Asleep && has_settled(&cluster, status)
    });
    load.go_on_for(500);
    load.stop().assert_flawless();
    // It is being asked whether the machine is off, for an hour.
    cluster.terminate(Who::Meta(1));
    test.kill().expect("it waits");
    test.wait().expect("a child");
}
