//! `ebb lab trace` as a user runs it: its output, the files it writes, and how it fails.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn ebb(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["lab", "trace"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("ebb runs")
}

/// Standard output of a command that succeeds.
fn good(directory: &Path, arguments: &[&str]) -> String {
    let output = ebb(directory, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let text = good(directory, &[arguments, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
}

/// Standard error of a command that fails with 1.
fn bad(directory: &Path, arguments: &[&str]) -> String {
    let output = ebb(directory, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn synthetic(directory: &Path) {
    let arguments = [
        "synth",
        "s.blktrace.0",
        "--size",
        "4KiB",
        "--random",
        "50%",
        "--read",
        "70%",
        "--rate",
        "1000",
        "--seconds",
        "10",
        "--seed",
        "7",
    ];
    assert!(good(directory, &arguments).contains("10000 requests"));
}

#[test]
fn a_synthetic_trace_is_made_described_filtered_scaled_and_converted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    synthetic(dir);
    let info = json(dir, &["info", "s.blktrace.0"]);
    let trace = &info["traces"][0];
    assert_eq!((&trace["requests"], &trace["read_share"]), (&10_000.into(), &0.7.into()));
    assert_eq!((&trace["mean_size_bytes"], &trace["peak_per_second"]), (&4096.0.into(), &1000.into()));
    assert_eq!(trace["name"], "s.blktrace");
    let text = good(dir, &["info", "s.blktrace.0", "--html", "page.html"]);
    assert!(text.contains("10,000 requests") && text.contains("70.0 % of requests"), "{text}");
    assert!(std::fs::read_to_string(dir.join("page.html")).unwrap().contains("<svg"));

    let filtered = json(dir, &["filter", "s.blktrace.0", "f.blktrace.0", "--load", "37%"]);
    let share = filtered["kept_requests_share"].as_f64().unwrap();
    assert!((share / 0.37 - 1.0).abs() < 0.01, "{share}");
    let tracer = json(dir, &["filter", "s.blktrace.0", "t.fio", "--load", "20%", "--method", "tracer"]);
    assert_eq!(
        (&tracer["written"]["requests"], &tracer["original_requests"]),
        (&2000.into(), &10_000.into())
    );
    good(dir, &["scale", "f.blktrace.0", "f.fio", "--intensity", "250%"]);
    let scaled = json(dir, &["info", "f.fio", "s.blktrace.0"]);
    let span = |at: usize| scaled["traces"][at]["span_seconds"].as_f64().unwrap();
    assert!((span(0) * 2.5 / span(1) - 1.0).abs() < 0.01);
    // A round trip through every format gives the same trace.
    good(dir, &["convert", "f.fio", "r/", "--to", "btrecord"]);
    good(dir, &["convert", "r/8-0.replay.0", "again.fio"]);
    let requests = |name: &str| json(dir, &["info", name])["traces"][0]["bytes"].clone();
    assert_eq!(requests("again.fio"), requests("f.fio"));
}

#[test]
fn the_same_seed_makes_the_same_file_and_all_modes_make_125() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, seed: &str| {
        good(dir.path(), &["synth", name, "--requests", "1000", "--seed", seed]);
        std::fs::read(dir.path().join(name)).unwrap()
    };
    let first = made("a.fio", "1");
    assert_eq!(first, made("b.fio", "1"));
    assert_ne!(first, made("c.fio", "2"));
    let all = json(dir.path(), &["synth", "modes/", "--mode", "all", "--requests", "100", "--rate", "10"]);
    assert_eq!((all["files"].as_array().unwrap().len(), &all["requests"]), (125, &12_500.into()));
    let listed =
        json(dir.path(), &["list", "modes", "--reads", ">=75%", "--random", "<=5%", "--sort", "size"]);
    let names: Vec<&str> =
        listed["traces"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 10, "{names:?}");
    assert!(names[0].starts_with("1048576-random000"), "{names:?}");
    assert_eq!(listed["refreshed"], 125);
    assert_eq!(json(dir.path(), &["list", "modes"])["refreshed"], 0);
}

#[test]
fn accuracy_is_measured_at_ten_levels() {
    let dir = tempfile::tempdir().unwrap();
    synthetic(dir.path());
    let found = json(dir.path(), &["accuracy", "s.blktrace.0"]);
    let levels = found["traces"][0]["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 10);
    for level in levels {
        for (filter, most) in [("tracer", 0.005), ("balanced", 0.01)] {
            for figure in ["iops_error", "bytes_error"] {
                let error = level[filter][figure].as_f64().unwrap();
                assert!(error.abs() <= most, "{filter} {level}");
            }
        }
    }
    assert!(good(dir.path(), &["accuracy", "s.blktrace.0"]).contains("worst"));
}

#[test]
fn bad_input_is_named_with_its_place_and_can_be_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("t.spc"), "0,0,512,R,1\nnonsense\n0,8,512,W,0.5\n0,9,0,R,2\n").unwrap();
    let error = bad(dir, &["info", "t.spc"]);
    assert!(error.contains("t.spc, line 2") && error.contains("--skip-bad"), "{error}");
    let found = json(dir, &["info", "t.spc", "--skip-bad", "1"]);
    let trace = &found["traces"][0];
    assert_eq!((&trace["requests"], &trace["skipped"]), (&3.into(), &1.into()));
    assert_eq!((&trace["backwards"], &trace["empty"]), (&1.into(), &1.into()));
    let written = json(dir, &["convert", "t.spc", "t.fio", "--skip-bad", "1"]);
    assert_eq!(
        (&written["requests"], &written["empty"], &written["skipped"]),
        (&2.into(), &1.into(), &1.into())
    );
    let error = bad(dir, &["convert", "t.spc", "t.fio", "--skip-bad", "1"]);
    assert!(error.contains("--overwrite"), "{error}");

    synthetic(dir);
    let whole = std::fs::read(dir.join("s.blktrace.0")).unwrap();
    std::fs::write(dir.join("cut.blktrace.0"), &whole[..48 * 100 - 5]).unwrap();
    let error = bad(dir, &["info", "cut.blktrace.0"]);
    assert!(error.contains("byte 4752") && error.contains("43 of a record's 48 bytes"), "{error}");
    std::fs::write(dir.join("half.spc.gz"), [0x1f, 0x8b, 8, 0, 0]).unwrap();
    assert!(bad(dir, &["info", "half.spc.gz"]).contains("cut short"));
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    synthetic(dir);
    for (arguments, words) in [
        (&["convert", "s.blktrace.0", "out"][..], "--to"),
        (&["info", "none"], "check the path"),
        (&["info", "."], "ebb lab trace list"),
        (&["filter", "s.blktrace.0", "o.fio", "--load", "120%"], "above 0 and up to 1"),
        (&["filter", "s.blktrace.0", "o.fio", "--load", "35%", "--method", "tracer"], "--method balanced"),
        (&["scale", "s.blktrace.0", "o.fio", "--intensity", "2000%"], "1 % to 1000 %"),
        (&["synth", "o.fio", "--random", "150%"], "0% to 100%"),
        (&["record", "s.blktrace.0", "o"], "not a block device"),
        (&["list", "none"], "check the path"),
    ] {
        let error = bad(dir, arguments);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    assert!(!dir.join("o.fio").exists());
    assert_eq!(ebb(dir, &["filter", "s.blktrace.0", "o.fio", "--load", "30"]).status.code(), Some(2));
}

/// A trace in bytes that its format reads as sectors: refused where there is no terminal to ask on, read with the unit,
/// and converted for good.
#[test]
fn a_trace_in_the_wrong_unit_is_refused_until_the_unit_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let lines: String = (0..40).map(|i| format!("{} 0 {} 65536 1\n", i * 500_000, i * 131_072)).collect();
    std::fs::write(dir.join("b.ssdsim"), lines).unwrap();
    let said = bad(dir, &["info", "b.ssdsim"]);
    assert!(said.contains("32.0 MiB on average") && said.contains("--unit bytes"), "{said}");
    let info = json(dir, &["info", "b.ssdsim", "--unit", "bytes"]);
    assert_eq!(info["traces"][0]["bytes"], 40 * 65_536, "{info}");
    good(dir, &["convert", "b.ssdsim", "b.fio", "--unit", "bytes"]);
    assert_eq!(json(dir, &["info", "b.fio"])["traces"][0]["bytes"], 40 * 65_536);
    std::fs::write(dir.join("t.csv"), "user,stamp,what,pos,size\nx,1,R,0,4096\nx,2,write,8192,512\n")
        .unwrap();
    let columns = "time-ms=stamp,op=what,offset=pos,size=size,device=user";
    assert_eq!(json(dir, &["info", "t.csv", "--column", columns])["traces"][0]["bytes"], 4608);
    assert!(
        bad(dir, &["info", "t.csv", "--column", "time=1,op=3,offset=4,size=length"]).contains("\"length\"")
    );
}

/// A page that cannot be written is reported before the hour of work for it.
#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let (out, none) = ("no/such/directory/x", "no-such-input");
    let commands: [&[&str]; 8] = [
        &["lab", "trace", "info", none, "--html", out],
        &["simulate", "load", none, "--csv", out],
        &["simulate", "trace", none, "--html", out],
        &["simulate", "mirror", none, "--csv", out],
        &["simulate", "paper", "ecs2", "--trace", none, "--out", out],
        &["lab", "replay", none, "--target", "file:x", "--out", out],
        &["lab", "eval", "report", "--db", none, "--html", out],
        &["lab", "cost", "--save", out, "--", none],
    ];
    for arguments in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_ebb")).args(arguments).current_dir(dir.path()).output();
        let said = String::from_utf8(output.expect("ebb runs").stderr).expect("text");
        // The input does not exist either: what is named first was looked at first.
        assert!(said.contains("cannot write") && said.contains(out), "{arguments:?}: {said}");
    }
}
