//! Load series: one number per interval, from a CSV with a header or a plain list of numbers, optionally compressed.
//!
//! Missing records are gaps, never a load of zero: missing rows, empty cells, `NaN`, and, unless the user says that
//! they are real, intervals of exactly zero, because a service without any load for a whole interval was probably not
//! recorded.
//!
//! A misread series is worse than a refused one: what could be read in two ways is refused, with its line.

use super::cells::{Quote, cells, separator};
use super::separators::{Separators, has_thousands};
use ebb_trace::Column;
use std::borrow::Cow;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;
use time::{Date, Month};

/// Longest series, in intervals: three years of seconds. A longer one contains a wrong time.
const MAX_INTERVALS: usize = 100_000_000;
/// Most steps, which are kept in memory: seven years of minutes.
const MAX_STEPS: usize = 4_000_000;
const MAX_BYTES: u64 = 2 << 30;
/// Longest row whose quotes hold line ends. Behind a quote that nothing closes, a file would be one row.
const MOST_ROW: usize = 16 << 10;
/// A highest step so many times above the 99th percentile is named.
const OUTLIER: f64 = 3.0;

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
        "line {line}: {text:?} has a comma, for thousands or for decimals: write 1060 or 1.06; or put ; between columns, \
         then a comma is for decimals"
    )]
    Comma { line: usize, text: String },
    #[error(
        "line {line}: {text:?} has a separator for thousands: take separators for thousands out of all loads"
    )]
    Thousands { line: usize, text: String },
    #[error(
        "line {line}: {text:?} is a thousand times larger if its separator is for thousands, and nothing shows that it is not: take \
         separators for thousands out of all loads; if it is for decimals, write three of them in every load, such as 990.000"
    )]
    ThousandsOrDecimals { line: usize, text: String },
    #[error(
        "line {line}: nothing closes a quote that this line opens: remove it, or double it within a cell"
    )]
    OpenQuote { line: usize },
    #[error("line {line}: text follows a closing quote: double the quotes within a cell")]
    TextBehindQuote { line: usize },
    #[error("it is UTF-16: save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`")]
    Utf16,
    #[error(
        "line {line}: {text:?} is not a time of whole seconds; use 2024-01-31 13:45:00, with or without a zone such as \
         +02:00, seconds or milliseconds since 1970, or a running number"
    )]
    NotATime { line: usize, text: String },
    #[error(
        "line {line}: the time is not later than that of the line before: if a clock was set back there, write the times \
         in UTC; else sort the series and remove repetitions"
    )]
    Order { line: usize },
    #[error(
        "line {line}: the time is not a whole number of intervals of {interval:?} after the first: give --interval"
    )]
    OffGrid { line: usize, interval: Duration },
    #[error(
        "line {line}: {columns} columns; use two, time and load, or one number per interval, or say which is which with --column \
         load=COLUMN,time=COLUMN. If a comma is the decimal sign, put ; between columns"
    )]
    Columns { line: usize, columns: usize },
    #[error(
        "line {line}: {columns} columns, and the first line has {titles}. If a comma is the decimal sign, put ; between columns"
    )]
    Ragged { line: usize, columns: usize, titles: usize },
    #[error(
        "line {line}: {text:?} may be one number with a decimal comma, as in every row: put ; between columns, or, if they are \
         two, begin with a line of titles"
    )]
    Torn { line: usize, text: String },
    #[error("no column is called {title:?}")]
    NoColumn { title: String },
    #[error(
        "line {line}: the series would have over {MAX_INTERVALS} intervals, or over {MAX_STEPS} steps: check the time, or give \
         --interval or a longer --step"
    )]
    TooLong { line: usize },
    #[error("its interval is not known: give --interval, such as 1h, 1m or 1s")]
    Interval,
    #[error("a step of {step:?} is not a whole multiple of the series' interval of {interval:?}")]
    Step { step: Duration, interval: Duration },
}

/// What a series' text does not say.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Time between two loads; `None`: from the times in the first column, else from that column's name, else from the
    /// file's name (`per-second`, `per-minute`, `hourly`).
    pub interval: Option<Duration>,
    pub fold: Fold,
    /// Which columns hold loads and times; `None`: the only one, or the second and the first of two.
    pub columns: Option<LoadColumns>,
}

/// Steps into which intervals are put together while they are read: a step is the mean of its intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fold {
    #[default]
    No,
    To(Duration),
    /// The interval, or this time if that is longer.
    AtLeast(Duration),
}

/// The columns of a series: `load=3,time=1`, by number or title; `time=1+2`: a date, and a time of day or an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadColumns {
    load: Column,
    time: Option<(Column, Option<Column>)>,
}

impl std::str::FromStr for LoadColumns {
    type Err = String;
    fn from_str(text: &str) -> Result<LoadColumns, String> {
        let (mut load, mut time) = (None, None);
        for part in text.split(',') {
            let (name, column) = part.split_once('=').unwrap_or(("load", part));
            let twice = match name.trim() {
                "load" => load.replace(column.parse()?).is_some(),
                "time" => {
                    let (date, hour) = match column.split_once('+') {
                        Some((date, hour)) => (date, Some(hour.parse()?)),
                        None => (column, None),
                    };
                    time.replace((date.parse()?, hour)).is_some()
                }
                name => return Err(format!("{name:?} is not a field: use load and time")),
            };
            if twice {
                return Err(format!("{} is given twice", name.trim()));
            }
        }
        let load = load.ok_or("the column of load is missing: give load=COLUMN too")?;
        Ok(LoadColumns { load, time })
    }
}

/// Reads a series; its first bytes determine the compression. Memory grows with the number of steps, not of lines.
pub fn read(input: Box<dyn Read + Send>, name: &str, given: &Given) -> Result<Series, SeriesError> {
    read_found(input, name, given).map(|found| found.series)
}

/// A series, with what only its text shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub series: Series,
    /// Second since 1970 at which it begins, if its times say that.
    pub begins: Option<i64>,
    /// The line of the highest interval.
    highest_line: usize,
}

/// A step so far above the others that it may be a mistake. With `--provision peak` it sets the provisioning.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Outlier {
    /// The line of the highest interval.
    pub line: usize,
    pub load: f64,
    /// How many times the 99th percentile of the steps it is.
    pub times_p99: f64,
}

impl Found {
    pub fn outlier(&self) -> Option<Outlier> {
        let mut steps: Vec<f64> = self.series.values.iter().flatten().copied().collect();
        steps.sort_by(f64::total_cmp);
        let (load, p99) = (*steps.last()?, steps[(steps.len() - 1) * 99 / 100]);
        let found = p99 > 0.0 && load > OUTLIER * p99;
        found.then(|| Outlier { line: self.highest_line, load, times_p99: load / p99 })
    }
}

pub fn read_found(input: Box<dyn Read + Send>, name: &str, given: &Given) -> Result<Found, SeriesError> {
    let mut input = BufReader::new(ebb_trace::decompress(input)?.take(MAX_BYTES + 1));
    let mut parser = Parser {
        given,
        name,
        table: None,
        unit: None,
        torn: None,
        separators: Separators::default(),
        rows: Rows::None,
    };
    let (mut line, mut row, mut number, mut bytes, mut first) = (Vec::new(), String::new(), 0, 0, 0);
    loop {
        line.clear();
        let length = input.read_until(b'\n', &mut line)?;
        bytes += length as u64;
        if bytes > MAX_BYTES {
            return Err(SeriesError::TooLarge);
        }
        if length == 0 && row.is_empty() {
            return parser.end();
        }
        if length == 0 {
            return Err(SeriesError::OpenQuote { line: first });
        }
        number += 1;
        if number == 1
            && (line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") || line.contains(&0))
        {
            return Err(SeriesError::Utf16);
        }
        if row.is_empty() {
            first = number;
        }
        row.push_str(&String::from_utf8_lossy(&line));
        match parser.line(first, row.trim_start_matches('\u{feff}').trim()) {
            Err(SeriesError::OpenQuote { .. }) if row.len() < MOST_ROW => {}
            read => {
                read?;
                row.clear();
            }
        }
    }
}

/// Where load and time are in a line; a time may be in two cells.
type Places = (usize, Option<(usize, Option<usize>)>);

/// What the first line that counts shows.
#[derive(Clone, Copy)]
struct Table {
    places: Places,
    separator: char,
    /// Its columns.
    titles: usize,
}

struct Parser<'a> {
    given: &'a Given,
    name: &'a str,
    table: Option<Table>,
    /// An interval that the title of the times' column names.
    unit: Option<Duration>,
    /// In a table without titles, what looks like a number that its decimal comma tore in two, with its line: as long
    /// as it does so in every row.
    torn: Option<(usize, String)>,
    separators: Separators,
    rows: Rows,
}

/// What has been read.
enum Rows {
    None,
    /// One number per interval; `empty` lines since the last one count if another one follows.
    List {
        steps: Steps,
        empty: usize,
    },
    /// The first rows with times, from which the interval is learned.
    Learning(Vec<Row>),
    Timed {
        steps: Steps,
        origin: i64,
        last: i64,
        grid: i64,
        place: usize,
    },
}

#[derive(Clone, Copy)]
struct Row {
    line: usize,
    time: i64,
    load: Option<f64>,
}

/// Numbers above it are seconds since 1970, of 1980 or later; below, they count something.
const DATED: i64 = 315_532_800;

/// Rows with times from which the interval is learned: the least time between two of them.
const LEARNING: usize = 4096;

impl Parser<'_> {
    fn line(&mut self, line: usize, text: &str) -> Result<(), SeriesError> {
        if text.starts_with('#') || (text.is_empty() && matches!(self.rows, Rows::None)) {
            return Ok(());
        }
        let separator = self.table.map_or_else(|| separator(text), |table| table.separator);
        let cells = cells(text, separator).map_err(|quote| match quote {
            Quote::Open => SeriesError::OpenQuote { line },
            Quote::TextBehind => SeriesError::TextBehindQuote { line },
        })?;
        let table = match self.table {
            Some(table) => table,
            None => {
                let (places, titles) = self.look(line, &cells)?;
                let table = Table { places, separator, titles: cells.len() };
                self.table = Some(table);
                if !titles && separator == ',' {
                    self.torn = torn(places, &cells).map(|text| (line, text));
                }
                if titles {
                    let titled =
                        cells.get(places.1.map_or(0, |(date, _)| date)).map(|title| title.to_lowercase());
                    self.unit = titled.as_deref().and_then(unit_of_column);
                    return Ok(());
                }
                table
            }
        };
        if cells.iter().skip(table.titles).any(|more| !more.is_empty()) {
            return Err(SeriesError::Ragged { line, columns: cells.len(), titles: table.titles });
        }
        if torn(table.places, &cells).is_none() && !text.is_empty() {
            self.torn = None;
        }
        let missing = || SeriesError::Columns { line, columns: cells.len() };
        let few = self.given.columns.is_none();
        match table.places {
            (_, None) if few && cells.len() > 1 => Err(missing()),
            (_, None) if few && text.is_empty() => self.list(line, "", separator),
            (_, None) if few => text.split_whitespace().try_for_each(|load| self.list(line, load, separator)),
            (load, None) => self.list(line, cells.get(load).ok_or_else(missing)?, separator),
            (_, Some(_)) if text.is_empty() => Ok(()),
            (load, Some((date, hour))) => {
                let (load, text) = cells.get(load).zip(cells.get(date)).ok_or_else(missing)?;
                let text = match hour {
                    Some(hour) => Cow::Owned(format!("{text} {}", cells.get(hour).ok_or_else(missing)?)),
                    None => text.clone(),
                };
                let time =
                    time_of(&text).ok_or_else(|| SeriesError::NotATime { line, text: short(&text) })?;
                let load = self.number(line, load, separator)?;
                self.timed(Row { line, time, load })
            }
        }
    }

    /// From the first line: where the columns are, and whether it holds titles.
    fn look(&self, line: usize, cells: &[Cow<str>]) -> Result<(Places, bool), SeriesError> {
        let titled = |cell: &str| cell.starts_with(|c: char| c.is_alphabetic()) && !is_missing(cell);
        let Some(columns) = &self.given.columns else {
            return match cells {
                [only] => Ok(((0, None), titled(only))),
                [_, load] => Ok(((1, Some((0, None))), titled(load))),
                more => Err(SeriesError::Columns { line, columns: more.len() }),
            };
        };
        let place = |column: &Column| {
            let found = column.place(cells.iter().map(|cell| cell.as_bytes()));
            found.ok_or_else(|| SeriesError::NoColumn { title: column.to_string() })
        };
        let times = |(date, hour): &(Column, Option<Column>)| {
            Ok::<_, SeriesError>((place(date)?, hour.as_ref().map(place).transpose()?))
        };
        let (load, time) = (place(&columns.load)?, columns.time.as_ref().map(times).transpose()?);
        let named = |column: &Column| matches!(column, Column::Titled(_));
        let of_time = columns.time.iter().flat_map(|(date, hour)| [Some(date), hour.as_ref()]);
        let titles = named(&columns.load) || of_time.flatten().any(named);
        Ok(((load, time), titles || cells.get(load).is_some_and(|cell| titled(cell))))
    }

    fn list(&mut self, line: usize, text: &str, separator: char) -> Result<(), SeriesError> {
        let load = self.number(line, text, separator)?;
        if let Rows::None = self.rows {
            let interval = self.given.interval.or(self.unit).or_else(|| unit_of_name(self.name));
            let steps = Steps::new(interval.ok_or(SeriesError::Interval)?, self.given.fold)?;
            self.rows = Rows::List { steps, empty: 0 };
        }
        let Rows::List { steps, empty } = &mut self.rows else {
            return Err(SeriesError::Columns { line, columns: 1 });
        };
        if text.is_empty() {
            *empty += 1;
            return Ok(());
        }
        for _ in 0..std::mem::take(empty) {
            steps.push(line, None)?;
        }
        steps.push(line, load)
    }

    fn number(&mut self, line: usize, text: &str, separator: char) -> Result<Option<f64>, SeriesError> {
        let load = number(line, text, separator)?;
        if load.is_some() {
            self.separators.see(line, text);
        }
        Ok(load)
    }

    fn timed(&mut self, row: Row) -> Result<(), SeriesError> {
        match &mut self.rows {
            Rows::None => self.rows = Rows::Learning(vec![row]),
            Rows::Learning(rows) => {
                rows.push(row);
                if rows.len() == LEARNING {
                    return self.learn();
                }
            }
            Rows::List { .. } => return Err(SeriesError::Columns { line: row.line, columns: 2 }),
            Rows::Timed { steps, origin, last, grid, place } => {
                if row.time <= *last {
                    return Err(SeriesError::Order { line: row.line });
                }
                *last = row.time;
                let since = row.time.checked_sub(*origin).ok_or(SeriesError::TooLong { line: row.line })?;
                if since % *grid != 0 {
                    return Err(SeriesError::OffGrid { line: row.line, interval: steps.interval });
                }
                // Times without a row are gaps.
                let at = (since / *grid) as usize;
                steps.room(row.line, at)?;
                while *place < at {
                    steps.push(row.line, None)?;
                    *place += 1;
                }
                steps.push(row.line, row.load)?;
                *place += 1;
            }
        }
        Ok(())
    }

    /// Learns the interval from the first rows, and puts them where they belong.
    fn learn(&mut self) -> Result<(), SeriesError> {
        let Rows::Learning(rows) = &mut self.rows else { return Ok(()) };
        let rows = std::mem::take(rows);
        let mut least: Option<i64> = None;
        for pair in rows.windows(2) {
            let after = pair[1].time.checked_sub(pair[0].time).filter(|after| *after > 0);
            let after = after.ok_or(SeriesError::Order { line: pair[1].line })?;
            least = Some(least.map_or(after, |least| least.min(after)));
        }
        // Numbers in a column named "hour" count hours; all other times are in seconds.
        let scale = self.unit.map_or(1, |unit| unit.as_secs() as i64);
        let told = least.map(|least| Duration::from_secs(least.saturating_mul(scale) as u64));
        let interval = self.given.interval.or(told).or(self.unit).ok_or(SeriesError::Interval)?;
        let grid = (interval.as_secs() as i64 / scale).max(1);
        let steps = Steps::new(interval, self.given.fold)?;
        let origin = rows[0].time;
        self.rows = Rows::Timed { steps, origin, last: i64::MIN, grid, place: 0 };
        rows.into_iter().try_for_each(|row| self.timed(row))
    }

    fn end(mut self) -> Result<Found, SeriesError> {
        self.learn()?;
        if let Some((line, text)) = self.torn {
            return Err(SeriesError::Torn { line, text });
        }
        if let Some((line, text)) = self.separators.unclear() {
            return Err(SeriesError::ThousandsOrDecimals { line, text });
        }
        let (steps, begins) = match self.rows {
            Rows::List { steps, .. } => (steps, None),
            Rows::Timed { steps, origin, .. } => {
                let dated = self.unit.is_none() && origin > DATED;
                (steps, dated.then_some(origin))
            }
            Rows::None | Rows::Learning(_) => return Err(SeriesError::Empty),
        };
        let highest_line = steps.highest.1;
        Ok(Found { series: steps.end()?, begins, highest_line })
    }
}

/// Intervals, put together into steps as they come.
struct Steps {
    interval: Duration,
    step: Duration,
    /// Intervals of a step.
    each: usize,
    pushed: usize,
    /// Of the step that has not ended: intervals, those that were recorded, and their sum.
    open: (usize, usize, f64),
    /// The highest load of an interval, and its line.
    highest: (f64, usize),
    values: Vec<Option<f64>>,
}

impl Steps {
    fn new(interval: Duration, fold: Fold) -> Result<Steps, SeriesError> {
        let step = match fold {
            Fold::No => interval,
            Fold::To(step) => step,
            Fold::AtLeast(least) => interval.max(least),
        };
        let each = (step.as_nanos() / interval.as_nanos().max(1)) as usize;
        if each == 0 || u32::try_from(each).ok().and_then(|each| interval.checked_mul(each)) != Some(step) {
            return Err(SeriesError::Step { step, interval });
        }
        Ok(Steps {
            interval,
            step,
            each,
            pushed: 0,
            open: (0, 0, 0.0),
            highest: (0.0, 0),
            values: Vec::new(),
        })
    }

    /// Whether there is room for an interval with this index.
    fn room(&self, line: usize, index: usize) -> Result<(), SeriesError> {
        match index / self.each {
            step if index >= MAX_INTERVALS || step >= MAX_STEPS => Err(SeriesError::TooLong { line }),
            _ => Ok(()),
        }
    }

    fn push(&mut self, line: usize, load: Option<f64>) -> Result<(), SeriesError> {
        self.room(line, self.pushed)?;
        self.pushed += 1;
        if let Some(load) = load.filter(|load| *load > self.highest.0) {
            self.highest = (load, line);
        }
        self.add(load);
        Ok(())
    }

    fn add(&mut self, load: Option<f64>) {
        self.open.0 += 1;
        if let Some(load) = load {
            self.open = (self.open.0, self.open.1 + 1, self.open.2 + load);
        }
        if self.open.0 == self.each {
            self.close();
        }
    }

    /// A step has a load if at least half of it was recorded.
    fn close(&mut self) {
        let (_, known, sum) = std::mem::take(&mut self.open);
        self.values.push((known > 0 && known * 2 >= self.each).then(|| sum / known as f64));
    }

    fn end(mut self) -> Result<Series, SeriesError> {
        if self.open.0 > 0 {
            self.close();
        }
        if self.values.iter().all(Option::is_none) {
            return Err(SeriesError::Empty);
        }
        Ok(Series { interval: self.step, values: self.values })
    }
}

/// The load and the column before it, which nothing is read from, if both are whole numbers.
fn torn((load, time): Places, cells: &[Cow<str>]) -> Option<String> {
    let before = load.checked_sub(1)?;
    if time.is_some_and(|(date, hour)| date == before || hour == Some(before)) {
        return None;
    }
    let whole = |cell: &&Cow<str>| !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
    let (first, second) = cells.get(before).filter(whole).zip(cells.get(load).filter(whole))?;
    Some(format!("{first},{second}"))
}

fn is_missing(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "" | "nan" | "na" | "n/a" | "null" | "none" | "-")
}

/// Behind another separator than a comma, a comma is the decimal sign.
fn number(line: usize, text: &str, separator: char) -> Result<Option<f64>, SeriesError> {
    if is_missing(text) {
        return Ok(None);
    }
    let decimal = match text.contains(',') && separator != ',' && !text.contains('.') {
        true => Cow::Owned(text.replacen(',', ".", 1)),
        false => Cow::Borrowed(text),
    };
    let value: f64 = decimal.parse().map_err(|_| match text.contains(',') {
        _ if has_thousands(text) => SeriesError::Thousands { line, text: short(text) },
        true => SeriesError::Comma { line, text: short(text) },
        false => SeriesError::NotANumber { line, text: short(text) },
    })?;
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

/// Seconds since 1970, a running number, or a date with a time of day.
fn time_of(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse::<i64>() {
        return whole_seconds(number);
    }
    if let Ok(number) = text.parse::<f64>() {
        return (number.fract() == 0.0 && number.abs() < 1e15)
            .then(|| whole_seconds(number as i64))
            .flatten();
    }
    let (date, rest) = text.split_once([' ', 'T']).unwrap_or((text, "0:0"));
    let (clock, zone) = rest.split_at(rest.find(['+', '-', 'Z', 'z', 'U']).unwrap_or(rest.len()));
    let mut parts = date.split('-').map(|part| part.parse::<u16>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::from(year), month, u8::try_from(day).ok()?).ok()?;
    let mut parts = clock.trim().split(':').map(|part| part.parse::<f64>().ok().filter(|s| s.fract() == 0.0));
    let (hours, minutes) = (parts.next()??, parts.next().unwrap_or(Some(0.0))?);
    let seconds = parts.next().unwrap_or(Some(0.0))?;
    let legal =
        (0.0..24.0).contains(&hours) && (0.0..60.0).contains(&minutes) && (0.0..61.0).contains(&seconds);
    let midnight = date.midnight().assume_utc().unix_timestamp();
    let there = midnight + (hours * 3600.0 + minutes * 60.0 + seconds) as i64;
    zone_seconds(zone.trim()).filter(|_| legal).map(|ahead| there - ahead)
}

/// The seconds in a number of seconds, or of finer units since 1970, which its size shows:
/// seconds have ten digits for centuries, and each finer unit has three more.
fn whole_seconds(number: i64) -> Option<i64> {
    let unit = match number.unsigned_abs() {
        ..100_000_000_000 => 1,
        100_000_000_000..100_000_000_000_000 => 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000_000,
        _ => 1_000_000_000,
    };
    (number % unit == 0).then_some(number / unit)
}

/// How far a zone is ahead of UTC: `Z`, `+02:00`, `-0330`, `+01`; no zone is UTC.
fn zone_seconds(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next() {
        None => return Some(0),
        Some('+') => 1,
        Some('-') => -1,
        Some(_) => return matches!(zone, "Z" | "z" | "UTC").then_some(0),
    };
    let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = (digits.get(..2)?.parse::<u8>().ok()?, digits.get(2..)?);
    let minutes = if minutes.is_empty() { 0 } else { minutes.parse::<u8>().ok()? };
    let legal = hours < 15 && minutes < 60 && digits.len() <= 4;
    legal.then(|| sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

impl Series {
    /// The series in steps of `step`: each is the mean of its intervals, if at least half of them were recorded.
    pub fn folded(&self, step: Duration) -> Result<Series, SeriesError> {
        let mut steps = Steps::new(self.interval, Fold::To(step))?;
        self.values.iter().for_each(|value| steps.add(*value));
        if steps.open.0 > 0 {
            steps.close();
        }
        Ok(Series { interval: step, values: steps.values })
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
