//! How to replay, how it goes, and why it cannot.

use ebb_trace::TraceError;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stops a replay before its end: nothing more is issued, what is in flight is awaited, and the report has what was
/// measured until then. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Halt(Arc<AtomicBool>);

impl Halt {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Pacing {
    /// Open loop: at their times, divided by `speed` (trace seconds per second, positive).
    Times { speed: f64 },
    /// Closed loop: times are ignored, `depth` requests are kept in flight.
    Peak { depth: usize },
}

/// What happens to a request that ends past the target's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PastEnd {
    /// Its offset is taken modulo the target's size; if it still crosses the end, it is moved back to end there.
    #[default]
    Wrap,
    /// The replay ends with [`DriveError::PastEnd`].
    Refuse,
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    pub pacing: Pacing,
    pub past_end: PastEnd,
    /// Most requests in flight in open loop. At the limit later ones wait, which is reported as queue time. On files
    /// and devices the limit is at most what the device's own queue takes: more would wait in the kernel, unreported.
    pub in_flight: usize,
    /// Requests issued in this time from the start are carried out, but excluded from all figures of the report.
    pub warmup: Duration,
    /// Nothing is issued later than this after the warm-up; `None`: until the requests end.
    pub duration: Option<Duration>,
    /// Every byte read is compared with what was written, and at the end everything written is read once more.
    pub check: bool,
    /// Every request issued is kept: [`DriveReport::issued`](super::DriveReport::issued).
    pub collect: bool,
    pub halt: Halt,
}

impl Default for DriveOptions {
    fn default() -> DriveOptions {
        DriveOptions {
            pacing: Pacing::Times { speed: 1.0 },
            past_end: PastEnd::Wrap,
            in_flight: 4096,
            warmup: Duration::ZERO,
            duration: None,
            check: false,
            collect: false,
            halt: Halt::default(),
        }
    }
}

/// Progress of a replay. Reported a few times per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DriveProgress {
    /// Filling a new target, so that reads find data.
    Preparing { bytes: u64, of: u64 },
    Replaying {
        /// By the clock.
        elapsed: Duration,
        /// Trace time of the last issued request.
        at: Duration,
        issued: u64,
        in_flight: u64,
        failed: u64,
        /// Bytes moved, and the sum of the times from issue to answer.
        bytes: u64,
        service: Duration,
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
    #[error("cannot set up a timer: {0}")]
    Timer(std::io::Error),
    #[error(
        "reads from {target} cannot be checked: the program never looks at data read from files and devices, and on an S3 endpoint \
         writes and reads use different objects; check on an NBD export, a volume or a cluster"
    )]
    Uncheckable { target: String },
    #[error("the target {target} stopped answering: {reason}")]
    Lost { target: String, reason: String },
}

/// Most requests in flight.
pub const MAX_IN_FLIGHT: usize = 16_384;

/// Longest sleep, in nanoseconds: how soon a stop is noticed.
pub(super) const NAP: u64 = 250_000_000;

/// Time between two progress reports.
pub(super) const TICK: Duration = Duration::from_millis(200);

impl DriveOptions {
    /// Refuses what no replay can do, before a target is opened for it.
    pub fn check(&self) -> Result<(), DriveError> {
        if let Pacing::Times { speed } = self.pacing
            && (!speed.is_normal() || speed < 0.0)
        {
            return Err(DriveError::Speed(speed));
        }
        match self.most_in_flight() {
            1..=MAX_IN_FLIGHT => Ok(()),
            other => Err(DriveError::InFlight(other)),
        }
    }

    /// At a peak the queue's depth.
    pub(super) fn most_in_flight(&self) -> usize {
        match self.pacing {
            Pacing::Times { .. } => self.in_flight,
            Pacing::Peak { depth } => depth,
        }
    }
}
