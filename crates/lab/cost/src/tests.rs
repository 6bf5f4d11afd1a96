use super::machine::{CpuTimes, OwnTimes};
use super::run::Own;
use super::*;

/// Ten seconds of two cores of four at 2 GHz: 3 s user, 5 s system, 8 s idle, 4 s waiting for 1,000,000 sectors.
pub(super) fn measured() -> Measured {
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
        own: Own {
            io: Some(ProcessIo { calls: 600 << 20, storage: 256_000_000 }),
            times: OwnTimes { user: seconds(2), system: seconds(3) },
            source: OwnSource::Cgroup,
            cycles: None,
        },
        notes: Vec::new(),
    }
}

pub(super) fn report(label: &str, measured: &Measured) -> CostReport {
    let options = CostOptions::default();
    let run = judge(measured, &options, 2, 4).unwrap();
    let mut notes = Notes::default();
    notes.of_run(measured, &run);
    CostReport {
        version: REPORT_VERSION,
        label: label.into(),
        command: vec!["fio".into(), "job".into()],
        window_seconds: None,
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
    let tmpfs = Measured { own: Own { io: Some(io(5120, 0)), ..measured().own }, ..measured() };
    let run = judge(&tmpfs, &CostOptions::default(), 2, 4).unwrap();
    assert_eq!((run.machine.ios, run.machine.io_source), (10, IoSource::Calls));
    let own = Own { io: Some(io(0, 0)), ..measured().own };
    let still = Measured { own, sectors: BTreeMap::new(), ..measured() };
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

/// A shell that writes without end, and is killed when this value is dropped, in its directory.
struct Writer(std::process::Child, tempfile::TempDir);

impl Writer {
    fn start() -> Writer {
        let dir = tempfile::TempDir::new().unwrap();
        let script = "while :; do printf %10000s x >file; done";
        let mut command = std::process::Command::new("sh");
        let child = command.args(["-c", script]).current_dir(dir.path()).spawn().unwrap();
        // Only then has it its own command line.
        while !dir.path().join("file").exists() {
            std::thread::yield_now();
        }
        Writer(child, dir)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn window(millis: u64) -> CostOptions {
    CostOptions {
        window: Some(Duration::from_millis(millis)),
        io: Some(IoSource::Calls),
        frequency: Some(Hertz(1e9)),
        ..CostOptions::default()
    }
}

#[test]
fn a_running_process_is_measured_for_a_window_and_goes_on() {
    let mut writer = Writer::start();
    let service = Service::Process(writer.0.id());
    let report = attach(&window(500), &service, &mut |_| {}).unwrap();
    assert_eq!((report.window_seconds, report.points[0].runs.len()), (Some(0.5), 1));
    assert_eq!(report.command[..2], ["sh", "-c"]);
    let run = &report.points[0].runs[0];
    assert!(run.wall_seconds >= 0.5 && run.command_source == OwnSource::Processes, "{run:?}");
    let own = run.command.as_ref().unwrap();
    assert!(own.ios >= 10_000 / 512 && own.ios == run.machine.ios, "{run:?}");
    assert!(own.cpio.idle.is_none() && run.machine.cpio.idle.is_some());
    assert_eq!(writer.0.try_wait().unwrap(), None, "it was only read");
    assert!(writer.1.path().join("file").exists());
    let said = report.to_string();
    assert!(said.contains("a window of 0.5 s") && said.contains("/proc/PID/stat"), "{said}");
}

#[test]
fn a_command_that_does_not_end_is_stopped_with_all_that_it_started() {
    let dir = tempfile::TempDir::new().unwrap();
    let script = "sh -c 'echo $$ >pid; while :; do printf %10000s x >file; done' & wait";
    let command = ["env", "-C", dir.path().to_str().unwrap(), "sh", "-c", script].map(str::to_owned);
    let report = measure(&window(1000), &command, &mut |_| {}).unwrap();
    assert!(report.points[0].runs[0].command.as_ref().unwrap().ios > 0, "{report:?}");
    let child: u32 = std::fs::read_to_string(dir.path().join("pid")).unwrap().trim().parse().unwrap();
    let start = std::time::Instant::now();
    // Its parent may now wait for it at any time.
    while Machine::this().stat_of(child).is_some_and(|stat| stat.state != 'Z') {
        assert!(start.elapsed() < Duration::from_secs(60), "it runs on");
        std::thread::yield_now();
    }
}

#[test]
fn a_window_that_shows_nothing_is_refused() {
    let refused = |options: &CostOptions, service| attach(options, &service, &mut |_| {}).unwrap_err();
    let nobody = refused(&window(10), Service::Process(u32::MAX >> 1));
    assert!(matches!(nobody, CostError::NoProcess(_)), "{nobody}");
    let none = refused(&window(10), Service::Cgroup("no/such/group".into()));
    assert!(matches!(none, CostError::NoGroup { .. } | CostError::NoGroups), "{none}");
    let mut still = std::process::Command::new("tail").args(["-f", "/dev/null"]).spawn().unwrap();
    // It has read what it needs for its start when it waits.
    while Machine::this().stat_of(still.id()).unwrap().state != 'S'
        || !Machine::this().command_of(still.id())[0].ends_with("tail")
    {
        std::thread::yield_now();
    }
    let error = refused(&window(10), Service::Process(still.id()));
    assert!(matches!(error, CostError::NoIo(_)), "{error}");
    let never = refused(&CostOptions { window: None, ..window(1) }, Service::Process(still.id()));
    assert!(matches!(never, CostError::NoWindow), "{never}");
    let empty = refused(&window(0), Service::Process(still.id()));
    assert!(matches!(empty, CostError::NoWindow), "{empty}");
    still.kill().unwrap();
    still.wait().unwrap();
}

#[test]
fn what_ends_within_the_window_is_told_with_its_time() {
    let mut short = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
    let error = attach(&window(60_000), &Service::Process(short.id()), &mut |_| {}).unwrap_err();
    short.wait().unwrap();
    // It is a zombie by then: on a busy machine perhaps before the window begins.
    assert!(matches!(error, CostError::Ended { command: false, .. }), "{error}");
    let run = |words: &[&str]| {
        let command: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        measure(&window(60_000), &command, &mut |_| {}).unwrap_err()
    };
    let ended = run(&["true"]);
    assert!(matches!(ended, CostError::Ended { command: true, .. }), "{ended}");
    assert!(ended.to_string().contains("without --for"), "{ended}");
    assert!(matches!(run(&["false"]), CostError::Failed { .. }));
}

#[test]
fn counted_cycles_of_a_service_are_its_own() {
    let own = Own { cycles: Some((Cycles(1e9), Cycles(3e9))), ..measured().own };
    let counted = Measured { own, ..measured() };
    let run = judge(&counted, &CostOptions::default(), 2, 4).unwrap();
    let own = run.command.unwrap();
    // 256,000,000 bytes are 500,000 I/Os.
    assert_eq!((own.cpio.user.0, own.cpio.system.0), (2000.0, 6000.0));
    assert!(run.command_cycles_counted);
    // Where the kernel hides what a service moved, the disks count.
    let hidden = Measured { own: Own { io: None, ..measured().own }, ..measured() };
    let run = judge(&hidden, &CostOptions::default(), 2, 4).unwrap();
    assert_eq!((run.machine.io_source, run.machine.ios, run.command), (IoSource::Devices, 1_000_000, None));
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
