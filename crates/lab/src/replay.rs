//! Replay of a block trace on a cluster, as volumes.
//!
//! Each device of the trace becomes a volume. First everything that the trace reads is written; then the requests are
//! issued at the trace's times (divided by the speed), whether or not earlier ones are answered, while the cluster
//! shifts gears by itself; at the end all servers are woken, all offload is reclaimed, everything is read back, and all
//! replicas are compared.
//!
//! [`crate::drive`] is the engine: it issues and checks. This module prepares the cluster for it, observes it
//! meanwhile, and lets it settle.
//!
//! The cluster's schedule is changed for the duration of the replay and restored at its end; its recorded hours are
//! lost, because hours of different length cannot be compared.

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
    /// `None`: the servers' rates stay as configured in the cluster.
    pub provision: Option<Provision>,
    /// Most requests in flight. At the limit later ones wait, which is reported as queue time.
    pub in_flight: usize,
    /// Power model of the servers.
    pub power: PowerModel,
    /// How long the cluster may take, after the trace, to wake all servers and reclaim its offload.
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

/// Progress of a replay. Reported a few times per second.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Writing the data that the trace reads.
    Preparing {
        bytes: u64,
        of: u64,
    },
    Replaying {
        /// Since the trace's start, in trace time.
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
    /// All servers are being woken: the data still owed to them.
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
