//! Volumes of a real cluster, served over NBD: what is written there moves to an erasure-coded pool and reads as it was
//! written.

use crate::harness::{Cluster, Shape};
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
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
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
    let mut child = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["volume", "serve", name, "--nbd", "127.0.0.1:0", "--config"])
        .arg(&cluster.config)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("it is a pipe");
    BufReader::new(out).read_line(&mut line).expect("text");
    let url = line.split_whitespace().last().unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
    Served { child, url }
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
    refused(&["serve", "v"], "the volume does not exist");
    refused(&["delete", "v"], "the volume does not exist");
    run(&cluster, &["volume", "create", "v", "--size", "8MiB"]);
    refused(&["create", "v", "--size", "8MiB"], "the volume exists already");
}
