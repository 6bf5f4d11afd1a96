//! Where the page has its figures from, and what may be done through it: the administrators' requests that the command
//! line sends, too.

use ebb_types::{AdminReply, AdminRequest, ClusterStatus, GearWish, HourRecord, Schedule, ServerId};
use serde::{Deserialize, Serialize};
use std::future::Future;

/// A cluster that is asked. One request at a time.
pub trait Source: Send + 'static {
    /// An answer, or why there is none: within seconds, so that a page can say so.
    fn ask(&mut self, request: AdminRequest) -> impl Future<Output = Result<AdminReply, Refusal>> + Send;

    /// The cluster's volumes, as `ebb volume list --json` prints them.
    fn volumes(&mut self) -> impl Future<Output = Result<String, Refusal>> + Send;

    /// What the servers' management controllers measure now, as `measured` of `ebb status --measured --json`: each is
    /// asked once, which takes up to half a minute; the other requests continue meanwhile. The text says why nothing
    /// could be asked.
    fn measure(&self, status: ClusterStatus)
    -> impl Future<Output = Result<String, String>> + Send + 'static;

    /// What the production policy would have made of the recorded hours. Asks no server, and may take seconds: the
    /// other requests continue meanwhile. The text says what is missing.
    fn replay(
        &self,
        recorded: Recorded,
        wish: WhatIf,
    ) -> impl Future<Output = Result<Replayed, String>> + Send + 'static;
}

/// What a cluster has recorded, and what it is.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Oldest first; some may be missing.
    pub hours: Vec<HourRecord>,
    pub schedule: Schedule,
    pub replicas: u8,
}

/// Settings that somebody would like to have had.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhatIf {
    pub servers: u32,
    pub g_min: u8,
    pub short_goal: f64,
    pub cycles_per_day: f64,
}

/// The recorded hours under other settings. All energy is modelled; of the hours that count, which are those after the
/// training.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// Recorded hours that count.
    pub hours: u32,
    pub trained_hours: u32,
    pub modelled_kwh: f64,
    pub always_on_modelled_kwh: f64,
    /// By a policy that knows every hour's load and wakes single servers.
    pub oracle_modelled_kwh: f64,
    pub hours_short: f64,
    pub mean_servers_awake: f64,
    pub cycles_per_server_per_day: f64,
    /// By the series of the grid, what was saved falling on hours as servers slept in them; absent without a series,
    /// and if it lacks one of the hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2_saved_kg: Option<f64>,
    /// Each hour from the first recorded one on; absent: not recorded.
    pub loads: Vec<Option<f64>>,
    pub servers_awake: Vec<u32>,
    pub from_unix_millis: u64,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No leader answered; the next request may succeed.
    #[error("the metadata leader cannot be reached: {0}")]
    Unreachable(String),
    /// The leader, or a missing right, says no.
    #[error("{0}")]
    Refused(String),
}

/// What a button does. In JSON `{"gear_set": {"servers": 12}}`, `"gear_auto"`, `{"maintenance": {"server": 7, "end":
/// false}}`, `{"lost": {"server": 7}}`.
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
            Act::Lost { server } => AdminRequest::MarkLost { server, accept_loss: false },
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
