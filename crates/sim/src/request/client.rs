//! Clients that replay a trace: each request is sent when the trace says so, whatever became of those before it.
//!
//! A client host routes by its own map, follows `Moved` at once, pauses after `Retry` (1 to 100 ms, as the client library) and
//! asks somebody else when the map says that the primary is another. A request over several chunks is as many pieces, and
//! ends with its last one.

use crate::client::ADMIN;
use crate::clock::{MILLI, SECOND};
use crate::net::Node;
use crate::request::measure::Done;
use crate::request::store::zeroes;
use crate::request::{Later, Models};
use crate::world::{Happening, Message, World};
use ebb_trace::{Kind, Request};
use ebb_types::{
    ChunkOp, ClientReply, ClientRequest, ClusterMap, Epoch, MetaPush, MetaReply, MetaRequest, ObjectId,
    RequestId, ServerId, Unready, group_of, piece_crcs,
};
use std::collections::BTreeSet;

const PAUSE_MIN: u64 = MILLI;
const PAUSE_MAX: u64 = 100 * MILLI;
/// While an answer is awaited the map is asked for this often; a request without one for the longer time is given up. It is
/// not sent twice while its first copy is on its way. [client library]
const REFRESH: u64 = 5 * SECOND;
const DEADLINE: u64 = 60 * SECOND;

/// A machine that clients run on.
#[derive(Default)]
pub struct Host {
    map: ClusterMap,
    /// Asks for the map not before.
    refresh_after: u64,
    seq: u64,
}

/// One piece of a request under way.
struct Piece {
    request: u32,
    host: u32,
    op: ChunkOp,
    attempt: u64,
    asked: Option<ServerId>,
    sent: u64,
    pause: u64,
    tries: u16,
}

/// A request of which pieces are under way.
struct Whole {
    done: Done,
    left: u32,
}

#[derive(Default)]
pub struct Clients {
    pub hosts: Vec<Host>,
    pieces: Slab<Piece>,
    wholes: Slab<Whole>,
    attempts: u64,
    /// Requests of the trace that arrived.
    pub arrived: u64,
    pub answered: Vec<Done>,
    pub retries: Retries,
}

/// Why requests were tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Retries {
    /// The group has another primary.
    pub moved: u64,
    /// The server could not serve it: no lease, a map too old, too few copies, overload.
    pub no_lease: u64,
    pub behind: u64,
    pub too_few_copies: u64,
    pub busy: u64,
    /// No answer in time.
    pub timeouts: u64,
}

/// Numbered places that are used again.
struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn put(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(value);
            return place;
        }
        self.places.push(Some(value));
        self.places.len() as u32 - 1
    }

    fn get(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    fn take(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take();
        if value.is_some() {
            self.free.push(place);
        }
        value
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl Clients {
    pub fn new(hosts: u32) -> Clients {
        Clients { hosts: (0..hosts).map(|_| Host::default()).collect(), ..Clients::default() }
    }

    pub fn under_way(&self) -> usize {
        self.wholes.len()
    }
}

impl World<'_> {
    /// A request of the trace arrives. `at`: simulated time since the start of the trace.
    pub fn request_arrives(&mut self, at: u64, request: &Request) {
        let now = self.now;
        let chunk_bytes = self.scenario.params().chunk_bytes;
        let models = self.models();
        let (gear, phase) = (models.watch.gear, models.watch.phase);
        let clients = &mut models.clients;
        let host = (clients.arrived % clients.hosts.len() as u64) as u32;
        clients.arrived += 1;
        let read = request.kind == Kind::Read;
        let done = Done { at, took: now, read, gear, phase, retries: 0, failed: false };
        let object = ObjectId(u64::from(request.device) + 1);
        let pieces = ebb_types::pieces(object, request.offset, request.len.into(), chunk_bytes)
            .expect("the trace was checked");
        let whole = clients.wholes.put(Whole { done, left: 0 });
        let mut left = 0;
        let mut started = Vec::with_capacity(1);
        for piece in pieces {
            let (chunk, offset, len) = (piece.chunk, piece.offset, piece.len);
            let state = &mut clients.hosts[host as usize];
            let op = match request.kind {
                Kind::Read => ChunkOp::Read { chunk, offset, len, must_exist: false },
                Kind::Write => {
                    state.seq += 1;
                    let request = RequestId { client: u64::from(host) + 1, seq: state.seq };
                    let crcs = piece_crcs(offset, &zeroes(len as usize));
                    ChunkOp::Write { chunk, offset, len, request, crcs }
                }
            };
            left += 1;
            let piece = Piece {
                request: whole,
                host,
                op,
                attempt: 0,
                asked: None,
                sent: now,
                pause: PAUSE_MIN,
                tries: 0,
            };
            started.push(clients.pieces.put(piece));
        }
        clients.wholes.get(whole).expect("just put").left = left;
        started.into_iter().for_each(|piece| self.try_piece(piece));
    }

    /// Sends a piece to the primary that its host knows of.
    fn try_piece(&mut self, id: u32) {
        let now = self.now;
        let groups = self.scenario.params().groups;
        let Models { clients, .. } = self.models();
        let Some(piece) = clients.pieces.get(id) else { return };
        let group = group_of(piece.op.chunk(), groups);
        let host = &clients.hosts[piece.host as usize];
        let route = host.map.group(group).and_then(|e| Some((e.epoch, e.primary?)));
        let from = piece.host;
        let Some((epoch, server)) = route else {
            self.refresh_host(from);
            return self.pause_piece(id);
        };
        clients.attempts += 1;
        // Which piece is answered can be read off the number of the try.
        let attempt = clients.attempts << 32 | u64::from(id);
        piece.attempt = attempt;
        piece.asked = Some(server);
        piece.sent = now;
        piece.tries += 1;
        let op = piece.op.clone();
        let payload = match &op {
            ChunkOp::Write { len, .. } => zeroes(*len as usize),
            _ => bytes::Bytes::new(),
        };
        let request = ClientRequest { group, epoch, op };
        let message = Message::Request { attempt, op: id as usize, request, payload };
        self.send(Node::Client(from), Node::Server(server), message);
    }

    fn pause_piece(&mut self, id: u32) {
        let now = self.now;
        let Models { clients, .. } = self.models();
        let Some(piece) = clients.pieces.get(id) else { return };
        let began = clients.wholes.get(piece.request).map_or(now, |w| w.done.took);
        if now - began >= DEADLINE {
            return self.piece_ends(id, true);
        }
        let pause = piece.pause;
        piece.pause = (piece.pause * 2).min(PAUSE_MAX);
        piece.asked = None;
        let attempt = piece.attempt;
        self.after(pause, Happening::Modelled(Later::Retry { piece: id, attempt }));
    }

    /// The pause is over.
    pub fn retry_piece(&mut self, id: u32, attempt: u64) {
        let Some(piece) = self.models().clients.pieces.get(id) else { return };
        if piece.attempt == attempt && piece.asked.is_none() {
            self.try_piece(id);
        }
    }

    /// Asks the metadata service for what is new in the map.
    pub fn refresh_host(&mut self, host: u32) {
        let now = self.now;
        let Models { clients, .. } = self.models();
        let state = &mut clients.hosts[host as usize];
        if now < state.refresh_after {
            return;
        }
        state.refresh_after = now + 50 * MILLI;
        let request = MetaRequest::Watch { map_version: state.map.version };
        let message = Message::AskMeta { number: 0, request };
        self.send(Node::Client(host), Node::Member(1), message);
    }

    /// At the start, every host asks for the map; from then on it is told.
    pub fn start_hosts(&mut self) {
        for host in 0..self.models().clients.hosts.len() as u32 {
            self.refresh_host(host);
        }
    }

    pub fn host_receives(&mut self, host: u32, message: Message) {
        if host == ADMIN {
            return self.admin_receives(message);
        }
        match message {
            Message::Reply { attempt, reply, .. } => self.piece_answered(attempt as u32, attempt, reply),
            Message::Push(MetaPush::Map(map))
            | Message::MetaReply { reply: MetaReply::Watch { map, .. }, .. } => {
                let state = &mut self.models().clients.hosts[host as usize];
                if state.map.apply(&map) {
                    self.reroute_pieces(host);
                } else {
                    state.map.version = 0;
                    self.refresh_host(host);
                }
            }
            // Before the cluster is created, or while it has no leader.
            Message::MetaReply { .. } => {
                self.after(50 * MILLI, Happening::Modelled(Later::Refresh { host }));
            }
            _ => {}
        }
    }

    /// A try at a server that is not the primary any more is given up at once.
    fn reroute_pieces(&mut self, host: u32) {
        let groups = self.scenario.params().groups;
        let clients = &mut self.models().clients;
        let map = &clients.hosts[host as usize].map;
        let moved = |piece: &Piece| {
            let entry = map.group(group_of(piece.op.chunk(), groups));
            let primary = entry.and_then(|e| e.primary);
            piece.host == host && piece.asked.is_some_and(|asked| primary.is_some_and(|p| p != asked))
        };
        let places = clients.pieces.places.iter().enumerate();
        let stale: Vec<u32> =
            places.filter(|(_, piece)| piece.as_ref().is_some_and(moved)).map(|(n, _)| n as u32).collect();
        clients.retries.moved += stale.len() as u64;
        stale.into_iter().for_each(|piece| self.try_piece(piece));
    }

    fn piece_answered(&mut self, id: u32, attempt: u64, reply: ClientReply) {
        let groups = self.scenario.params().groups;
        let Models { clients, .. } = self.models();
        let Some(piece) = clients.pieces.get(id).filter(|p| p.attempt == attempt) else { return };
        let host = piece.host;
        match reply {
            ClientReply::Data { .. } | ClientReply::Done => self.piece_ends(id, false),
            ClientReply::Failed { .. } => self.piece_ends(id, true),
            ClientReply::Retry { why } => {
                *clients.retries.of(why) += 1;
                self.refresh_host(host);
                self.pause_piece(id);
            }
            ClientReply::Moved { entry } => {
                clients.retries.moved += 1;
                let group = group_of(piece.op.chunk(), groups);
                let state = &mut clients.hosts[host as usize];
                let known = state.map.group(group).map_or(Epoch(0), |e| e.epoch);
                if known < entry.epoch && !state.map.groups.is_empty() && entry.primary.is_some() {
                    state.map.groups[group.0 as usize] = entry;
                    self.try_piece(id);
                } else {
                    self.refresh_host(host);
                    self.pause_piece(id);
                }
            }
        }
    }

    fn piece_ends(&mut self, id: u32, failed: bool) {
        let now = self.now;
        let clients = &mut self.models().clients;
        let Some(piece) = clients.pieces.take(id) else { return };
        let Some(whole) = clients.wholes.get(piece.request) else { return };
        whole.done.failed |= failed;
        whole.done.retries = whole.done.retries.saturating_add(piece.tries.saturating_sub(1));
        whole.left -= 1;
        if whole.left == 0 {
            let whole = clients.wholes.take(piece.request).expect("seen just now");
            clients.answered.push(Done { took: now - whole.done.took, ..whole.done });
        }
    }

    /// Every now and then: requests that waited too long are given up.
    pub fn look_for_timeouts(&mut self) {
        let now = self.now;
        let clients = &mut self.models().clients;
        let (mut late, mut hosts) = (Vec::new(), BTreeSet::new());
        for (n, piece) in clients.pieces.places.iter().enumerate() {
            let Some(piece) = piece.as_ref().filter(|p| p.asked.is_some()) else { continue };
            if now - piece.sent >= DEADLINE {
                late.push(n as u32);
            } else if now - piece.sent >= REFRESH {
                hosts.insert(piece.host);
            }
        }
        clients.retries.timeouts += late.len() as u64;
        late.into_iter().for_each(|id| self.piece_ends(id, true));
        hosts.into_iter().for_each(|host| self.refresh_host(host));
    }
}

impl Retries {
    fn of(&mut self, why: Unready) -> &mut u64 {
        match why {
            Unready::NoLease => &mut self.no_lease,
            Unready::Behind => &mut self.behind,
            Unready::TooFewCopies => &mut self.too_few_copies,
            Unready::Busy | Unready::Garbled => &mut self.busy,
        }
    }

    /// By reason, in words.
    pub fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("the primary moved", self.moved),
            ("no lease", self.no_lease),
            ("the server's map was behind", self.behind),
            ("too few copies", self.too_few_copies),
            ("busy", self.busy),
            ("no answer in time", self.timeouts),
        ]
    }

    pub fn total(&self) -> u64 {
        self.rows().iter().map(|(_, count)| count).sum()
    }

    /// The reasons that there were, in brackets.
    pub fn reasons(&self) -> String {
        let there = self.rows().into_iter().filter(|(_, count)| *count > 0);
        let there: Vec<String> = there.map(|(why, count)| format!("{why}: {count}")).collect();
        if there.is_empty() { String::new() } else { format!(" ({})", there.join(", ")) }
    }
}
