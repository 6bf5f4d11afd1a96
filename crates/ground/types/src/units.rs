//! Units as types. A number that has a unit is never a bare `f64` or `u64` inside Ebb; names carry the unit only where
//! a number leaves the program (`energy_joules_total`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::time::Duration;

macro_rules! sums {
    ($name:ident) => {
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::default(), Add::add)
            }
        }
    };
}

macro_rules! float_unit {
    ($(#[$doc:meta])* $name:ident, $symbol:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);

        sums!($name);
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:.1} {}", self.0, $symbol)
            }
        }
    };
}

float_unit!(
    /// Power.
    Watts,
    "W"
);
float_unit!(
    /// Energy.
    Joules,
    "J"
);

impl Mul<Duration> for Watts {
    type Output = Joules;
    fn mul(self, time: Duration) -> Joules {
        Joules(self.0 * time.as_secs_f64())
    }
}

/// A count of bytes: a size, a length or an amount moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }
}

sums!(Bytes);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {}", UNITS[unit]) }
    }
}

/// A point on the clock that the driver hands in: nanoseconds since that clock's start.
///
/// Decision makers never read a clock. Programs pass a clock that keeps counting through suspend (`CLOCK_BOOTTIME`),
/// so that a server that slept through the end of its lease sees that it has expired. The simulator passes its own.
/// Moments of different machines are never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    pub const ZERO: Moment = Moment(0);
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time.as_nanos().min(u64::MAX as u128) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watts_times_time_is_joules() {
        assert_eq!(Watts(5.4) * Duration::from_secs(10), Joules(54.0));
    }

    #[test]
    fn bytes_are_shown_in_binary_units() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes::mib(64).to_string(), "64.0 MiB");
    }

    #[test]
    fn a_moment_never_runs_backwards() {
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
        assert_eq!(Moment(5) + Duration::MAX, Moment(u64::MAX));
    }
}
