//! Mean time to data loss of a set of servers that survives a number of failures [ECS² §4.1].
//!
//! A Markov chain: state i has i failed servers. From each state a further server fails; from the last one that is
//! survived, a sector error during the rebuild or an error of memory loses data, too. All failed servers are rebuilt at
//! once, back to state 0 [ECS² Figure 6].

use serde::{Deserialize, Serialize};

/// Failures and repairs per hour.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// λN: of a server.
    pub server_per_hour: f64,
    /// λD: of the disks of a server.
    pub disk_per_hour: f64,
    /// λS: sector errors during a rebuild.
    pub sector_per_hour: f64,
    /// λM: errors of memory during a rebuild.
    pub memory_per_hour: f64,
    /// μ: 1/(mean time to repair).
    pub repair_per_hour: f64,
}

/// The paper's figures.
impl Default for Rates {
    fn default() -> Rates {
        Rates {
            server_per_hour: 1.0 / 100_000.0,
            disk_per_hour: 1.0 / 500_000.0,
            sector_per_hour: 1.0 / 13_245.0,
            memory_per_hour: 0.0,
            repair_per_hour: 1.0 / 10.0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RatesError {
    #[error("{name} is {value}: give a rate per hour, 0 or more")]
    Rate { name: &'static str, value: f64 },
    #[error("no server ever fails by these rates: give server_per_hour or disk_per_hour")]
    NoFailures,
}

impl Rates {
    pub fn check(&self) -> Result<(), RatesError> {
        let rates = [
            ("server_per_hour", self.server_per_hour),
            ("disk_per_hour", self.disk_per_hour),
            ("sector_per_hour", self.sector_per_hour),
            ("memory_per_hour", self.memory_per_hour),
            ("repair_per_hour", self.repair_per_hour),
        ];
        if let Some((name, value)) = rates.into_iter().find(|(_, rate)| !rate.is_finite() || *rate < 0.0) {
            return Err(RatesError::Rate { name, value });
        }
        if self.failure() == 0.0 { Err(RatesError::NoFailures) } else { Ok(()) }
    }

    /// Of one server with its disks.
    fn failure(&self) -> f64 {
        self.server_per_hour + self.disk_per_hour
    }

    /// Of one server, when no further failure is survived.
    fn last_failure(&self) -> f64 {
        self.failure() + self.sector_per_hour + self.memory_per_hour
    }

    /// Rates out of states 0 to `tolerance`, towards more failures.
    fn steps(&self, servers: usize, tolerance: usize) -> Vec<f64> {
        assert!(tolerance < servers, "a server is left to fail");
        let rate = |failed| if failed == tolerance { self.last_failure() } else { self.failure() };
        (0..=tolerance).map(|failed| (servers - failed) as f64 * rate(failed)).collect()
    }
}

/// Mean hours to data loss, by the paper's approximation for failures that are rare beside repairs: μ^t over the
/// product of the steps. Formula (1) for k servers and two failures; formula (2) for k + 3 servers and three.
pub fn approximate_hours(servers: usize, tolerance: usize, rates: &Rates) -> f64 {
    let steps = rates.steps(servers, tolerance);
    rates.repair_per_hour.powi(tolerance as i32) / steps.iter().product::<f64>()
}

/// Mean hours to data loss of the Markov chain itself.
///
/// With T(i) the mean time from state i: T(i) = (1 + a(i)·T(i+1) + μ·T(0)) / (a(i) + μ), and T(0) = 1/a(0) + T(1). T(i)
/// is carried as A + (1 - D)·T(0), since 1 - D would lose all digits of D.
pub fn chain_hours(servers: usize, tolerance: usize, rates: &Rates) -> f64 {
    let steps = rates.steps(servers, tolerance);
    let repair = rates.repair_per_hour;
    let (mut own, mut lost) = (0.0, 1.0);
    for step in steps[1..].iter().rev() {
        own = (1.0 + step * own) / (step + repair);
        lost *= step / (step + repair);
    }
    (1.0 / steps[0] + own) / lost
}

/// Probability of data loss within a time. Formula (3).
pub fn loss_probability(hours: f64, mean_hours: f64) -> f64 {
    -(-hours / mean_hours).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: f64 = 365.0 * 24.0;

    fn is(found: f64, wanted: f64, digits: i32) {
        let error = (found / wanted - 1.0).abs();
        assert!(error < 0.5 * 10f64.powi(1 - digits), "{found:e} is not {wanted:e}");
    }

    #[test]
    fn formula_1_the_active_group_of_six_loses_data_in_755_000_years() {
        is(approximate_hours(6, 2, &Rates::default()) / YEAR, 7.55e5, 3);
    }

    #[test]
    fn formula_2_needs_mu_cubed_and_then_gives_250_not_299_million_years() {
        let rates = Rates::default();
        is(approximate_hours(9, 3, &rates) / YEAR, 2.50e8, 3);
        // The printed 2.99e8 follows if one of the three failures is a server's alone, without its disks.
        let printed = approximate_hours(9, 3, &rates) * rates.failure() / rates.server_per_hour;
        is(printed / YEAR, 2.99e8, 2);
        is(loss_probability(10.0 * YEAR, 2.99e8 * YEAR), 3.34e-8, 3);
        is(loss_probability(10.0 * YEAR, approximate_hours(9, 3, &rates)), 4.01e-8, 3);
    }

    #[test]
    fn formula_3_gives_1_51_not_1_54_in_ten_billion_for_an_hour() {
        is(loss_probability(1.0, approximate_hours(6, 2, &Rates::default())), 1.51e-10, 3);
    }

    /// One server, no failure survived: 1/λ. Two servers, one survived: (3λ + μ)/2λ² if there are no other errors.
    #[test]
    fn the_chain_is_the_textbooks() {
        let rates = Rates {
            server_per_hour: 0.01,
            disk_per_hour: 0.0,
            sector_per_hour: 0.0,
            memory_per_hour: 0.0,
            repair_per_hour: 0.5,
        };
        is(chain_hours(1, 0, &rates), 100.0, 9);
        is(chain_hours(2, 1, &rates), (3.0 * 0.01 + 0.5) / (2.0 * 0.01 * 0.01), 9);
    }

    #[test]
    fn the_approximation_is_the_chain_where_failures_are_rare() {
        for (servers, tolerance) in [(6, 2), (9, 3), (12, 2), (16, 4)] {
            let rates = Rates::default();
            let (near, chain) =
                (approximate_hours(servers, tolerance, &rates), chain_hours(servers, tolerance, &rates));
            assert!((0.98..1.0).contains(&(near / chain)), "{near:e} {chain:e}");
        }
        let often = Rates { server_per_hour: 0.1, ..Rates::default() };
        assert!(approximate_hours(6, 2, &often) < 0.5 * chain_hours(6, 2, &often));
    }

    #[test]
    fn rates_that_say_nothing_are_refused() {
        let bad = Rates { repair_per_hour: f64::NAN, ..Rates::default() };
        assert!(matches!(bad.check(), Err(RatesError::Rate { name: "repair_per_hour", .. })));
        let never = Rates { server_per_hour: 0.0, disk_per_hour: 0.0, ..Rates::default() };
        assert_eq!(never.check(), Err(RatesError::NoFailures));
        assert_eq!(Rates::default().check(), Ok(()));
    }
}
