//! Random kill -9, pauses, restarts and gear shifts under verified load. `make chaos` runs 200 events, `make test` a few.
//!
//! Chunk servers are killed (awake or asleep), paused, started again and let go on; at most r - 1 of them are out of order at a
//! time. The metadata server is killed and restarted, or paused for a moment. Two of three events wait until the cluster
//! has dealt with them; the third is followed by the next at once, into the middle of whatever goes on. No request fails, and
//! nothing that was acknowledged is lost; how long operations took is printed, not judged: it is the machine's as much as ours. The seed is printed with the command that repeats the run.

use crate::harness::load::{Load, Options, Random};
use crate::harness::{Cluster, Shape, Who};
use ebb_types::{ClusterStatus, ServerState};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// r - 1.
const MOST_DOWN: usize = 2;
const EVENTS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Killed,
    Paused,
}

struct Chaos {
    cluster: Cluster,
    random: Random,
    harmed: Vec<(u16, Harm)>,
    /// Per kind of event: how many, and the longest that an operation took after one.
    outages: BTreeMap<&'static str, (u32, Duration)>,
}

impl Chaos {
    /// Does something; says what, for the account and for the log.
    fn act(&mut self) -> (&'static str, String) {
        match self.random.below(10) {
            0..=4 if self.harmed.len() < MOST_DOWN => self.harm(),
            5 | 6 => self.shift(),
            7 => self.harm_meta(),
            _ if self.harmed.is_empty() => self.harm(),
            _ => self.mend(),
        }
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
        let pause = state.is_live() && self.random.below(3) == 0;
        let harm = if pause { Harm::Paused } else { Harm::Killed };
        self.harmed.push((id, harm));
        match harm {
            Harm::Killed => self.cluster.kill(Who::Server(id)),
            Harm::Paused => self.cluster.pause(Who::Server(id)),
        }
        let kind = match (harm, state.is_live()) {
            (Harm::Paused, _) => "pause of a server",
            (Harm::Killed, true) => "kill of a server",
            (Harm::Killed, false) => "kill of a sleeping or failed server",
        };
        (kind, format!("server {id} ({state:?}) is {harm:?}"))
    }

    fn mend(&mut self) -> (&'static str, String) {
        let at = self.random.below(self.harmed.len() as u64) as usize;
        let (id, harm) = self.harmed.remove(at);
        match harm {
            Harm::Killed if self.cluster.pid(Who::Server(id)).is_none() => {
                self.cluster.launch(Who::Server(id))
            }
            // The metadata service wanted it awake, and started it.
            Harm::Killed => {}
            Harm::Paused => self.cluster.resume(Who::Server(id)),
        }
        ("return of a server", format!("server {id}, which was {harm:?}, goes on"))
    }

    fn shift(&mut self) -> (&'static str, String) {
        let gear = 1 + self.random.below(3);
        self.cluster.gear(&["set", &gear.to_string()]);
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

    /// Waits until the cluster knows who is out of order, serves every group with r copies, and has caught up.
    fn settle(&self) {
        let paused = |id: u16| self.harmed.contains(&(id, Harm::Paused));
        // The metadata service may start a dead sleeper meanwhile.
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
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, no number")))
}

#[test]
fn random_kills_pauses_restarts_and_shifts_lose_nothing() {
    let (seed, events) = (number("EBB_SEED", 1), number("EBB_CHAOS_EVENTS", EVENTS));
    println!(
        "repeat with: EBB_SEED={seed} EBB_CHAOS_EVENTS={events} cargo test -p ebb --test all chaos -- --nocapture"
    );
    let cluster = Cluster::start(&Shape::lively());
    let load = Load::start(cluster.client_config(), Options { seed, ..Options::default() });
    let random = Random::new(seed);
    let mut chaos = Chaos { cluster, random, harmed: Vec::new(), outages: BTreeMap::new() };
    let begin = Instant::now();
    for event in 1..=events {
        let since = Instant::now();
        let (kind, what) = chaos.act();
        let overlap = event < events && chaos.random.below(3) == 0;
        if !overlap {
            chaos.settle();
            load.go_on_for(200);
        }
        let longest = load.longest_after(since);
        let how = if overlap { "the next comes at once" } else { "all is served again" };
        println!("{event:>4} {:>6.1?} {what}: {how}, longest operation {longest:.2?}", begin.elapsed());
        let account = chaos.outages.entry(kind).or_default();
        *account = (account.0 + 1, account.1.max(longest));
        assert_eq!(load.mismatches(), 0, "event {event} ({what}): {:#?}", load.stop().mismatches);
    }
    while !chaos.harmed.is_empty() {
        chaos.mend();
    }
    println!("healed in {:.2?}", chaos.cluster.heal());
    let report = load.stop();
    println!("{report}");
    for (kind, (count, longest)) in &chaos.outages {
        println!("{count:>4} x {kind}: longest operation afterwards {longest:.2?}");
    }
    report.assert_flawless();
    print!("{}", report.longest_operations());
    let verdict = chaos.cluster.verify(&["--read"]);
    println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
}
