//! The workload of a trace, in one pass and bounded memory.

use super::sketch::{BLOCK, Sketch};
use super::spread::{Spread, Spreading};
use ebb_trace::{Kind, Request, Summing, TraceError, TraceReader};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The figures of a trace. Keys are documented in `docs/json.md`; unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub format: Option<String>,
    pub requests: u64,
    pub reads: u64,
    pub bytes: u64,
    pub read_bytes: u64,
    /// Requests of zero bytes.
    pub empty: u64,
    /// From the first arrival to the last.
    pub span_seconds: f64,
    pub read_share: Option<f64>,
    pub mean_size_bytes: Option<f64>,
    pub largest_bytes: u32,
    pub requests_per_second: Option<f64>,
    pub bytes_per_second: Option<f64>,
    /// Requests in the busiest whole second.
    pub peak_per_second: u64,
    /// Busiest second over the mean second; `None` for a trace of less than two seconds.
    pub peak_to_mean: Option<f64>,
    /// Inter-arrival times in seconds.
    pub gaps: Option<Spread>,
    /// Share of requests that do not begin where the previous one on the same device ended; a device's first counts as
    /// random.
    pub random_share: Option<f64>,
    /// Distances in bytes between the start of a request and the end of the previous one on the same device.
    pub seeks: Option<Spread>,
    /// Size that targets need to hold every request: the largest end on each device, added up.
    pub footprint_bytes: u64,
    /// Distinct 4 KiB blocks that are read or written, in bytes.
    pub unique_bytes: u64,
    /// Whether `unique_bytes` is exact; otherwise its standard error is 0.4 %.
    pub unique_exact: bool,
    pub device_count: usize,
    /// Bad lines or records that were skipped.
    pub skipped: u64,
    /// Requests whose time was before their predecessor's.
    pub backwards: u64,
    /// Requests that move no data, such as trims and syncs; absent in profiles of earlier releases.
    #[serde(default)]
    pub left_out: u64,
}

/// The complete profile of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Profile {
    pub name: String,
    #[serde(flatten)]
    pub figures: Figures,
    /// Classes that contain a request, by size.
    pub sizes: Vec<SizeClass>,
    pub load: Load,
    /// By number, as they appear in the trace.
    pub devices: Vec<DeviceProfile>,
}

/// Requests of at least `from_bytes` and less than twice that; the class from 0 holds those of zero bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SizeClass {
    pub from_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Requests and bytes over time, in at most [`INTERVALS`] equal intervals.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    pub interval_seconds: f64,
    pub reads: Vec<u64>,
    pub writes: Vec<u64>,
    pub bytes: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceProfile {
    /// The trace's own name.
    pub name: String,
    pub requests: u64,
    pub reads: u64,
    pub bytes: u64,
    pub random_share: Option<f64>,
    pub footprint_bytes: u64,
    pub unique_bytes: u64,
}

/// Most intervals of the load over time.
const INTERVALS: usize = 1024;

/// Load over time when the length of the trace is unknown: when an arrival lies beyond the last interval, neighbours
/// are merged and all intervals become twice as long.
struct Loading {
    width: Duration,
    load: Load,
}

impl Loading {
    fn new() -> Loading {
        let none = || vec![0; INTERVALS];
        let load = Load { interval_seconds: 0.0, reads: none(), writes: none(), bytes: none() };
        Loading { width: Duration::from_micros(1), load }
    }

    fn add(&mut self, request: &Request) {
        let Load { reads, writes, bytes, .. } = &mut self.load;
        while request.at >= self.width * INTERVALS as u32 {
            self.width *= 2;
            for counts in [&mut *reads, &mut *writes, &mut *bytes] {
                let joined = counts.chunks(2).map(|pair| pair.iter().sum()).collect::<Vec<u64>>();
                counts.fill(0);
                counts[..joined.len()].copy_from_slice(&joined);
            }
        }
        let interval = (request.at.as_nanos() / self.width.as_nanos()) as usize;
        let counts = if request.kind == Kind::Read { reads } else { writes };
        counts[interval] += 1;
        bytes[interval] += u64::from(request.len);
    }

    fn finish(mut self, span: Duration, requests: u64) -> Load {
        let intervals =
            if requests == 0 { 0 } else { (span.as_nanos() / self.width.as_nanos()) as usize + 1 };
        let Load { reads, writes, bytes, .. } = &mut self.load;
        for counts in [reads, writes, bytes] {
            counts.truncate(intervals);
        }
        Load { interval_seconds: self.width.as_secs_f64(), ..self.load }
    }
}

/// Size classes: zero, then from each power of two.
fn size_class(len: u32) -> usize {
    len.checked_ilog2().map_or(0, |log| log as usize + 1)
}

/// Reads a trace to its end and returns its profile. `name` is its name in the report.
pub fn profile(name: &str, reader: &mut dyn TraceReader) -> Result<Profile, TraceError> {
    let (mut summing, mut sketch, mut loading) = (Summing::default(), Sketch::default(), Loading::new());
    let (mut gaps, mut seeks) = (Spreading::new(), Spreading::new());
    let mut sizes: Vec<SizeClass> = (0..=32u32)
        .map(|class| SizeClass { from_bytes: (1u64 << class) >> 1, ..SizeClass::default() })
        .collect();
    let mut last = None;
    while let Some(request) = reader.next().transpose()? {
        if let Some(distance) = summing.add(&request) {
            seeks.add(distance);
        }
        if let Some(last) = last.replace(request.at) {
            gaps.add(u64::try_from((request.at - last).as_nanos()).unwrap_or(u64::MAX));
        }
        sketch.add(request.device, request.offset, request.len);
        loading.add(&request);
        let class = &mut sizes[size_class(request.len)];
        match request.kind {
            Kind::Read => class.reads += 1,
            Kind::Write => class.writes += 1,
        }
    }
    let total = summing.finish(reader.devices());
    let unique = sketch.blocks_by_device();
    let devices: Vec<DeviceProfile> = (0..)
        .zip(&total.devices)
        .map(|(number, device)| DeviceProfile {
            name: device.name.clone(),
            requests: device.requests,
            reads: device.reads,
            bytes: device.bytes,
            random_share: (device.requests > 0).then(|| device.random as f64 / device.requests as f64),
            footprint_bytes: device.footprint,
            unique_bytes: unique.get(&number).map_or(0, |blocks| blocks * BLOCK),
        })
        .collect();
    let per_second = total.per_second();
    Ok(Profile {
        name: name.to_owned(),
        figures: Figures {
            format: reader.format().map(|format| format.to_string()),
            requests: total.requests,
            reads: total.reads,
            bytes: total.bytes,
            read_bytes: total.read_bytes,
            empty: total.empty,
            span_seconds: total.span.as_secs_f64(),
            read_share: total.read_share(),
            mean_size_bytes: total.mean_size(),
            largest_bytes: total.largest,
            requests_per_second: per_second,
            bytes_per_second: per_second.map(|_| total.bytes as f64 / total.span.as_secs_f64()),
            peak_per_second: total.peak_per_second,
            peak_to_mean: total.peak_to_mean().filter(|_| total.span >= Duration::from_secs(2)),
            gaps: gaps.finish(1e9),
            random_share: total.random_share(),
            seeks: seeks.finish(1.0),
            footprint_bytes: devices.iter().fold(0, |sum, device| sum.saturating_add(device.footprint_bytes)),
            unique_bytes: sketch.blocks() * BLOCK,
            unique_exact: sketch.exact(),
            device_count: devices.len(),
            skipped: reader.skipped(),
            backwards: reader.backwards(),
            left_out: reader.left_out(),
        },
        sizes: sizes.into_iter().filter(|class| class.reads + class.writes > 0).collect(),
        load: loading.finish(total.span, total.requests),
        devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::{Mode, Pace, Synthetic, open};

    pub fn of(text: &'static str) -> Profile {
        profile("t", open("t.spc", text.as_bytes()).unwrap().as_mut()).unwrap()
    }

    #[test]
    fn the_figures_are_those_of_the_trace() {
        // Device 3: 0..4096, then on to 8192, then back to 0. Device 9: one of zero bytes.
        let found = of("3,0,4096,R,10\n3,8,4096,W,10.5\n9,800,0,R,11\n3,0,512,R,14\n");
        let figures = &found.figures;
        assert_eq!((figures.requests, figures.reads, figures.empty, figures.device_count), (4, 3, 1, 2));
        assert_eq!((figures.span_seconds, figures.requests_per_second), (4.0, Some(1.0)));
        assert_eq!((figures.peak_per_second, figures.peak_to_mean), (2, Some(2.0)));
        assert_eq!(figures.random_share, Some(0.75));
        let seeks = figures.seeks.as_ref().unwrap();
        assert_eq!(seeks.mean, 4096.0);
        assert!((seeks.max / 8192.0 - 1.0).abs() < 0.01);
        let gaps = figures.gaps.as_ref().unwrap();
        assert!((gaps.mean - 4.0 / 3.0).abs() < 1e-9 && (gaps.max / 3.0 - 1.0).abs() < 0.01, "{gaps:?}");
        assert_eq!((figures.unique_bytes, figures.unique_exact), (8192, true));
        assert_eq!(figures.footprint_bytes, 8192 + 800 * 512);
        let class = |from_bytes, reads, writes| SizeClass { from_bytes, reads, writes };
        assert_eq!(found.sizes, [class(0, 1, 0), class(512, 1, 0), class(4096, 1, 1)]);
        assert_eq!((found.devices[0].unique_bytes, found.devices[1].unique_bytes), (8192, 0));
    }

    #[test]
    fn the_load_over_time_keeps_every_request_whatever_the_span_is() {
        for (rate, count) in [(1e9, 10), (1e6, 5_000), (0.5, 5_000)] {
            let mode = Mode { size: 4096, random: 50, reads: 25 };
            let mut trace = Synthetic::new(mode, Pace::PerSecond(rate), 1 << 30, count, 1).unwrap();
            let found = profile("s", &mut trace).unwrap();
            let load = &found.load;
            assert!(load.reads.len() <= INTERVALS && load.reads.len() == load.bytes.len());
            assert_eq!(load.reads.iter().sum::<u64>(), found.figures.reads);
            assert_eq!(load.bytes.iter().sum::<u64>(), found.figures.bytes);
            if count > 10 {
                assert!(load.reads.len() > INTERVALS / 2);
                // An even pace fills every interval but the last alike.
                let all = |i: usize| load.reads[i] + load.writes[i];
                let each = rate * load.interval_seconds;
                assert!((0..load.reads.len() - 1).all(|i| (all(i) as f64 - each).abs() <= 1.0), "{load:?}");
            }
        }
    }

    #[test]
    fn an_empty_trace_has_a_profile_without_figures() {
        let found = of("");
        assert_eq!((found.figures.requests, found.figures.read_share, found.figures.gaps), (0, None, None));
        assert!(found.load.reads.is_empty() && found.sizes.is_empty() && found.devices.is_empty());
    }
}
