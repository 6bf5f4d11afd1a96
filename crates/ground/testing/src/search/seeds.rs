//! Many seeds, or one of them, and what became of them.

use crate::number;
use crate::search::shrink::shrink;
use crate::search::subject::{ASSERTION, Case, LINES, Subject, Violation, play, with_transcript};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
    pub transcript: Vec<String>,
    /// What `cargo test` is given to play the seed.
    pub test: &'static str,
}

pub type Outcome<T> = Result<T, Box<Failure>>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.transcript {
            writeln!(f, "{line}")?;
        }
        let Failure { seed, violation: Violation { rule, what }, test, .. } = self;
        writeln!(f, "\nseed {seed} breaks {rule}: {what}")?;
        write!(f, "reproduce: EBB_SEED={seed} cargo test {test} -- --nocapture")
    }
}

/// Plays a seed. One that breaks a rule is played again with its transcript kept.
pub fn run<S: Subject>(seed: u64, build: impl Fn(&Case, usize) -> S) -> Outcome<S::Summary> {
    let whole = Case::whole(seed);
    let violation = match play(&mut build(&whole, 0)) {
        Ok(summary) => return Ok(summary),
        Err(violation) => violation,
    };
    let (transcript, _) = with_transcript(&whole, LINES, build);
    Err(Box::new(Failure { seed, violation, transcript, test: S::ONE_SEED }))
}

/// Plays the seed of `EBB_SEED`. One that breaks a rule becomes a story; with `EBB_LINES` the last lines of the whole
/// seed are shown instead.
pub fn one_seed<S: Subject>(build: impl Fn(&Case, usize) -> S)
where
    S::Summary: Debug,
{
    let (seed, lines) = (number("EBB_SEED").unwrap_or(1), number("EBB_LINES"));
    let (shown, outcome) = with_transcript(&Case::whole(seed), lines.unwrap_or(0) as usize, &build);
    shown.iter().for_each(|line| println!("{line}"));
    match outcome {
        Ok(summary) => println!("seed {seed}: {summary:?}"),
        Err(Violation { rule, what }) if lines.is_some() => panic!("seed {seed} breaks {rule}: {what}"),
        Err(_) => panic!("\n{}", shrink(seed, build).expect("a case gives the same run each time")),
    }
}

/// Those from `first` on, unless `EBB_FIRST` and `EBB_SEEDS` say others.
pub fn seeds(first: u64, count: u64) -> Range<u64> {
    let first = number("EBB_FIRST").unwrap_or(first);
    first..first + number("EBB_SEEDS").unwrap_or(count)
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Gives each seed to one of so many threads. `play` returns whether there is to be another one.
pub fn spread(seeds: Range<u64>, threads: usize, play: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || !play(seed) {
                        return;
                    }
                }
            });
        }
    });
}

/// Plays seeds on all cores. Prints which of them break a rule.
pub fn sweep<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> Outcome<T> + Sync) -> (Vec<T>, Vec<Failure>) {
    let (good, bad) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    spread(seeds, cores(), |seed| {
        match run(seed) {
            Ok(summary) => good.lock().expect("it only collects").push(summary),
            Err(failure) => bad.lock().expect("it only collects").push(*failure),
        }
        true
    });
    let mut bad = bad.into_inner().expect("it only collects");
    bad.sort_by_key(|failure| failure.seed);
    for Failure { seed, violation: Violation { rule, what }, .. } in &bad {
        println!("seed {seed} breaks {rule}: {}", what.lines().next().unwrap_or_default());
    }
    (good.into_inner().expect("it only collects"), bad)
}

/// Plays seeds on all cores, none of which may break a rule.
pub fn sound<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> Outcome<T> + Sync) -> Vec<T> {
    let count = seeds.end - seeds.start;
    let (good, bad) = sweep(seeds, run);
    if let Some(failure) = bad.first() {
        panic!("{} of {count} seeds failed; the first:\n{failure}", bad.len());
    }
    good
}

/// What runs met, and how often.
pub type Tally = BTreeMap<&'static str, u64>;

/// What several runs met together, which is printed.
pub fn tally<'a>(runs: impl IntoIterator<Item = &'a Tally>) -> Tally {
    let mut all = Tally::new();
    for (what, times) in runs.into_iter().flatten() {
        *all.entry(*what).or_default() += times;
    }
    all.iter().for_each(|(what, times)| println!("{times:>12}  {what}"));
    all
}

/// A planted defect, and where to look for it.
pub struct Hunt<'a> {
    pub name: &'a str,
    /// A seed that notices it, or one shortly before.
    pub first: u64,
    /// So many are tried: that shows that the defect is still found, not how soon.
    pub near: u64,
    /// If none of those notices it, a change has moved the seeds: then all up to this one are tried, which takes
    /// minutes, and the test fails with the seed to begin with from now on.
    pub all: u64,
    /// What it may break.
    pub rules: &'a [&'a str],
}

/// `broken`: a run with the defect; `sound`: one without. `EBB_FIRST` and `EBB_SEEDS` look elsewhere.
pub fn is_found<T>(hunt: &Hunt, broken: impl Fn(u64) -> Outcome<T>, sound: impl Fn(u64) -> Outcome<T>) {
    let Hunt { name, first, near, all, rules } = *hunt;
    let near = seeds(first, near);
    let others = (1..=all).filter(|seed| !near.contains(seed));
    let found = near.clone().chain(others).find_map(|seed| broken(seed).err());
    let failure = found.unwrap_or_else(|| panic!("no seed notices {name}"));
    let Failure { seed, violation: Violation { rule, what }, .. } = &*failure;
    println!("{name}: seed {seed} breaks {rule}: {what}");
    // The failure is due to the defect: without it the seed passes.
    assert!(sound(*seed).is_ok(), "seed {seed} fails without {name} too");
    // An assertion may notice it before the rule is broken.
    let is_meant = rules.contains(rule) || *rule == ASSERTION;
    assert!(is_meant, "{name} was found by another rule: {failure}");
    assert!(near.contains(seed), "what seeds draw has changed: begin with seed {seed}");
}
