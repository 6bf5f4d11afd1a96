//! How long clients' requests took, of all servers together: added up from heartbeats, in stretches of [`SPAN`].
//! Nothing is asked or sent for it: a heartbeat of a server that answered nothing has nothing of it.

use ebb_types::{LatencyFigures, LatencyStatus, Moment, ServedLatencies};
use std::time::Duration;

/// Long enough for a 99th percentile of a few requests a second, short enough to follow a shift.
pub(crate) const SPAN: Duration = Duration::from_secs(15);

pub(crate) struct LatencySpan {
    since: Moment,
    latencies: ServedLatencies,
    /// The last one that is over.
    over: Option<LatencyStatus>,
}

impl LatencySpan {
    pub fn new(now: Moment) -> LatencySpan {
        LatencySpan { since: now, latencies: ServedLatencies::default(), over: None }
    }

    /// What a heartbeat says.
    pub fn add(&mut self, now: Moment, told: &ServedLatencies) {
        let span = now.since(self.since);
        if span >= SPAN {
            let ServedLatencies { reads, writes } = std::mem::take(&mut self.latencies);
            self.over = Some(LatencyStatus {
                span_millis: span.as_millis() as u64,
                reads: LatencyFigures::of(&reads),
                writes: LatencyFigures::of(&writes),
            });
            self.since = now;
        }
        self.latencies += told;
    }

    /// Absent until the first stretch is over.
    pub fn status(&self) -> Option<LatencyStatus> {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_has_the_percentiles_of_all_its_heartbeats_together_and_a_quiet_one_none() {
        let told = |millis: u64, times: usize| {
            let mut told = ServedLatencies::default();
            (0..times).for_each(|_| told.reads.add(Duration::from_millis(millis)));
            told
        };
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut span = LatencySpan::new(at(100));
        span.add(at(101), &told(1, 97));
        span.add(at(102), &told(400, 3));
        assert_eq!(span.status(), None, "it is not over");
        span.add(at(116), &ServedLatencies::default());
        let over = span.status().expect("it is over");
        let reads = over.reads.expect("there were reads");
        assert_eq!((over.span_millis, reads.count, over.writes), (16_000, 100, None));
        assert!(reads.p50_millis < 1.1 && (400.0..426.0).contains(&reads.p99_millis), "{reads:?}");
        span.add(at(131), &ServedLatencies::default());
        assert_eq!(span.status().expect("it is over").reads, None, "no request has no latency");
    }
}
