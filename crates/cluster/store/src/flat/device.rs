//! What the files lie on: whole blocks, read and written by the caller's thread.

use bytes::Bytes;
use std::io;

/// Unit of addresses, allocation and writes, in bytes.
pub const BLOCK: u64 = 4096;

/// A block device. Offsets and lengths are bytes, multiples of [`BLOCK`], and lie within its size. Calls block, and
/// come from several threads at once.
pub trait BlockDevice: Send + Sync + 'static {
    /// Bytes.
    fn size(&self) -> u64;
    /// Appends `len` bytes from `offset` on to `out`.
    fn read(&self, out: &mut Vec<u8>, len: u64, offset: u64) -> io::Result<()>;
    /// Writes to all these offsets, in any order. What is read afterwards is new; it is durable after
    /// [`BlockDevice::flush`]. After a power cut before that, any of the sectors may be old.
    fn write(&self, writes: Vec<(u64, Bytes)>) -> io::Result<()>;
    /// Makes all writes that have ended durable.
    fn flush(&self) -> io::Result<()>;
}
