//! Traces of blank-separated columns: SSDsim, DiskSim, FIU and blkparse's text.

use crate::csv::kind;
use crate::number::{decimal, integer, times, words};
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::unit::SECTOR;
use crate::{Kind, Reason};

fn sectors(word: &[u8], field: &'static str) -> Result<u64, Reason> {
    times(integer(word, field)?, SECTOR, field)
}

fn read_if(bit: bool) -> Kind {
    if bit { Kind::Read } else { Kind::Write }
}

/// `time device sector sectors operation`: nanoseconds, 512-byte sectors, 1 = read and 0 = write. MQSim reads the same.
pub(crate) fn ssdsim(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, device, sector, length, operation] = words(line)?;
    let device = integer(device, "device")?;
    Ok(Some(Raw {
        time: integer(time, "time")?,
        offset: sectors(sector, "sector")?,
        len: sectors(length, "size")?,
        kind: match operation {
            b"1" => Kind::Read,
            b"0" => Kind::Write,
            _ => return Err(Reason::Operation),
        },
        device: devices.numbered(device, || device.to_string())?,
    }))
}

/// `time device block blocks flags`: milliseconds with a fraction, 512-byte blocks, bit 0 of the flags = read.
pub(crate) fn disksim(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, device, block, length, flags] = words(line)?;
    let device = integer(device, "device")?;
    Ok(Some(Raw {
        time: decimal(time, 6, "time")?,
        offset: sectors(block, "block")?,
        len: sectors(length, "size")?,
        kind: read_if(hex_or_decimal(flags)? & 1 == 1),
        device: devices.numbered(device, || device.to_string())?,
    }))
}

/// DiskSim prints its flags in hexadecimal; other tools write 0 or 1.
fn hex_or_decimal(word: &[u8]) -> Result<u64, Reason> {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    let text = std::str::from_utf8(digits).map_err(|_| Reason::Number { field: "flags" })?;
    u64::from_str_radix(text, 16).map_err(|_| Reason::Number { field: "flags" })
}

/// `time pid process lba size R/W major minor digest`: nanoseconds, 512-byte sectors. A device is `major,minor`.
pub(crate) fn fiu(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [time, _pid, _process, lba, length, operation, major, minor] = words(line)?;
    let (major, minor) = (integer(major, "major number")?, integer(minor, "minor number")?);
    if major > u64::from(u32::MAX) || minor > u64::from(u32::MAX) {
        return Err(Reason::Overflow { field: "device number" });
    }
    Ok(Some(Raw {
        time: integer(time, "time")?,
        offset: sectors(lba, "LBA")?,
        len: sectors(length, "size")?,
        kind: kind(operation)?,
        device: devices.numbered(major << 32 | minor, || format!("{major},{minor}"))?,
    }))
}

/// blkparse's default text: `maj,min cpu seq s.ns pid action RWBS sector + sectors …`; only the queue events (`Q`)
/// count. The statistics that blkparse prints after the events end the trace.
#[derive(Default)]
pub(crate) struct Blkparse {
    ended: bool,
}

impl Decode for Blkparse {
    const TEXT: bool = true;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        while !self.ended {
            let Some(line) = source.line()? else { break };
            if line.starts_with(b"CPU") || line.starts_with(b"Total (") {
                self.ended = true;
            } else if !line.trim_ascii().is_empty()
                && let Some(raw) = event(line, devices)?
            {
                return Ok(Some(raw));
            }
        }
        Ok(None)
    }
}

fn event(line: &[u8], devices: &mut Devices) -> Result<Option<Raw>, Reason> {
    let [device, _cpu, _sequence, time, _pid, action] = words(line)?;
    let comma = device.iter().position(|&b| b == b',').ok_or(Reason::Number { field: "device" })?;
    integer(&device[..comma], "device")?;
    integer(&device[comma + 1..], "device")?;
    if action != b"Q" {
        return Ok(None);
    }
    let [.., flags, sector] = words::<8>(line)?;
    let kind = match flags {
        _ if flags.contains(&b'D') => return Ok(None),
        _ if flags.contains(&b'R') => Kind::Read,
        _ if flags.contains(&b'W') => Kind::Write,
        _ => return Ok(None),
    };
    if !sector.first().is_some_and(u8::is_ascii_digit) {
        return Ok(None); // A flush carries no sectors.
    }
    let [.., plus, length] = words::<10>(line)?;
    if plus != b"+" {
        return Err(Reason::Number { field: "size" });
    }
    Ok(Some(Raw {
        time: decimal(time, 9, "time")?,
        offset: sectors(sector, "sector")?,
        len: sectors(length, "size")?,
        kind,
        device: devices.named(device)?,
    }))
}

#[cfg(test)]
mod tests {
    use crate::{Kind, Request, TraceReader, open};
    use std::time::Duration;

    fn read(name: &str, text: &'static str) -> (Box<dyn TraceReader>, Vec<Request>) {
        let mut reader = open(name, text.as_bytes()).unwrap();
        let requests = reader.by_ref().map(|r| r.unwrap()).collect();
        (reader, requests)
    }

    #[test]
    fn ssdsim_is_in_nanoseconds_and_one_reads() {
        let (reader, requests) = read("x", "100 0 8 2 1\n350 3 0 1 0\n");
        assert_eq!(reader.format().unwrap().to_string(), "ssdsim");
        let first = Request { at: Duration::ZERO, device: 0, offset: 4096, len: 1024, kind: Kind::Read };
        assert_eq!(requests[0], first);
        assert_eq!((requests[1].at, requests[1].kind), (Duration::from_nanos(250), Kind::Write));
        assert_eq!(reader.devices(), ["0", "3"]);
    }

    #[test]
    fn disksim_is_in_milliseconds_and_known_by_the_point_or_the_name() {
        let (reader, requests) = read("x", "0.500000 1 8 2 1\n1.75 1 10 2 20\n");
        assert_eq!(reader.format().unwrap().to_string(), "disksim");
        assert_eq!((requests[1].at, requests[1].kind), (Duration::from_micros(1250), Kind::Write));
        let (_, requests) = read("x.disksim", "0 1 8 2 1\n1 1 10 2 0x1\n");
        assert_eq!((requests[1].at, requests[1].kind), (Duration::from_millis(1), Kind::Read));
    }

    #[test]
    fn fiu_devices_are_major_and_minor() {
        let (reader, requests) =
            read("x", "5 1 sh 16 8 W 6 0 0a\n1005 2 cat 24 8 R 6 1 0b\n2005 2 cat 32 8 r 6 0 0c\n");
        assert_eq!(reader.format().unwrap().to_string(), "fiu");
        assert_eq!(reader.devices(), ["6,0", "6,1"]);
        assert_eq!(
            (requests[1].at, requests[1].offset, requests[1].len),
            (Duration::from_micros(1), 12288, 4096)
        );
        assert_eq!((requests[0].kind, requests[2].kind, requests[2].device), (Kind::Write, Kind::Read, 0));
    }

    #[test]
    fn blkparse_counts_queued_reads_and_writes_only() {
        let (reader, requests) = read(
            "x",
            "  8,0    3        1     0.000000100   697  Q   R 223490 + 8 [kjournald]\n\
             \x20 8,0    3        2     0.000001829   697  G   R 223490 + 8 [kjournald]\n\
             \x20 8,0    3        3     0.000002197   697  P   N [kjournald]\n\
             \x20 8,0    3        4     0.000003000   697  Q FWS [kworker]\n\
             \x20 8,0    3        5     0.000003100   697  Q  DS 100 + 8 [fstrim]\n\
             \x20 8,16   1        6     0.000004100   697  Q WFS 64 + 16 [sync]\n\
             CPU0 (8,0):\n Reads Queued:           1,        4KiB\n",
        );
        assert_eq!(reader.format().unwrap().to_string(), "blkparse");
        assert_eq!(reader.devices(), ["8,0", "8,16"]);
        assert_eq!(requests.len(), 2);
        assert_eq!((requests[0].offset, requests[0].len), (223490 * 512, 4096));
        assert_eq!((requests[1].at, requests[1].kind), (Duration::from_micros(4), Kind::Write));
    }
}
