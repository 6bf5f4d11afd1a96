//! How accurately a trace's load is controlled: Tables IV and V of TRACER for any trace, and both filters side by side.
//!
//! The requests and their inter-arrival times are kept in memory: 44 bytes per request.

use ebb_trace::{
    Accuracy, BalancedFilter, InMemory, LoadError, Mode, Original, Pace, Request, Synthetic, TraceError,
    TraceReader, TracerFilter,
};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Both filters at the ten levels of one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccuracyReport {
    pub name: String,
    pub requests: u64,
    /// Requests that arrive this close together were one bunch to TRACER's filter.
    pub window_seconds: f64,
    pub levels: Vec<LevelAccuracy>,
}

/// Both filters at one level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LevelAccuracy {
    pub load_percent: u8,
    pub tracer: FilterAccuracy,
    pub balanced: FilterAccuracy,
}

/// The errors of a filter. Errors are measured over configured load proportion, minus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FilterAccuracy {
    pub requests: u64,
    pub iops_error: Option<f64>,
    pub bytes_error: Option<f64>,
    /// Share of reads minus the original's.
    pub read_share_difference: Option<f64>,
    /// Kolmogorov-Smirnov distance of inter-arrival times from the original's, slowed down to the level.
    pub gap_distance: Option<f64>,
    /// Share of requests that would have to arrive in another hundredth of the time.
    pub shape_distance: Option<f64>,
}

impl FilterAccuracy {
    fn of(found: Accuracy) -> FilterAccuracy {
        FilterAccuracy {
            requests: found.requests,
            iops_error: found.iops.map(|accuracy| accuracy - 1.0),
            bytes_error: found.bytes.map(|accuracy| accuracy - 1.0),
            read_share_difference: found.reads,
            gap_distance: found.gaps,
            shape_distance: found.shape,
        }
    }

    fn figures(&self) -> [Option<f64>; 5] {
        [
            self.iops_error,
            self.bytes_error,
            self.read_share_difference,
            self.gap_distance,
            self.shape_distance,
        ]
    }

    /// For each kind, the figure that is further from zero.
    fn worse(self, other: FilterAccuracy) -> FilterAccuracy {
        let worse = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.abs() > a.abs() { b } else { a }),
            _ => a.or(b),
        };
        FilterAccuracy {
            requests: self.requests + other.requests,
            iops_error: worse(self.iops_error, other.iops_error),
            bytes_error: worse(self.bytes_error, other.bytes_error),
            read_share_difference: worse(self.read_share_difference, other.read_share_difference),
            gap_distance: worse(self.gap_distance, other.gap_distance),
            shape_distance: worse(self.shape_distance, other.shape_distance),
        }
    }
}

/// Measures both filters at 10 % to 100 %. Requests within `window` of a bunch's first belong to it; zero: only equal
/// times.
pub fn accuracy(
    name: &str,
    reader: &mut dyn TraceReader,
    window: Duration,
) -> Result<AccuracyReport, TraceError> {
    let whole = reader.collect::<Result<Vec<Request>, TraceError>>()?;
    let original = Original::of(&whole);
    let levels = (1..=10).map(|tenths| level(&whole, &original, tenths, window).expect("levels that exist"));
    Ok(AccuracyReport {
        name: name.to_owned(),
        requests: whole.len() as u64,
        window_seconds: window.as_secs_f64(),
        levels: levels.collect(),
    })
}

fn level(
    whole: &[Request],
    original: &Original,
    tenths: u8,
    window: Duration,
) -> Result<LevelAccuracy, LoadError> {
    let share = f64::from(tenths) / 10.0;
    let kept = |filter: &mut dyn Iterator<Item = Result<Request, TraceError>>| {
        // Reading requests from memory cannot fail.
        FilterAccuracy::of(original.compare(share, filter.map_while(Result::ok)))
    };
    let trace = InMemory::new(whole, &[]);
    Ok(LevelAccuracy {
        load_percent: tenths * 10,
        tracer: kept(&mut TracerFilter::new(trace.clone(), tenths, window)?),
        balanced: kept(&mut BalancedFilter::new(trace, share)?),
    })
}

/// Measured requests of each of the 125 synthetic modes.
pub const MODE_REQUESTS: u64 = 10_000;

/// Measures both filters on the 125 synthetic modes, paced, and reports the figure furthest from zero at each level.
/// The request count is the total of all modes.
pub fn accuracy_of_modes(seed: u64) -> AccuracyReport {
    let mut worst: Option<AccuracyReport> = None;
    for mode in Mode::all() {
        let made = Synthetic::new(mode, Pace::PerSecond(1000.0), 1 << 34, MODE_REQUESTS, seed);
        let mut made = made.expect("the modes are possible");
        let found = accuracy("125 synthetic modes, the worst of each", &mut made, Duration::ZERO)
            .expect("a made trace has no bad requests");
        worst = Some(match worst {
            None => found,
            Some(mut worst) => {
                worst.requests += found.requests;
                for (level, found) in worst.levels.iter_mut().zip(found.levels) {
                    level.tracer = level.tracer.worse(found.tracer);
                    level.balanced = level.balanced.worse(found.balanced);
                }
                worst
            }
        });
    }
    worst.expect("there are modes")
}

fn row(filter: &FilterAccuracy) -> String {
    let [iops, bytes, reads, gaps, shape] = filter.figures();
    let signed = |value: Option<f64>| value.map_or("–".into(), |value| format!("{:+.3}", value * 100.0));
    let plain = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.3}"));
    format!(
        "{:>8} {:>8} {:>8} {:>7} {:>7}",
        signed(iops),
        signed(bytes),
        signed(reads),
        plain(gaps),
        plain(shape)
    )
}

impl fmt::Display for AccuracyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = "  IOPS %  bytes %  reads pt    gaps   shape";
        writeln!(f, "{}: {} requests\n", self.name, super::show::grouped(self.requests))?;
        writeln!(f, "   load | {:42} | balanced filter", "TRACER's filter")?;
        writeln!(f, "        | {columns} | {columns}")?;
        for level in &self.levels {
            writeln!(f, "  {:3} % | {} | {}", level.load_percent, row(&level.tracer), row(&level.balanced))?;
        }
        let worst = |of: fn(&LevelAccuracy) -> FilterAccuracy| {
            row(&self.levels.iter().map(of).fold(FilterAccuracy::default(), FilterAccuracy::worse))
        };
        writeln!(f, "  worst | {} | {}", worst(|level| level.tracer), worst(|level| level.balanced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_are_measured_at_every_level() {
        let mode = Mode { size: 4096, random: 50, reads: 50 };
        let mut trace = Synthetic::new(mode, Pace::PerSecond(1000.0), 1 << 30, 5_000, 1).unwrap();
        let found = accuracy("x", &mut trace, Duration::ZERO).unwrap();
        assert_eq!((found.requests, found.levels.len()), (5_000, 10));
        for level in &found.levels {
            for filter in [level.tracer, level.balanced] {
                assert!(filter.iops_error.unwrap().abs() < 0.005, "{level:?}");
                assert_eq!(filter.iops_error, filter.bytes_error);
            }
        }
        let whole = found.levels[9];
        assert_eq!((whole.load_percent, whole.tracer), (100, whole.balanced));
        assert_eq!(whole.tracer.figures(), [Some(0.0); 5]);
        assert!(found.to_string().contains("worst"));
    }

    #[test]
    fn a_filter_that_keeps_nothing_is_off_by_everything() {
        // One bunch: TRACER's filter keeps the tenth of ten, and here there is no tenth.
        let text = "0,0,512,R,1\n".repeat(50);
        let mut reader = ebb_trace::open("t.spc", std::io::Cursor::new(text)).unwrap();
        let found = accuracy("x", reader.as_mut(), Duration::ZERO).unwrap();
        assert_eq!(
            (found.levels[4].tracer.iops_error, found.levels[4].tracer.gap_distance),
            (Some(-1.0), None)
        );
        assert!(found.levels[4].balanced.iops_error.unwrap().abs() < 0.2);
    }
}
