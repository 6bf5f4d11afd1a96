//! A synthetic day, for users without a trace and for tests: open arrivals that follow a daily curve.

use ebb_trace::Trace;
use ebb_trace::{Kind, Request};
use ebb_types::Random;
use std::f64::consts::TAU;
use std::time::Duration;

/// Parameters of the day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Day {
    pub requests: u64,
    pub span: Duration,
    /// Lowest rate, as a share of the highest. The trough is at a sixth of the day (4 o'clock), the peak twelve hours
    /// later.
    pub trough: f64,
    /// Share of requests that read.
    pub reads: f64,
    /// Share of requests that continue where the last one of their volume ended.
    pub sequential: f64,
    pub volumes: u32,
    pub volume_bytes: u64,
    pub seed: u64,
}

impl Default for Day {
    fn default() -> Day {
        Day {
            requests: 100_000,
            span: Duration::from_secs(86_400),
            trough: 0.2,
            reads: 0.6,
            sequential: 0.3,
            volumes: 64,
            volume_bytes: 64 << 30,
            seed: 1,
        }
    }
}

/// Sizes in KiB and how often each is, in percent: small pages and records, some streams. The mean is 20 KiB.
const SIZES: [(u32, u64); 5] = [(4, 45), (8, 25), (16, 15), (64, 13), (256, 2)];

impl Day {
    /// Generates the day's trace. The same day gives the same trace.
    pub fn trace(&self) -> Trace {
        let mut random = Random::new(self.seed ^ 0xda4);
        let seconds = self.span.as_secs_f64();
        let mut ends: Vec<u64> = vec![0; self.volumes.max(1) as usize];
        let mean = (1.0 + self.trough) / 2.0;
        let mut times: Vec<f64> = Vec::with_capacity(self.requests as usize);
        while (times.len() as u64) < self.requests {
            // Thinning: a time of day is kept with a probability proportional to the curve.
            let at = uniform(&mut random);
            let level = mean - (1.0 - mean) * ((at - 1.0 / 6.0) * TAU).cos();
            if uniform(&mut random) < level {
                times.push(at * seconds);
            }
        }
        times.sort_by(f64::total_cmp);
        let origin = times.first().copied().unwrap_or(0.0);
        let mut draw = |at: f64| {
            let volume = skewed(&mut random, self.volumes.max(1).into()) as usize;
            let len = size(&mut random);
            let blocks = (self.volume_bytes / 4096).max(1024);
            let goes_on = uniform(&mut random) < self.sequential;
            let end = ends[volume];
            let offset = match goes_on && end + u64::from(len) <= blocks * 4096 {
                true => end,
                false => skewed(&mut random, blocks - u64::from(len) / 4096) * 4096,
            };
            ends[volume] = offset + u64::from(len);
            let kind = if uniform(&mut random) < self.reads { Kind::Read } else { Kind::Write };
            Request { at: Duration::from_secs_f64(at - origin), device: volume as u32, offset, len, kind }
        };
        Trace {
            name: format!("a synthetic day of {} requests", self.requests),
            requests: times.into_iter().map(&mut draw).collect(),
            devices: (0..self.volumes.max(1)).map(|n| format!("volume-{n}")).collect(),
            ..Trace::default()
        }
    }
}

/// Uniform in 0..1.
fn uniform(random: &mut Random) -> f64 {
    random.below(1 << 53) as f64 / (1u64 << 53) as f64
}

/// In `0..bound`, skewed: four fifths of the draws fall into the first fifth of the scattered numbers.
fn skewed(random: &mut Random, bound: u64) -> u64 {
    let fifth = bound.div_ceil(5);
    let hot = random.chance(800);
    let place = if hot { random.below(fifth) } else { random.below(bound) };
    // Scattered by an odd factor, so that hot blocks are not adjacent.
    (u128::from(place) * 5 % u128::from(bound)) as u64
}

fn size(random: &mut Random) -> u32 {
    let mut at = random.below(100);
    for (kib, share) in SIZES {
        if at < share {
            return kib << 10;
        }
        at -= share;
    }
    SIZES[0].0 << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_its_curve_its_mix_and_its_order() {
        let day = Day { requests: 50_000, ..Day::default() };
        let trace = day.trace();
        assert_eq!(trace, day.trace());
        assert_eq!(trace.requests.len(), 50_000);
        assert!(trace.requests.windows(2).all(|w| w[0].at <= w[1].at));
        let in_hour = |h: u64| trace.requests.iter().filter(|r| r.at.as_secs() / 3600 == h).count() as f64;
        let ratio = in_hour(4) / in_hour(16);
        assert!((ratio - 0.2).abs() < 0.05, "{ratio}");
        let reads = trace.requests.iter().filter(|r| r.kind == Kind::Read).count() as f64 / 50_000.0;
        assert!((reads - 0.6).abs() < 0.02, "{reads}");
        let end = trace.requests.iter().map(|r| r.offset + u64::from(r.len)).max().unwrap();
        assert!(end <= day.volume_bytes && trace.requests.iter().all(|r| r.offset % 4096 == 0));
    }
}
