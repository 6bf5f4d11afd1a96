//! Overload is not failure (R12): the cluster's behaviour when it gets more requests than its disks can serve.

use crate::engine::SECOND;
use crate::request::feed::Feed;
use crate::request::harness::World;
use crate::request::later::Later;
use crate::request::run::plan;
use crate::request::setup::Setup;
use ebb_trace::Trace;
use ebb_trace::{Kind, Request};
use ebb_types::ServerState;
use std::time::Duration;

const START: u64 = 30 * SECOND;
const SPAN: u64 = 20;
/// From then on the queues no longer grow.
const SETTLED: u64 = 5;
const LEN: u32 = 256 << 10;

/// Writes at this rate, spread over all data.
fn writes(per_second: f64) -> Trace {
    let count = (per_second * SPAN as f64) as u64;
    let request = |n: u64| Request {
        at: Duration::from_secs_f64(n as f64 / per_second),
        device: (n % 4) as u32,
        offset: n * 7919 % 100_000 * u64::from(LEN),
        len: LEN,
        kind: Kind::Write,
    };
    let devices = (0..4).map(|n| format!("volume-{n}")).collect();
    Trace { requests: (0..count).map(request).collect(), devices, ..Trace::default() }
}

/// Requests answered per second at this arrival rate. Checks that no server is declared failed meanwhile.
fn goodput(per_second: f64) -> f64 {
    let trace = writes(per_second);
    let setup = Setup { servers: 3, client_hosts: 3, ..Setup::default() };
    let (schedule, _) = plan(&trace, &setup).expect("a trace that can be replayed");
    let layout = setup.layout().expect("a cluster that can be");
    let feed = Feed { requests: &trace.requests, next: 0, start: START, speed: 1.0 };
    let models = setup.models(&layout, feed).expect("models that can be");
    let mut world = World::modelled(setup.settings(&layout, schedule), models);
    let run_to = |world: &mut World, at| world.run_to(at).expect("nothing impossible happens");
    run_to(&mut world, START);
    let newest = |world: &World| world.newest_state().groups().map(|(_, e)| e.epoch).max();
    let epoch = newest(&world);
    world.its_after(0, Later::Arrivals);
    run_to(&mut world, START + SETTLED * SECOND);
    let before = world.models().clients.answered.len();
    run_to(&mut world, START + SPAN * SECOND);
    let answered = world.models().clients.answered.iter().skip(before);
    let good = answered.filter(|done| !done.failed).count();
    assert_eq!(world.tally().get("suspicion"), None, "at {per_second} writes/s");
    assert!(world.newest_state().servers().all(|s| s.state == ServerState::Awake));
    assert_eq!(newest(&world), epoch, "no configuration changed");
    good as f64 / (SPAN - SETTLED) as f64
}

#[test]
fn at_one_two_and_ten_times_capacity_goodput_stays_and_no_server_is_suspected() {
    let capacity = goodput(1000.0);
    let figures: Vec<f64> = [1.0, 2.0, 10.0].iter().map(|times| goodput(capacity * times)).collect();
    println!("{capacity:.0} writes/s of {LEN} bytes at most; at 1, 2 and 10 times that {figures:.0?}");
    let peak = figures.iter().copied().fold(capacity, f64::max);
    assert!(figures.iter().all(|good| *good >= 0.9 * peak), "{figures:?} of {peak}");
}
