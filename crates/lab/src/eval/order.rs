//! What an evaluation asks of a workload generator and of a power analyzer, here or on another machine [TRACER §III.A].
//!
//! Both have their own clock. Windows of time go from one to the other by way of this machine's clock and the offsets
//! that were measured ([`Generator::clock_offset`]).

use super::matrix::{Filter, Workload};
use ebb_report::Latency;
use ebb_types::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where a run is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// As [`crate::drive::TargetSpec`] reads it.
    pub at: String,
    /// Of a file that is made for the purpose.
    pub size_bytes: u64,
    pub overwrite: bool,
}

/// How hard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Intensity {
    /// What the target can do with so many requests in flight; of a trace, which has a rate, what it asks for.
    Peak { depth: u32 },
    /// Open loop: `percent` of the workload, which at 100 % has `peak_iops`.
    Level { percent: f64, filter: Filter, peak_iops: f64 },
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub place: Place,
    pub workload: Workload,
    pub intensity: Intensity,
    pub length: Duration,
    pub seed: u64,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// First issue and last answer, on the generator's clock.
    pub from: Moment,
    pub to: Moment,
    /// Answered, without those that failed.
    pub requests: u64,
    pub bytes: u64,
    pub failed: u64,
    /// The first failures in words.
    pub errors: Vec<String>,
    /// The mode vector as it was.
    pub request_bytes: f64,
    pub random_percent: f64,
    pub read_percent: f64,
    /// Of reads and writes together.
    pub latency: Option<Latency>,
    pub lateness_p99_millis: Option<f64>,
    pub queue_p99_millis: Option<f64>,
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
    pub program_version: String,
}

/// What the meters saw in a window, added up. What no meter saw is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Draw {
    pub volts: Option<f64>,
    pub amps: Option<f64>,
    /// Mean power.
    pub watts: Option<f64>,
    /// As soon as one of the parts is.
    pub modelled: bool,
    /// Of the meter that is covered least.
    pub coverage: Option<f64>,
    /// Of the hottest thing that is seen.
    pub celsius: Option<f64>,
    /// Names of the meters.
    pub meters: String,
}

/// Why a run has no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// This run cannot be done; the next one may.
    #[error("{0}")]
    Failed(String),
    /// Nothing more can be done there: the machine cannot be reached, the meter is gone.
    #[error("{0}")]
    Lost(String),
}

/// Brings load to targets.
pub trait Generator: Send {
    /// Its clock's reading minus this machine's ([`ebb_power::meter::now`]) at one moment, in nanoseconds.
    fn clock_offset(&mut self) -> Result<i64, RunError>;
    /// Opens the target, makes it if need be, and says on what machine it did.
    fn prepare(&mut self, place: &Place) -> Result<Machine, RunError>;
    /// Carries out a run, and returns when the last answer is there.
    fn run(&mut self, order: &Order) -> Result<Performance, RunError>;
}

/// Reads power.
pub trait Analyzer: Send {
    /// As [`Generator::clock_offset`].
    fn clock_offset(&mut self) -> Result<i64, RunError>;
    /// Has every meter read: right before a run, so that samples cover it from its beginning.
    fn mark(&mut self) -> Result<(), RunError>;
    /// Has every meter read, and says what they saw in the window, on its own clock.
    fn draw(&mut self, from: Moment, to: Moment) -> Result<Draw, RunError>;
}
