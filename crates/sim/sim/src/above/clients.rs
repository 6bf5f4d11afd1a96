//! The clients of a volume: each asks for one thing at a time, and asks again when its connection broke. Together they
//! are one kernel.

use crate::above::messages::{BlockRequest, Event, Look, Parcel, Reply, Request};
use crate::above::net::Net;
use crate::above::scenario::{Role, SECOND, Scenario};
use crate::search::history::{Action, History, Op, Outcome};
use crate::search::linear::{Verdict, check};
use bytes::Bytes;
use ebb_types::{BLOCK_BYTES, ChunkId, ObjectId, Random, SLICE_BYTES};
use ebb_volume::VolumeError;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is written and compared at a time: half a block.
const CELL: u64 = BLOCK_BYTES as u64 / 2;
const SLICE_CELLS: u64 = SLICE_BYTES as u64 / CELL;
/// The cells that are used: at both ends of slices.
const USED: [Range<u64>; 3] =
    [0..4, SLICE_CELLS - 4..SLICE_CELLS + 4, 2 * SLICE_CELLS - 2..2 * SLICE_CELLS + 4];
/// All cells belong to one array.
const DEVICE: ChunkId = ChunkId { object: ObjectId(0), index: 0 };

struct Client {
    /// The host that it is connected to.
    host: usize,
    /// It connects there again, whatever it waits for.
    is_faithful: bool,
    /// Numbers its tries, over all requests.
    attempt: u64,
    /// The operation under way, and until when it is tried.
    busy: Option<(usize, Request, u64)>,
}

pub(super) struct Clients {
    clients: Vec<Client>,
    random: Random,
    pub history: History,
    /// They begin nothing any more but what [`Clients::read_all`] asks for.
    is_over: bool,
    /// Histories that were too long to decide.
    pub undecided: usize,
    /// By operation: its tries that are under way or were taken, and where and when those were taken.
    tries: BTreeMap<usize, Tries>,
}

#[derive(Default)]
struct Tries {
    sent: usize,
    /// The process, its life, and the time.
    taken: Vec<(usize, u64, u64)>,
}

impl Tries {
    /// The process that took all of them, and when the first and the last came there.
    fn taken_by_one(&self) -> Option<((usize, u64), u64, u64)> {
        let &(host, life, first) = self.taken.first()?;
        let is_one = self.taken.len() == self.sent
            && self.taken.iter().all(|taken| (taken.0, taken.1) == (host, life));
        let last = self.taken.iter().map(|(.., at)| *at).max()?;
        is_one.then_some(((host, life), first, last))
    }
}

/// A request that failed may still be carried out for the rest of its last try.
const SLACK: u64 = 200;

impl Clients {
    pub fn new(scenario: &Scenario, random: Random) -> Clients {
        let mut random = random;
        let clients = (0..scenario.block_clients)
            .map(|_| Client { host: 0, is_faithful: random.chance(400), attempt: 0, busy: None })
            .collect();
        Clients {
            clients,
            random,
            history: History::default(),
            is_over: false,
            undecided: 0,
            tries: BTreeMap::new(),
        }
    }

    pub fn start(&mut self, net: &mut Net) {
        for client in 0..self.clients.len() {
            let delay = 2 * SECOND + self.random.below(SECOND);
            net.after(delay, Event::Look { client, attempt: 0, why: Look::Begin });
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
            net.after(delay, Event::Look { client, attempt, why: Look::Break });
        }
    }

    pub fn look(&mut self, net: &mut Net, client: usize, attempt: u64, why: Look) {
        let this = &self.clients[client];
        if this.attempt != attempt {
            return;
        }
        match (why, &this.busy) {
            (Look::Begin, None) if !self.is_over => {
                let (action, request) = self.draw();
                if self.is_in_the_way(action) {
                    let pause = self.random.delay(net.scenario.think).max(1);
                    return net.after(pause, Event::Look { client, attempt, why: Look::Begin });
                }
                self.begin(net, client, action, request);
            }
            (Look::Begin, _) => {}
            (_, Some((op, _, gives_up))) if net.now >= *gives_up => {
                let op = *op;
                net.note(|| format!("client {client} gives op {op} up"));
                self.finish(net, client, Outcome::Unknown, Vec::new());
            }
            (_, Some(_)) => {
                net.count("a request that is sent again");
                if !self.clients[client].is_faithful && self.random.chance(500) {
                    self.clients[client].host = self.some_host(net);
                }
                self.send(net, client);
            }
            (_, None) => {}
        }
    }

    /// Whether a write under way covers part of what this would write. A kernel sends no such two: whichever of them is
    /// sent again on a new connection is carried out twice, and no server could tell.
    fn is_in_the_way(&self, action: Action) -> bool {
        let written = |action: Action| match action {
            Action::Write { first, cells } | Action::Zero { first, cells } => first..first + cells,
            Action::Read { .. } | Action::Delete => 0..0,
        };
        let new = written(action);
        let under_way = self.clients.iter().filter_map(|client| client.busy.as_ref());
        let under_way = under_way.map(|(op, ..)| written(self.history.ops[*op].action));
        under_way.into_iter().any(|old| old.start < new.end && new.start < old.end)
    }

    fn some_host(&mut self, net: &Net) -> usize {
        let hosts = (0..net.scenario.hosts.len()).filter(|host| net.scenario.hosts[*host] == Role::Volume);
        let hosts: Vec<usize> = hosts.collect();
        hosts[self.random.index(hosts.len())]
    }

    /// What a client does next.
    fn draw(&mut self) -> (Action, BlockRequest) {
        let used = &USED[self.random.index(USED.len())];
        let first = used.start + self.random.below(used.end - used.start);
        let cells = 1 + self.random.below((used.end - first).min(6));
        let (offset, len) = (first * CELL, cells * CELL);
        let (first, cells) = (first as u32, cells as u32);
        match self.random.below(20) {
            0..=7 => (Action::Read { first, cells }, BlockRequest::Read { offset, len }),
            8 | 9 => (Action::Zero { first, cells }, BlockRequest::Zero { offset, len }),
            10 => {
                let slice = self.random.below(2);
                let (offset, len) = (slice * u64::from(SLICE_BYTES), SLICE_BYTES.into());
                let (first, cells) = ((slice * SLICE_CELLS) as u32, SLICE_CELLS as u32);
                (Action::Zero { first, cells }, BlockRequest::Zero { offset, len })
            }
            11 => (Action::Read { first, cells: 0 }, BlockRequest::Flush),
            _ => {
                let value = self.history.ops.len() as u64 + 1;
                let bytes = value.to_le_bytes().repeat((len / 8) as usize).into();
                (Action::Write { first, cells }, BlockRequest::Write { offset, bytes })
            }
        }
    }

    fn begin(&mut self, net: &mut Net, client: usize, action: Action, request: BlockRequest) {
        let op = self.history.begin(DEVICE, action, net.now);
        net.note(|| format!("client {client} begins op {op}: {action:?}"));
        let gives_up = net.now + self.random.between(40 * SECOND, 200 * SECOND);
        self.clients[client].busy = Some((op, Request::Block(request), gives_up));
        self.send(net, client);
    }

    fn send(&mut self, net: &mut Net, client: usize) {
        let this = &mut self.clients[client];
        let Some((op, request, _)) = &this.busy else { return };
        this.attempt += 1;
        let (host, attempt, op, request) = (this.host, this.attempt, *op, request.clone());
        net.note(|| format!("client {client} sends op {op} to process {host}"));
        self.tries.entry(op).or_default().sent += 1;
        let parcel = Parcel::Request { client, attempt, op, request };
        let delay = net.delay();
        net.after(delay, Event::Deliver { host, life: None, parcel });
        let timeout = self.random.between(3 * SECOND, 40 * SECOND);
        net.after(timeout, Event::Look { client, attempt, why: Look::Timeout });
        if !net.is_calm && self.random.chance(30) {
            let breaks = self.random.below(3 * SECOND);
            net.after(breaks, Event::Look { client, attempt, why: Look::Break });
        }
    }

    pub fn answered(&mut self, net: &mut Net, client: usize, attempt: u64, reply: Reply) {
        let this = &self.clients[client];
        let (true, Some((op, _, _))) = (this.attempt == attempt, &this.busy) else { return };
        let op = *op;
        match reply {
            Reply::Gone | Reply::Object(_) => self.try_later(net, client),
            Reply::Block(Ok(bytes)) => {
                let seen = self.seen(net, op, &bytes);
                self.finish(net, client, Outcome::Done, seen);
            }
            // Its server is about to end: the connection may break first.
            Reply::Block(Err(VolumeError::Taken)) if self.random.chance(500) => self.try_later(net, client),
            Reply::Block(Err(error)) => {
                net.note(|| format!("client {client}: op {op} failed: {error}"));
                net.count("a request that failed");
                self.finish(net, client, Outcome::Unknown, Vec::new());
            }
        }
    }

    /// A try has come to a process. `taken`: absent: it serves nothing.
    pub fn arrived(&mut self, op: usize, taken: Option<(usize, u64)>, now: u64) {
        let tries = self.tries.entry(op).or_default();
        match taken {
            Some((host, life)) => tries.taken.push((host, life, now)),
            None => tries.sent -= 1,
        }
    }

    /// By when a write that was given up has taken effect, if it ever does: a flush that came after it has ended.
    fn decided_at(&self, write: usize) -> Option<u64> {
        if self.history.ops[write].outcome != Outcome::Unknown {
            return None;
        }
        let (process, _, last) = self.tries.get(&write)?.taken_by_one()?;
        let flushes =
            self.history.ops.iter().enumerate().filter(|(_, op)| is_flush(op) && op.outcome == Outcome::Done);
        let after = flushes.filter(|(number, _)| {
            let taken = self.tries.get(number).and_then(Tries::taken_by_one);
            taken.is_some_and(|(by, first, _)| by == process && first > last)
        });
        after.filter_map(|(_, flush)| flush.ended).min().map(|ended| ended + SLACK)
    }

    fn try_later(&mut self, net: &mut Net, client: usize) {
        self.clients[client].host = self.some_host(net);
        let (delay, attempt) = (self.random.between(200, 3 * SECOND), self.clients[client].attempt);
        net.after(delay, Event::Look { client, attempt, why: Look::Again });
    }

    fn finish(&mut self, net: &mut Net, client: usize, outcome: Outcome, seen: Vec<u64>) {
        let this = &mut self.clients[client];
        let Some((op, _, _)) = this.busy.take() else { return };
        // Whatever still comes is of another try.
        this.attempt += 1;
        let attempt = this.attempt;
        net.note(|| format!("client {client} ends op {op}: {outcome:?} {seen:?}"));
        self.history.end(op, net.now, outcome, seen);
        let pause = self.random.delay(net.scenario.think).max(1);
        net.after(pause, Event::Look { client, attempt, why: Look::Begin });
    }

    /// The values of the cells that a read returned.
    fn seen(&self, net: &mut Net, op: usize, bytes: &Bytes) -> Vec<u64> {
        let Action::Read { first, cells } = self.history.ops[op].action else { return Vec::new() };
        let mut seen = Vec::new();
        if bytes.len() as u64 != u64::from(cells) * CELL {
            net.break_rule("bytes", format!("op {op} reads {} bytes instead of {cells} cells", bytes.len()));
            return seen;
        }
        for (cell, bytes) in (first..).zip(bytes.chunks(CELL as usize)) {
            let value = u64::from_le_bytes(*bytes.first_chunk().expect("a cell is longer"));
            let is_one = bytes.as_chunks::<8>().0.iter().all(|word| u64::from_le_bytes(*word) == value);
            if !is_one || (value > 0 && !self.was_written(value, cell)) {
                net.break_rule(
                    "bytes",
                    format!("op {op} reads {value} in cell {cell}: it was never written there"),
                );
            }
            seen.push(value);
        }
        seen
    }

    fn was_written(&self, value: u64, cell: u32) -> bool {
        let op = self.history.ops.get(value as usize - 1);
        let range = op.and_then(|op| match op.action {
            Action::Write { first, cells } => Some(first..first + cells),
            _ => None,
        });
        range.is_some_and(|range| range.contains(&cell))
    }

    /// One of the parts that are used is read. Returns the operation; `None`: there is no such part.
    pub fn read_part(&mut self, net: &mut Net, part: usize) -> Option<usize> {
        let used = USED.get(part).filter(|_| !self.clients.is_empty())?;
        let (offset, len) = (used.start * CELL, (used.end - used.start) * CELL);
        let action = Action::Read { first: used.start as u32, cells: (used.end - used.start) as u32 };
        self.begin(net, 0, action, BlockRequest::Read { offset, len });
        Some(self.history.ops.len() - 1)
    }

    /// Whether some order explains what was seen, cell by cell.
    pub fn judge(&mut self, net: &mut Net) {
        let decided: Vec<Option<u64>> = (0..self.history.ops.len()).map(|op| self.decided_at(op)).collect();
        decided.iter().flatten().for_each(|_| net.count("a write that a flush decided"));
        for cell in USED.into_iter().flatten() {
            let cell = cell as u32;
            let of_cell = |(number, op): (usize, &Op)| Some((number, at_cell(op, cell)?));
            let mut ops: Vec<(usize, Op)> = self.history.ops.iter().enumerate().filter_map(of_cell).collect();
            let seen: BTreeSet<u64> = ops.iter().flat_map(|(_, op)| op.seen.clone()).collect();
            for (number, op) in &mut ops {
                let is_open = op.outcome == Outcome::Unknown && matches!(op.action, Action::Write { .. });
                // It took effect: by when?
                if is_open
                    && seen.contains(&(*number as u64 + 1))
                    && let Some(ended) = decided[*number]
                {
                    (op.outcome, op.ended) = (Outcome::Done, Some(ended));
                }
            }
            let ops: Vec<(usize, &Op)> = ops.iter().map(|(number, op)| (*number, op)).collect();
            match check(&ops) {
                Verdict::Linearizable => {}
                Verdict::Unknown => self.undecided += 1,
                Verdict::Broken { stuck, .. } => {
                    let near = self.history.ops[stuck[0]].began;
                    let is_near = |op: &Op| {
                        op.began <= near + 60 * SECOND && op.ended.is_none_or(|at| at + 60 * SECOND > near)
                    };
                    let show = |(number, op): &(usize, &Op)| {
                        let Op { action, began, ended, outcome, seen, .. } = op;
                        let what = match action {
                            Action::Read { .. } => "read",
                            Action::Zero { .. } => "zero",
                            _ => "write",
                        };
                        format!("\n  op {number} {what} {began}..{} {outcome:?} {seen:?}", ended.unwrap_or(0))
                    };
                    let shown: String = ops.iter().filter(|(_, op)| is_near(op)).map(show).collect();
                    let what = format!("no order explains cell {cell} at ops {stuck:?}:{shown}");
                    return net.break_rule("linearizability", what);
                }
            }
        }
    }
}

fn is_flush(op: &Op) -> bool {
    matches!(op.action, Action::Read { cells: 0, .. })
}

/// What an operation does to one cell.
fn at_cell(op: &Op, cell: u32) -> Option<Op> {
    let (first, cells) = match op.action {
        Action::Read { first, cells } | Action::Write { first, cells } | Action::Zero { first, cells } => {
            (first, cells)
        }
        Action::Delete => return None,
    };
    if !(first..first + cells).contains(&cell) {
        return None;
    }
    let action = match op.action {
        Action::Read { .. } => Action::Read { first: 0, cells: 1 },
        Action::Write { .. } => Action::Write { first: 0, cells: 1 },
        _ => Action::Zero { first: 0, cells: 1 },
    };
    let seen = op.seen.get((cell - first) as usize).copied().into_iter().collect();
    Some(Op { action, seen, ..op.clone() })
}
