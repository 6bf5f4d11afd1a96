//! Splits an object's byte range into pieces that one request can carry.

use crate::{BLOCK_BYTES, CLAIMS_FROM, ChunkId, ObjectId, RECORD_BLOCKS_MAX};

/// A part of an object's range that one request can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub chunk: ChunkId,
    /// Within the chunk.
    pub offset: u32,
    pub len: u32,
    /// Within the range that was split.
    pub start: u64,
}

/// Splits a range at chunk boundaries and at multiples of the largest record. `None` if the range extends past the last
/// chunk that an object can have.
pub fn pieces(
    object: ObjectId,
    offset: u64,
    len: u64,
    chunk_bytes: u32,
) -> Option<impl Iterator<Item = Piece>> {
    let chunk_bytes = u64::from(chunk_bytes);
    let longest = RECORD_BLOCKS_MAX as u64 * BLOCK_BYTES as u64;
    let end = offset.checked_add(len)?;
    if end.div_ceil(chunk_bytes) > u64::from(CLAIMS_FROM) {
        return None;
    }
    let mut at = offset;
    Some(std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % chunk_bytes;
        let until_cut = (longest - within % longest).min(chunk_bytes - within).min(end - at);
        let chunk = ChunkId { object, index: (at / chunk_bytes) as u32 };
        let piece = Piece { chunk, offset: within as u32, len: until_cut as u32, start: at - offset };
        at += until_cut;
        Some(piece)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_once_and_fit_one_record_each() {
        let chunk = 64 << 20;
        for (offset, len) in
            [(0, 1), (0, 200 << 20), (4095, 9 << 20), (chunk - 1, 2), (3 * chunk + 7, 4 << 20), (5, 0)]
        {
            let mut at = offset;
            for piece in pieces(ObjectId(1), offset, len, chunk as u32).unwrap() {
                assert_eq!(u64::from(piece.chunk.index) * chunk + u64::from(piece.offset), at);
                assert_eq!(piece.start, at - offset);
                let blocks = (piece.offset + piece.len).div_ceil(4096) - piece.offset / 4096;
                assert!(piece.len > 0 && blocks <= RECORD_BLOCKS_MAX);
                assert!(piece.offset + piece.len <= chunk as u32);
                at += u64::from(piece.len);
            }
            assert_eq!(at, offset + len);
        }
        assert!(pieces(ObjectId(1), u64::MAX, 1, chunk as u32).is_none());
        assert!(pieces(ObjectId(1), u64::MAX - 9, 5, chunk as u32).is_none());
    }
}
