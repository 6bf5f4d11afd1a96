//! The process and the power of a chunk server's machine: it crashes, is started again, and is switched on and off.

use crate::engine::{MILLI, SECOND};
use crate::world::happening::Happening;
use crate::world::net::Node;
use crate::world::{Delays, Disturb, Judge, World};
use ebb_chunkserver::shell::Event;
use ebb_types::ServerId;

impl<H: Disturb + Judge + Delays> World<H> {
    pub fn crash(&mut self, id: ServerId) {
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        if !server.up {
            return;
        }
        server.up = false;
        server.paused = false;
        server.life += 1;
        let lost = server.store.crash(&mut self.disk_random);
        *self.tally.entry("unsynced write torn or lost").or_default() += lost;
        self.note(|| format!("{id} crashes"));
        self.count("server crash");
        self.net.reset_all(Node::Server(id));
        // The end of a process is noticed at once; that of a machine when it returns or a keep-alive is not answered.
        let latest = if self.fault_random.chance(700) { 50 * MILLI } else { 15 * SECOND };
        for peer in self.servers.keys().copied().filter(|peer| *peer != id).collect::<Vec<_>>() {
            let life = self.server(peer).life;
            let delay = self.fault_random.between(MILLI / 10, latest);
            self.after(delay, Happening::PeerLost { server: peer, life, peer: id });
        }
        for client in self.harness.clients() {
            let delay = self.fault_random.between(MILLI / 10, latest);
            self.after(delay, Happening::LinkLost { client, server: id });
        }
    }

    /// Restarts the process, unless it already runs or the machine is off.
    pub fn restart(&mut self, id: ServerId) {
        let server = self.server(id);
        if server.hung {
            return self.after(500 * MILLI, Happening::Restart { server: id }); // it waits for the disk, too
        }
        if !server.up && !server.asleep && !server.lost && !server.missing {
            self.start_server(id);
        }
    }

    /// A process that was paused continues.
    pub fn resume(&mut self, id: ServerId) {
        let paused = std::mem::take(&mut self.server(id).paused);
        self.wind_timers(id);
        if paused && self.server(id).runs() {
            self.note(|| format!("{id} continues"));
            self.go_on(id);
        }
    }

    pub fn power_on(&mut self, id: ServerId) {
        let server = self.server(id);
        if server.lost {
            return;
        }
        server.asleep = false;
        // It is switched on when it returns: the switch is not thrown again.
        if server.missing {
            return;
        }
        self.note(|| format!("{id} is switched on"));
        let server = self.server(id);
        if !server.up {
            self.start_server(id);
        } else if server.runs() {
            self.go_on(id);
        }
    }

    pub fn power_off(&mut self, id: ServerId) {
        H::check_sleep(self, id);
        self.note(|| format!("{id} is put to sleep"));
        self.count("server put to sleep");
        if self.settings.sleep_is_off {
            self.crash(id);
        }
        self.server(id).asleep = true;
    }

    /// The server learns what room its disk has.
    pub fn tell_space(&mut self, id: ServerId) {
        if self.server(id).runs() {
            let figures = self.store_figures(id);
            self.shell_event(id, Event::Space(figures));
        }
    }
}
