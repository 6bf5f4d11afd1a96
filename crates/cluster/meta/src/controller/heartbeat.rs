//! Heartbeats: each is answered with a lease if the state says that the server takes part, that this is its present
//! run, and that nothing speaks against it (R2); and with what the server lacks of the map, and its duties.

use crate::controller::event::Output;
use crate::controller::leading::Leading;
use crate::controller::term::lease;
use crate::{PlantedBug, State};
use ebb_gear::sample_interval;
use ebb_types::{
    Incarnation, MetaPush, Moment, Notice, PoolId, ServerEntry, ServerId, ServerState, StoreMark, Vitals, bug,
};
use std::collections::BTreeMap;

/// A heartbeat. `sent` is the server's own clock.
pub(crate) struct Beat {
    pub server: ServerId,
    pub run: Incarnation,
    pub mark: StoreMark,
    pub sent: Moment,
    pub map_version: u64,
    pub vitals: Vitals,
}

impl Leading {
    pub(crate) fn heartbeat(&mut self, now: Moment, beat: Beat, state: &State, out: &mut Vec<Output>) {
        let Beat { server, ref vitals, .. } = beat;
        let Some(entry) = self.admit(&beat, state, out) else { return };
        if !self.hear(now, &beat, entry) {
            return;
        }
        self.answer(now, &beat, entry, state, out);
        self.power.examine_again(now, server, state);
        self.push_duties(server, entry.state, state, out);
        if entry.pool == PoolId::REPLICATED {
            self.dirty |= self.gears.sample(now, server, vitals, state);
        } else {
            self.sets.note_use(now, server, &vitals.load, state);
            let debt = |other| self.figures.vitals(other).map(|vitals| vitals.debt_bytes);
            self.dirty |= self.sets.fill(now, server, state, debt);
        }
    }

    /// The sender's entry, if it may take part.
    fn admit<'a>(&mut self, beat: &Beat, state: &'a State, out: &mut Vec<Output>) -> Option<&'a ServerEntry> {
        let Beat { server, run, mark, map_version, .. } = *beat;
        let Some(entry) = state.server(server) else {
            let why = format!("{server} is not part of this cluster: check its id and the metadata address");
            out.push(Output::Push { to: server, push: MetaPush::Rejected { incarnation: run, why } });
            return None;
        };
        if map_version > state.version() {
            // R11: a leader has everything that was ever pushed, unless its log went back.
            if self.maps.fall_behind(map_version) {
                out.push(Output::Notice(Notice::WentBack { seen: map_version, own: state.version() }));
            }
            return None;
        }
        if entry.state == ServerState::Lost && mark.store == entry.store {
            let why = format!(
                "{server} was declared lost and its data is rebuilt elsewhere: start it on an empty directory to use the machine again"
            );
            out.push(Output::Push { to: server, push: MetaPush::Rejected { incarnation: run, why } });
            return None;
        }
        if let Some(known) = self.runs.superseded_by(entry, run, mark) {
            // While the run on record may serve, no other run replaces it: its lease decides.
            if !entry.state.is_live() {
                out.push(Output::Push { to: server, push: MetaPush::Superseded { known } });
            }
            return None;
        }
        let elsewhere =
            mark.store != entry.store && entry.state.is_live() && entry.incarnation != Incarnation(0);
        (!elsewhere).then_some(entry)
    }

    /// Notes what the heartbeat says. Returns `false` if it is of an earlier run, or came late.
    fn hear(&mut self, now: Moment, beat: &Beat, entry: &ServerEntry) -> bool {
        let Beat { server, run, mark, sent, ref vitals, .. } = *beat;
        if self.runs.speaks(server, run, mark.store) {
            self.liveness.restart(server);
            self.power.restart(server);
            self.maps.restart(server);
            self.dirty = true;
        }
        let timing = &self.term.timing;
        let broken = vitals.poisoned || (vitals.stalled && !timing.has(PlantedBug::TrustStalled));
        let late = self.runs.of(server).run > run;
        if late || !self.liveness.hear(now, server, sent, broken) {
            return false;
        }
        self.power.heard(now, server);
        if mark.store == entry.store {
            self.runs.reached(server, mark.position);
        }
        self.dirty |= self.figures.hear(now, server, vitals, timing.offload_percent);
        true
    }

    /// Renews the lease of a server that takes part, and pushes what its map lacks.
    fn answer(
        &mut self,
        now: Moment,
        beat: &Beat,
        entry: &ServerEntry,
        state: &State,
        out: &mut Vec<Output>,
    ) {
        let Beat { server, run, sent, map_version, .. } = *beat;
        let resend = self.term.timing.heartbeat * 2;
        let lacks = self.maps.lacks(now, server, map_version, state.version(), resend);
        match entry.state {
            ServerState::Awake | ServerState::Draining if entry.incarnation == run => {
                // A server whose lease ended may still believe that it is the primary, until it knows the map in which
                // it takes part again (R2).
                let has_lease = self.liveness.granted_until(server) > now;
                let knows = has_lease || map_version >= state.server_changed(server);
                if !self.liveness.is_condemned(server) && knows {
                    self.grant(now, server, sent, state, out);
                }
            }
            ServerState::Asleep if entry.incarnation == run => self.power.still_awake(now, server),
            _ => {
                self.liveness.owe(server, sent);
                self.dirty = true;
            }
        }
        if lacks {
            self.maps.push(now, server, state, &mut BTreeMap::new(), out);
        }
    }

    fn grant(&mut self, now: Moment, server: ServerId, sent: Moment, state: &State, out: &mut Vec<Output>) {
        let incarnation = self.runs.of(server).run;
        let is_on_record = |e: &ServerEntry| e.state.is_live() && e.incarnation == incarnation;
        if self.liveness.is_condemned(server) || !state.server(server).is_some_and(is_on_record) {
            return bug(out, "a lease for a run that is not on record, or is condemned (R2)");
        }
        self.liveness.grant(server, now + self.term.longest_lease(state));
        let next = self.term.timing.heartbeat.min(sample_interval(state.schedule()));
        let push = MetaPush::Lease { incarnation, sent, next_millis: next.as_millis() as u32 };
        out.push(Output::Push { to: server, push });
    }

    /// Restarted servers get the lease that their heartbeat asked for, once the state knows the new run.
    pub(crate) fn pay_owed_leases(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        for entry in state.servers().filter(|e| e.state.is_live()) {
            if self.runs.of(entry.id).run == entry.incarnation
                && let Some(sent) = self.liveness.pay(now, entry.id)
            {
                self.grant(now, entry.id, sent, state, out);
            }
        }
    }

    /// Sends the servers that a change of the map concerns what they lack of it.
    pub(crate) fn push_maps(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        let mut deltas = BTreeMap::new();
        for entry in self.maps.announce(state).into_iter().filter_map(|server| state.server(server)) {
            let listens = !matches!(entry.state, ServerState::Asleep | ServerState::Lost);
            let heard = self.liveness.heard(entry.id).is_some_and(|at| now.since(at) <= lease(state));
            let known = self.maps.sent(entry.id);
            if listens && heard && known < state.version() {
                self.maps.push(now, entry.id, state, &mut deltas, out);
                // Duties that are not new follow its next heartbeat.
                if known < state.server_changed(entry.id) {
                    self.push_duties(entry.id, entry.state, state, out);
                }
            }
        }
    }

    /// Other duties of a server: repeated until done, so none of them can be lost.
    pub(crate) fn push_duties(
        &self,
        server: ServerId,
        standing: ServerState,
        state: &State,
        out: &mut Vec<Output>,
    ) {
        if standing == ServerState::Draining {
            out.push(Output::Push { to: server, push: MetaPush::Drain });
        }
        if standing.is_live() && self.power.is_to_be_examined(server) {
            out.push(Output::Push { to: server, push: MetaPush::Exam });
        }
        let groups = self.groups.hand_overs(server, state);
        if !groups.is_empty() {
            out.push(Output::Push { to: server, push: MetaPush::HandOver { groups } });
        }
    }
}
