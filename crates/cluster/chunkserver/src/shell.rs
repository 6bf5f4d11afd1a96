//! What a chunk server does around the protocol core: it remembers under which metadata it served (R11), says how it is
//! and asks for leases, notices a store that is full, hangs or moves again, answers exams, and decides when its machine
//! may sleep (R7).
//!
//! As pure as the core: [`Shell::on`] takes an event and adds commands. The program obeys them with sockets, the
//! store's thread and timers; the fault search with a virtual world. So the search runs what decides that a machine may
//! be switched off.
//!
//! | what | who |
//! |---|---|
//! | order, copies, offload, leases that count | [`Replica`] |
//! | when a machine may sleep | [`rest`] |
//! | load, latencies, the state in a heartbeat | [`vitals`] |
//! | whether the store moves | [`Stall`] |
//! | whether a metadata leader is heard | [`silence`] |
//! | how often it did what | [`actions`] |
//!
//! **Tokens.** Store tokens below [`OWN_TOKENS`] are the core's, those below [`EDGE_TOKENS`] the shell's; the rest is
//! for those who obey.

mod actions;
mod api;
mod rest;
mod silence;
mod vitals;

use crate::common::api::{self as core, StoreToken};
use crate::common::stall::Stall;
use crate::replica::Replica;
use actions::Actions;
pub use api::{About, Command, EDGE_TOKENS, Ended, Event, Facts, News, OWN_TOKENS};
use ebb_types::{
    GroupId, LoadCount, Membership, MetaPush, Moment, Refusal, Role, ServedLatencies, ServerMessage,
    SleepOrder, StoreFigures, StoreOutcome, StoreTask, Vitals,
};
use rest::Rest;
use silence::Silence;
use std::collections::BTreeMap;
use std::time::Duration;
use vitals::Count;

/// Share of the capacity beyond which no new client writes are accepted: the rest is reserved for work that must not
/// fail (R10).
const SOFT_LIMIT: f64 = 0.95;
/// Share of the capacity beyond which the store records what is on all targets as soon as nothing else does: it may
/// have no room to write that again after a crash.
const NOTE_LIMIT: f64 = 0.75;
const _: () = assert!(NOTE_LIMIT < SOFT_LIMIT && SOFT_LIMIT < 1.0);

/// What the shell waits for from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// As of this map version no server needs this one: the flush before sleep.
    Rest {
        map_version: u64,
    },
    /// The flush whose end shows that a store that hung has caught up.
    Stall,
    /// The flush that shows, for an exam, whether the store takes writes.
    Exam,
    /// The metadata's version is kept.
    Memory,
    Drop {
        group: GroupId,
        role: Role,
    },
    /// No outcome matters.
    Nothing,
}

pub struct Shell {
    about: About,
    lease: Duration,
    replica: Replica,
    /// The core's, while they are obeyed.
    commands: Vec<core::Command>,
    waits: BTreeMap<StoreToken, Wait>,
    next_token: u64,
    ticking: bool,
    full: bool,
    rest: Rest,
    count: Count,
    actions: Actions,
    heartbeat_sent: Moment,
    next_heartbeat: Duration,
    silence: Silence,
    map_gap: bool,
    /// What the store remembers of the metadata, or is about to.
    membership: Membership,
    /// The last attempt to have it remember failed.
    forgets: bool,
    stall: Stall,
    ended: bool,
    /// The process is about to end.
    ending: bool,
}

impl Shell {
    pub fn new(now: Moment, about: About, replica: Replica) -> Shell {
        Shell {
            lease: Duration::from_millis(about.params.lease_millis.into()),
            replica,
            commands: Vec::new(),
            waits: BTreeMap::new(),
            next_token: OWN_TOKENS,
            ticking: false,
            full: false,
            rest: Rest::default(),
            count: Count::new(now),
            actions: Actions::default(),
            heartbeat_sent: Moment::ZERO,
            next_heartbeat: about.heartbeat,
            silence: Silence::new(now),
            map_gap: false,
            membership: about.membership,
            forgets: false,
            stall: Stall::new(now),
            ended: false,
            ending: false,
            about,
        }
    }

    /// The core, to be looked at.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Time until the next heartbeat is due.
    pub fn heartbeat_interval(&self) -> Duration {
        self.next_heartbeat
    }

    /// Client load since the start.
    pub fn served(&self) -> LoadCount {
        self.count.served()
    }

    /// Of clients' requests, since the start.
    pub fn latencies(&self) -> ServedLatencies {
        self.count.latencies()
    }

    /// How often each kind of event came and of command followed, since the start.
    pub fn actions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.actions.counts()
    }

    /// Whether its disk has paused so often that it is called hung only after more than a lease.
    pub fn is_patient(&self, now: Moment) -> bool {
        self.stall.borne(now, self.lease) > self.lease
    }

    /// For a heartbeat, or for a scraper.
    pub fn vitals(&mut self, now: Moment, facts: &Facts) -> Vitals {
        let load = self.replica.take_load();
        self.count.vitals(now, load, self.replica.stats(), facts, self.stall.is_stalled())
    }

    pub fn on(&mut self, now: Moment, event: Event, out: &mut Vec<Command>) {
        let before = out.len();
        self.actions.took(&event);
        match event {
            Event::Core(event) => self.ask(now, event, out),
            Event::Stored { token, outcome } if token.0 < OWN_TOKENS => {
                self.pass(now, core::Event::Stored { token, outcome }, out);
            }
            Event::Stored { token, outcome } => self.stored(now, token, &outcome, out),
            Event::Space(figures) => self.watch_space(now, &figures, out),
            Event::Beat(facts) => self.beat(now, &facts, out),
            // A run that has ended obeys no more.
            Event::Push(_) if self.ended => {}
            Event::Push(push) => self.pushed(now, push, out),
            Event::Order(order) => {
                let may = self.may_sleep(now, &order);
                out.extend(self.rest.ordered(order, may));
            }
            Event::Checked { order, outcome } => {
                let may = self.may_sleep(now, &order);
                self.ended |= self.rest.checked(order, may, outcome, out);
            }
            Event::Suspended { order, outcome } => self.rest.suspended(order, outcome, out),
        }
        if self.replica.wants_ticks() && !self.ticking {
            self.ticking = true;
            out.push(Command::Tick);
        }
        out[before..].iter().for_each(|command| self.actions.gave(command));
    }

    /// An event of the core from outside.
    fn ask(&mut self, now: Moment, event: core::Event, out: &mut Vec<Command>) {
        let heartbeat = matches!(event, core::Event::ScrubAll);
        match event {
            core::Event::Client { token, .. } => self.count.asked(token, now),
            core::Event::Tick => self.ticking = false,
            // The others concern the core alone.
            _ => {}
        }
        self.pass(now, event, out);
        if heartbeat {
            out.push(Command::Heartbeat);
        }
    }

    /// Passes an event to the core, and what it commands on.
    fn pass(&mut self, now: Moment, event: core::Event, out: &mut Vec<Command>) {
        let mut commands = std::mem::take(&mut self.commands);
        self.replica.on(now, event, &mut commands);
        for command in commands.drain(..) {
            self.obey(now, command, out);
        }
        self.commands = commands;
    }

    fn obey(&mut self, now: Moment, command: core::Command, out: &mut Vec<Command>) {
        match command {
            core::Command::Send { to, message, payload } => out.push(Command::Send { to, message, payload }),
            core::Command::Reply { token, reply, payload } => {
                self.count.answered(token, &reply, now);
                out.push(Command::Reply { token, reply, payload });
            }
            core::Command::Store { token, command } => {
                debug_assert!(token.0 < OWN_TOKENS, "the shell knows its own by their numbers");
                out.push(Command::Store { token, command });
            }
            core::Command::Report(report) => {
                let (server, incarnation) = (self.about.me, self.about.incarnation);
                self.tell(ServerMessage::Reports { server, incarnation, reports: vec![report] }, out);
            }
            core::Command::Drop { group, role } => {
                self.task(Wait::Drop { group, role }, StoreTask::Drop { group, role }, out);
            }
            core::Command::ForgetTombstones { group, up_to } => {
                self.task(Wait::Nothing, StoreTask::ForgetTombstones { group, up_to }, out);
            }
            core::Command::KeepScrubs { marks } => out.push(Command::KeepScrubs { marks }),
            core::Command::MapGap => {
                self.map_gap = true;
                out.push(Command::Heartbeat);
            }
            core::Command::OldMetadata { known, offered } => {
                out.push(Command::Say(News::OldMetadata { known, offered }));
            }
            core::Command::Bug { group, what } => out.push(Command::Say(News::Bug { group, what })),
            core::Command::ReadyToSleep { map_version } => self.flush_before_rest(map_version, out),
        }
    }

    fn task(&mut self, wait: Wait, task: StoreTask, out: &mut Vec<Command>) {
        let token = StoreToken(self.next_token);
        self.next_token += 1;
        assert!(token.0 < EDGE_TOKENS, "tokens are not used up in a process's life");
        let before = self.waits.insert(token, wait);
        debug_assert!(before.is_none(), "a token is of one task");
        out.push(Command::Task { token, task });
    }

    fn awaits(&self, wanted: Wait) -> bool {
        self.waits.values().any(|wait| *wait == wanted)
    }

    /// The process's last heartbeat has left: a later one would be taken for the return of a server that is to wake.
    fn tell(&self, message: ServerMessage, out: &mut Vec<Command>) {
        if !self.ending {
            out.push(Command::Tell(message));
        }
    }

    fn stored(&mut self, now: Moment, token: StoreToken, outcome: &StoreOutcome, out: &mut Vec<Command>) {
        let failed = if let StoreOutcome::Failed(refusal) = outcome { Some(refusal) } else { None };
        match self.waits.remove(&token).expect("each command of the shell ends once") {
            // A drain is repeated, and so is a flush that failed.
            Wait::Rest { map_version } if failed.is_none() => {
                self.rest.flushed(map_version);
                self.say_that_it_rests(out);
            }
            Wait::Rest { .. } => {}
            Wait::Stall => {
                self.stall.flushed(now);
                out.push(Command::Say(News::Moves));
            }
            Wait::Exam if self.ending => {}
            Wait::Exam => out.push(Command::Exam { writable: failed.is_none() }),
            Wait::Memory => {
                let forgot = std::mem::replace(&mut self.forgets, failed.is_some());
                if let (Some(refusal), false) = (failed, forgot) {
                    out.push(Command::Say(News::Forgets(*refusal)));
                }
            }
            Wait::Drop { group, role } => {
                if let Some(Refusal::NoSpace | Refusal::NotReady) = failed {
                    self.pass(now, core::Event::NotDropped { group, role }, out);
                }
            }
            Wait::Nothing => {}
        }
    }

    fn watch_space(&mut self, now: Moment, figures: &StoreFigures, out: &mut Vec<Command>) {
        let full = figures.used.0 as f64 > figures.capacity.0 as f64 * SOFT_LIMIT;
        if full != self.full {
            self.full = full;
            if full {
                out.push(Command::Say(News::Full(figures.used, figures.capacity)));
            }
            self.pass(now, core::Event::Space { full }, out);
        }
    }

    fn beat(&mut self, now: Moment, facts: &Facts, out: &mut Vec<Command>) {
        self.pass(now, core::Event::Beat { unix_seconds: facts.unix_seconds }, out);
        self.watch_space(now, &facts.store, out);
        if facts.store.used.0 as f64 > facts.store.capacity.0 as f64 * NOTE_LIMIT && !self.ending {
            self.pass(now, core::Event::NoteCommits, out);
        }
        self.remember(out);
        self.watch_store(now, facts, out);
        out.extend(self.silence.pass(now).map(Command::Say));
        self.count.tell();
        let vitals = Box::new(self.vitals(now, facts));
        self.heartbeat_sent = now;
        let map_version = if std::mem::take(&mut self.map_gap) { 0 } else { self.replica.map_version() };
        let (server, incarnation, mark) = (self.about.me, self.about.incarnation, facts.store.mark);
        let heartbeat =
            ServerMessage::Heartbeat { server, incarnation, mark, sent: now, map_version, vitals };
        self.tell(heartbeat, out);
        self.say_that_it_rests(out);
    }

    /// A store that hangs would keep its groups waiting: such a server asks for no lease until all that waits is done.
    fn watch_store(&mut self, now: Moment, facts: &Facts, out: &mut Vec<Command>) {
        if let Some(still) = self.stall.look(now, facts.moves, self.lease) {
            out.push(Command::Say(News::Hangs(still, facts.store.not_now)));
            self.task(Wait::Stall, StoreTask::Flush, out);
        }
    }

    fn pushed(&mut self, now: Moment, push: MetaPush, out: &mut Vec<Command>) {
        // Only a leader says anything.
        out.extend(self.silence.heard(now).map(Command::Say));
        if push.is_late(self.about.incarnation) {
            return;
        }
        match push {
            MetaPush::Lease { incarnation, sent, next_millis } => {
                let Some(until) = self.replica.lease_end(now, (incarnation, sent), self.lease) else {
                    return;
                };
                self.next_heartbeat = Duration::from_millis(u64::from(next_millis).max(1));
                if sent == self.heartbeat_sent {
                    self.count.confirmed(sent);
                }
                self.pass(now, core::Event::Lease { until }, out);
            }
            MetaPush::Map(delta) => {
                self.pass(now, core::Event::Map(delta), out);
                if !self.replica.is_draining() {
                    self.stay_up();
                }
                // Once a lease has ended, the next one is granted only to a server that knows the map, so report the
                // version at once.
                if !self.replica.has_lease(now) {
                    out.push(Command::Heartbeat);
                }
            }
            MetaPush::Params(params) if !params.is_described_by(&self.about.params) => {
                let why = format!(
                    "the cluster was created with other parameters than in this configuration file: {}",
                    params.unlike(&self.about.params)
                );
                self.end_run(Ended::Rejected { why }, out);
            }
            MetaPush::Params(params) => self.join(params.instance, out),
            MetaPush::Drain => self.pass(now, core::Event::Drain, out),
            MetaPush::HandOver { groups } => self.pass(now, core::Event::HandOver { groups }, out),
            MetaPush::Superseded { known } => self.end_run(Ended::Superseded { known }, out),
            MetaPush::Rejected { why, .. } => self.end_run(Ended::Rejected { why }, out),
            MetaPush::Exam if self.awaits(Wait::Exam) || self.ending => {}
            MetaPush::Exam => self.task(Wait::Exam, StoreTask::Flush, out),
            MetaPush::Recall => {
                let recollection = Box::new(self.replica.recall());
                self.tell(ServerMessage::Recalls { server: self.about.me, recollection }, out);
            }
        }
    }

    /// R11: the store serves only the founding of the cluster that it belongs to.
    fn join(&mut self, instance: u64, out: &mut Vec<Command>) {
        let known = self.membership.instance;
        if known != 0 && known != instance {
            let why = format!(
                "its directory belongs to instance {known:016x} of the cluster, and the metadata is of instance {instance:016x}: the cluster \
                 was created again. Start the metadata servers on their former directories; to give up this data, start the server on an \
                 empty one"
            );
            return self.end_run(Ended::Rejected { why }, out);
        }
        self.membership.instance = instance;
        self.remember(out);
    }

    /// Makes the store remember metadata facts that are newer than its own; one such write is in flight at a time. Once
    /// a heartbeat, not with each map: a gear shift changes the map many times in a moment, and each write is three
    /// syncs that clients' writes wait for.
    fn remember(&mut self, out: &mut Vec<Command>) {
        let map_version = self.replica.map().version;
        let known = self.membership.map_version >= map_version;
        if self.awaits(Wait::Memory) || self.membership.instance == 0 || known || self.ending {
            return;
        }
        self.membership.map_version = map_version;
        self.task(Wait::Memory, StoreTask::Remember(self.membership), out);
    }

    /// Nothing depends on this server as of this map version.
    fn flush_before_rest(&mut self, map_version: u64, out: &mut Vec<Command>) {
        self.remember(out);
        self.stay_up();
        self.task(Wait::Rest { map_version }, StoreTask::Flush, out);
    }

    /// It is needed; a flush that was begun says nothing any more.
    fn stay_up(&mut self) {
        self.rest.is_needed();
        let flushes = self.waits.values_mut().filter(|wait| matches!(wait, Wait::Rest { .. }));
        flushes.for_each(|wait| *wait = Wait::Nothing);
    }

    /// Repeated with every heartbeat until the metadata service has heard it.
    fn say_that_it_rests(&mut self, out: &mut Vec<Command>) {
        if let Some(map_version) = self.rest.ready() {
            let (server, incarnation) = (self.about.me, self.about.incarnation);
            self.tell(ServerMessage::ReadyToSleep { server, incarnation, map_version }, out);
        }
    }

    /// R7: the last check before a server's own process puts its machine to sleep.
    fn may_sleep(&self, now: Moment, order: &SleepOrder) -> bool {
        self.rest.ready().is_some()
            && self.replica.may_sleep()
            && !self.ended
            && !self.ending
            && order.counts(self.about.incarnation, self.replica.map().version, now, self.lease)
    }

    fn end_run(&mut self, why: Ended, out: &mut Vec<Command>) {
        self.ended = true;
        out.push(Command::End(why));
    }

    /// The process's last action: nothing is told any more. Returns the token of the flush that comes last.
    pub fn end(&mut self, out: &mut Vec<Command>) -> StoreToken {
        self.remember(out);
        self.ending = true;
        self.task(Wait::Nothing, StoreTask::Flush, out);
        StoreToken(self.next_token - 1)
    }
}
