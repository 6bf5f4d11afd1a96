use super::*;
use ebb_meter::Source;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What the simulated machines saw, and what goes wrong on them.
#[derive(Default)]
struct Script {
    /// Orders by workload and level (0: the peak).
    orders: Vec<(String, f64)>,
    /// The process "ends" in the run with this number.
    cut_at: Option<usize>,
    /// Runs at this level fail.
    failing_level: Option<f64>,
    unreachable: bool,
    /// The traces of peak runs were deleted.
    gone: bool,
    /// Replays at 100 % are issued late, by a tenth of their length.
    late: bool,
}

type Shared = Arc<Mutex<Script>>;

struct Pretend(Shared);

/// The generator's clock is 5 s ahead of this machine's, the analyzer's 2 s behind.
const GENERATOR_OFFSET: i64 = 5_000_000_000;
const ANALYZER_OFFSET: i64 = -2_000_000_000;

impl Generator for Pretend {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        Ok(GENERATOR_OFFSET)
    }

    fn prepare(&mut self, _: &Place) -> Result<Machine, RunError> {
        if self.0.lock().unwrap().unreachable {
            return Err(RunError::Lost("no route to host".into()));
        }
        Ok(Machine {
            host: Some("pretended".into()),
            medium: "ssd".into(),
            program_version: "1".into(),
            ..Machine::default()
        })
    }

    fn holds(&mut self, _: &Path) -> Result<bool, RunError> {
        Ok(!self.0.lock().unwrap().gone)
    }

    /// 1,000 requests per second at 100 %.
    fn run(&mut self, order: &Order, tell: &mut dyn FnMut(Live)) -> Result<Performance, RunError> {
        tell(Live::default());
        let percent = match order.intensity {
            Intensity::Peak { .. } => 0.0,
            Intensity::Level { percent, .. } => percent,
        };
        let mut script = self.0.lock().unwrap();
        script.orders.push((order.workload.name(), percent));
        if script.cut_at == Some(script.orders.len()) {
            drop(script);
            std::panic::resume_unwind(Box::new("killed"));
        }
        if percent > 0.0 && script.failing_level == Some(percent) {
            return Err(RunError::Failed("the target said no".into()));
        }
        let Workload::Synthetic { size, random, reads } = order.workload else { panic!("no trace here") };
        let kept = order.trace.as_ref().unwrap().display().to_string();
        assert!(kept.ends_with(&format!("/ssd-{}.replay.0", order.workload.name())), "{kept}");
        // An agent's depository is its own directory.
        assert!(kept.starts_with("traces/m/t/") || ["m/a/", "m/b/", "m/c/"].contains(&&kept[..4]), "{kept}");
        // The replay at 100 % falls behind the peak.
        let share = if percent == 0.0 { 1.0 } else { 0.8 * percent / 100.0 };
        let requests = (1000.0 * share * order.length.as_secs_f64()).round() as u64;
        let from = Moment(100_000_000_000u64.saturating_add_signed(GENERATOR_OFFSET));
        Ok(Performance {
            from,
            to: from + order.length,
            requests,
            bytes: requests * u64::from(size),
            request_bytes: size.into(),
            random_percent: random.into(),
            read_percent: reads.into(),
            series: vec![Interval { seconds: 2.0, requests, ..Interval::default() }],
            latency: Some(Latency { p99_millis: 1.5, ..Latency::default() }),
            lateness_p99_millis: Some(if script.late && percent == 100.0 { 200.0 } else { 0.1 }),
            ..Performance::default()
        })
    }
}

impl Analyzer for Pretend {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        Ok(ANALYZER_OFFSET)
    }

    fn mark(&mut self) -> Result<(), RunError> {
        Ok(())
    }

    fn draw(&mut self, from: Moment, to: Moment) -> Result<Draw, RunError> {
        assert_eq!(from.0, 100_000_000_000u64.saturating_add_signed(ANALYZER_OFFSET), "the analyzer's clock");
        assert_eq!(to.since(from), Duration::from_secs(2));
        Ok(Draw {
            watts: Some(50.0),
            source: Some(Source::Measured),
            coverage: Some(0.75),
            meters: "pdu".into(),
            ..Draw::default()
        })
    }

    fn present(&mut self) -> Present {
        Present { watts: Some(45.0), ..Present::default() }
    }
}

fn matrix() -> Matrix {
    let text = "name = \"m\"\nrun_seconds = 2\nlevels = [10, 100]\nrepetitions = 2\n\
                [synthetic]\nsizes = [4096, 8192]\nrandom = [50]\nreads = [0]\n\
                [[target]]\nname = \"t\"\nat = \"file:x\"\nmeters = [\"pdu\"]\n";
    Matrix::parse(Path::new("m.toml"), text, 1.0).unwrap()
}

/// Runs the matrix on simulated machines.
fn go(matrix: &Matrix, path: &Path, script: &Shared) -> Result<Outcome, StoreError> {
    go_and_tell(matrix, path, script, &mut |_| {})
}

fn go_and_tell(
    matrix: &Matrix,
    path: &Path,
    script: &Shared,
    tell: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Outcome, StoreError> {
    let open = |_: &Target| {
        Ok(Bench {
            generator: Box::new(Pretend(script.clone())),
            analyzer: Some(Box::new(Pretend(script.clone()))),
        })
    };
    run(matrix, Store::open(path).unwrap(), &open, tell)
}

#[test]
fn every_run_becomes_a_row_with_its_efficiency() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    let outcome = go(&matrix(), &path, &Shared::default()).unwrap();
    assert_eq!(outcome, Outcome { total: 8, done: 8, ..Outcome::default() });
    let records = Store::read(&path).unwrap().records(None, None).unwrap();
    assert_eq!(records.len(), 8);
    assert_eq!((records[0].load_percent, records[0].load_percent_iops), (100.0, Some(100.0)));
    let record = &records[2];
    assert_eq!(
        (record.workload.as_str(), record.load_percent, record.repetition),
        ("4KiB-random50-read0", 10.0, 1)
    );
    assert_eq!(
        (record.iops, record.load_percent_iops, record.load_percent_bytes),
        (Some(80.0), Some(10.0), Some(10.0)),
        "measured against the replay at 100 %, not against the peak"
    );
    assert_eq!((record.watts, record.joules, record.joules_per_io), (Some(50.0), Some(100.0), Some(0.625)));
    assert_eq!((record.iops_per_watt, record.mb_per_second_per_kilowatt), (Some(1.6), Some(0.32768 / 0.05)));
    assert_eq!((record.watts_source.as_deref(), record.meter_coverage), (Some("measured"), Some(0.75)));
    assert_eq!((record.latency_p99_millis, record.volts, record.error.as_deref()), (Some(1.5), None, None));
    assert_eq!(record.host.as_deref(), Some("pretended"));
    let series = Store::read(&path).unwrap().series(None, None).unwrap();
    assert_eq!((series.len(), series[0].load_percent, series[0].iops), (8, 10.0, 80.0));
}

/// Against a replay at 100 % that fell behind, every other load would appear too high.
#[test]
fn no_load_is_measured_against_a_reference_that_was_late_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    let script = Shared::default();
    script.lock().unwrap().late = true;
    assert!(go(&matrix(), &path, &script).unwrap().complete(), "its results are results");
    // Nor by a later process.
    let mut more = matrix();
    more.levels.push(50.0);
    assert!(go(&more, &path, &script).unwrap().complete());
    let records = Store::read(&path).unwrap().records(None, None).unwrap();
    assert_eq!((records.len(), records.iter().filter(|r| r.is_late_reference()).count()), (12, 2));
    for record in &records {
        assert_eq!((record.load_percent_iops, record.load_percent_bytes), (None, None), "{record:?}");
        assert!(record.iops.is_some() && record.iops_per_watt.is_some(), "{record:?}");
    }
    assert_eq!(records[0].behind(), Some(0.1));
}

/// A target that refused leaves nothing behind that binds the matrix: its remedy is a line in it.
#[test]
fn a_matrix_may_change_until_it_has_a_result_and_consent_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    let script = Shared::default();
    script.lock().unwrap().unreachable = true;
    assert_eq!(go(&matrix(), &path, &script).unwrap().lost, ["t: no route to host"]);
    script.lock().unwrap().unreachable = false;
    let mut other = matrix();
    other.settings.depth += 1;
    other.targets[0].overwrite = true;
    assert!(go(&other, &path, &script).unwrap().complete());
    other.targets[0].overwrite = false;
    assert_eq!(go(&other, &path, &script).unwrap().found, 8);
    let error = go(&matrix(), &path, &script).unwrap_err();
    assert!(matches!(&error, StoreError::Changed { subject, .. } if subject == "settings"), "{error}");
}

#[test]
fn meters_are_seen_during_every_run_also_of_the_peak() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let mut tell = |progress: &Progress| {
        seen.extend(progress.live.as_ref().map(|watched| (watched.load_percent, watched.meters.watts)));
    };
    go_and_tell(&matrix(), &dir.path().join("r.sqlite"), &Shared::default(), &mut tell).unwrap();
    assert!(seen.iter().all(|(_, watts)| *watts == Some(45.0)), "{seen:?}");
    assert_eq!(seen.iter().filter(|(load, _)| load.is_none()).count(), 2, "a peak of each workload");
}

#[test]
fn what_was_cut_off_is_run_again_and_what_is_done_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let script = Shared::default();
    // Each order is the last one of a process once: peaks, first and last runs.
    let orders = 2 + 8;
    for cut_at in 1..=orders {
        let path = dir.path().join(format!("{cut_at}.sqlite"));
        *script.lock().unwrap() = Script { cut_at: Some(cut_at), ..Script::default() };
        let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| go(&matrix(), &path, &script)));
        assert!(cut.is_err(), "cut off in run {cut_at}");
        let before = std::mem::take(&mut *script.lock().unwrap()).orders;
        let outcome = go(&matrix(), &path, &script).unwrap();
        let after = std::mem::take(&mut *script.lock().unwrap()).orders;
        assert!(outcome.complete());
        assert_eq!(before.last(), after.first(), "the run that was cut off is the first one");
        assert_eq!(before.len() + after.len(), orders + 1, "nothing else is done twice");
        let again = go(&matrix(), &path, &script).unwrap();
        assert_eq!((again.done, again.found), (0, 8));
        assert!(script.lock().unwrap().orders.is_empty());
    }
}

/// Levels that are missing are not replayed from nothing, nor compared with a replay of another trace.
#[test]
fn a_trace_that_was_deleted_is_collected_again_with_its_reference() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    let script = Shared::default();
    go(&matrix(), &path, &script).unwrap();
    *script.lock().unwrap() = Script { gone: true, ..Script::default() };
    let again = go(&matrix(), &path, &script).unwrap();
    assert!(again.collected_again.is_empty() && again.done == 0, "nothing is missing: {again:?}");
    let mut more = matrix();
    more.levels.push(50.0);
    let outcome = go(&more, &path, &script).unwrap();
    assert_eq!((outcome.done, outcome.found, outcome.failed), (4, 8, 0));
    assert_eq!(outcome.collected_again.len(), 2);
    assert!(outcome.collected_again[0].starts_with("t 4KiB-random50-read0: the trace"), "{outcome:?}");
    let orders = std::mem::take(&mut *script.lock().unwrap()).orders;
    let levels: Vec<f64> = orders.iter().map(|(_, percent)| *percent).collect();
    assert_eq!(levels, [0.0, 100.0, 50.0, 50.0, 0.0, 100.0, 50.0, 50.0]);
    script.lock().unwrap().gone = false;
    more.levels.push(60.0);
    assert!(go(&more, &path, &script).unwrap().collected_again.is_empty());
}

/// Idle runs: by the number of disks that the operator's command leaves, once each, before anything else.
#[test]
fn idle_power_is_measured_by_number_of_disks() {
    let dir = tempfile::tempdir().unwrap();
    let disks = dir.path().join("watts");
    let meter = format!("command:cat {}", disks.display());
    let mut matrix = matrix();
    matrix.settings.idle_seconds = Some(0.02);
    matrix.repetitions = 1;
    matrix.targets[0] = Target {
        meters: vec![meter.clone()],
        disks: vec![0, 6],
        set_disks: Some(format!("echo $((60 + 10 * {{disks}})) > {}", disks.display())),
        ..matrix.targets[0].clone()
    };
    let script = Shared::default();
    let path = dir.path().join("r.sqlite");
    let idle_only = |matrix: &Matrix| {
        std::fs::write(&disks, "1").unwrap();
        let open = |_: &Target| {
            let analyzer = super::super::LocalAnalyzer::open(std::slice::from_ref(&meter))?;
            Ok(Bench { generator: Box::new(Pretend(script.clone())), analyzer: Some(Box::new(analyzer)) })
        };
        run(matrix, Store::open(&path).unwrap(), &open, &mut |_| {}).unwrap()
    };
    script.lock().unwrap().unreachable = true;
    let outcome = idle_only(&matrix);
    assert_eq!((outcome.total, outcome.done), (2 + 4, 2), "idle runs need no generator: {outcome:?}");
    let rows = Store::read(&path).unwrap().records(None, None).unwrap();
    let found: Vec<_> =
        rows.iter().map(|r| (r.workload.as_str(), r.load_percent, r.watts.unwrap().round())).collect();
    assert_eq!(found, [("idle-0-disks", 0.0, 60.0), ("idle-6-disks", 0.0, 120.0)]);
    assert!(rows.iter().all(|row| row.iops.is_none() && row.watts_source.as_deref() == Some("stated")));
    assert_eq!(idle_only(&matrix).done, 0, "they are not measured twice");
    matrix.targets[0].set_disks = Some("echo no such disk >&2; exit 3".into());
    matrix.name = "n".into();
    assert_eq!(idle_only(&matrix).failed, 2);
    let rows = Store::read(&path).unwrap().records(Some("n"), None).unwrap();
    assert!(rows[0].error.as_ref().unwrap().contains("no such disk"), "{:?}", rows[0].error);
}

#[test]
fn failed_runs_are_kept_with_their_reason_and_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    let script = Shared::default();
    script.lock().unwrap().failing_level = Some(10.0);
    let outcome = go(&matrix(), &path, &script).unwrap();
    assert_eq!((outcome.done, outcome.failed, outcome.complete()), (4, 4, false));
    let failed = Store::read(&path).unwrap().records(None, None).unwrap();
    let failed: Vec<_> = failed.iter().filter(|record| record.error.is_some()).collect();
    assert_eq!(failed.len(), 4);
    assert!(failed.iter().all(|r| r.iops.is_none() && r.watts.is_none()), "absent, not zero");
    assert_eq!(failed[0].error.as_deref(), Some("the target said no"));
    script.lock().unwrap().failing_level = None;
    let outcome = go(&matrix(), &path, &script).unwrap();
    assert_eq!((outcome.found, outcome.done, outcome.complete()), (4, 4, true));
    assert_eq!(Store::read(&path).unwrap().contents().unwrap()[0].failed, 0);
}

#[test]
fn a_target_that_only_fails_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let script = Shared::default();
    let mut matrix = matrix();
    matrix.levels = vec![100.0];
    matrix.repetitions = 50;
    script.lock().unwrap().failing_level = Some(100.0);
    let outcome = go(&matrix, &dir.path().join("a.sqlite"), &script).unwrap();
    assert_eq!(outcome.failed, u64::from(FAILURES_MAX));
    let why = "t: the replay at 100 %, which the load is measured against, failed: the target said no";
    assert_eq!(outcome.lost, [why]);
    script.lock().unwrap().unreachable = true;
    let outcome = go(&matrix, &dir.path().join("b.sqlite"), &script).unwrap();
    assert_eq!((outcome.done, outcome.failed), (0, 0));
    assert_eq!(outcome.lost, ["t: no route to host"]);
}

#[test]
fn targets_with_machines_of_their_own_run_together_and_those_that_share_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut matrix = matrix();
    let target = |name: &str, generator: &str, meter: &str| Target {
        name: name.into(),
        generator: Some(generator.into()),
        meters: vec![meter.into()],
        meter_agent: Some("pdu".into()),
        ..matrix.targets[0].clone()
    };
    let targets = vec![target("a", "g1", "1"), target("b", "g2", "2"), target("c", "g3", "1")];
    matrix.targets = targets;
    assert_eq!(lanes(&matrix), [vec![0, 2], vec![1]]);
    // `b` never ends before `a` has begun, and vice versa: only running in parallel avoids a deadlock.
    let gate = std::sync::Barrier::new(2);
    let orders = Shared::default();
    let open = |target: &Target| {
        if target.name != "c" {
            gate.wait();
        }
        Ok(Bench { generator: Box::new(Pretend(orders.clone())), analyzer: None })
    };
    let mut seen = BTreeMap::new();
    let store = Store::open(&dir.path().join("r.sqlite")).unwrap();
    let outcome = run(&matrix, store, &open, &mut |p| *seen.entry(p.done).or_insert(0) += 1).unwrap();
    assert_eq!((outcome.total, outcome.done), (24, 24));
    assert!(seen.keys().all(|&done| done < 24), "progress is reported before a run");
}

#[test]
fn other_settings_under_the_same_name_are_refused_and_new_rows_of_the_matrix_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sqlite");
    go(&matrix(), &path, &Shared::default()).unwrap();
    let mut longer = matrix();
    longer.settings.run_seconds = 3.0;
    let error = go(&longer, &path, &Shared::default()).unwrap_err();
    assert!(matches!(&error, StoreError::Changed { subject, .. } if subject == "settings"), "{error}");
    assert!(error.to_string().contains("\"run_seconds\":3.0"));
    let mut elsewhere = matrix();
    elsewhere.targets[0].at = "file:y".into();
    assert!(go(&elsewhere, &path, &Shared::default()).unwrap_err().to_string().contains("target t"));
    let mut more = matrix();
    more.levels.push(50.0);
    more.workloads.push(Workload::Synthetic { size: 512, random: 0, reads: 0 });
    let outcome = go(&more, &path, &Shared::default()).unwrap();
    assert_eq!((outcome.found, outcome.done), (8, 10));
}
