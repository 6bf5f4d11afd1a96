//! What all formats share: inputs merged by time, devices numbered, times made relative, bad records counted.
//!
//! A format is a [`Decode`]: it turns the next line or record of a source into one raw request with an absolute time.
//! Everything else is done once, here, so that every format treats damaged input alike:
//! - the first request is at time zero;
//! - a time before its predecessor's is raised to it, and counted (sorting would need memory in the trace's length);
//! - a bad line or record ends the trace with an error that names its place, unless it is among the first `skip_bad`;
//! - after an error the reader ends.

use crate::source::{Short, Source};
use crate::unit::{Unit, converted};
use crate::{Format, Kind, Request};
use ebb_types::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::io;
use std::time::Duration;

/// A stream of requests in time order, and what is known about it so far.
pub trait TraceReader: Iterator<Item = Result<Request, TraceError>> + Send {
    /// The format being read; `None` for a synthetic trace.
    fn format(&self) -> Option<Format> {
        None
    }
    /// The trace's own names of the devices seen so far, numbered in order of appearance.
    fn devices(&self) -> &[String];
    /// Bad lines or records skipped so far.
    fn skipped(&self) -> u64 {
        0
    }
    /// Requests so far whose time was before their predecessor's and was raised to it.
    fn backwards(&self) -> u64 {
        0
    }
    /// Requests so far that move no data, such as a trim or a sync: they are left out.
    fn left_out(&self) -> u64 {
        0
    }
}

impl<R: TraceReader + ?Sized> TraceReader for Box<R> {
    fn format(&self) -> Option<Format> {
        (**self).format()
    }
    fn devices(&self) -> &[String] {
        (**self).devices()
    }
    fn skipped(&self) -> u64 {
        (**self).skipped()
    }
    fn backwards(&self) -> u64 {
        (**self).backwards()
    }
    fn left_out(&self) -> u64 {
        (**self).left_out()
    }
}

/// A position in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Line number, counting from one.
    Line(u64),
    /// Offset of the record's first byte, after decompression.
    Byte(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// What is wrong with a line or record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("{found} fields where {need} are needed")]
    Fields { found: usize, need: usize },
    #[error("the {field} is not a number")]
    Number { field: &'static str },
    #[error("the {field} is too large")]
    Overflow { field: &'static str },
    #[error("the operation is neither a read nor a write")]
    Operation,
    #[error("the input ends after {have} of a record's {need} bytes")]
    Truncated { have: usize, need: usize },
    #[error("the record does not begin as records of this format do")]
    Magic,
    #[error("version {found} of the format is not known; known: {known}")]
    Version { found: String, known: &'static str },
    #[error("a line of more than 65536 bytes: this is not a text trace")]
    LongLine,
    #[error("more than {0} devices: the fields are probably in another order")]
    Devices(usize),
    #[error("device names of more than {0} bytes in all: the fields are probably in another order")]
    Names(usize),
    #[error("the {0} is missing or malformed")]
    Header(&'static str),
    #[error("no column is called {0:?}")]
    Column(String),
}

/// Reading a trace failed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{input}: cannot read: {error}; a compressed trace may be cut short")]
    Io { input: String, error: io::Error },
    #[error("{input}: the format is not recognised by name or content; name it, one of: {}", Format::names())]
    Unknown { input: String },
    #[error("no format is called {name:?}; known: {}", Format::names())]
    NoSuchFormat { name: String },
    #[error("there is no input to read")]
    NoInput,
    #[error("{input}: csv is any table: name its columns")]
    NoColumns { input: String },
    #[error("{input}: what {format} counts is known; leave the unit out")]
    Unit { input: String, format: Format },
    #[error(
        "{input}: positions and sizes as {format} has them make its first {count} requests {} on average{}, which hardly any are: say \
         whether this trace counts sectors or bytes",
        Bytes(*.mean),
        rate(*.per_second)
    )]
    Implausible {
        input: String,
        format: Format,
        /// What its sizes count by the format's definition.
        sizes: Unit,
        count: usize,
        /// Bytes of a request.
        mean: u64,
        /// Bytes per second; infinite if all arrive at once.
        per_second: f64,
    },
    #[error(
        "{input}, {at}: not a good {format} record: {reason}; name the right format, or allow some bad records to be skipped"
    )]
    Bad { input: String, format: Format, at: Position, reason: Reason },
}

fn rate(per_second: f64) -> String {
    let finite = per_second.is_finite().then_some(per_second);
    finite.map_or(String::new(), |rate| format!(", {} a second", Bytes(rate as u64)))
}

/// A request with the format's own absolute time.
pub(crate) struct Raw {
    /// Nanoseconds since the format's own origin.
    pub time: u64,
    pub device: u32,
    pub offset: u64,
    pub len: u64,
    pub kind: Kind,
}

/// Why there is no next request.
#[derive(Debug)]
pub(crate) enum Fault {
    /// This line or record is bad, and has been consumed: the next one may be good.
    Bad(Reason),
    /// Nothing after this can be read.
    Fatal(Reason),
    Io(io::Error),
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::Bad(reason)
    }
}

/// Faults of a text format: a line too long.
impl From<Short> for Fault {
    fn from(short: Short) -> Self {
        match short {
            Short::Io(error) => Self::Io(error),
            Short::LongLine => Self::Fatal(Reason::LongLine),
            Short::Truncated { have } => Self::Bad(Reason::Truncated { have, need: have + 1 }),
        }
    }
}

impl Short {
    /// The fault of a record of `need` bytes.
    pub(crate) fn of(self, need: usize) -> Fault {
        match self {
            Self::Truncated { have } => Fault::Bad(Reason::Truncated { have, need }),
            other => other.into(),
        }
    }
}

/// One format: the next request from a source, `None` at its end.
pub(crate) trait Decode: Send {
    /// Whether a position in the input is a line rather than a byte.
    const TEXT: bool;
    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault>;
}

/// A text format of one request per line is a function of the line.
/// It returns `None` for a line that holds no request, such as a header.
pub(crate) type Line = fn(&[u8], &mut Devices) -> Result<Option<Raw>, Reason>;

impl Decode for Line {
    const TEXT: bool = true;
    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        while let Some(line) = source.line()? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            if let Some(raw) = self(line, devices)? {
                return Ok(Some(raw));
            }
        }
        Ok(None)
    }
}

/// Most devices of one trace, and bytes of all their names, so that a wrong column cannot exhaust memory.
const MAX_DEVICES: usize = 1 << 20;
const MAX_NAMES: usize = 16 << 20;

/// The devices of a trace, numbered in order of appearance.
#[derive(Default)]
pub(crate) struct Devices {
    names: Vec<String>,
    name_bytes: usize,
    by_name: BTreeMap<Box<[u8]>, u32>,
    by_number: BTreeMap<u64, u32>,
    last: Option<(u64, u32)>,
    /// Requests that move no data.
    pub(crate) left_out: u64,
}

impl Devices {
    /// The device with this number in the trace; `name` formats its name on first use.
    pub(crate) fn numbered(&mut self, number: u64, name: impl FnOnce() -> String) -> Result<u32, Reason> {
        if let Some((last, index)) = self.last
            && last == number
        {
            return Ok(index);
        }
        let index = match self.by_number.get(&number) {
            Some(&index) => index,
            None => {
                let index = self.add(name())?;
                self.by_number.insert(number, index);
                index
            }
        };
        self.last = Some((number, index));
        Ok(index)
    }

    /// The device with this name in the trace.
    pub(crate) fn named(&mut self, name: &[u8]) -> Result<u32, Reason> {
        if let Some(&index) = self.by_name.get(name) {
            return Ok(index);
        }
        let index = self.add(String::from_utf8_lossy(name).into_owned())?;
        self.by_name.insert(name.into(), index);
        Ok(index)
    }

    fn add(&mut self, name: String) -> Result<u32, Reason> {
        if self.names.len() >= MAX_DEVICES {
            return Err(Reason::Devices(MAX_DEVICES));
        }
        if self.name_bytes + name.len() > MAX_NAMES {
            return Err(Reason::Names(MAX_NAMES));
        }
        self.name_bytes += name.len();
        self.names.push(name);
        Ok(self.names.len() as u32 - 1)
    }
}

/// One input and the request at its head.
pub(crate) struct Lane<D> {
    name: String,
    source: Source,
    decode: D,
    head: Option<Raw>,
}

impl<D> Lane<D> {
    pub(crate) fn new(name: String, source: Source, decode: D) -> Self {
        Self { name, source, decode, head: None }
    }
}

/// Inputs of one format, merged by time.
pub(crate) struct Reader<D> {
    format: Format,
    lanes: Vec<Lane<D>>,
    /// Lanes with a head, earliest first; equal times in the order of the inputs. Empty until `started`.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    devices: Devices,
    started: bool,
    start: Option<u64>,
    latest: u64,
    /// What positions and sizes count by definition, and what they are said to count instead.
    unit: Option<([Unit; 2], Unit)>,
    skip_bad: u64,
    skipped: u64,
    backwards: u64,
}

impl<D: Decode> Reader<D> {
    pub(crate) fn new(
        format: Format,
        lanes: Vec<Lane<D>>,
        unit: Option<([Unit; 2], Unit)>,
        skip_bad: u64,
    ) -> Self {
        Self {
            format,
            unit,
            lanes,
            order: BinaryHeap::new(),
            devices: Devices::default(),
            started: false,
            start: None,
            latest: 0,
            skip_bad,
            skipped: 0,
            backwards: 0,
        }
    }

    /// Decodes the next good request of one lane.
    fn decode(&mut self, lane: usize) -> Result<Option<Raw>, TraceError> {
        let Lane { name, source, decode, .. } = &mut self.lanes[lane];
        loop {
            let (reason, last) = match decode.next(source, &mut self.devices) {
                Ok(Some(raw)) => match checked(raw, self.unit) {
                    Ok(raw) => return Ok(Some(raw)),
                    Err(reason) => (reason, false),
                },
                Ok(None) => return Ok(None),
                Err(Fault::Io(error)) => return Err(TraceError::Io { input: name.clone(), error }),
                Err(Fault::Fatal(reason)) => (reason, true),
                Err(Fault::Bad(reason)) => (reason, false),
            };
            if !last && self.skipped < self.skip_bad {
                self.skipped += 1;
                continue;
            }
            let at = if D::TEXT { Position::Line(source.lines()) } else { Position::Byte(source.mark()) };
            return Err(TraceError::Bad { input: name.clone(), format: self.format, at, reason });
        }
    }

    fn advance(&mut self) -> Result<Option<Raw>, TraceError> {
        if self.lanes.len() == 1 {
            return self.decode(0);
        }
        if !self.started {
            self.started = true;
            for lane in 0..self.lanes.len() {
                self.refill(lane)?;
            }
        }
        let Some(Reverse((_, lane))) = self.order.pop() else { return Ok(None) };
        let raw = self.lanes[lane].head.take();
        self.refill(lane)?;
        Ok(raw)
    }

    fn refill(&mut self, lane: usize) -> Result<(), TraceError> {
        if let Some(raw) = self.decode(lane)? {
            self.order.push(Reverse((raw.time, lane)));
            self.lanes[lane].head = Some(raw);
        }
        Ok(())
    }

    fn relative(&mut self, raw: Raw) -> Request {
        let start = *self.start.get_or_insert_with(|| {
            self.latest = raw.time;
            raw.time
        });
        if raw.time < self.latest {
            self.backwards += 1;
        } else {
            self.latest = raw.time;
        }
        Request {
            at: Duration::from_nanos(self.latest - start),
            device: raw.device,
            offset: raw.offset,
            len: raw.len as u32,
            kind: raw.kind,
        }
    }
}

fn checked(mut raw: Raw, unit: Option<([Unit; 2], Unit)>) -> Result<Raw, Reason> {
    if let Some(([offset, size], said)) = unit {
        let whole = |found: Option<u64>, field| found.ok_or(Reason::Overflow { field });
        raw.offset = whole(converted(raw.offset, offset, said), "offset")?;
        raw.len = whole(converted(raw.len, size, said), "size")?;
    }
    if raw.len > u64::from(u32::MAX) {
        return Err(Reason::Overflow { field: "size" });
    }
    match raw.offset.checked_add(raw.len) {
        Some(end) if end <= i64::MAX as u64 => Ok(raw),
        _ => Err(Reason::Overflow { field: "offset" }),
    }
}

impl<D: Decode> Iterator for Reader<D> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(Some(raw)) => Some(Ok(self.relative(raw))),
            end => {
                // Nothing follows an end or an error.
                self.lanes.clear();
                self.order.clear();
                end.err().map(Err)
            }
        }
    }
}

impl<D: Decode> TraceReader for Reader<D> {
    fn format(&self) -> Option<Format> {
        Some(self.format)
    }
    fn devices(&self) -> &[String] {
        &self.devices.names
    }
    fn skipped(&self) -> u64 {
        self.skipped
    }
    fn backwards(&self) -> u64 {
        self.backwards
    }
    fn left_out(&self) -> u64 {
        self.devices.left_out
    }
}
