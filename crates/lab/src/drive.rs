//! Replay of requests on any storage: a file, a block device, an NBD export, an S3 endpoint, a volume of Ebb.
//!
//! [`drive`] takes an iterator of requests (a trace, one under load control, a synthetic workload) and issues them at
//! their times, whether or not earlier ones are answered, those of one time together [TRACER §III.B], or as fast as a
//! queue of given depth empties ([`Pacing`]). Where it is asked to, it checks every byte that comes back ([`check`]).
//! [`crate::replay`] has a whole cluster replayed on, and watches it.
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
/// What a replay on a whole cluster is made of.
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
    /// Most requests in flight in open loop. When it is reached, later ones wait, which is told as queue time. On files and
    /// devices no more are than the device's own queue takes: more would wait in the kernel, untold.
    pub in_flight: usize,
    /// What is issued in this time from the start is carried out, but is in no figure of the report.
    pub warmup: Duration,
    /// Nothing is issued later than this after the warm-up; `None`: until the requests end.
    pub duration: Option<Duration>,
    /// Every byte that comes back is held against what was written, and at the end all that was written is read once more.
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
    #[error("cannot set up a timer: {0}")]
    Timer(std::io::Error),
    #[error(
        "what comes back from {target} cannot be checked: files and devices are read past the program, and what an S3 endpoint \
         is given is another object than what is read; check on an NBD export, a volume or a cluster"
    )]
    Uncheckable { target: String },
    #[error("the target {target} stopped answering: {reason}")]
    Lost { target: String, reason: String },
}

/// Most requests in flight.
pub const MAX_IN_FLIGHT: usize = 16_384;

/// Between two calls for progress.
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

/// Tells a replay on another thread to stop when the one who waits for it goes away.
struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Replays `requests`, which come in order of time, on a target and reports. Requests that the target fails are counted
/// and are no error. Runs on the caller's tokio runtime, which must have time and I/O; one thread is enough. Dropping
/// the future stops the replay: what is in flight is still carried out.
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
