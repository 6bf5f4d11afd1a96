//! The results of a run as plain data; text for people, JSON for machines (`docs/json.md`).

use crate::request::client::Retries;
use crate::request::energy::{DepthRow, Energy, Taken};
use crate::request::harness::World;
use crate::request::measure::{Done, Migration, PHASES, Phase, Reclaim, Sample};
use crate::request::models::Models;
use crate::request::network::{Fabric, TRAFFICS, Traffic};
use crate::request::pairs::PairsReport;
use crate::request::setup::{Gears, Setup};
use ebb_gear::{Load, LoadSeries, Window};
use ebb_meta::State;
use ebb_output::{Latency, table};
use ebb_trace::Trace;
use ebb_types::{Bytes, ChunkId, Schedule, ServerId, ServerState};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

const DAY_SECONDS: f64 = 86_400.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub trace: TraceFacts,
    /// Trace seconds after which it was stopped; absent: it went to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_seconds: Option<f64>,
    pub cluster: ClusterFacts,
    pub requests: Requests,
    /// Latencies by operation, gear and phase of arrival; the first row covers all.
    pub latency: Vec<LatencyRow>,
    pub retries: Retries,
    pub traffic: Vec<TrafficRow>,
    pub holders: Vec<HolderRow>,
    pub shifts: Vec<Shift>,
    pub migrations: Vec<Migration>,
    pub reclaims: Vec<Reclaim>,
    pub offload: Offload,
    pub energy_modelled: Energy,
    /// Sleep by its depth, the shallowest first.
    pub depths: Vec<DepthRow>,
    /// `None`: the servers' data is not on pairs of two-speed disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairsReport>,
    pub samples: Vec<Sample>,
    /// Every request, in order of its answer. Not part of the JSON.
    #[serde(skip)]
    pub done: Vec<Done>,
    /// Servers' states by the clock since the start of the trace: the first of each at zero, then each change. Not part
    /// of the JSON.
    #[serde(skip)]
    pub states: Vec<(Duration, ServerId, ServerState)>,
    /// Chunks that exist when the run ends, and the metadata state then. Not part of the JSON.
    #[serde(skip)]
    pub chunks: u64,
    #[serde(skip)]
    pub state: State,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceFacts {
    pub name: String,
    pub requests: u64,
    pub span_seconds: f64,
    /// Trace seconds per simulated second.
    pub speed: f64,
    /// Highest load of a sample outside of `except`, in servers.
    pub peak_load_servers: f64,
    /// Times of day, which begin with the trace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Window>,
    /// How many servers that is, as a multiple of the copies: the size that the paper gives a cluster. [Sierra §4.3]
    pub servers_for_peak: u32,
}

/// The modelled cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterFacts {
    pub servers: u16,
    /// Beside them.
    pub loggers: u16,
    pub racks: u16,
    pub replicas: u8,
    pub layout: String,
    pub chunk_bytes: u32,
    pub disk: String,
    pub disk_source: String,
    pub network: String,
    pub network_source: String,
    /// `auto`, `schedule` or `fixed`.
    pub gears: &'static str,
    pub g_min: u8,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    pub arrived: u64,
    pub answered: u64,
    pub failed: u64,
    /// Not answered when the run ended.
    pub unanswered: u64,
    /// Events of the virtual world.
    pub events: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencyRow {
    /// `read` or `write`.
    pub operation: &'static str,
    /// Absent: all gears.
    pub gear: Option<u8>,
    pub phase: Option<Phase>,
    #[serde(flatten)]
    pub latency: Latency,
    pub retried: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrafficRow {
    pub traffic: Traffic,
    pub bytes: u64,
    pub cross_rack_bytes: u64,
}

impl TrafficRow {
    fn of(traffic: Traffic, fabric: &Fabric) -> TrafficRow {
        let (bytes, cross_rack_bytes) =
            (fabric.bytes[traffic as usize], fabric.cross_rack_bytes[traffic as usize]);
        TrafficRow { traffic, bytes, cross_rack_bytes }
    }
}

/// Queues at holders: store commands in flight, all of them and those for offload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HolderRow {
    pub phase: Phase,
    pub gear: u8,
    pub seconds: f64,
    pub mean_holders: f64,
    pub mean_queue: f64,
    pub mean_offload_queue: f64,
    /// Of a single holder.
    pub longest_queue: u32,
}

/// A gear shift as recorded by the metadata service.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shift {
    /// Simulated seconds since the start of the trace.
    pub at_seconds: f64,
    pub from_gear: u8,
    pub to_gear: u8,
    pub from_servers: u32,
    pub to_servers: u32,
    pub why: String,
    pub woken: u32,
    pub put_to_sleep: u32,
    pub migrations: u32,
    pub took_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Offload {
    /// Total over the run.
    pub taken_bytes: u64,
    pub reclaimed_bytes: u64,
    pub most_debt_bytes: u64,
    pub debt_at_end_bytes: u64,
}

pub(super) fn report(
    world: &mut World,
    trace: &Trace,
    setup: &Setup,
    schedule: &Schedule,
    series: &LoadSeries,
    taken: Taken,
    pairs: Option<PairsReport>,
) -> Report {
    let start = world.models().feed.start;
    let shifts = shifts(world, start);
    let stats: Vec<_> = world.servers.values().map(|s| s.replica().stats()).collect();
    let events = world.events();
    let state = world.newest_state().clone();
    let models = world.models();
    let held = models.machines.values().flat_map(|machine| machine.store.replicas());
    let chunks: BTreeSet<ChunkId> = held.map(|data| data.chunk).collect();
    let done = std::mem::take(&mut models.clients.answered);
    let failed = done.iter().filter(|d| d.failed).count() as u64;
    let span = (models.sample_until - start) as f64 / 1e9;
    let server_days = f64::from(setup.servers) * span * setup.speed / DAY_SECONDS;
    let debt = |s: &Sample| s.debt_bytes;
    Report {
        trace: facts(trace, setup, series),
        stopped_at_seconds: None,
        cluster: cluster(setup, schedule),
        requests: Requests {
            arrived: models.clients.arrived,
            answered: done.len() as u64 - failed,
            failed,
            unanswered: models.clients.under_way() as u64,
            events,
        },
        latency: latency_rows(&done, setup.replicas),
        retries: models.clients.retries,
        traffic: TRAFFICS.map(|traffic| TrafficRow::of(traffic, &models.fabric)).into(),
        holders: holders(models),
        shifts,
        migrations: models.watch.migrations.clone(),
        reclaims: models.watch.reclaims.clone(),
        offload: Offload {
            taken_bytes: stats.iter().map(|s| s.offloaded_bytes).sum(),
            reclaimed_bytes: stats.iter().map(|s| s.reclaimed_bytes).sum(),
            most_debt_bytes: models.watch.samples.iter().map(debt).max().unwrap_or(0),
            debt_at_end_bytes: models.debt_bytes(),
        },
        energy_modelled: Energy::new(
            &taken,
            models.watch.always_on,
            pairs.as_ref().map(|pairs| pairs.scales),
            setup.speed,
            span,
        ),
        depths: DepthRow::all(setup.depths(), &setup.sleep(), &taken.clock, server_days),
        pairs,
        samples: models.watch.samples.clone(),
        done,
        states: std::mem::take(&mut models.watch.states),
        chunks: chunks.len() as u64,
        state,
    }
}

fn facts(trace: &Trace, setup: &Setup, series: &LoadSeries) -> TraceFacts {
    let peak = series.peak_except(&setup.except);
    TraceFacts {
        name: trace.name.clone(),
        requests: trace.requests.len() as u64,
        span_seconds: trace.span().as_secs_f64(),
        speed: setup.speed,
        peak_load_servers: peak.0,
        except: setup.except.clone(),
        servers_for_peak: servers_for(peak, setup.replicas),
    }
}

fn cluster(setup: &Setup, schedule: &Schedule) -> ClusterFacts {
    ClusterFacts {
        servers: setup.servers,
        loggers: setup.loggers,
        racks: setup.racks,
        replicas: setup.replicas,
        layout: setup.layout.to_string(),
        chunk_bytes: setup.chunk_bytes,
        disk: setup.disk.name().to_owned(),
        disk_source: setup.disk.source().to_owned(),
        network: setup.network.name.clone(),
        network_source: setup.network.source.clone(),
        gears: match setup.gears {
            Gears::Auto => "auto",
            Gears::Groups => "groups",
            Gears::Schedule => "schedule",
            Gears::Fixed(_) => "fixed",
        },
        g_min: schedule.g_min,
        seed: setup.seed,
    }
}

fn shifts(world: &World, start: u64) -> Vec<Shift> {
    let origin = world.unix_millis() + start / 1_000_000;
    let records = world.newest_state().shifts();
    records
        .filter(|s| s.at_unix_millis + s.took_millis >= origin)
        .map(|s| Shift {
            at_seconds: (s.at_unix_millis as f64 - origin as f64) / 1e3,
            from_gear: s.from_gear,
            to_gear: s.to_gear,
            from_servers: s.from_servers,
            to_servers: s.to_servers,
            why: s.why.clone(),
            woken: s.woken,
            put_to_sleep: s.put_to_sleep,
            migrations: s.migrations,
            took_seconds: s.took_millis as f64 / 1e3,
        })
        .collect()
}

fn latency_rows(done: &[Done], replicas: u8) -> Vec<LatencyRow> {
    let mut rows = Vec::new();
    let mut add = |operation, gear, phase, which: &dyn Fn(&Done) -> bool| {
        let chosen = || done.iter().filter(|d| !d.failed && which(d));
        if let Some(latency) = Latency::of(chosen().map(|d| Duration::from_nanos(d.took))) {
            let retried = chosen().filter(|d| d.retries > 0).count() as u64;
            rows.push(LatencyRow { operation, gear, phase, latency, retried });
        }
    };
    for (operation, read) in [("read", true), ("write", false)] {
        add(operation, None, None, &|d| d.read == read);
    }
    for gear in 0..=replicas {
        for phase in PHASES {
            for (operation, read) in [("read", true), ("write", false)] {
                add(operation, Some(gear), Some(phase), &|d| {
                    (d.read, d.gear, d.phase) == (read, gear, phase)
                });
            }
        }
    }
    rows
}

fn holders(models: &Models) -> Vec<HolderRow> {
    let mut sums: BTreeMap<(u8, Phase), HolderRow> = BTreeMap::new();
    for span in models.watch.spans.iter().filter(|s| s.holders > 0) {
        let row = sums.entry((span.gear, span.phase)).or_insert(HolderRow {
            phase: span.phase,
            gear: span.gear,
            seconds: 0.0,
            mean_holders: 0.0,
            mean_queue: 0.0,
            mean_offload_queue: 0.0,
            longest_queue: 0,
        });
        let seconds = (span.to - span.from) as f64 / 1e9;
        row.seconds += seconds;
        row.longest_queue = row.longest_queue.max(span.longest_queue);
        row.mean_holders += seconds * span.holders as f64;
        row.mean_queue += seconds * span.holders as f64 * span.queue;
        row.mean_offload_queue += seconds * span.holders as f64 * span.offload_queue;
    }
    let mean = |mut row: HolderRow| {
        row.mean_queue /= row.mean_holders.max(1e-9);
        row.mean_offload_queue /= row.mean_holders.max(1e-9);
        row.mean_holders /= row.seconds.max(1e-9);
        row
    };
    sums.into_values().map(mean).collect()
}

pub(super) fn servers_for(peak: Load, replicas: u8) -> u32 {
    // Loads that were scaled to whole servers are so but for rounding.
    let groups = (peak.0 / f64::from(replicas) - 1e-9).ceil().max(1.0);
    groups as u32 * u32::from(replicas)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, cluster, requests) = (&self.trace, &self.cluster, &self.requests);
        let except: Vec<String> = trace.except.iter().map(Window::to_string).collect();
        let outside =
            if except.is_empty() { String::new() } else { format!(" outside of {}", except.join(", ")) };
        writeln!(
            f,
            "{}: {} requests in {:.0} s, speed {}; peak load {:.1} servers{outside}, for which the paper would take {}",
            trace.name,
            trace.requests,
            trace.span_seconds,
            trace.speed,
            trace.peak_load_servers,
            trace.servers_for_peak
        )?;
        if let Some(at) = self.stopped_at_seconds {
            let share = 100.0 * at / trace.span_seconds;
            writeln!(f, "stopped at {at:.0} s, {share:.1} % of it: what follows is of that time")?;
        }
        writeln!(
            f,
            "{} servers in {} racks, {} copies, {} layout, gears {}; modelled disk {}, network {}, seed {}",
            cluster.servers,
            cluster.racks,
            cluster.replicas,
            cluster.layout,
            cluster.gears,
            cluster.disk,
            cluster.network,
            cluster.seed
        )?;
        writeln!(
            f,
            "{} answered, {} failed, {} unanswered; {} tries again{}\n",
            requests.answered,
            requests.failed,
            requests.unanswered,
            self.retries.total(),
            self.retries.reasons()
        )?;
        self.write_latency(f)?;
        self.write_cluster(f)
    }
}

impl Report {
    /// No request failed, and none is left; what was under way when it was stopped was not to be answered.
    pub fn all_served(&self) -> bool {
        let Requests { failed, unanswered, .. } = self.requests;
        failed == 0 && (unanswered == 0 || self.stopped_at_seconds.is_some())
    }

    fn write_latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "latency, ms (modelled)      requests      mean       p50       p95       p99     p99.9       max   retried"
        )?;
        for row in &self.latency {
            let name = match (row.gear, row.phase) {
                (Some(gear), Some(phase)) => format!("{:<6}gear {gear} {}", row.operation, phase.name()),
                _ => format!("{:<6}all", row.operation),
            };
            let l = &row.latency;
            writeln!(
                f,
                "{name:<24}{:>12}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10}",
                l.count,
                l.mean_millis,
                l.p50_millis,
                l.p95_millis,
                l.p99_millis,
                l.p999_millis,
                l.max_millis,
                row.retried
            )?;
        }
        Ok(())
    }

    fn write_cluster(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nnetwork               bytes     between racks")?;
        for row in &self.traffic {
            let name = row.traffic.name();
            let (all, cross) = (Bytes(row.bytes).to_string(), Bytes(row.cross_rack_bytes).to_string());
            writeln!(f, "{name:<15}{all:>12}{cross:>18}")?;
        }
        if !self.holders.is_empty() {
            writeln!(
                f,
                "\nholders               seconds   holders     queue   of it offload (means)   longest"
            )?;
        }
        for row in &self.holders {
            let name = format!("gear {} {}", row.gear, row.phase.name());
            let HolderRow { seconds, mean_holders, mean_queue, mean_offload_queue, longest_queue, .. } = row;
            writeln!(
                f,
                "{name:<20}{seconds:>11.1}{mean_holders:>10.1}{mean_queue:>10.3}{mean_offload_queue:>16.3}{longest_queue:>18}"
            )?;
        }
        if !self.shifts.is_empty() {
            writeln!(
                f,
                "\nshift at, s      gears    servers     woken    asleep   primaries    took, s  why"
            )?;
        }
        for s in &self.shifts {
            let gears = format!("{} to {}", s.from_gear, s.to_gear);
            let servers = format!("{} to {}", s.from_servers, s.to_servers);
            writeln!(
                f,
                "{:>11.0}{gears:>11}{servers:>11}{:>10}{:>10}{:>12}{:>11.2}  {}",
                s.at_seconds, s.woken, s.put_to_sleep, s.migrations, s.took_seconds, s.why
            )?;
        }
        for r in &self.reclaims {
            let (debt, rate) = (Bytes(r.debt_bytes), Bytes(r.bytes_per_second as u64));
            writeln!(f, "reclaim at {:.0} s: debt {debt}, {:.2} s, {rate}/s", r.at_seconds, r.took_seconds)?;
        }
        let (offload, energy) = (&self.offload, &self.energy_modelled);
        let (taken, back) = (Bytes(offload.taken_bytes), Bytes(offload.reclaimed_bytes));
        let (most, left) = (Bytes(offload.most_debt_bytes), Bytes(offload.debt_at_end_bytes));
        writeln!(f, "\noffload: {taken} taken, {back} given back; debt at most {most}, {left} at the end")?;
        let mut modelled = energy.text(self.trace.speed);
        table(&mut modelled, &DepthRow::HEADER, &self.depths.iter().map(DepthRow::cells).collect::<Vec<_>>());
        f.write_str(&modelled)?;
        match &self.pairs {
            Some(pairs) if energy.comparable => write!(f, "{pairs}"),
            Some(pairs) => writeln!(f, "{}", pairs.behaviour()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_size_is_the_peak_rounded_up_to_whole_gear_groups() {
        let size = |peak| servers_for(Load(peak), 3);
        assert_eq!([0.0, 2.9, 3.0, 3.1, 14.6].map(size), [3, 3, 3, 6, 15]);
        assert_eq!(size(9.0 + 1e-12), 9, "a load that was scaled to nine");
    }
}
