//! How to replay on a cluster, what is heard meanwhile, and why it failed.

use super::target::TargetError;
use crate::drive::{DriveError, Halt};
use ebb_gear::{Provision, RehearsalError};
use ebb_power::{ModelError, PowerModel};
use ebb_trace::RangeError;
use ebb_types::{GearSteps, VolumeHome};
use std::time::Duration;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Trace seconds per second of the clock; positive.
    pub speed: f64,
    /// `None`: the servers' rates stay as configured in the cluster.
    pub provision: Option<Provision>,
    /// What the cluster wakes and puts to sleep at a time; `None`: as configured in it.
    pub steps: Option<GearSteps>,
    /// Most requests in flight. At the limit later ones wait, which is reported as queue time.
    pub in_flight: usize,
    /// Power model of the servers.
    pub power: PowerModel,
    /// The erasure-coded pool that the volumes move cold data to; `None`: they are in the replicated pool.
    pub home: Option<VolumeHome>,
    /// Hours of the trace that are replayed first, unmeasured: the rest finds the state that they leave. [Sierra §4.3]
    pub prelude: u32,
    /// Replay a second time, with every server awake: what the shifts cost in response time [Sierra §4.5].
    pub beside_always_on: bool,
    /// How long the cluster may take, after the trace, to wake all servers and reclaim its offload.
    pub settle: Duration,
    /// Stops the requests; then the cluster settles, and everything is checked and restored, as after the last one.
    pub halt: Halt,
}

impl Default for ReplayOptions {
    fn default() -> ReplayOptions {
        ReplayOptions {
            speed: 1.0,
            provision: None,
            steps: None,
            in_flight: 4096,
            power: PowerModel::default(),
            home: None,
            prelude: 0,
            beside_always_on: false,
            settle: Duration::from_secs(120),
            halt: Halt::default(),
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
    /// Replaying what is not measured.
    Prelude {
        /// In trace time.
        at: Duration,
        span: Duration,
        debt_bytes: u64,
    },
    Replaying {
        /// Since measuring began, in trace time.
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
    #[error(
        "nothing is left to measure after a prelude of {hours} h: the trace ends after {span:.1} h; give less"
    )]
    Prelude { hours: u32, span: f64 },
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
