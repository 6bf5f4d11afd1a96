//! Three metadata servers: the leader dies under load, and no acknowledged change is lost; a gateway that does not
//! reach the leader is served; and so are the chunk groups of a server that does not hear it.

use crate::harness::faults::{CALL, Fault, Faults, SEND};
use crate::harness::load::{Load, Options};
use crate::harness::objects::Objects;
use crate::harness::{ACCESS_KEY, Cluster, PATIENCE, SECRET_KEY, Shape, Who, tail, wait};
use ebb_client::transport::{Identity, Party, connect, kind};
use ebb_testing::s3::request;
use ebb_types::{AdminRequest, ClusterStatus, MetaReply, MetaRequest, ServerId, ServerState};
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

/// The network parts the gateway from the leader, and from nobody else. So it is served through another member, or not
/// at all: after half a minute it would give up.
#[test]
fn a_gateway_that_is_cut_off_from_the_leader_alone_is_served() {
    let mut cluster = Cluster::create(&Shape { metas: 3, ..Shape::lively() });
    let processes: Vec<Who> = cluster.all().into_iter().chain([Who::Gateway]).collect();
    let Some(faults) = Faults::prepare(&mut cluster, &processes) else { return };
    cluster.start_all();
    cluster.launch(Who::Gateway);
    assert_eq!(Objects::create_bucket(&cluster.gateway, "bucket", None).0, 200);
    let send = |method, path, body: &[u8]| {
        let answer = request(&cluster.gateway, (ACCESS_KEY, SECRET_KEY), method, path, body);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    };
    send("PUT", "/bucket/before", b"direct");

    let old = leader(&cluster);
    let (gateway, meta) = (Who::Gateway, Who::Meta(old));
    let cut = |peer| Fault { cut: [(peer, CALL | SEND)].into(), ..Fault::default() };
    faults.set(gateway, &cut(meta));
    faults.set(meta, &cut(gateway));
    let since = Instant::now();
    send("PUT", "/bucket/meanwhile", b"passed on");
    println!("served again after {:.2?}", since.elapsed());
    assert_eq!(send("GET", "/bucket/before", b""), b"direct");
    assert_eq!(send("GET", "/bucket/meanwhile", b""), b"passed on");
    assert_eq!(leader(&cluster), old, "another member leads: it proves nothing");

    [gateway, meta].iter().for_each(|who| faults.clear(*who));
    send("PUT", "/bucket/after", b"direct again");
    assert_eq!(send("GET", "/bucket/meanwhile", b""), b"passed on");
}

/// Its heartbeats arrive, and the leader's answers do not. Without a lease it serves nothing, and the leader, which
/// hears it, would call nobody failed. So it says nothing more to that leader, which hands over to one that hears it.
#[test]
fn the_groups_of_a_server_that_reaches_the_leader_and_does_not_hear_it_are_served() {
    let mut cluster = Cluster::create(&Shape { metas: 3, ..Shape::lively() });
    let processes = cluster.all();
    let Some(faults) = Faults::prepare(&mut cluster, &processes) else { return };
    cluster.start_all();
    cluster.heal();
    let load = Load::start(cluster.client_config(), Options::default());
    load.go_on_for(500);

    let old = leader(&cluster);
    let (meta, server) = (Who::Meta(old), 2);
    let since = Instant::now();
    faults.set(meta, &Fault { cut: [(Who::Server(server), SEND)].into(), ..Fault::default() });
    let is_failed = |status: ClusterStatus| {
        status.servers.iter().any(|s| s.id == ServerId(server) && s.state == ServerState::Failed)
    };
    wait("another leader, or a server that is failed", PATIENCE, || {
        let leads = cluster.metas.iter().copied().find(|id| leads(&cluster, *id))?;
        (leads != old || cluster.try_status().is_ok_and(is_failed)).then_some(())
    });
    load.go_on_for(500);
    println!("served again after {:.2?}, longest {:.2?}", since.elapsed(), load.longest_since(since));

    faults.clear(meta);
    println!("healed in {:.2?}", cluster.heal());
    load.go_on_for(500);
    let report = load.stop();
    println!("{report}");
    report.assert_sound();
    cluster.verify(&["--read"]);
}
