//! Operates power switches: one action at a time per server, retried until the server is in the state on record.
//!
//! The state decides (`Waking`, `Asleep`); [`super::switch`] remembers what was asked of the switch. A wake-up that fails or
//! is late is reported and retried; it never turns a sleeping server into a failed one.

use crate::State;
use crate::controller::event::Output;
use crate::controller::leading::Leading;
use ebb_types::{Moment, PoolId, ServerId, ServerState};

impl Leading {
    /// Whether a server may be put to sleep at all, whatever the load.
    pub(crate) fn may_sleep(&self, _server: ServerId) -> bool {
        self.switched
    }

    pub(crate) fn throw_switches(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        for entry in state.servers() {
            let depth = self.gears.depth(entry.id).unwrap_or(self.timing.depth);
            let live = self.servers.entry(entry.id).or_default();
            live.woken = live.woken.filter(|_| entry.state == ServerState::Waking);
            let from = live.power.depth().unwrap_or(self.timing.depth);
            let power = &mut live.power;
            let Some(action) = power.next(now, entry.state, depth, self.timing.wake_limit) else { continue };
            if entry.state == ServerState::Waking && entry.pool == PoolId::REPLICATED {
                live.woken.get_or_insert((now, from));
            }
            if power.is_late() {
                let late = format!("{} is not {:?} yet; attempt {}", entry.id, action, power.tries);
                power.trouble.get_or_insert_with(|| late.clone());
                out.push(Output::Note(late));
                // Other servers may be wanted in its place.
                self.dirty = true;
            }
            out.push(Output::Switch { server: entry.id, action });
        }
    }
}
