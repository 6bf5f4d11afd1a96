//! Bounds the bytes in flight (R12): both ends of a connection bound what they start, and leave the rest where it is.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Accounting unit in bytes.
const SHARE_BYTES: usize = 1 << 10;

/// A budget of bytes, first come, first served.
#[derive(Debug)]
pub struct Budget {
    units: usize,
    free: Arc<Semaphore>,
}

/// A share of a budget, returned when dropped.
#[derive(Debug)]
pub struct Share {
    _permit: OwnedSemaphorePermit,
}

impl Budget {
    /// `bytes` must be at least the largest share requested.
    pub fn new(bytes: usize) -> Budget {
        let units = bytes / SHARE_BYTES;
        Budget { units, free: Arc::new(Semaphore::new(units)) }
    }

    /// Waits until `bytes` are available. A request without bytes takes a unit too, so that it is bounded as well.
    pub async fn share(&self, bytes: usize) -> Share {
        let shares = 1 + bytes.div_ceil(SHARE_BYTES);
        debug_assert!(shares <= self.units, "what is larger than the budget would wait forever");
        let permit = self.free.clone().acquire_many_owned(shares as u32).await;
        Share { _permit: permit.expect("it is never closed") }
    }

    /// Whether the next request has to wait.
    pub fn is_exhausted(&self) -> bool {
        self.free.available_permits() == 0
    }
}
