//! Figures 11 and 12: a data server has failed, and its replacement is filled at two rates.

use super::super::findings::Experiment;
use super::runs::{Runs, millis, saved};
use ebb_sim::coded::{Failure, Report, Setup};

const WEB: usize = 0;
/// Megabits per second, and watts without and with ECS² [ECS² §5.3.2].
const RATES: [(f64, f64, f64); 2] = [(450.0, 677.0, 538.0), (750.0, 678.5, 541.0)];
/// Intensity at which clients leave the disks more than a rebuild asks for.
const FEWER: f64 = 0.2;
const NO_FAILURE: &str = "no failure";

fn name(megabits: f64) -> String {
    format!("rebuild at {megabits} Mbit/s")
}

fn with_fewer(what: &str) -> String {
    format!("a fifth of the requests, {what}")
}

pub fn plan(runs: &mut Runs) {
    let fewer = Setup { rate: FEWER, ..runs.setup(0.9) };
    runs.plan(WEB, &with_fewer(NO_FAILURE), fewer.clone());
    for (megabits, ..) in RATES {
        let failure = Some(Failure { server: 0, rebuild_bytes_per_second: megabits * 1e6 / 8.0 });
        runs.plan(WEB, &name(megabits), Setup { failure, ..runs.setup(0.9) });
        runs.plan(WEB, &with_fewer(&name(megabits)), Setup { failure, ..fewer.clone() });
    }
}

pub fn found(runs: &Runs) -> Vec<Experiment> {
    let about = "One data server has failed; its replacement is filled all the time. Only P1 is awake. The rate is what the replacement receives \
        from all others together. The paper: response times rise with the rate, with and without ECS² (Figure 12). Here a rebuild gets what clients leave of \
        the disks: with all of Web-2's requests the rate hardly counts, and what slows answers down is that each read of the lost server's strips is one \
        of all others. A fifth of them leave room for the rates.";
    let mut found = Experiment::new("Figure 11", "A failed data server: Web-2 (with Figure 12)", about);
    let without = runs.get(WEB, "plain").and_then(|(asleep, _)| millis(asleep));
    found.row("no failure: response, ECS²", "ms", None, without);
    for (megabits, on, asleep) in RATES {
        let (name, pair) = (name(megabits), runs.get(WEB, &name(megabits)));
        found.row(format!("{name}: saved"), "%", Some(1.0 - asleep / on), pair.map(saved));
        found.row(format!("{name}: response, ECS²"), "ms", None, pair.and_then(|(asleep, _)| millis(asleep)));
        found.row(format!("{name}: response, always on"), "ms", None, pair.and_then(|(_, on)| millis(on)));
    }
    fewer_rows(runs, &mut found);
    vec![found]
}

/// Each response time, also by that of the next lower rate.
fn fewer_rows(runs: &Runs, found: &mut Experiment) {
    type Of = for<'a> fn((&'a Report, &'a Report)) -> &'a Report;
    let systems: [(&str, Of); 2] = [("ECS²", |pair| pair.0), ("always on", |pair| pair.1)];
    let rebuilds = RATES.map(|(megabits, ..)| name(megabits));
    for (system, of) in systems {
        let mut before: Option<(&str, f64)> = None;
        for what in std::iter::once(NO_FAILURE).chain(rebuilds.iter().map(String::as_str)) {
            let name = with_fewer(what);
            let Some(here) = runs.get(WEB, &name).and_then(|pair| millis(of(pair))) else { continue };
            found.ours(format!("{name}: response, {system}"), "ms", here);
            if let Some((lower, there)) = before {
                let by = format!("{name}: response by that with {lower}, {system}");
                found.ours(by, "", here / there);
            }
            before = Some((what, here));
        }
    }
}
