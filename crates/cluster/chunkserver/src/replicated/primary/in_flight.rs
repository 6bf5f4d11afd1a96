//! The ordered records that are not yet on all targets.
//!
//! A copy counts as in flight for as long as the connection to its server stands, however long the server takes, and is
//! not sent twice: a timed resend adds to the load that made the first copy late, so a busy cluster would be brought
//! down by its own retries.

use crate::common::context::Context;
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use bytes::Bytes;
use ebb_types::{Moment, PeerMessage, Record, Refusal, Role, ServerId, ServerReport, TailRun};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct InFlight {
    /// The sequence of the record ordered last.
    last: u64,
    /// By sequence.
    records: BTreeMap<u64, Ordered>,
}

struct Ordered {
    op: u64,
    record: Record,
    payload: Bytes,
    awaiting: BTreeMap<ServerId, Awaited>,
    at: Moment,
    /// It is not client data, or a target had no room for it: it may use the reserve.
    must_fit: bool,
}

/// A copy that is not known to be durable.
struct Awaited {
    role: Role,
    /// When it was last sent, or given to the own store.
    asked: Moment,
    /// The connection broke or the copy was refused: the tick resends it.
    again: bool,
}

/// What a reply means for its record.
pub(crate) enum Replied {
    Nothing,
    /// It is on all targets. With the operation it belongs to.
    Committed(u64),
    /// A target has no room even in the reserve.
    Full(u64),
}

impl Awaited {
    fn is_due(&self, cx: &Context) -> bool {
        self.again && cx.now.since(self.asked) >= cx.config.resend_after
    }
}

impl InFlight {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn contains(&self, seq: u64) -> bool {
        self.records.contains_key(&seq)
    }

    /// The sequence of the record ordered last.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Every record up to this sequence is on all targets.
    pub fn committed(&self) -> u64 {
        self.records.keys().next().map_or(self.last, |oldest| oldest - 1)
    }

    /// The sequence of the next record.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sends an ordered record to every target. `must_fit`: it is not client data.
    pub fn send(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        op: u64,
        (record, payload): (Record, Bytes),
        must_fit: bool,
    ) {
        let seq = record.version.seq;
        debug_assert!(member.has_all_targets(), "a record is ordered to all of its r targets");
        debug_assert!(
            self.records.keys().next_back().is_none_or(|last| *last < seq),
            "versions are given in turn"
        );
        let awaited = |(to, role)| (to, Awaited { role, asked: cx.now, again: false });
        let awaiting = member.targets().flatten().map(awaited).collect();
        member.tail.push(TailRun { run: record.run(), request: record.request });
        let mut ordered = Ordered { op, record, payload, awaiting, at: cx.now, must_fit };
        for (&to, &Awaited { role, .. }) in &ordered.awaiting {
            ordered.give(cx, member, to, role);
        }
        if cx.config.has(crate::common::config::PlantedBug::AckEarly)
            && let Some(last) = ordered.awaiting.keys().copied().rfind(|&s| s != cx.me)
        {
            ordered.awaiting.remove(&last);
        }
        self.records.insert(seq, ordered);
    }

    /// The connection to a server broke, or the server is not live: its copies are sent again at the next tick.
    pub fn peer_lost(&mut self, peer: ServerId) {
        for ordered in self.records.values_mut() {
            if let Some(awaited) = ordered.awaiting.get_mut(&peer) {
                (awaited.again, awaited.asked) = (true, Moment::ZERO);
            }
        }
    }

    /// Resends copies that were refused, or in flight when a connection broke.
    pub fn resend(&mut self, cx: &mut Context, member: &mut Member) {
        for ordered in self.records.values_mut() {
            let due = |(to, awaited): (&ServerId, &mut Awaited)| {
                let due = awaited.is_due(cx);
                if due {
                    (awaited.again, awaited.asked) = (false, cx.now);
                }
                due.then_some((*to, awaited.role))
            };
            let due: Vec<(ServerId, Role)> = ordered.awaiting.iter_mut().filter_map(due).collect();
            for (to, role) in due {
                if to == cx.me {
                    let run = ordered.record.run();
                    member.tail.push(TailRun { run, request: ordered.record.request });
                }
                ordered.give(cx, member, to, role);
            }
        }
    }

    /// A target replied, or the own store did.
    pub fn on_reply(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        from: ServerId,
        seq: u64,
        result: Result<(), Refusal>,
    ) -> Replied {
        let Some(ordered) = self.records.get_mut(&seq) else { return Replied::Nothing };
        let Some(awaited) = ordered.awaiting.get_mut(&from) else { return Replied::Nothing };
        match result {
            Ok(()) => {
                ordered.awaiting.remove(&from);
                if ordered.awaiting.is_empty() {
                    let op = ordered.op;
                    self.records.remove(&seq);
                    return Replied::Committed(op);
                }
            }
            Err(Refusal::NoSpace) => {
                // R10: the write is already on other targets, so it is completed from the reserve; later ones are
                // refused before they are ordered. A full server is not a failed server: it is never suspected for
                // that.
                cx.shared.peers.full.insert(from, cx.now);
                awaited.again = true;
                if std::mem::replace(&mut ordered.must_fit, true) {
                    return Replied::Full(ordered.op);
                }
                awaited.asked = Moment::ZERO;
                self.resend(cx, member);
            }
            Err(Refusal::Poisoned) => {
                let (group, epoch) = (member.id(), member.epoch());
                cx.report(ServerReport::Suspect { group, epoch, server: from });
            }
            // A copy that cannot succeed in this epoch ends with the epoch.
            Err(_) => awaited.again = true,
        }
        Replied::Nothing
    }

    /// Reports the targets that owe a reply and send nothing at all.
    pub fn suspect_silent(&self, cx: &mut Context, member: &Member) {
        let mut owing: BTreeMap<ServerId, Moment> = BTreeMap::new();
        for ordered in self.records.values() {
            for &to in ordered.awaiting.keys().filter(|to| **to != cx.me) {
                owing.entry(to).or_insert(ordered.at); // the oldest comes first
            }
        }
        for (to, since) in owing {
            cx.suspect_if_silent(member.epoch(), to, since);
        }
    }
}

impl Ordered {
    /// Gives the record to the own store, or sends it.
    fn give(&self, cx: &mut Context, member: &mut Member, to: ServerId, role: Role) {
        let Ordered { record, payload, must_fit, .. } = self;
        let (epoch, committed, must_fit) = (member.epoch(), member.tail.committed(), *must_fit);
        if to == cx.me {
            let (wait, own) = (Wait::Own { seq: record.version.seq, epoch }, (role, record.clone()));
            member.applying.apply(cx, wait, own, payload.clone(), must_fit, committed);
        } else {
            let record = record.clone();
            let message = PeerMessage::Replicate { epoch, role, record, committed, must_fit };
            cx.send_with(to, message, payload.clone());
        }
    }
}
