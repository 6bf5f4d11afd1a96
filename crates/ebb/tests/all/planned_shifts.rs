//! Gears shift under load: no client notices.

use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, Shape, Who};
use ebb_types::ServerState;
use std::time::Instant;

fn shift_under_load(shape: &Shape, gears: &[u8]) {
    let cluster = Cluster::start(shape);
    let load = Load::start(cluster.client_config(), Options::default());
    let mut from = 3;
    for &gear in gears {
        let since = Instant::now();
        let took = cluster.shift(gear);
        load.go_on_for(500);
        let longest = load.longest_since(since);
        println!(
            "{:>6.1?} gear {from} to {gear}: {took:.2?}, longest operation {longest:.2?}",
            load.elapsed()
        );
        from = gear;
    }
    println!("debt paid in {:.2?}", cluster.heal());
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    let verdict = cluster.verify(&["--read"]);
    assert!(verdict.blocks > 0);
    assert_eq!(cluster.status().debt_bytes, 0);
}

#[test]
fn no_request_fails_while_servers_go_to_standby_and_come_back() {
    shift_under_load(&Shape::lively(), &[1, 3, 2, 1, 3]);
}

#[test]
fn no_request_fails_while_servers_are_switched_off_and_started_again() {
    shift_under_load(&Shape { depth_off: true, ..Shape::lively() }, &[1, 3, 2, 1, 3]);
}

#[test]
fn loggers_hold_what_sleepers_miss() {
    let cluster = Cluster::start(&Shape { loggers: 3, ..Shape::lively() });
    let load = Load::start(cluster.client_config(), Options::default());
    cluster.shift(1);
    let status = cluster.wait_status("each logger holds some of the debt", |s| {
        let mut loggers = s.servers.iter().filter(|server| server.logger);
        loggers.all(|logger| logger.vitals.as_ref().is_some_and(|vitals| vitals.debt_bytes > 0))
    });
    let (loggers, others): (Vec<_>, Vec<_>) = status.servers.iter().partition(|server| server.logger);
    assert_eq!((loggers.len(), others.len()), (3, 9));
    assert!(loggers.iter().all(|logger| logger.state == ServerState::Awake && logger.primaries == 0));
    assert_eq!(others.iter().map(|server| server.holder_of).sum::<u32>(), 0, "{others:?}");
    cluster.heal();
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    assert!(cluster.verify(&["--read"]).blocks > 0);
}

#[test]
fn no_request_fails_while_servers_are_tested_and_taken_out_for_maintenance() {
    let mut cluster = Cluster::start(&Shape::lively());
    let load = Load::start(cluster.client_config(), Options::default());
    cluster.shift(1);
    let tested = cluster.ebb(&["power", "test", "server-1", "--json"]);
    let text = String::from_utf8_lossy(&tested.stdout);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {tested:?}"));
    assert_eq!((tested.status.code(), &all[0]["passed"]), (Some(0), &true.into()), "{text}");
    println!("{text}");
    let status =
        cluster.wait_status("the test is over", |s| s.servers.iter().all(|s| s.power.exam.is_some()));
    assert!(status.servers.iter().all(|s| s.power.exam.as_ref().is_some_and(|exam| exam.faults.is_empty())));
    // It serves alone in gear 1, and is stopped.
    let out = cluster.ebb(&["maintenance", "1"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let since = Instant::now();
    cluster.terminate(Who::Server(1));
    load.go_on_for(500);
    println!("longest operation while it was stopped {:.2?}", load.longest_since(since));
    cluster.launch(Who::Server(1));
    let out = cluster.ebb(&["maintenance", "1", "--end"]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    cluster.shift(3);
    cluster.heal();
    let report = load.stop();
    println!("{report}");
    report.assert_flawless();
    assert!(cluster.verify(&["--read"]).blocks > 0);
}
