//! A modelled cluster: what it consists of, and why it cannot be.

use crate::request::client::Clients;
use crate::request::device::{Device, Mirroring};
use crate::request::follow::Watch;
use crate::request::machine::Machine;
use crate::request::network::Fabric;
use crate::request::{DiskModel, Feed, Models, NetworkModel, SettingsError};
use crate::search::scenario::Scenario;
use crate::world::clock::SECOND;
use ebb_gear::{
    DepthCost, GearError, Layout, LayoutError, PolicyError, Provision, RehearsalError, Scheme, Sleep,
};
use ebb_gear::{layout, layout::groups, rehearsal};
use ebb_meta::{Bootstrap, NewServer, Timing};
use ebb_mirror::{BLOCK_BYTES, Geometry, GeometryError};
use ebb_power::{EnergyMeter, ModelError, PowerModel};
use ebb_trace::RangeError;
use ebb_types::{ClusterParams, GearSteps, NO_GEAR, PoolId, RackId, Random, Schedule, ServerId};
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
        match &self.disk {
            DiskModel::Pair(disk) => self.check_pair(disk),
            _ => Ok(()),
        }
    }

    fn check_pair(&self, disk: &ebb_mirror::DiskModel) -> Result<(), SimError> {
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
        let schedule = Schedule { steps, g_min: self.g_min, ..Schedule::default() };
        let schedule = self.disk.rates().in_schedule(schedule);
        Ok(rehearsal(&schedule, self.speed)?)
    }

    /// The lowest gear of its chunk servers.
    pub(super) fn lowest_gear(&self) -> u8 {
        ebb_gear::lowest_gear(self.servers.into(), self.replicas).max(self.g_min)
    }

    fn rack(&self, n: u16) -> RackId {
        RackId(1 + (n - 1) % self.racks)
    }

    pub(super) fn layout(&self) -> Result<Layout, SimError> {
        let server = |n: u16| ebb_gear::Server { id: ServerId(n), rack: self.rack(n) };
        let servers: Vec<ebb_gear::Server> = (1..=self.servers).map(server).collect();
        let groups = groups(servers.len(), self.groups_per_server);
        Ok(layout(&servers, self.replicas, groups, self.seed, self.layout)?)
    }

    fn loggers(&self) -> impl Iterator<Item = (ServerId, RackId)> + '_ {
        (1..=self.loggers).map(move |n| (ServerId(self.servers + n), self.rack(n)))
    }

    pub(super) fn scenario(&self, layout: &Layout, schedule: Schedule) -> Scenario {
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
        bootstrap.servers.extend(self.loggers().map(|(id, rack)| NewServer {
            id,
            rack,
            pool: PoolId::REPLICATED,
            gear_group: NO_GEAR,
            address: address(id, rack),
        }));
        let wake = Duration::from_secs_f64(self.power.up.seconds + self.power.down.seconds);
        let timing = Timing {
            heartbeat: self.heartbeat,
            wake_limit: wake * 2 + Duration::from_secs(10),
            sleep: Sleep { idle: self.power.idle, standby: Some(self.standby()), ..Sleep::default() },
            ..Timing::default()
        };
        Scenario::calm(self.seed, bootstrap, timing)
    }

    fn standby(&self) -> DepthCost {
        let PowerModel { standby, up, down, .. } = self.power;
        DepthCost { watts: standby, joules: up.joules + down.joules, wake: None, wears: true }
    }

    pub(super) fn models<'a>(&self, layout: &Layout, feed: Feed<'a>) -> Result<Models<'a>, SimError> {
        let mut random = Random::new(self.seed ^ 0xd15c);
        let mut machine = |id: ServerId| {
            let disk = Device::new(&self.disk, &self.mirroring, self.chunk_bytes, random.fork());
            (id, Machine::new(id, disk, self.chunk_bytes))
        };
        // The fabric counts racks from zero.
        let places = layout.servers.iter().map(|(id, place)| (*id, place.rack)).chain(self.loggers());
        let racks: BTreeMap<ServerId, u16> = places.map(|(id, rack)| (id, rack.0 - 1)).collect();
        let nanos = |seconds: f64| (seconds * SECOND as f64) as u64;
        Ok(Models {
            fabric: Fabric::new(&self.network, &racks),
            machines: racks.keys().map(|id| machine(*id)).collect(),
            clients: Clients::new(self.client_hosts),
            feed,
            closed: None,
            energy: EnergyMeter::new(self.power, 1.0)?,
            on: racks.keys().copied().collect::<BTreeSet<_>>(),
            watch: Watch::default(),
            up: nanos(self.power.up.seconds),
            down: nanos(self.power.down.seconds),
            sample_every: SECOND,
            sample_until: u64::MAX,
        })
    }
}
