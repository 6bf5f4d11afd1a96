//! Adopting a new configuration, and activation: the one routine that follows every change. (R3, R4)

use crate::api::{StoreCommand, StoreOutcome};
use crate::catch_up::CatchUp;
use crate::group::{Context, Group, Wait, Waiting};
use crate::primary::{Phase, Primary};
use crate::replica::PlantedBug;
use crate::settlement::Settlement;
use ebb_types::{
    ClientReply, Epoch, GroupEntry, PeerMessage, Refusal, Run, ServerId, ServerReport, Slot, SlotState,
    Space, TailRun, Told, Version,
};
use std::collections::{BTreeMap, BTreeSet};

impl Group {
    /// Adopts a new configuration from the metadata service.
    pub fn adopt(&mut self, cx: &mut Context, entry: GroupEntry) {
        if entry.epoch <= self.entry.epoch {
            // Within an epoch only the permission to serve changes.
            if entry.stage() > self.entry.stage() {
                self.entry.fallback = None;
                self.go_on_activating(cx);
            }
            return;
        }
        self.fence = self.fence.max(entry.epoch);
        let old = std::mem::replace(&mut self.entry, entry);
        self.repairs.clear();
        self.scrub = None;
        self.refuse_checks(cx, Refusal::NotReady);
        self.suspend_clients(cx);
        self.adopt_catch_up(cx, &old);
        self.give_listings(cx); // those that waited for repairs of the ended epoch
        if self.entry.primary == Some(cx.me) {
            self.start_activation(cx);
        } else {
            let moved = ClientReply::Moved { entry: self.entry.clone() };
            self.waiting.drain(..).for_each(|waiting| waiting.turn_away(cx, moved.clone()));
        }
    }

    /// Requests of the ended epoch wait: this epoch's rewrites answer those that were ordered, the others start over, or all of
    /// them move with the primary.
    fn suspend_clients(&mut self, cx: &mut Context) {
        let Some(mut primary) = self.primary.take() else { return };
        cx.shared.client_ops -= primary.client_ops();
        let suspended: Vec<Waiting> = primary.take_client_requests().collect();
        for waiting in suspended.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    fn adopt_catch_up(&mut self, cx: &mut Context, old: &GroupEntry) {
        let state = self.entry.slot_of(cx.me).map(|s| s.state);
        let Some(SlotState::CatchingUp { since }) = state else {
            if let Some(catch_up) = self.catch_up.take() {
                cx.shared.fetches -= catch_up.fetches_under_way();
            }
            return;
        };
        let sources = self.sources(cx, None);
        // Writes that the old configuration sent here directly are here, so the missing set stays valid while the slot stays awake.
        // Writes of an intermediate configuration that this server never saw may all be missing.
        let before = old.slot_of(cx.me).map(|s| s.state);
        let was_catching_up =
            self.entry.epoch == old.epoch.next() && before == Some(SlotState::CatchingUp { since });
        match &mut self.catch_up {
            Some(catch_up) if was_catching_up && catch_up.goes_on(cx.map, &self.entry, &sources) => {
                cx.shared.fetches -= catch_up.fetches_under_way();
                catch_up.new_epoch();
            }
            other => {
                if let Some(catch_up) = other {
                    cx.shared.fetches -= catch_up.fetches_under_way();
                }
                *other = Some(CatchUp::new(since, sources, self.entry.epoch));
            }
        }
        self.pump_catch_up(cx);
    }

    /// Sends a fence to every member whose tail is still missing.
    pub fn fence_others(&self, cx: &mut Context) {
        let Some(Primary { phase: Phase::Fencing { awaiting, .. }, .. }) = &self.primary else { return };
        let (group, epoch) = (self.id, self.entry.epoch);
        for &to in awaiting {
            cx.send(to, PeerMessage::Fence { group, epoch, done: self.tail.done() });
        }
    }

    fn start_activation(&mut self, cx: &mut Context) {
        let epoch = self.entry.epoch;
        let targets = self.targets().flatten().map(|(server, _)| server);
        let awaiting: BTreeSet<ServerId> =
            targets.chain(self.live_sources(cx)).filter(|&s| s != cx.me).collect();
        let phase = Phase::Fencing { awaiting, foreign: Vec::new(), since: cx.now, asked: None };
        let mut primary = Primary::new(epoch, phase);
        primary.answered(&self.entry, cx.me, self.tail.forgotten());
        self.primary = Some(primary);
        self.fence_others(cx);
        self.go_on_activating(cx);
    }

    /// The live holders that slots catch up from. A record that an earlier primary sent to one of them alone would reach one
    /// replica and no other, unless their tails are gathered with those of the targets (R4). A holder that goes away and returns
    /// does so under a new epoch.
    fn live_sources(&self, cx: &Context) -> impl Iterator<Item = ServerId> {
        let catching_up = |slot: &&Slot| matches!(slot.state, SlotState::CatchingUp { .. });
        let holders = self.entry.slots.iter().filter(catching_up).filter_map(|slot| slot.holder);
        holders.map(|s| s.server).filter(|s| cx.map.is_live(*s))
    }

    /// Stops waiting for sources that are gone.
    pub fn await_live_sources(&mut self, cx: &mut Context) {
        let mut needed: BTreeSet<ServerId> = self.targets().flatten().map(|(server, _)| server).collect();
        needed.extend(self.live_sources(cx));
        if let Some(Primary { phase: Phase::Fencing { awaiting, .. }, .. }) = &mut self.primary {
            awaiting.retain(|server| needed.contains(server));
            self.go_on_activating(cx);
        }
    }

    pub fn on_fence_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        epoch: Epoch,
        tail: Vec<TailRun>,
        done: (Vec<TailRun>, Version),
    ) {
        if epoch != self.entry.epoch {
            return;
        }
        let Some(primary) = &mut self.primary else { return };
        let Phase::Fencing { awaiting, foreign, .. } = &mut primary.phase else { return };
        if awaiting.remove(&from) {
            foreign.extend(tail);
            let (done, forgotten) = done;
            primary.answered(&self.entry, from, forgotten);
            done.into_iter().for_each(|run| self.tail.remember(run));
        }
        self.go_on_activating(cx);
    }

    /// Advances as far as it can: fenced → listed (if this replica catches up) → on record as serving (if a slot has lost its
    /// complete copy) → compared with the store → serving. Until it is on record nothing is ordered, not even records from the
    /// tails: so an epoch that never served leaves no trace, and the slots are as they were before it.
    pub fn go_on_activating(&mut self, cx: &mut Context) {
        let listed = self.catch_up.as_ref().is_none_or(CatchUp::is_listed);
        let Some(primary) = &mut self.primary else { return };
        let Phase::Fencing { awaiting, foreign, asked, .. } = &mut primary.phase else { return };
        let fenced = awaiting.is_empty() || cx.config.has(PlantedBug::SkipFence);
        // A rewrite that reads before a tail record is in the store would undo that record.
        if !fenced || !listed || self.applying.has_direct() {
            return;
        }
        let (group, epoch) = (self.id, self.entry.epoch);
        if !self.entry.may_serve() && !cx.config.has(PlantedBug::ServeUnrecorded) {
            if asked.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after) {
                *asked = Some(cx.now);
                cx.report(ServerReport::Serving { group, epoch });
            }
            return;
        }
        let settlement =
            Settlement::new(self.tail.committed(), self.tail.uncommitted(), std::mem::take(foreign));
        let runs = settlement.questions();
        primary.phase = Phase::Comparing(settlement);
        if runs.is_empty() {
            self.serve(cx, &[]);
        } else {
            let command = StoreCommand::Newer { space: Space::Replica, group, runs };
            cx.store(group, Wait::Settlement { epoch }, command);
        }
    }

    pub fn on_compared(&mut self, cx: &mut Context, epoch: Epoch, outcome: StoreOutcome) {
        let comparing = self.primary.as_ref().is_some_and(|p| matches!(p.phase, Phase::Comparing { .. }));
        if epoch != self.entry.epoch || !comparing {
            return;
        }
        let listed = self.catch_up.as_ref().is_none_or(CatchUp::is_listed);
        if let (false, Some(primary)) = (listed, &mut self.primary)
            && let Phase::Comparing(settlement) = &mut primary.phase
        {
            // Its source is gone: list again what it misses, then compare.
            let foreign = settlement.take_foreign();
            primary.phase = Phase::Fencing { awaiting: BTreeSet::new(), foreign, since: cx.now, asked: None };
            return;
        }
        if let StoreOutcome::Newer(newer) = outcome {
            self.serve(cx, &newer);
        }
    }

    /// R4: settles the tails, and serves. Client operations wait for the rewrites that they must not overtake.
    fn serve(&mut self, cx: &mut Context, newer: &[Run]) {
        let Some(primary) = &mut self.primary else { return };
        let Phase::Comparing(settlement) = std::mem::replace(&mut primary.phase, Phase::Serving) else {
            return;
        };
        if !cx.config.has(PlantedBug::ForgetRequests) {
            for noted in settlement.notes(newer, self.catch_up.as_ref().map(CatchUp::missing)) {
                self.admit_note(cx, noted);
            }
        }
        let unsettled = settlement.rewrites(newer);
        self.settle(cx, unsettled);
        self.advance_commit();
        self.tell_committed(cx);
        self.start_covers(cx);
        for waiting in std::mem::take(&mut self.waiting) {
            self.on_client(cx, waiting);
        }
        if cx.draining {
            self.drain(cx);
        }
    }
}

/// The version up to which all members together may have forgotten requests of earlier epochs. `answered`: the version up to which
/// each member has forgotten what it received. Where a member stopped being a target, one that became a target then continues its
/// memory.
pub(crate) fn forgotten_by_all(entry: &GroupEntry, answered: &BTreeMap<ServerId, Version>) -> Version {
    let mut forgotten = Version::first_of(entry.epoch);
    loop {
        let reaches = |told: &&Told| told.until.is_none_or(|until| Version::first_of(until) >= forgotten);
        let from =
            |told: &Told| answered.get(&told.server).map(|answer| Version::first_of(told.from).max(*answer));
        let earliest = entry.told.iter().filter(reaches).filter_map(from).min();
        match earliest.filter(|version| *version < forgotten) {
            Some(version) => forgotten = version,
            None => return forgotten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::Holder;

    /// In low gear one replica and the holders of the two others have the group's memory. The replica fails, and the sleepers
    /// return one after the other: what the holders received until then is remembered, unless they forgot it.
    #[test]
    fn holders_and_the_sleepers_that_come_back_remember_together() {
        let sleeper = |server, holder, awake| {
            let since = Epoch(2);
            let state = if awake { SlotState::CatchingUp { since } } else { SlotState::Away { since } };
            let holder = Some(Holder { server: ServerId(holder), covered: true });
            Slot { server: ServerId(server), state, holder }
        };
        let replica = Slot { server: ServerId(1), state: SlotState::InSync, holder: None };
        let steps = [(2, false, false), (3, true, false), (5, true, true)];
        let entry = steps.iter().fold(GroupEntry::unknown(), |before, &(epoch, second, third)| {
            let slots = vec![replica, sleeper(2, 4, second), sleeper(3, 5, third)];
            let told = before.told.clone();
            let mut entry = GroupEntry { epoch: Epoch(epoch), slots, told, ..GroupEntry::unknown() };
            entry.follow(&before);
            entry
        });
        let version = |epoch, seq| Version { epoch: Epoch(epoch), seq };
        let since = |answers: &[(u16, Version)]| {
            forgotten_by_all(&entry, &answers.iter().map(|(id, v)| (ServerId(*id), *v)).collect())
        };
        let restarted = (1, version(5, 0));
        assert_eq!(since(&[restarted]), version(5, 0));
        assert_eq!(since(&[(1, Version::ZERO)]), version(2, 0), "the replica was told of all since epoch 2");
        assert_eq!(since(&[restarted, (2, Version::ZERO)]), version(3, 0), "told of all since it came back");
        let both = [restarted, (2, Version::ZERO), (4, Version::ZERO)];
        assert_eq!(since(&both), version(2, 0), "and what was before, its holder knows");
        assert_eq!(since(&[restarted, (2, Version::ZERO), (4, version(2, 7))]), version(2, 7));
        assert_eq!(
            since(&[restarted, (4, Version::ZERO)]),
            version(5, 0),
            "of epochs 3 and 4 it was not told"
        );
        assert_eq!(since(&[restarted, (5, Version::ZERO)]), version(2, 0), "it stood in until epoch 5");
    }
}
