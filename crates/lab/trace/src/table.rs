//! Traces as tables: any separated columns, whose meaning is given to the reader.
//!
//! The layouts that Ebb knows cover what is published. A log of one's own has its columns in another order, or more of
//! them.

use crate::Reason;
use crate::csv::kind;
use crate::number::{decimal, integer};
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use std::fmt;
use std::str::FromStr;

/// A column, by its number or its title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// Counting from zero.
    At(usize),
    Titled(String),
}

impl FromStr for Column {
    type Err = String;
    fn from_str(text: &str) -> Result<Column, String> {
        match text.trim() {
            "" => Err("a column has a number, counted from 1, or a title".into()),
            text => match text.parse::<usize>() {
                Ok(0) => Err("columns are counted from 1".into()),
                Ok(number) => Ok(Column::At(number - 1)),
                Err(_) => Ok(Column::Titled(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Column::At(index) => write!(f, "{}", index + 1),
            Column::Titled(title) => f.write_str(title),
        }
    }
}

impl Column {
    /// Its index in a table with these titles. Titles are compared without regard to case.
    pub fn place<'a>(&self, mut titles: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
        match self {
            Column::At(index) => Some(*index),
            Column::Titled(title) => titles.position(|cell| cell.eq_ignore_ascii_case(title.as_bytes())),
        }
    }
}

/// The columns of a trace: `time=1,offset=3,size=4,op=2,device=5`, by number or title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Time, position, size, operation, device; of the last one there may be none.
    fields: [Option<Column>; 5],
    /// Nanoseconds are the time's numbers times ten to this power.
    shift: u32,
}

const TIME: usize = 0;
const OFFSET: usize = 1;
const SIZE: usize = 2;
const OPERATION: usize = 3;
const DEVICE: usize = 4;
const NAMES: [&str; 5] = ["time", "offset", "size", "op", "device"];
/// Names of the time's column by its unit; seconds may have a fraction.
const TIMES: [(&str, u32); 4] = [("time", 9), ("time-ms", 6), ("time-us", 3), ("time-ns", 0)];

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Columns, String> {
        let mut columns = Columns { fields: Default::default(), shift: 9 };
        for part in text.split(',') {
            let (name, column) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} names no column: write it like size=4 or size=bytes"))?;
            let name = name.trim();
            let time = TIMES.iter().find(|(time, _)| *time == name);
            let field = match time {
                Some(_) => Some(TIME),
                None => NAMES.iter().position(|known| *known == name),
            };
            let field = field.ok_or_else(|| {
                format!("{name:?} is not a field: use time (or time-ms, time-us, time-ns), offset, size, op, device")
            })?;
            if columns.fields[field].replace(column.parse()?).is_some() {
                return Err(format!("{} has two columns", NAMES[field]));
            }
            columns.shift = time.map_or(columns.shift, |(_, shift)| *shift);
        }
        match (0..DEVICE).find(|field| columns.fields[*field].is_none()) {
            Some(field) => Err(format!("the column of {} is missing: give {0}=COLUMN too", NAMES[field])),
            None => Ok(columns),
        }
    }
}

/// The cells of a line, without blanks and quotes around them.
pub(crate) fn cells(line: &[u8], separator: Option<u8>) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line.trim_ascii());
    std::iter::from_fn(move || {
        let text = rest?;
        let end = match separator {
            Some(separator) => end_of_cell(text, separator),
            None => text.iter().position(u8::is_ascii_whitespace),
        };
        let cell = &text[..end.unwrap_or(text.len())];
        rest = end.map(|end| &text[end + 1..]);
        if separator.is_none() {
            rest = rest.map(<[u8]>::trim_ascii_start);
        }
        let cell = cell.trim_ascii();
        Some(cell.strip_prefix(b"\"").and_then(|cell| cell.strip_suffix(b"\"")).unwrap_or(cell))
    })
}

/// A separator between quotes does not separate.
fn end_of_cell(text: &[u8], separator: u8) -> Option<usize> {
    let opened = text.trim_ascii_start().strip_prefix(b"\"");
    let closed = opened.and_then(|cell| Some(&cell[cell.iter().position(|&b| b == b'"')? + 1..]));
    let from = closed.map_or(0, |behind| text.len() - behind.len());
    text[from..].iter().position(|&b| b == separator).map(|end| from + end)
}

/// What separates the cells of a line; `None`: blanks.
pub(crate) fn separator(line: &[u8]) -> Option<u8> {
    [b',', b';', b'\t'].into_iter().find(|separator| line.contains(separator))
}

/// One input: where its columns are, once its first line has been seen.
pub(crate) struct Table {
    columns: Columns,
    found: Option<Found>,
}

#[derive(Clone, Copy)]
struct Found {
    separator: Option<u8>,
    /// Of each field; a device that is not there is beyond every line.
    places: [usize; 5],
}

impl Table {
    pub(crate) fn new(columns: Columns) -> Self {
        Self { columns, found: None }
    }

    /// From the first line: where the columns are, and whether the line holds titles.
    fn look(&self, line: &[u8]) -> Result<(Found, bool), Reason> {
        let separator = separator(line);
        let mut places = [usize::MAX; 5];
        for (place, column) in places.iter_mut().zip(&self.columns.fields) {
            let Some(column) = column else { continue };
            let found = column.place(cells(line, separator));
            *place = found.ok_or_else(|| Reason::Column(column.to_string()))?;
        }
        let named = self.columns.fields.iter().flatten().any(|column| matches!(column, Column::Titled(_)));
        let time = cells(line, separator).nth(places[TIME]).unwrap_or_default();
        Ok((Found { separator, places }, named || decimal(time, 0, "time").is_err()))
    }

    fn raw(&self, found: Found, line: &[u8], devices: &mut Devices) -> Result<Raw, Reason> {
        let mut fields = [None; 5];
        let mut count = 0;
        for cell in cells(line, found.separator) {
            for (field, _) in fields.iter_mut().zip(found.places).filter(|(_, place)| *place == count) {
                *field = Some(cell);
            }
            count += 1;
        }
        let need = found.places.iter().filter(|place| **place != usize::MAX).max().map_or(0, |most| most + 1);
        let field = |at: usize| fields[at].ok_or(Reason::Fields { found: count, need });
        Ok(Raw {
            time: decimal(field(TIME)?, self.columns.shift, "time")?,
            offset: integer(field(OFFSET)?, "offset")?,
            len: integer(field(SIZE)?, "size")?,
            kind: kind(field(OPERATION)?)?,
            device: devices.named(fields[DEVICE].unwrap_or(b"0"))?,
        })
    }
}

impl Decode for Table {
    const TEXT: bool = true;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        loop {
            let Some(line) = source.line()? else { return Ok(None) };
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let found = match self.found {
                Some(found) => found,
                None => {
                    let (found, titles) = self.look(line).map_err(Fault::Fatal)?;
                    self.found = Some(found);
                    if titles {
                        continue;
                    }
                    found
                }
            };
            return Ok(Some(self.raw(found, line, devices)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Input, Kind, Options, Position, Request, TraceError, open_with};
    use std::time::Duration;

    fn read(text: &'static str, columns: &str) -> Result<Vec<Request>, TraceError> {
        let options = Options { columns: Some(columns.parse().unwrap()), ..Options::default() };
        open_with(vec![Input { name: "t".into(), read: Box::new(text.as_bytes()) }], &options)?.collect()
    }

    #[test]
    fn columns_are_found_by_number_and_by_title() {
        let text = "id;Stamp;what;\"pos\";bytes;user\n7;1500;Read;4096;512;x\n8;2500;w;0;1024;y\n";
        for columns in
            ["time-ms=2,op=3,offset=4,size=5,device=1", "time-ms=stamp,op=WHAT,offset=pos,size=5,device=id"]
        {
            let requests = read(text, columns).unwrap();
            let first = Request { at: Duration::ZERO, device: 0, offset: 4096, len: 512, kind: Kind::Read };
            assert_eq!(requests[0], first, "{columns}");
            assert_eq!(requests[1].at, Duration::from_secs(1), "{columns}");
            assert_eq!((requests[1].device, requests[1].kind, requests[1].len), (1, Kind::Write, 1024));
        }
    }

    #[test]
    fn a_separator_between_quotes_shifts_no_column() {
        let columns = "time=1,device=2,op=3,offset=4,size=5";
        let requests = read("0,\"vm 7, disk\",R,4096,512\n1, \"a\" ,W,0,1024\n", columns).unwrap();
        assert_eq!((requests[0].offset, requests[0].len), (4096, 512));
        assert_eq!((requests[1].kind, requests[1].len), (Kind::Write, 1024));
        let error = read("0,a,R,4096,\"1,024\"\n", columns).unwrap_err();
        let TraceError::Bad { reason, .. } = error else { panic!("{error}") };
        assert_eq!(reason, Reason::Number { field: "size" });
    }

    #[test]
    fn blanks_separate_too_and_a_table_without_titles_loses_no_line() {
        let requests = read("0.5  R 0 4096\n0.75 W 8 4096\n", "time=1,op=2,offset=3,size=4").unwrap();
        assert_eq!((requests.len(), requests[1].at), (2, Duration::from_millis(250)));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = read("a,b\n1,2\n", "time=1,op=2,offset=where,size=2").unwrap_err().to_string();
        assert!(error.contains("\"where\""), "{error}");
        let error = read("1,R,0,8\n2,R,0\n", "time=1,op=2,offset=3,size=4").unwrap_err();
        let TraceError::Bad { at, reason, .. } = error else { panic!("{error}") };
        assert_eq!((at, reason), (Position::Line(2), Reason::Fields { found: 3, need: 4 }));
        for (wrong, why) in [
            ("time=1,op=2,offset=3", "size is missing"),
            ("time=1,time-ms=2,op=3,offset=4,size=5", "two columns"),
            ("when=1", "not a field"),
            ("time", "names no column"),
            ("time=0", "counted from 1"),
        ] {
            let error = wrong.parse::<Columns>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
