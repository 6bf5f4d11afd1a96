//! One seed from start to verdict.

use crate::above::planted::Planted;
use crate::above::rest;
use crate::above::scenario::{SECOND, Scenario};
use crate::above::world::World;
use crate::search::Summary;
use crate::search::history::{Op, Outcome};
use ebb_testing::search::{ASSERTION, Case, Subject, Transcript, Violation};

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

/// What is above chunks, under the faults of a seed.
pub struct Above {
    world: World,
    /// When each fault strikes, also of those left out.
    faults: Vec<u64>,
    /// Counted for the whole process: seeds that run at the same time fail together.
    bugs: u64,
}

/// Builds worlds with these defects.
pub fn processes(planted: Planted) -> impl Fn(&Case, usize) -> Above + Copy {
    move |case: &Case, lines: usize| Above::new(case, planted, lines)
}

impl Above {
    fn new(case: &Case, planted: Planted, lines: usize) -> Above {
        let mut scenario = Scenario::draw(case.seed);
        let faults = scenario.faults.iter().map(|(at, _)| *at).collect();
        let mut number = 0u64;
        scenario.faults.retain(|_| {
            number += 1;
            !case.left_out.contains(&number)
        });
        scenario.block_clients = case.size(0, scenario.block_clients as u32) as usize;
        scenario.object_clients = case.size(1, scenario.object_clients as u32) as usize;
        scenario.calm_at = u64::from(case.size(2, scenario.calm_at as u32));
        Above { world: World::new(scenario, planted, lines), faults, bugs: ebb_client::bugs() }
    }
}

impl Subject for Above {
    const ONE_SEED: &'static str = "-p ebb-sim --test all above::one_seed";
    type Summary = Summary;

    /// All the time in which faults strike.
    fn step(&mut self) -> Result<bool, Violation> {
        self.world.run_to(self.world.net.scenario.calm_at);
        Ok(false)
    }

    fn check(&mut self) -> Result<Summary, Violation> {
        let world = &mut self.world;
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
        if ebb_client::bugs() > self.bugs {
            world.net.break_rule(ASSERTION, "what cannot happen happened; standard error says what".into());
        }
        world.count_logs();
        match world.net.violation.take() {
            Some(violation) => Err(violation),
            None => Ok(summary(world)),
        }
    }

    fn describe(&self) -> String {
        let Scenario { hosts, members, block_clients, object_clients, calm_at, .. } =
            &self.world.net.scenario;
        let volumes = hosts.iter().filter(|host| host.is_volume()).count();
        format!(
            "{volumes} servers of volumes with {block_clients} clients, {} gateways with {object_clients} clients, \
             {members} metadata members, faults for {} s",
            hosts.len() - volumes,
            calm_at / SECOND
        )
    }

    fn sizes(&self) -> Vec<u32> {
        let Scenario { block_clients, object_clients, calm_at, .. } = self.world.net.scenario;
        vec![block_clients as u32, object_clients as u32, calm_at as u32]
    }

    fn faults(&self) -> u64 {
        self.faults.iter().filter(|at| **at <= self.world.net.now).count() as u64
    }

    fn transcript(&self) -> &Transcript {
        &self.world.net.transcript
    }
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
