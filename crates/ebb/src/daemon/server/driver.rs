//! Feeds events to the core and carries out its commands.
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
//! **What the core may rely on**: a message that it sends arrives eventually, or [`Event::PeerLost`] follows.

use super::machine;
use super::scrubs::Scrubs;
use super::silence::Silence;
use super::{Shared, dial};
use crate::daemon::metrics::server::ServerFigures;
use crate::daemon::{clock, heap};
use bytes::Bytes;
use ebb_chunkserver::{
    CLIENT_BYTES, ClientToken, Command, Event, Moves, Replica, Stall, StoreCommand, StoreOutcome, StoreToken,
    TICK,
};
use ebb_client::Secret;
use ebb_client::budget::{Budget, Share};
use ebb_client::transport::{Frame, Party, Sender, kind};
use ebb_power::OwnMachine;
use ebb_store::{Completion, GroupSpace, LIST_RUNS, Membership, Op, Outcome, StoreError, StoreHandle};
use ebb_types::frame::FrameError;
use ebb_types::{
    ClientReply, ClientRequest, ClusterParams, Depth, ExamReport, GroupId, Incarnation, InspectReply,
    InspectRequest, LoadCount, MachineOrder, MetaPush, Moment, PeerMessage, Role, ServedLatencies, ServerId,
    ServerMessage, SleepOrder, SleepRefusal, Vitals,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::spawn_local;

/// While the store has more than this to write, no more messages from other servers are read.
const INBOX_BYTES: usize = 64 << 20;
/// A server that could not be reached is not retried for this long.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// Share of the capacity beyond which no new client writes are accepted: the rest is reserved for work that must not
/// fail (R10).
const SOFT_LIMIT: f64 = 0.95;
/// Share of the capacity beyond which the store records what is on all targets as soon as nothing else does: it may
/// have no room to write that again after a crash.
const NOTE_LIMIT: f64 = 0.75;
/// Store tokens from here on belong to the driver, those below to the core.
const OWN_TOKENS: u64 = 1 << 63;

/// Facts that never change while the server runs.
pub struct About {
    pub me: ServerId,
    pub incarnation: Incarnation,
    pub params: ClusterParams,
    pub secret: Secret,
    pub heartbeat: Duration,
    /// As read from the store at its start.
    pub remembered: Membership,
    pub scrubs: Scrubs,
    pub own_machine: Arc<OwnMachine>,
}

pub struct Server {
    pub about: About,
    /// For tasks that it starts.
    this: Weak<RefCell<Server>>,
    replica: Replica,
    store: StoreHandle,
    /// Signalled when something was submitted to the store.
    submitted: Rc<Notify>,
    events: VecDeque<Event>,
    commands: Vec<Command>,
    peers: BTreeMap<ServerId, Peer>,
    clients: BTreeMap<ClientToken, Asker>,
    flow: Rc<Flow>,
    inspections: BTreeMap<u64, (Sender, u64)>,
    /// Drops in progress.
    drops: BTreeMap<u64, (GroupId, Role)>,
    metas: Vec<Option<Sender>>,
    next_client: u64,
    next_own: u64,
    ticking: bool,
    full: bool,
    sleep: Sleep,
    /// Client load that no metadata leader has confirmed yet, and the start of its period.
    load: (LoadCount, Moment),
    /// All of it since the start.
    served: LoadCount,
    latencies: Timed,
    heartbeat_sent: Moment,
    silence: Silence,
    next_heartbeat: Duration,
    map_gap: bool,
    /// What the store remembers of the metadata, and the write that updates it, if any.
    remembered: Membership,
    remembering: Option<u64>,
    /// The last such write failed, and the log says so.
    forgets: bool,
    stall: Stall,
    /// The flush whose end shows that a store that hung has caught up.
    unstalling: Option<u64>,
    /// The flush that shows, for an exam, whether the store takes writes.
    examining: Option<u64>,
    /// Why this run ends, unless it was asked to.
    pub ended: Option<Ended>,
    stopping: Rc<Notify>,
    /// The process is about to end.
    ending: bool,
    /// Its machine is about to sleep.
    going_to_sleep: bool,
}

/// Why a run ends on its own.
pub enum Ended {
    /// The metadata service rejects this server.
    Rejected { why: String },
    /// The store is not the one that served last: it needs a new identity.
    Superseded { known: Incarnation },
    /// Its machine is to power off.
    PowerOff,
}

/// How long clients' requests took. Each is counted once: in `fresh`, which every heartbeat empties.
#[derive(Default)]
struct Timed {
    /// Since the last heartbeat.
    fresh: ServedLatencies,
    /// In heartbeats that no metadata leader has confirmed yet.
    told: ServedLatencies,
    /// In all heartbeats so far.
    all: ServedLatencies,
}

impl Timed {
    /// Only what was done counts: an answer that sends the client elsewhere, or makes it wait, comes at once.
    fn count(&mut self, reply: &ClientReply, took: Duration) {
        match reply {
            ClientReply::Data { .. } => self.fresh.reads.add(took),
            ClientReply::Done { .. } => self.fresh.writes.add(took),
            _ => {}
        }
    }

    fn tell(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        self.told += &fresh;
        self.all += &fresh;
    }

    /// Since the start.
    fn total(&self) -> ServedLatencies {
        let mut total = self.all.clone();
        total += &self.fresh;
        total
    }
}

/// A requester waiting for an answer, with its share of the in-flight budget.
struct Asker {
    sender: Sender,
    id: u64,
    since: Moment,
    _share: Share,
}

/// What may still be accepted.
pub struct Flow {
    /// Replies to clients' reads.
    pub reads: Budget,
    /// Clients' writes.
    pub writes: Budget,
    /// Signalled when the store completes something.
    stored: Notify,
}

impl Flow {
    fn new() -> Flow {
        let all = || Budget::new(CLIENT_BYTES);
        Flow { reads: all(), writes: all(), stored: Notify::new() }
    }
}

/// Waits until the store has room for another server's message.
pub async fn inbox_has_room(shared: &Shared) {
    let flow = shared.borrow().flow();
    loop {
        let stored = flow.stored.notified();
        if shared.borrow().store.pending_bytes() <= INBOX_BYTES {
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

/// Progress towards sleep. `Ready` is repeated with every heartbeat until the metadata service has heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    No,
    Flushing {
        token: u64,
        map_version: u64,
    },
    /// As of this map version no server needs this one.
    Ready {
        map_version: u64,
    },
}

enum Peer {
    Up(Sender),
    Dialing { queue: Vec<(PeerMessage, Bytes)> },
    Down { since: Moment },
}

impl Server {
    pub fn new(
        this: Weak<RefCell<Server>>,
        replica: Replica,
        store: StoreHandle,
        metas: usize,
        stopping: Rc<Notify>,
        about: About,
    ) -> Server {
        Server {
            this,
            replica,
            store,
            submitted: Rc::new(Notify::new()),
            events: VecDeque::new(),
            commands: Vec::new(),
            peers: BTreeMap::new(),
            clients: BTreeMap::new(),
            flow: Rc::new(Flow::new()),
            inspections: BTreeMap::new(),
            drops: BTreeMap::new(),
            metas: vec![None; metas],
            next_client: 0,
            next_own: OWN_TOKENS,
            ticking: false,
            full: false,
            sleep: Sleep::No,
            load: (LoadCount::default(), clock::now()),
            served: LoadCount::default(),
            latencies: Timed::default(),
            heartbeat_sent: Moment::ZERO,
            silence: Silence::new(clock::now()),
            next_heartbeat: about.heartbeat,
            map_gap: false,
            remembered: about.remembered,
            remembering: None,
            forgets: false,
            stall: Stall::new(clock::now()),
            unstalling: None,
            examining: None,
            ended: None,
            stopping,
            ending: false,
            going_to_sleep: false,
            about,
        }
    }

    fn task<F: Future<Output = ()> + 'static>(&self, start: impl FnOnce(Shared) -> F) {
        if let Some(shared) = self.this.upgrade() {
            spawn_local(start(shared));
        }
    }

    /// Passes an event to the core and carries out all commands that follow.
    fn handle(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let mut commands = std::mem::take(&mut self.commands);
            self.replica.on(clock::now(), event, &mut commands);
            for command in commands.drain(..) {
                self.carry_out(command);
            }
            self.commands = commands;
        }
        if self.replica.wants_ticks() && !self.ticking {
            self.ticking = true;
            self.task(|shared| async move {
                tokio::time::sleep(TICK).await;
                let mut server = shared.borrow_mut();
                server.ticking = false;
                server.handle(Event::Tick);
            });
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Send { to, message, payload } => self.send_peer(to, message, payload),
            Command::Reply { token, reply, payload } => {
                if let Some(Asker { sender, id, since, .. }) = self.clients.remove(&token) {
                    self.latencies.count(&reply, clock::now().since(since));
                    // The client may be gone; then no reply is needed.
                    let _ = sender.send_bounded(kind::CLIENT_REPLY, id, &reply, payload);
                }
            }
            Command::Report(report) => self.tell_metas(&ServerMessage::Reports {
                server: self.about.me,
                incarnation: self.about.incarnation,
                reports: vec![report],
            }),
            Command::Store { token, command } => self.give_to_store(token, command),
            Command::DropOffload { group, stands_for } => {
                let token = self.submit_own(Op::DropOffload { group, stands_for });
                self.drops.insert(token, (group, Role::Offload { stands_for }));
            }
            Command::DropReplica { group } => {
                let token = self.submit_own(Op::DropReplica { group });
                self.drops.insert(token, (group, Role::Replica));
            }
            Command::ForgetTombstones { group, up_to } => {
                self.submit_own(Op::ForgetTombstones { group, up_to });
            }
            Command::OldMetadata { known, offered } => {
                tracing::warn!(
                    "this server has seen version {known} of the cluster map, was offered {offered}, and does not obey it. A metadata server that \
                     was briefly away catches up by itself. If this persists, the metadata went back to an older copy: start the \
                     metadata servers on the newest copy of their directories"
                );
            }
            Command::Bug { group, what } => {
                tracing::error!(
                    "a bug in this program: {group}: {what}. The server continues; please report it with this log"
                );
            }
            Command::KeepScrubs { marks } => self.about.scrubs.keep(&marks),
            Command::MapGap => {
                self.map_gap = true;
                self.send_heartbeat();
            }
            Command::ReadyToSleep { map_version } => {
                self.remember();
                let token = self.submit_own(Op::Flush);
                self.sleep = Sleep::Flushing { token, map_version };
            }
        }
    }

    /// Submits an operation of the driver's own to the store; returns its token.
    pub fn submit_own(&mut self, op: Op) -> u64 {
        self.next_own += 1;
        self.submit(self.next_own, op);
        self.next_own
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
            if token < OWN_TOKENS {
                self.handle(Event::Stored { token: StoreToken(token), outcome: core_outcome(outcome) });
            } else if let Sleep::Flushing { token: flush, map_version } = self.sleep
                && flush == token
            {
                self.sleep = Sleep::Ready { map_version };
                self.say_ready(map_version);
            } else if self.unstalling == Some(token) {
                self.unstalling = None;
                self.stall.flushed(clock::now());
                tracing::info!("the store moves again: this server takes part again");
            } else if self.examining == Some(token) {
                self.examining = None;
                self.say_exam(!matches!(outcome, Outcome::Failed(_)));
            } else if self.remembering == Some(token) {
                self.remembering = None;
                let forgot = std::mem::replace(&mut self.forgets, matches!(outcome, Outcome::Failed(_)));
                if let (Outcome::Failed(error), false) = (outcome, forgot) {
                    tracing::warn!("cannot keep the cluster map's version: {error}");
                }
            } else if let Some((group, role)) = self.drops.remove(&token) {
                if let Outcome::Failed(StoreError::NoSpace { .. } | StoreError::NotNow { .. }) = outcome {
                    self.handle(Event::NotDropped { group, role });
                }
            } else if let Some((sender, id)) = self.inspections.remove(&token) {
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
                    other => {
                        InspectReply::Failed { why: format!("unexpected answer of the store: {other:?}") }
                    }
                };
                let _ = sender.send(kind::INSPECT_REPLY, id, &reply, Bytes::new());
            }
        }
        self.flow.stored.notify_waiters();
        self.watch_space();
    }

    pub fn flow(&self) -> Rc<Flow> {
        self.flow.clone()
    }

    fn watch_space(&mut self) {
        let figures = self.store.figures();
        let full = figures.used.0 as f64 > figures.capacity.0 as f64 * SOFT_LIMIT;
        if full != self.full {
            self.full = full;
            if full {
                tracing::warn!(
                    "the store is full ({} of {}): client writes are refused",
                    figures.used,
                    figures.capacity
                );
            }
            self.handle(Event::Space { full });
        }
    }

    /// A store that hangs would keep its groups waiting: such a server asks for no lease until all that waits is done.
    fn watch_store(&mut self, now: Moment) {
        let (busy, count) = self.store.moves();
        let not_now = self.store.figures().not_now;
        let moves = Moves { busy, count, short: not_now.is_some() };
        let lease = Duration::from_millis(self.about.params.lease_millis.into());
        if let Some(still) = self.stall.look(now, moves, lease) {
            let short = not_now.map(|errno| StoreError::NotNow { errno }.to_string());
            let why = short.unwrap_or_else(|| "its disk does not answer".to_owned());
            tracing::error!(
                "the store has not moved for {still:.1?}: {why}. This server serves nothing until it does; look at the kernel log \
                 and the disk"
            );
            self.unstalling = Some(self.submit_own(Op::Flush));
        }
    }

    /// Handles a frame from the other end. An error ends the connection.
    pub fn on_frame(&mut self, party: Party, sender: &Sender, frame: Frame) -> Result<(), FrameError> {
        heap::used();
        match (frame.kind, party) {
            (kind::PEER, Party::Server(from)) => {
                let (_, message) = frame.decode()?;
                self.handle(Event::Peer { from, message, payload: frame.payload });
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
        match request {
            InspectRequest::Digest { group, verify } => {
                let token = self.submit_own(Op::Digest { role: Role::Replica, group, verify });
                self.inspections.insert(token, (sender.clone(), id));
            }
            InspectRequest::Space { group } => {
                let token = self.submit_own(Op::Space { group });
                self.inspections.insert(token, (sender.clone(), id));
            }
            InspectRequest::Scrub => {
                self.handle(Event::ScrubAll);
                self.send_heartbeat();
                let reply = InspectReply::Scrub { replicas: self.replica.stats().scrub.asked };
                let _ = sender.send(kind::INSPECT_REPLY, id, &reply, Bytes::new());
            }
        }
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
        let asker = Asker { sender: sender.clone(), id, since: clock::now(), _share: share };
        self.clients.insert(token, asker);
        self.handle(Event::Client { token, request, payload });
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
        let Some(entry) = self.replica.map().servers.get(&to) else { return };
        let address = entry.address.clone();
        self.peers.insert(to, Peer::Dialing { queue: vec![(message, payload)] });
        self.task(|shared| dial(shared, to, address, pause));
    }

    /// A connection to a server is up, whichever side opened it. With two, messages may take either: the core does not
    /// care. But the other end may have opened this one because it knows already that the former broke: what was lost
    /// with that is sent again, and once too often if both ends have dialled at once.
    pub fn peer_is_up(&mut self, peer: ServerId, sender: &Sender) {
        let queued = match self.peers.insert(peer, Peer::Up(sender.clone())) {
            Some(Peer::Dialing { queue }) => queue,
            Some(Peer::Up(_)) => return self.handle(Event::PeerLost { peer }),
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
        self.handle(Event::PeerLost { peer });
    }

    /// The connection attempt failed, and the messages waiting for it are lost.
    pub fn dial_failed(&mut self, peer: ServerId) {
        if let Some(Peer::Dialing { .. }) = self.peers.get(&peer) {
            self.peers.insert(peer, Peer::Down { since: clock::now() });
        }
        self.handle(Event::PeerLost { peer });
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
        if self.ending {
            return;
        }
        for sender in self.metas.iter().flatten() {
            if sender.send(kind::SERVER_MESSAGE, 0, message, Bytes::new()).is_err() {
                sender.close();
            }
        }
    }

    /// The process's last action. A later heartbeat would be taken for the return of a server that is to wake.
    pub fn end(&mut self) -> u64 {
        self.remember();
        self.ending = true;
        self.submit_own(Op::Flush)
    }

    /// Time until the next heartbeat is due.
    pub fn heartbeat_interval(&self) -> Duration {
        self.next_heartbeat
    }

    pub fn send_heartbeat(&mut self) {
        self.handle(Event::Beat { unix_seconds: clock::unix_millis() / 1000 });
        self.watch_space();
        let figures = self.store.figures();
        if figures.used.0 as f64 > figures.capacity.0 as f64 * NOTE_LIMIT && !self.ending {
            self.handle(Event::NoteCommits);
        }
        self.remember();
        let now = clock::now();
        self.watch_store(now);
        if let Some(news) = self.silence.pass(now) {
            news.log();
        }
        self.latencies.tell();
        let vitals = self.vitals(now);
        self.heartbeat_sent = now;
        let map_version = if std::mem::take(&mut self.map_gap) { 0 } else { self.replica.map_version() };
        let (server, incarnation) = (self.about.me, self.about.incarnation);
        let mark = self.store.figures().mark;
        self.tell_metas(&ServerMessage::Heartbeat {
            server,
            incarnation,
            mark,
            sent: now,
            map_version,
            vitals: Box::new(vitals),
        });
        if let Sleep::Ready { map_version } = self.sleep {
            self.say_ready(map_version);
        }
    }

    /// For a scraper.
    pub fn figures(&mut self) -> ServerFigures {
        let now = clock::now();
        ServerFigures {
            vitals: self.vitals(now),
            served: self.served,
            latencies: self.latencies.total(),
            has_lease: self.replica.has_lease(now),
            map_version: self.replica.map().version,
        }
    }

    fn vitals(&mut self, now: Moment) -> Vitals {
        let new = self.replica.take_load();
        self.load.0 += new;
        self.served += new;
        let (stats, figures) = (self.replica.stats(), self.store.figures());
        Vitals {
            load: self.load.0,
            load_millis: now.since(self.load.1).as_millis() as u32,
            latencies: self.latencies.told.clone(),
            used_bytes: figures.used.0,
            capacity_bytes: figures.capacity.0,
            own_bytes: figures.own.0,
            debt_bytes: figures.offload.0 + stats.memory_bytes,
            memory_bytes: stats.memory_bytes,
            in_flight: stats.in_flight + self.store.queued() as u32,
            catching_up: stats.catching_up,
            unsettled: stats.unsettled,
            offloaded_bytes: stats.offloaded_bytes,
            reclaimed_bytes: stats.reclaimed_bytes,
            repaired_blocks: stats.repaired_blocks,
            damage: stats.damage,
            scrub: stats.scrub,
            poisoned: stats.poisoned || figures.poisoned,
            stalled: self.stall.is_stalled(),
            bugs: stats.bugs,
        }
    }

    pub fn on_machine_order(&mut self, order: MachineOrder) {
        match order {
            MachineOrder::Sleep(order) => {
                if self.may_sleep(&order) && !self.going_to_sleep {
                    self.going_to_sleep = true;
                    self.task(|shared| go_to_sleep(shared, order));
                }
            }
            MachineOrder::Magic { mac, to } => machine::send(mac, &to),
        }
    }

    /// Whether it may put its machine to sleep: drained, flushed, and nothing counts on it again since.
    fn may_sleep(&self, order: &SleepOrder) -> bool {
        let lease = Duration::from_millis(self.about.params.lease_millis.into());
        matches!(self.sleep, Sleep::Ready { .. })
            && self.replica.may_sleep()
            && self.ended.is_none()
            && !self.ending
            && order.counts(self.about.incarnation, self.replica.map().version, clock::now(), lease)
    }

    /// To all members, as everything: a follower ignores it.
    fn refuse_sleep(&self, refusal: &SleepRefusal) {
        for sender in self.metas.iter().flatten() {
            // The order is given again.
            let _ = sender.send(kind::SLEEP_REFUSAL, 0, refusal, Bytes::new());
        }
    }

    fn say_ready(&mut self, map_version: u64) {
        let (server, incarnation) = (self.about.me, self.about.incarnation);
        self.tell_metas(&ServerMessage::ReadyToSleep { server, incarnation, map_version });
    }

    fn say_exam(&self, flushed: bool) {
        let (server, incarnation) = (self.about.me, self.about.incarnation);
        let writable = flushed && !self.store.figures().poisoned;
        let wake_on_lan = self.about.own_machine.wakes_on_magic();
        let exam = ExamReport { unix_millis: clock::unix_millis(), writable, wake_on_lan };
        self.tell_metas(&ServerMessage::Exam { server, incarnation, exam });
    }

    pub fn on_push(&mut self, push: MetaPush) {
        if self.ended.is_some() {
            return;
        }
        // Only a leader says anything.
        if let Some(news) = self.silence.heard(clock::now()) {
            news.log();
        }
        if push.is_late(self.about.incarnation) {
            return;
        }
        match push {
            MetaPush::Lease { incarnation, sent, next_millis } => {
                let lease = Duration::from_millis(self.about.params.lease_millis.into());
                let granted = (incarnation, sent);
                let Some(until) = self.replica.lease_end(clock::now(), granted, lease) else { return };
                self.next_heartbeat = Duration::from_millis(u64::from(next_millis).max(1));
                if sent == self.heartbeat_sent {
                    // The load reported with this heartbeat has been received.
                    self.load = (LoadCount::default(), sent);
                    self.latencies.told = ServedLatencies::default();
                }
                self.handle(Event::Lease { until });
            }
            MetaPush::Map(delta) => {
                self.handle(Event::Map(delta));
                if !self.replica.is_draining() {
                    self.sleep = Sleep::No;
                }
                // Once a lease has ended, the next one is granted only to a server that knows the map, so report the
                // version at once.
                if !self.replica.has_lease(clock::now()) {
                    self.send_heartbeat();
                }
            }
            MetaPush::Params(params) if !params.is_described_by(&self.about.params) => {
                let why = format!(
                    "the cluster was created with other parameters than in this configuration file: {}",
                    params.unlike(&self.about.params)
                );
                self.stop(Ended::Rejected { why });
            }
            MetaPush::Params(params) => self.join(params.instance),
            MetaPush::Drain => self.handle(Event::Drain),
            MetaPush::HandOver { groups } => self.handle(Event::HandOver { groups }),
            MetaPush::Superseded { known } => self.stop(Ended::Superseded { known }),
            MetaPush::Rejected { why, .. } => self.stop(Ended::Rejected { why }),
            MetaPush::Exam if self.examining.is_some() || self.ending => {}
            MetaPush::Exam => self.examining = Some(self.submit_own(Op::Flush)),
            MetaPush::Recall => {
                let recollection = Box::new(self.replica.recall());
                self.tell_metas(&ServerMessage::Recalls { server: self.about.me, recollection });
            }
        }
    }

    /// R11: the store serves only the founding of the cluster that it belongs to.
    fn join(&mut self, instance: u64) {
        let known = self.remembered.instance;
        if known != 0 && known != instance {
            let why = format!(
                "its directory belongs to instance {known:016x} of the cluster, and the metadata is of instance {instance:016x}: the cluster \
                 was created again. Start the metadata servers on their former directories; to give up this data, start the server on an \
                 empty one"
            );
            return self.stop(Ended::Rejected { why });
        }
        self.remembered.instance = instance;
        self.remember();
    }

    /// Makes the store remember metadata facts that are newer than its own; one such write is in flight at a time. Once
    /// a heartbeat, not with each map: a gear shift changes the map many times in a moment, and each write is three
    /// syncs that clients' writes wait for.
    fn remember(&mut self) {
        let map_version = self.replica.map().version;
        let known = self.remembered.map_version >= map_version;
        if self.remembering.is_some() || self.remembered.instance == 0 || known || self.ending {
            return;
        }
        self.remembered.map_version = map_version;
        self.remembering = Some(self.submit_own(Op::Remember(self.remembered)));
    }

    fn stop(&mut self, why: Ended) {
        self.ended = Some(why);
        self.stopping.notify_one();
    }
}

/// Puts the machine to sleep if it can be woken, or says why not.
async fn go_to_sleep(shared: Shared, order: SleepOrder) {
    let (own, depth) = (shared.borrow().about.own_machine.clone(), order.depth);
    let checked = machine::check(&own, depth).await;
    // Meanwhile it may have been told that it is awake.
    let wanted = shared.borrow().may_sleep(&order);
    let outcome = match (checked, depth) {
        (Ok(()), _) if !wanted => Ok(()),
        (Ok(()), Depth::Off) => {
            shared.borrow_mut().stop(Ended::PowerOff);
            Ok(())
        }
        (Ok(()), Depth::Standby) => {
            tracing::info!("the machine suspends");
            machine::sleep(&own, depth).await
        }
        (Err(why), _) => Err(why),
    };
    let mut server = shared.borrow_mut();
    server.going_to_sleep = false;
    if let Err(why) = outcome {
        tracing::warn!("the machine stays awake: {why}");
        server.refuse_sleep(&SleepRefusal { depth, why });
    }
}

/// The outcome as the core sees it; the log has the details of failures.
fn core_outcome(outcome: Outcome) -> StoreOutcome {
    match &outcome {
        Outcome::Failed(StoreError::NoSpace { .. }) => {}
        Outcome::Failed(error) => tracing::warn!("{error}"),
        _ => {}
    }
    outcome.into()
}
