//! Accuracy of the load control on real traces, measured as in TRACER's Tables IV and V. The traces are not part of the
//! project; if they are absent the test says so. `src/filter.rs` tests the same on synthetic traces.

use ebb_trace::{
    Accuracy, BalancedFilter, InMemory, Mode, Original, Pace, Request, Synthetic, TraceReader, TracerFilter,
    open,
};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const TRACES: [&str; 8] = [
    "hplajw.1week.srt",
    "hp2003.hour.srt.bz2",
    "Financial1.first10000.spc",
    "WebSearch1.first60s.spc",
    "msr.rw_20_80.csv",
    "msr.rw_40_60.csv",
    "ms-dtrs.ssdsim.xz",
    "cloudphysics.vscsi",
];

fn all(reader: impl TraceReader) -> Vec<Request> {
    reader.map(|request| request.expect("a good trace")).collect()
}

fn balanced(whole: &[Request], original: &Original, share: f64) -> Accuracy {
    let filter = BalancedFilter::new(InMemory::new(whole, &[]), share).expect("a share");
    original.compare(share, filter.map(|request| request.expect("in memory")))
}

fn tracer(whole: &[Request], original: &Original, tenths: u8) -> Accuracy {
    let filter = TracerFilter::new(InMemory::new(whole, &[]), tenths, Duration::ZERO).expect("a level");
    original.compare(f64::from(tenths) / 10.0, filter.map(|request| request.expect("in memory")))
}

fn assert_within(found: &Accuracy, most: f64, what: &str) {
    for accuracy in [found.iops, found.bytes] {
        let error = (accuracy.expect("requests that move bytes") - 1.0).abs();
        assert!(error <= most, "{what}: {found:?}");
    }
}

#[test]
fn the_balanced_filter_is_within_one_percent_on_every_real_trace() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces/block");
    if !directory.is_dir() {
        ebb_testing::skip("no real traces at ../shared/traces/block");
        return;
    }
    for name in TRACES {
        let file = File::open(directory.join(name)).expect("a listed trace");
        let whole = all(open(name, file).expect("a known format"));
        let original = Original::of(&whole);
        for percent in [10, 13, 20, 30, 37, 40, 50, 60, 61, 70, 80, 83, 90, 100] {
            let found = balanced(&whole, &original, f64::from(percent) / 100.0);
            assert_within(&found, 0.01, name);
            assert!(found.reads.expect("requests").abs() <= 0.01, "{name}: {found:?}");
        }
    }
}

/// Requests of a bunch: some arrive alone, some with up to eleven others, as at a peak.
fn bunch(number: usize) -> usize {
    1 + number * 7 % 12
}

/// Modes whose requests arrive in uneven bunches: the balanced filter is within a percent, and TRACER's keeps exactly
/// the bunches of the paper's figure, counted here in another way (k tenths of ten bunches: the last one of every tenth
/// kth), whatever that costs in accuracy.
#[test]
fn both_filters_are_as_accurate_as_promised_on_the_125_modes() {
    for mode in Mode::all() {
        let mut whole =
            all(Synthetic::new(mode, Pace::PerSecond(500.0), 1 << 30, 2_003, 1).expect("a good mode"));
        let (mut number, mut left) = (0, bunch(0));
        let mut bunches = vec![0];
        for request in &mut whole {
            if left == 0 {
                number += 1;
                left = bunch(number);
                bunches.push(0);
            }
            left -= 1;
            bunches[number] += 1;
            request.at = Duration::from_millis(2 * number as u64);
        }
        let original = Original::of(&whole);
        for tenths in 1..=10u8 {
            let name = format!("{mode:?} at {tenths} tenths");
            let kept = |at: &usize| (1..=tenths).any(|j| (10 * j).div_ceil(tenths) == (at % 10) as u8 + 1);
            let count: u32 = (0..bunches.len()).filter(kept).map(|at| bunches[at]).sum();
            let right = f64::from(count) / 2_003.0 / (f64::from(tenths) / 10.0);
            let found = tracer(&whole, &original, tenths).iops.expect("requests");
            assert!((found - right).abs() < 1e-9, "{name}: {found}, counted {right}");
            assert_within(&balanced(&whole, &original, f64::from(tenths) / 10.0), 0.01, &name);
        }
    }
}
