//! Alone in its process: the CPU time of a replay is that of the process.

use ebb_replay::drive::{DriveOptions, OpenOptions, Target, TargetSpec, drive};
use ebb_trace::{Kind, Request};
use ebb_types::Bytes;
use std::time::Duration;

#[test]
fn an_idle_gap_costs_no_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let spec = TargetSpec::File(dir.path().join("target"));
    let options = OpenOptions { size: Some(Bytes::mib(1)), ..OpenOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let target = Target::open(&spec, &options, &mut |_| ()).await.unwrap();
        let at = |millis| {
            Ok(Request {
                at: Duration::from_millis(millis),
                device: 0,
                offset: 0,
                len: 4096,
                kind: Kind::Read,
            })
        };
        // Measured from the end of the warm-up: starting has a cost.
        let options = DriveOptions { warmup: Duration::from_millis(200), ..DriveOptions::default() };
        drive(&options, Vec::from([0, 210, 2210].map(at)).into_iter(), &target, &mut |_| ()).await.unwrap()
    });
    assert_eq!((report.requests, report.warmup_requests), (2, 1), "{report}");
    assert!(report.wall_seconds >= 2.0, "{report}");
    // Polling would use all of the two seconds; the limit leaves room for a machine with busy caches.
    let cpu = report.cpu.user_seconds + report.cpu.system_seconds;
    assert!(cpu < 0.2, "two seconds of nothing took {cpu} s of CPU");
}
