//! The result of a run as plain data.

use super::state::State;
use ebb_mirror::{Ack, Energy, Mode, PolicyKind, Speed};
use ebb_output::Latency;
use ebb_types::Joules;
use serde::Serialize;

/// A trace on a mirror. Everything is modelled. Seconds are simulated time, since the start of the trace.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub trace: TraceReport,
    pub setup: SetupReport,
    pub requests: Requests,
    pub response: Responses,
    pub energy_modelled: Energies,
    /// By side: A, B.
    pub disks: [DiskReport; 2],
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceReport {
    pub name: String,
    /// Trace seconds per simulated second.
    pub rate: f64,
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    /// Requests without bytes, which are left out.
    pub empty: u64,
    /// As the trace has them; on the disks they are rounded outward to blocks.
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Requests beyond the mirror's end, which were folded into it.
    pub folded: u64,
    /// Until the last request or the last answer, whichever is later.
    pub span_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct SetupReport {
    pub policy: PolicyKind,
    pub ack: Ack,
    /// Of the adaptive policy; `None`: fixed thresholds.
    pub response_limit_millis: Option<f64>,
    pub log_bytes: u64,
    pub disk: String,
    pub disk_source: String,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    pub answered: u64,
    pub failed: u64,
}

/// Response times, queues included. `None`: there was no such request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Responses {
    pub all: Option<Latency>,
    pub reads: Option<Latency>,
    pub writes: Option<Latency>,
    /// Of requests that arrived or were answered while a disk changed its speed.
    pub in_changes: Option<Latency>,
    pub outside_changes: Option<Latency>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energies {
    #[serde(rename = "total_joules")]
    pub total: Joules,
    pub mean_watts: f64,
    /// Share of both disks' time at low speed, 0 to 1; a change of speed is at neither. `None`: no time has passed.
    pub low_share: Option<f64>,
    /// Changes of speed of both disks.
    pub changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DiskReport {
    #[serde(rename = "energy_joules")]
    pub total: Joules,
    pub low_share: Option<f64>,
    pub energy: Energy,
    pub states: States,
    pub busiest_epoch: Busiest,
    /// Blocks that went from the log to their own places.
    pub replayed_blocks: u64,
    /// Blocks that are still in the log at the end.
    pub left_blocks: u64,
    pub work: Work,
}

/// Accesses of a disk and the time that they took, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// From and to the blocks' own places; replay and what was postponed included.
    pub reads: u64,
    pub read_seconds: f64,
    pub writes: u64,
    pub write_seconds: f64,
    pub log_reads: u64,
    pub log_read_seconds: f64,
    pub log_writes: u64,
    pub log_write_seconds: f64,
    /// Superblock and intent map.
    pub notes: u64,
    pub notes_seconds: f64,
    /// Appended; a block counts each time.
    pub logged_blocks: u64,
}

/// How busy a disk was in the busiest epoch of the policy, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Busiest {
    /// Share of the time in which it worked.
    pub raw: f64,
    /// Filtered and smoothed, as the policy sees it.
    pub smoothed: f64,
}

/// Time that a disk spent in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct States {
    /// In regular and log-replay mode.
    pub low_seconds: f64,
    pub low_log_seconds: f64,
    pub high_seconds: f64,
    pub change_seconds: f64,
}

impl States {
    pub(super) fn add(&mut self, state: State, seconds: f64) {
        *match state {
            State::At(Speed::Low, Mode::Log) => &mut self.low_log_seconds,
            State::At(Speed::Low, Mode::Regular | Mode::Replay) => &mut self.low_seconds,
            State::At(Speed::High, _) => &mut self.high_seconds,
            State::Changing => &mut self.change_seconds,
        } += seconds;
    }

    pub fn seconds(&self) -> f64 {
        self.low_seconds + self.low_log_seconds + self.high_seconds + self.change_seconds
    }
}

/// What happened in 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub at_seconds: f64,
    /// Requests that arrived, and requests that were answered.
    pub offered_per_second: f64,
    pub answered_per_second: f64,
    /// Share of the time in which each disk worked, 0 to 1.
    pub busy: [f64; 2],
    /// By side.
    pub disks: [States; 2],
}
