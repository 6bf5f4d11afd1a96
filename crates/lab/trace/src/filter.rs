//! Load control: the same trace at another intensity.
//!
//! Three ways, each a [`TraceReader`] around another:
//! - [`TracerFilter`] keeps whole bunches, some of every ten [TRACER §IV];
//! - [`BalancedFilter`] keeps requests such that reads, writes and the bytes of both stay proportional;
//! - [`Scaled`] keeps everything and stretches or shrinks the time between requests.
//!
//! A **bunch** is a set of requests that arrive together: within a window of the first. A zero window means equal
//! times, which is how the bunches of a btrecord file appear; [`BalancedFilter`] always uses it.

use crate::{Kind, Request, TraceError, TraceReader};
use ebb_types::Random;
use std::collections::VecDeque;
use std::time::Duration;

/// An unsupported intensity was requested.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    #[error(
        "TRACER's filter knows 10 % to 100 % in steps of 10, not {0} tenths; the balanced filter takes any share"
    )]
    Tenths(u8),
    #[error(
        "a share of {0} cannot be kept: give one above 0 and up to 1 (100 %), or scale the time for more"
    )]
    Share(f64),
    #[error("an intensity of {0} is outside 0.01 to 10 (1 % to 1000 %)")]
    Intensity(f64),
}

/// Detects where bunches start.
struct Bunches {
    window: Duration,
    first: Option<Duration>,
}

impl Bunches {
    fn new(window: Duration) -> Self {
        Self { window, first: None }
    }

    /// Whether a request that arrives at `at` starts a bunch.
    fn begins(&mut self, at: Duration) -> bool {
        let joins = self.first.is_some_and(|first| at.saturating_sub(first) <= self.window);
        if !joins {
            self.first = Some(at);
        }
        !joins
    }
}

/// Forwards a trace's own properties, for a wrapper `$name<R>` with the trace in its field `inner`.
#[macro_export]
macro_rules! pass_on {
    ($name:ident) => {
        impl<R: $crate::TraceReader> $crate::TraceReader for $name<R> {
            fn format(&self) -> Option<$crate::Format> {
                self.inner.format()
            }
            fn devices(&self) -> &[String] {
                self.inner.devices()
            }
            fn skipped(&self) -> u64 {
                self.inner.skipped()
            }
            fn backwards(&self) -> u64 {
                self.inner.backwards()
            }
            fn left_out(&self) -> u64 {
                self.inner.left_out()
            }
        }
    };
}

/// TRACER's proportional filter: bunches in groups of ten, of which the same ones are kept in every group, spread
/// evenly: the tenth for 10 %, the fifth and the tenth for 20 % [TRACER §IV, Figure 5]. Kept requests keep their times.
pub struct TracerFilter<R> {
    inner: R,
    bunches: Bunches,
    tenths: u64,
    /// Bunches of the present group seen so far, 1 to 10.
    place: u64,
}

impl<R: TraceReader> TracerFilter<R> {
    /// Keeps `tenths` of every ten bunches; `window` defines the bunches.
    pub fn new(inner: R, tenths: u8, window: Duration) -> Result<Self, LoadError> {
        if !(1..=10).contains(&tenths) {
            return Err(LoadError::Tenths(tenths));
        }
        Ok(Self { inner, bunches: Bunches::new(window), tenths: tenths.into(), place: 0 })
    }
}

impl<R: TraceReader> Iterator for TracerFilter<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let request = match self.inner.next()? {
                Ok(request) => request,
                Err(error) => return Some(Err(error)),
            };
            if self.bunches.begins(request.at) {
                self.place = self.place % 10 + 1;
            }
            // The n-th kept bunch is the one at which n tenths of the group are reached.
            if self.place * self.tenths / 10 > (self.place - 1) * self.tenths / 10 {
                return Some(Ok(request));
            }
        }
    }
}

pass_on!(TracerFilter);

/// Totals seen or kept: reads, writes, bytes read, bytes written.
type Weights = [f64; 4];

/// Most requests that are kept or dropped together; larger bunches are split, so that one bunch cannot upset the
/// balance.
const MAX_TOGETHER: usize = 8;
/// In units of the squared debt, where one request is about one. On real traces, up to this value the error hardly
/// grows while the inter-arrival distribution approaches the original's.
const NOISE: f64 = 1.0;

/// Ebb's filter: keeps any share of a trace, and with it IOPS, bytes, read ratio and the shape of the load over time.
///
/// It tracks a debt in four weights, the share of everything seen so far minus what was kept: reads, writes, bytes read
/// and bytes written, bytes in units of the mean size. A bunch is kept if that leaves the smaller debt. So the error
/// does not grow with the trace, at any point of it, whatever the sizes. TRACER's filter ignores sizes and is off by as
/// much as the kept bunches happen to differ from the others (up to 32 % on cello99 [TRACER Table V]).
///
/// A little noise, the same in every run, is added to the comparison: without it a regular trace would be thinned with
/// a comb, and irregular arrivals would come out evenly spaced.
pub struct BalancedFilter<R> {
    inner: R,
    share: f64,
    bunches: Bunches,
    bunch: VecDeque<Request>,
    /// Requests of `bunch` still to be returned.
    kept: usize,
    /// The inner reader's item after the bunch.
    held: Option<Option<Result<Request, TraceError>>>,
    debt: Weights,
    requests: f64,
    bytes: f64,
    noise: Random,
}

pass_on!(BalancedFilter);

impl<R: TraceReader> BalancedFilter<R> {
    /// Keeps `share` of the trace, above 0 and up to 1.
    pub fn new(inner: R, share: f64) -> Result<Self, LoadError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(LoadError::Share(share));
        }
        Ok(Self {
            inner,
            share,
            bunches: Bunches::new(Duration::ZERO),
            bunch: VecDeque::new(),
            kept: 0,
            held: None,
            debt: [0.0; 4],
            requests: 0.0,
            bytes: 0.0,
            noise: Random::new(0),
        })
    }

    /// Fills `bunch` up to the start of the next one, which is held.
    fn gather(&mut self) {
        loop {
            let item = match self.held.take() {
                Some(item) => item,
                None => self.inner.next(),
            };
            match item {
                Some(Ok(request)) => {
                    let begins = self.bunches.begins(request.at);
                    if !self.bunch.is_empty() && (begins || self.bunch.len() == MAX_TOGETHER) {
                        self.held = Some(Some(Ok(request)));
                        return;
                    }
                    self.bunch.push_back(request);
                }
                other => {
                    self.held = Some(other);
                    return;
                }
            }
        }
    }

    /// Whether to keep the gathered bunch.
    fn decide(&mut self) -> bool {
        let mut weights = [0.0; 4];
        for request in &self.bunch {
            let kind = usize::from(request.kind == Kind::Write);
            weights[kind] += 1.0;
            weights[2 + kind] += f64::from(request.len);
        }
        self.requests += weights[0] + weights[1];
        self.bytes += weights[2] + weights[3];
        let mean = (self.bytes / self.requests).max(1.0);
        let (mut keep, mut drop) = (0.0, 0.0);
        for (i, (debt, weight)) in self.debt.iter_mut().zip(weights).enumerate() {
            *debt += self.share * weight;
            let unit = if i < 2 { 1.0 } else { mean };
            keep += ((*debt - weight) / unit).powi(2);
            drop += (*debt / unit).powi(2);
        }
        let kept = self.share == 1.0 || keep - drop < self.next_noise();
        if kept {
            for (debt, weight) in self.debt.iter_mut().zip(weights) {
                *debt -= weight;
            }
        }
        kept
    }

    /// A pseudo-random number between -NOISE and NOISE, the same in every run.
    fn next_noise(&mut self) -> f64 {
        NOISE * (2.0 * self.noise.unit() - 1.0)
    }
}

impl<R: TraceReader> Iterator for BalancedFilter<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.kept == 0 {
            self.bunch.clear();
            if let Some(Some(Err(_)) | None) = self.held {
                return self.held.take().flatten();
            }
            self.gather();
            if !self.bunch.is_empty() && self.decide() {
                self.kept = self.bunch.len();
            }
        }
        self.kept -= 1;
        self.bunch.pop_front().map(Ok)
    }
}

/// A trace at another speed: inter-arrival times divided by the intensity.
pub struct Scaled<R> {
    inner: R,
    /// Intensity in millionths.
    millionths: u128,
}

pass_on!(Scaled);

impl<R: TraceReader> Scaled<R> {
    /// Replays at `intensity` times the original rate: 0.01 to 10, which is 1 % to 1000 % [TRACER §III.B].
    pub fn new(inner: R, intensity: f64) -> Result<Self, LoadError> {
        if !(0.01..=10.0).contains(&intensity) {
            return Err(LoadError::Intensity(intensity));
        }
        Ok(Self { inner, millionths: (intensity * 1e6).round() as u128 })
    }
}

impl<R: TraceReader> Iterator for Scaled<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.inner.next()?.map(|request| {
            let nanos = request.at.as_nanos() * 1_000_000 / self.millionths;
            let at = Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32);
            Request { at, ..request }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Pace, Synthetic, open, summary};

    /// A synthetic trace of `(milliseconds, bytes)`; even sizes read.
    fn trace(requests: impl Iterator<Item = (u64, u32)>) -> Box<dyn TraceReader> {
        let lines = requests.map(|(ms, len)| {
            let kind = if len % 2 == 0 { 'R' } else { 'W' };
            format!("0,{},{len},{kind},{}.{:03}\n", ms % 7919, ms / 1000, ms % 1000)
        });
        open("t.spc", std::io::Cursor::new(lines.collect::<String>())).unwrap()
    }

    fn sizes(reader: impl TraceReader) -> Vec<u32> {
        reader.map(|r| r.unwrap().len).collect()
    }

    /// Irregular bunches and sizes from 512 bytes to 1 MiB, some written.
    fn uneven() -> Box<dyn TraceReader> {
        let mut state = 7u32;
        let mut draw = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let mut ms = 0;
        trace((0..20_000).map(move |_| {
            ms += u64::from(draw() % 3) * u64::from(draw() % 40);
            let size = 512 << (draw() % 4 * (draw() % 4)).min(11);
            (ms, size + u32::from(draw() % 3 == 0))
        }))
    }

    #[test]
    fn tracer_keeps_the_bunches_of_figure_5() {
        for (tenths, kept) in [
            (1, &[10][..]),
            (2, &[5, 10]),
            (3, &[4, 7, 10]),
            (5, &[2, 4, 6, 8, 10]),
            (9, &[2, 3, 4, 5, 6, 7, 8, 9, 10]),
            (10, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ] {
            // Bunch n is n requests of n bytes, so a bunch cut in two would show.
            let bunches = (1..=20u64).flat_map(|n| (1..=n).map(move |_| (n, (n - 1) as u32 % 10 + 1)));
            let found = sizes(TracerFilter::new(trace(bunches), tenths, Duration::ZERO).unwrap());
            let group = |base: u32| kept.iter().flat_map(move |&n| vec![n; (base + n) as usize]);
            assert_eq!(found, group(0).chain(group(10)).collect::<Vec<u32>>(), "{tenths}");
        }
    }

    /// Bunches of 1 to 8 requests of several sizes, in a number that is not a multiple of ten: what is kept is counted
    /// from the paper's figure, where k tenths keep the bunches that end each kth part of a group: the ceiling of 10,
    /// 20, ... by k.
    #[test]
    fn tracer_keeps_of_uneven_bunches_what_figure_5_says() {
        const BUNCHES: u64 = 1_003;
        let count = |bunch: u64| 1 + bunch * bunch * 5 % 8;
        let size = |bunch: u64| 512 * (1 + bunch as u32 * 3 % 7);
        let figures = |kept: &dyn Fn(u64) -> bool| {
            let bunches = (0..BUNCHES).filter(|bunch| kept(*bunch));
            bunches.fold((0, 0), |(n, bytes), b| (n + count(b), bytes + count(b) * u64::from(size(b))))
        };
        let mut seen = Vec::new();
        for tenths in 1..=10u8 {
            let ends: Vec<u64> = (1..=u64::from(tenths)).map(|j| (10 * j).div_ceil(tenths.into())).collect();
            let right = figures(&|bunch| ends.contains(&(bunch % 10 + 1)));
            let whole = trace((0..BUNCHES).flat_map(move |b| (0..count(b)).map(move |_| (b, size(b)))));
            let found = sizes(TracerFilter::new(whole, tenths, Duration::ZERO).unwrap());
            assert_eq!(
                (found.len() as u64, found.iter().map(|n| u64::from(*n)).sum()),
                right,
                "{tenths} tenths"
            );
            let (all, _) = figures(&|_| true);
            seen.push(found.len() as f64 / all as f64 / (f64::from(tenths) / 10.0));
        }
        // Uneven bunches cost accuracy: this is not exact by construction.
        assert!(seen[..9].iter().any(|accuracy| (accuracy - 1.0).abs() > 0.01), "{seen:?}");
        assert_eq!(seen[9], 1.0);
    }

    #[test]
    fn a_window_joins_what_arrives_close_together() {
        let inner = trace([0, 1, 2, 3, 4, 5].into_iter().map(|ms| (ms, ms as u32)));
        let all = TracerFilter::new(inner, 10, Duration::from_millis(1)).unwrap();
        assert_eq!(sizes(all), [0, 1, 2, 3, 4, 5]);
        let twenty = trace((0..20).map(|ms| (ms, ms as u32)));
        assert_eq!(sizes(TracerFilter::new(twenty, 1, Duration::from_millis(1)).unwrap()), [18, 19]);
    }

    #[test]
    fn the_balanced_filter_is_within_one_percent_at_any_share_and_place() {
        let whole: Vec<Request> = uneven().map(|r| r.unwrap()).collect();
        for share in [0.1, 0.137, 0.25, 0.5, 0.77, 0.999, 1.0] {
            let kept: Vec<Request> =
                BalancedFilter::new(uneven(), share).unwrap().map(|r| r.unwrap()).collect();
            assert!(kept.is_sorted_by_key(|r| r.at));
            for part in [whole.len() / 2, whole.len()] {
                let until = whole[part - 1].at;
                let figures = |requests: &[Request]| {
                    let seen = requests.iter().filter(|r| r.at < until);
                    seen.fold([0.0, 0.0, 0.0], |[n, bytes, reads], r| {
                        [n + 1.0, bytes + f64::from(r.len), reads + f64::from(u8::from(r.kind == Kind::Read))]
                    })
                };
                for (found, all) in figures(&kept).into_iter().zip(figures(&whole)) {
                    assert!((found / (all * share) - 1.0).abs() < 0.01, "{share}: {found} of {all}");
                }
            }
        }
    }

    #[test]
    fn the_balanced_filter_repeats_itself_and_keeps_the_busiest_minutes() {
        let kept = || BalancedFilter::new(uneven(), 0.3).unwrap().map(|r| r.unwrap()).collect::<Vec<_>>();
        assert_eq!(kept(), kept());
        let per_minute = |requests: Vec<Request>| {
            let mut counts = vec![0.0f64; 30];
            requests.iter().for_each(|r| counts[(r.at.as_secs() / 60) as usize] += 1.0);
            counts
        };
        let whole = per_minute(uneven().map(|r| r.unwrap()).collect());
        for (kept, all) in per_minute(kept()).into_iter().zip(whole) {
            assert!((kept - 0.3 * all).abs() <= 8.0, "{kept} of {all}");
        }
    }

    #[test]
    fn an_error_comes_after_what_was_kept_before_it() {
        let text = "0,0,512,R,0\n0,0,512,R,0\nbad\n";
        let mut filter = BalancedFilter::new(open("t.spc", text.as_bytes()).unwrap(), 1.0).unwrap();
        assert!(filter.next().unwrap().is_ok() && filter.next().unwrap().is_ok());
        assert!(filter.next().unwrap().is_err() && filter.next().is_none() && filter.next().is_none());
    }

    #[test]
    fn scaling_keeps_every_request_and_divides_the_time() {
        let text = "0,0,512,R,0\n0,0,512,W,1000000.000000003\n";
        for (intensity, nanos) in
            [(2.0, 500_000_000_000_001), (0.5, 2_000_000_000_000_006), (10.0, 100_000_000_000_000)]
        {
            let mut scaled = Scaled::new(open("t.spc", text.as_bytes()).unwrap(), intensity).unwrap();
            let total = summary(&mut scaled).unwrap();
            assert_eq!((total.requests, total.span.as_nanos()), (2, nanos));
        }
    }

    #[test]
    fn impossible_loads_are_refused() {
        let synthetic =
            || Synthetic::new(Mode { size: 4096, random: 0, reads: 0 }, Pace::Peak, 1 << 20, 1, 1).unwrap();
        assert!(TracerFilter::new(synthetic(), 0, Duration::ZERO).is_err());
        assert!(TracerFilter::new(synthetic(), 11, Duration::ZERO).is_err());
        for share in [0.0, -0.1, 1.01, f64::NAN] {
            assert!(BalancedFilter::new(synthetic(), share).is_err());
        }
        for intensity in [0.0, 0.009, 10.1, f64::NAN, f64::INFINITY] {
            assert!(Scaled::new(synthetic(), intensity).is_err());
        }
    }
}
