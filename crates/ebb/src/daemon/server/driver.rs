//! Feeds events to the shell of the protocol core ([`ebb_chunkserver::shell`]) and carries out its commands.
//!
//! **What is in flight is bounded (R12).** A client's request is read from its socket only when the server has room for
//! its bytes ([`Flow`]); until then it stays there, and TCP makes the client wait. Its copies to other servers share
//! the same bytes, so the queues to them need no bound of their own: a slow server makes a queue wait, and costs a
//! connection only if it takes nothing in for eight seconds. Messages from other servers are read as long as the
//! store's inbox has room.
//!
//! There is no circular wait. A client's request waits for earlier requests to be answered; those wait for copies on
//! other servers; these wait for inboxes there, and an inbox is emptied by its own disk, which waits for nothing.
//! Messages between servers never wait for room for clients, and a server sends without waiting.
//!
//! **What the core may rely on**: a message that it sends arrives eventually, or [`CoreEvent::PeerLost`] follows.

use super::machine;
use super::news;
use super::scrubs::Scrubs;
use crate::daemon::metrics::server::ServerFigures;
use crate::daemon::metrics::{Page, names};
use crate::daemon::relay::Way;
use crate::daemon::{clock, heap};
use bytes::Bytes;
use ebb_chunkserver::shell::{Command, EDGE_TOKENS, Ended, Event, Facts, Shell};
use ebb_chunkserver::{
    CLIENT_BYTES, ClientToken, Event as CoreEvent, INBOX_BYTES, Moves, StoreCommand, StoreToken, TICK,
};
use ebb_client::Secret;
use ebb_client::budget::{Budget, Share};
use ebb_client::transport::{Frame, Identity, Party, Sender, kind};
use ebb_power::OwnMachine;
use ebb_store::{Completion, GroupSpace, LIST_RUNS, Op, Outcome, StoreError, StoreHandle};
use ebb_types::frame::FrameError;
use ebb_types::{
    ClientRequest, ExamReport, Incarnation, InspectReply, InspectRequest, MachineOrder, MetaPush, Moment,
    PeerMessage, Role, ServerId, ServerMessage, SleepOrder, StoreFigures,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_local;

/// Clients that are passed on at a time: each may have a queue and a frame in either direction here. The next one asks
/// another server.
const RELAYS_MAX: usize = 16;
/// A server that could not be reached is not retried for this long.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
pub type Shared = Rc<RefCell<Server>>;

/// Connects to another server after a pause, and serves the connection.
pub type Dial = fn(Shared, ServerId, String, Duration);

/// Facts that never change while the server runs.
pub struct About {
    pub me: ServerId,
    pub incarnation: Incarnation,
    pub cluster: u64,
    pub secret: Secret,
    pub scrubs: Scrubs,
    pub own_machine: Arc<OwnMachine>,
    pub dial: Dial,
}

pub struct Server {
    pub about: About,
    /// For tasks that it starts.
    this: Weak<RefCell<Server>>,
    shell: Shell,
    store: StoreHandle,
    /// Signalled when something was submitted to the store.
    submitted: Rc<Notify>,
    events: VecDeque<Event>,
    commands: Vec<Command>,
    peers: BTreeMap<ServerId, Peer>,
    clients: BTreeMap<ClientToken, Asker>,
    flow: Rc<Flow>,
    inspections: BTreeMap<u64, (Sender, u64)>,
    metas: Vec<Option<Sender>>,
    next_client: u64,
    next_inspection: u64,
    /// Why this run ends, unless it was asked to.
    pub ended: Option<Ended>,
    stopping: Rc<Notify>,
}

/// A requester waiting for an answer, with its share of the in-flight budget.
struct Asker {
    sender: Sender,
    id: u64,
    _share: Share,
}

/// What may still be accepted.
pub struct Flow {
    /// Replies to clients' reads.
    pub reads: Budget,
    /// Clients' writes.
    pub writes: Budget,
    /// Clients that are passed on. Their bytes are not in the budgets: two servers that pass on to each other would
    /// wait for each other.
    pub relays: Semaphore,
    /// Signalled when the store completes something.
    stored: Notify,
}

impl Flow {
    fn new() -> Flow {
        let all = || Budget::new(CLIENT_BYTES);
        let relays = Semaphore::new(RELAYS_MAX);
        Flow { reads: all(), writes: all(), relays, stored: Notify::new() }
    }
}

/// Waits until the store has room for a message that has arrived.
pub async fn inbox_has_room(shared: &Shared, party: Party) {
    let flow = shared.borrow().flow();
    let has_room = || shared.borrow().store.pending_bytes() <= INBOX_BYTES;
    if let (Party::Server(peer), false) = (party, has_room()) {
        shared.borrow_mut().handle(Event::Core(CoreEvent::Unread { peer }));
    }
    loop {
        let stored = flow.stored.notified();
        if has_room() {
            return;
        }
        stored.await;
    }
}

/// Wakes the store after all that is to be done now: what arrived together is written together, with one sync.
pub async fn wake_store(shared: Shared) {
    let submitted = shared.borrow().submitted.clone();
    loop {
        submitted.notified().await;
        shared.borrow().store.wake();
    }
}

enum Peer {
    Up(Sender),
    Dialing { queue: Vec<(PeerMessage, Bytes)> },
    Down { since: Moment },
}

impl Server {
    pub fn new(
        this: Weak<RefCell<Server>>,
        shell: Shell,
        store: StoreHandle,
        metas: usize,
        stopping: Rc<Notify>,
        about: About,
    ) -> Server {
        Server {
            about,
            this,
            shell,
            store,
            submitted: Rc::new(Notify::new()),
            events: VecDeque::new(),
            commands: Vec::new(),
            peers: BTreeMap::new(),
            clients: BTreeMap::new(),
            flow: Rc::new(Flow::new()),
            inspections: BTreeMap::new(),
            metas: vec![None; metas],
            next_client: 0,
            next_inspection: EDGE_TOKENS,
            ended: None,
            stopping,
        }
    }

    fn task<F: Future<Output = ()> + 'static>(&self, start: impl FnOnce(Shared) -> F) {
        if let Some(shared) = self.this.upgrade() {
            spawn_local(start(shared));
        }
    }

    /// Passes an event to the shell and carries out all commands that follow.
    fn handle(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let mut commands = std::mem::take(&mut self.commands);
            self.shell.on(clock::now(), event, &mut commands);
            for command in commands.drain(..) {
                self.carry_out(command);
            }
            self.commands = commands;
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Send { to, message, payload } => self.send_peer(to, message, payload),
            Command::Reply { token, reply, payload } => {
                if let Some(Asker { sender, id, .. }) = self.clients.remove(&token) {
                    // The client may be gone; then no reply is needed.
                    let _ = sender.send_bounded(kind::CLIENT_REPLY, id, &reply, payload);
                }
            }
            Command::Store { token, command } => self.give_to_store(token, command),
            Command::Task { token, task } => self.submit(token.0, task.into()),
            Command::Tell(message) => self.tell_metas(&message),
            Command::Exam { writable } => self.tell_exam(writable),
            Command::Tick => self.task(|shared| async move {
                tokio::time::sleep(TICK).await;
                shared.borrow_mut().handle(Event::Core(CoreEvent::Tick));
            }),
            Command::Heartbeat => self.events.push_back(Event::Beat(self.facts())),
            Command::KeepScrubs { marks } => self.about.scrubs.keep(&marks),
            Command::Check(order) => self.task(|shared| check_machine(shared, order)),
            Command::Suspend(order) => self.task(|shared| suspend(shared, order)),
            Command::Refuse(refusal) => {
                for sender in self.metas.iter().flatten() {
                    // The order is given again.
                    let _ = sender.send(kind::SLEEP_REFUSAL, 0, &refusal, Bytes::new());
                }
            }
            Command::Say(news) => news::log(&news),
            Command::End(why) => {
                self.ended = Some(why);
                self.stopping.notify_one();
            }
        }
    }

    fn give_to_store(&mut self, token: StoreToken, command: StoreCommand) {
        if let StoreCommand::Read { role, group, chunk, first, count } = command
            && let Some(blocks) = self.store.try_read(role, group, chunk, first, count)
        {
            let outcome = Outcome::Read(blocks).into();
            self.events.push_back(Event::Stored { token, outcome });
            return;
        }
        self.submit(token.0, Op::asked(command, LIST_RUNS));
    }

    fn submit(&self, token: u64, op: Op) {
        self.store.submit(token, op);
        self.submitted.notify_one();
    }

    pub fn on_completions(&mut self, batch: Vec<Completion>) {
        for Completion { token, outcome } in batch {
            if token >= EDGE_TOKENS {
                self.inspected(token, outcome);
                continue;
            }
            if let Outcome::Failed(error) = &outcome
                && !matches!(error, StoreError::NoSpace { .. })
            {
                tracing::warn!("{error}");
            }
            self.handle(Event::Stored { token: StoreToken(token), outcome: outcome.into() });
        }
        self.flow.stored.notify_waiters();
        self.handle(Event::Space(self.store.figures()));
    }

    fn inspected(&mut self, token: u64, outcome: Outcome) {
        let Some((sender, id)) = self.inspections.remove(&token) else { return };
        let reply = match outcome {
            Outcome::Digest(d) => InspectReply::Digest {
                digest: d.digest,
                blocks: d.blocks,
                chunks: d.chunks.into_iter().collect(),
            },
            Outcome::Space(GroupSpace { chunks, tombstones }) => {
                InspectReply::Space { chunks: chunks.into_iter().collect(), tombstones }
            }
            Outcome::Failed(error) => InspectReply::Failed { why: error.to_string() },
            other => InspectReply::Failed { why: format!("unexpected answer of the store: {other:?}") },
        };
        let _ = sender.send(kind::INSPECT_REPLY, id, &reply, Bytes::new());
    }

    pub fn flow(&self) -> Rc<Flow> {
        self.flow.clone()
    }

    /// How to pass a client on to another server. `None`: it is no client, or no other server that takes part is known
    /// by this id.
    pub fn way_to(&self, party: Party, to: ServerId) -> Option<Way> {
        let About { me, cluster, secret, .. } = &self.about;
        let map = self.shell.replica().map();
        if party != Party::Client || to == *me || !map.is_live(to) {
            return None;
        }
        let address = map.servers.get(&to)?.address.clone();
        Some(Way { address, secret: secret.clone(), own: Identity { cluster: *cluster, party } })
    }

    /// Handles a frame from the other end. An error ends the connection.
    pub fn on_frame(&mut self, party: Party, sender: &Sender, frame: Frame) -> Result<(), FrameError> {
        heap::used();
        match (frame.kind, party) {
            (kind::PEER, Party::Server(from)) => {
                let (_, message) = frame.decode()?;
                let payload = frame.payload;
                self.handle(Event::Core(CoreEvent::Peer { from, message, payload }));
            }
            (kind::INSPECT_REQUEST, _) => {
                let (id, request) = frame.decode()?;
                self.on_inspection((sender, id), request);
            }
            (kind, _) => {
                return Err(FrameError::Body(format!("frames of kind {kind} are not for a chunk server")));
            }
        }
        Ok(())
    }

    fn on_inspection(&mut self, (sender, id): (&Sender, u64), request: InspectRequest) {
        let op = match request {
            InspectRequest::Digest { group, verify } => Op::Digest { role: Role::Replica, group, verify },
            InspectRequest::Space { group } => Op::Space { group },
            InspectRequest::Scrub => {
                self.handle(Event::Core(CoreEvent::ScrubAll));
                let reply = InspectReply::Scrub { replicas: self.shell.replica().stats().scrub.asked };
                let _ = sender.send(kind::INSPECT_REPLY, id, &reply, Bytes::new());
                return;
            }
        };
        self.next_inspection += 1;
        self.inspections.insert(self.next_inspection, (sender.clone(), id));
        self.submit(self.next_inspection, op);
    }

    /// A client's request, with its share of the in-flight budget.
    pub fn on_request(
        &mut self,
        (sender, id): (&Sender, u64),
        request: ClientRequest,
        payload: Bytes,
        share: Share,
    ) {
        heap::used();
        self.next_client += 1;
        let token = ClientToken(self.next_client);
        let asker = Asker { sender: sender.clone(), id, _share: share };
        self.clients.insert(token, asker);
        self.handle(Event::Core(CoreEvent::Client { token, request, payload }));
    }

    fn send_peer(&mut self, to: ServerId, message: PeerMessage, payload: Bytes) {
        let pause = match self.peers.get_mut(&to) {
            Some(Peer::Up(sender)) => {
                // If the connection has ended, its reader reports that, and the core sends again.
                let _ = sender.send_bounded(kind::PEER, 0, &message, payload);
                return;
            }
            Some(Peer::Dialing { queue }) => return queue.push((message, payload)),
            Some(Peer::Down { since }) => DIAL_PAUSE.saturating_sub(clock::now().since(*since)),
            None => Duration::ZERO,
        };
        let Some(entry) = self.shell.replica().map().servers.get(&to) else { return };
        let address = entry.address.clone();
        self.peers.insert(to, Peer::Dialing { queue: vec![(message, payload)] });
        if let Some(shared) = self.this.upgrade() {
            (self.about.dial)(shared, to, address, pause);
        }
    }

    /// A connection to a server is up, whichever side opened it. With two, messages may take either: the core does not
    /// care. But the other end may have opened this one because it knows already that the former broke: what was lost
    /// with that is sent again, and once too often if both ends have dialled at once.
    pub fn peer_is_up(&mut self, peer: ServerId, sender: &Sender) {
        let queued = match self.peers.insert(peer, Peer::Up(sender.clone())) {
            Some(Peer::Dialing { queue }) => queue,
            Some(Peer::Up(_)) => return self.handle(Event::Core(CoreEvent::PeerLost { peer })),
            Some(Peer::Down { .. }) | None => Vec::new(),
        };
        for (message, payload) in queued {
            // If the connection has already broken, its reader notices.
            let _ = sender.send_bounded(kind::PEER, 0, &message, payload);
        }
    }

    /// A connection to a server ended. There may be another, but everything in flight on this one, in either direction,
    /// is lost.
    pub fn peer_is_lost(&mut self, peer: ServerId) {
        let ended = |known: &Peer| matches!(known, Peer::Up(sender) if sender.is_closed());
        if self.peers.get(&peer).is_some_and(ended) {
            self.peers.insert(peer, Peer::Down { since: clock::now() });
        }
        self.handle(Event::Core(CoreEvent::PeerLost { peer }));
    }

    /// The connection attempt failed, and the messages waiting for it are lost.
    pub fn dial_failed(&mut self, peer: ServerId) {
        if let Some(Peer::Dialing { .. }) = self.peers.get(&peer) {
            self.peers.insert(peer, Peer::Down { since: clock::now() });
        }
        self.handle(Event::Core(CoreEvent::PeerLost { peer }));
    }

    pub fn meta_is_up(&mut self, index: usize, sender: Sender) {
        self.metas[index] = Some(sender);
        self.send_heartbeat();
    }

    pub fn meta_is_lost(&mut self, index: usize) {
        self.metas[index] = None;
    }

    /// Followers ignore messages for the leader, so they go to all members: a server need not know who leads.
    fn tell_metas(&self, message: &ServerMessage) {
        for sender in self.metas.iter().flatten() {
            if sender.send(kind::SERVER_MESSAGE, 0, message, Bytes::new()).is_err() {
                sender.close();
            }
        }
    }

    fn tell_exam(&self, writable: bool) {
        let wake_on_lan = self.about.own_machine.wakes_on_magic();
        let exam = ExamReport { unix_millis: clock::unix_millis(), writable, wake_on_lan };
        let (server, incarnation) = (self.about.me, self.about.incarnation);
        self.tell_metas(&ServerMessage::Exam { server, incarnation, exam });
    }

    /// The process's last action.
    pub fn end(&mut self) -> u64 {
        let mut commands = Vec::new();
        let last = self.shell.end(&mut commands);
        commands.into_iter().for_each(|command| self.carry_out(command));
        last.0
    }

    pub fn heartbeat_interval(&self) -> Duration {
        self.shell.heartbeat_interval()
    }

    pub fn send_heartbeat(&mut self) {
        self.handle(Event::Beat(self.facts()));
    }

    fn facts(&self) -> Facts {
        let store: StoreFigures = self.store.figures();
        let (busy, count) = self.store.moves();
        Facts {
            unix_seconds: clock::unix_millis() / 1000,
            queued: self.store.queued(),
            moves: Moves { busy, count, short: store.not_now.is_some() },
            store,
        }
    }

    /// For a scraper.
    pub fn report(&mut self, page: &mut Page) {
        let (now, facts) = (clock::now(), self.facts());
        let figures = ServerFigures {
            vitals: self.shell.vitals(now, &facts),
            served: self.shell.served(),
            latencies: self.shell.latencies(),
            has_lease: self.shell.replica().has_lease(now),
            map_version: self.shell.replica().map().version,
        };
        figures.report(page);
        for (action, count) in self.shell.actions() {
            page.put(names::ACTIONS, &[&"server", &action], count as f64);
        }
    }

    pub fn on_machine_order(&mut self, order: MachineOrder) {
        match order {
            MachineOrder::Sleep(order) => self.handle(Event::Order(order)),
            MachineOrder::Magic { mac, to } => machine::send(mac, &to),
        }
    }

    pub fn on_push(&mut self, push: MetaPush) {
        self.handle(Event::Push(push));
    }
}

async fn check_machine(shared: Shared, order: SleepOrder) {
    let own = shared.borrow().about.own_machine.clone();
    let outcome = machine::check(&own, order.depth).await;
    shared.borrow_mut().handle(Event::Checked { order, outcome });
}

async fn suspend(shared: Shared, order: SleepOrder) {
    tracing::info!("the machine suspends");
    let own = shared.borrow().about.own_machine.clone();
    let outcome = machine::sleep(&own, order.depth).await;
    shared.borrow_mut().handle(Event::Suspended { order, outcome });
}
