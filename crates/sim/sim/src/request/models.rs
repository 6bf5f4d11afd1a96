//! The models of time of one world, and what the world asks of them: how long a message takes, what a store's command
//! costs, how long a switch takes. Clients, feed and watch work on them too.

use crate::engine::SECOND;
use crate::request::client::Clients;
use crate::request::energy::{Meters, Taken, Way};
use crate::request::feed::{Closed, Feed};
use crate::request::follow::Watch;
use crate::request::later::Later;
use crate::request::machine::Machine;
use crate::request::network::{Fabric, Traffic};
use crate::world::net::Node;
use crate::world::{Happening, Message, World};
use ebb_chunkserver::{Recovered, StoreCommand, StoreOutcome, StoreToken};
use ebb_meta::SwitchAction;
use ebb_power::Draw;
use ebb_types::{Depth, MetaPush, MetaReply, Moment, PeerMessage, Role, ServerId, StoreTask};
use std::collections::{BTreeMap, BTreeSet};

/// Approximate bytes of a message's head on the wire: frame, body, TCP/IP.
pub(super) const MESSAGE_BYTES: u64 = 150;
/// Approximate bytes of a slot in a map, a run in a listing, a record in a tail.
const ITEM_BYTES: u64 = 40;

/// The models of time of one world, and what they measure.
pub struct Models<'a> {
    pub fabric: Fabric,
    pub machines: BTreeMap<ServerId, Machine>,
    pub clients: Clients,
    pub feed: Feed<'a>,
    /// Clients that send as fast as they are answered; `None`: requests arrive at the trace's times.
    pub closed: Option<Closed<'a>>,
    pub energy: Meters,
    /// Servers that are switched on.
    pub on: BTreeSet<ServerId>,
    /// How deep each server was put to sleep last.
    pub slept: BTreeMap<ServerId, Depth>,
    pub watch: Watch,
    /// How long the switch takes.
    pub ways: BTreeMap<Depth, Way>,
    /// Time between two samples.
    pub sample_every: u64,
    /// The last moment at which one is taken.
    pub sample_until: u64,
}

impl Models<'_> {
    /// Sends a message; returns when it arrives.
    pub fn transmit(&mut self, now: u64, from: Node, to: Node, message: &Message) -> u64 {
        let (traffic, bytes) = weigh(message);
        self.fabric.send(now, from, to, MESSAGE_BYTES + bytes, traffic)
    }

    pub fn recovered(&self, server: ServerId) -> Recovered {
        self.machines[&server].store.recovered()
    }

    /// Bytes used, those of own columns, which are not modelled, and bytes of offload.
    pub fn figures(&self, server: ServerId) -> (u64, u64, u64) {
        let store = &self.machines[&server].store;
        (store.used_bytes(), 0, store.offload_bytes())
    }

    /// Store commands in flight.
    pub fn queued(&self, server: ServerId) -> usize {
        self.machines[&server].queued() as usize
    }

    pub(super) fn machine(&mut self, server: ServerId) -> &mut Machine {
        self.machines.get_mut(&server).expect("every server has a machine")
    }

    /// What the servers have taken since the start of the trace.
    pub(super) fn taken(&self, now: u64) -> Taken {
        let (meters, now) = (&self.energy, Moment(now));
        let mut taken = Taken { clock: meters.clock.energy(now), own: meters.own.energy(now) };
        taken.clock.on += self.watch.work;
        taken.own.on += self.watch.own_work;
        taken
    }

    pub fn debt_bytes(&self) -> u64 {
        self.machines.values().map(|m| m.store.offload_bytes()).sum()
    }
}

/// A message's kind of traffic, and its bytes beyond the head.
fn weigh(message: &Message) -> (Traffic, u64) {
    let items = |count: usize| count as u64 * ITEM_BYTES;
    match message {
        Message::Peer { message, payload } => match message {
            PeerMessage::Replicate { role, record, .. } => {
                let traffic = if *role == Role::Replica { Traffic::Replication } else { Traffic::Offload };
                (traffic, payload.len() as u64 + 4 * u64::from(record.count))
            }
            PeerMessage::List { .. }
            | PeerMessage::Fetch { .. }
            | PeerMessage::Scrub { .. }
            | PeerMessage::Check { .. }
            | PeerMessage::CheckReply { .. }
            | PeerMessage::Scrubbed { .. } => (Traffic::CatchUp, 0),
            PeerMessage::ListReply { result, .. } => {
                (Traffic::CatchUp, result.as_ref().map_or(0, |page| items(page.runs.len())))
            }
            PeerMessage::FetchReply { .. } => (Traffic::CatchUp, payload.len() as u64),
            PeerMessage::Fence { done, .. } => (Traffic::Control, items(done.len())),
            PeerMessage::FenceReply { tail, done, .. } => (Traffic::Control, items(tail.len() + done.len())),
            PeerMessage::ReplicateReply { .. } | PeerMessage::Committed { .. } => (Traffic::Control, 0),
        },
        Message::Request { payload, .. } | Message::Reply { payload, .. } => {
            (Traffic::Client, payload.len() as u64)
        }
        Message::Push(MetaPush::Map(map))
        | Message::MetaReply { reply: MetaReply::Watch { map, .. }, .. } => {
            let slots: usize = map.groups.iter().map(|(_, entry)| 1 + entry.slots.len()).sum();
            (Traffic::Control, items(slots + map.servers.len()))
        }
        Message::Raft(bytes) => (Traffic::Control, bytes.len() as u64),
        _ => (Traffic::Control, 0),
    }
}

impl<'a> World<'a> {
    /// The models; called only in a world that has them.
    pub fn models(&mut self) -> &mut Models<'a> {
        self.modelled.as_deref_mut().expect("a modelled world")
    }

    pub fn modelled_happens(&mut self, later: Later) {
        match later {
            Later::Arrivals => self.requests_arrive(),
            Later::TaskDone { server, life, token } if self.servers[&server].life == life => {
                self.stored(server, token, StoreOutcome::Applied);
            }
            Later::DiskDone { server, life, job } if self.servers[&server].life == life => {
                self.jobs_done(server, &[job]);
            }
            Later::DiskFree { server, life } if self.servers[&server].life == life => {
                self.models().machine(server).wake_at = 0;
                self.pump_disk(server);
            }
            Later::TaskDone { .. } | Later::DiskDone { .. } | Later::DiskFree { .. } => {}
            Later::Mirror { server } => self.step_mirror(server),
            Later::Resume { server } => self.resume_mirror(server),
            Later::Retry { piece } => self.look_at_piece(piece),
            Later::Refresh { host } => self.refresh_host(host),
            Later::Timeouts => {
                self.look_for_timeouts();
                self.after(SECOND, Happening::Modelled(Later::Timeouts));
            }
            Later::Sample if self.now > self.models().sample_until => {}
            Later::Sample => {
                self.take_sample();
                let every = self.models().sample_every;
                self.after(every, Happening::Modelled(Later::Sample));
            }
            Later::Gear { gear } => self.ask_gear(gear),
        }
    }

    pub fn submit_to_disk(&mut self, server: ServerId, token: StoreToken, command: StoreCommand) {
        let now = self.now;
        match self.models().machine(server).submit(now, token, command) {
            Some((job, done)) => {
                let life = self.servers[&server].life;
                self.at(done, Happening::Modelled(Later::DiskDone { server, life, job }));
            }
            None => self.pump_disk(server),
        }
    }

    /// Starts every access that the disk can take.
    pub(super) fn pump_disk(&mut self, server: ServerId) {
        let (now, life) = (self.now, self.servers[&server].life);
        while let Some((job, done)) = self.models().machine(server).start(now) {
            if let Some(done) = done {
                self.at(done, Happening::Modelled(Later::DiskDone { server, life, job }));
            }
        }
        let machine = self.models().machine(server);
        if let Some(at) = machine.next_look(now) {
            let later = match machine.disk.pair() {
                None => Later::DiskFree { server, life },
                Some(_) => Later::Mirror { server },
            };
            self.at(at, Happening::Modelled(later));
        }
    }

    /// A server has power: its mirror, if it has one, begins or continues.
    pub fn resume_mirror(&mut self, server: ServerId) {
        let now = self.now;
        if let Some(pair) = self.models().machine(server).disk.pair() {
            pair.resume(now);
            self.pump_disk(server);
        }
    }

    /// Lets a server's mirror do what is due, unless that has become due at another time.
    fn step_mirror(&mut self, server: ServerId) {
        let now = self.now;
        let machine = self.models().machine(server);
        if machine.wake_at != now {
            return;
        }
        machine.wake_at = 0;
        let pair = machine.disk.pair().expect("only a mirror asked for it");
        let jobs = pair.step(now);
        self.jobs_done(server, &jobs);
    }

    fn jobs_done(&mut self, server: ServerId, jobs: &[u32]) {
        let now = self.now;
        let mut ended = Vec::new();
        for job in jobs {
            self.models().machine(server).end(now, *job, &mut ended);
        }
        self.pump_disk(server);
        for (token, outcome) in ended {
            self.stored(server, token, outcome);
        }
        let machine = self.models().machine(server);
        if machine.is_idle() {
            for token in std::mem::take(&mut machine.flushing) {
                self.task_done(server, token);
            }
        }
    }

    /// Only a flush takes the disk's time: before a server sleeps, all data is moved to its chunk files.
    pub fn give_task_to_disk(&mut self, server: ServerId, token: StoreToken, task: StoreTask) {
        let machine = self.models().machine(server);
        match task {
            StoreTask::Drop { group, role } => machine.store.drop_role(group, role),
            StoreTask::ForgetTombstones { .. } | StoreTask::Remember(_) => {}
            StoreTask::Flush => {
                machine.settle();
                if !machine.is_idle() {
                    machine.flushing.push(token);
                    return self.pump_disk(server);
                }
            }
        }
        self.task_done(server, token);
    }

    fn task_done(&mut self, server: ServerId, token: StoreToken) {
        let life = self.servers[&server].life;
        self.after(0, Happening::Modelled(Later::TaskDone { server, life, token }));
    }

    /// A power switch takes the time of the depth of sleep. Going down begins at once and must end before going up can
    /// begin.
    pub fn throw_switch(&mut self, member: u64, life: u64, server: ServerId, action: SwitchAction) {
        let now = self.now;
        let models = self.models();
        let draw = match action {
            SwitchAction::Wake { .. } => {
                models.on.insert(server);
                Draw::On { utilisation: 0.0 }
            }
            SwitchAction::Sleep(depth) => {
                models.on.remove(&server);
                models.slept.insert(server, depth);
                if let Some(pair) = models.machine(server).disk.pair() {
                    pair.suspend(now);
                }
                Draw::asleep(depth)
            }
        };
        models.energy.set(Moment(now), server, draw);
        // One that never slept comes from the deepest.
        let (deepest, _) = models.ways.last_key_value().expect("there is a depth of sleep");
        let Way { up, down } = models.ways[models.slept.get(&server).unwrap_or(deepest)];
        let free = self.server(server).switch_free.max(now);
        let (at, until) = match action {
            SwitchAction::Wake { .. } => (free + up.as_nanos() as u64, free + up.as_nanos() as u64),
            SwitchAction::Sleep(_) => (free, free + down.as_nanos() as u64),
        };
        self.server(server).switch_free = until;
        if action.is_wake() && self.models().machine(server).disk.pair().is_some() {
            self.at(at, Happening::Modelled(Later::Resume { server }));
        }
        self.at(at, Happening::Switch { member, life, server, action, stormy: false });
    }
}
