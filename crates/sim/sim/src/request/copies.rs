//! A rebuild fetch by fetch, without the protocol's messages: the disks, the store's accesses and the network are those
//! of the request level; which server takes which chunk group is [`rebuild_choice`]'s answer, as in the cluster. What
//! is left out (leases, listings, heartbeats, other clients) takes no time beside the copying, so this reaches sizes at
//! which [`rebuild`](super::rebuild()) would take hours; a test compares the two.

use crate::engine::{Agenda, Due};
use crate::request::feed::Feed;
use crate::request::machine::Machine;
use crate::request::models::MESSAGE_BYTES;
use crate::request::network::{Fabric, Traffic};
use crate::request::setup::{Setup, SimError};
use crate::request::store::{ChunkData, zeroes};
use crate::world::net::Node;
use ebb_chunkserver::{FETCH_BLOCKS, FETCHES_MAX, StoreCommand, StoreToken};
use ebb_gear::{Layout, rebuild_choice};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Epoch, GroupId, ObjectId, Record, Role, ServerId, Version, group_of,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Objects whose chunks are lost.
const OBJECTS: u32 = 8;

/// The result of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copied {
    /// Other servers that wrote.
    pub write_servers: usize,
    pub bytes: u64,
    pub took: Duration,
}

/// One fetch of a server that rebuilds.
#[derive(Clone, Copy)]
struct Fetch {
    group: GroupId,
    chunk: ChunkId,
    first: u32,
    count: u32,
    from: ServerId,
    to: ServerId,
}

enum Event {
    /// The question of this fetch is at its source, and its answer back.
    Asked(usize),
    Answered(usize),
    DiskDone {
        server: ServerId,
        job: u32,
    },
    DiskFree {
        server: ServerId,
    },
}

/// The server that is lost: the layout's first.
pub(super) fn lost_server(layout: &Layout) -> ServerId {
    *layout.servers.keys().next().expect("a layout has servers")
}

/// Whole chunks of several objects, as many of which the lost server holds as make `bytes` of data on it.
pub fn whole_chunks(setup: &Setup, bytes: u64) -> Result<Vec<ChunkData>, SimError> {
    let layout = setup.layout()?;
    let (lost, groups) = (lost_server(&layout), layout.groups.len() as u32);
    let count = (bytes / u64::from(setup.chunk_bytes)).max(1) as usize;
    let blocks = setup.chunk_bytes / BLOCK_BYTES as u32;
    let chunk = |n: u32| ChunkId { object: ObjectId(u64::from(n % OBJECTS) + 1), index: n / OBJECTS };
    let all = (0..).map(chunk).map(|chunk| ChunkData { group: group_of(chunk, groups), chunk, blocks });
    Ok(all.filter(|at| layout.groups[at.group.0 as usize].contains(&lost)).take(count).collect())
}

/// Makes new copies of these chunks of the layout's first server, which is lost. The same arguments give the same
/// result.
pub fn copy_chunks(setup: &Setup, chunks: &[ChunkData]) -> Result<Copied, SimError> {
    setup.check()?;
    let layout = setup.layout()?;
    let fetches = fetches(&layout, chunks);
    let feed = Feed { requests: &[], next: 0, start: 0, speed: 1.0 };
    let models = setup.models(&layout, feed)?;
    let mut queues: BTreeMap<ServerId, Vec<usize>> = BTreeMap::new();
    // Taken from the end.
    fetches.iter().enumerate().rev().for_each(|(n, fetch)| queues.entry(fetch.to).or_default().push(n));
    let write_servers = queues.len();
    let bytes = fetches.iter().map(|fetch| u64::from(fetch.count) * BLOCK_BYTES as u64).sum();
    let run = Run {
        now: 0,
        agenda: Agenda::default(),
        fabric: models.fabric,
        machines: models.machines,
        fetches,
        queues,
        last: 0,
    };
    Ok(Copied { write_servers, bytes, took: Duration::from_nanos(run.finish()) })
}

/// What the servers that rebuild fetch, in order: chunk group after chunk group, chunk after chunk.
fn fetches(layout: &Layout, chunks: &[ChunkData]) -> Vec<Fetch> {
    let lost = lost_server(layout);
    let mut load: BTreeMap<ServerId, u32> = BTreeMap::new();
    layout.groups.iter().flatten().for_each(|server| *load.entry(*server).or_default() += 1);
    let held: Vec<usize> = (0..layout.groups.len()).filter(|n| layout.groups[*n].contains(&lost)).collect();
    let members: Vec<Vec<ServerId>> = held.iter().map(|n| layout.groups[*n].clone()).collect();
    let places =
        layout.servers.iter().filter(|(id, _)| **id != lost).map(|(id, place)| (*id, *place)).collect();
    let choices = rebuild_choice(lost, layout.servers[&lost].gear_group, &members, &places, &load);

    let mut of_group: BTreeMap<usize, Vec<&ChunkData>> = BTreeMap::new();
    chunks.iter().for_each(|at| of_group.entry(at.group.0 as usize).or_default().push(at));
    let mut fetches = Vec::new();
    for ((group, members), choice) in held.iter().zip(&members).zip(choices) {
        let Some(choice) = choice else { continue };
        let primary = layout.primaries[*group];
        let left: Vec<ServerId> = members.iter().copied().filter(|id| *id != lost).collect();
        let from = if primary == lost { left[group % left.len()] } else { primary };
        for ChunkData { group, chunk, blocks } in of_group.remove(group).unwrap_or_default() {
            for first in (0..*blocks).step_by(FETCH_BLOCKS as usize) {
                let count = FETCH_BLOCKS.min(blocks - first);
                let (group, chunk) = (*group, *chunk);
                fetches.push(Fetch { group, chunk, first, count, from, to: choice });
            }
        }
    }
    fetches
}

struct Run {
    now: u64,
    agenda: Agenda<Event>,
    fabric: Fabric,
    machines: BTreeMap<ServerId, Machine>,
    fetches: Vec<Fetch>,
    queues: BTreeMap<ServerId, Vec<usize>>,
    /// When the last record was durable.
    last: u64,
}

impl Run {
    fn finish(mut self) -> u64 {
        let writers: Vec<ServerId> = self.queues.keys().copied().collect();
        for server in writers {
            (0..FETCHES_MAX).for_each(|_| self.ask(server));
        }
        while let Some(Due { at, what, .. }) = self.agenda.take_by(u64::MAX) {
            self.now = at;
            match what {
                Event::Asked(n) => {
                    let Fetch { group, chunk, first, count, from, .. } = self.fetches[n];
                    let role = Role::Replica;
                    let read = StoreCommand::Read { role, group, chunk, first, count };
                    self.submit(from, 2 * n as u64, read);
                }
                Event::Answered(n) => self.write(n),
                Event::DiskDone { server, job } => self.disk_done(server, job),
                Event::DiskFree { server } => {
                    self.machine(server).wake_at = 0;
                    self.pump(server);
                }
            }
        }
        self.last
    }

    fn at(&mut self, at: u64, event: Event) {
        self.agenda.put(at, event);
    }

    fn machine(&mut self, server: ServerId) -> &mut Machine {
        self.machines.get_mut(&server).expect("every server has a machine")
    }

    fn send(&mut self, from: ServerId, to: ServerId, bytes: u64, event: Event) {
        let (from, to) = (Node::Server(from), Node::Server(to));
        let at = self.fabric.send(self.now, from, to, MESSAGE_BYTES + bytes, Traffic::CatchUp);
        self.at(at, event);
    }

    /// The server's next fetch, if any is left.
    fn ask(&mut self, server: ServerId) {
        let Some(n) = self.queues.get_mut(&server).and_then(Vec::pop) else { return };
        self.send(server, self.fetches[n].from, 0, Event::Asked(n));
    }

    fn write(&mut self, n: usize) {
        let Fetch { group, chunk, first, count, to, .. } = self.fetches[n];
        let version = Version { epoch: Epoch(1), seq: n as u64 + 1 };
        let content = Content::Data { crcs: vec![0; count as usize] };
        let record = Record { group, chunk, first, count, version, request: None, content };
        let payload = zeroes(count as usize * BLOCK_BYTES);
        let (role, committed) = (Role::Replica, Version::ZERO);
        let write = StoreCommand::Apply { role, record, payload, must_fit: false, committed };
        self.submit(to, 2 * n as u64 + 1, write);
    }

    fn submit(&mut self, server: ServerId, token: u64, command: StoreCommand) {
        let now = self.now;
        let answer = self.machine(server).submit(now, StoreToken(token), command);
        debug_assert!(answer.is_none(), "reads and writes wait for the disk");
        self.pump(server);
    }

    /// Starts every access that the disk can take.
    fn pump(&mut self, server: ServerId) {
        let now = self.now;
        while let Some((job, done)) = self.machine(server).start(now) {
            let done = done.expect("Figure 12 has single disks, which know when they are done");
            self.at(done, Event::DiskDone { server, job });
        }
        if let Some(at) = self.machine(server).next_look(now) {
            self.at(at, Event::DiskFree { server });
        }
    }

    fn disk_done(&mut self, server: ServerId, job: u32) {
        let (now, mut ended) = (self.now, Vec::new());
        self.machine(server).end(now, job, &mut ended);
        self.pump(server);
        for (StoreToken(token), _) in ended {
            let n = (token / 2) as usize;
            let Fetch { count, from, to, .. } = self.fetches[n];
            if token.is_multiple_of(2) {
                self.send(from, to, u64::from(count) * BLOCK_BYTES as u64, Event::Answered(n));
            } else {
                self.last = now;
                self.ask(to);
            }
        }
    }
}
