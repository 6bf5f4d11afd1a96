//! Results of a replay: plain data, as text for people and as JSON for machines (`docs/json.md`, "replay --target").

use super::ledger::Mismatch;
use super::options::{Pacing, PastEnd};
use ebb_output::Latency;
use ebb_trace::Request;
use ebb_types::{Bytes, counted};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The target of the replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetInfo {
    /// As named by the user.
    pub name: String,
    pub size_bytes: u64,
    /// Requests are rounded out to multiples of this.
    pub block_bytes: u32,
    /// The page cache is bypassed; `None` if there is none to bypass on this machine.
    pub direct: Option<bool>,
    /// Reads can be compared with what was written.
    pub checkable: bool,
    /// Remarks for the user, as text.
    pub notes: Vec<String>,
}

impl TargetInfo {
    /// Takes requests of any place and length, and gives back what was written.
    pub(crate) fn new(name: &str, size_bytes: u64) -> TargetInfo {
        let (name, notes) = (name.to_owned(), Vec::new());
        TargetInfo { name, size_bytes, block_bytes: 1, direct: None, checkable: true, notes }
    }
}

/// Requests of the trace that are not issued, and what had to be done to the others to place them on the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlacedReport {
    /// Requests of zero bytes: not issued.
    pub empty: u64,
    /// Bad lines or records, skipped.
    pub skipped: u64,
    /// Moved no data, such as a trim or a sync: not issued.
    pub left_out: u64,
    /// Ended past the target's end and were wrapped around.
    pub wrapped: u64,
    /// Did not consist of whole blocks and were rounded out to them.
    pub rounded: u64,
    /// Bytes that rounding added.
    pub rounded_bytes: u64,
    /// Were issued in several parts, because they were longer than the limit for one request.
    pub split: u64,
}

/// CPU time of this process during the replay, the kernel's workers for its I/O included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuTime {
    pub user_seconds: f64,
    pub system_seconds: f64,
}

/// Reads or writes. Failed requests are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KindReport {
    pub requests: u64,
    pub bytes: u64,
    /// From issue to answer.
    pub service: Option<Latency>,
    /// Waiting for a place among the requests in flight; absent in closed loop.
    pub queue: Option<Latency>,
}

/// Requests answered in one second, counted from the end of the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SecondReport {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub failed: u64,
}

/// A replay. Field names are the keys of its JSON. Everything except `warmup_requests` and `placed` excludes the
/// warm-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DriveReport {
    pub target: TargetInfo,
    pub pacing: Pacing,
    pub past_end: PastEnd,
    /// Absent: it went to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_seconds: Option<f64>,
    /// From the end of the warm-up to the last answer.
    pub wall_seconds: f64,
    pub warmup_seconds: f64,
    /// Requests that were issued in the warm-up.
    pub warmup_requests: u64,
    /// Answered, including failed ones. A request that was split counts as its parts.
    pub requests: u64,
    pub failed: u64,
    /// The first few failures, as text.
    pub errors: Vec<String>,
    /// Of requests that did not fail, like the next one and the series.
    pub iops: f64,
    /// In units of 10^6 bytes.
    pub megabytes_per_second: f64,
    pub reads: KindReport,
    pub writes: KindReport,
    /// As in [`KindReport`], of reads and writes together.
    pub service: Option<Latency>,
    pub queue: Option<Latency>,
    /// Issue after the request's time although there was a place for it: the engine's own error. Absent in closed loop.
    pub lateness: Option<Latency>,
    pub most_in_flight: u64,
    pub placed: PlacedReport,
    pub cpu: CpuTime,
    /// Absent: nothing was checked.
    pub check: Option<CheckReport>,
    pub seconds: Vec<SecondReport>,
    /// If it was asked for: the requests as they were issued, up to 8,388,608 of them. Those issued without an answer
    /// in between have the same time, and are a bunch.
    #[serde(skip)]
    pub issued: Vec<Request>,
}

impl DriveReport {
    /// No request failed, and nothing that was checked was wrong.
    pub fn passed(&self) -> bool {
        self.failed == 0 && self.check.as_ref().is_none_or(|check| check.mismatched == 0)
    }

    /// That it did not go to its end.
    pub(crate) fn stopped(&self) -> Option<String> {
        let at = self.stopped_at_seconds?;
        Some(format!("stopped at {at:.1} s, before its end: the figures are of the time until then"))
    }

    /// Duration of the measured part.
    pub fn wall(&self) -> Duration {
        Duration::from_secs_f64(self.wall_seconds)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, times: &Option<Latency>) -> fmt::Result {
    let Some(t) = times else { return Ok(()) };
    write!(f, "  {name:<16}{:>10}", t.count)?;
    for millis in [t.mean_millis, t.p50_millis, t.p90_millis, t.p99_millis, t.p999_millis, t.max_millis] {
        write!(f, "{millis:>11.4}")?;
    }
    writeln!(f)
}

impl fmt::Display for PlacedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.empty, "of zero bytes, not issued"),
            (self.left_out, "without data (trim, sync), left out"),
            (self.skipped, "that are bad, skipped"),
            (self.wrapped, "past the end, wrapped around"),
            (self.rounded, "rounded out to whole blocks"),
            (self.split, "issued in parts"),
        ];
        let mut present = counts.into_iter().filter(|(count, _)| *count > 0);
        present.try_for_each(|(count, what)| writeln!(f, "requests {what}: {count}"))
    }
}

impl fmt::Display for DriveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = match self.target.direct {
            Some(true) => ", bypassing the page cache",
            Some(false) => ", through the page cache",
            None => "",
        };
        let (size, block) = (Bytes(self.target.size_bytes), self.target.block_bytes);
        writeln!(f, "{}: {size} in blocks of {block} bytes{cache}", self.target.name)?;
        match self.pacing {
            Pacing::Times { speed } => write!(f, "at the times of the trace, speed {speed}")?,
            Pacing::Peak { depth } => write!(f, "as fast as {depth} in flight are answered")?,
        }
        writeln!(f, "; {:.3} s after a warm-up of {} s", self.wall_seconds, self.warmup_seconds)?;
        self.stopped().map_or(Ok(()), |stopped| writeln!(f, "{stopped}"))?;
        writeln!(
            f,
            "{}, {} failed: {:.1} IOPS, {:.2} MB/s; at most {} in flight",
            counted(self.requests, "request"),
            self.failed,
            self.iops,
            self.megabytes_per_second,
            self.most_in_flight
        )?;
        writeln!(
            f,
            "  {:<16}{:>10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}",
            "milliseconds", "requests", "mean", "p50", "p90", "p99", "p99.9", "max"
        )?;
        row(f, "reads, service", &self.reads.service)?;
        row(f, "reads, queue", &self.reads.queue)?;
        row(f, "writes, service", &self.writes.service)?;
        row(f, "writes, queue", &self.writes.queue)?;
        row(f, "lateness", &self.lateness)?;
        let (user, system) = (self.cpu.user_seconds, self.cpu.system_seconds);
        let share = if self.wall_seconds > 0.0 { 100.0 * (user + system) / self.wall_seconds } else { 0.0 };
        writeln!(f, "CPU of the replay: {user:.3} s user, {system:.3} s system: {share:.1} % of one core")?;
        write!(f, "{}", self.placed)?;
        self.check.as_ref().map_or(Ok(()), |check| write!(f, "{check}"))?;
        self.target.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.errors.iter().try_for_each(|error| writeln!(f, "failed: {error}"))
    }
}

/// Results of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CheckReport {
    /// Reads that returned wrong content.
    pub mismatched: u64,
    /// The first few.
    pub mismatches: Vec<Mismatch>,
    /// Bytes read that could not be checked: a write there had failed, or the earlier content was unknown.
    pub unchecked_bytes: u64,
    /// Writes that waited for an earlier write to the same bytes.
    pub waited: u64,
    /// Read and checked after the replay: everything that was written.
    pub read_back_bytes: u64,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "checked: {} reads were wrong; {} read back",
            self.mismatched,
            Bytes(self.read_back_bytes)
        )?;
        if self.unchecked_bytes > 0 {
            let unchecked = Bytes(self.unchecked_bytes);
            writeln!(
                f,
                "{unchecked} read could not be checked: a write there failed, or nothing was written there"
            )?;
        }
        if self.waited > 0 {
            writeln!(f, "{} writes waited for an earlier write to the same bytes", self.waited)?;
        }
        self.mismatches.iter().try_for_each(|mismatch| writeln!(f, "wrong: {mismatch}"))
    }
}
