//! Formats by name and by content, and opening of inputs.
//!
//! Content decides first: a magic number or the shape of the first line is more reliable than a file's name. The name
//! decides between formats that look alike, and if there is no content to check.

use crate::format::Format;
use crate::plausible::plausible;
use crate::reader::{Decode, Devices, Lane, Line, Reader};
use crate::source::{Source, Stream};
use crate::table::Table;
use crate::unit::{Unit, defined};
use crate::{Columns, TraceError, TraceReader, ascii, blktrace, btrecord, csv, fio, srt, vscsi};
use std::io::Read;
use std::str::FromStr;

impl Format {
    fn of_content(head: &[u8]) -> Option<Self> {
        match head {
            _ if blktrace::detect(head) => return Some(Self::Blktrace),
            _ if btrecord::detect(head) => return Some(Self::Btrecord),
            _ if head.starts_with(srt::MAGIC) => return Some(Self::Srt),
            _ if head.starts_with(fio::MAGIC) => return Some(Self::Fio),
            _ if vscsi::detect(head) => return Some(Self::Vscsi),
            _ => {}
        }
        let line = head.split(|&b| b == b'\n').find(|line| !line.trim_ascii().is_empty())?;
        Self::of_commas(line).or_else(|| Self::of_blanks(line))
    }

    fn of_commas(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let operation =
            |at: usize, word: bool| csv::kind(fields[at]).is_ok() && (fields[at].len() > 1) == word;
        let numeric = |at: usize| !fields[at].is_empty() && fields[at].iter().all(u8::is_ascii_digit);
        match fields.len() {
            6.. if operation(3, true) || fields[0].eq_ignore_ascii_case(b"timestamp") => Some(Self::Msr),
            5.. if operation(3, false) => Some(Self::Spc),
            5 if operation(1, false) => Some(Self::Alibaba),
            5 if (0..5).all(numeric) && matches!(fields[3], b"0" | b"1") => Some(Self::Tencent),
            _ => None,
        }
    }

    fn of_blanks(line: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let number = |word: &&[u8]| word.iter().all(|b| b.is_ascii_hexdigit() || matches!(b, b'.' | b'x'));
        match words.len() {
            7.. if words[0].contains(&b',') && words[3].contains(&b'.') => Some(Self::Blkparse),
            8.. if csv::kind(words[5]).is_ok() && words[5].len() == 1 => Some(Self::Fiu),
            5 if words.iter().all(number) && words[0].contains(&b'.') => Some(Self::DiskSim),
            5 if words.iter().all(number) => Some(Self::SsdSim),
            _ => None,
        }
    }

    /// The format of an input by content and name.
    fn of(head: &[u8], name: &str) -> Option<Self> {
        let (content, named) = (Self::of_content(head), Self::of_name(name));
        match (content, named) {
            // Whole milliseconds and nanoseconds look alike.
            (Some(Self::SsdSim), Some(Self::DiskSim)) => named,
            _ => content.or(named),
        }
    }
}

impl FromStr for Format {
    type Err = TraceError;
    fn from_str(name: &str) -> Result<Self, TraceError> {
        let found = Format::all().find(|format| format.to_string().eq_ignore_ascii_case(name));
        found.ok_or_else(|| TraceError::NoSuchFormat { name: name.into() })
    }
}

/// A named stream of bytes, optionally compressed.
pub struct Input {
    pub name: String,
    pub read: Box<dyn Read + Send>,
}

/// How to read a trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; `None`: detected by content and name.
    pub format: Option<Format>,
    /// Bad lines or records to skip and count before the next one ends the trace with an error.
    pub skip_bad: u64,
    /// What positions and sizes count; `None`: what the format says, and a trace that looks otherwise is refused.
    pub unit: Option<Unit>,
    /// The columns of a table in no known layout.
    pub columns: Option<Columns>,
}

/// Opens one trace; its format is detected by content and name.
pub fn open(name: &str, read: impl Read + Send + 'static) -> Result<Box<dyn TraceReader>, TraceError> {
    open_with(vec![Input { name: name.into(), read: Box::new(read) }], &Options::default())
}

/// Opens inputs of one format and merges them by their absolute times: the files of a blktrace capture, one per CPU, or
/// the volumes of a server in one file each. The format is detected from the inputs unless `options` names it.
pub fn open_with(inputs: Vec<Input>, options: &Options) -> Result<Box<dyn TraceReader>, TraceError> {
    let mut sources = Vec::new();
    for Input { name, read } in inputs {
        match Source::new(read as Stream) {
            Ok(source) => sources.push((name, source)),
            Err(error) => return Err(TraceError::Io { input: name, error }),
        }
    }
    let Some((first, _)) = sources.first() else { return Err(TraceError::NoInput) };
    let first = first.clone();
    let format = match (options.format, &options.columns) {
        (None, Some(_)) => Format::Csv,
        (Some(format), _) => format,
        (None, None) => detect(&mut sources)?.ok_or_else(|| TraceError::Unknown { input: first.clone() })?,
    };
    let unit = match (options.unit, defined(format)) {
        (None, _) => {
            look(format, &mut sources)?;
            None
        }
        (Some(said), Some(defined)) => Some((defined, said)),
        (Some(_), None) => return Err(TraceError::Unit { input: first, format }),
    };
    let given = (unit, options.skip_bad);
    Ok(match format {
        Format::Blktrace => reader(format, sources, given, |_| blktrace::Blktrace),
        Format::Btrecord => reader(format, sources, given, btrecord::Btrecord::new),
        Format::Blkparse => reader(format, sources, given, |_| ascii::Blkparse::default()),
        Format::Spc => lines(format, sources, given, csv::spc),
        Format::Msr => lines(format, sources, given, csv::msr),
        Format::Srt => reader(format, sources, given, |_| srt::Srt::default()),
        Format::Fio => reader(format, sources, given, |_| fio::Fio::default()),
        Format::Alibaba => lines(format, sources, given, csv::alibaba),
        Format::Tencent => reader(format, sources, given, |_| csv::Tencent::default()),
        Format::Vscsi => reader(format, sources, given, vscsi::Vscsi::new),
        Format::Fiu => lines(format, sources, given, ascii::fiu),
        Format::SsdSim => lines(format, sources, given, ascii::ssdsim),
        Format::DiskSim => lines(format, sources, given, ascii::disksim),
        Format::Csv => {
            let columns = options.columns.clone().ok_or(TraceError::NoColumns { input: first })?;
            reader(format, sources, given, move |_| Table::new(columns.clone()))
        }
    })
}

/// Looks at the first lines of a text trace: do they count what the format says?
fn look(format: Format, sources: &mut [(String, Source)]) -> Result<(), TraceError> {
    let line: Line = match format {
        Format::Spc => csv::spc,
        Format::Msr => csv::msr,
        Format::Alibaba => csv::alibaba,
        Format::Tencent => csv::tencent,
        Format::Fiu => ascii::fiu,
        Format::SsdSim => ascii::ssdsim,
        Format::DiskSim => ascii::disksim,
        _ => return Ok(()),
    };
    for (name, source) in sources {
        let head = source.peek(HEAD).map_err(|error| TraceError::Io { input: name.clone(), error })?;
        let whole = head.iter().rposition(|&b| b == b'\n').unwrap_or(0);
        let lines = head[..whole].split(|&b| b == b'\n');
        let mut devices = Devices::default();
        let first: Vec<_> = lines.filter_map(|text| line(text, &mut devices).ok().flatten()).collect();
        plausible(name, format, &first)?;
    }
    Ok(())
}

/// The format of the first input that shows one: an idle CPU leaves an empty file.
fn detect(sources: &mut [(String, Source)]) -> Result<Option<Format>, TraceError> {
    for (name, source) in sources.iter_mut() {
        let head = source.peek(HEAD).map_err(|error| TraceError::Io { input: name.clone(), error })?;
        if let Some(format) = Format::of(&head[..head.len().min(HEAD)], name) {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

/// Bytes of content that are examined.
const HEAD: usize = 4096;

/// What the numbers count, if they do not count what the format says; and bad records to skip.
type Given = (Option<([Unit; 2], Unit)>, u64);

fn lines(format: Format, sources: Vec<(String, Source)>, given: Given, line: Line) -> Box<dyn TraceReader> {
    reader(format, sources, given, |_| line)
}

fn reader<D: Decode + 'static>(
    format: Format,
    sources: Vec<(String, Source)>,
    (unit, skip): Given,
    decode: impl Fn(&str) -> D,
) -> Box<dyn TraceReader> {
    let lanes = sources.into_iter().map(|(name, source)| {
        let decode = decode(&name);
        Lane::new(name, source, decode)
    });
    Box::new(Reader::new(format, lanes.collect(), unit, skip))
}
