//! Figures 11 and 12: a data server has failed, and its replacement is filled at two rates.

use super::super::findings::Experiment;
use super::runs::{Runs, millis, saved};
use ebb_sim::coded::{Failure, Setup};

const WEB: usize = 0;
/// Megabits per second, and watts without and with ECS² [ECS² §5.3.2].
const RATES: [(f64, f64, f64); 2] = [(450.0, 677.0, 538.0), (750.0, 678.5, 541.0)];

fn name(megabits: f64) -> String {
    format!("rebuild at {megabits} Mbit/s")
}

pub fn plan(runs: &mut Runs) {
    for (megabits, ..) in RATES {
        let failure = Some(Failure { server: 0, rebuild_bytes_per_second: megabits * 1e6 / 8.0 });
        runs.plan(WEB, &name(megabits), Setup { failure, ..runs.setup(0.9) });
    }
}

pub fn found(runs: &Runs) -> Vec<Experiment> {
    let about = "One data server has failed; its replacement is filled all the time. Only P1 is awake. The rate is what the replacement receives \
        from all others together. The paper: response times rise with the rate, with and without ECS² (Figure 12). Here a rebuild gets what clients leave of \
        the disks, so the rate hardly counts; what slows answers down is that each read of the lost server's strips is one of all others.";
    let mut found =
        Experiment::new("Figure 11", "A failed data server: Web-2 (with Figure 12)", about.to_owned());
    let without = runs.get(WEB, "plain").and_then(|(asleep, _)| millis(asleep));
    found.row("no failure: response, ECS²", "ms", None, without);
    for (megabits, on, asleep) in RATES {
        let (name, pair) = (name(megabits), runs.get(WEB, &name(megabits)));
        found.row(format!("{name}: saved"), "%", Some(1.0 - asleep / on), pair.map(saved));
        found.row(format!("{name}: response, ECS²"), "ms", None, pair.and_then(|(asleep, _)| millis(asleep)));
        found.row(format!("{name}: response, always on"), "ms", None, pair.and_then(|(_, on)| millis(on)));
    }
    vec![found]
}
