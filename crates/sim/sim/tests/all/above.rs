//! The fault search above chunks.

use crate::planted::NEAR;
use ebb_meta::PlantedBug as MetaBug;
use ebb_sim::Summary;
use ebb_sim::above::{Bug, Planted, processes};
use ebb_testing::search::{self, Hunt, Outcome};
use ebb_volume::PlantedBug as VolumeBug;
use std::fmt::Debug;

/// Seeds by day.
const FIRST: u64 = 1;
const SEEDS: u64 = 180;
/// Most seeds that are tried for a planted bug.
const ALL: u64 = 2000;

const BUGS: [Bug; 10] = [
    Bug::IgnoreClaims,
    Bug::MonotonicClock,
    Bug::ForgetSessions,
    Bug::ZeroesExist,
    Bug::JudgeByOwnClock,
    Bug::ReviveDeleted,
    Bug::LongFreeze,
    Bug::PartsAsTheyCame,
    Bug::FreeSparse,
    Bug::DeleteAsleep,
];
const VOLUME_BUGS: &[VolumeBug] =
    &[VolumeBug::SkipTurns, VolumeBug::ListFirst, VolumeBug::MarkEarly, VolumeBug::FirstEdge];
const MEMBER_BUGS: &[MetaBug] = &[
    MetaBug::TellNoTime,
    MetaBug::FreeOpenPacks,
    MetaBug::ForgetAnswers,
    MetaBug::SameClaim,
    MetaBug::KeepLeftOut,
];

/// What they meet.
const MET: [&str; 47] = [
    "a completion that is sent again",
    "a gateway that has not heard of a pool",
    "a listing",
    "a part that an object leaves out",
    "a part that comes with the completion",
    "a part that is sent again",
    "a pool that is created",
    "a pool to be created",
    "a range across parts",
    "a request that arrives twice",
    "a request that does not wait until its pool wakes",
    "a request that failed",
    "a request that is sent again",
    "a request that waits until its pool wakes",
    "a silent run that is ended",
    "a slice that moves",
    "a volume that is taken over",
    "a write that a flush decided",
    "an answer that is lost",
    "an object in a pool that was created",
    "an object of several parts",
    "an object that expires",
    "an object that is copied",
    "an object that leaves a sparse pack",
    "an object that moves",
    "an upload that is aborted",
    "an upload that is completed",
    "another primary",
    "chunk group not served",
    "connections broken",
    "data that was written in vain",
    "keys that are deleted together",
    "machine suspended",
    "metadata leader started again",
    "metadata leader's wall clock set",
    "metadata log rewritten",
    "metadata member cut off",
    "metadata member sent a snapshot",
    "metadata service silent",
    "network storm",
    "parts that are sent at the same time",
    "parts that are sent in another order",
    "process crash",
    "process ended in order",
    "several volumes",
    "virtual machine frozen",
    "wall clock set",
];

fn run(seed: u64, planted: Planted) -> Outcome<Summary> {
    search::run(seed, processes(planted))
}

#[test]
fn no_seed_breaks_a_rule_above_chunks() {
    let seeds = search::seeds(FIRST, SEEDS);
    let count = seeds.end - seeds.start;
    let good = search::sound(seeds, |seed| run(seed, Planted::default()));
    let total = |of: fn(&Summary) -> usize| good.iter().map(of).sum::<usize>();
    println!(
        "{count} seeds, {} operations, {} acknowledged, {} undecided",
        total(|s| s.ops),
        total(|s| s.acknowledged),
        total(|s| s.undecided)
    );
    let tally = search::tally(good.iter().map(|s| &s.tally));
    let missing: Vec<&str> = MET.into_iter().filter(|what| !tally.contains_key(what)).collect();
    assert!(count < SEEDS || missing.is_empty(), "in {count} seeds there never was: {missing:?}");
}

/// `first`: a seed that notices it, or one shortly before, as for the defects in the cores.
fn is_found(first: u64, name: &str, planted: Planted, rules: &[&str]) {
    let hunt = Hunt { name, first, near: NEAR, all: ALL, rules };
    search::is_found(&hunt, |seed| run(seed, planted), |seed| run(seed, Planted::default()));
}

fn in_world(first: u64, bug: Bug, rules: &[&str]) {
    is_found(first, &format!("{bug:?}"), Planted { world: Some(bug), ..Planted::default() }, rules);
}

fn in_volume(first: u64, bug: VolumeBug, rules: &[&str]) {
    is_found(first, &format!("{bug:?}"), Planted { volume: Some(bug), ..Planted::default() }, rules);
}

fn in_member(first: u64, bug: MetaBug, rules: &[&str]) {
    is_found(first, &format!("{bug:?}"), Planted { member: Some(bug), ..Planted::default() }, rules);
}

#[test]
fn a_repeated_request_that_comes_after_a_newer_one_is_found() {
    in_volume(257, VolumeBug::SkipTurns, &["linearizability"]);
}

#[test]
fn slices_that_are_listed_before_the_claim_are_found() {
    // The one before moved more of them until it fell silent: they read as zeroes, or their objects are gone.
    in_volume(160, VolumeBug::ListFirst, &["linearizability", "bytes", "liveness"]);
}

/// A try was under way for 10.7 s, and came after a newer write that was acknowledged: no defect of the server.
#[test]
fn what_a_closed_connection_has_under_way_is_lost() {
    let summary = run(303160, Planted::default()).unwrap_or_else(|failure| panic!("\n{failure}"));
    assert!(summary.tally.contains_key("a request that is lost with its connection"), "begin elsewhere");
}

#[test]
fn a_primary_that_ignores_claims_is_found() {
    in_world(1, Bug::IgnoreClaims, &["linearizability"]);
}

#[test]
fn a_claim_that_two_owners_share_is_found() {
    // What the former one had under way is carried out after newer writes.
    in_member(140, MetaBug::SameClaim, &["linearizability", "bytes"]);
}

#[test]
fn a_clock_that_stands_still_in_suspend_is_found() {
    in_world(776, Bug::MonotonicClock, &["linearizability"]);
}

#[test]
fn a_block_that_is_looked_for_where_it_is_not_yet_is_found() {
    // A read meanwhile finds zeroes, or what was freed there, instead of what the slice's object has.
    in_volume(170, VolumeBug::MarkEarly, &["linearizability", "bytes"]);
}

#[test]
fn objects_that_are_judged_by_one_gateways_clock_are_found() {
    in_world(56, Bug::JudgeByOwnClock, &["lifecycle"]);
}

#[test]
fn a_write_that_completes_only_its_first_block_is_found() {
    // The rest of its last block, which has moved, becomes zeroes.
    in_volume(1, VolumeBug::FirstEdge, &["linearizability"]);
}

#[test]
fn zeroes_of_a_range_that_was_freed_are_found() {
    in_world(390, Bug::ZeroesExist, &["bytes"]);
}

#[test]
fn a_command_that_is_carried_out_twice_is_found() {
    in_world(420, Bug::ForgetSessions, &["linearizability"]);
}

#[test]
fn an_answer_that_the_namespace_forgets_is_found() {
    // A deletion that the network repeats deletes what was put after it was answered.
    in_member(930, MetaBug::ForgetAnswers, &["linearizability"]);
}

#[test]
fn bytes_that_belong_to_nothing_are_found() {
    in_world(15, Bug::ReviveDeleted, &["space"]);
}

#[test]
fn parts_that_an_object_leaves_out_and_nobody_frees_are_found() {
    in_member(1, MetaBug::KeepLeftOut, &["space"]);
}

#[test]
fn parts_in_the_order_in_which_they_came_are_found() {
    in_world(31, Bug::PartsAsTheyCame, &["bytes"]);
}

#[test]
fn a_pack_that_is_freed_before_it_is_empty_is_found() {
    in_world(180, Bug::FreeSparse, &["liveness"]);
}

#[test]
fn a_pack_that_is_freed_while_it_is_filled_is_found() {
    // What is named there afterwards cannot be read.
    in_member(1, MetaBug::FreeOpenPacks, &["liveness", "linearizability"]);
}

#[test]
fn a_deletion_that_passes_over_what_sleeps_is_found() {
    in_world(6, Bug::DeleteAsleep, &["space"]);
}

#[test]
fn time_that_the_namespace_does_not_hear_of_is_found() {
    // It forgets no client: sessions of processes that have ended stay for ever.
    in_member(1, MetaBug::TellNoTime, &["space"]);
}

/// The defect of this name.
fn defect(name: &str) -> Option<Planted> {
    fn named<T: Copy + Debug>(bugs: &[T], name: &str) -> Option<T> {
        bugs.iter().find(|bug| format!("{bug:?}") == name).copied()
    }
    let (world, volume, member) = (named(&BUGS, name), named(VOLUME_BUGS, name), named(MEMBER_BUGS, name));
    let is_one = world.is_some() || volume.is_some() || member.is_some();
    is_one.then_some(Planted { world, volume, member })
}

/// Which seeds find a defect. After a change of what seeds draw, the tests above may have to begin elsewhere:
/// `EBB_BUG=ZeroesExist EBB_SEEDS=n cargo test -p ebb-sim --test all above::seeds_that -- --nocapture`
#[test]
fn seeds_that_find_a_defect() {
    let Ok(name) = std::env::var("EBB_BUG") else { return };
    let planted = defect(&name).unwrap_or_else(|| panic!("there is no {name}"));
    let (good, bad) = search::sweep(search::seeds(FIRST, SEEDS), |seed| run(seed, planted));
    println!("{} of {} seeds find {name}", bad.len(), good.len() + bad.len());
}

#[test]
fn one_seed() {
    search::one_seed(processes(Planted::default()));
}

#[test]
fn the_same_seed_repeats_the_same_run() {
    for seed in 1..9 {
        let digest = || {
            run(seed, Planted::default()).map(|summary| summary.digest).map_err(|failure| failure.to_string())
        };
        assert_eq!(digest(), digest());
    }
}
