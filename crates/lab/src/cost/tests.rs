use super::machine::{CpuTimes, OwnTimes};
use super::*;

/// Ten seconds of two cores of four at 2 GHz: 3 s user, 5 s system, 8 s idle, 4 s waiting for 1,000,000 sectors.
fn measured() -> Measured {
    let seconds = Duration::from_secs;
    Measured {
        wall: seconds(10),
        used: CpuTimes {
            user: seconds(3),
            system: seconds(5),
            idle: seconds(8),
            iowait: seconds(4),
            stolen: Duration::ZERO,
        },
        others: CpuTimes { system: seconds(1), ..CpuTimes::default() },
        cycles: Err("none here".into()),
        frequency: Hertz(2e9),
        frequency_source: FrequencySource::Cpufreq,
        sectors: BTreeMap::from([("sda".into(), 1_000_000)]),
        own_io: Some(ProcessIo { calls: 600 << 20, storage: 256_000_000 }),
        own: OwnTimes { user: seconds(2), system: seconds(3) },
        own_source: OwnSource::Cgroup,
        notes: Vec::new(),
    }
}

fn report(label: &str, measured: &Measured) -> CostReport {
    let options = CostOptions::default();
    let run = judge(measured, &options, 2, 4).unwrap();
    let mut notes = Notes::default();
    notes.of_run(measured, &run);
    CostReport {
        version: REPORT_VERSION,
        label: label.into(),
        command: vec!["fio".into(), "job".into()],
        cpu: None,
        kernel: Some("6.1".into()),
        machine_cores: 4,
        peak_watts: options.peak.0,
        idle_fractions: options.idle_fractions.clone(),
        points: vec![Point { cores: 2, runs: vec![run] }],
        projection: None,
        notes: notes.0,
    }
}

#[test]
fn a_run_is_judged_by_the_formula() {
    let run = judge(&measured(), &CostOptions::default(), 2, 4).unwrap();
    let cpio = run.machine.cpio;
    assert_eq!((cpio.user.0, cpio.system.0, cpio.total.0), (6000.0, 10_000.0, 16_000.0));
    assert_eq!((cpio.idle.unwrap().0, cpio.iowait.unwrap().0), (16_000.0, 8000.0));
    // Two of four cores draw 200 W: 200 · (16,000 + 0.7 · 24,000) / (2 · 2e9)
    let eio = run.machine.modelled_energy_per_io[0];
    assert!((eio.total.0 - 200.0 * 32_800.0 / 4e9).abs() < 1e-15, "{eio:?}");
    assert!((run.machine.modelled_energy_per_io[1].total.0 - 200.0 * 16_000.0 / 4e9).abs() < 1e-15);
    // The command requested from storage half of what the disks moved, and used half of the time.
    let own = run.command.unwrap();
    assert_eq!((own.ios, own.cpio.total.0, own.cpio.idle), (500_000, 20_000.0, None));
    assert_eq!(run.elsewhere_seconds, 1.0);
}

#[test]
fn counted_cycles_go_before_time_by_frequency() {
    let counted = Measured { cycles: Ok((Cycles(1e9), Cycles(4e9))), ..measured() };
    let run = judge(&counted, &CostOptions::default(), 2, 4).unwrap();
    assert_eq!((run.machine.cpio.user.0, run.machine.cpio.system.0), (1000.0, 4000.0));
    assert!(run.cycles_counted);
}

#[test]
fn io_is_what_the_disks_moved_or_what_the_command_did_where_they_saw_nothing() {
    let io = |calls, storage| ProcessIo { calls, storage };
    assert_eq!(seen_by(2000, &io(1 << 20, 1 << 20)), IoSource::Devices);
    assert_eq!(seen_by(2000, &io(1 << 20, 0)), IoSource::Calls, "memory, or the page cache");
    assert_eq!(seen_by(3, &io(1 << 20, 1 << 20)), IoSource::Storage, "a network file system");
    let tmpfs = Measured { own_io: Some(io(5120, 0)), ..measured() };
    let run = judge(&tmpfs, &CostOptions::default(), 2, 4).unwrap();
    assert_eq!((run.machine.ios, run.machine.io_source), (10, IoSource::Calls));
    let still = Measured { own_io: Some(io(0, 0)), sectors: BTreeMap::new(), ..measured() };
    let error = judge(&still, &CostOptions::default(), 2, 4).unwrap_err();
    assert!(matches!(error, CostError::NoIo(_)), "{error}");
    let chosen = CostOptions { io: Some(IoSource::Calls), ..CostOptions::default() };
    assert_eq!(judge(&measured(), &chosen, 2, 4).unwrap().machine.ios, (600 << 20) / 512);
}

#[test]
fn the_report_says_what_to_beware_of() {
    let notes = report("a", &measured()).notes.join("\n");
    assert!(notes.contains("/proc/stat") && notes.contains("none here"), "{notes}");
    assert!(notes.contains("a fifth of the busy time"), "{notes}");
    let mut short = measured();
    short.used.stolen = Duration::from_secs(1);
    (short.used.user, short.used.system) = (Duration::from_millis(10), Duration::ZERO);
    short.others = CpuTimes::default();
    let notes = report("a", &short).notes.join("\n");
    assert!(notes.contains("less than a second") && notes.contains("steal"), "{notes}");
}

#[test]
fn a_report_survives_its_file_and_a_strange_one_is_refused() {
    let a = report("a", &measured());
    let text = serde_json::to_string(&a).unwrap();
    let back: CostReport = serde_json::from_str(&text).unwrap();
    assert_eq!(back.check().unwrap(), a);
    assert!(matches!(
        CostReport { version: 9, ..a.clone() }.check(),
        Err(CostError::Version { found: 9, .. })
    ));
    assert!(matches!(CostReport { points: vec![], ..a.clone() }.check(), Err(CostError::Empty)));
    let page = a.to_string();
    for part in
        ["16,000", "6,000", "1,640 J", "sectors of the disks (/proc/diskstats) of sda", "cgroup", "2.00 GHz"]
    {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
}

#[test]
fn two_reports_are_compared_layer_by_layer() {
    let a = report("host", &measured());
    let slower = Measured {
        used: CpuTimes { system: Duration::from_secs(10), ..measured().used },
        frequency_source: FrequencySource::Given,
        ..measured()
    };
    let b = report("guest", &slower);
    let found = Comparison::new(&a, &b).unwrap();
    let ratio = |what: &str| found.differences.iter().find(|row| row.what == what).unwrap().ratio.unwrap();
    assert_eq!((ratio("system"), ratio("user")), (2.0, 1.0));
    assert!((ratio("cpio (user + system)") - 26.0 / 16.0).abs() < 1e-12);
    assert!((ratio("emio, with idle (IP 0.7)") - 42.8 / 32.8).abs() < 1e-12);
    assert_eq!(found.notes, ["the frequencies come from different sources"]);
    assert!(found.to_string().contains("2.00"));
}

#[test]
fn a_real_command_has_a_cost() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let of = format!("of={}", file.path().display());
    let command: Vec<String> =
        ["dd", "if=/dev/zero", &of, "bs=1M", "count=8", "conv=fsync"].map(str::to_owned).to_vec();
    let options =
        CostOptions { cores: vec![1], runs: 2, frequency: Some(Hertz(1e9)), ..CostOptions::default() };
    let report = measure(&options, &command, &mut |_| {}).unwrap();
    assert_eq!((report.points.len(), report.points[0].runs.len()), (1, 2));
    for run in &report.points[0].runs {
        assert!(run.machine.ios >= (8 << 20) / 512, "{run:?}");
        assert!(run.command.as_ref().is_some_and(|view| view.ios >= (8 << 20) / 512), "{run:?}");
        let cores = run.machine.user_seconds
            + run.machine.system_seconds
            + run.machine.idle_seconds.unwrap()
            + run.machine.iowait_seconds.unwrap()
            + run.stolen_seconds;
        // One core, to within the clock ticks at both ends, and the time it loses.
        assert!(cores <= run.wall_seconds * 1.1 + 0.1, "{cores} core-seconds in {} s", run.wall_seconds);
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let run = |words: &[&str], cores: Vec<usize>| {
        let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        measure(&CostOptions { cores, ..CostOptions::default() }, &command, &mut |_| {}).unwrap_err()
    };
    assert!(matches!(run(&[], vec![]), CostError::NoCommand));
    assert!(matches!(run(&["/no/such/program"], vec![]), CostError::Start { .. }));
    assert!(matches!(run(&["false"], vec![]), CostError::Failed { .. }));
    assert!(matches!(run(&["true"], vec![0]), CostError::Cores { .. }));
    assert!(matches!(run(&["true"], vec![100_000]), CostError::Cores { .. }));
}
