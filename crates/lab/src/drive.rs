//! Replay of requests on any storage: a file, a block device, an NBD export, an S3 endpoint, a volume of Ebb.
//!
//! [`drive`] takes an iterator of requests (a trace, one under load control, a synthetic workload) and issues them at
//! their times, whether or not earlier ones are answered, those of one time together [TRACER §III.B], or as fast as a
//! queue of given depth empties ([`Pacing`]). It checks no content: [`crate::replay`] does, on a cluster.
//!
//! How a trace is laid on a target ([`place`]): every request is moved to the target's blocks, into its size, and is cut
//! into parts where it is longer than what is issued at once; each of that is counted in the report.
//!
//! Three threads of time are kept apart, so that the instrument cannot be taken for what it measures:
//! - *lateness*: how long after its time a request was issued although there was a place for it: the engine's own error;
//! - *queue time*: how long it waited because as many requests as allowed were in flight;
//! - *service time*: from issue to answer.
//!
//! Files and devices are driven by one io_uring on a thread of its own ([`ring`]); what is reached over sockets by tasks
//! on the caller's tokio runtime ([`remote`]). The trace is read and placed by a third thread, some thousand requests
//! ahead, so memory does not grow with its length.

mod report;
mod spec;

pub use report::{CpuTime, Distribution, DriveReport, KindReport, PlacedReport, SecondReport, TargetInfo};
pub use spec::{SpecError, TargetSpec};

use ebb_trace::TraceError;
use serde::Serialize;
use std::time::Duration;

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Pacing {
    /// Open loop: at their times, divided by `speed` (trace seconds per second, positive).
    Times { speed: f64 },
    /// Closed loop: times are passed over, `depth` requests are kept in flight.
    Peak { depth: usize },
}

/// What happens to a request that ends past the target's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PastEnd {
    /// Its offset is taken modulo the target's size; if it still crosses the end it is moved back to end there.
    #[default]
    Wrap,
    /// The replay ends with [`DriveError::PastEnd`].
    Refuse,
}

/// How to replay.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveOptions {
    pub pacing: Pacing,
    pub past_end: PastEnd,
    /// Most requests in flight in open loop. When it is reached, later ones wait, which is told as queue time.
    pub in_flight: usize,
    /// What is issued in this time from the start is carried out, but is in no figure of the report.
    pub warmup: Duration,
    /// Nothing is issued later than this after the warm-up; `None`: until the requests end.
    pub duration: Option<Duration>,
}

impl Default for DriveOptions {
    fn default() -> DriveOptions {
        DriveOptions {
            pacing: Pacing::Times { speed: 1.0 },
            past_end: PastEnd::Wrap,
            in_flight: 4096,
            warmup: Duration::ZERO,
            duration: None,
        }
    }
}

/// Where a replay is. Comes a few times per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DriveProgress {
    /// Filling a target that has just been made, so that reads find data.
    Preparing { bytes: u64, of: u64 },
    Replaying {
        /// By the clock.
        elapsed: Duration,
        /// The last issued request's time in the trace.
        at: Duration,
        issued: u64,
        in_flight: u64,
        failed: u64,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("the speed is {0}: it must be a positive number of trace seconds per second")]
    Speed(f64),
    #[error("the queue depth and the number of requests in flight must be 1 to {most}, not {0}", most = MAX_IN_FLIGHT)]
    InFlight(usize),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("nothing to replay: no request moves any bytes")]
    Empty,
    #[error(
        "request {number} of the trace ends at byte {end}, past the end of the target ({size} bytes): enlarge the target, \
         or let such requests wrap around"
    )]
    PastEnd { number: u64, end: u64, size: u64 },
    #[error("cannot set up io_uring: {0}; the kernel may forbid it (sysctl kernel.io_uring_disabled)")]
    Ring(std::io::Error),
    #[error("the target {target} stopped answering: {reason}")]
    Lost { target: String, reason: String },
}

/// Most requests in flight.
pub const MAX_IN_FLIGHT: usize = 16_384;
