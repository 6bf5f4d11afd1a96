//! Writers: write a stream of requests in a format that other tools replay.

use crate::Request;
use std::io;
use std::time::Duration;

/// Takes requests in time order and writes them in one format.
pub trait TraceWriter {
    /// Appends a request. Times must not decrease; no reader's do.
    fn write(&mut self, request: &Request) -> Result<(), WriteError>;
    /// Writes everything that is still buffered and flushes. Nothing may be written after it.
    fn finish(&mut self) -> Result<Written, WriteError>;
}

/// The result of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub requests: u64,
    /// Requests without bytes, which the format cannot express and which were left out.
    pub empty: u64,
}

/// Writing a trace failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot write the trace: {0}")]
    Io(#[from] io::Error),
    #[error(
        "a btrecord file holds one device, device {first} came first and now comes {other}: write one file per device"
    )]
    OtherDevice { first: u32, other: u32 },
    #[error(
        "a request at {0:?} is beyond the 584 years that 64 bits of nanoseconds hold: scale the trace down"
    )]
    Time(Duration),
}

/// A time as the nanoseconds of a binary format.
pub(crate) fn nanos(at: Duration) -> Result<u64, WriteError> {
    u64::try_from(at.as_nanos()).map_err(|_| WriteError::Time(at))
}
