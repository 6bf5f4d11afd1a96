//! What keeps the copies complete and equal beside the operations: catch-up, covers, repairs, scrubs. Each does its own
//! work; here is what it needs from the others.

use super::Group;
use crate::common::api::StoreOutcome;
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::wait::{CheckFor, ListFor};
use crate::replicated::catch_up::Fetched;
use crate::replicated::member::first_lost;
use crate::replicated::primary::{Got, Plan, Work};
use crate::replicated::repair::{Ended, GivenUp};
use crate::replicated::scrub::{Next, Scrub};
use ebb_types::{
    ChunkError, ChunkId, Cursor, Epoch, Kind, Record, Refusal, Role, Run, ServerId, ServerReport, Version,
};

/// Catch-up.
impl Group {
    /// Lists and fetches as much as may be, and reports when nothing is missing.
    pub fn pump_catch_up(&mut self, cx: &mut Context) {
        // Nothing is missing here.
        let Some(catch_up) = &mut self.catch_up else { return };
        let fetched = catch_up.pump(cx, &mut self.member);
        self.on_fetched(cx, fetched);
    }

    /// Fetches missing blocks (chunk, first, count) out of turn, for an operation that waits for them.
    pub(super) fn demand(&mut self, cx: &mut Context, blocks: (ChunkId, u32, u32)) {
        let Some(catch_up) = &mut self.catch_up else {
            return cx.bug("blocks were demanded of a catch-up that does not exist");
        };
        let fetched = catch_up.demand(cx, &mut self.member, blocks);
        self.on_fetched(cx, fetched);
    }

    /// Operations that waited for blocks continue. If no live copy has them but members sleep, these are woken.
    pub(super) fn on_fetched(&mut self, cx: &mut Context, fetched: Fetched) {
        if fetched == Fetched::Nothing {
            return;
        }
        if fetched == Fetched::Lost && self.primary.is_some() {
            self.wake_others(cx);
        }
        self.advance_fetching(cx);
        self.pump_catch_up(cx);
    }

    /// Members that sleep may have the blocks that all live copies have lost.
    fn wake_others(&self, cx: &mut Context) {
        if self.member.others_sleep(cx) {
            cx.report(ServerReport::Damaged { group: self.member.id(), epoch: self.member.epoch() });
        }
    }

    pub(super) fn on_catch_up_newer(&mut self, cx: &mut Context, token: u64, outcome: StoreOutcome) {
        // The catch-up that asked has ended.
        let Some(catch_up) = &mut self.catch_up else { return };
        if catch_up.on_newer(cx, &self.member, token, outcome) {
            self.pump_catch_up(cx);
            self.go_on_activating(cx);
            self.advance_fetching(cx);
        }
    }
}

/// Covers.
impl Group {
    pub(super) fn start_covers(&mut self, cx: &mut Context) {
        if let Some(primary) = self.primary.as_ref().filter(|_| self.catch_up.is_none()) {
            self.covers.start(cx, &self.member, primary);
        }
    }

    pub(super) fn tick_covers(&mut self, cx: &mut Context) {
        let repairing = self.is_repairing();
        // Only a primary covers.
        let Some(primary) = &self.primary else { return };
        self.covers.tick(cx, &self.member, primary, repairing);
    }

    pub(super) fn on_cover_list(
        &mut self,
        cx: &mut Context,
        (epoch, stands_for): (Epoch, ServerId),
        outcome: StoreOutcome,
    ) {
        // Its epoch ended.
        let Some(primary) = self.primary.as_ref().filter(|_| epoch == self.member.epoch()) else { return };
        self.covers.on_list(cx, &self.member, primary, stands_for, outcome);
    }

    pub(super) fn on_cover_read(
        &mut self,
        cx: &mut Context,
        (epoch, stands_for, run): (Epoch, ServerId, Run),
        outcome: StoreOutcome,
    ) {
        // Its epoch ended.
        let Some(primary) = self.primary.as_ref().filter(|_| epoch == self.member.epoch()) else { return };
        let damage = self.covers.on_read(cx, &self.member, primary, (stands_for, run), outcome);
        if let Some((chunk, block, lost)) = damage {
            self.repair_around(cx, (chunk, block), lost);
        }
    }

    pub(super) fn on_cover_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        answered: (Version, u32),
        result: Result<(), Refusal>,
    ) {
        // Only a primary asks: it is no answer to this server.
        let Some(primary) = &self.primary else { return };
        self.covers.on_reply(cx, &self.member, primary, from, answered, result);
    }
}

/// Repairs.
impl Group {
    pub(super) fn repair(
        &mut self,
        cx: &mut Context,
        op: Option<u64>,
        blocks: (ChunkId, u32, u32),
        lost: Option<Version>,
    ) {
        let ended = self.repairs.repair(cx, &self.member, op, blocks, lost);
        self.on_repair(cx, ended);
    }

    /// Looks for blocks that are not here, as if never written, and that the client of `op` knows to be written.
    pub(super) fn seek(&mut self, cx: &mut Context, op: u64, blocks: (ChunkId, u32, u32)) {
        let ended = self.repairs.seek(cx, &self.member, op, blocks);
        self.on_repair(cx, ended);
    }

    /// Repairs a block of this member's own copy, and its neighbours. Returns the last block.
    pub(super) fn repair_around(
        &mut self,
        cx: &mut Context,
        block: (ChunkId, u32),
        lost: Option<Version>,
    ) -> Cursor {
        let (last, ended) = self.repairs.repair_around(cx, &self.member, block, lost);
        self.on_repair(cx, ended);
        last
    }

    pub(super) fn on_repair(&mut self, cx: &mut Context, ended: Ended) {
        match ended {
            Ended::Not => return,
            Ended::Repaired(op) => {
                if let Some(op) = op {
                    self.advance_op(cx, op);
                }
                self.repairs_ended(cx);
            }
            Ended::GivenUp(given_up) => self.on_given_up(cx, given_up),
        }
        // The last commit may have come while it ran: none may follow, and no tick of a group that is not busy.
        self.member.forget_deletions(cx, self.is_complete());
    }

    /// No live copy has some blocks. If members sleep, they are woken, but not for a scrub.
    fn on_given_up(&mut self, cx: &mut Context, given_up: GivenUp) {
        let GivenUp { op, parts, sure, stale, sought } = given_up;
        let primary = self.primary.as_ref();
        let scrubs = op.and_then(|op| primary?.ops.get(op)).is_some_and(|op| op.is_scrub());
        if primary.is_some() && !scrubs {
            self.wake_others(cx);
        }
        match op {
            Some(op) => {
                let why = if sought { ChunkError::Missing } else { ChunkError::Corrupt };
                self.fail_damaged(cx, op, why, (&parts, sure, stale));
            }
            None => {
                self.member.refuse_checks(cx, if stale { Refusal::NotReady } else { Refusal::Corrupt });
                self.give_listings(cx);
            }
        }
    }

    /// Listings, checks and covers that waited for the blocks continue.
    fn repairs_ended(&mut self, cx: &mut Context) {
        if !self.is_repairing() {
            self.give_listings(cx);
            self.member.give_checks(cx);
            self.tick_covers(cx);
        }
    }

    pub(super) fn repairs_lost(&mut self, cx: &mut Context, peer: ServerId) {
        for id in self.repairs.waiting_for(peer) {
            let ended = self.repairs.copy_lost(cx, &self.member, id);
            self.on_repair(cx, ended);
        }
    }

    /// Gives the store the listings that others wait for. They wait while this member repairs its own copy.
    pub(super) fn give_listings(&mut self, cx: &mut Context) {
        if !self.is_repairing() {
            self.member.give_listings(cx);
        }
    }

    /// The own store listed for another server. A listing that meets lost blocks waits until their repair was tried.
    /// Blocks that cannot be repaired are listed as lost, so that the rest can still be copied. A listing of an ended
    /// epoch is refused: its runs may have been dropped while the store was listing them.
    pub(super) fn on_listed_for(
        &mut self,
        cx: &mut Context,
        to: ServerId,
        mut list: ListFor,
        outcome: StoreOutcome,
    ) {
        let result = match outcome {
            _ if list.epoch < self.member.epoch() => Err(self.member.stale()),
            StoreOutcome::Listed(page) => {
                while let Some((lost, newest)) = first_lost(&page, list.tried) {
                    list.tried = Some(self.repair_around(cx, (lost.chunk, lost.block), Some(newest)));
                    if self.is_repairing() {
                        return self.member.list_for(to, list);
                    }
                }
                Ok(page)
            }
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => unreachable!("the store answers a listing with a listing"),
        };
        self.member.answer_listing(cx, to, &list, result);
    }

    /// The own store read blocks for another server. Damage that it met is repaired here; that server asks elsewhere.
    /// What was given up is not sought again: each copy that lacks it would make this server ask all others for each
    /// block (seed 37000009635).
    pub(super) fn on_fetched_for(
        &mut self,
        cx: &mut Context,
        (to, token, role): (ServerId, u64, Role),
        epoch: Epoch,
        outcome: StoreOutcome,
    ) {
        if epoch < self.member.epoch() {
            return self.member.answer_fetch(cx, to, token, StoreOutcome::Failed(self.member.stale()));
        }
        if let (StoreOutcome::Damaged { chunk, block, lost, given_up: false, .. }, Role::Replica) =
            (&outcome, role)
            && self.repairs.may_follow_a_fetch(cx.now)
        {
            self.repair_around(cx, (*chunk, *block), *lost);
        }
        self.member.answer_fetch(cx, to, token, outcome);
    }
}

/// Scrubs, on the primary.
impl Group {
    /// Begins to compare a page, unless this server is catching up or already compares one.
    pub fn begin_scrub(&mut self, cx: &mut Context, after: Option<Cursor>) {
        if self.scrub.is_none() && self.catch_up.is_none() {
            self.scrub = Some(Scrub::new(cx, &self.member, after));
            self.advance_scrub(cx);
        }
    }

    pub(super) fn advance_scrub(&mut self, cx: &mut Context) {
        let member = &self.member;
        let serving = self.primary.as_ref().is_some_and(|p| p.takes_requests()) && !member.is_superseded();
        let may = serving && !cx.draining && cx.has_lease();
        // None is under way.
        let Some(scrub) = &mut self.scrub else { return };
        let next = scrub.advance(cx, member, may);
        self.go_on_scrubbing(cx, next);
    }

    pub(super) fn go_on_scrubbing(&mut self, cx: &mut Context, next: Next) {
        match next {
            Next::Wait => {}
            Next::Advance => self.advance_scrub(cx),
            Next::End => self.scrub = None,
            Next::Check { chunk, blocks } => self.admit_op(cx, Plan::own(chunk, blocks, Work::Check)),
            Next::FetchNewer { op, source, blocks } => {
                let ended = self.repairs.fetch_newer(cx, &self.member, (op, source), blocks);
                self.on_repair(cx, ended);
            }
            Next::Heal { op, blocks } => {
                if let Some(op) = self.primary.as_mut().and_then(|p| p.ops.get_mut(op)) {
                    op.become_heal(cx, blocks);
                }
                self.advance_op(cx, op);
            }
            Next::HealDeletion { op, chunk } => {
                self.end_op(cx, op);
                self.admit_op(cx, Plan::own(chunk, (0, u32::MAX), Work::Heal { kind: Kind::Delete }));
            }
            Next::Release { op } => {
                self.end_op(cx, op);
                self.advance_scrub(cx);
            }
        }
    }

    /// The operation that holds a window has read of the own copy what can be read.
    pub(super) fn compare(&mut self, cx: &mut Context, id: u64, got: Got) {
        if let Some(op) = self.op_mut(id) {
            op.become_comparing(cx);
        }
        let Some(scrub) = &mut self.scrub else { return self.end_op(cx, id) };
        let own: Vec<Record> = got.into_values().flat_map(|(records, _)| records).collect();
        let next = scrub.compare(cx, &self.member, id, &own);
        self.go_on_scrubbing(cx, next);
    }

    /// A window's operation ended: its blocks were ordered again (`done`), or it failed.
    pub(super) fn scrub_op_ended(&mut self, cx: &mut Context, done: bool) {
        // It ended before its operation.
        let Some(scrub) = &mut self.scrub else { return };
        scrub.op_ended(cx, done);
        self.advance_scrub(cx);
    }
}

/// Scrubs, on the servers of the other copies.
impl Group {
    /// Checks blocks for the primary. Only under the present configuration is it known what must be here.
    pub(super) fn on_check(&mut self, cx: &mut Context, to: ServerId, check: CheckFor) {
        let complete = check.epoch == self.member.epoch()
            && match check.role {
                Role::Replica => self.catch_up.is_none(),
                Role::Offload { stands_for } => self.entry().is_covered_by(cx.me, stands_for),
            };
        if complete {
            self.member.read_check(cx, to, check);
        } else {
            self.member.answer_check(cx, to, check.token, Err(Refusal::NotReady));
        }
    }

    /// Sends the result. A damaged replica is repaired first, then the blocks are read again.
    pub(super) fn on_check_read(
        &mut self,
        cx: &mut Context,
        to: ServerId,
        check: CheckFor,
        outcome: StoreOutcome,
    ) {
        let result = match outcome {
            _ if check.epoch < self.member.epoch() => Err(self.member.stale()),
            StoreOutcome::Read { records, .. } => {
                cx.shared.stats.scrub.checked_bytes += crate::replicated::scrub::checked_bytes(&records);
                Ok(records)
            }
            StoreOutcome::Damaged { chunk, block, lost, .. } => {
                if check.role == Role::Replica && !cx.config.has(PlantedBug::OverlookDamage) {
                    self.repair_around(cx, (chunk, block), lost);
                    if self.is_repairing() {
                        return self.member.check_later(to, check);
                    }
                }
                Err(Refusal::Corrupt)
            }
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => unreachable!("the store answers a check with blocks"),
        };
        self.member.answer_check(cx, to, check.token, result);
    }
}
