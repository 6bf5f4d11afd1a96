//! Faults end: everything is repaired.

use crate::search::harness::World;
use ebb_types::{ServerId, ServerState};

impl World<'_> {
    /// Repairs everything that is broken, and asks the cluster to wake.
    pub fn heal_everything(&mut self) {
        self.heal_all_but(None);
        let top = self.settings.params().replicas;
        self.ask_gear(top);
    }

    /// Repairs everything but `missing`, which crashes and stays away.
    pub fn heal_all_but(&mut self, missing: Option<ServerId>) {
        self.note(|| match missing {
            None => "everything is mended".into(),
            Some(id) => format!("everything is mended, but {id} is missing"),
        });
        self.stormy = false;
        self.heal_net();
        self.settings.net.loss = 0;
        self.settings.net.repeat = 0;
        self.settings.net.reorder = 0;
        self.net.model = self.settings.net;
        for id in self.harness.still.keys().copied().collect::<Vec<_>>() {
            self.client_goes_on(id);
        }
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            self.member(id).mend_log();
            self.right_the_clock(id);
            self.resume_member(id);
            self.restart_member(id);
        }
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.server(id).missing = Some(id) == missing;
            if Some(id) == missing {
                self.crash(id);
                continue;
            }
            self.resume(id);
            self.heal_disk(id);
            self.restart(id);
            self.press_the_button(id);
        }
    }

    /// The operator switches on a machine that is off without having been put to sleep.
    pub fn press_the_button(&mut self, id: ServerId) {
        let state = self.newest_state().server(id).map(|e| e.state);
        let meant = matches!(state, Some(ServerState::Asleep | ServerState::Waking));
        let switched = self.settings.switches.get(&id).is_some_and(|paths| !paths.is_empty());
        if self.servers[&id].is_asleep() && !(meant && switched) {
            self.power_on(id);
        }
    }
}
