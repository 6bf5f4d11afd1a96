//! One run: sets up a cluster, warms it up and replays the trace on it.

use crate::engine::{Clock, SECOND};
use crate::load::Series;
use crate::request::feed::Feed;
use crate::request::harness::World;
use crate::request::later::Later;
use crate::request::models::Models;
use crate::request::report::{Report, report, servers_for};
use crate::request::setup::{Gears, Setup, SimError};
use crate::world::net::Node;
use crate::world::server::Server;
use crate::world::settings::Settings;
use ebb_gear::{Load, LoadSeries, Policy, oracle};
use ebb_power::Draw;
use ebb_trace::Trace;
use ebb_types::{Moment, RackId, Random, Schedule, ServerId};
use std::time::Duration;

/// Simulated time from the cluster's creation to the first request: leases are granted and a fixed gear is reached.
const WARM_UP: u64 = 120 * SECOND;
/// The cluster's creation. Moment zero means "never" in several places.
pub(super) const CREATED: u64 = SECOND;
/// Longest time to wait for answers after the last request.
const REST: u64 = 90 * SECOND;
/// In so many steps of the trace it is asked whether to continue.
const STEPS: u64 = 1000;
/// Approximate number of samples in a run.
const SAMPLES: u64 = 1440;
/// Time of day at Moment zero; any would do.
const UNIX_MILLIS: u64 = 1_700_006_400_000;

impl<'a> World<'a> {
    /// A newly created cluster with models of time. Its clocks are exact.
    pub(super) fn modelled(settings: Settings, models: Models<'a>) -> World<'a> {
        let mut random = Random::new(settings.seed);
        let mut world = World::bare(settings, models, 0, &mut random);
        world.begin_at(CREATED, UNIX_MILLIS);
        world.start_member(1, Clock::default());
        let ids: Vec<ServerId> = world.settings.bootstrap.servers.iter().map(|s| s.id).collect();
        for id in ids {
            let server = Server::new(id, Clock::default(), &world.settings);
            world.servers.insert(id, server);
            world.start_server(id);
            world.resume_mirror(id);
        }
        world.start_hosts();
        world.its_after(SECOND, Later::Timeouts);
        world
    }

    /// Runs until `end`; an error if an invariant of the program was violated.
    pub(super) fn run_to(&mut self, end: u64) -> Result<(), SimError> {
        while self.step(end) {}
        match self.violation.take() {
            Some(violation) => Err(SimError::Broken(violation.what)),
            None => Ok(()),
        }
    }

    /// From now on energy and traffic count.
    fn start_measuring(&mut self, setup: &Setup, schedule: &Schedule) -> Result<(), SimError> {
        self.begin_measuring(schedule.hour_millis * 1_000_000);
        // The disks' work is added by the samples.
        let now = Moment(self.now);
        let models = self.models();
        models.energy = setup.meters()?;
        for id in models.machines.keys() {
            models.energy.set_rack(*id, RackId(models.fabric.rack(Node::Server(*id)) as u16));
            let asleep = models.slept.get(id).filter(|_| !models.on.contains(id));
            let draw = asleep.map_or(Draw::On { utilisation: 0.0 }, |depth| Draw::asleep(*depth));
            models.energy.set(now, *id, draw);
        }
        let every = models.sample_every;
        self.its_after(every, Later::Sample);
        Ok(())
    }
}

/// The scheduler's settings, and the load that it will see.
pub(super) fn plan(trace: &Trace, setup: &Setup) -> Result<(Schedule, LoadSeries), SimError> {
    if trace.requests.is_empty() {
        return Err(SimError::Empty);
    }
    let mut schedule = setup.schedule()?;
    let mut series =
        LoadSeries::new(trace.loads(setup.chunk_bytes)?, setup.speed, &schedule, setup.replicas)?;
    if let Some(provision) = setup.provision {
        series.provision(&mut schedule, provision, setup.servers.into(), &setup.except)?;
    }
    Ok((schedule, series))
}

/// The trace's load in servers, by the minute, at speed 1.
pub fn minutes(trace: &Trace, setup: &Setup) -> Result<Series, SimError> {
    let (_, series) = plan(trace, &Setup { speed: 1.0, ..setup.clone() })?;
    let per_minute = (60.0 / series.interval.as_secs_f64()).round().max(1.0) as usize;
    let minute = |samples: &[Load]| Some(samples.iter().map(|load| load.0).sum::<f64>() / per_minute as f64);
    let values = series.samples.chunks(per_minute).map(minute).collect();
    Ok(Series { interval: Duration::from_secs(60), values })
}

/// The trace's hours: the highest load of each, in servers, and the gear that an oracle gives it. [Sierra §4.4]
pub fn hours(trace: &Trace, setup: &Setup) -> Result<Vec<(Load, u8)>, SimError> {
    let (schedule, series) = plan(trace, setup)?;
    let gears = oracle_gears(setup, &series, &setup.whole_gears(&schedule)?);
    Ok(series.peaks().into_iter().zip(gears).collect())
}

/// The size that the paper gives a cluster: the trace's peak by the disks' rates, as a multiple of the copies.
/// [Sierra §4.3]
pub fn servers_for_peak(trace: &Trace, setup: &Setup) -> Result<u32, SimError> {
    let (_, series) = plan(trace, setup)?;
    Ok(servers_for(series.peak_except(&setup.except), setup.replicas))
}

fn oracle_gears(setup: &Setup, series: &LoadSeries, policy: &Policy) -> Vec<u8> {
    let is_kept = |hour| setup.except.iter().any(|window| window.meets_hour(hour));
    let gears = (0..).zip(oracle(0, &series.peaks(), policy).gears);
    gears.map(|(hour, gear)| if is_kept(hour) { policy.replicas() } else { gear }).collect()
}

/// The gears of the trace's hours, if they are chosen in advance.
fn gears(setup: &Setup, schedule: &Schedule, series: &LoadSeries) -> Result<Option<Vec<u8>>, SimError> {
    let policy = setup.whole_gears(schedule)?;
    match setup.gears {
        Gears::Auto | Gears::Groups => Ok(None),
        Gears::Fixed(asked) => {
            policy.check_gear(asked)?;
            Ok(Some(vec![asked]))
        }
        Gears::Schedule => Ok(Some(oracle_gears(setup, series, &policy))),
    }
}

/// Schedules the chosen gears: up in time for the hour, down at its start. A faster trace shortens the hour and the
/// schedule's lead, but no server's wake-up (`up`, nanoseconds).
fn announce(world: &mut World, gears: &[u8], schedule: &Schedule, up: u64, start: u64) {
    let hour = schedule.hour_millis * 1_000_000;
    let lead = (schedule.lead_millis * 1_000_000).max(up + SECOND).min(hour);
    let mut before = None;
    for (n, gear) in gears.iter().enumerate() {
        if before == Some(*gear) {
            continue;
        }
        let begins = start + n as u64 * hour;
        let at = match before {
            None => CREATED + 10 * SECOND,
            Some(last) if *gear > last => begins - lead,
            Some(_) => begins,
        };
        world.its_at(at, Later::Gear { gear: *gear });
        before = Some(*gear);
    }
}

/// Replays a trace on a modelled cluster. `go_on` gets the share of the trace that is done, 0 to 1, and says whether to
/// go on: otherwise the report has what was measured until then. The same arguments give the same report, to the byte.
pub fn simulate(
    trace: &Trace,
    setup: &Setup,
    go_on: &mut dyn FnMut(f64) -> bool,
) -> Result<Report, SimError> {
    setup.check()?;
    let (schedule, series) = plan(trace, setup)?;
    let layout = setup.layout()?;
    let start = CREATED + WARM_UP;
    let feed = Feed { requests: &trace.requests, next: 0, start, speed: setup.speed };
    let mut models = setup.models(&layout, feed)?;
    let span = (trace.span().as_nanos() as f64 / setup.speed) as u64;
    models.sample_every = (span / SAMPLES).max(SECOND);
    // As a replay does it: hours and days are those of the trace, and no hour has come before.
    let schedule = Schedule { hour_zero_unix_millis: UNIX_MILLIS + start / 1_000_000, ..schedule };
    let mut world = World::modelled(setup.settings(&layout, schedule), models);
    if let Some(gears) = gears(setup, &schedule, &series)? {
        let up = world.models().ways.values().map(|way| way.up.as_nanos() as u64).max().unwrap_or(0);
        announce(&mut world, &gears, &schedule, up, start);
    }
    go_on(0.0);
    world.run_to(start)?;
    world.start_measuring(setup, &schedule)?;
    world.its_after(0, Later::Arrivals);
    let whole = start + span + 1;
    let mut end = whole;
    for step in 1..=STEPS {
        let now = if step == STEPS { whole } else { start + (whole - start) / STEPS * step };
        world.run_to(now)?;
        if !go_on(step as f64 / STEPS as f64) {
            end = now;
            world.models().feed.end();
            break;
        }
    }
    // Every figure of energy ends with the trace: what is still queued is work of neither the cluster nor the one that
    // never sleeps.
    world.take_sample();
    world.models().sample_until = end;
    let taken = world.models().taken(end);
    let watch = &world.models().watch;
    let pairs = watch.pairs.report(&setup.mirroring, watch.always_on, taken.clock.total());
    let rest = end + REST;
    while world.models().clients.under_way() > 0 && world.now < rest {
        let next = world.now + SECOND;
        world.run_to(next)?;
    }
    world.end_span();
    let mut report = report(&mut world, trace, setup, &schedule, &series, taken, pairs);
    report.stopped_at_seconds = (end < whole).then(|| (end - start) as f64 / 1e9 * setup.speed);
    report.energy_modelled.comparable = report.all_served();
    Ok(report)
}
