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

use ebb_types::{Joules, Watts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes of one I/O [OS layers §3].
pub const IO_BYTES: u64 = 512;
/// Number of cores to which the core sweep is projected [OS layers §7].
pub const PROJECTED_CORES: u32 = 1024;

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

/// System cycles per I/O against cores: a line through the measured points, extrapolated to many cores [OS layers §7].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    pub cores: u32,
    /// Slope of the line: the increase in system cycles per I/O with each core.
    #[serde(rename = "cycles_per_core")]
    pub slope: Cycles,
    #[serde(rename = "intercept_cycles")]
    pub intercept: Cycles,
    /// Share of the points' variance that the line explains. Absent with two points: any line fits those.
    pub r_squared: Option<f64>,
    /// System cycles per I/O at `cores`. Absent if the line has fallen below zero by then, where it is meaningless.
    #[serde(rename = "projected_cycles")]
    pub projected: Option<Cycles>,
    /// Relative to the measured cycles at the fewest cores.
    pub growth: Option<f64>,
}

impl Projection {
    /// Least squares. `points`: cores and system cycles per I/O. `None`: fewer than two different numbers of cores.
    pub fn new(points: &[(usize, Cycles)]) -> Option<Projection> {
        let count = points.len() as f64;
        let (x, y) = (|p: &(usize, Cycles)| p.0 as f64, |p: &(usize, Cycles)| p.1.0);
        let mean_x = points.iter().map(x).sum::<f64>() / count;
        let mean_y = points.iter().map(y).sum::<f64>() / count;
        let xx: f64 = points.iter().map(|p| (x(p) - mean_x).powi(2)).sum();
        let xy: f64 = points.iter().map(|p| (x(p) - mean_x) * (y(p) - mean_y)).sum();
        let yy: f64 = points.iter().map(|p| (y(p) - mean_y).powi(2)).sum();
        let first = points.iter().min_by_key(|p| p.0)?;
        // Written so that an empty list (whose mean is NaN) is refused too.
        if xx.is_nan() || xx <= 0.0 {
            return None;
        }
        let slope = xy / xx;
        let intercept = mean_y - slope * mean_x;
        let projected = intercept + slope * f64::from(PROJECTED_CORES);
        let projected = (projected > 0.0).then_some(Cycles(projected));
        Some(Projection {
            cores: PROJECTED_CORES,
            slope: Cycles(slope),
            intercept: Cycles(intercept),
            r_squared: (points.len() > 2 && yy > 0.0).then(|| xy * xy / (xx * yy)),
            projected,
            growth: projected.filter(|_| first.1.0 > 0.0).map(|cycles| cycles.0 / first.1.0),
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
        // The paper's average: twelvefold and ninetyfold are on one line of slope 0.0879 per core.
        let line = |cores: usize| (cores, Cycles(1000.0 * (1.0 + 0.0879 * (cores as f64 - 1.0))));
        let found = Projection::new(&[line(1), line(4), line(8), line(16)]).unwrap();
        assert!((found.growth.unwrap() - 90.9).abs() < 0.1, "{found:?}");
        assert!((found.r_squared.unwrap() - 1.0).abs() < 1e-9);
        let at_128 = (found.intercept.0 + 128.0 * found.slope.0) / 1000.0;
        assert!((at_128 - 12.16).abs() < 0.01, "{at_128}");
    }

    #[test]
    fn a_projection_needs_two_numbers_of_cores_and_a_line_that_stays_above_zero() {
        assert_eq!(Projection::new(&[]), None);
        assert_eq!(Projection::new(&[(2, Cycles(5.0)), (2, Cycles(6.0))]), None);
        let falling = Projection::new(&[(1, Cycles(10.0)), (2, Cycles(9.0))]).unwrap();
        assert_eq!((falling.projected, falling.growth, falling.r_squared), (None, None, None));
    }
}
