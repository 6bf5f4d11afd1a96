//! A chunk server: the production protocol core over the production store, driven like the real server drives them.

use crate::search::brief::{brief_command, brief_event};
use crate::search::scenario::Scenario;
use crate::world::clock::{Clock, MILLI, SECOND};
use crate::world::net::Node;
use crate::world::standstill::Timers;
use crate::world::store::{Store, drop_of};
use crate::world::{Core, Happening, Message, World};
use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Moves, Recovered, Replica, Stall, StoreCommand, StoreToken,
};
use ebb_store::mem::MemDisk;
use ebb_store::{Membership, Op, OpenError};
use ebb_types::{
    ClientRequest, ClusterParams, Epoch, ExamReport, GroupId, Incarnation, MetaPush, Record, Role, ScrubMark,
    ServedLatencies, ServerId, ServerMessage, ServerReport, StoreId, Vitals,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Start time of virtual worlds, in seconds since 1970.
const BEGINNING: u64 = 1_700_000_000;
/// After this long without requests the store's thread resumes deferred work, and after this long without writes it
/// records what was written.
const LULL: u64 = 5 * MILLI;
const QUIET: u64 = SECOND;
/// Of a disk that is not full.
const CAPACITY: u64 = 1 << 40;
/// Starts per mille that crash, while faults are injected.
const CRASHES_AT_START: u64 = 80;

pub struct Server {
    pub id: ServerId,
    pub clock: Clock,
    /// Counts runs of the process.
    pub life: u64,
    pub incarnation: Incarnation,
    /// The process runs (it may be paused nevertheless).
    pub up: bool,
    /// Paused by a fault.
    pub paused: bool,
    /// Paused, or off, by the power switch.
    pub asleep: bool,
    /// Gone for good.
    pub lost: bool,
    /// Gone until everything is repaired.
    pub missing: bool,
    pub replica: Replica,
    pub store: Store,
    /// The operator's backup of the store's directory, which may be restored.
    pub backup: Option<MemDisk>,
    /// A fault damaged data that the store needs: the operator empties the directory when it does not start.
    pub broken: bool,
    /// The store on record when the directory was emptied or an older copy was restored.
    pub forgot: Option<StoreId>,
    /// Disk operations take this many times as long.
    pub slowness: u64,
    /// Its disk answers nothing; what it was asked waits.
    pub hung: bool,
    stuck: Vec<Happening>,
    stall: Stall,
    /// Scrub marks that it keeps across a restart.
    pub scrubs: Vec<ScrubMark>,
    /// The operator keeps the disk full.
    pub soft_full: bool,
    /// When its power switch has finished its present actions.
    pub switch_free: u64,
    /// The epoch of each group in the first map that includes this run.
    pub remembers_since: BTreeMap<GroupId, Epoch>,
    /// When its load count began.
    counted_since: u64,
    lease: Duration,
    map_gap: bool,
    /// A newer map is being written to the store.
    remembering: bool,
    pub ticking: bool,
    /// When its timers end, and which of them are not void.
    pub tick_at: u64,
    pub beat_at: u64,
    pub timers: u64,
    /// Suspended by a fault.
    pub frozen: Option<Timers>,
    tokens: BTreeMap<ClientToken, Asker>,
    next_token: u64,
    /// Clients' reads, and their writes.
    pub intake: [Intake; 2],
    taking_in: bool,
    /// Events that arrived while the process was paused.
    stalled: Vec<Happening>,
}

/// Who waits for an answer: client, number of its try and of its operation; and its share of which intake.
#[derive(Clone, Copy)]
struct Asker {
    client: u32,
    attempt: u64,
    op: usize,
    bytes: usize,
    kind: usize,
}

/// Client requests of one kind: those in flight, and those waiting in the sockets because there is no room for them.
#[derive(Default)]
pub struct Intake {
    bytes: usize,
    unread: VecDeque<(Asker, ClientRequest, Bytes)>,
}

impl Server {
    pub fn new(id: ServerId, clock: Clock, scenario: &Scenario) -> Server {
        let store = Store::new(id, scenario.store.clone(), scenario.chunk_blocks());
        let config = Config::new(id, Incarnation(0), StoreId(0), 0, 0);
        Server {
            id,
            clock,
            life: 0,
            incarnation: Incarnation(0),
            up: false,
            paused: false,
            asleep: false,
            lost: false,
            missing: false,
            replica: Replica::new(config, Recovered::default()),
            store,
            backup: None,
            broken: false,
            forgot: None,
            slowness: 1,
            hung: false,
            stuck: Vec::new(),
            stall: Stall::new(clock.at(0)),
            scrubs: Vec::new(),
            soft_full: false,
            switch_free: 0,
            remembers_since: BTreeMap::new(),
            counted_since: 0,
            lease: Duration::ZERO,
            map_gap: false,
            remembering: false,
            ticking: false,
            tick_at: 0,
            beat_at: 0,
            timers: 0,
            frozen: None,
            tokens: BTreeMap::new(),
            next_token: 0,
            intake: Default::default(),
            taking_in: false,
            stalled: Vec::new(),
        }
    }

    /// Whether its process makes progress.
    pub fn runs(&self) -> bool {
        self.up && !self.paused && !self.asleep
    }

    /// Whether its disk has paused so often that it is called hung only after more than a lease.
    pub fn is_patient(&self, now: u64) -> bool {
        self.stall.borne(self.clock.at(now), self.lease) > self.lease
    }

    /// Whether nothing is in progress on it but repairs and catching up, which never end for what no server has.
    pub fn repairs_at_most(&self) -> bool {
        let stats = self.replica.stats();
        let busy = stats.in_flight > 0 || stats.unsettled > 0 || self.replica.owes_committed();
        !busy && self.store.is_idle()
    }

    /// Whether nothing is in progress on it except perhaps a scrub.
    pub fn is_idle(&self) -> bool {
        let stats = self.replica.stats();
        let busy = stats.in_flight > 0 || stats.catching_up > 0 || self.replica.is_at_work();
        !busy && self.store.is_idle()
    }
}

impl World<'_> {
    pub fn server(&mut self, id: ServerId) -> &mut Server {
        self.servers.get_mut(&id).expect("servers are never removed")
    }

    /// Starts a process on the contents of its store.
    pub fn start_server(&mut self, id: ServerId) {
        let params: ClusterParams = self.scenario.params().clone();
        let configure = self.configure;
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        if self.stormy && self.disk_random.chance(CRASHES_AT_START) {
            server.store.crash_at_start(&mut self.disk_random);
            self.note(|| format!("{id} crashes while it starts"));
            self.count("crash at a start");
            return self.after(100 * MILLI, Happening::Restart { server: id });
        }
        configure(Core::Store(&mut server.store.config));
        let disk_fails = server.store.disk_fails();
        let (recovered, torn) = match server.store.open(&mut self.disk_random) {
            Ok(found) => found,
            Err(error) => return self.does_not_start(id, &error, disk_fails),
        };
        server.life += 1;
        server.incarnation = server.store.run;
        server.up = true;
        server.broken = false;
        server.ticking = false;
        server.frozen = None;
        self.half_open.retain(|(from, _)| *from != id);
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        server.remembering = false;
        server.tokens.clear();
        server.remembers_since.clear();
        (server.intake, server.taking_in) = (Default::default(), false);
        server.stalled.clear();
        server.stuck.clear();
        server.stall = Stall::new(server.clock.at(self.now));
        server.lease = Duration::from_millis(params.lease_millis.into());
        let mut config =
            Config::new(id, server.incarnation, server.store.mark().store, params.chunk_bytes, params.groups);
        config.known_map = server.store.membership.map_version;
        config.scrub_period = self.scenario.scrub_period;
        config.remembered = self.scenario.remembered;
        config.deletions = self.scenario.deletions;
        configure(Core::Server(&mut config));
        let recovered = self.modelled.as_ref().map_or(recovered, |models| models.recovered(id));
        let recovered = Recovered { scrubs: server.scrubs.clone(), ..recovered };
        server.replica = Replica::new(config, recovered);
        let life = server.life;
        if torn {
            self.count("torn write cut off");
        }
        self.note(|| format!("{id} starts, run {life}"));
        self.set_beat(id, MILLI);
        self.store_was_used(id);
        let full = self.server(id).soft_full;
        if full {
            self.server_event(id, Event::Space { full });
        }
    }

    /// The store cannot be opened. The operator does what the error message says.
    fn does_not_start(&mut self, id: ServerId, error: &OpenError, disk_fails: bool) {
        self.note(|| format!("{id} does not start: {error}"));
        self.count("store that does not open");
        let server = self.server(id);
        match error {
            OpenError::Io { .. } if disk_fails => {}
            _ if std::mem::take(&mut server.broken) => server.store.replace(MemDisk::new()),
            _ => {
                return self
                    .fail("R11", format!("nothing was done to {id}, and its store does not open: {error}"));
            }
        }
        self.after(200 * MILLI, Happening::Restart { server: id });
    }

    /// Deferred work resumes when the store has no other requests.
    fn store_was_used(&mut self, id: ServerId) {
        let server = self.server(id);
        let (life, writes) = (server.life, server.store.writes());
        if self.modelled.is_none() {
            self.after(LULL, Happening::Lull { server: id, life, writes, rest: false });
        }
    }

    fn store_idles(&mut self, id: ServerId, writes: u64, rest: bool) {
        let server = self.server(id);
        let life = server.life;
        if server.store.writes() != writes {
            return;
        }
        if rest {
            return server.store.rest();
        }
        let more = server.store.settle();
        let delay = if more { LULL } else { QUIET };
        self.after(delay, Happening::Lull { server: id, life, writes, rest: !more });
    }

    /// The store keeps the newest cluster map that the server has received, as of a heartbeat; one such write is in
    /// flight at a time.
    fn remember(&mut self, id: ServerId) {
        let instance = self.scenario.params().instance;
        let server = self.server(id);
        let (life, map_version) = (server.life, server.replica.map().version);
        if server.remembering || server.store.membership.map_version >= map_version {
            return;
        }
        server.remembering = true;
        let membership = Membership { instance, map_version };
        let delay = self.disk_delay(id);
        self.after(delay, Happening::Remember { server: id, life, membership });
    }

    /// Delivers an event to a server: now, when it resumes, or never.
    pub fn server_receives(&mut self, id: ServerId, what: Happening) {
        let server = self.server(id);
        let life = match &what {
            Happening::Deliver { .. } => server.life,
            Happening::PeerLost { life, .. }
            | Happening::Effect { life, .. }
            | Happening::Complete { life, .. }
            | Happening::Answer { life, .. }
            | Happening::Lull { life, .. }
            | Happening::Remember { life, .. }
            | Happening::Tick { life, .. }
            | Happening::Flushed { life, .. }
            | Happening::Unstalled { life, .. }
            | Happening::Beat { life, .. } => *life,
            _ => unreachable!("not for a server"),
        };
        if !server.up || life != server.life {
            if let Happening::Deliver { from, .. } = what {
                self.connection_breaks(from, Node::Server(id)); // the process is not running
            }
            return;
        }
        if !server.runs() {
            return server.stalled.push(what);
        }
        if server.hung && is_of_the_disk(&what) {
            return server.stuck.push(what);
        }
        self.server_happening(id, what);
    }

    /// The process resumes: everything that arrived meanwhile is delivered at once.
    pub fn go_on(&mut self, id: ServerId) {
        self.tell_space(id);
        let stalled = std::mem::take(&mut self.server(id).stalled);
        let life = self.server(id).life;
        for what in stalled {
            if self.server(id).runs() && self.server(id).life == life {
                self.server_happening(id, what);
            }
        }
    }

    fn server_happening(&mut self, id: ServerId, what: Happening) {
        match what {
            Happening::Deliver { from, message, .. } => self.server_message(id, from, message),
            Happening::PeerLost { life, peer, .. } => {
                self.breaking.remove(&(id, life, peer));
                self.half_open.remove(&(id, peer));
                self.server_event(id, Event::PeerLost { peer });
            }
            Happening::Effect { id: write, .. } => {
                self.server(id).store.carry_out(write);
                self.store_was_used(id);
                for (group, role) in self.server(id).store.take_not_dropped() {
                    self.count("drop without room for it");
                    self.server_event(id, Event::NotDropped { group, role });
                }
            }
            Happening::Lull { writes, rest, .. } => self.store_idles(id, writes, rest),
            Happening::Remember { membership, .. } => {
                let server = self.server(id);
                server.store.membership = membership;
                server.remembering = false;
                server.store.answer(Op::Remember(membership));
            }
            Happening::Complete { id: write, .. } => {
                if let Some((token, outcome)) = self.server(id).store.complete(write) {
                    self.server_event(id, Event::Stored { token, outcome });
                }
            }
            Happening::Answer { token, command, .. } => {
                let page = self.scenario.page;
                let outcome = self.server(id).store.answer(Op::asked(command, page)).into();
                self.server_event(id, Event::Stored { token, outcome });
            }
            Happening::Tick { timer, .. } | Happening::Beat { timer, .. }
                if timer != self.server(id).timers => {}
            Happening::Tick { .. } => {
                self.server(id).ticking = false;
                self.server_event(id, Event::Tick);
            }
            Happening::Flushed { map_version, .. } => {
                let server = self.server(id);
                server.store.carry_out(u64::MAX);
                server.store.answer(Op::Flush);
                let incarnation = server.incarnation;
                self.tell_members(id, ServerMessage::ReadyToSleep { server: id, incarnation, map_version });
            }
            Happening::Unstalled { .. } => {
                let now = self.now;
                let server = self.server(id);
                server.stall.flushed(server.clock.at(now));
                self.note(|| format!("the store of {id} moves again"));
            }
            Happening::Beat { .. } => {
                self.heartbeat(id);
                self.set_beat(id, self.scenario.timing.heartbeat.as_nanos() as u64);
            }
            _ => unreachable!("not for a server"),
        }
    }

    fn server_message(&mut self, id: ServerId, from: Node, message: Message) {
        match (message, from) {
            (Message::Peer { message, payload }, Node::Server(from)) => {
                // It came by another connection, by which this server answers.
                if self.half_open.remove(&(id, from)) {
                    self.server_event(id, Event::PeerLost { peer: from });
                }
                self.server_event(id, Event::Peer { from, message, payload });
            }
            (Message::Request { attempt, op, request, payload }, Node::Client(client)) => {
                let kind = usize::from(request.op.request().is_some());
                let bytes = request.op.range().1 as usize;
                let asker = Asker { client, attempt, op, bytes, kind };
                self.server(id).intake[kind].unread.push_back((asker, request, payload));
                self.take_in(id);
            }
            (Message::Push(push), _) => self.pushed(id, push),
            (message, from) => unreachable!("{from:?} sends a server {message:?}"),
        }
    }

    /// Takes as many requests from the sockets as there is room for.
    fn take_in(&mut self, id: ServerId) {
        let most = self.scenario.client_bytes;
        if std::mem::replace(&mut self.server(id).taking_in, true) {
            return;
        }
        loop {
            let server = self.server(id);
            let fits = |intake: &&mut Intake| {
                let first = intake.unread.front().map(|(asker, ..)| asker.bytes);
                first.is_some_and(|bytes| intake.bytes == 0 || intake.bytes + bytes <= most)
            };
            let Some(intake) = server.intake.iter_mut().find(fits) else { break };
            let Some((asker, request, payload)) = intake.unread.pop_front() else { break };
            intake.bytes += asker.bytes;
            server.next_token += 1;
            let token = ClientToken(server.next_token);
            server.tokens.insert(token, asker);
            self.server_event(id, Event::Client { token, request, payload });
        }
        self.server(id).taking_in = false;
    }

    fn pushed(&mut self, id: ServerId, push: MetaPush) {
        if push.is_late(self.server(id).incarnation) {
            return;
        }
        match push {
            MetaPush::Lease { incarnation, sent, .. } => {
                let now = self.now;
                let server = self.server(id);
                let until = server.replica.lease_end(server.clock.at(now), (incarnation, sent), server.lease);
                if let Some(until) = until {
                    self.server_event(id, Event::Lease { until });
                }
            }
            MetaPush::Map(delta) => {
                self.server_event(id, Event::Map(delta));
                self.server_begins_to_remember(id);
                let now = self.now;
                let server = self.server(id);
                if !server.replica.has_lease(server.clock.at(now)) {
                    self.heartbeat(id);
                }
            }
            MetaPush::Params(params) => {
                self.server(id).lease = Duration::from_millis(params.lease_millis.into());
            }
            MetaPush::Drain => self.server_event(id, Event::Drain),
            MetaPush::HandOver { groups } => self.server_event(id, Event::HandOver { groups }),
            MetaPush::Superseded { known } => {
                self.note(|| format!("{id} does not continue {known}: it takes a new identity"));
                self.count("store superseded");
                self.crash(id);
                self.server(id).store.supersede(known);
                self.after(100 * MILLI, Happening::Restart { server: id });
            }
            MetaPush::Exam => self.exam(id),
            MetaPush::Recall => {
                let recollection = Box::new(self.server(id).replica.recall());
                self.tell_members(id, ServerMessage::Recalls { server: id, recollection });
            }
            MetaPush::Rejected { why, .. } => {
                self.note(|| format!("{id} is rejected: {why}"));
                self.crash(id);
                self.was_given_up(id);
            }
        }
    }

    pub fn heartbeat(&mut self, id: ServerId) {
        let now = self.now;
        let store = &self.servers[&id].store;
        let (used_bytes, debt_bytes, queued) = match &self.modelled {
            Some(models) => models.figures(id),
            None => (0, store.offload_bytes(), 0),
        };
        // The operator keeps it full.
        let used_bytes = if self.servers[&id].soft_full { CAPACITY } else { used_bytes };
        let own_bytes = if self.modelled.is_some() { 0 } else { store.own_bytes() };
        if self.servers[&id].soft_full {
            self.server_event(id, Event::NoteCommits);
        }
        self.server_event(id, Event::Beat { unix_seconds: self.unix_seconds() });
        if self.modelled.is_none() {
            self.remember(id);
        }
        self.watch_store(id);
        let server = self.server(id);
        let stats = server.replica.stats();
        let vitals = Vitals {
            load: server.replica.take_load(),
            load_millis: ((now - std::mem::replace(&mut server.counted_since, now)) / MILLI) as u32,
            latencies: ServedLatencies::default(),
            used_bytes,
            capacity_bytes: CAPACITY,
            own_bytes,
            debt_bytes: debt_bytes + stats.memory_bytes,
            memory_bytes: stats.memory_bytes,
            in_flight: stats.in_flight + queued,
            catching_up: stats.catching_up,
            unsettled: stats.unsettled,
            offloaded_bytes: stats.offloaded_bytes,
            reclaimed_bytes: stats.reclaimed_bytes,
            repaired_blocks: stats.repaired_blocks,
            damage: stats.damage,
            scrub: stats.scrub,
            poisoned: stats.poisoned,
            stalled: server.stall.is_stalled(),
            bugs: stats.bugs,
        };
        let (incarnation, mark, sent) = (server.incarnation, server.store.mark(), server.clock.at(now));
        let map_version = if std::mem::take(&mut server.map_gap) { 0 } else { server.replica.map_version() };
        let vitals = Box::new(vitals);
        self.tell_members(
            id,
            ServerMessage::Heartbeat { server: id, incarnation, mark, sent, map_version, vitals },
        );
    }

    /// Slow is not hung: only a disk that answers nothing at all does not move.
    fn watch_store(&mut self, id: ServerId) {
        let now = self.now;
        let server = self.server(id);
        let busy = !server.stuck.is_empty();
        let moves = Moves { busy, count: if server.hung { 0 } else { now }, short: false };
        if server.stall.look(server.clock.at(now), moves, server.lease).is_some() {
            let life = server.life;
            self.note(|| format!("{id} notices that its disk hangs"));
            self.count("hung disk noticed");
            self.after(MILLI, Happening::Unstalled { server: id, life });
        }
    }

    /// The disk answers again, all at once.
    pub fn disk_moves_again(&mut self, id: ServerId) {
        let server = self.server(id);
        server.hung = false;
        let life = server.life;
        for what in std::mem::take(&mut server.stuck) {
            if self.servers[&id].life == life {
                self.server_receives(id, what);
            }
        }
    }

    /// What the server says of itself. Sometimes its clock is wrong, until faults end.
    fn exam(&mut self, id: ServerId) {
        let wrong = self.stormy && self.fault_random.chance(self.scenario.exam_fails);
        let unix_millis = self.unix_millis + self.now / MILLI + if wrong { 7_200_000 } else { 0 };
        let server = self.server(id);
        let (incarnation, writable) = (server.incarnation, !server.store.is_poisoned());
        let exam = ExamReport { unix_millis, writable, wake_on_lan: None };
        self.tell_members(id, ServerMessage::Exam { server: id, incarnation, exam });
    }

    /// Wall-clock time, the same on all servers.
    pub fn unix_seconds(&self) -> u64 {
        BEGINNING + self.now / SECOND
    }

    fn tell_members(&mut self, id: ServerId, message: ServerMessage) {
        for member in 1..=self.scenario.members {
            self.send(Node::Server(id), Node::Member(member), Message::ToMeta(message.clone()));
        }
    }

    pub fn server_event(&mut self, id: ServerId, event: Event) {
        if self.transcript.keep > 0
            && !matches!(
                event,
                Event::Tick | Event::Beat { .. } | Event::Lease { .. } | Event::Space { full: false }
            )
        {
            let text = brief_event(&event);
            self.note(|| format!("{id} <- {text}"));
        }
        let now = self.now;
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        let mut commands = Vec::new();
        server.replica.on(server.clock.at(now), event, &mut commands);
        if server.replica.wants_ticks() && !server.ticking {
            self.set_tick(id, ebb_chunkserver::TICK.as_nanos() as u64);
        }
        let answers = commands.iter().any(|c| matches!(c, Command::Reply { .. }));
        for command in commands {
            self.carry_out(id, command);
        }
        self.check_server(id);
        if answers {
            self.take_in(id);
        }
    }

    fn carry_out(&mut self, id: ServerId, command: Command) {
        if self.transcript.keep > 0
            && let Some(text) = brief_command(&command)
        {
            self.note(|| format!("{id} -> {text}"));
        }
        match command {
            Command::Send { to, message, payload } => {
                self.check_send(id, &message);
                self.send(Node::Server(id), Node::Server(to), Message::Peer { message, payload });
            }
            Command::Reply { token, reply, payload } => {
                let server = self.server(id);
                let Some(Asker { client, attempt, op, bytes, kind }) = server.tokens.remove(&token) else {
                    return self.fail("liveness", format!("{id} answers {token:?} twice"));
                };
                server.intake[kind].bytes -= bytes;
                self.check_reply(id, op, &reply);
                self.send(Node::Server(id), Node::Client(client), Message::Reply { attempt, reply, payload });
            }
            Command::Report(report) => self.report(id, report),
            Command::Store { token, command } => self.submit(id, token, command),
            Command::DropOffload { group, stands_for } => {
                self.drop_role(id, group, Role::Offload { stands_for });
            }
            Command::DropReplica { group } => {
                self.drop_role(id, group, Role::Replica);
            }
            Command::ForgetTombstones { group, up_to } => {
                if self.modelled.is_none() {
                    // No work for the disk.
                    let life = self.server(id).life;
                    let forget = Op::ForgetTombstones { group, up_to };
                    let forget = self.server(id).store.submit(None, forget);
                    self.after(MILLI, Happening::Effect { server: id, life, id: forget });
                }
            }
            Command::OldMetadata { known, .. } if self.invariants.newest_map < known => {
                self.fail("R11", format!("{id} has seen map {known}, and no metadata member has it"));
            }
            // From a member that led, was away, and does not know yet that another one leads.
            Command::OldMetadata { .. } => self.count("older map refused"),
            Command::Bug { group, what } => self.fail("an assertion", format!("{id}, {group}: {what}")),
            Command::KeepScrubs { marks } => self.server(id).scrubs = marks,
            Command::MapGap => {
                self.server(id).map_gap = true;
                self.heartbeat(id);
            }
            Command::ReadyToSleep { map_version } if self.modelled.is_some() => {
                self.flush_disk(id, map_version)
            }
            Command::ReadyToSleep { map_version } => {
                self.remember(id);
                let life = self.server(id).life;
                let delay = self.disk_delay(id);
                self.after(delay, Happening::Flushed { server: id, life, map_version });
            }
        }
    }

    fn report(&mut self, id: ServerId, report: ServerReport) {
        self.count(match report {
            ServerReport::CaughtUp { .. } => "replica caught up",
            ServerReport::Covered { .. } => "holder covered",
            ServerReport::Suspect { .. } => "suspicion",
            ServerReport::Released { .. } => "primary handed over",
            ServerReport::Damaged { .. } => "damage reported",
            ServerReport::Owes { .. } => "hibernation refused",
            ServerReport::Remembers { .. } => "epoch to forget deletions under",
            ServerReport::Serving { .. } => "epoch put on record",
        });
        let incarnation = self.server(id).incarnation;
        self.tell_members(id, ServerMessage::Reports { server: id, incarnation, reports: vec![report] });
    }

    fn disk_delay(&mut self, id: ServerId) -> u64 {
        let slowness = self.server(id).slowness;
        (self.disk_random.delay(self.scenario.disk) * slowness).min(4 * SECOND)
    }

    fn drop_role(&mut self, id: ServerId, group: GroupId, role: Role) {
        self.check_drop(id, group, role);
        match &mut self.modelled {
            Some(models) => models.drop_role(id, group, role),
            None => {
                let (delay, life) = (self.disk_delay(id), self.server(id).life);
                let drop = self.server(id).store.submit(None, drop_of(group, role));
                self.after(delay, Happening::Effect { server: id, life, id: drop });
            }
        }
    }

    fn submit(&mut self, id: ServerId, token: StoreToken, command: StoreCommand) {
        if self.modelled.is_some() {
            return self.submit_to_disk(id, token, command);
        }
        self.check_submit(&command);
        let (first, second) = (self.disk_delay(id), self.disk_delay(id));
        let life = self.server(id).life;
        if Self::record_of(&command).is_none() {
            return self.after(first, Happening::Answer { server: id, life, token, command });
        }
        let page = self.scenario.page;
        let write = self.server(id).store.submit(Some(token), Op::asked(command, page));
        let heard = self.disk_random.below(first);
        self.after(first + second, Happening::Effect { server: id, life, id: write });
        self.after(first + second + heard, Happening::Complete { server: id, life, id: write });
    }

    /// The record and bytes of a writing command.
    pub fn record_of(command: &StoreCommand) -> Option<(&Record, &Bytes)> {
        match command {
            StoreCommand::Apply { record, payload, .. } | StoreCommand::Repair { record, payload, .. } => {
                Some((record, payload))
            }
            _ => None,
        }
    }
}

/// Whether it waits for the disk.
fn is_of_the_disk(what: &Happening) -> bool {
    matches!(
        what,
        Happening::Effect { .. }
            | Happening::Complete { .. }
            | Happening::Answer { .. }
            | Happening::Lull { .. }
            | Happening::Remember { .. }
            | Happening::Flushed { .. }
            | Happening::Unstalled { .. }
    )
}
