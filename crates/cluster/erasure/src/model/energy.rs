//! Energy of a set whose parity servers sleep, and of one whose servers do not [ECS² §4.3].

use crate::Shape;
use crate::model::buffer::{Buffers, Writes};
use ebb_types::{Joules, Watts};
use std::time::Duration;

/// A server [ECS² Table VI].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// On, P_power.
    pub on: Watts,
    pub standby: Watts,
    pub up: Duration,
    pub down: Duration,
    pub up_energy: Joules,
    pub down_energy: Joules,
    /// At which a parity server takes what was kept for it, B_node, in bytes per second.
    pub synchronise_rate: f64,
}

impl Default for Power {
    fn default() -> Power {
        Power {
            on: Watts(73.2),
            standby: Watts(5.4),
            up: Duration::from_secs(13),
            down: Duration::from_secs(7),
            up_energy: Joules(1270.0),
            down_energy: Joules(569.0),
            synchronise_rate: 40e6,
        }
    }
}

impl Power {
    /// Shortest stay in standby that saves what its transitions take.
    pub fn break_even(&self) -> Duration {
        Duration::from_secs_f64((self.up_energy + self.down_energy).0 / (self.on - self.standby).0)
    }

    /// The largest share that sleeping parity servers can save, with `failed` data servers failed and replaced: as many
    /// parity servers are awake for them.
    pub fn most_saved(&self, shape: Shape, failed: usize) -> f64 {
        let asleep = shape.parity().saturating_sub(if failed < 3 { failed } else { shape.parity() });
        asleep as f64 * (self.on - self.standby).0 / (shape.servers() as f64 * self.on.0)
    }
}

/// A stretch of time with steady writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub time: Duration,
    pub writes: Writes,
    pub buffers: Buffers,
    /// Fill at which the parity servers are woken, 0 to 1.
    pub threshold: f64,
}

/// By the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub transitions: u64,
    pub synchronising: Duration,
    pub energy: Joules,
    /// With all servers always on: formula (17).
    pub always_on: Joules,
}

impl Estimate {
    pub fn saved(&self) -> f64 {
        1.0 - self.energy.0 / self.always_on.0
    }
}

impl Run {
    /// Formula (10) as the text means it: buffers are emptied at the threshold, which the printed formula leaves out.
    pub fn transitions(&self) -> u64 {
        let filled = self.buffers.fill_rate(&self.writes) * self.time.as_secs_f64();
        (filled / (self.threshold * self.buffers.bytes)) as u64
    }

    /// Formula (13).
    fn synchronising(&self, power: &Power) -> Duration {
        let shape = self.buffers.shape;
        let slower = (shape.parity() as f64 / shape.data() as f64).max(1.0);
        let kept = self.writes.per_second * self.buffers.per_write(&self.writes) * self.time.as_secs_f64();
        Duration::from_secs_f64(slower * kept / power.synchronise_rate)
    }

    /// Formulas (7) to (15). Case 1, in which the time ends during a synchronisation, is not distinguished: its one
    /// transition more is in the rounding of formula (10). Formula (15) prints P_transit for E_transit.
    pub fn estimate(&self, power: &Power) -> Estimate {
        let shape = self.buffers.shape;
        let (seconds, parity) = (self.time.as_secs_f64(), shape.parity() as f64);
        let transitions = self.transitions();
        let synchronising = self.synchronising(power);
        let moving = (power.up + power.down).as_secs_f64() * transitions as f64;
        let asleep = (seconds - moving - synchronising.as_secs_f64()).max(0.0);
        let active = power.on * (shape.data() as f64 * seconds);
        let transit = (power.up_energy + power.down_energy) * (parity * transitions as f64);
        let inactive = power.standby * (parity * asleep) + power.on * (parity * synchronising.as_secs_f64());
        Estimate {
            transitions,
            synchronising,
            energy: Joules(active.0 + inactive.0) + transit,
            always_on: Joules(power.on.0 * shape.servers() as f64 * seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [ECS² Table V], and the threshold of §5.3.1.
    fn hour(iops: f64, write_share: f64, kilobytes: f64, threshold: f64) -> Run {
        Run {
            time: Duration::from_secs(3600),
            writes: Writes { per_second: iops * write_share, bytes: kilobytes * 1e3 },
            buffers: Buffers { shape: Shape::new(6, 3).unwrap(), strip_bytes: 16e3, bytes: 1200e6 },
            threshold,
        }
    }

    fn tenths(share: f64) -> f64 {
        (share * 1000.0).round() / 10.0
    }

    #[test]
    fn the_optimum_is_30_9_percent_and_20_6_with_one_failure() {
        let (power, shape) = (Power::default(), Shape::new(6, 3).unwrap());
        let most = |failed| tenths(power.most_saved(shape, failed));
        assert_eq!([0, 1, 2, 3].map(most), [30.9, 20.6, 10.3, 0.0]);
    }

    #[test]
    fn standby_breaks_even_after_27_seconds() {
        assert_eq!(Power::default().break_even().as_secs_f64().round(), 27.0);
    }

    /// The theoretical values of the four workloads, beside which Figure 9 draws the measured ones.
    #[test]
    fn formulas_7_to_15_give_the_savings_and_transitions_of_the_four_workloads() {
        let power = Power::default();
        let runs = [
            hour(287.0, 0.0002, 8.28, 0.9),
            hour(128.0, 0.178, 3.05, 0.75),
            hour(57.0, 0.3644, 30.47, 0.9),
            hour(91.0, 0.816, 10.67, 0.9),
        ];
        let estimates = runs.map(|run| run.estimate(&power));
        assert_eq!(estimates.map(|e| tenths(e.saved())), [30.9, 30.6, 29.7, 28.1]);
        assert_eq!(estimates.map(|e| e.transitions), [0, 1, 4, 10]);
    }

    /// "The average write throughput of DTRS is 61.80 MB/s", of RAD-BE 77.37: by Table V, in KiB, it is a hundredth of
    /// that. Only so does Fin-2 wake its parity servers once.
    #[test]
    fn printed_write_throughputs_are_a_hundred_times_those_of_table_v() {
        let mebibytes = |run: Run| run.writes.per_second * run.writes.bytes / 1e3 / 1024.0;
        assert!((mebibytes(hour(57.0, 0.3644, 30.47, 0.9)) - 0.618).abs() < 0.0005);
        assert!((mebibytes(hour(91.0, 0.816, 10.67, 0.9)) - 0.774).abs() < 0.0005);
    }
}
