//! Table VII and Figures 9 and 10 (four workloads), Table VIII with Figures 13 and 14 (intensities), Figure 15 (data
//! servers).

use super::super::findings::Experiment;
use super::models;
use super::runs::{Runs, THRESHOLDS, millis, saved};
use super::workloads::WORKLOADS;
use ebb_erasure::Shape;
use ebb_output::{Axis, Chart, Mark, Series};
use ebb_sim::coded::{Report, Setup};

/// Watts without and with ECS² [ECS² Table VII].
pub const TABLE_VII: [(f64, f64); 4] =
    [(648.68, 450.6), (654.09, 451.42), (660.37, 475.64), (657.56, 470.80)];
const DTRS: usize = 2;
/// Of the traces that the user gives.
const GIVEN_THRESHOLD: f64 = 0.9;
/// Intensity, threshold, and watts without and with ECS² [ECS² Table VIII, §5.3.3].
const TABLE_VIII: [(f64, f64, f64, f64); 4] = [
    (1.0, 0.9, 660.37, 475.64),
    (1.5, 0.9, 665.10, 492.79),
    (2.0, 0.9, 672.87, 517.58),
    (2.5, 0.8, 675.85, 526.39),
];
/// Intensity and threshold of the run beside which a cluster of processes stands (docs/coded.md).
const ON_PROCESSES: (f64, f64) = (2.5, 0.9);
const WIDE: &str = "12 servers, 9 of data";

const WHY_ENERGY: &str = "The paper's percentages for Web-2 and Fin-2 do not follow from its own watts, which give 30.5 and 31.0 %: they stand \
    here. Fin-2's is above the 30.9 % that its model allows, since servers that do little draw less than 73.2 W.\n\n\
    By its load: Table VI's 61.8 W for a server without load, 70.8 W where its disk is busy for an eighth of the time (10 of 80 MB/s), 75.6 W \
    where it always is. By throughput: the same watts by the bytes that a disk moves. Small requests at random places move so few that such \
    servers would be next to idle, and the paper's are not. Web-2's 648.68 W do not follow from Table VI in any way: its parity servers have \
    nothing to do, and with six data servers that are always busy the set draws less.\n\n\
    The paper folds overwrites into what is kept (§3.3.3); its formula (10) counts each write anew. So there are both. Not folded, parity wakes \
    as often as by (10) for each write, or once more: a write over the end of a stripe adds to two. (10) for the mean size gives more: by (16) a \
    write adds its size up to a strip, and no more up to a stripe, so sizes around a mean add less than the mean does.\n\n\
    By the joules of its Tables VI to VIII, the paper's prototype woke parity for DTRS more than twice as often as its model, for RAD-BE about as \
    often as (10) for each write: the paper's column of the times woken, in Table VIII of those in an hour. So its DTRS saves less than its model, \
    and less than here. Why, the paper does not say; a whole strip of memory for each strip that a write touches would explain DTRS, but not \
    RAD-BE.";

const WHY_TIMES: &str = "The paper has no numbers for response times. Directions that it states: Web-2 equal, Fin-2 faster with ECS², DTRS and \
    RAD-BE slower with ECS². A parity server that is awake acknowledges a change from memory here, and so does a data server that keeps it: \
    both variants do the same disk accesses, so what is left is one message more per change and what is sent in a synchronisation.";

fn intensity(rate: f64) -> String {
    format!("{rate} times the rate")
}

fn on_processes() -> String {
    let (rate, threshold) = ON_PROCESSES;
    format!("{}, threshold {threshold}", intensity(rate))
}

pub fn plan(runs: &mut Runs) {
    for (trace, threshold) in THRESHOLDS.into_iter().enumerate() {
        runs.plan_both_ways(trace, "plain", runs.setup(threshold));
    }
    for (rate, threshold, ..) in TABLE_VIII {
        runs.plan_both_ways(DTRS, &intensity(rate), Setup { rate, ..runs.setup(threshold) });
    }
    let (rate, threshold) = ON_PROCESSES;
    runs.plan_both_ways(DTRS, &on_processes(), Setup { rate, ..runs.setup(threshold) });
    let shape = Shape::new(9, 3).expect("the paper's second code");
    runs.plan(DTRS, WIDE, Setup { shape, ..runs.setup(0.9) });
    for trace in runs.given.clone() {
        runs.plan_both_ways(trace, "plain", runs.setup(GIVEN_THRESHOLD));
    }
}

pub fn found(runs: &Runs) -> Vec<Experiment> {
    let mut all = vec![table_vii(runs), figure_9(runs), figure_10(runs), table_viii(runs), figure_15(runs)];
    all.extend(runs.given.iter().map(|trace| given(runs, *trace)));
    all
}

/// A workload at an intensity.
#[derive(Clone, Copy)]
struct Case<'a> {
    /// As its rows are called.
    name: &'a str,
    trace: usize,
    /// As its runs are called.
    what: &'a str,
    rate: f64,
    threshold: f64,
    /// The paper's watts without and with ECS².
    watts: Option<(f64, f64)>,
    /// How often the paper's parity servers woke, as it draws it or by its joules.
    woken: Option<f64>,
}

fn woken(report: &Report) -> f64 {
    report.synchronisations as f64
}

/// Watts and savings, at the same watts whatever the load and at such that follow it, and how often parity woke.
fn energy_rows(found: &mut Experiment, runs: &Runs, case: &Case) {
    let Case { name, trace, what, rate, threshold, .. } = *case;
    let (in_paper_on, in_paper_asleep) = case.watts.unzip();
    let (pair, unfolded) = (runs.get(trace, what), runs.unfolded(trace, what));
    let (asleep, on) = pair.unzip();
    let flat = |report: &Report| report.energy_modelled.mean_watts;
    let by_load = |report: &Report| report.by_load_modelled.mean_watts;
    let mut row = |what: &str, unit: &'static str, paper: Option<f64>, here: Option<f64>| {
        found.row(format!("{name}: {what}"), unit, paper, here);
    };
    row("always on", "W", in_paper_on, on.map(flat));
    row("always on, by its load", "W", in_paper_on, on.map(by_load));
    row("ECS²", "W", in_paper_asleep, asleep.map(flat));
    row("ECS², by its load", "W", in_paper_asleep, asleep.map(by_load));
    row("ECS², overwrites not folded", "W", in_paper_asleep, unfolded.map(flat));
    let in_paper = case.watts.map(|(on, asleep)| 1.0 - asleep / on);
    let saved_by_load = |(asleep, on): (&Report, &Report)| 1.0 - by_load(asleep) / by_load(on);
    row("saved", "%", in_paper, pair.map(saved));
    row("saved, by its load", "%", in_paper, pair.map(saved_by_load));
    row("saved, overwrites not folded", "%", in_paper, unfolded.zip(on).map(saved));
    row("times woken", "", case.woken, asleep.map(woken));
    row("times woken, overwrites not folded", "", case.woken, unfolded.map(woken));
    let write_by_write = models::woken_write_by_write(&runs.traces[trace], threshold) as f64;
    row("times woken by (10) for each write", "", case.woken, Some(write_by_write));
    let Some(workload) = WORKLOADS.get(trace) else { return };
    let model = models::estimate(workload, (runs.seconds as f64 / rate) as u64, rate, threshold);
    row("times woken by (10) for the mean size", "", case.woken, Some(model.transitions as f64));
    row("saved by formulas (7) to (15)", "%", in_paper, Some(model.saved()));
    row("always on, by throughput", "W", in_paper_on, Some(models::watts_by_throughput(workload, rate)));
}

fn table_vii(runs: &Runs) -> Experiment {
    let mut found = Experiment::new("Table VII", "Power of four workloads", WHY_ENERGY);
    for (trace, workload) in WORKLOADS.iter().enumerate() {
        let name = workload.name;
        let ((on, asleep), threshold) = (TABLE_VII[trace], THRESHOLDS[trace]);
        let woken = match name {
            // In Figure 9.
            "Fin-2" => Some(1.0),
            "DTRS" | "RAD-BE" => Some(models::woken_by_joules(on, asleep, threshold)),
            _ => None,
        };
        let watts = Some((on, asleep));
        let case = Case { name, trace, what: "plain", rate: 1.0, threshold, watts, woken };
        energy_rows(&mut found, runs, &case);
    }
    let most = models::most_watts_without_writes();
    found.row("Web-2: always on, at most by Table VI", "W", Some(TABLE_VII[0].0), Some(most));
    found
}

fn figure_9(runs: &Runs) -> Experiment {
    let about = "The paper draws the same; its numbers are in Table VII and the text. Fin-2's 19 s it explains by small writes. Here what is kept is \
        sent in large pieces at 40 MB/s, however it was written; with overwrites folded, Fin-2's data set never fills the buffers.";
    let mut found = Experiment::new("Figure 9", "Power over time", about);
    for (trace, workload) in WORKLOADS.iter().enumerate() {
        let Some((asleep, on)) = runs.get(trace, "plain") else { continue };
        found.charts.push(watts_chart(workload.name, asleep, on));
        let paper = match workload.name {
            "Fin-2" => Some(19.0),
            "DTRS" => Some(8.0),
            _ => None,
        };
        let unfolded = runs.unfolded(trace, "plain");
        for (how, report) in [("", Some(asleep)), (", overwrites not folded", unfolded)] {
            if let Some(seconds) = report.and_then(|report| report.synchronise_seconds) {
                found.row(format!("{}: a synchronisation{how}", workload.name), "s", paper, Some(seconds));
            }
        }
    }
    found
}

fn watts_chart(name: &str, asleep: &Report, on: &Report) -> Chart {
    let series = |name: &str, report: &Report| {
        let points = report.samples.iter().map(|sample| (sample.at_seconds, sample.watts.0));
        Series::new(name, Mark::Line, points)
    };
    Chart::new(format!("{name}: power, modelled"), Axis::new("time (s)"), Axis::new("W"))
        .with(series("ECS²", asleep))
        .with(series("always on", on))
}

fn times(found: &mut Experiment, name: &str, pair: Option<(&Report, &Report)>) {
    found.row(format!("{name}: always on"), "ms", None, pair.and_then(|(_, on)| millis(on)));
    found.row(format!("{name}: ECS²"), "ms", None, pair.and_then(|(asleep, _)| millis(asleep)));
}

fn figure_10(runs: &Runs) -> Experiment {
    let mut found = Experiment::new("Figure 10", "Response times of four workloads", WHY_TIMES);
    for (trace, workload) in WORKLOADS.iter().enumerate() {
        let pair = runs.get(trace, "plain");
        times(&mut found, workload.name, pair);
        let asked = |report: &Report| report.asked_of_data_servers;
        let (asleep, on) = pair.unzip();
        let row = format!("{}: requests at data servers for an update", workload.name);
        found.row(format!("{row}, always on"), "", Some(2.0), on.and_then(asked));
        found.row(format!("{row}, ECS²"), "", Some(6.0), asleep.and_then(asked));
    }
    found
}

fn table_viii(runs: &Runs) -> Experiment {
    let mut found = Experiment::new("Table VIII", "Intensities: DTRS (with Figures 13 and 14)", WHY_ENERGY);
    for (rate, threshold, on, asleep) in TABLE_VIII {
        let name = intensity(rate);
        let (name, watts) = (name.as_str(), Some((on, asleep)));
        let case = Case { name, trace: DTRS, what: name, rate, threshold, watts, woken: None };
        energy_rows(&mut found, runs, &case);
        let pair = runs.get(DTRS, name);
        let by_joules = Some(models::woken_by_joules(on, asleep, threshold));
        let in_an_hour = |report: &Report| woken(report) * 3600.0 / report.span_seconds;
        for (how, report) in [("", pair.unzip().0), (", overwrites not folded", runs.unfolded(DTRS, name))] {
            let what = format!("{name}: times woken in an hour{how}");
            found.row(what, "", by_joules, report.map(in_an_hour));
        }
        times(&mut found, &format!("{name}, response"), pair);
        if let Some((asleep, on)) = pair {
            found.charts.push(watts_chart(name, asleep, on));
        }
    }
    let (rate, threshold) = ON_PROCESSES;
    let name = on_processes();
    let name = name.as_str();
    let case = Case { name, trace: DTRS, what: name, rate, threshold, watts: None, woken: None };
    energy_rows(&mut found, runs, &case);
    found
}

fn figure_15(runs: &Runs) -> Experiment {
    let about = "The paper: with nine data servers, ECS² answers faster, since its buffers are larger and synchronisations rarer; without it, slightly \
        slower. Here each of nine disks has a third less to do than each of six, which speeds both up.";
    let mut found = Experiment::new("Figure 15", "Data servers: DTRS", about);
    times(&mut found, "9 servers, 6 of data", runs.get(DTRS, "plain"));
    times(&mut found, WIDE, runs.get(DTRS, WIDE));
    let woken = |what| runs.get(DTRS, what).map(|(asleep, _)| asleep.synchronisations as f64);
    found.row("9 servers: times woken", "", None, woken("plain"));
    found.row("12 servers: times woken", "", None, woken(WIDE));
    found
}

fn given(runs: &Runs, trace: usize) -> Experiment {
    let name = format!("Trace {}", runs.traces[trace].name);
    let mut found =
        Experiment::new(&name, "The same on a given trace", "At its own rate, with the paper's set.");
    let (name, what, threshold) = ("6+3", "plain", GIVEN_THRESHOLD);
    let case = Case { name, trace, what, rate: 1.0, threshold, watts: None, woken: None };
    energy_rows(&mut found, runs, &case);
    let pair = runs.get(trace, "plain");
    times(&mut found, "6+3, response", pair);
    if let Some((asleep, on)) = pair {
        found.charts.push(watts_chart("6+3", asleep, on));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_its_joules_the_papers_prototype_woke_parity_more_often_at_each_intensity() {
        let woken =
            TABLE_VIII.map(|(_, threshold, on, asleep)| models::woken_by_joules(on, asleep, threshold));
        assert!(woken.is_sorted() && (10.0..11.0).contains(&woken[0]), "{woken:?}");
    }
}
