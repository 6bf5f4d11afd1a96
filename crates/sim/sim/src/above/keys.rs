//! The clients of gateways: each puts, gets and deletes, one object at a time.

use crate::above::messages::{Event, Look, ObjectRequest, Parcel, Part, Reply, Request};
use crate::above::net::Net;
use crate::above::object::{CHUNK_BYTES, EXPIRE, MOVED};
use crate::above::scenario::{Role, SECOND, Scenario};
use crate::search::history::{Action, History, Outcome};
use crate::search::linear::{Verdict, check};
use bytes::Bytes;
use ebb_gateway::Refused;
use ebb_types::{ChunkId, ObjectId, Random};

/// Clients of gateways are numbered from here.
pub(super) const FIRST: usize = 100;
/// An object's bytes are its number, again and again.
const WORD: u64 = 8;
const READ: Action = Action::Read { first: 0, cells: 1 };
const WRITE: Action = Action::Write { first: 0, cells: 1 };
const DELETE: Action = Action::Zero { first: 0, cells: 1 };

#[derive(Default)]
struct Client {
    attempt: u64,
    /// The operation under way, and the range that it asks for.
    busy: Option<(usize, Option<(u64, u64)>)>,
    /// The host that carries it out.
    host: usize,
}

pub(super) struct Keys {
    clients: Vec<Client>,
    random: Random,
    /// Each key is a register.
    pub history: History,
    /// By operation: the length of what it puts.
    lengths: Vec<u64>,
    keys: usize,
    is_over: bool,
    pub undecided: usize,
}

fn key(number: usize) -> String {
    format!("{}{number}", [MOVED, EXPIRE, "k/"][number % 3])
}

/// The key as what the checks call a chunk.
fn register(number: usize) -> ChunkId {
    ChunkId { object: ObjectId(number as u64), index: 0 }
}

impl Keys {
    pub fn new(scenario: &Scenario, random: Random) -> Keys {
        let clients = (0..scenario.object_clients).map(|_| Client::default()).collect();
        Keys {
            clients,
            random,
            history: History::default(),
            lengths: Vec::new(),
            keys: scenario.keys,
            is_over: false,
            undecided: 0,
        }
    }

    pub fn start(&mut self, net: &mut Net) {
        for client in 0..self.clients.len() {
            let delay = 2 * SECOND + self.random.below(SECOND);
            net.after(delay, Event::Look { client: FIRST + client, attempt: 0, why: Look::Begin });
        }
    }

    pub fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.busy.is_none())
    }

    pub fn end(&mut self) {
        self.is_over = true;
    }

    pub fn break_all(&mut self, net: &mut Net) {
        for client in 0..self.clients.len() {
            let (delay, attempt) = (self.random.below(20), self.clients[client].attempt);
            net.after(delay, Event::Look { client: FIRST + client, attempt, why: Look::Break });
        }
    }

    pub fn look(&mut self, net: &mut Net, client: usize, attempt: u64, why: Look) {
        let this = &self.clients[client];
        if this.attempt != attempt {
            return;
        }
        match (why, this.busy) {
            (Look::Begin, None) if !self.is_over => {
                let number = self.random.index(self.keys);
                self.draw(net, client, number);
            }
            (Look::Begin, _) | (_, None) => {}
            (_, Some(_)) => {
                let (host, delay) = (this.host, net.delay());
                let parcel = Parcel::Broken { client: FIRST + client, attempt };
                net.after(delay, Event::Deliver { host, life: None, parcel });
                self.finish(net, client, Outcome::Unknown, Vec::new());
            }
        }
    }

    /// What a client does next with a key.
    fn draw(&mut self, net: &mut Net, client: usize, number: usize) {
        let (value, name) = (self.history.ops.len() as u64 + 1, key(number));
        match self.random.below(20) {
            0..=9 => {
                // Aligned, so that the number can be read from it.
                let range = (WORD * self.random.below(600), WORD * (1 + self.random.below(1500)));
                let range = self.random.chance(600).then_some(range);
                self.begin(net, client, number, (READ, 0), ObjectRequest::Get { key: name, range });
            }
            10..=12 => self.begin(net, client, number, (DELETE, 0), ObjectRequest::Delete { key: name }),
            _ => {
                let parts = self.parts(value);
                let length = parts.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                let uploads = if self.random.chance(200) { 1 + self.random.index(2) } else { 0 };
                let coded = self.random.chance(200);
                let put = ObjectRequest::Put { key: name, coded, uploads, parts };
                self.begin(net, client, number, (WRITE, length), put);
            }
        }
    }

    /// A small body at once, or a longer one in parts, perhaps slowly.
    fn parts(&mut self, value: u64) -> Vec<Part> {
        let words = |words: u64| Bytes::from(value.to_le_bytes().repeat(words as usize));
        if self.random.chance(500) {
            return vec![(0, words(1 + self.random.below(1500)))];
        }
        let is_slow = self.random.chance(600);
        let longest = u64::from(CHUNK_BYTES) / WORD;
        let count = 1 + self.random.below(5);
        let mut parts = Vec::new();
        for _ in 0..count {
            let pause = match self.random.below(12) {
                0 if is_slow => self.random.below(90 * SECOND),
                _ if is_slow => self.random.below(2500),
                _ => 0,
            };
            parts.push((pause, words(1 + self.random.below(longest))));
        }
        parts
    }

    fn begin(
        &mut self,
        net: &mut Net,
        client: usize,
        number: usize,
        (action, length): (Action, u64),
        request: ObjectRequest,
    ) {
        let op = self.history.begin(register(number), action, net.now);
        self.lengths.push(length);
        let hosts = (0..net.scenario.hosts.len()).filter(|host| net.scenario.hosts[*host] == Role::Gateway);
        let hosts: Vec<usize> = hosts.collect();
        let host = hosts[self.random.index(hosts.len())];
        let range = if let ObjectRequest::Get { range, .. } = &request { *range } else { None };
        net.note(|| {
            format!(
                "client {} begins op {op} on {} at process {host}: {action:?} {range:?}",
                FIRST + client,
                key(number)
            )
        });
        let this = &mut self.clients[client];
        this.attempt += 1;
        (this.busy, this.host) = (Some((op, range)), host);
        let (client, attempt) = (FIRST + client, this.attempt);
        let delay = net.delay();
        let parcel = Parcel::Request { client, attempt, op, request: Request::Object(request) };
        net.after(delay, Event::Deliver { host, life: None, parcel });
        let timeout = self.random.between(5 * SECOND, 100 * SECOND);
        net.after(timeout, Event::Look { client, attempt, why: Look::Timeout });
        if !net.is_calm && self.random.chance(30) {
            let breaks = self.random.below(3 * SECOND);
            net.after(breaks, Event::Look { client, attempt, why: Look::Break });
        }
    }

    pub fn answered(&mut self, net: &mut Net, client: usize, attempt: u64, reply: Reply) {
        let this = &self.clients[client];
        let (true, Some((op, range))) = (this.attempt == attempt, this.busy) else { return };
        let is_read = self.history.ops[op].action == READ;
        let (outcome, seen) = match reply {
            Reply::Object(Ok(bytes)) if is_read => (Outcome::Done, vec![self.value(net, op, range, &bytes)]),
            Reply::Object(Ok(_)) => (Outcome::Done, Vec::new()),
            Reply::Object(Err(refused)) if is_read && refused.is_no_such_key() => (Outcome::Done, vec![0]),
            Reply::Object(Err(Refused { code, why })) => {
                net.note(|| format!("op {op} is refused: {code}: {why}"));
                net.count("a request that failed");
                (Outcome::Unknown, Vec::new())
            }
            Reply::Gone | Reply::Block(_) => (Outcome::Unknown, Vec::new()),
        };
        self.finish(net, client, outcome, seen);
    }

    fn finish(&mut self, net: &mut Net, client: usize, outcome: Outcome, seen: Vec<u64>) {
        let this = &mut self.clients[client];
        let Some((op, _)) = this.busy.take() else { return };
        this.attempt += 1;
        let attempt = this.attempt;
        net.note(|| format!("client {} ends op {op}: {outcome:?} {seen:?}", FIRST + client));
        self.history.end(op, net.now, outcome, seen);
        let pause = self.random.delay(net.scenario.think).max(1);
        net.after(pause, Event::Look { client: FIRST + client, attempt, why: Look::Begin });
    }

    /// Which put these bytes are of.
    fn value(&self, net: &mut Net, op: usize, range: Option<(u64, u64)>, bytes: &Bytes) -> u64 {
        let value = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let put = (value as usize).checked_sub(1).filter(|put| {
            let of = self.history.ops.get(*put);
            of.is_some_and(|of| of.action == WRITE && of.chunk == self.history.ops[op].chunk)
        });
        let expected = put.map(|put| {
            let (first, most) = range.unwrap_or((0, u64::MAX));
            self.lengths[put].saturating_sub(first).min(most)
        });
        let is_one = bytes.as_chunks::<8>().0.iter().all(|word| u64::from_le_bytes(*word) == value);
        if !is_one || expected != Some(bytes.len() as u64) {
            let what =
                format!("op {op} gets {} bytes, the first of op {put:?}, that no put wrote so", bytes.len());
            net.break_rule("bytes", what);
        }
        value
    }

    /// Every key is read. Returns the operation; `None`: there is no such key.
    pub fn read_key(&mut self, net: &mut Net, number: usize) -> Option<usize> {
        if number >= self.keys || self.clients.is_empty() {
            return None;
        }
        self.begin(net, 0, number, (READ, 0), ObjectRequest::Get { key: key(number), range: None });
        Some(self.history.ops.len() - 1)
    }

    /// Whether some order explains what was seen of each key.
    pub fn judge(&mut self, net: &mut Net) {
        for (register, ops) in self.history.by_chunk() {
            match check(&ops) {
                Verdict::Linearizable => {}
                Verdict::Unknown => self.undecided += 1,
                Verdict::Broken { stuck, .. } => {
                    let show = |number: &usize| {
                        let op = &self.history.ops[*number];
                        let (began, ended, seen) = (op.began, op.ended, &op.seen);
                        format!("op {number} {:?} {began}..{ended:?} {:?} {seen:?}", op.action, op.outcome)
                    };
                    let stuck: Vec<String> = stuck.iter().map(show).collect();
                    let name = key(register.object.0 as usize);
                    net.break_rule(
                        "linearizability",
                        format!("no order explains {name}: {}", stuck.join("; ")),
                    );
                    return;
                }
            }
        }
    }
}
