//! Three metadata servers: the leader dies under load, and nothing that was promised is lost.

mod harness;

use harness::load::{Load, Options};
use harness::{Cluster, PATIENCE, Shape, Who, tail, wait};
use std::time::{Duration, Instant};

/// The member that became leader last, by its log: it is the one that decides.
fn leader(cluster: &Cluster, besides: Option<u64>) -> u64 {
    wait("a metadata leader", PATIENCE, || {
        let status = cluster.try_status().ok()?;
        assert!(!status.servers.is_empty());
        let leads = |id: &&u64| {
            Some(**id) != besides && cluster.pid(Who::Meta(**id)).is_some() && speaks(cluster, **id)
        };
        cluster.metas.iter().find(leads).copied()
    })
}

/// Whether this member alone answers as the leader.
fn speaks(cluster: &Cluster, id: u64) -> bool {
    let mut config = cluster.client_config();
    config.meta = vec![config.meta[id as usize - 1].clone()];
    config.deadline = Duration::from_millis(500);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { ebb_client::Client::connect(config).await.is_ok() })
}

#[test]
fn the_leader_dies_under_load_and_nothing_acknowledged_is_lost() {
    let shape = Shape { metas: 3, ..Shape::lively() };
    let mut cluster = Cluster::start(&shape);
    let load = Load::start(cluster.client_config(), Options::default());
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let old = leader(&cluster, None);
        let killed = Instant::now();
        cluster.kill(Who::Meta(old));
        let new = leader(&cluster, Some(old));
        println!("round {round}: member {old} killed, member {new} answered {:.2?} later", killed.elapsed());
        load.go_on_for(500);
        cluster.launch(Who::Meta(old));
        load.go_on_for(500);
        longest = longest.max(load.longest_since(killed));
    }
    // The gears still shift: the new leader decides as the old one did.
    println!("gear 1 in {:.2?}", cluster.shift(1));
    println!("healed in {:.2?}", cluster.heal());
    let report = load.stop();
    println!("{report}; longest around a leader's death {longest:.2?}");
    report.assert_flawless();
    assert!(report.names > 0, "the namespace was not changed:\n{}", tail(&cluster.log(Who::Meta(1)), 20));
    // An election, a lease that the new leader waits for, and the servers' next heartbeat.
    assert!(longest < cluster.lease + Duration::from_secs(2), "\n{}", report.longest_operations());
    cluster.verify(&["--read"]);

    // All three stop and start: what they agreed on is on their disks.
    cluster.stop_all();
    cluster.start_all();
    cluster.heal();
    cluster.verify(&[]);
}
