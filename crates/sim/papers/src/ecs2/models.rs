//! The models of §4: reliability and energy.

use super::super::findings::Experiment;
use super::workloads::{WORKLOADS, Workload};
use ebb_erasure::Shape;
use ebb_erasure::model::buffer::{Buffers, Writes};
use ebb_erasure::model::energy::{Estimate, Power, Run};
use ebb_erasure::model::reliability::{Rates, approximate_hours, chain_hours, loss_probability};
use ebb_power::PowerModel;
use ebb_sim::coded::Setup;
use ebb_trace::{Kind, Trace};
use std::time::Duration;

const YEAR: f64 = 365.0 * 24.0;

pub fn reliability() -> Experiment {
    let about = "Formula (2) is printed with μ²; it needs μ³, and then gives 2.50·10⁸ years. The printed 2.99·10⁸ counts one of three failures \
        without its disks. The probability for an hour is 1.51·10⁻¹⁰ by formula (3), not 1.54.\n\n\
        The chain is the Markov chain of Figure 6 solved without approximation.";
    let mut found = Experiment::new("§4.1", "Reliability", about);
    let rates = Rates::default();
    let (active, entire) = (approximate_hours(6, 2, &rates), approximate_hours(9, 3, &rates));
    found.row("mean time to data loss, six awake", "years", Some(7.54e5), Some(active / YEAR));
    found.row("mean time to data loss, all nine", "years", Some(2.99e8), Some(entire / YEAR));
    found.ours("the same by the chain, six awake", "years", chain_hours(6, 2, &rates) / YEAR);
    found.ours("the same by the chain, all nine", "years", chain_hours(9, 3, &rates) / YEAR);
    let what = "loss in 1 hour, in units of 10⁻¹⁰";
    found.row(what, "", Some(1.54), Some(loss_probability(1.0, active) * 1e10));
    let what = "loss in 10 years, in units of 10⁻⁸";
    found.row(what, "", Some(3.34), Some(loss_probability(10.0 * YEAR, entire) * 1e8));
    found
}

/// By formulas (7) to (15) with the mean sizes of Table V.
pub fn estimate(workload: &Workload, seconds: u64, rate: f64, threshold: f64) -> Estimate {
    let run = Run {
        time: Duration::from_secs(seconds),
        writes: Writes {
            per_second: workload.per_second * workload.write_share * rate,
            bytes: workload.write_kib * 1024.0,
        },
        buffers: buffers(),
        threshold,
    };
    run.estimate(&Power::default())
}

/// Of the paper's set.
fn buffers() -> Buffers {
    let setup = Setup::default();
    Buffers {
        shape: setup.shape,
        strip_bytes: setup.strip_bytes as f64,
        bytes: (setup.buffer_bytes * setup.shape.data() as u64) as f64,
    }
}

/// Formula (10) with what formula (16) gives for each write of a trace, instead of for the mean of their sizes.
pub fn woken_write_by_write(trace: &Trace, threshold: f64) -> u64 {
    let buffers = buffers();
    let writes = trace.requests.iter().filter(|request| request.kind == Kind::Write);
    // One a second fills them by as much as one write adds.
    let adds = |len: u32| buffers.fill_rate(&Writes { per_second: 1.0, bytes: f64::from(len) });
    let filled: f64 = writes.map(|write| adds(write.len)).sum();
    (filled / (threshold * buffers.bytes)) as u64
}

/// How often in an hour parity servers woke by the joules of one of the paper's runs: by what is left of its watts
/// with ECS² without the data servers, each at a ninth of the watts without ECS², and without standby.
pub fn woken_by_joules(on: f64, asleep: f64, threshold: f64) -> f64 {
    let (power, buffers) = (Power::default(), buffers());
    let shape = buffers.shape;
    let (data, parity) = (shape.data() as f64, shape.parity() as f64);
    let each = on / shape.servers() as f64;
    let left = asleep - data * each - parity * power.standby.0;
    let kept = threshold * buffers.bytes / (shape.parity() + shape.extra()) as f64;
    let synchronising = kept / power.synchronise_rate;
    let awake = (power.up + power.down).as_secs_f64() + synchronising;
    let transitions = (power.up_energy + power.down_energy).0;
    3600.0 * left / (parity * (transitions + each * synchronising - power.standby.0 * awake))
}

/// Watts of the set, always on, if those of each server follow the bytes that its disk moves: 70.8 W at 10 MB/s, 75.6 W
/// at 80 MB/s [ECS² Table VI].
pub fn watts_by_throughput(workload: &Workload, rate: f64) -> f64 {
    let (power, shape) = (PowerModel::default(), Setup::default().shape);
    let (data, parity) = (shape.data() as f64, shape.parity() as f64);
    let bytes = |share: f64, kib: f64| workload.per_second * rate * share * kib * 1024.0;
    let written = bytes(workload.write_share, workload.write_kib);
    // The old bytes are read first. Each parity server gets every change.
    let moved = bytes(1.0 - workload.write_share, workload.read_kib()) + 2.0 * written;
    let on = |bytes: f64| power.on(bytes / 80e6).0;
    data * on(moved / data) + parity * on(written)
}

/// The most that the set can draw, always on, while its parity servers have nothing to do [ECS² Table VI].
pub fn most_watts_without_writes() -> f64 {
    let (power, shape) = (PowerModel::default(), Setup::default().shape);
    shape.data() as f64 * power.busy.0 + shape.parity() as f64 * power.idle.0
}

pub fn energy() -> Experiment {
    let about = "By formulas (7) to (15). (10) is printed without the threshold at which buffers are emptied; with it, Fin-2 wakes once, as the \
        paper says. (12) adds one E_up for all parity servers, and (15) prints P_transit for E_transit.";
    let mut found = Experiment::new("§4.3", "Energy by the model", about);
    let (power, shape) = (Power::default(), Shape::new(6, 3).expect("the paper's code"));
    found.row("most that can be saved", "%", Some(0.309), Some(power.most_saved(shape, 0)));
    found.row("most with one failure", "%", Some(0.206), Some(power.most_saved(shape, 1)));
    found.row("shortest standby that pays", "s", Some(27.1), Some(power.break_even().as_secs_f64()));
    for (workload, threshold) in WORKLOADS.iter().zip(super::runs::THRESHOLDS) {
        let estimate = estimate(workload, 3600, 1.0, threshold);
        let transitions = (workload.name == "Fin-2").then_some(1.0);
        found.ours(format!("{}: saved", workload.name), "%", estimate.saved());
        let what = format!("{}: times woken", workload.name);
        found.row(what, "", transitions, Some(estimate.transitions as f64));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::runs::THRESHOLDS;
    use super::*;

    /// Up to a stripe, what a write adds grows ever less with its size: sizes around a mean add less than the mean.
    #[test]
    fn write_by_write_formula_10_gives_no_more_than_for_the_mean_size() {
        let woken = |nth: usize| {
            let (workload, threshold) = (&WORKLOADS[nth], THRESHOLDS[nth]);
            let of_mean = estimate(workload, 3600, 1.0, threshold).transitions;
            (woken_write_by_write(&workload.trace(3600, 1), threshold), of_mean)
        };
        assert_eq!([0, 1, 2, 3].map(woken), [(0, 0), (1, 1), (3, 4), (8, 10)]);
    }

    /// What the formulas give for ten times is what ten times take.
    #[test]
    fn joules_tell_how_often_parity_servers_woke() {
        let (power, shape) = (Power::default(), buffers().shape);
        let run = Run {
            time: Duration::from_secs(3600),
            writes: Writes { per_second: 10.0 * 0.9 * 300e6 / 3600.0 / 4096.0 + 1e-6, bytes: 4096.0 },
            buffers: buffers(),
            threshold: 0.9,
        };
        let estimate = run.estimate(&power);
        let on = power.on.0 * shape.servers() as f64;
        let woken = woken_by_joules(on, estimate.energy.0 / 3600.0, 0.9);
        assert!(estimate.transitions == 10 && (woken - 10.0).abs() < 0.01, "{woken}");
    }

    #[test]
    fn by_throughput_servers_of_small_requests_are_next_to_idle() {
        let watts = watts_by_throughput(&WORKLOADS[0], 1.0);
        assert!((559.0..561.0).contains(&watts), "{watts}");
        let most = most_watts_without_writes();
        assert!((most - 639.0).abs() < 0.01 && most < 648.68, "{most}");
    }
}
