//! A chunk server: the production protocol core over the production store, driven like the real server drives them.

use crate::search::brief::{brief_command, brief_event};
use crate::search::scenario::Scenario;
use crate::engine::{Clock, MILLI, SECOND};
use crate::world::net::Node;
use crate::world::standstill::Timers;
use crate::world::store::Store;
use crate::world::{Core, Happening, Message, World};
use bytes::Bytes;
use ebb_chunkserver::shell::{About, Command, Ended, Event, Facts, News, OWN_TOKENS, Shell};
use ebb_chunkserver::{
    ClientToken, Config, Event as CoreEvent, Moves, Recovered, Replica, StoreCommand, StoreToken,
};
use ebb_store::mem::MemDisk;
use ebb_store::{Op, OpenError};
use ebb_types::{
    Bytes as Size, ClientReply, ClientRequest, ClusterParams, Epoch, ExamReport, GroupId, Incarnation,
    Record, Refusal, ScrubMark, ServerId, ServerMessage, ServerReport, SleepOrder, StoreFigures, StoreId,
    StoreOutcome, StoreTask, Unready,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Start time of virtual worlds, in seconds since 1970.
const BEGINNING: u64 = 1_700_000_000;
/// After this long without requests the store's thread resumes deferred work, and after this long without writes it
/// records what was written.
const LULL: u64 = 5 * MILLI;
const QUIET: u64 = SECOND;
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
    /// It has suspended its own machine, and does not know yet that that is awake again.
    pub suspended: Option<SleepOrder>,
    /// Gone for good.
    pub lost: bool,
    /// Gone until everything is repaired.
    pub missing: bool,
    pub shell: Shell,
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
    /// Scrub marks that it keeps across a restart.
    pub scrubs: Vec<ScrubMark>,
    /// The operator keeps the disk full.
    pub soft_full: bool,
    /// When its power switch has finished its present actions.
    pub switch_free: u64,
    /// The epoch of each group in the first map that includes this run.
    pub remembers_since: BTreeMap<GroupId, Epoch>,
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
    /// What other servers' connections have brought, unread: the store has too much to write.
    inbox: VecDeque<Happening>,
    /// The bytes of each write that the store has not completed.
    unwritten: BTreeMap<u64, usize>,
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
        Server {
            id,
            clock,
            life: 0,
            incarnation: Incarnation(0),
            up: false,
            paused: false,
            asleep: false,
            suspended: None,
            lost: false,
            missing: false,
            shell: stopped(id, clock, scenario),
            store,
            backup: None,
            broken: false,
            forgot: None,
            slowness: 1,
            hung: false,
            stuck: Vec::new(),
            scrubs: Vec::new(),
            soft_full: false,
            switch_free: 0,
            remembers_since: BTreeMap::new(),
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
            inbox: VecDeque::new(),
            unwritten: BTreeMap::new(),
        }
    }

    pub fn replica(&self) -> &Replica {
        self.shell.replica()
    }

    fn unwritten_bytes(&self) -> usize {
        self.unwritten.values().sum()
    }

    /// Whether a message of another one lies unread here.
    pub fn has_unread(&self, peer: ServerId) -> bool {
        self.senders().any(|from| from == peer)
    }

    fn senders(&self) -> impl Iterator<Item = ServerId> {
        self.inbox.iter().filter_map(|what| match what {
            Happening::Deliver { from: Node::Server(peer), .. } => Some(*peer),
            _ => None,
        })
    }

    /// Whether its process makes progress.
    pub fn runs(&self) -> bool {
        self.up && !self.paused && !self.asleep
    }

    /// Whether its disk has paused so often that it is called hung only after more than a lease.
    pub fn is_patient(&self, now: u64) -> bool {
        self.shell.is_patient(self.clock.at(now))
    }

    /// Whether nothing is in progress on it but repairs and catching up, which never end for what no server has.
    pub fn repairs_at_most(&self) -> bool {
        let stats = self.replica().stats();
        let busy = stats.in_flight > 0 || stats.unsettled > 0 || self.replica().owes_committed();
        !busy && self.store.is_idle() && self.inbox.is_empty()
    }

    /// Whether nothing is in progress on it except perhaps a scrub.
    pub fn is_idle(&self) -> bool {
        let stats = self.replica().stats();
        let busy = stats.in_flight > 0 || stats.catching_up > 0 || self.replica().is_at_work();
        !busy && self.store.is_idle() && self.inbox.is_empty()
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
        (server.frozen, server.suspended) = (None, None);
        self.half_open.retain(|(from, _)| *from != id);
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        server.tokens.clear();
        server.remembers_since.clear();
        (server.intake, server.taking_in) = (Default::default(), false);
        server.stalled.clear();
        server.stuck.clear();
        server.inbox.clear();
        server.unwritten.clear();
        let mut config =
            Config::new(id, server.incarnation, server.store.mark().store, params.chunk_bytes, params.groups);
        config.known_map = server.store.membership.map_version;
        config.scrub_period = self.scenario.scrub_period;
        config.reclaim_within = self.scenario.reclaim_within;
        config.remembered = self.scenario.remembered;
        config.deletions = self.scenario.deletions;
        config.waiting = self.scenario.waiting;
        configure(Core::Server(&mut config));
        let recovered = self.modelled.as_ref().map_or(recovered, |models| models.recovered(id));
        let recovered = Recovered { scrubs: server.scrubs.clone(), ..recovered };
        let about = About {
            me: id,
            incarnation: server.incarnation,
            params,
            heartbeat: self.scenario.timing.heartbeat,
            membership: server.store.membership,
        };
        server.shell = Shell::new(server.clock.at(self.now), about, Replica::new(config, recovered));
        let life = server.life;
        if torn {
            self.count("torn write cut off");
        }
        self.note(|| format!("{id} starts, run {life}"));
        self.set_beat(id, MILLI);
        self.store_was_used(id);
        if self.server(id).soft_full {
            self.tell_space(id);
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
            | Happening::Task { life, .. }
            | Happening::Checked { life, .. }
            | Happening::Tick { life, .. }
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

    /// The process resumes: everything that arrived meanwhile is delivered at once, until it stands still again.
    pub fn go_on(&mut self, id: ServerId) {
        self.wakes_from_suspend(id);
        self.tell_space(id);
        let stalled = std::mem::take(&mut self.server(id).stalled);
        let life = self.server(id).life;
        for what in stalled {
            let server = self.server(id);
            match server.life == life {
                true if server.runs() => self.server_happening(id, what),
                true => server.stalled.push(what),
                false => {} // the process that it was for has ended
            }
        }
        self.read_inbox(id);
    }

    /// That a connection to another server broke is found by reading from it.
    fn server_happening(&mut self, id: ServerId, what: Happening) {
        let most = self.scenario.inbox_bytes;
        let is_of_peer =
            matches!(what, Happening::Deliver { from: Node::Server(_), .. } | Happening::PeerLost { .. });
        let server = self.server(id);
        if is_of_peer && (!server.inbox.is_empty() || server.unwritten_bytes() > most) {
            server.inbox.push_back(what);
        } else {
            self.happens(id, what);
        }
        self.read_inbox(id);
    }

    /// Reads what other servers sent, as long as the store has not too much to write.
    fn read_inbox(&mut self, id: ServerId) {
        let most = self.scenario.inbox_bytes;
        loop {
            let server = self.server(id);
            if !server.runs() || server.inbox.is_empty() {
                return;
            }
            if server.unwritten_bytes() > most {
                break;
            }
            let what = server.inbox.pop_front().expect("it is not empty");
            self.happens(id, what);
        }
        self.count("server that reads no other one");
        let waiting: BTreeSet<ServerId> = self.server(id).senders().collect();
        for peer in waiting {
            self.server_event(id, CoreEvent::Unread { peer });
        }
    }

    fn happens(&mut self, id: ServerId, what: Happening) {
        match what {
            Happening::Deliver { from, message, .. } => self.server_message(id, from, message),
            Happening::PeerLost { life, peer, .. } => {
                self.breaking.remove(&(id, life, peer));
                self.half_open.remove(&(id, peer));
                self.server_event(id, CoreEvent::PeerLost { peer });
            }
            Happening::Effect { id: write, .. } => {
                self.server(id).store.carry_out(write);
                self.store_was_used(id);
            }
            Happening::Lull { writes, rest, .. } => self.store_idles(id, writes, rest),
            Happening::Complete { id: write, .. } => {
                self.server(id).unwritten.remove(&write);
                if let Some((token, outcome)) = self.server(id).store.complete(write) {
                    self.stored(id, token, outcome);
                }
            }
            Happening::Task { token, task, .. } => {
                if matches!(task, StoreTask::Flush) {
                    self.server(id).store.carry_out(u64::MAX);
                }
                let outcome = self.server(id).store.answer(task.into()).into();
                self.stored(id, token, outcome);
            }
            Happening::Answer { token, command, .. } => {
                let page = self.scenario.page;
                let outcome = self.server(id).store.answer(Op::asked(command, page)).into();
                self.stored(id, token, outcome);
            }
            Happening::Checked { order, outcome, .. } => {
                self.shell_event(id, Event::Checked { order, outcome });
            }
            Happening::Tick { timer, .. } | Happening::Beat { timer, .. }
                if timer != self.server(id).timers => {}
            Happening::Tick { .. } => {
                self.server(id).ticking = false;
                self.server_event(id, CoreEvent::Tick);
            }
            Happening::Beat { .. } => {
                self.heartbeat(id);
                let next = self.servers[&id].shell.heartbeat_interval();
                self.set_beat(id, next.as_nanos() as u64);
            }
            _ => unreachable!("not for a server"),
        }
    }

    fn server_message(&mut self, id: ServerId, from: Node, message: Message) {
        match (message, from) {
            (Message::Peer { message, payload }, Node::Server(from)) => {
                // It came by another connection, by which this server answers.
                if self.half_open.remove(&(id, from)) {
                    self.server_event(id, CoreEvent::PeerLost { peer: from });
                }
                self.server_event(id, CoreEvent::Peer { from, message, payload });
            }
            (Message::Request { attempt, op, request, payload }, Node::Client(client)) => {
                let kind = usize::from(request.op.request().is_some());
                let bytes = request.op.range().1 as usize;
                let asker = Asker { client, attempt, op, bytes, kind };
                self.server(id).intake[kind].unread.push_back((asker, request, payload));
                self.take_in(id);
            }
            (Message::Order(order), _) => self.shell_event(id, Event::Order(order)),
            (Message::Push(push), _) => {
                self.shell_event(id, Event::Push(push));
                self.server_begins_to_remember(id);
            }
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
            self.server_event(id, CoreEvent::Client { token, request, payload });
        }
        self.server(id).taking_in = false;
    }

    /// The run is over, before its process is asked to end.
    fn run_ends(&mut self, id: ServerId, why: Ended) {
        match why {
            Ended::Superseded { known } => {
                self.note(|| format!("{id} does not continue {known}: it takes a new identity"));
                self.count("store superseded");
                self.crash(id);
                self.server(id).store.supersede(known);
                self.after(100 * MILLI, Happening::Restart { server: id });
            }
            Ended::Rejected { why } => {
                self.note(|| format!("{id} is rejected: {why}"));
                self.crash(id);
                self.was_given_up(id);
            }
            Ended::PowerOff => self.power_itself_off(id),
        }
    }

    pub fn heartbeat(&mut self, id: ServerId) {
        let facts = self.facts(id);
        self.shell_event(id, Event::Beat(facts));
    }

    /// Slow is not hung: only a disk that answers nothing at all does not move.
    fn facts(&self, id: ServerId) -> Facts {
        let (server, store) = (&self.servers[&id], self.store_figures(id));
        let queued = self.modelled.as_ref().map_or(0, |models| models.queued(id));
        let count = if server.hung { 0 } else { self.now };
        let moves = Moves { busy: !server.stuck.is_empty(), count, short: false };
        Facts { unix_seconds: self.unix_seconds(), store, queued, moves }
    }

    pub fn store_figures(&self, id: ServerId) -> StoreFigures {
        let (server, capacity) = (&self.servers[&id], Size(self.scenario.capacity));
        let (used, own, offload) = match &self.modelled {
            Some(models) => models.figures(id),
            None => (0, server.store.own_bytes(), server.store.offload_bytes()),
        };
        StoreFigures {
            used: if server.soft_full { capacity } else { Size(used) },
            capacity,
            own: Size(own),
            offload: Size(offload),
            poisoned: server.store.is_poisoned(),
            not_now: None,
            mark: server.store.mark(),
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
    fn exam(&mut self, id: ServerId, writable: bool) {
        let wrong = self.stormy && self.fault_random.chance(self.scenario.exam_fails);
        let unix_millis = self.unix_millis + self.now / MILLI + if wrong { 7_200_000 } else { 0 };
        let incarnation = self.server(id).incarnation;
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

    pub fn server_event(&mut self, id: ServerId, event: CoreEvent) {
        self.shell_event(id, Event::Core(event));
    }

    /// The store has answered.
    pub fn stored(&mut self, id: ServerId, token: StoreToken, outcome: StoreOutcome) {
        if token.0 >= OWN_TOKENS && matches!(outcome, StoreOutcome::Failed(Refusal::NoSpace)) {
            self.count("drop without room for it");
        }
        self.shell_event(id, Event::Stored { token, outcome });
    }

    pub fn shell_event(&mut self, id: ServerId, event: Event) {
        if self.transcript.keep > 0
            && let Some(text) = brief_event(&event)
        {
            self.note(|| format!("{id} <- {text}"));
        }
        let now = self.now;
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        let (life, mut commands) = (server.life, Vec::new());
        server.shell.on(server.clock.at(now), event, &mut commands);
        let answers = commands.iter().any(|c| matches!(c, Command::Reply { .. }));
        for command in commands {
            // One of them may have ended the run.
            if self.servers[&id].up && self.servers[&id].life == life {
                self.carry_out(id, command);
            }
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
                if matches!(reply, ClientReply::Retry { why: Unready::Busy }) && !server.store.is_poisoned() {
                    self.count("request turned away");
                }
                self.check_reply(id, op, &reply);
                self.send(Node::Server(id), Node::Client(client), Message::Reply { attempt, reply, payload });
            }
            Command::Store { token, command } => self.submit(id, token, command),
            Command::Task { token, task } => self.give_task(id, token, task),
            Command::Tell(message) => {
                if let ServerMessage::Reports { reports, .. } = &message {
                    reports.iter().for_each(|report| self.reported(id, report));
                }
                self.tell_members(id, message);
            }
            Command::Exam { writable } => self.exam(id, writable),
            Command::Tick => self.set_tick(id, ebb_chunkserver::TICK.as_nanos() as u64),
            Command::Heartbeat => self.heartbeat(id),
            Command::KeepScrubs { marks } => self.server(id).scrubs = marks,
            Command::Say(news) => self.hear(id, news),
            Command::End(why) => self.run_ends(id, why),
            Command::Check(order) => self.check_machine(id, order),
            Command::Suspend(order) => self.suspend_itself(id, order),
            Command::Refuse(refusal) => self.refuse_to_sleep(id, &refusal),
        }
    }

    /// R12: slow is not failed, and who cannot read is not one who hears nothing. A store that says that it failed is
    /// reported, too.
    fn reported(&mut self, id: ServerId, report: &ServerReport) {
        self.count(name_of(report));
        let may_have_failed = self.scenario.faults.poison > 0;
        if let ServerReport::Suspect { server, .. } = report
            && self.servers[&id].has_unread(*server)
            && !may_have_failed
        {
            self.fail("R12", format!("{id} reports {server} as silent, and has not read what it sent"));
        }
    }

    fn hear(&mut self, id: ServerId, news: News) {
        match news {
            News::OldMetadata { known, .. } if self.invariants.newest_map < known => {
                self.fail("R11", format!("{id} has seen map {known}, and no metadata member has it"));
            }
            // From a member that led, was away, and does not know yet that another one leads.
            News::OldMetadata { .. } => self.count("older map refused"),
            News::Bug { group, what } => self.fail("an assertion", format!("{id}, {group}: {what}")),
            News::Hangs(..) => {
                self.note(|| format!("{id} notices that its disk hangs"));
                self.count("hung disk noticed");
            }
            News::Moves => self.note(|| format!("the store of {id} moves again")),
            News::Silent(_) => self.count("server that hears no leader"),
            _ => {}
        }
    }

    fn disk_delay(&mut self, id: ServerId) -> u64 {
        let slowness = self.server(id).slowness;
        (self.disk_random.delay(self.scenario.disk) * slowness).min(4 * SECOND)
    }

    fn give_task(&mut self, id: ServerId, token: StoreToken, task: StoreTask) {
        if let StoreTask::Drop { group, role } = &task {
            self.check_drop(id, *group, *role);
        }
        if self.modelled.is_some() {
            return self.give_task_to_disk(id, token, task);
        }
        let life = self.server(id).life;
        // No work for the disk.
        let is_light = matches!(task, StoreTask::ForgetTombstones { .. });
        let delay = if is_light { MILLI } else { self.disk_delay(id) };
        let happening = match task {
            StoreTask::Drop { .. } | StoreTask::ForgetTombstones { .. } => {
                let id_of_write = self.server(id).store.submit(token, task.into());
                Happening::Complete { server: id, life, id: id_of_write }
            }
            StoreTask::Remember(_) | StoreTask::Flush => Happening::Task { server: id, life, token, task },
        };
        self.after(delay, happening);
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
        let bytes = Self::record_of(&command).map_or(0, |(_, payload)| payload.len());
        let write = self.server(id).store.submit(token, Op::asked(command, page));
        self.server(id).unwritten.insert(write, bytes);
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

/// The shell of a process that does not run.
fn stopped(id: ServerId, clock: Clock, scenario: &Scenario) -> Shell {
    let about = About {
        me: id,
        incarnation: Incarnation(0),
        params: scenario.params().clone(),
        heartbeat: Duration::ZERO,
        membership: Default::default(),
    };
    let config = Config::new(id, Incarnation(0), StoreId(0), 0, 0);
    Shell::new(clock.at(0), about, Replica::new(config, Recovered::default()))
}

fn name_of(report: &ServerReport) -> &'static str {
    match report {
        ServerReport::CaughtUp { .. } => "replica caught up",
        ServerReport::Covered { .. } => "holder covered",
        ServerReport::Suspect { .. } => "suspicion",
        ServerReport::Released { .. } => "primary handed over",
        ServerReport::Damaged { .. } => "damage reported",
        ServerReport::Owes { .. } => "hibernation refused",
        ServerReport::Remembers { .. } => "epoch to forget deletions under",
        ServerReport::Serving { .. } => "epoch put on record",
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
            | Happening::Task { .. }
    )
}
