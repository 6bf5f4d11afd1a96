//! Comma-separated traces: SPC, MSR Cambridge, Alibaba and Tencent.

use crate::number::{decimal, fields, integer, times};
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::unit::SECTOR;
use crate::{Kind, Reason};
use std::collections::VecDeque;

/// The kind given by a word's first letter, in either case.
pub(crate) fn kind(word: &[u8]) -> Result<Kind, Reason> {
    match word.trim_ascii().first() {
        Some(b'R' | b'r') => Ok(Kind::Read),
        Some(b'W' | b'w') => Ok(Kind::Write),
        _ => Err(Reason::Operation),
    }
}

/// `ASU,LBA,size,op,timestamp[,…]`: LBA in 512-byte blocks, size in bytes, seconds with a fraction.
pub(crate) fn spc(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [asu, lba, size, op, time] = fields(line, b',')?;
    let asu = integer(asu, "ASU")?;
    Ok(Some(Raw {
        time: decimal(time, 9, "timestamp")?,
        offset: times(integer(lba, "LBA")?, SECTOR, "LBA")?,
        len: integer(size, "size")?,
        kind: kind(op)?,
        device: devices.numbered(asu, || asu.to_string())?,
    }))
}

/// `Timestamp,Host,Disk,Type,Offset,Size,ResponseTime`: FILETIME in 100 ns ticks, bytes. A device is host and disk.
pub(crate) fn msr(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, host, disk, op, offset, size] = fields(line, b',')?;
    if time.eq_ignore_ascii_case(b"timestamp") {
        return Ok(None);
    }
    // The pair is named by the text between the type and the timestamp, which needs no copy.
    let name = &line[time.len() + 1..time.len() + 1 + host.len() + 1 + disk.len()];
    Ok(Some(Raw {
        time: times(integer(time, "timestamp")?, 100, "timestamp")?,
        offset: integer(offset, "offset")?,
        len: integer(size, "size")?,
        kind: kind(op)?,
        device: devices.named(name)?,
    }))
}

/// `device_id,opcode,offset,length,timestamp`: bytes, Unix microseconds.
pub(crate) fn alibaba(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [device, op, offset, size, time] = fields(line, b',')?;
    let device = integer(device, "device")?;
    Ok(Some(Raw {
        time: times(integer(time, "timestamp")?, 1_000, "timestamp")?,
        offset: integer(offset, "offset")?,
        len: integer(size, "length")?,
        kind: kind(op)?,
        device: devices.numbered(device, || device.to_string())?,
    }))
}

const SECOND: u64 = 1_000_000_000;
/// Most requests of one second held at a time, to be spread over it.
const BATCH: usize = 1 << 16;

/// Tencent CBS: `timestamp,offset,size,type,volume` in whole seconds and 512-byte sectors, 0 = read.
///
/// The requests of a second are spread evenly over it, in their order: all at its start would be a burst that never
/// happened. A second of more than [`BATCH`] requests is spread piece by piece, each full piece over half of what is
/// left of the second, so memory stays bounded.
#[derive(Default)]
pub(crate) struct Tencent {
    /// Requests of one second: being gathered, or, if `spread`, being returned.
    batch: VecDeque<Raw>,
    spread: bool,
    /// The first request of the next second.
    next: Option<Raw>,
    /// Nanoseconds of the present second used by earlier pieces.
    taken: u64,
}

impl Decode for Tencent {
    const TEXT: bool = true;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        loop {
            if self.spread {
                if let Some(raw) = self.batch.pop_front() {
                    return Ok(Some(raw));
                }
                self.spread = false;
                self.batch.extend(self.next.take());
            }
            let Some(line) = source.line()? else {
                if self.batch.is_empty() {
                    return Ok(None);
                }
                self.spread(SECOND - self.taken);
                continue;
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some(raw) = tencent(line, devices)? else { continue };
            match self.batch.front() {
                Some(first) if first.time != raw.time => {
                    self.next = Some(raw);
                    self.spread(SECOND - self.taken);
                    self.taken = 0;
                }
                _ => {
                    self.batch.push_back(raw);
                    if self.batch.len() == BATCH {
                        let half = (SECOND - self.taken) / 2;
                        self.spread(half);
                        self.taken += half;
                    }
                }
            }
        }
    }
}

impl Tencent {
    fn spread(&mut self, over: u64) {
        let count = self.batch.len() as u64;
        for (i, raw) in self.batch.iter_mut().enumerate() {
            raw.time += self.taken + over * i as u64 / count;
        }
        self.spread = true;
    }
}

/// `timestamp,offset,size,type,volume`: whole seconds, 512-byte sectors, 0 = read.
pub(crate) fn tencent(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, offset, size, op, volume] = fields(line, b',')?;
    let volume = integer(volume, "volume")?;
    let time = times(integer(time, "timestamp")?, SECOND, "timestamp")?;
    // The spreading adds up to a second.
    time.checked_add(SECOND).ok_or(Reason::Overflow { field: "timestamp" })?;
    Ok(Some(Raw {
        time,
        offset: times(integer(offset, "offset")?, SECTOR, "offset")?,
        len: times(integer(size, "size")?, SECTOR, "size")?,
        kind: match op.trim_ascii() {
            b"0" => Kind::Read,
            b"1" => Kind::Write,
            _ => return Err(Reason::Operation),
        },
        device: devices.numbered(volume, || volume.to_string())?,
    }))
}

#[cfg(test)]
mod tests {
    use crate::{Format, Input, Kind, Options, Position, Reason, Request, TraceError, open, open_with};
    use std::time::Duration;

    fn read(text: &str) -> Result<Vec<Request>, TraceError> {
        open("trace", std::io::Cursor::new(text.to_owned()))?.collect()
    }

    #[test]
    fn spc_counts_from_its_first_request_and_passes_over_extra_fields() {
        let requests = read("4,2,1000,w,7.25\n\n5, 3 ,0,R, 7.25 ,9,9\r\n4,0,512,r,7.5").unwrap();
        let first = Request { at: Duration::ZERO, device: 0, offset: 1024, len: 1000, kind: Kind::Write };
        assert_eq!(requests[0], first);
        assert_eq!(requests[1], Request { device: 1, offset: 1536, len: 0, kind: Kind::Read, ..first });
        assert_eq!((requests[2].at, requests[2].device), (Duration::from_millis(250), 0));
    }

    #[test]
    fn msr_ticks_are_exact_beyond_a_floats_reach() {
        let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
                    128166372000000001,web,0,Write,4096,512,7\n128166372000000002,web,1,Read,0,1024,7\n";
        let options = Options { format: Some(Format::Msr), ..Options::default() };
        let input = Input { name: "x".into(), read: Box::new(text.as_bytes()) };
        let mut reader = open_with(vec![input], &options).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().offset, 4096);
        let second = reader.next().unwrap().unwrap();
        assert_eq!((second.at, second.device, second.kind), (Duration::from_nanos(100), 1, Kind::Read));
        assert_eq!(reader.devices(), ["web,0", "web,1"]);
    }

    #[test]
    fn alibaba_is_in_microseconds_and_bytes() {
        let requests =
            read("419,W,8792731648,16384,1577808144360767\n725,R,0,4096,1577808144360769\n").unwrap();
        assert_eq!((requests[0].offset, requests[0].len, requests[0].kind), (8792731648, 16384, Kind::Write));
        assert_eq!((requests[1].at, requests[1].device), (Duration::from_micros(2), 1));
    }

    #[test]
    fn tencent_seconds_are_spread_evenly() {
        let requests = read("1538323200,8,2,1,7\n1538323200,0,8,0,7\n1538323202,0,8,0,9\n").unwrap();
        let at: Vec<u128> = requests.iter().map(|r| r.at.as_millis()).collect();
        assert_eq!(at, [0, 500, 2000]);
        assert_eq!((requests[0].offset, requests[0].len, requests[0].kind), (4096, 1024, Kind::Write));
        assert_eq!((requests[2].kind, requests[2].device), (Kind::Read, 1));
    }

    #[test]
    fn a_crowded_second_of_tencent_stays_within_its_second_and_in_order() {
        let text = "5,0,8,0,1\n".repeat(200_000) + "6,0,8,0,1\n";
        let requests = read(&text).unwrap();
        assert!(requests.is_sorted_by_key(|r| r.at));
        assert!(
            requests[199_999].at < Duration::from_secs(1)
                && requests[199_999].at > Duration::from_millis(900)
        );
        assert_eq!(requests[200_000].at, Duration::from_secs(1));
    }

    #[test]
    fn a_bad_line_is_named_and_the_reader_ends() {
        let mut reader =
            open("t", &b"0,1,512,R,0.0\n0,1,512,R,0.1\n0,1,x,R,0.2\n0,1,512,R,0.3\n"[..]).unwrap();
        assert_eq!(reader.by_ref().take(2).filter(Result::is_ok).count(), 2);
        let error = reader.next().unwrap().unwrap_err();
        let TraceError::Bad { at, ref reason, .. } = error else { panic!("{error}") };
        assert_eq!((at, reason), (Position::Line(3), &Reason::Number { field: "size" }));
        assert!(error.to_string().starts_with("t, line 3: not a good spc record: the size is not a number"));
        assert!(reader.next().is_none());
    }

    #[test]
    fn bad_lines_are_skipped_up_to_the_limit_and_counted() {
        let text = "0,1,512,R,0.0\nnonsense\n0,1,512,X,0.1\n0,99999999999999999999,512,R,1\n0,1,512,R,0.3\n";
        for (skip_bad, good) in [(2, 1), (3, 2)] {
            let input = Input { name: "t".into(), read: Box::new(std::io::Cursor::new(text)) };
            let mut reader = open_with(vec![input], &Options { skip_bad, ..Options::default() }).unwrap();
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), good);
            assert_eq!(reader.skipped(), skip_bad);
        }
    }

    #[test]
    fn offsets_and_sizes_beyond_any_device_are_bad_records() {
        for (line, field) in [
            ("0,18014398509481984,512,R,0.0", "offset"),
            ("0,36028797018963968,512,R,0.0", "LBA"),
            ("0,0,4294967296,R,0.0", "size"),
            ("0,0,512,R,18446744074.0", "timestamp"),
        ] {
            let error = read(line).unwrap_err();
            let TraceError::Bad { reason, .. } = error else { panic!("{error}") };
            assert_eq!(reason, Reason::Overflow { field }, "{line}");
        }
    }

    #[test]
    fn times_never_run_backwards() {
        let mut reader = open("t", &b"0,1,512,R,5\n0,2,512,R,4\n0,3,512,R,6\n0,4,512,R,5.5\n"[..]).unwrap();
        let at: Vec<u64> = reader.by_ref().map(|r| r.unwrap().at.as_secs()).collect();
        assert_eq!((at, reader.backwards()), (vec![0, 0, 1, 1], 2));
    }

    #[test]
    fn several_inputs_are_merged_by_time() {
        let inputs = [("a", "0,1,512,R,1\n0,2,512,R,4\n"), ("b", "1,3,512,R,2\n1,4,512,R,4\n"), ("c", "")]
            .map(|(name, text)| Input { name: name.into(), read: Box::new(text.as_bytes()) });
        let reader = open_with(inputs.into(), &Options::default()).unwrap();
        let found: Vec<_> = reader.map(|r| r.unwrap()).map(|r| (r.at.as_secs(), r.offset / 512)).collect();
        assert_eq!(found, [(0, 1), (1, 3), (3, 2), (3, 4)]);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_formats_named() {
        let error = open("photo.jpg", &b"\xff\xd8\xff"[..]).err().unwrap().to_string();
        assert!(error.contains("spc") && error.contains("photo.jpg"), "{error}");
        assert!(open_with(Vec::new(), &Options::default()).is_err());
        assert!("nosuch".parse::<Format>().is_err());
        assert_eq!("SRT".parse::<Format>().unwrap(), Format::Srt);
    }
}
