//! How long requests took, as counts in log-linear buckets: what servers count, send and the leader adds up.
//! Percentiles come from the sum of counts; a mean of percentiles would be none.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

/// Buckets per power of two: each is at most a sixteenth as wide as where it begins.
const PER_OCTAVE: u64 = 16;
const OCTAVE_BITS: u32 = PER_OCTAVE.trailing_zeros();

/// How often a request took how long. Empty buckets take no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Requests by the number of their bucket.
    counts: BTreeMap<u16, u64>,
    /// Of all requests.
    nanos: u64,
}

/// Nanoseconds below [`PER_OCTAVE`] have a bucket each; above, each power of two has that many.
fn bucket(nanos: u64) -> u16 {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(OCTAVE_BITS + 1);
    (u64::from(shift) * PER_OCTAVE + (nanos >> shift)) as u16
}

/// The first number of nanoseconds beyond a bucket. A bucket that cannot be ends with the last one.
fn end(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let shift = (bucket / PER_OCTAVE).saturating_sub(1);
    let within = bucket - shift * PER_OCTAVE;
    u64::try_from((u128::from(within) + 1) << shift.min(64)).unwrap_or(u64::MAX)
}

impl Latencies {
    pub fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        *self.counts.entry(bucket(nanos)).or_default() += 1;
        self.nanos = self.nanos.saturating_add(nanos);
    }

    pub fn count(&self) -> u64 {
        self.counts.values().fold(0u64, |sum, count| sum.saturating_add(*count))
    }

    /// All times added up.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Requests that took less than this, whole buckets only: exact for powers of two of nanoseconds.
    pub fn below(&self, bound: Duration) -> u64 {
        let bound = bound.as_nanos();
        let within = self.counts.iter().take_while(|(bucket, _)| u128::from(end(**bucket)) <= bound);
        within.fold(0u64, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// At most this, of a `share` of the requests from 0 to 1; at most a sixteenth too long. `None`: there was no
    /// request.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = (self.count() as f64 * share).ceil().max(1.0);
        let mut sum = 0.0;
        let found = self.counts.iter().find(|(_, count)| {
            sum += **count as f64;
            sum >= rank
        });
        found.map(|(bucket, _)| Duration::from_nanos(end(*bucket)))
    }
}

impl AddAssign<&Latencies> for Latencies {
    fn add_assign(&mut self, other: &Latencies) {
        self.nanos = self.nanos.saturating_add(other.nanos);
        for (bucket, more) in &other.counts {
            let count = self.counts.entry(*bucket).or_default();
            *count = count.saturating_add(*more);
        }
    }
}

/// Those of reads and of writes. A write is counted once, where it was ordered, and has ended once all its copies are
/// durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedLatencies {
    pub reads: Latencies,
    pub writes: Latencies,
}

impl AddAssign<&ServedLatencies> for ServedLatencies {
    fn add_assign(&mut self, other: &ServedLatencies) {
        self.reads += &other.reads;
        self.writes += &other.writes;
    }
}

/// What is shown of one kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    pub count: u64,
    pub p50_millis: f64,
    pub p99_millis: f64,
}

impl LatencyFigures {
    /// `None`: there was no request.
    pub fn of(latencies: &Latencies) -> Option<LatencyFigures> {
        let millis = |share| Some(latencies.quantile(share)?.as_secs_f64() * 1e3);
        Some(LatencyFigures { count: latencies.count(), p50_millis: millis(0.5)?, p99_millis: millis(0.99)? })
    }
}

/// Of all servers' requests together, over `span_millis` that are over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    pub span_millis: u64,
    /// Absent: there was no request.
    pub reads: Option<LatencyFigures>,
    pub writes: Option<LatencyFigures>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(millis: impl IntoIterator<Item = u64>) -> Latencies {
        let mut all = Latencies::default();
        millis.into_iter().for_each(|millis| all.add(Duration::from_millis(millis)));
        all
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut before = 0;
        for n in 0..=bucket(u64::MAX) {
            let (first, last) = (before, end(n) - u64::from(end(n) != u64::MAX));
            assert_eq!((bucket(first), bucket(last)), (n, n), "{first} to {last}");
            assert!(last - first <= first / PER_OCTAVE, "{first} to {last}");
            before = end(n);
        }
        assert_eq!(before, u64::MAX);
        assert_eq!(end(u16::MAX), u64::MAX, "a number from the network does no harm");
    }

    #[test]
    fn quantiles_are_those_of_all_together_and_not_their_mean() {
        let (quick, slow) = (of(std::iter::repeat_n(1, 980)), of(std::iter::repeat_n(500, 20)));
        let mut all = quick.clone();
        all += &slow;
        let millis = |of: &Latencies, share| of.quantile(share).unwrap().as_secs_f64() * 1e3;
        assert!((1.0..1.07).contains(&millis(&all, 0.5)) && (1.0..1.07).contains(&millis(&all, 0.98)));
        assert!((500.0..532.0).contains(&millis(&all, 0.99)), "two in a hundred were slow");
        assert!((1.0..1.07).contains(&millis(&quick, 0.99)));
        let figures = LatencyFigures::of(&all).unwrap();
        assert_eq!((figures.count, figures.p99_millis), (1000, millis(&all, 0.99)));
        assert_eq!(LatencyFigures::of(&Latencies::default()), None, "no request has no latency");
    }

    #[test]
    fn what_is_below_a_power_of_two_is_exact() {
        let all = of([1, 2, 4, 8, 5000]);
        let below = |nanos: u64| all.below(Duration::from_nanos(nanos));
        assert_eq!([below(1 << 19), below(1 << 20), below(1 << 23), below(u64::MAX)], [0, 1, 4, 5]);
        let mut endless = Latencies::default();
        endless.add(Duration::MAX);
        assert_eq!((endless.count(), endless.quantile(1.0)), (1, Some(Duration::from_nanos(u64::MAX))));
    }
}
