//! Figures 1, 5 and 6. The paper's come without data; only what its text says of them can be compared.

use super::super::findings::Experiment;
use super::inputs::LogStoreInputs;
use super::runs::{Runs, kind_name};
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_sim::mirror::{PolicyKind, state_charts};
use ebb_trace::{Kind, Request, Trace};
use ebb_types::Random;
use std::time::Duration;

/// Request rates of Figure 1, per second, and how long each is offered.
const SWEEP: [u32; 8] = [10, 25, 40, 55, 70, 85, 100, 130];
const SWEEP_SECONDS: f64 = 1800.0;
/// Before that, one request per second: both disks go down. Between GoDown and GoUp a disk stays where it comes from,
/// and the figure is about the way up.
const QUIET_SECONDS: f64 = 120.0;
/// The prototype's mix behind the cache, of blocks spread over this area.
const WRITES_PER_MILLE: u64 = 930;
const AREA_BLOCKS: u64 = 1 << 20;

/// Blocks at random places, at random times.
fn steady(rate: u32, seconds: f64, seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let (mut at, mut requests) = (0.0, Vec::new());
    while at < QUIET_SECONDS + seconds {
        let kind = if random.chance(WRITES_PER_MILLE) { Kind::Write } else { Kind::Read };
        let offset = random.below(AREA_BLOCKS) * 4096;
        requests.push(Request { at: Duration::from_secs_f64(at), device: 0, offset, len: 4096, kind });
        let present = if at < QUIET_SECONDS { 1.0 } else { f64::from(rate) };
        at -= (1.0 - random.unit()).ln() / present;
    }
    Trace {
        name: format!("{rate} requests/s"),
        requests,
        devices: vec!["steady".to_owned()],
        ..Trace::default()
    }
}

pub fn plan(runs: &mut Runs, inputs: &LogStoreInputs) {
    for rate in SWEEP {
        runs.traces.push(steady(rate, SWEEP_SECONDS / f64::from(inputs.part), inputs.seed));
        let trace = runs.traces.len() - 1;
        for kind in [PolicyKind::LogStore, PolicyKind::TwoSpeed] {
            runs.plan(trace, 1, kind_name(kind), runs.setup(1, kind));
        }
    }
}

/// Figure 1.
pub fn power_by_rate(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "Figure 1",
        "Power against request rate",
        format!(
            "Blocks at random places, {} % writes, {SWEEP_SECONDS} s at each rate after {QUIET_SECONDS} quiet ones, on both disks together. The figure is a sketch: with the \
             log, disks stay at low speed up to a higher rate.",
            WRITES_PER_MILLE / 10
        ),
    );
    let first = runs.traces.len() - SWEEP.len();
    let watts = |kind| {
        let points = SWEEP.iter().enumerate().filter_map(move |(n, rate)| {
            let report = runs.system(first + n, 1, kind)?;
            Some((f64::from(*rate), report.energy_modelled.mean_watts))
        });
        points.collect::<Vec<_>>()
    };
    let mut chart = Chart::new("Power, modelled", Axis::new("requests/s"), Axis::new("W").from(0.0));
    for kind in [PolicyKind::TwoSpeed, PolicyKind::LogStore] {
        for (rate, watts) in watts(kind) {
            found.ours(format!("{} at {rate} requests/s", kind_name(kind)), "W", watts);
        }
        chart = chart.with(Series::new(kind_name(kind), Mark::Line, watts(kind)));
    }
    found.charts.push(chart);
    found
}

/// Figures 5 and 6.
pub fn over_time(runs: &Runs) -> Vec<Experiment> {
    let figure = |name, title, (trace, rate), paper: [f64; 2]| {
        let mut found = Experiment::new(
            name,
            title,
            "LogStore. Each point is 30 s; a disk's state is the one in which it was longest.",
        );
        for (kind, paper) in [PolicyKind::LogStore, PolicyKind::TwoSpeed].into_iter().zip(paper) {
            let here = runs.system(trace, rate, kind).and_then(|report| report.energy_modelled.low_share);
            found.row(format!("{}: time at low speed", kind_name(kind)), "%", Some(paper), here);
        }
        if let Some(report) = runs.system(trace, rate, PolicyKind::LogStore) {
            let off = report.samples.iter().map(|s| (s.offered_per_second - s.answered_per_second).abs());
            let offered: f64 = report.samples.iter().map(|s| s.offered_per_second).sum();
            found.ours("throughput beside load, mean difference per 30 s", "%", off.sum::<f64>() / offered);
            found.charts = state_charts(report);
        }
        found
    };
    vec![
        figure("Figure 5", "Load and states over time: Financial at 4x", (0, 4), [0.58, 0.38]),
        figure("Figure 6", "Load and states over time: Proxy at 21x", (1, 21), [0.48, 0.27]),
    ]
}
