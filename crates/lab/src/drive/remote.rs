//! The engine for what is reached over sockets: one task per request, on the caller's tokio runtime.
//!
//! tokio's timers have a resolution of a millisecond, so the schedule is kept by a timer of the kernel (timerfd).

use super::feed::Feed;
use super::nbd::Nbd;
use super::place::{LONGEST, Op};
use super::record::{Issue, Recorder, Shared};
use super::report::PlacedReport;
use super::s3::S3;
use super::volume::Volume;
use super::{DriveError, DriveOptions, Pacing};
use bytes::Bytes;
use ebb_trace::Kind;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

/// A write's bytes start at one of the pages before the last [`LONGEST`] of the pattern.
const STARTS: usize = 256;
const PAGE: usize = 4096;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// This one: the next may succeed.
    Request(String),
    /// The target is gone.
    Lost(String),
}

/// What is reached over sockets. All clones are the same target.
#[derive(Clone)]
pub(super) enum Remote {
    Nbd(Nbd),
    S3(S3),
    Volume(Volume),
}

impl Remote {
    async fn carry_out(&self, op: Op, payload: Bytes) -> Result<(), Failure> {
        let (offset, len) = (op.offset, op.len);
        match (self, op.kind) {
            (Remote::Nbd(nbd), Kind::Read) => nbd.read(offset, len).await.map(drop),
            (Remote::Nbd(nbd), Kind::Write) => nbd.write(offset, payload).await,
            (Remote::S3(s3), Kind::Read) => s3.read(offset, len).await,
            (Remote::S3(s3), Kind::Write) => s3.write(offset, &payload).await,
            (Remote::Volume(volume), Kind::Read) => volume.read(offset, len).await,
            (Remote::Volume(volume), Kind::Write) => volume.write(offset, payload).await,
        }
    }
}

/// Sleeps until an instant, to the microsecond.
struct Timer {
    fd: AsyncFd<OwnedFd>,
}

impl Timer {
    fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the descriptor is owned, and closed only by the `AsyncFd`, after it has been deregistered.
        Ok(Timer { fd: unsafe { AsyncFd::register(fd)? } })
    }

    /// Sleeps `nanos`. `None`: for ever.
    async fn sleep(&self, nanos: Option<u64>) -> io::Result<()> {
        let Some(nanos) = nanos else { return pending().await };
        // Zero would disarm it.
        let nanos = nanos.max(1);
        let value =
            Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec)?;
        // Setting it anew has taken back an expiry that nobody read.
        self.fd.readable().await?.clear_ready();
        Ok(())
    }
}

/// What a task says when its request is answered.
struct Answer {
    op: Op,
    issue: Issue,
    /// Nanoseconds since the start.
    at: u64,
    outcome: Result<(), Failure>,
}

struct Engine<'a> {
    remote: &'a Remote,
    pattern: Bytes,
    writes: usize,
    tasks: JoinSet<Answer>,
    recorder: Recorder,
    shared: &'a Shared,
    freed: u64,
}

/// Replays; the future ends when everything is answered. Dropping it stops the replay.
pub(super) async fn run(
    remote: &Remote,
    name: &str,
    mut feed: Feed,
    options: &DriveOptions,
    shared: &Shared,
) -> Result<(Recorder, PlacedReport, u64), DriveError> {
    feed.fetch().await;
    let mut pattern = vec![0; LONGEST as usize + STARTS * PAGE];
    super::memory::fill(0, &mut pattern);
    let timer = Timer::new().map_err(DriveError::Timer)?;
    let mut engine = Engine {
        remote,
        pattern: pattern.into(),
        writes: 0,
        tasks: JoinSet::new(),
        recorder: Recorder::new(options),
        shared,
        freed: 0,
    };
    let lost = |reason| DriveError::Lost { target: name.to_owned(), reason };
    let most = match options.pacing {
        Pacing::Times { .. } => options.in_flight,
        Pacing::Peak { depth } => depth,
    };
    let end = options.duration.map(|duration| (options.warmup + duration).as_nanos() as u64);
    let finished = loop {
        let now = engine.recorder.now();
        engine.recorder.tick(now);
        let op = if feed.fetch().await { feed.peek().copied() } else { None };
        let full = engine.tasks.len() >= most;
        let until = match (op, end) {
            (Some(op), Some(end)) if op.due.max(now) >= end => Some(end),
            (Some(op), _) if op.due <= now && !full => {
                feed.next();
                engine.issue(op, now);
                continue;
            }
            (Some(op), _) if !full => Some(op.due),
            (Some(_), _) => end,
            (None, _) => None,
        };
        if engine.tasks.is_empty() && (op.is_none() || end.is_some_and(|end| now >= end)) {
            break until.unwrap_or(0);
        }
        let sleep = until.filter(|until| *until > now).map(|until| until - now);
        tokio::select! {
            biased;
            Some(answer) = engine.tasks.join_next() => {
                engine.answered(answer.expect("a request's task does not panic"), full).map_err(lost)?;
            }
            slept = timer.sleep(sleep) => slept.map_err(DriveError::Timer)?,
        }
    };
    Ok((engine.recorder, feed.finish()?, finished))
}

impl Engine<'_> {
    fn issue(&mut self, op: Op, now: u64) {
        let payload = match op.kind {
            Kind::Read => Bytes::new(),
            Kind::Write => {
                let start = self.writes % STARTS * PAGE;
                self.writes += 1;
                self.pattern.slice(start..start + op.len as usize)
            }
        };
        let issue = Issue { due: op.due, free: op.due.max(self.freed.min(now)), at: now };
        self.recorder.issued(&issue);
        self.shared.issued.fetch_add(1, Ordering::Relaxed);
        self.shared.due.store(op.due, Ordering::Relaxed);
        let (remote, start): (Remote, Instant) = (self.remote.clone(), self.recorder.start());
        self.tasks.spawn(async move {
            let outcome = remote.carry_out(op, payload).await;
            Answer { op, issue, at: start.elapsed().as_nanos() as u64, outcome }
        });
    }

    /// The error says why the target is gone.
    fn answered(&mut self, answer: Answer, full: bool) -> Result<(), String> {
        if full {
            self.freed = self.recorder.now();
        }
        let outcome = match answer.outcome {
            Ok(()) => Ok(answer.op.len),
            Err(Failure::Request(error)) => Err(error),
            Err(Failure::Lost(reason)) => return Err(reason),
        };
        self.recorder.answered(answer.op.kind, &answer.issue, answer.at, outcome, self.shared);
        Ok(())
    }
}
