//! The last resorts: what goes on when more is lost than can be borne.

use crate::harness::{ACCESS_KEY, Cluster, PATIENCE, SECRET_KEY, Shape, Who, wait};
use crate::three_meta::leader;
use ebb_testing::s3::request;
use ebb_types::ServerState;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

const OBJECTS: usize = 24;
const KEYS: (&str, &str) = (ACCESS_KEY, SECRET_KEY);

/// Some are packed with others, some have chunks of their own.
fn body(object: usize) -> Vec<u8> {
    let bytes = if object.is_multiple_of(4) { 2 << 20 } else { 3000 + object };
    (0..bytes).map(|at| (at * 31 + object) as u8).collect()
}

/// Asks until the answer is good: what is under way while the metadata is replaced may be refused.
fn send(cluster: &Cluster, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    wait(&format!("{method} {path}"), PATIENCE, || {
        let answer = request(&cluster.gateway, KEYS, method, path, body).ok()?;
        (answer.status / 100 == 2).then_some(answer.body)
    })
}

fn put(cluster: &Cluster, bucket: &str, objects: std::ops::Range<usize>) {
    for object in objects {
        send(cluster, "PUT", &format!("/{bucket}/{object}"), &body(object));
    }
}

fn assert_there(cluster: &Cluster, bucket: &str, objects: std::ops::Range<usize>) {
    for object in objects {
        let found = send(cluster, "GET", &format!("/{bucket}/{object}"), b"");
        assert!(found == body(object), "{bucket}/{object} is not what was written");
    }
}

fn refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "no {word:?} in {said}"));
}

/// The objects that cannot be read whole. Whoever reads one gets what was written, or an error that says what is lost:
/// not 503, after half a minute. One whose first bytes are left begins to be sent.
fn broken(cluster: &Cluster) -> BTreeSet<usize> {
    let is_broken = |object: &usize| {
        let path = format!("/kept/{object}");
        let answer = request(&cluster.gateway, KEYS, "GET", &path, b"").expect("an answer");
        let (status, said) = (answer.status, String::from_utf8_lossy(&answer.body));
        match status {
            200 => assert!(body(*object).starts_with(&answer.body), "{object} is not what was written"),
            500 => assert!(said.contains("bytes 0-") && said.contains("ebb verify --lost"), "{said}"),
            _ => panic!("{object}: {status}: {said}"),
        }
        answer.body != body(*object)
    };
    let broken: BTreeSet<usize> = (0..OBJECTS).filter(is_broken).collect();
    assert!(!broken.is_empty() && broken.len() < OBJECTS, "{broken:?} of {OBJECTS} objects are lost");
    broken
}

/// The objects that `ebb verify --lost` lists.
fn listed(cluster: &Cluster) -> BTreeSet<usize> {
    let output = cluster.ebb(&["verify", "--lost", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(output.status.code(), Some(3), "{report}");
    let count = |what: &str| report[what].as_u64().expect("a number");
    assert_eq!((count("objects_read"), count("objects_not_read")), (OBJECTS as u64, 0), "{report}");
    let lost = report["lost"].as_array().expect("an array").iter();
    lost.map(|object| object["key"].as_str().expect("a key").parse().expect("a number")).collect()
}

fn accept_the_loss(cluster: &Cluster) {
    let forced = cluster.ebb(&["force", "--accept-loss"]);
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    served(cluster);
    println!("healed in {:.2?}", cluster.heal());
}

/// All servers of some groups.
fn of_the_first_group(cluster: &Cluster) -> Vec<u16> {
    cluster
        .with_client(async |client| client.map().groups[0].slots.iter().map(|slot| slot.server.0).collect())
}

fn served(cluster: &Cluster) {
    cluster.wait_status("every group is served", |s| {
        s.groups.without_primary == 0 && s.groups.without_target == 0
    });
}

fn all_vote(cluster: &Cluster) {
    cluster.wait_status("every metadata server votes", |s| s.metadata.iter().all(|m| m.votes));
}

fn put_aside(from: &Path, to: &Path) {
    std::fs::rename(from, to).expect("the directory moves");
}

/// The two others keep serving after the last one stopped, so its log lacks what they did then: configurations of chunk
/// groups, and a name.
fn lose_two(cluster: &Cluster, last: u64, lost: [u64; 2]) {
    cluster.kill(Who::Meta(last));
    leader(cluster);
    let before = cluster.status().map_version;
    cluster.kill(Who::Server(1));
    cluster.wait_status("the roles of a server are given to others", |s| s.map_version > before);
    served(cluster);
    send(cluster, "PUT", "/kept/late", &body(0));
    let id = last.to_string();
    let rescue = |args: &[&str]| cluster.ebb(&[&["meta", "--id", &id, "--rescue"], args].concat());
    refused(&rescue(&["--accept-loss"]), &["answers at", "without --rescue"]);
    lost.iter().for_each(|id| cluster.kill(Who::Meta(*id)));
    put_aside(&cluster.data(Who::Meta(lost[0])), &cluster.directory().join("old"));
    std::fs::remove_dir_all(cluster.data(Who::Meta(lost[1]))).expect("it is removed");
    refused(&rescue(&[]), &["nothing was changed", "ends with entry", "--rescue --accept-loss", "2 of 3"]);
}

#[test]
fn one_of_three_is_rescued_and_two_new_ones_join_it() {
    let mut cluster = Cluster::start(&Shape { metas: 3, ..Shape::lively() });
    cluster.launch(Who::Gateway);
    send(&cluster, "PUT", "/kept", b"");
    put(&cluster, "kept", 0..OBJECTS);
    let last = 1 + leader(&cluster) % 3;
    let lost = [1 + last % 3, 1 + (last + 1) % 3];
    lose_two(&cluster, last, lost);

    cluster.rescue(last);
    cluster.launch(Who::Meta(last));
    served(&cluster);
    cluster.launch_unless_it_runs(Who::Server(1));
    assert_there(&cluster, "kept", 0..OBJECTS);
    let late = request(&cluster.gateway, KEYS, "GET", "/kept/late", b"").expect("an answer");
    assert_eq!(late.status, 404, "its name was in no log that is left");
    put(&cluster, "kept", OBJECTS..OBJECTS + 8);
    println!("healed in {:.2?}", cluster.heal());
    // What has lost its name is still there.
    let space = cluster.ebb(&["verify", "--space", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&space.stdout).expect("a report");
    assert_eq!(space.status.code(), Some(3), "{report}");
    assert!(report["pools"][0]["left_over"]["chunks"].as_u64() > Some(0), "{report}");

    for id in lost {
        cluster.join_again(id);
        cluster.launch(Who::Meta(id));
    }
    all_vote(&cluster);
    cluster.kill(Who::Meta(last));
    leader(&cluster);
    assert_there(&cluster, "kept", 0..OBJECTS + 8);
    put(&cluster, "kept", OBJECTS + 8..OBJECTS + 12);
    cluster.launch(Who::Meta(last));
    all_vote(&cluster);

    // The directory of a lost one turns up again.
    let old = Who::Meta(lost[0]);
    cluster.kill(old);
    let present = leader(&cluster);
    std::fs::remove_dir_all(cluster.data(old)).expect("it is removed");
    put_aside(&cluster.directory().join("old"), &cluster.data(old));
    cluster.launch(old);
    wait("it is told that it counts no more", PATIENCE, || {
        cluster.log(old).contains("the cluster was rescued since").then_some(())
    });
    wait("it has ended", PATIENCE, || cluster.pid(old).is_none().then_some(()));
    assert_eq!(leader(&cluster), present, "it disturbed nobody");
    std::fs::remove_dir_all(cluster.data(old)).expect("it is removed");
    cluster.join_again(lost[0]);
    cluster.launch(old);
    all_vote(&cluster);
    assert_there(&cluster, "kept", 0..OBJECTS + 12);
    cluster.heal();
    cluster.verify(&["--read"]);
}

/// All disks that have some groups are lost. What is left is served, what is lost is said, and no read returns anything
/// else.
#[test]
fn what_is_left_is_served_when_more_is_lost_than_copies_bear() {
    let mut cluster = Cluster::start(&Shape::lively());
    cluster.launch(Who::Gateway);
    send(&cluster, "PUT", "/kept", b"");
    put(&cluster, "kept", 0..OBJECTS);
    cluster.heal();
    let lost = of_the_first_group(&cluster);
    for id in &lost {
        cluster.kill(Who::Server(*id));
        std::fs::remove_dir_all(cluster.data(Who::Server(*id)).join("store")).expect("it is removed");
    }
    lost.iter().for_each(|id| cluster.launch_unless_it_runs(Who::Server(*id)));
    let status = cluster.wait_status("what is left is complete again", |s| {
        let groups = &s.groups;
        groups.without_primary > 0
            && groups.in_sync + groups.without_primary == groups.total
            && s.servers.iter().all(|server| server.state == ServerState::Awake)
    });
    let gone = status.groups.without_primary;
    refused(&cluster.ebb(&["force"]), &[&format!("{gone} chunk groups"), "ebb force --accept-loss"]);
    accept_the_loss(&cluster);
    assert_eq!(listed(&cluster), broken(&cluster));
    put(&cluster, "kept", OBJECTS..OBJECTS + 8);
    assert_there(&cluster, "kept", OBJECTS..OBJECTS + 8);
    cluster.verify(&["--read"]);
}

/// The same with servers that are declared lost: what only they had is lost before others serve their groups, and the
/// operator can look at the loss before it is accepted.
#[test]
fn what_only_servers_had_that_were_declared_lost_is_said_to_be_lost() {
    let mut cluster = Cluster::start(&Shape::lively());
    cluster.launch(Who::Gateway);
    send(&cluster, "PUT", "/kept", b"");
    put(&cluster, "kept", 0..OBJECTS);
    cluster.heal();
    assert_eq!(cluster.ebb(&["verify", "--lost"]).status.code(), Some(0), "nothing is lost yet");
    let lost = of_the_first_group(&cluster);
    lost.iter().for_each(|id| cluster.kill(Who::Server(*id)));
    cluster.wait_status("they count as failed", |s| {
        s.servers.iter().filter(|server| server.state == ServerState::Failed).count() == lost.len()
    });
    for id in &lost {
        let given_up = cluster.ebb(&["lost", &id.to_string(), "--accept-loss"]);
        assert!(given_up.status.success(), "{}", String::from_utf8_lossy(&given_up.stderr));
    }
    cluster.wait_status("what is left is complete again", |s| {
        s.groups.without_primary > 0 && s.groups.in_sync + s.groups.without_primary == s.groups.total
    });
    let before = broken(&cluster);
    assert_eq!(listed(&cluster), before);
    let back = Who::Server(lost[0]);
    std::fs::remove_dir_all(cluster.data(back).join("store")).expect("it is removed");
    cluster.launch_unless_it_runs(back);
    cluster.wait_status("one of them is back, with nothing", |s| {
        s.servers.iter().filter(|server| server.state == ServerState::Lost).count() == lost.len() - 1
    });
    assert_eq!(broken(&cluster), before, "nobody waits for it, either");
    accept_the_loss(&cluster);
    assert_eq!(broken(&cluster), before);
    assert_eq!(listed(&cluster), before);
    let page = String::from_utf8(cluster.ebb(&["verify", "--lost"]).stdout).expect("text");
    let names = |object: &usize| page.contains(&format!("kept/{object}: lost bytes "));
    assert!(before.iter().all(names), "{page}");
}
