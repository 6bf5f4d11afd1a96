//! What a member does around its decisions: it pushes the map to those who watch it, has servers put their own machines
//! to sleep, and has others send the packets that wake one. The member's outcomes pass through here, so that a driver
//! only carries them to where they say.
//!
//! Invariants:
//! - Who watches is pushed each new map once, from the version that it has.
//! - A server that no switch puts to sleep is ordered to do so itself, again with every heartbeat that it sends while
//!   it is asleep on record, until it refuses or is to wake; and by the leader alone (R7). The order says what it was
//!   decided by ([`SleepOrder::counts`]).

mod actions;

use crate::{Input, Outcome, State, SwitchAction, Switches};
use actions::Actions;
use ebb_types::{Depth, MetaReply, Moment, ServerId, ServerState, SleepOrder};
use std::collections::BTreeMap;
use std::time::Duration;

/// Magic packets are sent so often, so far apart, unless the server is heard of.
const MAGIC_PACKETS: u32 = 8;
const MAGIC_PAUSE: Duration = Duration::from_secs(1);

/// What the member knows by now.
pub(crate) struct View<'a> {
    pub state: &'a State,
    pub switches: &'a Switches,
    pub leads: bool,
}

#[derive(Default)]
pub(crate) struct Shell {
    /// The map version that each watching connection has: a repeated request adds no second watcher.
    watchers: BTreeMap<u64, u64>,
    /// The time in each server's last heartbeat, by its own clock.
    heard: BTreeMap<ServerId, Moment>,
    /// The servers of the heartbeats since the last outcomes.
    beats: Vec<ServerId>,
    /// Servers that were last ordered to sleep, and have not refused.
    ordered: BTreeMap<ServerId, Depth>,
    packets: BTreeMap<ServerId, Packets>,
    actions: Actions,
}

/// Magic packets that are still to be sent.
struct Packets {
    path: u8,
    by: Vec<ServerId>,
    /// What had been heard of the server before.
    heard: Option<Moment>,
    left: u32,
    next: Moment,
}

impl Shell {
    /// An input of the member, before it is processed.
    pub fn took(&mut self, input: &Input) {
        self.actions.took(input);
    }

    /// How often each kind of input came and of outcome followed, since the start.
    pub fn actions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.actions.counts()
    }

    pub fn heard(&mut self, server: ServerId, sent: Moment) {
        self.heard.insert(server, sent);
        self.beats.push(server);
    }

    /// The leader orders it again after a pause.
    pub fn refused(&mut self, server: ServerId) {
        self.ordered.remove(&server);
    }

    pub fn unwatch(&mut self, connection: u64) {
        self.watchers.remove(&connection);
    }

    pub fn next_wake(&self) -> Option<Moment> {
        self.packets.values().map(|packets| packets.next).min()
    }

    /// Adds to what the member wants done what follows from it, and from what arrived before.
    pub fn on(&mut self, now: Moment, outcomes: Vec<Outcome>, view: &View, out: &mut Vec<Outcome>) {
        let before = out.len();
        for server in std::mem::take(&mut self.beats) {
            self.order_again(server, view, out);
        }
        for outcome in outcomes {
            match &outcome {
                Outcome::Reply { token, reply: MetaReply::Watch { map, .. } } => {
                    self.watchers.insert(token.connection, map.to);
                }
                Outcome::Switch { server, action } => self.throw(now, *server, *action, view, out),
                _ => {}
            }
            out.push(outcome);
        }
        let newest = view.state.version();
        for (to, known) in self.watchers.iter_mut().filter(|(_, known)| **known != newest) {
            out.push(Outcome::Map { to: *to, delta: view.state.delta(*known) });
            *known = newest;
        }
        self.send_packets(now, out);
        out[before..].iter().for_each(|outcome| self.actions.gave(outcome));
    }

    fn throw(
        &mut self,
        now: Moment,
        server: ServerId,
        action: SwitchAction,
        view: &View,
        out: &mut Vec<Outcome>,
    ) {
        let paths = view.switches.get(&server).map_or(&[][..], Vec::as_slice);
        match action {
            SwitchAction::Sleep(_) if paths.iter().any(|path| path.puts_to_sleep) => {}
            SwitchAction::Sleep(depth) => {
                self.ordered.insert(server, depth);
                self.order_to_sleep(server, depth, view.state, out);
            }
            SwitchAction::Wake { path } => {
                self.ordered.remove(&server);
                if paths.get(usize::from(path)).is_some_and(|path| path.magic) {
                    let (by, heard) = (neighbours(server, view.state), self.heard.get(&server).copied());
                    let packets = Packets { path, by, heard, left: MAGIC_PACKETS, next: now };
                    self.packets.insert(server, packets);
                }
            }
        }
    }

    /// The order may have been lost, or have come while the server flushed for a newer map.
    fn order_again(&self, server: ServerId, view: &View, out: &mut Vec<Outcome>) {
        let entry = view.state.server(server);
        let sleeps = entry.is_some_and(|entry| entry.state == ServerState::Asleep);
        if let Some(depth) = self.ordered.get(&server).filter(|_| sleeps && view.leads) {
            self.order_to_sleep(server, *depth, view.state, out);
        }
    }

    /// A server that has not been heard of is told when it is.
    fn order_to_sleep(&self, server: ServerId, depth: Depth, state: &State, out: &mut Vec<Outcome>) {
        if let Some((heard, entry)) = self.heard.get(&server).zip(state.server(server)) {
            let (incarnation, map_version, heard) = (entry.incarnation, state.version(), *heard);
            let order = SleepOrder { incarnation, map_version, depth, heard };
            out.push(Outcome::Order { to: server, order });
        }
    }

    fn send_packets(&mut self, now: Moment, out: &mut Vec<Outcome>) {
        let heard = &self.heard;
        self.packets.retain(|server, packets| {
            if heard.get(server) != packets.heard.as_ref() {
                return false;
            }
            if packets.next <= now {
                out.push(Outcome::Magic { server: *server, path: packets.path, by: packets.by.clone() });
                (packets.left, packets.next) = (packets.left - 1, now + MAGIC_PAUSE);
            }
            packets.left > 0
        });
    }
}

/// The awake servers of the same rack.
fn neighbours(server: ServerId, state: &State) -> Vec<ServerId> {
    let rack = state.server(server).map(|entry| entry.rack);
    let awake = state.servers().filter(|entry| entry.state == ServerState::Awake && Some(entry.rack) == rack);
    awake.map(|entry| entry.id).collect()
}

#[cfg(test)]
mod tests;
