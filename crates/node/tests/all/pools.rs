//! An erasure-coded pool of real processes: its idle parity server sleeps, `ebb pool` shows it, a failed data server wakes it, and
//! a configuration with another pool is refused.

use crate::harness::{Cluster, PATIENCE, Shape, Who, wait};
use ebb_types::{ClusterStatus, ServerState};

/// Six replicated servers, and a pool `cold` of code 2+1.
fn create() -> Cluster {
    Cluster::create(&Shape { code: Some("2+1"), ..Shape::lively() })
}

fn said(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.ebb(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The state of the server of a column, in the pool's one set.
fn state(status: &ClusterStatus, column: usize) -> ServerState {
    let id = status.pools[0].sets[0].entry.columns[column].server;
    status.servers.iter().find(|server| server.id == id).expect("a server").state
}

#[test]
fn an_idle_pool_lets_its_parity_sleep_and_wakes_it_for_a_failure() {
    let mut cluster = create();
    cluster.start_all();
    let status = cluster.wait_status("parity sleeps", |s| state(s, 2) == ServerState::Asleep);
    let list = said(&cluster, &["pool", "list"]);
    assert!(list.contains("pool     cold, code 2+1") && list.contains("parity 1   asleep"), "{list}");
    let page = said(&cluster, &["pool", "status", "cold"]);
    assert!(page.contains("set 0    1 more server may fail"), "{page}");
    let page = said(&cluster, &["status"]);
    assert!(page.contains("1 of 1 parity server asleep"), "{page}");

    let data = status.pools[0].sets[0].entry.columns[0].server;
    cluster.kill(Who::Server(data.0));
    cluster.wait_status("the failure wakes parity", |s| state(s, 2) == ServerState::Awake);
    let page = wait("the set is exposed", PATIENCE, || {
        Some(said(&cluster, &["pool", "status"])).filter(|page| page.contains("EXPOSED"))
    });
    assert!(page.contains(&format!("data 1, server {} (FAILED): away", data.0)), "{page}");

    cluster.stop_all();
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("parity_buffer_mib".into(), 64.into());
    });
    let output = cluster.ebb(&["meta"]);
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("parity_buffer_mib of pool cold was 1024") && why.contains("is 64 in"), "{why}");
}
