//! Adopting a new configuration, and activation: the one routine that follows every change. (R3, R4)

use super::Group;
use crate::common::api::StoreOutcome;
use crate::common::config::PlantedBug;
use crate::common::context::{Context, Waiting};
use crate::replicated::catch_up::CatchUp;
use crate::replicated::cover::Covers;
use crate::replicated::primary::Primary;
use ebb_types::{
    ClientReply, Epoch, GroupEntry, Refusal, Run, ServerId, ServerReport, Slot, SlotState, TailRun, Version,
};
use std::collections::BTreeSet;

impl Group {
    /// Adopts a new configuration from the metadata service.
    pub fn adopt(&mut self, cx: &mut Context, entry: GroupEntry) {
        if entry.epoch <= self.member.epoch() {
            // Within an epoch only the permission to serve changes.
            if entry.stage() > self.entry().stage() {
                self.member.record_serving();
                self.go_on_activating(cx);
            }
            return;
        }
        let old = self.member.become_member_of(cx, entry);
        self.repairs.new_epoch();
        self.scrub = None;
        self.member.refuse_checks(cx, Refusal::NotReady);
        self.suspend_clients(cx);
        self.adopt_catch_up(cx, &old);
        self.give_listings(cx); // those that waited for repairs of the ended epoch
        if self.entry().primary == Some(cx.me) {
            self.start_activation(cx);
        } else {
            let moved = ClientReply::Moved { entry: self.entry().clone() };
            self.waiting.drain(..).for_each(|waiting| waiting.turn_away(cx, moved.clone()));
        }
        // The first commit of this epoch may have come before its configuration, and none may follow.
        self.member.forget_deletions(cx, self.is_complete());
    }

    /// Requests of the ended epoch wait: this epoch's rewrites answer those that were ordered, the others start over,
    /// or all of them move with the primary.
    fn suspend_clients(&mut self, cx: &mut Context) {
        self.covers = Covers::default();
        // It was not primary.
        let Some(primary) = self.primary.take() else { return };
        cx.shared.budget.end_clients(primary.ops.clients());
        let suspended: Vec<Waiting> = primary.ops.into_requests().collect();
        for waiting in suspended.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    fn adopt_catch_up(&mut self, cx: &mut Context, old: &GroupEntry) {
        let state = |entry: &GroupEntry| entry.slot_of(cx.me).map(|slot| slot.state);
        let (before, now) = (state(old), state(self.entry()));
        let Some(SlotState::CatchingUp { since }) = now else {
            if let Some(mut catch_up) = self.catch_up.take() {
                catch_up.end(cx);
            }
            return;
        };
        // Writes that the old configuration sent here directly are here, so the missing set stays valid while the slot
        // stays awake. Writes of an intermediate configuration that this server never saw may all be missing.
        let was_catching_up = self.member.epoch() == old.epoch.next() && before == now;
        match &mut self.catch_up {
            Some(catch_up) if was_catching_up && catch_up.continues(cx, &self.member) => {
                catch_up.new_epoch(cx, &self.member);
            }
            other => {
                if let Some(catch_up) = other {
                    catch_up.end(cx);
                }
                *other = Some(CatchUp::new(cx, &self.member, since));
            }
        }
        self.pump_catch_up(cx);
    }

    fn start_activation(&mut self, cx: &mut Context) {
        let others = self.tail_holders(cx).filter(|&s| s != cx.me).collect();
        let primary = self.primary.insert(Primary::new(cx, &self.member, others));
        primary.fence_others(cx, &self.member);
        self.go_on_activating(cx);
    }

    /// The servers whose tails a new primary gathers: the targets, and the live holders that slots catch up from. A
    /// record that an earlier primary sent to one of those alone would otherwise reach one replica and no other (R4). A
    /// holder that goes away and returns does so under a new epoch.
    fn tail_holders(&self, cx: &Context) -> impl Iterator<Item = ServerId> {
        let catching_up = |slot: &&Slot| matches!(slot.state, SlotState::CatchingUp { .. });
        let holders = self.entry().slots.iter().filter(catching_up).filter_map(|slot| slot.holder);
        let live = holders.flat_map(|s| s.servers()).filter(|s| cx.map.is_live(*s));
        self.member.targets().flatten().map(|(server, _)| server).chain(live)
    }

    /// Stops waiting for sources that are gone.
    pub(super) fn await_live_sources(&mut self, cx: &mut Context) {
        let needed: BTreeSet<ServerId> = self.tail_holders(cx).collect();
        if let Some(primary) = &mut self.primary {
            primary.await_only(&needed);
            self.go_on_activating(cx);
        }
    }

    pub(super) fn on_fence_reply(
        &mut self,
        cx: &mut Context,
        (from, epoch): (ServerId, Epoch),
        tail: Vec<TailRun>,
        done: (Vec<TailRun>, Version),
    ) {
        if epoch != self.member.epoch() {
            return;
        }
        if let Some(primary) = &mut self.primary {
            primary.on_fence_reply(&mut self.member, from, tail, done);
            self.go_on_activating(cx);
        }
    }

    /// Advances as far as it can: fenced → listed (if this replica catches up) → on record as serving (if a slot has
    /// lost its complete copy) → compared with the store → serving.
    pub(super) fn go_on_activating(&mut self, cx: &mut Context) {
        let listed = self.catch_up.as_ref().is_none_or(CatchUp::is_listed);
        // Only a primary is activated.
        let Some(primary) = &mut self.primary else { return };
        if primary.begin_comparing(cx, &self.member, listed) {
            self.serve(cx, &[]);
        }
    }

    /// The own store said which blocks of the tails it lacks. An answer of an ended epoch is ignored.
    pub(super) fn on_compared(&mut self, cx: &mut Context, epoch: Epoch, outcome: StoreOutcome) {
        let current = epoch == self.member.epoch();
        let Some(primary) = self.primary.as_mut().filter(|p| current && p.is_comparing()) else { return };
        if self.catch_up.as_ref().is_some_and(|catch_up| !catch_up.is_listed()) {
            return primary.become_fencing(cx);
        }
        if let StoreOutcome::Newer(newer) = outcome {
            self.serve(cx, &newer);
        }
    }

    /// R4: settles the tails, and serves. Client operations wait for the rewrites that they must not overtake.
    fn serve(&mut self, cx: &mut Context, newer: &[Run]) {
        // That was reported.
        let Some(settlement) = self.primary.as_mut().and_then(|p| p.become_serving(cx)) else { return };
        if !cx.config.has(PlantedBug::ForgetRequests) {
            for noted in settlement.notes(newer, self.catch_up.as_ref().map(CatchUp::missing)) {
                self.admit_note(cx, noted);
            }
        }
        self.settle(cx, settlement.rewrites(newer));
        self.advance_commit();
        self.send_committed(cx);
        self.start_covers(cx);
        for waiting in std::mem::take(&mut self.waiting) {
            self.on_client(cx, waiting);
        }
        if cx.draining {
            self.drain(cx);
        }
    }

    /// [Sierra §3.5]: no new requests; once those in flight are complete, another primary may be appointed.
    pub fn drain(&mut self, cx: &mut Context) {
        if self.primary.as_mut().is_some_and(Primary::become_draining) {
            self.release_if_drained(cx);
        }
    }

    pub(super) fn release_if_drained(&mut self, cx: &mut Context) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("a server that is not primary drained a group");
        };
        if primary.release_if_drained(cx, &self.member) {
            self.member.forget_deletions(cx, self.is_complete());
            cx.report(ServerReport::Released { group: self.member.id(), epoch: self.member.epoch() });
        }
    }

    pub(super) fn send_committed(&mut self, cx: &mut Context) {
        let Some(primary) = &mut self.primary else {
            return cx.bug("a server that is not primary committed");
        };
        primary.send_committed(cx, &self.member);
        self.member.forget_deletions(cx, self.is_complete());
    }
}
