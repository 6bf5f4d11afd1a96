//! `ebb simulate load` as a user runs it, on one series and on several; and how `ebb simulate trace` sizes a cluster.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Loads by the hour, low for half of each day.
fn write_series(directory: &Path, name: &str, days: usize) {
    let load = |hour: usize| if hour % 24 < 12 { "2\n" } else { "9\n" };
    let text: String = (0..days * 24).map(load).collect();
    std::fs::write(directory.join(name), text).unwrap();
}

fn simulate(directory: &Path, series: &[&str], options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["simulate", "load"])
        .args(series)
        .args(["--interval", "1h", "--train", "1", "--servers", "9", "--policy", "always-on,ebb"])
        .args(options)
        .current_dir(directory)
        .output()
        .expect("ebb runs")
}

fn good(directory: &Path, series: &[&str], options: &[&str]) -> String {
    let output = simulate(directory, series, options);
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn several_series_are_one_table() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    write_series(dir, "a.txt", 4);
    write_series(dir, "b.txt", 5);
    let both = ["a.txt", "b.txt"];

    let csv = good(dir, &both, &["--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5, "{csv}");
    assert!(lines[0].starts_with("series,policy,days,short_goal,cycles_per_day,"), "{csv}");
    assert!(lines[1].starts_with("\"a.txt\",always-on,3,,,"), "{csv}");
    assert!(lines[4].starts_with("\"b.txt\",ebb,4,0.01,2,"), "{csv}");

    let json: Value = serde_json::from_str(&good(dir, &both, &["--json"])).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!(json[1]["series"]["name"], "b.txt");
    let json: Value = serde_json::from_str(&good(dir, &["a.txt"], &["--format", "json"])).unwrap();
    assert!(json["policies"][1]["of_cycles_oracle"].is_number(), "{json}");
    assert_eq!(json["policies"][0]["of_continuous_oracle"], 0.0, "{json}");
    assert_eq!(json["learning"]["days"], 3, "{json}");
    assert!(json["learning"]["short_time_after"].is_number(), "{json}");

    let text = good(dir, &both, &[]);
    assert!(text.contains("a.txt: 3.0 days") && text.contains("b.txt: 4.0 days"), "{text}");
    let latex = good(dir, &both, &["--format", "latex"]);
    assert!(
        latex.contains("\\begin{tabular}") && latex.contains("b.txt & ebb & 1.00 \\% & 2.00 &"),
        "{latex}"
    );
    let text = good(dir, &["a.txt"], &[]);
    assert!(text.contains("In the first 3 days, while it learns, it was short"), "{text}");
}

#[test]
fn what_a_table_of_several_series_cannot_hold_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let both = ["a.txt", "b.txt"];
    for (options, named) in [
        (["--html", "x.html"], "--html has no place"),
        (["--csv", "x.csv"], "--csv has no place"),
        (["--price", "0.3EUR"], "--price has no place"),
        (["--cold", "0.5"], "--cold has no place"),
    ] {
        let output = simulate(directory.path(), &both, &options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(named), "{said}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is written");
}

/// A night's backup of many writes, and a day whose busiest hour has fewer: the day alone decides how many servers
/// there are, and every one of them is awake in the night.
#[test]
fn a_cluster_is_sized_for_the_peak_outside_of_a_window() {
    let directory = tempfile::tempdir().unwrap();
    let burst = |(hour, count): (u64, u64)| {
        (0..count).map(move |n| format!("0,{},16384,w,{}\n", n * 8192, 3600 * hour)).collect::<String>()
    };
    let trace: String = [(0, 900), (1, 5), (2, 5), (3, 300), (4, 5), (5, 5)].map(burst).concat();
    std::fs::write(directory.path().join("night.spc"), trace).unwrap();
    let simulate = |options: &str| -> Value {
        let line =
            format!("simulate trace night.spc --servers peak --gears schedule --speed 60 --json{options}");
        let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
            .args(line.split(' '))
            .current_dir(directory.path())
            .output()
            .expect("ebb runs");
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let number = |report: &Value, pointer: &str| report.pointer(pointer).and_then(Value::as_u64).unwrap();
    let (all, day) = (simulate(""), simulate(" --except 00:00-02:00"));
    assert!(number(&day, "/cluster/servers") < number(&all, "/cluster/servers"), "{}", day["trace"]);
    for report in [&all, &day] {
        let servers = number(report, "/cluster/servers");
        let peak = report["trace"]["peak_load_servers"].as_f64().unwrap();
        assert_eq!(servers, (peak / 3.0).ceil() as u64 * 3, "{}", report["trace"]);
        assert_eq!(servers, number(report, "/trace/servers_for_peak"));
    }
    assert_eq!(day["trace"]["except"], serde_json::json!(["00:00-02:00"]));
    // An hour is a minute here.
    let all_awake = |report: &Value, from: f64, to: f64| {
        let samples = report["samples"].as_array().unwrap().iter();
        let within = samples.filter(|sample| (from..to).contains(&sample["at_seconds"].as_f64().unwrap()));
        let awake: Vec<u64> = within.map(|sample| sample["servers_awake"].as_u64().unwrap()).collect();
        assert!(!awake.is_empty());
        awake.into_iter().all(|awake| awake == number(report, "/cluster/servers"))
    };
    assert!(all_awake(&day, 5.0, 115.0), "the window");
    assert!(!all_awake(&day, 120.0, 170.0) && !all_awake(&all, 60.0, 115.0), "the quiet hours");
}
