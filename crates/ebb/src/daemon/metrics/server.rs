//! A chunk server's figures: those of its heartbeat, and what it has served since it started.

use super::{Page, Value, names};
use ebb_types::{Latencies, LoadCount, ServedLatencies, Vitals};
use std::time::Duration;

/// Upper bounds of the buckets of response times, in powers of two of nanoseconds, which [`Latencies`] knows exactly:
/// 66 µs to 8.6 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 16..=33;

pub struct ServerFigures {
    pub vitals: Vitals,
    /// Clients' work since the start.
    pub served: LoadCount,
    pub latencies: ServedLatencies,
    pub has_lease: bool,
    pub map_version: u64,
}

impl ServerFigures {
    pub fn report(&self, page: &mut Page) {
        let ServerFigures { vitals, served, latencies, has_lease, map_version } = self;
        let Vitals { damage, scrub, .. } = vitals;
        for (metric, value) in [
            (names::LEASE, (*has_lease).into()),
            (names::MAP_VERSION, *map_version as f64),
            (names::STORE_USED, vitals.used_bytes as f64),
            (names::STORE_CAPACITY, vitals.capacity_bytes as f64),
            (names::STORE_OFFLOAD, vitals.debt_bytes as f64),
            (names::STORE_POISONED, vitals.poisoned.into()),
            (names::STORE_STALLED, vitals.stalled.into()),
            (names::IN_FLIGHT, vitals.in_flight.into()),
            (names::CATCH_UPS, vitals.catching_up.into()),
            (names::OFFLOADED, vitals.offloaded_bytes as f64),
            (names::RECLAIMED, vitals.reclaimed_bytes as f64),
            (names::REPAIRED, vitals.repaired_blocks as f64),
            (names::SCRUB_OLDEST, scrub.oldest_seconds as f64),
            (names::SCRUB_BYTES, scrub.checked_bytes as f64),
            (names::BUGS, (vitals.bugs + ebb_client::bugs()) as f64),
        ] {
            page.put(metric, &[], value);
        }
        for (op, requests, bytes, random) in [
            ("read", served.reads, served.read_bytes, served.random_reads),
            ("write", served.writes, served.written_bytes, served.random_writes),
        ] {
            page.put(names::REQUESTS, &[&op], requests as f64);
            page.put(names::REQUEST_BYTES, &[&op], bytes as f64);
            page.put(names::RANDOM, &[&op], random as f64);
        }
        for (op, latencies) in [("read", &latencies.reads), ("write", &latencies.writes)] {
            page.put_value(names::DURATION, &[&op], histogram(latencies));
        }
        for (kind, count) in [
            ("corrupt", damage.corrupt),
            ("lost", damage.lost),
            ("garbled", damage.garbled),
            ("sought", damage.sought),
            ("unrepaired", damage.unrepaired),
        ] {
            page.put(names::DAMAGE, &[&kind], count as f64);
        }
        for (state, replicas) in [
            ("in_sync", scrub.replicas),
            ("due", scrub.due),
            ("overdue", scrub.overdue),
            ("unsound", scrub.unsound),
            ("asked", scrub.asked),
        ] {
            page.put(names::SCRUB_REPLICAS, &[&state], replicas.into());
        }
    }
}

fn histogram(latencies: &Latencies) -> Value {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = BOUNDS
        .map(|power| {
            let bound = Duration::from_nanos(1 << power);
            let before = std::mem::replace(&mut below, latencies.below(bound));
            (bound.as_secs_f64(), below - before)
        })
        .collect();
    buckets.push((f64::INFINITY, latencies.count() - below));
    Value::Histogram { sum: latencies.sum().as_secs_f64(), buckets }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn response_times_count_in_the_bucket_that_they_reach() {
        let mut latencies = ServedLatencies::default();
        for micros in [10, 100, 100, 3_000, 60_000_000] {
            latencies.reads.add(Duration::from_micros(micros));
        }
        let (vitals, served) = (Vitals::default(), LoadCount::default());
        let mut page = Page::default();
        ServerFigures { vitals, served, latencies, has_lease: true, map_version: 1 }.report(&mut page);
        let text = page.write(Format::Text);
        for line in [
            "ebb_request_duration_seconds_bucket{op=\"read\",le=\"6.5536e-05\"} 1",
            "ebb_request_duration_seconds_bucket{op=\"read\",le=\"0.000131072\"} 3",
            "ebb_request_duration_seconds_bucket{op=\"read\",le=\"0.004194304\"} 4",
            "ebb_request_duration_seconds_bucket{op=\"read\",le=\"+Inf\"} 5",
            "ebb_request_duration_seconds_count{op=\"write\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }
}
