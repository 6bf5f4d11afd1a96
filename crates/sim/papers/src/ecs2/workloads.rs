//! An hour of requests with the figures of Table V.
//!
//! Arrivals are random (Poisson) and evenly spread, sizes are exponential in sectors of 512 bytes around the means of
//! reads and of writes, and places are uniform over the data set. The paper gives no more than rates, means and the
//! size of the data set.

use super::super::findings::Experiment;
use ebb_trace::{Kind, Request, Trace};
use ebb_types::Random;
use std::time::Duration;

const SECTOR: u64 = 512;

/// A row of Table V. Kilobytes are KiB: only so is its write throughput the one that §5.3.1 states (a hundredfold).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    pub name: &'static str,
    pub write_share: f64,
    pub per_second: f64,
    pub kib: f64,
    pub write_kib: f64,
    pub data_bytes: f64,
}

pub const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "Web-2",
        write_share: 0.0002,
        per_second: 287.0,
        kib: 14.02,
        write_kib: 8.28,
        data_bytes: 13.81e9,
    },
    Workload {
        name: "Fin-2",
        write_share: 0.178,
        per_second: 128.0,
        kib: 2.89,
        write_kib: 3.05,
        data_bytes: 1.27e9,
    },
    Workload {
        name: "DTRS",
        write_share: 0.3644,
        per_second: 57.0,
        kib: 27.87,
        write_kib: 30.47,
        data_bytes: 5.45e9,
    },
    Workload {
        name: "RAD-BE",
        write_share: 0.816,
        per_second: 91.0,
        kib: 25.25,
        write_kib: 10.67,
        data_bytes: 7.89e9,
    },
];

/// The workload from which one with quiet spells is made: that of which the paper varies all else.
pub const QUIET: usize = 2;

/// The same hour without the requests of every second five minutes; of a shorter time, of every second twelfth.
pub fn with_quiet_spells(trace: &Trace, seconds: u64) -> Trace {
    let twelfth = Duration::from_secs(seconds) / 12;
    let is_busy = |request: &&Request| (request.at.div_duration_f64(twelfth) as u64).is_multiple_of(2);
    let requests = trace.requests.iter().filter(is_busy).copied().collect();
    Trace { name: format!("{} with quiet spells", trace.name), requests, ..Trace::default() }
}

impl Workload {
    pub fn read_kib(&self) -> f64 {
        (self.kib - self.write_share * self.write_kib) / (1.0 - self.write_share)
    }

    pub fn trace(&self, seconds: u64, seed: u64) -> Trace {
        let mut random = Random::new(seed);
        let (mut at, mut requests) = (0.0, Vec::new());
        loop {
            at += exponential(&mut random) / self.per_second;
            if at >= seconds as f64 {
                break;
            }
            let kind = if random.unit() < self.write_share { Kind::Write } else { Kind::Read };
            let mean = if kind == Kind::Write { self.write_kib } else { self.read_kib() };
            // A size is a whole number of sectors, so that half a sector is added on average.
            let sectors =
                (exponential(&mut random) * (mean * 1024.0 / SECTOR as f64 - 0.5)).ceil().max(1.0) as u64;
            let place = random.below((self.data_bytes as u64 / SECTOR).max(1));
            let len = (sectors * SECTOR) as u32;
            requests.push(Request {
                at: Duration::from_secs_f64(at),
                device: 0,
                offset: place * SECTOR,
                len,
                kind,
            });
        }
        Trace { name: self.name.to_owned(), requests, ..Trace::default() }
    }
}

/// Mean 1.
fn exponential(random: &mut Random) -> f64 {
    -(1.0 - random.unit()).ln()
}

/// The first traces are the workloads, each `seconds` long.
pub fn table_v(traces: &[Trace], seconds: u64) -> Experiment {
    let about = "Arrivals are random and steady, sizes exponential around the means, places uniform over the data set. The paper plays real \
        traces, whose bursts, runs and hot places are not in its table.";
    let mut found = Experiment::new("Table V", "Traces", about);
    for (workload, trace) in WORKLOADS.iter().zip(traces) {
        let count = trace.requests.len() as f64;
        let writes: Vec<f64> = of(trace, |request| request.kind == Kind::Write);
        let all: Vec<f64> = of(trace, |_| true);
        let mean = |sizes: &[f64]| sizes.iter().sum::<f64>() / (sizes.len().max(1) as f64) / 1024.0;
        let name = workload.name;
        let share = writes.len() as f64 / count;
        found.row(format!("{name}: writes"), "%", Some(workload.write_share), Some(share));
        found.row(format!("{name}: requests"), "/s", Some(workload.per_second), Some(count / seconds as f64));
        found.row(format!("{name}: mean size"), "KiB", Some(workload.kib), Some(mean(&all)));
        let what = format!("{name}: mean size of writes");
        found.row(what, "KiB", Some(workload.write_kib), Some(mean(&writes)));
    }
    found
}

fn of(trace: &Trace, which: impl Fn(&Request) -> bool) -> Vec<f64> {
    trace.requests.iter().filter(|request| which(request)).map(|request| f64::from(request.len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_figures_of_table_v() {
        for workload in WORKLOADS {
            let trace = workload.trace(3600, 1);
            let count = trace.requests.len() as f64;
            let close = |found: f64, wanted: f64, by: f64| {
                assert!((found / wanted - 1.0).abs() < by, "{workload:?}: {found}")
            };
            close(count / 3600.0, workload.per_second, 0.01);
            let writes = of(&trace, |request| request.kind == Kind::Write);
            // Web-2 has 207 writes.
            let by = if writes.len() < 1000 { 0.2 } else { 0.02 };
            close(writes.len() as f64 / count, workload.write_share, by);
            close(writes.iter().sum::<f64>() / writes.len() as f64 / 1024.0, workload.write_kib, by);
            let all = of(&trace, |_| true);
            close(all.iter().sum::<f64>() / count / 1024.0, workload.kib, 0.02);
            assert!(trace.requests.is_sorted_by_key(|request| request.at));
        }
    }
}
