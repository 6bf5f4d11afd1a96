//! Counts requests of the gateway and of a volume, at the cost of a few relaxed additions each.

use super::{Page, Value, names};
use crate::daemon::heap;
use ebb_client::Counters;
use ebb_gateway::Watcher;
use hyper::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in seconds, from a read out of memory to a request that waited for a server to wake.
const BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, f64::INFINITY];

#[derive(Default)]
struct Durations {
    counts: [AtomicU64; BOUNDS.len()],
    nanos: AtomicU64,
}

impl Durations {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len() - 1);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    fn value(&self) -> Value {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        Value::Histogram {
            sum: self.nanos.load(Relaxed) as f64 / 1e9,
            buckets: BOUNDS.into_iter().zip(counts).collect(),
        }
    }
}

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "other"];
const CODES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "aborted"];

/// Requests of the S3 gateway.
#[derive(Default)]
pub struct S3Traffic {
    counts: [[AtomicU64; CODES.len()]; METHODS.len()],
    durations: [Durations; METHODS.len()],
    in_flight: AtomicU64,
}

impl Watcher for S3Traffic {
    fn asked(&self) {
        heap::used();
        self.in_flight.fetch_add(1, Relaxed);
    }

    fn answered(&self, method: &Method, status: Option<StatusCode>, took: Duration) {
        self.in_flight.fetch_sub(1, Relaxed);
        let method = METHODS.iter().position(|name| *name == method.as_str()).unwrap_or(METHODS.len() - 1);
        let code = match status.map(|status| status.as_u16()) {
            Some(..300) => 0,
            Some(300..400) => 1,
            Some(400..500) => 2,
            Some(_) => 3,
            None => 4,
        };
        self.counts[method][code].fetch_add(1, Relaxed);
        self.durations[method].add(took);
    }
}

impl S3Traffic {
    pub fn report(&self, page: &mut Page) {
        page.put(names::S3_IN_FLIGHT, &[], self.in_flight.load(Relaxed) as f64);
        for ((method, counts), durations) in METHODS.iter().zip(&self.counts).zip(&self.durations) {
            for (code, count) in CODES.iter().zip(counts) {
                page.put(names::S3_REQUESTS, &[method, code], count.load(Relaxed) as f64);
            }
            page.put_value(names::S3_DURATION, &[method], durations.value());
        }
    }
}

/// What a volume is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeOp {
    Read,
    Write,
    /// Trim, and write zeroes.
    Zero,
    Flush,
    Other,
}

const OPS: [(VolumeOp, &str); 5] = [
    (VolumeOp::Read, "read"),
    (VolumeOp::Write, "write"),
    (VolumeOp::Zero, "zero"),
    (VolumeOp::Flush, "flush"),
    (VolumeOp::Other, "other"),
];

/// Requests to a volume.
#[derive(Default)]
pub struct VolumeTraffic {
    done: [AtomicU64; OPS.len()],
    failed: [AtomicU64; OPS.len()],
    bytes: [AtomicU64; OPS.len()],
    durations: [Durations; OPS.len()],
    in_flight: AtomicU64,
}

impl VolumeTraffic {
    pub fn asked(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub fn answered(&self, op: VolumeOp, bytes: u64, done: bool, took: Duration) {
        self.in_flight.fetch_sub(1, Relaxed);
        let outcomes = if done { &self.done } else { &self.failed };
        outcomes[op as usize].fetch_add(1, Relaxed);
        self.bytes[op as usize].fetch_add(bytes, Relaxed);
        self.durations[op as usize].add(took);
    }

    pub fn report(&self, volume: &str, page: &mut Page) {
        page.put(names::VOLUME_IN_FLIGHT, &[&volume], self.in_flight.load(Relaxed) as f64);
        for (op, name) in OPS {
            let number = |counts: &[AtomicU64; OPS.len()]| counts[op as usize].load(Relaxed) as f64;
            page.put(names::VOLUME_REQUESTS, &[&volume, &name, &"done"], number(&self.done));
            page.put(names::VOLUME_REQUESTS, &[&volume, &name, &"failed"], number(&self.failed));
            page.put(names::VOLUME_BYTES, &[&volume, &name], number(&self.bytes));
            page.put_value(names::VOLUME_DURATION, &[&volume, &name], self.durations[op as usize].value());
        }
    }
}

/// What a client of the cluster has done.
pub fn report_client(counters: &Counters, page: &mut Page) {
    for (metric, count) in [
        (names::CLIENT_REQUESTS, counters.requests),
        (names::CLIENT_RETRIES, counters.retries),
        (names::CLIENT_MOVED, counters.moved),
        (names::CLIENT_FAILURES, counters.failures),
        (names::CLIENT_GARBLED, counters.garbled),
    ] {
        page.put(metric, &[], count as f64);
    }
    page.put(names::BUGS, &[], ebb_client::bugs() as f64);
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    fn has(page: Page, line: &str) {
        let text = page.write(Format::Text);
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }

    #[test]
    fn s3_requests_count_by_method_class_and_time() {
        let traffic = S3Traffic::default();
        (0..4).for_each(|_| traffic.asked());
        traffic.answered(&Method::GET, Some(StatusCode::OK), Duration::from_millis(2));
        traffic.answered(&Method::GET, Some(StatusCode::NOT_FOUND), Duration::from_secs(100));
        traffic.answered(&Method::PATCH, None, Duration::from_millis(1));
        let mut page = Page::default();
        traffic.report(&mut page);
        for line in [
            "ebb_s3_requests_in_flight 1.0",
            "ebb_s3_requests_total{method=\"GET\",code=\"2xx\"} 1.0",
            "ebb_s3_requests_total{method=\"GET\",code=\"4xx\"} 1.0",
            "ebb_s3_requests_total{method=\"other\",code=\"aborted\"} 1.0",
            "ebb_s3_requests_total{method=\"PUT\",code=\"2xx\"} 0.0",
            "ebb_s3_request_duration_seconds_bucket{method=\"GET\",le=\"0.001\"} 0",
            "ebb_s3_request_duration_seconds_bucket{method=\"GET\",le=\"0.0025\"} 1",
            "ebb_s3_request_duration_seconds_bucket{method=\"GET\",le=\"+Inf\"} 2",
            "ebb_s3_request_duration_seconds_sum{method=\"GET\"} 100.002",
        ] {
            has(page.clone(), line);
        }
    }

    #[test]
    fn volume_requests_count_by_kind_and_outcome() {
        OPS.iter().enumerate().for_each(|(place, (op, _))| assert_eq!(*op as usize, place));
        let traffic = VolumeTraffic::default();
        (0..2).for_each(|_| traffic.asked());
        traffic.answered(VolumeOp::Write, 4096, true, Duration::from_millis(1));
        traffic.answered(VolumeOp::Zero, 8192, false, Duration::from_millis(1));
        let mut page = Page::default();
        traffic.report("v1", &mut page);
        for line in [
            "ebb_volume_requests_in_flight{volume=\"v1\"} 0.0",
            "ebb_volume_requests_total{volume=\"v1\",op=\"write\",outcome=\"done\"} 1.0",
            "ebb_volume_requests_total{volume=\"v1\",op=\"zero\",outcome=\"failed\"} 1.0",
            "ebb_volume_request_bytes_total{volume=\"v1\",op=\"write\"} 4096.0",
        ] {
            has(page.clone(), line);
        }
    }
}
