//! The leader's memory, by its owners, and its turns: when it plans.
//!
//! | owner | what it alone changes |
//! |---|---|
//! | [`Term`] | since when this member leads, the time of day then |
//! | [`Liveness`] | who was heard, is suspected, failed or shunned; until when leases are granted; what silence is borne |
//! | [`Runs`] | which run of which store speaks for each server, how far it reached, when that was recorded |
//! | [`Figures`] | what servers say of themselves: vitals, room, latencies |
//! | [`Maps`] | which map each server was sent, whom a change concerns, whether servers know a newer one |
//! | [`Power`] | switches, wake times, who is ready to sleep, exams, the power test, what is to be recorded of them |
//! | [`Groups`] | reports about chunk groups, damage, moves of primaries, the census, what the last plan saw |
//! | [`Relocations`] | which slots are still to move, and whether all have their shares |
//! | [`Sets`] | the memory of each erasure-coded set, reports about columns, how long sets took to wake |
//! | [`Gears`] | which servers the load needs, the shift in progress, hours that ended |
//! | [`Wants`] | what the last plan wants awake, and what for beyond the load; replaced by each plan |
//! | [`Leading`] | turns: whether facts changed, when it planned, whether a batch is in flight |
//!
//! Who needs a fact asks its owner, and who has news tells it; fields are private. No owner knows another one: what one
//! needs of another is passed to it. The files that pass it on: `heartbeat` and `messages` (what arrives), `plan` with
//! `plan_sets` (what follows), `power_test`, `admin` (what is asked).

use crate::controller::event::Output;
use crate::controller::figures::Figures;
use crate::controller::gears::Gears;
use crate::controller::groups::Groups;
use crate::controller::liveness::Liveness;
use crate::controller::maps::Maps;
use crate::controller::power::Power;
use crate::controller::relocation::Relocations;
use crate::controller::runs::Runs;
use crate::controller::sets::Sets;
use crate::controller::switch::Switch;
use crate::controller::term::{Term, lease};
use crate::controller::wants::Wants;
use crate::{PlantedBug, State, Switches, Timing};
use ebb_types::{Moment, Notice, ServerId, ServerState, StoreMark};
use std::collections::BTreeMap;

pub(crate) struct Leading {
    pub term: Term,
    pub liveness: Liveness,
    pub runs: Runs,
    pub figures: Figures,
    pub maps: Maps,
    pub power: Power,
    pub groups: Groups,
    pub relocations: Relocations,
    pub sets: Sets,
    pub gears: Gears,
    pub wants: Wants,
    /// [`State::roster`] when servers were taken over last.
    roster: Option<u64>,
    /// Facts changed since the last plan.
    pub dirty: bool,
    turn: Moment,
    /// When the last plan was made.
    planned: Moment,
    /// A batch has been proposed and is not applied yet.
    in_flight: bool,
}

impl Leading {
    pub fn new(timing: Timing, switches: Switches, now: Moment, unix_millis: u64) -> Leading {
        let power = Power::new(timing, switches);
        Leading {
            term: Term::new(timing, now, unix_millis),
            liveness: Liveness::new(now),
            runs: Runs::new(now),
            figures: Figures::new(now),
            maps: Maps::default(),
            sets: Sets::new(timing, power.has_switches()),
            power,
            groups: Groups::default(),
            relocations: Relocations::default(),
            gears: Gears::new(timing.sleep, timing.has(PlantedBug::ForgetDwell)),
            wants: Wants::default(),
            roster: None,
            dirty: true,
            turn: now,
            planned: Moment::ZERO,
            in_flight: false,
        }
    }

    /// There is no cluster to lead yet. The lease that a new leader waits for counts from its creation.
    pub fn await_cluster(&mut self, now: Moment) {
        self.term.begin(now);
        self.liveness.listen_anew(now);
    }

    /// Detects that this process did not run for a while: [`Leading::next_wake`] would have called it.
    pub fn begin_turn(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let gap = now.since(self.turn);
        self.turn = now;
        if gap > self.term.timing.heartbeat * 2 && listens(state) {
            self.liveness.listen_anew(now);
            out.push(Output::Notice(Notice::StoodStill { millis: gap.as_millis() as u64 }));
        }
    }

    /// Takes in changes of the state. `marks`: the newest store marks from servers' heartbeats.
    pub fn follow(&mut self, now: Moment, state: &State, marks: &BTreeMap<ServerId, StoreMark>) {
        if self.roster != Some(state.roster()) {
            self.forget_who_left(state);
            self.inherit(state, marks);
            self.roster = Some(state.roster());
        }
        let concerned = self.groups.follow(self.term.unix_now(now), state);
        self.maps.concern(concerned);
        self.gears.follow(now, state, self.term.since(), self.term.unix_millis());
    }

    /// Takes over servers and sets that this leader does not know: as an earlier leader left them, or those of a new
    /// pool.
    fn inherit(&mut self, state: &State, marks: &BTreeMap<ServerId, StoreMark>) {
        let since = self.term.since();
        for entry in state.servers() {
            if !self.runs.knows(entry.id) {
                self.runs.inherit(entry, state, marks.get(&entry.id));
                self.power.inherit(entry, since, state);
                self.liveness.inherit(entry, since);
            }
        }
        self.sets.inherit(since, state);
        self.dirty = true;
    }

    /// One that comes back under the number of one that left is new.
    fn forget_who_left(&mut self, state: &State) {
        let left: Vec<ServerId> = self.runs.known().filter(|id| state.server(*id).is_none()).collect();
        for server in left {
            self.runs.forget(server);
            self.power.forget(server);
            self.liveness.forget(server);
            self.figures.forget(server);
            self.maps.forget(server);
        }
    }

    /// Commands were applied, its `own` batch or others: what refers to earlier epochs is forgotten, and who waited for
    /// the change is told.
    pub fn applied(&mut self, now: Moment, own: bool, state: &State, out: &mut Vec<Output>) {
        self.in_flight &= !own;
        self.dirty = true;
        self.groups.applied(state);
        self.sets.applied(state);
        self.pay_owed_leases(now, state, out);
        self.push_maps(now, state, out);
    }

    /// The decided changes are still to be made, though nothing has changed since.
    pub fn refused(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        self.groups.see_all_again();
        self.applied(now, true, state, out);
    }

    /// Plans, if anything changed or has become due.
    pub fn run(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let due = self.dirty || self.next_verdict(state).is_some_and(|at| at <= now);
        if self.in_flight || !due {
            return;
        }
        (self.dirty, self.planned) = (false, now);
        let commands = self.plan(now, state, out);
        self.dirty |= self.power.throw_switches(now, |server| self.liveness.heard(server), state, out);
        if !commands.is_empty() {
            self.in_flight = true;
            out.push(Output::Propose(commands));
        }
    }

    /// Whether a server that is asleep on record is up all the same.
    pub fn resists(&self, now: Moment, server: ServerId, state: &State) -> bool {
        let heard = self.liveness.heard(server);
        self.power.switch(server).is_some_and(|switch| switch.resists(now, heard, lease(state)))
    }

    /// The next moment at which time alone changes a verdict. Verdicts due at the last plan have been made. While a
    /// verdict on some server's silence is pending, a turn is due every heartbeat interval, so that a pause is noticed.
    pub fn next_wake(&self, state: &State) -> Option<Moment> {
        if self.in_flight || state.params().is_none() {
            return None;
        }
        let due = if self.dirty { Some(self.turn) } else { self.next_verdict(state) };
        let listens = listens(state).then(|| self.turn + self.term.timing.heartbeat);
        due.into_iter().chain(listens).min()
    }

    fn next_verdict(&self, state: &State) -> Option<Moment> {
        state.params()?;
        let again = self.planned + self.term.timing.heartbeat;
        let per_server = state.servers().filter_map(|entry| match entry.state {
            // What is borne shrinks with time, also to before the last plan: then that has not made this verdict.
            ServerState::Awake | ServerState::Draining => {
                let at = self.liveness.fails_at(entry.id, self.turn, &self.term, state);
                Some(if at <= self.planned { again } else { at })
            }
            ServerState::Waking | ServerState::Asleep | ServerState::Failed => {
                let retry = self.power.switch(entry.id).and_then(Switch::retry_at);
                retry.into_iter().chain(self.given_up_at(entry.id)).filter(|at| *at > self.planned).min()
            }
            ServerState::Lost => None,
        });
        let trusted = Some(self.term.trusted_from(state));
        let witness = self.runs.witness_due(self.term.timing.witness, state);
        let mended = self.groups.damage_ends();
        let rest = state.sets().filter_map(|(id, entry)| self.sets.rests_at(id, entry, state));
        let exam = state.servers().filter_map(|e| self.exam_due_at(e, state)).min();
        let exam = exam.map(|at| self.term.moment_of(at));
        let test = self.power.running_trial().map(|_| again);
        let once = trusted.into_iter().chain(witness).chain(exam).chain(test);
        per_server.chain(once).chain(mended).chain(rest).filter(|at| *at > self.planned).min()
    }
}

/// Whether any server's silence would mean something.
fn listens(state: &State) -> bool {
    state.servers().any(|e| e.state.is_live())
}
