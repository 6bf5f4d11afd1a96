//! The fault search above chunks.

use ebb_sim::above::{Bug, Planted, run};
use std::collections::BTreeMap;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn no_seed_breaks_a_rule_above_chunks() {
    let count = number("EBB_SEEDS").unwrap_or(300);
    let first = number("EBB_FIRST").unwrap_or(1);
    let (mut tally, mut bad) = (BTreeMap::<&str, u64>::new(), Vec::new());
    let (mut ops, mut acknowledged, mut undecided, mut events) = (0, 0, 0, 0);
    for seed in first..first + count {
        match run(seed, Planted::default()) {
            Ok(summary) => {
                ops += summary.ops;
                acknowledged += summary.acknowledged;
                undecided += summary.undecided;
                events += summary.events;
                summary.tally.into_iter().for_each(|(what, times)| *tally.entry(what).or_default() += times);
            }
            Err(failure) => {
                println!("seed {seed} breaks {}: {}", failure.violation.rule, failure.violation.what);
                bad.push(failure);
            }
        }
    }
    println!(
        "{count} seeds, {events} events, {ops} operations, {acknowledged} acknowledged, {undecided} undecided"
    );
    tally.iter().for_each(|(what, times)| println!("{times:>12}  {what}"));
    if let Some(failure) = bad.first() {
        panic!("{} of {count} seeds failed; the first:\n{failure}", bad.len());
    }
}

fn is_found(name: &str, planted: Planted, rules: &[&str]) {
    let seeds = number("EBB_FIRST").unwrap_or(1)..2001;
    let found = seeds.into_iter().find_map(|seed| run(seed, planted).err());
    let failure = found.unwrap_or_else(|| panic!("none of 2000 seeds notices {name}"));
    println!("{name}: seed {} breaks {}: {}", failure.seed, failure.violation.rule, failure.violation.what);
    assert!(run(failure.seed, Planted::default()).is_ok(), "seed {} fails without {name} too", failure.seed);
    assert!(rules.contains(&failure.violation.rule), "{name} was found by another rule: {failure}");
}

fn in_world(bug: Bug, rules: &[&str]) {
    is_found(&format!("{bug:?}"), Planted { world: Some(bug), ..Planted::default() }, rules);
}

#[test]
fn a_repeated_request_that_comes_after_a_newer_one_is_found() {
    let volume = Some(ebb_volume::PlantedBug::SkipTurns);
    is_found("SkipTurns", Planted { volume, ..Planted::default() }, &["linearizability"]);
}

#[test]
fn a_primary_that_ignores_claims_is_found() {
    in_world(Bug::IgnoreClaims, &["linearizability"]);
}

#[test]
fn claims_by_a_clock_that_stands_still_are_found() {
    in_world(Bug::MonotonicClock, &["linearizability"]);
}

#[test]
fn objects_that_are_judged_by_one_gateways_clock_are_found() {
    in_world(Bug::JudgeByOwnClock, &["linearizability"]);
}

#[test]
fn zeroes_that_no_client_wrote_are_found() {
    in_world(Bug::ZeroesExist, &["bytes"]);
}

#[test]
fn a_command_that_is_carried_out_twice_is_found() {
    in_world(Bug::ForgetSessions, &["linearizability"]);
}

#[test]
fn bytes_that_belong_to_nothing_are_found() {
    in_world(Bug::ReviveDeleted, &["space"]);
}

/// `EBB_SEED=n cargo test -p ebb-sim --test all one_seed_above -- --nocapture`
#[test]
fn one_seed_above() {
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
