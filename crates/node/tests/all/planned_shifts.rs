//! Gears shift under load: no client notices.

use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, Shape};
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
