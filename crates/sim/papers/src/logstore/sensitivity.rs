//! The paper's parameters, one at a time [LogStore §4.3], the weight of its average, and thresholds that follow from a
//! limit.

use super::super::findings::Experiment;
use super::inputs::RATES;
use super::runs::{Runs, SMOOTHING, kilojoules, kind_name, millis, saved};
use ebb_sim::mirror::{Adaptive, PolicyKind, Setup};
use std::time::Duration;

/// The trace and rate of the paper's study: Financial at 4x.
const STUDY: (usize, u32) = (0, 4);
/// The other reading: 0.875 weighs the old value, as TCP's average does. It is the default of `ebb mirror`.
const OLD_WEIGHS: f64 = 0.875;
const SMOOTHED: [(usize, u32); 2] = [STUDY, (1, 21)];

type Change = fn(&mut Setup);

/// What is changed, and how.
const STUDIES: [(&str, Change); 8] = [
    ("MaxRegular 30 %, MinLog 15 %", |s| {
        (s.settings.thresholds.max_regular, s.settings.thresholds.min_log) = (0.3, 0.15);
    }),
    ("T_change 3.5 s", |s| (s.disk.up.seconds, s.disk.down.seconds) = (3.5, 3.5)),
    ("T_change 3.5 s, half the joules", |s| {
        for change in [&mut s.disk.up, &mut s.disk.down] {
            (change.seconds, change.energy) = (3.5, change.energy * 0.5);
        }
    }),
    ("epochs of 5 s", |s| s.settings.epoch = Duration::from_secs(5)),
    ("MinRegular 20 %, MaxReplay 40 %", |s| {
        (s.settings.thresholds.min_regular, s.settings.thresholds.max_replay) = (0.2, 0.4);
    }),
    ("GoUp 40 %", |s| s.settings.thresholds.go_up = 0.4),
    ("GoDown 20 %", |s| s.settings.thresholds.go_down = 0.2),
    ("GoDown 10 %", |s| s.settings.thresholds.go_down = 0.1),
];

pub fn plan(runs: &mut Runs) {
    for (what, change) in STUDIES {
        let mut setup = runs.setup(STUDY.1, PolicyKind::LogStore);
        change(&mut setup);
        runs.plan(STUDY.0, STUDY.1, what, setup);
    }
    for (trace, rate) in SMOOTHED {
        let mut setup = runs.setup(rate, PolicyKind::LogStore);
        setup.settings.smoothing = OLD_WEIGHS;
        runs.plan(trace, rate, "smoothing", setup);
    }
}

/// Limits, as multiples of the mean response time that the paper's thresholds have on the same run.
const LIMITS: [(&str, f64); 3] = [("equal", 1.0), ("1.2 times", 1.2), ("4 times", 4.0)];

pub fn plan_adaptive(runs: &mut Runs) {
    for (trace, (_, rates)) in RATES.iter().enumerate() {
        for &rate in *rates {
            let Some(fixed) = runs.system(trace, rate, PolicyKind::LogStore).map(millis) else { continue };
            for (what, times) in LIMITS {
                let response_limit = Duration::from_secs_f64(times * fixed / 1e3);
                let mut setup = runs.setup(rate, PolicyKind::LogStore);
                setup.settings.adaptive = Some(Adaptive { response_limit, ..Adaptive::default() });
                runs.plan(trace, rate, what, setup);
            }
        }
    }
}

/// The study of §4.3.
pub fn parameters(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "§4.3",
        "Sensitivity: Financial at 4x",
        "One parameter at a time. A shorter change of speed takes the same joules, or half of them: the same watts of the motor. The paper does \
         not say which. It gives figures for MaxRegular and MinLog, T_change and epochs; of the others it says that lower MinRegular and \
         MaxReplay have a smaller effect, and that lower GoUp or GoDown take more energy and less time. It names none of their values: here \
         GoDown is lowered by a third and by two thirds.",
    );
    let of = |what: &str| runs.get(STUDY.0, STUDY.1, what);
    let (Some(base), Some(one)) = (of(kind_name(PolicyKind::LogStore)), of(kind_name(PolicyKind::OneSpeed)))
    else {
        return found;
    };
    found.row("default: saved against one-speed", "%", Some(0.466), Some(saved(base, one)));
    let slower = |what: &str| {
        let [here, one] =
            [what, kind_name(PolicyKind::OneSpeed)].map(|what| runs.counted(STUDY.0, STUDY.1, what));
        here.zip(one).map(|(here, one)| here - one)
    };
    let beyond = slower(kind_name(PolicyKind::LogStore));
    found.row("default: response time beyond one-speed's", "ms", Some(0.7), beyond);
    // Energy against the default, saved against one-speed, response time beyond one-speed's.
    let shorter = [None, Some(0.57), Some(0.8)];
    let papers = [[Some(-0.28), None, Some(1.3)], shorter, shorter, [None, Some(0.64), Some(1.3)]];
    for (n, (what, _)) in STUDIES.iter().enumerate() {
        let Some(report) = of(what) else { continue };
        let paper = papers.get(n).copied().unwrap_or_default();
        found.row(format!("{what}: energy beyond the default's"), "%", paper[0], Some(-saved(report, base)));
        found.row(format!("{what}: saved against one-speed"), "%", paper[1], Some(saved(report, one)));
        found.row(format!("{what}: response time beyond one-speed's"), "ms", paper[2], slower(what));
    }
    found
}

/// Which way round the average's weight is.
pub fn smoothing(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "§2",
        "Smoothing",
        "The paper's 0.875 may weigh the old value or the new one. Ebb's default weighs the old one, as TCP's average does; 0.125 is the other \
         reading.",
    );
    for (trace, rate) in SMOOTHED {
        for (what, weight) in [(kind_name(PolicyKind::LogStore), 0.875), ("smoothing", SMOOTHING)] {
            let Some(report) = runs.get(trace, rate, what) else { continue };
            let name = format!("{} at {rate}x, {weight}", runs.traces[trace].name);
            found.ours(format!("{name}: energy"), "kJ", kilojoules(report));
            found.ours(format!("{name}: response time"), "ms", millis(report));
            found.ours(format!("{name}: changes of speed"), "", report.energy_modelled.changes as f64);
        }
    }
    found
}

/// Ours, not the paper's.
pub fn adaptive(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "Ours",
        "Adaptive thresholds",
        "Thresholds that begin as the paper's and follow a limit of the mean response time. The limit of each run is the mean response \
         time of the paper's fixed thresholds on the same run, or 1.2 or 4 times that.",
    );
    for (trace, (workload, rates)) in RATES.iter().enumerate() {
        for &rate in *rates {
            let Some(one) = runs.system(trace, rate, PolicyKind::OneSpeed) else { continue };
            let fixed =
                runs.system(trace, rate, PolicyKind::LogStore).map(|report| ("fixed".to_owned(), report));
            let limited = |(what, _)| Some((format!("limit {what}"), runs.get(trace, rate, what)?));
            for (what, report) in fixed.into_iter().chain(LIMITS.into_iter().filter_map(limited)) {
                let name = format!("{} at {rate}x, {what}", workload.name());
                found.ours(format!("{name}: saved against one-speed"), "%", saved(report, one));
                found.ours(format!("{name}: response time"), "ms", millis(report));
            }
        }
    }
    found
}
