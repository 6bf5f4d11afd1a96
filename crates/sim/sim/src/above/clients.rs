//! The clients, each of which asks for one thing at a time. Those of a volume are one kernel together: they ask again
//! when a connection breaks ([`super::cells`]). Those of the gateways ([`super::keys`]) give up what breaks.

use crate::above::cells::{self, Tries};
use crate::above::keys::{self, Keys};
use crate::above::messages::{Event, Look, ObjectRequest, Parcel, Reply, Request, Wish};
use crate::above::net::Net;
use crate::above::scenario::{Role, SECOND, Scenario};
use crate::search::history::{Action, History, Outcome};
use ebb_types::{
    MetaRequest, NamespaceCommand, NamespaceDone, NamespaceError, NamespaceOp, Random, RequestId,
};
use ebb_volume::VolumeError;
use std::collections::BTreeMap;

struct Client {
    role: Role,
    /// The host that it is connected to.
    host: usize,
    /// One of a volume connects to the same host again, whatever it waits for; one of gateways uses the same one for
    /// as long as that answers.
    is_faithful: bool,
    /// Its pauses are long. One of a volume only reads.
    is_lazy: bool,
    /// Numbers its tries, over all requests.
    attempt: u64,
    busy: Option<Busy>,
}

/// The request under way.
struct Busy {
    /// Its operations: one, but for a gateway's request that concerns several keys.
    ops: Vec<usize>,
    request: Request,
    /// Until when it is tried again.
    gives_up: u64,
}

pub(super) struct Clients {
    clients: Vec<Client>,
    random: Random,
    pub history: History,
    keys: Keys,
    /// They begin nothing any more but what [`Clients::read`] asks for.
    is_over: bool,
    /// Histories that were too long to decide.
    pub undecided: usize,
    /// By command: its deletions that lifecycle rules ask for and that are not answered, each with its place in the
    /// command and its operation.
    expiries: BTreeMap<RequestId, Vec<(usize, usize, String)>>,
    /// By operation: its tries that are under way or were taken, and where and when those were taken.
    tries: BTreeMap<usize, Tries>,
}

impl Client {
    /// Between two requests.
    fn pause(&self, net: &Net, random: &mut Random) -> u64 {
        let typical = if self.is_lazy { 8 * net.scenario.think } else { net.scenario.think };
        random.delay(typical).max(1)
    }
}

/// What is answered to an operation.
enum Answered {
    /// For each operation.
    Ended(Vec<(Outcome, Vec<u64>)>),
    /// It is asked for again.
    Later,
}

impl Clients {
    pub fn new(scenario: &Scenario, random: Random) -> Clients {
        let mut random = random;
        let volumes = scenario.fronts.len();
        let of_volumes = (0..scenario.block_clients).map(|client| Role::Volume(client % volumes));
        let roles = of_volumes.chain(std::iter::repeat_n(Role::Gateway, scenario.object_clients));
        let clients = roles.map(|role| {
            let is_lazy = random.chance(scenario.lazy);
            Client {
                role,
                host: scenario.some_host(role, &mut random),
                is_faithful: (is_lazy && role.is_volume()) || random.chance(scenario.faithful),
                is_lazy,
                attempt: 0,
                busy: None,
            }
        });
        Clients {
            clients: clients.collect(),
            random,
            history: History::default(),
            keys: Keys::new(scenario),
            is_over: false,
            undecided: 0,
            expiries: BTreeMap::new(),
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
        let role = this.role;
        if this.attempt != attempt {
            return;
        }
        match (why, &this.busy) {
            (Look::Begin, None) if !self.is_over => self.go_on(net, client),
            (Look::Begin, _) | (_, None) => {}
            (_, Some(busy)) if net.now >= busy.gives_up => self.give_up(net, client),
            (_, Some(_)) => {
                net.count("a request that is sent again");
                if !this.is_faithful && self.random.chance(500) {
                    self.clients[client].host = net.scenario.some_host(role, &mut self.random);
                }
                self.send(net, client);
            }
        }
    }

    fn go_on(&mut self, net: &mut Net, client: usize) {
        let value = self.history.ops.len() as u64 + 1;
        let this = &self.clients[client];
        let wish = match this.role {
            Role::Volume(volume) if this.is_lazy => cells::draw_read(volume, &mut self.random),
            Role::Volume(volume) => cells::draw(volume, &mut self.random, value),
            Role::Gateway => self.keys.draw(&mut self.random, value),
        };
        if this.role.is_volume() && self.is_in_the_way(this.role, wish.1) {
            let pause = this.pause(net, &mut self.random);
            return net.after(pause, Event::Look { client, attempt: this.attempt, why: Look::Begin });
        }
        if this.role == Role::Gateway && !this.is_faithful {
            self.clients[client].host = net.scenario.some_host(Role::Gateway, &mut self.random);
        }
        self.begin(net, client, wish);
    }

    /// Whether a write under way covers part of what this would write. A kernel sends no such two: whichever of them is
    /// sent again on a new connection is carried out twice, and no server could tell.
    fn is_in_the_way(&self, role: Role, action: Action) -> bool {
        let written = |action: Action| match action {
            Action::Write { first, cells } | Action::Zero { first, cells } => first..first + cells,
            Action::Read { .. } | Action::Delete | Action::Look { .. } | Action::Clear { .. } => 0..0,
        };
        let new = written(action);
        let kernel = self.clients.iter().filter(|client| client.role == role);
        let under_way = kernel.filter_map(|client| client.busy.as_ref());
        let mut under_way = under_way.map(|busy| written(self.history.ops[busy.ops[0]].action));
        under_way.any(|old| old.start < new.end && new.start < old.end)
    }

    fn begin(&mut self, net: &mut Net, client: usize, (chunk, action, request): Wish) {
        let op = self.history.begin(chunk, action, net.now);
        net.note(|| format!("client {client} begins op {op}: {action:?} of {}", request.brief()));
        let mut ops = vec![op];
        if let Request::Object(request) = &request {
            self.keys.note(op, request);
            let others = self.keys.others(request).into_iter();
            ops.extend(others.map(|(chunk, action)| self.history.begin(chunk, action, net.now)));
        }
        let this = &mut self.clients[client];
        let gives_up = match this.role {
            Role::Volume(_) => net.now + self.random.between(40 * SECOND, 200 * SECOND),
            Role::Gateway => net.now,
        };
        this.busy = Some(Busy { ops, request, gives_up });
        self.send(net, client);
    }

    fn send(&mut self, net: &mut Net, client: usize) {
        let this = &mut self.clients[client];
        let Some(Busy { ops, request, .. }) = &this.busy else { return };
        this.attempt += 1;
        let (host, attempt, op, request) = (this.host, this.attempt, ops[0], request.clone());
        net.note(|| format!("client {client} sends op {op} to process {host}"));
        self.tries.entry(op).or_default().sent += 1;
        let parcel = Parcel::Request { client, attempt, op, request };
        let delay = net.delay();
        net.after(delay, Event::Deliver { host, life: None, parcel });
        let timeout = match this.role {
            Role::Volume(_) => self.random.between(3 * SECOND, net.scenario.patience),
            Role::Gateway => self.random.between(5 * SECOND, 100 * SECOND),
        };
        net.after(timeout, Event::Look { client, attempt, why: Look::Timeout });
        if !net.is_calm && self.random.chance(30) {
            let breaks = self.random.below(3 * SECOND);
            net.after(breaks, Event::Look { client, attempt, why: Look::Break });
        }
    }

    pub fn is_answered(&self, op: usize) -> bool {
        self.history.ops[op].outcome == Outcome::Done
    }

    /// A try has come to a process. `taken`: absent: it serves nothing.
    pub fn arrived(&mut self, op: usize, taken: Option<(usize, u64)>, now: u64) {
        let tries = self.tries.entry(op).or_default();
        match taken {
            Some((host, life)) => tries.taken.push((host, life, now)),
            None => tries.sent -= 1,
        }
    }

    pub fn answered(&mut self, net: &mut Net, client: usize, attempt: u64, reply: Reply) {
        let this = &self.clients[client];
        let (true, Some(busy)) = (this.attempt == attempt, &this.busy) else { return };
        let op = busy.ops[0];
        let answered = match reply {
            Reply::Gone if this.role.is_volume() => Answered::Later,
            Reply::Gone => Answered::Ended(unknown(busy)),
            Reply::Block(Ok(bytes)) => {
                Answered::Ended(vec![(Outcome::Done, cells::seen(&self.history, net, op, &bytes))])
            }
            // Its server is about to end: the connection may break first.
            Reply::Block(Err(VolumeError::Taken)) if self.random.chance(500) => Answered::Later,
            Reply::Block(Err(error)) => failed(net, busy, &error.to_string()),
            Reply::Object(result) => {
                match self.keys.seen(&self.history, net, (&busy.ops, &busy.request), result) {
                    Ok(ended) => Answered::Ended(ended),
                    Err(refused) => failed(net, busy, &format!("{}: {}", refused.code, refused.why)),
                }
            }
        };
        match answered {
            Answered::Ended(ended) => self.finish(net, client, ended),
            Answered::Later => self.try_later(net, client),
        }
    }

    fn try_later(&mut self, net: &mut Net, client: usize) {
        let role = self.clients[client].role;
        self.clients[client].host = net.scenario.some_host(role, &mut self.random);
        let (delay, attempt) = (self.random.between(200, 3 * SECOND), self.clients[client].attempt);
        net.after(delay, Event::Look { client, attempt, why: Look::Again });
    }

    fn give_up(&mut self, net: &mut Net, client: usize) {
        let Client { role, host, attempt, .. } = self.clients[client];
        net.note(|| format!("client {client} gives up"));
        if role == Role::Gateway {
            let (delay, parcel) = (net.delay(), Parcel::Broken { client, attempt });
            net.after(delay, Event::Deliver { host, life: None, parcel });
        }
        if let Some(busy) = &self.clients[client].busy {
            let ended = unknown(busy);
            self.finish(net, client, ended);
        }
    }

    /// `ended`: how each of its operations has.
    fn finish(&mut self, net: &mut Net, client: usize, ended: Vec<(Outcome, Vec<u64>)>) {
        let this = &mut self.clients[client];
        let Some(Busy { ops, .. }) = this.busy.take() else { return };
        // Whatever still comes is of another try.
        this.attempt += 1;
        let attempt = this.attempt;
        if this.role == Role::Gateway && ended[0].0 == Outcome::Unknown {
            this.host = net.scenario.some_host(Role::Gateway, &mut self.random);
        }
        for (op, (outcome, seen)) in ops.into_iter().zip(ended) {
            net.note(|| format!("client {client} ends op {op}: {outcome:?} {seen:?}"));
            self.history.end(op, net.now, outcome, seen);
        }
        let pause = this.pause(net, &mut self.random);
        net.after(pause, Event::Look { client, attempt, why: Look::Begin });
    }

    /// A command of a gateway comes to the namespace. If lifecycle rules made it delete objects, that counts as
    /// operations, which may take effect from now on. Returns its id. What clients delete is not described by its size.
    pub fn expiring(&mut self, net: &mut Net, request: &MetaRequest) -> Option<RequestId> {
        let MetaRequest::Namespace(NamespaceCommand { request, ops, .. }) = request else { return None };
        let expiries = ops.iter().enumerate().filter_map(|(number, op)| match op {
            NamespaceOp::Delete { key, only_if, .. } if only_if.size.is_some() => Some((number, key.clone())),
            _ => None,
        });
        let expiries: Vec<(usize, String)> = expiries.collect();
        if !expiries.is_empty() && !self.expiries.contains_key(request) {
            let begin = |(number, key): (usize, String)| {
                let (chunk, action) = self.keys.expiry(&key)?;
                let op = self.history.begin(chunk, action, net.now);
                net.note(|| format!("op {op}: {key} is to expire"));
                Some((number, op, key))
            };
            self.expiries.insert(*request, expiries.into_iter().filter_map(begin).collect());
        }
        Some(*request)
    }

    /// What became of such a command. It counts once, however often it is answered.
    pub fn expired(
        &mut self,
        net: &mut Net,
        command: RequestId,
        results: &[Result<NamespaceDone, NamespaceError>],
    ) {
        for (number, op, key) in self.expiries.get_mut(&command).map(std::mem::take).into_iter().flatten() {
            let outcome = match &results[number] {
                Ok(_) => Outcome::Done,
                // It may have been carried out before.
                Err(NamespaceError::Expired) => Outcome::Unknown,
                Err(_) => Outcome::Refused,
            };
            if outcome == Outcome::Done {
                keys::judge_expiry(net, &key);
            }
            self.history.end(op, net.now, outcome, Vec::new());
        }
    }

    /// Reads one of the things that are used. Returns the operation; `None`: there is no such thing.
    pub fn read(&mut self, net: &mut Net, number: usize) -> Option<usize> {
        let has = |role| self.clients.iter().position(|client| client.role == role);
        let volumes = has(Role::Volume(0)).map_or(0, |_| net.scenario.fronts.len());
        let (client, wish) = match number.checked_sub(volumes * cells::USED.len()) {
            None => {
                let (volume, part) = (number / cells::USED.len(), number % cells::USED.len());
                (has(Role::Volume(volume))?, cells::read_part(volume, part))
            }
            Some(key) => (has(Role::Gateway)?, self.keys.read(key)?),
        };
        self.begin(net, client, wish);
        Some(self.history.ops.len() - 1)
    }

    /// Whether some order explains what was seen, cell by cell and key by key.
    pub fn judge(&mut self, net: &mut Net) {
        self.undecided += cells::judge(&self.history, &self.tries, net);
        self.undecided += self.keys.judge(&self.history, net);
    }
}

fn unknown(busy: &Busy) -> Vec<(Outcome, Vec<u64>)> {
    busy.ops.iter().map(|_| (Outcome::Unknown, Vec::new())).collect()
}

fn failed(net: &mut Net, busy: &Busy, why: &str) -> Answered {
    net.note(|| format!("op {} failed: {why}", busy.ops[0]));
    net.count("a request that failed");
    if why.starts_with("InvalidStorageClass") {
        net.count("a gateway that has not heard of a pool");
    }
    if why.contains(" hibernates;") {
        net.count("a request that does not wait until its pool wakes");
    }
    Answered::Ended(unknown(busy))
}

impl Request {
    fn brief(&self) -> String {
        match self {
            Request::Block(_) => "a volume".to_owned(),
            Request::Object(ObjectRequest::Get { key, range }) => format!("{key} {range:?}"),
            Request::Object(ObjectRequest::Upload { key, upload, .. }) => {
                format!("{key}, the parts {:?} of {:?}", upload.named, upload.numbers())
            }
            Request::Object(ObjectRequest::Abandon { key, .. }) => format!("{key}, aborted"),
            Request::Object(ObjectRequest::Put { key, .. } | ObjectRequest::Delete { key }) => key.clone(),
            Request::Object(ObjectRequest::Restore { key }) => format!("{key}, to be woken"),
            Request::Object(ObjectRequest::Copy { from, to, .. }) => format!("{from} to {to}"),
            Request::Object(ObjectRequest::DeleteAll { keys }) => keys.join(" "),
            Request::Object(ObjectRequest::List { page }) => format!("all keys by {page}"),
        }
    }
}
