//! `/metrics` and `/sd` of every process, and the alert rules in a real Prometheus that watches gears shift.

use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, array, free_port, wait};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/monitoring")
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of an answer; `None`: no answer, or not with 200.
pub fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut whole = String::new();
    stream.read_to_string(&mut whole).ok()?;
    let (head, body) = whole.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}

/// The values of a query, each with its labels.
fn query(prometheus: &str, expression: &str) -> Option<Vec<(serde_json::Value, f64)>> {
    let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = get(prometheus, &format!("/api/v1/query?query={escaped}"))?;
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let found = answer["data"]["result"].as_array().expect("a vector").iter();
    let value = |one: &serde_json::Value| one["value"][1].as_str().and_then(|text| text.parse().ok());
    Some(found.map(|one| (one["metric"].clone(), value(one).expect("a number"))).collect())
}

fn wait_for(prometheus: &str, expression: &str, expected: f64) {
    let holds = |found: Vec<(serde_json::Value, f64)>| found.first().is_some_and(|(_, is)| *is == expected);
    wait(&format!("{expression} is {expected}"), PATIENCE, || {
        query(prometheus, expression).filter(|found| holds(found.clone())).map(drop)
    });
}

/// The processes of the configuration that answer scrapers, by section.
fn addresses(cluster: &Cluster, section: &str) -> Vec<String> {
    let table: toml::Table = std::fs::read_to_string(&cluster.config).unwrap().parse().unwrap();
    let of = |entry: &toml::Table| entry["metrics"].as_str().expect("an address").to_owned();
    array(&table, section).into_iter().map(of).collect()
}

/// Names of metrics without the endings of histograms' parts.
fn names(page: &str) -> BTreeSet<String> {
    let typed = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    typed.map(|line| line.split(' ').next().expect("a name").to_owned()).collect()
}

/// Names on the page of the documentation below this heading.
fn documented(headings: &[&str]) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/metrics.md");
    let sections =
        page.split("\n## ").filter(|section| headings.iter().any(|h| section.starts_with(&format!("{h}\n"))));
    let rows = sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().expect("a name").to_owned()).collect()
}

/// A page has what the documentation lists below these headings, but for what is absent in a cluster like this.
pub fn assert_page(page: &str, headings: &[&str], absent: &[&str]) {
    let mut expected = documented(headings);
    absent.iter().for_each(|name| assert!(expected.remove(*name), "{name} is not documented"));
    assert_eq!(names(page), expected, "{headings:?}");
    if has("promtool") {
        let mut lint = Command::new("promtool");
        lint.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut lint = lint.spawn().expect("promtool starts");
        lint.stdin.take().expect("piped").write_all(page.as_bytes()).expect("promtool reads");
        let out = lint.wait_with_output().expect("promtool ends");
        assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The rules with time 30 times as fast, and a Prometheus that goes by them and finds its targets through the metadata
/// server.
fn start_prometheus(cluster: &Cluster) -> (Running, String) {
    let directory = cluster.directory().join("prometheus");
    std::fs::create_dir(&directory).unwrap();
    let mut rules = std::fs::read_to_string(monitoring().join("alerts.yml")).unwrap();
    for minutes in [1, 2, 5, 15] {
        rules = rules.replace(&format!("for: {minutes}m\n"), &format!("for: {}s\n", 2 * minutes));
    }
    assert!(!rules.lines().any(|line| line.trim().starts_with("for: ") && line.ends_with('m')), "{rules}");
    std::fs::write(directory.join("alerts.yml"), rules).unwrap();
    let config = std::fs::read_to_string(monitoring().join("prometheus.yml")).unwrap();
    let config = config.replace("127.0.0.1:10100", &addresses(cluster, "meta")[0]);
    let config = config.replace("_interval: 15s", "_interval: 250ms");
    std::fs::write(directory.join("prometheus.yml"), config).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let log = std::fs::File::create(directory.join("log")).unwrap();
    let child = Command::new("prometheus")
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"])
        .arg(format!("--web.listen-address={address}"))
        .current_dir(&directory)
        .stderr(log)
        .spawn()
        .expect("prometheus starts");
    (Running(child), address)
}

const LEADER: [&str; 3] = ["Every process", "Metadata servers", "The leader, for the cluster"];
/// Of a cluster without pools and rack switches, of which no server is away, and with no hour and no stretch of
/// requests behind it.
const ABSENT: [&str; 9] = [
    // Of other members: there are none.
    "ebb_metadata_silent_seconds",
    "ebb_rack_switches_power_watts",
    "ebb_forecast_servers",
    "ebb_pool_sets",
    "ebb_pool_sets_exposed",
    "ebb_pool_debt_bytes",
    "ebb_pool_memory_debt_bytes",
    "ebb_debt_since_timestamp_seconds",
    "ebb_request_latency_seconds",
];

/// A cluster of which every process answers scrapers.
fn cluster() -> Cluster {
    Cluster::create(&Shape { depth_off: true, metrics: true, ..Shape::lively() })
}

fn start(cluster: &mut Cluster) {
    cluster.start_all();
    cluster.launch(Who::Gateway);
    let gateway = addresses(cluster, "gateway").remove(0);
    wait("the gateway answers", PATIENCE, || get(&gateway, "/metrics"));
}

#[test]
fn every_process_answers_and_the_leader_reports_for_the_sleepers() {
    let mut cluster = cluster();
    start(&mut cluster);
    let [leader, gateway] = ["meta", "gateway"].map(|section| addresses(&cluster, section)[0].clone());
    let servers = addresses(&cluster, "server");
    assert_page(&get(&leader, "/metrics").unwrap(), &LEADER, &ABSENT);
    let of_client = "Gateways and volume servers";
    assert_page(&get(&gateway, "/metrics").unwrap(), &["Every process", of_client, "Gateways"], &[]);
    assert_page(&get(&servers[8], "/metrics").unwrap(), &["Every process", "Chunk servers"], &[]);
    assert_page(&of_a_volume(&cluster), &["Every process", of_client, "Volume servers"], &[]);

    let listed = || -> usize {
        let list = get(&leader, "/sd").unwrap();
        serde_json::from_str::<Vec<serde_json::Value>>(&list).unwrap().len()
    };
    assert_eq!(listed(), 11, "nine servers, a metadata server, a gateway");
    cluster.shift(1);
    assert_eq!(listed(), 5, "three of the servers are awake");
    let page = get(&leader, "/metrics").unwrap();
    let count = |with: &str| page.lines().filter(|line| line.contains(with)).count();
    assert_eq!(count("state=\"asleep\",depth=\"off\"} 1.0"), 6, "the leader reports for sleepers\n{page}");
    let once = |line: &&str| line.starts_with("ebb_power_cycles_total{") && line.ends_with(" 1.0");
    assert_eq!(page.lines().filter(once).count(), 6, "{page}");
    assert_eq!(count("ebb_power_watts{"), 9);
    assert_eq!(count("ebb_debt_since_timestamp_seconds{"), 3, "who is awake holds for who sleeps");
    assert_eq!(count("kind=\"measured\""), 0, "no meter is part of this cluster");
    assert_eq!(cluster.status().gear.servers_awake, 3, "looking wakes no server");
}

/// `make monitoring`.
#[test]
#[ignore = "20 s, most of them Prometheus's own pauses before it follows a list of targets"]
fn no_shift_is_an_alert_in_a_real_prometheus_and_a_failure_is_one() {
    if !has("prometheus") {
        return ebb_testing::skip("prometheus is not installed");
    }
    let mut cluster = cluster();
    let (_running, prometheus) = start_prometheus(&cluster);
    start(&mut cluster);
    wait_for(&prometheus, "sum(up)", 11.0);
    wait_for(&prometheus, "absent(ALERTS{alertstate=\"firing\"})", 1.0);
    let watched_since = Instant::now();
    cluster.shift(1);
    // Until then it asks servers that sleep.
    wait_for(&prometheus, "count(up)", 5.0);
    wait_for(&prometheus, "count(ebb_server_state{state=\"asleep\"})", 6.0);
    cluster.shift(3);
    wait_for(&prometheus, "sum(up)", 11.0);
    let whole = watched_since.elapsed().as_secs();
    let fired = format!("max_over_time(ALERTS{{alertstate=\"firing\"}}[{whole}s])");
    let fired = query(&prometheus, &fired).unwrap();
    assert!(fired.is_empty(), "false alerts: {fired:?}");
    let rules = get(&prometheus, "/api/v1/rules").unwrap();
    assert!(rules.contains("EbbServerFailed") && !rules.contains("\"health\":\"err\""), "{rules}");
    cluster.kill(Who::Server(9));
    wait("the alert about the killed server", PATIENCE, || {
        let fires = query(&prometheus, "ALERTS{alertname=\"EbbServerFailed\",alertstate=\"firing\"}")?;
        fires.first().map(|(labels, _)| assert_eq!(labels["server"], "9"))
    });
}

/// The page of a volume that is served.
fn of_a_volume(cluster: &Cluster) -> String {
    let made = cluster.ebb(&["volume", "create", "--size", "64MiB", "v1"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let address = format!("127.0.0.1:{}", free_port());
    let mut serve = Command::new(EBB);
    serve.args(["volume", "serve", "v1", "--nbd", "127.0.0.1:0", "--metrics", &address, "--config"]);
    let mut child = Running(serve.arg(&cluster.config).stdout(Stdio::piped()).spawn().expect("ebb starts"));
    let mut line = String::new();
    let output = child.0.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("it says where it is");
    wait("the volume is scraped", PATIENCE, || get(&address, "/metrics"))
}

/// Words of these files that look like metrics of ours, without the endings of histograms' parts.
fn used(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("ebb_"));
    let whole = |word: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part));
        parts.unwrap_or(word).to_owned()
    };
    ours.map(whole).collect()
}

#[test]
fn rules_and_dashboard_ask_for_metrics_that_there_are() {
    let known: BTreeSet<String> = documented(&[
        LEADER[0],
        LEADER[1],
        LEADER[2],
        "Chunk servers",
        "Gateways and volume servers",
        "Gateways",
        "Volume servers",
    ]);
    for file in ["alerts.yml", "alerts_test.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(monitoring().join(file)).unwrap();
        let unknown: Vec<String> = used(&text).difference(&known).cloned().collect();
        assert!(!used(&text).is_empty() && unknown.is_empty(), "{file} asks for {unknown:?}");
    }
    let dashboard = std::fs::read_to_string(monitoring().join("dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 8));
}

#[test]
fn the_rules_do_what_their_tests_say() {
    if !has("promtool") {
        return ebb_testing::skip("promtool is not installed");
    }
    let runs = |args: &[&str], directory: &Path| {
        let out = Command::new("promtool").args(args).current_dir(directory).output().expect("promtool runs");
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr),
        )
    };
    for args in [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
    ] {
        let (passes, said) = runs(&args, &monitoring());
        assert!(passes, "promtool {args:?}: {said}");
    }
    // A rule by which a process that does not answer is down.
    let directory = tempfile::tempdir().unwrap();
    let rules = std::fs::read_to_string(monitoring().join("alerts.yml")).unwrap();
    let naive = rules.replace("up{role=~\"meta|gateway\"} == 0", "up == 0");
    assert_ne!(naive, rules);
    std::fs::write(directory.path().join("alerts.yml"), naive).unwrap();
    std::fs::copy(monitoring().join("alerts_test.yml"), directory.path().join("alerts_test.yml")).unwrap();
    let (passes, _) = runs(&["test", "rules", "alerts_test.yml"], directory.path());
    assert!(!passes, "the rules' tests do not notice that sleepers count as down");
}
