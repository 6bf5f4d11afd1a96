//! Cycles and energy per I/O, by the formulas of [OS layers §3]. Arithmetic only: measurements are inputs.
//!
//! An I/O is 512 bytes moved, whatever the size of the requests, so that many small requests do not look efficient.
//!
//! ```text
//! cpio = (user + system cycles) / I/Os
//! eio  = P · (cpio + IP · cpio_idle) / (N · F)      cpio_idle: idle and iowait cycles per I/O
//! ```
//!
//! P / N is the draw of one core at full load, so a layer's energy is its cycles' share of that.

use ebb_output::Deviations;
use ebb_types::{Joules, Watts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Bytes of one I/O [OS layers §3].
pub const IO_BYTES: u64 = 512;
/// Numbers of cores to which the core sweep is projected [OS layers §7].
pub const PROJECTED_CORES: [u32; 3] = [128, 256, 1024];
/// Different numbers of cores of which a projection is made: a line passes through any two, however little they say
/// about a third.
pub const LEAST_NUMBERS: usize = 3;

/// Cycles per second of a core.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hertz(pub f64);

/// A number of CPU cycles; per I/O it may be a fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cycles(pub f64);

impl Cycles {
    pub fn of(time: Duration, frequency: Hertz) -> Cycles {
        Cycles(time.as_secs_f64() * frequency.0)
    }

    fn per(self, ios: u64) -> Cycles {
        Cycles(self.0 / ios as f64)
    }
}

/// Cycles spent by a machine's cores or, without idle and iowait, by one command.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub user: Cycles,
    pub system: Cycles,
    /// Absent for a command: idle time cannot be attributed to it.
    pub idle: Option<Cycles>,
    pub iowait: Option<Cycles>,
}

/// Cycles per I/O, by layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpio {
    #[serde(rename = "user_cycles")]
    pub user: Cycles,
    #[serde(rename = "system_cycles")]
    pub system: Cycles,
    #[serde(rename = "idle_cycles")]
    pub idle: Option<Cycles>,
    #[serde(rename = "iowait_cycles")]
    pub iowait: Option<Cycles>,
    /// User and system: the paper's cpio.
    #[serde(rename = "cycles")]
    pub total: Cycles,
}

impl Cpio {
    /// `None`: there was no I/O to divide by.
    pub fn new(spent: &Spent, ios: u64) -> Option<Cpio> {
        (ios > 0).then(|| Cpio {
            user: spent.user.per(ios),
            system: spent.system.per(ios),
            idle: spent.idle.map(|cycles| cycles.per(ios)),
            iowait: spent.iowait.map(|cycles| cycles.per(ios)),
            total: Cycles(spent.user.0 + spent.system.0).per(ios),
        })
    }

    fn waiting(&self) -> Cycles {
        Cycles(self.idle.unwrap_or_default().0 + self.iowait.unwrap_or_default().0)
    }
}

/// The power model: storage devices are not included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Draw of `cores` fully loaded cores and everything they need (P).
    pub peak: Watts,
    /// Share of the peak that idle cores draw (IP).
    pub idle_fraction: f64,
    pub cores: usize,
    pub frequency: Hertz,
}

/// Modelled energy per I/O: joules per I/O (eio), and, times a million, per million I/Os (emio).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eio {
    pub idle_fraction: f64,
    #[serde(rename = "user_joules")]
    pub user: Joules,
    #[serde(rename = "user_and_system_joules")]
    pub user_and_system: Joules,
    /// Cost of waiting: idle and iowait.
    #[serde(rename = "idle_joules")]
    pub idle: Joules,
    /// The paper's eio.
    #[serde(rename = "joules")]
    pub total: Joules,
}

impl Eio {
    pub fn new(cpio: &Cpio, power: &Power) -> Eio {
        let joules = |cycles: f64| Joules(power.peak.0 * cycles / (power.cores as f64 * power.frequency.0));
        let idle = joules(power.idle_fraction * cpio.waiting().0);
        let busy = joules(cpio.total.0);
        Eio {
            idle_fraction: power.idle_fraction,
            user: joules(cpio.user.0),
            user_and_system: busy,
            idle,
            total: busy + idle,
        }
    }
}

/// System cycles per I/O against cores: a line through the measured runs, extrapolated to many cores [OS layers §7].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// Slope of the line: the increase in system cycles per I/O with each core.
    #[serde(rename = "cycles_per_core")]
    pub slope: Cycles,
    #[serde(rename = "intercept_cycles")]
    pub intercept: Cycles,
    /// Share of the runs' variance that the line explains. Absent: the runs do not differ.
    pub r_squared: Option<f64>,
    /// One per [`PROJECTED_CORES`].
    pub at: Vec<Projected>,
}

/// The line at one number of cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projected {
    pub cores: u32,
    /// System cycles per I/O. Absent if the line has fallen below zero by then, where it is meaningless.
    pub cycles: Option<Cycles>,
    /// Relative to the measured mean at the fewest cores.
    pub growth: Option<f64>,
    /// Where the growth of one more run would be with a probability of 95 %, if the line were the truth. It may reach
    /// below zero: then the runs do not tell growth from decline.
    pub growth_low: Option<f64>,
    pub growth_high: Option<f64>,
}

/// Quantiles of 97.5 % of Student's distribution, from one degree of freedom on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Student's quantile of 97.5 %, the end of an interval of 95 %; beyond the table an approximation that is right to a
/// thousandth. `None` without freedom.
pub fn student(freedom: usize) -> Option<f64> {
    let index = freedom.checked_sub(1)?;
    Some(STUDENT.get(index).copied().unwrap_or(1.96 + 2.46 / freedom as f64))
}

impl Projection {
    /// Least squares. `runs`: cores and system cycles per I/O of each. `None`: fewer than [`LEAST_NUMBERS`] of cores.
    pub fn new(runs: &[(usize, Cycles)]) -> Option<Projection> {
        let numbers: BTreeSet<usize> = runs.iter().map(|run| run.0).collect();
        if numbers.len() < LEAST_NUMBERS {
            return None;
        }
        let count = runs.len() as f64;
        let points: Vec<(f64, f64)> = runs.iter().map(|run| (run.0 as f64, run.1.0)).collect();
        let line = Deviations::of(&points);
        let Deviations { mean: (mean_x, mean_y), xx, xy, yy } = line;
        let fewest = *numbers.first()?;
        let least: Vec<f64> = runs.iter().filter(|run| run.0 == fewest).map(|run| run.1.0).collect();
        let base = least.iter().sum::<f64>() / least.len() as f64;
        let slope = xy / xx;
        let intercept = mean_y - slope * mean_x;
        let freedom = runs.len().saturating_sub(2);
        let deviation = ((yy - slope * xy).max(0.0) / freedom.max(1) as f64).sqrt();
        let at = |cores: u32| {
            let far = f64::from(cores);
            let value = intercept + slope * far;
            let half = student(freedom)
                .map(|t| t * deviation * (1.0 + 1.0 / count + (far - mean_x).powi(2) / xx).sqrt());
            let growth = |value: f64| (base > 0.0).then(|| value / base);
            let cycles = (value > 0.0).then_some(Cycles(value));
            Projected {
                cores,
                cycles,
                growth: cycles.and_then(|cycles| growth(cycles.0)),
                growth_low: half.and_then(|half| growth(value - half)),
                growth_high: half.and_then(|half| growth(value + half)),
            }
        };
        Some(Projection {
            slope: Cycles(slope),
            intercept: Cycles(intercept),
            r_squared: line.r_squared(),
            at: PROJECTED_CORES.map(at).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's machine: 400 W, eight cores of 2.4 GHz.
    fn power(idle_fraction: f64) -> Power {
        Power { peak: Watts(400.0), idle_fraction, cores: 8, frequency: Hertz(2.4e9) }
    }

    /// The shares of Figure 1, as given in the text: of the time on disks 2 % is system, 30 % idle, 42 % iowait, and of
    /// the time on flash 26 %, 7 % and 10 %. The rest is user.
    fn shares(user: f64, system: f64, idle: f64, iowait: f64, ios: u64) -> Cpio {
        let second = 8.0 * 2.4e9;
        let spent = Spent {
            user: Cycles(user * second),
            system: Cycles(system * second),
            idle: Some(Cycles(idle * second)),
            iowait: Some(Cycles(iowait * second)),
        };
        Cpio::new(&spent, ios).unwrap()
    }

    #[test]
    fn energy_follows_the_papers_formula() {
        let disks = shares(0.26, 0.02, 0.30, 0.42, 10_000);
        assert!((disks.total.0 - 0.28 * 19.2e9 / 1e4).abs() < 1e-6);
        // eio = 400 · (537,600 + 0.7 · 1,382,400) / (8 · 2.4e9)
        let eio = Eio::new(&disks, &power(0.7));
        assert!((eio.total.0 - 400.0 * (537_600.0 + 0.7 * 1_382_400.0) / 19.2e9).abs() < 1e-12);
        assert!((eio.user.0 - 400.0 * 499_200.0 / 19.2e9).abs() < 1e-12);
        assert!((eio.user_and_system.0 + eio.idle.0 - eio.total.0).abs() < 1e-15);
        // "An IP of 0.7 compared to 0" costs disks several times more, flash next to nothing.
        let rise = |cpio: &Cpio| Eio::new(cpio, &power(0.7)).total / Eio::new(cpio, &power(0.0)).total;
        assert!((rise(&disks) - 2.8).abs() < 1e-9, "{}", rise(&disks));
        let flash = shares(0.57, 0.26, 0.07, 0.10, 60_000);
        assert!((rise(&flash) - 1.1434).abs() < 1e-4, "{}", rise(&flash));
    }

    #[test]
    fn a_second_of_work_costs_the_peak_and_a_second_of_idleness_its_share() {
        for (busy, watts) in [(1.0, 400.0), (0.0, 280.0), (0.5, 340.0)] {
            let cpio = shares(busy, 0.0, 1.0 - busy, 0.0, 1000);
            assert!((Eio::new(&cpio, &power(0.7)).total.0 * 1000.0 - watts).abs() < 1e-9);
        }
    }

    #[test]
    fn without_io_there_is_no_cost_per_io() {
        assert_eq!(Cpio::new(&Spent::default(), 0), None);
    }

    #[test]
    fn a_command_has_no_idle_energy() {
        let cpio = Cpio::new(&Spent { user: Cycles(10.0), ..Spent::default() }, 1).unwrap();
        assert_eq!(Eio::new(&cpio, &power(0.7)).idle, Joules(0.0));
        assert_eq!(cpio.idle, None);
    }

    #[test]
    fn the_line_extends_to_1024_cores() {
        // Worked out by hand. Means 3.75 and 1262.5; sums of squares 28.75 and 286,875, of products 2862.5. Slope
        // 2862.5 / 28.75 = 99.5652, intercept 1262.5 - 3.75 · 99.5652 = 889.130. Squared residuals 1869.565, with two
        // degrees of freedom: deviation 30.5742, times 4.303.
        let runs = [(1, Cycles(1000.0)), (2, Cycles(1100.0)), (4, Cycles(1250.0)), (8, Cycles(1700.0))];
        let found = Projection::new(&runs).unwrap();
        let near =
            |value: f64, right: f64| assert!((value / right - 1.0).abs() < 1e-4, "{value}, not {right}");
        near(found.slope.0, 99.565_22);
        near(found.intercept.0, 889.130_4);
        near(found.r_squared.unwrap(), 0.993_483);
        // 889.130 + 128 · 99.5652; the interval is 4.303 · 30.5742 · sqrt(1 + 1/4 + 124.25² / 28.75) = 3052.2.
        let near_all = |at: &Projected, cores, cycles, low, high| {
            assert_eq!(at.cores, cores);
            near(at.cycles.unwrap().0, cycles);
            near(at.growth.unwrap(), cycles / 1000.0);
            near(at.growth_low.unwrap(), low);
            near(at.growth_high.unwrap(), high);
        };
        near_all(&found.at[0], 128, 13_633.48, 10.581_31, 16.685_65);
        near_all(&found.at[1], 256, 26_377.83, 20.186_82, 32.568_84);
        near_all(found.at.last().unwrap(), 1024, 102_843.9, 77.810_4, 127.877_4);
    }

    #[test]
    fn runs_that_scatter_leave_the_projection_open() {
        // Two runs each on one, two and three cores: means 110, 120 and 130, each run 10 away from its mean.
        let runs = [(1, 100.0), (1, 120.0), (2, 110.0), (2, 130.0), (3, 120.0), (3, 140.0)];
        let found = Projection::new(&runs.map(|(cores, cycles)| (cores, Cycles(cycles)))).unwrap();
        assert_eq!((found.slope, found.intercept), (Cycles(10.0), Cycles(100.0)));
        // Relative to 110, the mean on one core. Deviation sqrt(600 / 4) = 12.247.
        let at = found.at[0];
        assert!((at.growth.unwrap() - 1380.0 / 110.0).abs() < 1e-9, "{at:?}");
        let half = 2.776 * 12.247_449 * (1.0 + 1.0 / 6.0 + 126.0 * 126.0 / 4.0_f64).sqrt() / 110.0;
        assert!((at.growth_high.unwrap() - (1380.0 / 110.0 + half)).abs() < 1e-4, "{at:?}");
        assert!(at.growth_low.unwrap() < 0.0, "{at:?}");
    }

    #[test]
    fn a_projection_needs_three_numbers_of_cores_and_a_line_that_stays_above_zero() {
        assert_eq!(Projection::new(&[]), None);
        let two = [(1, 5.0), (2, 6.0), (2, 7.0), (1, 5.0)].map(|(cores, cycles)| (cores, Cycles(cycles)));
        assert_eq!(Projection::new(&two), None, "any line fits two");
        let falling = [(1, 10.0), (2, 9.0), (4, 7.0)].map(|(cores, cycles)| (cores, Cycles(cycles)));
        let falling = Projection::new(&falling).unwrap();
        let at = falling.at.last().unwrap();
        assert_eq!((at.cycles, at.growth), (None, None));
    }
}
