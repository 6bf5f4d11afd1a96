//! `ebb lab eval` and `ebb lab agent` as processes: a killed evaluation resumes, and other machines do the work.

use crate::harness::EBB;
use crate::mirror::{Bench, has};
use ebb_eval::{Record, Store};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn ebb(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebb"));
    command.current_dir(dir).args(args);
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    ebb(dir, args).output().unwrap()
}

/// 2 modes at 4 levels: 8 runs. `more`: further lines for the target.
fn matrix(dir: &Path, name: &str, more: &str) {
    matrix_of(dir, name, 0.2, more);
}

fn matrix_of(dir: &Path, name: &str, seconds: f64, more: &str) {
    let text = format!(
        "name = \"{name}\"\nrun_seconds = {seconds}\nlevels = [10, 20, 50, 100]\nfilter = \"tracer\"\n\
         [synthetic]\nsizes = [4096]\nrandom = [100]\nreads = [0, 100]\n\
         [[target]]\nname = \"file\"\nat = \"file:{name}.dat\"\nsize_mib = 4\n{more}"
    );
    std::fs::write(dir.join(format!("{name}.toml")), text).unwrap();
}

/// A meter that was not read in time leaves a run without watts; a run that was metered has the meter's value.
fn assert_read(records: &[Record], watts: f64) {
    let read: Vec<&Record> = records.iter().filter(|r| r.watts.is_some()).collect();
    assert!(!read.is_empty(), "no run has watts");
    for record in read {
        assert!((record.watts.unwrap() - watts).abs() < 1e-9, "{record:?}");
        assert_eq!(record.watts_source.as_deref(), Some("stated"), "by a command, not measured");
        assert!(record.meter_coverage.unwrap() > 0.0, "{record:?}");
    }
}

fn records(dir: &Path) -> Vec<Record> {
    let store = Store::read(&dir.join("results.sqlite"));
    store.and_then(|store| store.records(None, None)).unwrap_or_default()
}

/// Starts the evaluation `m` and kills it when it has three results. `None`: it ended before that.
fn killed_after_three(dir: &Path) -> Option<Vec<Record>> {
    let mut killed = ebb(dir, &["lab", "eval", "run", "m.toml"]).spawn().unwrap();
    while records(dir).len() < 3 && killed.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap().signal().map(|signal| {
        assert_eq!(signal, 9);
        records(dir)
    })
}

#[test]
fn a_killed_evaluation_resumes_where_it_was() {
    // A machine that polls too late gets longer runs.
    let (dir, before) = [0.2, 1.0, 10.0]
        .into_iter()
        .find_map(|seconds| {
            let dir = tempfile::tempdir().unwrap();
            matrix_of(dir.path(), "m", seconds, "meters = [\"command,interval=50ms:echo 42\"]\n");
            killed_after_three(dir.path()).map(|before| (dir, before))
        })
        .expect("it ended by itself");
    assert!((3..=8).contains(&before.len()), "{}", before.len());

    let again = run(dir.path(), &["lab", "eval", "run", "m.toml", "--json"]);
    assert!(again.status.success(), "{again:?}");
    let said: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((said["total"].as_u64(), said["found"].as_u64()), (Some(8), Some(before.len() as u64)));
    let after = records(dir.path());
    assert_eq!(after[..before.len()], before, "what was done is as it was");
    assert_eq!(after.len(), 8);
    for record in &after {
        assert!(record.iops.unwrap() > 0.0 && record.failed_requests == Some(0), "{record:?}");
    }
    assert_read(&after, 42.0);

    // A file that the user did not create for this purpose is left alone.
    std::fs::remove_file(dir.path().join("results.sqlite")).unwrap();
    let refused = run(dir.path(), &["lab", "eval", "run", "m.toml"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("overwrite = true"), "{refused:?}");
}

#[test]
fn results_are_shown_compared_exported_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        matrix(dir.path(), name, "");
        assert!(run(dir.path(), &["lab", "eval", "run", &format!("{name}.toml")]).status.success());
    }
    let text = |args: &[&str]| {
        let out = run(dir.path(), args);
        assert!(out.status.success(), "{args:?}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let shown = text(&["lab", "eval", "show"]);
    assert!(shown.contains("one/file: 8 results, 0 failed runs") && shown.contains("100 %"), "{shown}");
    assert!(
        !shown.contains(" 50 %") && text(&["lab", "eval", "show", "--workload", "4KiB"]).contains(" 50 %")
    );
    let compared = text(&["lab", "eval", "compare", "results.sqlite#one", "results.sqlite#two", "--json"]);
    let compared: serde_json::Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["pairs"].as_array().unwrap().len(), 8);
    let csv = text(&["lab", "eval", "export", "--csv", "--campaign", "one"]);
    assert_eq!(csv.lines().count(), 9);
    let json: serde_json::Value = serde_json::from_str(&text(&["lab", "eval", "export", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 16);
    assert!(json[0]["watts"].is_null(), "no meter: absent, not zero");
    let kept =
        text(&["lab", "trace", "list", "traces", "--size", "4KiB", "--random", ">90%", "--reads", "<=0%"]);
    assert!(kept.contains("one/file/file-4KiB-random100-read0.replay"), "the depository is searched: {kept}");
    text(&["lab", "eval", "report", "--html", "r.html"]);
    let page = std::fs::read_to_string(dir.path().join("r.html")).unwrap();
    assert!(page.contains("one/file") && page.contains("No power was read") && page.contains("<svg"));
    assert_eq!(run(dir.path(), &["lab", "eval", "export"]).status.code(), Some(2));
    let none = run(dir.path(), &["lab", "eval", "show", "--db", "none.sqlite"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("`ebb lab eval run` makes them"), "{none:?}");
    let plan = text(&["lab", "eval", "run", "one.toml", "--dry-run"]);
    assert!(plan.contains("8 of 8 runs have results"), "{plan}");
}

/// `examples/tracer-emulated.toml` in little, with its own meter.
#[test]
fn an_emulated_disk_is_metered_by_the_joules_of_its_model() {
    if !has("awk") {
        return;
    }
    let bench = Bench::with_mirror(64);
    std::fs::remove_file(bench.path("b")).unwrap();
    let served = bench.serve(&["--degraded", "--driver", "emulated", "--policy", "one-speed"]);
    let status = bench.status();
    let joules = |disk: usize| status["disks"][disk]["modelled_joules"].as_f64();
    assert!(joules(0).is_some() && joules(1).is_none(), "a disk that is missing draws nothing: {status}");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tracer-emulated.toml");
    let mut matrix = std::fs::read_to_string(example).unwrap();
    for (from, to) in [
        ("nbd://127.0.0.1:10809/disk", served.url.as_str()),
        ("ebb mirror status disk --json |", "ebb mirror status m --json |"),
        ("size_mib = 4096", "size_mib = 32"),
        ("run_seconds = 10.0", "run_seconds = 0.5"),
        ("peak_seconds = 10.0", "peak_seconds = 0.5"),
        ("\"4KiB\", \"16KiB\", \"64KiB\"", "\"4KiB\""),
        ("[0, 10, 20, 30, 50, 75, 100]", "[0, 100]"),
        ("[0, 25, 50, 75, 100]", "[0, 100]"),
    ] {
        assert!(matrix.contains(from), "the example has no {from}");
        matrix = matrix.replace(from, to);
    }
    std::fs::write(bench.path("little.toml"), matrix).unwrap();
    let programs = Path::new(EBB).parent().unwrap().display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut command = ebb(&bench.path(""), &["lab", "eval", "run", "little.toml"]);
    let out = command.env("EBB_MIRRORS", bench.path("registry")).env("PATH", path).output().unwrap();
    let records = records(&bench.path(""));
    assert!(out.status.success() && records.len() == 4, "{out:?}\n{records:?}");
    // A meter that was not read in time leaves a run without watts.
    let read: Vec<&Record> = records.iter().filter(|record| record.watts.is_some()).collect();
    assert!(!read.is_empty(), "no run has watts: {records:?}");
    for record in read {
        let (watts, iops) = (record.watts.unwrap(), record.iops.unwrap());
        assert!(watts > 0.0 && (record.iops_per_watt.unwrap() - iops / watts).abs() < 1e-9, "{record:?}");
        assert_eq!(
            (record.meters.as_deref(), record.watts_source.as_deref()),
            (Some("disk"), Some("stated"))
        );
    }
    served.stop();
}

/// A procedure on a file, at a small share of its times.
fn procedure(dir: &Path, name: &str, more: &str) {
    let text = format!(
        "name = \"{name}\"\nprocedure = \"{name}\"\n{more}[[target]]\nname = \"file\"\nat = \"file:{name}.dat\"\nsize_mib = 8\n\
         meters = [\"command,interval=20ms:echo 40\"]\n"
    );
    std::fs::write(dir.join(format!("{name}.toml")), text).unwrap();
}

#[test]
fn recognised_procedures_run_and_never_call_themselves_conformant() {
    let dir = tempfile::tempdir().unwrap();
    procedure(dir.path(), "emerald", "");
    let go = |name: &str, scale: &str, more: &[&str]| {
        let file = format!("{name}.toml");
        let args = [&["lab", "eval", "run", &file, "--scale", scale], more].concat();
        let out = run(dir.path(), &args);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let said: serde_json::Value = serde_json::from_str(&go("emerald", "1/20000", &["--json"])).unwrap();
    assert_eq!((said["done"].as_u64(), &said["score"]["conformant"]), (Some(8), &false.into()), "{said}");
    let phases = said["score"]["targets"][0]["phases"].as_array().unwrap();
    let units: Vec<&str> = phases.iter().map(|phase| phase["unit"].as_str().unwrap()).collect();
    let (iops, mib) = ("IOPS/W", "MiB/s/W");
    assert_eq!(units, ["", "", iops, iops, iops, mib, mib, "GB/W"]);
    let number = |phase: &serde_json::Value, key: &str| phase[key].as_f64();
    for phase in &phases[2..7] {
        let work = if phase["unit"] == iops { "iops" } else { "mib_per_second" };
        let expected = number(phase, work).unwrap() / 40.0;
        // A meter that was not read in time leaves a phase without watts.
        if let Some(figure) = number(phase, "figure") {
            assert!((figure / expected - 1.0).abs() < 1e-6, "{phase}");
            assert_eq!(phase["evidence"], "level 0: stated watts", "a command's watts are not measured ones");
        }
    }
    assert!(phases.iter().any(|phase| phase["figure"].is_number()), "{said}");
    let fill = records(dir.path()).into_iter().find(|record| record.workload == "pre-fill").unwrap();
    assert_eq!((fill.bytes, fill.read_percent), (Some(8 << 20), Some(0.0)), "all of it, once");
    let text = go("emerald", "1/20000", &[]);
    for words in ["NOT CONFORMANT", "a rehearsal", "1/20000", "from memory", "Vdbench", "0 of them new"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    let other = run(dir.path(), &["lab", "eval", "run", "emerald.toml", "--scale", "1/9000"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("another settings"), "{other:?}");

    procedure(dir.path(), "graduated", "[synthetic]\nsizes = [4096]\nrandom = [100]\nreads = [50]\n");
    // Half a second: long enough that also a tenth of the peak has requests, however busy the machine.
    let said: serde_json::Value = serde_json::from_str(&go("graduated", "1/500", &["--json"])).unwrap();
    assert_eq!(said["done"].as_u64(), Some(11), "{said}");
    if let Some(found) = said["score"]["targets"][0]["proportions"].get(0) {
        assert!(number(found, "index").unwrap().abs() < 0.2, "40 W at every load: {found}");
        assert!(number(found, "dynamic_range").unwrap().abs() < 1e-9, "{found}");
    }
}

/// An `ebb lab agent` on a free port; it ends when this is dropped.
struct Agent {
    process: Child,
    address: String,
}

impl Agent {
    fn start(dir: &Path, args: &[&str]) -> Agent {
        let common = ["lab", "agent", "--listen", "127.0.0.1:0", "--secret", "secret"];
        let mut process = ebb(dir, &[&common, args].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("it says where it listens").to_owned();
        Agent { process, address }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn agents_generate_the_load_and_read_the_power() {
    let dir = tempfile::tempdir().unwrap();
    ebb_client::Secret::create(&dir.path().join("secret")).unwrap();
    ebb_client::Secret::create(&dir.path().join("other")).unwrap();
    let loader = Agent::start(dir.path(), &["--target", "file:far.dat", "--traces", "far"]);
    let analyzer = Agent::start(dir.path(), &["--meter", "command,interval=50ms:echo 7"]);
    let agents = |secret: &str| {
        let agent = |name, address| {
            format!("[[agent]]\nname = \"{name}\"\naddress = \"{address}\"\nsecret_file = \"{secret}\"\n")
        };
        format!(
            "generator = \"loader\"\nmeter_agent = \"analyzer\"\nmeters = [\"command,interval=50ms:echo 7\"]\n{}{}",
            agent("loader", &loader.address),
            agent("analyzer", &analyzer.address)
        )
    };
    matrix(dir.path(), "far", &agents("other"));
    let refused = run(dir.path(), &["lab", "eval", "run", "far.toml"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(said.contains("another cluster secret") && records(dir.path()).is_empty(), "{said}");
    std::fs::remove_file(dir.path().join("results.sqlite")).unwrap();
    matrix(dir.path(), "far", &agents("secret"));
    let out = run(dir.path(), &["lab", "eval", "run", "far.toml"]);
    let records = records(dir.path());
    assert!(out.status.success(), "{out:?}\n{records:?}");
    assert_eq!(records.len(), 8);
    assert!(records.iter().all(|r| r.error.is_none() && r.device.is_some()), "{records:?}");
    assert_read(&records, 7.0);
}
