//! What an operator does meanwhile: sets gears, tests power, takes servers out for maintenance.

use crate::search::harness::World;
use crate::world::happening::Message;
use crate::world::net::{ADMIN, Node};
use ebb_types::{AdminRequest, GearSteps, GearWish, MetaRequest, NO_GEAR, ServerId};

impl World<'_> {
    /// The administrator asks once; a refusal is an answer too.
    pub(super) fn ask_power(&mut self, server: ServerId, request: AdminRequest) {
        self.note(|| format!("administrator: {request:?}"));
        self.operator_sends_away(server);
        for member in 1..=self.settings.members {
            let request = MetaRequest::Admin(request.clone());
            // Of no question: no client waits for the answer.
            self.send(
                Node::Client(ADMIN),
                Node::Member(member),
                Message::AskMeta { number: u64::MAX, request },
            );
        }
    }

    /// Maintenance begins, or ends where there is any.
    pub(super) fn maintain(&mut self, id: ServerId) {
        let on =
            self.newest_state().servers().map(|e| e.id).find(|id| self.newest_state().in_maintenance(*id));
        let (server, end) = (on.unwrap_or(id), on.is_some());
        self.count(if end { "maintenance ends" } else { "maintenance" });
        self.ask_power(server, AdminRequest::Maintenance { server, end });
    }

    pub(super) fn shift_gear(&mut self) {
        // The operator of a cluster that follows its load sometimes sets a gear, and later releases it.
        if self.harness.plan.pulse.is_some() && self.fault_random.chance(500) {
            return self.let_load_choose();
        }
        if self.settings.bootstrap.schedule.steps == GearSteps::Servers && self.fault_random.chance(500) {
            let servers = &self.settings.bootstrap.servers;
            let all = servers.iter().filter(|s| s.gear_group != NO_GEAR).count() as u64;
            let servers = self.fault_random.between(self.settings.params().replicas.into(), all) as u32;
            return self.ask_for(GearWish::Servers(servers));
        }
        let gear = 1 + self.fault_random.below(self.settings.params().replicas.into()) as u8;
        self.ask_gear(gear);
    }
}
