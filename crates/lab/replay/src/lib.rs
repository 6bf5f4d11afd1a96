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

pub mod drive;
pub mod energy;
mod engine;
mod observe;
mod options;
mod page;
mod report;
mod target;

pub use energy::{Account, Compared, EnergyFigures, EnergyReport};
pub use observe::{Stretch, Stretches};
pub use options::{Progress, ReplayError, ReplayOptions};
pub use report::{
    AlwaysOnReport, Behind, GearLatency, HourReport, KindLatency, LatencyReport, OffloadReport,
    PreludeReport, ReplayReport, StretchLatency, TraceReport, VolumeReport,
};
pub use target::{Cluster, Comparison, TargetError};

use ebb_trace::Trace;
use std::sync::Arc;

/// Replays `trace` on the cluster and reports. A report that did not [`pass`](ReplayReport::passed) is not an error.
/// Runs on the caller's tokio runtime; one thread is enough.
pub async fn replay<C: Cluster>(
    options: ReplayOptions,
    trace: &Arc<Trace>,
    client: ebb_client::Client,
    cluster: C,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    let target = target::Real::new(client, cluster, options.home);
    engine::run(&options, trace, target, progress).await
}

#[cfg(test)]
mod tests;
