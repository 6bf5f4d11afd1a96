//! The leader's decisions. Pure and volatile: they may be lost at any moment, and the next leader starts from the
//! state.
//!
//! Events change facts (which servers were heard, which hold leases, what they reported). Once per turn, at its
//! [`Event::Tick`], one planning step compares the facts with the [`State`] and proposes everything that follows as one
//! batch of commands, so all changes of a turn cost one round of consensus and many groups change under one command.
//! While a batch is in flight nothing new is planned: a plan always starts from a state in which the previous one has
//! taken effect.
//!
//! Invariants
//! - A server is called failed only when every lease that this leader or an earlier one may have granted it has ended
//!   (R2): `granted_until` of a grant is counted from the answer, later than where the server counts from, plus a
//!   margin; and a new leader first waits one whole lease ([`leading::Leading::trusted_from`]).
//! - Silence proves nothing while this process itself did not run: after a pause every server gets a whole lease to be
//!   heard again ([`Leading::watching`]).
//! - A power switch is thrown only after the state records it: asleep and failed are never confused.

mod admin;
pub(crate) mod by_server;
mod census;
mod dry_run;
mod duties;
mod event;
mod failure;
mod force;
pub(crate) mod gears;
mod give_up;
pub(crate) mod group;
pub(crate) mod hibernation;
mod latency;
pub(crate) mod leading;
pub(crate) mod liveness;
mod maintenance;
pub(crate) mod plan;
pub(crate) mod power;
mod power_test;
pub(crate) mod racks;
mod set_notes;
pub(crate) mod sets;
mod switch;
mod trial;
mod trust;
mod usage;
mod wake_times;
pub(crate) mod watch;
mod why;

use crate::controller::census::Census;
use crate::controller::failure::Failure;
use crate::controller::gears::Gears;
use crate::controller::latency::LatencySpan;
use crate::controller::leading::{DAMAGE_WAKES, Leading, Reports, Seen};
use crate::controller::liveness::Beat;
use crate::controller::wake_times::WakeTimes;
use crate::controller::watch::Watch;
use crate::{Command, PlantedBug, State, SwitchAction, Switches, Timing};

pub use dry_run::plan_after;
pub use event::{Event, Output};

use ebb_types::{
    ClusterStatus, Depth, Epoch, GroupId, Incarnation, MetaFailure, MetaReply, Moment, Notice, ServerEntry,
    ServerId, ServerMessage, ServerReport, ServerState, StoreMark,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The leader's decisions; on a follower it does nothing.
pub struct Controller {
    timing: Timing,
    switches: Switches,
    /// The newest store marks from servers' heartbeats, also those received while another member led.
    marks: BTreeMap<ServerId, StoreMark>,
    leading: Option<Leading>,
}

impl Controller {
    pub fn new(timing: Timing, switches: Switches) -> Controller {
        Controller { timing, switches, marks: BTreeMap::new(), leading: None }
    }

    pub fn on(&mut self, now: Moment, event: Event, state: &State, out: &mut Vec<Output>) {
        match event {
            Event::BecameLeader { unix_millis } => {
                self.leading = Some(Leading::new(self.timing, self.switches.clone(), now, unix_millis));
            }
            Event::LostLeadership => self.leading = None,
            _ => {}
        }
        self.remember(&event, state);
        let Some(leading) = &mut self.leading else { return };
        leading.begin_turn(now, state, out);
        if state.params().is_none() {
            // Nothing to lead yet. The lease that a new leader waits for counts from the creation of the cluster.
            (leading.since, leading.watching) = (now, now);
            if let Some(token) = event.token() {
                out.push(Output::Reply { token, reply: MetaReply::Failed(MetaFailure::NotCreated) });
            }
            return;
        }
        if leading.behind > 0 {
            if let Some(token) = event.token() {
                let why = Notice::WentBack { seen: leading.behind, own: state.version() };
                let reply = MetaReply::Failed(MetaFailure::Refused(why.to_string()));
                out.push(Output::Reply { token, reply });
            }
            return;
        }
        if leading.servers.len() < state.server_count() {
            leading.inherit(state, &self.marks);
        }
        leading.count(now, state);
        leading.gears.follow(now, state, leading.since, leading.unix_millis);
        match event {
            Event::Server(message) => leading.server_message(now, message, state, out),
            Event::Applied { own } => leading.applied(now, own, state, out),
            Event::Refused => leading.refused(now, state, out),
            Event::Switched { server, action, result } => leading.switched(now, server, action, result, out),
            Event::Admin { token, request } => leading.admin(now, token, request, state, out),
            Event::CreatePool { token, pool } => {
                out.push(Output::ProposeFor { token, command: Command::AddPool(pool) });
            }
            Event::Wake { token, set } => leading.wake(now, token, set, state, out),
            Event::Tick => leading.run(now, state, out),
            Event::BecameLeader { .. } | Event::LostLeadership => {}
        }
    }

    /// Remembers what stores have made durable: this member may become leader, or become it again (R11).
    fn remember(&mut self, event: &Event, state: &State) {
        if let Event::Server(ServerMessage::Heartbeat { server, incarnation, mark, .. }) = event
            && state.server(*server).is_some_and(|e| (e.incarnation, e.store) == (*incarnation, mark.store))
        {
            self.marks.insert(*server, *mark);
        }
    }

    /// The gear that this leader asks for; `None`: this member does not lead.
    pub fn gear(&self) -> Option<u8> {
        self.leading.as_ref().map(|l| l.gears.gear())
    }

    /// The servers that it wants awake for the load, without those that help (R8, R10, R13); empty: this member does
    /// not lead.
    pub fn awake(&self) -> BTreeSet<ServerId> {
        self.leading.as_ref().map(|l| l.gears.awake().clone()).unwrap_or_default()
    }

    /// What `ebb status` shows, but for what member and driver add; `None`: this member does not lead a cluster.
    pub fn status(&self, now: Moment, state: &State) -> Option<ClusterStatus> {
        let leading = self.leading.as_ref().filter(|leading| leading.behind == 0);
        leading.filter(|_| state.params().is_some()).map(|leading| leading.status(now, state))
    }

    /// How deep a server sleeps.
    pub fn depth(&self, server: ServerId) -> Option<Depth> {
        self.leading.as_ref()?.servers.get(&server)?.power.depth()
    }

    /// Whether a server is up although it was ordered to sleep: it refused, or the order had no effect.
    pub fn resists(&self, now: Moment, server: ServerId, state: &State) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.resists(now, server, state))
    }

    /// When [`Event::Tick`] is wanted; `None`: not before another event.
    pub fn next_wake(&self, state: &State) -> Option<Moment> {
        self.leading.as_ref().filter(|l| !l.in_flight && l.behind == 0).and_then(|l| l.next_wake(state))
    }
}

impl Leading {
    fn new(timing: Timing, switches: Switches, now: Moment, unix_millis: u64) -> Leading {
        Leading {
            timing,
            switches,
            since: now,
            watching: now,
            turn: now,
            unix_millis,
            servers: BTreeMap::new(),
            reports: Reports::default(),
            sets: BTreeMap::new(),
            resting: BTreeSet::new(),
            set_wakes: WakeTimes::default(),
            wakes: BTreeMap::new(),
            moves: BTreeMap::new(),
            gears: Gears::new(timing.sleep, timing.has(PlantedBug::ForgetDwell)),
            announced: 0,
            concerned: BTreeSet::new(),
            in_flight: false,
            dirty: true,
            emergency: false,
            short_of_room: false,
            relieves: BTreeMap::new(),
            wanted: BTreeSet::new(),
            insured: BTreeSet::new(),
            examinee: None,
            facts: Vec::new(),
            trial: None,
            behind: 0,
            witnessed: now,
            planned: Moment::ZERO,
            seen: Seen::default(),
            census: Census::default(),
            owed_since: BTreeMap::new(),
            latency: LatencySpan::new(now),
        }
    }

    /// Takes over servers and sets that this leader does not know: as an earlier leader left them, or those of a new
    /// pool.
    fn inherit(&mut self, state: &State, marks: &BTreeMap<ServerId, StoreMark>) {
        for entry in state.servers() {
            if self.servers.contains_key(&entry.id) {
                continue;
            }
            // As long as an action of this leader's may take.
            let until = self.since + self.ways(entry.id, state).limit;
            let live = self.servers.entry(entry.id).or_default();
            live.run = entry.incarnation;
            let heard = marks.get(&entry.id).filter(|mark| mark.store == entry.store);
            live.store = entry.store;
            live.position = state.position(entry.id).max(heard.map_or(0, |mark| mark.position));
            let ran = entry.incarnation != Incarnation(0);
            let depth = state.slept_depth(entry.id).unwrap_or(self.timing.depth);
            live.power.inherit(entry.state, ran, until, depth);
            live.failed = (entry.state == ServerState::Failed).then(|| Failure::new(self.since));
        }
        for (id, entry) in state.sets() {
            self.sets.entry(id).or_insert_with(|| Watch::new(self.since, entry, state, &self.timing));
        }
        debug_assert!(self.servers.len() >= state.server_count(), "else it is done again at each event");
        self.dirty = true;
    }

    /// Brings up to date what is known of all groups together, and since when servers are owed something. What sleepers
    /// were owed before this leader, they were owed from their sleep on; others as of now.
    fn count(&mut self, now: Moment, state: &State) {
        let first = self.census == Census::default();
        if !self.census.follow(state, &mut self.concerned) {
            return;
        }
        let unix_now = self.unix_now(now);
        let since = |id: ServerId| {
            let sleeps = |e: &&ServerEntry| matches!(e.state, ServerState::Asleep | ServerState::Waking);
            let entry = state.server(id).filter(|e| first && sleeps(e))?;
            Some(state.power(entry.id)?.slept?.at_unix_millis)
        };
        let mut before = std::mem::take(&mut self.owed_since);
        let one = |id| (id, before.remove(&id).or_else(|| since(id)).unwrap_or(unix_now));
        self.owed_since = self.census.owed().map(one).collect();
    }

    pub fn lease(&self, state: &State) -> Duration {
        Duration::from_millis(state.params().map_or(0, |p| u64::from(p.lease_millis)))
    }

    /// After this time no lease is valid, by the clock of this leader.
    pub fn longest_lease(&self, state: &State) -> Duration {
        self.lease(state) + self.timing.margin
    }

    /// From this moment on no lease of an earlier leader is valid.
    pub fn trusted_from(&self, state: &State) -> Moment {
        self.since + self.longest_lease(state)
    }

    /// From this moment on the server counts as failed: no lease of it is valid, and it has been silent for longer than
    /// is borne ([`ebb_types::Grace`]) to a leader that was listening. A server that sends heartbeats but has no lease
    /// yet (it must first learn the map) is not failed, unless it is condemned.
    pub fn fails_at(&self, server: ServerId, state: &State) -> Moment {
        let lease = self.longest_lease(state);
        let trusted = self.trusted_from(state);
        let Some(live) = self.servers.get(&server) else { return trusted.max(self.watching + lease) };
        let heard = self.watching.max(live.heard.unwrap_or(Moment::ZERO));
        let borne = live.grace.borne(self.turn, lease);
        let silent = if live.condemned { Moment::ZERO } else { heard + borne };
        live.granted_until.max(trusted).max(silent)
    }

    /// Detects that this process did not run for a while: [`Leading::next_wake`] would have called it.
    fn begin_turn(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let gap = now.since(self.turn);
        self.turn = now;
        if gap > self.timing.heartbeat * 2 && listens(state) {
            self.watching = now;
            self.reports.suspicions.clear();
            out.push(Output::Notice(Notice::StoodStill { millis: gap.as_millis() as u64 }));
        }
    }

    fn run(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let due = self.dirty || self.next_verdict(state).is_some_and(|at| at <= now);
        if self.in_flight || !due {
            return;
        }
        (self.dirty, self.planned) = (false, now);
        let commands = self.plan(now, state, out);
        self.throw_switches(now, state, out);
        if !commands.is_empty() {
            self.in_flight = true;
            out.push(Output::Propose(commands));
        }
    }

    /// The next moment at which time alone changes a verdict. Verdicts due at the last plan have been made. While a
    /// verdict on some server's silence is pending, a turn is due every heartbeat interval, so that a pause is noticed.
    fn next_wake(&self, state: &State) -> Option<Moment> {
        state.params()?;
        let due = if self.dirty { Some(self.turn) } else { self.next_verdict(state) };
        let listens = listens(state).then(|| self.turn + self.timing.heartbeat);
        due.into_iter().chain(listens).min()
    }

    fn next_verdict(&self, state: &State) -> Option<Moment> {
        state.params()?;
        let per_server = state.servers().filter_map(|entry| match entry.state {
            // What is borne shrinks with time, also to before the last plan: then that has not made this verdict.
            ServerState::Awake | ServerState::Draining => match self.fails_at(entry.id, state) {
                at if at <= self.planned => Some(self.planned + self.timing.heartbeat),
                at => Some(at),
            },
            ServerState::Waking | ServerState::Asleep | ServerState::Failed => {
                let retry = self.servers.get(&entry.id).and_then(|l| l.power.retry_at());
                retry.into_iter().chain(self.given_up_at(entry.id)).filter(|at| *at > self.planned).min()
            }
            ServerState::Lost => None,
        });
        let trusted = Some(self.trusted_from(state));
        let grown = self.servers.iter().any(|(id, live)| live.position > state.position(*id));
        let trusted = trusted.into_iter().chain(grown.then_some(self.witnessed + self.timing.witness));
        let mended = self.reports.damaged.values().map(|at| *at + DAMAGE_WAKES);
        let rest = state.sets().filter_map(|(id, entry)| self.rests_at(id, entry, state));
        let exam = state.servers().filter_map(|e| self.exam_due_at(e, state)).min();
        let exam = exam.map(|at| self.since + Duration::from_millis(at.saturating_sub(self.unix_millis)));
        let rest = rest.chain(exam).chain(self.test_due());
        per_server.chain(trusted).chain(mended).chain(rest).filter(|at| *at > self.planned).min()
    }

    fn server_message(&mut self, now: Moment, message: ServerMessage, state: &State, out: &mut Vec<Output>) {
        match message {
            ServerMessage::Heartbeat { server, incarnation, mark, sent, map_version, vitals } => {
                let vitals = *vitals;
                let beat = Beat { server, run: incarnation, mark, sent, map_version, vitals };
                self.heartbeat(now, beat, state, out);
            }
            ServerMessage::Reports { server, incarnation, reports } => {
                if state.server(server).is_some_and(|entry| entry.incarnation == incarnation) {
                    reports.into_iter().for_each(|report| self.report(now, server, report, state));
                }
            }
            ServerMessage::ReadyToSleep { server, incarnation, map_version } => {
                let draining = |e: &ebb_types::ServerEntry| {
                    e.incarnation == incarnation && e.state == ServerState::Draining
                };
                let of_this_drain = map_version >= state.server_changed(server);
                if of_this_drain && state.server(server).is_some_and(draining) {
                    let live = self.servers.entry(server).or_default();
                    self.dirty |= !std::mem::replace(&mut live.ready_to_sleep, true);
                }
            }
            ServerMessage::Exam { server, incarnation, exam } => {
                self.exam(now, server, incarnation, &exam, state);
            }
            // For a member that was rescued ([`crate::rescue`]).
            ServerMessage::Recalls { .. } => {}
        }
    }

    /// A report counts if it refers to the present epoch and comes from the server entitled to make it.
    fn report(&mut self, now: Moment, from: ServerId, report: ServerReport, state: &State) {
        let (ServerReport::CaughtUp { group, epoch }
        | ServerReport::Covered { group, epoch, .. }
        | ServerReport::Suspect { group, epoch, .. }
        | ServerReport::Damaged { group, epoch }
        | ServerReport::Owes { group, epoch }
        | ServerReport::Remembers { group, epoch }
        | ServerReport::Serving { group, epoch }
        | ServerReport::Released { group, epoch }) = report;
        if let Some(column) = group.column() {
            return self.report_of_column(now, from, column, &report, state);
        }
        let Some(entry) = state.group(group).filter(|entry| entry.epoch == epoch) else { return };
        let is_primary = entry.primary == Some(from);
        let fails = self.servers.get(&from).is_some_and(|live| live.condemned);
        match report {
            ServerReport::CaughtUp { .. } if entry.slot_of(from).is_some() => {
                self.reports.caught_up.insert((group, epoch, from));
            }
            ServerReport::Covered { stands_for, .. } if is_primary => {
                self.reports.covered.insert((group, epoch, stands_for));
            }
            ServerReport::Released { .. } if is_primary => {
                self.reports.released.insert(group, epoch);
            }
            // Under one that is about to fail nothing is ordered: what was complete before its epoch still is then.
            ServerReport::Serving { .. } if is_primary && !fails && !entry.stage().serves => {
                self.reports.serving.insert(group, epoch);
            }
            ServerReport::Damaged { .. } if is_primary => {
                self.reports.damaged.insert(group, now);
            }
            ServerReport::Suspect { server, .. }
                if is_primary && entry.members().any(|(m, _)| m == server) =>
            {
                self.suspect(now, from, server, state);
            }
            _ => return,
        }
        self.dirty = true;
    }

    fn applied(&mut self, now: Moment, own: bool, state: &State, out: &mut Vec<Output>) {
        if own {
            self.in_flight = false;
        }
        self.dirty = true;
        let current = |group: &GroupId, epoch: &Epoch| state.group(*group).is_some_and(|e| e.epoch == *epoch);
        self.reports.released.retain(|group, epoch| current(group, epoch));
        let waits = |group: &GroupId| state.group(*group).is_some_and(|e| !e.stage().serves);
        self.reports.serving.retain(|group, epoch| current(group, epoch) && waits(group));
        self.reports.caught_up.retain(|(group, epoch, _)| current(group, epoch));
        self.reports.covered.retain(|(group, epoch, _)| current(group, epoch));
        self.reports.columns.retain(|(set, epoch, _)| state.set(*set).is_some_and(|e| e.epoch == *epoch));
        self.reports.remembering.retain(|set, epoch| state.set(*set).is_some_and(|e| e.epoch == *epoch));
        self.moves.retain(|group, (epoch, _)| current(group, epoch));
        self.pay_owed_leases(now, state, out);
        self.push_maps(now, state, out);
    }

    /// The decided changes are still to be made, though nothing has changed since.
    fn refused(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        self.seen = Seen::default();
        self.applied(now, true, state, out);
    }

    fn switched(
        &mut self,
        now: Moment,
        server: ServerId,
        action: SwitchAction,
        result: Result<(), String>,
        out: &mut Vec<Output>,
    ) {
        if let Err(why) = &result {
            let (action, why) = (action.to_string(), why.clone());
            out.push(Output::Notice(Notice::SwitchFailed { server, action, why }));
        }
        let limit = self.timing.wake_limit;
        self.servers.entry(server).or_default().power.ended(now, action, result, limit);
        self.dirty = true;
    }
}

/// Whether any server's silence would mean something.
fn listens(state: &State) -> bool {
    state.servers().any(|e| e.state.is_live())
}
