//! Volumes of a real cluster, served over NBD: what is written there moves to an erasure-coded pool and reads as it was
//! written.

use crate::harness::{Cluster, Shape};
use crate::mirror::{BLOCK, Nbd, READ, WRITE, content};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// `ebb volume serve`, killed with the test.
pub struct Served {
    pub child: Child,
    pub url: String,
}

impl Served {
    /// As Ctrl-C would.
    pub fn end(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it was started").success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn serve(cluster: &Cluster, name: &str) -> Served {
    let (child, mut urls) = serve_all(cluster, &[name]);
    Served { child, url: urls.remove(0) }
}

/// The process, and where each volume is.
fn serve_all(cluster: &Cluster, names: &[&str]) -> (Child, Vec<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["volume", "serve", "--nbd", "127.0.0.1:0", "--config"])
        .arg(&cluster.config)
        .args(names)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines =
        BufReader::new(child.stdout.take().expect("it is a pipe")).lines().map(|line| line.expect("text"));
    let last = |line: String| line.split_whitespace().last().map(str::to_owned);
    let urls: Vec<String> = lines.take(names.len()).filter_map(last).collect();
    assert_eq!(urls.len(), names.len(), "{urls:?}");
    (child, urls)
}

fn run(cluster: &Cluster, args: &[&str]) -> Output {
    let output = cluster.ebb(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn moved_bytes(cluster: &Cluster) -> u64 {
    let output = run(cluster, &["volume", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    list[0]["moved_bytes"].as_u64().expect("a number")
}

/// Replays `requests` on the volume; every byte read is checked, and at the end everything that was written.
fn replay(served: &Served, trace: &std::path::Path) {
    let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["lab", "replay", "--overwrite", "--check", "--peak", "16", "--target", &served.url])
        .arg(trace)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("0 failed") && text.contains("0 reads were wrong"), "{text}");
}

#[test]
fn a_volume_moves_to_its_pool_and_reads_as_it_was_written() {
    let mut cluster = Cluster::create(&Shape { code: Some("2+1"), ..Shape::lively() });
    cluster.start_all();
    run(&cluster, &["volume", "create", "v", "--size", "24MiB", "--pool", "cold", "--front", "4MiB"]);
    let trace = cluster.directory().join("mixed.blktrace.0");
    let synth = ["lab", "trace", "synth", "--size", "20KiB", "--random", "70%", "--read", "30%"];
    let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(synth)
        .args(["--area", "24MiB", "--requests", "3000"])
        .arg(&trace)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut served = serve(&cluster, "v");
    replay(&served, &trace);
    assert!(moved_bytes(&cluster) >= 12 << 20, "{}", moved_bytes(&cluster));

    // One that was ended properly gives the volume back at once.
    served.end();
    let mut again = serve(&cluster, "v");
    replay(&again, &trace);
    again.end();
    run(&cluster, &["volume", "delete", "v"]);
    let left = run(&cluster, &["volume", "list", "--json"]).stdout;
    assert_eq!(String::from_utf8_lossy(&left).trim(), "[]");
}

/// One is taken over by another process: the other is served on, and the process ends with the last.
#[test]
fn a_process_serves_several_volumes_and_goes_on_without_one_that_is_taken() {
    let mut cluster = Cluster::create(&Shape::lively());
    cluster.start_all();
    for name in ["v", "w"] {
        run(&cluster, &["volume", "create", name, "--size", "1MiB"]);
    }
    let (child, urls) = serve_all(&cluster, &["v", "w"]);
    let first = Served { child, url: urls[0].clone() };
    let [mut v, mut w] = [0, 1].map(|n| Nbd::dial(&urls[n]).expect("it is served"));
    let write = |client: &mut Nbd, n: u64| {
        client.ask(WRITE, 0, BLOCK as u32, &content(0, n)).expect("the connection lives").is_ok()
    };
    assert!(write(&mut v, 1) && write(&mut w, 2));
    let signal = |signal| kill_process(Pid::from_child(&first.child), signal).expect("it runs");
    signal(Signal::STOP);
    let mut second = serve(&cluster, "v");
    signal(Signal::CONT);
    assert!(!write(&mut v, 3), "it is taken");
    assert!(write(&mut w, 4), "it is served on");
    let mut taken = Nbd::dial(&second.url).expect("it is served");
    assert!(taken.call(READ, 0, BLOCK as u32, &[]).expect("it is served") == content(0, 1));
    assert!(w.call(READ, 0, BLOCK as u32, &[]).expect("it is served") == content(0, 4));
    drop(taken);
    second.end();
}

#[test]
fn volumes_that_cannot_be_are_refused_with_the_remedy() {
    let mut cluster = Cluster::create(&Shape { code: Some("2+1"), ..Shape::lively() });
    cluster.start_all();
    let refused = |args: &[&str], why: &str| {
        let output = cluster.ebb(&[&["volume"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    };
    refused(&["create", "v", "--size", "8MiB", "--pool", "marble"], "the cluster has cold");
    refused(&["create", "v", "--size", "8MiB", "--pool", "cold", "--front", "1MiB"], "give at least 4.0 MiB");
    refused(&["create", "v", "--size", "8MiB", "--front", "4MiB"], "--pool");
    refused(&["create", "v", "--size", "5000"], "give a multiple of 4096");
    refused(&["serve", "v"], "volume v: the volume does not exist");
    refused(&["serve", "v", "v"], "name each volume once");
    refused(&["delete", "v"], "the volume does not exist");
    run(&cluster, &["volume", "create", "v", "--size", "8MiB"]);
    refused(&["create", "v", "--size", "8MiB"], "the volume exists already");
}
