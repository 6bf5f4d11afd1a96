//! Figure 9: the share of servers that stays on when an oracle selects the gears.

use super::findings::{Experiment, PaperError, with_bars};
use super::testbed::{Hourly, REPLICAS, SERVERS};
use ebb_output::{Axis, Chart};
use ebb_sim::load::{Case, Policy, Provision, Setup, free_transitions};
use std::time::Duration;

/// The paper's testbed: chunk servers, and loggers, which never sleep.
const TESTBED: u32 = 15;
const LOGGERS: u32 = 3;

fn setup(servers: u32, g_min: u8) -> Setup {
    Setup {
        servers,
        replicas: REPLICAS,
        g_min,
        train_days: 0,
        provision: Provision::Peak,
        power: free_transitions(),
        wake: Duration::ZERO,
        dwell: Duration::ZERO,
        cycles_per_day: 2.0,
        suspend: None,
        short_goal: 0.01,
        rotate_days: 0,
    }
}

/// Mean servers awake.
fn awake(series: &Hourly, servers: u32, g_min: u8) -> Result<f64, PaperError> {
    let named = |error| PaperError::Load { name: series.name.clone(), error };
    let case = Case::new(setup(servers, g_min), &series.series).map_err(named)?;
    let (outcome, _) = case.play(Policy::Oracle).map_err(named)?;
    Ok(outcome.mean_awake)
}

pub(super) fn oracle_power(all: &[Hourly]) -> Result<Experiment, PaperError> {
    let mut found = Experiment::new(
        "Figure 9",
        "Power consumed with an oracle's gears",
        format!(
            "The share of the servers that cannot sleep when each hour has the lowest gear that its load needs, with one copy \
             of everything awake (g_min 1) or two (g_min 2). Standby draws nothing and transitions are free, as in the paper. \
             On the left, for load series: without loggers, {SERVERS} servers keep the sleepers' writes on each other; \
             with them, {TESTBED} chunk servers and {LOGGERS} loggers that never sleep, against {} always on. On the right, for the trace \
             of the next figures, {TESTBED} chunk servers, with loggers and alone: by the gears of its hours, and what the run of its \
             requests used. The paper draws its values; its text has one: Hotmail's I/O trace on the testbed consumed 77 %.",
            TESTBED + LOGGERS
        ),
    );
    let kinds = [(1, false), (1, true), (2, false), (2, true)];
    let mut bars = vec![Vec::new(); kinds.len()];
    for (at, series) in all.iter().enumerate() {
        for ((g_min, dedicated), bars) in kinds.into_iter().zip(&mut bars) {
            let power = match dedicated {
                true => {
                    let loggers = f64::from(LOGGERS);
                    (awake(series, TESTBED, g_min)? + loggers) / (f64::from(TESTBED) + loggers)
                }
                false => awake(series, SERVERS, g_min)? / f64::from(SERVERS),
            };
            bars.push((at as f64, power));
            found.ours(format!("{}: g_min {g_min}, {}", series.name, loggers(dedicated)), "%", power);
        }
    }
    let names: Vec<&str> = all.iter().map(|series| series.name.as_str()).collect();
    let chart = Chart::new(
        "Power consumed",
        Axis::new("load series").names(names),
        Axis::new("of always on").percent().to(1.0),
    );
    let names = kinds.map(|(g_min, dedicated)| format!("g_min {g_min}, {}", loggers(dedicated)));
    found.charts.push(with_bars(chart, names.into_iter().zip(bars)));
    Ok(found)
}

fn loggers(dedicated: bool) -> &'static str {
    if dedicated { "with loggers" } else { "without loggers" }
}
