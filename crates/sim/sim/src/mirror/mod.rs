//! A mirror of two modelled two-speed disks under a trace: energy, response times and throughput of LogStore and of the
//! systems that the paper compares it with. [LogStore §4]
//!
//! The mirror is the production one ([`ebb_mirror::Mirror`]), with everything that it does for safety: marks of the
//! intent map, superblocks, voids of log entries. Only the two disks ([`TwoSpeedDisk`](ebb_mirror::TwoSpeedDisk)), the
//! clock and the client are models.
//!
//! - The client does what the trace says, whenever it says so, however many requests are unanswered.
//! - A disk serves one access at a time, in the order of arrival. It has no volatile cache: a sync takes no time, and a
//!   durable write is a plain one.
//! - Both disks start at high speed, as the paper's emulated ones, and with empty logs.
//! - All data is zeroes, so no disk keeps any: what is read back is what was written.
//!
//! A run ends when the last request is answered. Energy and times of the disks count from the first request until then.

pub(crate) mod disk;
mod measure;
mod page;
mod report;
pub(crate) mod run;
mod setup;
pub(crate) mod show;
mod state;
mod workload;

pub use ebb_mirror::{
    Ack, Adaptive, ModelError, PolicyKind, Settings, SettingsError, Side, Speed, Thresholds, TwoSpeedModel,
};
pub use page::{page, state_charts};
pub use report::{
    Busiest, DiskReport, Energies, Report, Requests, Responses, Sample, SetupReport, States, TraceReport,
    Work,
};
pub use setup::{MirrorError, Setup};
pub use workload::Workload;

use ebb_trace::TraceReader;

/// Runs a trace to its end. `tell` gets the number of requests so far, now and then.
pub fn simulate(
    name: &str,
    trace: &mut dyn TraceReader,
    setup: &Setup,
    tell: &mut dyn FnMut(u64),
) -> Result<Report, MirrorError> {
    setup.check()?;
    run::Run::new(setup)?.play(name, trace, tell)
}

#[cfg(test)]
mod tests;
