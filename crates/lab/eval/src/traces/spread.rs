//! The spread of values: percentiles from a histogram of bounded size.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Percentiles to two significant digits; mean and variation exact. Times are in seconds, distances in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub mean: f64,
    /// Standard deviation over the mean: 0 is a clock, 1 a Poisson process, more is bursty. `None` if the mean is zero.
    pub variation: Option<f64>,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
    /// Points `(value, share of values that are no larger)` of the whole distribution, for a plot.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

/// Points of a distribution's curve.
const CURVE: u32 = 200;

/// Whole numbers up to 2^63, collected in at most 120 KiB.
pub(super) struct Spreading {
    histogram: Histogram<u64>,
    mean: f64,
    squares: f64,
}

impl Spreading {
    pub(super) fn new() -> Spreading {
        let histogram = Histogram::new_with_max(i64::MAX as u64, 2).expect("the bounds are good");
        Spreading { histogram, mean: 0.0, squares: 0.0 }
    }

    pub(super) fn add(&mut self, value: u64) {
        self.histogram.saturating_record(value);
        // Welford's method: a plain sum of squares would lose the significant digits.
        let from_old = value as f64 - self.mean;
        self.mean += from_old / self.histogram.len() as f64;
        self.squares += from_old * (value as f64 - self.mean);
    }

    /// In units of `unit`; `None`: there is no value.
    pub(super) fn finish(&self, unit: f64) -> Option<Spread> {
        let count = self.histogram.len();
        if count == 0 {
            return None;
        }
        let at = |share: f64| self.histogram.value_at_quantile(share) as f64 / unit;
        Some(Spread {
            mean: self.mean / unit,
            variation: (self.mean > 0.0).then(|| (self.squares / count as f64).sqrt() / self.mean),
            p10: at(0.1),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
            curve: (0..=CURVE).map(|i| f64::from(i) / f64::from(CURVE)).map(|q| (at(q), q)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_variation_are_those_of_the_values() {
        let mut spreading = Spreading::new();
        assert_eq!(spreading.finish(1.0), None);
        (1..=1000).for_each(|value| spreading.add(value * 1000));
        let spread = spreading.finish(1000.0).unwrap();
        for (found, right) in
            [(spread.mean, 500.5), (spread.p50, 500.0), (spread.p99, 990.0), (spread.max, 1000.0)]
        {
            assert!((found / right - 1.0).abs() < 0.01, "{found} is not {right}");
        }
        // A uniform distribution's deviation is its width over the root of twelve.
        assert!((spread.variation.unwrap() - 0.577).abs() < 0.001);
        assert!(spread.curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1));
    }
}
