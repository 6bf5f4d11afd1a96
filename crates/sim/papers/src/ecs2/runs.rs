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

enum Done {
    Coded(Result<Box<Report>, CodedError>),
    Replicated(Result<Box<request::Report>, request::SimError>),
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
        let (traces, mut ended) = (&self.traces, 0);
        let run = |((trace, _), job): &(Name, Job)| {
            let trace = &traces[*trace];
            match job {
                Job::Coded(setup) => Done::Coded(
                    simulate(&mut trace.requests.iter().map(|request| Ok(*request)), setup).map(Box::new),
                ),
                Job::Replicated(setup) => {
                    Done::Replicated(request::simulate(trace, setup, &mut |_| true).map(Box::new))
                }
            }
        };
        side_by_side(&jobs, run, |(name, _), done| {
            match done {
                Done::Coded(Ok(report)) => drop(self.done.insert(name.clone(), *report)),
                // Its figures are absent.
                Done::Coded(Err(CodedError::Overloaded { .. })) => {}
                Done::Coded(Err(error)) => {
                    let name = format!("{}, {}", traces[name.0].name, name.1);
                    return Err(PaperError::Coded { name, error });
                }
                Done::Replicated(report) => drop(self.replicated.insert(name.0, *report?)),
            }
            ended += 1;
            tell(f64::from(ended) / jobs.len() as f64);
            Ok(())
        })
    }
}

pub fn saved((asleep, on): (&Report, &Report)) -> f64 {
    1.0 - asleep.energy_modelled.mean_watts / on.energy_modelled.mean_watts
}

/// Mean response time in milliseconds; absent without requests.
pub fn millis(report: &Report) -> Option<f64> {
    report.all.map(|latency| latency.mean_millis)
}
