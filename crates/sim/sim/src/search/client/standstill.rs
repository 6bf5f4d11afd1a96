//! Clients whose machines are suspended. Nothing runs on one, and the clock that its timers count by stands still with
//! it: what was due meanwhile is due only after what was left of it, and what was sent to it lies in its sockets.

use super::Still;
use crate::search::harness::World;
use crate::world::happening::Happening;
use crate::world::net::ADMIN;

impl World<'_> {
    pub fn suspend_client(&mut self, id: u32) {
        let timer = self.harness.timers.entry(id).or_default();
        timer.stamp += 1;
        let left = timer.due.saturating_sub(self.now);
        self.harness.still.insert(id, Still { left, held: Vec::new() });
    }

    pub fn client_goes_on(&mut self, id: u32) {
        let Some(Still { left, held }) = self.harness.still.remove(&id) else { return };
        self.note(|| format!("client-{id} continues"));
        self.client_timer(id, left);
        for what in held {
            match what {
                Happening::Deliver { from, to, generation, message } => {
                    self.deliver(from, to, generation, message);
                }
                Happening::LinkLost { client, server } => self.client_link_lost(client, server),
                _ => unreachable!("not held back"),
            }
        }
    }

    /// Whether this waits because the client stands still.
    pub fn holds_back(&mut self, client: u32, what: impl FnOnce() -> Happening) -> bool {
        let still = self.harness.still.get_mut(&client).filter(|_| client != ADMIN);
        still.map(|still| still.held.push(what())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{MILLI, SECOND};
    use crate::search::history::Action;
    use crate::search::stories::{ask, begin, cluster, read, write};

    #[test]
    fn a_client_finds_out_late_and_by_the_true_time_what_became_of_its_request() {
        let mut world = cluster();
        begin(&mut world, write(0, 1));
        let end = world.now + SECOND;
        while world.harness.clients[0].under_way().is_none() && world.step(end) {}
        world.suspend_client(0);
        world.run_until(world.now + 60 * SECOND, |_| false);
        let waits = |world: &World| world.harness.clients[0].under_way().is_some();
        assert!(waits(&world));
        world.client_goes_on(0);
        world.run_until(world.now + 100 * MILLI, |_| false);
        assert!(!waits(&world), "the answer lay in its socket");
        let all: Action = read(0, 2);
        ask(&mut world, all);
        assert!(world.violation.is_none());
    }
}
