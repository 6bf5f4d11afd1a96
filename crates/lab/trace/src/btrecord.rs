//! btrecord's files, which btreplay replays and TRACER filters: requests in bunches that start together.
//!
//! All numbers have one byte order, little-endian on every common machine. A header of four u64: version (major, minor,
//! patch in one byte each), genesis (time of the first bunch, ns), number of bunches, number of packets. A bunch is two
//! u64, packets and time since genesis in ns, and its packets: sector u64, bytes u64, direction u32 (1 = read), 4 bytes
//! of padding. One file holds one device and one CPU; `sda.replay.0` is CPU 0 of `sda`.

use crate::number::times;
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::unit::SECTOR;
use crate::writer::{TraceWriter, WriteError, Written, nanos};
use crate::{Kind, Reason, Request};
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

const HEADER: usize = 32;
const BUNCH: usize = 16;
const PACKET: usize = 24;
/// btreplay's limit.
const MAX_PACKETS: u64 = 512;
const VERSION: u64 = 0x1_00_00;
/// The layout of 0.9.3 is the same.
const KNOWN: [u64; 2] = [VERSION, 0x0_09_03];

/// Whether bytes start like a btrecord file in either byte order.
pub(crate) fn detect(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|&first| {
        KNOWN.contains(&u64::from_le_bytes(first)) || KNOWN.contains(&u64::from_be_bytes(first))
    })
}

pub(crate) struct Btrecord {
    device: String,
    header: Option<Header>,
    /// Absolute time of the present bunch, and its remaining packets.
    time: u64,
    packets: u64,
}

#[derive(Clone, Copy)]
struct Header {
    big: bool,
    genesis: u64,
    /// Bunches promised by the header that have not been read yet.
    missing: u64,
}

impl Btrecord {
    /// The device is named after the input, without directories and btrecord's `.replay.CPU`.
    pub(crate) fn new(input: &str) -> Self {
        let file = input.rsplit('/').next().unwrap_or(input);
        let device = file.split_once(".replay.").map_or(file, |(device, _cpu)| device);
        Self { device: device.into(), header: None, time: 0, packets: 0 }
    }
}

fn number(record: &[u8], at: usize, big: bool) -> u64 {
    let bytes = *record[at..].first_chunk().expect("within the record");
    if big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

fn header(source: &mut Source) -> Result<Option<Header>, Fault> {
    let Some(record) = source.record(HEADER).map_err(|short| short.of(HEADER))? else { return Ok(None) };
    let Some(big) = [false, true].into_iter().find(|&big| KNOWN.contains(&number(record, 0, big))) else {
        let version = number(record, 0, false);
        let found = format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff);
        return Err(Fault::Fatal(Reason::Version { found, known: "0.9.3, 1.0.0" }));
    };
    Ok(Some(Header { big, genesis: number(record, 8, big), missing: number(record, 16, big) }))
}

impl Decode for Btrecord {
    const TEXT: bool = false;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        let header = match &mut self.header {
            Some(header) => header,
            None => match header(source)? {
                Some(header) => self.header.insert(header),
                None => return Ok(None),
            },
        };
        let big = header.big;
        while self.packets == 0 {
            let Some(bunch) = source.record(BUNCH).map_err(|short| short.of(BUNCH))? else {
                if header.missing > 0 {
                    header.missing = 0;
                    return Err(Fault::Bad(Reason::Truncated { have: 0, need: BUNCH }));
                }
                return Ok(None);
            };
            let (packets, time) = (number(bunch, 0, big), number(bunch, 8, big));
            header.missing = header.missing.saturating_sub(1);
            // With a wrong count the next bunch cannot be found.
            if packets > MAX_PACKETS {
                return Err(Fault::Fatal(Reason::Overflow { field: "number of packets in a bunch" }));
            }
            let overflow = Fault::Fatal(Reason::Overflow { field: "time" });
            self.time = header.genesis.checked_add(time).ok_or(overflow)?;
            self.packets = packets;
        }
        let packet = match source.record(PACKET) {
            Ok(Some(packet)) => packet,
            Ok(None) | Err(crate::source::Short::Truncated { .. }) => {
                (self.packets, header.missing) = (0, 0);
                return Err(Fault::Bad(Reason::Truncated { have: 0, need: PACKET }));
            }
            Err(other) => return Err(other.into()),
        };
        self.packets -= 1;
        // The direction's significant byte, whichever end it is at.
        let read = packet[16] | packet[19] != 0;
        Ok(Some(Raw {
            time: self.time,
            offset: times(number(packet, 0, big), SECTOR, "sector")?,
            len: number(packet, 8, big),
            kind: if read { Kind::Read } else { Kind::Write },
            device: devices.named(self.device.as_bytes())?,
        }))
    }
}

/// Writes one device's file, little-endian. Starts are rounded down to whole sectors; lengths are kept.
///
/// Requests that arrive within `window` of a bunch's first one join it, up to 512, and take its time: a zero window
/// keeps every time and bunches only simultaneous requests. The counts in the header are known only at the end, hence
/// `Seek`.
pub struct BtrecordWriter<W: Write + Seek> {
    out: W,
    window: Duration,
    device: Option<u32>,
    bunch: Vec<Request>,
    bunches: u64,
    written: Written,
}

impl<W: Write + Seek> BtrecordWriter<W> {
    /// Writes to `out`, which should be buffered and at its start.
    pub fn new(mut out: W, window: Duration) -> Result<Self, WriteError> {
        out.write_all(&[0; HEADER])?;
        Ok(Self { out, window, device: None, bunch: Vec::new(), bunches: 0, written: Written::default() })
    }

    fn put_bunch(&mut self) -> Result<(), WriteError> {
        let Some(first) = self.bunch.first() else { return Ok(()) };
        let nanos = nanos(first.at)?;
        self.out.write_all(&(self.bunch.len() as u64).to_le_bytes())?;
        self.out.write_all(&nanos.to_le_bytes())?;
        for request in &self.bunch {
            let mut packet = [0; PACKET];
            packet[..8].copy_from_slice(&(request.offset / SECTOR).to_le_bytes());
            packet[8..16].copy_from_slice(&u64::from(request.len).to_le_bytes());
            packet[16] = u8::from(request.kind == Kind::Read);
            self.out.write_all(&packet)?;
        }
        self.written.requests += self.bunch.len() as u64;
        self.bunches += 1;
        self.bunch.clear();
        Ok(())
    }
}

impl<W: Write + Seek> TraceWriter for BtrecordWriter<W> {
    fn write(&mut self, request: &Request) -> Result<(), WriteError> {
        let first = *self.device.get_or_insert(request.device);
        if first != request.device {
            return Err(WriteError::OtherDevice { first, other: request.device });
        }
        if request.len == 0 {
            self.written.empty += 1;
            return Ok(());
        }
        if let Some(first) = self.bunch.first()
            && (request.at.saturating_sub(first.at) > self.window || self.bunch.len() as u64 == MAX_PACKETS)
        {
            self.put_bunch()?;
        }
        self.bunch.push(*request);
        Ok(())
    }

    fn finish(&mut self) -> Result<Written, WriteError> {
        self.put_bunch()?;
        self.out.seek(SeekFrom::Start(0))?;
        for word in [VERSION, 0, self.bunches, self.written.requests] {
            self.out.write_all(&word.to_le_bytes())?;
        }
        self.out.seek(SeekFrom::End(0))?;
        self.out.flush()?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Position, TraceError, open};
    use std::io::Cursor;

    fn request(at: u64, offset: u64, len: u32, kind: Kind) -> Request {
        Request { at: Duration::from_nanos(at), device: 0, offset, len, kind }
    }

    fn written(requests: &[Request], window: Duration) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        let mut writer = BtrecordWriter::new(&mut out, window).unwrap();
        for request in requests {
            writer.write(request).unwrap();
        }
        assert_eq!(writer.finish().unwrap().requests, requests.len() as u64);
        out.into_inner()
    }

    fn example() -> Vec<Request> {
        vec![
            request(0, 0, 512, Kind::Read),
            request(0, 4096, 1024, Kind::Write),
            request(900, 1 << 40, 512, Kind::Write),
        ]
    }

    #[test]
    fn what_is_written_reads_back() {
        let bytes = written(&example(), Duration::ZERO);
        assert_eq!(bytes.len(), HEADER + 2 * BUNCH + 3 * PACKET);
        assert_eq!(bytes[16..32], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let mut reader = open("dir/sdi.replay.0", Cursor::new(bytes)).unwrap();
        let found: Vec<_> = reader.by_ref().map(|r| r.unwrap()).collect();
        assert_eq!(found, example());
        assert_eq!(reader.devices(), ["sdi"]);
    }

    #[test]
    fn a_window_gathers_a_bunch() {
        let bytes = written(&example(), Duration::from_nanos(900));
        let found: Vec<_> =
            open("x", Cursor::new(bytes)).unwrap().map(|r| r.unwrap().at.as_nanos()).collect();
        assert_eq!(found, [0, 0, 0]);
    }

    #[test]
    fn the_other_byte_order_reads_too() {
        let mut bytes = Vec::new();
        for word in [VERSION, 5, 1, 1, 1, 0, 8, 4096] {
            bytes.extend(u64::to_be_bytes(word));
        }
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        let found = open("x", Cursor::new(bytes)).unwrap().next().unwrap().unwrap();
        assert_eq!(found, request(0, 4096, 4096, Kind::Read));
    }

    #[test]
    fn missing_bunches_and_wild_counts_are_errors() {
        let bytes = written(&example(), Duration::ZERO);
        let whole = bytes.len() as u64;
        let mut wild = bytes.clone();
        wild[HEADER + 1] = 0xff;
        for (damaged, at) in [
            (bytes[..HEADER + BUNCH + PACKET].to_vec(), whole - 64),
            (bytes[..bytes.len() - PACKET - BUNCH].to_vec(), whole - 40),
            (wild, HEADER as u64),
        ] {
            let error = open("x", Cursor::new(damaged)).unwrap().find_map(Result::err).unwrap();
            let TraceError::Bad { at: found, .. } = error else { panic!("{error}") };
            assert_eq!(found, Position::Byte(at), "{error}");
        }
    }

    #[test]
    fn a_second_device_needs_a_second_file() {
        let mut writer = BtrecordWriter::new(Cursor::new(Vec::new()), Duration::ZERO).unwrap();
        writer.write(&example()[0]).unwrap();
        let other = Request { device: 4, ..example()[0] };
        assert!(matches!(writer.write(&other), Err(WriteError::OtherDevice { first: 0, other: 4 })));
    }
}
