//! Rehearsal: the load that recorded requests put on a cluster, in the scheduler's own metric, and a schedule under
//! which one of their hours passes in less than an hour.
//!
//! The metadata service samples the load every second of its clock, or eight times per hour if the hour is shorter
//! than eight seconds. The same samples are computed here, so that a peak means the same to both. [Sierra §3.4,
//! §4.4]

use crate::{Load, ServerRates, Window, load};
use ebb_types::{LoadCount, Schedule};
use std::time::Duration;

/// Most samples of one series: half a year of seconds. A wrong time in a trace must not exhaust memory.
const SAMPLES_MAX: usize = 1 << 24;

/// How many servers the peak must need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provision {
    /// All servers of the cluster.
    Peak,
    Servers(u32),
}

/// Why a rehearsal is refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RehearsalError {
    #[error("the speed is {0}: it must be a positive number of trace seconds per second")]
    Speed(f64),
    #[error(
        "the trace spans {days} days, too long for this speed: a time in it may be wrong, or use a higher speed"
    )]
    TooLong { days: u64 },
    #[error(
        "a scheduler's hour would last {millis} ms at this speed and must last at least 100 ms: use speed {most:.0} or less"
    )]
    HourTooShort { millis: u64, most: f64 },
    #[error("cannot provision for {asked} servers: the cluster has {servers}; use `peak` or 1 to {servers}")]
    Provision { asked: u32, servers: u32 },
    #[error("the trace carries no load, so no rates follow from it: leave out --provision")]
    NoLoad,
}

/// Load over time.
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

/// Interval of the metadata service's load samples: an hour has at least eight. [Sierra §3.4]
pub fn sample_interval(schedule: &Schedule) -> Duration {
    Duration::from_secs(1).min(Duration::from_millis(schedule.hour_millis) / 8)
}

impl LoadSeries {
    /// The load at `speed`, with the schedule's rates, of `requests`, which are timed from the start.
    pub fn new(
        requests: impl IntoIterator<Item = (Duration, LoadCount)>,
        speed: f64,
        schedule: &Schedule,
        replicas: u8,
    ) -> Result<LoadSeries, RehearsalError> {
        let interval = sample_interval(schedule).mul_f64(speed);
        let hour = Duration::from_millis(schedule.hour_millis).mul_f64(speed);
        let mut counts = vec![LoadCount::default(); 1];
        for (at, count) in requests {
            let sample = slot(at, interval);
            if sample >= SAMPLES_MAX {
                return Err(RehearsalError::TooLong { days: at.as_secs() / 86_400 });
            }
            if sample >= counts.len() {
                counts.resize(sample + 1, LoadCount::default());
            }
            counts[sample] += count;
        }
        let mut series = LoadSeries { interval, hour, samples: Vec::new(), counts, speed, replicas };
        series.measure(schedule);
        Ok(series)
    }

    fn measure(&mut self, schedule: &Schedule) {
        let (interval, rates) = (self.interval.div_f64(self.speed), ServerRates::from(schedule));
        self.samples = self.counts.iter().map(|count| load(count, interval, &rates, self.replicas)).collect();
    }

    pub fn peak(&self) -> Load {
        self.peak_except(&[])
    }

    /// Highest load outside of these times of day. Days begin with the trace; a sample is of the time of its middle.
    pub fn peak_except(&self, except: &[Window]) -> Load {
        // As gears count hours: at some speeds one is not quite 3600 s of the trace.
        let hours = self.interval.div_duration_f64(self.hour);
        let within = |index: usize| {
            let at = Duration::from_secs(3600).mul_f64((index as f64 + 0.5) * hours);
            except.iter().any(|window| window.holds(at))
        };
        let outside = self.samples.iter().enumerate().filter(|(index, _)| !within(*index));
        outside.map(|(_, load)| *load).fold(Load::ZERO, Load::max)
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

    /// Scales the schedule's four rates, and the series with them, so that the peak outside of `except` needs the given
    /// share of the cluster's `servers`. Returns how many servers that is.
    pub fn provision(
        &mut self,
        schedule: &mut Schedule,
        provision: Provision,
        servers: u32,
        except: &[Window],
    ) -> Result<u32, RehearsalError> {
        let asked = match provision {
            Provision::Peak => servers,
            Provision::Servers(asked) if (1..=servers).contains(&asked) => asked,
            Provision::Servers(asked) => return Err(RehearsalError::Provision { asked, servers }),
        };
        let factor = self.peak_except(except).0 / f64::from(asked);
        if factor <= 0.0 {
            return Err(RehearsalError::NoLoad);
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
        Ok(asked)
    }
}

/// The interval that contains `at`.
fn slot(at: Duration, interval: Duration) -> usize {
    (at.as_nanos() / interval.as_nanos().max(1)) as usize
}

/// The cluster's schedule for a rehearsal at `speed`: its hour, dwell and lead times pass as fast as the trace.
pub fn rehearsal(schedule: &Schedule, speed: f64) -> Result<Schedule, RehearsalError> {
    const HOUR_MILLIS: f64 = 3_600_000.0;
    const SHORTEST: f64 = 100.0;
    if !speed.is_normal() || speed < 0.0 {
        return Err(RehearsalError::Speed(speed));
    }
    let hour_millis = (HOUR_MILLIS / speed).round();
    if hour_millis < SHORTEST {
        return Err(RehearsalError::HourTooShort {
            millis: hour_millis as u64,
            most: HOUR_MILLIS / SHORTEST,
        });
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

    const NONE: LoadCount =
        LoadCount { reads: 0, writes: 0, read_bytes: 0, written_bytes: 0, random_reads: 0, random_writes: 0 };
    const READ: LoadCount = LoadCount { reads: 1, read_bytes: 4096, random_reads: 1, ..NONE };
    const WRITE: LoadCount = LoadCount { writes: 1, written_bytes: 4096, random_writes: 1, ..NONE };

    fn at(requests: &[(u64, LoadCount)]) -> Vec<(Duration, LoadCount)> {
        requests.iter().map(|(seconds, count)| (Duration::from_secs(*seconds), *count)).collect()
    }

    #[test]
    fn a_rehearsal_shortens_the_hour_and_what_belongs_to_it() {
        let day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        assert_eq!((day.hour_millis, day.dwell_millis, day.lead_millis), (1800, 150, 30));
        assert_eq!(sample_interval(&day), Duration::from_millis(225));
        assert_eq!(sample_interval(&Schedule::default()), Duration::from_secs(1));
        assert_eq!(rehearsal(&Schedule::default(), 1.0).unwrap(), Schedule::default());
        assert_eq!(rehearsal(&day, 1000.0).unwrap().dwell_millis, 300, "whatever the cluster's hour is now");
        let short = rehearsal(&day, 40_000.0);
        assert!(matches!(short, Err(RehearsalError::HourTooShort { millis: 90, .. })));
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(rehearsal(&day, speed), Err(RehearsalError::Speed(_))), "{speed}");
        }
    }

    #[test]
    fn the_load_is_summed_by_samples_and_weighed_by_replicas() {
        let day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        // Samples are 450 s of trace.
        let large = LoadCount { reads: 2, read_bytes: 2 << 20, random_reads: 2, ..NONE };
        let requests = at(&[(0, large), (449, WRITE), (450, WRITE), (3700, READ)]);
        let series = LoadSeries::new(requests, 2000.0, &day, 3).unwrap();
        assert_eq!(series.samples.len(), 9);
        let count = series.counts[0];
        assert_eq!((count.reads, count.writes, count.read_bytes, count.written_bytes), (2, 1, 2 << 20, 4096));
        // 2/200 + 3/200 operations and 2 MiB + 3 * 4 KiB of 100 MB, in 225 ms.
        let right = (5.0 / 200.0_f64).max((f64::from(2 << 20) + 3.0 * 4096.0) / 100e6) / 0.225;
        assert!((series.at(Duration::from_secs(449)).0 - right).abs() < 1e-9);
        let second = 3.0 / 200.0 / 0.225;
        assert_eq!(series.peaks().len(), 2);
        assert!((series.peaks()[0].0 - right).abs() < 1e-9 && series.peaks()[1].0 < second);
        assert_eq!(series.at(Duration::from_secs(9999)), Load::ZERO);
    }

    #[test]
    fn provisioning_makes_the_peak_need_as_many_servers() {
        let mut day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        let requests = at(&[(0, WRITE), (5000, READ)]);
        let mut series = LoadSeries::new(requests.clone(), 2000.0, &day, 3).unwrap();
        for asked in [0, 10] {
            let refused = series.provision(&mut day, Provision::Servers(asked), 9, &[]);
            assert_eq!(refused, Err(RehearsalError::Provision { asked, servers: 9 }));
        }
        assert_eq!(series.provision(&mut day, Provision::Peak, 9, &[]), Ok(9));
        assert!((series.peak().0 - 9.0).abs() < 1e-9);
        assert_eq!(crate::gear_for(series.peak(), 9, 3, 1), 3);
        let again = LoadSeries::new(requests, 2000.0, &day, 3).unwrap();
        assert_eq!(again.samples, series.samples, "the schedule gives the same load");
        let long = LoadSeries::new(at(&[(0, READ), (1 << 40, READ)]), 1.0, &day, 3);
        assert!(matches!(long, Err(RehearsalError::TooLong { .. })));
        let mut none = LoadSeries::new([], 1.0, &day, 3).unwrap();
        assert_eq!(none.provision(&mut day, Provision::Peak, 9, &[]), Err(RehearsalError::NoLoad));
    }

    #[test]
    fn a_night_of_maintenance_does_not_set_the_size_and_the_rest_of_the_day_does() {
        const HOUR: u64 = 3600;
        let mut day = rehearsal(&Schedule::default(), 2000.0).unwrap();
        // Two days: four writes just after midnight, two at noon, one in the evening.
        let of_day = |day: u64| {
            let times = [(0, 4), (12, 2), (20, 1)].map(|(hour, writes)| (24 * day + hour, writes));
            times
                .into_iter()
                .flat_map(|(hour, writes)| std::iter::repeat_n((hour * HOUR + 60, WRITE), writes))
        };
        let requests: Vec<(u64, LoadCount)> = (0..2).flat_map(of_day).collect();
        let mut series = LoadSeries::new(at(&requests), 2000.0, &day, 3).unwrap();
        let of = |except: &[&str]| {
            let except: Vec<Window> = except.iter().map(|text| text.parse().unwrap()).collect();
            (series.peak_except(&except).0 / series.peak().0 * 4.0).round()
        };
        let (night, noon) = ("00:00-02:00", "12:00-13:00");
        assert_eq!([of(&[]), of(&[night]), of(&[night, noon]), of(&["23:00-22:00"])], [4.0, 2.0, 1.0, 0.0]);
        let except: [Window; 1] = [night.parse().unwrap()];
        assert_eq!(series.provision(&mut day, Provision::Peak, 9, &except), Ok(9));
        assert!((series.peak_except(&except).0 - 9.0).abs() < 1e-9 && (series.peak().0 - 18.0).abs() < 1e-9);
        let all: [Window; 1] = ["00:00-24:00".parse().unwrap()];
        let refused = series.provision(&mut day, Provision::Peak, 9, &all);
        assert_eq!(refused, Err(RehearsalError::NoLoad));
    }
}
