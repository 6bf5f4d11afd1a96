//! Accuracy of the load control on real traces, measured as in TRACER's Tables IV and V. The traces are not part of the
//! project; where they are absent the test says so. `src/filter.rs` tests the same on made traces.

use ebb_trace::{BalancedFilter, Request, TraceReader, TracerFilter, open};
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

struct Figures {
    requests: f64,
    bytes: f64,
    reads: f64,
    /// Inter-arrival times in units of their mean, sorted.
    gaps: Vec<f64>,
}

fn figures(requests: &[Request]) -> Figures {
    let count = requests.len() as f64;
    let mut gaps: Vec<f64> =
        requests.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    gaps.iter_mut().for_each(|gap| *gap /= mean);
    gaps.sort_by(f64::total_cmp);
    Figures {
        requests: count,
        bytes: requests.iter().map(|r| f64::from(r.len)).sum(),
        reads: requests.iter().filter(|r| r.kind == ebb_trace::Kind::Read).count() as f64 / count,
        gaps,
    }
}

/// Kolmogorov-Smirnov distance of two sorted samples.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let (mut i, mut j, mut most) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        while i < a.len() && a[i] <= value {
            i += 1;
        }
        while j < b.len() && b[j] <= value {
            j += 1;
        }
        most = most.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    most
}

#[test]
fn the_balanced_filter_is_within_one_percent_on_every_real_trace() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/block");
    if !directory.is_dir() {
        println!("skipped: no real traces at ../shared/traces/block");
        return;
    }
    println!("trace level | TRACER: IOPS % bytes % reads KS | balanced: IOPS % bytes % reads KS");
    for name in TRACES {
        let reader = || open(name, File::open(directory.join(name)).expect("a listed trace")).expect("known");
        let whole = figures(&all(reader()));
        for tenths in 1..=10u8 {
            let share = f64::from(tenths) / 10.0;
            let tracer = figures(&all(TracerFilter::new(reader(), tenths, Duration::ZERO).expect("a level")));
            let ours = figures(&all(BalancedFilter::new(reader(), share).expect("a share")));
            let error = |found: f64, whole: f64| 100.0 * (found / (whole * share) - 1.0);
            let row = |f: &Figures| {
                format!(
                    "{:7.3} {:7.3} {:7.4} {:6.3}",
                    error(f.requests, whole.requests),
                    error(f.bytes, whole.bytes),
                    f.reads - whole.reads,
                    distance(&f.gaps, &whole.gaps)
                )
            };
            println!("{name:28} {:3} % | {} | {}", tenths * 10, row(&tracer), row(&ours));
        }
        for percent in [10, 13, 20, 37, 50, 61, 83, 90, 100] {
            let share = f64::from(percent) / 100.0;
            let ours = figures(&all(BalancedFilter::new(reader(), share).expect("a share")));
            let error = |found: f64, whole: f64| (found / (whole * share) - 1.0).abs();
            assert!(error(ours.requests, whole.requests) <= 0.01, "{name} at {share}");
            assert!(error(ours.bytes, whole.bytes) <= 0.01, "{name} at {share}");
            assert!((ours.reads - whole.reads).abs() <= 0.01, "{name} at {share}");
        }
    }
}
