//! R7: a server sleeps only when it is primary of nothing, has nothing in flight, and every group that it serves has its r
//! copies without it. [Sierra §3.5]

use crate::world::World;
use ebb_types::{ServerId, ServerState, Space};

impl World<'_> {
    pub(super) fn r7_nobody_needs_it(&mut self, id: ServerId) {
        let state = self.newest_state();
        if state.server(id).is_none_or(|s| s.state != ServerState::Asleep) {
            return; // a late switch; it counts as a stop, and the server is woken again
        }
        let server = &self.servers[&id];
        let busy = server.up && (server.replica.stats().in_flight > 0 || !server.store.is_idle());
        let mut trouble = busy.then(|| "it has requests in flight".to_string());
        for (group, space) in server.store.spaces() {
            if let (Space::Offload { .. }, Some(entry)) = (space, state.group(group)) {
                trouble = trouble.or_else(|| self.only_copy(id, group, space, entry));
            }
        }
        if let Some(what) = trouble {
            self.fail("R7", format!("{id} is put to sleep: {what}"));
        }
    }
}
