//! `ebb lab serve` as a process: a small matrix is started from the page and watched, its results are queried, and what
//! the command line refuses, the page refuses. The page by itself is tested in `crates/ground/web`.

use crate::harness::EBB;
use ebb_testing::browser::Browser;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

const METER: &str = "command,interval=50ms:echo 42";

/// `ebb lab serve` in a directory. Ends when dropped.
struct Served {
    process: Child,
    /// `host:port`
    host: String,
    act: String,
    look: String,
    log: Option<ChildStderr>,
}

impl Served {
    fn start(dir: &Path) -> Served {
        let mut process = Command::new(EBB)
            .args(["lab", "serve", "--address", "127.0.0.1:0", "--target", "file:t.dat", "--meter", METER])
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run ebb");
        let mut said = String::new();
        let stdout = process.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("it says where it listens");
        let (_, rest) = said.split_once("http://").unwrap_or_else(|| panic!("{said:?} has no URL"));
        let host = rest.split('/').next().expect("a host").to_owned();
        let token =
            |name: &str| std::fs::read_to_string(dir.join(name)).expect("it made it").trim().to_owned();
        let (act, look) = (token("lab.token"), token("lab-read.token"));
        assert!(!said.contains(&act) && !said.contains(&look), "no token goes into a file: {said}");
        let log = process.stderr.take();
        Served { process, host, act, look, log }
    }

    fn send(&self, line: &str, token: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let (host, length) = (&self.host, body.len());
        write!(
            stream,
            "{line} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .expect("it reads");
        stream
    }

    /// Status code and body of the answer.
    fn ask(&self, line: &str, token: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(line, token, body).read_to_string(&mut text).expect("it answers");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code"), body.to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (code, body) = self.ask(&format!("GET {path}"), &self.look, "");
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    fn act(&self, act: &Value) -> (u16, String) {
        self.ask("POST /api/act", &self.act, &act.to_string())
    }

    /// What the stream sends, until it fits.
    fn wait(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let lines = BufReader::new(self.send("GET /api/stream", &self.look, "")).lines();
        let views = lines.map_while(Result::ok).filter_map(|line| {
            serde_json::from_str::<Value>(line.strip_prefix("data: ")?)
                .ok()
                .filter(|view| view["results"].is_object())
        });
        let mut last = Value::Null;
        for view in views {
            if fits(&view) {
                return view;
            }
            last = view;
        }
        panic!("{what}: never; the last was {last}")
    }

    /// Ends it, and returns its log.
    fn end(mut self) -> String {
        let mut text = String::new();
        let mut log = self.log.take().expect("it is read once");
        let pid = rustix::process::Pid::from_raw(self.process.id() as i32).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
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

fn campaign<'a>(view: &'a Value, name: &str) -> &'a Value {
    let all = view["campaigns"].as_array().expect("a list");
    all.iter().find(|campaign| campaign["name"] == name).unwrap_or(&Value::Null)
}

/// One mode at two levels.
fn matrix(name: &str, seconds: f64) -> Value {
    json!({
        "name": name, "run_seconds": seconds, "levels": [50, 100],
        "synthetic": {"sizes": [4096], "random": [0], "reads": [100]},
        "target": [{"name": "file", "at": "file:t.dat", "size_mib": 4, "meters": [METER]}],
    })
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let of = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    text.bytes().map(of).collect()
}

/// In a real browser, while a matrix runs: what has been found, and what is in progress.
fn look_at(served: &Served) {
    let Some(browser) = Browser::start() else { return };
    browser.look(1280, 900, false);
    browser.go(&format!("http://{}/?token={}", served.host, served.look));
    let drawn = "return document.body.dataset.state === 'drawn' && [...document.querySelectorAll('#figures .chart')].map(c => c.drawn?.data ?? null)";
    let drawn = browser.wait("charts of the first campaign", &format!("{drawn}.slice(0, 1)[0]"));
    let of = |figure: &Value, place: usize| figure["lines"][0]["points"][place][1].as_f64().expect("a value");
    let first = &served.get("/api/figures?campaign=first")["figures"][0];
    for place in [0, 1] {
        let (drawn, given) = (drawn[1][place].as_f64().expect("it is drawn"), of(first, place));
        assert!((drawn - given).abs() < 1e-9 * given.abs(), "{drawn} is drawn, {given} is given");
    }
    browser.run("location.hash = '#live'");
    browser.wait(
        "the campaign continues",
        "return document.getElementById('tile-campaign').innerText.includes('long') && Number(document.getElementById('chart-iops').dataset.points) > 2",
    );
    let errors = browser.errors();
    assert!(errors.is_empty(), "{errors:?}");
    let own = format!("http://{}/", served.host);
    let foreign: Vec<String> = browser.requests().into_iter().filter(|url| !url.starts_with(&own)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn a_matrix_runs_from_the_page_and_its_results_are_queried() {
    let dir = tempfile::tempdir().expect("a directory");
    let served = Served::start(dir.path());
    let first = matrix("first", 1.0);
    let plan = |matrix: &Value| format!("/api/plan?matrix={}", encoded(&matrix.to_string()));
    assert_eq!(served.get(&plan(&first))["runs"], 2);
    assert_eq!(served.get("/api/offers")["targets"], json!(["file:t.dat"]));
    let create = |matrix: &Value| json!({"create": {"matrix": matrix}});
    let start = |name: &str| json!({"start": {"campaign": name}});
    let (code, _) = served.ask("POST /api/act", &served.look, &create(&first).to_string());
    assert_eq!(code, 403, "the token that looks configures nothing");
    let (code, why) = served.act(&json!({"create": {"matrix": {"name": "x", "levels": [50], "target": [{"name": "d", "at": "/dev/sda", "overwrite": true}]}}}));
    assert!(code == 422 && why.contains("--target") && why.contains("target.at"), "{code} {why}");
    assert_eq!(served.act(&start("first")).0, 409, "there is nothing to start yet");
    assert_eq!(served.act(&create(&first)).0, 200);
    let (code, _) = served.ask("POST /api/act", &served.look, &start("first").to_string());
    assert_eq!(code, 403);
    assert!(!dir.path().join("t.dat").exists(), "nothing was written yet");
    assert_eq!(served.act(&start("first")).0, 200);
    let view = served.wait("it is seen while it runs", |view| {
        let points = view["points"].as_array().expect("a list");
        let works = |point: &Value| {
            point["load_percent"] == 100.0 && point["iops"].as_f64().is_some_and(|iops| iops > 0.0)
        };
        campaign(view, "first")["phase"] == "running" && points.iter().any(works)
    });
    assert_eq!(campaign(&view, "first")["total"], 2);
    let view = served.wait("it ends", |view| campaign(view, "first")["phase"] == "done");
    assert_eq!(campaign(&view, "first")["said"], Value::Null);

    let runs = served.get("/api/runs?campaign=first&load=%3E%3D60");
    assert_eq!((runs.as_array().map(Vec::len), &runs[0]["load_percent"]), (Some(1), &json!(100.0)));
    for run in served.get("/api/runs").as_array().expect("a list") {
        assert!(run["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{run}");
        assert!(run["watts"].is_null() || run["watts_source"] == "stated", "{run}");
    }
    let figures = served.get("/api/figures?campaign=first");
    let drawn = &figures["figures"][0];
    assert_eq!(drawn["lines"][0]["points"][1][0], 100.0, "{figures}");
    let (code, svg) = served.ask("GET /api/figures/0?campaign=first", &served.look, "");
    assert!(code == 200 && svg.starts_with("<svg"), "{svg}");
    let (code, csv) = served.ask("GET /api/runs.csv?campaign=first", &served.look, "");
    assert_eq!((code, csv.lines().count()), (200, 3), "{csv}");
    let (code, why) = served.ask("GET /api/runs?size=big", &served.look, "");
    assert!(code == 422 && why.contains("\"size\""), "{code} {why}");
    let again =
        served.get("/api/repeat?campaign=first&target=file&workload=4KiB-random0-read100&load_percent=50");
    let replay = again[1].as_str().expect("the trace is there");
    assert!(replay.contains("--target file:t.dat") && replay.contains("--load 50%"), "{replay}");
    let trace = replay.split(' ').nth(3).expect("a trace");
    assert!(dir.path().join(trace).exists(), "{trace}");

    // The page has no more consent than the matrix: a target with data of somebody is refused as on the command line.
    let before = std::fs::read(dir.path().join("t.dat")).expect("the target");
    assert_eq!(served.act(&create(&matrix("second", 0.2))).0, 200);
    assert_eq!(served.act(&start("second")).0, 200);
    let view = served.wait("it is given up", |view| campaign(view, "second")["said"].is_string());
    let said = campaign(&view, "second")["said"].as_str().expect("a text");
    assert!(said.contains("overwrite = true"), "{said}");
    assert_eq!(
        std::fs::read(dir.path().join("t.dat")).expect("the target"),
        before,
        "nothing was overwritten"
    );

    // A campaign of minutes is paused, and deleted.
    let mut long = matrix("long", 60.0);
    long["target"][0]["overwrite"] = json!(true);
    assert_eq!(served.act(&create(&long)).0, 200);
    assert_eq!(served.act(&start("long")).0, 200);
    served.wait("it runs", |view| !campaign(view, "long")["present"].is_null());
    look_at(&served);
    assert_eq!(served.act(&start("second")).0, 409, "one at a time");
    assert_eq!(served.act(&json!({"delete": {"campaign": "long"}})).0, 409, "what runs is not deleted");
    assert_eq!(served.act(&json!({"pause": {"campaign": "long"}})).0, 200);
    served.wait("it is paused", |view| campaign(view, "long")["phase"] != "running");
    for name in ["long", "first"] {
        assert_eq!(served.act(&json!({"delete": {"campaign": name}})).0, 200, "{name}");
    }
    served
        .wait("they are gone", |view| campaign(view, "long").is_null() && campaign(view, "first").is_null());
    assert_eq!(served.get("/api/runs"), json!([]));
    assert!(!dir.path().join("results.campaigns/first.toml").exists());

    let (act, look) = (served.act.clone(), served.look.clone());
    let log = served.end();
    assert!(log.contains("start \"first\"") && log.contains("may only look"), "{log}");
    assert!(!log.contains(&act) && !log.contains(&look), "no token is in the log");
}

#[test]
fn a_campaign_of_a_terminal_is_seen_as_it_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!(
        "name = \"typed\"\nrun_seconds = 60.0\nlevels = [50, 100]\n[synthetic]\nsizes = [4096]\nrandom = [0]\nreads = [100]\n\
         [[target]]\nname = \"file\"\nat = \"file:t.dat\"\nsize_mib = 4\nmeters = ['{METER}']\n"
    );
    std::fs::write(dir.path().join("typed.toml"), &text).expect("write");
    let folder = dir.path().join("results.campaigns");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("other.toml"), &text).expect("write");
    let served = Served::start(dir.path());
    served.wait("a file that is not called as its matrix is not taken for it", |view| {
        let other = campaign(view, "other");
        let said = other["said"].as_str().is_some_and(|said| said.contains("call the file typed.toml"));
        said && other["command"].is_null()
    });
    // It is corrected in its place.
    std::fs::write(folder.join("other.toml"), text.replace("typed", "other")).expect("write");
    served.wait("what is corrected is read again", |view| campaign(view, "other")["command"].is_string());
    let mut typed = Command::new(EBB)
        .args(["lab", "eval", "run", "typed.toml", "--db", "results.sqlite"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run ebb");
    let view = served.wait("it is seen", |view| {
        let points = view["points"].as_array().expect("a list");
        points.iter().any(|point| point["iops"].as_f64().is_some_and(|iops| iops > 0.0))
    });
    let seen = campaign(&view, "typed");
    assert_eq!((&seen["phase"], &seen["total"]), (&json!("running"), &json!(2)), "{view}");
    let (code, why) = served.act(&json!({"pause": {"campaign": "typed"}}));
    assert!(code == 409 && why.contains(&format!("end process {}", typed.id())), "{code} {why}");
    assert_eq!(served.act(&json!({"create": {"matrix": matrix("here", 1.0)}})).0, 200);
    let (code, why) = served.act(&json!({"start": {"campaign": "here"}}));
    assert!(code == 409 && why.contains("one campaign runs at a time"), "{code} {why}");
    typed.kill().expect("it runs");
    typed.wait().expect("it ends");
    served.wait("its end is seen", |view| campaign(view, "typed")["phase"] != "running");
}

#[test]
fn results_of_another_version_are_named_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("results.sqlite");
    drop(ebb_eval::Store::open(&path).expect("a file of results"));
    // The version stands in the file's header, in 4 bytes from 60 on.
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes[60..64].copy_from_slice(&99u32.to_be_bytes());
    std::fs::write(&path, bytes).expect("write");
    let served = Served::start(dir.path());
    let view = served.wait("it says so", |view| view["results"]["trouble"].is_string());
    let trouble = view["results"]["trouble"].as_str().expect("a text");
    assert!(
        trouble.contains("schema version 99") && trouble.contains("use the release that wrote it"),
        "{trouble}"
    );
    let (code, why) = served.ask("GET /api/runs", &served.look, "");
    assert!(code == 409 && why.contains("schema version 99"), "{code} {why}");
}
