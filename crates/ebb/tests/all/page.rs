//! `ebb page` on a real cluster: what it shows is what `ebb status` says, looking costs the servers nothing, and a
//! click in a real browser shifts. The page by itself is tested in `crates/ground/web`.

use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, wait};
use ebb_testing::browser::Browser;
use ebb_types::{ClusterStatus, GearMode, ServerState};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Status code and body of the page's answer.
fn ask(host: &str, line: &str, token: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(host).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let length = body.len();
    write!(
        stream,
        "{line} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code"), body.to_owned())
}

/// `ebb page` of a cluster. Ends when dropped.
struct Served {
    process: Child,
    /// `host:port`
    host: String,
    act: String,
    look: String,
    /// What it has logged; read once it has ended.
    log: Option<std::process::ChildStderr>,
}

impl Served {
    fn start(cluster: &Cluster) -> Served {
        let mut process = Command::new(EBB)
            .args(["page", "--address", "127.0.0.1:0", "--config"])
            .arg(&cluster.config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run ebb");
        let mut said = String::new();
        let stdout = process.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says where it listens");
        let (_, rest) = said.split_once("http://").unwrap_or_else(|| panic!("{said:?} has no URL"));
        let host = rest.split('/').next().expect("a host").to_owned();
        let token = |name: &str| {
            let path = cluster.directory().join(name);
            assert_eq!(std::fs::metadata(&path).expect("it made it").mode() & 0o777, 0o600, "{name}");
            std::fs::read_to_string(path).expect("it made it").trim().to_owned()
        };
        let (act, look) = (token("page.token"), token("page-read.token"));
        assert!(!said.contains(&act) && !said.contains(&look), "no token goes into a file: {said}");
        let log = process.stderr.take();
        Served { process, host, act, look, log }
    }

    fn url(&self, token: &str) -> String {
        format!("http://{}/?token={token}", self.host)
    }

    fn ask(&self, line: &str, token: &str, body: &str) -> (u16, String) {
        ask(&self.host, line, token, body)
    }

    fn status(&self) -> ClusterStatus {
        let (code, body) = self.ask("GET /api/status", &self.look, "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).expect("as `ebb status --json` prints it")
    }

    /// Ends it, and returns its log.
    fn end(mut self) -> String {
        let mut text = String::new();
        let mut log = self.log.take().expect("it is read once");
        self.process.kill().expect("it runs");
        log.read_to_string(&mut text).expect("its log");
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn letters(status: &ClusterStatus) -> String {
    status.servers.iter().map(|s| if s.state == ServerState::Asleep { 'S' } else { 'A' }).collect()
}

/// What the servers have served and kept, which looking must not change.
fn work(status: &ClusterStatus) -> Vec<(u64, u64, u64, u64)> {
    let of = |s: &ebb_types::ServerStatus| {
        let v = s.vitals.clone().unwrap_or_default();
        (v.used_bytes, v.offloaded_bytes, v.load.reads + v.load.writes, s.incarnation.0)
    };
    status.servers.iter().map(of).collect()
}

#[test]
fn the_page_of_a_real_cluster_shows_it_shifts_it_and_outlives_its_leader() {
    let mut cluster = Cluster::start(&Shape::lively());
    let served = Served::start(&cluster);
    let (shown, said) = (served.status(), cluster.status());
    assert_eq!((letters(&shown), &shown.params), (letters(&said), &said.params));
    let gear = r#"{"gear_set":{"gear":1}}"#;
    assert_eq!(served.ask("POST /api/act", &served.look, gear).0, 403, "the token that looks cannot act");
    assert_eq!(served.ask("POST /api/act", "", gear).0, 401);
    assert_eq!(cluster.status().gear.mode, GearMode::Auto, "nothing was changed");
    let (code, why) = served.ask("POST /api/act", &served.act, r#"{"lost":{"server":77}}"#);
    assert_eq!(code, 409, "the leader refuses: {why}");

    let Some(browser) = Browser::start() else { return };
    browser.look(1280, 900, false);
    browser.go(&served.url(&served.act));
    browser.wait("the page is drawn", "return document.body.dataset.state === 'drawn'");
    println!("drawn after {} ms", browser.run("return document.body.dataset.millis"));
    // A click shifts, and the page follows.
    browser.run("location.hash = '#act'");
    browser.wait("the buttons are there", "return document.querySelector('[data-gear=\"1\"]') !== null");
    browser.click("[data-gear='1']");
    browser.click("#confirm-yes");
    browser.wait(
        "it is decided",
        "return document.getElementById('act-result').innerText.startsWith('Decided')",
    );
    let status = cluster.wait_status("gear 1 is reached", |s| {
        s.gear.gear == 1 && !s.gear.shifting && s.gear.servers_awake == 3
    });
    browser.run("location.hash = '#now'");
    let drawn = browser.wait(
        "the page shows the gear",
        "const p = document.getElementById('chart-power').getAttribute('aria-label'); \
         return document.querySelector('#tile-servers dd').innerText === '3 of 9' && document.getElementById('legend').innerText.includes('asleep 6') \
             && p && document.getElementById('tile-power').dataset.value",
    );
    let modelled: f64 = status.servers.iter().filter_map(|s| s.modelled_watts).map(|w| w.0).sum();
    let drawn: f64 = drawn.as_str().and_then(|text| text.parse().ok()).expect("watts");
    assert!((drawn - modelled).abs() < modelled * 0.5, "{drawn} W are drawn, {modelled} W are modelled");
    let sleeper = status.servers.iter().find(|s| s.state == ServerState::Asleep).expect("six sleep");
    browser.run(&format!("location.hash = '#why/{}'", sleeper.id.0));
    browser.wait("it says why", "return document.getElementById('one-why').innerText === 'Not needed.'");
    browser.wait(
        "it lists the shift",
        "return document.getElementById('notices').innerText.includes('an administrator or a replay set the gear')",
    );

    // The page stays open, and the servers have nothing to do.
    let before = work(&cluster.status());
    let (awake, polls) =
        (letters(&cluster.status()), "return document.getElementById('chart-load').dataset.points");
    browser.run("location.hash = '#now'");
    let seen = browser.run(polls).to_string();
    browser.wait(
        "five looks more",
        &format!("return Number(document.getElementById('chart-load').dataset.points) >= Number({seen}) + 5"),
    );
    let after = cluster.status();
    assert_eq!(
        (work(&after), letters(&after)),
        (before, awake),
        "looking wakes no server and writes nothing"
    );

    // The leader ends: the page says since when, keeps what it had, and comes back by itself.
    cluster.terminate(Who::Meta(1));
    let said = browser.wait(
        "it says that the cluster does not answer",
        "return !document.getElementById('banner').hidden && document.getElementById('banner').innerText",
    );
    assert!(said.as_str().is_some_and(|text| text.contains("has not answered since")), "{said}");
    assert_eq!(browser.text("#tile-servers dd"), "3 of 9");
    cluster.launch(Who::Meta(1));
    browser.wait("it is back", "return document.getElementById('banner').hidden");
    let errors = browser.errors();
    assert!(errors.is_empty(), "{errors:?}");
    let own = format!("http://{}/", served.host);
    let foreign: Vec<String> = browser.requests().into_iter().filter(|url| !url.starts_with(&own)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    drop(browser);
    let (act, look) = (served.act.clone(), served.look.clone());
    let log = served.end();
    assert!(log.contains("the administrator at 127.0.0.1:") && log.contains("keep gear 1 awake"), "{log}");
    assert!(log.contains("may only look"), "a refused act is logged: {log}");
    assert!(!log.contains(&act) && !log.contains(&look), "no token is in the log");
}

#[test]
fn a_token_that_others_may_read_or_that_is_none_stops_the_page() {
    let cluster = Cluster::create(&Shape::default());
    let page = || {
        Command::new(EBB)
            .args(["page", "--address", "127.0.0.1:0", "--config"])
            .arg(&cluster.config)
            .output()
            .expect("run ebb")
    };
    let token = cluster.directory().join("page.token");
    std::fs::write(&token, "short").expect("write");
    let refusal = || String::from_utf8_lossy(&page().stderr).into_owned();
    let said = refusal();
    assert!(said.contains("page.token") && said.contains("chmod 600"), "{said}");
    std::fs::remove_file(&token).expect("it is there");
    crate::harness::write_private(&token, "short");
    let said = refusal();
    assert!(said.contains("page.token") && said.contains("remove the file"), "{said}");
}

/// Through S3, with the key that `ebb dev` made: its servers' response times are on the way to the leader.
fn browse(host: &str, token: &str, ready: &Value) {
    let text = |key: &str| ready[key].as_str().expect("it is printed").to_owned();
    let (address, access_key, secret_key) = (text("endpoint"), text("access_key"), text("secret_key"));
    let address = address.trim_start_matches("http://");
    let made = ebb_testing::s3::request(address, (&access_key, &secret_key), "PUT", "/first", b"");
    assert_eq!(made.expect("a bucket is made").status, 200);
    let object = "/api/s3/object?bucket=first&key=letters/a+%26+b";
    let s3 = |method: &str, path: &str, body: &str| ask(host, &format!("{method} {path}"), token, body);
    let content = "x".repeat(300_000);
    assert_eq!(s3("PUT", object, &content), (200, "{\"done\":true}".to_owned()));
    let (code, list) = s3("GET", "/api/s3/buckets", "");
    assert!(code == 200 && list.contains("<Name>first</Name>"), "{list}");
    let (code, list) = s3("GET", "/api/s3/objects?bucket=first", "");
    assert!(code == 200 && list.contains("<Prefix>letters/</Prefix>"), "{list}");
    let (code, list) = s3("GET", "/api/s3/objects?bucket=first&prefix=letters/", "");
    assert!(
        code == 200 && list.contains("<Key>letters/a &amp; b</Key>") && list.contains("300000"),
        "{list}"
    );
    let (code, body) = s3("GET", object, "");
    assert!(code == 200 && body == content, "{} bytes came back", body.len());
    wait("a server reports how long writes took", PATIENCE, || {
        assert_eq!(s3("PUT", object, &content).0, 200);
        let status: ClusterStatus = serde_json::from_str(&s3("GET", "/api/status", "").1).expect("a status");
        let writes = |s: &ebb_types::ServerStatus| s.vitals.as_ref()?.latencies.writes.quantile(0.99);
        status.servers.iter().find_map(writes).filter(|p99| !p99.is_zero())
    });
    assert_eq!(s3("DELETE", object, "").0, 200);
    let (code, why) = s3("GET", object, "");
    assert!(code == 404 && why.contains("NoSuchKey"), "{why}");
    assert_eq!(s3("GET", "/api/volumes", ""), (200, "[]".to_owned()));
    let config: toml::Table =
        std::fs::read_to_string(text("config")).expect("a file").parse().expect("a configuration");
    let counted = crate::harness::array(&config, "server").into_iter().map(|server| {
        let mut stream =
            TcpStream::connect(server["metrics"].as_str().expect("an address")).expect("it listens");
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        let count = "ebb_request_duration_seconds_count{op=\"write\"} ";
        page.lines().find_map(|line| line.strip_prefix(count)?.parse::<u64>().ok()).expect("a histogram")
    });
    assert!(counted.sum::<u64>() >= 2, "two objects were written");
}

#[test]
fn a_file_that_the_page_cannot_use_is_refused_with_what_is_wrong() {
    let cluster = Cluster::create(&Shape::default());
    let refused = |flag: &str, name: &str, text: &str| {
        let file = cluster.directory().join(name);
        crate::harness::write_private(&file, text);
        let mut page = Command::new(EBB);
        page.args(["page", "--address", "127.0.0.1:0", "--config"]).arg(&cluster.config).arg(flag).arg(&file);
        String::from_utf8_lossy(&page.output().expect("run ebb").stderr).into_owned()
    };
    let key = |name: &str| format!("[{name}]\nsecret = \"s\"\nrights = [\"read\"]\n");
    let said = refused("--s3-key", "page-keys.toml", &(key("A") + &key("B")));
    assert!(said.contains("has 2 keys") && said.contains("page-keys.toml"), "{said}");
    let said = refused("--co2", "grid.csv", "hour,g\n0,100\n1,many\n");
    assert!(said.contains("grid.csv") && said.contains("line 3"), "{said}");
}

#[test]
fn a_development_cluster_prints_its_page() {
    let _alone = Cluster::create(&Shape::default());
    let mut dev = Command::new(EBB)
        .args(["dev", "--ephemeral", "--json", "--servers", "3", "--racks", "3"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("run ebb");
    let stdout = BufReader::new(dev.stdout.take().expect("piped"));
    let ready: Value =
        serde_json::Deserializer::from_reader(stdout).into_iter().next().expect("one object").expect("JSON");
    let url = ready["page"].as_str().expect("a page").to_owned();
    let (host, token) = url.trim_start_matches("http://").split_once("/?token=").expect("a token");
    let host = host.to_owned();
    let (code, text) = ask(&host, "GET /api/status", token, "");
    let browsed = std::panic::catch_unwind(|| browse(&host, token, &ready));
    let pid = rustix::process::Pid::from_raw(dev.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(dev.wait().expect("it ends").success());
    assert!(code == 200 && text.contains("\"map_version\""), "{text}");
    browsed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
