//! Machines that no switch puts to sleep: the leader orders their servers to, which do it themselves, if nothing counts
//! on them ([`ebb_chunkserver::shell`]). The leader repeats the order until the machine is down; it may come late, to a
//! server that has begun to flush for a newer map, or that others count on again.

use crate::engine::MILLI;
use crate::world::happening::{Happening, Message};
use crate::world::net::Node;
use crate::world::{Delays, Disturb, Judge, World};
use ebb_chunkserver::shell::Event;
use ebb_types::{ServerId, SleepOrder, SleepRefusal};

/// Whether a machine is down is looked at so often.
const LOOKS: u64 = 200 * MILLI;
/// Longest time to find out whether a machine can sleep.
const CHECK: u64 = 50 * MILLI;

impl<H: Disturb + Judge + Delays> World<H> {
    /// Whether the server is down by now. `None`: it is looked at again.
    pub fn went_to_sleep(&mut self, id: u64, server: ServerId) -> Option<Result<(), String>> {
        let (now, is_down) = (self.now, self.servers[&server].asleep);
        let until = self.member(id).waits.get(&server).copied().unwrap_or(0);
        match is_down {
            true => Some(Ok(())),
            false if now >= until => Some(Err("it does not go down".into())),
            false => None,
        }
    }

    pub fn look_again(&mut self, happening: Happening) {
        self.after(LOOKS, happening);
    }

    /// The server looks whether its machine can sleep and be woken.
    pub fn check_machine(&mut self, id: ServerId, order: SleepOrder) {
        let cannot = H::cannot_sleep(self);
        let outcome = if cannot { Err("no network card wakes it".into()) } else { Ok(()) };
        let (delay, life) = (self.fault_random.between(0, CHECK), self.server(id).life);
        self.after(delay, Happening::Checked { server: id, life, order, outcome });
    }

    /// Until power comes back.
    pub fn suspend_itself(&mut self, id: ServerId, order: SleepOrder) {
        self.count("machine put to sleep by its server");
        self.server(id).process.suspended = Some(order);
        self.power_off(id);
    }

    pub fn power_itself_off(&mut self, id: ServerId) {
        self.count("machine put to sleep by its server");
        self.power_off(id);
        if self.server(id).up {
            self.crash(id);
        }
        self.server(id).asleep = true;
    }

    pub fn wakes_from_suspend(&mut self, id: ServerId) {
        if let Some(order) = self.server(id).process.suspended.take() {
            self.shell_event(id, Event::Suspended { order, outcome: Ok(()) });
        }
    }

    pub fn refuse_to_sleep(&mut self, id: ServerId, refusal: &SleepRefusal) {
        self.count("machine that cannot sleep");
        for member in 1..=self.settings.members {
            self.send(Node::Server(id), Node::Member(member), Message::Refuses(refusal.clone()));
        }
    }
}
