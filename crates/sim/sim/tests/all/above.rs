//! The fault search above chunks.

use ebb_sim::above::{Bug, Planted, run};
use ebb_sim::{Failure, Summary};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Seeds by day.
const FIRST: u64 = 1;
const SEEDS: u64 = 240;

/// What they meet.
const MET: [&str; 23] = [
    "a silent run that is ended",
    "a slice that moves",
    "a volume that is taken over",
    "a write that a flush decided",
    "an object that moves",
    "an upload that is completed",
    "data that was written in vain",
    "a request that arrives twice",
    "a request that failed",
    "a request that is sent again",
    "an answer that is lost",
    "another metadata leader",
    "another primary",
    "chunk group not served",
    "connections broken",
    "machine suspended",
    "metadata leader's wall clock set",
    "metadata service silent",
    "network storm",
    "process crash",
    "process ended in order",
    "virtual machine frozen",
    "wall clock set",
];

/// Runs seeds `first..first + count` on two threads.
fn sweep(first: u64, count: u64) -> (Vec<Summary>, Vec<Failure>) {
    let next = AtomicU64::new(first);
    let (good, bad) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    match run(seed, Planted::default()) {
                        Ok(summary) => good.lock().unwrap().push(summary),
                        Err(failure) => bad.lock().unwrap().push(*failure),
                    }
                }
            });
        }
    });
    (good.into_inner().unwrap(), bad.into_inner().unwrap())
}

/// `EBB_FIRST` and `EBB_SEEDS` say which seeds, as for the search below.
#[test]
fn no_seed_breaks_a_rule_above_chunks() {
    let (first, count) = (number("EBB_FIRST").unwrap_or(FIRST), number("EBB_SEEDS").unwrap_or(SEEDS));
    let (good, mut bad) = sweep(first, count);
    let total = |of: fn(&Summary) -> usize| good.iter().map(of).sum::<usize>();
    println!(
        "{} seeds, {} operations, {} acknowledged, {} undecided",
        good.len(),
        total(|s| s.ops),
        total(|s| s.acknowledged),
        total(|s| s.undecided)
    );
    let mut tally: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, times) in good.iter().flat_map(|summary| &summary.tally) {
        *tally.entry(what).or_default() += times;
    }
    tally.iter().for_each(|(what, times)| println!("{times:>12}  {what}"));
    bad.sort_by_key(|failure| failure.seed);
    bad.iter().for_each(|f| println!("seed {} breaks {}: {}", f.seed, f.violation.rule, f.violation.what));
    if let Some(failure) = bad.first() {
        panic!("{} of {count} seeds failed; the first:\n{failure}", bad.len());
    }
    let missing: Vec<&str> = MET.into_iter().filter(|what| !tally.contains_key(what)).collect();
    assert!(count < SEEDS || missing.is_empty(), "in {count} seeds there never was: {missing:?}");
}

/// `first`: where to begin, for a defect that few seeds notice.
fn is_found(first: u64, name: &str, planted: Planted, rules: &[&str]) {
    let seeds = first..2001;
    let found = seeds.into_iter().find_map(|seed| run(seed, planted).err());
    let failure = found.unwrap_or_else(|| panic!("none of 2000 seeds notices {name}"));
    println!("{name}: seed {} breaks {}: {}", failure.seed, failure.violation.rule, failure.violation.what);
    assert!(run(failure.seed, Planted::default()).is_ok(), "seed {} fails without {name} too", failure.seed);
    assert!(rules.contains(&failure.violation.rule), "{name} was found by another rule: {failure}");
}

fn in_world(first: u64, bug: Bug, rules: &[&str]) {
    is_found(first, &format!("{bug:?}"), Planted { world: Some(bug), ..Planted::default() }, rules);
}

#[test]
fn a_repeated_request_that_comes_after_a_newer_one_is_found() {
    let volume = Some(ebb_volume::PlantedBug::SkipTurns);
    is_found(180, "SkipTurns", Planted { volume, ..Planted::default() }, &["linearizability"]);
}

#[test]
fn a_primary_that_ignores_claims_is_found() {
    in_world(1, Bug::IgnoreClaims, &["linearizability"]);
}

#[test]
fn objects_that_are_judged_by_one_gateways_clock_are_found() {
    in_world(50, Bug::JudgeByOwnClock, &["linearizability"]);
}

#[test]
fn bytes_that_belong_to_nothing_are_found() {
    in_world(1, Bug::ReviveDeleted, &["space"]);
}

/// `EBB_SEED=n cargo test -p ebb-sim --test all above::one_seed -- --nocapture`
#[test]
fn one_seed() {
    let seed = number("EBB_SEED").unwrap_or(1);
    match run(seed, Planted::default()) {
        Ok(summary) => println!("seed {seed}: {summary:?}"),
        Err(failure) => panic!("\n{failure}"),
    }
}

#[test]
fn the_same_seed_repeats_the_same_run() {
    for seed in 1..20 {
        let digest = || {
            run(seed, Planted::default()).map(|summary| summary.digest).map_err(|failure| failure.to_string())
        };
        assert_eq!(digest(), digest());
    }
}
