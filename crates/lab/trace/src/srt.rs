//! HP SRT 1.3 and 1.7: a text header up to a form feed, then big-endian records of 32-bit words.
//!
//! Deduced from the traces themselves, as no description is public: the header starts with `$$TR_IOREC-` and the
//! version; the first word of a record is its size in bytes; then version and type, seconds, microseconds, two service
//! times, the length in bytes, and words whose meaning differs. Byte counts below are from the start of a record.
//!
//! | | 1.3 | 1.7 |
//! |---|---|---|
//! | record size | 56 | 88 |
//! | length in bytes | 24 | 24 |
//! | position | 28: sectors of 256 bytes from the start of the disk | 64: bytes, 64 bits |
//! | device (HP-UX `dev_t`) | 32: disk and section | 32 |
//! | flags, bit 0 = read | 44 | 44 |
//!
//! In 1.3 the position is absolute on the disk and the low four bits of the device name a section (partition) of it, so
//! sections, and the block and character devices of a disk, are one device. In 1.7 the whole word names the device.

use crate::number::times;
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::{Kind, Reason};

pub(crate) const MAGIC: &[u8] = b"$$TR_IOREC-";
const FORM_FEED: u8 = 0x0c;
/// The samples' headers are below 3 kB; disks of a large server fit many times.
const MAX_HEADER: usize = 64 << 10;
const LENGTH: usize = 24;
const POSITION_1_3: usize = 28;
const DEVICE: usize = 32;
const FLAGS: usize = 44;
const POSITION_1_7: usize = 64;
const SECTOR_1_3: u64 = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    V1_3,
    V1_7,
}

impl Layout {
    fn size(self) -> usize {
        match self {
            Self::V1_3 => 56,
            Self::V1_7 => 88,
        }
    }
}

#[derive(Default)]
pub(crate) struct Srt {
    layout: Option<Layout>,
}

impl Srt {
    fn header(source: &mut Source) -> Result<Layout, Fault> {
        let ready = source.peek(MAX_HEADER).map_err(Fault::Io)?;
        let Some(rest) = ready.strip_prefix(MAGIC) else { return Err(Fault::Fatal(Reason::Magic)) };
        let layout = match rest {
            [b'1', b'.', b'3', ..] => Layout::V1_3,
            [b'1', b'.', b'7', ..] => Layout::V1_7,
            _ => {
                let found = rest.iter().take(8).take_while(|b| b.is_ascii_graphic());
                let found = found.map(|&b| char::from(b)).collect();
                return Err(Fault::Fatal(Reason::Version { found, known: "1.3, 1.7" }));
            }
        };
        let end = ready.iter().take(MAX_HEADER).position(|&b| b == FORM_FEED);
        let Some(end) = end else { return Err(Fault::Fatal(Reason::Header("header's final form feed"))) };
        source.skip(end as u64 + 1)?;
        Ok(layout)
    }
}

impl Decode for Srt {
    const TEXT: bool = false;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        let layout = match self.layout {
            Some(layout) => layout,
            None => *self.layout.insert(Self::header(source)?),
        };
        let size = layout.size();
        let Some(record) = source.record(size).map_err(|short| short.of(size))? else { return Ok(None) };
        let word = |at: usize| {
            u32::from_be_bytes(record[at..at + 4].try_into().expect("a record holds whole words"))
        };
        if word(0) as usize != size {
            return Err(Fault::Bad(Reason::Magic));
        }
        if word(12) >= 1_000_000 {
            return Err(Fault::Bad(Reason::Overflow { field: "microseconds" }));
        }
        let device = word(DEVICE);
        let (offset, device) = match layout {
            Layout::V1_3 => {
                let disk = (device & 0x00ff_fff0) >> 4;
                let offset = times(u64::from(word(POSITION_1_3)), SECTOR_1_3, "sector")?;
                (offset, devices.numbered(u64::from(disk), || format!("disk {disk:#x}"))?)
            }
            Layout::V1_7 => {
                let offset = u64::from(word(POSITION_1_7)) << 32 | u64::from(word(POSITION_1_7 + 4));
                (offset, devices.numbered(u64::from(device), || format!("{device:#010x}"))?)
            }
        };
        Ok(Some(Raw {
            time: u64::from(word(8)) * 1_000_000_000 + u64::from(word(12)) * 1_000,
            device,
            offset,
            len: u64::from(word(LENGTH)),
            kind: if word(FLAGS) & 1 == 1 { Kind::Read } else { Kind::Write },
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Kind, Position, Reason, TraceError, open};
    use std::time::Duration;

    fn record(size: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut record = vec![0; size];
        record[..4].copy_from_slice(&(size as u32).to_be_bytes());
        for &(at, value) in words {
            record[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        record
    }

    fn trace_1_3() -> Vec<u8> {
        let mut bytes = b"$$TR_IOREC-1.3 (x)\0\nversion = 1.3;\n\x0c".to_vec();
        bytes.extend(record(
            56,
            &[(8, 7), (12, 500_000), (24, 4096), (28, 40), (32, 0x0800_0107), (44, 0x1b)],
        ));
        bytes.extend(record(56, &[(8, 8), (12, 0), (24, 1024), (28, 4), (32, 0x0800_0008), (44, 0x0a)]));
        bytes.extend(record(56, &[(8, 8), (12, 1), (24, 512), (28, 8), (32, 0x0700_010f), (44, 0x0a)]));
        bytes
    }

    #[test]
    fn version_1_3_has_256_byte_sectors_and_sections_of_disks() {
        let bytes = trace_1_3();
        let mut reader = open("x", std::io::Cursor::new(bytes)).unwrap();
        let requests: Vec<_> = reader.by_ref().map(|r| r.unwrap()).collect();
        assert_eq!(reader.devices(), ["disk 0x10", "disk 0x0"]);
        assert_eq!((requests[0].at, requests[0].offset, requests[0].len), (Duration::ZERO, 40 * 256, 4096));
        assert_eq!((requests[0].kind, requests[1].kind), (Kind::Read, Kind::Write));
        assert_eq!(requests[1].at, Duration::from_millis(500));
        assert_eq!([requests[0].device, requests[1].device, requests[2].device], [0, 1, 0]);
    }

    #[test]
    fn version_1_7_has_64_bit_byte_offsets() {
        let mut bytes = b"$$TR_IOREC-1.7 : y\0\n\x0c".to_vec();
        bytes.extend(record(88, &[(8, 1), (24, 4096), (32, 9), (44, 0x20_4093), (64, 2), (68, 0x1000)]));
        let mut reader = open("x", std::io::Cursor::new(bytes)).unwrap();
        let request = reader.next().unwrap().unwrap();
        assert_eq!((request.offset, request.kind), ((2 << 32) + 0x1000, Kind::Read));
        assert!(reader.next().is_none());
    }

    #[test]
    fn a_cut_record_and_an_unknown_version_are_named() {
        let mut bytes = trace_1_3();
        bytes.truncate(bytes.len() - 3);
        let last = open("x", std::io::Cursor::new(bytes)).unwrap().last().unwrap();
        let Err(TraceError::Bad { at, reason, .. }) = last else { panic!("{last:?}") };
        assert_eq!((at, reason), (Position::Byte(148), Reason::Truncated { have: 53, need: 56 }));
        let mut reader = open("x", &b"$$TR_IOREC-2.1 z\x0c"[..]).unwrap();
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("version 2.1"), "{error}");
    }
}
