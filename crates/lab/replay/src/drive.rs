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
mod error;
mod feed;
mod guard;
mod ledger;
mod memory;
mod nbd;
mod options;
mod page;
mod place;
mod record;
mod remote;
mod report;
mod ring;
mod s3;
mod spec;
pub(crate) mod storage;
mod target;
mod volume;

pub use error::{NbdError, TargetError};
pub use ledger::Mismatch;
pub use options::{DriveError, DriveOptions, DriveProgress, Halt, MAX_IN_FLIGHT, Pacing, PastEnd};
pub use report::{CheckReport, CpuTime, DriveReport, KindReport, PlacedReport, SecondReport, TargetInfo};
pub use s3::S3Keys;
pub use spec::{SpecError, TargetSpec};
pub use storage::{Answering, Failure, Storage};
pub use target::{OpenOptions, Target};

use ebb_trace::TraceReader;
/// The parts of the engine that a replay on a whole cluster uses.
pub(crate) mod engine {
    pub(crate) use super::check::Check;
    pub(crate) use super::feed::Feed;
    pub(crate) use super::ledger::Span;
    pub(crate) use super::place::Placer;
    pub(crate) use super::record::Shared;
    pub(crate) use super::remote::{Answered, Course, Timer, run};
    pub(crate) use super::storage::{Answering, Failure, Storage};
}

use check::Check;
use feed::Feed;
use options::TICK;
use place::Placer;
pub use record::COLLECTED_MOST;
use record::{Recorder, Shared};
use remote::{Course, Timer};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use target::Means;
use tokio::time::Instant;

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
    I: TraceReader + 'static,
{
    options.check()?;
    let info = target.info().clone();
    let mut check = match (options.check, info.checkable) {
        (false, _) => None,
        (true, true) => Some(Check::of_one(&info.name)),
        (true, false) => return Err(DriveError::Uncheckable { target: info.name }),
    };
    let placer = Placer::new(info.size_bytes, info.block_bytes, options.past_end, options.pacing);
    let feed = Feed::start(requests, placer, |requests, placed| {
        (placed.skipped, placed.left_out) = (requests.skipped(), requests.left_out());
    });
    let shared = Arc::new(Shared::new(options));
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
    let halted = options.halt.is_set();
    if shared.issued.load(Ordering::Relaxed) == 0 && end == 0 && !halted {
        return Err(DriveError::Empty);
    }
    let mut report = recorder.report(options, info.clone(), placed, end);
    report.stopped_at_seconds = halted.then_some(report.wall_seconds);
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
