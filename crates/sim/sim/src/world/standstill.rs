//! Machines that are suspended. Nothing runs on one, and the clock that its timers count by stands still with it; its
//! boot clock, by which it judges leases and deadlines, runs on like that of all other machines. So when it wakes
//! it has been away for longer than its timers say: what was due meanwhile is due only after what was left of it, and
//! what was sent to it lies in its sockets.

use crate::world::client::ADMIN;
use crate::world::coder::CODERS;
use crate::world::{Happening, World};
use ebb_types::ServerId;

/// A client or coder that stands still.
#[derive(Default)]
pub struct Still {
    /// What is left of its timer.
    left: u64,
    /// What arrived meanwhile.
    held: Vec<Happening>,
}

/// What is left of a server's timers while it stands still.
#[derive(Clone, Copy)]
pub struct Timers {
    tick: Option<u64>,
    beat: u64,
}

impl World<'_> {
    /// It must run.
    pub fn suspend_server(&mut self, id: ServerId) {
        let now = self.now;
        let server = self.server(id);
        server.paused = true;
        // Voids those that are set.
        server.timers += 1;
        let left = |at: u64| at.saturating_sub(now);
        server.frozen =
            Some(Timers { tick: server.ticking.then(|| left(server.tick_at)), beat: left(server.beat_at) });
    }

    /// The timers of a server that was suspended count on.
    pub fn wind_timers(&mut self, id: ServerId) {
        let Some(Timers { tick, beat }) = self.server(id).frozen.take() else { return };
        tick.into_iter().for_each(|left| self.set_tick(id, left));
        self.set_beat(id, beat);
    }

    pub fn set_tick(&mut self, id: ServerId, delay: u64) {
        let now = self.now;
        let server = self.server(id);
        (server.ticking, server.tick_at) = (true, now + delay);
        let (life, timer) = (server.life, server.timers);
        self.after(delay, Happening::Tick { server: id, life, timer });
    }

    pub fn set_beat(&mut self, id: ServerId, delay: u64) {
        let now = self.now;
        let server = self.server(id);
        server.beat_at = now + delay;
        let (life, timer) = (server.life, server.timers);
        self.after(delay, Happening::Beat { server: id, life, timer });
    }

    pub fn suspend_client(&mut self, id: u32) {
        let left = if id >= CODERS { self.coder(id).stop_timer() } else { self.client(id).stop_timer() };
        let left = left.saturating_sub(self.now);
        self.still.insert(id, Still { left, held: Vec::new() });
    }

    pub fn client_goes_on(&mut self, id: u32) {
        let Some(Still { left, held }) = self.still.remove(&id) else { return };
        self.note(|| format!("client-{id} continues"));
        if id >= CODERS {
            self.coder_timer(id, left)
        } else {
            self.client_timer(id, left)
        }
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
        let still = self.still.get_mut(&client).filter(|_| client != ADMIN);
        still.map(|still| still.held.push(what())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use crate::search::history::Action;
    use crate::search::stories::{ask, begin, cluster, entry, primary, read, rest, write};
    use crate::engine::{MILLI, SECOND};

    #[test]
    fn a_server_wakes_from_suspend_without_its_lease_and_with_what_is_left_of_its_timers() {
        let mut world = cluster();
        let id = primary(&world);
        let left = world.servers[&id].beat_at - world.now;
        world.suspend_server(id);
        world.run_until(world.now + 30 * SECOND, |_| false);
        assert_ne!(entry(&world).primary, Some(id), "others have taken over");
        world.resume(id);
        let now = world.now;
        let server = &world.servers[&id];
        assert!(!server.replica().has_lease(server.clock.at(now)) && server.beat_at == now + left);
        rest(&mut world);
        assert!(world.violation.is_none());
    }

    #[test]
    fn a_client_finds_out_late_and_by_the_true_time_what_became_of_its_request() {
        let mut world = cluster();
        begin(&mut world, write(0, 1));
        let end = world.now + SECOND;
        while world.clients[0].under_way().is_none() && world.step(end) {}
        world.suspend_client(0);
        world.run_until(world.now + 60 * SECOND, |_| false);
        let waits = |world: &crate::world::World| world.clients[0].under_way().is_some();
        assert!(waits(&world));
        world.client_goes_on(0);
        world.run_until(world.now + 100 * MILLI, |_| false);
        assert!(!waits(&world), "the answer lay in its socket");
        let all: Action = read(0, 2);
        ask(&mut world, all);
        assert!(world.violation.is_none());
    }
}
