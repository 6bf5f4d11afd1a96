//! Feeds events to the shell of the protocol core ([`ebb_chunkserver::shell`]) and carries out its commands.
//!
//! **One task owns all that changes** ([`Server::run`]): the shell, the store's handle, who waits for an answer. It
//! selects what happened, applies it, and sees to what is true between two turns ([`Server::end_turn`]), as Crucible's
//! upstairs does. Connections and timers have a [`Handle`]: they own their sockets, and put what happened into the
//! driver's queue ([`crate::daemon::queue`]). The price is a message's way through the queue, without a copy of its
//! payload, and a turn of a task on the same thread. What arrived together shares a turn, and at its end the store is
//! woken: there is no task for that.
//!
//! **What is in flight is bounded (R12).** A client's request is read from its socket only when the server has room for
//! its bytes ([`Flow`]); until then it stays there, and TCP makes the client wait. Its copies to other servers share
//! the same bytes, so the queues to them need no bound of their own: a slow server makes a queue wait, and costs a
//! connection only if it takes nothing in for eight seconds. Messages from other servers are read as long as the
//! store's inbox has room; what is on its way to the inbox counts.
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
use crate::daemon::metrics::{self, Page, names};
use crate::daemon::queue::Queue;
use crate::daemon::relay::Way;
use crate::daemon::{clock, heap};
use crate::error::{NodeError, refused};
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
    ClientRequest, ExamReport, Incarnation, InspectReply, InspectRequest, Moment, PeerMessage, Role,
    ServerId, ServerMessage, SleepOrder, StoreFigures,
};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

/// Clients that are passed on at a time: each may have a queue and a frame in either direction here. The next one asks
/// another server.
const RELAYS_MAX: usize = 16;
/// A server that could not be reached is not retried for this long.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// Nothing is lost: the next start recovers the store.
const STORE_ENDED: &str = "the store's thread ended because of a bug in this program, which its log shows: start the server again and report it";

pub type Shared = Rc<Handle>;

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

/// What connections and timers have of the server.
pub struct Handle {
    pub about: About,
    pub flow: Flow,
    pub queue: Queue<Input>,
}

/// Something that happened.
pub enum Input {
    /// It concerns the shell alone.
    Shell(Event),
    Request {
        asker: Asker,
        request: ClientRequest,
        payload: Bytes,
    },
    Inspect {
        sender: Sender,
        id: u64,
        request: InspectRequest,
    },
    PeerUp {
        peer: ServerId,
        sender: Sender,
    },
    PeerLost {
        peer: ServerId,
    },
    DialFailed {
        peer: ServerId,
    },
    MetaUp {
        index: usize,
        sender: Sender,
    },
    MetaLost {
        index: usize,
    },
    /// Someone wants to be passed on to another server.
    Relay {
        party: Party,
        to: ServerId,
        answer: oneshot::Sender<Option<Way>>,
    },
    /// For a scraper.
    Page(oneshot::Sender<Page>),
    /// The process is to end.
    Stop,
}

pub struct Server {
    /// For tasks that it starts.
    shared: Shared,
    shell: Shell,
    store: StoreHandle,
    /// Something was submitted to the store since it was woken.
    submitted: bool,
    events: VecDeque<Event>,
    commands: Vec<Command>,
    peers: BTreeMap<ServerId, Peer>,
    clients: BTreeMap<ClientToken, Asker>,
    inspections: BTreeMap<u64, (Sender, u64)>,
    metas: Vec<Option<Sender>>,
    next_client: u64,
    next_inspection: u64,
    /// Why this run ends, unless it was asked to.
    ended: Option<Ended>,
    stopping: bool,
}

/// A requester waiting for an answer, with its share of the in-flight budget.
pub struct Asker {
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
    /// Bytes of messages from other servers in the driver's queue, and of all that the store has to write.
    inbox: Cell<usize>,
    /// Signalled when there may be room in the inbox.
    room: Notify,
}

impl Flow {
    fn new() -> Flow {
        let all = || Budget::new(CLIENT_BYTES);
        let relays = Semaphore::new(RELAYS_MAX);
        Flow { reads: all(), writes: all(), relays, inbox: Cell::new(0), room: Notify::new() }
    }

    fn inbox_has_room(&self) -> bool {
        self.inbox.get() <= INBOX_BYTES
    }
}

impl Handle {
    pub fn new(about: About) -> (Shared, UnboundedReceiver<Input>) {
        let (queue, inputs) = Queue::new();
        (Rc::new(Handle { about, flow: Flow::new(), queue }), inputs)
    }

    pub fn tell_shell(&self, event: Event) {
        self.queue.give(Input::Shell(event));
    }

    /// A client's request, with its share of the in-flight budget.
    pub fn on_request(
        &self,
        (sender, id): (&Sender, u64),
        request: ClientRequest,
        payload: Bytes,
        share: Share,
    ) {
        heap::used();
        let asker = Asker { sender: sender.clone(), id, _share: share };
        self.queue.give(Input::Request { asker, request, payload });
    }

    /// Handles a frame from the other end. An error ends the connection.
    pub fn on_frame(&self, party: Party, sender: &Sender, frame: Frame) -> Result<(), FrameError> {
        heap::used();
        match (frame.kind, party) {
            (kind::PEER, Party::Server(from)) => {
                let (_, message) = frame.decode()?;
                let payload = frame.payload;
                self.flow.inbox.set(self.flow.inbox.get() + payload.len());
                self.tell_shell(Event::Core(CoreEvent::Peer { from, message, payload }));
            }
            (kind::INSPECT_REQUEST, _) => {
                let (id, request) = frame.decode()?;
                self.queue.give(Input::Inspect { sender: sender.clone(), id, request });
            }
            (kind, _) => {
                return Err(FrameError::Body(format!("frames of kind {kind} are not for a chunk server")));
            }
        }
        Ok(())
    }
}

/// Waits until the store has room for a message that has arrived.
pub async fn inbox_has_room(shared: &Handle, party: Party) {
    let flow = &shared.flow;
    if let (Party::Server(peer), false) = (party, flow.inbox_has_room()) {
        shared.tell_shell(Event::Core(CoreEvent::Unread { peer }));
    }
    loop {
        let room = flow.room.notified();
        if flow.inbox_has_room() {
            return;
        }
        room.await;
    }
}

enum Peer {
    Up(Sender),
    Dialing { queue: Vec<(PeerMessage, Bytes)> },
    Down { since: Moment },
}

impl Server {
    pub fn new(shared: Shared, shell: Shell, store: StoreHandle, metas: usize) -> Server {
        Server {
            shared,
            shell,
            store,
            submitted: false,
            events: VecDeque::new(),
            commands: Vec::new(),
            peers: BTreeMap::new(),
            clients: BTreeMap::new(),
            inspections: BTreeMap::new(),
            metas: vec![None; metas],
            next_client: 0,
            next_inspection: EDGE_TOKENS,
            ended: None,
            stopping: false,
        }
    }

    /// Runs until it is stopped, or has no part in the cluster any more.
    pub async fn run(
        mut self,
        mut inputs: UnboundedReceiver<Input>,
        mut stored: UnboundedReceiver<Vec<Completion>>,
    ) -> Result<Option<Ended>, NodeError> {
        let beat = sleep(self.shell.heartbeat_interval());
        tokio::pin!(beat);
        while self.ended.is_none() && !self.stopping {
            tokio::select! {
                // However much there is to do, a heartbeat is not late.
                biased;
                () = &mut beat => {
                    self.take_all(&mut inputs);
                    self.send_heartbeat();
                    beat.set(sleep(self.shell.heartbeat_interval()));
                }
                batch = stored.recv() => match batch {
                    Some(batch) => self.on_completions(batch),
                    None => return Err(refused(STORE_ENDED)),
                },
                Some(input) = inputs.recv() => self.take(input),
            }
            self.take_all(&mut inputs);
            self.end_turn();
        }
        self.flush(&mut inputs, &mut stored).await;
        Ok(self.ended)
    }

    /// A server's last action, so that the next start has nothing to do.
    async fn flush(
        &mut self,
        inputs: &mut UnboundedReceiver<Input>,
        stored: &mut UnboundedReceiver<Vec<Completion>>,
    ) {
        let last = self.end();
        self.end_turn();
        loop {
            tokio::select! {
                biased;
                batch = stored.recv() => match batch {
                    Some(batch) if batch.iter().all(|done| done.token != last) => {}
                    _ => return,
                },
                Some(input) = inputs.recv() => self.take(input),
            }
            self.take_all(inputs);
            self.end_turn();
        }
    }

    /// What has arrived by now. Those who would add to it run on this thread: not meanwhile.
    fn take_all(&mut self, inputs: &mut UnboundedReceiver<Input>) {
        while let Ok(input) = inputs.try_recv() {
            self.take(input);
        }
    }

    /// Who asked may be gone: then the answer is dropped.
    fn take(&mut self, input: Input) {
        match input {
            Input::Shell(event) => self.handle(event),
            Input::Request { asker, request, payload } => self.on_request(asker, request, payload),
            Input::Inspect { sender, id, request } => self.on_inspection((sender, id), request),
            Input::PeerUp { peer, sender } => self.peer_is_up(peer, sender),
            Input::PeerLost { peer } => self.peer_is_lost(peer),
            Input::DialFailed { peer } => self.dial_failed(peer),
            Input::MetaUp { index, sender } => {
                self.metas[index] = Some(sender);
                self.send_heartbeat();
            }
            Input::MetaLost { index } => self.metas[index] = None,
            Input::Relay { party, to, answer } => drop(answer.send(self.way_to(party, to))),
            Input::Page(answer) => drop(answer.send(self.page())),
            Input::Stop => self.stopping = true,
        }
    }

    /// What is to be true whenever this task waits. What arrived together is written together, with one sync.
    fn end_turn(&mut self) {
        debug_assert!(self.events.is_empty(), "what followed from an event is done with it");
        if std::mem::take(&mut self.submitted) {
            self.store.wake();
        }
        // Nothing is in the queue.
        let pending = self.store.pending_bytes();
        if self.shared.flow.inbox.replace(pending) > INBOX_BYTES {
            self.shared.flow.room.notify_waiters();
        }
    }

    /// What comes of it is an event.
    fn later(&self, event: impl Future<Output = Event> + 'static) {
        let shared = self.shared.clone();
        spawn_local(async move { shared.tell_shell(event.await) });
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
            Command::Tick => self.later(async {
                sleep(TICK).await;
                Event::Core(CoreEvent::Tick)
            }),
            Command::Heartbeat => self.events.push_back(Event::Beat(self.facts())),
            Command::KeepScrubs { marks } => self.shared.about.scrubs.keep(&marks),
            Command::Check(order) => self.later(check_machine(self.shared.about.own_machine.clone(), order)),
            Command::Suspend(order) => self.later(suspend(self.shared.about.own_machine.clone(), order)),
            Command::Refuse(refusal) => {
                for sender in self.metas.iter().flatten() {
                    // The order is given again.
                    let _ = sender.send(kind::SLEEP_REFUSAL, 0, &refusal, Bytes::new());
                }
            }
            Command::Say(news) => news::log(&news),
            Command::End(why) => self.ended = Some(why),
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

    fn submit(&mut self, token: u64, op: Op) {
        self.store.submit(token, op);
        self.submitted = true;
    }

    fn on_completions(&mut self, batch: Vec<Completion>) {
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

    /// How to pass a client on to another server. `None`: it is no client, or no other server that takes part is known
    /// by this id.
    fn way_to(&self, party: Party, to: ServerId) -> Option<Way> {
        let About { me, cluster, secret, .. } = &self.shared.about;
        let map = self.shell.replica().map();
        if party != Party::Client || to == *me || !map.is_live(to) {
            return None;
        }
        let address = map.servers.get(&to)?.address.clone();
        Some(Way { address, secret: secret.clone(), own: Identity { cluster: *cluster, party } })
    }

    fn on_inspection(&mut self, (sender, id): (Sender, u64), request: InspectRequest) {
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
        self.inspections.insert(self.next_inspection, (sender, id));
        self.submit(self.next_inspection, op);
    }

    fn on_request(&mut self, asker: Asker, request: ClientRequest, payload: Bytes) {
        self.next_client += 1;
        let token = ClientToken(self.next_client);
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
        (self.shared.about.dial)(self.shared.clone(), to, address, pause);
    }

    /// A connection to a server is up, whichever side opened it. With two, messages may take either: the core does not
    /// care. But the other end may have opened this one because it knows already that the former broke: what was lost
    /// with that is sent again, and once too often if both ends have dialled at once.
    fn peer_is_up(&mut self, peer: ServerId, sender: Sender) {
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
    fn peer_is_lost(&mut self, peer: ServerId) {
        let ended = |known: &Peer| matches!(known, Peer::Up(sender) if sender.is_closed());
        if self.peers.get(&peer).is_some_and(ended) {
            self.peers.insert(peer, Peer::Down { since: clock::now() });
        }
        self.handle(Event::Core(CoreEvent::PeerLost { peer }));
    }

    /// The connection attempt failed, and the messages waiting for it are lost.
    fn dial_failed(&mut self, peer: ServerId) {
        if let Some(Peer::Dialing { .. }) = self.peers.get(&peer) {
            self.peers.insert(peer, Peer::Down { since: clock::now() });
        }
        self.handle(Event::Core(CoreEvent::PeerLost { peer }));
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
        let About { me, incarnation, own_machine, .. } = &self.shared.about;
        let wake_on_lan = own_machine.wakes_on_magic();
        let exam = ExamReport { unix_millis: clock::unix_millis(), writable, wake_on_lan };
        self.tell_metas(&ServerMessage::Exam { server: *me, incarnation: *incarnation, exam });
    }

    /// The process's last action.
    fn end(&mut self) -> u64 {
        let mut commands = Vec::new();
        let last = self.shell.end(&mut commands);
        commands.into_iter().for_each(|command| self.carry_out(command));
        last.0
    }

    fn send_heartbeat(&mut self) {
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

    fn page(&mut self) -> Page {
        let mut page = metrics::of_process();
        let (now, facts) = (clock::now(), self.facts());
        let figures = ServerFigures {
            vitals: self.shell.vitals(now, &facts),
            served: self.shell.served(),
            latencies: self.shell.latencies(),
            has_lease: self.shell.replica().has_lease(now),
            map_version: self.shell.replica().map().version,
        };
        figures.report(&mut page);
        for (action, count) in self.shell.actions() {
            page.put(names::ACTIONS, &[&"server", &action], count as f64);
        }
        page
    }
}

async fn check_machine(own: Arc<OwnMachine>, order: SleepOrder) -> Event {
    let outcome = machine::check(&own, order.depth).await;
    Event::Checked { order, outcome }
}

async fn suspend(own: Arc<OwnMachine>, order: SleepOrder) -> Event {
    tracing::info!("the machine suspends");
    let outcome = machine::sleep(&own, order.depth).await;
    Event::Suspended { order, outcome }
}
