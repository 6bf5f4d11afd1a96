//! fio's iolog, versions 2 and 3: text that fio writes with `write_iolog` and replays with `read_iolog`.
//!
//! Version 2 is `file action [offset length]` in bytes and has no times but `wait`, documented as microseconds after
//! the previous wait; that is how it is read here (fio's own code compares it with milliseconds since the start).
//! Version 3 is `time file action [offset length]`; fio writes microseconds since the start.

use crate::number::{integer, times, words};
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::writer::{TraceWriter, WriteError, Written};
use crate::{Kind, Reason, Request};
use std::collections::BTreeSet;
use std::io::Write;

pub(crate) const MAGIC: &[u8] = b"fio version ";
const MICROSECOND: u64 = 1_000;

#[derive(Default)]
pub(crate) struct Fio {
    version: Option<u64>,
    /// Sum of the waits so far, in nanoseconds.
    waited: u64,
}

impl Decode for Fio {
    const TEXT: bool = true;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        while let Some(line) = source.line()? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let raw = match self.version {
                Some(2) => self.version_2(line, devices)?,
                Some(_) => version_3(line, devices)?,
                None => {
                    self.version = Some(header(line).map_err(Fault::Fatal)?);
                    None
                }
            };
            if raw.is_some() {
                return Ok(raw);
            }
        }
        Ok(None)
    }
}

fn header(line: &[u8]) -> Result<u64, Reason> {
    let missing = Reason::Header("first line, \"fio version 2 iolog\" or \"fio version 3 iolog\",");
    let rest = line.strip_prefix(MAGIC).ok_or(missing)?;
    match words::<2>(rest)? {
        [b"2", b"iolog"] => Ok(2),
        [b"3", b"iolog"] => Ok(3),
        [found, _] => {
            Err(Reason::Version { found: String::from_utf8_lossy(found).into_owned(), known: "2, 3" })
        }
    }
}

/// The kind of a data action; `None` if it moves no data. One that asks something of the device is counted.
fn kind(action: &[u8], devices: &mut Devices) -> Result<Option<Kind>, Reason> {
    match action {
        b"read" => Ok(Some(Kind::Read)),
        b"write" => Ok(Some(Kind::Write)),
        b"trim" | b"sync" | b"datasync" => {
            devices.left_out += 1;
            Ok(None)
        }
        b"add" | b"open" | b"close" | b"wait" => Ok(None),
        _ => Err(Reason::Operation),
    }
}

impl Fio {
    fn version_2(&mut self, line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
        let [file, action] = words(line)?;
        if action == b"wait" {
            let [_, _, wait] = words(line)?;
            let wait = times(integer(wait, "wait")?, MICROSECOND, "wait")?;
            self.waited = self.waited.checked_add(wait).ok_or(Reason::Overflow { field: "wait" })?;
            return Ok(None);
        }
        let Some(kind) = kind(action, devices)? else { return Ok(None) };
        let [.., offset, len] = words::<4>(line)?;
        request(self.waited, file, kind, offset, len, devices).map(Some)
    }
}

fn version_3(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, file, action] = words(line)?;
    let time = times(integer(time, "time")?, MICROSECOND, "time")?;
    let Some(kind) = kind(action, devices)? else { return Ok(None) };
    let [.., offset, len] = words::<5>(line)?;
    request(time, file, kind, offset, len, devices).map(Some)
}

fn request(
    time: u64,
    file: &[u8],
    kind: Kind,
    offset: &[u8],
    len: &[u8],
    devices: &mut Devices,
) -> Result<Raw, Reason> {
    let (offset, len) = (integer(offset, "offset")?, integer(len, "length")?);
    Ok(Raw { time, offset, len, kind, device: devices.named(file)? })
}

/// Writes version 3: times in microseconds, rounded down.
pub struct FioWriter<W: Write, N: Fn(u32) -> String> {
    out: W,
    name: N,
    opened: BTreeSet<u32>,
    last: u128,
    written: Written,
}

impl<W: Write, N: Fn(u32) -> String> FioWriter<W, N> {
    /// Writes to `out`, which should be buffered; `name` gives the file that fio uses for a device, without blanks.
    pub fn new(mut out: W, name: N) -> Result<Self, WriteError> {
        out.write_all(b"fio version 3 iolog\n")?;
        Ok(Self { out, name, opened: BTreeSet::new(), last: 0, written: Written::default() })
    }
}

impl<W: Write, N: Fn(u32) -> String> TraceWriter for FioWriter<W, N> {
    fn write(&mut self, request: &Request) -> Result<(), WriteError> {
        if request.len == 0 {
            self.written.empty += 1;
            return Ok(());
        }
        let (at, name) = (request.at.as_micros(), (self.name)(request.device));
        if self.opened.insert(request.device) {
            write!(self.out, "{at} {name} add\n{at} {name} open\n")?;
        }
        let action = match request.kind {
            Kind::Read => "read",
            Kind::Write => "write",
        };
        writeln!(self.out, "{at} {name} {action} {} {}", request.offset, request.len)?;
        self.last = at;
        self.written.requests += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<Written, WriteError> {
        for &device in &self.opened {
            writeln!(self.out, "{} {} close", self.last, (self.name)(device))?;
        }
        self.out.flush()?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TraceError, open};
    use std::io::Cursor;
    use std::time::Duration;

    #[test]
    fn what_moves_no_data_is_counted() {
        let text = "fio version 2 iolog\n/x add\n/x open\n/x write 0 4096\n/x trim 4096 4096\n/x read 8192 4096\n/x sync 0 0\n/x close\n";
        let mut reader = crate::open("t", text.as_bytes()).unwrap();
        assert_eq!(reader.by_ref().map(|request| request.unwrap().offset).collect::<Vec<_>>(), [0, 8192]);
        assert_eq!(reader.left_out(), 2);
    }

    #[test]
    fn version_2_waits_in_microseconds() {
        let text = "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a read 4096 512\n/dev/a wait 150 0\n\
                    /dev/a sync 0 0\n/dev/b write 0 1024\n/dev/a wait 50 0\n/dev/a write 0 8\n/dev/a close\n";
        let mut reader = open("x", text.as_bytes()).unwrap();
        let found: Vec<_> = reader.by_ref().map(|r| r.unwrap()).collect();
        let at: Vec<_> = found.iter().map(|r| r.at.as_micros()).collect();
        assert_eq!(at, [0, 150, 200]);
        assert_eq!((found[0].kind, found[0].offset, found[0].len), (Kind::Read, 4096, 512));
        assert_eq!(reader.devices(), ["/dev/a", "/dev/b"]);
    }

    #[test]
    fn what_is_written_reads_back() {
        let requests = [(0, 0, Kind::Read), (5, 1, Kind::Write), (2_000_000, 0, Kind::Write)].map(
            |(us, device, kind)| Request { at: Duration::from_micros(us), device, offset: 77, len: 9, kind },
        );
        let mut bytes = Vec::new();
        let mut writer = FioWriter::new(&mut bytes, |device| format!("/dev/d{device}")).unwrap();
        for request in requests.iter().chain([&Request { len: 0, ..requests[2] }]) {
            writer.write(request).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), Written { requests: 3, empty: 1 });
        let mut reader = open("x", Cursor::new(bytes)).unwrap();
        assert_eq!(reader.by_ref().map(|r| r.unwrap()).collect::<Vec<_>>(), requests);
        assert_eq!(reader.devices(), ["/dev/d0", "/dev/d1"]);
    }

    #[test]
    fn unknown_versions_and_actions_are_named() {
        for (text, words) in [
            ("fio version 4 iolog\n", "version 4"),
            ("fio version 3 iolog\n1 a chew 0 1\n", "line 2"),
            ("fio version 3 iolog\n1 a read 0\n", "4 fields where 5"),
        ] {
            let error: TraceError = open("x", text.as_bytes()).unwrap().next().unwrap().unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
