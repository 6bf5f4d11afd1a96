//! Heartbeats, leases, suspicion: which servers are alive, and until when other components may rely on it (R2).
//!
//! A heartbeat is answered with a lease if the state says that the server takes part, that this is its present run, and
//! that nothing speaks against it. Grants are kept in memory; a heartbeat writes nothing.

use crate::controller::event::Output;
use crate::controller::leading::Leading;
use crate::{PlantedBug, State};
use ebb_gear::sample_interval;
use ebb_types::{
    Epoch, GroupEntry, GroupId, Incarnation, MapDelta, MetaPush, Moment, Notice, PoolId, ServerEntry,
    ServerId, ServerState, Slot, StoreMark, Vitals, bug,
};
use std::collections::{BTreeMap, BTreeSet};

/// Number of leases that a suspicion must last before it counts against a server that still sends heartbeats. Long: a
/// slow server is better than none.
const SUSPICION_LEASES: u32 = 3;

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
        self.latency.add(now, &vitals.latencies);
        self.examine_again(now, server, state);
        self.push_duties(server, entry.state, state, out);
        if entry.pool == PoolId::REPLICATED {
            self.dirty |= self.gears.sample(now, server, vitals, state);
        } else {
            self.note_use(now, server, &vitals.load, state);
            self.fill(now, server, state);
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
            if self.behind < map_version {
                self.behind = map_version;
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
        if let Some(known) = self.superseded_by(entry, run, mark) {
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
        let live = self.servers.entry(server).or_default();
        if live.run < run {
            (live.run, live.store) = (run, mark.store);
            (live.sent, live.ready_to_sleep, live.condemned, live.sent_version) = (None, false, false, 0);
            live.silenced = None;
            self.dirty = true;
        }
        if live.run > run || live.sent.is_some_and(|newest| newest >= sent) {
            return false;
        }
        if let (Some(borne), Some(heard)) = (live.silenced.take(), live.heard) {
            live.grace.ended(now, borne, now.since(heard));
        }
        live.heard = Some(now);
        live.power.heard(now);
        live.sent = Some(sent);
        if mark.store == entry.store {
            live.position = live.position.max(mark.position);
        }
        let trusts = self.timing.has(PlantedBug::TrustStalled);
        live.condemned |= vitals.poisoned || (vitals.stalled && !trusts);
        let room = live.room.follow(vitals, self.timing.offload_percent);
        self.dirty |= std::mem::replace(&mut live.room, room) != room;
        live.vitals = vitals.clone();
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
        let (limit, resend) = (self.timing.wake_limit, self.timing.heartbeat * 2);
        let live = self.servers.entry(server).or_default();
        // A delta sent a moment ago may be in flight. A server with a gap in its map asks for the whole map.
        let answered = live.sent_version > map_version && map_version > 0 && now.since(live.pushed) <= resend;
        let news = map_version < state.version() && !answered;
        if news {
            live.sent_version = map_version;
        }
        match entry.state {
            ServerState::Awake | ServerState::Draining if entry.incarnation == run => {
                // A server whose lease ended may still believe that it is the primary, until it knows the map in which
                // it takes part again (R2).
                let knows = live.granted_until > now || map_version >= state.server_changed(server);
                if !live.condemned && knows {
                    self.grant(now, server, sent, state, out);
                }
            }
            ServerState::Asleep if entry.incarnation == run => live.power.still_awake(now, limit, resend),
            _ => {
                live.owed = Some(sent);
                self.dirty = true;
            }
        }
        if news {
            self.push_map(now, server, state, &mut BTreeMap::new(), out);
        }
    }

    /// R11: a run other than the one on record must continue its store: the same store, at least as far as it was ever
    /// reported durable, and started later. Any other store gets a higher number and is treated as one that may lack
    /// anything ([`crate::controller::group`]). Returns the run that the new one must be numbered above.
    fn superseded_by(&self, entry: &ServerEntry, run: Incarnation, mark: StoreMark) -> Option<Incarnation> {
        if entry.incarnation == Incarnation(0) || (run, mark.store) == (entry.incarnation, entry.store) {
            return None;
        }
        let (spoke, store, position) = match self.servers.get(&entry.id) {
            Some(live) => (live.run, live.store, live.position),
            None => (entry.incarnation, entry.store, 0),
        };
        let goes_on =
            run.follows(entry.incarnation) && (run == spoke || run.follows(spoke) || spoke.follows(run));
        if !goes_on || (run <= spoke && mark.store != store) {
            return Some(run.max(spoke).max(entry.incarnation));
        }
        (mark.store == entry.store && mark.position < position).then_some(run)
    }

    fn grant(&mut self, now: Moment, server: ServerId, sent: Moment, state: &State, out: &mut Vec<Output>) {
        let until = now + self.longest_lease(state);
        let live = self.servers.entry(server).or_default();
        let is_on_record = |e: &ServerEntry| e.state.is_live() && e.incarnation == live.run;
        if live.condemned || !state.server(server).is_some_and(is_on_record) {
            return bug(out, "a lease for a run that is not on record, or is condemned (R2)");
        }
        live.granted_until = live.granted_until.max(until);
        live.owed = None;
        let incarnation = live.run;
        let next = self.timing.heartbeat.min(sample_interval(state.schedule()));
        let push = MetaPush::Lease { incarnation, sent, next_millis: next.as_millis() as u32 };
        out.push(Output::Push { to: server, push });
    }

    /// Restarted servers get the lease that their heartbeat asked for, once the state knows the new run.
    pub(crate) fn pay_owed_leases(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        for entry in state.servers().filter(|e| e.state.is_live()) {
            let Some(live) = self.servers.get_mut(&entry.id) else { continue };
            if live.run != entry.incarnation || live.condemned {
                continue;
            }
            // A server whose last lease ended must first show that it knows the map.
            if let Some(sent) = live.owed.take().filter(|_| live.granted_until > now) {
                self.grant(now, entry.id, sent, state, out);
            }
        }
    }

    /// Sends the servers that a change of the map concerns what they lack of it. The others ask with their next
    /// heartbeat: each hand-over changes its group twice, and sixty servers that take in every one of them have no time
    /// left for clients.
    pub(crate) fn push_maps(&mut self, now: Moment, state: &State, out: &mut Vec<Output>) {
        debug_assert!(self.announced <= state.version(), "no map is announced that there is not");
        let announced = std::mem::replace(&mut self.announced, state.version());
        if announced == state.version() {
            return;
        }
        let everyone = state.concerns_all_since(announced);
        let mut concerned = std::mem::take(&mut self.concerned);
        concerned.extend(state.columns_since(announced));
        let lease = self.lease(state);
        let mut deltas = BTreeMap::new();
        for entry in state.servers().filter(|entry| everyone || concerned.contains(&entry.id)) {
            let listens = !matches!(entry.state, ServerState::Asleep | ServerState::Lost);
            let live = self.servers.entry(entry.id).or_default();
            let heard = live.heard.is_some_and(|at| now.since(at) <= lease);
            let known = live.sent_version;
            if listens && heard && known < state.version() {
                self.push_map(now, entry.id, state, &mut deltas, out);
                // Duties that are not new follow its next heartbeat.
                if known < state.server_changed(entry.id) {
                    self.push_duties(entry.id, entry.state, state, out);
                }
            }
        }
    }

    fn push_map(
        &mut self,
        now: Moment,
        server: ServerId,
        state: &State,
        deltas: &mut BTreeMap<u64, MapDelta>,
        out: &mut Vec<Output>,
    ) {
        let live = self.servers.entry(server).or_default();
        let from = live.sent_version;
        debug_assert!(from <= state.version(), "no map was sent that there is not");
        if from == 0 {
            let params = state.params().expect("only a created cluster has servers").clone();
            out.push(Output::Push { to: server, push: MetaPush::Params(params) });
        }
        let delta = deltas.entry(from).or_insert_with(|| state.delta(from)).clone();
        (live.sent_version, live.pushed) = (delta.to, now);
        out.push(Output::Push { to: server, push: MetaPush::Map(delta) });
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
        if standing.is_live() && self.servers.get(&server).is_some_and(|live| live.examine) {
            out.push(Output::Push { to: server, push: MetaPush::Exam });
        }
        let own = |(group, (epoch, _)): (&GroupId, &(Epoch, ServerId))| {
            let entry = state.group(*group)?;
            (entry.primary == Some(server) && entry.epoch == *epoch).then_some((*group, *epoch))
        };
        let groups: Vec<_> = self.moves.iter().filter_map(own).collect();
        if !groups.is_empty() {
            out.push(Output::Push { to: server, push: MetaPush::HandOver { groups } });
        }
    }

    /// `reporter` cannot work with `suspect`. If the suspect is silent too, the end of its lease decides. If it still
    /// sends heartbeats, one of the two is cut off from the other or broken: the one that has trouble with several
    /// servers. A report is repeated while it is true; if none came for a lease, the suspect was heard again, and the
    /// suspicion starts over.
    pub(crate) fn suspect(&mut self, now: Moment, reporter: ServerId, suspect: ServerId, state: &State) {
        let lease = self.lease(state);
        let patience = lease * SUSPICION_LEASES;
        let seen = &mut self.reports.suspicions;
        seen.retain(|_, (_, last)| now.since(*last) <= lease);
        let (first, last) = seen.entry((reporter, suspect)).or_insert((now, now));
        *last = now;
        if now.since(*first) < patience || !state.server(suspect).is_some_and(|e| e.state.is_live()) {
            return;
        }
        let reporters: BTreeSet<ServerId> =
            seen.keys().filter(|(_, s)| *s == suspect).map(|(r, _)| *r).collect();
        let suspects: BTreeSet<ServerId> =
            seen.keys().filter(|(r, _)| *r == reporter).map(|(_, s)| *s).collect();
        let guilty = if suspects.len() > reporters.len() { reporter } else { suspect };
        seen.retain(|(r, s), _| *r != guilty && *s != guilty);
        let live = self.servers.entry(guilty).or_default();
        live.condemned = true;
        live.shunned_until = now + patience * 2;
        self.dirty = true;
    }

    /// Whether a server that was away has sent a heartbeat and may take part again.
    pub(crate) fn has_returned(&self, now: Moment, server: ServerId, state: &State) -> bool {
        let Some(live) = self.servers.get(&server) else { return false };
        let heard = |at: Moment| now.since(at) <= self.lease(state) && live.power.shows_awake(at);
        let speaks = live.owed.is_some() && live.heard.is_some_and(heard);
        let hangs = live.vitals.stalled && !self.timing.has(PlantedBug::TrustStalled);
        let works = !live.vitals.poisoned && !hangs;
        speaks && works && now >= live.shunned_until
    }

    /// Whether a group without a primary should wait: one of its servers may still report to this new leader.
    pub(crate) fn waits(&self, now: Moment, entry: &GroupEntry, state: &State) -> bool {
        let expected = |slot: &Slot| {
            let silent = self.servers.get(&slot.server).is_none_or(|l| l.heard.is_none());
            let comes = |e: &ServerEntry| e.state.is_live() || e.state == ServerState::Waking;
            silent && state.server(slot.server).is_some_and(comes)
        };
        entry.primary.is_none() && now < self.trusted_from(state) && entry.slots.iter().any(expected)
    }
}
