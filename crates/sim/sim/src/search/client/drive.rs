//! Clients at work, in the world.

use super::{CELL_BYTES, Client, Current, FRONT, draw, draw_front, fill, value_of};
use crate::engine::{MILLI, SECOND};
use crate::search::brief::{brief_action, brief_end};
use crate::search::coder::CODERS;
use crate::search::harness::{Event as Its, World};
use crate::search::history::{Action, Op, Outcome};
use crate::world::client::{answer_is_garbled, learn};
use crate::world::happening::{Happening, Message};
use crate::world::net::{ADMIN, Node};
use bytes::Bytes;
use ebb_client_core::{Command, Event, Failure, Patience, Request, Trouble};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkOp, ClientReply, ClientRequest, MetaRequest, Moment, RequestId, ServerId,
    Version, group_of, piece_crcs,
};
use std::time::Duration;

impl World<'_> {
    pub fn client(&mut self, id: u32) -> &mut Client {
        &mut self.harness.clients[id as usize]
    }

    /// Gives a client operations to do; it starts after a moment.
    pub fn employ(&mut self, id: u32, ops: u32) {
        self.client(id).left = ops;
        self.client_timer(id, MILLI);
    }

    /// Sets the timer of a client or coder.
    pub fn client_timer(&mut self, id: u32, delay: u64) {
        let timer = self.harness.timers.entry(id).or_default();
        timer.due = self.now.saturating_add(delay);
        timer.stamp += 1;
        let stamp = timer.stamp;
        self.its_after(delay, Its::Client { client: id, stamp });
    }

    pub fn client_wakes(&mut self, id: u32, stamp: u64) {
        if self.harness.timers.get(&id).is_none_or(|timer| timer.stamp != stamp) {
            return;
        }
        if id >= CODERS {
            return self.coder_wakes(id);
        }
        if self.client(id).current.is_none() {
            return self.next_op(id);
        }
        self.client_looks(id);
    }

    /// The connection to a server broke.
    pub fn client_link_lost(&mut self, id: u32, server: ServerId) {
        if self.holds_back(id, || Happening::LinkLost { client: id, server }) {
            return;
        }
        if (CODERS..ADMIN).contains(&id) {
            return self.coder_link_lost(id, server);
        }
        let Some(client) = self.harness.clients.get_mut(id as usize) else { return };
        if client.current.as_ref().is_some_and(|c| c.request.asked() == Some(server)) {
            self.client_event(id, Event::Lost(Trouble::Lost));
        }
    }

    fn client_looks(&mut self, id: u32) {
        let client = self.client(id);
        let Some(current) = &client.current else { return };
        let look = client.heard.look(&current.request);
        self.client_event(id, look);
    }

    fn client_event(&mut self, id: u32, event: Event) {
        let now = Moment(self.now);
        let client = self.client(id);
        let Some(current) = &mut client.current else { return };
        let mut commands = Vec::new();
        current.request.on(now, &client.view, event, &mut commands);
        commands.into_iter().for_each(|command| self.client_obeys(id, command));
        if let Some(current) = &self.client(id).current {
            let due = current.request.due();
            self.client_timer(id, due.since(now).as_nanos() as u64);
        }
    }

    fn client_obeys(&mut self, id: u32, command: Command) {
        match command {
            Command::Send { server, message } => self.try_op(id, server, message),
            Command::TryFailed(why) => {
                if matches!(why, Trouble::Forgotten) {
                    self.count("write started over");
                }
                self.client(id).attempt += 1;
            }
            Command::Adopt { group, entry } => {
                self.client(id).view.adopt(group, entry);
                self.client_looks(id);
            }
            Command::AdoptSet { set, entry } => {
                self.client(id).view.adopt_set(set, entry);
                self.client_looks(id);
            }
            Command::Heard { group, newest } => self.client(id).view.hear(group, newest),
            Command::Refresh => self.refresh(id),
            // It works on chunk groups only.
            Command::Wake { .. } => {}
            Command::Close { server } => self.net.reset(Node::Client(id), Node::Server(server)),
            Command::End(Ok(read)) => {
                let seen = self.seen(id, &read.bytes);
                self.op_ends(id, Outcome::Done, seen);
            }
            Command::End(Err(Failure::Chunk(why))) => self.op_fails(id, why),
            Command::End(Err(
                failure @ (Failure::Unserved { .. } | Failure::Unknown { .. } | Failure::Gone),
            )) => {
                let Some(ended) = self.client(id).end_op() else { return };
                if matches!(failure, Failure::Unknown { .. }) {
                    self.count("write that may be forgotten");
                    let group = group_of(ended.request.op().chunk(), self.settings.params().groups);
                    self.check_unknown(ended.op, group, ended.since.epoch);
                }
                if matches!(failure, Failure::Gone) {
                    self.count("read of what is gone for good");
                }
                if ended.request.is_ordered() {
                    self.harness.history.fence(ended.op, self.now);
                }
                self.note(|| format!("client-{id} gives up op {}", ended.op));
                let pause = self.client(id).random.between(MILLI, 200 * MILLI);
                self.client_timer(id, pause);
            }
        }
    }

    fn try_op(&mut self, id: u32, server: ServerId, request: ClientRequest) {
        let client = self.client(id);
        client.attempt += 1;
        let attempt = client.attempt;
        let Some(current) = &mut client.current else { return };
        current.since = request.since;
        let (op, payload) = (current.op, current.payload.clone());
        let (group, epoch) = (request.group, request.epoch);
        if current.route.replace((server, epoch)) != Some((server, epoch)) {
            self.note(|| format!("client-{id} op {op} -> {server}, primary of {group} in epoch {}", epoch.0));
        }
        let message = Message::Request { attempt, op, request, payload };
        self.send(Node::Client(id), Node::Server(server), message);
    }

    fn refresh(&mut self, id: u32) {
        let now = Moment(self.now);
        let request = self.client(id).view.refresh(now);
        self.ask_members(id, request);
    }

    pub fn ask_members(&mut self, id: u32, request: Option<MetaRequest>) {
        let Some(request) = request else { return };
        for member in 1..=self.settings.members {
            let message = Message::AskMeta { number: 0, request: request.clone() };
            self.send(Node::Client(id), Node::Member(member), message);
        }
    }

    pub fn client_receives(&mut self, id: u32, from: Node, message: Message) {
        if id >= CODERS {
            return self.coder_receives(id, from, message);
        }
        match (message, from) {
            (Message::Reply { attempt, reply, payload }, Node::Server(from)) => {
                self.client_reply(id, from, attempt, reply, payload);
            }
            (message, _) => {
                if let Some(whole) = learn(&mut self.client(id).view, message) {
                    self.client_learned(id, whole);
                }
            }
        }
    }

    /// `whole`: the update has no gap before it.
    fn client_learned(&mut self, id: u32, whole: bool) {
        if !whole {
            self.refresh(id);
        }
        self.client_looks(id);
    }

    fn client_reply(&mut self, id: u32, from: ServerId, attempt: u64, reply: ClientReply, bytes: Bytes) {
        let client = self.client(id);
        client.heard.from(from);
        let Some(current) = &client.current else { return };
        if client.attempt != attempt || current.request.asked().is_none() {
            return;
        }
        let (op, offset) = (current.op, current.request.op().range().0);
        if answer_is_garbled(&reply, offset, &bytes) {
            self.fail("R14", format!("client-{id} op {op}: {from} answers with wrong checksums"));
        }
        self.client_event(id, Event::Answered { reply, bytes });
    }

    fn op_fails(&mut self, id: u32, why: ChunkError) {
        let Some(Current { op, request, .. }) = &self.client(id).current else { return };
        let (op, tries, is_ordered) = (*op, request.tries(), request.is_ordered());
        let outcome = match why {
            // Refused before it was ordered, unless an earlier try was accepted.
            ChunkError::NoSpace if tries == 1 => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        match why {
            ChunkError::NoSpace => self.r10_a_server_is_full(op),
            ChunkError::Taken if self.harness.history.ops[op].claim > 0 => {
                self.count("claim taken");
                self.client(id).give_claim_up();
            }
            ChunkError::Corrupt => self.check_corrupt(op),
            ChunkError::Missing if self.harness.history.may_be_zeroed(op) => {}
            _ => self.fail("liveness", format!("client-{id} op {op}: {why}")),
        }
        if is_ordered {
            self.harness.history.fence(op, self.now);
        }
        self.op_ends(id, outcome, Vec::new());
    }

    /// What the operation under way saw: the value of each cell that it read, or whether each block that it looked at
    /// has data.
    fn seen(&mut self, id: u32, payload: &Bytes) -> Vec<u64> {
        let client = self.client(id);
        let Some(Current { op, request, .. }) = &client.current else { return Vec::new() };
        if let (Some(looked), (offset, len)) = (request.looked(), request.op().range()) {
            let (first, blocks) = (offset / BLOCK_BYTES as u32, len / BLOCK_BYTES as u32);
            client.looked = Some((*op, first, blocks, looked.newest));
            let has_data =
                |n: u32| looked.runs.iter().any(|(start, count)| (*start..start + count).contains(&n));
            return (first..first + blocks).map(|n| has_data(n).into()).collect();
        }
        let values: Vec<Option<u64>> = payload.chunks(CELL_BYTES as usize).map(value_of).collect();
        if let Some(torn) = values.iter().position(|v| v.is_none()) {
            let what = format!("op {op}: cell {torn} of the answer is torn");
            self.fail("linearizability", what);
        }
        values.into_iter().flatten().collect()
    }

    fn op_ends(&mut self, id: u32, outcome: Outcome, seen: Vec<u64>) {
        let now = self.now;
        let Some(current) = self.client(id).end_op() else { return };
        self.note(|| format!("client-{id} op {} {}", current.op, brief_end(outcome, &seen)));
        self.harness.history.end(current.op, now, outcome, seen);
        let Op { chunk, action, claim, .. } = self.harness.history.ops[current.op];
        let client = self.client(id);
        match (action, outcome) {
            (Action::Write { .. }, Outcome::Done) if chunk.is_of_claim() => client.claim = claim,
            (Action::Write { first, cells }, Outcome::Done) => client.written = Some((chunk, first, cells)),
            _ => {}
        }
        let think = if client.to_do.is_empty() && !client.in_bursts { 60 * MILLI } else { MILLI };
        let pause = self.client(id).random.between(0, think);
        let lull = self.lull(id);
        self.client_timer(id, pause + lull);
    }

    /// Time until the load rises again, if it rises and falls. Some clients continue regardless.
    fn lull(&mut self, id: u32) -> u64 {
        let Some(pulse) = self.harness.plan.pulse.filter(|_| self.stormy) else { return 0 };
        let at = self.now % pulse.period;
        let rests = at >= pulse.busy && self.client(id).random.chance(850);
        if rests { pulse.period - at } else { 0 }
    }

    fn next_op(&mut self, id: u32) {
        let now = self.now;
        let blocks = self.settings.chunk_blocks();
        let (chunks, stormy) = (self.harness.plan.chunks, self.stormy);
        let (has_front, groups) = (self.harness.plan.has_front, self.settings.params().groups);
        let next = self.harness.history.ops.len() as u64 + 1;
        let client = self.client(id);
        let (chunk, action) = if client.left > 0 {
            client.left -= 1;
            if has_front && client.random.chance(if client.claim > 0 { 400 } else { 60 }) {
                draw_front(client, blocks, groups)
            } else {
                draw(client, chunks, blocks)
            }
        } else if let Some(asked) = client.to_do.pop() {
            asked
        } else {
            return;
        };
        client.seq += 1;
        let request = RequestId { client: u64::from(id) + 1, seq: client.seq };
        // Some give up soon: the outcome of their operations stays unknown.
        let patience = if client.random.chance(150) { SECOND } else { 12 * SECOND };
        let deadline = if stormy { client.random.between(patience / 4, patience) } else { u64::MAX };
        let sole_writer = chunk == client.own || chunk == FRONT;
        // The namespace numbers claims in order; what notes one is the value that the write has anyway.
        let claim = if chunk.is_of_claim() {
            next
        } else if chunk == FRONT {
            client.claim
        } else {
            0
        };
        let patience =
            Patience { deadline: Duration::from_nanos(deadline), sole_writer, ..Patience::default() };
        let op = self.harness.history.begin_under(claim, chunk, action, now);
        let value = op as u64 + 1;
        let (first, cells) = action.range();
        let (offset, len) = (first * CELL_BYTES, cells * CELL_BYTES);
        let (chunk_op, payload) = match action {
            Action::Read { .. } => {
                let must_exist = self.client(id).written == Some((chunk, first, cells));
                (ChunkOp::Read { chunk, offset, len, must_exist }, Bytes::new())
            }
            Action::Write { .. } => {
                let bytes = fill(value, cells);
                let crcs = piece_crcs(offset, &bytes);
                (ChunkOp::Write { chunk, offset, len, request, crcs }, bytes)
            }
            Action::Zero { .. } => (ChunkOp::Zero { chunk, offset, len, up_to: None, request }, Bytes::new()),
            Action::Look { .. } => (ChunkOp::Look { chunk, offset, len }, Bytes::new()),
            Action::Clear { look, .. } => {
                let up_to = self.client(id).looked.filter(|looked| looked.0 == look).map(|looked| looked.3);
                (ChunkOp::Zero { chunk, offset, len, up_to, request }, Bytes::new())
            }
            Action::Delete => (ChunkOp::Delete { chunk, request }, Bytes::new()),
        };
        self.note(|| format!("client-{id} op {op} begins: {chunk}, {}", brief_action(&action, value)));
        let request = Request::new(Moment(now), group_of(chunk, groups), chunk_op, patience).under(claim);
        self.client(id).current = Some(Current { op, request, payload, route: None, since: Version::ZERO });
        self.client_looks(id);
    }
}
