//! The load metric: how many servers the current work needs. [Sierra §3.4]
//!
//! Reads and writes are counted once, summed over all servers, and compared with what one server sustains; a write
//! counts r times because it is carried out r times. Random work is limited by operations, streaming work by bytes:
//! the larger of the two is the load. Bursts determine how a service feels, so an hour is represented by its peak,
//! not by its mean.
//!
//! Streaming requests cost no operations ([`ebb_types::Streams`] tells them apart). Random ones do move bytes, and here
//! the streaming term has those, too: at 4 KiB they are never the larger one, and at hundreds of KiB, where a
//! solid-state disk is limited by bytes and not by operations, the paper's formula would ask for too few servers.

use ebb_types::{LoadCount, LoadTerms, Schedule};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Load in units of servers: 2.5 is the work that two and a half servers can sustain. Never negative, never
/// NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Load(pub f64);

impl Load {
    pub const ZERO: Load = Load(0.0);

    pub fn max(self, other: Load) -> Load {
        Load(self.0.max(other.0))
    }
}

/// What one server sustains; each figure is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRates {
    pub read_iops: f64,
    pub write_iops: f64,
    pub read_bytes_per_s: f64,
    pub write_bytes_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}: a server's rate must be a positive number; measure one server and set it")]
pub struct RatesError {
    pub name: &'static str,
    pub value: f64,
}

impl From<&Schedule> for ServerRates {
    fn from(schedule: &Schedule) -> ServerRates {
        ServerRates {
            read_iops: schedule.read_iops,
            write_iops: schedule.write_iops,
            read_bytes_per_s: schedule.read_bytes_per_second,
            write_bytes_per_s: schedule.write_bytes_per_second,
        }
    }
}

impl ServerRates {
    /// Returns `schedule` with these rates.
    pub fn in_schedule(self, schedule: Schedule) -> Schedule {
        Schedule {
            read_iops: self.read_iops,
            write_iops: self.write_iops,
            read_bytes_per_second: self.read_bytes_per_s,
            write_bytes_per_second: self.write_bytes_per_s,
            ..schedule
        }
    }

    /// Rates come from configuration: check them before the first use of [`load`].
    pub fn check(&self) -> Result<(), RatesError> {
        let all = [
            ("read_iops", self.read_iops),
            ("write_iops", self.write_iops),
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("write_bytes_per_s", self.write_bytes_per_s),
        ];
        match all.into_iter().find(|(_, value)| !value.is_normal() || *value <= 0.0) {
            Some((name, value)) => Err(RatesError { name, value }),
            None => Ok(()),
        }
    }
}

/// `L = max(L_nonseq, L_seq)` of the work counted over `interval`, summed over all servers. An empty interval
/// has no load.
pub fn load(count: &LoadCount, interval: Duration, rates: &ServerRates, replicas: u8) -> Load {
    Load(load_terms(count, interval, rates, replicas).load())
}

/// The two terms of that.
pub fn load_terms(count: &LoadCount, interval: Duration, rates: &ServerRates, replicas: u8) -> LoadTerms {
    if interval.is_zero() {
        return LoadTerms::default();
    }
    let seconds = interval.as_secs_f64();
    let r = f64::from(replicas);
    let nonseq =
        count.random_reads as f64 / rates.read_iops + r * count.random_writes as f64 / rates.write_iops;
    let seq = count.read_bytes as f64 / rates.read_bytes_per_s
        + r * count.written_bytes as f64 / rates.write_bytes_per_s;
    LoadTerms { random: nonseq / seconds, streaming: seq / seconds }
}

/// The peak of one hour's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HourMeter {
    hour: u64,
    /// `None`: no sample yet, which is not the same as no load.
    peak: Option<Load>,
}

impl HourMeter {
    pub fn new(hour: u64) -> HourMeter {
        HourMeter { hour, peak: None }
    }

    pub fn hour(&self) -> u64 {
        self.hour
    }

    pub fn add(&mut self, sample: Load) {
        self.peak = Some(self.peak.map_or(sample, |peak| peak.max(sample)));
    }

    pub fn peak(&self) -> Option<Load> {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: ServerRates =
        ServerRates { read_iops: 100.0, write_iops: 50.0, read_bytes_per_s: 1e6, write_bytes_per_s: 5e5 };

    #[test]
    fn random_work_is_limited_by_operations() {
        // 200 reads/s need 2 servers; 25 writes/s need 3 * 25/50 = 1.5; the bytes need less.
        let count = LoadCount {
            reads: 500,
            writes: 70,
            read_bytes: 4000,
            written_bytes: 500,
            random_reads: 400,
            random_writes: 50,
        };
        assert_eq!(load(&count, Duration::from_secs(2), &RATES, 3), Load(3.5));
        // 2 KB/s of 1 MB/s read, and 250 B/s of 500 KB/s written, three times.
        let terms = load_terms(&count, Duration::from_secs(2), &RATES, 3);
        assert_eq!((terms.random, terms.streaming), (3.5, 0.0035));
    }

    #[test]
    fn streaming_work_is_limited_by_bytes() {
        // 2 MB/s read need 2 servers; 1 MB/s written, twice, need 4.
        let bytes = LoadCount { read_bytes: 2_000_000, written_bytes: 1_000_000, ..LoadCount::default() };
        for requests in [3, 3_000_000] {
            let count = LoadCount { reads: requests, writes: requests, ..bytes };
            assert_eq!(
                load(&count, Duration::from_secs(1), &RATES, 2),
                Load(6.0),
                "however many requests stream"
            );
        }
    }

    #[test]
    fn an_empty_interval_has_no_load() {
        let count = LoadCount { reads: 9, random_reads: 9, ..LoadCount::default() };
        assert_eq!(load(&count, Duration::ZERO, &RATES, 3), Load::ZERO);
    }

    #[test]
    fn an_hour_is_known_by_its_peak_and_an_unseen_hour_by_nothing() {
        let mut meter = HourMeter::new(7);
        assert_eq!(meter.peak(), None);
        for sample in [0.5, 2.0, 1.0] {
            meter.add(Load(sample));
        }
        assert_eq!((meter.hour(), meter.peak()), (7, Some(Load(2.0))));
    }

    #[test]
    fn rates_that_would_make_the_load_meaningless_are_refused() {
        assert_eq!(RATES.check(), Ok(()));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = ServerRates { write_iops: bad, ..RATES }.check().unwrap_err();
            assert_eq!(error.name, "write_iops");
        }
    }
}
