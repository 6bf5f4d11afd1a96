//! Load series: one number per interval, from a CSV with a header or a plain list of numbers, optionally compressed.
//!
//! Missing records are gaps, never a load of zero: missing rows, empty cells, `NaN`, and, unless the user says that
//! they are real, intervals of exactly zero, because a service without any load for a whole interval was probably not
//! recorded.

use std::io::Read;
use std::time::Duration;
use time::{Date, Month};

/// Longest series, in intervals: three years of seconds. A longer one contains a wrong time.
const MAX_INTERVALS: usize = 100_000_000;
const MAX_BYTES: u64 = 2 << 30;

/// Loads of consecutive intervals; `None` is a gap.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub interval: Duration,
    pub values: Vec<Option<f64>>,
}

/// The gaps of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    pub runs: usize,
    pub intervals: usize,
    /// How many of those were exactly zero and read as gaps.
    pub zeros: usize,
    /// First interval of the first gap.
    pub first: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    #[error("it is longer than {} GiB: fold it into minutes first", MAX_BYTES >> 30)]
    TooLarge,
    #[error("it holds no load: expected a number per interval, or a CSV with a header")]
    Empty,
    #[error(
        "line {line}: {text:?} is not a number; write a load per interval, or leave it empty where none was recorded"
    )]
    NotANumber { line: usize, text: String },
    #[error(
        "line {line}: the load is {value}; a load is never negative: leave it empty where none was recorded"
    )]
    Negative { line: usize, value: f64 },
    #[error(
        "line {line}: {text:?} is not a time; use 2024-01-31 13:45:00, seconds since 1970, or a running number"
    )]
    NotATime { line: usize, text: String },
    #[error(
        "line {line}: the time is not later than that of the line before: sort the series and remove repetitions"
    )]
    Order { line: usize },
    #[error(
        "line {line}: the time is not a whole number of intervals of {interval:?} after the first: give --interval"
    )]
    OffGrid { line: usize, interval: Duration },
    #[error("line {line}: {columns} columns; use two, time and load, or one number per interval")]
    Columns { line: usize, columns: usize },
    #[error(
        "line {line}: the series would have over {MAX_INTERVALS} intervals: check the time, or give --interval"
    )]
    TooLong { line: usize },
    #[error("its interval is not known: give --interval, such as 1h, 1m or 1s")]
    Interval,
    #[error("a step of {step:?} is not a whole multiple of the series' interval of {interval:?}")]
    Step { step: Duration, interval: Duration },
}

struct Row<'a> {
    line: usize,
    time: Option<&'a str>,
    load: &'a str,
}

/// Parses a series; its first bytes determine the compression. The interval comes from the user (`interval`), else from
/// the times in the first column, else from that column's name, else from `name`, the file name (`per-second`,
/// `per-minute`, `hourly`).
pub fn read(
    input: Box<dyn Read + Send>,
    name: &str,
    interval: Option<Duration>,
) -> Result<Series, SeriesError> {
    let mut bytes = Vec::new();
    ebb_trace::decompress(input)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(SeriesError::TooLarge);
    }
    parse(&String::from_utf8_lossy(&bytes), name, interval)
}

fn parse(text: &str, name: &str, interval: Option<Duration>) -> Result<Series, SeriesError> {
    let text = text.trim_start_matches('\u{feff}');
    let (header, rows) = rows(text)?;
    let timed = rows.first().is_some_and(|row| row.time.is_some());
    if rows.is_empty() {
        return Err(SeriesError::Empty);
    }
    let unit = header.as_deref().and_then(unit_of_column);
    if timed {
        return by_time(&rows, interval, unit);
    }
    let interval = interval.or(unit).or_else(|| unit_of_name(name)).ok_or(SeriesError::Interval)?;
    let values = rows.iter().map(|row| number(row.line, row.load)).collect::<Result<Vec<_>, _>>()?;
    if values.iter().all(Option::is_none) {
        return Err(SeriesError::Empty);
    }
    Ok(Series { interval, values })
}

/// The first column's name, if there is a header, and the rows.
fn rows(text: &str) -> Result<(Option<String>, Vec<Row<'_>>), SeriesError> {
    let mut header = None;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let content = line.trim();
        if content.starts_with('#') || (content.is_empty() && rows.is_empty()) {
            continue;
        }
        let mut cells = content.split([',', ';', '\t']).map(|cell| cell.trim().trim_matches('"'));
        let first = cells.next().unwrap_or("");
        let second = cells.next();
        if let Some(more) = cells.next().map(|_| 3 + cells.count()) {
            return Err(SeriesError::Columns { line: number, columns: more });
        }
        let titled = |cell: &str| cell.starts_with(|c: char| c.is_alphabetic()) && !is_missing(cell);
        if rows.is_empty() && header.is_none() && titled(second.unwrap_or(first)) {
            header = Some(first.to_lowercase());
            continue;
        }
        match second {
            Some(load) => rows.push(Row { line: number, time: Some(first), load }),
            // An empty line is an interval without a record, except at the end.
            None if content.is_empty() => rows.push(Row { line: number, time: None, load: "" }),
            None => {
                rows.extend(content.split_whitespace().map(|load| Row { line: number, time: None, load }))
            }
        }
    }
    while rows.last().is_some_and(|row| row.time.is_none() && row.load.is_empty()) {
        rows.pop();
    }
    if let Some(odd) = rows.iter().find(|row| row.time.is_some() != rows[0].time.is_some()) {
        return Err(SeriesError::Columns { line: odd.line, columns: 1 + usize::from(odd.time.is_some()) });
    }
    Ok((header, rows))
}

fn is_missing(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "" | "nan" | "na" | "n/a" | "null" | "none" | "-")
}

fn number(line: usize, text: &str) -> Result<Option<f64>, SeriesError> {
    if is_missing(text) {
        return Ok(None);
    }
    let value: f64 = text.parse().map_err(|_| SeriesError::NotANumber { line, text: short(text) })?;
    match value {
        v if !v.is_finite() => Err(SeriesError::NotANumber { line, text: short(text) }),
        v if v < 0.0 => Err(SeriesError::Negative { line, value }),
        v => Ok(Some(v)),
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

fn unit_of_column(name: &str) -> Option<Duration> {
    let seconds = match name {
        "hour" | "hours" => 3600,
        "minute" | "minutes" | "min" => 60,
        "second" | "seconds" | "sec" | "s" => 1,
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

fn unit_of_name(name: &str) -> Option<Duration> {
    let of = |part: &str, seconds| name.contains(part).then(|| Duration::from_secs(seconds));
    of("second", 1).or_else(|| of("minute", 60)).or_else(|| of("hour", 3600))
}

/// Puts every row at its time; times without a row are gaps.
fn by_time(rows: &[Row], said: Option<Duration>, unit: Option<Duration>) -> Result<Series, SeriesError> {
    let mut times = Vec::with_capacity(rows.len());
    for row in rows {
        let text = row.time.unwrap_or("");
        times.push(time(text).ok_or_else(|| SeriesError::NotATime { line: row.line, text: short(text) })?);
    }
    let mut step = i64::MAX;
    for (row, pair) in rows[1..].iter().zip(times.windows(2)) {
        let after = pair[1].checked_sub(pair[0]).filter(|after| *after > 0);
        step = step.min(after.ok_or(SeriesError::Order { line: row.line })?);
    }
    // Numbers in a column named "hour" count hours; all other times are in seconds.
    let scale = unit.map_or(1, |unit| unit.as_secs() as i64);
    let told = (rows.len() > 1).then(|| Duration::from_secs((step.saturating_mul(scale)) as u64));
    let interval = said.or(told).or(unit).ok_or(SeriesError::Interval)?;
    let grid = (interval.as_secs() as i64 / scale).max(1);
    let mut values = Vec::with_capacity(rows.len());
    for (row, at) in rows.iter().zip(&times) {
        let since = at - times[0];
        if since % grid != 0 {
            return Err(SeriesError::OffGrid { line: row.line, interval });
        }
        let place = (since / grid) as usize;
        if place >= MAX_INTERVALS {
            return Err(SeriesError::TooLong { line: row.line });
        }
        values.resize(place, None);
        values.push(number(row.line, row.load)?);
    }
    if values.iter().all(Option::is_none) {
        return Err(SeriesError::Empty);
    }
    Ok(Series { interval, values })
}

/// Seconds since 1970, a running number, or a date with a time of day.
fn time(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse::<f64>() {
        return (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64);
    }
    let (date, clock) = text.trim_end_matches('Z').split_once([' ', 'T']).unwrap_or((text, "0:0"));
    let mut parts = date.split('-').map(|part| part.parse::<u16>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::from(year), month, u8::try_from(day).ok()?).ok()?;
    let mut parts = clock.split(':').map(|part| part.parse::<f64>().ok().filter(|s| s.fract() == 0.0));
    let (hours, minutes) = (parts.next()??, parts.next()??);
    let seconds = parts.next().unwrap_or(Some(0.0))?;
    let legal =
        (0.0..24.0).contains(&hours) && (0.0..60.0).contains(&minutes) && (0.0..61.0).contains(&seconds);
    let midnight = date.midnight().assume_utc().unix_timestamp();
    legal.then(|| midnight + (hours * 3600.0 + minutes * 60.0 + seconds) as i64)
}

impl Series {
    /// The series in steps of `step`: each is the mean of its intervals, if at least half of them were recorded.
    pub fn folded(&self, step: Duration) -> Result<Series, SeriesError> {
        let count = (step.as_nanos() / self.interval.as_nanos().max(1)) as usize;
        if count == 0 || self.interval * count as u32 != step {
            return Err(SeriesError::Step { step, interval: self.interval });
        }
        let mean = |intervals: &[Option<f64>]| {
            let known: Vec<f64> = intervals.iter().flatten().copied().collect();
            (known.len() * 2 >= count).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        Ok(Series { interval: step, values: self.values.chunks(count).map(mean).collect() })
    }

    /// Turns intervals of exactly zero into gaps; returns how many there were.
    pub fn zeros_are_gaps(&mut self) -> usize {
        let mut zeros = 0;
        for value in self.values.iter_mut().filter(|value| **value == Some(0.0)) {
            *value = None;
            zeros += 1;
        }
        zeros
    }

    /// The gaps, `zeros` of them because they were exactly zero.
    pub fn gaps(&self, zeros: usize) -> Gaps {
        let gap = |i: usize| self.values[i].is_none();
        let all: Vec<usize> = (0..self.values.len()).filter(|i| gap(*i)).collect();
        let runs = all.iter().filter(|i| **i == 0 || !gap(**i - 1)).count();
        Gaps { runs, intervals: all.len(), zeros, first: all.first().copied() }
    }

    pub fn per_day(&self) -> usize {
        (86_400.0 / self.interval.as_secs_f64()).round().max(1.0) as usize
    }
}
