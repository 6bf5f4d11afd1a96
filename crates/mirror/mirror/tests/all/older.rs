//! Disks that are put back to older copies of themselves: never is the older one copied over the newer one, and never
//! are old blocks read. What the numbers on the disks do not show is left out: a copy that is no older than their last
//! note.

use crate::search::{
    RULES, close, compare, describe, drain, new_mirror, request, settings, sleeping, stop, verify,
};
use crate::world::{Image, Stop, World};
use ebb_mirror::open::{Accept, OpenError};
use ebb_mirror::{Ack, PlantedBug, Settings, Side};
use ebb_testing::search::{self, Case, Hunt, Subject, Tally, Transcript, Violation, broken};
use ebb_types::Random;

/// Requests over some time; copies of either disk are taken now and then.
fn load(world: &mut World, images: &mut [Vec<Image>; 2], round: u32) {
    world.begin(round, 0);
    for part in 1..=world.random.between(20, 200) as u32 {
        world.begin(round, part);
        let (asks, steps, takes) = (world.random.chance(500), world.random.below(6), world.random.chance(30));
        let request = request(&mut world.random);
        if asks && world.in_flight() < 16 {
            world.ask(request);
        }
        for _ in 0..steps {
            world.step();
        }
        if takes {
            take(world, images);
        }
    }
}

fn take(world: &mut World, images: &mut [Vec<Image>; 2]) {
    let side = *world.random.pick(&Side::BOTH).expect("two");
    images[side.index()].push(world.image(side));
}

/// By the numbers of their notes: which of the two is newer, beyond doubt.
fn newer(images: [&Image; 2]) -> Option<Side> {
    let [a, b] = images.map(|image| image.notes);
    if a == b {
        return None;
    }
    match (a.0 >= b.0 && a.1 >= b.1, a.0 <= b.0 && a.1 <= b.1) {
        (true, _) => Some(Side::A),
        (_, true) => Some(Side::B),
        _ => None,
    }
}

/// Puts one disk or both back, and opens the mirror. `false`: the mirror does not start.
fn put_back(world: &mut World, images: &mut [Vec<Image>; 2]) -> bool {
    let mut chosen = Side::BOTH.map(|side| world.image(side));
    let first = world.random.index(2);
    let both = world.random.chance(300);
    for side in [first, 1 - first].into_iter().take(if both { 2 } else { 1 }) {
        if let Some(image) = world.random.pick(&images[side]) {
            chosen[side] = image.clone();
        }
    }
    let is_fit = chosen.iter().any(|image| image.whole) && !chosen.iter().any(|image| image.copying);
    let notes_all = |side: &Side| {
        // It was used alone when it was copied, and the other one has come back since and has not noted that yet.
        let writes = chosen[(!*side).index()].disk.writes();
        chosen[side.index()].alone_since.is_none_or(|before| writes <= before)
    };
    let Some(newer) = newer([&chosen[0], &chosen[1]]).filter(|side| is_fit && notes_all(side)) else {
        world.open(Accept::default()).expect("nothing is older");
        return true;
    };
    // What the copies of the future say is no longer so.
    images.iter_mut().for_each(Vec::clear);
    for (disk, image) in world.disks.iter_mut().zip(&chosen) {
        *disk = image.disk.clone();
    }
    let (new, old) = (&chosen[newer.index()], &chosen[(!newer).index()]);
    world.equal = false;
    let mut source = newer;
    let mut opened = world.open(Accept::default());
    // Whatever a later start copies, it is of this one.
    if let Ok(Some((from, true))) = opened
        && from != newer
    {
        if new.whole || !old.whole {
            broken("content", format!("{newer:?} is newer, and {from:?} is copied"));
        }
        source = from;
    }
    let mut copied = false;
    // The start itself is cut short.
    while opened.is_ok() && world.random.chance(400) {
        for _ in 0..world.random.below(30) {
            world.step();
        }
        let stop = *world.random.pick(&[Stop::Program, Stop::Power]).expect("two");
        world.crash(stop);
        world.count("an interrupted start");
        copied |= !world.copying;
        opened = world.open(Accept::default());
        match opened {
            Err(ref error) => broken("start", format!("what was started is started again: {error}")),
            Ok(Some((from, true))) if !copied && from != source => {
                broken("content", format!("{source:?} was the source"));
            }
            Ok(_) => {}
        }
    }
    match opened {
        Err(OpenError::Older { .. } | OpenError::Split) if !new.whole => {
            world.count("refused");
            return false;
        }
        Err(error) => broken("start", format!("{newer:?} has everything: {error}")),
        Ok(_) if source != newer => world.count("the newer one lacks something"),
        Ok(_) => world.count("the newer one is right"),
    }
    world.expect(&chosen[source.index()]);
    world.count(if both { "both are older" } else { "one is older" });
    true
}

/// A mirror whose disks are put back to older copies.
struct Older {
    world: World,
    images: [Vec<Image>; 2],
    round: u32,
    rounds: u32,
    /// The mirror did not start.
    refused: bool,
}

/// Builds mirrors with this defect.
fn mirrors(planted: Option<PlantedBug>) -> impl Fn(&Case, usize) -> Older + Copy {
    move |case: &Case, lines: usize| {
        let mut random = Random::new(case.seed);
        let settings = settings(&mut random);
        let settings = Settings { ack: Ack::Safe, planted, ..sleeping(&mut random, settings) };
        let (world, rounds) = new_mirror(case, settings, 1 << 20, lines);
        Older { world, images: [Vec::new(), Vec::new()], round: 0, rounds, refused: false }
    }
}

impl Subject for Older {
    const ONE_SEED: &'static str = "-p ebb-mirror --test all one_old_copy";
    type Summary = Tally;

    fn step(&mut self) -> Result<bool, Violation> {
        let Older { world, images, round, .. } = self;
        *round += 1;
        load(world, images, *round);
        if world.strikes() {
            stop(world);
            if world.random.chance(300) {
                take(world, images);
            }
        }
        // What does not run is put back, or starts as it is.
        let puts_back = world.strikes() && world.random.chance(600);
        if world.mirror.is_none() {
            let is_on =
                if puts_back { put_back(world, images) } else { world.open(Accept::default()).is_ok() };
            if !is_on {
                self.refused = true;
                return Ok(false);
            }
        }
        world.begin(*round, u32::MAX);
        let compares = world.random.chance(300);
        verify(world);
        if compares {
            compare(world);
        }
        Ok(self.round < self.rounds)
    }

    fn check(&mut self) -> Result<Tally, Violation> {
        if !self.refused {
            drain(&mut self.world);
            compare(&mut self.world);
            verify(&mut self.world);
        }
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

const MET: [&str; 6] = [
    "an interrupted start",
    "both are older",
    "one is older",
    "refused",
    "the newer one is right",
    "the newer one lacks something",
];

const RARE: &str = "the newer one lacks something";

#[test]
fn an_older_copy_is_never_taken_for_the_truth() {
    let seeds = search::seeds(1, 250);
    let count = seeds.end - seeds.start;
    let seen = search::tally(&search::sound(seeds, |seed| search::run(seed, mirrors(None))));
    for what in MET {
        let wanted = if what == RARE { 2000 } else { 100 };
        assert!(seen.contains_key(what) || count < wanted, "no seed met: {what}");
    }
}

#[test]
fn a_mirror_that_does_not_compare_its_counts_is_found() {
    let hunt = Hunt { name: "IgnoreCounts", first: 1, near: 250, all: 250, rules: &RULES };
    let run = |planted| move |seed| search::run(seed, mirrors(planted));
    search::is_found(&hunt, run(Some(PlantedBug::IgnoreCounts)), run(None));
}

#[test]
fn one_old_copy() {
    search::one_seed(mirrors(None));
}

/// What it lacks exists nowhere then: that is an error.
#[test]
fn a_disk_that_is_copied_to_serves_no_old_blocks_when_its_source_is_lost() {
    let mut failed = 0;
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let mut world = World::new(seed, settings(&mut random), 1 << 20);
        world.open(Accept::default()).expect("a new mirror opens");
        load(&mut world, &mut [Vec::new(), Vec::new()], 1);
        drain(&mut world);
        let image = world.image(Side::A);
        load(&mut world, &mut [Vec::new(), Vec::new()], 2);
        close(&mut world);
        world.disks[0] = image.disk;
        world.equal = false;
        let copied = world.open(Accept::default());
        if !image.whole || !matches!(copied, Ok(Some((Side::B, true)))) {
            continue;
        }
        for _ in 0..world.random.below(120) {
            world.step();
        }
        world.disks[1].dead = true;
        world.failed_allowed = true;
        verify(&mut world);
        failed += world.seen.get("a request failed").copied().unwrap_or_default();
    }
    assert!(failed > 100, "{failed} requests failed");
}
