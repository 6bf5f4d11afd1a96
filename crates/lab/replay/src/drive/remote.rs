//! The engine for targets behind sockets: one task per request, on the caller's tokio runtime.
//!
//! tokio's timers have a resolution of a millisecond, so the schedule uses a kernel timer (timerfd).

use super::check::Check;
use super::feed::Feed;
use super::ledger::Ticket;
use super::options::{DriveError, DriveOptions, NAP};
use super::place::{LONGEST, Op};
use super::record::{Issue, Recorder, Shared};
use super::report::PlacedReport;
use super::storage::{Failure, Storage};
use bytes::Bytes;
use ebb_bench::content::Number;
use ebb_trace::Kind;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A write's bytes start at one of the pages before the last [`LONGEST`] of the pattern.
const STARTS: usize = 256;
const PAGE: usize = 4096;

/// Sleeps with microsecond precision.
pub(crate) struct Timer {
    /// `None`: on a test's virtual clock.
    kernel: Option<AsyncFd<OwnedFd>>,
}

impl Timer {
    pub fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the descriptor is owned, and closed only by the `AsyncFd`, after it has been deregistered.
        Ok(Timer { kernel: Some(unsafe { AsyncFd::register(fd)? }) })
    }

    #[cfg(test)]
    pub fn on_the_virtual_clock() -> Timer {
        Timer { kernel: None }
    }

    /// Sleeps `nanos`. `None`: forever.
    async fn sleep(&self, nanos: Option<u64>) -> io::Result<()> {
        let Some(nanos) = nanos else { return pending().await };
        let Some(fd) = &self.kernel else {
            tokio::time::sleep(Duration::from_nanos(nanos)).await;
            return Ok(());
        };
        // Zero would disarm it.
        let nanos = nanos.max(1);
        let value =
            Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(fd, TimerfdTimerFlags::empty(), &spec)?;
        // Setting it again has cancelled an expiry that was never read.
        fd.readable().await?.clear_ready();
        Ok(())
    }
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub issued: Instant,
    pub service: Duration,
    pub kind: Kind,
}

/// Message of a task when its request is answered.
struct Answer {
    op: Op,
    issue: Issue,
    /// In a verifying replay.
    ticket: Option<Ticket>,
    /// Nanoseconds since the start.
    at: u64,
    outcome: Result<Bytes, Failure>,
}

/// The target of a replay, and its settings.
pub(crate) struct Course<'a> {
    pub storage: &'a Arc<dyn Storage>,
    pub name: &'a str,
    pub options: &'a DriveOptions,
    pub shared: &'a Shared,
    pub timer: Timer,
    /// Absent: the bytes read are not checked.
    pub check: Option<&'a mut Check>,
    /// Called for every successful request.
    pub answered: &'a mut dyn FnMut(Answered),
}

struct Engine<'a> {
    course: Course<'a>,
    /// Content of writes if nothing is checked.
    pattern: Bytes,
    writes: usize,
    tasks: JoinSet<Answer>,
    /// Writes that wait for an earlier one to the same bytes, with their due times.
    waiting: BTreeMap<Ticket, (Op, u64)>,
    recorder: Recorder,
    freed: u64,
}

/// Replays; the future ends when everything is answered. Dropping it stops the replay.
pub(crate) async fn run(
    course: Course<'_>,
    mut feed: Feed,
) -> Result<(Recorder, PlacedReport, u64), DriveError> {
    feed.fetch().await;
    let mut engine = Engine::new(course);
    let options = engine.course.options;
    let most = options.most_in_flight();
    let end = options.duration.map(|duration| (options.warmup + duration).as_nanos() as u64);
    let finished = loop {
        let now = engine.recorder.now();
        engine.recorder.tick(now);
        let stopped = engine.course.shared.stopped();
        let op = if !stopped && feed.fetch().await { feed.peek().copied() } else { None };
        let full = engine.tasks.len() + engine.waiting.len() >= most;
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
            break if stopped { now } else { until.unwrap_or(0) };
        }
        let sleep = until.filter(|until| *until > now).map(|until| (until - now).min(NAP));
        tokio::select! {
            biased;
            Some(answer) = engine.tasks.join_next() => {
                let target = engine.course.name.to_owned();
                let answer = answer.expect("a request's task does not panic");
                engine.answered(answer, full).map_err(|reason| DriveError::Lost { target, reason })?;
            }
            slept = engine.course.timer.sleep(sleep) => slept.map_err(DriveError::Timer)?,
        }
    };
    Ok((engine.recorder, feed.finish()?, finished))
}

impl<'a> Engine<'a> {
    fn new(course: Course<'a>) -> Engine<'a> {
        let mut pattern = Vec::new();
        if course.check.is_none() {
            pattern.resize(LONGEST as usize + STARTS * PAGE, 0);
            super::memory::fill(0, &mut pattern);
        }
        Engine {
            pattern: pattern.into(),
            writes: 0,
            tasks: JoinSet::new(),
            waiting: BTreeMap::new(),
            recorder: Recorder::new(course.options),
            freed: 0,
            course,
        }
    }

    fn issue(&mut self, op: Op, now: u64) {
        let shared = self.course.shared;
        shared.issued.fetch_add(1, Ordering::Relaxed);
        shared.due.store(op.due, Ordering::Relaxed);
        let issue = Issue { due: op.due, free: op.due.max(self.freed.min(now)), at: now };
        let (ticket, payload) = match (&mut self.course.check, op.kind) {
            (None, Kind::Read) => (None, Bytes::new()),
            (None, Kind::Write) => {
                let start = self.writes % STARTS * PAGE;
                self.writes += 1;
                (None, self.pattern.slice(start..start + op.len as usize))
            }
            (Some(check), Kind::Read) => (Some(check.begin_read(&op)), Bytes::new()),
            (Some(check), Kind::Write) => match check.begin_write(&op) {
                (ticket, Some(number)) => (Some(ticket), check.payload(&op, number)),
                (ticket, None) => {
                    self.waiting.insert(ticket, (op, issue.due));
                    return;
                }
            },
        };
        self.send(op, issue, ticket, payload);
    }

    fn send(&mut self, op: Op, issue: Issue, ticket: Option<Ticket>, payload: Bytes) {
        self.recorder.issued(&op, &issue);
        let (storage, start) = (self.course.storage.clone(), self.recorder.start());
        self.tasks.spawn(async move {
            let outcome = match op.kind {
                Kind::Read => storage.read(op.device, op.offset, op.len).await,
                Kind::Write => storage.write(op.device, op.offset, payload).await.map(|()| Bytes::new()),
            };
            Answer { op, issue, ticket, at: start.elapsed().as_nanos() as u64, outcome }
        });
    }

    /// The error is the reason why the target is gone.
    fn answered(&mut self, answer: Answer, full: bool) -> Result<(), String> {
        if full {
            self.freed = self.recorder.now();
        }
        let Answer { op, issue, ticket, at, outcome } = answer;
        if let Some(ticket) = ticket {
            self.check(&op, ticket, outcome.as_ref().ok());
        }
        let outcome = match outcome {
            Ok(_) => {
                let issued = self.recorder.start() + Duration::from_nanos(issue.at);
                let service = Duration::from_nanos(at - issue.at);
                (self.course.answered)(Answered { issued, service, kind: op.kind });
                Ok(op.len)
            }
            Err(Failure::Request(error)) => Err(error),
            Err(Failure::Lost(reason)) => return Err(reason),
        };
        self.recorder.answered(op.kind, &issue, at, outcome, self.course.shared);
        Ok(())
    }

    /// Checks the bytes read, and sends the writes that waited for this one.
    fn check(&mut self, op: &Op, ticket: Ticket, bytes: Option<&Bytes>) {
        let Some(check) = &mut self.course.check else { return };
        match op.kind {
            Kind::Read => {
                if !check.end_read(ticket, bytes.map(|bytes| &bytes[..])) {
                    self.course.shared.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            Kind::Write => {
                for (ticket, number) in check.end_write(ticket, bytes.is_some()) {
                    self.send_waiting(ticket, number);
                }
            }
        }
    }

    fn send_waiting(&mut self, ticket: Ticket, number: Number) {
        let Some(check) = &self.course.check else { return };
        let (op, due) = self.waiting.remove(&ticket).expect("it waited");
        let (now, payload) = (self.recorder.now(), check.payload(&op, number));
        self.send(op, Issue { due, free: now, at: now }, Some(ticket), payload);
    }
}
