//! Arithmetic of blocks: ranges (start, end), and payloads as whole blocks with their checksums.

use bytes::{Bytes, BytesMut};
use ebb_types::{BLOCK_BYTES, ChunkOp, Content, RECORD_BLOCKS_MAX, Record, zero_block_crc};

pub(crate) const BLOCK: u32 = BLOCK_BYTES as u32;

/// The blocks that an operation touches (first, count); none for a deletion.
pub(crate) fn blocks_of(op: &ChunkOp) -> (u32, u32) {
    let (offset, len) = op.range();
    (offset / BLOCK, (offset + len).div_ceil(BLOCK) - offset / BLOCK)
}

/// What is left of these pieces without `start..end`.
pub(crate) fn without(pieces: Vec<(u32, u32)>, start: u32, end: u32) -> Vec<(u32, u32)> {
    pieces.into_iter().flat_map(|piece| cut(piece, start, end)).collect()
}

/// What is left of one piece without `start..end`.
pub(crate) fn cut(piece: (u32, u32), start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    let left = (piece.0, piece.1.min(start));
    let right = (piece.0.max(end), piece.1);
    [left, right].into_iter().filter(|(s, e)| s < e)
}

/// The same blocks in as few pieces as possible.
pub(crate) fn joined(mut pieces: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    pieces.sort_unstable();
    let mut whole: Vec<(u32, u32)> = Vec::new();
    for (start, end) in pieces {
        match whole.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => whole.push((start, end)),
        }
    }
    whole
}

/// The same blocks in pieces that each fit one record.
pub(crate) fn in_records(pieces: Vec<(u32, u32)>) -> impl Iterator<Item = (u32, u32)> {
    let step = RECORD_BLOCKS_MAX;
    let parts = move |(start, end): (u32, u32)| {
        (start..end).step_by(step as usize).map(move |at| (at, end.min(at + step)))
    };
    pieces.into_iter().flat_map(parts)
}

/// Splits the result of a read or fetch into records with their own payloads. `None`: the lengths do not add up.
pub(crate) fn split_payload(records: Vec<Record>, payload: &Bytes) -> Option<Vec<(Record, Bytes)>> {
    let mut at = 0usize;
    let mut parts = Vec::with_capacity(records.len());
    for record in records {
        let len = match record.content {
            Content::Data { .. } => record.count as usize * BLOCK_BYTES,
            _ => 0,
        };
        if payload.len() < at + len {
            return None;
        }
        parts.push((record, payload.slice(at..at + len)));
        at += len;
    }
    (at == payload.len()).then_some(parts)
}

/// The checksum of each block of a read.
pub(crate) fn crcs_of(records: &[Record]) -> Vec<u32> {
    let mut all = Vec::new();
    for record in records {
        match &record.content {
            Content::Data { crcs } => all.extend_from_slice(crcs),
            _ => all.resize(all.len() + record.count as usize, zero_block_crc()),
        }
    }
    all
}

/// The bytes of a read, with zero and never-written runs filled in.
pub(crate) fn whole(records: &[Record], payload: Bytes) -> Bytes {
    if records.iter().all(|r| matches!(r.content, Content::Data { .. })) {
        return payload;
    }
    let mut out = BytesMut::with_capacity(records.iter().map(|r| r.count as usize * BLOCK_BYTES).sum());
    let mut at = 0;
    for record in records {
        let len = record.count as usize * BLOCK_BYTES;
        if let Content::Data { .. } = record.content {
            out.extend_from_slice(&payload[at..at + len]);
            at += len;
        } else {
            out.resize(out.len() + len, 0);
        }
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_cut_to_what_a_record_holds() {
        let parts: Vec<(u32, u32)> = in_records(joined(vec![(2000, 2500), (0, 2000)])).collect();
        assert_eq!(parts, [(0, 1024), (1024, 2048), (2048, 2500)]);
        assert_eq!(without(parts, 1000, 2100), [(0, 1000), (2100, 2500)]);
    }
}
