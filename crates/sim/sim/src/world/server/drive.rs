//! What the program does around a chunk server's shell: start it, bring it what arrives, and carry out its commands.

use super::{Asker, Intake, Process, Server};
use crate::engine::{MILLI, SECOND};
use crate::world::brief::{brief_command, brief_event};
use crate::world::happening::{Happening, Message};
use crate::world::net::Node;
use crate::world::{Core, Delays, Disturb, Judge, World};
use ebb_chunkserver::shell::{About, Command, Ended, Event, Facts, News, OWN_TOKENS, Shell};
use ebb_chunkserver::{
    ClientToken, Config, Event as CoreEvent, Moves, Recovered, Replica, StoreCommand, StoreToken,
};
use ebb_store::mem::MemDisk;
use ebb_store::{Op, OpenError};
use ebb_types::{
    Bytes as Size, ClientReply, ExamReport, Refusal, ServerId, ServerMessage, ServerReport, ServerState,
    StoreFigures, StoreOutcome, StoreTask, Unready,
};
use std::collections::BTreeSet;

/// Start time of virtual worlds, in seconds since 1970.
const BEGINNING: u64 = 1_700_000_000;
/// After this long without requests the store's thread resumes deferred work, and after this long without writes it
/// records what was written.
const LULL: u64 = 5 * MILLI;
const QUIET: u64 = SECOND;

impl<H: Disturb + Judge + Delays> World<H> {
    pub fn server(&mut self, id: ServerId) -> &mut Server {
        self.servers.get_mut(&id).expect("servers are never removed")
    }

    /// Starts a process on the contents of its store.
    pub fn start_server(&mut self, id: ServerId) {
        let params = self.settings.params().clone();
        let crashes = H::crashes_at_start(self);
        let server = self.servers.get_mut(&id).expect("servers are never removed");
        if crashes {
            server.store.crash_at_start(&mut self.disk_random);
            self.note(|| format!("{id} crashes while it starts"));
            self.count("crash at a start");
            return self.after(100 * MILLI, Happening::Restart { server: id });
        }
        self.harness.configure(Core::Store(&mut server.store.config));
        let disk_fails = server.store.disk_fails();
        let (recovered, torn) = match server.store.open(&mut self.disk_random) {
            Ok(found) => found,
            Err(error) => return self.does_not_start(id, &error, disk_fails),
        };
        server.life += 1;
        server.incarnation = server.store.run;
        server.up = true;
        server.broken = false;
        server.process = Process::default();
        self.half_open.retain(|(from, _)| *from != id);
        let mut config =
            Config::new(id, server.incarnation, server.store.mark().store, params.chunk_bytes, params.groups);
        config.known_map = server.store.membership.map_version;
        config.scrub_period = self.settings.scrub_period;
        config.reclaim_within = self.settings.reclaim_within;
        config.remembered = self.settings.remembered;
        config.deletions = self.settings.deletions;
        config.waiting = self.settings.waiting;
        self.harness.configure(Core::Server(&mut config));
        let recovered = self.harness.recovered(id, recovered);
        let recovered = Recovered { scrubs: server.scrubs.clone(), ..recovered };
        let about = About {
            me: id,
            incarnation: server.incarnation,
            params,
            heartbeat: self.settings.timing.heartbeat,
            membership: server.store.membership,
        };
        server.shell = Shell::new(server.clock.at(self.now), about, Replica::new(config, recovered));
        let life = server.life;
        if torn {
            self.count("torn write cut off");
        }
        self.note(|| format!("{id} starts, run {life}"));
        self.set_beat(id, MILLI);
        H::started(self, id);
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
    pub fn store_was_used(&mut self, id: ServerId) {
        let server = self.server(id);
        let (life, writes) = (server.life, server.store.writes());
        self.after(LULL, Happening::Lull { server: id, life, writes, rest: false });
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
            return server.process.stalled.push(what);
        }
        if server.hung && is_of_the_disk(&what) {
            return server.process.stuck.push(what);
        }
        self.server_happening(id, what);
    }

    /// The process resumes: everything that arrived meanwhile is delivered at once, until it stands still again.
    pub fn go_on(&mut self, id: ServerId) {
        self.wakes_from_suspend(id);
        self.tell_space(id);
        let stalled = std::mem::take(&mut self.server(id).process.stalled);
        let life = self.server(id).life;
        for what in stalled {
            let server = self.server(id);
            match server.life == life {
                true if server.runs() => self.server_happening(id, what),
                true => server.process.stalled.push(what),
                false => {} // the process that it was for has ended
            }
        }
        self.read_inbox(id);
    }

    /// That a connection to another server broke is found by reading from it.
    fn server_happening(&mut self, id: ServerId, what: Happening) {
        let most = self.settings.inbox_bytes;
        let is_of_peer =
            matches!(what, Happening::Deliver { from: Node::Server(_), .. } | Happening::PeerLost { .. });
        let server = self.server(id);
        if is_of_peer && (!server.process.inbox.is_empty() || server.unwritten_bytes() > most) {
            server.process.inbox.push_back(what);
        } else {
            self.happens(id, what);
        }
        self.read_inbox(id);
    }

    /// Reads what other servers sent, as long as the store has not too much to write.
    fn read_inbox(&mut self, id: ServerId) {
        let most = self.settings.inbox_bytes;
        loop {
            let server = self.server(id);
            if !server.runs() || server.process.inbox.is_empty() {
                return;
            }
            if server.unwritten_bytes() > most {
                break;
            }
            let what = server.process.inbox.pop_front().expect("it is not empty");
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
                self.server(id).process.unwritten.remove(&write);
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
                let page = self.settings.page;
                let outcome = self.server(id).store.answer(Op::asked(command, page)).into();
                self.stored(id, token, outcome);
            }
            Happening::Checked { order, outcome, .. } => {
                self.shell_event(id, Event::Checked { order, outcome });
            }
            Happening::Tick { timer, .. } | Happening::Beat { timer, .. }
                if timer != self.server(id).timers => {}
            Happening::Tick { .. } => {
                self.server(id).process.tick_at = None;
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
                self.server(id).process.intake[kind].unread.push_back((asker, request, payload));
                self.take_in(id);
            }
            (Message::Order(order), _) => self.shell_event(id, Event::Order(order)),
            (Message::Push(push), _) => {
                self.shell_event(id, Event::Push(push));
                H::check_pushed(self, id);
            }
            (message, from) => unreachable!("{from:?} sends a server {message:?}"),
        }
    }

    /// Takes as many requests from the sockets as there is room for.
    fn take_in(&mut self, id: ServerId) {
        let most = self.settings.client_bytes;
        if std::mem::replace(&mut self.server(id).process.taking_in, true) {
            return;
        }
        loop {
            let server = self.server(id);
            let fits = |intake: &&mut Intake| {
                let first = intake.unread.front().map(|(asker, ..)| asker.bytes);
                first.is_some_and(|bytes| intake.bytes == 0 || intake.bytes + bytes <= most)
            };
            let Some(intake) = server.process.intake.iter_mut().find(fits) else { break };
            let Some((asker, request, payload)) = intake.unread.pop_front() else { break };
            intake.bytes += asker.bytes;
            server.next_token += 1;
            let token = ClientToken(server.next_token);
            server.process.tokens.insert(token, asker);
            self.server_event(id, CoreEvent::Client { token, request, payload });
        }
        self.server(id).process.taking_in = false;
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

    /// The operator uses the machine of a server that was declared lost again: on an empty directory, as its error
    /// message says.
    fn was_given_up(&mut self, id: ServerId) {
        let store = self.servers[&id].store.mark().store;
        let state = self.newest_state().server(id);
        if state.is_some_and(|e| e.state == ServerState::Lost && e.store == store) {
            self.note(|| format!("{id}: its directory is emptied"));
            self.server(id).store.replace(MemDisk::new());
        }
        self.after(100 * MILLI, Happening::Restart { server: id });
    }

    pub fn heartbeat(&mut self, id: ServerId) {
        let facts = self.facts(id);
        self.shell_event(id, Event::Beat(facts));
    }

    /// Slow is not hung: only a disk that answers nothing at all does not move.
    fn facts(&self, id: ServerId) -> Facts {
        let (server, store) = (&self.servers[&id], self.store_figures(id));
        let queued = self.harness.queued(id);
        let count = if server.hung { 0 } else { self.now };
        let moves = Moves { busy: !server.process.stuck.is_empty(), count, short: false };
        Facts { unix_seconds: self.unix_seconds(), store, queued, moves }
    }

    pub fn store_figures(&self, id: ServerId) -> StoreFigures {
        let (server, capacity) = (&self.servers[&id], Size(self.settings.capacity));
        let kept = || (0, server.store.own_bytes(), server.store.offload_bytes());
        let (used, own, offload) = self.harness.figures(id).unwrap_or_else(kept);
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
        for what in std::mem::take(&mut server.process.stuck) {
            if self.servers[&id].life == life {
                self.server_receives(id, what);
            }
        }
    }

    /// What the server says of itself. Sometimes its clock is wrong, until faults end.
    fn exam(&mut self, id: ServerId, writable: bool) {
        let wrong = H::exam_is_wrong(self);
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
        for member in 1..=self.settings.members {
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
        H::check_server(self, id);
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
                H::check_send(self, id, &message);
                self.send(Node::Server(id), Node::Server(to), Message::Peer { message, payload });
            }
            Command::Reply { token, reply, payload } => {
                let server = self.server(id);
                let asker = server.process.tokens.remove(&token);
                let Some(Asker { client, attempt, op, bytes, kind }) = asker else {
                    return self.fail("liveness", format!("{id} answers {token:?} twice"));
                };
                server.process.intake[kind].bytes -= bytes;
                if matches!(reply, ClientReply::Retry { why: Unready::Busy }) && !server.store.is_poisoned() {
                    self.count("request turned away");
                }
                H::check_reply(self, id, op, &reply);
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

    fn reported(&mut self, id: ServerId, report: &ServerReport) {
        self.count(name_of(report));
        H::check_report(self, id, report);
    }

    fn hear(&mut self, id: ServerId, news: News) {
        match news {
            News::OldMetadata { known, .. } if self.newest_map < known => {
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

    fn give_task(&mut self, id: ServerId, token: StoreToken, task: StoreTask) {
        if let StoreTask::Drop { group, role } = &task {
            H::check_drop(self, id, *group, *role);
        }
        H::give_task(self, id, token, task);
    }

    fn submit(&mut self, id: ServerId, token: StoreToken, command: StoreCommand) {
        H::check_submit(self, &command);
        H::submit(self, id, token, command);
    }
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
