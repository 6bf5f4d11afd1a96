//! Replay of a block trace on a cluster, as volumes.
//!
//! Each device of the trace becomes a volume. First everything that the trace reads is written; then the requests
//! are issued when the trace says (divided by the speed), whether or not earlier ones are answered, while the
//! cluster shifts gears by itself; at the end all servers are woken, the debt is paid, everything is read back, and
//! all replicas are compared.
//!
//! [`crate::drive`] is the engine: it issues and checks. Here the cluster is prepared for it, watched meanwhile, and settled.
//!
//! The cluster's schedule is changed for the time of the replay and put back at its end; its recorded hours are lost,
//! because hours of another length say nothing about each other.

pub mod energy;
mod engine;
mod observe;
mod page;
mod report;
mod target;

pub use energy::{EnergyFigures, EnergyReport};
pub use report::{
    GearLatency, HourReport, KindLatency, LatencyReport, OffloadReport, ReplayReport, TraceReport,
    VolumeReport,
};
pub use target::{Cluster, Comparison, TargetError};

use crate::drive::DriveError;
use ebb_gear::{Provision, RehearsalError};
use ebb_power::{ModelError, PowerModel};
use ebb_trace::{RangeError, Trace};
use std::sync::Arc;
use std::time::Duration;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Trace seconds per second of the clock; positive.
    pub speed: f64,
    /// `None`: the servers' rates stay as the cluster has them.
    pub provision: Option<Provision>,
    /// Most requests in flight. When it is reached, later ones wait, which is reported as queue time.
    pub in_flight: usize,
    /// What the servers would draw.
    pub power: PowerModel,
    /// How long the cluster may take, after the trace, to wake all servers and pay its debt.
    pub settle: Duration,
}

impl Default for ReplayOptions {
    fn default() -> ReplayOptions {
        ReplayOptions {
            speed: 1.0,
            provision: None,
            in_flight: 4096,
            power: PowerModel::default(),
            settle: Duration::from_secs(120),
        }
    }
}

/// Where a replay is. Comes a few times per second.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Writing what the trace reads.
    Preparing {
        bytes: u64,
        of: u64,
    },
    Replaying {
        /// Since the trace's start, in the trace's time.
        at: Duration,
        span: Duration,
        issued: u64,
        in_flight: u64,
        /// Failed requests and mismatches so far.
        bad: u64,
        gear: u8,
        servers_awake: u32,
        load: f64,
        debt_bytes: u64,
    },
    /// All servers are woken: what is still owed to them.
    Settling {
        debt_bytes: u64,
    },
    Comparing,
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the trace has no request that moves bytes: there is nothing to replay")]
    Empty,
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Rehearsal(#[from] RehearsalError),
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("cannot {what}: {error}")]
    Cluster { what: &'static str, error: TargetError },
}

/// Replays `trace` on the cluster and reports. A report that did not [`pass`](ReplayReport::passed) is no error.
/// Runs on the caller's tokio runtime; one thread is enough.
pub async fn replay<C: Cluster>(
    options: ReplayOptions,
    trace: &Arc<Trace>,
    client: ebb_client::Client,
    cluster: C,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    engine::run(&options, trace, target::Real { client, cluster }, progress).await
}

#[cfg(test)]
mod tests;
