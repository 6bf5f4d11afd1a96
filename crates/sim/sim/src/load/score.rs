//! Forecasts, scored as in the paper: the root-mean-square error over the test days, normalised by their mean load,
//! against the days of training. [Sierra Figure 8]

use super::Case;
use ebb_gear::{History, Load, Seasonal, forecast};
use serde::Serialize;

const HOURS_PER_DAY: u32 = 24;
/// Most days of training that are scored.
const MOST_DAYS: usize = 14;

/// Normalised errors after `days` of training; `None` if nothing could be scored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    pub days: usize,
    /// The paper's hour-of-day mean.
    pub hour_of_day: Option<f64>,
    /// The seasonal forecast, from the same days.
    pub seasonal: Option<f64>,
    /// The seasonal forecast of each hour, made when the previous hour has ended.
    pub seasonal_live: Option<f64>,
}

/// Scores both forecasts of hourly peaks after 1, 2, ... days of training.
pub fn scores(case: &Case) -> Vec<Score> {
    let peaks = case.world().peaks();
    let days = peaks.len() / HOURS_PER_DAY as usize;
    (1..days.min(MOST_DAYS + 1)).map(|days| score(&peaks, days)).collect()
}

fn history(peaks: &[Option<f64>]) -> History {
    let mut history = History::default();
    for (hour, peak) in peaks.iter().enumerate() {
        if let Some(peak) = peak {
            history.record(hour as u64, Load(*peak), HOURS_PER_DAY);
        }
    }
    history
}

fn score(peaks: &[Option<f64>], days: usize) -> Score {
    let first = days * HOURS_PER_DAY as usize;
    let learned = history(&peaks[..first]);
    let seasonal = Seasonal::fit(&learned, days as u64, HOURS_PER_DAY);
    let mut live = (learned.clone(), seasonal.clone());
    Score {
        days,
        hour_of_day: error(peaks, first, |hour| forecast(&learned, hour, HOURS_PER_DAY).map(|f| f.load)),
        seasonal: error(peaks, first, |hour| seasonal.as_ref().map(|s| s.ahead(&learned, hour).mean(0))),
        seasonal_live: error(peaks, first, |hour| {
            let (known, model) = &mut live;
            let before = hour - 1;
            if let Some(peak) = peaks[before as usize] {
                known.record(before, Load(peak), HOURS_PER_DAY);
            }
            if hour.is_multiple_of(u64::from(HOURS_PER_DAY)) {
                *model = Seasonal::fit(known, hour / u64::from(HOURS_PER_DAY), HOURS_PER_DAY);
            }
            model.as_ref().map(|model| model.ahead(known, hour).mean(0))
        }),
    }
}

fn error(peaks: &[Option<f64>], first: usize, mut predict: impl FnMut(u64) -> Option<Load>) -> Option<f64> {
    let (mut squares, mut sum, mut hours) = (0.0, 0.0, 0.0);
    for (hour, peak) in peaks.iter().enumerate().skip(first) {
        // Every hour is predicted, even if it was not recorded: a live forecast learns from the previous one.
        if let (Some(load), Some(peak)) = (predict(hour as u64), peak) {
            squares += (load.0 - peak).powi(2);
            sum += peak;
            hours += 1.0;
        }
    }
    (sum > 0.0).then(|| (squares / hours).sqrt() / (sum / hours))
}
