//! What operations set their blocks to, as whole blocks.

use super::op::{Got, Op, Work};
use crate::common::blocks::{BLOCK, split_payload, whole};
use bytes::{Bytes, BytesMut};
use ebb_types::{
    BLOCK_BYTES, ChunkOp, Content, Kind, RECORD_BLOCKS_MAX, Version, block_crcs, crc32c, lost_block_crc,
};

/// A part of an operation that becomes one record.
pub struct Part {
    pub first: u32,
    pub count: u32,
    pub content: Content,
    pub payload: Bytes,
}

impl Part {
    fn data(first: u32, payload: Bytes) -> Part {
        let count = (payload.len() / BLOCK_BYTES) as u32;
        Part { first, count, content: Content::Data { crcs: block_crcs(&payload) }, payload }
    }

    /// Blocks that no copy has: reading them is an error, and no older copy of them counts.
    fn lost(&(first, count): &(u32, u32)) -> Part {
        let payload = Bytes::from(vec![0; count as usize * BLOCK_BYTES]);
        let crcs = vec![lost_block_crc(); count as usize];
        Part { first, count, content: Content::Data { crcs }, payload }
    }

    fn zeroes(first: u32, count: u32) -> impl Iterator<Item = Part> {
        (first..first + count).step_by(RECORD_BLOCKS_MAX as usize).map(move |at| Part {
            first: at,
            count: (first + count - at).min(RECORD_BLOCKS_MAX),
            content: Content::Zero,
            payload: Bytes::new(),
        })
    }
}

/// What the operation sets its blocks to, as whole blocks.
pub fn contents(op: &Op, got: Got) -> Vec<Part> {
    let delete = Part { first: 0, count: 0, content: Content::Delete, payload: Bytes::new() };
    match op.work() {
        Work::Rewrite { kind: Kind::Delete }
        | Work::Heal { kind: Kind::Delete }
        | Work::Client { op: ChunkOp::Delete { .. }, .. } => {
            vec![delete]
        }
        Work::Claim => Vec::new(),
        Work::Note => {
            let (first, count) = op.blocks();
            vec![Part { first, count, content: Content::Note, payload: Bytes::new() }]
        }
        Work::Rewrite { .. } | Work::Heal { .. } => got
            .into_values()
            .filter_map(|(records, payload)| split_payload(records, &payload))
            .flatten()
            .filter(|(r, _)| op.is_rewrite() || r.version > Version::ZERO)
            .map(|(r, payload)| match r.content {
                Content::Data { .. } => Part { first: r.first, count: r.count, content: r.content, payload },
                _ => Part { first: r.first, count: r.count, content: Content::Zero, payload },
            })
            .chain(op.lost().iter().filter(|_| op.is_rewrite()).map(Part::lost))
            .collect(),
        Work::Client { op: ChunkOp::Zero { up_to: Some(version), .. }, .. } => got
            .into_values()
            .flat_map(|(records, _)| records)
            .filter(|record| record.content.kind() == Kind::Data && record.version <= *version)
            .flat_map(|record| Part::zeroes(record.first, record.count))
            .collect(),
        Work::Client { op: ChunkOp::Zero { offset, len, .. }, .. } => zero_parts(*offset, *len, got),
        Work::Client { op: ChunkOp::Write { offset, len, crcs, .. }, payload } => {
            let payload = with_edges(*offset, payload, got);
            let mut crcs = crcs.clone();
            // A merged edge block holds more bytes than the client's checksum covers.
            let edges = [(0, *offset), (crcs.len() - 1, offset + len)];
            for (index, _) in edges.into_iter().filter(|(_, border)| !border.is_multiple_of(BLOCK)) {
                crcs[index] = crc32c(&payload[index * BLOCK_BYTES..][..BLOCK_BYTES]);
            }
            let (first, count) = op.blocks();
            debug_assert_eq!(payload.len(), count as usize * BLOCK_BYTES, "a record is of whole blocks");
            debug_assert_eq!(crcs.len(), count as usize, "each block has its checksum (R14)");
            vec![Part { first, count, content: Content::Data { crcs }, payload }]
        }
        Work::Check | Work::Client { op: ChunkOp::Read { .. } | ChunkOp::Look { .. }, .. } => {
            unreachable!("a read orders nothing")
        }
    }
}

/// A client's bytes, padded to whole blocks with the present content.
fn with_edges(offset: u32, bytes: &Bytes, mut got: Got) -> Bytes {
    if got.is_empty() {
        return bytes.clone();
    }
    let first = offset / BLOCK;
    let end = offset + bytes.len() as u32;
    let mut out = BytesMut::zeroed(((end.div_ceil(BLOCK) - first) * BLOCK) as usize);
    for (block, (records, payload)) in std::mem::take(&mut got) {
        let at = ((block - first) * BLOCK) as usize;
        out[at..at + BLOCK_BYTES].copy_from_slice(&whole(&records, payload));
    }
    let at = (offset - first * BLOCK) as usize;
    out[at..at + bytes.len()].copy_from_slice(bytes);
    out.freeze()
}

/// Whole blocks become zero records without data; partly zeroed edge blocks are written as data.
fn zero_parts(offset: u32, len: u32, got: Got) -> Vec<Part> {
    let end = offset + len;
    let mut parts = Vec::new();
    for (block, (records, payload)) in got {
        let mut bytes = BytesMut::from(&whole(&records, payload)[..]);
        let from = offset.saturating_sub(block * BLOCK) as usize;
        let to = (end - block * BLOCK).min(BLOCK) as usize;
        bytes[from..to].fill(0);
        parts.push(Part::data(block, bytes.freeze()));
    }
    let (inner, outer) = (offset.div_ceil(BLOCK), end / BLOCK);
    if inner < outer {
        parts.extend(Part::zeroes(inner, outer - inner));
    }
    parts
}
