//! Results of a replay: plain data, as text for people and as JSON for machines (`docs/json.md`, section "replay").

use super::energy::{Account, EnergyReport};
use super::observe::{Stretch, Stretches};
use super::target::Comparison;
use crate::drive::engine::Answered;
use crate::drive::{DriveReport, PlacedReport};
use ebb_output::Latency;
use ebb_trace::Kind;
use ebb_types::{Bytes, Schedule, ServerId, ServerState, ShiftRecord, counted};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// All results of a replay. Field names are the keys of its JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    pub trace: TraceReport,
    /// Trace seconds per second.
    pub speed: f64,
    /// Servers that the trace's peak was set to need; absent if the cluster's own rates were used.
    pub provisioned_servers: Option<u32>,
    /// The scheduler's settings.
    pub schedule: Schedule,
    /// Written before the trace began: the data that it reads.
    pub prepared_bytes: u64,
    /// What was replayed before anything else here was measured; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prelude: Option<PreludeReport>,
    /// What was issued and answered, and the results of the check. The requests that read everything back at the end
    /// appear only among its failures.
    pub performance: DriveReport,
    /// Attempts after the first, of all requests.
    pub retries: u64,
    /// Absent: the trace was kept up with.
    pub behind: Option<Behind>,
    pub latency: LatencyReport,
    pub offload: OffloadReport,
    /// Primaries that moved, in all shifts.
    pub migrations: u64,
    /// Gear shifts since measuring began, including the final wake-up of all servers.
    pub shifts: Vec<ShiftRecord>,
    pub modelled_energy: EnergyReport,
    pub hours: Vec<HourReport>,
    /// Absent if the cluster did not reclaim its offload in time: replicas that are not in sync cannot be compared.
    pub comparison: Option<Comparison>,
    /// With `beside_always_on`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always_on: Option<AlwaysOnReport>,
    /// The volumes, by object id; they are deleted if the replay passed.
    pub volumes: Vec<VolumeReport>,
    /// Problems that do not end a replay, such as volumes that could not be deleted.
    pub notes: Vec<String>,
    /// What `modelled_energy` is added up by, and the states that its `cluster` is of: to compare others with it. Not
    /// part of the JSON.
    #[serde(skip)]
    pub account: Account,
    #[serde(skip)]
    pub states: Vec<(Duration, ServerId, ServerState)>,
}

/// The longest that one request in twenty may wait to be issued, where an hour of the schedule is longer.
const WAIT_MOST: Duration = Duration::from_secs(10);

/// The trace was not kept up with: its load came later than at its times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Behind {
    /// 95th percentile of how long requests waited to be issued, on the clock: for a place among those in flight, for
    /// an earlier write to the same bytes, or for the engine.
    pub wait_p95_millis: f64,
    /// The most with which a trace is kept up with: an hour of the schedule, for which gears are chosen, or 10 s.
    pub most_millis: f64,
}

impl Behind {
    /// `hour`: of the schedule, on the clock.
    pub(crate) fn of(performance: &DriveReport, hour: Duration) -> Option<Behind> {
        let waits = [&performance.queue, &performance.lateness].into_iter().flatten();
        let wait_p95_millis = waits.map(|wait| wait.p95_millis).max_by(f64::total_cmp)?;
        let most_millis = hour.min(WAIT_MOST).as_secs_f64() * 1e3;
        (wait_p95_millis > most_millis).then_some(Behind { wait_p95_millis, most_millis })
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the trace was not kept up with: one request in twenty was issued {:.1} s late or later, with {:.1} s allowed; \
             lower --speed, or replay on a machine with less to do",
            self.wait_p95_millis / 1e3,
            self.most_millis / 1e3
        )
    }
}

/// The part of the trace that made the state. Its bytes are checked as all others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PreludeReport {
    pub hours: u32,
    pub requests: u64,
    pub failed: u64,
    /// Offload that was owed to sleeping servers when measuring began.
    pub debt_bytes: u64,
}

impl fmt::Display for PreludeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PreludeReport { hours, requests, failed, debt_bytes } = *self;
        let (requests, debt) = (counted(requests, "request"), Bytes(debt_bytes));
        write!(
            f,
            "{hours} h, not measured: {requests}, {failed} failed; {debt} of offload was owed at its end"
        )
    }
}

/// Of what is measured; what is left out of a trace is of all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TraceReport {
    pub name: String,
    pub span_seconds: f64,
    pub requests: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Requests of zero bytes, omitted.
    pub empty: u64,
    /// Bad lines or records, skipped.
    pub skipped: u64,
    /// Requests that move no data, such as a trim or a sync, left out.
    pub left_out: u64,
}

/// From issue to answer. Classes without requests are absent. A request is in a shift if it was issued within 2 s (of
/// the clock) of a change of any server's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyReport {
    pub by_gear: Vec<GearLatency>,
    #[serde(flatten)]
    pub stretches: StretchLatency,
}

/// By what the cluster did when a request was issued.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StretchLatency {
    pub steady: KindLatency,
    /// Servers woke, whatever else went on.
    pub up_shifts: KindLatency,
    pub down_shifts: KindLatency,
}

/// The same trace with every server awake.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlwaysOnReport {
    pub performance: DriveReport,
    /// As of the other run.
    pub behind: Option<Behind>,
    /// Of the stretches of the trace in which the other run shifted.
    pub latency: StretchLatency,
    pub passed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindLatency {
    pub reads: Option<Latency>,
    pub writes: Option<Latency>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GearLatency {
    pub gear: u8,
    #[serde(flatten)]
    pub of: KindLatency,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OffloadReport {
    /// Taken by holders during the replay.
    pub offloaded_bytes: u64,
    /// Returned to servers that woke.
    pub reclaimed_bytes: u64,
    /// Maximum owed at any time.
    pub most_bytes: u64,
    /// Still owed at the end.
    pub left_bytes: u64,
}

/// One hour of the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HourReport {
    /// From the start of the trace.
    pub hour: u64,
    /// Peak load as seen by the metadata service, in servers' worth of work; absent if it did not observe the hour from
    /// its start.
    pub load: Option<f64>,
    /// The same, computed from the trace.
    pub trace_load: f64,
    pub forecast: Option<f64>,
    /// At the end of the hour.
    pub gear: Option<u8>,
    /// At the end of the hour.
    pub servers_awake: Option<u32>,
    /// The choice of an oracle that knows the hour's peak.
    pub oracle_gear: u8,
    pub reads: u64,
    pub writes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VolumeReport {
    /// The trace's name.
    pub device: String,
    pub object: u64,
    pub kept: bool,
}

impl KindLatency {
    pub(crate) fn of<'a>(answered: impl Iterator<Item = &'a Answered> + Clone) -> KindLatency {
        KindLatency::of_times(answered.map(|answered| (answered.kind, answered.service)))
    }

    fn of_times(answered: impl Iterator<Item = (Kind, Duration)> + Clone) -> KindLatency {
        let of = |kind| Latency::of(answered.clone().filter(|(of, _)| *of == kind).map(|(_, took)| took));
        KindLatency { reads: of(Kind::Read), writes: of(Kind::Write) }
    }
}

impl StretchLatency {
    /// Of requests by when they were issued, by the clock since the start, and how long each took.
    pub fn of(
        stretches: &Stretches,
        answered: impl Iterator<Item = (Duration, Kind, Duration)> + Clone,
    ) -> StretchLatency {
        let of = |stretch| {
            let within = answered.clone().filter(move |(at, ..)| stretches.at(*at) == stretch);
            KindLatency::of_times(within.map(|(_, kind, took)| (kind, took)))
        };
        StretchLatency {
            steady: of(Stretch::Steady),
            up_shifts: of(Stretch::UpShift),
            down_shifts: of(Stretch::DownShift),
        }
    }

    pub fn named(&self) -> [(&'static str, &KindLatency); 3] {
        [("steady", &self.steady), ("up-shifts", &self.up_shifts), ("down-shifts", &self.down_shifts)]
    }
}

impl ReplayReport {
    /// Nothing failed, nothing was wrong, no offload is left, and all replicas are identical; with every server awake,
    /// too.
    pub fn passed(&self) -> bool {
        self.performance.passed()
            && self.prelude.is_none_or(|prelude| prelude.failed == 0)
            && self.offload.left_bytes == 0
            && self.comparison.as_ref().is_some_and(|comparison| comparison.differing == 0)
            && self.always_on.as_ref().is_none_or(|beside| beside.passed)
    }

    /// Why its energy and response times are not those of the trace, though nothing may be wrong; with every server
    /// awake, too.
    pub fn fell_behind(&self) -> Option<Behind> {
        self.behind.or_else(|| self.always_on.as_ref()?.behind)
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceReport { name, span_seconds, requests, reads, read_bytes, written_bytes, .. } = &self.trace;
        writeln!(
            f,
            "{name}: {} ({}) over {:.1} h; {} read, {} written",
            counted(*requests, "request"),
            counted(*reads, "read"),
            span_seconds / 3600.0,
            Bytes(*read_bytes),
            Bytes(*written_bytes)
        )?;
        let provisioned = match self.provisioned_servers {
            Some(servers) => format!("its peak needs {}", counted(servers.into(), "server")),
            None => "with the cluster's own rates".to_owned(),
        };
        writeln!(
            f,
            "replayed at speed {} in {:.1} s; an hour is {} ms; {provisioned}; {} prepared\n",
            self.speed,
            self.performance.wall_seconds,
            self.schedule.hour_millis,
            Bytes(self.prepared_bytes),
        )?;
        self.prelude.map_or(Ok(()), |prelude| writeln!(f, "prelude   {prelude}\n"))?;
        if let Some(stopped) = self.performance.stopped() {
            writeln!(f, "{stopped}\n")?;
        }
        let TraceReport { empty, skipped, left_out, .. } = self.trace;
        write!(f, "{}", PlacedReport { empty, skipped, left_out, ..PlacedReport::default() })?;
        self.write_hours(f)?;
        self.write_requests(f)?;
        self.write_latencies(f)?;
        self.write_shifts(f)?;
        self.write_energy(f)?;
        self.write_end(f)
    }
}

/// A class of requests.
fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    reads: &Option<Latency>,
    writes: &Option<Latency>,
) -> fmt::Result {
    let half = |latency: &Option<Latency>| match latency {
        Some(l) => {
            let Latency { mean_millis: mean, p50_millis: p50, p99_millis: p99, max_millis: max, .. } = l;
            format!("{:>9} {mean:>6.1} {p50:>6.1} {p99:>6.1} {max:>7.1}", l.count)
        }
        None => format!("{:>9} {:>6} {:>6} {:>6} {:>7}", 0, "-", "-", "-", "-"),
    };
    writeln!(f, "{name:<18}{}{}", half(reads), half(writes))
}

/// A value, or a dash if it is absent.
fn or_dash(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

impl ReplayReport {
    fn write_hours(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, " hour    load  (trace)  forecast  gear  (oracle)  awake    reads   writes")?;
        let load = |load: Option<f64>| or_dash(load.map(|load| format!("{load:.2}")));
        for hour in &self.hours {
            writeln!(
                f,
                "{:>5} {:>7} {:>8.2} {:>9} {:>5} {:>9} {:>6} {:>8} {:>8}",
                hour.hour,
                load(hour.load),
                hour.trace_load,
                load(hour.forecast),
                or_dash(hour.gear),
                hour.oracle_gear,
                or_dash(hour.servers_awake),
                hour.reads,
                hour.writes
            )?;
        }
        writeln!(f)
    }

    fn write_requests(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.performance;
        writeln!(f, "requests  {} answered, {} failed, {} retries", p.requests, p.failed, self.retries)?;
        if let Some(late) = &p.lateness {
            writeln!(
                f,
                "          issued late by {:.3} ms (p99), {:.3} ms (max)",
                late.p99_millis, late.max_millis
            )?;
        }
        p.errors.iter().try_for_each(|error| writeln!(f, "  failed: {error}"))?;
        p.check.as_ref().map_or(Ok(()), |check| write!(f, "{check}"))
    }

    fn write_latencies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nlatency, ms           reads   mean    p50    p99     max   writes   mean    p50    p99     max"
        )?;
        line(f, "all", &self.performance.reads.service, &self.performance.writes.service)?;
        for gear in &self.latency.by_gear {
            line(f, &format!("gear {}", gear.gear), &gear.of.reads, &gear.of.writes)?;
        }
        let own = self.latency.stretches.named();
        own.iter().try_for_each(|(name, of)| line(f, name, &of.reads, &of.writes))?;
        let Some(beside) = &self.always_on else { return Ok(()) };
        writeln!(f, "\nthe same requests with every server awake")?;
        line(f, "all", &beside.performance.reads.service, &beside.performance.writes.service)?;
        let others = beside.latency.named();
        others.iter().try_for_each(|(name, of)| line(f, name, &of.reads, &of.writes))?;
        writeln!(f, "\ntimes always on        reads: mean    p99    writes: mean    p99")?;
        for ((name, own), (_, other)) in own.iter().zip(&others) {
            let of = |a: &Option<Latency>, b: &Option<Latency>, value: fn(&Latency) -> f64| {
                or_dash(a.as_ref().zip(b.as_ref()).map(|(a, b)| format!("{:.2}", value(a) / value(b))))
            };
            let both = [(&own.reads, &other.reads), (&own.writes, &other.writes)];
            let [reads, writes] =
                both.map(|(a, b)| [of(a, b, |l| l.mean_millis), of(a, b, |l| l.p99_millis)]);
            writeln!(f, "{name:<17}{:>17} {:>6} {:>15} {:>6}", reads[0], reads[1], writes[0], writes[1])?;
        }
        Ok(())
    }

    fn write_shifts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} gear shifts, {} primaries moved", self.shifts.len(), self.migrations)?;
        for shift in &self.shifts {
            writeln!(
                f,
                "  gear {} to {}, {} to {} servers: {} ms, {} woken, {} put to sleep, {} primaries moved ({})",
                shift.from_gear,
                shift.to_gear,
                shift.from_servers,
                shift.to_servers,
                shift.took_millis,
                shift.woken,
                shift.put_to_sleep,
                shift.migrations,
                shift.why
            )?;
        }
        let o = &self.offload;
        writeln!(
            f,
            "offload   {} taken, {} reclaimed, at most {} owed, {} left",
            Bytes(o.offloaded_bytes),
            Bytes(o.reclaimed_bytes),
            Bytes(o.most_bytes),
            Bytes(o.left_bytes)
        )
    }

    fn write_energy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.modelled_energy;
        let kwh = |joules: f64| joules / 3.6e6;
        let Some(compared) = &e.compared else {
            let used = kwh(e.cluster.total_joules);
            return writeln!(
                f,
                "energy    modelled, at the trace's own speed: {used:.2} kWh; no savings, because the trace was not kept up with"
            );
        };
        let behind = compared.behind_oracle_points;
        writeln!(
            f,
            "energy    modelled, at the trace's own speed: {:.2} kWh against {:.2} kWh always on: {:.1} % saved\n          the oracle \
             schedule of gears saves {:.1} %: {:.1} points {}; {} transitions against its {}",
            kwh(e.cluster.total_joules),
            kwh(e.always_on.total_joules),
            compared.saved_percent,
            compared.oracle_saved_percent,
            behind.abs(),
            if behind < 0.0 { "less" } else { "more" },
            e.cluster.transitions,
            e.oracle.transitions
        )?;
        if e.always_on.switch_joules > 0.0 {
            let (cluster, always_on) = (kwh(e.cluster.switch_joules), kwh(e.always_on.switch_joules));
            writeln!(f, "          of which rack switches {cluster:.2} kWh against {always_on:.2} kWh")?;
        }
        compared.saves.transitions(self.speed).map_or(Ok(()), |seen| writeln!(f, "          {seen}"))
    }

    fn write_end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.comparison {
            Some(c) => writeln!(
                f,
                "replicas  {} compared ({} each): {}",
                counted(c.groups.into(), "group"),
                Bytes(c.bytes),
                match c.differing {
                    0 => "all identical".to_owned(),
                    n => format!("{n} DIFFER"),
                }
            )?,
            None => writeln!(f, "replicas  not compared: the cluster is not in sync; see `ebb status`")?,
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note      {note}"))?;
        let behind = self.fell_behind();
        behind.map_or(Ok(()), |behind| writeln!(f, "behind    {behind}"))?;
        writeln!(
            f,
            "{}",
            match behind {
                _ if !self.passed() => "FAILED",
                Some(_) => "NOT KEPT UP WITH: nothing failed, and nothing was wrong",
                None => "PASSED",
            }
        )
    }
}
