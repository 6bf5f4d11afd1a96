//! Clients: each does one operation after another on few chunks, so that operations meet, and retries it under one request
//! id as the real client does: it follows `Moved`, pauses on `Retry`, and asks for the map when nobody answers.

use crate::brief::{brief_action, brief_end};
use crate::clock::{MILLI, SECOND};
use crate::history::{Action, Outcome};
use crate::net::Node;
use crate::random::Random;
use crate::world::{Happening, Message, World};
use bytes::{Bytes, BytesMut};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, ClusterMap, Epoch, MetaPush,
    MetaReply, MetaRequest, ObjectId, RequestId, ServerId, group_of, piece_crcs,
};

/// Unit of the workload: smaller than a block, so that writes must keep the edges of what was there.
pub const CELL_BYTES: u32 = 1024;
pub const CELLS_PER_BLOCK: u32 = BLOCK_BYTES as u32 / CELL_BYTES;
/// While an answer is awaited, the map is asked for this often.
const REFRESH: u64 = 1500 * MILLI;
const PAUSE_MIN: u64 = 20 * MILLI;
const PAUSE_MAX: u64 = 500 * MILLI;
/// The administrator's node; no client has this number.
pub const ADMIN: u32 = 1000;

struct Current {
    /// Index in the history.
    op: usize,
    chunk_op: ChunkOp,
    payload: Bytes,
    /// When it is given up.
    deadline: u64,
    pause: u64,
    /// Under way: to whom.
    asked: Option<ServerId>,
    tries: u32,
}

pub struct Client {
    pub id: u32,
    pub random: Random,
    map: ClusterMap,
    current: Option<Current>,
    /// Number of the present try; answers to others are void.
    attempt: u64,
    /// Makes earlier timers void.
    stamp: u64,
    seq: u64,
    /// Operations still to do.
    pub left: u32,
    /// A chunk that only this client uses, and deletes.
    own: ChunkId,
    /// What it does at last, the last one first: it reads every chunk, or what a story tells.
    pub to_do: Vec<(ChunkId, Action)>,
}

impl Client {
    pub fn new(id: u32, random: Random) -> Client {
        let own = ChunkId { object: ObjectId(100 + u64::from(id)), index: 0 };
        Client {
            id,
            random,
            map: ClusterMap::default(),
            current: None,
            attempt: 0,
            stamp: 0,
            seq: 0,
            left: 0,
            own,
            to_do: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.current.is_none() && self.left == 0 && self.to_do.is_empty()
    }

    /// Nobody uses a chunk after asking for its deletion, whatever became of that.
    fn end_op(&mut self) -> Option<Current> {
        let ended = self.current.take()?;
        self.own.index += u32::from(matches!(ended.chunk_op, ChunkOp::Delete { .. }));
        Some(ended)
    }

    /// When the operation under way began, by its number in the history.
    pub fn under_way(&self) -> Option<usize> {
        self.current.as_ref().map(|c| c.op)
    }
}

/// A chunk that all clients share.
pub fn shared_chunk(n: u32) -> ChunkId {
    ChunkId { object: ObjectId(1 + u64::from(n) / 2), index: n % 2 }
}

/// The bytes that a write puts into cells: all words are its number.
pub fn fill(value: u64, cells: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity((cells * CELL_BYTES) as usize);
    for _ in 0..cells * CELL_BYTES / 8 {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.freeze()
}

/// The number that a cell's bytes consist of; `None`: they are torn.
pub fn value_of(cell: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(cell[..8].try_into().expect("eight bytes"));
    cell.chunks(8).all(|word| word == value.to_le_bytes()).then_some(value)
}

impl World<'_> {
    pub fn client(&mut self, id: u32) -> &mut Client {
        &mut self.clients[id as usize]
    }

    /// Gives a client work; it starts after a moment.
    pub fn employ(&mut self, id: u32, ops: u32) {
        self.client(id).left = ops;
        self.client_timer(id, MILLI);
    }

    fn client_timer(&mut self, id: u32, delay: u64) {
        let client = self.client(id);
        client.stamp += 1;
        let stamp = client.stamp;
        self.after(delay, Happening::Client { client: id, stamp });
    }

    pub fn client_wakes(&mut self, id: u32, stamp: u64) {
        if self.client(id).stamp != stamp {
            return;
        }
        let now = self.now;
        let stormy = self.stormy;
        let client = self.client(id);
        let Some(current) = &mut client.current else { return self.next_op(id) };
        if stormy && now >= current.deadline {
            let op = current.op;
            client.attempt += 1;
            client.end_op();
            self.note(|| format!("client-{id} gives up op {op}"));
            let pause = self.client(id).random.between(MILLI, 200 * MILLI);
            return self.client_timer(id, pause);
        }
        if current.asked.is_some() {
            // However long the server takes: the request is on its way, and is not sent twice.
            self.refresh(id);
            return self.client_timer(id, REFRESH);
        }
        self.try_op(id);
    }

    /// The connection to a server broke: what it was asked is asked again.
    pub fn client_link_lost(&mut self, id: u32, server: ServerId) {
        let Some(client) = self.clients.get_mut(id as usize) else { return };
        let Some(current) = client.current.as_mut().filter(|c| c.asked == Some(server)) else { return };
        current.asked = None;
        client.attempt += 1;
        current.pause = (current.pause * 2).min(PAUSE_MAX);
        let pause = current.pause;
        self.refresh(id);
        self.client_timer(id, pause);
    }

    fn try_op(&mut self, id: u32) {
        let groups = self.scenario.params().groups;
        let client = self.client(id);
        let current = client.current.as_mut().expect("an operation is under way");
        let group = group_of(current.chunk_op.chunk(), groups);
        let route = client.map.group(group).and_then(|e| Some((e.epoch, e.primary?)));
        let Some((epoch, primary)) = route else {
            current.pause = (current.pause * 2).min(PAUSE_MAX);
            let pause = current.pause;
            self.refresh(id);
            return self.client_timer(id, pause);
        };
        current.asked = Some(primary);
        current.tries += 1;
        client.attempt += 1;
        let attempt = client.attempt;
        let request = ClientRequest { group, epoch, op: current.chunk_op.clone() };
        let payload = current.payload.clone();
        let op = current.op;
        self.note(|| format!("client-{id} op {op} -> {primary}, primary of {group} in epoch {}", epoch.0));
        let message = Message::Request { attempt, op, request, payload };
        self.send(Node::Client(id), Node::Server(primary), message);
        self.client_timer(id, REFRESH);
    }

    fn refresh(&mut self, id: u32) {
        let map_version = self.client(id).map.version;
        for member in 1..=self.scenario.members {
            let request = MetaRequest::Watch { map_version };
            self.send(Node::Client(id), Node::Member(member), Message::AskMeta { number: 0, request });
        }
    }

    pub fn client_receives(&mut self, id: u32, from: Node, message: Message) {
        if id == ADMIN {
            return self.admin_receives(message);
        }
        match (message, from) {
            (Message::Reply { attempt, reply, payload }, Node::Server(from)) => {
                self.client_reply(id, from, attempt, reply, payload);
            }
            (Message::Push(MetaPush::Map(map)), _)
            | (Message::MetaReply { reply: MetaReply::Watch { map, .. }, .. }, _) => {
                self.client(id).map.apply(&map);
                self.reroute(id);
            }
            _ => {}
        }
    }

    /// The map moved on: a try at a server that is not the primary any more is given up at once.
    fn reroute(&mut self, id: u32) {
        let groups = self.scenario.params().groups;
        let client = self.client(id);
        let Some(current) = &mut client.current else { return };
        let Some(asked) = current.asked else { return };
        let entry = client.map.group(group_of(current.chunk_op.chunk(), groups));
        if entry.and_then(|e| e.primary).is_some_and(|primary| primary != asked) {
            current.asked = None;
            client.attempt += 1;
            self.client_timer(id, 0);
        }
    }

    fn client_reply(&mut self, id: u32, from: ServerId, attempt: u64, reply: ClientReply, payload: Bytes) {
        let client = self.client(id);
        let Some(current) = &mut client.current else { return };
        if client.attempt != attempt || current.asked.is_none() {
            return;
        }
        current.asked = None;
        client.attempt += 1;
        let (op, tries, offset) = (current.op, current.tries, current.chunk_op.range().0);
        match reply {
            ClientReply::Data { crcs } if crcs != piece_crcs(offset, &payload) => {
                self.fail("R14", format!("client-{id} op {op}: {from} answers with wrong checksums"));
            }
            ClientReply::Data { .. } | ClientReply::Done => self.op_ends(id, Outcome::Done, &payload),
            ClientReply::Failed { why: ChunkError::NoSpace } => {
                self.r10_somebody_is_full(op);
                // Refused before it was ordered, unless an earlier try was not.
                let outcome = if tries == 1 { Outcome::Refused } else { Outcome::Unknown };
                self.op_ends(id, outcome, &payload);
            }
            ClientReply::Failed { why: ChunkError::Corrupt } => {
                self.check_corrupt(op);
                self.op_ends(id, Outcome::Unknown, &payload);
            }
            ClientReply::Failed { why } => {
                self.fail("liveness", format!("client-{id} op {op}: {from} says {why}"));
            }
            ClientReply::Retry { .. } => {
                current.pause = (current.pause * 2).min(PAUSE_MAX);
                let pause = current.pause;
                self.refresh(id);
                self.client_timer(id, pause);
            }
            ClientReply::Moved { entry } => {
                let group = group_of(current.chunk_op.chunk(), self.scenario.params().groups);
                let client = self.client(id);
                let known = client.map.group(group).map_or(Epoch(0), |e| e.epoch);
                if known < entry.epoch && !client.map.groups.is_empty() {
                    client.map.groups[group.0 as usize] = entry;
                    self.client_timer(id, 0);
                } else {
                    self.refresh(id);
                    self.client_timer(id, PAUSE_MIN);
                }
            }
        }
    }

    fn op_ends(&mut self, id: u32, outcome: Outcome, payload: &Bytes) {
        let now = self.now;
        let Some(current) = self.client(id).end_op() else { return };
        let values: Vec<Option<u64>> = payload.chunks(CELL_BYTES as usize).map(value_of).collect();
        if let Some(torn) = values.iter().position(|v| v.is_none()) {
            return self
                .fail("linearizability", format!("op {}: cell {torn} of the answer is torn", current.op));
        }
        let seen: Vec<u64> = values.into_iter().flatten().collect();
        self.note(|| format!("client-{id} op {} {}", current.op, brief_end(outcome, &seen)));
        self.history.end(current.op, now, outcome, seen);
        let think = if self.client(id).to_do.is_empty() { 60 * MILLI } else { MILLI };
        let pause = self.client(id).random.between(0, think);
        let lull = self.lull(id);
        self.client_timer(id, pause + lull);
    }

    /// Time until the load rises again, where it rises and falls. Some clients go on all the same.
    fn lull(&mut self, id: u32) -> u64 {
        let Some(pulse) = self.scenario.pulse.filter(|_| self.stormy) else { return 0 };
        let at = self.now % pulse.period;
        let rests = at >= pulse.busy && self.client(id).random.chance(850);
        if rests { pulse.period - at } else { 0 }
    }

    fn next_op(&mut self, id: u32) {
        let now = self.now;
        let blocks = self.scenario.chunk_blocks();
        let (chunks, stormy) = (self.scenario.chunks, self.stormy);
        let client = self.client(id);
        let (chunk, action) = if client.left > 0 {
            client.left -= 1;
            draw(client, chunks, blocks)
        } else if let Some(asked) = client.to_do.pop() {
            asked
        } else {
            return;
        };
        client.seq += 1;
        let request = RequestId { client: u64::from(id) + 1, seq: client.seq };
        // Some give up soon: what becomes of their operations nobody knows.
        let patience = if client.random.chance(150) { SECOND } else { 12 * SECOND };
        let deadline = if stormy { now + client.random.between(patience / 4, patience) } else { u64::MAX };
        let op = self.history.begin(chunk, action, now);
        let value = op as u64 + 1;
        let (chunk_op, payload) = match action {
            Action::Read { first, cells } => {
                let (offset, len) = (first * CELL_BYTES, cells * CELL_BYTES);
                (ChunkOp::Read { chunk, offset, len, must_exist: false }, Bytes::new())
            }
            Action::Write { first, cells } => {
                let (offset, len) = (first * CELL_BYTES, cells * CELL_BYTES);
                let bytes = fill(value, cells);
                let crcs = piece_crcs(offset, &bytes);
                (ChunkOp::Write { chunk, offset, len, request, crcs }, bytes)
            }
            Action::Zero { first, cells } => {
                let (offset, len) = (first * CELL_BYTES, cells * CELL_BYTES);
                (ChunkOp::Zero { chunk, offset, len, request }, Bytes::new())
            }
            Action::Delete => (ChunkOp::Delete { chunk, request }, Bytes::new()),
        };
        self.note(|| format!("client-{id} op {op} begins: {chunk}, {}", brief_action(&action, value)));
        let client = self.client(id);
        client.current =
            Some(Current { op, chunk_op, payload, deadline, pause: PAUSE_MIN, asked: None, tries: 0 });
        if client.map.version == 0 {
            self.refresh(id);
        }
        self.try_op(id);
    }
}

/// What to do next.
fn draw(client: &mut Client, chunks: u32, blocks: u32) -> (ChunkId, Action) {
    let random = &mut client.random;
    let cells = (blocks * CELLS_PER_BLOCK).min(64);
    let is_own = random.chance(100);
    let chunk = if is_own { client.own } else { shared_chunk(random.below(chunks.into()) as u32) };
    let first = random.below(cells.into()) as u32;
    let most = u64::from(cells - first);
    let longest = if random.chance(100) { most } else { most.min(10) };
    let len = random.between(1, longest) as u32;
    let action = match random.below(100) {
        0..=39 => Action::Read { first, cells: len },
        40..=88 => Action::Write { first, cells: len },
        89..=92 if is_own => Action::Delete,
        89..=96 => Action::Zero { first, cells: len },
        _ => Action::Zero { first: 0, cells: blocks * CELLS_PER_BLOCK },
    };
    (chunk, action)
}
