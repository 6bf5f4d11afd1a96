//! How much CO₂ a kWh costs, hour by hour, from a file: what the grid's operators publish.
//!
//! CSV with two columns: an hour of the day in UTC (0 to 23, all of them) or a time in UTC (`2026-11-25T13:00`), and
//! g/kWh. A first line that is not such a pair is a heading; `#` begins a comment.

use crate::error::{NodeError, io, refused};
use std::collections::BTreeMap;
use std::path::Path;
use time::{Date, Month, Time};

#[derive(Clone, Debug, PartialEq)]
pub enum Co2 {
    /// g/kWh of each hour of the day.
    Daily([f64; 24]),
    /// g/kWh by the number of the hour since 1970; means, where there are several values of an hour.
    Hourly(BTreeMap<u64, f64>),
}

enum Key {
    OfDay(usize),
    Since1970(u64),
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Co2Error {
    #[error(
        "line {line} is {text:?}: write an hour of the day (0 to 23, UTC) or a time in UTC such as 2026-11-25T13:00, a comma, and g/kWh"
    )]
    Line { line: usize, text: String },
    #[error("hours of the day and times are mixed: write all lines in one way")]
    Mixed,
    #[error("hour {0} of the day is missing: write all of 0 to 23")]
    Missing(usize),
    #[error("it has no line with an hour and g/kWh")]
    Empty,
}

impl Co2 {
    pub fn load(path: &Path) -> Result<Co2, NodeError> {
        let text = std::fs::read_to_string(path).map_err(io("read", path))?;
        Co2::parse(&text).map_err(|error| refused(format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> Result<Co2, Co2Error> {
        let (mut daily, mut hourly) = ([const { Vec::new() }; 24], BTreeMap::<u64, Vec<f64>>::new());
        let mut is_first = true;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let heading = std::mem::take(&mut is_first);
            match pair(line) {
                Some((Key::OfDay(hour), grams)) => daily[hour].push(grams),
                Some((Key::Since1970(hour), grams)) => hourly.entry(hour).or_default().push(grams),
                None if heading => {}
                None => return Err(Co2Error::Line { line: number + 1, text: line.to_owned() }),
            }
        }
        let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        match (daily.iter().any(|values| !values.is_empty()), hourly.is_empty()) {
            (true, false) => Err(Co2Error::Mixed),
            (false, true) => Err(Co2Error::Empty),
            (false, false) => {
                Ok(Co2::Hourly(hourly.iter().map(|(hour, values)| (*hour, mean(values))).collect()))
            }
            (true, true) => match daily.iter().position(Vec::is_empty) {
                Some(hour) => Err(Co2Error::Missing(hour)),
                None => Ok(Co2::Daily(daily.each_ref().map(mean))),
            },
        }
    }

    #[cfg(feature = "lab")]
    /// g/kWh of an hour: its number in the recorded calendar, whose days have 24, and when it began.
    pub fn of(&self, hour: u64, from_unix_millis: u64) -> Option<f64> {
        match self {
            Co2::Daily(grams) => Some(grams[(hour % 24) as usize]),
            Co2::Hourly(grams) => grams.get(&(from_unix_millis / 3_600_000)).copied(),
        }
    }
}

fn pair(line: &str) -> Option<(Key, f64)> {
    let mut columns = line.split([',', ';', '\t']).map(|column| column.trim().trim_matches('"'));
    let (when, grams) = (columns.next()?, columns.next()?.parse::<f64>().ok()?);
    let key = match when.parse::<usize>() {
        Ok(hour) if hour < 24 => Key::OfDay(hour),
        Ok(_) => return None,
        Err(_) => Key::Since1970(hour_of(when)?),
    };
    (grams.is_finite() && grams >= 0.0).then_some((key, grams))
}

/// `2026-11-25T13:00`, also with seconds, a blank for the `T`, and the zone `Z` or `+00:00`.
fn hour_of(when: &str) -> Option<u64> {
    let (date, time) = when.split_once(['T', ' '])?;
    let time = time.strip_suffix('Z').or_else(|| time.strip_suffix("+00:00")).unwrap_or(time);
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let [hour, minute, ..] = numbers(time, ':')?[..] else { return None };
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    let time = Time::from_hms(u8::try_from(hour).ok()?, u8::try_from(minute).ok()?, 0).ok()?;
    u64::try_from(date.with_time(time).assume_utc().unix_timestamp() / 3600).ok()
}

fn numbers(text: &str, between: char) -> Option<Vec<u32>> {
    text.split(between).map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_and_times_are_read() {
        let day: String = (0..24).map(|hour| format!("{hour},{}\n", 100 + hour)).collect();
        let daily = Co2::parse(&format!("hour,g/kWh\n# of the year\n{day}")).unwrap();
        assert_eq!((daily.of(48 + 5, 0), daily.of(23, 0)), (Some(105.0), Some(123.0)));
        let times = "Datetime (UTC),g\n2026-11-25T13:00,200\n2026-11-25 13:30:00Z;300\n\"2026-11-25T14:00+00:00\",50\n";
        let hourly = Co2::parse(times).unwrap();
        let at = 1_795_611_600_000;
        assert_eq!((hourly.of(7, at), hourly.of(7, at + 3_600_000)), (Some(250.0), Some(50.0)));
        assert_eq!(hourly.of(7, at + 7_200_000), None, "what is not in the file is not known");
    }

    #[test]
    fn what_is_no_series_says_where_and_why() {
        let fault = |text: &str| Co2::parse(text).unwrap_err();
        assert_eq!(fault("0,100\n1,many\n"), Co2Error::Line { line: 2, text: "1,many".into() });
        for line in ["24,5", "-1,5", "3,-5", "3,NaN", "3", "2026-13-01T00:00,5", "2026-11-25T13:00+02:00,5"] {
            assert_eq!(fault(&format!("0,100\n{line}")), Co2Error::Line { line: 2, text: line.into() });
        }
        assert_eq!(fault("0,100\n2026-11-25T13:00,5"), Co2Error::Mixed);
        assert_eq!(fault("0,100\n"), Co2Error::Missing(1));
        assert_eq!(fault("hour,g\n"), Co2Error::Empty);
        ebb_testing::fuzz(&[b"0,100\n2026-11-25T13:00Z;5\n"], |bytes| {
            let _ = Co2::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
