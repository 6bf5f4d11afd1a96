//! How much of a volume the front has, and who waits until that changes. Writers and the mover change it; the mover
//! waits until it has grown, writers until it has shrunk.

use ebb_client::bug;
use ebb_types::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

#[derive(Default)]
pub(crate) struct Front {
    /// Those that are known to be there.
    blocks: AtomicU64,
    /// Counts writes: shows which slice was written last.
    writes: AtomicU64,
    grown: Arc<Notify>,
    shrunk: Notify,
}

impl Front {
    pub fn bytes(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed) * BLOCK_BYTES as u64
    }

    /// The number of a write that is done.
    pub fn number_write(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed)
    }

    /// Larger than the number of any write.
    pub fn next_write(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// It has grown by this many blocks, or shrunk.
    pub fn count(&self, blocks: i64) {
        match u64::try_from(blocks) {
            Ok(more) => drop(self.blocks.fetch_add(more, Ordering::Relaxed)),
            Err(_) => {
                let less = blocks.unsigned_abs();
                if self.blocks.fetch_sub(less, Ordering::Relaxed) < less {
                    bug("more blocks left the front of a volume than it had");
                }
            }
        }
        if blocks < 0 {
            self.shrunk.notify_waiters();
        } else if blocks > 0 {
            self.grown.notify_one();
        }
    }

    /// Notified when it has grown. Outlives the volume.
    pub fn grown(&self) -> Arc<Notify> {
        self.grown.clone()
    }

    /// Ends when it has shrunk.
    pub fn shrunk(&self) -> Notified<'_> {
        self.shrunk.notified()
    }
}
