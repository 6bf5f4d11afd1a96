//! The block record: the one shape in which data is stored, replicated, offloaded, reclaimed and rebuilt.
//!
//! A chunk is an array of 4 KiB blocks and every block carries the version of its last write. A record sets a run of
//! blocks to a version; a store applies it to exactly those blocks whose version is older. Applying is therefore
//! idempotent and order-free: a late, repeated or reordered record can never undo a newer one (R6), and "what does this
//! replica miss?" is a comparison of versions. Primaries round client writes out to whole blocks before they order
//! them.

use crate::{ChunkId, GroupId, RequestId, ServerId, Version};
use serde::{Deserialize, Serialize};

/// Unit of versions and checksums.
pub const BLOCK_BYTES: usize = 4096;
/// Smallest and largest chunk size that a cluster may be created with.
pub const CHUNK_BYTES_MIN: u32 = 1 << 20;
pub const CHUNK_BYTES_MAX: u32 = 64 << 20;
/// Most blocks in one record: bounds every frame and every buffer.
pub const RECORD_BLOCKS_MAX: u32 = 1024;

/// The role in which a server keeps a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// As one of the chunk group's replicas.
    #[default]
    Replica,
    /// As offload: the durable copy that `stands_for` would have if it were awake.
    Offload { stands_for: ServerId },
}

/// What a record sets its blocks to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// Bytes, carried beside the record: `count * BLOCK_BYTES` of them. One CRC-32C per block.
    Data { crcs: Vec<u32> },
    /// Zeroes, which take no space.
    Zero,
    /// The whole chunk is gone. `first` and `count` are zero. Final: a chunk id is never used again.
    Delete,
    /// Sets nothing. It notes that the write of `request` is in these blocks, or was overwritten there since, wherever
    /// a block has a version of this record's epoch: so the request's id is found as long as its own record would be.
    Note,
}

impl Content {
    pub fn kind(&self) -> Kind {
        match self {
            Content::Data { .. } => Kind::Data,
            Content::Zero => Kind::Zero,
            Content::Note => Kind::Note,
            Content::Delete => Kind::Delete,
        }
    }
}

/// [`Content`] without the checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    Data,
    Zero,
    Delete,
    /// In tails only: no block has this kind.
    Note,
    /// In listings only: the content of the blocks is no longer known; it was not newer than the version.
    Lost,
}

/// A write as it is stored and sent. The payload of [`Content::Data`] travels beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub group: GroupId,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
    pub version: Version,
    /// The client request behind it; absent if Ebb itself rewrote the blocks.
    pub request: Option<RequestId>,
    pub content: Content,
}

impl Record {
    /// Whether this is a store's answer for blocks that it does not have.
    pub fn is_never_written(&self) -> bool {
        self.version == Version::ZERO
    }

    /// Length in bytes of this record's payload.
    pub fn payload_len(&self) -> usize {
        match self.content {
            Content::Data { .. } => self.count as usize * BLOCK_BYTES,
            Content::Zero | Content::Delete | Content::Note => 0,
        }
    }

    pub fn run(&self) -> Run {
        Run {
            chunk: self.chunk,
            first: self.first,
            count: self.count,
            version: self.version,
            kind: self.content.kind(),
        }
    }

    /// Why this record is malformed, if it is: checked on every record from the wire or from disk.
    pub fn fault(&self, payload_len: usize) -> Option<&'static str> {
        if payload_len != self.payload_len() {
            return Some("payload length does not match the block count");
        }
        match &self.content {
            Content::Delete if self.first != 0 || self.count != 0 => Some("a delete names no blocks"),
            Content::Delete => None,
            Content::Note if self.request.is_none() => Some("a note names a request"),
            _ if self.count == 0 || self.count > RECORD_BLOCKS_MAX => Some("block count out of range"),
            _ if self.first as usize + self.count as usize > CHUNK_BYTES_MAX as usize / BLOCK_BYTES => {
                Some("blocks past the end of the largest chunk")
            }
            Content::Data { crcs } if crcs.len() != self.count as usize => {
                Some("one checksum per block is needed")
            }
            _ => None,
        }
    }
}

/// Blocks `first..first + count` of a chunk that have the same version and kind. A deletion is one run with no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
    pub version: Version,
    pub kind: Kind,
}

/// CRC-32C of each block of a whole-block payload.
pub fn block_crcs(payload: &[u8]) -> Vec<u32> {
    payload.chunks(BLOCK_BYTES).map(crc32c).collect()
}

/// CRC-32C of bytes at `offset` of a chunk, one per block touched; the first and the last may cover only part of a
/// block.
pub fn piece_crcs(offset: u32, bytes: &[u8]) -> Vec<u32> {
    let until_border = (BLOCK_BYTES - offset as usize % BLOCK_BYTES) % BLOCK_BYTES;
    let (head, rest) = bytes.split_at(until_border.min(bytes.len()));
    let head = (!head.is_empty()).then(|| crc32c(head));
    head.into_iter().chain(rest.chunks(BLOCK_BYTES).map(crc32c)).collect()
}

/// The checksum under which a server stores a block of zeroes that it knows to be lost on all copies: they never match,
/// so that a read of the block is an error.
pub fn lost_block_crc() -> u32 {
    !zero_block_crc()
}

/// Whether these are the checksums of these blocks, some of which may be stored as lost ([`lost_block_crc`]).
pub fn are_sound_or_lost(crcs: &[u32], payload: &[u8]) -> bool {
    let is_lost = |block: &[u8], crc| crc == lost_block_crc() && block.iter().all(|byte| *byte == 0);
    let mut blocks = payload.chunks(BLOCK_BYTES).zip(crcs);
    payload.len() == crcs.len() * BLOCK_BYTES
        && blocks.all(|(block, crc)| crc32c(block) == *crc || is_lost(block, *crc))
}

/// CRC-32C of a block of zeroes.
pub fn zero_block_crc() -> u32 {
    static CRC: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *CRC.get_or_init(|| crc32c(&[0; BLOCK_BYTES]))
}

/// CRC-32C over the checksums of consecutive blocks (little endian): one checksum for any number of bytes, without a
/// second pass over them.
#[derive(Debug)]
pub struct CrcOfBlocks(crc_fast::Digest);

impl Default for CrcOfBlocks {
    fn default() -> Self {
        CrcOfBlocks(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl CrcOfBlocks {
    pub fn add(&mut self, crcs: &[u32]) {
        for crc in crcs {
            self.0.update(&crc.to_le_bytes());
        }
    }

    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// CRC-32C (Castagnoli), the one checksum of Ebb's files and frames.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn bytes_are_summed_block_by_block() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        let aligned = [crc32c(&bytes[..4096]), crc32c(&bytes[4096..8192]), crc32c(&bytes[8192..])];
        assert_eq!(piece_crcs(8192, &bytes), aligned);
        let shifted = [crc32c(&bytes[..96]), crc32c(&bytes[96..4192]), crc32c(&bytes[4192..8288])];
        assert_eq!(piece_crcs(4000, &bytes)[..3], shifted);
        assert_eq!(piece_crcs(4000, &bytes[..50]), [crc32c(&bytes[..50])]);
        assert!(piece_crcs(4000, &[]).is_empty());
        let (mut at_once, mut in_parts) = (CrcOfBlocks::default(), CrcOfBlocks::default());
        at_once.add(&aligned);
        aligned.iter().for_each(|crc| in_parts.add(&[*crc]));
        assert_eq!(at_once.finish(), in_parts.finish());
        in_parts.add(&aligned[..1]);
        assert_ne!(at_once.finish(), in_parts.finish());
    }

    #[test]
    fn malformed_records_are_named() {
        let mut record = Record {
            group: GroupId(1),
            chunk: ChunkId::default(),
            first: 0,
            count: 2,
            version: Version::ZERO,
            request: None,
            content: Content::Data { crcs: vec![0, 0] },
        };
        assert_eq!(record.fault(2 * BLOCK_BYTES), None);
        assert!(record.fault(BLOCK_BYTES).is_some());
        record.content = Content::Data { crcs: vec![0] };
        assert!(record.fault(2 * BLOCK_BYTES).is_some());
        record.content = Content::Zero;
        record.first = u32::MAX;
        assert!(record.fault(0).is_some());
        record.content = Content::Delete;
        assert!(record.fault(0).is_some());
    }
}
