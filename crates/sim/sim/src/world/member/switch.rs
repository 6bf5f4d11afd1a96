//! Power switches, as the metadata service throws them.

use crate::world::happening::Happening;
use crate::world::{Delays, Disturb, Judge, World};
use ebb_meta::{Input, SwitchAction};
use ebb_types::ServerId;

impl<H: Disturb + Judge + Delays> World<H> {
    pub(super) fn order_switch(&mut self, id: u64, server: ServerId, action: SwitchAction) {
        H::check_order(self, id, server, action);
        self.note(|| format!("member-{id} throws the switch of {server}: {action}"));
        let life = self.member(id).life;
        H::throw_switch(self, (id, life), server, action);
    }

    /// The switch acts, or fails, and reports to the member that asked. It is driven by that member's process: when it
    /// dies, the action is not carried out.
    pub fn switch(&mut self, (id, life): (u64, u64), server: ServerId, action: SwitchAction, stormy: bool) {
        if self.member(id).life != life {
            return;
        }
        if self.settings.sleeps_itself && !action.is_wake() {
            return match self.went_to_sleep(id, server) {
                Some(result) => self.switched(id, server, action, result),
                None => self.look_again(Happening::Switch { member: id, life, server, action, stormy }),
            };
        }
        let result = H::misthrow(self, id, (server, action), stormy).unwrap_or_else(|| {
            self.act(server, action);
            Ok(())
        });
        self.switched(id, server, action, result);
    }

    fn switched(&mut self, id: u64, server: ServerId, action: SwitchAction, result: Result<(), String>) {
        self.member_hears(id, Input::Switched { server, action, result });
    }

    /// The switch acts now, asked or not.
    pub fn act(&mut self, server: ServerId, action: SwitchAction) {
        match action {
            SwitchAction::Wake { .. } => self.power_on(server),
            SwitchAction::Sleep(_) => self.power_off(server),
        }
    }
}
