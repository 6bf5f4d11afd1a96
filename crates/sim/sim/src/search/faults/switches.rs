//! Power switches that fail, lie, act late or on another machine.

use crate::engine::SECOND;
use crate::search::harness::{Event, World};
use ebb_meta::SwitchAction;
use ebb_types::{ServerId, ServerState};

impl World<'_> {
    /// What a switch does instead of what it is told. Once everything is mended, no order to sleep from before acts of
    /// a member that leads no more: its successor may have stopped to reckon with it.
    pub(super) fn misthrow(
        &mut self,
        member: u64,
        (server, action): (ServerId, SwitchAction),
        stormy: bool,
    ) -> Option<Result<(), String>> {
        let fails = self.stormy && self.fault_random.chance(self.harness.plan.switch_fails);
        let lies = self.stormy && self.fault_random.chance(self.harness.plan.switch_lies);
        let leads = self.members[&member].member.is_leader();
        let is_over = stormy && !self.stormy && !action.is_wake() && !leads;
        let is_over = is_over || !action.is_wake() && self.takes_part(server) && self.rebuilds();
        if lies && !is_over {
            return Some(self.lie(server, action));
        }
        if fails || is_over || self.is_dead(server, action) {
            self.count("switch that fails");
            return Some(no_answer());
        }
        None
    }

    /// The server is awake on record, so that a switch that turns it off crashes it.
    fn takes_part(&self, server: ServerId) -> bool {
        self.newest_state().server(server).is_some_and(|entry| entry.state == ServerState::Awake)
    }

    /// The path is broken for good.
    fn is_dead(&self, server: ServerId, action: SwitchAction) -> bool {
        matches!(action, SwitchAction::Wake { path } if self.harness.plan.dead_paths.contains(&(server, path)))
    }

    /// The switch does not do what it says.
    fn lie(&mut self, server: ServerId, action: SwitchAction) -> Result<(), String> {
        match self.fault_random.below(5) {
            0 => {
                self.count("switch that does nothing and reports success");
                Ok(())
            }
            1 => {
                self.count("switch that acts and reports failure");
                self.act(server, action);
                no_answer()
            }
            2 => {
                self.count("switch that acts twice");
                self.act(server, action);
                let again = self.fault_random.delay(SECOND).min(10 * SECOND);
                self.its_after(again, Event::LateSwitch { server, action });
                Ok(())
            }
            3 => {
                self.count("switch that acts long after its report");
                let later = self.fault_random.delay(SECOND).min(10 * SECOND);
                self.its_after(later, Event::LateSwitch { server, action });
                Ok(())
            }
            _ => {
                let all: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
                let other = *self.fault_random.pick(&all).expect("not all are lost");
                self.count("switch that acts on another machine");
                self.late_switch(other, action);
                Ok(())
            }
        }
    }

    /// A switch acts although it is no longer asked to, or never was. To a server that takes part it is a crash.
    pub fn late_switch(&mut self, server: ServerId, action: SwitchAction) {
        if self.stormy && !self.servers[&server].lost && (action.is_wake() || !self.rebuilds()) {
            self.act(server, action);
        }
    }
}

fn no_answer() -> Result<(), String> {
    Err("the switch does not answer".to_string())
}
