//! Kill -9, pauses, lost and older directories, full and slow servers, restarts and gear shifts.
//!
//! At most r - 1 servers are out of order at a time, and another loses data only when the previous one has recovered
//! everything. A slow server, or one with a slow disk, must not count as failed. Where file systems may be mounted, the
//! long form fills a server's disk to the last byte: only then may writes be refused. A metadata server is killed and
//! restarted, or paused briefly. What passes by itself is in [`faults`]. Two gateways put and read the same objects all
//! the time. One of three events is followed by the next at once. No request fails, and no acknowledged write is lost;
//! operation times are printed, not judged: they depend on the machine as much as on Ebb.

mod faults;

use super::harms::Harms;
use super::{Event, Subject, disturb};
use crate::harness::brake;
use crate::harness::faults::Faults;
use crate::harness::load::{Load, Options};
use crate::harness::race::Race;
use crate::harness::{Cluster, Shape, Who};
use ebb_types::{ClusterStatus, Random, ServerId, ServerState, ServerStatus, SlotState};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// r - 1.
const MOST_DOWN: usize = 2;
const BY_DAY: u64 = 24;
/// Size of a disk that can be filled.
const DISK_MIB: u64 = 640;

struct Servers {
    cluster: Cluster,
    random: Random,
    load: Load,
    race: Race,
    status: ClusterStatus,
    harms: Harms,
    /// For slow servers: how often each had been called failed before.
    failed_before: BTreeMap<u16, u32>,
    /// Whether disks can be slow.
    brakable: bool,
    /// Whether a disk was filled.
    filled: bool,
    /// Whether a server was put back to an older copy.
    older: bool,
    /// Servers that were called failed while they were only slow.
    condemned: u32,
    /// That two processes served.
    volumes: u32,
    /// Many events, not those by day.
    long: bool,
}

type Which = fn(&Servers, &ServerStatus) -> bool;

const LIVE: Which = |_, server| server.state.is_live();
/// Asleep or failed. A sleeping server may be started at any moment when it is woken: it is only killed.
const IDLE: Which = |_, server| !server.state.is_live();
const AWAKE: Which = |_, server| server.state == ServerState::Awake;
const CALM: Which = |s, server| server.state == ServerState::Awake && !s.status.gear.shifting;
/// Not about to sleep: the pulses of a slow server would wake it.
const STAYS: Which = |s, server| CALM(s, server) && s.status.gear.gear == 3;
const MAY_LOSE: Which = |s, server| {
    let groups = &s.status.groups;
    CALM(s, server) && s.harms.lacks.is_none() && groups.catching_up + groups.at_risk == 0
};
const COPIED: Which = |s, server| MAY_LOSE(s, server) && s.harms.copies.has(Who::Server(server.id.0));

impl Servers {
    fn able(&self, which: Which) -> Vec<&ServerStatus> {
        let sound = |s: &&ServerStatus| self.harms.is_sound(&self.cluster, s.id.0);
        self.status.servers.iter().filter(|s| which(self, s)).filter(sound).collect()
    }

    /// A server that is back and still lacks data counts as one that is out of order.
    fn may(&self, which: Which) -> bool {
        let lacks = self.harms.lacks.is_some_and(|id| !self.harms.has(id));
        self.harms.list.len() + usize::from(lacks) < MOST_DOWN && !self.able(which).is_empty()
    }

    fn harm(&mut self, which: Which, harm: fn(&mut Harms, &Cluster, u16)) -> String {
        let able: Vec<(u16, ServerState)> = self.able(which).iter().map(|s| (s.id.0, s.state)).collect();
        let (id, state) = *self.random.pick(&able).expect("some server is able");
        harm(&mut self.harms, &self.cluster, id);
        format!("server {id} ({state:?}) is {}", self.harms.list.last().expect("it is new").how)
    }

    fn slow(&mut self, harm: fn(&mut Harms, &Cluster, u16)) -> String {
        let ids = self.status.servers.iter().map(|s| s.id.0);
        let before: BTreeMap<u16, u32> = ids.map(|id| (id, self.failures_of(id))).collect();
        let what = self.harm(STAYS, harm);
        let id = self.harms.list.last().expect("it is new").id;
        self.failed_before.insert(id, before[&id]);
        what
    }

    /// How often the metadata service called a server failed, from its log.
    fn failures_of(&self, id: u16) -> u32 {
        let line = format!("server-{id} failed:");
        let called = |meta: &u64| self.cluster.log(Who::Meta(*meta)).matches(&line).count() as u32;
        self.cluster.metas.iter().map(called).sum()
    }

    fn put_back(&mut self) -> String {
        self.older = true;
        self.harm(COPIED, Harms::roll_back)
    }

    fn mend(&mut self, at: usize) -> String {
        let id = self.harms.list[at].id;
        if let Some(before) = self.failed_before.remove(&id) {
            self.condemned += self.failures_of(id) - before;
        }
        self.harms.mend(&mut self.cluster, at)
    }

    fn mend_any(&mut self) -> String {
        let at = self.random.index(self.harms.list.len());
        self.mend(at)
    }

    /// Fills a server's disk to the last byte while clients continue, and frees it again.
    fn fill(&mut self) -> String {
        let id = *self.random.pick(&self.cluster.servers).expect("there are servers");
        self.filled = true;
        let ballast = self.cluster.data(Who::Server(id)).join("ballast");
        let mut file = std::fs::File::create(&ballast).expect("a file");
        let full = std::iter::repeat_with(|| file.write_all(&[1; 1 << 16])).find_map(Result::err);
        let why = full.expect("it ends when the disk is full");
        assert_eq!(why.kind(), std::io::ErrorKind::StorageFull, "{why}");
        self.load.go_on_until_refused(20, 300);
        std::fs::remove_file(&ballast).expect("a file is removed");
        format!("the disk of server {id} was full for a while")
    }

    fn mend_slow(&mut self) {
        let is_slow = |s: &Servers, id| s.failed_before.contains_key(&id);
        while let Some(slow) = self.harms.list.iter().position(|harm| is_slow(self, harm.id)) {
            self.mend(slow);
        }
    }

    fn shift(&mut self) -> String {
        self.mend_slow();
        let gear = 1 + self.random.below(3);
        self.cluster.gear(&["set", &format!("{gear}/3")]);
        format!("gear {gear}")
    }

    fn restart_meta(&mut self) -> String {
        let id = *self.random.pick(&self.cluster.metas).expect("there are some");
        self.cluster.kill(Who::Meta(id));
        self.cluster.launch(Who::Meta(id));
        format!("metadata server {id} is killed and restarted")
    }

    fn pause_meta(&mut self) -> String {
        let id = *self.random.pick(&self.cluster.metas).expect("there are some");
        let pause = Duration::from_millis(100 + self.random.below(400));
        self.cluster.pause(Who::Meta(id));
        std::thread::sleep(pause);
        self.cluster.resume(Who::Meta(id));
        format!("metadata server {id} pauses for {pause:?}")
    }
}

impl Subject for Servers {
    const RUN: (&'static str, &'static str, u64) = ("servers", "EBB_CHAOS_EVENTS", BY_DAY);
    const LONGEST: &'static str = "longest time without service";
    const EVENTS: &'static [Event<Self>] = &[
        Event::new("kill of a server", 15, |s| s.may(LIVE), |s| s.harm(LIVE, Harms::kill_and_copy)),
        Event::new("kill of an idle server", 10, |s| s.may(IDLE), |s| s.harm(IDLE, Harms::kill)),
        Event::new("pause of a server", 10, |s| s.may(LIVE), |s| s.harm(LIVE, Harms::pause)),
        Event::new("emptied server", 5, |s| s.may(MAY_LOSE), |s| s.harm(MAY_LOSE, Harms::empty)),
        Event::new("older server", 10, |s| s.may(COPIED), Self::put_back),
        Event::new("slow server", 5, |s| s.may(STAYS), |s| s.slow(Harms::slow)),
        Event::new("slow disk", 5, |s| s.brakable && s.may(STAYS), |s| s.slow(Harms::slow_disk)),
        Event::new("full disk", 9, |s| s.cluster.has_own_disks(), Self::fill),
        Event::new("return of a server", 36, |s| !s.harms.list.is_empty(), Self::mend_any),
        Event::new("gear shift", 18, |_| true, Self::shift),
        Event::new("restart of a metadata server", 5, |_| true, Self::restart_meta),
        Event::new("pause of a metadata server", 4, |_| true, Self::pause_meta),
        Event::new("suspend of a metadata server", 5, |_| true, Self::suspend_meta),
        Event::new("suspend of a gateway", 4, |_| true, Self::suspend_gateway),
        Event::new("hung disk of a server", 6, Self::can_hang, |s| s.harm(AWAKE, Harms::hang_disk)),
        Event::new("hung disk of a metadata server", 4, Self::can_fault, Self::hang_meta),
        Event::new("wrong clock", 5, Self::can_fault, Self::change_clock),
        Event::new("one-way cut", 6, Self::can_cut, Self::cut_one_way),
        Event::new("two parted", 6, Self::can_cut, Self::part),
        Event::new("half-open connections", 6, Self::can_cut, Self::half_open),
        Event::new("no descriptors", 5, Self::can_cut, Self::exhaust),
        Event::new("crowd of callers", 4, |_| true, Self::crowd),
        Event::new("volume with two servers", 3, |_| true, Self::serve_twice),
    ];

    fn start(seed: u64, count: u64, random: Random) -> Servers {
        let long = count > BY_DAY;
        let disk_mib = long.then_some(DISK_MIB);
        let shape = Shape { disk_mib, metas: 3, second_gateway: true, ..Shape::lively() };
        let mut cluster = Cluster::create(&shape);
        let gateways = [Who::Gateway, Who::SecondGateway];
        let processes: Vec<Who> = cluster.all().into_iter().chain(gateways).collect();
        cluster.faults = Faults::prepare(&mut cluster, &processes);
        cluster.start_all();
        gateways.into_iter().for_each(|who| cluster.launch(who));
        if long && !cluster.has_own_disks() {
            println!("no disk is filled: file systems cannot be mounted here");
        }
        let brakable = cluster.has_own_disks() && brake::is_allowed();
        if long && !brakable {
            println!("no disk is slow, only whole servers: this takes root, and control groups of version 1");
        }
        Servers {
            load: Load::start(cluster.client_config(), Options { seed, ..Options::default() }),
            race: Race::start([cluster.gateway.clone(), cluster.second_gateway.clone().expect("two")], seed),
            status: cluster.status(),
            cluster,
            random,
            harms: Harms::new(),
            failed_before: BTreeMap::new(),
            brakable,
            filled: false,
            older: false,
            condemned: 0,
            volumes: 0,
            long,
        }
    }

    fn look(&mut self) {
        self.status = self.cluster.wait_status("the cluster answers", |_| true);
    }

    fn overlaps(&self, random: &mut Random) -> bool {
        random.below(3) == 0
    }

    /// Waits until the cluster has noticed every failure, serves every group with r copies, and has caught up.
    fn settle(&mut self) {
        // The metadata service may start a dead server meanwhile, or resume a paused one: a new leader switches on
        // failed servers.
        let runs =
            |id: u16| !self.harms.is_paused(&self.cluster, id) && self.cluster.pid(Who::Server(id)).is_some();
        let known = |s: &ClusterStatus| {
            // Until it has noticed that its disk hangs, a server may be called anything.
            s.servers.iter().filter(|v| !self.harms.hangs(v.id.0)).all(|v| match v.state {
                ServerState::Failed => !runs(v.id.0),
                ServerState::Awake | ServerState::Draining => runs(v.id.0),
                ServerState::Waking => false,
                ServerState::Asleep | ServerState::Lost => true,
            })
        };
        self.cluster.wait_status("all groups have r copies, in the way that the servers allow", |s| {
            let g = &s.groups;
            known(s) && g.without_primary + g.without_target + g.at_risk + g.catching_up == 0
        });
        // In a low gear it may sleep before it has recovered everything.
        self.harms.lacks = self.harms.lacks.filter(|id| {
            self.cluster.with_client(async |client| {
                let map = client.map();
                let mut slots = map.groups.iter().flat_map(|group| &group.slots);
                slots.any(|slot| slot.server == ServerId(*id) && slot.state != SlotState::InSync)
            })
        });
        self.load.go_on_for(200);
        self.race.go_on_for(3);
    }

    fn wrong(&self) -> Vec<String> {
        [self.load.mismatches(), self.race.wrong()].concat()
    }

    fn longest_after(&self, since: Instant) -> Duration {
        self.load.longest_after(since).max(self.race.longest_after(since))
    }

    fn verdict(mut self) {
        while !self.harms.list.is_empty() {
            self.mend_any();
        }
        println!("healed in {:.2?}", self.cluster.heal());
        self.race.go_on_for(10);
        let wrong = self.race.wrong();
        let (answered, refused) = self.race.stop();
        println!("{answered} requests of objects, {refused} refused");
        assert!(wrong.is_empty(), "{wrong:#?}");
        let report = self.load.stop();
        println!("{report}\n{} slow servers counted as failed", self.condemned);
        assert_eq!(self.condemned, 0, "slow is not failed");
        if self.filled {
            report.assert_refused_only("full");
        } else {
            report.assert_flawless();
        }
        print!("{}", report.longest_operations());
        let verdict = self.cluster.verify(&["--read"]);
        println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
        if self.older {
            // An older copy of a disk brings chunks back whose deletion is forgotten, as zeroes.
            self.cluster.ebb(&["verify", "--space", "--free"]);
        }
        print!("nothing is left over:\n{}", self.cluster.verify_space());
    }
}

#[test]
fn random_kills_pauses_restarts_and_shifts_lose_nothing() {
    disturb::<Servers>();
}
