//! Servers come back with less data than they had (R11): no wrong data is ever read, and the loss is detected and
//! repaired.
//!
//! In each round some servers are stopped or killed under verified load, and then their directories are damaged:
//! emptied, replaced by an older copy, some files removed, a file truncated, bytes changed, two directories exchanged.
//! The servers are started again. One that refuses to start gets what its message asks for: an empty directory. Then
//! every replica must be in sync, every copy is scrubbed, no copies differ, and `ebb status` reports the damage. A
//! metadata server loses its log, or gets an older log, a damaged one or another server's, while the others form a
//! majority.
//!
//! Never more copies than the redundancy covers: all servers of at most two gear groups while everything is in sync, as
//! each group has one copy in each; otherwise two servers. `EBB_AMNESIA_TRIES=1000` is the long form, `make test` runs
//! a short one.
//! one copy in each; else two servers. `EBB_AMNESIA_TRIES=1000` is the long form, `make test` has a short one.

use crate::harness::load::{Load, Options};
use crate::harness::objects::Objects;
use crate::harness::{Cluster, PATIENCE, Shape, Who, harm, number, tail, wait};
use ebb_types::{ClusterStatus, Incarnation, Random, ServerState, ServerStatus, StoreId};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TRIES: u64 = 12;
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

/// Left over from the previous process: some of its threads end after the one that carries its name.
const TOO_EARLY: [&str; 2] = ["another process uses the directory", "Address already in use"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    Emptied,
    OlderCopy,
    FilesGone,
    FileCut,
    BytesChanged,
    Exchanged,
    MetadataEmptied,
    MetadataOlder,
    MetadataOfAnother,
    MetadataDamaged,
}

/// Counts for one kind of harm.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    tries: u32,
    /// The program refused to start.
    refused: u32,
    /// It came back as a new store.
    renamed: u32,
    /// Damaged blocks were found.
    met: u32,
    /// No data of the cluster was touched: no copies differ, and every block passes its checksum.
    harmless: u32,
}

/// A harmed server.
struct Victim {
    id: u16,
    harm: Harm,
    what: String,
    store: StoreId,
    /// The previous run.
    run: Incarnation,
    /// Length of its log before.
    logged: usize,
    refused: bool,
}

struct Amnesia {
    cluster: Cluster,
    random: Random,
    load: Load,
    objects: Objects,
    /// Servers and metadata servers whose directory has an older copy.
    copies: Vec<Who>,
    accounts: BTreeMap<Harm, Account>,
}

#[test]
fn what_comes_back_with_less_than_it_had_is_noticed_and_repaired() {
    let (seed, tries) = (number("EBB_SEED", 1), number("EBB_AMNESIA_TRIES", TRIES));
    println!(
        "repeat with: EBB_SEED={seed} EBB_AMNESIA_TRIES={tries} cargo test -p ebb --test all what_comes_back -- --nocapture"
    );
    // Leases as used in production. With shorter ones, on a busy machine, unharmed servers count as failed beside the
    // harmed ones: then a harmed server may hold the only complete copy.
    let mut cluster = Cluster::start(&Shape { metas: 3, lease: None, ..Shape::lively() });
    cluster.gear(&["set", "3/3"]);
    cluster.launch(Who::Gateway);
    let options =
        Options { workers: 8, chunks: 61, pause: Duration::from_millis(10), seed, ..Options::default() };
    let load = Load::start(cluster.client_config(), options);
    let objects = Objects::start(&cluster.gateway, seed, None);
    let (random, accounts) = (Random::new(seed), BTreeMap::new());
    let mut amnesia = Amnesia { cluster, random, load, objects, copies: Vec::new(), accounts };
    let (begin, mut done, mut round) = (Instant::now(), 0, 0);
    while done < tries {
        round += 1;
        done += amnesia.round(round, tries - done);
        println!("{done:>5} tries after {:.1?}", begin.elapsed());
    }
    let Amnesia { cluster, load, objects, accounts, .. } = amnesia;
    cluster.heal();
    let objects = objects.stop();
    let report = load.stop();
    println!("{report}\n{} puts, {} gets, {} refused", objects.puts, objects.gets, objects.refused);
    for (harm, account) in &accounts {
        println!("{harm:?}: {account:?}");
    }
    report.assert_sound();
    report.failures.iter().take(8).for_each(|failure| println!("failed: {failure}"));
    assert!(objects.wrong.is_empty(), "{:#?}", objects.wrong);
    assert!(objects.puts > 0 && objects.gets > 0, "no objects were put or got");
    // The janitor may still be freeing chunks: one server may be asked before a delete, and another after it.
    let verdict = wait("all replicas are identical", PATIENCE, || cluster.try_verify(&["--read"]).ok());
    println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
}

impl Amnesia {
    /// Harms at most `most` servers. Returns how many.
    fn round(&mut self, round: u64, most: u64) -> u64 {
        let since = Instant::now();
        let gear = if self.random.below(5) == 0 { 1 + self.random.below(2) as u8 } else { 3 };
        if gear < 3 {
            self.cluster.shift(gear);
            self.load.go_on_for(100);
        }
        let chosen = self.choose(gear, most as usize);
        let mut victims = self.stop_and_harm(&chosen);
        for victim in &victims {
            println!("      server {} {:?} {}", victim.id, victim.harm, victim.what);
        }
        // Sleeping servers are started by the metadata service when it wakes them.
        let asleep = |id: u16| chosen.iter().any(|s| s.id.0 == id && s.state == ServerState::Asleep);
        for victim in victims.iter().filter(|v| !asleep(v.id)) {
            self.keep_down(victim.id);
            self.cluster.launch(Who::Server(victim.id));
        }
        self.cluster.gear(&["set", "3/3"]);
        let harmed = since.elapsed();
        let meta = self.random.below(3) == 0 && victims.len() < most as usize;
        if meta {
            self.harm_metadata();
        }
        self.attend(&mut victims);
        self.attend_to_metas();
        let healed = since.elapsed();
        let status = self.scrub();
        let scrubbed = since.elapsed();
        self.settle_accounts(&victims, &status);
        assert_eq!(self.load.mismatches(), 0, "round {round}");
        assert!(self.objects.wrong().is_empty(), "round {round}: {:#?}", self.objects.wrong());
        if round.is_multiple_of(4) {
            self.compare();
        }
        println!(
            "round {round}: harmed after {harmed:.1?}, all in sync after {healed:.1?}, all right after {scrubbed:.1?}, {:.1?} in all",
            since.elapsed()
        );
        victims.len() as u64 + u64::from(meta)
    }

    /// Chooses the servers to harm. In the top gear, with everything in sync, all servers of two gear groups may be
    /// among them.
    fn choose(&mut self, gear: u8, most: usize) -> Vec<ServerStatus> {
        let status = self.cluster.status();
        let runs = |s: &&ServerStatus| self.cluster.pid(Who::Server(s.id.0)).is_some();
        let mut servers: Vec<ServerStatus> = status.servers.iter().filter(runs).cloned().collect();
        let most = if gear < 3 {
            // Either sleeping servers or awake ones: harming awake ones would wake the sleeping ones meanwhile.
            let state = *self.random.pick(&[ServerState::Asleep, ServerState::Awake]).expect("two");
            servers.retain(|s| s.state == state);
            most.min(2)
        } else {
            let spared = self.random.below(3) as u8;
            servers.retain(|s| s.gear_group.0 != spared);
            most
        };
        let sizes = [0; 2].map(|_| 1 + self.random.below(servers.len().max(1) as u64) as usize);
        let count = sizes[0].max(sizes[1]).min(most);
        let mut chosen = Vec::new();
        while chosen.len() < count && !servers.is_empty() {
            chosen.push(servers.swap_remove(self.random.below(servers.len() as u64) as usize));
        }
        chosen
    }

    fn store(&self, id: u16) -> PathBuf {
        self.cluster.data(Who::Server(id)).join("store")
    }

    fn copy(&self, who: Who) -> PathBuf {
        self.cluster.directory().join("copies").join(format!("{who:?}"))
    }

    /// Returns the servers to start again.
    fn stop_and_harm(&mut self, chosen: &[ServerStatus]) -> Vec<Victim> {
        for server in chosen {
            let who = Who::Server(server.id.0);
            if server.state == ServerState::Awake && self.random.below(2) == 0 {
                self.cluster.terminate(who);
            } else {
                self.cluster.kill(who);
            }
        }
        if self.random.below(4) == 0 && chosen.iter().all(|s| s.state == ServerState::Awake) {
            self.cluster.wait_status("the crash is noticed", |s| {
                let failed = |id| s.servers.iter().any(|v| v.id == id && v.state == ServerState::Failed);
                chosen.iter().all(|s| failed(s.id) || self.cluster.pid(Who::Server(s.id.0)).is_some())
            });
            chosen.iter().for_each(|s| self.keep_down(s.id.0));
        }
        let mut victims: Vec<Victim> = Vec::new();
        let mut left: Vec<&ServerStatus> = chosen.iter().collect();
        while let Some(server) = left.pop() {
            let id = server.id.0;
            let (harm, what) = match self.random.below(7) {
                6 if !left.is_empty() && server.state == ServerState::Awake => {
                    let other = left.pop().expect("it is not empty");
                    harm::exchange(&self.store(id), &self.store(other.id.0));
                    victims.push(self.victim(other, Harm::Exchanged, format!("with server {id}")));
                    (Harm::Exchanged, format!("with server {}", other.id.0))
                }
                n => self.harm_one(id, n),
            };
            victims.push(self.victim(server, harm, what));
        }
        victims
    }

    /// A new metadata leader starts servers that do not run.
    fn keep_down(&self, id: u16) {
        while self.cluster.pid(Who::Server(id)).is_some() {
            self.cluster.kill(Who::Server(id));
        }
    }

    fn victim(&self, server: &ServerStatus, harm: Harm, what: String) -> Victim {
        let (id, store, run) = (server.id.0, server.store, server.incarnation);
        let logged = self.cluster.log(Who::Server(id)).len();
        Victim { id, harm, what, store, run, logged, refused: false }
    }

    fn harm_one(&mut self, id: u16, kind: u64) -> (Harm, String) {
        let (who, store) = (Who::Server(id), self.store(id));
        let copy = self.copy(who);
        match kind {
            0 => {
                // One in three also loses the files beside the store.
                let all = self.random.below(3) == 0;
                harm::remove(if all { store.parent().expect("it has one") } else { &store });
                (Harm::Emptied, if all { "with all beside it".into() } else { String::new() })
            }
            1 | 5 | 6 if self.copies.contains(&who) => {
                self.copies.retain(|other| *other != who);
                harm::put_in_place(&store, Some(&copy));
                harm::remove(&copy);
                (Harm::OlderCopy, String::new())
            }
            1 | 5 | 6 => {
                // A backup for a later round; this time bytes change.
                harm::copy_tree(&store, &copy);
                self.copies.push(who);
                (Harm::BytesChanged, self.flip_bytes(&store))
            }
            2 => (Harm::FilesGone, harm::remove_files(&store, &mut self.random)),
            3 => (Harm::FileCut, harm::cut_file(&store, &mut self.random)),
            _ => (Harm::BytesChanged, self.flip_bytes(&store)),
        }
    }

    /// Two times out of three in chunk files only: a store with a changed record or superblock refuses to start.
    fn flip_bytes(&mut self, store: &Path) -> String {
        let chunks = store.join("chunks");
        let any = self.random.below(3) == 0 || !harm::has_files(&chunks);
        harm::flip_bytes(if any { store } else { &chunks }, &mut self.random)
    }

    /// Waits until all servers are awake and all replicas in sync. A server that refuses to start gets an empty
    /// directory, or its own.
    fn attend(&mut self, victims: &mut [Victim]) {
        let since = Instant::now();
        loop {
            let what = "all servers are awake and all replicas in sync";
            assert!(
                since.elapsed() < PATIENCE,
                "{what}: not within {PATIENCE:?}; {}",
                self.cluster.trouble()
            );
            for victim in victims.iter_mut() {
                self.attend_to(victim);
            }
            let Ok(status) = self.cluster.try_status() else { continue };
            let awake = |s: &ServerStatus| s.state == ServerState::Awake;
            let runs = |s: &ServerStatus| self.cluster.pid(Who::Server(s.id.0)).is_some();
            // Until the lease of the previous run is over, the status shows that run.
            let ran = |s: &ServerStatus| victims.iter().any(|v| v.id == s.id.0 && v.run == s.incarnation);
            let all = status.servers.iter().all(|s| awake(s) && runs(s) && !ran(s));
            if all && status.groups.in_sync == status.groups.total && status.debt_bytes == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(80));
        }
    }

    fn attend_to(&mut self, victim: &mut Victim) {
        let who = Who::Server(victim.id);
        let log = self.cluster.log(who);
        let Some(error) = refusal(&log[victim.logged.min(log.len())..]) else { return };
        if self.cluster.pid(who).is_some() {
            return;
        }
        if TOO_EARLY.iter().any(|known| error.contains(known)) {
            victim.logged = log.len();
            return self.cluster.launch(who);
        }
        assert!(
            REFUSALS.iter().any(|known| error.contains(known)),
            "server {} ended otherwise than by refusing what it found: {error}",
            victim.id
        );
        println!("      server {} refused: {error}", victim.id);
        victim.refused = true;
        victim.logged = log.len();
        harm::remove(&self.store(victim.id));
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
        let differing: u64 =
            status.servers.iter().filter_map(|s| s.vitals.as_ref()).map(|v| v.scrub.differing_blocks).sum();
        assert_eq!(differing, 0, "copies differed");
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

    fn settle_accounts(&mut self, victims: &[Victim], status: &ClusterStatus) {
        for victim in victims {
            let server = status.servers.iter().find(|s| s.id.0 == victim.id).expect("it is there");
            let vitals = server.vitals.clone().expect("it was heard");
            let account = self.accounts.entry(victim.harm).or_default();
            account.tries += 1;
            if victim.refused {
                account.refused += 1;
            } else if server.store != victim.store {
                account.renamed += 1;
            } else if vitals.damage.corrupt + vitals.damage.lost + vitals.repaired_blocks > 0 {
                account.met += 1;
            } else {
                let partial = [Harm::FilesGone, Harm::FileCut, Harm::BytesChanged].contains(&victim.harm);
                let log = self.cluster.log(Who::Server(victim.id));
                assert!(
                    partial,
                    "server {}: {:?} {} was not noticed:\n{}",
                    victim.id,
                    victim.harm,
                    victim.what,
                    tail(&log, 20)
                );
                println!("      server {} lost nothing by it: {:?} {}", victim.id, victim.harm, victim.what);
                account.harmless += 1;
            }
        }
    }

    /// Harms the log of a metadata server. If it notices, it stops, and joins again with an empty directory.
    fn harm_metadata(&mut self) {
        let id = *self.random.pick(&self.cluster.metas).expect("there are some");
        let who = Who::Meta(id);
        let (data, copy) = (self.cluster.data(who), self.copy(who));
        self.cluster.kill(who);
        let (harm, what) = match self.random.below(4) {
            0 => {
                harm::put_in_place(&data, Some(&self.cluster.data(Who::Meta(1 + id % 3))));
                (Harm::MetadataOfAnother, String::new())
            }
            1 if self.random.below(2) == 0 => {
                (Harm::MetadataDamaged, harm::flip_bytes(&data, &mut self.random))
            }
            1 => (Harm::MetadataDamaged, harm::cut_file(&data, &mut self.random)),
            _ if self.copies.contains(&who) => {
                self.copies.retain(|other| *other != who);
                harm::put_in_place(&data, Some(&copy));
                harm::remove(&copy);
                (Harm::MetadataOlder, String::new())
            }
            _ => {
                harm::copy_tree(&data, &copy);
                self.copies.push(who);
                harm::remove(&data);
                (Harm::MetadataEmptied, String::new())
            }
        };
        println!("      metadata server {id} {harm:?} {what}");
        let logged = self.cluster.log(who).len();
        let address = self.cluster.client_config().meta[id as usize - 1].clone();
        self.cluster.launch(who);
        let refused = wait("the metadata server stops, or has read its log", PATIENCE, || {
            let log = self.cluster.log(who);
            let error = refusal(&log[logged..]);
            // Bytes outside whole frames, or no longer read, may change unnoticed.
            let listens = || harm == Harm::MetadataDamaged && TcpStream::connect(&address).is_ok();
            error.map(|_| true).or_else(|| listens().then_some(false))
        });
        let account = self.accounts.entry(harm).or_default();
        account.tries += 1;
        account.refused += u32::from(refused);
        account.harmless += u32::from(!refused);
        self.attend_to_metas();
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
