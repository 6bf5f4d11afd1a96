//! Mistakes and hostile bytes: each gives an error that names the cause and the remedy, and an exit code that scripts
//! can trust.

use crate::harness::{
    ACCESS_KEY, Cluster, EBB, PATIENCE, SECRET_KEY, Shape, Who, example, wait, write_private,
};
use ebb_client::transport::kind;
use ebb_testing::s3::request;
use ebb_types::frame::{BODY_MAX, HEADER_BYTES, MAGIC, PAYLOAD_MAX, WIRE_VERSION, encode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output};

/// Checks the message of a program that must refuse. It must not keep running.
fn refused(output: &Output, code: i32, expected: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "exit code of: {said}");
    for part in expected {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// Runs an `ebb` command with its own configuration.
fn with_config(text: &str, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("cluster.toml");
    std::fs::write(&config, text).expect("write");
    for name in ["secret", "server.secret", "gateway.secret"] {
        write_private(&directory.path().join(name), "0123456789abcdef0123456789abcdef");
    }
    Command::new(EBB).args(args).arg("--config").arg(&config).output().expect("run ebb")
}

fn changed(from: &str, to: &str) -> String {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml"));
    let text = text.expect("the example");
    assert!(text.contains(from), "the example has no {from:?}");
    text.replace(from, to)
}

#[test]
fn a_configuration_with_a_mistake_starts_nothing() {
    let cases: [(&str, &str, &[&str]); 7] = [
        ("g_min = 1", "g_minimum = 1", &["cluster.toml", "unknown field `g_minimum`", "g_min"]),
        (
            "127.0.0.1:9202",
            "127.0.0.1:9201",
            &["server 1 and server 2", "127.0.0.1:9201", "give each its own port"],
        ),
        ("127.0.0.1:9000", "127.0.0.1:9100", &["meta 1 and gateway 1", "give each its own port"]),
        ("rack = 3", "rack = 2", &["rack"]),
        ("replicas = 3", "replicas = 9", &["cluster.replicas is 9", "2, 3 or 4"]),
        ("chunk_mib = 64", "chunk_mib = 65", &["chunk_mib is 65", "power of two"]),
        ("groups_per_server = 64", "groups_per_server = 0", &["groups_per_server is 0", "1 to 4096"]),
    ];
    for (from, to, expected) in &cases {
        for args in [&["server", "--id", "1"][..], &["meta"], &["gateway"], &["status"], &["page"]] {
            let text = if *from == "rack = 3" {
                changed(from, to).replace("\"rotated\"", "\"rack-aligned\"")
            } else {
                changed(from, to)
            };
            refused(&with_config(&text, args), 1, expected);
        }
    }
    refused(&with_config("replicas = [", &["meta"]), 1, &["cluster.toml", "line 1"]);
    let missing = Command::new(EBB).args(["status", "--config", "nowhere.toml"]).output().expect("run");
    refused(&missing, 1, &["nowhere.toml", "--config"]);
}

#[test]
fn a_server_that_cannot_be_measured_is_refused_before_the_work() {
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--id", "77"], &["no [[server]] with id 77"]),
        (&["--id", "1"], &["server-1 is not a directory", "--dir"]),
        (&["--id", "1", "--dir", "/", "--size", "1KiB"], &["--size 1.0 KiB is too small", "1MiB"]),
        (&["--id", "1", "--dir", "/dev/shm", "--write"], &["/dev/shm is in memory"]),
    ];
    for (args, expected) in cases {
        refused(
            &with_config(&changed("x", "x"), &[&["lab", "bench", "server"][..], args].concat()),
            1,
            expected,
        );
    }
    let mirrored = changed("data = \"server-1\"\n", "data = \"server-1\"\ndisks = [\"a\", \"b\"]\n");
    let output = with_config(&mirrored, &["lab", "bench", "server", "--id", "1"]);
    refused(&output, 1, &["mirror of two disks", "--dir"]);
}

#[test]
fn a_pool_with_a_mistake_starts_nothing() {
    let servers = |ids: std::ops::RangeInclusive<u16>, code: &str, more: &str| {
        let mut text = changed("x", "x");
        for id in ids {
            text = text.replacen(&format!("id = {id}\n"), &format!("id = {id}\npool = \"cold\"\n"), 1);
        }
        format!("{text}\n[[pool]]\nname = \"cold\"\ncode = \"{code}\"\n{more}\n")
    };
    let cases: [(String, &[&str]); 8] = [
        (servers(7..=9, "2+0", ""), &["cluster.toml", "0 parity servers", "give it 1 to 4"]),
        (servers(7..=9, "2", ""), &["cluster.toml", "such as 6+3"]),
        (servers(7..=9, "3+1", ""), &["pool cold has 3 servers", "needs at least 4", "[[server]]"]),
        (servers(3..=9, "4+2", ""), &["leave 2 servers for the replicated pool", "add servers"]),
        (servers(7..=9, "2+1", "parity_debt = \"tape\""), &["unknown variant `tape`", "segment"]),
        (servers(7..=9, "2+1", "parity_buffer_mib = 9"), &["parity_buffer_mib is 9", "at least 32"]),
        (servers(7..=9, "2+1", "[[pool]]\nname = \"cold\"\ncode = \"2+1\""), &["\"cold\" twice"]),
        (
            changed("id = 9\n", "id = 9\npool = \"warm\"\n"),
            &["server 9 is in pool \"warm\"", "no [[pool]]", "take `pool` out"],
        ),
    ];
    for (text, expected) in &cases {
        for args in [&["server", "--id", "8"][..], &["meta"], &["pool", "list"]] {
            refused(&with_config(text, args), 1, expected);
        }
    }
    let dev = |pool| Command::new(EBB).args(["dev", "--ephemeral", "--pool", pool]).output().expect("run");
    refused(&dev("archive=6+3"), 1, &["9 servers are too few", "--servers 12"]);
    refused(&dev("Cold=2+1"), 1, &["the name \"Cold\""]);
    refused(&dev("cold=2+9"), 2, &["9 parity servers", "--help"]);
    refused(&dev("cold"), 2, &["such as archive=6+3", "--help"]);
}

#[test]
fn wrong_usage_is_distinguished_from_failure() {
    for args in [
        &["serve"][..],
        &["gear"],
        &["gear", "set"],
        &["gear", "set", "many"],
        &["gear", "set", "2/"],
        &["status", "--jsn"],
        &["pool"],
        &["pool", "create"],
        &["power", "test"],
        &["power", "test", "server-x"],
        &["maintenance"],
        &["page", "--address", "9080"],
    ] {
        let output = Command::new(EBB).args(args).output().expect("run");
        refused(&output, 2, &["--help"]);
    }
    refused(&with_config(&changed("x", "x"), &["server", "--id", "70"]), 1, &["no [[server]] with id 70"]);
}

#[test]
fn a_number_that_is_none_is_refused_without_the_programs_types() {
    let run = |line: &str| {
        let output = Command::new(EBB).args(line.split(' ')).output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        for word in ["literal", "digit found", "u8", "u16", "i128", "f64", "unexpected argument"] {
            assert!(!said.contains(word), "ebb {line}: {said}");
        }
        output
    };
    for (line, expected) in [
        ("simulate trace day:9 --speed abc", "it is not a number"),
        ("simulate trace day:9 --servers abc", "neither `peak` nor a number of servers"),
        ("simulate trace day:9 --clients abc", "it is not a whole number"),
        ("simulate trace day:9 --except 2-4", "such as 00:00-02:00"),
        ("simulate trace day:9 --replicas -1", "-1 is not in 2..=4"),
        ("simulate load x.csv --servers -1", "-1 is not in 0.."),
        ("lab bench s3 http://h:1 --seconds -1", "or it is negative"),
        ("lab replay t --target file:x --load -1", "not a percentage"),
        ("lab replay t --target file:x --in-flight -1", "or it is negative"),
        ("lab eval run m.toml --scale -1", "a share above 0"),
        ("lab meter read model --seconds -1", "write a time above 0"),
        ("lost -1", "--help"),
        ("dev --servers -1", "-1 is not in 0.."),
        ("server --id -1", "-1 is not in 0.."),
    ] {
        refused(&run(line), 2, &[expected, "--help"]);
    }
    refused(&run("simulate trace day:9 --speed -1"), 1, &["the speed is -1"]);
    refused(&run("simulate trace day:9 --load -1"), 1, &["a share of -1"]);
    refused(&run("simulate trace day:9 --except 00:00-02:00"), 1, &["--except needs --gears schedule"]);
    refused(&run("simulate trace day:9 --servers peak --provision peak"), 1, &["remove one of them"]);
    for (value, expected) in [
        ("\"3\"", "expected a whole number from 0 to 255"),
        ("300", "`300`, expected a whole number from 0 to 255"),
        ("-1", "expected a whole number"),
        ("3.5", "expected a whole number"),
        ("99999999999999999999", "`99999999999999999999`, expected a whole number"),
    ] {
        let text = changed("replicas = 3", &format!("replicas = {value}"));
        refused(&with_config(&text, &["meta"]), 1, &["cluster.toml", expected]);
    }
}

#[test]
fn papers_whose_reports_cannot_be_written_are_not_repeated() {
    for (paper, named) in [("ecs2", "mine.html"), ("all", "mine-sierra.html")] {
        let args = ["simulate", "paper", paper, "--out", "no-such-directory/mine"];
        refused(&Command::new(EBB).args(args).output().expect("run ebb"), 1, &[named]);
    }
}

#[test]
fn a_cost_that_cannot_be_measured_is_refused_before_the_work() {
    let cost = |args: &[&str]| Command::new(EBB).args(["lab", "cost"]).args(args).output().expect("run");
    for args in [
        &["--pid", "1"][..],
        &["--cgroup", "a"],
        &["--for", "1s"],
        &["--for", "soon", "--pid", "1"],
        &["--for", "1s", "--pid", "1", "--cgroup", "a"],
        &["--for", "1s", "--pid", "1", "--cores", "1"],
        &["--for", "1s", "--pid", "1", "--", "true"],
        &["suite"],
        &["suite", "x", "--vm-kernel", "y"],
        &["suite", "x", "--vm", "0"],
    ] {
        refused(&cost(args), 2, &["--help"]);
    }
    refused(&cost(&["--for", "1s", "--pid", "2000000000"]), 1, &["no process 2000000000", "pidof"]);
    refused(&cost(&["--for", "1s", "--cgroup", "no/such"]), 1, &["cgroup"]);
    refused(&cost(&["--for", "9s", "--", "true"]), 1, &["true ended", "window of 9.0s", "without --for"]);
    refused(&cost(&["--save", "/no/such/place", "--", "true"]), 1, &["/no/such/place"]);
    refused(&cost(&["suite", "/no/such"]), 1, &["/no/such", "examples/os-layers"]);
    let directory = tempfile::tempdir().expect("a directory");
    let workload = directory.path().join("w.toml");
    let suite = || cost(&["suite", directory.path().to_str().expect("UTF-8")]);
    refused(&suite(), 1, &["no workload file"]);
    std::fs::write(&workload, "name = \"w\"\nabout = \"x\"\ncomand = \"true\"\n").expect("write");
    refused(&suite(), 1, &["w.toml", "unknown field `comand`", "command"]);
    std::fs::write(&workload, "name = \"w\"\nabout = \"x\"\ncommand = \"exit 5\"\n").expect("write");
    let failed = suite();
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(said.contains("w: failed: command: it ended with exit status: 5"), "{said}");
}

#[test]
fn a_server_does_not_touch_what_is_not_its_own() {
    let mut cluster = Cluster::start(&Shape::lively());
    refused(&cluster.ebb(&["gear", "set", "4/3"]), 1, &["gears 1 to 3"]);
    refused(&cluster.ebb(&["gear", "set", "2/4"]), 1, &["this cluster has 3 gears", "1/3 to 3/3"]);
    refused(&cluster.ebb(&["gear", "set", "2"]), 1, &["2 servers", "keeps 3 to 9 awake"]);
    cluster.edit(|table| {
        table["scheduler"].as_table_mut().expect("a table").insert("steps".into(), "groups".into());
    });
    assert!(cluster.ebb(&["gear", "set", "8"]).status.success());
    let whole = ["8 servers", "this cluster shifts whole gears"];
    refused(&cluster.ebb(&["gear", "apply"]), 1, &[whole[0], whole[1], "`ebb gear auto`"]);
    assert!(cluster.ebb(&["gear", "set", "3/3"]).status.success());
    assert!(cluster.ebb(&["gear", "apply"]).status.success());
    refused(&cluster.ebb(&["gear", "set", "8"]), 1, &whole);
    refused(&cluster.ebb(&["lost", "70"]), 1, &["server-70 is not part of the cluster"]);
    refused(&cluster.ebb(&["power", "test", "70"]), 1, &["server-70 is not part of the cluster"]);
    refused(&cluster.ebb(&["maintenance", "70"]), 1, &["server-70 is not part of the cluster"]);
    refused(&cluster.ebb(&["pool", "status", "cold"]), 1, &["no erasure-coded pool \"cold\"", "has none"]);
    let volume = cluster.ebb(&["volume", "create", "--size", "1GiB", "--pool", "cold", "v"]);
    refused(&volume, 1, &["no erasure-coded pool \"cold\"", "has none"]);
    // Two programs on one directory.
    refused(
        &cluster.ebb(&["server", "--id", "1"]),
        1,
        &["another process uses the directory", "stop it first"],
    );
    cluster.stop_all();

    // Another cluster's directory.
    let id = example()["cluster"]["id"].as_str().expect("an id").to_owned();
    cluster.edit(|table| {
        table["cluster"].as_table_mut().expect("a table").insert("id".into(), "fedcba9876543210".into());
    });
    refused(
        &cluster.ebb(&["server", "--id", "1"]),
        1,
        &["belongs to cluster", &id, "fedcba9876543210", "name another directory, or remove this one"],
    );
    refused(&cluster.ebb(&["meta"]), 1, &[&id, "fedcba9876543210"]);
    cluster.edit(|table| {
        table["cluster"].as_table_mut().expect("a table").insert("id".into(), id.as_str().into());
    });

    // Another pool than at the founding.
    let before = std::fs::read_to_string(&cluster.config).expect("the configuration");
    cluster.edit(|table| {
        for server in &mut table["server"].as_array_mut().expect("servers")[6..] {
            server.as_table_mut().expect("a table").insert("pool".into(), "cold".into());
        }
        let pool = toml::from_str("name = \"cold\"\ncode = \"2+1\"").expect("a table");
        table.insert("pool".into(), toml::Value::Array(vec![toml::Value::Table(pool)]));
    });
    refused(
        &cluster.ebb(&["meta"]),
        1,
        &[
            "was not an erasure-coded one when the cluster was founded",
            "is cold in this configuration file",
            "restore the file",
        ],
    );
    std::fs::write(&cluster.config, before).expect("write");

    // Another server's directory.
    let (one, two) = (cluster.data(Who::Server(1)).join("store"), cluster.data(Who::Server(2)).join("store"));
    let aside = cluster.directory().join("aside");
    std::fs::rename(&two, &aside).and_then(|()| std::fs::rename(&one, &two)).expect("rename");
    refused(&cluster.ebb(&["server", "--id", "2"]), 1, &["belongs to server-1, not server-2"]);
    std::fs::rename(&two, &one).and_then(|()| std::fs::rename(&aside, &two)).expect("rename");

    newer_format(&cluster);

    // None of this lost any data.
    cluster.start_all();
    cluster.heal();
    cluster.verify(&["--read"]);
}

/// A superblock written by a newer release.
fn newer_format(cluster: &Cluster) {
    let path = cluster.data(Who::Server(3)).join("store/superblock");
    let sound = std::fs::read(&path).expect("a superblock");
    let mut newer = sound.clone();
    // docs/disk-format.md: magic in bytes 0..8, format in 8..12, CRC-32C of the preceding bytes at the end.
    newer[8..12].copy_from_slice(&999u32.to_le_bytes());
    let end = newer.len() - 4;
    let crc = ebb_types::crc32c(&newer[..end]);
    newer[end..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, newer).expect("write");
    refused(
        &cluster.ebb(&["server", "--id", "3"]),
        1,
        &["store format 999", "run the release that wrote it"],
    );
    std::fs::write(&path, sound).expect("write");
}

#[test]
fn strangers_and_malformed_bytes_change_nothing() {
    let mut cluster = Cluster::start(&Shape::lively());
    cluster.launch(Who::Gateway);
    wait("the gateway listens", PATIENCE, || TcpStream::connect(&cluster.gateway).ok());
    let put = |keys| request(&cluster.gateway, keys, "PUT", "/bucket", b"").expect("an answer");
    assert_eq!(put((ACCESS_KEY, "another-secret-key")).status, 403);
    assert_eq!(put(("stranger", SECRET_KEY)).status, 403);
    assert_eq!(put((ACCESS_KEY, SECRET_KEY)).status, 200);

    let status = cluster.status();
    let mut addresses: Vec<String> = status.servers.iter().map(|s| s.address.clone()).collect();
    addresses.extend(cluster.client_config().meta);
    let secret = std::fs::read(cluster.directory().join("secret")).expect("the secret");
    for address in &addresses {
        for bytes in strange_greetings() {
            let mut stream = TcpStream::connect(address).expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let mut answer = Vec::new();
            // The other side may hang up before it has read everything.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 48, "a stranger learns nothing but a hello");
        }
        for bytes in broken_frames() {
            let mut stream = authenticated(address, secret.trim_ascii());
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let ended = stream.read_to_end(&mut Vec::new());
            let hung_up =
                ended.is_ok() || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
            assert!(hung_up, "{address} keeps a connection that is of no use, after {bytes:02x?}");
        }
    }
    for who in cluster.servers.iter().map(|id| Who::Server(*id)).chain([Who::Meta(1)]) {
        assert!(cluster.pid(who).is_some(), "{who:?} ended");
        assert!(!cluster.log(who).contains("panicked"), "{}", cluster.log(who));
    }

    let wrong = cluster.directory().join("wrong.toml");
    let text = std::fs::read_to_string(&cluster.config).expect("the configuration");
    std::fs::write(&wrong, text.replace("secret_file = \"secret\"", "secret_file = \"other\""))
        .expect("write");
    let other = cluster.directory().join("other");
    write_private(&other, "another secret that is long enough");
    let with_wrong =
        |args: &[&str]| Command::new(EBB).args(args).arg("--config").arg(&wrong).output().expect("run");
    refused(&with_wrong(&["status"]), 1, &["secret"]);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    refused(&with_wrong(&["status"]), 1, &["others may read", "chmod 600"]);
    cluster.verify(&[]);
}

/// Greetings that no program of a cluster sends.
fn strange_greetings() -> Vec<Vec<u8>> {
    let another_release = [&b"EBB1"[..], &[200; 44]].concat();
    vec![
        Vec::new(),
        b"EBB".to_vec(),
        b"GET / HTTP/1.1\r\nHost: ebb\r\n\r\n".to_vec(),
        vec![0; 48],
        vec![0xff; 300_000],
        another_release,
    ]
}

/// Frames that a broken peer with the secret may send: every part of a header wrong in turn, lengths beyond the limits,
/// a body that is not a message, and a stream that ends within a frame.
fn broken_frames() -> Vec<Vec<u8>> {
    let sound = encode(kind::META_REQUEST, 0, &(1u64, "no request"), 0);
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = sound.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let mut all = vec![
        sound.clone(),
        sound[..HEADER_BYTES - 1].to_vec(),
        sound[..sound.len() - 1].to_vec(),
        changed(8, &(BODY_MAX as u32 + 1).to_le_bytes()),
        changed(8, &[0xff; 4]),
        changed(12, &(PAYLOAD_MAX as u32 + 1).to_le_bytes()),
        changed(12, &[0xff; 4]),
        changed(16, &[0; 4]),
    ];
    all.extend((0..HEADER_BYTES).map(|at| changed(at, &[0xee])));
    let kinds = 0..=16;
    all.extend(kinds.map(|kind| encode(kind, 0, &(7u64, u64::MAX, u64::MAX), 0)));
    all
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// A connection from a peer that knows the cluster secret (docs/wire.md).
fn authenticated(address: &str, secret: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut mine = [7u8; 48];
    mine[..16].fill(0);
    mine[..4].copy_from_slice(&MAGIC);
    mine[4] = WIRE_VERSION;
    stream.write_all(&mine).expect("say hello");
    let mut theirs = [0; 48];
    stream.read_exact(&mut theirs).expect("a hello");
    let key = mac(secret, &[b"ebb key ", b"client"]);
    stream.write_all(&mac(&key, &[b"ebb caller", &mine, &theirs])).expect("prove it");
    let mut verdict = [0; 33];
    stream.read_exact(&mut verdict).expect("a verdict");
    assert_eq!(verdict[0], 0, "the proof is not accepted");
    stream
}
