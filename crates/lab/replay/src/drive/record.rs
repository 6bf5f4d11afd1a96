//! What is recorded about every request while a replay runs. Times are nanoseconds since its start.

use super::options::{DriveOptions, DriveProgress, Halt, Pacing};
use super::place::Op;
use super::report::{CpuTime, DriveReport, KindReport, PlacedReport, SecondReport, TargetInfo};
use ebb_output::Histogram;
use ebb_trace::{Kind, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Number of failures that are described.
pub(crate) const ERRORS_TOLD: usize = 10;
const SECOND: u64 = 1_000_000_000;
/// Most requests that are collected: 256 MiB of them.
pub const COLLECTED_MOST: usize = 8 << 20;

/// What other threads may see of a running replay, and how they stop it.
#[derive(Default)]
pub(crate) struct Shared {
    pub issued: AtomicU64,
    pub answered: AtomicU64,
    pub failed: AtomicU64,
    pub bytes: AtomicU64,
    /// Sum of the service times, in nanoseconds.
    pub service: AtomicU64,
    /// Due time of the last request that was issued, in nanoseconds.
    pub due: AtomicU64,
    /// Nothing is measured any more.
    pub stop: AtomicBool,
    halt: Halt,
}

impl Shared {
    pub fn new(options: &DriveOptions) -> Shared {
        Shared { halt: options.halt.clone(), ..Shared::default() }
    }

    pub fn progress(&self, elapsed: Duration, pacing: Pacing) -> DriveProgress {
        let (issued, in_flight, failed) = self.counts();
        let speed = match pacing {
            Pacing::Times { speed } => speed,
            Pacing::Peak { .. } => 1.0,
        };
        DriveProgress::Replaying {
            elapsed,
            at: Duration::from_nanos((self.due.load(Ordering::Relaxed) as f64 * speed) as u64),
            issued,
            in_flight,
            failed,
            bytes: self.bytes.load(Ordering::Relaxed),
            service: Duration::from_nanos(self.service.load(Ordering::Relaxed)),
        }
    }

    /// Requests issued, in flight, and failed or found wrong.
    pub fn counts(&self) -> (u64, u64, u64) {
        let (issued, answered) = (self.issued.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed));
        (issued, issued.saturating_sub(answered), self.failed.load(Ordering::Relaxed))
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.halt.is_set()
    }
}

/// When a request was issued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Issue {
    pub due: u64,
    /// When there was a place for it: its due time, or later if too many others were in flight.
    pub free: u64,
    pub at: u64,
}

/// Collects the figures of one replay.
pub(crate) struct Recorder {
    start: Instant,
    /// Requests issued before this are not measured.
    warm: u64,
    open_loop: bool,
    reads: Kept,
    writes: Kept,
    lateness: Histogram,
    warmup_requests: u64,
    requests: u64,
    failed: u64,
    errors: Vec<String>,
    in_flight: u64,
    most_in_flight: u64,
    last: u64,
    seconds: Vec<SecondReport>,
    collected: Option<Collected>,
    /// CPU time at the end of the warm-up.
    cpu: Option<CpuTime>,
}

/// The requests issued, as a trace. Those issued without an answer in between form a bunch: they have one time.
#[derive(Default)]
struct Collected {
    requests: Vec<Request>,
    /// Time of the present bunch; `None`: an answer has ended it.
    bunch: Option<u64>,
}

impl Collected {
    fn add(&mut self, op: &Op, now: u64) {
        if self.requests.len() == COLLECTED_MOST {
            return;
        }
        let at = Duration::from_nanos(*self.bunch.get_or_insert(now));
        let Op { offset, len, kind, .. } = *op;
        self.requests.push(Request { at, device: 0, offset, len, kind });
    }
}

#[derive(Default)]
struct Kept {
    requests: u64,
    bytes: u64,
    service: Histogram,
    queue: Histogram,
}

impl Kept {
    fn report(&self) -> KindReport {
        KindReport {
            requests: self.requests,
            bytes: self.bytes,
            service: self.service.latency(),
            queue: self.queue.latency(),
        }
    }
}

impl Recorder {
    /// The clock starts now.
    pub fn new(options: &DriveOptions) -> Recorder {
        Recorder {
            start: Instant::now(),
            warm: options.warmup.as_nanos() as u64,
            open_loop: matches!(options.pacing, Pacing::Times { .. }),
            reads: Kept::default(),
            writes: Kept::default(),
            lateness: Histogram::default(),
            warmup_requests: 0,
            requests: 0,
            failed: 0,
            errors: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
            last: 0,
            seconds: Vec::new(),
            collected: options.collect.then(Collected::default),
            cpu: None,
        }
    }

    pub fn start(&self) -> Instant {
        self.start
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Marks the passing of time: the first call after the warm-up begins the measurement.
    pub fn tick(&mut self, now: u64) {
        if self.cpu.is_none() && now >= self.warm {
            self.cpu = Some(cpu_time());
        }
    }

    pub fn issued(&mut self, op: &Op, issue: &Issue) {
        self.in_flight += 1;
        if let Some(collected) = &mut self.collected {
            collected.add(op, issue.at);
        }
        if issue.at < self.warm {
            self.warmup_requests += 1;
            return;
        }
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        if self.open_loop {
            self.lateness.record(Duration::from_nanos(issue.at.saturating_sub(issue.free)));
        }
    }

    /// `outcome`: bytes moved, or the failure.
    pub fn answered(
        &mut self,
        kind: Kind,
        issue: &Issue,
        now: u64,
        outcome: Result<u32, String>,
        shared: &Shared,
    ) {
        self.in_flight -= 1;
        if let Some(collected) = &mut self.collected {
            collected.bunch = None;
        }
        shared.answered.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(len) => {
                shared.bytes.fetch_add(len.into(), Ordering::Relaxed);
                shared.service.fetch_add(now - issue.at, Ordering::Relaxed);
            }
            Err(_) => {
                shared.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        if issue.at < self.warm {
            return;
        }
        self.requests += 1;
        self.last = self.last.max(now);
        let second = ((now - self.warm) / SECOND) as usize;
        if second >= self.seconds.len() {
            self.seconds.resize(second + 1, SecondReport::default());
        }
        let second = &mut self.seconds[second];
        let len = match outcome {
            Ok(len) => u64::from(len),
            Err(error) => {
                self.failed += 1;
                second.failed += 1;
                if self.errors.len() < ERRORS_TOLD {
                    self.errors.push(error);
                }
                return;
            }
        };
        let kept = match kind {
            Kind::Read => {
                second.reads += 1;
                second.read_bytes += len;
                &mut self.reads
            }
            Kind::Write => {
                second.writes += 1;
                second.written_bytes += len;
                &mut self.writes
            }
        };
        kept.requests += 1;
        kept.bytes += len;
        kept.service.record(Duration::from_nanos(now - issue.at));
        if self.open_loop {
            kept.queue.record(Duration::from_nanos(issue.free - issue.due));
        }
    }

    /// `end`: when the replay ended, if that was after its last answer.
    pub fn report(
        self,
        options: &DriveOptions,
        target: TargetInfo,
        placed: PlacedReport,
        end: u64,
    ) -> DriveReport {
        let wall = self.last.max(end).saturating_sub(self.warm);
        let (reads, writes) = (self.reads.report(), self.writes.report());
        let (mut service, mut queue) = (self.reads.service, self.reads.queue);
        service.add(&self.writes.service);
        queue.add(&self.writes.queue);
        let per_second = |sum: u64| if wall == 0 { 0.0 } else { sum as f64 * SECOND as f64 / wall as f64 };
        let (now, before) = (cpu_time(), self.cpu.unwrap_or_else(cpu_time));
        DriveReport {
            target,
            pacing: options.pacing,
            past_end: options.past_end,
            stopped_at_seconds: None,
            wall_seconds: wall as f64 / SECOND as f64,
            warmup_seconds: options.warmup.as_secs_f64(),
            warmup_requests: self.warmup_requests,
            requests: self.requests,
            failed: self.failed,
            errors: self.errors,
            iops: per_second(reads.requests + writes.requests),
            megabytes_per_second: per_second(reads.bytes + writes.bytes) / 1e6,
            reads,
            writes,
            service: service.latency(),
            queue: queue.latency(),
            lateness: self.lateness.latency(),
            most_in_flight: self.most_in_flight,
            placed,
            cpu: CpuTime {
                user_seconds: now.user_seconds - before.user_seconds,
                system_seconds: now.system_seconds - before.system_seconds,
            },
            check: None,
            seconds: self.seconds,
            issued: self.collected.map_or(Vec::new(), |collected| collected.requests),
        }
    }
}

/// CPU time of this process since its start.
fn cpu_time() -> CpuTime {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills a structure of this type; one that it leaves alone is zeros, which is valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    CpuTime { user_seconds: seconds(usage.ru_utime), system_seconds: seconds(usage.ru_stime) }
}
