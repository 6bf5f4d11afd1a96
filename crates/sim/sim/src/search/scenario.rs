//! The scenario of a seed: a cluster, its network and disks, its clients, and its rate of faults.

use crate::engine::{MILLI, SECOND};
use crate::world::net::NetModel;
use crate::world::settings::{LARGE_DISK, Settings, processes};
use ebb_erasure::standby;
use ebb_gear::{Scheme, Server};
use ebb_meta::{Bootstrap, NewServer, Timing, WakePath};
use ebb_types::Random;
use ebb_types::{
    BLOCK_BYTES, ClusterParams, Column, Epoch, GearSteps, NO_GEAR, ParityDebt, PoolEntry, PoolId, RackId,
    STRIP_BLOCKS, Schedule, ServerId, SetEntry, SetId, Shape, SlotState,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// What may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Crash,
    Pause,
    Member,
    Cut,
    Reset,
    Slow,
    Poison,
    Full,
    Rot,
    Gear,
    Lost,
    Rack,
    Forget,
    Storm,
    Power,
    Log,
    Exchange,
    Burst,
    CutOff,
    PowerTest,
    Maintenance,
    Suspend,
    LoseAsleep,
    Outage,
    Reboot,
    Hang,
    Split,
    Ruin,
    FillAll,
    Grow,
    HangLog,
    Mute,
    FullQueue,
    Overload,
    Ambush,
    DeafInPart,
    Roster,
}

/// Chances per thousand faults.
#[derive(Clone, Debug, Default)]
pub struct FaultMix(BTreeMap<Fault, u64>);

impl FaultMix {
    pub fn of(&self, fault: Fault) -> u64 {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    pub fn set(&mut self, fault: Fault, weight: u64) {
        self.0.insert(fault, weight);
    }

    /// With this chance per mille it strikes: how often is drawn from these weights.
    fn sometimes(&mut self, random: &mut Random, chance: u64, fault: Fault, (least, most): (u64, u64)) {
        if random.chance(chance) {
            self.set(fault, random.between(least, most));
        }
    }

    fn leave_out(&mut self, faults: &[Fault]) {
        faults.iter().for_each(|fault| self.set(*fault, 0));
    }

    pub fn draw(&self, random: &mut Random) -> Fault {
        let mut at = random.below(self.0.values().sum());
        let found = self.0.iter().find(|(_, weight)| {
            let is_met = at < **weight;
            at = at.saturating_sub(**weight);
            is_met
        });
        *found.expect("a weight is met").0
    }
}

/// Load that rises and falls, times in nanoseconds; the metadata service chooses the gear by it.
#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    pub period: u64,
    /// The part of the period in which clients are busy.
    pub busy: u64,
}

/// A cluster, and what the search does in it.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub settings: Settings,
    pub plan: Plan,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: u32,
    /// Clients that work during bursts only.
    pub burst_clients: u32,
    /// Clients of the erasure-coded pool, if there is one.
    pub coders: u32,
    /// Longest time for which a coder sometimes does nothing, in nanoseconds.
    pub coder_rest: u64,
    /// The chance, per mille, that a coder's write goes to a pack; zero: every chunk is written once.
    pub packs: u64,
    /// Client operations per round, over all clients.
    pub ops: u32,
    pub chunks: u32,
    /// Clients contend for the front of a volume.
    pub has_front: bool,
    /// Typical time of a disk operation, in nanoseconds.
    pub disk: u64,
    pub faults: FaultMix,
    /// Mean time between two faults.
    pub fault_gap: u64,
    /// Each round: faults, then rest, then a comparison of all replicas.
    pub rounds: u32,
    pub round: u64,
    /// Duration of a switch action, and its chance of failing, per mille.
    pub switch: u64,
    pub switch_fails: u64,
    /// The chance, per mille, that it does not do what it reports, acts twice, or acts on another machine.
    pub switch_lies: u64,
    /// Wake paths that never work.
    pub dead_paths: BTreeSet<(ServerId, u8)>,
    /// The chance, per mille, that a server's clock is wrong when it is examined.
    pub exam_fails: u64,
    /// The gear that an administrator requests at the start of a round.
    pub begin_in: Option<u8>,
    /// `None`: load is even, and an administrator sets the gear.
    pub pulse: Option<Pulse>,
    /// The chance, per mille, that a member's wall clock jumps before it starts.
    pub wall_jumps: u64,
}

/// Seeds per thousand with an erasure-coded pool.
const WITH_POOL: u64 = 300;
/// Of these per thousand, those with a second set if it is small.
const TWO_SETS: u64 = 300;
/// Of these per thousand, those with packs.
const PACKS: u64 = 300;
/// Seeds per thousand whose disks are so small that what is kept for others can be more than it should.
const SMALL_DISKS: u64 = 200;
/// Seeds per thousand whose machines are put to sleep by their own servers.
const SLEEP_THEMSELVES: u64 = 300;
/// Seeds per thousand with the front of a volume.
const WITH_FRONT: u64 = 250;
/// Seeds per thousand with loggers.
const WITH_LOGGERS: u64 = 250;
/// Of these per thousand, those in which the set hibernates.
const HIBERNATES: u64 = 400;
/// Seeds per thousand in which whole gears are shifted.
const WHOLE_GEARS: u64 = 350;
/// Seeds per thousand in which the load chooses the gear.
const BY_LOAD: u64 = 200;
/// Seeds per thousand in which a failed server is declared lost within seconds.
const GIVES_UP: u64 = 200;
/// Seeds per thousand in which all disks pause at times.
const OVERLOADED: u64 = 150;
/// Seeds per thousand with switches that cannot be relied on.
const BAD_SWITCHES: u64 = 250;
/// Seeds per thousand in which servers come and leave.
const ROSTER: u64 = 200;

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let mut scenario = Scenario::by_hand(seed);
        // Separate random sources.
        if Random::new(seed ^ 0x57e9).chance(WHOLE_GEARS) {
            scenario.settings.bootstrap.schedule.steps = GearSteps::Groups;
        }
        let mut random = Random::new(seed ^ 0x6ea2);
        if random.chance(BY_LOAD) {
            scenario.follow_load(&mut random);
        }
        // Sometimes so few bytes that requests wait in their sockets.
        let mut random = Random::new(seed ^ 0x0f10);
        if random.chance(400) {
            scenario.settings.client_bytes = random.between(1, 64) as usize * BLOCK_BYTES;
        }
        let mut random = Random::new(seed ^ 0x90e6);
        scenario.plan.faults.set(Fault::Power, if random.chance(400) { random.below(30) } else { 0 });
        let mut random = Random::new(seed ^ 0x1096);
        let mut weight = |most| if random.chance(400) { random.below(most) } else { 0 };
        scenario.plan.faults.set(Fault::Log, weight(80));
        scenario.plan.faults.set(Fault::Exchange, weight(30));
        scenario.plan.faults.set(Fault::Burst, weight(60));
        let mut random = Random::new(seed ^ 0x5c2b);
        if random.chance(500) {
            scenario.settings.scrub_period = Duration::from_secs(random.between(2, 20));
        }
        let mut random = Random::new(seed ^ 0x4ec1);
        if random.chance(500) {
            scenario.settings.reclaim_within = Duration::from_millis(random.between(500, 10_000));
        }
        // Sometimes so few that a client that is cut off is forgotten.
        let mut random = Random::new(seed ^ 0x2e72);
        if random.chance(500) {
            scenario.settings.remembered = random.between(1, 12) as usize;
            scenario.plan.faults.set(Fault::CutOff, random.between(20, 150));
        }
        let mut random = Random::new(seed ^ 0x70b5);
        if random.chance(500) {
            scenario.settings.deletions = random.between(2, 20) as usize;
        }
        let mut random = Random::new(seed ^ 0x1099);
        if random.chance(WITH_LOGGERS) {
            scenario.add_loggers(&mut random);
        }
        let mut random = Random::new(seed ^ 0xec52);
        if random.chance(WITH_POOL) {
            scenario.add_pool(&mut random);
            scenario.draw_packs(&mut Random::new(seed ^ 0x9ac5));
        }
        scenario.draw_hard(seed);
        scenario.settings.switches = processes(&scenario.settings.bootstrap);
        let mut random = Random::new(seed ^ 0x5_3174);
        if random.chance(BAD_SWITCHES) {
            scenario.distrust_switches(&mut random);
        }
        scenario
    }

    /// A second set of the same shape, which takes turns with the first.
    fn add_set(&mut self) {
        let Some(pool) = self.settings.bootstrap.pools.first_mut().filter(|pool| pool.shape.servers() <= 6)
        else {
            return;
        };
        let (id, shape) = (pool.id, pool.shape);
        pool.sets.push(SetId(1));
        let servers = self.add_servers(shape.servers() as u16, id, |server| 1 + server % 3);
        self.settings.bootstrap.sets.push(set_of(id, shape, servers));
    }

    /// Servers without a place in the gears, after all others, in the rack that `rack` says for each.
    fn add_servers(&mut self, count: u16, pool: PoolId, mut rack: impl FnMut(u16) -> u16) -> Range<u16> {
        let first = self.settings.bootstrap.servers.len() as u16 + 1;
        let ids = first..first + count;
        self.settings.bootstrap.servers.extend(ids.clone().map(|id| NewServer {
            id: ServerId(id),
            rack: RackId(rack(id)),
            pool,
            gear_group: NO_GEAR,
            address: format!("server-{id}:1"),
        }));
        ids
    }

    /// Chunks of a few rows, which several writes fill; the last row may be narrower.
    fn draw_packs(&mut self, random: &mut Random) {
        if random.chance(PACKS) {
            let row = self.settings.bootstrap.pools[0].shape.data() as u64 * u64::from(STRIP_BLOCKS);
            let blocks = row * random.between(2, 5) + random.below(row);
            self.settings.bootstrap.params.chunk_bytes = blocks as u32 * BLOCK_BYTES as u32;
            self.plan.packs = random.between(300, 900);
        }
    }

    /// What goes beyond single failures.
    fn draw_hard(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x6157);
        if random.chance(GIVES_UP) {
            self.give_up_soon(&mut random);
        }
        let mut random = Random::new(seed ^ 0x505e);
        if random.chance(300) {
            self.plan.faults.set(Fault::Suspend, random.between(20, 150));
            self.plan.round += random.between(0, 30) * SECOND;
        }
        self.plan.faults.sometimes(&mut random, 200, Fault::Reboot, (20, 120));
        self.plan.faults.sometimes(&mut random, 200, Fault::Hang, (20, 100));
        let hibernates =
            self.settings.bootstrap.pools.iter().any(|pool| pool.hibernate_after_millis.is_some());
        if hibernates && random.chance(500) {
            self.plan.faults.set(Fault::LoseAsleep, random.between(100, 400));
        }
        if Random::new(seed ^ 0x25e7).chance(TWO_SETS) {
            self.add_set();
        }
        self.draw_pools(&mut Random::new(seed ^ 0xec52));
        self.draw_beyond(&mut Random::new(seed ^ 0x0be1));
        self.draw_metadata(&mut Random::new(seed ^ 0x3e35));
        self.draw_links(&mut Random::new(seed ^ 0x11a5));
        let random = &mut Random::new(seed ^ 0xdc44);
        self.plan.faults.sometimes(random, OVERLOADED, Fault::Overload, (40, 150));
        self.draw_leaders(&mut Random::new(seed ^ 0xdcba));
        let random = &mut Random::new(seed ^ 0x0105);
        self.plan.faults.sometimes(random, ROSTER, Fault::Roster, (100, 500));
        self.draw_bounds(&mut Random::new(seed ^ 0xb0d5));
    }

    /// Servers that turn requests away, and read nothing while their stores have a few blocks to write.
    fn draw_bounds(&mut self, random: &mut Random) {
        if random.chance(200) {
            self.settings.waiting = random.between(1, 6) as usize;
        }
        if random.chance(200) {
            self.settings.inbox_bytes = random.between(1, 12) as usize * BLOCK_BYTES;
        }
    }

    /// Parity servers that stay awake, rebuilds that are held back, parity that wakes earlier beside a failure.
    fn draw_pools(&mut self, random: &mut Random) {
        for pool in &mut self.settings.bootstrap.pools {
            if random.chance(200) {
                pool.awake_parity = random.between(1, pool.shape.parity() as u64) as u8;
            }
            // A few hundred blocks in a second: a round is long enough for all of them.
            if random.chance(300) {
                pool.rebuild_bytes_per_second = Some(random.between(1, 8) << 20);
            }
        }
        if random.chance(300) {
            self.settings.timing.standby.threshold_while_failed = random.between(30, 80) as f64 / 100.0;
        }
    }

    /// Short logs, networks that part some and not others, clocks that jump, damage that cannot be borne.
    fn draw_beyond(&mut self, random: &mut Random) {
        if random.chance(400) {
            (self.settings.log_bytes, self.settings.log_pace) =
                (random.between(1, 32) as usize * 1024, random.below(20) as u32);
        }
        self.plan.faults.sometimes(random, 250, Fault::Split, (20, 120));
        self.settings.half_open = random.chance(150);
        self.plan.wall_jumps = if random.chance(150) { random.between(100, 800) } else { 0 };
        self.plan.faults.sometimes(random, 100, Fault::FillAll, (20, 80));
        // A server is not given up for nothing, and what is taken for lost is not also rebuilt.
        if random.chance(120) && self.plan.faults.of(Fault::Outage) == 0 {
            self.plan.faults.set(Fault::Ruin, random.between(50, 200));
            let others = [Fault::Forget, Fault::Exchange, Fault::Lost, Fault::LoseAsleep];
            self.plan.faults.leave_out(&others);
        }
    }

    /// A metadata service that grows, and whose disks hang.
    fn draw_metadata(&mut self, random: &mut Random) {
        self.plan.faults.sometimes(random, 200, Fault::Grow, (20, 150));
        self.plan.faults.sometimes(random, 200, Fault::HangLog, (20, 100));
    }

    /// Leaders of the metadata service that fail amid a change of epochs, and that do not hear some servers which the
    /// other members hear.
    fn draw_leaders(&mut self, random: &mut Random) {
        if self.settings.members > 1 || self.plan.faults.of(Fault::Grow) > 0 {
            self.plan.faults.sometimes(random, 500, Fault::Ambush, (40, 150));
            self.plan.faults.sometimes(random, 400, Fault::DeafInPart, (20, 100));
        }
    }

    /// Connections that are dead in one direction, and queues that are full.
    fn draw_links(&mut self, random: &mut Random) {
        self.plan.faults.sometimes(random, 250, Fault::Mute, (20, 150));
        self.plan.faults.sometimes(random, 200, Fault::FullQueue, (20, 120));
    }

    /// Failed servers are declared lost within seconds, while more of them fail at once than can be borne. Data that
    /// only a failed server has besides a damaged one would be too much: nothing is damaged.
    fn give_up_soon(&mut self, random: &mut Random) {
        self.settings.timing.lost_after = Some(Duration::from_millis(random.between(2000, 10_000)));
        self.plan.faults.leave_out(&[Fault::Rot, Fault::Forget, Fault::Exchange, Fault::Lost]);
        self.plan.faults.set(Fault::Outage, random.between(20, 150));
        self.plan.round += random.between(5, 20) * SECOND;
        if let (Some(pool), true) = (self.settings.bootstrap.pools.first(), random.chance(600)) {
            let pool = pool.id;
            self.add_servers(1, pool, |_| random.between(1, 3) as u16);
        }
    }

    /// Machines instead of processes: with one wake path, two or none, which lie, fail for good, and must prove
    /// themselves; an administrator tests them, and takes servers out for maintenance.
    fn distrust_switches(&mut self, random: &mut Random) {
        self.plan.switch_lies = random.between(20, 250);
        self.plan.exam_fails = if random.chance(400) { random.between(20, 300) } else { 0 };
        self.plan.faults.set(Fault::PowerTest, random.between(50, 300));
        let maintenance = if random.chance(500) { random.between(10, 100) } else { 0 };
        self.plan.faults.set(Fault::Maintenance, maintenance);
        let path = WakePath::switch;
        let (dead, machines) = (random.below(500), random.below(600));
        for (id, paths) in &mut self.settings.switches {
            *paths = match random.chance(machines) {
                false => vec![path("process", true), path("wol", false)],
                true if random.chance(100) => Vec::new(),
                true if random.chance(300) => vec![path("redfish", false)],
                true => vec![path("redfish", false), path("wol", false)],
            };
            // One path at most, so that a server with two always wakes in the end.
            if paths.len() > 1 && random.chance(dead) {
                self.plan.dead_paths.insert((*id, random.below(2) as u8));
            }
        }
    }

    /// One to three loggers, in the racks of the others.
    fn add_loggers(&mut self, random: &mut Random) {
        let racks = self.settings.bootstrap.servers.iter().map(|s| s.rack.0).max().unwrap_or(1);
        let count = random.between(1, 3) as u16;
        self.add_servers(count, PoolId::REPLICATED, |_| random.between(1, u64::from(racks)) as u16);
    }

    /// One erasure-coded set beside the replicated servers, with buffers that a few writes fill; sometimes a spare
    /// server.
    fn add_pool(&mut self, random: &mut Random) {
        let (data, parity) = [(2, 1), (3, 1), (4, 2), (4, 2), (5, 3), (6, 3)][random.index(6)];
        let shape = Shape::new(data, parity).expect("listed above");
        let count = shape.servers() as u16 + u16::from(random.chance(300));
        let racks = random.between(1, u64::from(count)) as u16;
        let pool = PoolId(1);
        let servers = self.add_servers(count, pool, |id| 1 + id % racks);
        self.settings.bootstrap.sets = vec![set_of(pool, shape, servers)];
        self.settings.bootstrap.pools = vec![PoolEntry {
            id: pool,
            name: "coded".into(),
            shape,
            parity_debt: ParityDebt::Segment,
            parity_buffer_bytes: random.between(8, 400) * BLOCK_BYTES as u64,
            hibernate_after_millis: None,
            rebuild_bytes_per_second: None,
            awake_parity: 0,
            sets: vec![SetId(0)],
        }];
        self.plan.coders = random.between(1, 3) as u32;
        // So that parity servers sleep several times in a round.
        let short = |random: &mut Random| Duration::from_millis(random.below(3000));
        let (up, down, break_even) = (short(random), short(random), short(random));
        self.settings.timing.standby =
            standby::Settings { up, down, break_even, ..standby::Settings::default() };
        let hibernates = random.chance(HIBERNATES).then(|| random.between(500, 5000));
        self.settings.bootstrap.pools[0].hibernate_after_millis = hibernates;
        // Long enough for the set to be unused meanwhile.
        self.plan.coder_rest = hibernates.map_or(0, |after| random.between(after, 4 * after)) * MILLI;
        if random.chance(500) {
            self.settings.bootstrap.pools[0].parity_debt = ParityDebt::Ram;
            // What is in memory is gone shortly before its set hibernates.
            if hibernates.is_some() {
                self.plan.faults.set(Fault::Power, random.between(50, 200));
            }
        }
    }

    fn by_hand(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let replicas = [2, 2, 3, 3, 3, 3, 4][random.index(7)];
        // Fewer than r² servers cannot reach the lowest gear.
        let most = u64::from(replicas).pow(2).min(9);
        let least = if random.chance(600) { most } else { u64::from(replicas) };
        let servers = random.between(least, 9) as u16;
        let racks = random.between(1, u64::from(servers).min(4)) as u16;
        let groups = random.between(2, 12) as u32;
        let three = random.chance(300);
        let bootstrap = bootstrap(&mut random, replicas, servers, racks, groups);
        let timing = Timing {
            wake_limit: Duration::from_secs(4),
            raft_tick: Duration::from_millis(100),
            witness: Duration::from_secs(1),
            ..Timing::default()
        };
        let mut settings = Settings::calm(seed, bootstrap, timing);
        settings.members = if three { 3 } else { 1 };
        settings.capacity = capacity(seed);
        settings.sleeps_itself = Random::new(seed ^ 0x51ee).chance(SLEEP_THEMSELVES);
        // In this order: each draw moves those that follow.
        let clients = random.between(2, 6) as u32;
        let ops = random.between(100, 400) as u32;
        let chunks = random.between(2, 6) as u32;
        settings.net = network(&mut random);
        let disk = random.between(MILLI / 20, 4 * MILLI);
        settings.page = random.between(1, 12) as usize;
        let faults = fault_mix(&mut random);
        let fault_gap = random.between(300 * MILLI, 3 * SECOND);
        let rounds = random.between(1, 2) as u32;
        let round = random.between(8, 24) * SECOND;
        settings.sleep_is_off = random.chance(400);
        let switch = random.between(10 * MILLI, 1500 * MILLI);
        let switch_fails = if random.chance(300) { random.between(50, 400) } else { 0 };
        let begin_in = random.chance(500).then(|| random.between(1, u64::from(replicas) - 1) as u8);
        let plan = Plan {
            clients,
            burst_clients: 8,
            coders: 0,
            coder_rest: 0,
            packs: 0,
            ops,
            chunks,
            has_front: Random::new(seed ^ 0xf207).chance(WITH_FRONT),
            disk,
            faults,
            fault_gap,
            rounds,
            round,
            switch,
            switch_fails,
            switch_lies: 0,
            dead_paths: BTreeSet::new(),
            exam_fails: 0,
            begin_in,
            pulse: None,
            wall_jumps: 0,
        };
        Scenario { settings, plan }
    }

    /// Hours of seconds, servers that a few clients can fill, and gears that follow load and forecast.
    fn follow_load(&mut self, random: &mut Random) {
        let hour = random.between(2000, 5000);
        let rate = random.between(8, 40) as f64;
        self.settings.bootstrap.schedule = Schedule {
            hour_millis: hour,
            hours_per_day: random.between(2, 4) as u32,
            read_iops: rate,
            write_iops: rate,
            dwell_millis: random.between(hour / 2, hour),
            lead_millis: random.between(0, hour / 2),
            rotate_days: u32::from(random.chance(400)),
            ..self.settings.bootstrap.schedule
        };
        self.plan.begin_in = None;
        let period = random.between(hour, 3 * hour) * MILLI;
        self.plan.pulse = Some(Pulse { period, busy: period * random.between(200, 600) / 1000 });
        self.plan.ops *= 2;
        self.plan.round = random.between(16, 30) * SECOND;
        self.plan.faults.set(Fault::Gear, random.between(1, 40));
    }

    /// A cluster without faults, and without clients.
    #[cfg(test)]
    pub fn calm(seed: u64, bootstrap: Bootstrap, timing: Timing) -> Scenario {
        let plan = Plan {
            clients: 0,
            burst_clients: 0,
            coders: 0,
            packs: 0,
            switch_fails: 0,
            switch_lies: 0,
            dead_paths: BTreeSet::new(),
            exam_fails: 0,
            begin_in: None,
            wall_jumps: 0,
            ..Scenario::draw(seed).plan
        };
        Scenario { settings: Settings::calm(seed, bootstrap, timing), plan }
    }
}

/// A set of the first of these servers.
fn set_of(pool: PoolId, shape: Shape, servers: Range<u16>) -> SetEntry {
    let column = |id| Column { server: ServerId(id), state: SlotState::InSync };
    let columns = servers.take(shape.servers()).map(column).collect();
    SetEntry { pool, shape, epoch: Epoch(1), hibernates_since: None, columns }
}

fn bootstrap(random: &mut Random, replicas: u8, servers: u16, racks: u16, groups: u32) -> Bootstrap {
    let list: Vec<Server> =
        (1..=servers).map(|n| Server { id: ServerId(n), rack: RackId(1 + n % racks) }).collect();
    let aligned = racks >= u16::from(replicas) && random.chance(300);
    let scheme = if aligned { Scheme::RackAligned } else { Scheme::Rotated };
    let layout = ebb_gear::layout(&list, replicas, groups, random.next(), scheme)
        .expect("at least as many servers as replicas, and racks where they are aligned");
    // Mostly small chunks, so that operations collide; sometimes one that takes several records to zero.
    let chunk_blocks = if random.chance(50) { 2048 } else { random.between(4, 16) as u32 };
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: chunk_blocks * BLOCK_BYTES as u32,
        replicas,
        groups,
        lease_millis: random.between(1500, 3000) as u32,
    };
    let schedule = Schedule { dwell_millis: 1000, ..Schedule::default() };
    Bootstrap::of_layout(params, &layout, schedule, |id, _| format!("server-{}:1", id.0))
}

fn capacity(seed: u64) -> u64 {
    let mut random = Random::new(seed ^ 0xca9a);
    if random.chance(SMALL_DISKS) { random.between(64 << 10, 2 << 20) } else { LARGE_DISK }
}

fn network(random: &mut Random) -> NetModel {
    let unkind = random.chance(500);
    let chance =
        |random: &mut Random, most| if unkind && random.chance(500) { random.below(most) } else { 0 };
    NetModel {
        delay: random.between(MILLI / 20, 6 * MILLI),
        loss: chance(random, 60),
        repeat: chance(random, 60),
        reorder: chance(random, 300),
    }
}

fn fault_mix(random: &mut Random) -> FaultMix {
    // Each kind is absent in some runs and frequent in others: rare coincidences come from narrow mixes.
    let mut weight = |most| if random.chance(600) { random.below(most) } else { 0 };
    let mut mix = FaultMix::default();
    for (fault, most) in [
        (Fault::Crash, 200),
        (Fault::Pause, 150),
        (Fault::Member, 100),
        (Fault::Cut, 150),
        (Fault::Reset, 100),
        (Fault::Slow, 80),
        (Fault::Poison, 50),
        (Fault::Full, 60),
        (Fault::Rot, 60),
        (Fault::Gear, 250),
        (Fault::Lost, 20),
        (Fault::Rack, 30),
        (Fault::Forget, 60),
        (Fault::Storm, 60),
    ] {
        mix.set(fault, weight(most));
    }
    mix.set(Fault::Gear, 20 + mix.of(Fault::Gear));
    mix
}
