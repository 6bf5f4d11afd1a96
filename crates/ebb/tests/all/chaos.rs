//! Random kill -9, pauses, lost and older directories, full and slow servers, restarts and gear shifts under verified
//! load. `make chaos` runs 500 events, `make test` a few.
//!
//! Chunk servers are killed (awake or asleep), paused, restarted and resumed; they come back empty or with an older
//! copy of their directory; they, or their disks, are slow, which must not count as a failure. At most r - 1 of them
//! are out of order at a time, and another loses data only when the previous one has recovered everything. Where file
//! systems may be mounted, the long form fills a server's disk to the last byte: only then may writes be refused. The
//! metadata server is killed and restarted, or paused briefly. Two of three events wait until the cluster has dealt
//! with them; the third is followed by the next at once, in the middle of whatever is in progress. No request fails,
//! and no acknowledged write is lost; operation times are printed, not judged: they depend on the machine as much as on
//! Ebb. The seed is printed with the command that repeats the run.

use crate::harness::brake::{self, Brake};
use crate::harness::harm::{copy_tree, put_in_place, remove};
use crate::harness::load::{Load, Options};
use crate::harness::pulses::Pulses;
use crate::harness::{Cluster, Shape, Who, number};
use ebb_types::{ClusterStatus, Random, ServerId, ServerState, SlotState};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

/// r - 1.
const MOST_DOWN: usize = 2;
const EVENTS: u64 = 12;
/// Size of a disk that can be filled.
const DISK_MIB: u64 = 640;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Killed,
    Paused,
    /// Killed, and its store removed or replaced by an older copy.
    Emptied,
    RolledBack,
    /// Suspended most of the time, resumed for short periods.
    Slow,
    /// Its disk does only a few operations per second.
    SlowDisk,
}

struct Chaos {
    cluster: Cluster,
    random: Random,
    load: Load,
    harmed: Vec<(u16, Harm)>,
    slow: Pulses,
    brakes: BTreeMap<u16, Brake>,
    /// For slow servers: how often each had been called failed before.
    failed_before: BTreeMap<u16, u32>,
    /// Servers whose store has an older copy.
    copies: BTreeSet<u16>,
    /// A server that lost data, and may not have recovered it yet.
    lacks: Option<u16>,
    /// Whether disks can be slow.
    brakable: bool,
    /// Whether disks can be filled, and whether one was.
    fillable: bool,
    filled: bool,
    /// Servers that were called failed while they were only slow.
    condemned: u32,
    /// By kind of event: the count, and the longest operation after one.
    outages: BTreeMap<&'static str, (u32, Duration)>,
}

impl Chaos {
    /// Does something; returns its kind for the summary and a description for the log.
    fn act(&mut self) -> (&'static str, String) {
        match self.random.below(11) {
            0..=4 if self.out_of_order() < MOST_DOWN => self.harm(),
            5 | 6 => self.shift(),
            7 => self.harm_meta(),
            8 if self.fillable => self.fill(),
            _ if !self.harmed.is_empty() => self.mend(),
            _ if self.out_of_order() < MOST_DOWN => self.harm(),
            _ => self.shift(),
        }
    }

    /// Servers that cannot serve everything they should, including one that is back and still lacks data.
    fn out_of_order(&self) -> usize {
        let lacks = self.lacks.filter(|id| !self.harmed.iter().any(|(harmed, _)| harmed == id));
        self.harmed.len() + usize::from(lacks.is_some())
    }

    fn harm(&mut self) -> (&'static str, String) {
        let status = self.cluster.status();
        let sound = |id: u16| !self.harmed.iter().any(|(other, _)| *other == id);
        let able: Vec<(u16, ServerState)> = status
            .servers
            .iter()
            .map(|s| (s.id.0, s.state))
            .filter(|(id, _)| sound(*id) && self.cluster.pid(Who::Server(*id)).is_some())
            .collect();
        let (id, state) = *self.random.pick(&able).expect("some server runs");
        let harm = self.kind_of_harm(id, state);
        self.harmed.push((id, harm));
        let who = Who::Server(id);
        let store = self.cluster.data(who).join("store");
        let copy = self.cluster.directory().join("copies").join(id.to_string());
        if matches!(harm, Harm::Slow | Harm::SlowDisk) {
            self.failed_before.insert(id, self.failures_of(id));
        }
        match harm {
            Harm::Paused => self.cluster.pause(who),
            Harm::Slow => self.slow.begin(self.cluster.pid(who).expect("it runs")),
            Harm::SlowDisk => {
                let brake = Brake::on(self.cluster.pid(who).expect("it runs"), &self.cluster.data(who));
                self.brakes.insert(id, brake.expect("a slow disk"));
            }
            Harm::Killed | Harm::Emptied | Harm::RolledBack => self.cluster.kill(who),
        }
        match harm {
            Harm::Killed if state.is_live() && !self.copies.contains(&id) => {
                copy_tree(&store, &copy);
                self.copies.insert(id);
            }
            Harm::Emptied | Harm::RolledBack => {
                self.lacks = Some(id);
                let older = (harm == Harm::RolledBack).then_some(copy.as_path());
                put_in_place(&store, older);
                if older.is_some() {
                    self.copies.remove(&id);
                    remove(&copy);
                }
            }
            _ => {}
        }
        let kind = match (harm, state.is_live()) {
            (Harm::Paused, _) => "pause of a server",
            (Harm::Slow, _) => "slow server",
            (Harm::SlowDisk, _) => "slow disk",
            (Harm::Emptied, _) => "server that loses everything",
            (Harm::RolledBack, _) => "server that goes back to an older copy",
            (Harm::Killed, true) => "kill of a server",
            (Harm::Killed, false) => "kill of a sleeping or failed server",
        };
        (kind, format!("server {id} ({state:?}) is {harm:?}"))
    }

    /// A sleeping server may be started at any moment when it is woken: it is only killed.
    fn kind_of_harm(&mut self, id: u16, state: ServerState) -> Harm {
        if !state.is_live() {
            return Harm::Killed;
        }
        let status = self.cluster.status();
        let calm = state == ServerState::Awake && !status.gear.shifting;
        let may_lose = calm && self.lacks.is_none() && status.groups.catching_up + status.groups.at_risk == 0;
        match self.random.below(9) {
            0 | 1 => Harm::Paused,
            // Not a server that is about to sleep: its pulses would wake it.
            2 if calm && status.gear.gear == 3 => Harm::Slow,
            3 if calm && status.gear.gear == 3 => {
                if self.brakable {
                    Harm::SlowDisk
                } else {
                    Harm::Slow
                }
            }
            4 if may_lose => Harm::Emptied,
            5 | 6 if may_lose && self.copies.contains(&id) => Harm::RolledBack,
            _ => Harm::Killed,
        }
    }

    fn mend(&mut self) -> (&'static str, String) {
        let at = self.random.below(self.harmed.len() as u64) as usize;
        self.mend_one(at)
    }

    fn mend_one(&mut self, at: usize) -> (&'static str, String) {
        let (id, harm) = self.harmed.remove(at);
        let who = Who::Server(id);
        match harm {
            Harm::Killed | Harm::Emptied | Harm::RolledBack if self.cluster.pid(who).is_none() => {
                self.cluster.launch(who)
            }
            // The metadata service wanted it awake, and started it.
            Harm::Killed | Harm::Emptied | Harm::RolledBack => {}
            Harm::Paused => self.cluster.resume(who),
            Harm::Slow | Harm::SlowDisk => {
                self.condemned += self.failures_of(id) - self.failed_before.remove(&id).unwrap_or_default();
                self.slow.end(self.cluster.pid(who).expect("it runs"));
                self.brakes.remove(&id);
            }
        }
        ("return of a server", format!("server {id}, which was {harm:?}, continues"))
    }

    /// How often the metadata service called a server failed, from its log.
    fn failures_of(&self, id: u16) -> u32 {
        let line = format!("server-{id} failed:");
        self.cluster.log(Who::Meta(1)).matches(&line).count() as u32
    }

    /// Fills a server's disk to the last byte while clients continue, and frees it again.
    fn fill(&mut self) -> (&'static str, String) {
        let id = *self.random.pick(&self.cluster.servers).expect("there are servers");
        self.filled = true;
        let ballast = self.cluster.data(Who::Server(id)).join("ballast");
        let mut file = std::fs::File::create(&ballast).expect("a file");
        let full = std::iter::repeat_with(|| file.write_all(&[1; 1 << 16])).find_map(Result::err);
        let why = full.expect("it ends when the disk is full");
        assert_eq!(why.kind(), std::io::ErrorKind::StorageFull, "{why}");
        self.load.go_on_until_refused(20, 300);
        std::fs::remove_file(&ballast).expect("a file is removed");
        ("full disk", format!("the disk of server {id} was full for a while"))
    }

    fn shift(&mut self) -> (&'static str, String) {
        let is_slow = |harm: Harm| matches!(harm, Harm::Slow | Harm::SlowDisk);
        while let Some(slow) = self.harmed.iter().position(|(_, harm)| is_slow(*harm)) {
            self.mend_one(slow);
        }
        let gear = 1 + self.random.below(3);
        self.cluster.gear(&["set", &format!("{gear}/3")]);
        ("gear shift", format!("gear {gear}"))
    }

    fn harm_meta(&mut self) -> (&'static str, String) {
        if self.random.below(2) == 0 {
            self.cluster.kill(Who::Meta(1));
            self.cluster.launch(Who::Meta(1));
            return ("restart of the metadata server", "the metadata server is killed and restarted".into());
        }
        let pause = Duration::from_millis(100 + self.random.below(400));
        self.cluster.pause(Who::Meta(1));
        std::thread::sleep(pause);
        self.cluster.resume(Who::Meta(1));
        ("pause of the metadata server", format!("the metadata server pauses for {pause:?}"))
    }

    /// Waits until the cluster has noticed every failure, serves every group with r copies, and has caught up.
    fn settle(&mut self) {
        // The metadata service may start a dead server meanwhile, or resume a paused one: a new leader switches on
        // failed servers.
        let paused =
            |id: u16| self.harmed.contains(&(id, Harm::Paused)) && self.cluster.is_stopped(Who::Server(id));
        let runs = |id: u16| !paused(id) && self.cluster.pid(Who::Server(id)).is_some();
        let known = |s: &ClusterStatus| {
            s.servers.iter().all(|v| match v.state {
                ServerState::Failed => !runs(v.id.0),
                ServerState::Awake | ServerState::Draining => runs(v.id.0),
                ServerState::Waking => false,
                ServerState::Asleep | ServerState::Lost => true,
            })
        };
        self.cluster.wait_status(
            "all groups are served with r copies, in the way that the servers allow",
            |s| {
                let g = &s.groups;
                known(s) && g.without_primary + g.without_target + g.at_risk + g.catching_up == 0
            },
        );
        // In a low gear it may sleep before it has recovered everything.
        self.lacks = self.lacks.filter(|id| {
            self.cluster.with_client(async |client| {
                let map = client.map();
                let mut slots = map.groups.iter().flat_map(|group| &group.slots);
                slots.any(|slot| slot.server == ServerId(*id) && slot.state != SlotState::InSync)
            })
        });
    }
}

#[test]
fn random_kills_pauses_restarts_and_shifts_lose_nothing() {
    let (seed, events) = (number("EBB_SEED", 1), number("EBB_CHAOS_EVENTS", EVENTS));
    println!(
        "repeat with: EBB_SEED={seed} EBB_CHAOS_EVENTS={events} cargo test -p ebb --test all chaos -- --nocapture"
    );
    let long = events > EVENTS;
    let shape = Shape { disk_mib: long.then_some(DISK_MIB), ..Shape::lively() };
    let cluster = Cluster::start(&shape);
    let fillable = cluster.has_own_disks();
    if long && !fillable {
        println!("no disk is filled: file systems cannot be mounted here");
    }
    let brakable = fillable && brake::is_allowed();
    if long && !brakable {
        println!("no disk is slow, only whole servers: this takes root, and control groups of version 1");
    }
    let load = Load::start(cluster.client_config(), Options { seed, ..Options::default() });
    let mut chaos = Chaos {
        cluster,
        random: Random::new(seed),
        load,
        harmed: Vec::new(),
        slow: Pulses::start(),
        brakes: BTreeMap::new(),
        failed_before: BTreeMap::new(),
        copies: BTreeSet::new(),
        lacks: None,
        brakable,
        fillable,
        filled: false,
        condemned: 0,
        outages: BTreeMap::new(),
    };
    let begin = Instant::now();
    for event in 1..=events {
        let since = Instant::now();
        let (kind, what) = chaos.act();
        let overlap = event < events && chaos.random.below(3) == 0;
        if !overlap {
            chaos.settle();
            chaos.load.go_on_for(200);
        }
        let longest = chaos.load.longest_after(since);
        let how = if overlap { "the next comes at once" } else { "all is served again" };
        println!("{event:>4} {:>6.1?} {what}: {how}, longest operation {longest:.2?}", begin.elapsed());
        let account = chaos.outages.entry(kind).or_default();
        *account = (account.0 + 1, account.1.max(longest));
        if chaos.load.mismatches() > 0 {
            panic!("event {event} ({what}): {:#?}", chaos.load.stop().mismatches);
        }
    }
    while !chaos.harmed.is_empty() {
        chaos.mend();
    }
    println!("healed in {:.2?}", chaos.cluster.heal());
    let Chaos { cluster, load, outages, condemned, filled, .. } = chaos;
    let report = load.stop();
    println!("{report}");
    for (kind, (count, longest)) in &outages {
        println!("{count:>4} x {kind}: longest operation afterwards {longest:.2?}");
    }
    println!("{condemned} slow servers counted as failed");
    assert_eq!(condemned, 0, "slow is not failed");
    if filled {
        report.assert_refused_only("full");
    } else {
        report.assert_flawless();
    }
    print!("{}", report.longest_operations());
    let verdict = cluster.verify(&["--read"]);
    println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
}
