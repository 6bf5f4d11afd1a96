//! Latencies: collected in nanoseconds, reported in milliseconds.

use crate::{Axis, Chart, Mark, Series};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Latencies of one class of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub mean_millis: f64,
    pub p50_millis: f64,
    pub p90_millis: f64,
    pub p95_millis: f64,
    pub p99_millis: f64,
    pub p999_millis: f64,
    pub max_millis: f64,
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

impl Latency {
    /// Exact, from all times: a quantile is the time of nearest rank. `None` if there are none.
    pub fn of(times: impl Iterator<Item = Duration>) -> Option<Latency> {
        let mut all: Vec<u64> = times.map(nanos).collect();
        all.sort_unstable();
        let (count, max) = (all.len(), *all.last()?);
        let sum: u128 = all.iter().map(|nanos| u128::from(*nanos)).sum();
        let quantile = |q: f64| all[((q * count as f64).ceil() as usize).clamp(1, count) - 1];
        Some(Latency::new(count as u64, sum as f64 / count as f64 / 1e6, max, quantile))
    }

    fn new(count: u64, mean_millis: f64, max: u64, quantile: impl Fn(f64) -> u64) -> Latency {
        let quantile = |q| millis(quantile(q));
        Latency {
            count,
            mean_millis,
            p50_millis: quantile(0.5),
            p90_millis: quantile(0.9),
            p95_millis: quantile(0.95),
            p99_millis: quantile(0.99),
            p999_millis: quantile(0.999),
            max_millis: millis(max),
        }
    }
}

/// How times are distributed: a line for each class, over the percentiles that are known.
pub fn distribution<'a>(title: &str, classes: impl IntoIterator<Item = (String, &'a Latency)>) -> Chart {
    let names = ["50 %", "90 %", "95 %", "99 %", "99.9 %", "slowest"];
    let chart = Chart::new(title, Axis::new("requests within").names(names), Axis::new("time").time().log());
    let line = |chart: Chart, (name, l): (String, &Latency)| {
        let times = [l.p50_millis, l.p90_millis, l.p95_millis, l.p99_millis, l.p999_millis, l.max_millis];
        let points = times.into_iter().enumerate().map(|(at, millis)| (at as f64, millis / 1e3));
        chart.with(Series::new(name, Mark::Line, points))
    };
    classes.into_iter().fold(chart, line)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Times in constant memory: with three significant digits, from a nanosecond to an hour.
#[derive(Clone, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Histogram {
        const HOUR: u64 = 3_600_000_000_000;
        Histogram(hdrhistogram::Histogram::new_with_bounds(1, HOUR, 3).expect("the bounds are good"))
    }
}

impl Histogram {
    /// A time over an hour counts as an hour.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(nanos(time));
    }

    pub fn add(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// `None` if nothing was recorded.
    pub fn latency(&self) -> Option<Latency> {
        let quantile = |q| self.0.value_at_quantile(q).min(self.0.max());
        (!self.0.is_empty()).then(|| Latency::new(self.0.len(), self.0.mean() / 1e6, self.0.max(), quantile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times_and_nothing_has_none() {
        let times = || (1..=1000).map(Duration::from_millis);
        let exact = Latency::of(times()).unwrap();
        assert_eq!((exact.count, exact.mean_millis), (1000, 500.5));
        assert_eq!((exact.p50_millis, exact.p99_millis, exact.max_millis), (500.0, 990.0, 1000.0));
        let mut histogram = Histogram::default();
        times().for_each(|time| histogram.record(time));
        let rounded = histogram.latency().unwrap();
        for (found, right) in [
            (rounded.mean_millis, exact.mean_millis),
            (rounded.p50_millis, exact.p50_millis),
            (rounded.p95_millis, exact.p95_millis),
            (rounded.p999_millis, exact.p999_millis),
            (rounded.max_millis, exact.max_millis),
        ] {
            assert!((found / right - 1.0).abs() < 2e-3, "{found} is not {right}");
        }
        assert_eq!(Latency::of(std::iter::empty()), None);
        assert_eq!(Histogram::default().latency(), None);
    }
}
