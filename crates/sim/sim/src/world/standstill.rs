//! Machines that are suspended. Nothing runs on one, and the clock that its timers count by stands still with it; its
//! boot clock, by which it judges leases and deadlines, goes on like all other machines. So when it wakes it has been
//! away for longer than its timers say: what was due meanwhile is due only after what was left of it, and what was sent
//! to it lies in its sockets.

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
        self.note(|| format!("client-{id} goes on"));
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
