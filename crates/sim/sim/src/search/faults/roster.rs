//! An operator who adds servers, drains them, takes that back, gives them other weights and removes them.

use crate::engine::{Clock, SECOND};
use crate::search::faults::Roster;
use crate::search::harness::{Event, World};
use crate::world::happening::{Happening, Message};
use crate::world::net::{ADMIN, Node};
use crate::world::server::Server;
use ebb_store::mem::MemDisk;
use ebb_types::{
    AdminRequest, MetaRequest, NewMember, RackId, ServerEntry, ServerId, ServerState, ServerWish, Tenure,
    Weight,
};

/// Machines that may come beside those of the beginning, numbered from here on.
const NEW: std::ops::Range<u16> = 60..63;
/// How often the operator looks who is part of the cluster.
const LOOKS: u64 = SECOND / 2;

impl World<'_> {
    /// Asks for one thing.
    pub(super) fn change_roster(&mut self, id: ServerId) {
        if !std::mem::replace(&mut self.harness.mishaps.has_roster, true) {
            self.its_after(LOOKS, Event::Roster);
        }
        let state = self.newest_state();
        let of_tenure = |tenure: Tenure| -> Vec<ServerId> {
            let such = |e: &&ServerEntry| state.seat(e.id).tenure == tenure;
            state.geared().filter(such).map(|e| e.id).collect()
        };
        let (drained, drains) = (of_tenure(Tenure::Drained), of_tenure(Tenure::Draining));
        let absent: Vec<u16> = NEW.filter(|id| state.server(ServerId(*id)).is_none()).collect();
        let racks = state.geared().map(|e| e.rack.0).max().unwrap_or(1);
        if let Some(server) =
            self.fault_random.pick(&drained).copied().filter(|_| self.fault_random.chance(600))
        {
            return self.ask_server(ServerWish::Remove(server));
        }
        let weight = Weight(50 << self.fault_random.below(3));
        let leaves = drained.into_iter().chain(drains).next();
        match (self.fault_random.below(10), absent.first().copied(), leaves) {
            (0..4, Some(new), _) => {
                let rack = RackId(self.fault_random.between(1, u64::from(racks) + 1) as u16);
                self.add_machine(ServerId(new), rack, weight);
            }
            (4, _, Some(server)) => self.ask_server(ServerWish::Keep(server)),
            (5, ..) => self.ask_server(ServerWish::Weigh { server: id, weight }),
            _ => self.ask_server(ServerWish::Drain(id)),
        }
    }

    /// A machine stands ready. It is started once it is part of the cluster.
    fn add_machine(&mut self, server: ServerId, rack: RackId, weight: Weight) {
        if !self.servers.contains_key(&server) {
            let clock = Clock::draw(&mut self.fault_random);
            let mut machine = Server::new(server, clock, &self.settings);
            machine.lost = true;
            self.servers.insert(server, machine);
        }
        let address = format!("server-{}:1", server.0);
        self.ask_server(ServerWish::Add(NewMember { server, rack, address, weight, gear_group: None }));
    }

    /// The operator asks once; a refusal is an answer too.
    fn ask_server(&mut self, wish: ServerWish) {
        self.note(|| format!("administrator: {wish:?}"));
        for member in 1..=self.settings.members {
            let request = MetaRequest::Admin(AdminRequest::Server(wish.clone()));
            // Of no question: no client waits for the answer.
            self.send(
                Node::Client(ADMIN),
                Node::Member(member),
                Message::AskMeta { number: u64::MAX, request },
            );
        }
    }

    /// Starts machines that have become part of the cluster, and stops those that are no part of it any more.
    pub fn follow_roster(&mut self) {
        self.its_after(LOOKS, Event::Roster);
        // Members that start again know only what was committed long ago.
        let state = self.newest_state();
        if state.params().is_none() || state.version() < self.harness.mishaps.roster.version {
            return;
        }
        self.count_roster();
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            let is_part = self.newest_state().server(id).map(|e| e.state);
            let is_off = self.servers[&id].lost && self.harness.lost != Some(id);
            match is_part {
                Some(state) if is_off && state != ServerState::Lost => {
                    self.note(|| format!("{id} is part of the cluster: its machine is started"));
                    let machine = self.server(id);
                    machine.lost = false;
                    self.after(0, Happening::Restart { server: id });
                }
                None if !is_off && self.harness.lost != Some(id) => {
                    self.note(|| format!("{id} is no part of the cluster: its machine is stopped"));
                    self.crash(id);
                    let is_emptied = self.fault_random.chance(500);
                    let machine = self.server(id);
                    (machine.lost, machine.forgot) = (true, None);
                    if is_emptied {
                        machine.store.replace(MemDisk::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// What has come of it.
    fn count_roster(&mut self) {
        let state = self.newest_state();
        let has = |tenure: Tenure| state.geared().any(|e| state.seat(e.id).tenure == tenure);
        let known = &self.harness.mishaps.roster;
        let now = Roster {
            version: state.version(),
            servers: state.servers().map(|e| e.id).collect(),
            joins: has(Tenure::Joining),
            drains: has(Tenure::Draining),
            drained: has(Tenure::Drained),
            moves: state.groups().any(|(_, entry)| entry.moving.is_some()),
        };
        let mut seen: Vec<&'static str> = Vec::new();
        if !known.servers.is_empty() {
            let comes = now.servers.difference(&known.servers).next().is_some();
            let leaves = known.servers.difference(&now.servers).next().is_some();
            let news = [
                ("server added", comes),
                ("server removed", leaves),
                ("server joined", known.joins && !now.joins && !now.drains),
                ("server drains", !known.drains && now.drains),
                ("server drained", !known.drained && now.drained),
                ("slot moves", !known.moves && now.moves),
            ];
            seen.extend(news.iter().filter(|(_, is)| *is).map(|(what, _)| *what));
        }
        self.harness.mishaps.roster = now;
        seen.into_iter().for_each(|what| self.count(what));
    }
}
