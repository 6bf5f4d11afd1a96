//! Taking up a new configuration, and activation: the one routine that follows every change. (R3, R4)

use crate::api::{StoreCommand, StoreOutcome};
use crate::catch_up::CatchUp;
use crate::group::{Context, Group, Wait, Waiting};
use crate::primary::{Phase, Primary};
use crate::replica::PlantedBug;
use crate::settlement::Settlement;
use ebb_types::{
    ClientReply, Epoch, GroupEntry, PeerMessage, Refusal, Run, ServerId, ServerReport, Slot, SlotState,
    Space, TailRun, Version,
};
use std::collections::BTreeSet;

impl Group {
    /// The metadata service configured the group anew.
    pub fn adopt(&mut self, cx: &mut Context, entry: GroupEntry) {
        if entry.epoch <= self.entry.epoch {
            // Within an epoch nothing changes but the leave to serve.
            if entry.stage() > self.entry.stage() {
                self.entry.fallback = None;
                self.go_on_activating(cx);
            }
            return;
        }
        self.fence = self.fence.max(entry.epoch);
        let old = std::mem::replace(&mut self.entry, entry);
        let stays = self.entry.slot_of(cx.me).is_some_and(|slot| slot.state == SlotState::InSync);
        if !is_told_of_all(&old, cx.me, self.entry.epoch, stays) {
            self.tail.join(self.entry.epoch);
        }
        self.repairs.clear();
        self.scrub = None;
        self.refuse_checks(cx, Refusal::NotReady);
        self.suspend_clients(cx);
        self.adopt_catch_up(cx, &old);
        self.give_listings(cx); // that waited for repairs of the ended epoch
        if self.entry.primary == Some(cx.me) {
            self.start_activation(cx);
        } else {
            let moved = ClientReply::Moved { entry: self.entry.clone() };
            self.waiting.drain(..).for_each(|waiting| waiting.turn_away(cx, moved.clone()));
        }
    }

    /// Requests of the ended epoch wait: they are answered by the rewrites of this one if they were ordered, are carried out
    /// anew if they were not, or move with the primary.
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
        // What the old configuration sent here directly is here: the missing set stays true while the slot stays awake. Of a
        // configuration between, that this server never saw, nothing may be here.
        let before = old.slot_of(cx.me).map(|s| s.state);
        let was_catching_up =
            self.entry.epoch == old.epoch.next() && before == Some(SlotState::CatchingUp { since });
        match &mut self.catch_up {
            Some(catch_up)
                if was_catching_up
                    && (catch_up.is_complete()
                        || catch_up.can_go_on(cx.map, &self.entry)
                        || sources.is_empty()) =>
            {
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

    /// So far requests may have taken effect before this epoch that this server does not remember.
    /// `in_sync`: its slot in that epoch.
    pub fn forgotten_at(&self, cx: &Context, epoch: Epoch, in_sync: bool) -> Version {
        let known = self.entry.epoch == epoch || is_told_of_all(&self.entry, cx.me, epoch, in_sync);
        if known { self.tail.forgotten() } else { Version::first_of(epoch) }
    }

    /// Asks all whose tails are missing for them.
    pub fn fence_others(&self, cx: &mut Context) {
        let Some(Primary { phase: Phase::Fencing { awaiting, .. }, .. }) = &self.primary else { return };
        let (group, epoch) = (self.id, self.entry.epoch);
        for &to in awaiting {
            let in_sync = self.entry.slot_of(to).is_some_and(|slot| slot.state == SlotState::InSync);
            cx.send(to, PeerMessage::Fence { group, epoch, in_sync, done: self.tail.done() });
        }
    }

    fn start_activation(&mut self, cx: &mut Context) {
        let epoch = self.entry.epoch;
        let targets = self.targets().flatten().map(|(server, _)| server);
        let awaiting: BTreeSet<ServerId> =
            targets.chain(self.live_sources(cx)).filter(|&s| s != cx.me).collect();
        let phase = Phase::Fencing { awaiting, foreign: Vec::new(), since: cx.now, asked: None };
        self.primary = Some(Primary::new(epoch, phase, self.tail.joined()));
        self.fence_others(cx);
        self.go_on_activating(cx);
    }

    /// The stand-ins from which slots catch up. What an earlier primary gave to one of them alone goes into one replica and into
    /// no other, unless their tails are gathered with those of the targets (R4). One that is gone, and comes back, comes under a
    /// new epoch.
    fn live_sources(&self, cx: &Context) -> impl Iterator<Item = ServerId> {
        let catching_up = |slot: &&Slot| matches!(slot.state, SlotState::CatchingUp { .. });
        let stand_ins = self.entry.slots.iter().filter(catching_up).filter_map(|slot| slot.stand_in);
        stand_ins.map(|s| s.server).filter(|s| cx.map.is_live(*s))
    }

    /// A source that is gone is not waited for.
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
            primary.recall(forgotten);
            done.into_iter().for_each(|run| self.tail.remember(run));
        }
        self.go_on_activating(cx);
    }

    /// Moves on as far as it can: fenced → listed (if this replica catches up) → on record as serving (if a slot has lost its
    /// complete copy) → compared with what the store has → serving. Before it is on record nothing is ordered, not even what tails have: so an
    /// epoch that never served leaves no trace, and the slots are what they were before it.
    pub fn go_on_activating(&mut self, cx: &mut Context) {
        let listed = self.catch_up.as_ref().is_none_or(CatchUp::is_listed);
        let Some(primary) = &mut self.primary else { return };
        let Phase::Fencing { awaiting, foreign, asked, .. } = &mut primary.phase else { return };
        let fenced = awaiting.is_empty() || cx.config.has(PlantedBug::SkipFence);
        // What is in the tail and not in the store yet, a rewrite would read without, and so undo.
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
            // Its source is gone: what it misses is listed anew, and then compared.
            let foreign = settlement.take_foreign();
            primary.phase = Phase::Fencing { awaiting: BTreeSet::new(), foreign, since: cx.now, asked: None };
            return;
        }
        if let StoreOutcome::Newer(newer) = outcome {
            self.serve(cx, &newer);
        }
    }

    /// R4: settles the tails, and serves. Clients' operations wait for what they must not overtake.
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

/// Whether a server hears of every record between the beginning of this configuration and that of `next`. Of epochs between, that
/// it does not know, it can say so if its slot was in sync before them and still is (`in_sync`): none is in sync again without
/// its own report. (R5)
fn is_told_of_all(entry: &GroupEntry, server: ServerId, next: Epoch, in_sync: bool) -> bool {
    let was_in_sync = entry.slot_of(server).is_some_and(|slot| slot.state == SlotState::InSync);
    let is_target = entry.slots.iter().filter_map(Slot::target).any(|target| target.0 == server);
    was_in_sync && in_sync || is_target && entry.epoch.next() == next
}
