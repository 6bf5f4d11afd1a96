//! Defects planted on purpose in the protocol core: the harness must find each of them within the seeds of the sweep.

use ebb_replica::PlantedBug;
use ebb_sim::run;

/// Seeds to try. The sweep runs many more.
const SEEDS: u64 = 400;

fn is_found(bug: PlantedBug) {
    let plant = move |config: &mut ebb_replica::Config| config.planted = Some(bug);
    let found = (1..=SEEDS).find_map(|seed| run(seed, &plant).err());
    let failure = found.unwrap_or_else(|| panic!("no seed of {SEEDS} notices {bug:?}"));
    println!("{bug:?}: seed {} breaks {}: {}", failure.seed, failure.violation.rule, failure.violation.what);
}

#[test]
fn a_primary_that_does_not_wait_for_the_fence_is_found() {
    is_found(PlantedBug::SkipFence);
}

#[test]
fn an_acknowledgement_before_the_last_copy_is_found() {
    is_found(PlantedBug::AckEarly);
}

#[test]
fn a_reclaim_that_overwrites_newer_records_is_found() {
    is_found(PlantedBug::ReclaimOlder);
}

#[test]
fn offload_dropped_before_it_is_reclaimed_is_found() {
    is_found(PlantedBug::DropEarly);
}
