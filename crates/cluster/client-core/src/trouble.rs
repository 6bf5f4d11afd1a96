//! Why a try failed.

use ebb_types::{ChunkError, Epoch, MetaFailure, SetId, Unready};
use std::error::Error;
use std::sync::Arc;

/// Why one try of a request failed, to a chunk server or to the metadata service.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    #[error("the group has no primary: too few of its servers are reachable")]
    NoPrimary,
    #[error("{0} hibernates and is being woken")]
    Hibernates(SetId),
    #[error("{0}")]
    NoConnection(Arc<dyn Error + Send + Sync>),
    #[error("the server's address belongs to another process")]
    WrongServer,
    #[error("no connection could be made in time")]
    Unsent,
    #[error("the connection was lost")]
    Lost,
    #[error("no answer came in time")]
    NoAnswer,
    #[error("the group has another primary now")]
    Superseded,
    #[error("{0}")]
    NotReady(Unready),
    #[error("{0}")]
    Refused(ChunkError),
    #[error("the server does not remember whether it was carried out before")]
    Forgotten,
    #[error("the server knows another primary, in {0}")]
    Elsewhere(Epoch),
    #[error("the reply does not match the request")]
    Nonsense,
    #[error("the bytes were damaged on their way from the server")]
    Garbled,
    #[error("{0}")]
    Meta(MetaFailure),
    #[error("the metadata server does not lead and knows no leader")]
    NoLeader,
}

impl Trouble {
    /// Whether the write may have been carried out by the failed try, or may still be.
    pub(crate) fn leaves_it_open(&self) -> bool {
        match self {
            Trouble::NotReady(why) => matches!(why, Unready::Interrupted | Unready::Full),
            Trouble::NoPrimary
            | Trouble::Hibernates(_)
            | Trouble::NoConnection(_)
            | Trouble::Unsent
            | Trouble::Refused(_)
            | Trouble::WrongServer
            | Trouble::Forgotten
            | Trouble::Elsewhere(_)
            | Trouble::Meta(_)
            | Trouble::NoLeader => false,
            Trouble::Lost
            | Trouble::NoAnswer
            | Trouble::Superseded
            | Trouble::Nonsense
            | Trouble::Garbled => true,
        }
    }
}
