//! A server's timers, and its machine when it is suspended. Nothing runs on that, and the clock that its timers count
//! by stands still with it; its boot clock, by which it judges leases and deadlines, runs on like that of all other
//! machines. So when it wakes it has been away for longer than its timers say: what was due meanwhile is due only after
//! what was left of it, and what was sent to it lies in its sockets.

use super::Timers;
use crate::world::happening::Happening;
use crate::world::{Delays, Disturb, Judge, World};
use ebb_types::ServerId;

impl<H: Disturb + Judge + Delays> World<H> {
    /// It must run.
    pub fn suspend_server(&mut self, id: ServerId) {
        let now = self.now;
        let server = self.server(id);
        server.paused = true;
        // Voids those that are set.
        server.timers += 1;
        let left = |at: u64| at.saturating_sub(now);
        let (tick, beat) = (server.process.tick_at.map(left), left(server.beat_at));
        server.process.frozen = Some(Timers { tick, beat });
    }

    /// The timers of a server that was suspended count on.
    pub fn wind_timers(&mut self, id: ServerId) {
        let Some(Timers { tick, beat }) = self.server(id).process.frozen.take() else { return };
        tick.into_iter().for_each(|left| self.set_tick(id, left));
        self.set_beat(id, beat);
    }

    pub fn set_tick(&mut self, id: ServerId, delay: u64) {
        let now = self.now;
        let server = self.server(id);
        server.process.tick_at = Some(now + delay);
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
}
