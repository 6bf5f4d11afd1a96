//! A modelled cluster: what it consists of, and why it cannot be.

use crate::depths::{self, Suspend};
use crate::engine::SECOND;
use crate::request::client::Clients;
use crate::request::device::{Device, Mirroring};
use crate::request::disk::DiskModel;
use crate::request::energy::{Meters, Way};
use crate::request::feed::Feed;
use crate::request::follow::Watch;
use crate::request::machine::Machine;
use crate::request::models::Models;
use crate::request::network::{Fabric, NetworkModel};
use crate::request::settings::SettingsError;
use crate::world::settings::Settings;
use ebb_gear::fleet::{FleetError, FleetPolicy};
use ebb_gear::{
    GearError, Layout, LayoutError, Policy, PolicyError, Provision, RehearsalError, Scheme, Sleep, Window,
};
use ebb_gear::{layout, layout::groups, rehearsal};
use ebb_meta::{Bootstrap, NewServer, Timing};
use ebb_mirror::{BLOCK_BYTES, Geometry, GeometryError};
use ebb_power::{DepthModel, EnergyMeter, ModelError, PowerModel};
use ebb_trace::RangeError;
use ebb_types::{ClusterParams, Depth, GearSteps, NO_GEAR, PoolId, RackId, Random, Schedule, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Room for data that a pair must have.
const PAIR_BYTES_MIN: u64 = 1 << 30;

/// How the gear is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gears {
    /// Continuous gears, by load and its recorded hours: at first none, so every server is awake.
    Auto,
    /// The same with whole gears.
    Groups,
    /// The oracle's schedule: the lowest gear for each hour's peak. [Sierra §4.4]
    Schedule,
    /// This gear all the time; r is always-on.
    Fixed(u8),
}

/// A cluster that exists: its own settings, in place of those that follow from the models and from the numbers of
/// servers and racks. So it can be simulated as it runs.
#[derive(Clone, Debug)]
pub struct Existing {
    pub layout: Layout,
    pub loggers: Vec<(ServerId, RackId)>,
    /// Its rates too.
    pub schedule: Schedule,
    pub timing: Timing,
    /// From switching a server on until it is up, at each depth. It is down at once.
    pub up: Duration,
}

/// A cluster and its workload settings.
#[derive(Clone, Debug)]
pub struct Setup {
    pub servers: u16,
    /// Servers beside them that only hold offload, one rack after the other; they count as awake. [Sierra §3.6]
    pub loggers: u16,
    pub racks: u16,
    pub replicas: u8,
    pub layout: Scheme,
    pub chunk_bytes: u32,
    /// Chunk groups per server; 64 by default. [Sierra §3.5]
    pub groups_per_server: u32,
    /// Machines that clients run on, spread over all racks in turn.
    pub client_hosts: u32,
    pub disk: DiskModel,
    /// If the disk is a pair.
    pub mirroring: Mirroring,
    pub network: NetworkModel,
    pub power: PowerModel,
    /// From switching on a server that is off until it is up. `None`: as long as the power model's transition; the
    /// policy expects the schedule's lead time until it has measured it.
    pub wake: Option<Duration>,
    /// Power cycles allowed per server and day, on average.
    pub cycles_per_day: f64,
    /// A second depth of sleep, shallower; it wears nothing.
    pub suspend: Option<Suspend>,
    pub gears: Gears,
    pub g_min: u8,
    /// Trace seconds per simulated second; the scheduler's hour is shortened with it.
    pub speed: f64,
    /// Scales the scheduler's server rates so that the trace's peak needs this many servers. `None`: the disk's own
    /// rates.
    pub provision: Option<Provision>,
    /// Times of day, which begin with the trace, whose load is no peak; the oracle keeps their hours in the highest
    /// gear. [Sierra §4.3]
    pub except: Vec<Window>,
    /// Simulated time that a server which wakes takes to fetch what was held for it; zero: as fast as it can.
    pub reclaim_within: Duration,
    pub heartbeat: Duration,
    pub lease: Duration,
    /// `None`: there is none yet.
    pub existing: Option<Existing>,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            servers: 9,
            loggers: 0,
            racks: 3,
            replicas: 3,
            layout: Scheme::Rotated,
            chunk_bytes: 64 << 20,
            groups_per_server: 64,
            client_hosts: 9,
            disk: DiskModel::hdd(),
            mirroring: Mirroring::default(),
            network: NetworkModel::ten_gigabit(),
            power: PowerModel::default(),
            wake: None,
            cycles_per_day: Sleep::default().cycles_per_day,
            suspend: None,
            gears: Gears::Auto,
            g_min: 1,
            speed: 1.0,
            provision: None,
            except: Vec::new(),
            reclaim_within: Duration::ZERO,
            // One heartbeat per second suffices for the load samples, with half of the default's events.
            heartbeat: Duration::from_secs(1),
            lease: Duration::from_secs(5),
            existing: None,
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
    Mirroring(#[from] ebb_mirror::SettingsError),
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error(
        "a pair has {bytes} bytes for data and a chunk server needs {PAIR_BYTES_MIN}: give it disks of more capacity_bytes"
    )]
    SmallPair { bytes: u64 },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Gear(#[from] GearError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Power(#[from] ModelError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(
        "a depth of sleep has no wake time: give the time from waking such a server until it serves, such as --suspend 10,15s"
    )]
    DepthWake,
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
    pub(super) fn check(&self) -> Result<(), SimError> {
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
        self.power.check()?;
        let wakes = [self.wake, self.suspend.map(|suspend| suspend.wake)];
        if wakes.into_iter().flatten().any(|wake| wake.is_zero()) {
            return Err(SimError::DepthWake);
        }
        FleetPolicy::of(&Schedule::default(), self.replicas, &self.sleep()).check()?;
        match &self.disk {
            DiskModel::Pair(disk) => self.check_pair(disk),
            _ => Ok(()),
        }
    }

    fn check_pair(&self, disk: &ebb_mirror::TwoSpeedModel) -> Result<(), SimError> {
        self.mirroring.settings.check()?;
        let bytes = Geometry::new(disk.capacity_bytes, self.mirroring.log_bytes)?.data_blocks() * BLOCK_BYTES;
        if bytes < PAIR_BYTES_MIN {
            return Err(SimError::SmallPair { bytes });
        }
        Ok(self.power.check_disks(disk.high.idle * 2.0, disk.high.access * 2.0)?)
    }

    /// The schedule with the disk's rates.
    pub(super) fn schedule(&self) -> Result<Schedule, SimError> {
        let steps = if self.gears == Gears::Groups { GearSteps::Groups } else { GearSteps::Servers };
        let schedule = match &self.existing {
            Some(existing) => Schedule { steps, g_min: self.g_min, ..existing.schedule },
            None => {
                let schedule = Schedule { steps, g_min: self.g_min, ..Schedule::default() };
                self.disk.rates().in_schedule(schedule)
            }
        };
        Ok(rehearsal(&schedule, self.speed)?)
    }

    /// The whole gears of its chunk servers.
    pub(super) fn whole_gears(&self, schedule: &Schedule) -> Result<Policy, SimError> {
        let mut sizes = vec![0; self.replicas.into()];
        self.layout()?.servers.values().for_each(|place| sizes[usize::from(place.gear_group.0)] += 1);
        Ok(Policy::of(schedule, sizes))
    }

    fn rack(&self, n: u16) -> RackId {
        RackId(1 + (n - 1) % self.racks)
    }

    pub(super) fn layout(&self) -> Result<Layout, SimError> {
        if let Some(existing) = &self.existing {
            return Ok(existing.layout.clone());
        }
        let server = |n: u16| ebb_gear::Server { id: ServerId(n), rack: self.rack(n) };
        let servers: Vec<ebb_gear::Server> = (1..=self.servers).map(server).collect();
        let groups = groups(servers.len(), self.groups_per_server);
        Ok(layout(&servers, self.replicas, groups, self.seed, self.layout)?)
    }

    fn loggers(&self) -> Vec<(ServerId, RackId)> {
        match &self.existing {
            Some(existing) => existing.loggers.clone(),
            None => (1..=self.loggers).map(|n| (ServerId(self.servers + n), self.rack(n))).collect(),
        }
    }

    pub(super) fn settings(&self, layout: &Layout, schedule: Schedule) -> Settings {
        let params = ClusterParams {
            cluster: 1,
            instance: 1,
            chunk_bytes: self.chunk_bytes,
            replicas: self.replicas,
            groups: layout.groups.len() as u32,
            lease_millis: self.lease.as_millis() as u32,
        };
        let address = |id: ServerId, _| format!("server-{}:1", id.0);
        let mut bootstrap = Bootstrap::of_layout(params, layout, schedule, address);
        bootstrap.servers.extend(self.loggers().into_iter().map(|(id, rack)| NewServer {
            id,
            rack,
            pool: PoolId::REPLICATED,
            gear_group: NO_GEAR,
            address: address(id, rack),
        }));
        let reclaim_within = self.reclaim_within;
        Settings { reclaim_within, ..Settings::calm(self.seed, bootstrap, self.timing()) }
    }

    fn timing(&self) -> Timing {
        let ways = self.depths().into_iter().map(|(_, _, way)| way.up + way.down);
        let wake_limit = ways.max().unwrap_or_default() * 2 + Duration::from_secs(10);
        match &self.existing {
            Some(existing) => Timing { wake_limit, ..existing.timing },
            None => Timing {
                heartbeat: self.heartbeat,
                wake_limit,
                sleep: self.sleep(),
                depth: Depth::Off,
                ..Timing::default()
            },
        }
    }

    pub(super) fn sleep(&self) -> Sleep {
        match &self.existing {
            Some(existing) => existing.timing.sleep,
            None => depths::sleep(&self.power, self.wake, self.suspend, self.cycles_per_day),
        }
    }

    /// The depths of sleep, the shallowest first: what each draws and costs, and how long the switch takes.
    pub(super) fn depths(&self) -> Vec<(Depth, DepthModel, Way)> {
        if let Some(Existing { timing: Timing { sleep, .. }, up, .. }) = &self.existing {
            let both = [(Depth::Standby, sleep.standby), (Depth::Off, sleep.off)];
            let way = Way { up: *up, down: Duration::ZERO };
            let used = both.into_iter().filter(|(_, cost)| cost.is_some());
            return used.map(|(depth, _)| (depth, self.power.asleep(depth), way)).collect();
        }
        let suspended = self.suspend.map(|suspend| (Depth::Standby, suspend.model(&self.power), None));
        let off = (Depth::Off, depths::off(&self.power), self.wake);
        let both = suspended.into_iter().chain([off]).map(|(depth, model, wake)| {
            let seconds = Duration::from_secs_f64;
            let up = wake.unwrap_or(seconds(model.up.seconds));
            (depth, model, Way { up, down: seconds(model.down.seconds) })
        });
        both.collect()
    }

    /// Of servers that are not known to it yet.
    pub(super) fn meters(&self) -> Result<Meters, SimError> {
        let meter = |speed| {
            let mut meter = EnergyMeter::new(self.power, speed)?;
            self.depths().into_iter().for_each(|(depth, model, _)| meter.set_depth(depth, model));
            Ok::<_, ModelError>(meter)
        };
        Ok(Meters { clock: meter(1.0)?, own: meter(self.speed)? })
    }

    pub(super) fn models<'a>(&self, layout: &Layout, feed: Feed<'a>) -> Result<Models<'a>, SimError> {
        let mut random = Random::new(self.seed ^ 0xd15c);
        let mut machine = |id: ServerId| {
            let disk = Device::new(&self.disk, &self.mirroring, self.chunk_bytes, random.fork());
            (id, Machine::new(id, disk, self.chunk_bytes))
        };
        let places = layout.servers.iter().map(|(id, place)| (*id, place.rack)).chain(self.loggers());
        let places: BTreeMap<ServerId, RackId> = places.collect();
        // The fabric counts racks from zero.
        let numbers: BTreeSet<RackId> = places.values().copied().collect();
        let numbers: BTreeMap<RackId, u16> = numbers.into_iter().zip(0..).collect();
        let racks: BTreeMap<ServerId, u16> = places.iter().map(|(id, rack)| (*id, numbers[rack])).collect();
        Ok(Models {
            fabric: Fabric::new(&self.network, &racks),
            machines: racks.keys().map(|id| machine(*id)).collect(),
            clients: Clients::new(self.client_hosts),
            feed,
            closed: None,
            energy: self.meters()?,
            on: racks.keys().copied().collect::<BTreeSet<_>>(),
            slept: BTreeMap::new(),
            watch: Watch::default(),
            ways: self.depths().into_iter().map(|(depth, _, way)| (depth, way)).collect(),
            sample_every: SECOND,
            sample_until: u64::MAX,
        })
    }
}
