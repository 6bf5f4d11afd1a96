//! Where the page has its figures from, and what may be done through it: the administrators' requests that the command line sends, too.

use ebb_types::{AdminReply, AdminRequest, GearWish, ServerId};
use serde::{Deserialize, Serialize};
use std::future::Future;

/// A cluster that is asked. One request at a time.
pub trait Source: Send + 'static {
    /// An answer, or why there is none: within seconds, so that a page can say so.
    fn ask(&mut self, request: AdminRequest) -> impl Future<Output = Result<AdminReply, Refusal>> + Send;
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody answered; the next request may be answered.
    #[error("the metadata leader cannot be reached: {0}")]
    Unreachable(String),
    /// The leader, or a missing right, says no.
    #[error("{0}")]
    Refused(String),
}

/// What a button does. In JSON `{"gear_set": {"servers": 12}}`, `"gear_auto"`, `{"maintenance": {"server": 7, "end": false}}`,
/// `{"lost": {"server": 7}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    GearSet(GearWish),
    GearAuto,
    Maintenance { server: ServerId, end: bool },
    Lost { server: ServerId },
}

impl Act {
    pub fn request(self) -> AdminRequest {
        match self {
            Act::GearSet(wish) => AdminRequest::GearSet(wish),
            Act::GearAuto => AdminRequest::GearAuto,
            Act::Maintenance { server, end } => AdminRequest::Maintenance { server, end },
            Act::Lost { server } => AdminRequest::MarkLost { server },
        }
    }
}

/// For the log.
impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Act::GearSet(wish) => write!(f, "keep {wish} awake"),
            Act::GearAuto => f.write_str("let load and forecast choose"),
            Act::Maintenance { server, end: false } => write!(f, "put {server} into maintenance"),
            Act::Maintenance { server, end: true } => write!(f, "end the maintenance of {server}"),
            Act::Lost { server } => write!(f, "declare {server} lost"),
        }
    }
}
