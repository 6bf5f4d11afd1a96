//! Servers that put their own machines to sleep, by the metadata leader's order, and are woken by another program: here the
//! "machine" is the server's process, which ends and is started again.

use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, EBB, Shape, Who};
use ebb_types::ServerState;

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

/// A cluster whose machines turn themselves off. `wol`: magic packets are to wake them as well, on cards that there are not.
fn cluster(wol: bool) -> Cluster {
    let mut cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    let paths = |id: &u16| -> toml::Value {
        let magic =
            format!("driver = \"wol\"\nmac = \"52:54:00:00:00:{id:02}\"\nbroadcast = \"127.0.0.1:9\"");
        let magic: Option<toml::Table> = wol.then(|| magic.parse().expect("TOML"));
        let paths = std::iter::once(path(&cluster, *id)).chain(magic).map(toml::Value::from);
        paths.collect::<Vec<_>>().into()
    };
    let all: Vec<toml::Value> = cluster.servers.iter().map(paths).collect();
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

#[test]
fn no_request_fails_while_machines_turn_themselves_off_and_are_turned_on() {
    let cluster = cluster(false);
    let load = Load::start(cluster.client_config(), Options::default());
    for gear in [1, 3] {
        cluster.shift(gear);
        load.go_on_for(200);
        let status = cluster.wait_status("every switch has done its work", |status| {
            status.servers.iter().all(|server| match server.state {
                ServerState::Asleep => cluster.pid(Who::Server(server.id.0)).is_none(),
                state => state == ServerState::Awake,
            })
        });
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
fn a_machine_that_could_not_be_woken_stays_awake_and_says_why() {
    let cluster = cluster(true);
    let pids =
        || -> Vec<Option<u32>> { cluster.servers.iter().map(|id| cluster.pid(Who::Server(*id))).collect() };
    let before = pids();
    cluster.gear(&["set", "1"]);
    let why = "it stays awake: no network card here has the address 52:54:00:00:00:0";
    cluster.wait_status("a server says why it stays awake", |status| {
        status
            .servers
            .iter()
            .any(|server| server.switch_trouble.as_ref().is_some_and(|text| text.contains(why)))
    });
    assert_eq!(pids(), before, "none has ended");
    cluster.shift(3);
}
