//! `ebb lab replay`, as a user runs it.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Four requests of SPC within 30 ms, the last one past the end of a 1 MiB target.
const TRACE: &str = "0,0,4096,R,0.00\n0,8,4096,W,0.01\n0,17,512,w,0.02\n0,4096,4096,r,0.03\n";

fn replay(dir: &Path, arguments: &[&str]) -> Output {
    std::fs::write(dir.join("trace.spc"), TRACE).unwrap();
    let target = format!("file:{}", dir.join("target").display());
    Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["lab", "replay", "trace.spc", "--target", &target])
        .args(arguments)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_trace_is_replayed_on_a_file_and_reported_as_json_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let made = replay(dir.path(), &["--size", "1MiB", "--json", "--html", "page.html"]);
    assert!(made.status.success(), "{}", error(&made));
    let report: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!((&report["requests"], &report["failed"]), (&4.into(), &0.into()));
    assert_eq!(
        (&report["placed"]["wrapped"], &report["target"]["size_bytes"]),
        (&1.into(), &(1 << 20).into())
    );
    assert_eq!(report["pacing"]["speed"], 1.0);
    assert!(report["wall_seconds"].as_f64().unwrap() >= 0.03 && report["lateness"]["count"] == 4);
    assert!(std::fs::read_to_string(dir.path().join("page.html")).unwrap().contains("Replay on file:"));
    let half = replay(dir.path(), &["--overwrite", "--load", "50%", "--intensity", "1000%", "--json"]);
    let report: Value = serde_json::from_slice(&half.stdout).unwrap();
    assert!(
        (1..4).contains(&report["requests"].as_u64().unwrap()) && report["load_percent"] == 50.0,
        "{report}"
    );
    let peak = replay(dir.path(), &["--overwrite", "--peak", "2"]);
    let text = String::from_utf8(peak.stdout).unwrap();
    assert!(
        text.contains("as fast as 2 in flight are answered") && text.contains("4 requests, 0 failed"),
        "{text}"
    );
}

#[test]
fn what_is_asked_wrongly_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, code, said) in [
        (&[][..], 1, "--size"),
        (&["--speed", "0"], 1, "the speed is 0"),
        (&["--size", "1MiB", "--load", "130%"], 1, "share"),
        (&["--size", "1MiB", "--past-end", "refuse"], 1, "request 4"),
        (&[], 1, "--overwrite"),
        (&["--overwrite", "--peak", "0"], 1, "1 to 16384"),
        (&["--overwrite", "--load", "0.3"], 2, "30%"),
        (&["--overwrite", "--peak", "2", "--speed", "3"], 2, "cannot be used"),
        (&["--overwrite", "--servers", "3"], 2, "cannot be used"),
    ] {
        let output = replay(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", error(&output));
        assert!(error(&output).contains(said), "{arguments:?}: {}", error(&output));
    }
}

#[test]
fn a_trace_is_replayed_on_a_cluster_that_is_made_for_it_and_every_byte_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace.spc"), TRACE).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["lab", "replay", "trace.spc", "--servers", "3", "--json", "--html", "page.html"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let performance = &report["performance"];
    assert_eq!((&performance["requests"], &performance["failed"]), (&4.into(), &0.into()));
    // Two reads of 4 KiB were written before; the trace writes 4.5 KiB.
    assert_eq!((&report["prepared_bytes"], &performance["check"]["mismatched"]), (&8192.into(), &0.into()));
    assert_eq!(performance["check"]["read_back_bytes"], 8192 + 4096 + 512);
    assert_eq!(
        (&report["comparison"]["differing"], &report["volumes"][0]["kept"]),
        (&0.into(), &false.into())
    );
    assert!(std::fs::read_to_string(dir.path().join("page.html")).unwrap().contains("Load and servers"));
}

#[test]
fn a_prelude_is_replayed_and_checked_and_only_what_follows_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    // Twenty requests in the first hour, ten in the second, far from where it begins.
    let times = (0..20).map(|n| 60 * n).chain((0..10).map(|n| 6000 + 60 * n));
    let line =
        |(n, at): (usize, u64)| format!("0,{},4096,{},{at}\n", n % 7 * 8, if n % 3 == 0 { "r" } else { "w" });
    let trace: String = times.enumerate().map(line).collect();
    std::fs::write(dir.path().join("two.spc"), trace).unwrap();
    let replay = |prelude: &str| {
        Command::new(env!("CARGO_BIN_EXE_ebb"))
            .args([
                "lab",
                "replay",
                "two.spc",
                "--servers",
                "3",
                "--speed",
                "1200",
                "--json",
                "--prelude",
                prelude,
            ])
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    let output = replay("1h");
    assert!(output.status.success(), "{}", error(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let prelude = &report["prelude"];
    assert_eq!(
        (&prelude["hours"], &prelude["requests"], &prelude["failed"]),
        (&1.into(), &20.into(), &0.into()),
        "{prelude}"
    );
    let performance = &report["performance"];
    assert_eq!((&performance["requests"], &report["trace"]["requests"]), (&10.into(), &10.into()));
    assert_eq!((&report["hours"][0]["hour"], report["hours"].as_array().unwrap().len()), (&1.into(), 1));
    // Seven blocks, all of them read and written in the first hour.
    assert_eq!(
        (&performance["check"]["read_back_bytes"], &report["prepared_bytes"]),
        (&28_672.into(), &28_672.into())
    );
    assert_eq!(
        (&performance["check"]["mismatched"], &report["comparison"]["differing"]),
        (&0.into(), &0.into())
    );
    for (prelude, code, said) in [("2h", 1, "a prelude of 2 h"), ("90m", 2, "whole hours, such as 8h")] {
        let output = replay(prelude);
        assert_eq!(output.status.code(), Some(code), "{prelude}: {}", error(&output));
        assert!(error(&output).contains(said), "{prelude}: {}", error(&output));
    }
}

#[test]
fn options_of_one_place_are_refused_at_another() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace.spc"), TRACE).unwrap();
    for arguments in [&["--size", "1GiB"][..], &["--check"], &["--peak", "3"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
            .args(["lab", "replay", "trace.spc"])
            .args(arguments)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", error(&output));
        assert!(error(&output).contains(arguments[0]) && error(&output).contains("--target"));
    }
}
