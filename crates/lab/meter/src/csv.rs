//! Samples as comma-separated values: written for other tools, and read from an external analyser.
//!
//! An analyser has its own clock. Its times are read as wall-clock times, or as seconds since a start given by the
//! caller; `ahead` is how far its clock is ahead of ours (negative: behind), and is subtracted.
//!
//! Not the `csv` crate: after CR LF and after empty lines it names the line before, and no record is bounded, so lines
//! would be counted and cut here anyway. What remains of the format is [`fields`] and [`quoted`].

use super::recording::{MeterRecord, Recording, Sample, Track};
use super::{Channel, Clock, MeterError, Quantity};
use std::io::{BufRead, Read, Write};
use std::time::Duration;
use time::{Date, Month};

/// Longest line of an analyser's file.
const MOST_LINE: u64 = 64 << 10;
/// Most samples of a file: a week at 100 per second.
const MOST_SAMPLES: usize = 64 << 20;
const NANOS: i64 = 1_000_000_000;

/// How to read an analyser's file.
#[derive(Clone, Debug)]
pub struct Import {
    /// The name under which the samples are filed.
    pub name: String,
    /// Name of the time column.
    pub time: String,
    /// Names of the value columns and their quantities; each becomes a channel.
    pub values: Vec<(String, Quantity)>,
    /// Nanoseconds by which the analyser's clock is ahead of this machine's wall clock.
    pub ahead_nanos: i64,
    /// If times are seconds since the analyser's start: that start, in nanoseconds since 1970 on the analyser's clock.
    pub start_unix_nanos: Option<i64>,
}

/// Reads an analyser's samples. The first line names the columns; they are separated by commas, semicolons or tabs. A
/// time is in seconds, milliseconds, microseconds or nanoseconds since 1970 (recognised by its size), in seconds since
/// the start if that is given, or `YYYY-MM-DD HH:MM:SS[.fraction]` with or without a zone (none: UTC). An empty value
/// is absent.
pub fn import(input: impl BufRead, options: &Import, clock: Clock) -> Result<MeterRecord, MeterError> {
    let mut lines = Lines { input, number: 0 };
    let header = lines.next()?.ok_or_else(|| wrong(1, "the file is empty"))?;
    let header = header.trim_start_matches('\u{feff}');
    let separator = [',', ';', '\t'].into_iter().max_by_key(|s| fields(header, *s).len());
    let separator = separator.expect("three of them");
    let names = fields(header, separator);
    let column = |name: &str| {
        let found = names.iter().position(|known| known.eq_ignore_ascii_case(name));
        found.ok_or_else(|| wrong(1, format!("there is no column {name:?}; there are {}", names.join(", "))))
    };
    let time = column(&options.time)?;
    let columns: Vec<usize> =
        options.values.iter().map(|(name, _)| column(name)).collect::<Result<_, _>>()?;
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); columns.len()];
    let mut rows = 0usize;
    while let Some(line) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let fields = fields(&line, separator);
        let get = |index: usize| {
            fields
                .get(index)
                .copied()
                .ok_or_else(|| wrong(lines.number, format!("it has only {} columns", fields.len())))
        };
        let unix = unix_nanos(get(time)?, options.start_unix_nanos)
            .ok_or_else(|| wrong(lines.number, format!("{:?} is not a time", fields[time])))?;
        rows += 1;
        if rows > MOST_SAMPLES {
            return Err(wrong(lines.number, format!("more than {MOST_SAMPLES} samples: cut the file")));
        }
        // Samples from before this machine's clock started belong to none of its windows.
        let Some(at) = clock.moment(unix.saturating_sub(options.ahead_nanos)) else { continue };
        for (list, index) in samples.iter_mut().zip(&columns) {
            let value = value(get(*index)?, separator).map_err(|why| wrong(lines.number, why))?;
            list.push(Sample { at, value });
        }
    }
    let tracks =
        options.values.iter().zip(samples).map(|((name, quantity), samples)| track(name, *quantity, samples));
    Ok(MeterRecord {
        name: options.name.clone(),
        tracks: tracks.collect(),
        reads: rows as u64,
        ..MeterRecord::default()
    })
}

fn track(name: &str, quantity: Quantity, mut samples: Vec<Sample>) -> Track {
    samples.sort_by_key(|sample| sample.at);
    let mut gaps: Vec<Duration> = samples.windows(2).map(|pair| pair[1].at.since(pair[0].at)).collect();
    gaps.sort_unstable();
    Track {
        channel: Channel::measured(name, quantity, "what the external analyser was wired to"),
        interval: gaps.get(gaps.len() / 2).copied().unwrap_or_default(),
        samples,
    }
}

fn wrong(line: u64, why: impl Into<String>) -> MeterError {
    MeterError::Import { line, why: why.into() }
}

struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<String>, MeterError> {
        self.number += 1;
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(MOST_LINE).read_until(b'\n', &mut bytes);
        let length = read.map_err(|error| wrong(self.number, format!("it cannot be read: {error}")))?;
        if length as u64 == MOST_LINE && !bytes.ends_with(b"\n") {
            return Err(wrong(self.number, "it is longer than 64 KiB: this is not a file of samples"));
        }
        let text = String::from_utf8_lossy(&bytes);
        Ok((length > 0).then(|| text.trim_end_matches(['\n', '\r']).to_string()))
    }
}

/// A separator between quotes does not separate. Quotes within a field are text: `5" disk`.
fn fields(line: &str, separator: char) -> Vec<&str> {
    let (mut quoted, mut may_open) = (false, true);
    let split = line.split(|c: char| {
        let ends = c == separator && !quoted;
        quoted ^= c == '"' && (quoted || may_open);
        // After a quote: a doubled one goes on.
        may_open = ends || c == '"' || (may_open && c == ' ');
        ends
    });
    split.map(|field| field.trim().trim_matches('"').trim()).collect()
}

/// `None`: an empty field, or one that marks a missing value.
fn value(text: &str, separator: char) -> Result<Option<f64>, String> {
    if text.is_empty()
        || ["nan", "n/a", "na", "-", "null", "overflow"].contains(&text.to_ascii_lowercase().as_str())
    {
        return Ok(None);
    }
    // With semicolons between columns the decimal separator is often a comma.
    let decimal = if separator == ';' { text.replace(',', ".") } else { text.to_string() };
    let number = decimal.parse::<f64>().ok().filter(|number| number.is_finite());
    number.map(Some).ok_or_else(|| format!("{text:?} is not a number"))
}

/// A wall-clock time in one of the formats of [`import`], in nanoseconds since 1970. `None`: not a time.
pub fn parse_unix_nanos(text: &str) -> Option<i64> {
    unix_nanos(text, None)
}

/// Nanoseconds since 1970 on the analyser's clock.
fn unix_nanos(text: &str, start: Option<i64>) -> Option<i64> {
    let Some(number) = decimal_nanos(text) else { return calendar_nanos(text) };
    match start {
        Some(start) => start.checked_add(i64::try_from(number).ok()?),
        // A number of seconds since 1970 has ten digits for centuries, and each finer unit three more.
        None => {
            let seconds = number / i128::from(NANOS);
            let finer = [100_000_000_000, 100_000_000_000_000, 100_000_000_000_000_000i128];
            let unit = 1_000i128.pow(finer.iter().filter(|limit| seconds >= **limit).count() as u32);
            i64::try_from(number / unit).ok()
        }
    }
}

/// A decimal number times 10^9, exactly: a double has too few digits for nanoseconds since 1970.
fn decimal_nanos(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 20 || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some(sign * (whole.parse::<i128>().ok()? * i128::from(NANOS) + fraction.parse::<i128>().ok()?))
}

/// `2026-11-21T23:59:59.5Z`, `2026-11-21 23:59:59+01:00`
fn calendar_nanos(text: &str) -> Option<i64> {
    if !text.is_ascii() || text.len() < 19 {
        return None;
    }
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().ok();
    let bytes = text.as_bytes();
    let marks = [(4, b"-/"), (7, b"-/"), (10, b"T "), (13, b"::"), (16, b"::")];
    if marks.iter().any(|(at, allowed)| !allowed.contains(&bytes[*at])) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute) = (number(11..13)?, number(14..16)?);
    let rest = &text[17..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let seconds = i64::try_from(decimal_nanos(&rest[..end])?).ok()?;
    let zone = match rest[end..].trim() {
        "" | "Z" | "z" | "UTC" => 0,
        zone => {
            let sign = match zone.get(..1)? {
                "+" => 1,
                "-" => -1,
                _ => return None,
            };
            let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
            let (hours, minutes) =
                (digits.get(..2)?, digits.get(2..).filter(|m| !m.is_empty()).unwrap_or("00"));
            sign * (hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?)
        }
    };
    let valid = (1970..2262).contains(&year)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..61 * NANOS).contains(&seconds);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    let minutes = date.midnight().assume_utc().unix_timestamp() / 60 + hour * 60 + minute - zone;
    valid.then(|| minutes.checked_mul(60 * NANOS)?.checked_add(seconds)).flatten()
}

/// Writes every sample: `unix_seconds,seconds,meter,channel,quantity,unit,source,value`, an absent value empty.
/// `seconds` is on the clock of the samples.
pub fn export(recording: &Recording, mut out: impl Write) -> Result<(), MeterError> {
    let failed = |source| MeterError::Export { source };
    writeln!(out, "unix_seconds,seconds,meter,channel,quantity,unit,source,value").map_err(failed)?;
    for meter in &recording.meters {
        for track in &meter.tracks {
            let Channel { name, quantity, source, .. } = &track.channel;
            let source = source.name();
            let (meter, name) = (quoted(&meter.name), quoted(name));
            for sample in &track.samples {
                let unix = recording.clock.unix_nanos(sample.at);
                let (whole, part) = (unix.div_euclid(NANOS), unix.rem_euclid(NANOS));
                let (seconds, nanos) = (sample.at.0 / NANOS as u64, sample.at.0 % NANOS as u64);
                let value = sample.value.map(|v| v.to_string()).unwrap_or_default();
                let (what, unit) = (quantity.name(), quantity.unit());
                writeln!(
                    out,
                    "{whole}.{part:09},{seconds}.{nanos:09},{meter},{name},{what},{unit},{source},{value}"
                )
                .map_err(failed)?;
            }
        }
    }
    out.flush().map_err(failed)
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    #[test]
    fn made_up_files_are_refused_or_read() {
        let samples: [&[u8]; 3] = [
            b"time,W,C\n1700000000,10.5,40\n1700000001,,41\n",
            b"time;W;C\n2024-02-29 23:59:59.5+01:00;1,5;2\n",
            b"time\tW\tC\n0.5\t1\t2\n1.5\t2\t3\n",
        ];
        ebb_testing::fuzz(&samples, |bytes| {
            for start_unix_nanos in [None, Some(7)] {
                let options = Import {
                    name: "a".into(),
                    time: "time".into(),
                    values: vec![("W".into(), Quantity::Power), ("C".into(), Quantity::Temperature)],
                    ahead_nanos: -3,
                    start_unix_nanos,
                };
                let _ = import(bytes, &options, Clock { unix_nanos_at_zero: 0 });
            }
        });
    }
    use ebb_types::{Joules, Moment};

    const T0: i64 = 1_795_305_599; // 2026-11-21T23:59:59Z

    fn clock() -> Clock {
        Clock { unix_nanos_at_zero: (T0 - 100) * NANOS }
    }

    fn options() -> Import {
        Import {
            name: "analyser".into(),
            time: "Time".into(),
            values: vec![("Power".into(), Quantity::Power)],
            ahead_nanos: 0,
            start_unix_nanos: None,
        }
    }

    fn at(seconds: f64) -> Moment {
        Moment((seconds * 1e9) as u64)
    }

    #[test]
    fn every_way_to_write_a_time_is_the_same_time() {
        let expected = Some(T0 * NANOS + 500_000_000);
        for text in [
            "1795305599.5",
            "1795305599500",
            "1795305599500000",
            "1795305599500000000",
            "2026-11-21T23:59:59.5Z",
            "2026-11-21 23:59:59.500",
            "2026/11/22 00:59:59.5+01:00",
            "2026-11-21T21:29:59.5-0230",
        ] {
            assert_eq!(unix_nanos(text, None), expected, "{text}");
        }
        assert_eq!(unix_nanos("2.25", Some(7)), Some(2_250_000_007));
        assert_eq!(unix_nanos("1970-01-01T00:00:00", None), Some(0));
        assert_eq!(unix_nanos("2000-02-29T00:00:00", None), Some(951_782_400 * NANOS));
        for text in [
            "",
            "noon",
            "2026-13-01T00:00:00",
            "2026-11-21",
            "9e99",
            "2026-11-21T23:59:59.5+x",
            "é".repeat(20).as_str(),
        ] {
            assert_eq!(unix_nanos(text, None), None, "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_ahead_is_set_back() {
        let text = format!("Time,Power\n{},10\n{},20\n{},30\n", T0 + 3, T0 + 4, T0 + 5);
        let options = Import { ahead_nanos: 3 * NANOS, ..options() };
        let record = import(text.as_bytes(), &options, clock()).unwrap();
        assert_eq!(record.tracks[0].interval, Duration::from_secs(1));
        let figures = &record.figures(at(100.0), at(102.0))[0];
        assert_eq!((figures.energy, figures.coverage), (Some(Joules(40.0)), 1.0));
        let figures = &record.figures(at(101.5), at(103.5))[0];
        assert_eq!((figures.energy, figures.coverage), (Some(Joules(13.75)), 0.25));
    }

    #[test]
    fn semicolons_commas_as_points_and_empty_values() {
        let text = "\u{feff}\"time\";U;\"Power\"\r\n0,0;230,1;\"41,5\"\r\n1;230;\r\n\r\n2;230;n/a\r\n";
        let error = import(text.as_bytes(), &options(), clock()).unwrap_err();
        assert!(error.to_string().contains("line 2") && error.to_string().contains("\"0,0\""), "{error}");
        let text = text.replace("0,0", "0.0");
        let options = Import { start_unix_nanos: Some(T0 * NANOS), ..options() };
        let record = import(text.as_bytes(), &options, clock()).unwrap();
        let values: Vec<_> = record.tracks[0].samples.iter().map(|s| (s.at, s.value)).collect();
        assert_eq!(values, [(at(100.0), Some(41.5)), (at(101.0), None), (at(102.0), None)]);
    }

    #[test]
    fn a_separator_between_quotes_is_text() {
        let row = r#"7, "a, b" ,"say ""x, y""",5" disk,"""#;
        assert_eq!(fields(row, ','), ["7", "a, b", r#"say ""x, y"#, "5\" disk", ""]);
        let text = format!("Note,Time,Power\n\"on, idle\",{T0},41\n");
        let record = import(text.as_bytes(), &options(), clock()).unwrap();
        assert_eq!(record.tracks[0].samples, [Sample { at: at(100.0), value: Some(41.0) }]);
    }

    #[test]
    fn bad_files_are_named_by_line() {
        let error = |text: &str| import(text.as_bytes(), &options(), clock()).unwrap_err().to_string();
        assert!(error("").contains("line 1") && error("").contains("empty"));
        assert!(error("Time,Watts\n").contains("no column \"Power\"; there are Time, Watts"));
        assert!(error("Time,Power\n1795305599,much\n").contains("line 2 of the samples: \"much\""));
        assert!(error("Time,Power\n1795305599\n").contains("only 1 columns"));
        assert!(error(&"x".repeat(70_000)).contains("64 KiB"));
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let channel = Channel {
            name: "psu, left".into(),
            quantity: Quantity::Power,
            source: Source::Modelled,
            part_of: None,
            sees: String::new(),
        };
        let sample = |seconds: f64, value| Sample { at: at(seconds), value };
        let samples = vec![sample(100.5, Some(1.0)), sample(101.5, None), sample(102.5, Some(0.1))];
        let track = Track { channel, interval: Duration::from_secs(1), samples: samples.clone() };
        let record = MeterRecord {
            name: "m".into(),
            tracks: vec![track],
            reads: 3,
            failed_reads: 0,
            last_failure: None,
            why_absent: None,
            slowest_read: Duration::ZERO,
        };
        let mut out = Vec::new();
        export(&Recording { clock: clock(), meters: vec![record] }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = "1795305599.500000000,100.500000000,m,\"psu, left\",power,W,modelled,1";
        assert_eq!(text.lines().nth(1), Some(line));
        let text = text.replace("psu, left", "psu");
        let options = Import {
            time: "unix_seconds".into(),
            values: vec![("value".into(), Quantity::Power)],
            ..options()
        };
        let again = import(text.as_bytes(), &options, clock()).unwrap();
        assert_eq!(again.tracks[0].samples, samples);
    }
}
