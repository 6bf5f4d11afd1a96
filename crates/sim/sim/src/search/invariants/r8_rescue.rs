//! R8: when a replica is lost while others sleep, its peers are woken at once. [Sierra §3.7] So no server is put to
//! sleep that nothing has proved to wake, unless an operator tests that.

use crate::engine::SECOND;
use crate::search::harness::World;
use crate::world::brief::brief_entry;
use ebb_meta::{State, WakePath};
use ebb_types::{GroupEntry, GroupId, ServerId, ServerState};

/// Longest time that a peer may stay asleep: a leader that is paused or replaced needs time.
const AT_ONCE: u64 = 15 * SECOND;

impl World<'_> {
    pub fn r8_peers_are_woken(&mut self) {
        let left_alone = left_alone(self.newest_state());
        self.r8_not_for_long(left_alone);
    }

    /// A leader, in this state, orders a server to sleep.
    pub(super) fn r8_it_can_be_woken(&mut self, member: u64, id: ServerId) {
        let state = self.members[&member].member.state();
        let known = state.power(id).map(|record| &record.paths);
        let proven =
            |path: &WakePath| known.and_then(|paths| paths.get(&path.name)).is_some_and(|p| p.proven);
        let paths = self.settings.switches.get(&id).into_iter().flatten();
        let can_be_woken = paths.clone().any(|path| path.reliable || proven(path));
        if !can_be_woken && !self.harness.invariants.gears.is_operated(id) {
            let paths: Vec<&str> = paths.map(|path| path.name.as_str()).collect();
            self.fail("R8", format!("{id} is put to sleep, and no path has proved to wake it: {paths:?}"));
        }
    }

    fn r8_not_for_long(&mut self, left_alone: Option<(GroupId, GroupEntry)>) {
        let Some((group, entry)) = left_alone else {
            self.harness.invariants.left_alone = None;
            return;
        };
        let since = *self.harness.invariants.left_alone.get_or_insert(self.now);
        if self.now - since > AT_ONCE {
            self.fail("R8", format!("{group} lacks a replica and a peer sleeps on: {}", brief_entry(&entry)));
        }
    }
}

/// A group that lacks a replica while another one sleeps.
fn left_alone(state: &State) -> Option<(GroupId, GroupEntry)> {
    let is = |id, what: &[ServerState]| state.server(id).is_some_and(|s| what.contains(&s.state));
    let found = state.groups().find(|(_, entry)| {
        let mut servers = entry.copies().iter().map(|s| s.server);
        servers.clone().any(|s| is(s, &[ServerState::Failed, ServerState::Lost]))
            && servers.any(|s| is(s, &[ServerState::Asleep]) && !state.in_maintenance(s))
    });
    found.map(|(group, entry)| (group, entry.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{broken, cluster};
    use ebb_meta::Command;

    #[test]
    fn a_server_that_is_put_to_sleep_without_a_proven_path_is_seen() {
        let mut world = cluster();
        let id = ServerId(2);
        world.r8_it_can_be_woken(1, id);
        assert_eq!(broken(&mut world), None, "a process needs no proof");
        world.settings.switches.insert(id, vec![WakePath::switch("wol", false)]);
        world.r8_it_can_be_woken(1, id);
        assert_eq!(broken(&mut world), Some("R8"));
        world.operator_sends_away(id);
        world.r8_it_can_be_woken(1, id);
        assert_eq!(broken(&mut world), None, "a test is for that");
    }

    #[test]
    fn a_peer_that_sleeps_on_while_a_replica_is_lost_is_seen() {
        let mut world = cluster();
        let mut state = State::default();
        state.apply(&Command::Init(world.settings.bootstrap.clone()));
        let servers: Vec<_> = state.groups().flat_map(|(_, e)| e.slots.iter().map(|s| s.server)).collect();
        let mut set = |id, to| {
            let incarnation = state.server(id).expect("a server of the group").incarnation;
            let mark = ebb_types::StoreMark::default();
            state.apply(&Command::set_server(&state, id, to, incarnation, mark));
            left_alone(&state)
        };
        assert_eq!(set(servers[0], ServerState::Asleep), None);
        let alone = set(servers[1], ServerState::Failed);
        assert!(alone.is_some());
        world.r8_not_for_long(alone.clone());
        world.now += AT_ONCE;
        world.r8_not_for_long(alone.clone());
        assert_eq!(broken(&mut world), None, "there is still time");
        world.now += 1;
        world.r8_not_for_long(alone);
        assert_eq!(broken(&mut world), Some("R8"));
        let rescued = set(servers[0], ServerState::Waking);
        world.r8_not_for_long(rescued);
        assert_eq!(broken(&mut world), None);
    }
}
