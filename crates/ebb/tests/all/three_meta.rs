//! Three metadata servers: the leader dies under load, and no acknowledged change is lost.

use crate::harness::load::{Load, Options};
use crate::harness::{Cluster, PATIENCE, Shape, Who, tail, wait};
use ebb_client::transport::{Identity, Party, connect, kind};
use ebb_types::{AdminRequest, MetaReply, MetaRequest};
use std::time::{Duration, Instant};

/// The current leader.
pub fn leader(cluster: &Cluster) -> u64 {
    wait("a metadata leader", PATIENCE, || cluster.metas.iter().copied().find(|id| leads(cluster, *id)))
}

/// Asks this member only.
fn leads(cluster: &Cluster, id: u64) -> bool {
    let config = cluster.client_config();
    let own = Identity { cluster: 0, party: Party::Client };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let asked = runtime.block_on(async {
        let mut connection = connect(&config.meta[id as usize - 1], &config.secret, own).await.ok()?;
        let request = MetaRequest::Admin(AdminRequest::Status);
        connection.sender.send(kind::META_REQUEST, 1, &request, bytes::Bytes::new()).ok()?;
        let answer =
            tokio::time::timeout(Duration::from_secs(5), connection.receiver.next()).await.ok()?.ok()??;
        answer.decode::<MetaReply>().ok()
    });
    matches!(asked, Some((_, MetaReply::Admin(_))))
}

#[test]
fn the_leader_dies_under_load_and_nothing_acknowledged_is_lost() {
    let shape = Shape { metas: 3, ..Shape::lively() };
    let mut cluster = Cluster::start(&shape);
    let load = Load::start(cluster.client_config(), Options::default());
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let old = leader(&cluster);
        let killed = Instant::now();
        cluster.kill(Who::Meta(old));
        let new = leader(&cluster);
        println!("round {round}: member {old} killed, member {new} leads {:.2?} later", killed.elapsed());
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
    cluster.verify(&["--read"]);

    // All three stop and start: the agreed state is on their disks.
    cluster.stop_all();
    cluster.start_all();
    cluster.heal();
    cluster.verify(&[]);
}
