//! Formats by name and by content, and opening inputs.
//!
//! Content decides first: a magic number or the shape of the first line is harder to get wrong than a file's name. The
//! name decides between formats that look alike, and where there is nothing to look at.

use crate::reader::{Decode, Lane, Line, Reader};
use crate::source::{Source, Stream};
use crate::{TraceError, TraceReader, csv, srt};
use std::fmt;
use std::io::Read;
use std::str::FromStr;

/// A trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Storage Performance Council: `ASU,LBA,size,op,timestamp`.
    Spc,
    /// Microsoft Research Cambridge: `Timestamp,Host,Disk,Type,Offset,Size,ResponseTime`.
    Msr,
    /// HP SRT 1.3 and 1.7.
    Srt,
}

/// Every format with its name and the endings of file names that suggest it.
const FORMATS: &[(Format, &str, &[&str])] =
    &[(Format::Spc, "spc", &["spc"]), (Format::Msr, "msr", &["csv"]), (Format::Srt, "srt", &["srt"])];

impl Format {
    /// The names of all formats, separated by commas.
    pub fn names() -> String {
        FORMATS.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    /// The format that a file's name suggests; the endings of compressed files are passed over.
    fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let bare = ["gz", "xz", "bz2", "zst"]
            .iter()
            .find_map(|packed| lower.strip_suffix(packed).and_then(|n| n.strip_suffix('.')))
            .unwrap_or(&lower);
        let ending = bare.rsplit('.').next()?;
        FORMATS.iter().find(|(_, _, endings)| endings.contains(&ending)).map(|(format, _, _)| *format)
    }

    fn of_content(head: &[u8]) -> Option<Self> {
        if head.starts_with(srt::MAGIC) {
            return Some(Self::Srt);
        }
        let line = head.split(|&b| b == b'\n').find(|line| !line.trim_ascii().is_empty())?;
        let commas: Vec<&[u8]> = line.split(|&b| b == b',').map(<[u8]>::trim_ascii).collect();
        let operation = |field: usize| commas.get(field).is_some_and(|f| csv::kind(f).is_ok());
        match commas.len() {
            6.. if operation(3) && commas[3].len() > 1 => Some(Self::Msr),
            5.. if operation(3) && commas[3].len() == 1 => Some(Self::Spc),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, _) =
            FORMATS.iter().find(|(format, _, _)| format == self).expect("every format has a name");
        f.write_str(name)
    }
}

impl FromStr for Format {
    type Err = TraceError;
    fn from_str(name: &str) -> Result<Self, TraceError> {
        let found = FORMATS.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(format, _, _)| *format).ok_or_else(|| TraceError::NoSuchFormat { name: name.into() })
    }
}

/// A named stream of bytes, compressed or not.
pub struct Input {
    pub name: String,
    pub read: Box<dyn Read + Send>,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The format, where it shall not be found by content and name.
    pub format: Option<Format>,
    /// Bad lines or records to skip and count before the next one ends the trace with an error.
    pub skip_bad: u64,
}

/// Opens one trace, its format found by content and name.
pub fn open(name: &str, read: impl Read + Send + 'static) -> Result<Box<dyn TraceReader>, TraceError> {
    open_with(vec![Input { name: name.into(), read: Box::new(read) }], &Options::default())
}

/// Opens inputs of one format and merges them by their absolute times: the files of a blktrace capture, one per CPU, or the
/// volumes of a server in one file each. The format is found from the first input unless `options` names it.
pub fn open_with(inputs: Vec<Input>, options: &Options) -> Result<Box<dyn TraceReader>, TraceError> {
    let mut sources = Vec::new();
    for Input { name, read } in inputs {
        match Source::new(read as Stream) {
            Ok(source) => sources.push((name, source)),
            Err(error) => return Err(TraceError::Io { input: name, error }),
        }
    }
    let Some((name, first)) = sources.first_mut() else { return Err(TraceError::NoInput) };
    let format = match options.format {
        Some(format) => format,
        None => {
            let head = first.peek(4096).map_err(|error| TraceError::Io { input: name.clone(), error })?;
            Format::of_content(&head[..head.len().min(4096)])
                .or_else(|| Format::of_name(name))
                .ok_or_else(|| TraceError::Unknown { input: name.clone() })?
        }
    };
    let skip = options.skip_bad;
    Ok(match format {
        Format::Spc => lines(format, sources, skip, csv::spc),
        Format::Msr => lines(format, sources, skip, csv::msr),
        Format::Srt => reader(format, sources, skip, |_| srt::Srt::default()),
    })
}

fn lines(format: Format, sources: Vec<(String, Source)>, skip: u64, line: Line) -> Box<dyn TraceReader> {
    reader(format, sources, skip, |_| line)
}

fn reader<D: Decode + 'static>(
    format: Format,
    sources: Vec<(String, Source)>,
    skip: u64,
    decode: impl Fn(&str) -> D,
) -> Box<dyn TraceReader> {
    let lanes = sources.into_iter().map(|(name, source)| {
        let decode = decode(&name);
        Lane::new(name, source, decode)
    });
    Box::new(Reader::new(format, lanes.collect(), skip))
}
