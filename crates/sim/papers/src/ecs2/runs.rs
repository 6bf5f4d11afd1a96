//! Runs of workloads on sets and on replicated servers, side by side on all processors, and their results by name.

use super::super::findings::PaperError;
use super::super::side_by_side::side_by_side;
use super::inputs::Ecs2Inputs;
use super::workloads::{QUIET, WORKLOADS, with_quiet_spells};
use ebb_erasure::standby;
use ebb_power::PowerModel;
use ebb_sim::coded::{CodedError, Report, Setup, simulate};
use ebb_sim::request;
use ebb_trace::Trace;
use ebb_types::Watts;
use std::collections::BTreeMap;

/// Of the four workloads [ECS² §5.2.2, Figure 9].
pub const THRESHOLDS: [f64; 4] = [0.9, 0.75, 0.9, 0.9];

/// The trace, and what the set is like.
pub type Name = (usize, String);

pub struct Runs {
    /// The workloads in their order, the one with quiet spells, then what the user gives.
    pub traces: Vec<Trace>,
    pub given: Vec<usize>,
    pub seconds: u64,
    pub seed: u64,
    waiting: Vec<(Name, Job)>,
    done: BTreeMap<Name, Report>,
    replicated: BTreeMap<usize, request::Report>,
}

enum Job {
    Coded(Box<Setup>),
    Replicated(Box<request::Setup>),
}

/// A server that is on draws P_power [ECS² §4.3.1].
pub fn power() -> PowerModel {
    let on = Watts(73.2);
    PowerModel { idle: on, light: on, busy: on, ..PowerModel::default() }
}

fn unfolded_name(what: &str) -> String {
    format!("{what}, overwrites not folded")
}

impl Runs {
    pub fn new(inputs: &Ecs2Inputs) -> Runs {
        let mut traces: Vec<Trace> =
            WORKLOADS.iter().map(|workload| workload.trace(inputs.seconds, inputs.seed)).collect();
        traces.push(with_quiet_spells(&traces[QUIET], inputs.seconds));
        let given = (traces.len()..traces.len() + inputs.traces.len()).collect();
        traces.extend(inputs.traces.iter().cloned());
        Runs {
            traces,
            given,
            seconds: inputs.seconds,
            seed: inputs.seed,
            waiting: Vec::new(),
            done: BTreeMap::new(),
            replicated: BTreeMap::new(),
        }
    }

    /// The paper's set.
    pub fn setup(&self, threshold: f64) -> Setup {
        let settings = standby::Settings { threshold, ..standby::Settings::default() };
        Setup { standby: Some(settings), power: power(), seed: self.seed, ..Setup::default() }
    }

    /// Plans a run and the same with all servers always on.
    pub fn plan(&mut self, trace: usize, what: &str, setup: Setup) {
        let on = Setup { standby: None, ..setup.clone() };
        self.plan_one(trace, what, setup);
        self.plan_one(trace, &format!("{what}, always on"), on);
    }

    /// The same as [`Runs::plan`], and a run that does not fold overwrites.
    pub fn plan_both_ways(&mut self, trace: usize, what: &str, setup: Setup) {
        let unfolded = Setup { folds_overwrites: false, ..setup.clone() };
        self.plan_one(trace, &unfolded_name(what), unfolded);
        self.plan(trace, what, setup);
    }

    pub fn plan_one(&mut self, trace: usize, what: &str, setup: Setup) {
        self.waiting.push(((trace, what.to_owned()), Job::Coded(Box::new(setup))));
    }

    pub fn plan_replicated(&mut self, trace: usize, setup: request::Setup) {
        self.waiting.push(((trace, "replicated".to_owned()), Job::Replicated(Box::new(setup))));
    }

    /// With sleeping parity servers, and always on.
    pub fn get(&self, trace: usize, what: &str) -> Option<(&Report, &Report)> {
        self.get_one(trace, what).zip(self.get_one(trace, &format!("{what}, always on")))
    }

    /// With sleeping parity servers, and each write kept anew.
    pub fn unfolded(&self, trace: usize, what: &str) -> Option<&Report> {
        self.get_one(trace, &unfolded_name(what))
    }

    pub fn get_one(&self, trace: usize, what: &str) -> Option<&Report> {
        self.done.get(&(trace, what.to_owned()))
    }

    pub fn replicated(&self, trace: usize) -> Option<&request::Report> {
        self.replicated.get(&trace)
    }

    /// Runs what is planned. The order in which runs end changes no result.
    pub fn run(&mut self, tell: &mut dyn FnMut(f64)) -> Result<(), PaperError> {
        let jobs = std::mem::take(&mut self.waiting);
        let run = |((trace, what), job): &(Name, Job)| {
            let trace = &self.traces[*trace];
            let setup = match job {
                Job::Coded(setup) => setup,
                Job::Replicated(setup) => {
                    let report = request::simulate(trace, setup, &mut |_| true);
                    return report.map(|report| (None, Some(report))).map_err(PaperError::from);
                }
            };
            match simulate(&mut trace.requests.iter().map(|request| Ok(*request)), setup) {
                Ok(report) => Ok((Some(report), None)),
                // Its figures are absent.
                Err(CodedError::Overloaded { .. }) => Ok((None, None)),
                Err(error) => Err(PaperError::Coded { name: format!("{}, {what}", trace.name), error }),
            }
        };
        let reports = side_by_side(&jobs, run, tell)?;
        for ((name, _), (coded, replicated)) in jobs.into_iter().zip(reports) {
            self.replicated.extend(replicated.map(|report| (name.0, report)));
            self.done.extend(coded.map(|report| (name, report)));
        }
        Ok(())
    }
}

pub fn saved((asleep, on): (&Report, &Report)) -> f64 {
    1.0 - asleep.energy_modelled.mean_watts / on.energy_modelled.mean_watts
}

/// Mean response time in milliseconds; absent without requests.
pub fn millis(report: &Report) -> Option<f64> {
    report.all.map(|latency| latency.mean_millis)
}
