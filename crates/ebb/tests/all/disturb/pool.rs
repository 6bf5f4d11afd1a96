//! An erasure-coded pool: objects are put and read through the gateway while parity servers sleep and wake, and servers
//! are killed, suspended, lose their disks, and lose power together. What was acknowledged is read back as it was put.

use super::harms::Harms;
use super::{Event, Subject, disturb};
use crate::harness::objects::Objects;
use crate::harness::{Cluster, Who};
use crate::pools::{coded, cold_cluster, is_settled, parity_sleeps, state_of};
use ebb_types::{ClusterStatus, Random, ServerState};

/// Failures that the awake servers survive.
const TOLERANCE: usize = 2;

struct Pool {
    cluster: Cluster,
    objects: Objects,
    random: Random,
    status: ClusterStatus,
    harms: Harms,
}

impl Pool {
    fn sound(&self, state: Option<ServerState>) -> Vec<u16> {
        let fits = |id: &u16| state.is_none_or(|state| state_of(&self.status, *id) == state);
        let sound = |id: &u16| self.harms.is_sound(&self.cluster, *id);
        coded(&self.cluster).into_iter().filter(fits).filter(sound).collect()
    }

    fn may(&self, state: Option<ServerState>) -> bool {
        self.harms.list.len() < TOLERANCE && !self.sound(state).is_empty()
    }

    fn may_empty(&self) -> bool {
        let complete = is_settled(&self.status) && self.harms.lacks.is_none() && self.harms.list.is_empty();
        complete && self.may(AWAKE)
    }

    fn harm(&mut self, state: Option<ServerState>, harm: fn(&mut Harms, &Cluster, u16)) -> String {
        let id = *self.random.pick(&self.sound(state)).expect("some server runs");
        harm(&mut self.harms, &self.cluster, id);
        format!("server {id} is {}", self.harms.list.last().expect("it is new").how)
    }

    fn mend(&mut self) -> String {
        let at = self.random.index(self.harms.list.len());
        self.harms.mend(&mut self.cluster, at)
    }

    fn cut_power(&mut self) -> String {
        let all: Vec<Who> = coded(&self.cluster).into_iter().map(Who::Server).collect();
        for who in all.iter().filter(|who| self.cluster.pid(**who).is_some()) {
            self.cluster.kill(*who);
        }
        all.into_iter().for_each(|who| self.cluster.launch_unless_it_runs(who));
        "all servers of the pool lose power".into()
    }

    fn gear(&mut self, args: &[&str]) -> String {
        self.cluster.gear(args);
        format!("gear {args:?}")
    }
}

const AWAKE: Option<ServerState> = Some(ServerState::Awake);

impl Subject for Pool {
    const RUN: (&'static str, &'static str, u64) = ("pool", "EBB_POOL_EVENTS", 8);
    const EVENTS: &'static [Event<Self>] = &[
        Event::new("kill", 5, |s| s.may(None), |s| s.harm(None, Harms::kill)),
        Event::new("pause", 2, |s| s.may(AWAKE), |s| s.harm(AWAKE, Harms::pause)),
        Event::new("lost disk", 2, Self::may_empty, |s| s.harm(AWAKE, Harms::empty)),
        Event::new("power cut", 1, |s| s.harms.list.is_empty(), Self::cut_power),
        Event::new("all awake", 1, |_| true, |s| s.gear(&["set", "3/3"])),
        Event::new("parity may sleep", 1, |_| true, |s| s.gear(&["auto"])),
        Event::new("return", 6, |s| !s.harms.list.is_empty(), Self::mend),
    ];

    fn start(seed: u64, _count: u64, random: Random) -> Pool {
        let cluster = cold_cluster("segment");
        let objects = Objects::start(&cluster.gateway, seed, Some("cold"));
        let status = cluster.wait_status("parity servers sleep", |s| parity_sleeps(s) && is_settled(s));
        Pool { cluster, objects, random, status, harms: Harms::new() }
    }

    /// A server lost its disk: the others have to be complete before the next loss.
    fn look(&mut self) {
        self.status = self.cluster.status();
        if is_settled(&self.status) && self.harms.list.is_empty() {
            self.harms.lacks = None;
        }
    }

    fn overlaps(&self, random: &mut Random) -> bool {
        random.chance(400)
    }

    fn settle(&mut self) {
        self.objects.go_on_for(20);
    }

    fn wrong(&self) -> Vec<String> {
        self.objects.wrong()
    }

    fn verdict(mut self) {
        while !self.harms.list.is_empty() {
            self.mend();
        }
        self.cluster.gear(&["auto"]);
        self.cluster.wait_status("every column is complete", is_settled);
        self.objects.go_on_for(20);
        let found = self.objects.stop();
        println!("{} puts, {} gets, {} refused", found.puts, found.gets, found.refused);
        assert!(found.wrong.is_empty(), "{found:?}");
        assert!(found.refused * 50 <= found.puts + found.gets, "{found:?}");
        print!("nothing is left over:\n{}", self.cluster.verify_space());
    }
}

#[test]
fn random_kills_pauses_and_power_cuts_of_a_pool_lose_nothing() {
    disturb::<Pool>();
}
