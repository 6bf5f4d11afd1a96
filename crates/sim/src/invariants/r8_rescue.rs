//! R8: when a replica is lost while others sleep, its peers are woken at once. [Sierra §3.7]

use crate::clock::SECOND;
use crate::world::World;
use ebb_types::ServerState;

/// Longest time that a peer may sleep on: a leader that is stopped or replaced needs its time.
const AT_ONCE: u64 = 15 * SECOND;

impl World<'_> {
    pub fn r8_peers_are_woken(&mut self) {
        let state = self.newest_state();
        let is = |id, what: &[ServerState]| state.server(id).is_some_and(|s| what.contains(&s.state));
        let left_alone = state.groups().find(|(_, entry)| {
            let mut servers = entry.slots.iter().map(|s| s.server);
            servers.clone().any(|s| is(s, &[ServerState::Failed, ServerState::Lost]))
                && servers.any(|s| is(s, &[ServerState::Asleep]))
        });
        let Some((group, entry)) = left_alone.map(|(group, entry)| (group, entry.clone())) else {
            self.invariants.left_alone = None;
            return;
        };
        let since = *self.invariants.left_alone.get_or_insert(self.now);
        if self.now - since > AT_ONCE {
            self.fail("R8", format!("{group} lacks a replica and a peer sleeps on: {entry:?}"));
        }
    }
}
