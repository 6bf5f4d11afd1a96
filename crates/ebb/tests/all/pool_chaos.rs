//! Erasure-coded pools of real processes: objects are put and read through the gateway while parity servers sleep and
//! wake, and servers are killed, suspended, lose their disks, and lose power together. What was acknowledged is read
//! back as it was put.
//!
//! `make chaos` runs 200 events, `make test` a few. The seed is printed with the command that repeats the run.

use crate::harness::harm::put_in_place;
use crate::harness::objects::Objects;
use crate::harness::{Cluster, Shape, Who, number};
use ebb_types::{ClusterStatus, Random, ServerState, SetStatus, SlotState};

const EVENTS: u64 = 8;
/// Code of the pool, and the failures that its awake servers survive.
const CODE: &str = "4+2";
const TOLERANCE: usize = 2;

fn pool(status: &ClusterStatus) -> &SetStatus {
    &status.pools[0].sets[0]
}

fn state(status: &ClusterStatus, id: u16) -> ServerState {
    status.servers.iter().find(|s| s.id.0 == id).expect("a server of the cluster").state
}

/// Whether every column is in sync, or away because its server sleeps.
fn is_settled(status: &ClusterStatus) -> bool {
    pool(status).entry.columns.iter().all(|column| match column.state {
        SlotState::InSync => state(status, column.server.0) == ServerState::Awake,
        SlotState::CatchingUp { .. } => false,
        SlotState::Away { .. } => state(status, column.server.0) == ServerState::Asleep,
    })
}

fn parity_sleeps(status: &ClusterStatus) -> bool {
    let parity = &pool(status).entry.columns[4..];
    parity.iter().all(|column| state(status, column.server.0) == ServerState::Asleep)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Killed,
    Paused,
    /// Killed, and its disk is empty when it returns.
    Emptied,
}

struct Chaos {
    cluster: Cluster,
    objects: Objects,
    random: Random,
    harmed: Vec<(u16, Harm)>,
    /// A server lost its disk, and the others have to be complete before the next loss.
    lacks: bool,
}

impl Chaos {
    fn act(&mut self) -> String {
        match self.random.below(10) {
            0..=4 if self.harmed.len() < TOLERANCE => self.harm(),
            5 if self.harmed.is_empty() => self.cut_power(),
            6 => self.wake_parity(),
            _ if !self.harmed.is_empty() => self.mend(),
            _ => self.harm(),
        }
    }

    fn coded(&self) -> Vec<u16> {
        self.cluster.servers[3..].to_vec()
    }

    fn harm(&mut self) -> String {
        let status = self.cluster.status();
        if self.lacks && is_settled(&status) && self.harmed.is_empty() {
            self.lacks = false;
        }
        let runs = |id: &u16| self.cluster.pid(Who::Server(*id)).is_some();
        let sound: Vec<u16> = self
            .coded()
            .into_iter()
            .filter(|id| runs(id) && self.harmed.iter().all(|(h, _)| h != id))
            .collect();
        let id = *self.random.pick(&sound).expect("some server runs");
        let may_lose = is_settled(&status) && !self.lacks && self.harmed.is_empty();
        let harm = match (state(&status, id), self.random.below(4)) {
            (ServerState::Awake, 0) if may_lose => Harm::Emptied,
            (ServerState::Awake, 1) => Harm::Paused,
            _ => Harm::Killed,
        };
        let who = Who::Server(id);
        match harm {
            Harm::Paused => self.cluster.pause(who),
            Harm::Killed => self.cluster.kill(who),
            Harm::Emptied => {
                self.cluster.kill(who);
                put_in_place(&self.cluster.data(who).join("store"), None);
                self.lacks = true;
            }
        }
        self.harmed.push((id, harm));
        format!("server {id} is {harm:?}")
    }

    fn mend(&mut self) -> String {
        let (id, harm) = self.harmed.remove(self.random.below(self.harmed.len() as u64) as usize);
        let who = Who::Server(id);
        match harm {
            Harm::Paused => self.cluster.resume(who),
            Harm::Killed | Harm::Emptied if self.cluster.pid(who).is_none() => self.cluster.launch(who),
            Harm::Killed | Harm::Emptied => {} // the metadata service woke it
        }
        format!("server {id}, which was {harm:?}, returns")
    }

    fn cut_power(&mut self) -> String {
        let runs = |chaos: &Chaos, id: u16| chaos.cluster.pid(Who::Server(id)).is_some();
        for id in self.coded() {
            if runs(self, id) {
                self.cluster.kill(Who::Server(id));
            }
        }
        for id in self.coded() {
            if !runs(self, id) {
                self.cluster.launch(Who::Server(id));
            }
        }
        "all servers of the pool lose power".into()
    }

    fn wake_parity(&mut self) -> String {
        if self.random.chance(500) {
            self.cluster.gear(&["set", "3/3"]);
            return "an administrator wants all awake".into();
        }
        self.cluster.gear(&["auto"]);
        "parity is free to sleep".into()
    }

    fn heal(&mut self) {
        while !self.harmed.is_empty() {
            self.mend();
        }
        self.cluster.gear(&["auto"]);
        self.cluster.wait_status("every column is complete", is_settled);
    }
}

/// With a gateway, and buffers that the load can fill.
fn cluster(parity_debt: &str) -> Cluster {
    let mut cluster = Cluster::create(&Shape { code: Some(CODE), ..Shape::lively() });
    cluster.edit(|table| {
        let pool = table["pool"].as_array_mut().expect("pools")[0].as_table_mut().expect("a table");
        pool.insert("parity_buffer_mib".into(), 8.into());
        pool.insert("parity_debt".into(), parity_debt.into());
    });
    cluster.start_all();
    cluster.launch(Who::Gateway);
    cluster
}

fn start(seed: u64) -> Chaos {
    start_with(seed, "segment")
}

fn start_with(seed: u64, parity_debt: &str) -> Chaos {
    let cluster = cluster(parity_debt);
    let objects = Objects::start(&cluster.gateway, seed, Some("cold"));
    Chaos { cluster, objects, random: Random::new(seed), harmed: Vec::new(), lacks: false }
}

#[test]
fn parity_sleeps_and_what_was_put_meanwhile_reaches_it() {
    let mut chaos = start(1);
    chaos.cluster.wait_status("parity servers sleep", |s| parity_sleeps(s) && is_settled(s));
    chaos.objects.go_on_for(60);
    let owed = chaos.cluster.wait_status("the data servers keep parity", |s| pool(s).parity_debt_bytes > 0);
    assert!(parity_sleeps(&owed) || pool(&owed).fullest.is_some());
    // A data server and its disk are lost while parity sleeps.
    let victim = chaos.coded()[1];
    chaos.cluster.kill(Who::Server(victim));
    put_in_place(&chaos.cluster.data(Who::Server(victim)).join("store"), None);
    chaos.cluster.wait_status("the loss is noticed", |s| state(s, victim) == ServerState::Failed);
    chaos.objects.go_on_for(60);
    chaos.cluster.launch(Who::Server(victim));
    chaos
        .cluster
        .wait_status("everything is rebuilt", |s| state(s, victim) == ServerState::Awake && is_settled(s));
    chaos.cluster.gear(&["set", "3/3"]);
    chaos.cluster.wait_status("parity has everything", |s| {
        pool(s).entry.columns.iter().all(|c| c.state == SlotState::InSync) && pool(s).parity_debt_bytes == 0
    });
    let found = chaos.objects.stop();
    assert!(found.wrong.is_empty() && found.refused == 0, "{found:?}");
    assert!(found.puts > 30 && found.gets > 30, "{found:?}");
}

#[test]
fn parity_in_memory_is_computed_again_after_a_restart() {
    let mut chaos = start_with(1, "ram");
    chaos.cluster.wait_status("parity servers sleep", |s| parity_sleeps(s) && is_settled(s));
    chaos.objects.go_on_for(60);
    chaos.cluster.wait_status("the data servers keep parity in memory", |s| pool(s).memory_bytes > 0);
    let victim = chaos.coded()[1];
    chaos.cluster.kill(Who::Server(victim));
    chaos.cluster.wait_status("the crash is noticed", |s| state(s, victim) == ServerState::Failed);
    chaos.objects.go_on_for(30);
    chaos.cluster.launch(Who::Server(victim));
    chaos.cluster.wait_status("it has everything again", |s| {
        let back = s.servers.iter().find(|server| server.id.0 == victim);
        let idle = back.and_then(|server| server.vitals.as_ref()).is_some_and(|v| v.catching_up == 0);
        state(s, victim) == ServerState::Awake && is_settled(s) && idle
    });
    chaos.cluster.gear(&["set", "3/3"]);
    chaos.cluster.wait_status("parity has everything", |s| {
        pool(s).entry.columns.iter().all(|c| c.state == SlotState::InSync) && pool(s).parity_debt_bytes == 0
    });
    let found = chaos.objects.stop();
    assert!(found.wrong.is_empty() && found.refused == 0, "{found:?}");
    assert!(found.puts > 30 && found.gets > 30, "{found:?}");
}

#[test]
fn random_kills_pauses_and_power_cuts_of_a_pool_lose_nothing() {
    let events = number("EBB_POOL_EVENTS", EVENTS);
    let seed = number("EBB_SEED", 1);
    println!(
        "EBB_SEED={seed} EBB_POOL_EVENTS={events} cargo test -p ebb --test all -- --nocapture pool_chaos::random"
    );
    let mut chaos = start(seed);
    chaos.cluster.wait_status("parity servers sleep", |s| parity_sleeps(s) && is_settled(s));
    for event in 0..events {
        let what = chaos.act();
        println!("{event}: {what}");
        if chaos.random.chance(600) {
            chaos.objects.go_on_for(20);
        }
        assert_eq!(chaos.objects.wrong(), [] as [String; 0], "after event {event}");
    }
    chaos.heal();
    chaos.objects.go_on_for(20);
    let found = chaos.objects.stop();
    println!("{} puts, {} gets, {} refused", found.puts, found.gets, found.refused);
    assert!(found.wrong.is_empty(), "{found:?}");
    assert!(found.refused * 50 <= found.puts + found.gets, "{found:?}");
}

#[test]
fn a_location_that_no_pool_has_is_an_error_that_names_the_pools() {
    let cluster = cluster("segment");
    let (status, body) = Objects::create_bucket(&cluster.gateway, "elsewhere", Some("marble"));
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("InvalidLocationConstraint") && body.contains("cold"), "{body}");
}
