//! How an administrator has a server of the replicated pool used: what part of the data it gets, and whether it leaves.
//!
//! Neither is in the map: who reads and writes needs to know where slots are, not where they should be.

use crate::{GearGroup, RackId, ServerId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far a server has come into the cluster, or out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tenure {
    /// It is new, stays after all, or its weight changed: slots move until every server has its share.
    Joining,
    #[default]
    InUse,
    /// All that it has moves to others.
    Draining,
    /// Nothing is left on it that the cluster counts on: it may be removed.
    Drained,
}

impl Tenure {
    /// Whether it is to have nothing in the end.
    pub fn leaves(self) -> bool {
        matches!(self, Tenure::Draining | Tenure::Drained)
    }
}

impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tenure::Joining => "joining",
            Tenure::InUse => "in use",
            Tenure::Draining => "draining",
            Tenure::Drained => "drained",
        })
    }
}

/// A server's share of the slots of its gear group is in proportion to this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weight(pub u32);

impl Weight {
    /// So that sums of all servers' weights times all groups stay far from overflow.
    pub const MOST: Weight = Weight(1_000_000);

    pub fn is_valid(self) -> bool {
        (Weight(1)..=Weight::MOST).contains(&self)
    }
}

impl Default for Weight {
    /// That of the servers that a cluster is founded with.
    fn default() -> Self {
        Weight(100)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.0)
    }
}

/// An administrator's settings of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub tenure: Tenure,
    pub weight: Weight,
}

impl Seat {
    /// What its share is measured by: a server that leaves gets nothing.
    pub fn claim(self) -> Weight {
        if self.tenure.leaves() { Weight(0) } else { self.weight }
    }
}

/// What an administrator wants of a server of the replicated pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerWish {
    Add(NewMember),
    /// Move all of it elsewhere.
    Drain(ServerId),
    /// Take a drain back: it stays after all.
    Keep(ServerId),
    Weigh {
        server: ServerId,
        weight: Weight,
    },
    Remove(ServerId),
}

/// A server that is to come to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMember {
    pub server: ServerId,
    pub rack: RackId,
    /// `host:port`.
    pub address: String,
    pub weight: Weight,
    /// `None`: the metadata service chooses.
    pub gear_group: Option<GearGroup>,
}

/// What would move, or what is left to move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Of the server that would come.
    pub gear_group: Option<GearGroup>,
    /// By the servers that they leave.
    pub moves: Vec<PlannedMoves>,
    /// Copies of chunk groups in those.
    pub copies: u32,
    /// By what the servers that they leave have now; absent until these have been heard.
    pub bytes: Option<u64>,
    /// Copies that move at this moment.
    pub moving: u32,
    /// In order of their ids.
    pub servers: Vec<PlannedServer>,
    /// What stands in its way, and the remedy. Empty: nothing.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMoves {
    pub from: ServerId,
    pub to: ServerId,
    pub copies: u32,
}

/// Copies of chunk groups on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedServer {
    pub id: ServerId,
    pub rack: RackId,
    pub gear_group: GearGroup,
    pub seat: Seat,
    pub now: u32,
    pub then: u32,
}
