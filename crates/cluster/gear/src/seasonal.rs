//! The seasonal forecast: what the load may do next, as a set of possible days instead of one number.
//!
//! Load is multiplicative (a busy day is busy at every hour), so everything is added in logarithms. The expected
//! load of an hour is the level of its day (with trend and day of the week) plus the season of its hour; levels and
//! season come from median polish, the trend from the Theil-Sen slope: a burst moves no median, and an hour that
//! was not recorded has no effect.
//!
//! How the load will deviate from that is read from the most similar moments: those preceded by the same
//! deviations, at about the same time of day. What followed each of them, deviation by deviation, is one possible
//! future ([`Ahead`]). So bursts that come in trains, days that start differently from the others, and hours that
//! often burst are predicted without a model of any of them: analogues, or nearest neighbours. What the present hour
//! deviates beyond a similar moment stays for as long as deviations of this series usually do. Distance is measured
//! in the series' own median deviation, and so is how far apart possible futures are blurred: nothing is tuned to one
//! load.
//!
//! [`Seasonal`] is a function of the [`History`] before a day began; [`Seasonal::ahead`] adds what has been recorded
//! since.

use crate::{History, Load};
use std::collections::BTreeMap;

/// Moments are compared by the highest deviation in each of these windows before them, latest first; in hours.
const WINDOWS: [usize; 4] = [1, 1, 1, 2];
/// Number of nearest neighbours used as possible futures (k).
const ALIKE: usize = 32;
/// Time-of-day difference, in hours, that counts as much as one median deviation.
const TIME_OF_DAY: f64 = 4.0;
/// Weight of the least similar moment relative to the most similar one.
const LEAST_WEIGHT: f64 = 0.02;
/// Uncertainty of a possible load: as a share of it while only one is known, then as a share of how far the possible
/// loads of an hour deviate from each other. It makes the future smoother than a few samples are.
const SPREAD: f64 = 0.07;
const SPREAD_OF_DEVIATION: f64 = 0.5;
/// Its least, for a load that never changes.
const SPREAD_MIN: f64 = 0.005;
/// The standard deviation of a normal distribution is this many median deviations.
const NORMAL: f64 = 1.4826;
/// Hours for which a deviation is followed, and the number of median deviations, squared and added up, that must be
/// seen before half of what follows from them is believed.
const FOLLOWED: usize = 4;
const DOUBT: f64 = 20.0;
/// A deviation beyond this many median deviations is a burst, and counts as one of this size.
const BURST: f64 = 4.0;
/// Smallest median deviation, for a load that never changes.
const STEADY: f64 = 1e-6;
const DAYS_PER_WEEK: u64 = 7;
/// Rounds of median polish; more would change little.
const POLISH_ROUNDS: usize = 4;

/// The forecast for a day and the days after it, based on the hours before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seasonal {
    hours_per_day: u64,
    /// Added to a load before its logarithm is taken, so that an idle hour has one.
    offset: f64,
    outlook: Outlook,
    season: Vec<f64>,
    /// The hour of the first element of `deviations`.
    first: u64,
    /// Each hour's deviation from its expected value; `None` if it was not recorded.
    deviations: Vec<Option<f64>>,
    /// The median deviation.
    usual: f64,
    /// The share of a deviation that is left one hour later, two hours, and so on.
    stays: Vec<f64>,
}

/// The highest deviation in each window before a moment.
type Before = [Option<f64>; WINDOWS.len()];

impl Seasonal {
    /// Learns from the hours before `day`. `None`: there are none.
    pub fn fit(history: &History, day: u64, hours_per_day: u32) -> Option<Seasonal> {
        let hours = u64::from(hours_per_day.max(1));
        let past: Vec<(u64, f64)> = history.peaks_of(0..day * hours).map(|(h, peak)| (h, peak.0)).collect();
        let first = past.first()?.0;
        let highest = past.iter().map(|(_, peak)| *peak).fold(0.0, f64::max);
        let offset = if highest > 0.0 { highest * 0.01 } else { 1.0 };
        let logs: Vec<(u64, f64)> = past.iter().map(|(hour, peak)| (*hour, (peak + offset).ln())).collect();
        let (levels, season) = polish(&logs, hours);
        let outlook = Outlook::new(&levels, day);
        let deviations = vec![None; (day * hours - first) as usize];
        let (usual, stays) = (STEADY, Vec::new());
        let mut forecast =
            Seasonal { hours_per_day: hours, offset, outlook, season, first, deviations, usual, stays };
        let mut sizes = Vec::with_capacity(logs.len());
        for (hour, log) in logs {
            let deviation = log - forecast.expected(hour);
            forecast.deviations[(hour - first) as usize] = Some(deviation);
            sizes.push(deviation.abs());
        }
        forecast.usual = median(&mut sizes).unwrap_or(0.0).max(STEADY);
        forecast.stays = forecast.lasting();
        Some(forecast)
    }

    /// How long deviations stay: least squares over all pairs of hours that are so far apart, bursts counted as in
    /// [`BURST`].
    fn lasting(&self) -> Vec<f64> {
        let sizes: Vec<Option<f64>> = self.deviations.iter().map(|d| d.map(|d| self.size(d))).collect();
        let after = |hours: usize| {
            let pairs = sizes.iter().zip(&sizes[hours.min(sizes.len())..]);
            let (products, squares) = pairs
                .filter_map(|(then, later)| Some(((*then)?, (*later)?)))
                .fold((0.0, 0.0), |(products, squares), (then, later)| {
                    (products + then * later, squares + then * then)
                });
            (products / (squares + DOUBT)).clamp(0.0, 1.0)
        };
        (1..=FOLLOWED).map(after).collect()
    }

    /// A deviation in median deviations, at most a burst's.
    fn size(&self, deviation: f64) -> f64 {
        (deviation / self.usual).clamp(-BURST, BURST)
    }

    /// The first day of the forecast, whose level is the most reliable.
    pub fn day(&self) -> u64 {
        self.outlook.day
    }

    fn expected(&self, hour: u64) -> f64 {
        self.outlook.level(hour / self.hours_per_day) + self.season[(hour % self.hours_per_day) as usize]
    }

    /// Possible futures of one day from `hour` on, given the hours just before it in `history`.
    pub fn ahead(&self, history: &History, hour: u64) -> Ahead {
        let learned = self.first + self.deviations.len() as u64;
        let known = |h: u64| self.deviations.get(h.checked_sub(self.first)? as usize).copied().flatten();
        let recent = |h: u64| {
            let peak = (h >= learned).then(|| history.peaks_of(h..h + 1).next());
            peak.flatten()
                .map(|(h, peak)| (peak.0 + self.offset).ln() - self.expected(h))
                .or_else(|| known(h))
        };
        let now = self.before(hour, recent);
        let last = hour.checked_sub(1).and_then(recent);
        let recorded = (self.first..learned).filter(|h| known(*h).is_some());
        let mut alike: Vec<(f64, u64)> =
            recorded.map(|h| (self.distance(hour, &now, h, &self.before(h, known)), h)).collect();
        alike.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        alike.truncate(ALIKE);
        let nearest = alike.first().map_or(0.0, |(distance, _)| *distance);
        let expected: Vec<f64> = (0..self.hours_per_day).map(|n| self.expected(hour + n)).collect();
        let path = |(distance, moment): &(f64, u64)| {
            let then = moment.checked_sub(1).and_then(known);
            let beyond = last.zip(then).map_or(0.0, |(last, then)| self.size(last - then) * self.usual);
            let stays = self.stays.iter().copied().chain(std::iter::repeat(0.0));
            // Hours that were not recorded, or are still to come, are assumed to be as expected.
            let went = expected.iter().zip(*moment..).map(|(e, h)| e + known(h).unwrap_or(0.0));
            let went = went.zip(stays).map(|(log, stays)| log + stays * beyond);
            let loads = went.map(|log| (log.exp() - self.offset).max(0.0)).collect();
            Path::new(((nearest - distance) / 2.0).exp() + LEAST_WEIGHT, loads)
        };
        Ahead { paths: alike.iter().map(path).collect() }
    }

    fn before(&self, hour: u64, deviation: impl Fn(u64) -> Option<f64>) -> Before {
        let mut back = 1;
        WINDOWS.map(|length| {
            let window = (back..back + length as u64).filter_map(|back| deviation(hour.checked_sub(back)?));
            back += length as u64;
            window.reduce(f64::max)
        })
    }

    /// Squared distance of two moments, in median deviations.
    fn distance(&self, hour: u64, now: &Before, past: u64, then: &Before) -> f64 {
        let windows = now.iter().zip(then).map(|windows| match windows {
            (Some(now), Some(then)) => (self.size(*now) - self.size(*then)).powi(2),
            _ => 1.0,
        });
        let apart = hour.abs_diff(past) % self.hours_per_day;
        let apart = apart.min(self.hours_per_day - apart) as f64;
        windows.sum::<f64>() + (apart / TIME_OF_DAY).powi(2)
    }
}

/// Possible futures: days that begin now, each with its weight. Hour 0 is the hour that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Ahead {
    paths: Vec<Path>,
}

#[derive(Clone, Debug, PartialEq)]
struct Path {
    weight: f64,
    loads: Vec<f64>,
    /// The highest load from hour 1 up to and including each hour.
    highest: Vec<f64>,
}

impl Path {
    fn new(weight: f64, loads: Vec<f64>) -> Path {
        let highest = loads.iter().skip(1).scan(0.0, |highest, load| {
            *highest = load.max(*highest);
            Some(*highest)
        });
        Path { weight, highest: highest.collect(), loads }
    }

    /// Number of hours, from hour 1 on, until the load exceeds `load`.
    fn quiet(&self, load: f64) -> usize {
        self.highest.partition_point(|highest| *highest <= load)
    }
}

impl Ahead {
    /// One future, known for certain: the loads from the present hour on.
    pub fn certain(loads: Vec<Load>) -> Ahead {
        Ahead { paths: vec![Path::new(1.0, loads.into_iter().map(|load| load.0).collect())] }
    }

    /// The weighted mean of `of` over all paths. Zero if there are none.
    fn mean_of(&self, of: impl Fn(&Path) -> f64) -> f64 {
        let weight: f64 = self.paths.iter().map(|path| path.weight).sum();
        let sum: f64 = self.paths.iter().map(|path| path.weight * of(path)).sum();
        if weight > 0.0 { sum / weight } else { 0.0 }
    }

    /// The mean load of an hour: the forecast with the least squared error.
    pub fn mean(&self, hour: usize) -> Load {
        Load(self.mean_of(|path| path.loads[hour]))
    }

    /// The median of an hour's peak.
    pub fn median(&self, hour: usize) -> Load {
        let mut loads: Vec<(f64, f64)> =
            self.paths.iter().map(|path| (path.loads[hour], path.weight)).collect();
        loads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = loads.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
        let mut sum = 0.0;
        let middle = loads.iter().find(|(_, weight)| {
            sum += weight;
            sum >= half
        });
        Load(middle.map_or(0.0, |(load, _)| *load))
    }

    /// The probability that an hour's peak exceeds a load, for any load.
    pub fn exceeds(&self, hour: usize) -> impl Fn(Load) -> f64 + '_ {
        let spread = self.spread(hour);
        // A logistic curve is close to the normal distribution when its argument is stretched by 1.7.
        move |load| {
            self.mean_of(|path| {
                let above = (path.loads[hour].max(f64::MIN_POSITIVE) / load.0.max(f64::MIN_POSITIVE)).ln();
                1.0 / (1.0 + (-1.7 * above / spread).exp())
            })
        }
    }

    /// How uncertain each possible load of an hour is, in logarithms.
    fn spread(&self, hour: usize) -> f64 {
        if self.paths.len() < 2 {
            return SPREAD;
        }
        let highest = self.paths.iter().map(|path| path.loads[hour]).fold(f64::MIN_POSITIVE, f64::max);
        let mut logs: Vec<f64> =
            self.paths.iter().map(|path| path.loads[hour].max(highest * 0.01).ln()).collect();
        let middle = median(&mut logs).unwrap_or(0.0);
        let mut deviations: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
        let deviation = NORMAL * median(&mut deviations).unwrap_or(0.0);
        (SPREAD_OF_DEVIATION * deviation).max(SPREAD_MIN)
    }

    /// The mean number of hours, from the next one on and at most a day, until the load exceeds `load`.
    pub fn quiet_from_next(&self, load: Load) -> f64 {
        self.mean_of(|path| path.quiet(load.0) as f64)
    }

    /// The same from this hour on.
    pub fn quiet(&self, load: Load) -> f64 {
        self.mean_of(|path| if path.loads[0] > load.0 { 0.0 } else { 1.0 + path.quiet(load.0) as f64 })
    }
}

/// The median; of an even number of values, the mean of the middle two.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Median polish: the level of every day and the season of every hour. An hour without any record gets the season
/// of the hour before it.
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

/// A median of few days is noisy: every hour is smoothed with its neighbours.
fn smooth(season: &[f64]) -> Vec<f64> {
    let n = season.len();
    let at = |i: usize| season[i % n];
    (0..n).map(|i| 0.25 * at(i + n - 1) + 0.5 * at(i) + 0.25 * at(i + 1)).collect()
}

/// The extrapolated level of future days.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outlook {
    day: u64,
    level: f64,
    /// Growth per day.
    slope: f64,
    /// The effect of each day of the week, shrunk while few weeks are known.
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
        // A weekly rhythm looks like a trend until some weeks are known: trust the trend gradually.
        let belief = (days.len() as f64 / 21.0).min(1.0);
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
        // A trend is extrapolated for at most a week.
        let ahead = (day as f64 - self.day as f64).min(DAYS_PER_WEEK as f64);
        self.level + self.slope * ahead + self.weekday[(day % DAYS_PER_WEEK) as usize]
    }
}

#[cfg(test)]
mod tests;
