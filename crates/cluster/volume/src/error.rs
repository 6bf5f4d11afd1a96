//! Why an operation on a volume failed.

use ebb_client::ClientError;
use ebb_types::{ChunkError, NAME_BYTES_MAX, NamespaceError, VolumeOwner};
use std::time::Duration;

#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    #[error(transparent)]
    Client(ClientError),
    #[error("{0}")]
    Refused(NamespaceError),
    #[error("the volume is served by another process (run {:016x}): end that one first", .0.run)]
    InUse(VolumeOwner),
    #[error("this process no longer serves the volume: another one has taken it over, or it was closed")]
    Taken,
    #[error(
        "{0:?} cannot be a volume's name: give 1 to {NAME_BYTES_MAX} letters of the English alphabet, digits, `-`, `_` and `.`"
    )]
    Name(String),
    #[error("{size} bytes are too many for a volume: 2 PiB are the most")]
    TooLarge { size: u64 },
    #[error("bytes {offset} to {end} are not inside the volume, which has {size}")]
    OutOfRange { offset: u64, end: u64, size: u64 },
    #[error(
        "the metadata service has not confirmed for {0:?} that this process serves the volume; check that most metadata servers run"
    )]
    Unconfirmed(Duration),
    #[error(
        "the volume keeps as much in the replicated pool as it may ({front_bytes} bytes), and for {waited:?} nothing could be moved to its \
         pool; see `ebb pool status` for servers that have failed or are full"
    )]
    FrontFull { front_bytes: u64, waited: Duration },
    #[error(
        "a write of the volume has not ended for {0:?}, and this has to come after it; see `ebb status` for servers that have failed or are full"
    )]
    HeldUp(Duration),
    #[error(
        "the metadata service sent an answer that does not fit the question; run the same release everywhere"
    )]
    Nonsense,
}

impl From<ClientError> for VolumeError {
    fn from(error: ClientError) -> VolumeError {
        match error {
            ClientError::Chunk { why: ChunkError::Taken, .. } => VolumeError::Taken,
            error => VolumeError::Client(error),
        }
    }
}
