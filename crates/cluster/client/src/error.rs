//! Errors of connections and of the library.

use crate::secret::Key;
use ebb_client_core::Trouble;
use ebb_types::frame::{FrameError, WIRE_VERSION};
use ebb_types::{ChunkError, ChunkId, GroupId, MetaFailure, RECORD_BLOCKS_MAX, ServerId, SetId};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why nobody listens at `address`; `elsewhere` says how to name another one.
pub fn cannot_listen(address: &str, elsewhere: &str, error: &TransportError) -> String {
    match error {
        TransportError::Io(error) if error.kind() == io::ErrorKind::AddrInUse => {
            format!("another process listens on {address}: stop it, or {elsewhere}")
        }
        TransportError::Io(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no address {address}: {elsewhere}")
        }
        _ => format!("cannot listen on {address}: {error}"),
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cannot connect to {address}: {error}; check the address and that the process runs")]
    Connect { address: String, error: io::Error },
    #[error("{address} did not finish the handshake within {after:?}; the process may be stopped")]
    HandshakeTimeout { address: String, after: Duration },
    #[error("{address} had not proved who it is when too many others called, and made room for them")]
    Crowd { address: String },
    #[error("the connection was closed during the handshake")]
    HandshakeCut,
    #[error("the other side is not an Ebb process; check the address and port")]
    NotEbb,
    #[error(
        "the other side speaks wire version {found}, this one {WIRE_VERSION}; run the same release on both"
    )]
    WireVersion { found: u8 },
    #[error("the other side has another cluster secret; give both the same secret file")]
    WrongSecret,
    #[error(
        "the secret file has no {key} key: use one that has, or the cluster secret (`ebb secret` makes such files)"
    )]
    NoKey { key: Key },
    #[error("the other side takes no callers with a {key} key")]
    RoleRefused { key: Key },
    #[error(
        "the other side belongs to cluster {other:016x}, this one to {own:016x}; check address and data directory"
    )]
    WrongCluster { own: u64, other: u64 },
    #[error("the connection ended inside a frame")]
    Truncated,
    #[error(transparent)]
    Frame(#[from] FrameError),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// Retrying does not help.
    #[error("{chunk}: {why}")]
    Chunk { chunk: ChunkId, why: ChunkError },
    #[error(
        "{chunk}: all servers that had a copy of it, or too many of its set, were declared lost, and nothing of it comes back"
    )]
    Gone { chunk: ChunkId },
    #[error(
        "{chunk}: a request covers at most {} bytes between multiples of that; split it, or use the object \
         functions",
        RECORD_BLOCKS_MAX as usize * ebb_types::BLOCK_BYTES
    )]
    TooLong { chunk: ChunkId },
    #[error("the range ends past the last byte that an object can have")]
    ObjectRange,
    #[error("{chunk} is in {pool}, and the cluster has no such pool; see `ebb status` for its pools", pool = .chunk.object.pool())]
    NoPool { chunk: ChunkId },
    #[error(
        "{chunk} is erasure-coded: a write begins at a multiple of {row_bytes} bytes, where a row begins, and not at {offset}"
    )]
    InsideRow { chunk: ChunkId, offset: u32, row_bytes: u32 },
    #[error("{chunk} is erasure-coded: no part of it can be set to zero; delete the whole chunk")]
    Immutable { chunk: ChunkId },
    #[error(
        "{} was not served for {waited:?} ({tries} tries, the last at {}): {last}; see `ebb status` for servers \
         that are failed or still waking",
        place(*.group), at(*.server)
    )]
    Unserved { group: GroupId, tries: u32, waited: Duration, server: Option<ServerId>, last: Trouble },
    #[error(
        "{set} hibernates; it was asked to wake and is not awake after {waited:?}: retry in {} s, or see `ebb pool status`",
        .retry_after.as_secs()
    )]
    Hibernates {
        set: SetId,
        waited: Duration,
        /// By then nearly all sets were awake lately.
        retry_after: Duration,
    },
    #[error(
        "{chunk}: whether the write was carried out is not known. It was sent {tries} times within {waited:?}, and {} no \
         longer remembers what it did at the time of the first; read the chunk, or write again",
        at(*.server)
    )]
    Unknown { chunk: ChunkId, tries: u32, waited: Duration, server: Option<ServerId> },
    #[error(
        "no metadata leader answered for {} s at {}: {last}. Start the metadata servers, of which most must run; until then \
         every server stays as it is: none sleeps or wakes",
        (.waited.as_secs_f64() * 10.0).round() / 10.0, .addresses.join(", ")
    )]
    NoMeta { addresses: Vec<String>, waited: Duration, last: Trouble },
    /// The configuration is wrong: retrying does not help.
    #[error("metadata server {address}: {error}")]
    Refused { address: String, error: Arc<TransportError> },
    #[error("the metadata service refuses: {0}")]
    Meta(MetaFailure),
    #[error("no metadata server is configured; give at least one address")]
    NoAddresses,
}

impl ClientError {
    /// Whether it says that no server has some of the bytes any more, nor may come back with them.
    pub fn says_lost(&self) -> bool {
        matches!(
            self,
            ClientError::Gone { .. }
                | ClientError::Chunk { why: ChunkError::Corrupt | ChunkError::Missing, .. }
        )
    }
}

/// A chunk group, or a column of an erasure-coded set.
fn place(group: GroupId) -> String {
    group.column().map_or_else(|| group.to_string(), |(set, column)| format!("column {column} of {set}"))
}

fn at(server: Option<ServerId>) -> String {
    server.map_or_else(|| "no server".to_owned(), |id| id.to_string())
}
