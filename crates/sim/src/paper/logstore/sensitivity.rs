//! The paper's parameters, one at a time [LogStore §4.3], the weight of its average, and thresholds that follow from a limit.

use super::super::findings::Experiment;
use super::inputs::RATES;
use super::runs::{Runs, kilojoules, kind_name, millis, saved};
use crate::mirror::{Adaptive, PolicyKind, Setup};
use std::time::Duration;

/// The trace and rate of the paper's study: Financial at 4x.
const STUDY: (usize, u32) = (0, 4);
const SMOOTHING: f64 = 0.125;
const SMOOTHED: [(usize, u32); 2] = [STUDY, (1, 21)];

type Change = fn(&mut Setup);

/// What is changed, and how.
const STUDIES: [(&str, Change); 6] = [
    ("MaxRegular 30 %, MinLog 15 %", |s| {
        (s.settings.thresholds.max_regular, s.settings.thresholds.min_log) = (0.3, 0.15);
    }),
    ("T_change 3.5 s", |s| (s.disk.up.seconds, s.disk.down.seconds) = (3.5, 3.5)),
    ("epochs of 5 s", |s| s.settings.epoch = Duration::from_secs(5)),
    ("MinRegular 20 %, MaxReplay 40 %", |s| {
        (s.settings.thresholds.min_regular, s.settings.thresholds.max_replay) = (0.2, 0.4);
    }),
    ("GoUp 40 %", |s| s.settings.thresholds.go_up = 0.4),
    ("GoDown 20 %", |s| s.settings.thresholds.go_down = 0.2),
];

pub fn plan(runs: &mut Runs) {
    for (what, change) in STUDIES {
        let mut setup = runs.setup(STUDY.1, PolicyKind::LogStore);
        change(&mut setup);
        runs.plan(STUDY.0, STUDY.1, what, setup);
    }
    for (trace, rate) in SMOOTHED {
        let mut setup = runs.setup(rate, PolicyKind::LogStore);
        setup.settings.smoothing = SMOOTHING;
        runs.plan(trace, rate, "smoothing", setup);
    }
}

/// All have one limit: the longest mean response time of LogStore with the paper's thresholds on any of these runs.
pub fn plan_adaptive(runs: &mut Runs) {
    let Some(limit) = limit(runs) else { return };
    let response_limit = Duration::from_secs_f64(limit / 1e3);
    for (trace, (_, rates)) in RATES.iter().enumerate() {
        for &rate in *rates {
            let mut setup = runs.setup(rate, PolicyKind::LogStore);
            setup.settings.adaptive = Some(Adaptive { response_limit, ..Adaptive::default() });
            runs.plan(trace, rate, "adaptive", setup);
        }
    }
}

/// In milliseconds.
fn limit(runs: &Runs) -> Option<f64> {
    let all =
        RATES.iter().enumerate().flat_map(|(trace, (_, rates))| rates.iter().map(move |rate| (trace, *rate)));
    let times = all.filter_map(|(trace, rate)| runs.system(trace, rate, PolicyKind::LogStore).map(millis));
    times.max_by(f64::total_cmp)
}

/// The study of §4.3.
pub fn parameters(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "§4.3",
        "Sensitivity: Financial at 4x",
        "One parameter at a time. A shorter change of speed takes the same joules. The paper gives figures for the first three; of the others \
         it says that lower MinRegular and MaxReplay have a smaller effect, and that lower GoUp or GoDown take more energy and less time."
            .to_owned(),
    );
    let of = |what: &str| runs.get(STUDY.0, STUDY.1, what);
    let (Some(base), Some(one)) = (of(kind_name(PolicyKind::LogStore)), of(kind_name(PolicyKind::OneSpeed)))
    else {
        return found;
    };
    found.row("default: saved against one-speed", "%", Some(0.466), Some(saved(base, one)));
    found.row("default: response time beyond one-speed's", "ms", Some(0.7), Some(millis(base) - millis(one)));
    // Energy against the default, saved against one-speed, response time beyond one-speed's.
    let papers =
        [[Some(-0.28), None, Some(1.3)], [None, Some(0.57), Some(0.8)], [None, Some(0.64), Some(1.3)]];
    for (n, (what, _)) in STUDIES.iter().enumerate() {
        let Some(report) = of(what) else { continue };
        let paper = papers.get(n).copied().unwrap_or_default();
        found.row(format!("{what}: energy beyond the default's"), "%", paper[0], Some(-saved(report, base)));
        found.row(format!("{what}: saved against one-speed"), "%", paper[1], Some(saved(report, one)));
        let slower = millis(report) - millis(one);
        found.row(format!("{what}: response time beyond one-speed's"), "ms", paper[2], Some(slower));
    }
    found
}

/// Which way round the average's weight is.
pub fn smoothing(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "§2",
        "Smoothing",
        "The paper's 0.875 may weigh the old value or the new one. Ebb's default weighs the old one, as TCP's average does; 0.125 is the other \
         reading."
            .to_owned(),
    );
    for (trace, rate) in SMOOTHED {
        for (what, weight) in [(kind_name(PolicyKind::LogStore), 0.875), ("smoothing", SMOOTHING)] {
            let Some(report) = runs.get(trace, rate, what) else { continue };
            let name = format!("{} at {rate}x, {weight}", runs.traces[trace].name);
            found.row(format!("{name}: energy"), "kJ", None, Some(kilojoules(report)));
            found.row(format!("{name}: response time"), "ms", None, Some(millis(report)));
            found.row(
                format!("{name}: changes of speed"),
                "",
                None,
                Some(report.energy_modelled.changes as f64),
            );
        }
    }
    found
}

/// Ours, not the paper's.
pub fn adaptive(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "Ours",
        "Adaptive thresholds",
        "Thresholds that follow from the disk's own times and a limit of the mean response time, instead of the paper's fixed ones. The limit is \
         the same for all: the longest mean response time that LogStore with the paper's thresholds has on any of these runs. Where the load is \
         far from it, a disk stays at low speed for longer, and answers later."
            .to_owned(),
    );
    found.row("limit of the mean response time", "ms", None, limit(runs));
    for (trace, (workload, rates)) in RATES.iter().enumerate() {
        for &rate in *rates {
            let fixed = runs.system(trace, rate, PolicyKind::LogStore);
            let one = runs.system(trace, rate, PolicyKind::OneSpeed);
            let (Some(fixed), Some(one), Some(adaptive)) = (fixed, one, runs.get(trace, rate, "adaptive"))
            else {
                continue;
            };
            let name = format!("{} at {rate}x", workload.name());
            found.row(format!("{name}, fixed: saved against one-speed"), "%", None, Some(saved(fixed, one)));
            found.row(
                format!("{name}, adaptive: saved against one-speed"),
                "%",
                None,
                Some(saved(adaptive, one)),
            );
            found.row(format!("{name}, fixed: response time"), "ms", None, Some(millis(fixed)));
            found.row(format!("{name}, adaptive: response time"), "ms", None, Some(millis(adaptive)));
        }
    }
    found
}
