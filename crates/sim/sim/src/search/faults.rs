//! Faults: crashes, pauses, partitions, slow, full, rotting and failing disks, switches, gears, losses.

mod losses;
mod machines;
mod members;
mod network;
mod ruin;

use crate::search::harm::Harm;
use crate::world::client::ADMIN;
use crate::engine::{MILLI, SECOND};
use crate::world::coder::CODERS;
use crate::world::net::{NetModel, Node};
use crate::world::server::Server;
use crate::world::store::{Damage, Found, Place};
use crate::world::{Happening, Message, World};
use ebb_chunkserver::shell;
use ebb_gear::Mode;
use ebb_store::mem::MemDisk;
use ebb_types::{
    AdminRequest, ChunkId, Column, Epoch, GroupEntry, Incarnation, MetaRequest, ParityDebt, ServerId,
    ServerState, SetEntry, Slot, SlotState, StoreId, Version,
};
use ebb_types::{GearSteps, GearWish, NO_GEAR, Random, mix};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts to draw damage that the cluster can survive.
const TRIES: u32 = 12;

/// Among the weights.
const CRASH: usize = 0;
/// Those that destroy nothing, by their places among the weights: they may strike while the last copy is copied.
const HARMLESS: [usize; 17] = [1, 2, 3, 4, 5, 9, 13, 18, 21, 26, 29, 30, 31, 32, 33, 34, 35];

/// The faults of a run.
#[derive(Default)]
pub struct Mishaps {
    /// Number of the last fault. Each has its own random source, so that one can be left out without changing the
    /// others.
    pub number: u64,
    pub left_out: BTreeSet<u64>,
    tally: BTreeMap<&'static str, u64>,
    /// Until then the load is too heavy for all disks.
    overloaded_until: u64,
    /// The metadata leader fails as soon as it has proposed a change of epochs.
    ambush: bool,
    /// Until then no leader fails so.
    truce_until: u64,
}

impl World<'_> {
    pub fn count(&mut self, what: &'static str) {
        *self.mishaps.tally.entry(what).or_default() += 1;
    }

    /// How often each fault occurred.
    pub fn tally(&self) -> BTreeMap<&'static str, u64> {
        let mut tally = self.mishaps.tally.clone();
        let clocks = self.servers.values().map(|s| s.clock).chain(self.members.values().map(|m| m.clock));
        tally.insert("clock fast or slow", clocks.filter(|c| c.is_off()).count() as u64);
        tally.insert("message late", self.net.late);
        tally.insert("message lost", self.net.lost);
        tally.insert("message refused", self.net.refused);
        tally.insert("message repeated", self.net.repeated);
        tally.insert("message out of order", self.net.reordered);
        tally.insert("gear shift", self.newest_state().shifts().count() as u64);
        tally.insert("primary moved", self.primaries_moved());
        tally.insert("metadata log replaced", self.logs_replaced());
        tally.retain(|_, times| *times > 0);
        tally
    }

    /// Injects one fault and schedules the next.
    pub fn next_fault(&mut self) {
        if !self.stormy {
            return;
        }
        self.mishaps.number += 1;
        let number = self.mishaps.number;
        self.fault_random = Random::new(mix(self.scenario.seed ^ mix(number)));
        let gap = self.fault_random.between(self.scenario.fault_gap / 4, self.scenario.fault_gap * 2);
        self.after(gap, Happening::Fault);
        if self.mishaps.left_out.contains(&number) {
            return;
        }
        let weights = self.scenario.faults.weights();
        let mut at = self.fault_random.below(weights.iter().sum());
        let kind = weights.iter().position(|w| {
            let found = at < *w;
            at = at.saturating_sub(*w);
            found
        });
        let servers: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
        let id = *self.fault_random.pick(&servers).expect("not all are lost");
        if self.scenario.faults.forget > 0 && self.fault_random.chance(400) {
            let server = self.server(id);
            server.backup = Some(server.store.disk.copy());
        }
        let kind = kind.expect("a weight is met");
        let is_thin = self.rebuilds();
        if is_thin && !(HARMLESS.contains(&kind) || kind == CRASH && !self.needs_memory()) {
            return;
        }
        if is_thin {
            self.count("fault during a rebuild");
        }
        self.strike(kind, id);
    }

    /// `kind`: its place among the weights.
    fn strike(&mut self, kind: usize, id: ServerId) {
        match kind {
            CRASH => self.crash_for_a_while(self.busy_or(id)),
            1 => self.pause_for_a_while(id),
            2 => self.disturb_member(),
            3 => self.partition(id),
            4 => self.reset_connection(id),
            5 => self.slow_down(id),
            6 => self.poison(id),
            7 => self.fill_up(id),
            8 => self.rot(id),
            9 => self.shift_gear(),
            10 => self.lose(id),
            11 => self.crash_rack(id),
            12 => self.forget(id),
            13 => self.storm(),
            14 => self.cut_power(),
            15 => self.disturb_log(),
            16 => self.exchange(id),
            17 => self.burst(),
            19 => {
                self.count("power test");
                self.ask_power(id, AdminRequest::PowerTest { server: id });
            }
            20 => self.maintain(id),
            21 => self.suspend(id),
            22 => self.lose_asleep(),
            23 => self.outage(),
            24 => self.reboot(id),
            25 => self.hang(id),
            26 => self.split(),
            27 => self.ruin(),
            28 => self.fill_all(),
            29 => self.grow(),
            30 => self.hang_log(),
            31 => self.mute(id),
            32 => self.fill_queue(),
            33 => self.overload_disks(),
            34 => self.ambush_leader(),
            35 => self.deafen_in_part(),
            _ => self.cut_off_client(),
        }
    }

    /// The administrator asks once; a refusal is an answer too.
    fn ask_power(&mut self, server: ServerId, request: AdminRequest) {
        self.note(|| format!("administrator: {request:?}"));
        self.operator_sends_away(server);
        for member in 1..=self.scenario.members {
            let request = MetaRequest::Admin(request.clone());
            // Of no question: no client waits for the answer.
            self.send(
                Node::Client(ADMIN),
                Node::Member(member),
                Message::AskMeta { number: u64::MAX, request },
            );
        }
    }

    /// Maintenance begins, or ends where there is any.
    fn maintain(&mut self, id: ServerId) {
        let on =
            self.newest_state().servers().map(|e| e.id).find(|id| self.newest_state().in_maintenance(*id));
        let (server, end) = (on.unwrap_or(id), on.is_some());
        self.count(if end { "maintenance ends" } else { "maintenance" });
        self.ask_power(server, AdminRequest::Maintenance { server, end });
    }

    pub fn crash(&mut self, id: ServerId) {
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        if !server.up {
            return;
        }
        server.up = false;
        server.paused = false;
        server.life += 1;
        let lost = server.store.crash(&mut self.disk_random);
        *self.mishaps.tally.entry("unsynced write torn or lost").or_default() += lost;
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
        let coders = CODERS..CODERS + self.coders.len() as u32;
        for client in (0..self.clients.len() as u32).chain(coders) {
            let delay = self.fault_random.between(MILLI / 10, latest);
            self.after(delay, Happening::LinkLost { client, server: id });
        }
    }

    /// A server with writes in flight, if there is one: a fault there endangers more.
    fn busy_or(&self, id: ServerId) -> ServerId {
        self.servers.values().find(|s| s.runs() && !s.store.is_idle()).map_or(id, |s| s.id)
    }

    fn crash_for_a_while(&mut self, id: ServerId) {
        self.crash(id);
        let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
        self.after(down, Happening::Restart { server: id });
    }

    /// All servers of a rack at once.
    fn crash_rack(&mut self, id: ServerId) {
        let racks = &self.scenario.bootstrap.servers;
        let rack = racks.iter().find(|s| s.id == id).map(|s| s.rack);
        let all = racks.iter().filter(|s| Some(s.rack) == rack).map(|s| s.id).collect();
        self.count("rack crash");
        self.crash_together(all);
    }

    /// All servers at once. The metadata service keeps running.
    pub fn cut_power(&mut self) {
        self.count("power cut");
        self.crash_together(self.servers.keys().copied().collect());
    }

    /// Each returns in its own time; sometimes all are away for longer than any lease. Sleeping servers are found
    /// switched off.
    fn crash_together(&mut self, all: Vec<ServerId>) {
        let pause = if self.fault_random.chance(500) { self.fault_random.delay(6 * SECOND) } else { 0 };
        for id in all {
            let server = &self.servers[&id];
            if server.lost {
                continue;
            }
            self.crash(id);
            let down = pause.min(10 * SECOND) + self.fault_random.delay(400 * MILLI).min(12 * SECOND);
            self.after(down, Happening::Restart { server: id });
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

    fn pause_for_a_while(&mut self, id: ServerId) {
        self.server(id).paused = true;
        self.note(|| format!("{id} stops"));
        self.count("server stopped");
        let time = self.fault_random.delay(500 * MILLI).min(10 * SECOND);
        self.after(time, Happening::Resume { server: id });
    }

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
        self.check_sleep(id);
        self.note(|| format!("{id} is put to sleep"));
        self.count("server put to sleep");
        if self.scenario.sleep_is_off {
            self.crash(id);
        }
        self.server(id).asleep = true;
    }

    pub fn all_nodes(&self) -> Vec<Node> {
        let servers = self.servers.keys().map(|s| Node::Server(*s));
        let members = self.members.keys().map(|m| Node::Member(*m));
        let coders = (CODERS..).take(self.coders.len());
        let clients = self.clients.iter().map(|c| c.id).chain(coders).map(Node::Client);
        servers.chain(members).chain(clients).chain([Node::Client(ADMIN)]).collect()
    }

    /// One node, or half of them, cannot reach the others; or one pair, possibly in one direction only.
    fn partition(&mut self, id: ServerId) {
        let until = self.now + self.fault_random.delay(700 * MILLI).min(8 * SECOND);
        let nodes = self.all_nodes();
        let both = self.fault_random.chance(700);
        let pair = self.fault_random.chance(400);
        let one = Node::Server(id);
        let other = *self.fault_random.pick(&nodes).expect("there are nodes");
        let side: Vec<Node> = if self.fault_random.chance(500) {
            vec![one]
        } else {
            nodes.iter().copied().filter(|_| self.fault_random.chance(500)).collect()
        };
        self.count("partition");
        self.note(|| match pair {
            true => format!("{one} is cut off from {other} ({})", ways(both)),
            false => format!("{} cut off from the others ({})", names(&side), ways(both)),
        });
        let pairs: Vec<(Node, Node)> = if pair {
            vec![(one, other)]
        } else {
            let rest = nodes.iter().filter(|n| !side.contains(n));
            rest.flat_map(|r| side.iter().map(|s| (*s, *r))).collect()
        };
        let outlasted = self.fault_random.chance(500);
        for (a, b) in pairs {
            self.net.cut(a, b, until, outlasted);
            if both {
                self.net.cut(b, a, until, outlasted);
            }
        }
    }

    /// A client cannot send to any server, or receives from none, for as long as it may retry: meanwhile others write
    /// to the same cells.
    fn cut_off_client(&mut self) {
        let until = self.now + self.fault_random.delay(3 * SECOND).min(12 * SECOND);
        let client = Node::Client(self.fault_random.below(self.clients.len() as u64) as u32);
        let deaf = self.fault_random.chance(600);
        let outlasted = self.fault_random.chance(300);
        self.count("client cut off");
        self.note(|| format!("{client} is cut off from all servers ({})", ways(!deaf)));
        for id in self.servers.keys().copied() {
            self.net.cut(Node::Server(id), client, until, outlasted);
            if !deaf {
                self.net.cut(client, Node::Server(id), until, outlasted);
            }
        }
    }

    fn reset_connection(&mut self, id: ServerId) {
        let nodes = self.all_nodes();
        let other = *self.fault_random.pick(&nodes).expect("there are nodes");
        self.note(|| format!("the connection of {id} and {other} breaks"));
        self.count("connection reset");
        if other != Node::Server(id) {
            self.net.reset(Node::Server(id), other);
            self.connection_breaks(Node::Server(id), other);
        }
    }

    fn slow_down(&mut self, id: ServerId) {
        self.server(id).slowness = self.fault_random.between(5, 300);
        self.note(|| format!("the disk of {id} is slow"));
        self.count("slow disk");
        let time = self.fault_random.delay(SECOND).min(10 * SECOND);
        self.after(time, Happening::Heal { server: id });
    }

    /// R9: a sync fails. The operator restarts the server after a while.
    fn poison(&mut self, id: ServerId) {
        if !self.server(id).up {
            return;
        }
        let once = self.fault_random.chance(500);
        self.server(id).store.disk.fail_syncs(if once { 1 } else { u64::MAX });
        self.note(|| format!("the store of {id} fails a sync"));
        self.count("failed sync");
        let time = self.fault_random.delay(2 * SECOND).min(10 * SECOND);
        self.after(time, Happening::Heal { server: id });
    }

    fn fill_up(&mut self, id: ServerId) {
        let hard = self.fault_random.chance(300);
        let room = self.fault_random.below(48 << 10);
        self.count("full disk");
        self.fill(id, hard.then_some(room));
        let time = self.fault_random.delay(SECOND).min(10 * SECOND);
        self.after(time, Happening::Heal { server: id });
    }

    /// `room`: bytes that are left, if that is known.
    pub fn fill(&mut self, id: ServerId, room: Option<u64>) {
        self.server(id).soft_full = true;
        if let Some(room) = room {
            let disk = &self.server(id).store.disk;
            disk.set_capacity(Some(disk.used() + room));
        }
        self.note(|| format!("the disk of {id} is {}full", if room.is_some() { "" } else { "nearly " }));
        self.tell_space(id);
    }

    pub fn tell_space(&mut self, id: ServerId) {
        if self.server(id).runs() {
            let figures = self.store_figures(id);
            self.shell_event(id, shell::Event::Space(figures));
        }
    }

    /// Restores the disk. A poisoned store needs a restart.
    pub fn heal_disk(&mut self, id: ServerId) {
        self.disk_moves_again(id);
        let server = self.server(id);
        server.slowness = 1;
        server.store.disk.set_capacity(None);
        server.store.disk.fail_syncs(0);
        let poisoned = server.store.is_poisoned();
        if std::mem::take(&mut server.soft_full) {
            self.invariants.full_at = Some(self.now);
        }
        if poisoned {
            self.crash(id);
            self.restart(id);
        } else {
            self.tell_space(id);
        }
    }

    /// Part of a store file rots, or a chunk's file vanishes: while the server runs, and only where other servers have
    /// what is lost.
    fn rot(&mut self, id: ServerId) {
        if self.lost.is_some() || self.lost_wanted.is_some() || self.servers[&id].store.disk_fails() {
            return;
        }
        let store = &self.servers[&id].store;
        let Some(before) = store.find(&store.disk) else { return };
        for _ in 0..TRIES {
            let store = &self.servers[&id].store;
            let Some(harm) = Harm::draw(&mut self.fault_random, &store.disk) else { return };
            if harm.is_loss() && !harm.path().starts_with("chunks/") {
                continue;
            }
            let trial = store.disk.copy();
            harm.happen(&trial);
            let Some(after) = store.find(&trial) else { continue };
            if let Some(what) = gone_unnoticed(&before, &after) {
                return self.fail("R9", format!("{id} does not notice the damage in {harm}: {what}"));
            }
            if let Some(chunk) = self.bearable(id, &before, &after) {
                self.note(|| format!("{id} has damage in {harm}: what it has of {chunk}"));
                self.invariants.rot_seen = true;
                self.count(if harm.is_loss() { "lost file" } else { "bit rot" });
                let store = &mut self.server(id).store;
                harm.happen(&store.disk);
                return store.was_damaged(&after);
            }
        }
    }

    /// The chunk of the new damage in `after`, if it is confined to one chunk, no other copy of that chunk is damaged,
    /// and the other servers have the data.
    fn bearable(&self, id: ServerId, before: &Found, after: &Found) -> Option<ChunkId> {
        let fresh = after.damaged.keys().filter(|place| !before.damaged.contains_key(place));
        let places: Vec<Place> = fresh.copied().collect();
        let &(group, _, chunk, _) = places.first()?;
        let others = || self.servers.values().filter(|s| !s.lost && s.id != id);
        let one_chunk = places.iter().all(|place| place.2 == chunk);
        if after.mark != before.mark || !one_chunk || others().any(|s| s.store.is_rotten(chunk)) {
            return None;
        }
        // The only copy of a write was not acknowledged, and no server can tell. If blocks are lost together with their
        // version, a replica in sync has them all.
        if let Some((set, _)) = group.column() {
            let entry = self.newest_state().set(set)?;
            let bears = self.can_decode(entry, &[id]) && !self.parity_is_in_memory(id);
            return bears.then_some(chunk);
        }
        let entry = self.newest_state().group(group)?;
        let in_sync = |s: &Slot| {
            let other = self.servers.get(&s.server).filter(|other| s.server != id && !other.lost);
            s.state == SlotState::InSync && other.is_some()
        };
        let known = |place: &Place| match after.damaged[place] {
            Damage::Rot(version) => others().any(|s| s.store.keeps(chunk, place.3, version)),
            Damage::Lost => {
                let has = |version: &Version| others().any(|s| s.store.keeps(chunk, place.3, *version));
                let unknown = before.sound.get(place).is_none_or(has);
                unknown && entry.slot_of(id).is_some() && entry.slots.iter().any(in_sync)
            }
        };
        places.iter().all(known).then_some(chunk)
    }

    /// The server's directory after a power cut with one file damaged; and whether the metadata service will recognise
    /// that it is not the original.
    fn broken_directory(&mut self, id: ServerId, on_record: u64) -> Option<(MemDisk, bool)> {
        for _ in 0..TRIES {
            let store = &self.servers[&id].store;
            let disk = store.disk.crash(self.fault_random.next());
            let before = store.find(&disk)?;
            let harm = Harm::draw(&mut self.fault_random, &disk)?;
            harm.happen(&disk);
            let after = store.find(&disk);
            // Writes of the last moments before a crash are in the last segment only; their loss goes unnoticed.
            let unnoticed = |found: &Found| (on_record..before.mark.position).contains(&found.mark.position);
            if after.as_ref().is_some_and(unnoticed) {
                continue;
            }
            self.note(|| format!("{id} has damage in {harm}"));
            let Some(after) = after else { return Some((disk, true)) };
            if after.mark.position < on_record {
                return Some((disk, true));
            }
            if self.parity_is_in_memory(id) {
                continue;
            }
            if let Some(what) = gone_unnoticed(&before, &after) {
                self.fail("R9", format!("{id} does not notice the damage in {harm}: {what}"));
            }
            self.server(id).store.was_damaged(&after);
            return Some((disk, false));
        }
        None
    }

    fn shift_gear(&mut self) {
        // The operator of a cluster that follows its load sometimes sets a gear, and later releases it.
        if self.scenario.pulse.is_some() && self.fault_random.chance(500) {
            return self.let_load_choose();
        }
        if self.scenario.bootstrap.schedule.steps == GearSteps::Servers && self.fault_random.chance(500) {
            let servers = &self.scenario.bootstrap.servers;
            let all = servers.iter().filter(|s| s.gear_group != NO_GEAR).count() as u64;
            let servers = self.fault_random.between(self.scenario.params().replicas.into(), all) as u32;
            return self.ask_for(GearWish::Servers(servers));
        }
        let gear = 1 + self.fault_random.below(self.scenario.params().replicas.into()) as u8;
        self.ask_gear(gear);
    }

    pub fn ask_gear(&mut self, gear: u8) {
        self.ask_for(GearWish::Gear(gear));
    }

    fn ask_for(&mut self, wish: GearWish) {
        self.note(|| format!("administrator: {wish}"));
        self.gear_wanted = Some(Mode::Manual(wish));
        self.ask();
    }

    /// From now on load and forecast determine the gear.
    pub fn let_load_choose(&mut self) {
        self.note(|| "administrator: the gear follows the load".into());
        self.gear_wanted = Some(Mode::Auto);
        self.ask();
    }

    /// Starts a new administrator request; the old one may still be in flight.
    pub fn ask(&mut self) {
        self.question += 1;
        self.after(0, Happening::Admin { question: self.question });
    }

    /// Whether the cluster survives the loss of these servers' data: nothing else is broken, and every group of theirs
    /// has another complete replica awake. r = 2 does not survive two losses at once, and under too heavy a load any
    /// number of servers may be called hung.
    fn can_spare(&self, ids: &[ServerId]) -> bool {
        let sound = |s: &Server| s.asleep || (s.runs() && !s.store.is_poisoned());
        let alone = self.net.is_whole(self.now)
            && self.members.values().all(|m| m.up && !m.paused)
            && self.servers.values().all(sound);
        if self.invariants.rot_seen || !alone || self.is_overloaded() {
            return false;
        }
        let state = self.newest_state();
        let complete = |s: &Slot| {
            let up = self.servers.get(&s.server).is_some_and(|other| other.runs());
            !ids.contains(&s.server) && s.state == SlotState::InSync && up
        };
        let of_set = |entry: &SetEntry| entry.columns.iter().any(|c| ids.contains(&c.server));
        if state.sets().any(|(_, entry)| of_set(entry) && !self.can_decode(entry, ids)) {
            return false;
        }
        let needed = |entry: &GroupEntry| entry.members().any(|(s, _)| ids.contains(&s));
        state.groups().filter(|(_, e)| needed(e)).all(|(_, e)| e.slots.iter().any(complete))
    }

    /// Whether a set bears that these servers lose what they have: the other data servers have everything, and parity
    /// is complete, or sleeps while they keep it.
    fn can_decode(&self, entry: &SetEntry, ids: &[ServerId]) -> bool {
        let k = entry.shape.data();
        let gone = entry.columns.iter().filter(|c| ids.contains(&c.server)).count();
        let sound = |(n, column): (usize, &Column)| {
            let server = &self.servers[&column.server];
            ids.contains(&column.server)
                || column.state == SlotState::InSync && server.runs()
                || n >= k && column.is_away() && server.asleep && !server.lost
        };
        gone <= entry.shape.awake_tolerance().min(entry.shape.parity())
            && entry.columns.iter().enumerate().all(sound)
            && (!self.is_in_memory(entry) || self.holders_have_all(entry))
    }

    /// Whether the pool's data servers keep the parity of sleepers in memory.
    pub fn is_in_memory(&self, entry: &SetEntry) -> bool {
        self.newest_state().pool(entry.pool).is_some_and(|pool| pool.parity_debt == ParityDebt::Ram)
    }

    /// Damage of the server's disk that is not noticed yet would meet a power cut that takes what others have in
    /// memory.
    fn parity_is_in_memory(&self, id: ServerId) -> bool {
        let mut sets = self.newest_state().sets().map(|(_, entry)| entry);
        let of_it = sets.find(|entry| entry.column_of(id).is_some());
        let whole = |entry: &SetEntry| entry.is_in_sync();
        of_it.is_some_and(|entry| self.is_in_memory(entry) && !whole(entry))
    }

    /// No data server that takes part lacks anything that it keeps for others, and none is about to be restarted.
    fn holders_have_all(&self, entry: &SetEntry) -> bool {
        let id = self.newest_state().sets().find(|(_, of)| *of == entry).map(|(id, _)| id);
        let data = entry.columns[..entry.shape.data()].iter().filter(|c| !c.is_away());
        let mut servers = data.map(|c| &self.servers[&c.server]);
        servers.all(|server| {
            let has = id.and_then(|id| server.replica().keeps_all_since(id)) == Some(entry.epoch);
            server.runs() && !server.store.disk_fails() && has
        })
    }

    /// R11: the server's directory is emptied, or an older copy of it is restored, and the server starts normally.
    fn forget(&mut self, id: ServerId) {
        let Some(entry) = self.newest_state().server(id) else { return };
        let (known, on_record) = (entry.store, self.newest_state().position(id));
        if entry.incarnation == Incarnation(0) || !self.can_spare(&[id]) {
            return;
        }
        let (what, disk, noticed) = match self.fault_random.below(3) {
            0 => match self.broken_directory(id, on_record) {
                Some((disk, noticed)) => ("a file of its directory is damaged", disk, noticed),
                None => return,
            },
            _ => match self.older_directory(id, known, on_record) {
                Some(old) => ("an older copy of its directory is put back", old, true),
                None => ("its directory is emptied", MemDisk::new(), true),
            },
        };
        self.crash(id);
        self.note(|| format!("{id}: {what}"));
        self.count(what);
        self.invariants.rot_seen |= !noticed;
        let server = self.server(id);
        server.broken = true;
        server.forgot = noticed.then_some(known);
        server.store.replace(disk);
        let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
        self.after(down, Happening::Restart { server: id });
    }

    /// Two servers start on each other's directories. Each refuses the other's, and the operator empties both.
    fn exchange(&mut self, id: ServerId) {
        let others: Vec<ServerId> = self.servers.keys().copied().filter(|other| *other != id).collect();
        let pair = [id, *self.fault_random.pick(&others).expect("there are two servers")];
        let state = self.newest_state();
        let known =
            pair.map(|id| state.server(id).filter(|e| e.incarnation > Incarnation(0)).map(|e| e.store));
        if known.contains(&None) || !self.can_spare(&pair) {
            return;
        }
        self.note(|| format!("the directories of {} and {} are exchanged", pair[0], pair[1]));
        self.count("directories exchanged");
        pair.iter().for_each(|id| self.crash(*id));
        let disks = pair.map(|id| self.servers[&id].store.disk.crash(self.fault_random.next()));
        for ((id, known), disk) in pair.into_iter().zip(known).zip(disks.into_iter().rev()) {
            let server = self.server(id);
            (server.broken, server.forgot) = (true, known);
            server.store.replace(disk);
            let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
            self.after(down, Happening::Restart { server: id });
        }
    }

    /// The operator's backup. A store that went back is recognised by its recorded position: a copy made since then is
    /// not older.
    fn older_directory(&mut self, id: ServerId, known: StoreId, on_record: u64) -> Option<MemDisk> {
        let old = self.server(id).backup.take()?.crash(self.fault_random.next());
        let mark = self.servers[&id].store.find(&old)?.mark;
        (mark.store == known && mark.position < on_record).then_some(old)
    }

    /// A server is gone for good; at most one per run.
    fn lose(&mut self, id: ServerId) {
        let state = self.newest_state();
        let peers =
            state.servers().filter(|s| Some(s.gear_group) == state.server(id).map(|e| e.gear_group)).count();
        if self.lost.is_some() || peers < 2 || !self.can_spare(&[id]) {
            return;
        }
        self.note(|| format!("{id} is gone for good"));
        self.count("server lost for good");
        self.crash(id);
        self.server(id).lost = true;
        self.lost = Some(id);
        self.lost_wanted = Some(id);
        self.ask();
    }

    /// Whether the server's store is not the original, and no metadata member knows.
    pub fn has_forgotten(&self, id: ServerId) -> bool {
        let Some(known) = self.servers[&id].forgot else { return false };
        self.newest_state().server(id).is_some_and(|entry| entry.store == known)
    }

    /// Whether a lost server's data is not yet copied. Another failure may then be one too many for r = 2.
    pub fn rebuilds(&self) -> bool {
        let state = self.newest_state();
        if self.lost_wanted.is_some() || self.servers.keys().any(|id| self.has_forgotten(*id)) {
            return true;
        }
        let of_lost = |e: &GroupEntry| self.lost.is_some_and(|lost| e.members().any(|(s, _)| s == lost));
        let all = |s: &Slot| match s.state {
            SlotState::CatchingUp { since } | SlotState::Away { since } => since == Epoch(0),
            SlotState::InSync => false,
        };
        let rebuilt = |c: &Column| !matches!(c.state, SlotState::CatchingUp { since: Epoch(0) });
        state.groups().any(|(_, entry)| of_lost(entry) || entry.slots.iter().any(all))
            || state.sets().any(|(_, entry)| !entry.columns.iter().all(rebuilt))
            || self.needs_memory()
    }

    /// Whether a lost server's strips can still only be computed from what others have in memory.
    pub fn needs_memory(&self) -> bool {
        let waits = |entry: &SetEntry| {
            entry.columns.iter().any(|c| match c.state {
                SlotState::CatchingUp { since: Epoch(0) } => true,
                SlotState::Away { since: Epoch(0) } => !self.holders_have_all(entry),
                _ => self.lost_wanted == Some(c.server) || self.has_forgotten(c.server),
            })
        };
        let mut sets = self.newest_state().sets();
        sets.any(|(_, entry)| self.is_in_memory(entry) && waits(entry))
    }

    /// A burst: all disks get more work than they can do.
    fn burst(&mut self) {
        self.note(|| "a burst of load".into());
        self.count("overload");
        let slowness = self.fault_random.between(10, 100);
        let time = self.fault_random.between(SECOND, 4 * SECOND);
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.server(id).slowness = slowness;
            self.after(time, Happening::Heal { server: id });
        }
        let usual = self.scenario.clients;
        for client in usual..usual + self.scenario.burst_clients {
            let ops = self.fault_random.between(1, 8) as u32;
            if self.client(client).is_done() {
                self.employ(client, ops);
            }
        }
    }

    fn storm(&mut self) {
        let most = |r: &mut ebb_types::Random, n| if r.chance(500) { r.below(n) } else { 0 };
        let r = &mut self.fault_random;
        self.net.model = NetModel {
            delay: self.scenario.net.delay * r.between(1, 30),
            loss: most(r, 300),
            repeat: most(r, 300),
            reorder: most(r, 600),
        };
        let model = self.net.model;
        self.note(|| format!("the network is in a storm: {model}"));
        self.count("network storm");
        let time = self.fault_random.delay(SECOND).min(8 * SECOND);
        self.after(time, Happening::Calm);
    }

    /// Repairs everything that is broken, and asks the cluster to wake.
    pub fn heal_everything(&mut self) {
        self.heal_all_but(None);
        let top = self.scenario.params().replicas;
        self.ask_gear(top);
    }

    /// Repairs everything but `missing`, which crashes and stays away.
    pub fn heal_all_but(&mut self, missing: Option<ServerId>) {
        self.note(|| match missing {
            None => "everything is mended".into(),
            Some(id) => format!("everything is mended, but {id} is missing"),
        });
        self.stormy = false;
        self.heal_net();
        self.scenario.net.loss = 0;
        self.scenario.net.repeat = 0;
        self.scenario.net.reorder = 0;
        self.net.model = self.scenario.net;
        for id in self.still.keys().copied().collect::<Vec<_>>() {
            self.client_goes_on(id);
        }
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            self.heal_member(id);
            self.right_the_clock(id);
            self.resume_member(id);
            self.restart_member(id);
        }
        for id in self.servers.keys().copied().collect::<Vec<_>>() {
            self.server(id).missing = Some(id) == missing;
            if Some(id) == missing {
                self.crash(id);
                continue;
            }
            self.resume(id);
            self.heal_disk(id);
            self.restart(id);
            self.press_the_button(id);
        }
    }

    /// The operator switches on a machine that is off without having been put to sleep.
    pub fn press_the_button(&mut self, id: ServerId) {
        let state = self.newest_state().server(id).map(|e| e.state);
        let meant = matches!(state, Some(ServerState::Asleep | ServerState::Waking));
        let switched = self.scenario.switches.get(&id).is_some_and(|paths| !paths.is_empty());
        if self.servers[&id].asleep && !(meant && switched) {
            self.power_on(id);
        }
    }
}

/// A block that was sound and now reads differently without being reported as damaged.
fn gone_unnoticed(before: &Found, after: &Found) -> Option<String> {
    let noticed = after.mark.position < before.mark.position;
    let gone = |(place, version): &(&Place, &Version)| {
        !after.damaged.contains_key(place) && after.sound.get(place) != Some(version)
    };
    let (place, version) = before.sound.iter().find(gone).filter(|_| !noticed)?;
    let found = after.sound.get(place).copied().unwrap_or_default();
    Some(format!("{} block {} was {version} and is {found}", place.2, place.3))
}

fn ways(both: bool) -> &'static str {
    if both { "both ways" } else { "one way" }
}

fn names(side: &[Node]) -> String {
    let names: Vec<String> = side.iter().map(Node::to_string).collect();
    format!("{} {}", names.join(", "), if side.len() == 1 { "is" } else { "are" })
}
