//! The models of §4: reliability and energy.

use super::super::findings::Experiment;
use super::workloads::{WORKLOADS, Workload};
use ebb_erasure::Shape;
use ebb_erasure::model::buffer::{Buffers, Writes};
use ebb_erasure::model::energy::{Estimate, Power, Run};
use ebb_erasure::model::reliability::{Rates, approximate_hours, chain_hours, loss_probability};
use ebb_sim::coded::Setup;
use std::time::Duration;

const YEAR: f64 = 365.0 * 24.0;

pub fn reliability() -> Experiment {
    let about = "Formula (2) is printed with μ²; it needs μ³, and then gives 2.50·10⁸ years. The printed 2.99·10⁸ counts one of three failures \
        without its disks. The probability for an hour is 1.51·10⁻¹⁰ by formula (3), not 1.54.\n\n\
        The chain is the Markov chain of Figure 6 solved without approximation.";
    let mut found = Experiment::new("§4.1", "Reliability", about.to_owned());
    let rates = Rates::default();
    let (active, entire) = (approximate_hours(6, 2, &rates), approximate_hours(9, 3, &rates));
    found.row("mean time to data loss, six awake", "years", Some(7.54e5), Some(active / YEAR));
    found.row("mean time to data loss, all nine", "years", Some(2.99e8), Some(entire / YEAR));
    found.row("the same by the chain, six awake", "years", None, Some(chain_hours(6, 2, &rates) / YEAR));
    found.row("the same by the chain, all nine", "years", None, Some(chain_hours(9, 3, &rates) / YEAR));
    found.row(
        "loss in 1 hour, in units of 10⁻¹⁰",
        "",
        Some(1.54),
        Some(loss_probability(1.0, active) * 1e10),
    );
    found.row(
        "loss in 10 years, in units of 10⁻⁸",
        "",
        Some(3.34),
        Some(loss_probability(10.0 * YEAR, entire) * 1e8),
    );
    found
}

/// By formulas (7) to (15) with the mean sizes of Table V.
pub fn estimate(workload: &Workload, seconds: u64, rate: f64, threshold: f64) -> Estimate {
    let setup = Setup::default();
    let run = Run {
        time: Duration::from_secs(seconds),
        writes: Writes {
            per_second: workload.per_second * workload.write_share * rate,
            bytes: workload.write_kib * 1024.0,
        },
        buffers: Buffers {
            shape: setup.shape,
            strip_bytes: setup.strip_bytes as f64,
            bytes: (setup.buffer_bytes * setup.shape.data() as u64) as f64,
        },
        threshold,
    };
    run.estimate(&Power::default())
}

pub fn energy() -> Experiment {
    let about = "By formulas (7) to (15). (10) is printed without the threshold at which buffers are emptied; with it, Fin-2 wakes once, as the \
        paper says. (12) adds one E_up for all parity servers, and (15) prints P_transit for E_transit.";
    let mut found = Experiment::new("§4.3", "Energy by the model", about.to_owned());
    let (power, shape) = (Power::default(), Shape::new(6, 3).expect("the paper's code"));
    found.row("most that can be saved", "%", Some(0.309), Some(power.most_saved(shape, 0)));
    found.row("most with one failure", "%", Some(0.206), Some(power.most_saved(shape, 1)));
    found.row("shortest standby that pays", "s", Some(27.1), Some(power.break_even().as_secs_f64()));
    for (workload, threshold) in WORKLOADS.iter().zip(super::runs::THRESHOLDS) {
        let estimate = estimate(workload, 3600, 1.0, threshold);
        let transitions = (workload.name == "Fin-2").then_some(1.0);
        found.row(format!("{}: saved", workload.name), "%", None, Some(estimate.saved()));
        found.row(
            format!("{}: times woken", workload.name),
            "",
            transitions,
            Some(estimate.transitions as f64),
        );
    }
    found
}
