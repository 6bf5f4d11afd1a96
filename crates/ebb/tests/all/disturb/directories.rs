//! Servers come back with less data than they had (R11): no wrong data is ever read, and the loss is detected and
//! repaired.
//!
//! In each round some servers are stopped or killed under verified load. Then each event damages a directory of theirs:
//! emptied, replaced by an older copy, some files removed, a file truncated, bytes changed, two directories exchanged.
//! The servers are started again. One that refuses to start gets what its message asks for: an empty directory. Then
//! every replica must be in sync, every copy is scrubbed, no copies differ, and `ebb status` reports the damage. A
//! metadata server loses its log, or gets an older log, a damaged one or another server's, while the others form a
//! majority.
//!
//! Never more copies than the redundancy covers: all servers of at most two gear groups while everything is in sync, as
//! each group has one copy in each; otherwise two servers.

use super::harms::{Copies, store};
use super::{Event, Subject, disturb};
use crate::harness::load::{Load, Options};
use crate::harness::objects::Objects;
use crate::harness::{Cluster, PATIENCE, Shape, Who, harm, tail, wait};
use ebb_types::{ClusterStatus, Random, ServerState, ServerStatus};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Messages of a program that refuses the directory it found, or stops because of it; the remedy follows each of them.
const REFUSALS: [&str; 13] = [
    "is damaged at byte",
    "the directory has no superblock but is not empty",
    "belongs to server-",
    "cannot open ",
    "cannot read ",
    "has store format",
    "the directory belongs to cluster",
    "there is no metadata log",
    "is not a metadata log of this release",
    "the metadata log is damaged",
    "the metadata log has a gap",
    "the directory belongs to metadata server",
    "this member forgot what it acknowledged",
];

/// Damage that may hit nothing: it is to a part of a store.
const PARTIAL: [&str; 3] = ["files gone", "file cut", "bytes changed"];

/// A server with a damaged directory, as it was before.
struct Victim {
    server: ServerStatus,
    harm: &'static str,
    what: String,
    /// Length of its log before.
    logged: usize,
    refused: bool,
}

struct Directories {
    cluster: Cluster,
    random: Random,
    load: Load,
    objects: Objects,
    copies: Copies,
    /// By kind of damage and what came of it.
    outcomes: BTreeMap<(&'static str, &'static str), u32>,
    rounds: u32,
    /// The servers that were stopped in this round, and those of them with an undamaged directory.
    stopped: Vec<ServerStatus>,
    left: Vec<ServerStatus>,
    /// They have not been started again.
    down: bool,
    victims: Vec<Victim>,
    /// The metadata server that this round harms last, while the others recover.
    meta: Option<u64>,
}

const LEFT: fn(&Directories) -> bool = |s| !s.left.is_empty();
/// The metadata server comes last.
const META: fn(&Directories) -> bool = |s| s.left.is_empty();

impl Directories {
    /// Stops some servers, sometimes in a lower gear.
    fn begin_round(&mut self) {
        self.rounds += 1;
        let gear = if self.random.below(5) == 0 { 1 + self.random.below(2) as u8 } else { 3 };
        if gear < 3 {
            self.cluster.shift(gear);
            self.load.go_on_for(100);
        }
        self.stopped = self.choose(gear);
        for server in &self.stopped {
            let who = Who::Server(server.id.0);
            if server.state == ServerState::Awake && self.random.below(2) == 0 {
                self.cluster.terminate(who);
            } else {
                self.cluster.kill(who);
            }
        }
        if self.random.below(4) == 0 && self.stopped.iter().all(|s| s.state == ServerState::Awake) {
            self.cluster.wait_status("the crash is noticed", |s| {
                let failed = |id| s.servers.iter().any(|v| v.id == id && v.state == ServerState::Failed);
                self.stopped.iter().all(|s| failed(s.id) || self.cluster.pid(Who::Server(s.id.0)).is_some())
            });
            self.stopped.iter().for_each(|s| self.cluster.keep_down(Who::Server(s.id.0)));
        }
        (self.left, self.down) = (self.stopped.clone(), true);
        let meta = *self.random.pick(&self.cluster.metas).expect("there are some");
        self.meta = (self.random.below(3) == 0).then_some(meta);
    }

    /// Chooses the servers to stop. In the top gear, with everything in sync, all servers of two gear groups may be
    /// among them.
    fn choose(&mut self, gear: u8) -> Vec<ServerStatus> {
        let mut servers = self.cluster.status().servers;
        servers.retain(|s| self.cluster.pid(Who::Server(s.id.0)).is_some());
        let mut most = servers.len();
        if gear < 3 {
            // Either sleeping servers or awake ones: harming awake ones would wake the sleeping ones meanwhile.
            let state = *self.random.pick(&[ServerState::Asleep, ServerState::Awake]).expect("two");
            servers.retain(|s| s.state == state);
            most = 2;
        } else {
            let spared = self.random.below(3) as u8;
            servers.retain(|s| s.gear_group.0 != spared);
        }
        let sizes = [0; 2].map(|_| 1 + self.random.below(servers.len().max(1) as u64) as usize);
        self.random.shuffle(&mut servers);
        servers.truncate(sizes[0].max(sizes[1]).min(most));
        servers
    }

    /// Starts what was stopped, once in a round.
    fn end_harm(&mut self) {
        if !std::mem::take(&mut self.down) {
            return;
        }
        self.left.clear();
        // Sleeping servers are started by the metadata service when it wakes them.
        for server in self.stopped.iter().filter(|s| s.state != ServerState::Asleep) {
            self.cluster.keep_down(Who::Server(server.id.0));
            self.cluster.launch(Who::Server(server.id.0));
        }
        self.cluster.gear(&["set", "3/3"]);
    }

    /// Whether the server that is damaged next has a copy, or which has none.
    fn copy(&self, wanted: bool) -> bool {
        self.left.last().is_some_and(|s| self.copies.has(Who::Server(s.id.0)) == wanted)
    }

    fn meta_copy(&self, wanted: bool) -> bool {
        self.left.is_empty() && self.meta.is_some_and(|id| self.copies.has(Who::Meta(id)) == wanted)
    }

    fn damage(&mut self, harm: &'static str, act: fn(&mut Directories, Who) -> String) -> String {
        let server = self.left.pop().expect("a server was stopped");
        let who = Who::Server(server.id.0);
        let what = act(self, who);
        let line = format!("server {}: {harm} {what}", server.id.0);
        let logged = self.cluster.log(who).len();
        self.victims.push(Victim { server, harm, what, logged, refused: false });
        line
    }

    fn empty(&mut self, who: Who) -> String {
        harm::remove(&store(&self.cluster, who));
        String::new()
    }

    /// Also the files beside the store. The directory itself is where another disk is mounted: without one, a sleeping
    /// server cannot be started by its switch.
    fn empty_all(&mut self, who: Who) -> String {
        let data = self.cluster.data(who);
        harm::remove(&data);
        std::fs::create_dir_all(&data).expect("an empty directory");
        String::new()
    }

    fn go_back(&mut self, who: Who) -> String {
        self.copies.go_back(&self.cluster, who);
        String::new()
    }

    /// The copy is for a later round.
    fn copy_and_flip(&mut self, who: Who) -> String {
        self.copies.keep(&self.cluster, who);
        self.flip_bytes(who)
    }

    fn copy_and_empty(&mut self, who: Who) -> String {
        self.copies.keep(&self.cluster, who);
        self.empty(who)
    }

    fn remove_files(&mut self, who: Who) -> String {
        harm::remove_files(&store(&self.cluster, who), &mut self.random)
    }

    fn cut_file(&mut self, who: Who) -> String {
        harm::cut_file(&store(&self.cluster, who), &mut self.random)
    }

    /// Two times out of three in chunk files only: a store with a changed record or superblock refuses to start.
    fn flip_bytes(&mut self, who: Who) -> String {
        let store = store(&self.cluster, who);
        let chunks = store.join("chunks");
        let any = self.random.below(3) == 0 || !harm::has_files(&chunks);
        harm::flip_bytes(if any { &store } else { &chunks }, &mut self.random)
    }

    fn take_log(&mut self, who: Who) -> String {
        let others: Vec<u64> =
            self.cluster.metas.iter().copied().filter(|id| Who::Meta(*id) != who).collect();
        let other = *self.random.pick(&others).expect("there are others");
        harm::put_in_place(&self.cluster.data(who), Some(&self.cluster.data(Who::Meta(other))));
        format!("{other}")
    }

    fn may_exchange(&self) -> bool {
        self.left.len() > 1 && self.left.iter().all(|s| s.state == ServerState::Awake)
    }

    fn exchange(&mut self) -> String {
        let [one, other] = [1, 2].map(|n| Who::Server(self.left[self.left.len() - n].id.0));
        harm::exchange(&store(&self.cluster, one), &store(&self.cluster, other));
        let [first, second] = [0, 1].map(|_| self.damage("exchanged", |_, _| String::new()));
        format!("{first}and {second}")
    }

    /// Harms the log of a metadata server. If it notices, it stops, and joins again with an empty directory.
    fn harm_meta(&mut self, harm: &'static str, act: fn(&mut Directories, Who) -> String) -> String {
        self.end_harm();
        let id = self.meta.take().expect("one is harmed in this round");
        let who = Who::Meta(id);
        self.cluster.kill(who);
        let line = format!("metadata server {id}: {harm} {}", act(self, who));
        let logged = self.cluster.log(who).len();
        let address = self.cluster.client_config().meta[id as usize - 1].clone();
        self.cluster.launch(who);
        let refused = wait("the metadata server stops, or has read its log", PATIENCE, || {
            let log = self.cluster.log(who);
            let error = refusal(&log[logged..]);
            // Bytes outside whole frames, or no longer read, may change unnoticed.
            let listens = || harm == "log damaged" && TcpStream::connect(&address).is_ok();
            error.map(|_| true).or_else(|| listens().then_some(false))
        });
        self.count(harm, if refused { "refused" } else { "harmless" });
        self.attend_to_metas();
        line
    }

    /// Waits until all servers are awake and all replicas in sync. A server that refuses to start gets an empty
    /// directory, or its own.
    fn attend(&mut self) {
        let since = Instant::now();
        loop {
            let what = "all servers are awake and all replicas in sync";
            let late = since.elapsed() > PATIENCE;
            assert!(!late, "{what}: not within {PATIENCE:?}; {}", self.cluster.trouble());
            let mut victims = std::mem::take(&mut self.victims);
            victims.iter_mut().for_each(|victim| self.attend_to(victim));
            self.victims = victims;
            let Ok(status) = self.cluster.try_status() else { continue };
            let awake = |s: &ServerStatus| s.state == ServerState::Awake;
            let runs = |s: &ServerStatus| self.cluster.pid(Who::Server(s.id.0)).is_some();
            // Until the lease of the previous run is over, the status shows that run.
            let same = |s: &ServerStatus, v: &ServerStatus| (s.id, s.incarnation) == (v.id, v.incarnation);
            let ran = |s: &ServerStatus| self.stopped.iter().any(|v| same(s, v));
            let all = status.servers.iter().all(|s| awake(s) && runs(s) && !ran(s));
            if all && status.groups.in_sync == status.groups.total && status.debt_bytes == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(80));
        }
    }

    fn attend_to(&mut self, victim: &mut Victim) {
        let id = victim.server.id.0;
        let who = Who::Server(id);
        let log = self.cluster.log(who);
        let Some(error) = refusal(&log[victim.logged.min(log.len())..]) else { return };
        if self.cluster.pid(who).is_some() {
            return;
        }
        victim.logged = log.len();
        let known = REFUSALS.iter().any(|known| error.contains(known));
        assert!(known, "server {id} ended otherwise than by refusing what it found: {error}");
        println!("      server {id} refused: {error}");
        victim.refused = true;
        harm::remove(&store(&self.cluster, who));
        self.cluster.launch(who);
    }

    /// Has every copy read and compared, which repairs all damage.
    fn scrub(&self) -> ClusterStatus {
        let asked = self.cluster.ebb(&["scrub"]);
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let since = Instant::now();
        let status = self.cluster.wait_status("every replica was found right", |s| {
            s.servers.iter().all(|v| {
                let scrub = v.vitals.as_ref().map(|v| v.scrub).unwrap_or_default();
                let right = scrub.replicas > 0 && scrub.asked == 0 && scrub.unsound == 0;
                right && scrub.oldest_seconds <= since.elapsed().as_secs()
            })
        });
        let vitals = status.servers.iter().filter_map(|s| s.vitals.as_ref());
        assert_eq!(vitals.map(|v| v.scrub.differing_blocks).sum::<u64>(), 0, "copies differed");
        status
    }

    /// Reads and compares all replicas while no request is in flight; the janitor may still be freeing chunks.
    fn compare(&self) {
        let begin = Instant::now();
        let until_same = || loop {
            match self.cluster.try_verify(&["--read"]) {
                Err(_) if begin.elapsed() < Duration::from_secs(30) => {}
                verdict => return verdict,
            }
        };
        let verdict = self.load.pausing(|| self.objects.pausing(until_same));
        verdict.unwrap_or_else(|why| panic!("copies differ: {why}"));
    }

    fn count(&mut self, harm: &'static str, outcome: &'static str) {
        *self.outcomes.entry((harm, outcome)).or_default() += 1;
    }

    /// What came of the damage: nothing only where a part of a store was damaged that held no data of the cluster, as
    /// no copies differ and every block passes its checksum.
    fn settle_accounts(&mut self, status: &ClusterStatus) {
        for Victim { server: before, harm, what, refused, .. } in std::mem::take(&mut self.victims) {
            let server = status.servers.iter().find(|s| s.id == before.id).expect("it is there");
            let vitals = server.vitals.clone().expect("it was heard");
            let met = vitals.damage.corrupt + vitals.damage.lost + vitals.repaired_blocks > 0;
            let outcome = match (refused, server.store != before.store, met) {
                (true, ..) => "refused",
                (_, true, _) => "back as a new store",
                (.., true) => "damage found",
                _ if PARTIAL.contains(&harm) => "harmless",
                _ => {
                    let log = self.cluster.log(Who::Server(before.id.0));
                    panic!("server {}: {harm} {what} was not noticed:\n{}", before.id.0, tail(&log, 20));
                }
            };
            println!("      server {}: {harm}, {outcome}", before.id.0);
            self.count(harm, outcome);
        }
    }

    /// Lets a metadata server that stopped join again with an empty directory.
    fn attend_to_metas(&mut self) {
        for id in self.cluster.metas.clone() {
            let who = Who::Meta(id);
            if self.cluster.pid(who).is_some() {
                continue;
            }
            let log = self.cluster.log(who);
            let error = refusal(&log).unwrap_or_default();
            let known = REFUSALS.iter().any(|known| error.contains(known));
            assert!(known, "metadata server {id} stopped: {}", tail(&log, 20));
            println!("      metadata server {id} refused: {error}");
            harm::remove(&self.cluster.data(who));
            self.cluster.join_again(id);
            self.cluster.launch(who);
            self.cluster.wait_status("all metadata servers vote", |s| {
                self.cluster.pid(who).is_some() && s.metadata.iter().all(|m| m.votes && !m.learns)
            });
        }
    }
}

/// Why a program exited by itself: its last line.
fn refusal(log: &str) -> Option<&str> {
    log.lines().rev().find(|line| line.starts_with("ebb: "))
}

impl Subject for Directories {
    const RUN: (&'static str, &'static str, u64) = ("directories", "EBB_AMNESIA_TRIES", 12);
    const LONGEST: &'static str = "longest time without service";
    const EVENTS: &'static [Event<Self>] = &[
        Event::new("emptied", 2, LEFT, |s| s.damage("emptied", Self::empty)),
        Event::new("all emptied", 1, LEFT, |s| s.damage("all emptied", Self::empty_all)),
        Event::new("older copy", 8, |s| s.copy(true), |s| s.damage("older copy", Self::go_back)),
        Event::new("copied", 8, |s| s.copy(false), |s| s.damage("bytes changed", Self::copy_and_flip)),
        Event::new("files gone", 3, LEFT, |s| s.damage("files gone", Self::remove_files)),
        Event::new("file cut", 3, LEFT, |s| s.damage("file cut", Self::cut_file)),
        Event::new("bytes changed", 3, LEFT, |s| s.damage("bytes changed", Self::flip_bytes)),
        Event::new("exchanged", 3, Self::may_exchange, Self::exchange),
        Event::new("log of another", 2, META, |s| s.harm_meta("log of another", Self::take_log)),
        Event::new("log changed", 1, META, |s| s.harm_meta("log damaged", Self::flip_bytes)),
        Event::new("log cut", 1, META, |s| s.harm_meta("log damaged", Self::cut_file)),
        Event::new("older log", 4, |s| s.meta_copy(true), |s| s.harm_meta("older log", Self::go_back)),
        Event::new("log gone", 4, |s| s.meta_copy(false), |s| s.harm_meta("log gone", Self::copy_and_empty)),
    ];

    fn start(seed: u64, _count: u64, random: Random) -> Directories {
        // Leases as used in production. With shorter ones, on a busy machine, unharmed servers count as failed beside
        // the harmed ones: then a harmed server may hold the only complete copy.
        let mut cluster = Cluster::start(&Shape { metas: 3, lease: None, ..Shape::lively() });
        cluster.gear(&["set", "3/3"]);
        cluster.launch(Who::Gateway);
        let pause = Duration::from_millis(10);
        let options = Options { workers: 8, chunks: 61, pause, seed, ..Options::default() };
        Directories {
            load: Load::start(cluster.client_config(), options),
            objects: Objects::start(&cluster.gateway, seed, None),
            cluster,
            random,
            copies: Copies::default(),
            outcomes: BTreeMap::new(),
            rounds: 0,
            stopped: Vec::new(),
            left: Vec::new(),
            down: false,
            victims: Vec::new(),
            meta: None,
        }
    }

    fn look(&mut self) {
        while self.stopped.is_empty() {
            self.begin_round();
            if self.stopped.is_empty() {
                self.settle();
            }
        }
    }

    /// Within a round.
    fn overlaps(&self, _random: &mut Random) -> bool {
        !self.left.is_empty() || self.meta.is_some()
    }

    fn settle(&mut self) {
        self.end_harm();
        self.attend();
        self.attend_to_metas();
        let status = self.scrub();
        self.settle_accounts(&status);
        (self.meta, self.stopped) = (None, Vec::new());
        if self.rounds.is_multiple_of(4) {
            self.compare();
        }
    }

    fn wrong(&self) -> Vec<String> {
        [self.load.mismatches(), self.objects.wrong()].concat()
    }

    fn longest_after(&self, since: Instant) -> Duration {
        self.load.longest_after(since)
    }

    fn verdict(self) {
        self.cluster.heal();
        let objects = self.objects.stop();
        let report = self.load.stop();
        println!("{report}\n{} puts, {} gets, {} refused", objects.puts, objects.gets, objects.refused);
        self.outcomes.iter().for_each(|((harm, outcome), count)| println!("{count:>4} x {harm}: {outcome}"));
        report.assert_sound();
        report.failures.iter().take(8).for_each(|failure| println!("failed: {failure}"));
        assert!(objects.wrong.is_empty(), "{:#?}", objects.wrong);
        assert!(objects.puts > 0 && objects.gets > 0, "no objects were put or got");
        // The janitor may still be freeing chunks: one server may be asked before a delete, and another after it.
        let verdict =
            wait("all replicas are identical", PATIENCE, || self.cluster.try_verify(&["--read"]).ok());
        println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
    }
}

#[test]
fn what_comes_back_with_less_than_it_had_is_noticed_and_repaired() {
    disturb::<Directories>();
}
