//! What the bytes of a cluster of real processes are for: `ebb verify --space`.

use crate::harness::objects::Objects;
use crate::harness::{ACCESS_KEY, Cluster, PATIENCE, SECRET_KEY, Shape, Who, wait};
use ebb_testing::s3::request;
use ebb_types::{ChunkId, PoolId};
use serde_json::Value;

/// The report, and the exit code.
fn space(cluster: &Cluster, args: &[&str]) -> (Value, i32) {
    let output = cluster.ebb(&[&["verify", "--space", "--json"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (report, output.status.code().expect("it ended by itself"))
}

fn chunks(report: &Value, pool: usize, what: &str) -> u64 {
    report["pools"][pool][what]["chunks"].as_u64().unwrap_or_else(|| panic!("no {what} in {report}"))
}

#[test]
fn what_nothing_names_is_found_and_freed_and_nothing_else_is() {
    let mut cluster = Cluster::create(&Shape { code: Some("2+1"), ..Shape::lively() });
    cluster.start_all();
    cluster.launch(Who::Gateway);
    wait("the gateway listens", PATIENCE, || std::net::TcpStream::connect(&cluster.gateway).ok());
    let keys = (ACCESS_KEY, SECRET_KEY);
    let send = |method, path: &str, body: &[u8]| {
        let answer = request(&cluster.gateway, keys, method, path, body).expect("an answer");
        assert_eq!(answer.status / 100, 2, "{method} {path}");
        answer.body
    };
    send("PUT", "/warm", b"");
    assert_eq!(Objects::create_bucket(&cluster.gateway, "cold", Some("cold")).0, 200);
    let large = vec![7; 2 << 20];
    for bucket in ["warm", "cold"] {
        send("PUT", &format!("/{bucket}/small"), b"text");
        send("PUT", &format!("/{bucket}/large"), &large);
    }
    let (report, code) = space(&cluster, &[]);
    assert_eq!(code, 0, "{report}");
    for pool in 0..2 {
        assert_eq!(chunks(&report, pool, "left_over"), 0, "{report}");
        // Two of a MiB. The pack is open, and its lease comes first.
        assert_eq!((chunks(&report, pool, "named"), chunks(&report, pool, "leased")), (2, 1), "{report}");
    }
    let written = cluster.with_client(async |client| {
        let serial = client.allocate_objects(1).await.expect("an object");
        let objects = [serial, serial.in_pool(PoolId(1))];
        for object in objects {
            let bytes = bytes::Bytes::from(vec![9; 64 << 10]);
            client.write(ChunkId { object, index: 3 }, 0, bytes).await.expect("it is written");
        }
        objects
    });
    let (report, code) = space(&cluster, &[]);
    assert_eq!(code, 3, "{report}");
    for (pool, object) in written.iter().enumerate() {
        assert_eq!(chunks(&report, pool, "left_over"), 1, "{report}");
        assert_eq!(report["pools"][pool]["left_over_first"][0], format!("{}.3", object.0), "{report}");
    }
    let (report, code) = space(&cluster, &["--free"]);
    assert_eq!((code, report["freed_chunks"].as_u64()), (0, Some(2)), "{report}");
    let (report, code) = space(&cluster, &["--free"]);
    assert_eq!((code, report["freed_chunks"].as_u64()), (0, Some(0)), "{report}");
    for bucket in ["warm", "cold"] {
        assert_eq!(send("GET", &format!("/{bucket}/small"), b""), b"text");
        assert!(send("GET", &format!("/{bucket}/large"), b"") == large);
    }
    let page = String::from_utf8(cluster.ebb(&["verify", "--space"]).stdout).expect("text");
    assert!(page.contains("(replicated)") && page.contains("cold"), "{page}");
    // Servers that sleep cannot be reached: they are not asked, whenever they went to sleep.
    for gear in ["2/3", "3/3"] {
        std::thread::scope(|scope| {
            let shift = scope.spawn(|| cluster.gear(&["set", gear, "--wait"]));
            while !shift.is_finished() {
                let (report, code) = space(&cluster, &[]);
                assert_eq!((code, chunks(&report, 0, "left_over")), (0, 0), "{report}");
            }
        });
    }
    // One that hangs never answers, and ends no connection: it is waited for until it counts as failed.
    cluster.pause(Who::Server(2));
    let (report, code) = space(&cluster, &[]);
    assert_eq!((code, chunks(&report, 0, "left_over")), (0, 0), "{report}");
    cluster.resume(Who::Server(2));
}
