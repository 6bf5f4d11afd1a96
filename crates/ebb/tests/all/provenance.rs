//! Every command that makes figures says where they come from, and `ebb lab provenance` makes them again.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

/// Four requests of SPC within 30 ms.
const TRACE: &str = "0,0,4096,R,0.00\n0,8,4096,W,0.01\n0,17,512,w,0.02\n0,4096,4096,r,0.03\n";
const TRACE_SHA256: &str = "7a464a1912bad66fce9d05256fe3ff56";

fn ebb(dir: &Path, line: &str) -> Output {
    let words = line.split(' ');
    Command::new(env!("CARGO_BIN_EXE_ebb")).args(words).current_dir(dir).output().expect("ebb runs")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// What the command reports, whatever its exit code.
fn report(dir: &Path, line: &str) -> Value {
    let output = ebb(dir, line);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {}", said(&output)))
}

/// A directory with a trace, and five days of hours with a daily rhythm.
fn inputs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let load = |hour: u32| 60.0 - 40.0 * (f64::from(hour % 24) / 24.0 * std::f64::consts::TAU).cos();
    let series: String = (0..120).map(|hour| format!("{:.1}\n", load(hour))).collect();
    std::fs::write(dir.path().join("trace.spc"), TRACE).expect("write");
    std::fs::write(dir.path().join("series.csv"), series).expect("write");
    dir
}

#[test]
fn every_command_that_makes_figures_says_where_they_come_from() {
    let dir = inputs();
    let all = ebb(dir.path(), "lab trace synth s.blktrace.0 --rate 1000 --seconds 1");
    assert!(all.status.success(), "{}", said(&all));
    for (line, files, seeds) in [
        ("simulate load series.csv --interval 1h --train 1 --json", &["series.csv"][..], None),
        ("simulate mirror trace.spc --json", &["trace.spc"], Some((1, 1))),
        ("simulate mirror trace.spc --seeds 3..5 --json", &["trace.spc"], Some((3, 4))),
        ("simulate trace day:1000 --speed 2000 --seed 7 --json", &[], Some((7, 7))),
        ("simulate reliability --code 6+3 --json", &[], None),
        ("simulate fuzz --seeds 1..2 --json", &[], Some((1, 1))),
        ("lab replay trace.spc --target file:t --size 1MiB --json", &["trace.spc"], None),
        ("lab trace info trace.spc --json", &["trace.spc"], None),
        ("lab trace accuracy s.blktrace.0 --json", &["s.blktrace.0"], None),
        ("lab trace synth t.fio --requests 9 --seed 5 --json", &[], Some((5, 5))),
        ("lab trace convert trace.spc u.fio --json", &["trace.spc"], None),
        ("lab trace filter s.blktrace.0 v.fio --load 30% --json", &["s.blktrace.0"], None),
        ("lab meter read command,interval=50ms:true --seconds 60ms --json", &[], None),
    ] {
        let report = report(dir.path(), line);
        let provenance = &report["provenance"];
        let words: Vec<&str> = ["ebb"].into_iter().chain(line.split(' ')).collect();
        assert_eq!(provenance["command"], json!(words), "{line}");
        assert_eq!(provenance["redacted"], false, "{line}");
        assert_eq!(provenance["version"], env!("CARGO_PKG_VERSION"), "{line}");
        let inputs = provenance["inputs"].as_array().expect("a list");
        let paths: Vec<&str> = inputs.iter().filter_map(|input| input["path"].as_str()).collect();
        assert_eq!(paths, files, "{line}");
        assert!(
            inputs.iter().all(|input| input["sha256"].as_str().is_some_and(|sum| sum.len() == 64)),
            "{line}"
        );
        let seeds = seeds.map_or(Value::Null, |(first, last)| json!({ "first": first, "last": last }));
        assert_eq!(provenance["seeds"], seeds, "{line}");
        let date = provenance["date"].as_str().expect("a date");
        assert!(date.len() == 20 && date.ends_with('Z'), "{line}: {date}");
        assert!(
            provenance["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0),
            "{line}: {provenance}"
        );
        assert!(report.as_object().expect("an object").len() > 1, "the figures are there: {line}");
    }
    let report = report(dir.path(), "lab trace info trace.spc --json");
    let input = &report["provenance"]["inputs"][0];
    assert_eq!(input["bytes"], TRACE.len());
    assert!(input["sha256"].as_str().expect("a digest").starts_with(TRACE_SHA256), "{input}");
}

#[test]
fn a_report_that_goes_into_a_file_has_it_too_and_a_secret_is_not_in_it() {
    let dir = inputs();
    let line = "lab replay trace.spc --target file:t --size 1MiB --out r.json --intensity 1000%";
    let done = ebb(dir.path(), line);
    assert!(done.status.success(), "{}", said(&done));
    let text = std::fs::read_to_string(dir.path().join("r.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["provenance"]["inputs"][0]["path"], "trace.spc");
    let line = "lab meter read command,interval=50ms:TOKEN=hunter2;true --seconds 60ms --json";
    let report = self::report(dir.path(), line);
    assert_eq!(report["provenance"]["redacted"], true);
    assert!(!report["provenance"].to_string().contains("hunter2"), "{report}");
}

/// A simulation gives the same figures to the last digit, wherever it is made again.
#[test]
fn figures_are_made_again_and_a_difference_is_named() {
    let dir = inputs();
    let dir = dir.path();
    let line = "simulate mirror trace.spc --json";
    let printed = ebb(dir, line).stdout;
    std::fs::write(dir.join("r.json"), &printed).expect("write");
    let made: Value = serde_json::from_slice(&printed).expect("JSON");
    let write = |report: &Value| std::fs::write(dir.join("r.json"), report.to_string()).expect("write");
    let same = ebb(dir, "lab provenance r.json --tolerance 0%");
    let text = said(&same);
    assert_eq!(same.status.code(), Some(0), "{text}");
    assert!(text.contains(&format!("ebb {line}")) && text.contains(" 0 differ"), "{text}");
    assert!(text.contains("input    trace.spc, ") && text.contains(": the same"), "{text}");

    let answered = made["requests"]["answered"].as_u64().expect("a count");
    let mut wrong = made.clone();
    wrong["requests"]["answered"] = json!(2 * answered);
    write(&wrong);
    let found = ebb(dir, "lab provenance r.json");
    assert_eq!(found.status.code(), Some(3), "{}", said(&found));
    let difference = format!("/requests/answered: was {}, is {answered}", 2 * answered);
    assert!(said(&found).contains(&difference), "{}", said(&found));
    for accepted in ["--tolerance 50%", "--except /requests", "--show"] {
        let found = ebb(dir, &format!("lab provenance r.json {accepted}"));
        assert_eq!(found.status.code(), Some(0), "{accepted}: {}", said(&found));
    }
    std::fs::write(dir.join("other.json"), made.to_string()).expect("write");
    let found = report(dir, "lab provenance r.json --with other.json --json");
    let difference = json!({ "pointer": "/requests/answered", "was": 2 * answered, "is": answered });
    assert_eq!(found["differences"], json!([difference]));
    assert_eq!(found["inputs"][0]["state"], "same");

    write(&made);
    std::fs::write(dir.join("trace.spc"), TRACE.replace("4096,R", "8192,R")).expect("write");
    let found = ebb(dir, "lab provenance r.json");
    assert_eq!(found.status.code(), Some(3), "{}", said(&found));
    assert!(
        said(&found).contains("HAS CHANGED") && said(&found).contains("not run again"),
        "{}",
        said(&found)
    );
}

#[test]
fn what_cannot_or_must_not_be_made_again_is_refused_with_what_to_do() {
    let dir = inputs();
    let dir = dir.path();
    for (name, command, expected) in [
        ("run.json", json!(["ebb", "lab", "cost", "--", "touch", "ran"]), "--again"),
        ("server.json", json!(["ebb", "dev"]), "--again"),
        ("fails.json", json!(["ebb", "simulate", "load", "none.csv"]), "reported nothing"),
    ] {
        let mut report = report(dir, "simulate reliability --code 6+3 --json");
        report["provenance"]["command"] = command;
        std::fs::write(dir.join(name), report.to_string()).expect("write");
        let refused = ebb(dir, &format!("lab provenance {name}"));
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains(expected), "{}", said(&refused));
    }
    assert!(!dir.join("ran").exists(), "a report's program did not run");
    std::fs::write(dir.join("plain.json"), "{\"iops\": 3}").expect("write");
    for (name, expected) in
        [("plain.json", "does not say where it comes from"), ("series.csv", "is not JSON")]
    {
        let refused = ebb(dir, &format!("lab provenance {name}"));
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains(expected), "{}", said(&refused));
    }
}
