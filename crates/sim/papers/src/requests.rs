//! The testbed experiments, request by request: power (Figure 9, right), the schedule (Figure 10), response times in
//! the three worst periods (Figure 11), reclaim (Table 2) and the migration of primaries (Table 3).
//!
//! The trace is run with an oracle's gears on 15 chunk servers and 3 dedicated loggers, down to one copy awake and down
//! to two, and always on, on 18 chunk servers: the same resources, the same requests. [Sierra §4.3] The paper sized its
//! cluster for the trace's peak. Here the servers are given, so the trace is sped up until its peak needs all of them,
//! each as busy as a server may be: otherwise the disks would idle and every gear would look good.

use super::findings::{Experiment, PaperError, Table, with_bars};
use super::side_by_side::side_by_side;
use super::testbed::{HOUR, MB, REPLICAS};
use ebb_gear::{Load, LoadSeries, Provision, Scheme, rehearsal};
use ebb_output::{Axis, Chart, Latency, Mark, Series};
use ebb_sim::request::{
    DiskModel, Done, Gears, Migration, NetworkModel, PHASES, Phase, Reclaim, Report, Sample, Setup, SimError,
    hours, simulate,
};
use ebb_trace::Trace;
use ebb_types::Schedule;
use std::time::Duration;

/// The testbed's chunk servers, loggers and racks, and its chunks. [Sierra §4.3]
const SERVERS: u16 = 15;
const LOGGERS: u16 = 3;
const RACKS: u16 = 3;
const CHUNK_BYTES: u32 = 1 << 20;
/// The down-shift run covers this time before and after the shift; the up-shift run continues for an hour.
const AROUND: f64 = 600.0;
/// Share of the disks' own rates that a server is provisioned for: at the full rates queues grow without bound, and a
/// server sustains what it does at an acceptable latency. L is the mean server's, and counts neither offload nor what
/// files cost: filled to half of the rates, the busiest of 15 servers has more to do at the peak than its disk can with
/// eleven of the seeds 1 to 20, and with one at 0.4.
const FILLED: f64 = 0.4;
/// Share of the time that the required rate leaves, in which a paced reclaim is to end: its time begins when a server
/// that woke knows what it lacks, and the last blocks wait for their turn.
const PACED: f64 = 0.75;
/// The peak of one-second samples falls as more requests enter each sample: the speed is found iteratively.
const ROUNDS: usize = 6;

/// Sierra's configuration: rack-aligned, with a logger in each rack.
fn sierra(g_min: u8, speed: f64, seed: u64) -> Setup {
    Setup {
        speed,
        servers: SERVERS,
        loggers: LOGGERS,
        racks: RACKS,
        replicas: REPLICAS,
        layout: Scheme::RackAligned,
        chunk_bytes: CHUNK_BYTES,
        // 320 chunk groups, as on the testbed.
        groups_per_server: 21,
        client_hosts: 9,
        disk: DiskModel::hdd_2009(),
        network: NetworkModel::gigabit(),
        gears: Gears::Schedule,
        g_min,
        provision: Some(Provision::Peak),
        seed,
        ..Setup::default()
    }
}

/// The same resources, always on.
fn baseline(speed: f64, seed: u64) -> Setup {
    let gears = Gears::Fixed(REPLICAS);
    Setup { servers: SERVERS + LOGGERS, loggers: 0, gears, ..sierra(1, speed, seed) }
}

/// The runs of one trace.
pub(super) struct Runs {
    /// The highest load of each hour, in chunk servers, and its gear.
    hours: Vec<(Load, u8)>,
    /// With one copy awake in the lowest gear, and with two.
    pub one: Report,
    two: Report,
    base: Report,
    /// As `one`, with reclaim at the required rate; `None`: there was none.
    paced: Option<Report>,
    /// As `one`, with fewer loggers.
    fewer: Vec<Report>,
}

pub(super) fn run(trace: &Trace, seed: u64, tell: &mut dyn FnMut(&str, f64)) -> Result<Runs, PaperError> {
    let speed = speed_for_peak(trace)?;
    let one = sierra(1, speed, seed);
    let fewer: Vec<Setup> = (1..LOGGERS).rev().map(|loggers| Setup { loggers, ..one.clone() }).collect();
    let rest = [baseline(speed, seed), sierra(2, speed, seed)];
    let setups: Vec<Setup> = [one].into_iter().chain(rest).chain(fewer).collect();
    let mut tell_share = |share| tell("the trace with gears and always on (Figures 9 to 11)", share);
    tell_share(0.0);
    let reports = side_by_side(&setups, |setup| simulate(trace, setup, &mut |_| true), tell_share)?;
    let mut reports = reports.into_iter();
    let mut next = || reports.next().expect("there is one of each setup");
    let (one, base, two) = (next(), next(), next());
    let fewer = reports.collect();
    tell("the trace with reclaim at the required rate (Table 2)", 0.0);
    let paced = paced_time(&one)
        .map(|reclaim_within| Setup { reclaim_within, ..setups[0].clone() })
        .map(|setup| simulate(trace, &setup, &mut |_| true))
        .transpose()?;
    Ok(Runs { hours: hours(trace, &setups[0])?, one, two, base, paced, fewer })
}

/// Schedule, response times, reclaim, migration.
pub(super) fn experiments(runs: &Runs) -> Vec<Experiment> {
    let Runs { hours, one, base, paced, .. } = runs;
    let mut reclaim = reclaim(one);
    paced_reclaim(paced.as_ref(), required_rate(one), &mut reclaim);
    vec![schedule(one, hours), response_times(one, base, hours), reclaim, migration(one), loggers(runs)]
}

/// The speed at which the trace's peak uses the provisioned share of all chunk servers. Loads grow roughly in
/// proportion to it.
fn speed_for_peak(trace: &Trace) -> Result<f64, PaperError> {
    let rates = DiskModel::hdd_2009().rates();
    let schedule = rates.in_schedule(Schedule::default());
    let mut speed = 1.0;
    for _ in 0..ROUNDS {
        let schedule = rehearsal(&schedule, speed).map_err(SimError::from)?;
        let loads = trace.loads(CHUNK_BYTES).map_err(SimError::from)?;
        let series = LoadSeries::new(loads, speed, &schedule, REPLICAS).map_err(SimError::from)?;
        let peak = series.peak().0;
        if peak > 0.0 {
            speed *= FILLED * f64::from(SERVERS) / peak;
        }
    }
    Ok(speed)
}

/// Share of the chunk servers awake by the gears of the hours.
fn awake_by_gears(hours: &[(Load, u8)], g_min: u8) -> f64 {
    let gears: f64 = hours.iter().map(|(_, gear)| f64::from((*gear).max(g_min))).sum();
    gears / f64::from(REPLICAS) / hours.len().max(1) as f64
}

/// Power consumed by the Hotmail I/O trace, loggers included, gear 1 allowed: "savings of 23 %". [Sierra abstract]
const PAPER_POWER: f64 = 0.77;

/// Servers awake in the run beyond what the gears of the hours say, as a share of all, by what the cluster does:
/// servers wake before their hour, fetch what they missed, and hand over before they sleep.
fn beyond_gears(runs: &Runs, found: &mut Experiment) {
    let (run, hour) = (&runs.one, hour(&runs.one));
    let group = f64::from(SERVERS) / f64::from(REPLICAS);
    let beyond = |sample: &Sample| {
        let at = ((sample.at_seconds / hour) as usize).min(runs.hours.len().saturating_sub(1));
        let gear = runs.hours.get(at).map_or(0.0, |(_, gear)| f64::from(*gear));
        f64::from(sample.servers_awake) - f64::from(LOGGERS) - gear * group
    };
    let (all, samples) = (f64::from(SERVERS + LOGGERS), run.samples.len().max(1) as f64);
    for phase in PHASES {
        let here = run.samples.iter().filter(|sample| sample.phase == phase);
        let share = here.map(beyond).sum::<f64>() / all / samples;
        found.ours(format!("trace: g_min 1, of {all}: awake beyond the gears, {}", phase.name()), "%", share);
    }
}

/// The right half of Figure 9: by the gears of the hours, and in the runs.
pub(super) fn power(runs: &Runs, found: &mut Experiment) {
    beyond_gears(runs, found);
    let (chunk, all) = (f64::from(SERVERS), f64::from(SERVERS + LOGGERS));
    let mut bars = [(); 3].map(|()| Vec::new());
    for (at, (g_min, run)) in [(1, &runs.one), (2, &runs.two)].into_iter().enumerate() {
        let by_gears = awake_by_gears(&runs.hours, g_min);
        let awake = run.energy_modelled.mean_servers_awake;
        let rows = [
            (all, (by_gears * chunk + f64::from(LOGGERS)) / all, awake / all),
            (chunk, by_gears, (awake - f64::from(LOGGERS)) / chunk),
        ];
        for (half, (of, by_gears, in_run)) in rows.into_iter().enumerate() {
            let with = if half == 0 { "with loggers" } else { "chunk servers alone" };
            let paper = (g_min == 1 && half == 0).then_some(PAPER_POWER);
            let what = format!("trace: g_min {g_min}, {with}, of {of}: by the gears");
            found.row(what, "%", paper, Some(by_gears));
            let what = format!("trace: g_min {g_min}, {with}, of {of}: awake in the run");
            found.row(what, "%", paper, Some(in_run));
            bars[0].push(((2 * half + at) as f64, by_gears));
            bars[1].push(((2 * half + at) as f64, in_run));
        }
        let energy =
            run.energy_modelled.clock.total_joules.0 / runs.base.energy_modelled.clock.total_joules.0;
        let what = format!("trace: g_min {g_min}, with loggers: modelled energy of the run");
        found.row(what, "%", paper_of(g_min), Some(energy));
        bars[2].push((at as f64, energy));
    }
    let names = ["g_min 1, of 18", "g_min 2, of 18", "g_min 1, of 15", "g_min 2, of 15"];
    let chart = Chart::new(
        "Power consumed by the trace",
        Axis::new("with loggers, of 18 servers; chunk servers alone, of 15").names(names),
        Axis::new("of always on").percent().to(1.0),
    );
    let kinds = ["by the gears", "servers awake in the run", "modelled energy of the run"];
    found.charts.push(with_bars(chart, kinds.into_iter().zip(bars)));
}

fn paper_of(g_min: u8) -> Option<f64> {
    (g_min == 1).then_some(PAPER_POWER)
}

fn schedule(run: &Report, hours: &[(Load, u8)]) -> Experiment {
    let mut found = Experiment::new(
        "Figure 10",
        "Gear schedule",
        format!(
            "{}: {} requests in {:.1} hours on {SERVERS} chunk servers and {LOGGERS} loggers with {} disks ({}). Drawn is L, the \
             highest load of each of the trace's hours in chunk servers, and the gear that an oracle chooses for it. The peak needs all \
             chunk servers, each filled to {:.0} % of its disk's own rates, for which the trace is sped up {:.1} times: an hour of it \
             takes {:.0} s here. The paper draws 48 hours, 14 of them in the highest gear; it keeps its nightly maintenance in the \
             highest gear and does not provision for it.",
            run.trace.name,
            run.trace.requests,
            run.trace.span_seconds / 3600.0,
            run.cluster.disk,
            run.cluster.disk_source,
            FILLED * 100.0,
            run.trace.speed,
            hour(run)
        ),
    );
    let at = |hour: usize| hour as f64 * HOUR.as_secs_f64();
    // The last hour is drawn to its end.
    let drawn = || hours.iter().chain(hours.last()).enumerate();
    let load = drawn().map(|(n, (load, _))| (at(n), load.0));
    let sustained = drawn().map(|(n, (_, gear))| (at(n), f64::from(*gear) * f64::from(SERVERS / 3)));
    let gears = drawn().map(|(n, (_, gear))| (at(n), f64::from(*gear)));
    let awake = run.samples.iter().map(|s| (s.at_seconds * run.trace.speed, f64::from(s.servers_awake)));
    let time = || Axis::new("time of the trace").time();
    found.charts = vec![
        Chart::new("Load and what the gear sustains", time(), Axis::new("L, chunk servers").from(0.0))
            .with(Series::new("highest load of the hour", Mark::Step, load))
            .with(Series::new("chunk servers of the gear", Mark::Step, sustained)),
        Chart::new("Gear and servers awake", time(), Axis::new("gear; servers").from(0.0))
            .with(Series::new("servers awake, loggers included", Mark::Step, awake))
            .with(Series::new("gear", Mark::Step, gears)),
    ];
    let busiest = run.samples.iter().map(|sample| sample.disk_busy).reduce(f64::max);
    found.ours("a server is filled to, of its disk's own rates", "%", FILLED);
    found.row("disks of awake servers busy, on average, in the busiest sample", "%", None, busiest);
    let loads = || hours.iter().map(|(load, _)| load.0);
    found.row("highest L, chunk servers", "", Some(15.0), loads().reduce(f64::max));
    found.row("lowest L of an hour, chunk servers", "", None, loads().reduce(f64::min));
    for gear in 1..=REPLICAS {
        let share = hours.iter().filter(|(_, g)| *g == gear).count() as f64 / hours.len().max(1) as f64;
        let paper = (gear == REPLICAS).then_some(14.0 / 48.0);
        found.row(format!("hours in gear {gear}"), "%", paper, Some(share));
    }
    found
}

/// The scheduler's hour, in simulated seconds.
fn hour(run: &Report) -> f64 {
    HOUR.as_secs_f64() / run.trace.speed
}

/// A period of the run, in simulated seconds from its start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    from: f64,
    to: f64,
}

impl Stretch {
    fn holds(&self, done: &Done) -> bool {
        let at = done.at as f64 / 1e9;
        self.from <= at && at < self.to
    }
}

/// Of all hours spent in the lowest gear, the one with the highest load.
fn steady(run: &Report, loads: &[(Load, u8)]) -> Option<Stretch> {
    let lowest = run.samples.iter().map(|sample| sample.gear).min()?;
    let hour = hour(run);
    let hours = (run.trace.span_seconds / HOUR.as_secs_f64()).floor() as usize;
    let whole = (0..hours.min(loads.len())).filter(|at| {
        let (from, to) = (*at as f64 * hour, (*at + 1) as f64 * hour);
        // A shift into the lowest gear takes the first part of an hour.
        let settled = from + 0.2 * hour;
        let mut inside =
            run.samples.iter().filter(|s| settled <= s.at_seconds && s.at_seconds < to).peekable();
        inside.peek().is_some() && inside.all(|s| s.gear == lowest && s.phase == Phase::Steady)
    });
    let at = whole.max_by(|a, b| loads[*a].0.0.total_cmp(&loads[*b].0.0))?;
    Some(Stretch { from: at as f64 * hour, to: (at + 1) as f64 * hour })
}

/// Where the gear changed: the time, and the number of gear groups that woke (or, below zero, went to sleep).
fn transitions(run: &Report) -> impl Iterator<Item = (f64, i32)> + '_ {
    let change = |pair: &[Sample]| (pair[1].at_seconds, i32::from(pair[1].gear) - i32::from(pair[0].gear));
    run.samples.windows(2).map(change).filter(|(_, change)| *change != 0)
}

/// The up-shift with the most offload to reclaim, from ten minutes before it to an hour after it.
fn up_shift(run: &Report) -> Option<Stretch> {
    let debt = |at: &f64| {
        let before = run.samples.iter().rev().find(|sample| sample.at_seconds <= *at);
        before.map_or(0, |sample| sample.debt_bytes)
    };
    let up = transitions(run).filter(|(_, change)| *change > 0).map(|(at, _)| at).max_by_key(debt)?;
    Some(Stretch { from: up - AROUND / run.trace.speed, to: up + hour(run) })
}

/// The down-shift with the most requests in the minute after it.
fn busiest_down_shift(run: &Report) -> Option<f64> {
    let after = |at: &f64| {
        let minute = Stretch { from: *at, to: at + 60.0 / run.trace.speed };
        run.done.iter().filter(|done| minute.holds(done)).count()
    };
    transitions(run).filter(|(_, change)| *change < 0).map(|(at, _)| at).max_by_key(after)
}

/// That down-shift, from ten minutes before it to ten minutes after it.
fn down_shift(run: &Report) -> Option<Stretch> {
    let around = AROUND / run.trace.speed;
    busiest_down_shift(run).map(|at| Stretch { from: at - around, to: at + around })
}

fn latency(run: &Report, stretch: Stretch) -> Option<Latency> {
    let done = run.done.iter().filter(|done| !done.failed && stretch.holds(done));
    Latency::of(done.map(|done| Duration::from_nanos(done.took)))
}

fn response_times(run: &Report, base: &Report, hours: &[(Load, u8)]) -> Experiment {
    let mut found = Experiment::new(
        "Figure 11",
        "Response times in the worst stretches, against always on",
        format!(
            "As in the paper, three stretches that are worst for gears: of the hours in the lowest gear the one with the highest load; \
             from ten minutes of the trace before the up-shift with the most to reclaim to an hour after it; ten minutes around the \
             busiest down-shift. With gears there are {SERVERS} chunk servers and {LOGGERS} loggers; always on are {} chunk servers: \
             the same resources and the same requests, as in the paper. Because the trace is sped up {:.0} times, waking and reclaim, \
             which are not, take {:.0} times as much of an hour as in the paper. The paper draws its \
             values; by its text the penalty is small, and largest in the up-shift. Disks and network are modelled; nothing is cached.",
            SERVERS + LOGGERS,
            run.trace.speed,
            run.trace.speed
        ),
    );
    let stretches =
        [("steady", steady(run, hours)), ("up-shift", up_shift(run)), ("down-shift", down_shift(run))];
    let header = ["stretch", "from", "requests", "", "mean", "p50", "p99", "p99.9", "highest"];
    let mut table = Table::new("Modelled response times", header, Vec::new());
    let mut bars = [(); 4].map(|()| Vec::new());
    for (at, (name, stretch)) in stretches.iter().enumerate() {
        let Some(stretch) = stretch else { continue };
        let (Some(geared), Some(always)) = (latency(run, *stretch), latency(base, *stretch)) else {
            continue;
        };
        for (system, l) in [("gears", &geared), ("always on", &always)] {
            let millis = |value: f64| format!("{value:.1} ms");
            table.rows.push(vec![
                (*name).to_owned(),
                format!("{:.1} h", stretch.from / hour(run)),
                l.count.to_string(),
                system.to_owned(),
                millis(l.mean_millis),
                millis(l.p50_millis),
                millis(l.p99_millis),
                millis(l.p999_millis),
                millis(l.max_millis),
            ]);
        }
        let seconds = [always.mean_millis, geared.mean_millis, always.p99_millis, geared.p99_millis];
        seconds.iter().zip(&mut bars).for_each(|(millis, bars)| bars.push((at as f64, millis / 1e3)));
        let what = format!("{name}: mean, times that of always on");
        found.ours(what, "", geared.mean_millis / always.mean_millis);
        let what = format!("{name}: p99, times that of always on");
        found.ours(what, "", geared.p99_millis / always.p99_millis);
    }
    let names = stretches.iter().map(|(name, _)| *name);
    let chart =
        Chart::new("Response time", Axis::new("").names(names), Axis::new("modelled response time").time());
    let systems = ["mean, always on", "mean, gears", "p99, always on", "p99, gears"];
    found.charts.push(with_bars(chart, systems.into_iter().zip(bars)));
    found.tables.push(table);
    found
}

fn reclaim(run: &Report) -> Experiment {
    let mut found = Experiment::new(
        "Table 2",
        "Reclaim",
        "What sleepers missed is kept by the loggers and given back when they wake. The amounts are the trace's; what matters \
         is that reclaim is much faster than it must be: the required rate is the distinct bytes that sleepers lack just before each \
         up-shift, summed, by the time in the highest gear. Bytes written twice count once; a copy for each of two sleepers counts \
         twice, since each fetches its own. The queues are those of offload at the servers that hold it. Paced: the same run with \
         reclaims that take three quarters of the time that the largest would at the required rate.",
    );
    let (top_seconds, distinct) = (top_seconds(run), distinct_bytes(run));
    let taken = run.offload.taken_bytes as f64;
    let largest = largest_reclaim(run);
    found.row("data offloaded", "MB", Some(166.0 * 1024.0), Some(taken / MB));
    found.ours("distinct bytes before each up-shift, summed", "MB", distinct / MB);
    found.row("time in the highest gear, of the trace", "h", Some(14.0), Some(top_seconds / hour(run)));
    let required = required_rate(run);
    found.row("required reclaim rate", "MB/s", Some(3.4), required);
    let what = "data reclaimed in the up-shift";
    found.row(what, "MB", Some(22.0 * 1024.0), largest.map(|r| r.fetched_bytes as f64 / MB));
    found.row("achieved reclaim rate", "MB/s", Some(6.3), largest.map(|r| r.bytes_per_second / MB));
    found.row("achieved by required", "", Some(6.3 / 3.4), achieved_by(run, required));
    found.row("holder's mean queue, steady", "", Some(0.09), offload_queue(run, Phase::Steady));
    found.row("holder's mean queue, reclaim", "", Some(2.3), offload_queue(run, Phase::Reclaim));
    let debt = run.samples.iter().map(|sample| (sample.at_seconds, sample.debt_bytes as f64));
    found.charts.push(
        Chart::new(
            "Offload that waits for its servers",
            Axis::new("time").time(),
            Axis::new("bytes").bytes(),
        )
        .with(Series::new("offload", Mark::Area, debt)),
    );
    found
}

/// Time in the highest gear.
fn top_seconds(run: &Report) -> f64 {
    let top = run.samples.iter().filter(|sample| sample.gear == REPLICAS).count() as f64;
    run.trace.span_seconds / run.trace.speed * top / run.samples.len().max(1) as f64
}

/// What sleepers lack before each up-shift, summed.
fn distinct_bytes(run: &Report) -> f64 {
    run.reclaims.iter().map(|reclaim| reclaim.debt_bytes as f64).sum()
}

/// In MB/s.
fn required_rate(run: &Report) -> Option<f64> {
    let seconds = top_seconds(run);
    (seconds > 0.0).then(|| distinct_bytes(run) / MB / seconds)
}

fn largest_reclaim(run: &Report) -> Option<&Reclaim> {
    run.reclaims.iter().max_by_key(|reclaim| reclaim.debt_bytes)
}

/// `required`: in MB/s.
fn achieved_by(run: &Report, required: Option<f64>) -> Option<f64> {
    let achieved = largest_reclaim(run)?.bytes_per_second / MB;
    required.filter(|rate| *rate > 0.0).map(|rate| achieved / rate)
}

/// What the largest reclaim takes at a pace that meets the required rate.
fn paced_time(run: &Report) -> Option<Duration> {
    let bytes = largest_reclaim(run)?.fetched_bytes as f64;
    let rate = required_rate(run).filter(|rate| *rate > 0.0)? / PACED;
    Some(Duration::from_secs_f64(bytes / MB / rate))
}

/// "We can meet the second requirement [...] if we throttled the reclaim process to 3.4 MB/s." [Sierra §4.5]
fn paced_reclaim(paced: Option<&Report>, required: Option<f64>, found: &mut Experiment) {
    let achieved = paced.and_then(largest_reclaim).map(|reclaim| reclaim.bytes_per_second / MB);
    let queue = |phase| paced.and_then(|run| offload_queue(run, phase));
    found.row("paced: achieved reclaim rate", "MB/s", None, achieved);
    found.row("paced: achieved by required", "", None, paced.and_then(|run| achieved_by(run, required)));
    found.row("paced: holder's mean queue, steady", "", None, queue(Phase::Steady));
    found.row("paced: holder's mean queue, reclaim", "", None, queue(Phase::Reclaim));
}

/// Mean queue of offload at a holder; absent where there was no such time.
fn offload_queue(run: &Report, phase: Phase) -> Option<f64> {
    let rows = || run.holders.iter().filter(|row| row.phase == phase && row.seconds > 0.0);
    let seconds: f64 = rows().map(|row| row.seconds).sum();
    let area = || rows().map(|row| row.mean_offload_queue * row.seconds).sum::<f64>();
    (seconds > 0.0).then(|| area() / seconds)
}

/// The same chunk servers with fewer and fewer loggers: "the number of loggers can be scaled down". [Sierra §4.5]
fn loggers(runs: &Runs) -> Experiment {
    let mut found = Experiment::new(
        "§4.5, loggers",
        "Fewer loggers",
        format!(
            "The run of Figure 11 with {LOGGERS} loggers for {SERVERS} chunk servers and with fewer. The paper measures {LOGGERS}, finds \
             them little used, and expects that they suffice for more chunk servers."
        ),
    );
    let all: Vec<&Report> = std::iter::once(&runs.one).chain(&runs.fewer).collect();
    let mut bars = [(); 2].map(|()| Vec::new());
    for (at, run) in all.iter().enumerate() {
        let name = format!("{} loggers", run.cluster.loggers);
        let all = Latency::of(run.done.iter().filter(|d| !d.failed).map(|d| Duration::from_nanos(d.took)));
        found.row(format!("{name}: mean response"), "ms", None, all.map(|l| l.mean_millis));
        found.row(format!("{name}: p99"), "ms", None, all.map(|l| l.p99_millis));
        for (bars, millis) in bars.iter_mut().zip(all.iter().flat_map(|l| [l.mean_millis, l.p99_millis])) {
            bars.push((at as f64, millis / 1e3));
        }
        found.row(format!("{name}: mean queue, steady"), "", None, offload_queue(run, Phase::Steady));
        found.ours(format!("{name}: requests that failed"), "", run.requests.failed as f64);
    }
    let names = all.iter().map(|run| run.cluster.loggers.to_string());
    let chart = Chart::new(
        "Response time",
        Axis::new("loggers").names(names),
        Axis::new("modelled response time").time(),
    );
    found.charts.push(with_bars(chart, ["mean", "p99"].into_iter().zip(bars)));
    found
}

fn migration(run: &Report) -> Experiment {
    let mut found = Experiment::new(
        "Table 3",
        "Migration of primaries in a down-shift",
        "The down-shift of Figure 11. Clients that meet a server that is no longer primary try again at the new one.",
    );
    let stretch = down_shift(run);
    let migration = busiest_down_shift(run).and_then(|at| {
        let apart = |m: &Migration| (m.at_seconds - at).abs();
        run.migrations.iter().min_by(|a, b| apart(a).total_cmp(&apart(b)))
    });
    let within: Vec<&Done> =
        stretch.iter().flat_map(|stretch| run.done.iter().filter(|done| stretch.holds(done))).collect();
    let retried = within.iter().filter(|done| done.retries > 0).count() as f64;
    found.row("primaries that moved", "", Some(102.0), migration.map(|m| f64::from(m.migrations)));
    found.row("in all", "ms", Some(28.0), migration.map(|m| m.took_millis));
    let each = |m: &Migration| m.took_millis / f64::from(m.migrations.max(1));
    found.row("each, on average", "ms", Some(28.0 / 102.0), migration.map(each));
    let longest = run.migrations.iter().map(|m| m.took_millis).reduce(f64::max);
    found.row("in all, the longest of all down-shifts", "ms", None, longest);
    let known = stretch.is_some();
    found.row("requests that were tried again", "", Some(77.0), known.then_some(retried));
    let what = "requests in the stretch (paper: 20 minutes)";
    found.row(what, "", Some(254_536.0), known.then_some(within.len() as f64));
    let what = "tried again, of the requests in the stretch";
    found.row(what, "%", Some(77.0 / 254_536.0), known.then_some(retried / within.len().max(1) as f64));
    found
}
