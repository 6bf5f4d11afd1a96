//! How faithful a filtered trace is to its original, as in Tables IV and V of TRACER, and beyond its means.
//!
//! The load proportion of a filtered trace is its throughput over the original's [TRACER §VI.B, equation 1], its
//! accuracy the load proportion over the configured one [equation 2]. Filters keep the times, so both traces have the
//! original's duration and the ratio of throughputs is that of requests or bytes. Means say nothing about arrivals; two
//! distances do.

use crate::{Kind, Request};

/// Equal intervals of the trace's duration in which the load over time is compared.
const INTERVALS: usize = 100;

/// Figures of a trace that filtered versions are compared with. 4 bytes of memory per request.
pub struct Original {
    figures: Figures,
    span: u128,
}

/// How faithful a filtered trace is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// The requested share.
    pub share: f64,
    /// Requests that were kept.
    pub requests: u64,
    /// Measured over configured load proportion in requests per second; 1 is exact. `None`: the original has no
    /// request.
    pub iops: Option<f64>,
    /// The same in bytes per second. `None`: the original moves no byte.
    pub bytes: Option<f64>,
    /// Share of reads minus the original's. `None`: nothing was kept.
    pub reads: Option<f64>,
    /// Kolmogorov-Smirnov distance of the inter-arrival times from those of the original slowed down to the same share:
    /// 0 is the same distribution, 1 is none in common. `None`: fewer than two requests.
    pub gaps: Option<f64>,
    /// Share of the requests that would have to arrive in another hundredth of the trace's duration to give the
    /// original's load over time. `None`: nothing was kept.
    pub shape: Option<f64>,
}

struct Figures {
    requests: u64,
    bytes: u64,
    reads: u64,
    /// Inter-arrival times in nanoseconds, at the original's rate, sorted.
    gaps: Vec<f32>,
    /// Requests in each interval.
    intervals: [u64; INTERVALS],
}

impl Figures {
    fn of(requests: impl Iterator<Item = Request>, span: u128, share: f64) -> Self {
        let mut found = Self { requests: 0, bytes: 0, reads: 0, gaps: Vec::new(), intervals: [0; INTERVALS] };
        let mut last = None;
        for request in requests {
            let at = request.at.as_nanos();
            if let Some(last) = last.replace(at) {
                found.gaps.push(rounded((at - last) as f64 * share));
            }
            found.requests += 1;
            found.bytes += u64::from(request.len);
            found.reads += u64::from(request.kind == Kind::Read);
            let interval = (at * INTERVALS as u128).checked_div(span).unwrap_or(0);
            found.intervals[(interval as usize).min(INTERVALS - 1)] += 1;
        }
        found.gaps.sort_unstable_by(f32::total_cmp);
        found
    }

    fn read_share(&self) -> f64 {
        self.reads as f64 / self.requests as f64
    }
}

/// Rounded to twelve binary digits, so that gaps that differ only by the rounding of a share compare equal.
fn rounded(value: f64) -> f32 {
    const DROPPED: u32 = 12;
    let bits = (value as f32).to_bits() + (1 << (DROPPED - 1));
    f32::from_bits(bits >> DROPPED << DROPPED)
}

/// Kolmogorov-Smirnov distance of two sorted samples; `None` if one is empty.
fn distance(a: &[f32], b: &[f32]) -> Option<f64> {
    let (mut i, mut j, mut most) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        i += a[i..].iter().take_while(|&&gap| gap <= value).count();
        j += b[j..].iter().take_while(|&&gap| gap <= value).count();
        most = most.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    (!a.is_empty() && !b.is_empty()).then_some(most)
}

impl Original {
    /// Of requests in time order.
    pub fn of(requests: &[Request]) -> Self {
        let span = requests.last().map_or(0, |request| request.at.as_nanos());
        Self { figures: Figures::of(requests.iter().copied(), span, 1.0), span }
    }

    /// Compares the original with `kept`, the output of a filter asked for `share`.
    pub fn compare(&self, share: f64, kept: impl Iterator<Item = Request>) -> Accuracy {
        let (whole, kept) = (&self.figures, Figures::of(kept, self.span, share));
        let accuracy = |kept: u64, whole: u64| (whole > 0).then(|| kept as f64 / (whole as f64 * share));
        let portion = |figures: &Figures, i: usize| figures.intervals[i] as f64 / figures.requests as f64;
        let moved =
            || (0..INTERVALS).map(|i| (portion(&kept, i) - portion(whole, i)).abs()).sum::<f64>() / 2.0;
        Accuracy {
            share,
            requests: kept.requests,
            iops: accuracy(kept.requests, whole.requests),
            bytes: accuracy(kept.bytes, whole.bytes),
            reads: (kept.requests > 0).then(|| kept.read_share() - whole.read_share()),
            gaps: distance(&kept.gaps, &whole.gaps),
            shape: (kept.requests > 0).then(moved),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(ms: u64, len: u32, kind: Kind) -> Request {
        Request { at: Duration::from_millis(ms), device: 0, offset: 0, len, kind }
    }

    #[test]
    fn a_comb_through_an_even_trace_is_exact() {
        let whole: Vec<Request> = (0..1000).map(|ms| request(ms * 7, 4096, Kind::Read)).collect();
        let kept = whole.iter().copied().skip(9).step_by(10);
        let found = Original::of(&whole).compare(0.1, kept);
        assert_eq!((found.requests, found.iops, found.bytes), (100, Some(1.0), Some(1.0)));
        assert_eq!((found.reads, found.gaps), (Some(0.0), Some(0.0)));
        assert!(found.shape.unwrap() < 0.02, "{found:?}");
    }

    #[test]
    fn each_figure_tells_its_own_difference() {
        // A read of 1 KiB every 10 ms, and a write of 3 KiB 1 ms after it.
        let whole: Vec<Request> = (0..500)
            .flat_map(|i| [request(10 * i, 1024, Kind::Read), request(10 * i + 1, 3072, Kind::Write)])
            .collect();
        let original = Original::of(&whole);
        let reads = original.compare(0.5, whole.iter().copied().filter(|r| r.kind == Kind::Read));
        assert_eq!((reads.iops, reads.bytes, reads.reads), (Some(1.0), Some(0.5), Some(0.5)));
        // Gaps of 5 ms, after scaling, against 1 and 9 ms, half of each.
        assert!((reads.gaps.unwrap() - 0.5).abs() < 0.01, "{reads:?}");
        assert!(reads.shape.unwrap() < 0.01, "{reads:?}");
        let half = original.compare(0.5, whole[..500].iter().copied());
        // Half of the time at the full rate: after scaling, gaps of 0.5 and 4.5 ms.
        assert!((half.shape.unwrap() - 0.5).abs() < 0.01, "{half:?}");
        assert!((half.gaps.unwrap() - 0.5).abs() < 0.01, "{half:?}");
    }

    #[test]
    fn what_cannot_be_compared_is_absent() {
        let none = Original::of(&[]).compare(0.5, std::iter::empty());
        assert_eq!(
            (none.iops, none.bytes, none.reads, none.gaps, none.shape),
            (None, None, None, None, None)
        );
        let burst = [request(0, 0, Kind::Read), request(0, 0, Kind::Read)];
        let found = Original::of(&burst).compare(0.5, burst[..1].iter().copied());
        assert_eq!((found.iops, found.bytes, found.gaps), (Some(1.0), None, None));
    }
}
