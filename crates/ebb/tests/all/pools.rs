//! An erasure-coded pool of real processes: its idle parity server sleeps, `ebb pool` shows it, a failed data server
//! wakes it, a pool that no client uses sleeps as a whole, and a configuration with another pool is refused. Objects
//! move there by a rule. What is put while parity sleeps reaches it.

use crate::failures::damage;
use crate::harness::harm::put_in_place;
use crate::harness::objects::Objects;
use crate::harness::{ACCESS_KEY, Cluster, PATIENCE, SECRET_KEY, Shape, Who, free_port, wait};
use ebb_testing::s3::{Answer, request};
use ebb_types::{ClusterStatus, ServerState, SetStatus, SlotState};

/// Six replicated servers, and a pool `cold` of code 2+1.
fn create() -> Cluster {
    Cluster::create(&Shape { code: Some("2+1"), ..Shape::lively() })
}

fn said(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.ebb(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The state of the server of a column, in the pool's one set.
fn state(status: &ClusterStatus, column: usize) -> ServerState {
    let id = status.pools[0].sets[0].entry.columns[column].server;
    status.servers.iter().find(|server| server.id == id).expect("a server").state
}

#[test]
fn an_idle_pool_lets_its_parity_sleep_and_wakes_it_for_a_failure() {
    let mut cluster = create();
    cluster.start_all();
    let status = cluster.wait_status("parity sleeps", |s| state(s, 2) == ServerState::Asleep);
    let list = said(&cluster, &["pool", "list"]);
    assert!(list.contains("pool     cold, code 2+1") && list.contains("parity 1   asleep"), "{list}");
    let page = said(&cluster, &["pool", "status", "cold"]);
    assert!(page.contains("set 0    1 more server may fail"), "{page}");
    let page = said(&cluster, &["status"]);
    assert!(page.contains("1 of 1 parity server asleep"), "{page}");

    let data = status.pools[0].sets[0].entry.columns[0].server;
    cluster.kill(Who::Server(data.0));
    cluster.wait_status("the failure wakes parity", |s| state(s, 2) == ServerState::Awake);
    let page = wait("the set is exposed", PATIENCE, || {
        Some(said(&cluster, &["pool", "status"])).filter(|page| page.contains("EXPOSED"))
    });
    assert!(page.contains(&format!("data 1, server {} (FAILED): away", data.0)), "{page}");
    let page = said(&cluster, &["status"]);
    assert!(page.contains("critical") && page.contains("1 erasure-coded set exposed: another"), "{page}");

    cluster.stop_all();
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("parity_buffer_mib".into(), 64.into());
    });
    let output = cluster.ebb(&["meta"]);
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(why.contains("parity_buffer_mib of pool cold was 1024") && why.contains("is 64 in"), "{why}");
}

/// A pool of three new servers comes to a cluster that serves: the file first, then the command, then the servers.
#[test]
fn a_pool_comes_to_a_cluster_that_holds_data() {
    let mut cluster = create();
    cluster.start_all();
    cluster.launch(Who::Gateway);
    let (status, body) = Objects::create_bucket(&cluster.gateway, "old", Some("cold"));
    assert_eq!(status, 200, "{body}");
    assert_eq!(ask(&cluster, "PUT", "/old/key", b"before").status, 200);
    let output = cluster.ebb(&["pool", "create", "warm"]);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && why.contains("no [[pool]] called \"warm\""), "{why}");

    let first = cluster.servers.iter().max().expect("servers") + 1;
    cluster.edit(|table| {
        let pool: toml::Table = "name = \"warm\"\ncode = \"2+1\"".parse().expect("TOML");
        table["pool"].as_array_mut().expect("pools").push(pool.into());
        let servers = table["server"].as_array_mut().expect("servers");
        for id in first..first + 3 {
            let (rack, port) = (id % 3, free_port());
            let server =
                format!("id = {id}\nrack = {rack}\npool = \"warm\"\naddress = \"127.0.0.1:{port}\"\ndata = \"server-{id}\"");
            servers.push(server.parse::<toml::Table>().expect("TOML").into());
        }
    });
    cluster.terminate(Who::Meta(1));
    cluster.launch(Who::Meta(1));
    // Servers that the cluster does not know yet wait.
    for id in first..first + 3 {
        cluster.launch(Who::Server(id));
    }
    cluster.servers.extend(first..first + 3);
    cluster.wait_status("the metadata server is back", |s| s.groups.without_primary == 0);
    assert_eq!(cluster.status().pools.len(), 1, "the file alone adds nothing");
    let list = said(&cluster, &["pool", "create", "warm"]);
    assert!(list.contains("pool     warm, code 2+1") && list.contains("data 1"), "{list}");
    cluster.wait_status("the new pool's parity sleeps", |s| {
        let set = &s.pools[1].sets[0];
        set.entry.columns[..2].iter().all(|c| c.state == SlotState::InSync) && set.servers_awake == 2
    });
    let (status, body) = Objects::create_bucket(&cluster.gateway, "new", Some("warm"));
    assert_eq!(status, 200, "{body}");
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(ask(&cluster, "PUT", "/new/key", &bytes).status, 200);
    assert!(ask(&cluster, "GET", "/new/key", b"").body == bytes);
    assert_eq!(ask(&cluster, "GET", "/old/key", b"").body, b"before");
    let twice = cluster.ebb(&["pool", "create", "warm"]);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("exists already"));
}

fn ask(cluster: &Cluster, method: &str, path: &str, body: &[u8]) -> Answer {
    request(&cluster.gateway, (ACCESS_KEY, SECRET_KEY), method, path, body).expect("an answer")
}

/// Transitions cost nothing, so that a short sleep pays.
fn let_it_hibernate(cluster: &Cluster, after: &str) {
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("hibernate_after".into(), after.into());
        let free = "up = { seconds = 0, joules = 0 }\ndown = { seconds = 0, joules = 0 }";
        let model = toml::Value::Table(free.parse().expect("TOML"));
        table["power"].as_table_mut().expect("a table").insert("model".into(), model);
    });
}

/// What `ebb pool status` says of the pool's overhead.
fn overhead(cluster: &Cluster) -> Option<f64> {
    let json = said(cluster, &["pool", "status", "--json"]);
    let pools: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    pools[0]["measured_overhead"].as_f64()
}

#[test]
fn a_pool_reports_the_overhead_that_its_code_promises() {
    let mut cluster = create();
    cluster.start_all();
    cluster.launch(Who::Gateway);
    let (status, body) = Objects::create_bucket(&cluster.gateway, "archive", Some("cold"));
    assert_eq!(status, 200, "{body}");
    let put = |cluster: &Cluster, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let len = (1 << 20) + number * 262_147;
            let content: Vec<u8> = (0..len).map(|n| (n / 7 + n / 4096 + number) as u8).collect();
            s3(cluster, "PUT", &format!("/archive/{number}"), &content);
        }
    };
    let is_near = |ratio: &f64| (ratio / 1.5 - 1.0).abs() < 0.03;
    put(&cluster, 0..12);
    cluster.wait_status("parity sleeps", |s| state(s, 2) == ServerState::Asleep);
    // What it missed, the data servers keep.
    put(&cluster, 12..14);
    assert_eq!(state(&cluster.status(), 2), ServerState::Asleep);
    let ratio = wait("what parity has is known while it sleeps", PATIENCE, || overhead(&cluster));
    println!("bytes stored per byte while parity sleeps: {ratio}");
    said(&cluster, &["gear", "set", "3/3"]);
    let owes = |s: &ClusterStatus| s.pools[0].sets[0].parity_debt_bytes > 0;
    let settled = |s: &ClusterStatus| state(s, 2) == ServerState::Awake && !owes(s);
    let status = cluster.wait_status("parity has everything", settled);
    // Rows that it has written twice count twice until they are moved to chunk files, as a clean stop does.
    let id = status.pools[0].sets[0].entry.columns[2].server.0;
    let run = |s: &ClusterStatus| s.servers.iter().find(|e| e.id.0 == id).map(|e| e.incarnation);
    cluster.terminate(Who::Server(id));
    cluster.launch(Who::Server(id));
    cluster.wait_status("it is back", |s| run(s) != run(&status) && settled(s));
    let ratio = wait("the overhead is that of the code", PATIENCE, || overhead(&cluster).filter(is_near));
    println!("bytes stored per byte: {ratio}");
    // Deleted bytes do not count any more.
    let before = cluster.status().pools[0].sets[0].data_bytes.expect("heard");
    for number in 0..10 {
        let answer = ask(&cluster, "DELETE", &format!("/archive/{number}"), b"");
        assert_eq!(answer.status, 204);
    }
    let data = |s: &ClusterStatus| s.pools[0].sets[0].data_bytes.expect("heard");
    cluster.wait_status("the bytes are freed", |s| data(s) < before / 2);
    let ratio = wait("the overhead is that of the code", PATIENCE, || overhead(&cluster).filter(is_near));
    println!("bytes stored per byte: {ratio}");
}

/// In the data and in the parity: no client reads, and the servers' own scrubs find it.
#[test]
fn rot_in_a_pool_is_found_by_a_scrub() {
    let mut cluster = create();
    cluster.start_all();
    cluster.launch(Who::Gateway);
    let (status, body) = Objects::create_bucket(&cluster.gateway, "archive", Some("cold"));
    assert_eq!(status, 200, "{body}");
    let content =
        |n: usize| -> Vec<u8> { (0..1_500_000_usize).map(|b| (b / 4096 * 7 + n + b) as u8).collect() };
    for n in 0..6 {
        s3(&cluster, "PUT", &format!("/archive/{n}"), &content(n));
    }
    said(&cluster, &["gear", "set", "3/3"]);
    for column in [0, 2] {
        let all_there =
            |s: &ClusterStatus| s.pools[0].sets[0].entry.columns.iter().all(|c| c.state == SlotState::InSync);
        let status = cluster.wait_status("parity is in sync", all_there);
        let id = status.pools[0].sets[0].entry.columns[column].server.0;
        let run = |s: &ClusterStatus| s.servers.iter().find(|e| e.id.0 == id).map(|e| e.incarnation);
        let earlier = run(&status);
        // A clean stop moves everything to chunk files.
        cluster.terminate(Who::Server(id));
        cluster.launch(Who::Server(id));
        cluster.wait_status("it is back", |s| run(s) != earlier && all_there(s));
        let damaged = damage(&cluster, id);
        assert!(damaged >= 6, "only {damaged} places to damage");
        said(&cluster, &["scrub", "--server", &id.to_string()]);
        let status = cluster.wait_status("its column is sound", |s| {
            let vitals =
                s.servers.iter().find(|server| server.id.0 == id).and_then(|server| server.vitals.as_ref());
            vitals.is_some_and(|vitals| vitals.scrub.asked == 0 && vitals.repaired_blocks > 0)
        });
        let vitals = status.servers.iter().find(|server| server.id.0 == id).and_then(|s| s.vitals.as_ref());
        let (repaired, differing) =
            vitals.map(|v| (v.repaired_blocks, v.scrub.differing_blocks)).expect("heard");
        println!("column {column}: {damaged} places damaged, {repaired} blocks repaired");
        assert_eq!(differing, 0);
    }
    for n in 0..6 {
        assert!(ask(&cluster, "GET", &format!("/archive/{n}"), b"").body == content(n));
    }
}

#[test]
fn a_pool_that_nobody_uses_sleeps_as_a_whole_and_the_first_read_wakes_it() {
    for depth_off in [false, true] {
        let mut cluster = Cluster::create(&Shape { depth_off, code: Some("2+1"), ..Shape::lively() });
        let_it_hibernate(&cluster, "2s");
        cluster.start_all();
        cluster.launch(Who::Gateway);
        let (status, body) = Objects::create_bucket(&cluster.gateway, "archive", Some("cold"));
        assert_eq!(status, 200, "{body}");
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
        assert_eq!(ask(&cluster, "PUT", "/archive/key", &bytes).status, 200);
        let asleep = |s: &ClusterStatus| (0..3).all(|column| state(s, column) == ServerState::Asleep);
        let status = cluster.wait_status("the whole set sleeps", asleep);
        let set: Vec<u16> = status.pools[0].sets[0].entry.columns.iter().map(|c| c.server.0).collect();
        let is_off = |id: &u16| match depth_off {
            true => cluster.pid(Who::Server(*id)).is_none(),
            false => cluster.is_stopped(Who::Server(*id)),
        };
        wait("all its processes are stopped", PATIENCE, || set.iter().all(is_off).then_some(()));
        // Neither looking nor a question about an object wakes a server.
        for args in [&["pool", "status"][..], &["pool", "list"], &["status"], &["gear", "plan"]] {
            said(&cluster, args);
        }
        assert_eq!(ask(&cluster, "HEAD", "/archive/key", b"").status, 200);
        let page = said(&cluster, &["pool", "status"]);
        assert!(
            page.contains("sleep    the whole set, for") && page.contains("first read or write wakes it"),
            "{page}"
        );
        assert!(said(&cluster, &["status"]).contains("1 set asleep as a whole"));
        assert!(set.iter().all(is_off), "they still sleep");
        assert_eq!(cluster.status().pools[0].sets[0].entry, status.pools[0].sets[0].entry);

        let began = std::time::Instant::now();
        let answer = ask(&cluster, "GET", "/archive/key", b"");
        println!("the first read took {:?}", began.elapsed());
        assert!(answer.status == 200 && answer.body == bytes, "status {}", answer.status);
        cluster.wait_status("the set sleeps again", asleep);
        assert_eq!(
            ask(&cluster, "PUT", "/archive/more", &bytes[..100_000]).status,
            200,
            "a write wakes it too"
        );
        assert!(ask(&cluster, "GET", "/archive/more", b"").body == bytes[..100_000]);
        cluster.stop_all();
    }
}

#[test]
fn a_sleep_that_would_cost_more_than_it_saves_is_refused() {
    let cluster = create();
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("hibernate_after".into(), "5s".into());
    });
    let output = cluster.ebb(&["status"]);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{why}");
    assert!(why.contains("pool cold: hibernate_after is 5s and must be at least 40 s"), "{why}");
}

fn s3(cluster: &Cluster, method: &str, path: &str, body: &[u8]) -> Answer {
    let answer = ask(cluster, method, path, body);
    assert_eq!(answer.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    answer
}

/// What a move leaves as it is.
fn kept(answer: &Answer) -> [Option<String>; 4] {
    ["etag", "last-modified", "content-length", "content-type"]
        .map(|name| answer.header(name).map(str::to_owned))
}

#[test]
fn a_rule_moves_an_object_to_the_pool_and_changes_nothing_else() {
    const RULES: &str = "<LifecycleConfiguration><Rule><ID>a</ID><Status>Enabled</Status>\
        <Filter><Prefix>old/</Prefix></Filter><Transition><Date>2020-01-01T00:00:00.000Z</Date>\
        <StorageClass>cold</StorageClass></Transition></Rule></LifecycleConfiguration>";
    let mut cluster = create();
    cluster.start_all();
    cluster.launch(Who::Gateway);
    let (status, body) = Objects::create_bucket(&cluster.gateway, "first", None);
    assert_eq!(status, 200, "{body}");
    let content: Vec<u8> = (0..3_000_001_u32).map(|n| (n / 7 + n / 4096) as u8).collect();
    s3(&cluster, "PUT", "/first/old/object", &content);
    s3(&cluster, "PUT", "/first/young", &content);
    s3(&cluster, "PUT", "/first?lifecycle=", RULES.as_bytes());
    let shown = s3(&cluster, "GET", "/first?lifecycle=", b"").body;
    assert!(String::from_utf8_lossy(&shown).contains("<StorageClass>cold</StorageClass>"));
    let before = s3(&cluster, "HEAD", "/first/old/object", b"");
    assert_eq!(before.header("x-amz-storage-class"), None);

    // A gateway that starts carries out the rules.
    cluster.terminate(Who::Gateway);
    cluster.launch(Who::Gateway);
    wait("the gateway listens", PATIENCE, || std::net::TcpStream::connect(&cluster.gateway).ok());
    let after = wait("the object has moved", PATIENCE, || {
        let head = s3(&cluster, "HEAD", "/first/old/object", b"");
        (head.header("x-amz-storage-class") == Some("cold")).then_some(head)
    });
    assert_eq!(kept(&after), kept(&before));
    let get = s3(&cluster, "GET", "/first/old/object", b"");
    assert_eq!(get.header("x-amz-storage-class"), Some("cold"));
    assert_eq!(kept(&get), kept(&before));
    assert!(get.body == content, "other bytes than were put");
    let list = String::from_utf8(s3(&cluster, "GET", "/first?list-type=2", b"").body).expect("text");
    let (old, young) = list.split_once("<Key>young</Key>").expect("both keys");
    assert!(old.contains("<StorageClass>cold</StorageClass>"), "{list}");
    assert!(young.contains("<StorageClass>STANDARD</StorageClass>"), "{list}");
}

/// A cluster with a pool `cold` of code 4+2, with a gateway, and buffers that the load can fill.
pub fn cold_cluster(parity_debt: &str) -> Cluster {
    let mut cluster = Cluster::create(&Shape { code: Some("4+2"), ..Shape::lively() });
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("parity_buffer_mib".into(), 8.into());
        pool.insert("parity_debt".into(), parity_debt.into());
    });
    cluster.start_all();
    cluster.launch(Who::Gateway);
    cluster
}

/// Its servers.
pub fn coded(cluster: &Cluster) -> Vec<u16> {
    cluster.servers[3..].to_vec()
}

fn pool(status: &ClusterStatus) -> &SetStatus {
    &status.pools[0].sets[0]
}

pub fn state_of(status: &ClusterStatus, id: u16) -> ServerState {
    status.servers.iter().find(|s| s.id.0 == id).expect("a server of the cluster").state
}

/// Whether every column is in sync, or away because its server sleeps.
pub fn is_settled(status: &ClusterStatus) -> bool {
    pool(status).entry.columns.iter().all(|column| match column.state {
        SlotState::InSync => state_of(status, column.server.0) == ServerState::Awake,
        SlotState::CatchingUp { .. } => false,
        SlotState::Away { .. } => state_of(status, column.server.0) == ServerState::Asleep,
    })
}

pub fn parity_sleeps(status: &ClusterStatus) -> bool {
    let parity = &pool(status).entry.columns[4..];
    parity.iter().all(|column| state_of(status, column.server.0) == ServerState::Asleep)
}

/// Objects are put while parity sleeps.
fn put_without_parity(parity_debt: &str) -> (Cluster, Objects) {
    let cluster = cold_cluster(parity_debt);
    let objects = Objects::start(&cluster.gateway, 1, Some("cold"));
    cluster.wait_status("parity servers sleep", |s| parity_sleeps(s) && is_settled(s));
    objects.go_on_for(60);
    (cluster, objects)
}

fn parity_gets_everything(cluster: &Cluster, objects: Objects) {
    cluster.gear(&["set", "3/3"]);
    cluster.wait_status("parity has everything", |s| {
        pool(s).entry.columns.iter().all(|c| c.state == SlotState::InSync) && pool(s).parity_debt_bytes == 0
    });
    let found = objects.stop();
    assert!(found.wrong.is_empty() && found.refused == 0, "{found:?}");
    assert!(found.puts > 30 && found.gets > 30, "{found:?}");
}

#[test]
fn parity_sleeps_and_what_was_put_meanwhile_reaches_it() {
    let (mut cluster, objects) = put_without_parity("segment");
    let owed = cluster.wait_status("the data servers keep parity", |s| pool(s).parity_debt_bytes > 0);
    assert!(parity_sleeps(&owed) || pool(&owed).fullest.is_some());
    // A data server and its disk are lost while parity sleeps.
    let victim = coded(&cluster)[1];
    cluster.kill(Who::Server(victim));
    put_in_place(&cluster.data(Who::Server(victim)).join("store"), None);
    cluster.wait_status("the loss is noticed", |s| state_of(s, victim) == ServerState::Failed);
    objects.go_on_for(60);
    cluster.launch(Who::Server(victim));
    cluster
        .wait_status("everything is rebuilt", |s| state_of(s, victim) == ServerState::Awake && is_settled(s));
    parity_gets_everything(&cluster, objects);
}

#[test]
fn parity_in_memory_is_computed_again_after_a_restart() {
    let (mut cluster, objects) = put_without_parity("ram");
    cluster.wait_status("the data servers keep parity in memory", |s| pool(s).memory_bytes > 0);
    let victim = coded(&cluster)[1];
    cluster.kill(Who::Server(victim));
    cluster.wait_status("the crash is noticed", |s| state_of(s, victim) == ServerState::Failed);
    objects.go_on_for(30);
    cluster.launch(Who::Server(victim));
    cluster.wait_status("it has everything again", |s| {
        let back = s.servers.iter().find(|server| server.id.0 == victim);
        let idle = back.and_then(|server| server.vitals.as_ref()).is_some_and(|v| v.catching_up == 0);
        state_of(s, victim) == ServerState::Awake && is_settled(s) && idle
    });
    parity_gets_everything(&cluster, objects);
}

#[test]
fn a_location_that_no_pool_has_is_an_error_that_names_the_pools() {
    let cluster = cold_cluster("segment");
    let (status, body) = Objects::create_bucket(&cluster.gateway, "elsewhere", Some("marble"));
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("InvalidLocationConstraint") && body.contains("cold"), "{body}");
}
