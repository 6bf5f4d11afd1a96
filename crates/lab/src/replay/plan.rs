//! The load that a trace puts on a cluster, in the scheduler's own measure, and the rates that follow from it.
//!
//! The metadata service takes a sample of the load every second of its clock, or eight times in an hour that is
//! shorter than that. The same samples are computed here, so that a peak means the same to both. [Sierra §3.4, §4.4]

use super::{ReplayError, Trace};
use ebb_gear::{Load, ServerRates, load};
use ebb_trace::Kind;
use ebb_types::{LoadCount, ObjectId, Schedule};
use std::time::Duration;

/// Samples of one trace: half a year of seconds. A wrong time in a trace must not take all memory.
const SAMPLES_MAX: usize = 1 << 24;

/// How many servers the trace's peak shall need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provision {
    /// All that the cluster has.
    Peak,
    Servers(u32),
}

/// A trace's load over time.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSeries {
    /// Trace time of one sample.
    pub interval: Duration,
    /// The scheduler's hour in trace time: 3600 s.
    pub hour: Duration,
    pub samples: Vec<Load>,
    pub counts: Vec<LoadCount>,
    speed: f64,
    replicas: u8,
}

/// Interval of the metadata service's load samples.
pub fn sample_interval(schedule: &Schedule) -> Duration {
    Duration::from_secs(1).min(Duration::from_millis(schedule.hour_millis) / 8)
}

pub(crate) fn rates(schedule: &Schedule) -> ServerRates {
    ServerRates {
        read_iops: schedule.read_iops,
        write_iops: schedule.write_iops,
        read_bytes_per_s: schedule.read_bytes_per_second,
        write_bytes_per_s: schedule.write_bytes_per_second,
    }
}

impl LoadSeries {
    /// The load of `trace` at `speed` with the schedule's rates. Requests are counted as the cluster counts them:
    /// in the pieces that a chunk server gets.
    pub fn new(
        trace: &Trace,
        speed: f64,
        schedule: &Schedule,
        replicas: u8,
        chunk_bytes: u32,
    ) -> Result<LoadSeries, ReplayError> {
        let interval = sample_interval(schedule).mul_f64(speed);
        let hour = Duration::from_millis(schedule.hour_millis).mul_f64(speed);
        let samples = slot(trace.span(), interval);
        if samples >= SAMPLES_MAX {
            return Err(ReplayError::TooLong { days: trace.span().as_secs() / 86_400 });
        }
        let mut counts = vec![LoadCount::default(); samples + 1];
        for request in &trace.requests {
            let len = u64::from(request.len);
            let pieces = ebb_client::pieces(ObjectId(0), request.offset, len, chunk_bytes);
            let pieces = pieces.map_err(|_| ReplayError::Range {
                device: trace.devices[request.device as usize].clone(),
                end: request.offset + len,
            })?;
            let (ops, count) = (pieces.count() as u64, &mut counts[slot(request.at, interval)]);
            *count += match request.kind {
                Kind::Read => LoadCount { reads: ops, read_bytes: len, ..LoadCount::default() },
                Kind::Write => LoadCount { writes: ops, written_bytes: len, ..LoadCount::default() },
            };
        }
        let mut series = LoadSeries { interval, hour, samples: Vec::new(), counts, speed, replicas };
        series.measure(schedule);
        Ok(series)
    }

    fn measure(&mut self, schedule: &Schedule) {
        let (interval, rates) = (self.interval.div_f64(self.speed), rates(schedule));
        self.samples = self.counts.iter().map(|count| load(count, interval, &rates, self.replicas)).collect();
    }

    pub fn peak(&self) -> Load {
        self.samples.iter().copied().fold(Load::ZERO, Load::max)
    }

    /// Load at a moment of the trace; zero after its end.
    pub fn at(&self, at: Duration) -> Load {
        self.samples.get(slot(at, self.interval)).copied().unwrap_or(Load::ZERO)
    }

    /// Highest load of each hour of the trace.
    pub fn peaks(&self) -> Vec<Load> {
        let mut peaks = Vec::new();
        for (index, sample) in self.samples.iter().enumerate() {
            let hour = slot(self.interval.mul_f64(index as f64 + 0.5), self.hour);
            peaks.resize(peaks.len().max(hour + 1), Load::ZERO);
            peaks[hour] = peaks[hour].max(*sample);
        }
        peaks
    }

    /// Scales the schedule's four rates, and the series with them, so that the peak needs `servers`.
    pub fn provision(&mut self, schedule: &mut Schedule, servers: f64) -> Result<(), ReplayError> {
        let factor = self.peak().0 / servers;
        if factor <= 0.0 {
            return Err(ReplayError::NoLoad);
        }
        for rate in [
            &mut schedule.read_iops,
            &mut schedule.write_iops,
            &mut schedule.read_bytes_per_second,
            &mut schedule.write_bytes_per_second,
        ] {
            *rate *= factor;
        }
        self.measure(schedule);
        Ok(())
    }
}

/// The interval that `at` lies in.
fn slot(at: Duration, interval: Duration) -> usize {
    (at.as_nanos() / interval.as_nanos().max(1)) as usize
}

/// The cluster's schedule for a rehearsal at `speed`: its hour, dwell and lead times pass as fast as the trace.
pub fn rehearsal(schedule: &Schedule, speed: f64) -> Result<Schedule, ReplayError> {
    const HOUR_MILLIS: f64 = 3_600_000.0;
    const SHORTEST: f64 = 100.0;
    let hour_millis = (HOUR_MILLIS / speed).round();
    if hour_millis < SHORTEST {
        return Err(ReplayError::HourTooShort { millis: hour_millis as u64, most: HOUR_MILLIS / SHORTEST });
    }
    let scale = hour_millis / schedule.hour_millis.max(1) as f64;
    let scaled = |millis: u64| (millis as f64 * scale).round() as u64;
    Ok(Schedule {
        hour_millis: hour_millis as u64,
        dwell_millis: scaled(schedule.dwell_millis),
        lead_millis: scaled(schedule.lead_millis),
        ..*schedule
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::Request;

    const MIB: u64 = 1 << 20;

    fn trace(requests: &[(u64, u64, u32, Kind)]) -> Trace {
        let request = |&(seconds, offset, len, kind)| Request {
            at: Duration::from_secs(seconds),
            device: 0,
            offset,
            len,
            kind,
        };
        Trace {
            requests: requests.iter().map(request).collect(),
            devices: vec!["sda".into()],
            ..Trace::default()
        }
    }

    #[test]
    fn a_rehearsal_shortens_the_hour_and_what_belongs_to_it() {
        let day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        assert_eq!((day.hour_millis, day.dwell_millis, day.lead_millis), (1800, 150, 30));
        assert_eq!(sample_interval(&day), Duration::from_millis(225));
        assert_eq!(sample_interval(&Schedule::default()), Duration::from_secs(1));
        assert_eq!(rehearsal(&Schedule::default(), 1.0).unwrap(), Schedule::default());
        assert_eq!(rehearsal(&day, 1000.0).unwrap().dwell_millis, 300, "whatever the cluster's hour is now");
        assert!(matches!(rehearsal(&day, 40_000.0), Err(ReplayError::HourTooShort { millis: 90, .. })));
    }

    #[test]
    fn the_load_is_counted_in_pieces_and_weighed_by_replicas() {
        let day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        // Samples are 450 s of trace. A read of two chunks, two writes, and a read in the next hour.
        let requests = [
            (0, 15 * MIB, 2 << 20, Kind::Read),
            (449, 0, 4096, Kind::Write),
            (450, 0, 4096, Kind::Write),
            (3700, 0, 512, Kind::Read),
        ];
        let series = LoadSeries::new(&trace(&requests), 2000.0, &day, 3, 16 << 20).unwrap();
        assert_eq!(series.samples.len(), 9);
        let count = series.counts[0];
        assert_eq!((count.reads, count.writes, count.read_bytes, count.written_bytes), (2, 1, 2 * MIB, 4096));
        // 2/200 + 3/200 operations and 2 MiB + 3 * 4 KiB of 100 MB, in 225 ms.
        let right = (5.0 / 200.0_f64).max((2.0 * MIB as f64 + 3.0 * 4096.0) / 100e6) / 0.225;
        assert!((series.at(Duration::from_secs(449)).0 - right).abs() < 1e-9);
        let second = 3.0 / 200.0 / 0.225;
        assert_eq!(series.peaks().len(), 2);
        assert!((series.peaks()[0].0 - right).abs() < 1e-9 && series.peaks()[1].0 < second);
        assert_eq!(series.at(Duration::from_secs(9999)), Load::ZERO);
    }

    #[test]
    fn provisioning_makes_the_peak_need_as_many_servers() {
        let mut day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        let requests = [(0, 0, 4096, Kind::Write), (5000, 0, 4096, Kind::Read)];
        let mut series = LoadSeries::new(&trace(&requests), 2000.0, &day, 3, 1 << 26).unwrap();
        series.provision(&mut day, 9.0).unwrap();
        assert!((series.peak().0 - 9.0).abs() < 1e-9);
        assert_eq!(ebb_gear::gear_for(series.peak(), 9, 3, 1), 3);
        let again = LoadSeries::new(&trace(&requests), 2000.0, &day, 3, 1 << 26).unwrap();
        assert_eq!(again.samples, series.samples, "the schedule gives the same load");
        let long = trace(&[(0, 0, 1, Kind::Read), (1 << 40, 0, 1, Kind::Read)]);
        assert!(matches!(LoadSeries::new(&long, 1.0, &day, 3, 1 << 26), Err(ReplayError::TooLong { .. })));
        let far = trace(&[(0, u64::MAX >> 1, 1, Kind::Read)]);
        assert!(matches!(
            LoadSeries::new(&far, 1.0, &day, 3, 1 << 20),
            Err(ReplayError::Range { device, .. }) if device == "sda"
        ));
    }
}
