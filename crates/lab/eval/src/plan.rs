//! The list of runs, their order, and which of them may run at the same time.

use super::matrix::{Matrix, Target};
use std::collections::BTreeSet;

/// One run of the matrix, by indices into its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub target: usize,
    pub workload: usize,
    pub level: usize,
    /// From 1.
    pub repetition: u32,
}

/// All runs of some targets: by target, workload, level and repetition, so that a workload's runs follow the search for
/// its peak as closely as possible.
pub fn cells(matrix: &Matrix, targets: &[usize]) -> impl Iterator<Item = Cell> {
    let (workloads, levels, repetitions) = (matrix.workloads.len(), matrix.levels.len(), matrix.repetitions);
    targets.iter().flat_map(move |&target| {
        (0..workloads).flat_map(move |workload| {
            (0..levels).flat_map(move |level| {
                (1..=repetitions).map(move |repetition| Cell { target, workload, level, repetition })
            })
        })
    })
}

/// Groups of targets that share neither the machine that generates the load nor a meter. Groups run at the same time,
/// targets within a group one after another: no run disturbs another one's figures.
pub fn lanes(matrix: &Matrix) -> Vec<Vec<usize>> {
    let mut lanes: Vec<(BTreeSet<String>, Vec<usize>)> = Vec::new();
    for (index, target) in matrix.targets.iter().enumerate() {
        let mut uses = uses(target);
        let mut members = vec![index];
        // All targets that share anything with this one are merged into its lane.
        let (joined, apart): (Vec<_>, Vec<_>) =
            lanes.into_iter().partition(|(other, _)| !other.is_disjoint(&uses));
        for (other, targets) in joined {
            uses.extend(other);
            members.extend(targets);
        }
        members.sort_unstable();
        lanes = apart;
        lanes.push((uses, members));
    }
    let mut lanes: Vec<Vec<usize>> = lanes.into_iter().map(|(_, members)| members).collect();
    lanes.sort_unstable();
    lanes
}

fn uses(target: &Target) -> BTreeSet<String> {
    let of = |agent: &Option<String>| agent.clone().unwrap_or_default();
    let meters = target.meters.iter().map(|meter| format!("meter {} {meter}", of(&target.meter_agent)));
    meters.chain([format!("generator {}", of(&target.generator))]).collect()
}
