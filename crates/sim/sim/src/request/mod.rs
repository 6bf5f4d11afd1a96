//! A trace on a whole cluster, request by request: the virtual world with models of time instead of random delays, and
//! stores that keep lengths instead of bytes.
//!
//! It is the world of the fault search: the same clock, servers and metadata members run the same production cores
//! (`ebb_chunkserver::Replica`, `ebb_meta::Member`, and in it the gear scheduler). With [`Models`], the world asks them
//! how long a message takes ([`network`]), what a store command costs on the disk ([`disk`]) and how long a power
//! switch takes, and measures the results ([`measure`]). Its clients replay a trace; no faults are injected, so the
//! invariants are not checked: that is the fault search's job.
//!
//! Every figure names its models: disks and networks by [`DiskModel`] and [`NetworkModel`], power by
//! [`ebb_power::PowerModel`]; processor time is assumed to be free.

mod client;
mod closed;
mod copies;
mod device;
pub mod disk;
mod energy;
mod follow;
mod machine;
pub mod measure;
pub mod network;
#[cfg(test)]
mod overload;
mod pair;
mod pairs;
mod rebuild;
pub mod report;
mod run;
pub mod settings;
mod setup;
mod store;
pub mod workload;

pub use crate::depths::Suspend;
pub use client::Retries;
pub use closed::{Pace, Work, closed};
pub use copies::{Copied, copy_chunks, whole_chunks};
pub use device::Mirroring;
pub use disk::{DiskModel, Hdd, Ssd};
pub use energy::{DepthRow, Energy, NO_SAVINGS};
pub use measure::{Done, Migration, PHASES, Phase, Reclaim, Sample};
pub use network::{NetworkModel, TRAFFICS, Traffic};
pub use pairs::{HourRow, PairsReport, Spread};
pub use rebuild::{Rebuilt, rebuild};
pub use report::{LatencyRow, Report};
pub use run::{hours, minutes, servers_for_peak, simulate};
pub use settings::SettingsError;
pub use setup::{Existing, Gears, Setup, SimError};
pub use store::ChunkData;

use crate::world::net::Node;
use crate::world::{Happening, Message, World};
use client::Clients;
use closed::Closed;
use ebb_chunkserver::{Recovered, StoreCommand, StoreOutcome, StoreToken};
use ebb_meta::SwitchAction;
use ebb_power::Draw;
use ebb_trace::Request;
use ebb_types::{Depth, MetaPush, MetaReply, Moment, PeerMessage, Role, ServerId, StoreTask};
use energy::{Meters, Taken, Way};
use follow::Watch;
use machine::Machine;
use network::Fabric;
use std::collections::{BTreeMap, BTreeSet};

/// Approximate bytes of a message's head on the wire: frame, body, TCP/IP.
const MESSAGE_BYTES: u64 = 150;
/// Approximate bytes of a slot in a map, a run in a listing, a record in a tail.
const ITEM_BYTES: u64 = 40;

/// Events of a modelled world only.
#[derive(Clone, Debug)]
pub enum Later {
    /// The next requests of the trace.
    Arrivals,
    /// A store's task is done.
    TaskDone { server: ServerId, life: u64, token: StoreToken },
    /// A disk access is done.
    DiskDone { server: ServerId, life: u64, job: u32 },
    /// A channel of the disk is free for a waiting access.
    DiskFree { server: ServerId, life: u64 },
    /// Something is due in a server's mirror.
    Mirror { server: ServerId },
    /// A server has power again: its mirror continues.
    Resume { server: ServerId },
    /// The pause before a piece's next try is over.
    Retry { piece: u32 },
    /// A client host asks for the map again.
    Refresh { host: u32 },
    /// Check for tries without an answer.
    Timeouts,
    /// Take a sample of the cluster.
    Sample,
    /// The schedule's gear from now on.
    Gear { gear: u8 },
}

/// The trace that is replayed.
pub struct Feed<'a> {
    pub requests: &'a [Request],
    pub next: usize,
    /// Simulated time of the trace's start.
    pub start: u64,
    /// Trace time per simulated time.
    pub speed: f64,
}

impl Feed<'_> {
    /// When a request arrives, in simulated time.
    fn at(&self, index: usize) -> Option<u64> {
        let at = self.requests.get(index)?.at.as_nanos() as f64 / self.speed;
        Some(self.start + at as u64)
    }

    /// Nothing more arrives.
    fn end(&mut self) {
        self.requests = &self.requests[..self.next];
    }
}

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

    fn machine(&mut self, server: ServerId) -> &mut Machine {
        self.machines.get_mut(&server).expect("every server has a machine")
    }

    /// What the servers have taken since the start of the trace.
    fn taken(&self, now: u64) -> Taken {
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
                self.after(crate::world::clock::SECOND, Happening::Modelled(Later::Timeouts));
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

    fn requests_arrive(&mut self) {
        let now = self.now;
        loop {
            let feed = &mut self.models().feed;
            match feed.at(feed.next) {
                Some(at) if at <= now => {
                    let (request, since) = (feed.requests[feed.next], now - feed.start);
                    feed.next += 1;
                    self.request_arrives(since, &request);
                }
                Some(at) => return self.at(at, Happening::Modelled(Later::Arrivals)),
                None => return,
            }
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
    fn pump_disk(&mut self, server: ServerId) {
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
