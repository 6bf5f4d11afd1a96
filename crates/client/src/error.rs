//! Errors for users of the library.

use crate::transport::TransportError;
use ebb_route::Trouble;
use ebb_types::{ChunkError, ChunkId, GroupId, MetaFailure, RECORD_BLOCKS_MAX, ServerId};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// Retrying does not help.
    #[error("{chunk}: {why}")]
    Chunk { chunk: ChunkId, why: ChunkError },
    #[error(
        "{chunk}: a request covers at most {} bytes between multiples of that; split it, or use the object \
         functions",
        RECORD_BLOCKS_MAX as usize * ebb_types::BLOCK_BYTES
    )]
    TooLong { chunk: ChunkId },
    #[error("the range ends past the last byte that an object can have")]
    ObjectRange,
    #[error(
        "{group} was not served for {waited:?} ({tries} tries, the last at {}): {last}; see `ebb status` for servers \
         that are failed or still waking",
        at(*.server)
    )]
    Unserved { group: GroupId, tries: u32, waited: Duration, server: Option<ServerId>, last: Trouble },
    #[error(
        "{chunk}: whether the write was carried out is not known. It was sent {tries} times within {waited:?}, and {} no \
         longer remembers what it did at the time of the first; read the chunk, or write again",
        at(*.server)
    )]
    Unknown { chunk: ChunkId, tries: u32, waited: Duration, server: Option<ServerId> },
    #[error(
        "no metadata leader answered for {waited:?} at {}: {last}; check that most metadata servers run and that the \
         addresses are right",
        .addresses.join(", ")
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

fn at(server: Option<ServerId>) -> String {
    server.map_or_else(|| "no server".to_owned(), |id| id.to_string())
}
