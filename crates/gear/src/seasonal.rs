//! The seasonal forecast: a whole distribution of an hour's peak, not one number, from level, trend, day of the week, hour
//! of the day and what the last hours did.
//!
//! Load is multiplicative (a busy day is busy at every hour), so everything is added up in logarithms. Level per day and
//! season per hour are found by median polish, the trend by the Theil-Sen slope: a burst moves no median, and an hour that
//! nobody recorded is not there. What the model missed on past days, hour by hour, is its distribution of errors: those of
//! the same hour and its neighbours, filled up with those of all hours while there are few. So an hour that often has a
//! burst has a high quantile although its median is low, which no mean can say.
//!
//! [`Seasonal`] is a function of the [`History`] before a day began; [`Seasonal::drift`] adds what has been recorded since.

use crate::{History, Load};
use std::collections::BTreeMap;

/// Errors of all hours together weigh as much as that many days' errors of the hour itself.
const POOLED_WEIGHT: f64 = 2.0;
/// Weight of an error in the hour before or after, next to one of the hour itself.
const NEIGHBOUR_WEIGHT: f64 = 0.5;
/// The pooled errors enter as so many quantiles.
const POOL_GRID: usize = 64;
/// Part of a day after which half of a drift is believed to be gone.
const DRIFT_HALF_LIFE: f64 = 0.25;
/// Part of a day whose errors make the drift.
const DRIFT_WINDOW: f64 = 1.0 / 8.0;
const DAYS_PER_WEEK: u64 = 7;
/// A trend over fewer days is noise.
const DAYS_FOR_TREND: usize = 6;
/// Rounds of median polish; the third changes little.
const POLISH_ROUNDS: usize = 4;

/// Errors in ascending order, each with the share of the weight up to and with it.
type Errors = Vec<(f64, f64)>;

/// The forecast of a day and those after it, from the hours before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seasonal {
    hours_per_day: u64,
    /// Added to a load before its logarithm is taken, so that an idle hour has one.
    offset: f64,
    /// Level of the day that the forecast was made for, its growth per day, and what days of the week add.
    day: u64,
    level: f64,
    slope: f64,
    weekday: [f64; DAYS_PER_WEEK as usize],
    season: Vec<f64>,
    errors: Vec<Errors>,
}

impl Seasonal {
    /// Learns from the hours before `day`. `None`: there are none.
    pub fn fit(history: &History, day: u64, hours_per_day: u32) -> Option<Seasonal> {
        let hours = u64::from(hours_per_day.max(1));
        let past: Vec<(u64, f64)> =
            history.peaks().take_while(|(hour, _)| *hour < day * hours).map(|(h, peak)| (h, peak.0)).collect();
        let highest = past.iter().map(|(_, peak)| *peak).fold(0.0, f64::max);
        if past.is_empty() {
            return None;
        }
        let offset = if highest > 0.0 { highest * 0.01 } else { 1.0 };
        let logs: Vec<(u64, f64)> = past.iter().map(|(hour, peak)| (*hour, (peak + offset).ln())).collect();
        let (levels, season) = polish(&logs, hours);
        let (level, slope, weekday) = outlook(&levels, day);
        let raw: Vec<(u64, f64)> =
            logs.iter().map(|(h, y)| (*h, y - levels[&(h / hours)] - season[(h % hours) as usize])).collect();
        let errors = distributions(&raw, hours);
        Some(Seasonal { hours_per_day: hours, offset, day, level, slope, weekday, season, errors })
    }

    /// The day whose level this knows best.
    pub fn day(&self) -> u64 {
        self.day
    }

    fn middle(&self, hour: u64) -> f64 {
        let day = hour / self.hours_per_day;
        // A trend is not believed for longer than a week.
        let ahead = day.saturating_sub(self.day).min(DAYS_PER_WEEK) as f64;
        let weekday = self.weekday[(day % DAYS_PER_WEEK) as usize];
        self.level + self.slope * ahead + weekday + self.season[(hour % self.hours_per_day) as usize]
    }

    /// How far the hours just before `hour` lay above (or below) the forecast. Feed it to [`Seasonal::quantile`].
    pub fn drift(&self, history: &History, hour: u64) -> Drift {
        let first = hour.saturating_sub(window(self.hours_per_day)).max(self.day * self.hours_per_day);
        let error = |(h, peak): (u64, Load)| (peak.0 + self.offset).ln() - self.middle(h);
        let mut errors: Vec<f64> = history.peaks_of(first..hour).map(error).collect();
        Drift { hour, error: median(&mut errors).unwrap_or(0.0) }
    }

    /// The load that the peak of `hour` stays below with probability `q`; 0.5 is the forecast proper.
    pub fn quantile(&self, hour: u64, q: f64, drift: Drift) -> Load {
        let errors = &self.errors[(hour % self.hours_per_day) as usize];
        let at = errors.partition_point(|(_, share)| *share < q).min(errors.len() - 1);
        let ahead = hour.saturating_sub(drift.hour) as f64 / self.hours_per_day as f64;
        let drift = drift.error * 0.5f64.powf(ahead / DRIFT_HALF_LIFE);
        Load(((self.middle(hour) + drift + errors[at].0).exp() - self.offset).max(0.0))
    }
}

/// What the hours of the present day say about the next ones; it fades with time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    hour: u64,
    error: f64,
}

fn window(hours_per_day: u64) -> u64 {
    ((hours_per_day as f64 * DRIFT_WINDOW).round() as u64).max(1)
}

/// The median; the mean of the middle two of an even number.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Median polish: the level of every day and the season of every hour. An hour that no day has gets the season of its
/// neighbour before it.
fn polish(logs: &[(u64, f64)], hours: u64) -> (BTreeMap<u64, f64>, Vec<f64>) {
    let mut levels: BTreeMap<u64, f64> = logs.iter().map(|(hour, _)| (hour / hours, 0.0)).collect();
    let mut season = vec![None; hours as usize];
    for _ in 0..POLISH_ROUNDS {
        let mut of_hour = vec![Vec::new(); hours as usize];
        for (hour, y) in logs {
            of_hour[(hour % hours) as usize].push(y - levels[&(hour / hours)]);
        }
        season = of_hour.iter_mut().map(|values| median(values)).collect();
        let mut of_day: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (hour, y) in logs {
            let usual = season[(hour % hours) as usize].unwrap_or(0.0);
            of_day.entry(hour / hours).or_default().push(y - usual);
        }
        for (day, values) in &mut of_day {
            levels.insert(*day, median(values).unwrap_or(0.0));
        }
    }
    let mut usual = season.iter().rev().flatten().next().copied().unwrap_or(0.0);
    let filled = season.iter().map(|value| {
        usual = value.unwrap_or(usual);
        usual
    });
    (levels, filled.collect())
}

/// Level of `day`, growth per day, and what each day of the week adds, shrunk while few weeks are known.
fn outlook(levels: &BTreeMap<u64, f64>, day: u64) -> (f64, f64, [f64; DAYS_PER_WEEK as usize]) {
    let days: Vec<(f64, f64)> = levels.iter().map(|(d, level)| (*d as f64 - day as f64, *level)).collect();
    let mut slopes = Vec::new();
    for (i, (x, y)) in days.iter().enumerate() {
        slopes.extend(days[i + 1..].iter().map(|(x2, y2)| (y2 - y) / (x2 - x)));
    }
    // A week's rhythm looks like a trend until two weeks are known: believe it slowly.
    let belief = if days.len() < DAYS_FOR_TREND { 0.0 } else { (days.len() as f64 / 21.0).min(1.0) };
    let slope = median(&mut slopes).unwrap_or(0.0) * belief;
    let week = days.iter().rev().take(DAYS_PER_WEEK as usize);
    let mut recent: Vec<f64> = week.map(|(x, y)| y - slope * x).collect();
    let level = median(&mut recent).unwrap_or(0.0);
    let mut weekday = [0.0; DAYS_PER_WEEK as usize];
    for (number, effect) in weekday.iter_mut().enumerate() {
        let same = |d: &&u64| **d % DAYS_PER_WEEK == number as u64;
        let mut rest: Vec<f64> = levels
            .keys()
            .filter(same)
            .map(|d| levels[d] - level - slope * (*d as f64 - day as f64))
            .collect();
        let known = rest.len() as f64;
        *effect = median(&mut rest).unwrap_or(0.0) * known / (known + 1.5);
    }
    (level, slope, weekday)
}

/// The distribution of errors of every hour of the day. Each past error is taken as it would have been after the drift of
/// the hours before it was known.
fn distributions(raw: &[(u64, f64)], hours: u64) -> Vec<Errors> {
    let span = window(hours);
    let mut of_hour = vec![Vec::new(); hours as usize];
    let mut all = Vec::with_capacity(raw.len());
    for (i, (hour, error)) in raw.iter().enumerate() {
        let first = raw[..i].partition_point(|(h, _)| h + span < *hour);
        let mut before: Vec<f64> = raw[first..i].iter().map(|(_, e)| *e).collect();
        let error = error - median(&mut before).unwrap_or(0.0);
        all.push(error);
        let own = (hour % hours) as usize;
        of_hour[own].push((error, 1.0));
        if hours > 2 {
            of_hour[(own + 1) % hours as usize].push((error, NEIGHBOUR_WEIGHT));
            of_hour[(own + hours as usize - 1) % hours as usize].push((error, NEIGHBOUR_WEIGHT));
        }
    }
    all.sort_by(f64::total_cmp);
    for of in &mut of_hour {
        let grid = (0..POOL_GRID).map(|i| (2 * i + 1) * all.len() / (2 * POOL_GRID));
        of.extend(grid.map(|at| (all[at], POOLED_WEIGHT / POOL_GRID as f64)));
        of.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = of.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        for (_, weight) in of.iter_mut() {
            sum += *weight / total;
            *weight = sum;
        }
    }
    of_hour
}
