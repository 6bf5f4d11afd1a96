//! Servers that put their own machines to sleep, by the metadata leader's order, and are woken by another program: here the
//! "machine" is the server's process, which ends and is started again.

use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, wait};
use ebb_types::{ClusterStatus, ServerState};
use std::net::{TcpListener, UdpSocket};

/// Of the addresses of network cards that there are not; the server's number follows.
const PREFIX: &str = "52:54:00:00:00:";

/// What turns the machine of a server on, and says whether it is: a plug in a wall would do the same.
fn path(cluster: &Cluster, id: u16) -> toml::Table {
    let (data, config) = (cluster.data(Who::Server(id)), cluster.config.display());
    let (pid, log) = (data.join("server.pid"), data.with_extension("log"));
    let (pid, log) = (pid.display(), log.display());
    let wake = format!("setsid {EBB} server --id {id} --config {config} </dev/null >>{log} 2>&1 &");
    let state =
        format!("if read pid rest <{pid} && kill -0 $pid; then echo on; else echo off; fi 2>/dev/null");
    let program = |script: String| toml::Value::from(vec!["sh".to_owned(), "-c".to_owned(), script]);
    let mut table = toml::Table::new();
    table.insert("driver".into(), "command".into());
    table.insert("wake".into(), program(wake));
    table.insert("state".into(), program(state));
    table
}

/// A cluster whose machines turn themselves off, each with these power paths.
fn cluster(paths: impl Fn(&Cluster, u16) -> Vec<toml::Table>) -> Cluster {
    let mut cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    let tables = |id: &u16| paths(&cluster, *id).into_iter().map(toml::Value::from).collect::<Vec<_>>();
    let all: Vec<toml::Value> = cluster.servers.iter().map(|id| tables(id).into()).collect();
    cluster.edit(|table| {
        table["power"]["off"] = vec!["true".to_owned()].into();
        let servers = table["server"].as_array_mut().expect("servers");
        for (server, paths) in servers.iter_mut().zip(all) {
            server.as_table_mut().expect("a table").insert("power".into(), paths);
        }
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
    assert_eq!(cluster.servers.iter().filter(|id| told(id)).count(), 6, "they turned themselves off");
    assert!(cluster.verify(&["--read"]).blocks > 0);
}

#[test]
fn a_machine_that_could_not_be_woken_stays_awake_and_its_neighbours_send_what_would_wake_it() {
    let listener = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    listener.set_nonblocking(true).expect("a setting");
    let to = listener.local_addr().expect("an address");
    let wol = |id: u16| format!("driver = \"wol\"\nmac = \"{PREFIX}{id:02}\"\nbroadcast = \"{to}\"");
    let cluster = cluster(|cluster, id| vec![wol(id).parse().expect("TOML"), path(cluster, id)]);
    let pids =
        || -> Vec<Option<u32>> { cluster.servers.iter().map(|id| cluster.pid(Who::Server(*id))).collect() };
    let before = pids();
    cluster.gear(&["set", "1"]);
    let why = format!("it stays awake: no network card here has the address {PREFIX}");
    let told = cluster.wait_status("a server says why it stays awake", |status| {
        status.servers.iter().any(|s| s.switch_trouble.as_ref().is_some_and(|text| text.contains(&why)))
    });
    let sleeper = told.servers.iter().find(|s| s.switch_trouble.is_some()).expect("it was there").id.0;
    cluster.shift(3);
    assert_eq!(pids(), before, "none has ended");
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
        (1..=9).map(|_| TcpListener::bind("127.0.0.1:0").expect("a socket")).collect();
    let bmc = |id: u16| {
        let address = hang[usize::from(id) - 1].local_addr().expect("an address");
        format!("driver = \"redfish\"\nurl = \"http://{address}\"\ntimeout = \"1h\"")
    };
    let mut cluster = cluster(|_, id| vec![bmc(id).parse().expect("TOML")]);
    let load = Load::start(cluster.client_config(), Options::default());
    cluster.gear(&["set", "1"]);
    let status = cluster.wait_status("they turned themselves off", |status| {
        status.gear.gear == 1 && !status.gear.shifting && has_settled(&cluster, status)
    });
    assert_eq!(status.servers.iter().filter(|server| server.state == ServerState::Asleep).count(), 6);
    load.go_on_for(500);
    load.stop().assert_flawless();
    // Each of the six is being asked whether it is off, for an hour.
    cluster.terminate(Who::Meta(1));
}
