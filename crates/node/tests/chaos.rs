//! Random kill -9, pauses, restarts and gear shifts under verified load. `make chaos` runs 200 events, `make test` a few.
//!
//! At most r - 1 chunk servers are disturbed at a time, and the metadata server only while no other event is open. After every
//! event all groups must be served again: no operation takes longer than a lease and two seconds. The seed is printed
//! with the command that repeats the run.

mod harness;

use ebb_types::ServerState;
use harness::load::{Load, Options, Random};
use harness::{Cluster, Shape, Who};
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_secs(2);
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
    gear: u8,
    /// Per kind of event: how many, and the longest operation around one.
    outages: std::collections::BTreeMap<&'static str, (u32, Duration)>,
}

impl Chaos {
    /// Does something; says what, for the log and for the account.
    fn act(&mut self) -> (&'static str, String) {
        match self.random.below(10) {
            0..=4 if self.harmed.len() < MOST_DOWN => self.harm(),
            5 | 6 => self.shift(),
            7 if self.harmed.is_empty() => self.harm_meta(),
            _ if self.harmed.is_empty() => self.harm(),
            _ => self.mend(),
        }
    }

    fn harm(&mut self) -> (&'static str, String) {
        let awake: Vec<u16> = self
            .cluster
            .status()
            .servers
            .iter()
            .filter(|s| s.state.is_live() && !self.harmed.iter().any(|(id, _)| *id == s.id.0))
            .map(|s| s.id.0)
            .collect();
        let id = *self.random.pick(&awake).expect("some server is awake");
        let harm = if self.random.below(3) == 0 { Harm::Paused } else { Harm::Killed };
        match harm {
            Harm::Killed => self.cluster.kill(Who::Server(id)),
            Harm::Paused => self.cluster.pause(Who::Server(id)),
        }
        self.harmed.push((id, harm));
        match harm {
            Harm::Killed => ("kill of a server", format!("kill -9 server {id}")),
            Harm::Paused => ("pause of a server", format!("pause server {id}")),
        }
    }

    fn mend(&mut self) -> (&'static str, String) {
        let at = self.random.below(self.harmed.len() as u64) as usize;
        let (id, harm) = self.harmed.remove(at);
        match harm {
            Harm::Killed if self.cluster.pid(Who::Server(id)).is_none() => self.cluster.launch(Who::Server(id)),
            // The metadata service wanted it awake and started it.
            Harm::Killed => {}
            Harm::Paused => self.cluster.resume(Who::Server(id)),
        }
        ("return of a server", format!("server {id}, which was {harm:?}, goes on"))
    }

    fn shift(&mut self) -> (&'static str, String) {
        self.gear = 1 + self.random.below(3) as u8;
        self.cluster.gear(&["set", &self.gear.to_string()]);
        ("gear shift", format!("gear {}", self.gear))
    }

    fn harm_meta(&mut self) -> (&'static str, String) {
        if self.random.below(2) == 0 {
            self.cluster.kill(Who::Meta(1));
            self.cluster.launch(Who::Meta(1));
            return ("restart of the metadata server", "kill -9 and restart the metadata server".into());
        }
        let pause = Duration::from_millis(100 + self.random.below(400));
        self.cluster.pause(Who::Meta(1));
        std::thread::sleep(pause);
        self.cluster.resume(Who::Meta(1));
        ("pause of the metadata server", format!("pause the metadata server for {pause:?}"))
    }

    /// Waits until the event has been noticed, every group is served, and nothing that was down before is at risk.
    fn settle(&self) {
        let down: Vec<u16> = self.harmed.iter().map(|(id, _)| *id).collect();
        self.cluster.wait_status("all groups are served, and in the way that the servers allow", |s| {
            let noticed = s.servers.iter().all(|v| {
                let harmed = down.contains(&v.id.0);
                harmed == (v.state == ServerState::Failed)
            });
            noticed
                && s.groups.without_primary == 0
                && s.groups.without_target == 0
                && s.groups.at_risk == 0
                && s.groups.catching_up == 0
        });
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, no number")))
}

#[test]
fn random_kills_pauses_restarts_and_shifts_lose_nothing() {
    let (seed, events) = (number("EBB_SEED", 1), number("EBB_CHAOS_EVENTS", EVENTS));
    println!("repeat with: EBB_SEED={seed} EBB_CHAOS_EVENTS={events} cargo test -p ebb --test chaos -- --nocapture");
    let cluster = Cluster::start(&Shape::lively());
    let load = Load::start(cluster.client_config(), Options { seed, ..Options::default() });
    let limit = cluster.lease + GRACE;
    let mut chaos =
        Chaos { cluster, random: Random::new(seed), harmed: Vec::new(), gear: 3, outages: Default::default() };
    let begin = Instant::now();
    for event in 1..=events {
        let since = Instant::now();
        let (kind, what) = chaos.act();
        load.go_on_for(200);
        chaos.settle();
        let longest = load.longest_since(since);
        println!("{event:>4} {:>6.1?} {what}: served, longest operation {longest:.0?}", begin.elapsed());
        let account = chaos.outages.entry(kind).or_default();
        *account = (account.0 + 1, account.1.max(longest));
        assert!(longest < limit, "event {event} ({what}): an operation took {longest:?}, limit {limit:?}");
        assert_eq!(load.mismatches(), 0, "event {event} ({what}): {:#?}", load.stop().mismatches);
    }
    while !chaos.harmed.is_empty() {
        chaos.mend();
    }
    println!("healed in {:.0?}", chaos.cluster.heal());
    let report = load.stop();
    println!("{report}");
    for (kind, (count, longest)) in &chaos.outages {
        println!("{count:>4} x {kind}: longest operation {longest:.0?}");
    }
    report.assert_flawless();
    let verdict = chaos.cluster.verify(&["--read"]);
    println!("{} groups, {} blocks: all replicas identical", verdict.groups_compared, verdict.blocks);
}
