//! One run: sets up a cluster, warms it up and replays the trace on it.

use crate::request::client::Clients;
use crate::request::disk::Disk;
use crate::request::follow::Watch;
use crate::request::machine::Machine;
use crate::request::network::Fabric;
use crate::request::report::{Report, report};
use crate::request::{DiskModel, Feed, Later, Models, NetworkModel, SettingsError};
use crate::search::scenario::Scenario;
use crate::world::clock::{Clock, SECOND};
use crate::world::server::Server;
use crate::world::{Happening, World};
use ebb_gear::RehearsalError;
use ebb_gear::{GearError, Layout, LayoutError, PolicyError, Scheme, layout, oracle};
use ebb_gear::{LoadSeries, Provision, rehearsal};
use ebb_meta::{Bootstrap, NewServer, Timing};
use ebb_power::{Draw, EnergyMeter, ModelError, PowerModel};
use ebb_trace::{RangeError, Trace};
use ebb_types::Random;
use ebb_types::{ClusterParams, Moment, RackId, Schedule, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Simulated time from the cluster's creation to the first request: leases are granted and a fixed gear is reached.
const WARM_UP: u64 = 120 * SECOND;
/// The cluster's creation. Moment zero means "never" in several places.
const CREATED: u64 = SECOND;
/// Longest time to wait for answers after the last request.
const REST: u64 = 90 * SECOND;
/// Approximate number of samples in a run.
const SAMPLES: u64 = 1440;
/// Any whole number of days since 1970 would do.
const UNIX_MILLIS: u64 = 1_700_006_400_000;

/// How the gear is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gears {
    /// The gear scheduler, by load and its recorded hours: at first none, so every server is awake.
    Auto,
    /// The oracle's schedule: the lowest gear for each hour's peak. [Sierra §4.4]
    Schedule,
    /// This gear all the time; r is always-on.
    Fixed(u8),
}

/// A cluster and its workload settings.
#[derive(Clone, Debug)]
pub struct Setup {
    pub servers: u16,
    pub racks: u16,
    pub replicas: u8,
    pub layout: Scheme,
    pub chunk_bytes: u32,
    /// Chunk groups per server; 64 by default. [Sierra §3.5]
    pub groups_per_server: u32,
    /// Machines that clients run on, spread over all racks in turn.
    pub client_hosts: u32,
    pub disk: DiskModel,
    pub network: NetworkModel,
    pub power: PowerModel,
    pub gears: Gears,
    pub g_min: u8,
    /// Trace seconds per simulated second; the scheduler's hour is shortened with it.
    pub speed: f64,
    /// Scales the scheduler's server rates so that the trace's peak needs this many servers. `None`: the disk's own
    /// rates.
    pub provision: Option<Provision>,
    pub heartbeat: Duration,
    pub lease: Duration,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            servers: 9,
            racks: 3,
            replicas: 3,
            layout: Scheme::Rotated,
            chunk_bytes: 64 << 20,
            groups_per_server: 64,
            client_hosts: 9,
            disk: DiskModel::hdd(),
            network: NetworkModel::ten_gigabit(),
            power: PowerModel::default(),
            gears: Gears::Auto,
            g_min: 1,
            speed: 1.0,
            provision: None,
            // One heartbeat per second suffices for the load samples, with half of the default's events.
            heartbeat: Duration::from_secs(1),
            lease: Duration::from_secs(5),
            seed: 1,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(
        "{replicas} copies in different racks need at least {replicas} racks and there are {racks}: add racks or lower --replicas"
    )]
    Racks { racks: u16, replicas: u8 },
    #[error("{servers} servers cannot stand in {racks} racks: use at most as many racks as servers")]
    EmptyRacks { servers: u16, racks: u16 },
    #[error("a request needs at least one machine to come from")]
    NoHosts,
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Gear(#[from] GearError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Power(#[from] ModelError),
    #[error(transparent)]
    Rehearsal(#[from] RehearsalError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("the trace has no request that moves bytes: there is nothing to simulate")]
    Empty,
    #[error("the simulated cluster broke down: {0}; this is a bug of Ebb")]
    Broken(String),
}

impl Setup {
    fn check(&self) -> Result<(), SimError> {
        if self.racks < u16::from(self.replicas) {
            return Err(SimError::Racks { racks: self.racks, replicas: self.replicas });
        }
        if self.racks > self.servers {
            return Err(SimError::EmptyRacks { servers: self.servers, racks: self.racks });
        }
        if self.client_hosts == 0 {
            return Err(SimError::NoHosts);
        }
        self.disk.check()?;
        self.network.check()?;
        Ok(self.power.check()?)
    }

    /// The schedule with the disk's rates.
    fn schedule(&self) -> Result<Schedule, SimError> {
        let schedule = Schedule { g_min: self.g_min, ..self.disk.rates().in_schedule(Schedule::default()) };
        Ok(rehearsal(&schedule, self.speed)?)
    }

    pub(super) fn layout(&self) -> Result<Layout, SimError> {
        let server = |n: u16| ebb_gear::Server { id: ServerId(n), rack: RackId(1 + (n - 1) % self.racks) };
        let servers: Vec<ebb_gear::Server> = (1..=self.servers).map(server).collect();
        let groups = self.groups_per_server * u32::from(self.servers);
        Ok(layout(&servers, self.replicas, groups, self.seed, self.layout)?)
    }

    pub(super) fn scenario(&self, layout: &Layout, schedule: Schedule) -> Scenario {
        let place = |(id, place): (&ServerId, &ebb_gear::Place)| NewServer {
            id: *id,
            rack: place.rack,
            gear_group: place.gear_group,
            address: format!("server-{}:1", id.0),
        };
        let bootstrap = Bootstrap {
            params: ClusterParams {
                cluster: 1,
                instance: 1,
                chunk_bytes: self.chunk_bytes,
                replicas: self.replicas,
                groups: layout.groups.len() as u32,
                lease_millis: self.lease.as_millis() as u32,
            },
            servers: layout.servers.iter().map(place).collect(),
            groups: layout.groups.clone(),
            schedule,
        };
        let wake = Duration::from_secs_f64(self.power.up.seconds + self.power.down.seconds);
        let timing = Timing {
            heartbeat: self.heartbeat,
            wake_limit: wake * 2 + Duration::from_secs(10),
            ..Timing::default()
        };
        Scenario::calm(self.seed, bootstrap, timing)
    }

    pub(super) fn models<'a>(&self, layout: &Layout, feed: Feed<'a>) -> Result<Models<'a>, SimError> {
        let mut random = Random::new(self.seed ^ 0xd15c);
        let mut machine = |id: ServerId| {
            let disk = Disk::new(self.disk.clone(), random.fork());
            (id, Machine::new(id, disk, self.disk.capacity_bytes(), self.chunk_bytes))
        };
        // The fabric counts racks from zero.
        let racks: BTreeMap<ServerId, u16> =
            layout.servers.iter().map(|(id, place)| (*id, place.rack.0 - 1)).collect();
        let nanos = |seconds: f64| (seconds * SECOND as f64) as u64;
        Ok(Models {
            fabric: Fabric::new(&self.network, &racks),
            machines: layout.servers.keys().map(|id| machine(*id)).collect(),
            clients: Clients::new(self.client_hosts),
            feed,
            energy: EnergyMeter::new(self.power, 1.0)?,
            on: layout.servers.keys().copied().collect::<BTreeSet<_>>(),
            watch: Watch::default(),
            up: nanos(self.power.up.seconds),
            down: nanos(self.power.down.seconds),
            sample_every: SECOND,
        })
    }
}

impl<'a> World<'a> {
    /// A newly created cluster with models of time. Its clocks are exact.
    pub(super) fn modelled(
        scenario: Scenario,
        models: Models<'a>,
        configure: &'a crate::world::Configure,
        unix_millis: u64,
    ) -> World<'a> {
        let mut random = Random::new(scenario.seed);
        let mut world = World::bare(scenario, configure, 0, &mut random);
        (world.now, world.unix_millis) = (CREATED, unix_millis);
        world.modelled = Some(Box::new(models));
        world.start_member(1, Clock::default());
        let ids: Vec<ServerId> = world.scenario.bootstrap.servers.iter().map(|s| s.id).collect();
        for id in ids {
            let server = Server::new(id, Clock::default(), &world.scenario);
            world.servers.insert(id, server);
            world.start_server(id);
        }
        world.start_hosts();
        world.after(SECOND, Happening::Modelled(Later::Timeouts));
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
    pub(super) fn start_measuring(&mut self, power: PowerModel) -> Result<(), SimError> {
        self.begin_measuring();
        let now = Moment(self.now);
        let models = self.models();
        models.energy = EnergyMeter::new(power, 1.0)?;
        for id in models.machines.keys() {
            let on = models.on.contains(id);
            models.energy.set(now, *id, if on { Draw::On { utilisation: 0.0 } } else { Draw::Standby });
        }
        let every = models.sample_every;
        self.after(every, Happening::Modelled(Later::Sample));
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
        series.provision(&mut schedule, provision, setup.servers.into())?;
    }
    Ok((schedule, series))
}

/// The gears of the trace's hours, if they are chosen in advance.
fn gears(setup: &Setup, schedule: &Schedule, series: &LoadSeries) -> Result<Option<Vec<u8>>, SimError> {
    let servers = u32::from(setup.servers);
    let lowest = ebb_gear::lowest_gear(servers, setup.replicas).max(setup.g_min);
    match setup.gears {
        Gears::Auto => Ok(None),
        Gears::Fixed(asked) if (lowest..=setup.replicas).contains(&asked) => Ok(Some(vec![asked])),
        Gears::Fixed(asked) => {
            Err(GearError { asked, lowest, highest: setup.replicas, g_min: schedule.g_min }.into())
        }
        Gears::Schedule => Ok(Some(oracle(0, &series.peaks(), servers, setup.replicas, lowest).gears)),
    }
}

/// Schedules the chosen gears: up in time for the hour, down at its start.
fn announce(world: &mut World, gears: &[u8], schedule: &Schedule, start: u64) {
    let hour = schedule.hour_millis * 1_000_000;
    let lead = schedule.lead_millis.min(schedule.hour_millis) * 1_000_000;
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
        world.at(at, Happening::Modelled(Later::Gear { gear: *gear }));
        before = Some(*gear);
    }
}

/// Replays a trace on a modelled cluster. `progress` periodically gets the share of the trace that is done, 0 to 1. The
/// same arguments give the same report, to the byte.
pub fn simulate(trace: &Trace, setup: &Setup, progress: &mut dyn FnMut(f64)) -> Result<Report, SimError> {
    setup.check()?;
    let (schedule, series) = plan(trace, setup)?;
    let layout = setup.layout()?;
    let start = CREATED + WARM_UP;
    let feed = Feed { requests: &trace.requests, next: 0, start, speed: setup.speed };
    let mut models = setup.models(&layout, feed)?;
    let span = (trace.span().as_nanos() as f64 / setup.speed) as u64;
    models.sample_every = (span / SAMPLES).max(SECOND);
    // The trace starts at the start of a day.
    let day = schedule.hour_millis * u64::from(schedule.hours_per_day.max(1));
    let unix_millis = UNIX_MILLIS / day * day + day - start / 1_000_000;
    let mut world = World::modelled(setup.scenario(&layout, schedule), models, &|_| {}, unix_millis);
    if let Some(gears) = gears(setup, &schedule, &series)? {
        announce(&mut world, &gears, &schedule, start);
    }
    progress(0.0);
    world.run_to(start)?;
    world.start_measuring(setup.power)?;
    world.after(0, Happening::Modelled(Later::Arrivals));
    let end = start + span + 1;
    for percent in 1..=100 {
        world.run_to(start + (end - start) / 100 * percent)?;
        progress(percent as f64 / 100.0);
    }
    world.run_to(end)?;
    world.take_sample();
    let energy = world.models().energy.energy(Moment(end));
    let rest = end + REST;
    while world.models().clients.under_way() > 0 && world.now < rest {
        let next = world.now + SECOND;
        world.run_to(next)?;
    }
    world.end_span();
    Ok(report(&mut world, trace, setup, &schedule, &series, energy))
}
