//! The forecast: the load of an hour is the mean of the peaks of that hour of the day on past days. [Sierra
//! §3.4]
//!
//! [`History`] is plain data, rebuilt from the hours in the replicated metadata state; [`forecast`] is a function
//! of it. It keeps single hours instead of their means, so that another forecast is just another function of the
//! same data.

use crate::Load;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Days kept: four weeks follow a growing service and bound the size.
pub const DAYS_KEPT: u64 = 28;

/// Peaks of past hours. Hours are numbered from the calendar's start; hour `h` is hour `h % hours_per_day` of its
/// day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    peaks: BTreeMap<u64, Load>,
}

impl History {
    /// Records an hour's peak. Recording an hour twice keeps the higher peak, so a repeated command is harmless.
    pub fn record(&mut self, hour: u64, peak: Load, hours_per_day: u32) {
        let kept = self.peaks.entry(hour).or_insert(peak);
        *kept = kept.max(peak);
        let newest = self.peaks.last_key_value().map_or(hour, |(newest, _)| *newest);
        let oldest = (newest + 1).saturating_sub(DAYS_KEPT * u64::from(hours_per_day));
        self.peaks = self.peaks.split_off(&oldest);
    }

    /// The same, with no peak above `most`.
    pub fn at_most(&self, most: Load) -> History {
        History { peaks: self.peaks.iter().map(|(hour, peak)| (*hour, Load(peak.0.min(most.0)))).collect() }
    }

    /// Recorded hours, oldest first. Hours that were not watched are absent.
    pub fn peaks(&self) -> impl Iterator<Item = (u64, Load)> + '_ {
        self.peaks.iter().map(|(hour, peak)| (*hour, *peak))
    }

    /// The newest recorded hour.
    pub fn newest(&self) -> Option<u64> {
        self.peaks.last_key_value().map(|(hour, _)| *hour)
    }

    /// The recorded peaks of `hours`.
    pub fn peaks_of(&self, hours: Range<u64>) -> impl Iterator<Item = (u64, Load)> + '_ {
        self.peaks.range(hours).map(|(hour, peak)| (*hour, *peak))
    }
}

/// What a forecast is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The mean over this many earlier days.
    Days(u32),
    /// No earlier day has this hour: the peak of the most recent recorded hour.
    LatestHour,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    pub load: Load,
    pub basis: Basis,
}

/// Forecasts the peak of `hour` from the hours before it. `None`: nothing is known; keep every server awake.
pub fn forecast(history: &History, hour: u64, hours_per_day: u32) -> Option<Forecast> {
    let day = u64::from(hours_per_day.max(1));
    let mut sum = 0.0;
    let mut days = 0u32;
    for back in 1..=DAYS_KEPT {
        let past = hour.checked_sub(back * day).and_then(|past| history.peaks.get(&past));
        if let Some(peak) = past {
            sum += peak.0;
            days += 1;
        }
    }
    if days > 0 {
        return Some(Forecast { load: Load(sum / f64::from(days)), basis: Basis::Days(days) });
    }
    let (_, latest) = history.peaks.range(..hour).next_back()?;
    Some(Forecast { load: *latest, basis: Basis::LatestHour })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forecast_is_the_mean_of_the_same_hour_on_past_days() {
        let mut history = History::default();
        for (day, peak) in [2.0, 4.0, 9.0].into_iter().enumerate() {
            history.record(day as u64 * 24 + 5, Load(peak), 24);
            history.record(day as u64 * 24 + 6, Load(100.0), 24);
        }
        let forecast = forecast(&history, 3 * 24 + 5, 24);
        assert_eq!(forecast, Some(Forecast { load: Load(5.0), basis: Basis::Days(3) }));
    }

    #[test]
    fn the_forecast_of_an_hour_never_uses_that_hour_or_a_later_one() {
        let mut history = History::default();
        history.record(5, Load(1.0), 24);
        history.record(29, Load(50.0), 24);
        history.record(30, Load(50.0), 24);
        history.record(53, Load(50.0), 24);
        assert_eq!(forecast(&history, 29, 24).unwrap().load, Load(1.0));
    }

    #[test]
    fn without_that_hour_the_latest_hour_is_taken_and_without_any_nothing() {
        let mut history = History::default();
        assert_eq!(forecast(&history, 3, 24), None);
        history.record(1, Load(8.0), 24);
        history.record(2, Load(3.0), 24);
        assert_eq!(forecast(&history, 3, 24), Some(Forecast { load: Load(3.0), basis: Basis::LatestHour }));
    }

    #[test]
    fn recording_twice_is_harmless_and_the_state_is_bounded() {
        let mut history = History::default();
        history.record(0, Load(3.0), 2);
        history.record(0, Load(1.0), 2);
        assert_eq!(history.peaks().collect::<Vec<_>>(), [(0, Load(3.0))]);
        for hour in 0..1000 {
            history.record(hour, Load(1.0), 2);
        }
        assert_eq!(history.peaks().count() as u64, DAYS_KEPT * 2);
        assert_eq!(history.peaks().last().unwrap().0, 999);
    }
}
