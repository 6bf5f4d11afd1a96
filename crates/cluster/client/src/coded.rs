//! A write to a chunk of an erasure-coded pool, as strips.

use bytes::Bytes;
use ebb_client_core::Summed;
use ebb_erasure::Code;
use ebb_types::{BLOCK_BYTES, Rows, Shape, crc32c, piece_crcs};

/// What a write brings to one column: whole blocks, then zeroes where other columns have longer strips.
#[derive(Clone, Debug)]
pub(crate) struct Strip {
    /// In the column.
    pub offset: u32,
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
    pub zeroes: u32,
}

/// The strips of a write that begins with a row: data, parity, extra. The checksums of whole blocks are used again;
/// `data` has one for each of its blocks.
pub(crate) fn split(rows: Rows, shape: Shape, code: &Code, offset: u32, data: &Summed) -> Vec<Strip> {
    debug_assert!(offset.is_multiple_of(rows.row_bytes()), "a write begins with a row");
    debug_assert_eq!(data.crcs.len(), data.bytes.len().div_ceil(BLOCK_BYTES), "a checksum for each block");
    let (first, blocks) = rows.blocks(offset, data.bytes.len() as u32);
    let offset_in_column = first * BLOCK_BYTES as u32;
    let strip_bytes = blocks as usize * BLOCK_BYTES;
    let (columns, crcs) = gathered(rows, shape, offset, data);
    let sources: Vec<&[u8]> = columns.chunks(strip_bytes).collect();
    let further = code.strips() - shape.data();
    let mut coded = vec![0; further * strip_bytes];
    let mut outs: Vec<&mut [u8]> = coded.chunks_mut(strip_bytes).collect();
    code.encode(&sources, &mut outs);
    let (columns, coded) = (Bytes::from(columns), Bytes::from(coded));
    let data_strips = crcs.into_iter().enumerate().map(|(nth, crcs)| {
        let (start, len) = (nth * strip_bytes, crcs.len() * BLOCK_BYTES);
        let zeroes = (strip_bytes - len) as u32;
        Strip { offset: offset_in_column, bytes: columns.slice(start..start + len), crcs, zeroes }
    });
    let further_strips = (0..further).map(|nth| {
        let bytes = coded.slice(nth * strip_bytes..(nth + 1) * strip_bytes);
        Strip { offset: offset_in_column, crcs: piece_crcs(0, &bytes), bytes, zeroes: 0 }
    });
    data_strips.chain(further_strips).collect()
}

/// The data strips one after another, padded with zeroes to one length; and for each the checksums of the blocks that
/// have data.
fn gathered(rows: Rows, shape: Shape, offset: u32, data: &Summed) -> (Vec<u8>, Vec<Vec<u32>>) {
    let (first, blocks) = rows.blocks(offset, data.bytes.len() as u32);
    let (first, strip_bytes) = (first as usize * BLOCK_BYTES, blocks as usize * BLOCK_BYTES);
    let mut columns = vec![0; shape.data() * strip_bytes];
    let mut crcs = vec![Vec::with_capacity(blocks as usize); shape.data()];
    let mut at = 0_usize;
    for part in rows.parts(offset, data.bytes.len() as u32) {
        let len = part.len as usize;
        debug_assert!(at.is_multiple_of(BLOCK_BYTES), "every part begins with a block");
        let to = part.column * strip_bytes + part.offset as usize - first;
        columns[to..to + len].copy_from_slice(&data.bytes[at..at + len]);
        let own = &data.crcs[at / BLOCK_BYTES..(at + len).div_ceil(BLOCK_BYTES)];
        crcs[part.column].extend_from_slice(own);
        if let (true, Some(last)) = (!len.is_multiple_of(BLOCK_BYTES), crcs[part.column].last_mut()) {
            let start = to + len / BLOCK_BYTES * BLOCK_BYTES;
            *last = crc32c(&columns[start..start + BLOCK_BYTES]);
        }
        at += len;
    }
    debug_assert_eq!(at, data.bytes.len(), "every byte is in a strip");
    (columns, crcs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_erasure::Codes;

    /// Any k strips of a write give its bytes back.
    #[test]
    fn a_write_is_in_its_strips_and_their_checksums_are_right() {
        let shape = Shape::new(4, 2).unwrap();
        let (rows, codes) = (Rows::new(shape, 1 << 20), Codes::new(shape));
        let (block, row) = (BLOCK_BYTES, rows.row_bytes() as usize);
        for len in [1, block, 16 * 1024 - 1, 16 * 1024 + 1, row - 1, row, row + 1, 3 * row + 5 * block + 7] {
            let bytes: Vec<u8> = (0..len).map(|n| (n / 7 + n / 4096) as u8 | 1).collect();
            let data = Summed { crcs: piece_crcs(0, &bytes), bytes: bytes.into() };
            let strips = split(rows, shape, codes.of(1), rows.row_bytes() * 2, &data);
            let (first, blocks) = rows.blocks(rows.row_bytes() * 2, len as u32);
            assert_eq!(strips.len(), 8, "{len}");
            let padded = |strip: &Strip| {
                let zeroes = vec![0; strip.zeroes as usize];
                [&strip.bytes[..], &zeroes].concat()
            };
            for strip in &strips {
                assert_eq!(strip.crcs, piece_crcs(0, &strip.bytes), "{len}");
                assert_eq!(strip.offset, first * block as u32);
                assert_eq!(padded(strip).len(), blocks as usize * block);
            }
            let all: Vec<Vec<u8>> = strips.iter().map(padded).collect();
            let mut back = vec![0; len];
            let mut at = 0;
            for part in rows.parts(rows.row_bytes() * 2, len as u32) {
                let from = part.offset as usize - first as usize * block;
                back[at..at + part.len as usize]
                    .copy_from_slice(&all[part.column][from..from + part.len as usize]);
                at += part.len as usize;
            }
            assert!(back == data.bytes, "{len}");
            let present: Vec<(usize, &[u8])> = [1, 3, 4, 5].iter().map(|n| (*n, &all[*n][..])).collect();
            let (mut zero, mut two) = (all[0].clone(), all[2].clone());
            zero.fill(9);
            two.fill(9);
            codes.of(1).recover(&present, &[0, 2], &mut [&mut zero, &mut two]).unwrap();
            assert!(zero == all[0] && two == all[2], "{len}");
        }
    }
}
