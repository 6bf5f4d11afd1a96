//! The network parts a gateway from one chunk server alone. Everybody else reaches that server, so it stays primary of
//! its groups; and the gateway is served through another one, or not at all: it would give up after half a minute.

use crate::harness::faults::{CALL, Fault, Faults, HEAR, MUTE, SEND};
use crate::harness::objects::Objects;
use crate::harness::{ACCESS_KEY, Cluster, SECRET_KEY, Shape, Who};
use ebb_testing::s3::request;
use ebb_types::{GroupId, ServerId};
use std::time::Instant;

/// Each has chunks of its own.
const OBJECTS: u8 = 16;
/// A chunk has one MiB: that none of so many is in a group of a certain one of nine servers has a chance of 1 in 280.
const OBJECT_BYTES: usize = 3 << 20;

/// The groups of which the server is primary.
fn groups_of(cluster: &Cluster, server: u16) -> Vec<GroupId> {
    cluster.with_client(async |client| {
        let map = client.map();
        let all = (0..).map(GroupId).zip(&map.groups);
        all.filter(|(_, entry)| entry.primary == Some(ServerId(server))).map(|(group, _)| group).collect()
    })
}

/// What does not work between the gateway and the server: at the gateway, and at the server.
fn is_served_although(at_gateway: u8, at_server: u8) {
    const SERVER: u16 = 2;
    let mut cluster = Cluster::create(&Shape::lively());
    let processes: Vec<Who> = cluster.all().into_iter().chain([Who::Gateway]).collect();
    let Some(faults) = Faults::prepare(&mut cluster, &processes) else { return };
    cluster.start_all();
    cluster.launch(Who::Gateway);
    assert_eq!(Objects::create_bucket(&cluster.gateway, "bucket", None).0, 200);
    cluster.heal();
    let send = |method, path: &str, body: &[u8]| {
        let answer = request(&cluster.gateway, (ACCESS_KEY, SECRET_KEY), method, path, body);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    };
    let body = |nth: u8| vec![nth; OBJECT_BYTES];
    (0..OBJECTS).for_each(|nth| drop(send("PUT", &format!("/bucket/before-{nth}"), &body(nth))));

    let groups = groups_of(&cluster, SERVER);
    assert!(!groups.is_empty(), "it serves nothing: it proves nothing");
    let (gateway, server) = (Who::Gateway, Who::Server(SERVER));
    faults.set(gateway, &Fault { cut: [(server, at_gateway)].into(), ..Fault::default() });
    faults.set(server, &Fault { cut: [(gateway, at_server)].into(), ..Fault::default() });
    let since = Instant::now();
    for nth in 0..OBJECTS {
        let (before, meanwhile) = (format!("/bucket/before-{nth}"), format!("/bucket/meanwhile-{nth}"));
        let sent = Instant::now();
        send("PUT", &meanwhile, &body(!nth));
        assert!(send("GET", &before, b"") == body(nth), "{before}");
        assert!(send("GET", &meanwhile, b"") == body(!nth), "{meanwhile}");
        println!("object {nth} after {:.2?}", sent.elapsed());
    }
    println!("{OBJECTS} objects in {:.2?}", since.elapsed());
    assert_eq!(groups_of(&cluster, SERVER), groups, "another server serves them: it proves nothing");

    [gateway, server].iter().for_each(|who| faults.clear(*who));
    for nth in 0..OBJECTS {
        send("PUT", &format!("/bucket/after-{nth}"), &body(nth));
        assert!(send("GET", &format!("/bucket/meanwhile-{nth}"), b"") == body(!nth));
    }
}

#[test]
fn a_gateway_that_is_cut_off_from_a_chunk_server_alone_is_served() {
    is_served_although(CALL | SEND, CALL | SEND);
}

#[test]
fn a_gateway_that_does_not_hear_a_chunk_server_is_served() {
    is_served_although(HEAR | MUTE, 0);
}
