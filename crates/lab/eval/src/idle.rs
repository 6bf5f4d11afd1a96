//! Idle power: what a target draws without any requests, with all of its disks or with fewer [TRACER §VI.A,
//! Figure 7].
//!
//! An idle run is a row like any other, at a load of zero and without throughput. Its workload is `idle`, or
//! `idle-N-disks` where the matrix says how to leave the target with N disks: nothing but its operator's command knows
//! that.

use super::matrix::{Matrix, Target};
use super::order::{Analyzer, Draw, RunError};
use super::record::Record;
use ebb_output::{Axis, Chart, Mark, Page, Series};
use ebb_types::Moment;
use std::process::{Command, Stdio};
use std::time::Duration;

const NAME: &str = "idle";

/// One idle run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Idle {
    /// Disks that the target is left with; `None`: as it is.
    pub disks: Option<u32>,
    /// From 1.
    pub repetition: u32,
}

impl Idle {
    /// The idle runs of a target, in the matrix's order.
    pub fn all(matrix: &Matrix, target: &Target) -> Vec<Idle> {
        let repeated = |disks| (1..=matrix.repetitions).map(move |repetition| Idle { disks, repetition });
        matrix.idle(target).into_iter().flat_map(repeated).collect()
    }

    pub fn name(&self) -> String {
        self.disks.map_or(NAME.to_owned(), |disks| format!("{NAME}-{disks}-disks"))
    }
}

/// Whether a row is an idle run's.
pub(super) fn is_idle(record: &Record) -> bool {
    record.load_percent == 0.0
}

/// Disks of an idle run that has a number of them.
fn disks(record: &Record) -> Option<u32> {
    record.workload.strip_prefix(NAME)?.strip_prefix('-')?.strip_suffix("-disks")?.parse().ok()
}

/// Idle watts of a target, by repetition: with all disks, or with the most that it was left with.
pub(super) fn watts<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Vec<f64> {
    let idle = records.filter(|record| is_idle(record) && record.error.is_none());
    let most = idle.clone().max_by_key(|record| disks(record).map_or((1, 0), |disks| (0, disks)));
    let of_most = idle.filter(|record| most.is_some_and(|most| record.workload == most.workload));
    of_most.filter_map(|record| record.watts).collect()
}

/// Measures an unused target: after the operator's command, if it has one.
pub(super) fn measure(
    target: &Target,
    idle: Idle,
    settle: Duration,
    length: Duration,
    analyzer: &mut dyn Analyzer,
) -> Result<Draw, RunError> {
    if let (Some(disks), Some(command)) = (idle.disks, &target.set_disks) {
        set(&command.replace("{disks}", &disks.to_string()))?;
    }
    std::thread::sleep(settle);
    let offset = analyzer.clock_offset()?;
    analyzer.mark()?;
    let from = ebb_meter::now();
    std::thread::sleep(length);
    let moved = |moment: Moment| Moment(moment.0.saturating_add_signed(offset));
    analyzer.draw(moved(from), moved(ebb_meter::now()))
}

fn set(command: &str) -> Result<(), RunError> {
    let failed = |why: String| RunError::Failed(format!("set_disks, {command:?}: {why}"));
    let done = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| failed(error.to_string()))?;
    let words = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(failed(format!("{}; {}", done.status, words.trim()))) }
}

/// Idle power by number of disks [TRACER Figure 7].
pub(super) fn figure(page: &mut Page, records: &[&Record]) {
    let of = |record: &&Record| Some((f64::from(disks(record)?), record.watts?));
    let mut points: Vec<(f64, f64)> = records.iter().filter_map(of).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    if points.len() > 1 {
        let disks = Axis::new("disks").from(0.0);
        let source = records.iter().find_map(|record| record.watts_source.as_deref());
        let watts = match source {
            Some(source) if source != "measured" => format!("W, {source}"),
            _ => "W".to_owned(),
        };
        let chart = Chart::new("Idle power by number of disks", disks, Axis::new(watts).from(0.0));
        page.chart(&chart.with(Series::new("idle", Mark::Line, points)));
    }
}
