//! The fault search: random requests, crashes, power failures, changes of speed and dead disks, under settings that
//! change modes and speeds all the time. What was acknowledged is there afterwards, the same from both disks.

use crate::world::{Stop, World};
use bytes::Bytes;
use ebb_mirror::open::{Accept, OpenError};
use ebb_mirror::{
    Ack, BLOCK_BYTES, DiskState, DiskStatus, Event, PlantedBug, PolicyKind, Request, Settings, Side, Sleep,
    Thresholds,
};
use ebb_testing::search::{self, Case, Faults, Hunt, Subject, Tally, Transcript, Violation, broken};
use ebb_types::Random;
use std::time::Duration;

/// Blocks that the client uses: few, so that requests overlap.
const BLOCKS: u64 = 96;
const STEPS_MAX: u64 = 200_000;

pub fn settings(random: &mut Random) -> Settings {
    let low = random.unit() * 0.5;
    Settings {
        kind: *random
            .pick(&[PolicyKind::LogStore, PolicyKind::LogStore, PolicyKind::TwoSpeed])
            .expect("three"),
        thresholds: Thresholds {
            go_up: low + 0.2,
            go_down: low + 0.15,
            max_regular: low + 0.05,
            min_regular: low,
            max_replay: low + 0.3,
            min_log: low,
            ..Thresholds::default()
        },
        epoch: Duration::from_millis(random.between(5, 60)),
        settle_epochs: random.below(3) as u32,
        ack: *random.pick(&[Ack::Safe, Ack::Safe, Ack::Both]).expect("three"),
        postponed_bytes: random.between(1, 64) * BLOCK_BYTES * 4,
        ..Settings::default()
    }
}

/// Some of the disks sleep at low speed.
pub fn sleeping(random: &mut Random, settings: Settings) -> Settings {
    if !random.chance(300) {
        return settings;
    }
    let sleep = Sleep {
        behind_longest: Duration::from_millis(random.between(1, 2_000)),
        awake_shortest: Duration::from_millis(random.below(100)),
    };
    Settings { kind: PolicyKind::TwoSpeed, ack: Ack::Safe, sleep: Some(sleep), ..settings }
}

pub fn request(random: &mut Random) -> Request {
    let block = random.below(BLOCKS);
    let most = if random.chance(100) { 40 } else { 4 };
    let count = random.between(1, most).min(BLOCKS - block);
    match random.below(100) {
        0..40 => Request::Read { block, count: count as u32 },
        40..88 => Request::Write {
            block,
            payload: Bytes::from(vec![0; (count * BLOCK_BYTES) as usize]),
            fua: random.chance(100),
        },
        88..93 => Request::Zero { block, count, fua: random.chance(200), may_trim: true },
        93..98 => Request::Flush,
        _ => Request::Status { block, count },
    }
}

/// The next thing happens. What is waited for must end in time.
fn step(world: &mut World, steps: &mut u64, what: &str) {
    *steps += 1;
    if !world.step() || *steps >= STEPS_MAX {
        let status = world.mirror.as_ref().map(|mirror| mirror.status());
        broken("liveness", format!("{what} never ends, with {} requests: {status:?}", world.in_flight()));
    }
}

/// Lets everything end that is in flight.
pub fn drain(world: &mut World) {
    let mut steps = 0;
    while world.in_flight() > 0 {
        step(world, &mut steps, "a request");
    }
}

/// Reads everything, often enough that both disks serve some of it.
pub fn verify(world: &mut World) {
    for _ in 0..3 {
        for block in (0..BLOCKS).step_by(8) {
            world.ask(Request::Read { block, count: 8 });
            if world.random.chance(300) {
                drain(world);
            }
        }
        drain(world);
    }
}

/// A disk dies. The mirror meets that with the next write, and the other disk serves alone.
fn kill(world: &mut World) {
    let side = world.random.index(2);
    world.disks[side].dead = true;
    world.note(|| format!("disk {side} dies"));
    world.count("death of a disk");
    drain(world);
    world.ask(Request::Write { block: 0, payload: Bytes::from(vec![0; BLOCK_BYTES as usize]), fua: true });
    drain(world);
}

fn is_asleep(world: &World) -> bool {
    let status = world.mirror.as_ref().expect("it runs").status();
    status.disks.iter().any(|disk| disk.state == DiskState::Asleep)
}

/// Whether either disk may die: what is being copied to one exists once.
fn has_two_copies(world: &World) -> bool {
    world.is_whole() && world.mirror.as_ref().is_some_and(|mirror| mirror.status().copying_bytes == 0)
}

pub fn close(world: &mut World) {
    drain(world);
    world.event(Event::Close);
    let mut steps = 0;
    while !world.closed {
        step(world, &mut steps, "a close");
    }
    world.count("close");
    let status = world.mirror.as_ref().map(|mirror| mirror.status());
    let both = status.is_some_and(|status| status.disks.iter().all(|disk| disk.state != DiskState::Lost));
    world.equal = both && has_two_copies(world);
    world.crash(Stop::Power);
}

/// Continues until a disk changes its speed or has just changed it: that is when most can be lost.
fn reach_change(world: &mut World) {
    for _ in 0..500 {
        let status = world.mirror.as_ref().expect("it runs").status();
        let returned = |disk: &DiskStatus| disk.state == DiskState::Serving && disk.postponed_bytes > 0;
        if status.disks.iter().any(returned) {
            // What it missed must be read from the other disk.
            for block in (0..BLOCKS).step_by(4) {
                world.ask(Request::Read { block, count: 4 });
            }
        }
        let changes = |disk: &DiskStatus| disk.state == DiskState::Changing || disk.postponed_bytes > 0;
        if status.disks.iter().any(changes) && world.random.chance(300) {
            for _ in 0..world.random.below(12) {
                world.step();
            }
            return;
        }
        if world.in_flight() < 16 {
            let request = request(&mut world.random);
            world.ask(request);
        }
        world.step();
    }
}

pub fn stop(world: &mut World) {
    if world.random.chance(400) {
        reach_change(world);
    }
    match world.random.below(3) {
        0 => close(world),
        1 => {
            world.count("crash of the program");
            world.crash(Stop::Program);
        }
        _ => {
            world.count("power failure");
            // What both disks have before it is acknowledged outlives even this.
            if world.settings.ack == Ack::Both && has_two_copies(world) && world.random.chance(200) {
                let side = world.random.index(2);
                world.disks[side].dead = true;
                world.note(|| format!("disk {side} dies with the power"));
                world.count("death of a disk in a power failure");
            }
            world.crash(Stop::Power);
        }
    }
}

/// Both disks have the same, once what a crash left is copied.
pub fn compare(world: &mut World) {
    let mut steps = 0;
    let mut asked = false;
    loop {
        let status = world.mirror.as_ref().expect("it runs").status();
        let alone = status.disks.iter().any(|disk| disk.state == DiskState::Lost);
        let at_rest = status.copying_bytes == 0 && status.once_bytes == 0;
        if alone {
            return;
        }
        if at_rest && !asked {
            world.event(Event::Scrub);
            asked = true;
        } else if asked && !status.scrub.running {
            if !status.scrub.differing_blocks.is_empty() {
                broken("copies", format!("the disks differ: {:?}", status.scrub.differing_blocks));
            }
            return world.count("comparison");
        }
        step(world, &mut steps, "a comparison");
    }
}

/// A new mirror of a case, and how many rounds it is to last.
pub fn new_mirror(case: &Case, settings: Settings, log: u64, lines: usize) -> (World, u32) {
    let mut world = World::new(case.seed, settings, log);
    (world.transcript, world.faults) = (Transcript::of(lines), Faults::of(case));
    let rounds = case.size(0, world.random.between(2, 6) as u32);
    world.open(Accept::default()).expect("a new mirror opens");
    (world, rounds)
}

/// A mirror under the faults of a seed.
struct Faulty {
    world: World,
    round: u32,
    rounds: u32,
}

/// Builds mirrors with this defect.
fn mirrors(planted: Option<PlantedBug>) -> impl Fn(&Case, usize) -> Faulty + Copy {
    move |case: &Case, lines: usize| {
        let mut random = Random::new(case.seed);
        let settings = settings(&mut random);
        let settings = Settings { planted, ..sleeping(&mut random, settings) };
        let log = *random.pick(&[1 << 20, 2 << 20]).expect("two");
        Faulty::new(case, settings, log, lines)
    }
}

impl Faulty {
    fn new(case: &Case, settings: Settings, log: u64, lines: usize) -> Faulty {
        let (world, rounds) = new_mirror(case, settings, log, lines);
        Faulty { world, round: 0, rounds }
    }

    /// Requests at random, over some time.
    fn load(&mut self) {
        self.round += 1;
        let world = &mut self.world;
        world.begin(self.round, 0);
        for part in 1..=world.random.between(20, 300) as u32 {
            world.begin(self.round, part);
            let (asks, steps) = (world.random.chance(500), world.random.below(6));
            let (scrubs, kills) = (world.random.chance(2), world.random.below(1000));
            let request = request(&mut world.random);
            if asks && world.in_flight() < 16 {
                world.ask(request);
            }
            for _ in 0..steps {
                world.step();
            }
            if scrubs {
                world.event(Event::Scrub);
            }
            // Per mille; more of them while a disk sleeps.
            if kills < 5 && world.strikes() {
                let asleep = is_asleep(world);
                if has_two_copies(world) && (asleep || kills < 1) {
                    kill(world);
                    if asleep {
                        world.count("death of a disk while one sleeps");
                    }
                }
            }
        }
    }

    /// It stops, and starts again.
    fn restart(&mut self) {
        let world = &mut self.world;
        stop(world);
        if !world.is_whole() && world.random.chance(300) {
            world.replace();
            world.count("replacement of a disk");
        }
        let mut accept = Accept { degraded: !world.is_whole(), loss: false };
        let mut opened = world.open(accept);
        if let Err(OpenError::Stale { .. }) = opened
            && world.settings.ack == Ack::Both
        {
            // The other disk died in the power failure while this one changed its speed. Nothing was acknowledged
            // meanwhile.
            accept.loss = true;
            opened = world.open(accept);
        }
        if let Err(error) = opened {
            broken("start", error.to_string());
        }
    }
}

impl Subject for Faulty {
    const ONE_SEED: &'static str = "-p ebb-mirror --test all search::one_seed";
    type Summary = Tally;

    fn step(&mut self) -> Result<bool, Violation> {
        self.load();
        if self.world.strikes() {
            self.restart();
        }
        let world = &mut self.world;
        world.begin(self.round, u32::MAX);
        let (verifies, compares) = (world.random.chance(500), world.random.chance(300));
        if verifies {
            verify(world);
        }
        if compares {
            compare(world);
        }
        Ok(self.round < self.rounds)
    }

    fn check(&mut self) -> Result<Tally, Violation> {
        verify(&mut self.world);
        compare(&mut self.world);
        Ok(std::mem::take(&mut self.world.seen))
    }

    fn describe(&self) -> String {
        describe(&self.world.settings, self.rounds)
    }

    fn sizes(&self) -> Vec<u32> {
        vec![self.rounds]
    }

    fn faults(&self) -> u64 {
        self.world.faults.drawn()
    }

    fn transcript(&self) -> &Transcript {
        &self.world.transcript
    }
}

pub fn describe(settings: &Settings, rounds: u32) -> String {
    let Settings { kind, ack, sleep, postponed_bytes, .. } = settings;
    let sleeps = if sleep.is_some() { "disks sleep" } else { "no disk sleeps" };
    format!("{kind:?}, acknowledged {ack:?}, {sleeps}, {postponed_bytes} bytes postponed; {rounds} rounds")
}

/// What a search must have met.
const MET: [&str; 10] = [
    "change of speed",
    "close",
    "comparison",
    "crash of the program",
    "death of a disk",
    "death of a disk in a power failure",
    "death of a disk while one sleeps",
    "power failure",
    "replacement of a disk",
    "resync",
];

#[test]
fn no_seed_loses_what_was_acknowledged() {
    let seeds = search::seeds(1, 600);
    let count = seeds.end - seeds.start;
    let seen = search::tally(&search::sound(seeds, |seed| search::run(seed, mirrors(None))));
    for what in MET {
        assert!(seen.contains_key(what) || count < 100, "no seed met: {what}");
    }
}

#[test]
fn one_seed() {
    search::one_seed(mirrors(None));
}

/// What rots in one disk's log is read from the other disk, and repaired.
#[test]
fn rotten_log_entries_are_noticed_and_repaired() {
    let mut met = 0;
    for seed in 1..=120 {
        let mut random = Random::new(seed);
        let settings = Settings { kind: PolicyKind::LogStore, ..settings(&mut random) };
        let mut faulty = Faulty::new(&Case::whole(seed), settings, 1 << 20, 0);
        faulty.load();
        let mut world = faulty.world;
        drain(&mut world);
        let logged = |world: &World, side: Side| {
            world.mirror.as_ref().expect("it runs").status().disks[side.index()].logged_bytes
        };
        let Some(side) = Side::BOTH.into_iter().find(|side| logged(&world, *side) > 0) else { continue };
        if !world.is_whole() || world.rot_log(side) == 0 {
            continue;
        }
        verify(&mut world);
        drain(&mut world);
        met += u64::from(world.mirror.as_ref().expect("it runs").status().unreadable > 0);
    }
    assert!(met > 5, "rot was met {met} times");
}

/// Seeds in which a planted bug is looked for first, and at most.
const NEAR: u64 = 100;
const ALL: u64 = 2000;
/// What a defect may break.
pub const RULES: [&str; 5] = ["content", "copies", "order", "start", "liveness"];

/// A search that cannot find defects proves nothing.
#[test]
fn planted_bugs_are_found() {
    // With the first seed to try.
    for (bug, first) in [
        (PlantedBug::WriteUnmarked, 1),
        (PlantedBug::LeaveUnnoted, 450),
        (PlantedBug::ReturnUnmarked, 650),
        (PlantedBug::VoidUnsynced, 1),
        (PlantedBug::ReadBehind, 1),
        (PlantedBug::WakeForgets, 1),
    ] {
        let name = format!("{bug:?}");
        let hunt = Hunt { name: &name, first, near: NEAR, all: ALL, rules: &RULES };
        let run = |planted| move |seed| search::run(seed, mirrors(planted));
        search::is_found(&hunt, run(Some(bug)), run(None));
    }
}

#[test]
fn a_failing_seed_becomes_a_story() {
    let buggy = mirrors(Some(PlantedBug::ReadBehind));
    let failure = (1..=NEAR).find_map(|seed| search::run(seed, buggy).err()).expect("the defect is found");
    let story = search::shrink(failure.seed, buggy).expect("it breaks a rule each time");
    assert_eq!(story.violation.rule, failure.violation.rule);
    assert!(story.lines.iter().any(|line| line.contains(" ask ")), "{story}");
    let (again, outcome) = search::with_transcript(&story.case, usize::MAX, buggy);
    assert!(outcome.is_err() && again == story.lines);
    assert!(search::with_transcript(&story.case, 0, mirrors(None)).1.is_ok(), "it is due to the defect");
}
