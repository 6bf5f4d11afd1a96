//! Gears never flap: a burst costs one wake-up. Load never lowers a gear within the dwell time after it was raised, and
//! no server that a gear woke is sent to sleep again within it, whichever member leads. Only an operator may do so.
//! [Sierra §3.4]
//!
//! Seen from outside: the gear and the servers that the leader asks for, and each server's state in the map. With
//! continuous gears only single servers have a dwell time: while one stays, another one may go. A server that woke to
//! help with a failure (R8) may go as soon as that is over.

use super::Gears;
use crate::search::harness::World;
use ebb_meta::State;
use ebb_types::{GearSteps, ServerId, ServerState};

impl World<'_> {
    pub fn operator_sends_away(&mut self, server: ServerId) {
        self.harness.invariants.gears.operated.insert(server);
    }

    pub(super) fn dwell_of_gears(&mut self, member: u64) {
        let member = &self.members[&member].member;
        let Some((term, gear)) = member.gear() else { return };
        let by_load = member.state().manual_gear().is_none();
        let awake = member.awake();
        let whole = member.state().schedule().steps == GearSteps::Groups;
        let (now, dwell) = (self.now, self.dwell());
        let seen = &mut self.harness.invariants.gears;
        if term >= seen.term {
            let before = std::mem::take(&mut seen.awake);
            let wanted = |server| before.get(&server).filter(|_| term == seen.term).copied().unwrap_or(now);
            seen.awake = awake.into_iter().map(|server| (server, wanted(server))).collect();
            if !by_load {
                let awake = &seen.awake;
                seen.woken.retain(|server, _| awake.contains_key(server));
            }
        }
        if term > seen.term {
            let first = seen.term == 0;
            (seen.term, seen.gear, seen.raised) = (term, gear, None);
            if !first {
                self.count("metadata leader elected again");
            }
            return;
        }
        if term < seen.term || gear == seen.gear {
            return;
        }
        let before = std::mem::replace(&mut seen.gear, gear);
        let soon = seen.raised.filter(|at| now < at + dwell);
        if gear > before && whole {
            seen.raised = Some(now);
        }
        if by_load {
            self.note(|| format!("the load moves gear {before} to gear {gear}"));
            self.count(if gear > before { "gear raised by load" } else { "gear lowered by load" });
        }
        if let (true, true, Some(at)) = (gear < before, by_load, soon) {
            let millis = (now - at) / 1_000_000;
            self.fail("dwell", format!("gear {before} goes down to {gear} {millis} ms after it was raised"));
        }
    }

    pub(super) fn dwell_of_servers(&mut self) {
        let (now, dwell) = (self.now, self.dwell());
        let mut gears = std::mem::take(&mut self.harness.invariants.gears);
        let trouble = gears.follow(now, dwell, self.newest_state());
        self.harness.invariants.gears = gears;
        if let Some((id, at)) = trouble {
            let millis = (now - at) / 1_000_000;
            self.fail("dwell", format!("{id} is sent to sleep {millis} ms after a gear woke it"));
        }
    }

    /// The dwell time by the fastest clock.
    fn dwell(&self) -> u64 {
        let schedule = &self.settings.bootstrap.schedule;
        schedule.dwell_millis.min(schedule.hour_millis) * (1_000_000 - 10_000)
    }
}

impl Gears {
    pub(super) fn is_operated(&self, server: ServerId) -> bool {
        self.operated.contains(&server)
    }

    /// Follows the servers' states in the map. Returns a server that is sent to sleep too soon, and since when it is
    /// awake.
    fn follow(&mut self, now: u64, dwell: u64, state: &State) -> Option<(ServerId, u64)> {
        // When the member that had applied most starts again, what the others have applied is older, not news.
        if state.version() <= self.map_version {
            return None;
        }
        self.map_version = state.version();
        let mut trouble = None;
        for server in state.servers() {
            let before = self.states.insert(server.id, server.state);
            let woken = before == Some(ServerState::Asleep) && before != Some(server.state);
            if woken {
                self.woken.remove(&server.id);
            }
            if let (true, Some(&wanted)) = (woken, self.awake.get(&server.id)) {
                self.woken.insert(server.id, self.raised.map_or(wanted, |raised| raised.max(wanted)));
            }
            let sent_away = server.state == ServerState::Draining && before != Some(server.state);
            // Gears do not concern one that is drained.
            let is_operated = self.operated.contains(&server.id) || state.seat(server.id).tenure.leaves();
            let by_gear = state.manual_gear().is_none() && !is_operated;
            if sent_away && by_gear {
                let soon = self.woken.get(&server.id).filter(|at| now < **at + dwell);
                trouble = trouble.or(soon.map(|at| (server.id, *at)));
            }
        }
        trouble
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SECOND;
    use crate::search::stories::{broken, cluster};
    use ebb_meta::Command;

    /// A world whose leader is in gear 2 and, as far as the invariant knows, was raised to gear 3 `ago` before now.
    fn lowered(ago: u64, by_load: bool) -> Option<&'static str> {
        let mut world = cluster();
        let schedule = &mut world.settings.bootstrap.schedule;
        (schedule.dwell_millis, schedule.hour_millis) = (500, 1000);
        if by_load {
            world.let_load_choose();
            world.run_until(world.now + SECOND, |_| false);
        }
        assert_eq!(broken(&mut world), None);
        let raised = Some(world.now - ago);
        (world.harness.invariants.gears.gear, world.harness.invariants.gears.raised) = (3, raised);
        world.dwell_of_gears(1);
        broken(&mut world)
    }

    #[test]
    fn a_gear_that_goes_down_again_at_once_is_seen() {
        assert_eq!(lowered(SECOND / 10, true), Some("dwell"));
        assert_eq!(lowered(SECOND, true), None, "the dwell time is over");
        assert_eq!(lowered(SECOND / 10, false), None, "an operator may");
    }

    #[test]
    fn a_server_that_is_sent_to_sleep_soon_after_a_gear_woke_it_is_seen() {
        let mut state = State::default();
        state.apply(&Command::Init(cluster().settings.bootstrap.clone()));
        let server = state.servers().find(|e| e.gear_group.0 == 1).expect("there are two gear groups").id;
        let at = 100 * SECOND;
        let awake = [(server, at)].into();
        let mut gears = Gears { term: 1, gear: 2, awake, raised: Some(at), ..Gears::default() };
        let mut see = |gears: &mut Gears, now, to| {
            let incarnation = state.server(server).expect("it is there").incarnation;
            let mark = ebb_types::StoreMark::default();
            state.apply(&Command::set_server(&state, server, to, incarnation, mark));
            gears.follow(now, 5 * SECOND, &state)
        };
        for (now, to) in [(0, ServerState::Asleep), (1, ServerState::Waking), (2, ServerState::Awake)] {
            assert_eq!(see(&mut gears, at + now * SECOND, to), None);
        }
        assert_eq!(see(&mut gears, at + 4 * SECOND, ServerState::Draining), Some((server, at)));
        assert_eq!(see(&mut gears, at + 4 * SECOND, ServerState::Awake), None);
        assert_eq!(see(&mut gears, at + 6 * SECOND, ServerState::Draining), None, "the dwell time is over");
        // A server that woke for another reason may go at once.
        gears.awake.pop_last();
        for to in [ServerState::Asleep, ServerState::Waking, ServerState::Awake, ServerState::Draining] {
            assert_eq!(see(&mut gears, at + 7 * SECOND, to), None);
        }
    }
}
