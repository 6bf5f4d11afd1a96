//! Clients that replay a trace: each request is sent at the trace's time, whatever the outcome of earlier ones.
//!
//! A client host has its own map. The client library's own [`Request`](ebb_client_core::Request) decides how a piece of
//! a request finds its primary and when it is retried. A request over several chunks is split into one piece per chunk,
//! and ends with the last one.

use crate::engine::MILLI;
use crate::request::later::Later;
use crate::request::measure::Done;
use crate::request::store::zeroes;
use crate::world::client::{ADMIN, Heard};
use crate::world::net::Node;
use crate::world::{Happening, Message, World};
use bytes::Bytes;
use ebb_client_core::{Command, Event, Patience, Trouble, View};
use ebb_trace::{Kind, Request};
use ebb_types::{
    ChunkOp, MetaPush, MetaReply, Moment, ObjectId, RequestId, SetId, Unready, group_of, piece_crcs,
};

/// A machine that clients run on.
#[derive(Default)]
pub struct Host {
    view: View,
    heard: Heard,
    seq: u64,
}

/// One piece of a request in flight.
struct Piece {
    whole: u32,
    host: u32,
    request: ebb_client_core::Request,
    attempt: u64,
}

/// A request with pieces in flight.
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
    /// Requests of the trace that have arrived.
    pub arrived: u64,
    pub answered: Vec<Done>,
    pub retries: Retries,
}

/// Why requests were retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Retries {
    /// The group has another primary.
    pub moved: u64,
    /// The server could not serve it: no lease, an outdated map, too few copies, overload.
    pub no_lease: u64,
    pub behind: u64,
    pub too_few_copies: u64,
    pub busy: u64,
    /// No answer in time.
    pub timeouts: u64,
}

/// Numbered slots that are reused.
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
    /// A request of the trace arrives, at the hosts in turn. `at`: simulated time since the start of the trace.
    pub fn request_arrives(&mut self, at: u64, request: &Request) {
        let clients = &self.models().clients;
        let host = (clients.arrived % clients.hosts.len() as u64) as u32;
        self.request_arrives_at(host, at, request);
    }

    pub fn request_arrives_at(&mut self, host: u32, at: u64, request: &Request) {
        let now = self.now;
        let params = self.scenario.params();
        let (chunk_bytes, groups) = (params.chunk_bytes, params.groups);
        let models = self.models();
        let (gear, phase) = (models.watch.gear, models.watch.phase);
        let clients = &mut models.clients;
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
            let group = group_of(chunk, groups);
            let request = ebb_client_core::Request::new(Moment(now), group, op, Patience::default());
            started.push(clients.pieces.put(Piece { whole, host, request, attempt: 0 }));
        }
        clients.wholes.get(whole).expect("just put").left = left;
        started.into_iter().for_each(|piece| self.look_at_piece(piece));
    }

    /// A piece begins, its pause is over, or its host's map has changed.
    pub fn look_at_piece(&mut self, id: u32) {
        let clients = &mut self.models().clients;
        let Some(piece) = clients.pieces.get(id) else { return };
        let look = clients.hosts[piece.host as usize].heard.look(&piece.request);
        self.piece_event(id, look);
    }

    fn piece_event(&mut self, id: u32, event: Event) {
        let now = Moment(self.now);
        let clients = &mut self.models().clients;
        let Some(piece) = clients.pieces.get(id) else { return };
        let mut commands = Vec::new();
        piece.request.on(now, &clients.hosts[piece.host as usize].view, event, &mut commands);
        let host = piece.host;
        let waits_on = commands.is_empty();
        commands.into_iter().for_each(|command| self.piece_obeys(id, host, command));
        // Tries that await an answer are checked periodically, together.
        let Some(piece) = self.models().clients.pieces.get(id) else { return };
        if piece.request.asked().is_none() && !waits_on {
            let pause = piece.request.due().since(now).as_nanos() as u64;
            self.after(pause, Happening::Modelled(Later::Retry { piece: id }));
        }
    }

    fn piece_obeys(&mut self, id: u32, host: u32, command: Command) {
        let clients = &mut self.models().clients;
        match command {
            Command::Send { server, message } => {
                clients.attempts += 1;
                // The try's number identifies the piece that is answered.
                let attempt = clients.attempts << 32 | u64::from(id);
                clients.pieces.get(id).expect("it sends").attempt = attempt;
                let payload = match &message.op {
                    ChunkOp::Write { len, .. } => zeroes(*len as usize),
                    _ => Bytes::new(),
                };
                let message = Message::Request { attempt, op: id as usize, request: message, payload };
                self.send(Node::Client(host), Node::Server(server), message);
            }
            Command::TryFailed(why) => *clients.retries.of(&why) += 1,
            Command::Adopt { group, entry } => {
                self.host(host).view.adopt(group, entry);
                self.look_at_pieces(host);
            }
            Command::AdoptSet { set, entry } => {
                self.host(host).view.adopt_set(set, entry);
                self.look_at_pieces(host);
            }
            Command::Heard { group, newest } => clients.hosts[host as usize].view.hear(group, newest),
            Command::Refresh => self.refresh_host(host),
            Command::Wake { set } => self.wake_set(host, set),
            // The modelled network loses nothing: a silent server is down or late.
            Command::Close { .. } => {}
            Command::End(result) => self.piece_ends(id, result.is_err()),
        }
    }

    /// Requests map changes from the metadata service.
    pub fn refresh_host(&mut self, host: u32) {
        let now = Moment(self.now);
        let Some(request) = self.host(host).view.refresh(now) else { return };
        let message = Message::AskMeta { number: 0, request };
        self.send(Node::Client(host), Node::Member(1), message);
    }

    fn wake_set(&mut self, host: u32, set: SetId) {
        let now = Moment(self.now);
        let Some(request) = self.host(host).view.wake(now, set) else { return };
        let message = Message::AskMeta { number: 0, request };
        self.send(Node::Client(host), Node::Member(1), message);
    }

    /// At the start every host requests the map; from then on it is pushed.
    pub fn start_hosts(&mut self) {
        for host in 0..self.models().clients.hosts.len() as u32 {
            self.refresh_host(host);
        }
    }

    pub fn host_receives(&mut self, host: u32, from: Node, message: Message) {
        if host == ADMIN {
            return self.admin_receives(message);
        }
        match (message, from) {
            (Message::Reply { attempt, reply, payload }, Node::Server(from)) => {
                let id = attempt as u32;
                let clients = &mut self.models().clients;
                clients.hosts[host as usize].heard.from(from);
                if clients.pieces.get(id).is_some_and(|piece| piece.attempt == attempt) {
                    self.piece_event(id, Event::Answered { reply, bytes: payload });
                }
            }
            (Message::Push(MetaPush::Map(map)), _) => {
                let whole = self.host(host).view.apply(&map);
                self.host_learned(host, whole);
            }
            (Message::MetaReply { reply: MetaReply::Watch { params, map }, .. }, _) => {
                let whole = self.host(host).view.learn(params, &map);
                self.host_learned(host, whole);
            }
            // Before the cluster is created, or while it has no leader.
            (Message::MetaReply { .. }, _) => {
                self.after(50 * MILLI, Happening::Modelled(Later::Refresh { host }));
            }
            _ => {}
        }
    }

    fn host(&mut self, host: u32) -> &mut Host {
        &mut self.models().clients.hosts[host as usize]
    }

    /// `whole`: the update has no gap before it.
    fn host_learned(&mut self, host: u32, whole: bool) {
        if !whole {
            self.refresh_host(host);
        }
        self.look_at_pieces(host);
    }

    /// The map of a host has changed.
    fn look_at_pieces(&mut self, host: u32) {
        let places = self.models().clients.pieces.places.iter().enumerate();
        let there = places.filter(|(_, piece)| piece.as_ref().is_some_and(|piece| piece.host == host));
        let there: Vec<u32> = there.map(|(n, _)| n as u32).collect();
        there.into_iter().for_each(|piece| self.look_at_piece(piece));
    }

    fn piece_ends(&mut self, id: u32, failed: bool) {
        let now = self.now;
        let clients = &mut self.models().clients;
        let Some(piece) = clients.pieces.take(id) else { return };
        let Some(whole) = clients.wholes.get(piece.whole) else { return };
        whole.done.failed |= failed;
        let retries = piece.request.tries().saturating_sub(1).min(u16::MAX.into()) as u16;
        whole.done.retries = whole.done.retries.saturating_add(retries);
        whole.left -= 1;
        if whole.left == 0 {
            let whole = clients.wholes.take(piece.whole).expect("seen just now");
            clients.answered.push(Done { took: now - whole.done.took, ..whole.done });
            self.host_goes_on(piece.host);
        }
    }

    /// Checks periodically which requests that await an answer have timed out.
    pub fn look_for_timeouts(&mut self) {
        let now = Moment(self.now);
        let due = |piece: &Piece| piece.request.asked().is_some() && piece.request.due() <= now;
        let places = self.models().clients.pieces.places.iter().enumerate();
        let late = places.filter(|(_, piece)| piece.as_ref().is_some_and(due)).map(|(n, _)| n as u32);
        let late: Vec<u32> = late.collect();
        late.into_iter().for_each(|piece| self.look_at_piece(piece));
    }
}

impl Retries {
    fn of(&mut self, why: &Trouble) -> &mut u64 {
        match why {
            Trouble::NotReady(Unready::NoLease) => &mut self.no_lease,
            Trouble::NotReady(Unready::Behind) => &mut self.behind,
            Trouble::NotReady(Unready::TooFewCopies | Unready::Exposed) => &mut self.too_few_copies,
            Trouble::Superseded | Trouble::Elsewhere(_) => &mut self.moved,
            Trouble::NoAnswer => &mut self.timeouts,
            _ => &mut self.busy,
        }
    }

    /// Counts by reason, in words.
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

    /// The reasons that occurred, in brackets.
    pub fn reasons(&self) -> String {
        let there = self.rows().into_iter().filter(|(_, count)| *count > 0);
        let there: Vec<String> = there.map(|(why, count)| format!("{why}: {count}")).collect();
        if there.is_empty() { String::new() } else { format!(" ({})", there.join(", ")) }
    }
}
