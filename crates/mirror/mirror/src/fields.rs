//! Little-endian numbers at fixed places, and the seal that every structure of the format starts with.
//!
//! Magic and checksum stand at the same place in all of them, in every version of the format, so that a release
//! recognizes what a later one wrote.

use ebb_types::crc32c;

/// A block's length as an index.
pub const BLOCK: usize = crate::BLOCK_BYTES as usize;
/// Length of the seal: the magic, then the CRC-32C of everything that follows the seal.
pub const SEAL_BYTES: usize = 12;

const _: () = assert!(SEAL_BYTES == 8 + size_of::<u32>());

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes[at..at + 16].try_into().expect("sixteen bytes")
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Writes the seal. Everything behind it is final.
pub fn seal(bytes: &mut [u8], magic: &[u8; 8]) {
    let crc = crc32c(&bytes[SEAL_BYTES..]);
    put(bytes, 0, magic);
    put(bytes, 8, &crc.to_le_bytes());
}

/// Whether the checksum is right, whatever the magic is. `bytes` are at least as long as the seal.
pub fn is_intact(bytes: &[u8]) -> bool {
    u32_at(bytes, 8) == crc32c(&bytes[SEAL_BYTES..])
}
