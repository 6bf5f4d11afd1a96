//! What a seed draws: who takes part, and which faults strike when.

use crate::above::library::MIDNIGHT;
use crate::above::meta::GROUPS;
use ebb_types::{BLOCK_BYTES, Random};
use std::iter::repeat_n;

pub(super) const SECOND: u64 = 1000;

/// Seeds per thousand of those with a volume that have more of them.
const SEVERAL: u64 = 250;
/// Of those with gateways that put objects in several parts. These are large.
const PARTS: u64 = 150;
/// Of those with gateways most of whose objects are small.
const PACKS: u64 = 250;
/// Of those with gateways whose erasure-coded pools sleep.
const RESTS: u64 = 300;
/// Of those with gateways in which a pool is created.
const GROWS: u64 = 250;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It serves the volume of this number, in turn with others.
    Volume(usize),
    Gateway,
}

impl Role {
    pub fn is_volume(self) -> bool {
        matches!(self, Role::Volume(_))
    }
}

/// How a machine's clocks stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standstill {
    /// Suspended: its boot clock runs on.
    Suspend,
    /// A virtual machine that its host paused: it does not notice at all.
    Freeze,
}

/// At which moment a process is made to stand still: those that matter are short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Now,
    /// As soon as it has sent anything to the cluster.
    Sent,
    /// As soon as it has asked for bytes of a chunk. It may have looked up where they are long before it reads them.
    Reading,
    /// As soon as it has sent a command to the namespace that names or removes something.
    Commanding,
    /// As soon as it has sent a command that deletes an object.
    Deleting,
    /// As soon as it has answered a client.
    Answering,
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// A process stands still for this long, and its monotonic clock with it.
    Stop {
        host: usize,
        millis: u64,
        how: Standstill,
        when: Moment,
    },
    /// A process ends at once, and starts again after this time.
    Crash {
        host: usize,
        millis: u64,
    },
    /// A process is asked to end.
    Close {
        host: usize,
    },
    /// All connections of clients break.
    Break,
    /// Messages are slow, get lost and come twice.
    Storm {
        millis: u64,
    },
    /// A chunk group is not served.
    Unserved {
        group: usize,
        millis: u64,
    },
    /// A chunk group gets another primary.
    Primary {
        group: usize,
    },
    /// Another erasure-coded pool is created.
    NewPool,
    MetaSilent {
        millis: u64,
    },
    /// The leader of the metadata service starts again: if there are others, one of them leads.
    MetaLeader,
    /// A member of the metadata service is cut off.
    MetaCut {
        member: u64,
        millis: u64,
    },
    /// The leader's wall clock is set that far ahead.
    MetaClock {
        ahead: i64,
    },
    /// A machine's wall clock is set.
    Clock {
        host: usize,
        ahead: i64,
    },
}

impl Fault {
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Stop { how: Standstill::Suspend, .. } => "machine suspended",
            Fault::Stop { how: Standstill::Freeze, .. } => "virtual machine frozen",
            Fault::Crash { .. } => "process crash",
            Fault::Close { .. } => "process ended in order",
            Fault::Break => "connections broken",
            Fault::Storm { .. } => "network storm",
            Fault::Unserved { .. } => "chunk group not served",
            Fault::Primary { .. } => "another primary",
            Fault::NewPool => "a pool to be created",
            Fault::MetaSilent { .. } => "metadata service silent",
            Fault::MetaLeader => "metadata leader started again",
            Fault::MetaCut { .. } => "metadata member cut off",
            Fault::MetaClock { .. } => "metadata leader's wall clock set",
            Fault::Clock { .. } => "wall clock set",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub seed: u64,
    pub hosts: Vec<Role>,
    /// The volumes' clients: each volume has one at least.
    pub block_clients: usize,
    /// Per mille of the clients that stay with a host.
    pub faithful: u64,
    /// Per mille of the clients whose pauses are long. Without any, requests are dense.
    pub lazy: u64,
    /// A client of a volume asks again within this time: perhaps while the same request is still carried out.
    pub patience: u64,
    /// The gateways' clients, and the keys that they use.
    pub object_clients: usize,
    pub keys: usize,
    /// Some objects are put in several parts.
    pub has_parts: bool,
    /// Most objects are small, and in the erasure-coded pool: they share packs, which are sparse soon.
    pub has_packs: bool,
    /// An erasure-coded pool is created in this run.
    pub has_new_pool: bool,
    /// For how long an erasure-coded pool is unused before it sleeps. `None`: it never does.
    pub rest_after: Option<u64>,
    /// Within this time it wakes.
    pub wakes_within: u64,
    /// How long each volume's front may get. `None`: all of it is in the replicated pool.
    pub fronts: Vec<Option<u64>>,
    /// Of the metadata service.
    pub members: u64,
    /// When it rewrites its log.
    pub log_bytes: usize,
    /// When the faults end.
    pub calm_at: u64,
    /// Typical pause between two requests of a client.
    pub think: u64,
    pub storm_delay: u64,
    /// Per mille.
    pub storm_losses: u64,
    /// By time.
    pub faults: Vec<(u64, Fault)>,
}

const DAY: i64 = 24 * 3600 * 1000;

/// Short or long, rather than all alike.
fn span(random: &mut Random, longest: u64) -> u64 {
    match random.below(3) {
        0 => random.between(10, 3 * SECOND),
        1 => random.between(SECOND, 30 * SECOND),
        _ => random.between(20 * SECOND, longest),
    }
}

fn standstill(random: &mut Random) -> Standstill {
    if random.chance(850) { Standstill::Suspend } else { Standstill::Freeze }
}

/// When a process stands still, and for how long: such that much may happen meanwhile.
fn stop(random: &mut Random, role: Role, has_lazy: bool) -> (Moment, u64) {
    let any = span(random, 200 * SECOND);
    match random.below(10) {
        0..=2 => (Moment::Now, any),
        3 => (Moment::Sent, any),
        4 => (Moment::Commanding, any),
        // Its volume is taken over, while some client has not noticed.
        5..=7 if role.is_volume() && has_lazy => {
            (Moment::Answering, random.between(12 * SECOND, 80 * SECOND))
        }
        5 | 6 if role.is_volume() => (Moment::Now, any),
        7 if role.is_volume() => (Moment::Commanding, any),
        // The namespace forgets it.
        5..=7 => (Moment::Deleting, random.between(120 * SECOND, 200 * SECOND)),
        // What it reads is freed.
        _ => (Moment::Reading, random.between(5 * SECOND, 45 * SECOND)),
    }
}

fn front(random: &mut Random) -> Option<u64> {
    random.chance(700).then_some((2 + random.below(14)) * BLOCK_BYTES as u64)
}

fn ahead(random: &mut Random) -> i64 {
    let days = random.between(1, 800) as i64;
    if random.chance(500) { days * DAY } else { -days * DAY }
}

impl Scenario {
    pub fn some_host(&self, role: Role, random: &mut Random) -> usize {
        let hosts = (0..self.hosts.len()).filter(|host| self.hosts[*host] == role);
        let hosts: Vec<usize> = hosts.collect();
        hosts[random.index(hosts.len())]
    }

    pub fn draw(seed: u64) -> Scenario {
        let mut random = Random::new(ebb_types::mix(seed ^ 0x5ce0));
        // Volumes alone, gateways alone, or both.
        let kind = random.below(5);
        let (volumes, gateways) =
            (if kind < 3 { 2 + random.index(2) } else { 0 }, [1, 2, 2, 3, 3][random.index(5)]);
        let gateways = if kind < 2 { 0 } else { gateways };
        let mut hosts = vec![Role::Volume(0); volumes];
        let mut more = Random::new(ebb_types::mix(seed ^ 0x5cea));
        let others = if volumes > 0 && more.chance(SEVERAL) { 1 + more.index(2) } else { 0 };
        (1..=others).for_each(|other| hosts.extend(repeat_n(Role::Volume(other), 1 + more.index(2))));
        hosts.extend(repeat_n(Role::Gateway, gateways));
        let mut scenario = Scenario {
            seed,
            block_clients: if volumes > 0 { (2 + random.index(3)).max(1 + others) } else { 0 },
            faithful: [0, 400, 800, 1000][random.index(4)],
            lazy: if random.chance(500) { 0 } else { 300 },
            patience: [6, 15, 40][random.index(3)] * SECOND,
            object_clients: if gateways > 0 { 2 + random.index(4) } else { 0 },
            has_packs: false,
            has_new_pool: false,
            rest_after: None,
            wakes_within: 0,
            has_parts: gateways > 0 && Random::new(ebb_types::mix(seed ^ 0x5ce2)).chance(PARTS),
            keys: if random.chance(850) { 1 + random.index(6) } else { 1 + random.index(60) },
            fronts: vec![front(&mut random)],
            members: if random.chance(300) { 3 } else { 1 },
            log_bytes: 1usize << random.between(11, 18),
            calm_at: random.between(100 * SECOND, 450 * SECOND),
            think: random.between(300, 4 * SECOND),
            storm_delay: random.between(20, 400),
            storm_losses: random.between(20, 250),
            faults: Vec::new(),
            hosts,
        };
        scenario.fronts.extend((0..others).map(|_| front(&mut more)));
        scenario.draw_faults(&mut random);
        if scenario.has_parts {
            // So few that they are read, too.
            scenario.keys = scenario.keys.min(3);
        }
        let mut random = Random::new(ebb_types::mix(seed ^ 0x5ce1));
        if scenario.fronts[0].is_some() && volumes > 0 && random.chance(300) {
            scenario.draw_takeovers(&mut random);
        }
        let mut random = Random::new(ebb_types::mix(seed ^ 0x5ce3));
        if gateways > 0 && !scenario.has_parts && random.chance(PACKS) {
            scenario.draw_packs(&mut random);
        }
        let mut random = Random::new(ebb_types::mix(seed ^ 0x5ce5));
        if gateways > 0 && random.chance(GROWS) {
            scenario.has_new_pool = true;
            let at = random.between(5 * SECOND, scenario.calm_at / 2);
            scenario.faults.push((at, Fault::NewPool));
            scenario.faults.sort_by_key(|(at, _)| *at);
        }
        let mut random = Random::new(ebb_types::mix(seed ^ 0x5ce4));
        if gateways > 0 && random.chance(RESTS) {
            scenario.rest_after = Some(random.between(5 * SECOND, 60 * SECOND));
            // Some requests do not wait for so long.
            scenario.wakes_within = random.between(5 * SECOND, 80 * SECOND);
        }
        scenario
    }

    fn draw_faults(&mut self, random: &mut Random) {
        for _ in 0..random.between(2, 9) {
            let at = random.between(5 * SECOND, self.calm_at);
            let fault = self.fault(random);
            if let Fault::Stop { when: Moment::Deleting, millis, .. } = fault {
                // It continues among the others.
                self.calm_at = self.calm_at.max(at + millis + 30 * SECOND);
            }
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// One owner after another is suspended, until its volume is served elsewhere: most slices have moved, they are
    /// written again under the next owner, and who reads seldom asks the former one again.
    fn draw_takeovers(&mut self, random: &mut Random) {
        (self.block_clients, self.lazy) = (6, 500);
        self.think = random.between(500, 3 * SECOND);
        self.fronts[0] = Some((2 + random.below(14)) * BLOCK_BYTES as u64);
        self.calm_at = 450 * SECOND;
        let times = (15..420).step_by(45).map(|at| at * SECOND);
        let owners: Vec<usize> = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_volume()).collect();
        let stop = |at| {
            let (host, millis) =
                (owners[random.index(owners.len())], random.between(14 * SECOND, 35 * SECOND));
            let (how, when) = (Standstill::Suspend, Moment::Answering);
            (at, Fault::Stop { host, millis, how, when })
        };
        self.faults = times.map(stop).collect();
    }

    /// Packs fill, and what is in them is deleted and replaced. They are compacted at midnight, and when a gateway
    /// starts.
    fn draw_packs(&mut self, random: &mut Random) {
        (self.has_packs, self.keys) = (true, 8 + random.index(30));
        (self.object_clients, self.think) = (5, random.between(300, SECOND));
        self.calm_at = self.calm_at.max(250 * SECOND);
        for _ in 0..1 + random.index(3) {
            let host = self.some_host(Role::Gateway, random);
            let at = random.between(MIDNIGHT, self.calm_at);
            self.faults.push((at, Fault::Crash { host, millis: random.between(SECOND, 10 * SECOND) }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn fault(&self, random: &mut Random) -> Fault {
        let host = random.index(self.hosts.len());
        let group = random.index(GROUPS as usize);
        match random.below(19) {
            0..=5 => {
                let (when, millis) = stop(random, self.hosts[host], self.lazy > 0);
                Fault::Stop { host, millis, how: standstill(random), when }
            }
            6 | 7 => Fault::Crash { host, millis: span(random, 90 * SECOND) },
            8 => Fault::Close { host },
            9 | 10 => Fault::Break,
            11 | 12 => Fault::Storm { millis: span(random, 60 * SECOND) },
            13 => Fault::Unserved { group, millis: span(random, 50 * SECOND) },
            14 => Fault::Primary { group },
            15 => Fault::MetaSilent { millis: span(random, 100 * SECOND) },
            16 if random.chance(500) => Fault::MetaLeader,
            16 => Fault::MetaClock { ahead: ahead(random) },
            17 if self.members > 1 => {
                Fault::MetaCut { member: 1 + random.below(self.members), millis: span(random, 100 * SECOND) }
            }
            _ => Fault::Clock { host, ahead: ahead(random) },
        }
    }
}
