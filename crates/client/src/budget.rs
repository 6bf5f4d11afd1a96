//! How many bytes may be under way at a time (R12): both ends of a connection bound what they begin, and leave the rest where it is.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of what is counted.
const SHARE_BYTES: usize = 1 << 10;

/// Bytes for those who wait their turn, first come, first served.
#[derive(Debug)]
pub struct Budget(Arc<Semaphore>);

/// What was taken, until it is dropped.
#[derive(Debug)]
pub struct Share {
    _permit: OwnedSemaphorePermit,
}

impl Budget {
    /// At least as many bytes as anybody asks for at a time.
    pub fn new(bytes: usize) -> Budget {
        Budget(Arc::new(Semaphore::new(bytes / SHARE_BYTES)))
    }

    /// Waits until there is room for so many bytes. What has none takes something too, so that it is bounded as well.
    pub async fn share(&self, bytes: usize) -> Share {
        let shares = 1 + bytes.div_ceil(SHARE_BYTES);
        let permit = self.0.clone().acquire_many_owned(shares as u32).await;
        Share { _permit: permit.expect("it is never closed") }
    }

    /// Whether the next one has to wait.
    pub fn is_exhausted(&self) -> bool {
        self.0.available_permits() == 0
    }
}
