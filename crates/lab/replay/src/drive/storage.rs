//! Storage that answers requests on its own, mostly behind a socket, as the engine sees it.

use bytes::Bytes;
use std::pin::Pin;
use std::time::Duration;

/// After which a write to a volume counts as failed. It is carried to its end by itself: others of the same blocks come
/// after it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Only this request: the next may succeed.
    Request(String),
    /// The target is gone.
    Lost(String),
}

/// The answer to one request.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Storage behind a socket or a thread of its own. `device` is 0 unless each device of a trace has its own place there.
pub trait Storage: Send + Sync + 'static {
    /// The bytes; empty if this storage cannot be checked.
    fn read(&self, device: u32, offset: u64, len: u32) -> Answering<'_, Bytes>;
    fn write(&self, device: u32, offset: u64, payload: Bytes) -> Answering<'_, ()>;
    /// Nothing more is asked.
    fn close(&self) -> Answering<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
