//! blktrace's binary events, version 7, as written by the kernel, one file per CPU.
//!
//! A record of 48 bytes in the byte order of the machine that wrote it, which the magic number shows:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | u32: magic `0x65617400` + version 7 |
//! | 4 | u32: sequence |
//! | 8 | u64: time, nanoseconds |
//! | 16 | u64: sector of 512 bytes |
//! | 24 | u32: bytes |
//! | 28 | u32: action, with categories in the upper half |
//! | 32, 36, 40 | u32: process, device (`major << 20 \| minor`), CPU |
//! | 44, 46 | u16: error, length of the payload that follows |
//!
//! A request causes a dozen events; only its queue event counts as a request, or all counts would double. Notifications
//! share the action numbers of events, and newer kernels mark cgroups with bit 8 of the action, so both are checked.

use crate::number::times;
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::unit::SECTOR;
use crate::writer::{TraceWriter, WriteError, Written, nanos};
use crate::{Kind, Reason, Request};
use std::io::Write;

const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const SIZE: usize = 48;
const QUEUE: u32 = 1;
const CGROUP: u32 = 1 << 8;
const READ: u32 = 1 << 16;
const WRITE: u32 = 1 << 17;
const NOTIFY: u32 = 1 << 26;
const DISCARD: u32 = 1 << 29;
/// Category of every event about the queue.
const QUEUED: u32 = 1 << 20;

/// Whether bytes start like a blktrace of any version and byte order.
pub(crate) fn detect(head: &[u8]) -> bool {
    let Some(first) = head.first_chunk::<4>() else { return false };
    [u32::from_le_bytes(*first), u32::from_be_bytes(*first)].iter().any(|word| word & !0xff == MAGIC)
}

#[derive(Default)]
pub(crate) struct Blktrace;

struct Event {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    payload: u16,
}

fn event(record: &[u8; SIZE]) -> Result<Event, Reason> {
    let word = |at: usize| *record[at..].first_chunk::<4>().expect("within the record");
    let long = |at: usize| *record[at..].first_chunk::<8>().expect("within the record");
    let little = u32::from_le_bytes(word(0)) & !0xff == MAGIC;
    let u32 = |at: usize| if little { u32::from_le_bytes(word(at)) } else { u32::from_be_bytes(word(at)) };
    let u64 = |at: usize| if little { u64::from_le_bytes(long(at)) } else { u64::from_be_bytes(long(at)) };
    let magic = u32(0);
    if magic & !0xff != MAGIC {
        return Err(Reason::Magic);
    }
    if magic & 0xff != VERSION {
        return Err(Reason::Version { found: (magic & 0xff).to_string(), known: "7" });
    }
    let payload = [record[46], record[47]];
    Ok(Event {
        time: u64(8),
        sector: u64(16),
        bytes: u32(24),
        action: u32(28),
        device: u32(36),
        payload: if little { u16::from_le_bytes(payload) } else { u16::from_be_bytes(payload) },
    })
}

impl Event {
    /// The kind of a request, or `None` for any other event. A queued request without bytes is a flush.
    fn kind(&self) -> Option<Kind> {
        let queued = self.action & 0xffff & !CGROUP == QUEUE;
        if !queued || self.action & (NOTIFY | DISCARD) != 0 || self.bytes == 0 {
            return None;
        }
        match self.action & (READ | WRITE) {
            READ => Some(Kind::Read),
            0 => None,
            _ => Some(Kind::Write),
        }
    }
}

impl Decode for Blktrace {
    const TEXT: bool = false;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        loop {
            let Some(record) = source.record(SIZE).map_err(|short| short.of(SIZE))? else { return Ok(None) };
            // Without its magic a record has no length, and the next one cannot be found.
            let event = event(record.first_chunk().expect("a whole record")).map_err(Fault::Fatal)?;
            if event.payload > 0 {
                source.skip(u64::from(event.payload)).map_err(|short| short.of(event.payload.into()))?;
            }
            let Some(kind) = event.kind() else { continue };
            let name = || format!("{},{}", event.device >> 20, event.device & 0xf_ffff);
            return Ok(Some(Raw {
                time: event.time,
                offset: times(event.sector, SECTOR, "sector")?,
                len: u64::from(event.bytes),
                kind,
                device: devices.numbered(u64::from(event.device), name)?,
            }));
        }
    }
}

/// Writes one CPU's file of queue events, little-endian. Starts are rounded down to whole sectors; lengths are kept.
pub struct BlktraceWriter<W: Write> {
    out: W,
    written: Written,
}

impl<W: Write> BlktraceWriter<W> {
    /// Writes to `out`, which should be buffered. Device n is written as the n-th SCSI disk (8,0 then 8,16 …).
    pub fn new(out: W) -> Self {
        Self { out, written: Written::default() }
    }
}

impl<W: Write> TraceWriter for BlktraceWriter<W> {
    fn write(&mut self, request: &Request) -> Result<(), WriteError> {
        if request.len == 0 {
            self.written.empty += 1;
            return Ok(());
        }
        let direction = match request.kind {
            Kind::Read => READ,
            Kind::Write => WRITE,
        };
        let nanos = nanos(request.at)?;
        let device = 8 << 20 | (request.device << 4 & 0xf_ffff);
        let mut record = [0; SIZE];
        record[0..4].copy_from_slice(&(MAGIC | VERSION).to_le_bytes());
        record[4..8].copy_from_slice(&(self.written.requests as u32 + 1).to_le_bytes());
        record[8..16].copy_from_slice(&nanos.to_le_bytes());
        record[16..24].copy_from_slice(&(request.offset / SECTOR).to_le_bytes());
        record[24..28].copy_from_slice(&request.len.to_le_bytes());
        record[28..32].copy_from_slice(&(QUEUE | QUEUED | direction).to_le_bytes());
        record[36..40].copy_from_slice(&device.to_le_bytes());
        self.out.write_all(&record)?;
        self.written.requests += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<Written, WriteError> {
        self.out.flush()?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Input, Options, Position, TraceError, open, open_with};
    use std::io::Cursor;
    use std::time::Duration;

    fn record(big: bool, time: u64, action: u32, bytes: u32, payload: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        let mut word = |value: u64, size: usize| {
            if big {
                record.extend(&value.to_be_bytes()[8 - size..]);
            } else {
                record.extend(&value.to_le_bytes()[..size]);
            }
        };
        word((MAGIC | VERSION).into(), 4);
        word(1, 4);
        word(time, 8);
        word(100, 8);
        word(bytes.into(), 4);
        word(action.into(), 4);
        word(0, 4);
        word(259 << 20 | 3, 4);
        word(0, 4);
        word(0, 2);
        word(payload.len() as u64, 2);
        record.extend(payload);
        record
    }

    fn read(trace: Vec<u8>) -> Result<Vec<Request>, TraceError> {
        open("x", Cursor::new(trace))?.collect()
    }

    #[test]
    fn only_data_queue_events_count_in_either_byte_order() {
        for big in [false, true] {
            let trace = [
                record(big, 90, 1 | NOTIFY, 12, &[7; 12]),
                record(big, 100, QUEUE | QUEUED | READ, 4096, &[]),
                record(big, 101, 7 | READ, 4096, &[9; 33]),
                record(big, 102, QUEUE | QUEUED | WRITE | DISCARD, 4096, &[]),
                record(big, 103, QUEUE | QUEUED | WRITE, 0, &[]),
                record(big, 104, QUEUE | CGROUP | QUEUED | WRITE, 512, &[1; 8]),
            ]
            .concat();
            let requests = read(trace).unwrap();
            assert_eq!(requests.len(), 2, "big-endian: {big}");
            assert_eq!((requests[0].offset, requests[0].len, requests[0].kind), (51200, 4096, Kind::Read));
            assert_eq!((requests[1].at, requests[1].kind), (Duration::from_nanos(4), Kind::Write));
        }
    }

    #[test]
    fn cpus_are_merged_by_time_and_an_idle_cpu_is_fine() {
        let queue = QUEUE | QUEUED | READ;
        let even = [record(false, 10, queue, 1, &[]), record(false, 30, queue, 3, &[])].concat();
        let odd = [record(false, 20, queue, 2, &[]), record(false, 40, queue, 4, &[])].concat();
        let inputs =
            [Vec::new(), odd, even].map(|cpu| Input { name: "x".into(), read: Box::new(Cursor::new(cpu)) });
        let mut reader = open_with(inputs.into(), &Options::default()).unwrap();
        let found: Vec<_> = reader.by_ref().map(|r| r.unwrap()).map(|r| (r.at.as_nanos(), r.len)).collect();
        assert_eq!(found, [(0, 1), (10, 2), (20, 3), (30, 4)]);
        assert_eq!(reader.devices(), ["259,3"]);
    }

    #[test]
    fn cut_files_lost_records_and_unknown_versions_are_named() {
        let good = record(false, 10, QUEUE | QUEUED | READ, 512, &[]);
        let cut = [good.clone(), record(false, 11, 7, 0, &[1; 20])[..60].to_vec()].concat();
        let lost = [good.clone(), vec![0; 48]].concat();
        let mut newer = good.clone();
        newer[0] = 8;
        for (trace, at, reason) in [
            (cut, 48, Reason::Truncated { have: 0, need: 20 }),
            (lost, 48, Reason::Magic),
            (newer, 0, Reason::Version { found: "8".into(), known: "7" }),
        ] {
            let error = read(trace).unwrap_err();
            let TraceError::Bad { at: found_at, reason: found, .. } = error else { panic!("{error}") };
            assert_eq!((found_at, found), (Position::Byte(at), reason));
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let request = |at, device, offset, len, kind| Request {
            at: Duration::from_nanos(at),
            device,
            offset,
            len,
            kind,
        };
        let requests = [
            request(0, 0, 4096, 512, Kind::Read),
            request(7, 1, 1 << 40, 4096, Kind::Write),
            request(3_000_000_007, 0, 256, 100, Kind::Write),
        ];
        let mut bytes = Vec::new();
        let mut writer = BlktraceWriter::new(&mut bytes);
        for request in requests.iter().chain([&Request { len: 0, ..requests[2] }]) {
            writer.write(request).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), Written { requests: 3, empty: 1 });
        let mut reader = open("x", Cursor::new(bytes)).unwrap();
        let found: Vec<_> = reader.by_ref().map(|r| r.unwrap()).collect();
        assert_eq!(found[..2], requests[..2]);
        assert_eq!(found[2], Request { offset: 0, ..requests[2] });
        assert_eq!(reader.devices(), ["8,0", "8,16"]);
    }
}
