//! The store of one chunk server: durable block records; the newest version of a block wins.
//!
//! ```text
//! StoreCore::open(disk: Arc<dyn Disk>, config: Config) -> Result<(StoreCore, Recovered), OpenError>
//! StoreCore::execute(&mut self, ops: Vec<(Token, Op)>, done: &mut Vec<Completion>)   // one group commit
//! StoreCore::settle(&mut self) -> bool      // one step of the background work; true: call again
//! StoreCore::rest(&mut self)                // writes have paused: records the segment lengths in the inventory
//! StoreHandle::start(core, deliver: impl FnMut(Vec<Completion>) + Send + 'static) -> io::Result<StoreHandle>  // one I/O thread
//! StoreHandle::submit(&self, token, op);  StoreHandle::wake(&self)   // after the last of several
//! StoreHandle::try_read(&self, role, group, chunk, first, count) -> Option<ReadBlocks>  // None: submit a Read
//! StoreHandle::figures(&self) -> StoreFigures;  StoreHandle::queued(&self) -> usize
//! ```
//! `docs/disk-format.md` draws the bytes.

pub mod api;
mod core;
pub mod disk;
mod flat;
mod handle;
mod index;
mod inventory;
mod layout;
pub mod mem;
mod names;
mod open;
mod overlay;
mod query;
mod recent;
mod recovery;
mod settle;
mod superblock;
mod tails;
#[cfg(test)]
mod tests;
mod unsettled;

pub use crate::core::{BATCH_BYTES, StoreCore};
pub use api::*;
pub use disk::{DirEntry, Disk, DiskFile, LinuxDisk};
pub use flat::{BlockDevice, FlatDisk, FlatError};
pub use handle::StoreHandle;
pub use settle::OVERDUE;
