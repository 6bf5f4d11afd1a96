//! The cluster of `examples/cluster.toml` unchanged, except for the ports: it serves S3, stops cleanly in any gear, and
//! has all its data when it starts again.

use crate::harness::{ACCESS_KEY, Cluster, EBB, PATIENCE, SECRET_KEY, Shape, Who, wait};
use ebb_testing::s3::{Answer, request};
use ebb_types::Random;
use std::process::Command;
use std::time::Instant;

const KEYS: (&str, &str) = (ACCESS_KEY, SECRET_KEY);

fn s3(cluster: &Cluster, method: &str, path: &str, body: &[u8]) -> Answer {
    request(&cluster.gateway, KEYS, method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

fn start_gateway(cluster: &mut Cluster) {
    cluster.launch(Who::Gateway);
    wait("the gateway listens", PATIENCE, || std::net::TcpStream::connect(&cluster.gateway).ok());
}

/// A small object, an object of several requests, and one that ends within a block.
fn objects() -> Vec<(String, Vec<u8>)> {
    let mut random = Random::new(7);
    [1_000, 70_000, 5_000_001]
        .iter()
        .map(|size| {
            let bytes: Vec<u8> =
                std::iter::repeat_with(|| random.next().to_le_bytes()).flatten().take(*size).collect();
            (format!("/first/object-{size}"), bytes)
        })
        .collect()
}

fn assert_all_there(cluster: &Cluster) {
    for (path, bytes) in objects() {
        let answer = s3(cluster, "GET", &path, b"");
        assert_eq!(answer.status, 200, "GET {path}: {}", String::from_utf8_lossy(&answer.body));
        assert!(answer.body == bytes, "{path} has other bytes than were put");
    }
}

#[test]
fn the_example_serves_and_keeps_everything_through_stops_in_any_gear() {
    let begin = Instant::now();
    let mut cluster = Cluster::create(&Shape::default());
    cluster.start_all();
    start_gateway(&mut cluster);
    assert_eq!(s3(&cluster, "PUT", "/first", b"").status, 200);
    for (path, bytes) in objects() {
        let answer = s3(&cluster, "PUT", &path, &bytes);
        assert_eq!(answer.status, 200, "PUT {path}: {}", String::from_utf8_lossy(&answer.body));
    }
    println!("from start to all objects put: {:.2?}", begin.elapsed());
    assert_all_there(&cluster);
    let before = cluster.verify(&["--read"]);
    assert!(before.blocks > 1200, "three copies of five megabytes: {before:?}");

    println!("stopped in gear 3 in {:.2?}", cluster.stop_all());
    let begin = Instant::now();
    cluster.start_all();
    start_gateway(&mut cluster);
    println!("started again in {:.2?}", begin.elapsed());
    assert_all_there(&cluster);

    // Data written in gear 1 is owed to the sleeping servers when everything stops.
    println!("shifted to gear 1 in {:.2?}", cluster.shift(1));
    let late = vec![42u8; 300_000];
    assert_eq!(s3(&cluster, "PUT", "/first/late", &late).status, 200);
    println!("stopped in gear 1 in {:.2?}", cluster.stop_all());
    cluster.start_all();
    start_gateway(&mut cluster);
    assert_all_there(&cluster);
    assert!(s3(&cluster, "GET", "/first/late", b"").body == late);
    println!("healed in {:.2?}", cluster.heal());
    let after = cluster.verify(&["--read"]);
    assert!(after.blocks > before.blocks);
    println!("stopped in gear 3 in {:.2?}", cluster.stop_all());
}

#[test]
fn the_example_is_planned_by_a_load_series_without_a_cluster() {
    let directory = tempfile::tempdir().expect("a directory");
    let series = directory.path().join("hourly.txt");
    // Three days with a load of 8 in the afternoon and of 2 before.
    let load = |hour: u32| if hour % 24 < 12 { "2\n" } else { "8\n" };
    std::fs::write(&series, (0..72).map(load).collect::<String>()).expect("write the series");
    let said = |more: &[&str]| {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml");
        let plan = ["gear", "plan", "--config", config, "--series"];
        let output = Command::new(EBB).args(plan).arg(&series).args(more).output().expect("run ebb");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let plan: serde_json::Value = serde_json::from_str(&said(&["--json", "--provision", "1"])).expect("JSON");
    let hours = plan["hours"].as_array().expect("hours");
    assert_eq!((hours.len(), &plan["hours_recorded"], &hours[0]["hour"]), (24, &72.into(), &72.into()));
    let asleep = |nth: usize| hours[nth]["asleep"].as_array().expect("servers").len();
    assert!(asleep(1) >= 4 && asleep(13) == 0, "{plan}");
    assert_eq!((&hours[1]["gear_by_formula"], &hours[13]["gear_by_formula"]), (&1.into(), &3.into()));
    let text = said(&[]);
    assert!(text.contains("\nday 4 00:00") && text.contains("72 hours recorded"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    // A server that sustains more carries the afternoon with fewer.
    let plan: serde_json::Value = serde_json::from_str(&said(&["--json", "--provision", "3"])).expect("JSON");
    assert_eq!(plan["hours"][13]["gear_by_formula"], 1, "{plan}");
}
