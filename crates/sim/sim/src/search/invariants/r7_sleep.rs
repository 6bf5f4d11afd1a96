//! R7: a server sleeps only when it is primary of no group, has nothing in flight, and every group that it serves has
//! its r copies without it. [Sierra §3.5]

use crate::search::harness::World;
use ebb_types::{Role, ServerId, ServerState};

impl World<'_> {
    pub(super) fn r7_no_server_needs_it(&mut self, id: ServerId) {
        let state = self.newest_state();
        if state.server(id).is_none_or(|s| s.state != ServerState::Asleep) {
            return; // a late switch; it counts as a stop, and the server is woken again
        }
        let server = &self.servers[&id];
        let busy = server.up && (server.replica().stats().in_flight > 0 || !server.store.is_idle());
        let mut trouble = busy.then(|| "it has requests in flight".to_string());
        trouble = trouble.or_else(|| self.r7_columns(id, state));
        for (group, role) in server.store.roles() {
            if let (Role::Offload { .. }, Some(entry)) = (role, state.group(group)) {
                trouble = trouble.or_else(|| self.only_copy(id, group, role, entry));
            }
        }
        self.fail_if("R7", trouble.map(|what| format!("{id} is put to sleep: {what}")));
    }
}

#[cfg(test)]
mod tests {
    use crate::search::stories::{GROUP, broken, in_low_gear, primary, secondary, stray};
    use crate::world::store::write_of;
    use bytes::Bytes;
    use ebb_chunkserver::StoreToken;
    use ebb_types::Role;

    #[test]
    fn a_server_that_sleeps_with_a_write_in_flight_is_seen() {
        let mut world = in_low_gear();
        let id = secondary(&world);
        world.r7_no_server_needs_it(id);
        assert_eq!(broken(&mut world), None);
        let (role, record, payload) = (Role::Replica, stray(), Bytes::new());
        world.server(id).store.submit(StoreToken(99), write_of(role, record, payload));
        world.r7_no_server_needs_it(id);
        assert_eq!(broken(&mut world), Some("R7"));
    }

    #[test]
    fn a_server_that_sleeps_with_the_only_copy_is_seen() {
        let mut world = in_low_gear();
        let (awake, asleep) = (primary(&world), secondary(&world));
        let kept = world.servers[&awake].store.kept(GROUP, Role::Replica);
        world.server(asleep).store.give(GROUP, Role::Offload { stands_for: awake }, &kept);
        world.r7_no_server_needs_it(asleep);
        assert_eq!(broken(&mut world), None, "the primary has it too");
        world.server(awake).store.drop_role(GROUP, Role::Replica);
        world.r7_no_server_needs_it(asleep);
        assert_eq!(broken(&mut world), Some("R7"));
    }
}
