//! The segment being written, and records on their way to it.

use crate::disk::DiskFile;
use crate::index::{FileKey, Settled};
use crate::layout::{Head, HeadKind, RECORD_ALIGN, SEGMENT_HEADER_BYTES};
use crate::overlay::Position;
use bytes::Bytes;
use ebb_types::{ChunkId, GroupId, Kind, RequestId, Role, TailRun, Version};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The segment being written.
pub(crate) struct OpenSegment {
    pub number: u32,
    pub file: Arc<dyn DiskFile>,
    /// Durable length. Zero: the header is still to be written.
    pub len: u32,
    pub salt: u32,
    pub header: [u8; SEGMENT_HEADER_BYTES],
    /// Length of the file: zeroes from `len` on.
    pub ahead: u32,
    /// Truncated after a failed write; the truncation is not durable before the next sync.
    pub cut: bool,
    /// Still to be truncated.
    pub uncut: bool,
}

impl OpenSegment {
    /// The position of its end among all segments.
    pub fn end(&self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.len)
    }

    /// Where the next record goes.
    pub fn next(&self) -> u64 {
        if self.len == 0 { SEGMENT_HEADER_BYTES as u64 } else { self.len.into() }
    }

    /// Cuts off whatever follows the records.
    pub fn cut(&mut self) -> io::Result<()> {
        debug_assert!(self.ahead >= self.len, "no record is cut off");
        self.uncut = true;
        self.file.truncate(self.len.into())?;
        (self.ahead, self.cut, self.uncut) = (self.len, true, false);
        Ok(())
    }
}

/// A record on its way to the segment.
pub(crate) struct Staged {
    pub head: Head,
    /// Payload of a [`HeadKind::Data`] record; otherwise empty.
    pub payload: Bytes,
}

impl Staged {
    /// States that a chunk file durably holds what its pages of this generation say.
    pub fn settled((group, chunk): FileKey, settled: &Settled) -> Staged {
        let mut record = Staged::marker(HeadKind::Settled, Role::Replica, group);
        (record.head.chunk, record.head.first) = (chunk, settled.generation);
        (record.head.count, record.head.version) = (settled.blocks, settled.newest);
        record.head.request = Some(RequestId { client: settled.file, seq: settled.before.to_u64() });
        record
    }

    pub fn deletion(role: Role, group: GroupId, chunk: ChunkId, version: Version) -> Staged {
        let mut record = Staged::marker(HeadKind::Delete, role, group);
        (record.head.chunk, record.head.version) = (chunk, version);
        record
    }

    /// States that a record may not be on all targets, when its segment is retired. A note is copied as a note.
    pub fn open(role: Role, group: GroupId, TailRun { run, request }: TailRun) -> Staged {
        let kind = if run.kind == Kind::Note { HeadKind::Note } else { HeadKind::Open };
        let mut record = Staged::marker(kind, role, group);
        (record.head.chunk, record.head.first, record.head.count) = (run.chunk, run.first, run.count);
        (record.head.version, record.head.request) = (run.version, request);
        record
    }

    /// Whether it drops everything of the role and group.
    pub fn drops(&self, role: Role, group: GroupId) -> bool {
        self.head.kind == HeadKind::Drop && (self.head.role, self.head.group) == (role, group)
    }

    /// A record that names no chunk.
    pub fn marker(kind: HeadKind, role: Role, group: GroupId) -> Staged {
        Staged { head: Head { kind, role, group, ..Head::default() }, payload: Bytes::new() }
    }
}

/// Writes records at the segment's end; returns their positions and the new end.
pub(crate) fn write_batch(open: &OpenSegment, records: &mut [Staged]) -> io::Result<(Vec<Position>, u32)> {
    const PADDING: [u8; RECORD_ALIGN] = [0; RECORD_ALIGN];
    debug_assert!(!open.uncut, "what a failed write left is cut off first");
    let mut at = open.next();
    let mut heads = Vec::with_capacity(records.iter().map(|r| r.head.head_len()).sum());
    let mut positions = Vec::with_capacity(records.len());
    for record in records.iter_mut() {
        let offset = u32::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        debug_assert!(at.is_multiple_of(RECORD_ALIGN as u64), "recovery looks for records there only");
        debug_assert!(record.head.is_sound(), "recovery would take it for damage: {:?}", record.head);
        debug_assert_eq!(
            record.payload.len(),
            record.head.payload_len(),
            "the next record would be elsewhere"
        );
        let position = Position { segment: open.number, offset };
        record.head.synced = open.len;
        if record.head.kind == HeadKind::Drop && !record.head.moved {
            record.head.version.seq = position.to_u64();
        }
        record.head.encode(open.salt, &mut heads);
        positions.push(position);
        at += record.head.record_len() as u64;
    }
    let end = u32::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut parts = Vec::with_capacity(3 * records.len() + 1);
    if open.len == 0 {
        parts.push(IoSlice::new(&open.header));
    }
    let mut rest = &heads[..];
    for record in records.iter() {
        let (head, after) = rest.split_at(record.head.head_len());
        rest = after;
        parts.push(IoSlice::new(head));
        if !record.payload.is_empty() {
            parts.push(IoSlice::new(&record.payload));
        }
        let padding = record.head.record_len() - record.head.head_len() - record.payload.len();
        if padding > 0 {
            parts.push(IoSlice::new(&PADDING[..padding]));
        }
    }
    debug_assert!(rest.is_empty(), "every head is written");
    open.file.write(&mut parts, open.len as u64)?;
    Ok((positions, end))
}
