//! A served mirror is killed again and again under verified load, while its disks change their speed and replay their
//! logs. `make chaos` kills it 200 times, `make test` a few.
//!
//! Several connections write and read blocks of their own, in bursts with pauses between, so that the emulated disks
//! become slow and fast again. A read returns the last acknowledged write, or after a kill one that was not answered;
//! once it was read, it stays. At the end both copies are the same.

use crate::harness::number;
use crate::mirror::{Bench, Load, Nbd, Served, lively, scrub};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const KILLS: u64 = 12;
const CLIENTS: u64 = 3;
/// Of each client.
const BLOCKS: usize = 64;
/// Blocks between two clients' own: they share no region of the write-intent map, but the log.
const APART: u64 = 1024;
/// The kill comes, whatever the disks do.
const LATEST: Duration = Duration::from_millis(1500);

/// What the disks do when the server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    Anything,
    Changing,
    Logging,
    Replaying,
}

/// Asks on the socket, without a process: a change of speed is short.
pub fn status(bench: &Bench) -> Option<serde_json::Value> {
    let mut stream = UnixStream::connect(bench.path("registry/m.sock")).ok()?;
    stream.write_all(b"{\"command\":\"status\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    let answer: serde_json::Value = serde_json::from_str(&line).ok()?;
    Some(answer["status"].clone())
}

fn is_doing(status: &serde_json::Value, doing: Doing) -> bool {
    let any = |key: &str, value: &str| {
        status["disks"].as_array().is_some_and(|disks| disks.iter().any(|disk| disk[key] == value))
    };
    match doing {
        Doing::Anything => true,
        Doing::Changing => any("state", "changing"),
        Doing::Logging => any("mode", "log"),
        Doing::Replaying => any("mode", "replay"),
    }
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

/// Kills the server at a random moment, if possible while the disks do the given thing. Returns what they did.
fn kill(served: &mut Served, bench: &Bench, wanted: Doing, pause: Duration) -> (Vec<Doing>, u64) {
    let begin = Instant::now();
    std::thread::sleep(pause);
    let last = loop {
        let found = status(bench).expect("it answers");
        if is_doing(&found, wanted) || begin.elapsed() > LATEST {
            break found;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    // A change takes 200 ms, a replay less.
    std::thread::sleep(Duration::from_micros(pause.as_micros() as u64 % 20_000));
    served.process.kill().expect("it runs");
    served.process.wait().expect("it ends");
    let doing = [Doing::Changing, Doing::Logging, Doing::Replaying];
    let changes = last["disks"].as_array().expect("two disks").iter().map(|disk| &disk["speed_changes"]);
    (
        doing.into_iter().filter(|doing| is_doing(&last, *doing)).collect(),
        changes.map(|n| n.as_u64().expect("a number")).sum(),
    )
}

#[test]
fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    let kills = number("EBB_MIRROR_KILLS", KILLS);
    let bench = Bench::with_mirror(24);
    let model = lively(&bench);
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}, {kills} kills");
    let mut loads: Vec<Load> = (0..CLIENTS).map(|n| Load::new(seed + n, n * APART, BLOCKS)).collect();
    let mut random = ebb_types::Random::new(seed ^ 1);
    let (mut counts, mut changes) = (BTreeMap::new(), 0);
    for kill_number in 0..kills {
        let mut served = bench.serve(&["--driver", "emulated", "--disk-model", model]);
        let wanted = [Doing::Anything, Doing::Changing, Doing::Logging, Doing::Replaying];
        let wanted = wanted[(kill_number % 4) as usize];
        let pause = Duration::from_micros(random.below(700_000));
        let clients: Vec<Nbd> = loads.iter().map(|_| served.client()).collect();
        std::thread::scope(|scope| {
            let running: Vec<_> = loads
                .iter_mut()
                .zip(clients)
                .map(|(load, client)| scope.spawn(move || run(load, client)))
                .collect();
            let (doing, changed) = kill(&mut served, &bench, wanted, pause);
            doing.into_iter().for_each(|doing| *counts.entry(doing).or_insert(0) += 1);
            changes += changed;
            for thread in running {
                let error = thread.join().expect("a client found what it should not");
                let gone = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(gone.contains(&error.kind()), "{error}");
            }
        });
    }
    let served = bench.serve(&[]);
    loads.iter_mut().for_each(|load| load.verify(&mut served.client()));
    bench.wait_status("both are the same", |status| status["condition"] == "in-sync");
    let (compared, differing) = scrub(&bench);
    assert!(compared > 0 && differing == 0, "{differing} of {compared} bytes differ, seed {seed}");
    served.stop();
    let writes: u64 = loads.iter().map(|load| load.writes).sum();
    println!(
        "{kills} kills, {writes} writes, {changes} changes of speed; killed while disks were {counts:?}"
    );
    assert!(writes > 100 && changes > 0, "{writes} writes, {changes} changes of speed");
}
