//! A set of workloads, measured one after another, and what they say together: Figures 1 to 5 of [OS layers] beside the
//! paper's values.
//!
//! Each workload makes its data once; then its command runs on each number of cores, several times. Before each run the
//! page cache lets go of its files, so that reads come from the disk as they do where data exceed the memory. A
//! workload whose programs are missing is skipped, one that fails is reported as failed; neither counts in an average.

mod figures;
mod page;
mod vm;
mod workload;

pub use figures::{Beside, Figures, GuestsRow, Row, Shares};
pub use vm::{Accelerator, GuestOptions, GuestRun};
pub use workload::{Dataset, PAPERS_WORKLOADS, Workload, WorkloadError};

use super::machine::Machine;
use super::run::allowed_cpus;
use super::{CostError, CostOptions, CostReport, measure_after};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::fmt::Arguments;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use workload::PRELUDE;

/// How to run a suite.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// Of every workload. No `cores`: 1, 2, 4 and so on, up to all that may be used. `idle_fractions`, `window` and
    /// `label` are not used: the figures have the paper's fractions, a workload has its own window and name.
    pub cost: CostOptions,
    pub data: Dataset,
    /// Where the data are put, on the disk that is to be measured.
    pub directory: PathBuf,
    /// Also in virtual machines.
    pub guests: Option<GuestOptions>,
}

/// What became of a workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured(Box<CostReport>),
    /// Programs are missing.
    Skipped(String),
    Failed(String),
}

/// One workload's results.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadResult {
    pub name: String,
    pub paper: Option<String>,
    pub about: String,
    pub outcome: Outcome,
    /// In virtual machines, one per number of guests.
    pub guests: Vec<GuestResult>,
}

/// A workload in a number of virtual machines at once.
#[derive(Clone, Debug, Serialize)]
pub struct GuestResult {
    pub guests: usize,
    /// Absent if it failed.
    pub run: Option<GuestRun>,
    pub failure: Option<String>,
}

/// A whole suite's results.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    pub host: Option<String>,
    pub cpu: Option<String>,
    pub kernel: Option<String>,
    pub machine_cores: usize,
    pub cores: Vec<usize>,
    pub runs: usize,
    pub peak_watts: f64,
    pub scale: u32,
    pub seed: u64,
    pub workloads: Vec<WorkloadResult>,
    pub figures: Figures,
    pub notes: Vec<String>,
}

impl SuiteReport {
    /// Workloads that did not do what they should; one that is skipped is none of them.
    pub fn failed(&self) -> usize {
        let failed = |result: &&WorkloadResult| {
            matches!(result.outcome, Outcome::Failed(_))
                || result.guests.iter().any(|guests| guests.run.is_none())
        };
        self.workloads.iter().filter(failed).count()
    }
}

/// 1, 2, 4 and so on, and the last.
fn doubled(all: usize) -> Vec<usize> {
    let mut cores: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < all).collect();
    cores.push(all);
    cores
}

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn make(parent: &Path) -> Result<Place, CostError> {
        let path = parent.join(format!("ebb-cost-suite-{}", std::process::id()));
        fs::create_dir(&path).map_err(|source| CostError::Directory { path: path.clone(), source })?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the workloads. `tell` is called with what is being done.
pub fn run_suite(
    options: &SuiteOptions,
    workloads: &[Workload],
    tell: &mut dyn FnMut(Arguments<'_>),
) -> Result<SuiteReport, CostError> {
    let machine = Machine::this();
    let mut cost = CostOptions {
        idle_fractions: super::DEFAULT_IDLE_FRACTIONS.to_vec(),
        runs: options.cost.runs.max(1),
        ..options.cost.clone()
    };
    if cost.cores.is_empty() {
        cost.cores = doubled(allowed_cpus()?.len());
    }
    let place = Place::make(&options.directory)?;
    let mut results = Vec::new();
    for (at, workload) in workloads.iter().enumerate() {
        let mut tell = |what: Arguments<'_>| {
            tell(format_args!("{} ({} of {}): {what}", workload.name, at + 1, workloads.len()));
        };
        let missing = workload.missing();
        let mut guests = Vec::new();
        let outcome = if missing.is_empty() {
            match run_workload(&options.data, &cost, workload, &place.0, &mut tell) {
                Ok(report) => Outcome::Measured(Box::new(report)),
                Err(why) => Outcome::Failed(why),
            }
        } else {
            Outcome::Skipped(format!("{} not installed", missing.join(", ")))
        };
        if let (Outcome::Measured(_), Some(asked)) = (&outcome, &options.guests) {
            for count in &asked.counts {
                tell(format_args!("{count} virtual machines"));
                let run = vm::run_guests(&cost, &options.data, asked, *count, workload, &place.0, &mut tell);
                let failure = run.as_ref().err().cloned();
                guests.push(GuestResult { guests: *count, run: run.ok(), failure });
            }
        }
        results.push(WorkloadResult {
            name: workload.name.clone(),
            paper: workload.paper.clone(),
            about: workload.about.clone(),
            outcome,
            guests,
        });
    }
    let described = ebb_output::Machine::this();
    Ok(SuiteReport {
        host: ebb_output::host(),
        cpu: described.cpu,
        kernel: described.kernel,
        machine_cores: machine.cpus()?.len(),
        cores: cost.cores,
        runs: cost.runs,
        peak_watts: cost.peak.0,
        scale: options.data.scale,
        seed: options.data.seed,
        figures: Figures::of(&results),
        notes: notes_of(&results),
        workloads: results,
    })
}

/// What the reports say of how they were measured, each once.
fn notes_of(results: &[WorkloadResult]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for result in results {
        let Outcome::Measured(report) = &result.outcome else { continue };
        let new: Vec<String> = report.notes.iter().filter(|note| !notes.contains(note)).cloned().collect();
        notes.extend(new);
    }
    notes
}

/// The words that run a script.
fn words(dataset: &Dataset, workload: &Workload, script: &str, data: &Path, log: &Path) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let fixed = ["/bin/sh", "-eu", "-c"].map(str::to_owned);
    let given =
        [text(data), text(log), dataset.scale.to_string(), dataset.seed.to_string(), workload.more_path()];
    let script = [format!("{PRELUDE}{script}"), workload.name.clone()];
    fixed.into_iter().chain(script).chain(given).collect()
}

/// Its data are removed when it is done.
fn run_workload(
    dataset: &Dataset,
    cost: &CostOptions,
    workload: &Workload,
    place: &Path,
    tell: &mut dyn FnMut(Arguments<'_>),
) -> Result<CostReport, String> {
    let (data, log) = (place.join(&workload.name), place.join(format!("{}.log", workload.name)));
    fs::create_dir(&data).map_err(|e| format!("cannot create {}: {e}", data.display()))?;
    tell(format_args!("setup"));
    let script = |script: &str| script_of(&words(dataset, workload, script, &data, &log), &log);
    let measured = script(&workload.setup).map_err(|why| format!("setup: {why}")).and_then(|()| {
        let cost =
            CostOptions { window: workload.window(), label: Some(workload.name.clone()), ..cost.clone() };
        let command = words(dataset, workload, &workload.command, &data, &log);
        let before = &mut || {
            rustix::fs::sync();
            forget(&data);
        };
        let report = measure_after(&cost, &command, before, &mut |progress| {
            let (run, of, seconds) = (progress.run, progress.of, progress.elapsed.as_secs_f64());
            tell(format_args!("run {run} of {of}, {} cores, {seconds:.0} s", progress.cores));
        });
        report.map_err(|error| match error {
            CostError::Failed { status, .. } => format!("command: it ended with {status}: {}", end_of(&log)),
            error => format!("command: {error}"),
        })
    });
    // Also after a failure: what the setup started must not run on.
    let cleaned = script(&workload.cleanup).map_err(|why| format!("cleanup: {why}"));
    let _ = fs::remove_dir_all(&data);
    let report = measured?;
    cleaned?;
    // The scripts are in the workload's file; here it is named.
    Ok(CostReport { command: vec![workload.about.clone()], ..report })
}

/// Runs a script that is not measured.
fn script_of(words: &[String], log: &Path) -> Result<(), String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(|e| format!("cannot start {}: {e}", words[0]))?;
    if status.success() { Ok(()) } else { Err(format!("it ended with {status}: {}", end_of(log))) }
}

/// The last lines that a workload's scripts wrote.
fn end_of(log: &Path) -> String {
    const LINES: usize = 5;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        "it wrote nothing".into()
    } else {
        lines[lines.len().saturating_sub(LINES)..].join("; ")
    }
}

/// Asks the page cache to drop the clean pages of all files below a directory; needs no rights but those to read them.
fn forget(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget(&entry.path()),
            Ok(kind) if kind.is_file() => {
                if let Ok(file) = File::open(entry.path()) {
                    let _ = fadvise(&file, 0, None, Advice::DontNeed);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
