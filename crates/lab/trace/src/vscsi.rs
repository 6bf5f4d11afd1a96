//! VMware vscsi traces: little-endian records of SCSI commands, 32 bytes in version 1 and 40 in version 2.
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | opcode u16, version u16 (high byte counts) | 12, 14 | 0, 2 |
//! | length u32, bytes | 4 | 8 |
//! | block u64, 512 bytes | 16 | 16 |
//! | time u64, microseconds | 24 | 24 |
//!
//! The SCSI opcode distinguishes reads from writes; commands that move no data are skipped. A file is one disk and is
//! named after its input.

use crate::number::times;
use crate::reader::{Decode, Devices, Fault, Raw};
use crate::source::Source;
use crate::unit::SECTOR;
use crate::{Kind, Reason};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

pub(crate) struct Vscsi {
    device: String,
    version: Option<Version>,
}

/// Reads and writes of 6, 10, 12 and 16 bytes.
fn kind(opcode: u16) -> Option<Kind> {
    match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Kind::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(Kind::Write),
        _ => None,
    }
}

fn short(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

/// The version shown by a trace's first bytes.
fn version(head: &[u8]) -> Option<Version> {
    // Opcodes are one byte in a word of two.
    let is = |at: usize, version: u16| short(head, at) < 0x100 && short(head, at + 2) >> 8 == version;
    match head.len() {
        40.. if is(0, 2) => Some(Version::V2),
        32.. if is(12, 1) => Some(Version::V1),
        _ => None,
    }
}

/// Whether a trace of unknown format starts like this one.
pub(crate) fn detect(head: &[u8]) -> bool {
    match version(head) {
        Some(Version::V1) => kind(short(head, 12)).is_some(),
        Some(Version::V2) => kind(short(head, 0)).is_some(),
        None => false,
    }
}

impl Vscsi {
    pub(crate) fn new(input: &str) -> Self {
        Self { device: input.into(), version: None }
    }
}

impl Decode for Vscsi {
    const TEXT: bool = false;

    fn next(&mut self, source: &mut Source, devices: &mut Devices) -> Result<Option<Raw>, Fault> {
        let format = match self.version {
            Some(version) => version,
            None => {
                let head = source.peek(40).map_err(Fault::Io)?;
                if head.is_empty() {
                    return Ok(None);
                }
                let found = version(head).ok_or_else(|| {
                    let found = "no 1 or 2 where a little-endian vscsi record has it".into();
                    Fault::Fatal(Reason::Version { found, known: "1, 2" })
                })?;
                *self.version.insert(found)
            }
        };
        let (size, opcode, length) = match format {
            Version::V1 => (32, 12, 4),
            Version::V2 => (40, 0, 8),
        };
        loop {
            let Some(record) = source.record(size).map_err(|short| short.of(size))? else { return Ok(None) };
            if short(record, opcode + 2) >> 8 != if format == Version::V1 { 1 } else { 2 } {
                return Err(Fault::Bad(Reason::Magic));
            }
            let Some(kind) = kind(short(record, opcode)) else { continue };
            let long =
                |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("within the record"));
            let len = u32::from_le_bytes(record[length..length + 4].try_into().expect("within the record"));
            return Ok(Some(Raw {
                time: times(long(24), 1_000, "time")?,
                offset: times(long(16), SECTOR, "block")?,
                len: u64::from(len),
                kind,
                device: devices.named(self.device.as_bytes())?,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Kind, TraceError, open};
    use std::io::Cursor;
    use std::time::Duration;

    fn v1(opcode: u16, block: u64, len: u32, time: u64) -> Vec<u8> {
        let mut record = 1u32.to_le_bytes().to_vec();
        record.extend(len.to_le_bytes());
        record.extend(1u32.to_le_bytes());
        record.extend(opcode.to_le_bytes());
        record.extend(0x0100u16.to_le_bytes());
        record.extend(block.to_le_bytes());
        record.extend(time.to_le_bytes());
        record
    }

    fn v2(opcode: u16, block: u64, len: u32, time: u64) -> Vec<u8> {
        let mut record = opcode.to_le_bytes().to_vec();
        record.extend(0x0200u16.to_le_bytes());
        record.extend(7u32.to_le_bytes());
        record.extend(len.to_le_bytes());
        record.extend(1u32.to_le_bytes());
        record.extend(block.to_le_bytes());
        record.extend(time.to_le_bytes());
        record.extend(900u64.to_le_bytes());
        record
    }

    #[test]
    fn both_versions_read_and_pass_over_other_commands() {
        for make in [v1, v2] {
            let trace = [make(0x28, 9, 512, 5), make(0x00, 0, 0, 6), make(0x8a, 1 << 40, 4096, 8)].concat();
            let mut reader = open("vm.vscsi", Cursor::new(trace)).unwrap();
            let requests: Vec<_> = reader.by_ref().map(|r| r.unwrap()).collect();
            assert_eq!(requests.len(), 2);
            assert_eq!((requests[0].offset, requests[0].len, requests[0].kind), (9 * 512, 512, Kind::Read));
            assert_eq!((requests[1].offset, requests[1].at), (512 << 40, Duration::from_micros(3)));
            assert_eq!(reader.devices(), ["vm.vscsi"]);
        }
    }

    #[test]
    fn the_other_endianness_is_refused() {
        let mut record = v1(0x28, 9, 512, 5);
        record.iter_mut().for_each(|b| *b = b.reverse_bits());
        record[12..16].copy_from_slice(&[0, 0x28, 1, 0]);
        let error = open("vm.vscsi", Cursor::new(record)).unwrap().next().unwrap().unwrap_err();
        assert!(
            matches!(error, TraceError::Bad { .. }) && error.to_string().contains("little-endian"),
            "{error}"
        );
    }
}
