//! The seasonal forecast: a whole distribution of an hour's peak, not one number, from level, trend, day of the week, hour
//! of the day and what the last hours did.
//!
//! Load is multiplicative (a busy day is busy at every hour), so everything is added up in logarithms. Level per day and
//! season per hour are found by median polish, the trend by the Theil-Sen slope: a burst moves no median, and an hour that
//! nobody recorded is not there. A ridge regression on the last hours' deviations follows what today does differently. What the
//! model missed on past days, hour by hour, is its distribution of errors: those of
//! the same hour and its neighbours, filled up with those of all hours while there are few. So an hour that often has a
//! burst has a high quantile although its median is low, which no mean can say.
//!
//! [`Seasonal`] is a function of the [`History`] before a day began; [`Seasonal::drift`] adds what has been recorded since.

use crate::{History, Load};
use std::collections::{BTreeMap, VecDeque};

/// Errors of all hours together weigh as much as that many days' errors of the hour itself.
const POOLED_WEIGHT: f64 = 4.0;
/// Weight of an error in the hour before or after, next to one of the hour itself.
const NEIGHBOUR_WEIGHT: f64 = 0.5;
/// The pooled errors enter as so many quantiles.
const POOL_GRID: usize = 64;
/// So many hours back a deviation may tell something about the next hour.
const LAGS: usize = 3;
/// What keeps a relation between hours from being read out of noise, as a share of the deviations' variance.
const RIDGE: f64 = 0.02;
/// A deviation beyond so many median deviations is a burst, and counts as one of that size.
const BURST: f64 = 4.0;
/// The weights of all lags together stay below this, so that what they predict fades.
const FADE: f64 = 0.95;
const DAYS_PER_WEEK: u64 = 7;
/// A trend over fewer days is noise.
const DAYS_FOR_TREND: usize = 6;
/// Rounds of median polish; more change little.
const POLISH_ROUNDS: usize = 4;

/// Errors in ascending order, each with the share of the weight up to and with it.
type Errors = Vec<(f64, f64)>;

/// The forecast of a day and those after it, from the hours before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seasonal {
    hours_per_day: u64,
    /// Added to a load before its logarithm is taken, so that an idle hour has one.
    offset: f64,
    outlook: Outlook,
    season: Vec<f64>,
    /// What a deviation 1, 2, ... hours ago adds to the next hour's.
    lags: [f64; LAGS],
    /// Larger deviations are taken for so large.
    burst: f64,
    errors: Vec<Errors>,
}

impl Seasonal {
    /// Learns from the hours before `day`. `None`: there are none.
    pub fn fit(history: &History, day: u64, hours_per_day: u32) -> Option<Seasonal> {
        let hours = u64::from(hours_per_day.max(1));
        let past: Vec<(u64, f64)> = history.peaks_of(0..day * hours).map(|(h, peak)| (h, peak.0)).collect();
        if past.is_empty() {
            return None;
        }
        let highest = past.iter().map(|(_, peak)| *peak).fold(0.0, f64::max);
        let offset = if highest > 0.0 { highest * 0.01 } else { 1.0 };
        let logs: Vec<(u64, f64)> = past.iter().map(|(hour, peak)| (*hour, (peak + offset).ln())).collect();
        let (levels, season) = polish(&logs, hours);
        let raw = deviations(&logs, &levels, &season);
        let mut sizes: Vec<f64> = raw.iter().map(|(_, deviation)| deviation.abs()).collect();
        let burst = median(&mut sizes).unwrap_or(0.0) * BURST;
        let lags = relate(&raw, burst);
        let mut forecast = Seasonal {
            hours_per_day: hours,
            offset,
            outlook: Outlook::new(&levels, day),
            season,
            lags,
            burst,
            errors: Vec::new(),
        };
        forecast.errors = forecast.distributions(&raw);
        Some(forecast)
    }

    /// The day whose level this knows best.
    pub fn day(&self) -> u64 {
        self.outlook.day
    }

    fn middle(&self, hour: u64) -> f64 {
        self.outlook.level(hour / self.hours_per_day) + self.season[(hour % self.hours_per_day) as usize]
    }

    /// What the next deviation is likely to be after `before`, the latest first.
    fn next(&self, before: impl IntoIterator<Item = Option<f64>>) -> f64 {
        let known = |deviation: Option<f64>| deviation.unwrap_or(0.0).clamp(-self.burst, self.burst);
        self.lags.iter().zip(before).map(|(lag, deviation)| lag * known(deviation)).sum()
    }

    /// How far the hours from `hour` on are likely to lie above (or below) the forecast, given those just before it.
    /// Feed it to [`Seasonal::quantile`].
    pub fn drift(&self, history: &History, hour: u64) -> Drift {
        let peak = |h: u64| history.peaks_of(h..h + 1).next();
        let deviation = |(h, peak): (u64, Load)| (peak.0 + self.offset).ln() - self.middle(h);
        let mut before: VecDeque<Option<f64>> =
            (1..=LAGS as u64).map(|back| hour.checked_sub(back).and_then(peak).map(deviation)).collect();
        let mut ahead = Vec::with_capacity(self.hours_per_day as usize);
        while ahead.len() < self.hours_per_day as usize {
            let next = self.next(before.iter().copied());
            ahead.push(next);
            before.pop_back();
            before.push_front(Some(next));
        }
        Drift { hour, ahead }
    }

    /// The load that the peak of `hour` stays below with probability `q`; 0.5 is the forecast proper.
    pub fn quantile(&self, hour: u64, q: f64, drift: &Drift) -> Load {
        let errors = &self.errors[(hour % self.hours_per_day) as usize];
        let at = errors.partition_point(|(_, share)| *share < q).min(errors.len() - 1);
        let log = self.middle(hour) + drift.at(hour) + errors[at].0;
        Load((log.exp() - self.offset).max(0.0))
    }

    /// The mean of the distribution: the forecast with the least squared error.
    pub fn mean(&self, hour: u64, drift: &Drift) -> Load {
        let errors = &self.errors[(hour % self.hours_per_day) as usize];
        let middle = self.middle(hour) + drift.at(hour);
        let shares = std::iter::once(0.0).chain(errors.iter().map(|(_, share)| *share));
        let mean: f64 = errors.iter().zip(shares).map(|((e, share), less)| (share - less) * e.exp()).sum();
        Load((middle.exp() * mean - self.offset).max(0.0))
    }

    /// The probability that the peak of `hour` stays at or below `load`.
    pub fn stays_below(&self, hour: u64, load: Load, drift: &Drift) -> f64 {
        let errors = &self.errors[(hour % self.hours_per_day) as usize];
        let error = (load.0 + self.offset).ln() - self.middle(hour) - drift.at(hour);
        let at = errors.partition_point(|(known, _)| *known <= error);
        at.checked_sub(1).map_or(0.0, |last| errors[last].1)
    }

    /// The distribution of errors of every hour of the day, each after what the hours before it told.
    fn distributions(&self, raw: &[(u64, f64)]) -> Vec<Errors> {
        let hours = self.hours_per_day as usize;
        let mut of_hour = vec![Vec::new(); hours];
        let mut all = Vec::with_capacity(raw.len());
        for (i, (hour, deviation)) in raw.iter().enumerate() {
            let error = deviation - self.next((1..=LAGS).map(|back| before(raw, i, back)));
            all.push(error);
            let own = *hour as usize % hours;
            of_hour[own].push((error, 1.0));
            if hours > 2 {
                of_hour[(own + 1) % hours].push((error, NEIGHBOUR_WEIGHT));
                of_hour[(own + hours - 1) % hours].push((error, NEIGHBOUR_WEIGHT));
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
}

/// What the latest hours say about the next ones; it fades with time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drift {
    hour: u64,
    ahead: Vec<f64>,
}

impl Drift {
    fn at(&self, hour: u64) -> f64 {
        let ahead = hour.checked_sub(self.hour).and_then(|ahead| self.ahead.get(ahead as usize));
        ahead.copied().unwrap_or(0.0)
    }
}

/// The deviation `back` hours before the `i`th, if that hour was recorded.
fn before(raw: &[(u64, f64)], i: usize, back: usize) -> Option<f64> {
    let hour = raw[i].0.checked_sub(back as u64)?;
    let at = raw[i.saturating_sub(back)..i].iter().find(|(h, _)| *h == hour)?;
    Some(at.1)
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
    let filled: Vec<f64> = season
        .iter()
        .map(|value| {
            usual = value.unwrap_or(usual);
            usual
        })
        .collect();
    (levels, smooth(&filled))
}

/// A median of few days is rough: every hour leans on its neighbours.
fn smooth(season: &[f64]) -> Vec<f64> {
    let n = season.len();
    let at = |i: usize| season[i % n];
    (0..n).map(|i| 0.25 * at(i + n - 1) + 0.5 * at(i) + 0.25 * at(i + 1)).collect()
}

/// How far each hour lay from what was to be expected when its day began.
fn deviations(logs: &[(u64, f64)], levels: &BTreeMap<u64, f64>, season: &[f64]) -> Vec<(u64, f64)> {
    let hours = season.len() as u64;
    let mut expected = BTreeMap::new();
    for day in levels.keys() {
        let known: BTreeMap<u64, f64> = levels.range(..day).map(|(d, level)| (*d, *level)).collect();
        let level = if known.is_empty() { levels[day] } else { Outlook::new(&known, *day).level(*day) };
        expected.insert(*day, level);
    }
    logs.iter().map(|(h, y)| (*h, y - expected[&(h / hours)] - season[(h % hours) as usize])).collect()
}

/// Ridge regression of deviations on those of the hours before.
fn relate(raw: &[(u64, f64)], burst: f64) -> [f64; LAGS] {
    let mut squares = [[0.0; LAGS]; LAGS];
    let mut products = [0.0; LAGS];
    let mut variance = 0.0;
    for (i, (_, deviation)) in raw.iter().enumerate() {
        let cut = |value: f64| value.clamp(-burst, burst);
        let past: [f64; LAGS] = std::array::from_fn(|lag| before(raw, i, lag + 1).map_or(0.0, cut));
        variance += cut(*deviation).powi(2);
        for row in 0..LAGS {
            products[row] += cut(*deviation) * past[row];
            for column in 0..LAGS {
                squares[row][column] += past[row] * past[column];
            }
        }
    }
    for (row, square) in squares.iter_mut().enumerate() {
        square[row] += RIDGE * variance + f64::MIN_POSITIVE;
    }
    let mut lags = solve(squares, products);
    let together: f64 = lags.iter().map(|lag| lag.abs()).sum();
    if together > FADE {
        lags.iter_mut().for_each(|lag| *lag *= FADE / together);
    }
    lags
}

/// Solves a symmetric, positive definite system by elimination, which needs no pivots then.
fn solve(mut a: [[f64; LAGS]; LAGS], mut b: [f64; LAGS]) -> [f64; LAGS] {
    for i in 0..LAGS {
        let pivot = a[i];
        for row in i + 1..LAGS {
            let factor = a[row][i] / pivot[i];
            a[row].iter_mut().zip(pivot).for_each(|(value, above)| *value -= factor * above);
            b[row] -= factor * b[i];
        }
    }
    for i in (0..LAGS).rev() {
        let known: f64 = (i + 1..LAGS).map(|column| a[i][column] * b[column]).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    b
}

/// Where the level of the days is going.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outlook {
    day: u64,
    level: f64,
    /// Growth per day.
    slope: f64,
    /// What the days of the week add, shrunk while few weeks are known.
    weekday: [f64; DAYS_PER_WEEK as usize],
}

impl Outlook {
    fn new(levels: &BTreeMap<u64, f64>, day: u64) -> Outlook {
        let days: Vec<(f64, f64)> =
            levels.iter().map(|(d, level)| (*d as f64 - day as f64, *level)).collect();
        let mut slopes = Vec::new();
        for (i, (x, y)) in days.iter().enumerate() {
            slopes.extend(days[i + 1..].iter().map(|(x2, y2)| (y2 - y) / (x2 - x)));
        }
        // A week's rhythm looks like a trend until some weeks are known: believe it slowly.
        let belief = if days.len() < DAYS_FOR_TREND { 0.0 } else { (days.len() as f64 / 21.0).min(1.0) };
        let slope = median(&mut slopes).unwrap_or(0.0) * belief;
        let week = days.iter().rev().take(DAYS_PER_WEEK as usize);
        let mut recent: Vec<f64> = week.map(|(x, y)| y - slope * x).collect();
        let level = median(&mut recent).unwrap_or(0.0);
        let mut weekday = [0.0; DAYS_PER_WEEK as usize];
        for (number, effect) in weekday.iter_mut().enumerate() {
            let same = levels.iter().filter(|(d, _)| **d % DAYS_PER_WEEK == number as u64);
            let mut rest: Vec<f64> =
                same.map(|(d, y)| y - level - slope * (*d as f64 - day as f64)).collect();
            let known = rest.len() as f64;
            *effect = median(&mut rest).unwrap_or(0.0) * known / (known + 1.5);
        }
        Outlook { day, level, slope, weekday }
    }

    fn level(&self, day: u64) -> f64 {
        // A trend is not believed for longer than a week.
        let ahead = day.saturating_sub(self.day).min(DAYS_PER_WEEK) as f64;
        self.level + self.slope * ahead + self.weekday[(day % DAYS_PER_WEEK) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u32 = 8;
    const SHAPE: [f64; DAY as usize] = [2.0, 2.0, 4.0, 8.0, 16.0, 16.0, 8.0, 4.0];

    fn history(days: u64, load: impl Fn(u64, usize) -> Option<f64>) -> History {
        let mut history = History::default();
        for hour in 0..days * u64::from(DAY) {
            if let Some(load) = load(hour / u64::from(DAY), (hour % u64::from(DAY)) as usize) {
                history.record(hour, Load(load), DAY);
            }
        }
        history
    }

    fn middle(seasonal: &Seasonal, hour: u64) -> f64 {
        seasonal.quantile(hour, 0.5, &Drift::default()).0
    }

    #[test]
    fn nothing_is_forecast_from_nothing() {
        assert_eq!(Seasonal::fit(&History::default(), 3, DAY), None);
        assert_eq!(Seasonal::fit(&history(3, |_, h| Some(SHAPE[h])), 0, DAY), None);
    }

    #[test]
    fn a_steady_day_comes_again_leaning_on_its_neighbours() {
        let seasonal = Seasonal::fit(&history(5, |_, h| Some(SHAPE[h])), 5, DAY).unwrap();
        assert!((middle(&seasonal, 40) - 2.0).abs() < 0.5);
        assert!((12.0..16.5).contains(&middle(&seasonal, 44)));
        assert!((12.0..16.5).contains(&middle(&seasonal, 44 + 8)), "and the day after");
    }

    #[test]
    fn one_burst_and_one_outage_move_nothing() {
        let calm = Seasonal::fit(&history(9, |_, h| Some(SHAPE[h])), 9, DAY).unwrap();
        let rough = history(9, |day, h| match (day, h) {
            (4, 3) => Some(500.0),
            (5, 2..6) => None,
            _ => Some(SHAPE[h]),
        });
        let rough = Seasonal::fit(&rough, 9, DAY).unwrap();
        for hour in 72..80 {
            let (a, b) = (middle(&calm, hour), middle(&rough, hour));
            assert!((a - b).abs() < 0.2 * a + 5.0 * 0.01 * 500.0 / 16.0, "hour {hour}: {a} and {b}");
        }
    }

    #[test]
    fn an_hour_that_often_bursts_has_a_high_quantile_and_a_low_median() {
        let bursts = history(20, |day, h| Some(if h == 4 && day % 4 == 0 { 40.0 } else { 4.0 }));
        let seasonal = Seasonal::fit(&bursts, 20, DAY).unwrap();
        let still = Drift::default();
        assert!(middle(&seasonal, 164) < 6.0);
        assert!(seasonal.quantile(164, 0.9, &still).0 > 20.0);
        assert!(seasonal.quantile(161, 0.9, &still).0 < 8.0);
        assert!(seasonal.stays_below(164, Load(10.0), &still) < 0.9);
        assert!(seasonal.stays_below(161, Load(10.0), &still) > 0.95);
    }

    #[test]
    fn growth_and_the_day_of_the_week_are_followed() {
        let weekly = history(28, |day, h| {
            let weekend = if day % 7 >= 5 { 0.25 } else { 1.0 };
            Some(SHAPE[h] * weekend * 1.02f64.powi(day as i32))
        });
        let weekday = Seasonal::fit(&weekly, 28, DAY).unwrap();
        let weekend = Seasonal::fit(&weekly, 33, DAY).unwrap();
        let usual = SHAPE[4] * 1.02f64.powi(28);
        assert!((0.75 * usual..1.3 * usual).contains(&middle(&weekday, 28 * 8 + 4)));
        assert!(middle(&weekend, 33 * 8 + 4) < 0.6 * usual);
    }

    #[test]
    fn a_day_that_is_unlike_the_others_is_followed_by_the_hour() {
        // Every third day is twice as busy throughout: what its first hours say holds for the rest.
        let busy = |day: u64| if day.is_multiple_of(3) { 2.0 } else { 1.0 };
        let learned = history(25, |day, h| Some(SHAPE[h] * busy(day)));
        let seasonal = Seasonal::fit(&learned, 24, DAY).unwrap();
        let mut today = history(24, |day, h| Some(SHAPE[h] * busy(day)));
        for hour in 192..196 {
            today.record(hour, Load(SHAPE[(hour - 192) as usize] * 2.0), DAY);
        }
        let drift = seasonal.drift(&today, 196);
        assert!(seasonal.quantile(196, 0.5, &drift).0 > 1.2 * middle(&seasonal, 196));
    }

    #[test]
    fn quantiles_rise_and_their_inverse_agrees() {
        let noisy =
            history(14, |day, h| Some(SHAPE[h] * (1.0 + 0.1 * ((day * 7 + h as u64 * 3) % 5) as f64)));
        let seasonal = Seasonal::fit(&noisy, 14, DAY).unwrap();
        let still = Drift::default();
        for hour in 112..120 {
            let mut last = 0.0;
            for q in [0.1, 0.5, 0.9, 0.99] {
                let load = seasonal.quantile(hour, q, &still);
                assert!(load.0 >= last);
                assert!(seasonal.stays_below(hour, Load(load.0 * 1.0001), &still) >= q);
                last = load.0;
            }
        }
    }
}
