use super::*;
use ebb_trace::{Kind, Mode, Request, Synthetic, TraceError};
use ebb_types::Bytes;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

pub(super) fn request(micros: u64, offset: u64, len: u32, kind: Kind) -> Request {
    Request { at: Duration::from_micros(micros), device: 0, offset, len, kind }
}

pub(super) type Requests = Vec<Result<Request, TraceError>>;

/// Reads and writes in turn, every `gap` microseconds.
pub(super) fn ticks(count: u64, gap: u64, len: u32) -> Requests {
    let kind = |n| if n % 2 == 0 { Kind::Read } else { Kind::Write };
    (0..count).map(|n| Ok(request(n * gap, n * 7919 * u64::from(len), len, kind(n)))).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn open(path: &Path, size: u64) -> Target {
    let options = OpenOptions { size: Some(Bytes(size)), overwrite: true, ..OpenOptions::default() };
    Target::open(&TargetSpec::File(path.to_owned()), &options, &mut |_| ()).await.unwrap()
}

fn drive_file(size: u64, options: &DriveOptions, requests: Requests) -> Result<DriveReport, DriveError> {
    let dir = tempfile::tempdir().unwrap();
    runtime().block_on(async {
        let target = open(&dir.path().join("target"), size).await;
        drive(options, requests.into_iter(), &target, &mut |_| ()).await
    })
}

#[test]
fn requests_are_issued_at_their_times_and_counted() {
    let report = drive_file(1 << 20, &DriveOptions::default(), ticks(1000, 100, 4096)).unwrap();
    assert!(report.passed(), "{report}");
    assert_eq!((report.requests, report.reads.requests, report.writes.requests), (1000, 500, 500));
    assert_eq!((report.reads.bytes, report.writes.bytes), (500 * 4096, 500 * 4096));
    // 999 gaps of 100 µs: never less; how much more depends on the machine.
    assert!(report.wall_seconds >= 0.0999, "{report}");
    assert_eq!(report.lateness.unwrap().count, 1000);
    assert_eq!(report.placed.wrapped, 999, "all but the first");
    assert!(report.reads.service.unwrap().p50_millis > 0.0 && report.reads.queue.unwrap().count == 500);
    let seconds: u64 = report.seconds.iter().map(|second| second.reads + second.writes).sum();
    assert_eq!(seconds, 1000);
    let fast = DriveOptions { pacing: Pacing::Times { speed: 10.0 }, ..DriveOptions::default() };
    let faster = drive_file(1 << 20, &fast, ticks(10_000, 100, 4096)).unwrap();
    assert!(faster.wall_seconds >= 0.0999, "{faster}");
}

/// Three requests, and a fourth in an hour, for which it does not wait.
pub(super) async fn halted(target: &Target) -> DriveReport {
    let mut requests = ticks(3, 0, 4096);
    requests.push(Ok(request(3_600_000_000, 0, 4096, Kind::Read)));
    let options = DriveOptions::default();
    let halt_after_three = &mut |progress| {
        if let DriveProgress::Replaying { issued: 3, in_flight: 0, .. } = progress {
            options.halt.set();
        }
    };
    drive(&options, requests.into_iter(), target, halt_after_three).await.unwrap()
}

#[test]
fn a_replay_that_is_halted_reports_what_was_measured_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let report = runtime().block_on(async { halted(&open(&dir.path().join("target"), 1 << 20).await).await });
    assert_eq!((report.requests, report.failed), (3, 0), "{report}");
    assert_eq!(report.stopped_at_seconds, Some(report.wall_seconds));
    assert!(report.to_string().contains("stopped at ") && report.page().render().contains("stopped at "));
    let whole = drive_file(1 << 20, &DriveOptions::default(), ticks(3, 0, 4096)).unwrap();
    assert!(whole.stopped_at_seconds.is_none() && !whole.to_string().contains("stopped"), "{whole}");
}

#[test]
fn what_a_peak_run_issues_is_collected_with_its_bunches() {
    let peak = DriveOptions { pacing: Pacing::Peak { depth: 4 }, collect: true, ..DriveOptions::default() };
    let report = drive_file(1 << 20, &peak, ticks(1000, 0, 4096)).unwrap();
    assert_eq!(report.issued.len(), 1000);
    let trace: Vec<Request> = ticks(1000, 0, 4096).into_iter().map(Result::unwrap).collect();
    let kinds = |requests: &[Request]| requests.iter().map(|r| (r.kind, r.len)).collect::<Vec<_>>();
    assert_eq!(kinds(&report.issued), kinds(&trace));
    let bunches: Vec<usize> = report.issued.chunk_by(|a, b| a.at == b.at).map(<[Request]>::len).collect();
    assert_eq!(bunches[0], 4, "nothing is answered before the queue is full: {bunches:?}");
    assert!(bunches.iter().all(|&len| len <= 4), "no bunch is deeper than the queue: {bunches:?}");
    assert!(report.issued.is_sorted_by_key(|r| r.at));
    let not = drive_file(1 << 20, &DriveOptions::default(), ticks(10, 0, 4096)).unwrap();
    assert!(not.issued.is_empty(), "only if it was asked for");
}

#[test]
fn writes_change_the_file_where_they_should_and_only_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    runtime().block_on(async {
        let target = open(&path, 64 << 10).await;
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 64 << 10);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 64 << 10], 0).unwrap();
        file.sync_all().unwrap();
        // The last one ends past the end and wraps to (64 KiB + 12 KiB) mod 64 KiB.
        let at = [(8192, 4096), (20480, 8192), ((64 + 12) << 10, 4096)];
        let writes: Requests = at.iter().map(|(at, len)| Ok(request(0, *at, *len, Kind::Write))).collect();
        let report = drive(&DriveOptions::default(), writes.into_iter(), &target, &mut |_| ()).await.unwrap();
        assert_eq!((report.writes.bytes, report.placed.wrapped), (16384, 1));
    });
    let bytes = std::fs::read(&path).unwrap();
    for (index, block) in bytes.chunks(4096).enumerate() {
        let written = [2, 3, 5, 6].contains(&index);
        assert_eq!(block.iter().any(|byte| *byte != 0), written, "block {index}");
    }
}

#[test]
fn a_peak_keeps_its_depth_in_flight_until_its_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mode = Mode { size: 4096, random: 100, reads: 75 };
    let report = runtime().block_on(async {
        let target = open(&dir.path().join("target"), 1 << 20).await;
        let requests = Synthetic::new(mode, ebb_trace::Pace::Peak, 1 << 20, u64::MAX, 1).unwrap();
        let options = DriveOptions {
            pacing: Pacing::Peak { depth: 8 },
            warmup: Duration::from_millis(50),
            duration: Some(Duration::from_millis(200)),
            ..DriveOptions::default()
        };
        drive(&options, requests, &target, &mut |_| ()).await.unwrap()
    });
    assert!(report.passed() && report.most_in_flight == 8, "{report}");
    assert!(report.wall_seconds >= 0.2, "{report}");
    assert!(report.lateness.is_none() && report.warmup_requests > 0);
    let share = report.reads.requests as f64 / report.requests as f64;
    assert!(report.requests > 100 && (share - 0.75).abs() < 0.05, "{report}");
}

#[test]
fn a_duration_is_kept_to_its_end() {
    let options = DriveOptions { duration: Some(Duration::from_millis(600)), ..DriveOptions::default() };
    let requests = vec![Ok(request(0, 0, 4096, Kind::Read)), Ok(request(3_600_000_000, 0, 4096, Kind::Read))];
    let report = drive_file(1 << 20, &options, requests).unwrap();
    assert_eq!(report.requests, 1, "the second is an hour away");
    assert!(report.wall_seconds >= 0.6, "{report}");
}

#[test]
fn long_requests_and_many_at_a_time_are_all_answered() {
    let mut requests = ticks(300, 0, 4096);
    requests.extend(ticks(200, 0, 256 << 10));
    requests.push(Ok(request(0, 4096, 9 << 20, Kind::Read)));
    requests.push(Ok(request(0, 0, 9 << 20, Kind::Write)));
    requests.push(Ok(request(0, 0, 0, Kind::Write)));
    let narrow = DriveOptions { in_flight: 20, ..DriveOptions::default() };
    let report = drive_file(10 << 20, &narrow, requests).unwrap();
    assert!(report.passed(), "{report}");
    assert_eq!(report.requests, 500 + 2 * 3);
    assert_eq!((report.placed.split, report.placed.empty, report.most_in_flight), (2, 1, 20));
    assert!(report.reads.queue.unwrap().max_millis > 0.0, "some had to wait");
}

#[test]
fn what_the_target_cannot_do_is_counted_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target");
    let report = runtime().block_on(async {
        let target = open(&path, 1 << 20).await;
        // The file loses its second half unnoticed by the replay.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
        let reads: Requests = (0..256).map(|n| Ok(request(0, n * 4096, 4096, Kind::Read))).collect();
        drive(&DriveOptions::default(), reads.into_iter(), &target, &mut |_| ()).await.unwrap()
    });
    assert!(!report.passed());
    assert_eq!((report.requests, report.failed, report.reads.requests), (256, 128, 128));
    assert_eq!(report.errors.len(), 10);
    assert!(report.to_string().contains("failed: moved only 0 of 4096 bytes"), "{report}");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let with = |change: fn(&mut DriveOptions)| {
        let mut options = DriveOptions::default();
        change(&mut options);
        drive_file(1 << 20, &options, ticks(300, 0, 4096))
    };
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = DriveOptions { pacing: Pacing::Times { speed }, ..DriveOptions::default() };
        assert!(matches!(drive_file(1 << 20, &options, ticks(1, 0, 1)), Err(DriveError::Speed(_))));
    }
    assert!(matches!(with(|o| o.in_flight = 0), Err(DriveError::InFlight(0))));
    assert!(matches!(with(|o| o.pacing = Pacing::Peak { depth: 1 << 20 }), Err(DriveError::InFlight(_))));
    assert!(matches!(with(|o| o.past_end = PastEnd::Refuse), Err(DriveError::PastEnd { number: 2, .. })));
    let nothing = vec![Ok(request(0, 0, 0, Kind::Read))];
    assert!(matches!(drive_file(1 << 20, &DriveOptions::default(), nothing), Err(DriveError::Empty)));
    let broken = vec![Ok(request(0, 0, 512, Kind::Read)), Err(TraceError::NoInput)];
    assert!(matches!(drive_file(1 << 20, &DriveOptions::default(), broken), Err(DriveError::Trace(_))));
}

#[test]
fn dropping_a_replay_stops_it() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let begun = Instant::now();
    runtime.block_on(async {
        let target = open(&dir.path().join("target"), 1 << 20).await;
        let hours = vec![Ok(request(0, 0, 512, Kind::Read)), Ok(request(3_600_000_000, 0, 512, Kind::Read))];
        let options = DriveOptions::default();
        let mut nothing = |_| ();
        let replay = drive(&options, hours.into_iter(), &target, &mut nothing);
        assert!(tokio::time::timeout(Duration::from_millis(20), replay).await.is_err());
    });
    // Waits for the engine's thread, which must not wait for the second request.
    drop(runtime);
    assert!(begun.elapsed() < Duration::from_secs(1800), "the replay ran to its end");
}

#[test]
fn files_are_not_destroyed_unasked_and_new_ones_have_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    runtime().block_on(async {
        let spec = TargetSpec::File(path.clone());
        let refused = async |size: Option<u64>| {
            let options = OpenOptions { size: size.map(Bytes), ..OpenOptions::default() };
            Target::open(&spec, &options, &mut |_| ()).await.map(drop).unwrap_err().to_string()
        };
        assert!(refused(None).await.contains("--size"));
        assert!(!path.exists());
        std::fs::write(&path, b"precious").unwrap();
        assert!(refused(Some(1 << 20)).await.contains("--overwrite"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(
            Target::open(&TargetSpec::File(dir.path().into()), &OpenOptions::default(), &mut |_| ())
                .await
                .is_err()
        );
        let device = TargetSpec::Device(path.clone());
        let error = Target::open(&device, &OpenOptions::default(), &mut |_| ()).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("not a block device"), "{error}");
        open(&path, (3 << 20) + 100).await;
    });
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() >= 3 << 20);
    assert!(bytes.chunks_exact(4096).all(|block| block.iter().filter(|byte| **byte == 0).count() < 100));
}

#[test]
fn what_the_trace_has_beside_requests_is_counted_and_said() {
    let text = &b"fio version 2 iolog\n/x write 0 4096\n/x trim 4096 4096\n/x what 0 0\n/x read 0 4096\n/x sync 0 0\n"[..];
    let options = ebb_trace::Options { skip_bad: 1, ..ebb_trace::Options::default() };
    let dir = tempfile::tempdir().unwrap();
    let report = runtime().block_on(async {
        let target = open(&dir.path().join("target"), 1 << 20).await;
        let input = ebb_trace::Input { name: "x.log".into(), read: Box::new(text) };
        let reader = ebb_trace::open_with(vec![input], &options).unwrap();
        drive(&DriveOptions::default(), reader, &target, &mut |_| ()).await.unwrap()
    });
    assert_eq!((report.requests, report.placed.left_out, report.placed.skipped), (2, 2, 1));
    let shown = report.to_string();
    assert!(shown.contains("requests without data (trim, sync), left out: 2\n"), "{shown}");
    assert!(shown.contains("requests that are bad, skipped: 1\n"), "{shown}");
}
