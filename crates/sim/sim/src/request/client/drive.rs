//! Clients at work, in the world.

use super::{Host, Piece, Whole};
use crate::engine::MILLI;
use crate::request::harness::World;
use crate::request::later::Later;
use crate::request::measure::Done;
use crate::request::store::zeroes;
use crate::world::client::learn;
use crate::world::happening::Message;
use crate::world::net::Node;
use bytes::Bytes;
use ebb_client_core::{Command, Event, Patience};
use ebb_trace::{Kind, Request};
use ebb_types::{ChunkOp, MetaRequest, Moment, ObjectId, RequestId, SetId, group_of, piece_crcs};

impl World<'_> {
    /// A request of the trace arrives, at the hosts in turn. `at`: simulated time since the start of the trace.
    pub fn request_arrives(&mut self, at: u64, request: &Request) {
        let clients = &self.models().clients;
        let host = (clients.arrived % clients.hosts.len() as u64) as u32;
        self.request_arrives_at(host, at, request);
    }

    pub fn request_arrives_at(&mut self, host: u32, at: u64, request: &Request) {
        let now = self.now;
        let params = self.settings.params();
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
            self.its_after(pause, Later::Retry { piece: id });
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
        let request = self.host(host).view.refresh(now);
        self.ask_member(host, request);
    }

    fn wake_set(&mut self, host: u32, set: SetId) {
        let now = Moment(self.now);
        let request = self.host(host).view.wake(now, set);
        self.ask_member(host, request);
    }

    fn ask_member(&mut self, host: u32, request: Option<MetaRequest>) {
        let Some(request) = request else { return };
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
        match (message, from) {
            (Message::Reply { attempt, reply, payload }, Node::Server(from)) => {
                let id = attempt as u32;
                let clients = &mut self.models().clients;
                clients.hosts[host as usize].heard.from(from);
                if clients.pieces.get(id).is_some_and(|piece| piece.attempt == attempt) {
                    self.piece_event(id, Event::Answered { reply, bytes: payload });
                }
            }
            (message, _) => {
                let is_reply = matches!(message, Message::MetaReply { .. });
                match learn(&mut self.host(host).view, message) {
                    Some(whole) => self.host_learned(host, whole),
                    // Before the cluster is created, or while it has no leader.
                    None if is_reply => self.its_after(50 * MILLI, Later::Refresh { host }),
                    None => {}
                }
            }
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
        let there = self.models().clients.pieces.numbers(|piece| piece.host == host);
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
        let late = self.models().clients.pieces.numbers(due);
        late.into_iter().for_each(|piece| self.look_at_piece(piece));
    }
}
