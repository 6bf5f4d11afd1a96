//! What a session wants of its driver, and what one message led to.

use crate::request::Request;
use crate::terms::Terms;
use bytes::Bytes;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send these bytes, in the order of the outputs.
    Send(Bytes),
    /// The client has opened an export: its place among those of the session. Requests follow.
    Opened { export: usize },
    /// Carry it out, and answer with [`Session::reply`](crate::Session::reply). Ids are never used again; the driver
    /// may overlap and reorder requests as it likes, but for what a flush promises.
    Request { id: u64, request: Request },
    /// Close the connection when everything before is sent. Nothing follows.
    Close(CloseReason),
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Every request was answered.
    #[error("the client has disconnected")]
    Disconnected,
    #[error("the client has ended the negotiation")]
    Aborted,
    #[error("the client set unknown flags: {0:#x}")]
    ClientFlags(u32),
    #[error("the client sent something that is not an NBD option")]
    NotAnOption,
    #[error("the client sent option {option} with {length} bytes, which is too long")]
    OptionTooLong { option: u32, length: u32 },
    #[error("the client sent too many options")]
    TooManyOptions,
    /// The client asked in a way that cannot be refused. The name is quoted and safe to print.
    #[error("there is no export {0}")]
    NoSuchExport(String),
    #[error("the client sent something that is not an NBD request")]
    NotARequest,
    #[error("the client sent a write of {length} bytes, which is too long to be skipped")]
    PayloadTooLong { length: u32 },
}

/// Requests that the driver has not answered yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    pub requests: usize,
    /// Of payload: what the writes hold, and what the reads will.
    pub bytes: u64,
}

/// What one message led to.
pub(crate) enum Step {
    /// The next message is not whole. The bytes it has, as far as known; 0: no message is awaited.
    Missing(usize),
    Done,
    Opened(Terms),
    Close(CloseReason),
}
