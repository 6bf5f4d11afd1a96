//! The frontier of Ebb's policy: savings, shortage and power cycles over its two settings. One point is named: with as
//! much shortage accepted as Sierra's own policy has, and at least as many power cycles, where the two can be compared
//! by their savings.

use super::{Bound, Case, LoadError, Oracles, Outcome, Policy, Shares};
use serde::Serialize;

/// Accepted shares of time with too few servers awake.
pub const SHORT_GOALS: [f64; 5] = [0.002, 0.01, 0.03, 0.1, 0.3];
/// Budgets of power cycles per server and day.
pub const CYCLES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];

/// A setting, what it gives, and the bound for the same shortage and power cycles. Each can be repeated alone, with
/// `--short-goal` and `--cycles`: who accepts more may save less than with another setting within the same limits.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub short_goal: f64,
    pub cycles_per_day: f64,
    /// The point of [`Case::at_sierras_shortage`].
    pub at_sierras_shortage: bool,
    pub outcome: Outcome,
    /// Whether no more of the time was short than was accepted.
    pub goal_met: bool,
    /// Of what oracles save, one of them within the budget.
    #[serde(flatten)]
    pub shares: Shares,
    /// Mean share of servers asleep.
    pub asleep: f64,
    /// Upper bound of that share for the outcome's shortage and power cycles; absent if the cluster is too large to
    /// search.
    pub asleep_bound: Option<f64>,
}

/// Settings that a frontier tries: the grid, and the point at Sierra's shortage.
pub const SETTINGS: usize = CYCLES.len() * SHORT_GOALS.len() + 1;

/// Runs Ebb's policy with every setting; `progress` gets the steps done and the total.
pub fn frontier(case: &Case, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Point>, LoadError> {
    let bound = Bound::new(case);
    let steps = case.loads.len();
    let sierras = case.clone().at_sierras_shortage()?.setup;
    let grid = CYCLES.into_iter().flat_map(|cycles| SHORT_GOALS.map(|goal| (goal, cycles, false)));
    let mut settings: Vec<(f64, f64, bool)> =
        grid.chain([(sierras.short_goal, sierras.cycles_per_day, true)]).collect();
    settings.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.total_cmp(&b.0)));
    let mut points: Vec<Point> = Vec::new();
    // What the oracles save depends on the budget alone, so they run once for each.
    for of_budget in settings.chunk_by(|a, b| a.1 == b.1) {
        let mut case = case.clone();
        case.setup.cycles_per_day = of_budget[0].1;
        let oracles = Oracles::of(&case)?;
        for (short_goal, cycles_per_day, at_sierras_shortage) in of_budget.iter().copied() {
            case.setup.short_goal = short_goal;
            let before = points.len() * steps;
            let mut tell = |done| progress(before + done, SETTINGS * steps);
            let (outcome, _) = case.play_heard(Policy::Ebb, &mut tell)?;
            let goal_met = outcome.short_time <= short_goal;
            let asleep = 1.0 - outcome.mean_awake / f64::from(case.setup.servers);
            let limits = (outcome.short_time, outcome.cycles_per_server_per_day);
            let asleep_bound = bound.as_ref().map(|bound| bound.asleep(limits.0, limits.1));
            let shares = oracles.shares(outcome.savings);
            points.push(Point {
                short_goal,
                cycles_per_day,
                at_sierras_shortage,
                outcome,
                goal_met,
                shares,
                asleep,
                asleep_bound,
            });
        }
    }
    Ok(points)
}
