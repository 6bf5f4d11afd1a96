//! Servers that come and go: who is part of the cluster, and what an administrator has each used for.
//!
//! A server joins with nothing, and leaves when nothing that the cluster counts on is on it. What moves in between, the
//! leader decides ([`crate::controller::relocation`]); the state keeps who stays and who leaves. A server that left may
//! come back under its number, as a new one: nothing that its store may have left counts.
//!
//! Only servers of the replicated pool come and go by themselves. Those of an erasure-coded pool come with it.

use super::{Reply, State, Versioned};
use crate::NewServer;
use ebb_types::{
    GearGroup, Incarnation, NO_GEAR, PoolId, Seat, ServerEntry, ServerId, ServerState, StoreId, Tenure,
    Weight,
};
use serde::{Deserialize, Serialize};

/// A server that comes to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joiner {
    pub server: NewServer,
    pub weight: Weight,
}

/// What an administrator, or the leader, wants of servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeatChange {
    /// It is new.
    Add(Joiner),
    /// Move all of it elsewhere.
    Drain(ServerId),
    /// It stays after all.
    Keep(ServerId),
    /// Its share changes.
    Weigh(ServerId, Weight),
    /// It is no part of the cluster any more.
    Remove(ServerId),
    /// The leader's: nothing moves any more, so servers that joined are in use.
    Settle,
    /// The leader's: nothing is left on it.
    Emptied(ServerId),
}

/// Why a change of who is a server is refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeatRefusal {
    #[error(
        "{0} is part of the cluster already: give the new server another id (`ebb server list` shows all)"
    )]
    Exists(ServerId),
    #[error("{server} is at {address} already: give the new server an address of its own")]
    AddressTaken { server: ServerId, address: String },
    #[error("{0} has no address: say where it listens, as host:port")]
    NoAddress(ServerId),
    #[error("there is no {0} of {1}: a cluster of {1} copies has gear groups 0 to {last}", last = .1 - 1)]
    NoGearGroup(GearGroup, u8),
    #[error("a weight is 1 to {most}; that of a server from the start is {usual}", most = Weight::MOST.0, usual = Weight::default().0)]
    Weight,
    #[error("{0} is not part of the cluster: `ebb server list` shows who is")]
    Unknown(ServerId),
    #[error(
        "{0} is of an erasure-coded pool: its servers come with the pool and are replaced by its spares (`ebb lost`)"
    )]
    Coded(ServerId),
    #[error(
        "{0} was declared lost: it is rebuilt elsewhere, and may be removed once that is done (`ebb status`)"
    )]
    Lost(ServerId),
    #[error("{0} does not drain: there is nothing to take back")]
    Stays(ServerId),
    #[error("{0} drains: take that back first (`ebb server drain {id} --abort`)", id = .0.0)]
    Leaves(ServerId),
    #[error(
        "{server} is the last of {gear_group} that stays, and each chunk group has a copy there: add a server to it first \
         (`ebb server add`)"
    )]
    Last { server: ServerId, gear_group: GearGroup },
    #[error("{0} is in use: drain it first (`ebb server drain {id} --wait`)", id = .0.0)]
    InUse(ServerId),
    #[error(
        "{server} still has copies of {groups} chunk groups, or keeps writes for other servers: wait until it is drained (`ebb status`)"
    )]
    Holds { server: ServerId, groups: usize },
}

impl State {
    /// An administrator's settings of the server.
    pub fn seat(&self, server: ServerId) -> Seat {
        self.seats.get(&server).copied().unwrap_or_default()
    }

    /// Whether slots are to move: until every server has its share, or until those that leave have nothing.
    pub fn rearranges(&self) -> bool {
        self.seats.values().any(|seat| matches!(seat.tenure, Tenure::Joining | Tenure::Draining))
    }

    /// Grows with each change of who should have what.
    pub fn arrangement(&self) -> u64 {
        self.arrangement
    }

    /// The map version of the last change of who is part of the cluster.
    pub fn roster(&self) -> u64 {
        self.roster
    }

    pub(super) fn change_seat(&mut self, change: &SeatChange) -> Reply {
        if let Err(refusal) = self.check_seat(change) {
            return Reply::Refused(refusal.to_string());
        }
        self.arrangement += 1;
        match change {
            SeatChange::Add(joiner) => self.take_in(joiner),
            SeatChange::Drain(server) => self.set_seat(*server, |seat| seat.tenure = Tenure::Draining),
            SeatChange::Keep(server) => self.set_seat(*server, |seat| seat.tenure = Tenure::Joining),
            SeatChange::Weigh(server, weight) => self.set_seat(*server, |seat| {
                *seat = Seat { tenure: Tenure::Joining, weight: *weight };
            }),
            SeatChange::Remove(server) => self.remove(*server),
            SeatChange::Settle => {
                let joined = self.seats.values_mut().filter(|seat| seat.tenure == Tenure::Joining);
                joined.for_each(|seat| seat.tenure = Tenure::InUse);
                self.seats.retain(|_, seat| *seat != Seat::default());
            }
            SeatChange::Emptied(server) => self.set_seat(*server, |seat| seat.tenure = Tenure::Drained),
        }
        Reply::Done
    }

    /// Whether the change is allowed.
    pub fn check_seat(&self, change: &SeatChange) -> Result<(), SeatRefusal> {
        match change {
            SeatChange::Add(joiner) => self.check_joiner(joiner),
            SeatChange::Drain(server) => self.check_drain(*server),
            SeatChange::Keep(server) => {
                self.replicated_server(*server)?;
                let leaves = self.seat(*server).tenure.leaves();
                if leaves { Ok(()) } else { Err(SeatRefusal::Stays(*server)) }
            }
            SeatChange::Weigh(server, weight) => {
                self.replicated_server(*server)?;
                if self.seat(*server).tenure.leaves() {
                    return Err(SeatRefusal::Leaves(*server));
                }
                if weight.is_valid() { Ok(()) } else { Err(SeatRefusal::Weight) }
            }
            SeatChange::Remove(server) => self.check_removal(*server),
            SeatChange::Settle => Ok(()),
            SeatChange::Emptied(server) => {
                let drains = self.seat(*server).tenure == Tenure::Draining;
                if drains { self.check_empty(*server) } else { Err(SeatRefusal::Stays(*server)) }
            }
        }
    }

    fn check_joiner(&self, Joiner { server, weight }: &Joiner) -> Result<(), SeatRefusal> {
        if self.server(server.id).is_some() {
            return Err(SeatRefusal::Exists(server.id));
        }
        if server.address.is_empty() {
            return Err(SeatRefusal::NoAddress(server.id));
        }
        if let Some(other) = self.servers().find(|known| known.address == server.address) {
            return Err(SeatRefusal::AddressTaken { server: other.id, address: server.address.clone() });
        }
        if server.pool != PoolId::REPLICATED {
            return Err(SeatRefusal::Coded(server.id));
        }
        let replicas = self.params.as_ref().map_or(0, |params| params.replicas);
        if server.gear_group != NO_GEAR && server.gear_group.0 >= replicas {
            return Err(SeatRefusal::NoGearGroup(server.gear_group, replicas));
        }
        if weight.is_valid() { Ok(()) } else { Err(SeatRefusal::Weight) }
    }

    fn check_drain(&self, server: ServerId) -> Result<(), SeatRefusal> {
        let entry = self.replicated_server(server)?;
        if entry.state == ServerState::Lost {
            return Err(SeatRefusal::Lost(server));
        }
        if self.seat(server).tenure.leaves() {
            return Err(SeatRefusal::Leaves(server));
        }
        let gear_group = entry.gear_group;
        let stays = |e: &ServerEntry| {
            let there = e.id != server && e.state != ServerState::Lost;
            there && e.gear_group == gear_group && !self.seat(e.id).tenure.leaves()
        };
        let has_others = entry.is_logger() || self.geared().any(stays);
        if has_others { Ok(()) } else { Err(SeatRefusal::Last { server, gear_group }) }
    }

    fn check_removal(&self, server: ServerId) -> Result<(), SeatRefusal> {
        let entry = self.replicated_server(server)?;
        match self.seat(server).tenure {
            _ if entry.state == ServerState::Lost => self.check_empty(server),
            Tenure::Drained => self.check_empty(server),
            Tenure::Draining => Err(SeatRefusal::Holds { server, groups: self.groups_of(server) }),
            Tenure::Joining | Tenure::InUse => Err(SeatRefusal::InUse(server)),
        }
    }

    /// Whether no configuration, present or perhaps still to be taken back, names the server.
    fn check_empty(&self, server: ServerId) -> Result<(), SeatRefusal> {
        let groups = self.groups_of(server);
        if groups == 0 { Ok(()) } else { Err(SeatRefusal::Holds { server, groups }) }
    }

    fn groups_of(&self, server: ServerId) -> usize {
        let members = |entry: &ebb_types::GroupEntry| {
            entry.members().any(|(id, _)| id == server) || entry.keepers().any(|id| id == server)
        };
        self.groups().filter(|(_, entry)| members(entry)).count()
    }

    fn replicated_server(&self, server: ServerId) -> Result<&ServerEntry, SeatRefusal> {
        let entry = self.server(server).ok_or(SeatRefusal::Unknown(server))?;
        if entry.pool == PoolId::REPLICATED { Ok(entry) } else { Err(SeatRefusal::Coded(server)) }
    }

    fn take_in(&mut self, Joiner { server, weight }: &Joiner) {
        self.version += 1;
        self.removed.remove(&server.id);
        self.add_servers(std::slice::from_ref(server));
        self.seats.insert(server.id, Seat { tenure: Tenure::Joining, weight: *weight });
    }

    fn set_seat(&mut self, server: ServerId, change: impl FnOnce(&mut Seat)) {
        change(self.seats.entry(server).or_default());
    }

    fn remove(&mut self, server: ServerId) {
        self.version += 1;
        self.roster = self.version;
        self.servers.remove(&server);
        self.seats.remove(&server);
        self.positions.remove(&server);
        if let Some(record) = self.power.remove(&server) {
            self.retired_cycles += record.cycles;
        }
        self.removed.insert(server, self.version);
    }

    /// As of the present version of the map.
    pub(super) fn add_servers(&mut self, new: &[NewServer]) {
        self.roster = self.version;
        for server in new {
            let item = ServerEntry {
                id: server.id,
                rack: server.rack,
                pool: server.pool,
                gear_group: server.gear_group,
                address: server.address.clone(),
                state: ServerState::Waking,
                incarnation: Incarnation(0),
                store: StoreId(0),
            };
            self.servers.insert(server.id, Versioned { item, changed: self.version });
        }
    }
}

#[cfg(test)]
mod tests;
