//! What an evaluation requests from a workload generator and a power analyzer, here or on another machine [TRACER
//! §III.A].
//!
//! Both have their own clock. Time windows are converted from one to the other through this machine's clock and the
//! measured offsets ([`Generator::clock_offset`]).

use super::matrix::{Collector, Filter};
use super::workload::Workload;
use ebb_meter::Source;
use ebb_output::Latency;
use ebb_types::Moment;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Target of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// As [`ebb_replay::drive::TargetSpec`] reads it.
    pub at: String,
    /// Size of a file created for the evaluation.
    pub size_bytes: u64,
    pub overwrite: bool,
}

/// Intensity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Intensity {
    /// What the target can do with this many requests in flight; for a trace, which has its own rate, the trace's load.
    Peak { depth: u32 },
    /// Open loop: `percent` of the trace.
    Level { percent: f64, filter: Filter },
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub place: Place,
    pub workload: Workload,
    pub intensity: Intensity,
    pub length: Duration,
    pub seed: u64,
    /// The trace of a synthetic workload: collected while its peak is looked for, and replayed at every level. A path
    /// in the file system of the machine that generates the load, or inside its agent's directory of traces.
    pub trace: Option<PathBuf>,
    /// Who collects that trace.
    pub collector: Collector,
    /// Length of one interval of [`Performance::series`].
    pub interval: Duration,
}

/// What was answered in one interval of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Since the start of the run.
    pub from_seconds: f64,
    pub seconds: f64,
    pub requests: u64,
    pub bytes: u64,
    pub failed: u64,
}

/// A run in progress: since the previous report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    pub iops: f64,
    pub mb_per_second: f64,
    /// Mean response time; absent: nothing was answered.
    pub response_millis: Option<f64>,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// First issue and last answer, on the generator's clock.
    pub from: Moment,
    pub to: Moment,
    /// Answered requests, without failed ones.
    pub requests: u64,
    pub bytes: u64,
    pub failed: u64,
    /// The first failures, as text.
    pub errors: Vec<String>,
    /// The mode vector as measured.
    pub request_bytes: f64,
    pub random_percent: f64,
    pub read_percent: f64,
    /// Of reads and writes together.
    pub latency: Option<Latency>,
    pub lateness_p99_millis: Option<f64>,
    pub queue_p99_millis: Option<f64>,
    /// Of a run longer than one interval.
    pub series: Vec<Interval>,
}

impl Performance {
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }
}

/// The machine that generates the load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub host: Option<String>,
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    /// The target as it was found.
    pub device: Option<String>,
    /// Kind of device, for the names of traces: `hdd`, `ssd`, `file`, `nbd`, `s3`, `volume`.
    pub medium: String,
    pub program_version: String,
}

/// What the meters measured in a window, added up. Absent if no meter measured it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Draw {
    pub volts: Option<f64>,
    pub amps: Option<f64>,
    /// Mean power.
    pub watts: Option<f64>,
    /// Where the watts come from: of several meters, the least trustworthy source.
    pub source: Option<Source>,
    /// Coverage of the meter with the least.
    pub coverage: Option<f64>,
    /// Of the hottest sensor.
    pub celsius: Option<f64>,
    /// Names of the meters.
    pub meters: String,
}

/// What the meters read now; what is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Present {
    /// Of all meters together.
    pub watts: Option<f64>,
    /// Of the hottest sensor.
    pub celsius: Option<f64>,
    /// Power and temperature of each channel that has a reading.
    pub channels: Vec<Reading>,
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The meter's name and the channel's.
    pub name: String,
    /// `W` or `°C`.
    pub unit: String,
    pub source: Source,
    pub value: f64,
}

/// Why a run has no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// This run cannot be done; the next one may.
    #[error("{0}")]
    Failed(String),
    /// Nothing more can be done there: the machine is unreachable, or the meter is gone.
    #[error("{0}")]
    Lost(String),
}

/// Generates load on targets.
pub trait Generator: Send {
    /// Its clock's reading minus this machine's ([`ebb_meter::now`]) at one moment, in nanoseconds.
    fn clock_offset(&mut self) -> Result<i64, RunError>;
    /// Opens the target, creates it if needed, and returns the machine it is on.
    fn prepare(&mut self, place: &Place) -> Result<Machine, RunError>;
    /// Whether the trace of a peak run is still where it was kept.
    fn holds(&mut self, trace: &Path) -> Result<bool, RunError>;
    /// Carries out a run, and returns after its length and the last answer. `tell` is called a few times per second.
    fn run(&mut self, order: &Order, tell: &mut dyn FnMut(Live)) -> Result<Performance, RunError>;
}

/// Reads power.
pub trait Analyzer: Send {
    /// Like [`Generator::clock_offset`].
    fn clock_offset(&mut self) -> Result<i64, RunError>;
    /// Reads every meter: right before a run, so that samples cover it from its beginning.
    fn mark(&mut self) -> Result<(), RunError>;
    /// Reads every meter, and returns what they measured in the window, on its own clock.
    fn draw(&mut self, from: Moment, to: Moment) -> Result<Draw, RunError>;
    /// What the meters read now, as far as it is known without another reading.
    fn present(&mut self) -> Present;
}
