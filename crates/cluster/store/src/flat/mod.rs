//! Files on one block device: a [`Disk`](crate::disk::Disk) for a server whose data lies on a mirror or a raw device,
//! without a file system.
//!
//! All metadata (names, files, where their blocks are, what is free) is in memory, and changes of it go to a journal of
//! checksummed commits ([`journal`]). Data is written in place, outside of the lock. Why this way: the store has few,
//! large files and syncs each batch itself, so a general file system's caches, directories and allocation groups would
//! only add writes. `docs/disk-format.md` draws the bytes.
//!
//! Invariants:
//! - The journal names a block only when what was written to it is durable, so no crash shows another file's bytes.
//! - A block is given away again only when the change that freed it is durable.
//! - Mapped blocks behind a file's end are zeroes, but for the rest of the last one (`stale_tail` of an inode).
//! - A small append allocates ahead, and fills that with zeroes; the journal has the length up to there. So most syncs
//!   of a growing file are one flush. After a crash this one file may be longer than it was, by zeroes.
//! - After a failed write of the journal, or a failed flush, nothing is changed any more: what is durable is not known.

mod device;
mod disk;
mod error;
mod extents;
mod file;
mod format;
mod inner;
mod journal;
#[cfg(test)]
pub(crate) mod mem;
mod state;
#[cfg(test)]
mod tests;

pub use device::BlockDevice;
pub use disk::FlatDisk;
pub use error::FlatError;
