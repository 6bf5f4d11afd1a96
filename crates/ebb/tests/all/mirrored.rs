//! Clusters whose servers lie on mirrors of two emulated disks: killed, degraded, given a new disk, put to sleep. No
//! byte is lost and no request fails.

use crate::harness::disks::quick_epochs;
use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, wait};
use ebb_types::ServerState;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const DISK_MIB: u64 = 512;

fn shape() -> Shape {
    Shape { mirror_mib: Some(DISK_MIB), ..Shape::lively() }
}

/// `ebb mirror ...` on the mirror of a server.
fn mirror(cluster: &Cluster, id: u16, command: &str, args: &[&str]) -> Output {
    let mut all = Command::new(EBB);
    all.args(["mirror", command, &format!("server-{id}"), "--registry"]).arg(cluster.data(Who::Server(id)));
    all.args(args).output().expect("run ebb")
}

fn condition(cluster: &Cluster, id: u16) -> serde_json::Value {
    let output = mirror(cluster, id, "status", &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn disk(cluster: &Cluster, id: u16, side: &str) -> PathBuf {
    cluster.directory().join(format!("disk-{id}{side}"))
}

fn wait_in_sync(cluster: &Cluster, id: u16) {
    cluster.wait_status("the server is back and in sync", |s| {
        let here = s.servers.iter().any(|v| v.id.0 == id && v.state == ServerState::Awake);
        here && s.groups.catching_up == 0 && s.groups.in_sync == s.groups.total
    });
}

fn start_again(cluster: &mut Cluster, id: u16) {
    cluster.launch(Who::Server(id));
    wait_in_sync(cluster, id);
}

fn new_disk(path: &Path) {
    std::fs::File::create(path).and_then(|file| file.set_len(DISK_MIB << 20)).expect("a disk");
}

#[test]
fn servers_on_mirrors_lose_nothing() {
    let mut cluster = Cluster::start(&shape());
    cluster.stop_all();
    for id in cluster.servers.clone() {
        quick_epochs(&cluster.data(Who::Server(id)).join(format!("server-{id}.toml")));
    }
    cluster.start_all();
    let load = Load::start(cluster.client_config(), Options::default());
    load.go_on_for(500);
    // Killed.
    for id in [1, 2] {
        cluster.kill(Who::Server(id));
        start_again(&mut cluster, id);
        load.go_on_for(300);
    }
    // A disk is gone: refused, and accepted when the configuration says so.
    let id = 3;
    cluster.terminate(Who::Server(id));
    let gone = disk(&cluster, id, "b");
    std::fs::remove_file(&gone).expect("a disk");
    cluster.launch(Who::Server(id));
    wait("the server refuses to start", PATIENCE, || {
        cluster.log(Who::Server(id)).contains("disk B is missing").then_some(())
    });
    assert!(cluster.log(Who::Server(id)).contains("`degraded = true` under [mirror]"));
    cluster.edit(|table| {
        table["mirror"].as_table_mut().expect("a table").insert("degraded".into(), true.into());
    });
    start_again(&mut cluster, id);
    assert_eq!(condition(&cluster, id)["condition"], "degraded");
    load.go_on_for(300);
    // A new disk in its place.
    cluster.terminate(Who::Server(id));
    new_disk(&gone);
    let replaced = mirror(&cluster, id, "replace", &["--disk", &gone.to_string_lossy()]);
    assert!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
    start_again(&mut cluster, id);
    wait("the new disk has everything", PATIENCE, || {
        (condition(&cluster, id)["condition"] == "in-sync").then_some(())
    });
    // Asleep and awake.
    cluster.shift(1);
    load.go_on_for(300);
    cluster.heal();
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    cluster.verify(&["--read"]);
    // Inside the awake servers, the disks followed the load.
    let changes = |id: &u16| {
        let status = condition(&cluster, *id);
        let disks = status["disks"].as_array().expect("two").iter();
        disks.map(|disk| disk["speed_changes"].as_u64().expect("a number")).sum::<u64>()
    };
    assert!(cluster.servers.iter().map(changes).sum::<u64>() > 0, "no disk changed its speed");
}

#[test]
fn disks_with_content_and_other_disks_are_refused() {
    let mut cluster = Cluster::create(&shape());
    let server = |cluster: &Cluster| {
        let output = cluster.ebb(&["server", "--id", "1"]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let first = disk(&cluster, 1, "a");
    std::fs::write(&first, [vec![7; 4096], vec![0; (DISK_MIB << 20) as usize - 4096]].concat())
        .expect("write");
    let said = server(&cluster);
    assert!(said.contains("contains data") && said.contains("--overwrite"), "{said}");
    new_disk(&first);
    for who in cluster.all() {
        cluster.launch(who);
    }
    cluster.wait_status("it serves", |s| s.groups.without_primary == 0);
    cluster.terminate(Who::Server(1));
    cluster.edit(|table| {
        let servers = table["server"].as_array_mut().expect("an array");
        servers[0]["disks"][0] = "elsewhere".into();
    });
    let said = server(&cluster);
    assert!(said.contains("disk-1a") && said.contains("ebb mirror replace"), "{said}");
}
