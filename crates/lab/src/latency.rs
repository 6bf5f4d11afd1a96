//! Latencies: collected in a histogram of bounded size, told in milliseconds.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Of one class of requests. Quantiles are exact to three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    pub count: u64,
    pub p50_millis: f64,
    pub p99_millis: f64,
    pub max_millis: f64,
}

impl Latency {
    /// `None`: there is nothing to tell.
    pub fn of(latencies: impl Iterator<Item = Duration>) -> Option<Latency> {
        let mut histogram = new_histogram();
        latencies.for_each(|latency| record(&mut histogram, latency));
        Latency::from_histogram(&histogram)
    }

    pub(crate) fn from_histogram(histogram: &Histogram<u64>) -> Option<Latency> {
        let millis = |micros: u64| micros as f64 / 1e3;
        (!histogram.is_empty()).then(|| Latency {
            count: histogram.len(),
            p50_millis: millis(histogram.value_at_quantile(0.5)),
            p99_millis: millis(histogram.value_at_quantile(0.99)),
            max_millis: millis(histogram.max()),
        })
    }
}

/// Microseconds up to an hour, to three digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are good")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    histogram.saturating_record(latency.as_micros() as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_values_and_nothing_has_none() {
        let latency = Latency::of((1..=1000).map(Duration::from_millis)).unwrap();
        assert_eq!(latency.count, 1000);
        for (found, right) in
            [(latency.p50_millis, 500.0), (latency.p99_millis, 990.0), (latency.max_millis, 1000.0)]
        {
            assert!((found / right - 1.0).abs() < 2e-3, "{found} is not {right}");
        }
        assert_eq!(Latency::of(std::iter::empty()), None);
    }
}
