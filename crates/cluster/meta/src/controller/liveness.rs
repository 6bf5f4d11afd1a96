//! Which servers are alive, and until when other components may rely on it (R2).
//!
//! Grants are kept in memory; a heartbeat writes nothing.
//!
//! Invariants
//! - A server is called failed only when every lease that this leader or an earlier one may have granted it has ended
//!   ([`Liveness::fails_at`]): a grant is counted from the answer, later than where the server counts from, plus a
//!   margin; and a new leader first waits one whole lease ([`Term::trusted_from`]).
//! - Silence proves nothing while this process itself did not run: after a pause every server gets a whole lease to be
//!   heard again ([`Liveness::listen_anew`]).

use crate::State;
use crate::controller::failure::Failure;
use crate::controller::term::{Term, lease};
use ebb_types::{Grace, GroupEntry, Moment, ServerEntry, ServerId, ServerState, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Number of leases that a suspicion must last before it counts against a server that still sends heartbeats. Long: a
/// slow server is better than none.
const SUSPICION_LEASES: u32 = 3;

#[derive(Clone, Copy, Debug, Default)]
struct Life {
    heard: Option<Moment>,
    /// The server's own clock in its newest heartbeat: older ones are stale.
    sent: Option<Moment>,
    /// Its store does not work, by that heartbeat.
    broken: bool,
    /// A heartbeat whose lease waits until the state says that the server is awake.
    owed: Option<Moment>,
    /// By this leader's clock no lease of the server lasts beyond this moment.
    granted_until: Moment,
    /// Its lease is not renewed, so that it can be called failed.
    condemned: bool,
    /// A server that its peers could not work with is not taken back before this moment.
    shunned_until: Moment,
    failed: Option<Failure>,
    /// It failed by silence: how much of it had been borne. Until the same run is heard again.
    silenced: Option<Duration>,
    grace: Grace,
}

pub(crate) struct Liveness {
    /// From this moment on the process ran without a pause, so it received every heartbeat that was sent.
    watching: Moment,
    servers: BTreeMap<ServerId, Life>,
    /// Reporter and suspect: times of the first and the latest report.
    suspicions: BTreeMap<(ServerId, ServerId), (Moment, Moment)>,
}

impl Liveness {
    pub fn new(now: Moment) -> Liveness {
        Liveness { watching: now, servers: BTreeMap::new(), suspicions: BTreeMap::new() }
    }

    /// What was heard before counts for nothing: heartbeats may have been missed, or there was no cluster.
    pub fn listen_anew(&mut self, now: Moment) {
        self.watching = now;
        self.suspicions.clear();
    }

    /// A server as an earlier leader left it.
    pub fn inherit(&mut self, entry: &ServerEntry, since: Moment) {
        let failed = (entry.state == ServerState::Failed).then(|| Failure::new(since));
        self.servers.insert(entry.id, Life { failed, ..Life::default() });
    }

    pub fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
        self.suspicions.retain(|(by, of), _| *by != server && *of != server);
    }

    fn of(&self, server: ServerId) -> Life {
        self.servers.get(&server).copied().unwrap_or_default()
    }

    fn life(&mut self, server: ServerId) -> &mut Life {
        self.servers.entry(server).or_default()
    }

    /// When its newest heartbeat came.
    pub fn heard(&self, server: ServerId) -> Option<Moment> {
        self.of(server).heard
    }

    pub fn granted_until(&self, server: ServerId) -> Moment {
        self.of(server).granted_until
    }

    pub fn is_condemned(&self, server: ServerId) -> bool {
        self.of(server).condemned
    }

    /// The failed server is waited for from here on.
    pub fn failed_since(&self, server: ServerId) -> Option<Moment> {
        self.of(server).failed.map(|failure| failure.since)
    }

    /// From this moment on the server counts as failed: no lease of it is valid, and it has been silent for longer than
    /// is borne ([`ebb_types::Grace`]) to a leader that was listening. A server that sends heartbeats but has no lease
    /// yet (it must first learn the map) is not failed, unless it is condemned.
    pub fn fails_at(&self, server: ServerId, now: Moment, term: &Term, state: &State) -> Moment {
        let life = self.of(server);
        let heard = self.watching.max(life.heard.unwrap_or(Moment::ZERO));
        let borne = life.grace.borne(now, term.longest_lease(state));
        let silent = if life.condemned { Moment::ZERO } else { heard + borne };
        life.granted_until.max(term.trusted_from(state)).max(silent)
    }

    /// A new run has nothing of the one before.
    pub fn restart(&mut self, server: ServerId) {
        let life = self.life(server);
        (life.sent, life.condemned, life.silenced) = (None, false, None);
    }

    /// Takes in a heartbeat, `sent` by the server's own clock. Returns `false` if it came late.
    pub fn hear(&mut self, now: Moment, server: ServerId, sent: Moment, broken: bool) -> bool {
        let life = self.life(server);
        if life.sent.is_some_and(|newest| newest >= sent) {
            return false;
        }
        if let (Some(borne), Some(heard)) = (life.silenced.take(), life.heard) {
            life.grace.ended(now, borne, now.since(heard));
        }
        (life.heard, life.sent, life.broken) = (Some(now), Some(sent), broken);
        life.condemned |= broken;
        true
    }

    /// The heartbeat's lease waits until the state says that the server is awake.
    pub fn owe(&mut self, server: ServerId, sent: Moment) {
        self.life(server).owed = Some(sent);
    }

    /// The heartbeat whose lease has waited. A server whose last lease ended must first show that it knows the map.
    pub fn pay(&mut self, now: Moment, server: ServerId) -> Option<Moment> {
        let life = self.life(server);
        if life.condemned {
            return None;
        }
        life.owed.take().filter(|_| life.granted_until > now)
    }

    /// It gets a lease, which ends by this leader's clock before `until`.
    pub fn grant(&mut self, server: ServerId, until: Moment) {
        let life = self.life(server);
        debug_assert!(!life.condemned, "no lease for one that is to be called failed (R2)");
        life.granted_until = life.granted_until.max(until);
        life.owed = None;
    }

    /// The server is called failed. It gets no lease while this is in flight, although the state still calls it awake
    /// (R2).
    pub fn fail(&mut self, now: Moment, server: ServerId, lease: Duration) {
        let life = self.life(server);
        debug_assert!(now >= life.granted_until, "no lease of one that failed is valid (R2)");
        life.failed = Some(Failure::new(now));
        life.silenced = (!life.condemned).then_some(life.grace.borne(now, lease));
        (life.condemned, life.owed) = (true, None);
    }

    /// A server that was away takes part again.
    pub fn take_back(&mut self, server: ServerId) {
        self.life(server).condemned = false;
    }

    /// Takes in which servers are failed still: for each of them `others` says whether others seem to have failed with
    /// it.
    pub fn wait_for(&mut self, now: Moment, others: impl Fn(ServerId) -> Option<bool>) {
        for (id, life) in &mut self.servers {
            life.failed = life.failed.and_then(|failure| Some(failure.seen(now, others(*id)?)));
        }
    }

    /// `reporter` cannot work with `suspect`. If the suspect is silent too, the end of its lease decides. If it still
    /// sends heartbeats, one of the two is cut off from the other or broken: the one that has trouble with several
    /// servers. A report is repeated while it is true; if none came for a lease, the suspect was heard again, and the
    /// suspicion starts over.
    pub fn suspect(&mut self, now: Moment, reporter: ServerId, suspect: ServerId, state: &State) {
        let lease = lease(state);
        let patience = lease * SUSPICION_LEASES;
        let seen = &mut self.suspicions;
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
        let life = self.life(guilty);
        (life.condemned, life.shunned_until) = (true, now + patience * 2);
    }

    /// Whether a server that was away has sent a heartbeat and may take part again. `shows_awake`: whether one of that
    /// time shows that it stays awake.
    pub fn has_returned(
        &self,
        now: Moment,
        server: ServerId,
        shows_awake: impl Fn(Moment) -> bool,
        state: &State,
    ) -> bool {
        let life = self.of(server);
        let heard = |at: Moment| now.since(at) <= lease(state) && shows_awake(at);
        let speaks = life.owed.is_some() && life.heard.is_some_and(heard);
        speaks && !life.broken && now >= life.shunned_until
    }

    /// Whether a group without a primary should wait: one of its servers may still report to this new leader.
    pub fn waits(&self, now: Moment, entry: &GroupEntry, term: &Term, state: &State) -> bool {
        let expected = |slot: &Slot| {
            let comes = |e: &ServerEntry| e.state.is_live() || e.state == ServerState::Waking;
            self.heard(slot.server).is_none() && state.server(slot.server).is_some_and(comes)
        };
        entry.primary.is_none() && now < term.trusted_from(state) && entry.copies().iter().any(expected)
    }
}
