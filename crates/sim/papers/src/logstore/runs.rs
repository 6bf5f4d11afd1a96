//! Runs of traces on mirrors, side by side on all processors, and their results by name.

use super::super::findings::PaperError;
use super::super::side_by_side::side_by_side;
use super::inputs::{LogStoreInputs, RATES};
use ebb_sim::mirror::{Ack, MirrorError, PolicyKind, Report, Settings, Setup, Workload, simulate};
use ebb_trace::{InMemory, Trace};
use std::collections::BTreeMap;

pub const KINDS: [PolicyKind; 4] =
    [PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::Div, PolicyKind::OneSpeed];

/// Weight of the average's old value: the paper's 0.875 weighs the new one.
pub const SMOOTHING: f64 = 0.125;

/// What a run is called: the trace, the rate, the system, and what differs from the paper's settings.
pub type Name = (usize, u32, String);

pub struct Runs {
    /// The workloads in the order of [`RATES`], then what is given or made for a figure.
    pub traces: Vec<Trace>,
    /// Of them, given by the user.
    pub given: Vec<usize>,
    part: u32,
    seed: u64,
    waiting: Vec<(Name, Setup)>,
    done: BTreeMap<Name, Report>,
}

pub fn kind_name(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::LogStore => "LogStore",
        PolicyKind::TwoSpeed => "two-speed",
        PolicyKind::Div => "DIV",
        PolicyKind::OneSpeed => "one-speed",
    }
}

fn made(workload: Workload, part: u32, seed: u64) -> Result<Trace, PaperError> {
    let mut requests = workload.after_cache().part(part).requests(seed)?;
    let failed = |error| PaperError::Mirror { name: workload.name().to_owned(), error };
    Trace::collect(workload.name().to_owned(), &mut requests)
        .map_err(|error| failed(MirrorError::Trace(error)))
}

impl Runs {
    pub fn new(inputs: &LogStoreInputs) -> Result<Runs, PaperError> {
        let made = RATES.iter().map(|(workload, _)| made(*workload, inputs.part, inputs.seed));
        let mut traces: Vec<Trace> = made.collect::<Result<_, _>>()?;
        let given = (traces.len()..traces.len() + inputs.traces.len()).collect();
        traces.extend(inputs.traces.iter().cloned());
        Ok(Runs {
            traces,
            given,
            part: inputs.part,
            seed: inputs.seed,
            waiting: Vec::new(),
            done: BTreeMap::new(),
        })
    }

    /// The paper's settings, with its average read as one that weighs the new value: see [`super::sensitivity`].
    pub fn setup(&self, rate: u32, kind: PolicyKind) -> Setup {
        Setup {
            settings: Settings { kind, ack: Ack::One, smoothing: SMOOTHING, ..Settings::default() },
            rate: f64::from(rate),
            seed: self.seed,
            ..Setup::default()
        }
    }

    pub fn plan(&mut self, trace: usize, rate: u32, what: &str, setup: Setup) {
        self.waiting.push(((trace, rate, what.to_owned()), setup));
    }

    pub fn get(&self, trace: usize, rate: u32, what: &str) -> Option<&Report> {
        self.done.get(&(trace, rate, what.to_owned()))
    }

    pub fn system(&self, trace: usize, rate: u32, kind: PolicyKind) -> Option<&Report> {
        self.get(trace, rate, kind_name(kind))
    }

    /// Mean response time in milliseconds of a workload, as the paper counts it: over all requests of its programs, of
    /// which the buffer cache answers the writes and most of the reads. The others wait for a disk.
    pub fn counted(&self, trace: usize, rate: u32, what: &str) -> Option<f64> {
        let report = self.get(trace, rate, what)?;
        let asked = RATES[trace].0.before_cache().part(self.part).count;
        let waited = report.response.reads.map_or(0.0, |reads| reads.mean_millis);
        Some(waited * report.trace.reads as f64 / asked as f64)
    }

    /// Runs what is planned. The order in which runs end changes no result.
    pub fn run(&mut self, tell: &mut dyn FnMut(f64)) -> Result<(), PaperError> {
        let jobs = std::mem::take(&mut self.waiting);
        let run = |((trace, rate, what), setup): &(Name, Setup)| {
            let trace = &self.traces[*trace];
            let mut reader = InMemory::new(&trace.requests, &trace.devices);
            match simulate(&trace.name, &mut reader, setup, &mut |_| ()) {
                Ok(report) => Ok(Some(report)),
                // Its figures are absent.
                Err(MirrorError::Overloaded { .. }) => Ok(None),
                Err(error) => {
                    Err(PaperError::Mirror { name: format!("{} at {rate}x, {what}", trace.name), error })
                }
            }
        };
        let reports = side_by_side(&jobs, run, tell)?;
        let named = jobs.into_iter().zip(reports);
        self.done.extend(named.filter_map(|((name, _), report)| Some((name, report?))));
        Ok(())
    }
}

/// Mean response time of all requests that reach the disks, in milliseconds.
pub fn millis(report: &Report) -> f64 {
    report.response.all.map_or(0.0, |latency| latency.mean_millis)
}

pub fn kilojoules(report: &Report) -> f64 {
    report.energy_modelled.total.0 / 1e3
}

/// Share of the energy of `of` that `report` saves.
pub fn saved(report: &Report, of: &Report) -> f64 {
    1.0 - report.energy_modelled.total.0 / of.energy_modelled.total.0
}
