//! A served mirror is killed again and again while its disks change their speed and replay their logs.
//!
//! Several connections write and read blocks of their own, in bursts with pauses between, so that the emulated disks
//! become slow and fast again. A read returns the last acknowledged write, or after a kill one that was not answered;
//! once it was read, it stays. At the end both copies are the same.

use super::{Event, Subject, disturb};
use crate::mirror::{Bench, Load, Nbd, Served, lively, scrub};
use ebb_types::Random;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 3;
/// Of each client.
const BLOCKS: usize = 64;
/// Blocks between two clients' own: they share no region of the write-intent map, but the log.
const APART: u64 = 1024;
/// The kill comes, whatever the disks do.
const LATEST: Duration = Duration::from_millis(1500);

/// What a disk does: a value of its status.
type Doing = (&'static str, &'static str);
const CHANGING: Doing = ("state", "changing");
const LOGGING: Doing = ("mode", "log");
const REPLAYING: Doing = ("mode", "replay");

struct Mirror {
    bench: Bench,
    model: &'static str,
    random: Random,
    loads: Vec<Load>,
    /// What disks did at the kills.
    counts: BTreeMap<&'static str, u32>,
    changes: u64,
}

fn is_doing(status: &serde_json::Value, (key, value): Doing) -> bool {
    status["disks"].as_array().is_some_and(|disks| disks.iter().any(|disk| disk[key] == value))
}

/// Bursts and pauses, until the server is gone.
fn run(load: &mut Load, mut client: Nbd) -> std::io::Error {
    if let Err(error) = load.read_all(&mut client) {
        return error;
    }
    loop {
        let burst = Duration::from_millis(load.random.below(400));
        let begin = Instant::now();
        while begin.elapsed() < burst {
            let outcome = match load.random.chance(300) {
                true => load.read_one(&mut client),
                false => load.write(&mut client),
            };
            if let Err(error) = outcome {
                return error;
            }
        }
        std::thread::sleep(Duration::from_millis(load.random.below(400)));
    }
}

/// Kills the server after a pause, if possible while the disks do the given thing. Returns its last status.
fn kill(served: &mut Served, bench: &Bench, wanted: Option<Doing>, pause: Duration) -> serde_json::Value {
    let begin = Instant::now();
    std::thread::sleep(pause);
    let last = loop {
        let found = bench.ask_status().expect("it answers");
        if wanted.is_none_or(|doing| is_doing(&found, doing)) || begin.elapsed() > LATEST {
            break found;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // A change takes 200 ms, a replay less.
    std::thread::sleep(Duration::from_micros(pause.as_micros() as u64 % 20_000));
    served.process.kill().expect("it runs");
    served.process.wait().expect("it ends");
    last
}

impl Mirror {
    fn serve_and_kill(&mut self, wanted: Option<Doing>) -> String {
        let Mirror { bench, model, random, loads, .. } = self;
        let mut served = bench.serve(&["--driver", "emulated", "--disk-model", *model]);
        let pause = Duration::from_micros(random.below(700_000));
        let clients: Vec<Nbd> = loads.iter().map(|_| served.client()).collect();
        let last = std::thread::scope(|scope| {
            let pairs = loads.iter_mut().zip(clients);
            let running: Vec<_> =
                pairs.map(|(load, client)| scope.spawn(move || run(load, client))).collect();
            let last = kill(&mut served, bench, wanted, pause);
            for thread in running {
                let error = thread.join().expect("a client found what it should not");
                let gone = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(gone.contains(&error.kind()), "{error}");
            }
            last
        });
        let doing: Vec<&str> =
            [CHANGING, LOGGING, REPLAYING].into_iter().filter(|d| is_doing(&last, *d)).map(|d| d.1).collect();
        for what in &doing {
            *self.counts.entry(*what).or_default() += 1;
        }
        let disks = last["disks"].as_array().expect("two disks").iter();
        self.changes += disks.map(|disk| disk["speed_changes"].as_u64().expect("a number")).sum::<u64>();
        format!("killed while disks were {doing:?}")
    }
}

impl Subject for Mirror {
    const RUN: (&'static str, &'static str, u64) = ("mirror", "EBB_MIRROR_KILLS", 12);
    const EVENTS: &'static [Event<Self>] = &[
        Event::new("kill", 1, |_| true, |s| s.serve_and_kill(None)),
        Event::new("kill in a change of speed", 1, |_| true, |s| s.serve_and_kill(Some(CHANGING))),
        Event::new("kill in log mode", 1, |_| true, |s| s.serve_and_kill(Some(LOGGING))),
        Event::new("kill in a replay", 1, |_| true, |s| s.serve_and_kill(Some(REPLAYING))),
    ];

    fn start(seed: u64, _count: u64, random: Random) -> Mirror {
        let bench = Bench::with_mirror(24);
        let model = lively(&bench);
        let loads = (0..CLIENTS).map(|n| Load::new(seed + n, n * APART, BLOCKS)).collect();
        Mirror { bench, model, random, loads, counts: BTreeMap::new(), changes: 0 }
    }

    fn verdict(mut self) {
        let served = self.bench.serve(&[]);
        self.loads.iter_mut().for_each(|load| load.verify(&mut served.client()));
        self.bench.wait_status("both are the same", |status| status["condition"] == "in-sync");
        let (compared, differing) = scrub(&self.bench);
        assert!(compared > 0 && differing == 0, "{differing} of {compared} bytes differ");
        served.stop();
        let writes: u64 = self.loads.iter().map(|load| load.writes).sum();
        let Mirror { changes, counts, .. } = &self;
        println!("{writes} writes, {changes} changes of speed; killed while disks were {counts:?}");
        assert!(writes > 100 && *changes > 0, "{writes} writes, {changes} changes of speed");
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    disturb::<Mirror>();
}
