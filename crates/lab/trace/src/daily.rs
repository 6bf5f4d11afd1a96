//! A day of a server, made here: traces with the figures of LogStore's three workloads [LogStore Table 2]. Of the
//! originals only parts are published. The same seed makes the same trace.
//!
//! Table 2 gives the number of requests, their mean size, and the share of writes before and after a file system's
//! cache. [`Daily::after_cache`] is the traffic behind the cache: all writes, and so few reads that writes are 93 %.
//!
//! **Spans.** A mirror of idle disks takes 12 W, and an access takes the same joules at any acceleration `f`. So the
//! one-speed energies are `12 W * span / f + constant` [LogStore Tables 3 and 4].
//! - Financial: 274.5 kJ - 98.9 kJ = 12 W * span * (1/2 - 1/6): 43,900 s. That makes 142.8 kJ at 4x; 142.9 is printed.
//!   The constant is 11.1 kJ: at 3 W above idle, two disks are busy for 25 % of the time at 6x.
//! - Proxy: the least-squares line through 155.8, 82.0 and 56.0 kJ at 7x, 14x and 21x gives 87,000 s. It is taken to be
//!   a day, 86,400 s. The disks are busy for 27 % of the time at 21x.
//! - Search has no such table. Its highest acceleration is set to 6x, as Financial's. Two of the paper's disks serve
//!   its reads in 5.95 ms each, 336 per second. 90 % of that at the peak is 110 per second on average, 14,000 s at 6x.
//!
//! **Rhythm.** The paper's figures over time come without data, but its energies say how long disks of two speeds are
//! at high speed, a share `h` of the time. They take `2 * span / f * (6 W * h + 0.5 W * (1 - h))`, some 10 kJ for
//! accesses (Proxy 6.6 kJ), and 56 J for each pair of changes of speed, beyond 14 s at high speed.
//! - `h` is printed for Financial at 4x and Proxy at 21x, 62 and 73 % [LogStore §4.2]. That leaves 3.7 and 1.8 kJ for
//!   changes: 66 and 33 pairs of both disks. With logs (42 and 52 %) it is 82 and 30. So the load rises and falls about
//!   40 times in Financial and 15 times in Proxy.
//! - The other energies then say that `h` is 35 % for Financial at 2x and 71 % at 6x, and 20 % for Proxy at 7x and 61 %
//!   at 14x. It grows with the load everywhere, so loads are spread widely, down to nothing.
//!
//! Each wave here rises to `peak * u^(peak - 1)` of the mean, `u` from 0 to 1, and falls as it rose; the mean of that
//! is 1. At the highest acceleration the peak makes the disks busy for 90 % of the time [LogStore §4.1]. That is
//! 0.9 / 0.25 and 0.9 / 0.27 of the mean; the height is a little less, since bursts add to it. Gaps are of two kinds,
//! short ones in bursts and long ones between them. Of Search's rhythm only what LogStore saves is known, 39 %: a
//! lower peak and few waves are fitted to that.
//!
//! **Addresses.** A request continues one of the last few runs, or starts a new one. Starts are Zipf-like over a
//! working set of places, which lie together in regions. Behind a cache, which writes back in runs, more requests are
//! sequential: as many as it takes for the paper's disks to take the paper's energies.
//!
//! `docs/trace-formats.md` compares the result with the published traces.

use crate::{Kind, Request, TraceError, TraceReader};
use ebb_types::Random;
use std::time::Duration;

/// Parameters of a day's trace. All may be changed; [`Daily::requests`] checks them.
#[derive(Clone, Debug, PartialEq)]
pub struct Daily {
    pub count: u64,
    /// From the first request to about the last.
    pub span: Duration,
    /// Share of writes, 0 to 1.
    pub writes: f64,
    /// The same behind a cache that absorbs reads.
    pub writes_after_cache: f64,
    /// Request sizes in bytes, each with its weight.
    pub sizes: Vec<(u32, u64)>,
    /// Rate at the peaks by mean rate, 1 to 100.
    pub peak_to_mean: f64,
    /// How often the load rises from nothing to its peak and falls again.
    pub waves: u32,
    /// Mean requests of a burst, at least 1.
    pub burst: f64,
    /// Mean gap within a burst by mean gap at that time of day, 0 to 1.
    pub burst_gap: f64,
    /// Bytes of the device over which the regions are spread evenly.
    pub area: u64,
    /// Number of regions, a power of two.
    pub regions: u64,
    /// Places per region, of 4 KiB each, a power of two.
    pub places: u64,
    /// Exponent of the places' popularity, 0 (all alike) to 2.
    pub skew: f64,
    /// Share of requests that continue a run.
    pub sequential: f64,
    /// The same behind the cache.
    pub sequential_after_cache: f64,
    /// Share of these that continue another run than the previous request's.
    pub interleaved: f64,
}

/// A day's trace that cannot be generated as requested.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum DailyError {
    #[error("{name} is {value} and must be between {least} and {most}")]
    Range { name: &'static str, value: f64, least: f64, most: f64 },
    #[error("{name} is {value} and must be a power of two, at most {MOST_PLACES}")]
    PowerOfTwo { name: &'static str, value: u64 },
    #[error("the request sizes need one of at least a byte, and a weight above zero for each")]
    Sizes,
    #[error("{regions} regions of {bytes} bytes do not fit an area of {area} bytes: enlarge the area")]
    Area { regions: u64, bytes: u64, area: u64 },
}

const PLACE_BYTES: u64 = 4096;
const MOST_PLACES: u64 = 1 << 32;
/// Runs that can be continued at any time.
const RUNS: usize = 8;

impl Daily {
    /// Transactions of a financial institution: small, mostly writes.
    pub fn financial() -> Daily {
        Daily {
            count: 1_484_205,
            span: Duration::from_secs(43_900),
            writes: 0.68,
            writes_after_cache: 0.93,
            sizes: vec![
                (512, 190),
                (1024, 202),
                (1536, 20),
                (2560, 60),
                (3072, 290),
                (3584, 130),
                (8192, 118),
                (12288, 14),
            ],
            peak_to_mean: 3.4,
            waves: 40,
            burst: 40.0,
            burst_gap: 0.4,
            area: 6 << 30,
            regions: 512,
            places: 256,
            skew: 0.9,
            sequential: 0.57,
            sequential_after_cache: 0.82,
            interleaved: 0.2,
        }
    }

    /// A Web proxy's disks.
    pub fn proxy() -> Daily {
        Daily {
            count: 750_758,
            span: Duration::from_secs(86_400),
            writes: 0.43,
            writes_after_cache: 0.93,
            sizes: vec![(4096, 1059), (8192, 541), (12288, 150), (16384, 180), (32768, 118)],
            peak_to_mean: 3.2,
            waves: 15,
            burst: 20.0,
            burst_gap: 0.5,
            area: 16 << 30,
            regions: 4096,
            places: 64,
            skew: 0.7,
            sequential: 0.4,
            sequential_after_cache: 0.52,
            interleaved: 0.2,
        }
    }

    /// A Web search engine's index: reads only.
    pub fn search() -> Daily {
        Daily {
            count: 1_544_375,
            span: Duration::from_secs(84_000),
            writes: 0.0,
            writes_after_cache: 0.0,
            sizes: vec![(8192, 2485), (16384, 500), (24576, 320), (32768, 791)],
            peak_to_mean: 2.6,
            waves: 4,
            burst: 20.0,
            burst_gap: 0.6,
            area: 48 << 30,
            regions: 4096,
            places: 512,
            skew: 0.4,
            sequential: 0.39,
            sequential_after_cache: 0.39,
            interleaved: 0.75,
        }
    }

    /// What a file system's cache passes on: all writes, and reads until writes have their share after the cache. The
    /// span stays. Requests that are all reads stay as they are, too: Table 2 gives no other number.
    pub fn after_cache(self) -> Daily {
        if self.writes_after_cache <= self.writes {
            return self;
        }
        let writes = self.count as f64 * self.writes;
        Daily {
            count: (writes / self.writes_after_cache).round() as u64,
            writes: self.writes_after_cache,
            sequential: self.sequential_after_cache,
            ..self
        }
    }

    /// One in `part` of the requests and of the waves, in as much less time.
    pub fn part(self, part: u32) -> Daily {
        Daily {
            count: self.count / u64::from(part),
            span: self.span / part,
            waves: (self.waves / part).max(1),
            ..self
        }
    }

    /// The trace that these parameters and this seed make.
    pub fn requests(self, seed: u64) -> Result<DailyTrace, DailyError> {
        self.check()?;
        let mut random = Random::new(seed);
        Ok(DailyTrace {
            arrivals: Arrivals::new(&self, random.fork()),
            weight: self.sizes.iter().map(|(_, weight)| weight).sum(),
            runs: [None; RUNS],
            latest: 0,
            random,
            daily: self,
        })
    }

    fn check(&self) -> Result<(), DailyError> {
        for (name, value, least, most) in [
            ("count", self.count as f64, 1.0, 1e15),
            ("span", self.span.as_secs_f64(), 1e-3, 1e9),
            ("writes", self.writes, 0.0, 1.0),
            ("writes_after_cache", self.writes_after_cache, 0.0, 1.0),
            ("peak_to_mean", self.peak_to_mean, 1.0, 100.0),
            ("waves", f64::from(self.waves), 1.0, 1e6),
            ("burst", self.burst, 1.0, 1e6),
            ("burst_gap", self.burst_gap, 0.0, 1.0),
            ("skew", self.skew, 0.0, 2.0),
            ("sequential", self.sequential, 0.0, 1.0),
            ("sequential_after_cache", self.sequential_after_cache, 0.0, 1.0),
            ("interleaved", self.interleaved, 0.0, 1.0),
        ] {
            if !(least..=most).contains(&value) {
                return Err(DailyError::Range { name, value, least, most });
            }
        }
        for (name, value) in [("regions", self.regions), ("places", self.places)] {
            if !value.is_power_of_two() || value > MOST_PLACES {
                return Err(DailyError::PowerOfTwo { name, value });
            }
        }
        if self.sizes.is_empty() || self.sizes.iter().any(|&(size, weight)| size == 0 || weight == 0) {
            return Err(DailyError::Sizes);
        }
        // The last place of the last region takes a request of any size.
        let largest = self.sizes.iter().map(|&(size, _)| u64::from(size)).max().unwrap_or(0);
        let bytes = (self.places - 1) * PLACE_BYTES + largest;
        if self.area > i64::MAX as u64 || self.area / self.regions < bytes {
            return Err(DailyError::Area { regions: self.regions, bytes, area: self.area });
        }
        Ok(())
    }
}

/// The moments of a trace's requests.
struct Arrivals {
    left: u64,
    /// Share of the trace's load before the last request.
    load: f64,
    peak: f64,
    waves: f64,
    span: f64,
    /// Probability that a gap is one between bursts; its mean by the mean gap; the same for one within.
    ends: f64,
    between: f64,
    within: f64,
    random: Random,
}

impl Arrivals {
    fn new(daily: &Daily, random: Random) -> Arrivals {
        let (burst, within) = (daily.burst, daily.burst_gap);
        Arrivals {
            left: daily.count,
            load: 0.0,
            peak: daily.peak_to_mean,
            waves: f64::from(daily.waves),
            span: daily.span.as_secs_f64(),
            ends: 1.0 / burst,
            between: burst - (burst - 1.0) * within,
            within,
            random,
        }
    }

    /// When the load before a request has this share of the whole.
    fn time(&self) -> Duration {
        let waves = self.load * self.waves;
        Duration::from_secs_f64(self.span * (waves.floor() + within(self.peak, waves.fract())) / self.waves)
    }

    fn next(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let at = self.time();
        // The first of n uniform points in the rest of the load; a long gap counts as if there were fewer, a short one
        // as if there were more. So the load and the requests end together.
        let gap = if self.random.unit() < self.ends { self.between } else { self.within };
        let share = 1.0 - self.random.unit().powf(gap / self.left.max(1) as f64);
        self.load += (1.0 - self.load) * share;
        Some(at)
    }
}

/// Share of a wave's time before which it has this share of its load. It rises as `peak * u^(peak - 1)`, whose integral
/// is `u^peak`, and falls as it rose.
fn within(peak: f64, load: f64) -> f64 {
    match load <= 0.5 {
        true => (2.0 * load).powf(1.0 / peak) / 2.0,
        false => 1.0 - (2.0 * (1.0 - load)).powf(1.0 / peak) / 2.0,
    }
}

/// A day's requests on one device, one at a time.
pub struct DailyTrace {
    daily: Daily,
    arrivals: Arrivals,
    /// Sum of the sizes' weights.
    weight: u64,
    /// Where each run ends, and its kind.
    runs: [Option<(u64, Kind)>; RUNS],
    /// The previous request's run.
    latest: usize,
    random: Random,
}

impl DailyTrace {
    fn size(&mut self) -> u32 {
        let mut draw = self.random.below(self.weight);
        for &(size, weight) in &self.daily.sizes {
            match draw.checked_sub(weight) {
                Some(rest) => draw = rest,
                None => return size,
            }
        }
        unreachable!("a draw is below the sum of the weights")
    }

    /// Where a request of this size starts, and its kind.
    fn place(&mut self, size: u32) -> (u64, Kind) {
        if self.random.unit() < self.daily.sequential {
            let mut run = self.latest;
            if self.random.unit() < self.daily.interleaved {
                run = (run + 1 + self.random.index(RUNS - 1)) % RUNS;
            }
            if let Some((end, kind)) = self.runs[run]
                && end + u64::from(size) <= self.daily.area
            {
                self.latest = run;
                return (end, kind);
            }
        }
        self.latest = self.random.index(RUNS);
        let kind = if self.random.unit() < self.daily.writes { Kind::Write } else { Kind::Read };
        (self.start(), kind)
    }

    /// Where a run starts. Places of similar popularity share a region; popular regions lie anywhere.
    fn start(&mut self) -> u64 {
        let Daily { area, regions, places, skew, .. } = self.daily;
        // The inverse of the integral of x^-skew over the ranks 1 to all, each as wide as one.
        let all = (regions * places + 1) as f64;
        let draw = self.random.unit();
        let power = 1.0 - skew;
        let rank = if power.abs() < 1e-9 {
            all.powf(draw)
        } else {
            ((all.powf(power) - 1.0) * draw + 1.0).powf(1.0 / power)
        };
        let rank = (rank as u64).clamp(1, regions * places) - 1;
        // An odd factor permutes the numbers below a power of two.
        let scatter = |n: u64, of: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % of;
        let stride = area / regions / PLACE_BYTES * PLACE_BYTES;
        scatter(rank / places, regions) * stride + scatter(rank % places, places) * PLACE_BYTES
    }
}

impl Iterator for DailyTrace {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.arrivals.next()?;
        let len = self.size();
        let (offset, kind) = self.place(len);
        self.runs[self.latest] = Some((offset + u64::from(len), kind));
        Some(Ok(Request { at, device: 0, offset, len, kind }))
    }
}

impl TraceReader for DailyTrace {
    fn devices(&self) -> &[String] {
        static NAME: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["daily".into()]);
        &*NAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary;

    /// Makes the whole trace, and checks it against the parameters and these figures of Table 2.
    fn check(daily: Daily, count: u64, mean: u32, writes: f64) -> Vec<f64> {
        let span = daily.span.as_secs_f64();
        let peak = daily.peak_to_mean;
        let (mut made, mut bytes, mut written) = (0u64, 0u64, 0u64);
        // Over a wave, all waves together.
        let (mut last, mut load) = (Duration::ZERO, vec![0.0; 40]);
        for request in daily.clone().requests(1).unwrap() {
            let request = request.unwrap();
            if made == 0 {
                assert_eq!(request.at, Duration::ZERO);
            }
            assert!(request.at >= last && request.offset + u64::from(request.len) <= daily.area);
            last = request.at;
            made += 1;
            bytes += u64::from(request.len);
            written += u64::from(request.kind == Kind::Write);
            let wave = last.as_secs_f64() / span * f64::from(daily.waves);
            load[(wave.fract() * 40.0) as usize] += 40.0 / daily.count as f64;
        }
        assert_eq!(made, count);
        let size = bytes as f64 / made as f64;
        assert!((size / f64::from(mean) - 1.0).abs() < 0.005, "{size} bytes");
        let share = written as f64 / made as f64;
        assert!((share - writes).abs() < 0.005, "{share} writes");
        assert!((0.99 * span..=span).contains(&last.as_secs_f64()), "{last:?} of {span} s");
        let most = load.iter().copied().fold(0.0, f64::max);
        assert!((most / peak - 1.0).abs() < 0.1, "{most} at the peak, not {peak}");
        // The size is exact in the long run.
        let weight: u64 = daily.sizes.iter().map(|(_, weight)| weight).sum();
        let sum: u64 = daily.sizes.iter().map(|(size, weight)| u64::from(*size) * weight).sum();
        assert_eq!(sum, u64::from(mean) * weight);
        load
    }

    #[test]
    fn financial_is_that_of_table_2() {
        let load = check(Daily::financial(), 1_484_205, 2_914, 0.68);
        let quiet = load.iter().filter(|&&load| load < 0.5).count();
        assert!((16..20).contains(&quiet), "{quiet} of 40 parts of a wave are quiet");
    }

    #[test]
    fn proxy_is_that_of_table_2() {
        check(Daily::proxy(), 750_758, 8_510, 0.43);
    }

    #[test]
    fn search_is_that_of_table_2() {
        check(Daily::search(), 1_544_375, 15_218, 0.0);
        assert_eq!(Daily::search().after_cache(), Daily::search());
    }

    #[test]
    fn a_cache_keeps_the_writes_of_table_2() {
        // 1,484,205 * 0.68 / 0.93 and 750,758 * 0.43 / 0.93.
        let financial = Daily::financial().after_cache();
        assert_eq!((financial.sequential, financial.span), (0.82, Daily::financial().span));
        check(financial, 1_085_225, 2_914, 0.93);
        check(Daily::proxy().after_cache(), 347_125, 8_510, 0.93);
    }

    /// For what does not depend on the number of requests.
    fn short(daily: Daily) -> Daily {
        Daily { count: 40_000, ..daily }
    }

    #[test]
    fn a_seed_decides_everything() {
        let all = |seed| {
            let trace = short(Daily::financial()).requests(seed).unwrap();
            trace.map(|request| request.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn the_peak_is_a_parameter() {
        for peak in [1.0, 4.0, 10.0] {
            let daily = Daily { peak_to_mean: peak, waves: 1, burst: 1.0, ..short(Daily::financial()) };
            let (half, tenth) = (daily.span / 2, daily.span / 50);
            let near = |at: Duration| half.abs_diff(at) < tenth / 2;
            let busy =
                daily.requests(3).unwrap().filter(|request| near(request.as_ref().unwrap().at)).count();
            // The share of a wave's load in the last 2 % of its rise and the first 2 % of its fall.
            let found = busy as f64 / 40_000.0 / (1.0 - 0.98_f64.powf(peak));
            assert!((found - 1.0).abs() < 0.1, "{found} of a peak of {peak}");
        }
        assert_eq!([0.0, 0.5, 1.0].map(|load| within(3.4, load)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn a_part_of_a_day_has_its_waves_at_the_same_pace() {
        let [day, part] = [Daily::financial(), Daily::financial().part(12)];
        assert_eq!((part.count, part.waves), (day.count / 12, 3));
        assert_eq!(Daily::proxy().part(200).waves, 1);
    }

    #[test]
    fn bursts_make_the_load_of_seconds_vary() {
        // Variance by mean of the requests in 3 s around the peak; 1 if they came independently.
        let vary = |burst| {
            let daily = Daily { burst, waves: 1, ..Daily::financial() };
            let start = daily.span.as_secs_f64() * 0.49;
            let mut counts = vec![0.0; 290];
            for request in daily.requests(5).unwrap() {
                let at = (request.unwrap().at.as_secs_f64() - start) / 3.0;
                if at >= 0.0
                    && let Some(count) = counts.get_mut(at as usize)
                {
                    *count += 1.0;
                }
            }
            let mean = counts.iter().sum::<f64>() / 290.0;
            counts.iter().map(|count| (count - mean) * (count - mean)).sum::<f64>() / 290.0 / mean
        };
        assert!((0.7..1.4).contains(&vary(1.0)));
        // As in the published part of Financial: 38.
        assert!((20.0..50.0).contains(&vary(40.0)), "{}", vary(40.0));
    }

    #[test]
    fn runs_and_popular_places_are_as_asked_for() {
        let daily = Daily { count: 100_000, sequential: 0.5, interleaved: 0.2, ..Daily::financial() };
        let total = summary(&mut daily.clone().requests(1).unwrap()).unwrap();
        let sequential = 1.0 - total.random_share().unwrap();
        assert!((sequential - 0.4).abs() < 0.01, "{sequential} continue the previous request");
        let starts = |skew| {
            let daily = Daily { sequential: 0.0, skew, ..daily.clone() };
            let all: std::collections::BTreeSet<u64> =
                daily.requests(1).unwrap().map(|request| request.unwrap().offset).collect();
            assert!(all.iter().all(|offset| offset % PLACE_BYTES == 0));
            all.len()
        };
        // 131,072 places: n (1 - e^(-100,000 / n)) of them are hit if all are alike.
        assert!((starts(0.0) as f64 / 69_960.0 - 1.0).abs() < 0.02, "{}", starts(0.0));
        assert!(starts(0.9) < 45_000 && starts(1.0) < starts(0.9));
    }

    #[test]
    fn a_rank_is_a_place_of_its_own() {
        let daily =
            Daily { regions: 8, places: 4, area: 1 << 20, sequential: 0.0, skew: 0.0, ..Daily::financial() };
        let all: std::collections::BTreeSet<u64> =
            short(daily).requests(1).unwrap().map(|request| request.unwrap().offset).collect();
        assert_eq!(all.len(), 32);
        assert!(all.iter().all(|offset| offset % (1 << 17) < 4 * PLACE_BYTES));
    }

    #[test]
    fn runs_end_with_the_device() {
        let daily = Daily { regions: 1, places: 1, area: 1 << 20, sequential: 1.0, ..Daily::financial() };
        let ends: Vec<u64> = short(daily)
            .requests(1)
            .unwrap()
            .map(|request| request.map(|request| request.offset + u64::from(request.len)).unwrap())
            .collect();
        assert!(ends.iter().all(|&end| end <= 1 << 20) && ends.iter().any(|&end| end > (1 << 20) - 12_288));
    }

    #[test]
    fn impossible_days_are_refused() {
        let refused = |change: fn(&mut Daily)| {
            let mut daily = Daily::financial();
            change(&mut daily);
            daily.requests(1).err().expect("refused").to_string()
        };
        assert!(refused(|d| d.count = 0).contains("count is 0"));
        assert!(refused(|d| d.writes = f64::NAN).contains("writes is NaN"));
        assert!(refused(|d| d.peak_to_mean = 0.5).contains("between 1 and 100"));
        assert!(refused(|d| d.regions = 3).contains("power of two"));
        assert!(refused(|d| d.places = 0).contains("power of two"));
        assert!(refused(|d| d.sizes.clear()).contains("sizes"));
        assert!(refused(|d| d.sizes[0].1 = 0).contains("weight"));
        assert!(refused(|d| d.area = 1 << 20).contains("enlarge the area"));
    }
}
