//! One seed from start to verdict.

use crate::above::planted::Planted;
use crate::above::rest;
use crate::above::scenario::{SECOND, Scenario};
use crate::above::world::World;
use crate::search::history::{Op, Outcome};
use crate::search::{Failure, Summary};
use crate::world::Violation;

/// Lines of the transcript that a failure shows.
const LINES: usize = 400;
/// After the faults clients continue for this long.
const AFTER: u64 = 20 * SECOND;
/// By then every request has ended that began before.
const REST: u64 = 600 * SECOND;
/// By then gateways have given back what they had leased, and the janitors have freed what is garbage.
const IDLE: u64 = 430 * SECOND;

/// So often a client asks again for what sleeps, or for what is so long that it gives up first.
const TRIES: usize = 20;
/// By then the namespace has forgotten a process that has ended, and its leases have ended too.
const FORGOTTEN: u64 = 150 * SECOND;

/// Runs a seed. A failure is run again with its transcript kept: the same seed repeats the same run.
pub fn run(seed: u64, planted: Planted) -> Result<Summary, Box<Failure>> {
    let mut world = World::new(Scenario::draw(seed), planted, 0);
    let Err(violation) = play(&mut world) else { return Ok(summary(&world)) };
    let mut world = World::new(Scenario::draw(seed), planted, LINES);
    let _ = play(&mut world);
    Err(Box::new(Failure { seed, violation, transcript: world.net.lines.into(), test: "above::one_seed" }))
}

fn play(world: &mut World) -> Result<(), Violation> {
    // Counted for the whole process: seeds that run at the same time fail together.
    let bugs = ebb_client::bugs();
    world.run_to(world.net.scenario.calm_at);
    world.calm_down();
    world.run_to(world.net.now + AFTER);
    world.clients.end();
    settle(world);
    world.run_to(world.net.now + IDLE);
    read_all(world);
    world.clients.judge(&mut world.net);
    if let Some(what) = rest::leak(&world.meta, &world.chunks) {
        world.net.break_rule("space", what);
    }
    let runs = world.runs(FORGOTTEN);
    if let Some(what) = rest::leftover(&mut world.meta, world.net.now, &runs) {
        world.net.break_rule("space", what);
    }
    if ebb_client::bugs() > bugs {
        world.net.break_rule("an assertion", "what cannot happen happened; standard error says what".into());
    }
    world.count_logs();
    world.net.violation.take().map_or(Ok(()), Err)
}

/// Waits until all clients have their answers.
fn settle(world: &mut World) {
    let deadline = world.net.now + REST;
    while world.net.violation.is_none() && !world.clients.is_idle() {
        if world.net.now >= deadline {
            return world.net.break_rule("liveness", "a client waits although all faults have ended".into());
        }
        world.run_to(world.net.now + SECOND);
    }
}

/// Reads all that is used. That must succeed by now.
fn read_all(world: &mut World) {
    for number in 0.. {
        let Some(mut op) = read(world, number) else { break };
        let scenario = &world.net.scenario;
        let takes_long = scenario.rest_after.is_some() || scenario.has_parts;
        for _ in 0..if takes_long { TRIES } else { 0 } {
            if op.outcome != Outcome::Done {
                op = read(world, number).unwrap_or(op);
            }
        }
        must_be_read(world, op);
    }
}

fn read(world: &mut World, number: usize) -> Option<Op> {
    let op = world.clients.read(&mut world.net, number)?;
    settle(world);
    Some(world.clients.history.ops[op].clone())
}

fn must_be_read(world: &mut World, op: Op) {
    if op.outcome != Outcome::Done {
        let what = format!("a read of {} at {} failed although all faults have ended", op.chunk, op.began);
        world.net.break_rule("liveness", what);
    }
}

fn summary(world: &World) -> Summary {
    let ops = &world.clients.history.ops;
    let of = |outcome: Outcome| ops.iter().filter(|op| op.outcome == outcome).count();
    Summary {
        events: world.events,
        ops: ops.len(),
        acknowledged: of(Outcome::Done),
        given_up: of(Outcome::Unknown),
        digest: world.net.digest,
        undecided: world.clients.undecided,
        epochs: 0,
        tally: world.net.tally.clone(),
    }
}
