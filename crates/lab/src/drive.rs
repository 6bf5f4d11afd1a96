//! Replay of requests on any storage: a file, a block device, an NBD export, an S3 endpoint, a volume of Ebb.
//!
//! [`drive`] takes an iterator of requests (a trace, one under load control, a synthetic workload) and issues them at
//! their times, whether or not earlier ones are answered, those of one time together [TRACER §III.B], or as fast as a
//! queue of given depth empties ([`Pacing`]). If asked to, it verifies every byte read ([`check`]). [`crate::replay`]
//! replays on a whole cluster and observes it.
//!
//! How a trace is placed on a target ([`place`]): every request is aligned to the target's blocks, moved within its
//! size, and split if it is longer than the limit for one request; each of these is counted in the report.
//!
//! Three times are kept apart, so that the instrument cannot be mistaken for what it measures:
//! - *lateness*: how long after its time a request was issued although there was a place for it: the engine's own
//!   error;
//! - *queue time*: how long it waited because the maximum number of requests was in flight;
//! - *service time*: from issue to answer.
//!
//! Files and devices are driven by one io_uring on its own thread ([`ring`]); targets behind sockets by tasks on the
//! caller's tokio runtime ([`remote`]). The trace is read and placed by a third thread, a few thousand requests ahead,
//! so memory does not grow with its length.

mod check;
mod disk;
mod feed;
mod guard;
mod ledger;
mod memory;
mod nbd;
mod page;
mod place;
mod record;
mod remote;
mod report;
mod ring;
mod s3;
mod spec;
mod target;
mod volume;

pub use check::CheckReport;
pub use ledger::Mismatch;
pub use nbd::NbdError;
pub use report::{CpuTime, DriveReport, KindReport, PlacedReport, SecondReport, TargetInfo};
pub use spec::{SpecError, TargetSpec};
pub use target::{OpenOptions, S3Keys, Target, TargetError};

use ebb_trace::{Request, TraceError};
/// The parts of the engine that a replay on a whole cluster uses.
pub(crate) mod engine {
    pub(crate) use super::check::Check;
    pub(crate) use super::feed::Feed;
    pub(crate) use super::ledger::Span;
    pub(crate) use super::place::Placer;
    pub(crate) use super::record::Shared;
    pub(crate) use super::remote::{Answered, Answering, Course, Failure, Storage, Timer, run};
}

use check::Check;
use feed::Feed;
use place::Placer;
use record::{Recorder, Shared};
use remote::{Course, Timer};
use serde::Serialize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use target::Means;
use tokio::time::Instant;

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
#[derive(Clone, Debug, PartialEq)]
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

/// Time between two progress reports.
const TICK: Duration = Duration::from_millis(200);

pub(crate) fn validate(options: &DriveOptions) -> Result<(), DriveError> {
    if let Pacing::Times { speed } = options.pacing
        && (!speed.is_normal() || speed < 0.0)
    {
        return Err(DriveError::Speed(speed));
    }
    let in_flight = match options.pacing {
        Pacing::Times { .. } => options.in_flight,
        Pacing::Peak { depth } => depth,
    };
    match in_flight {
        1..=MAX_IN_FLIGHT => Ok(()),
        other => Err(DriveError::InFlight(other)),
    }
}

/// Stops a replay on another thread when the future that waits for it is dropped.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Replays `requests`, which are ordered by time, on a target and reports. Requests that the target fails are counted
/// and are not errors. Runs on the caller's tokio runtime, which must have time and I/O; one thread is enough. Dropping
/// the future stops the replay: requests in flight are still carried out.
pub async fn drive<I>(
    options: &DriveOptions,
    requests: I,
    target: &Target,
    progress: &mut dyn FnMut(DriveProgress),
) -> Result<DriveReport, DriveError>
where
    I: Iterator<Item = Result<Request, TraceError>> + Send + 'static,
{
    validate(options)?;
    let info = target.info().clone();
    let mut check = match (options.check, info.checkable) {
        (false, _) => None,
        (true, true) => Some(Check::of_one(&info.name)),
        (true, false) => return Err(DriveError::Uncheckable { target: info.name }),
    };
    let placer = Placer::new(info.size_bytes, info.block_bytes, options.past_end, options.pacing);
    let feed = Feed::start(requests, placer);
    let shared = Arc::new(Shared::default());
    let stop = StopOnDrop(shared.clone());
    let (recorder, placed, end) = {
        let mut run = pin!(carry_out(options, target, feed, &shared, check.as_mut()));
        let start = Instant::now();
        loop {
            match tokio::time::timeout(TICK, &mut run).await {
                Ok(outcome) => break outcome?,
                Err(_) => progress(shared.progress(start.elapsed(), options.pacing)),
            }
        }
    };
    drop(stop);
    if shared.issued.load(Ordering::Relaxed) == 0 && end == 0 {
        return Err(DriveError::Empty);
    }
    let mut report = recorder.report(options, info.clone(), placed, end);
    if let (Some(check), Means::Remote(storage)) = (check, &target.means) {
        check.finish(storage, &mut report).await?;
    }
    Ok(report)
}

async fn carry_out(
    options: &DriveOptions,
    target: &Target,
    feed: Feed,
    shared: &Arc<Shared>,
    check: Option<&mut Check>,
) -> Result<(Recorder, PlacedReport, u64), DriveError> {
    match &target.means {
        Means::Disk(disk) => {
            let (disk, mut options, shared) = (disk.clone(), options.clone(), shared.clone());
            options.in_flight = options.in_flight.min(disk.takes.unwrap_or(MAX_IN_FLIGHT));
            let running = tokio::task::spawn_blocking(move || ring::run(&disk.file, feed, &options, &shared));
            running.await.expect("the engine's thread does not panic")
        }
        Means::Remote(storage) => {
            let timer = Timer::new().map_err(DriveError::Timer)?;
            let (name, answered) = (&target.info.name, &mut |_| ());
            remote::run(Course { storage, name, options, shared, timer, check, answered }, feed).await
        }
    }
}

#[cfg(test)]
mod remote_tests;
#[cfg(test)]
mod tests;
