//! What every member of a group does for the primary and for members that are catching up: fence, store, list, fetch.

use crate::api::{StoreCommand, StoreOutcome, StoreToken};
use crate::catch_up::CatchUp;
use crate::group::{Context, Group, ListFor, Wait, place};
use crate::replica::PlantedBug;
use crate::scrub::{CheckFor, Scrubbed, Wanted};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, Content, Cursor, Epoch, Kind, ListPage, PeerMessage, Record, Refusal, ServerId, Space,
    TailRun, Version, block_crcs,
};

impl Group {
    pub fn on_peer(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        message: PeerMessage,
        payload: Bytes,
        ready: bool,
    ) {
        let group = self.id;
        match message {
            PeerMessage::Fence { epoch, done, .. } => {
                // The tail of a server that the metadata service does not know yet cannot be trusted to be complete.
                if ready && self.fence_to(epoch).is_ok() {
                    done.into_iter().for_each(|run| self.tail.remember(run));
                    let (tail, done) = (self.tail.uncommitted(), self.tail.done());
                    let forgotten = self.tail.forgotten();
                    cx.send(from, PeerMessage::FenceReply { group, epoch, tail, done, forgotten });
                }
            }
            PeerMessage::FenceReply { epoch, tail, done, forgotten, .. } => {
                self.on_fence_reply(cx, from, epoch, tail, (done, forgotten));
            }
            PeerMessage::Replicate { epoch, space, record, committed, must_fit } => {
                let (version, first) = (record.version, record.first);
                let refused = if !ready {
                    Err(Refusal::NotReady)
                } else {
                    self.on_replicate(cx, from, epoch, space, record, payload, committed, must_fit)
                };
                if let Err(refusal) = refused {
                    let result = Err(refusal);
                    cx.send(from, PeerMessage::ReplicateReply { group, epoch, version, first, result });
                }
            }
            PeerMessage::ReplicateReply { epoch, version, first, result, .. } => {
                self.on_replicate_reply(cx, from, epoch, (version, first), result);
            }
            PeerMessage::Committed { epoch, committed, .. } => {
                if epoch == self.fence {
                    self.commit_of(cx, epoch, committed);
                }
            }
            PeerMessage::List { epoch, token, space, since, after, .. } => {
                match self.admit(ready, epoch) {
                    Ok(()) => {
                        let came = cx.shared.token();
                        let list = ListFor { came, epoch, token, space, since, after, tried: None };
                        self.lists.insert(from, list);
                        self.give_listings(cx);
                    }
                    Err(refusal) => {
                        cx.send(from, PeerMessage::ListReply { group, token, result: Err(refusal) });
                    }
                };
            }
            PeerMessage::ListReply { token, result, .. } => {
                if !self.on_scrub_list(cx, from, token, &result) {
                    self.on_list_reply(cx, from, token, result);
                }
            }
            PeerMessage::Scrub { epoch, after, overdue, .. } => {
                if epoch == self.entry.epoch && self.primary.is_some() {
                    cx.shared.scrub_wanted.insert(group, Wanted { after, overdue });
                }
            }
            PeerMessage::Check { epoch, token, space, chunk, first, count, .. } => {
                match self.admit(ready, epoch) {
                    Ok(()) => {
                        self.on_check(cx, from, epoch, CheckFor { token, space, chunk, first, count });
                    }
                    Err(refusal) => {
                        cx.send(from, PeerMessage::CheckReply { group, token, result: Err(refusal) });
                    }
                }
            }
            PeerMessage::CheckReply { token, result, .. } => self.on_check_reply(cx, from, token, result),
            PeerMessage::Scrubbed { epoch, after, end, sound, .. } => {
                if epoch == self.entry.epoch {
                    cx.shared.scrubbed.push(Scrubbed { group, after, end, sound });
                }
            }
            PeerMessage::Fetch { epoch, token, space, chunk, first, count, whole, .. } => {
                let lacks = || {
                    let lacks = |c: &CatchUp| c.lacks(chunk, first, count);
                    self.entry.epoch < epoch || self.catch_up.as_ref().is_some_and(lacks)
                };
                let refused = whole && space == Space::Replica && lacks();
                let admitted = self.admit(ready, epoch);
                match admitted.and(if refused { Err(Refusal::NotReady) } else { Ok(()) }) {
                    Ok(()) => {
                        let command = StoreCommand::Read { space, group, chunk, first, count };
                        cx.store(group, Wait::FetchFor { to: from, token, space }, command);
                    }
                    Err(refusal) => {
                        cx.send(from, PeerMessage::FetchReply { group, token, result: Err(refusal) });
                    }
                };
            }
            PeerMessage::FetchReply { token, result, .. } => {
                self.on_fetch_reply(cx, from, token, result, payload);
            }
        }
    }

    /// A commit of an older epoch settles nothing here: this member may not have been part of that epoch, and its tail may be
    /// older still.
    fn commit_of(&mut self, cx: &mut Context, epoch: Epoch, committed: Version) {
        if committed.epoch == epoch {
            self.tail.commit(committed);
            self.forget_deletions(cx);
        }
    }

    /// R1. Epoch numbers come from the replicated metadata service, so a higher one in any message proves that the
    /// older configuration has ended.
    fn fence_to(&mut self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch < self.fence {
            return Err(Refusal::Stale { newest: self.fence });
        }
        self.fence = epoch;
        Ok(())
    }

    fn admit(&mut self, ready: bool, epoch: Epoch) -> Result<(), Refusal> {
        if !ready {
            return Err(Refusal::NotReady);
        }
        self.fence_to(epoch)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one message")]
    fn on_replicate(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        epoch: Epoch,
        space: Space,
        record: Record,
        payload: Bytes,
        committed: Version,
        must_fit: bool,
    ) -> Result<(), Refusal> {
        if let Err(stale) = self.fence_to(epoch)
            && !cx.config.has(PlantedBug::SkipFence)
        {
            return Err(stale);
        }
        let (version, first) = (record.version, record.first);
        if version.epoch == epoch && version <= self.tail.committed() {
            // A late resend over another connection: a deletion may have followed and been forgotten.
            let (group, result) = (self.id, Ok(()));
            cx.send(from, PeerMessage::ReplicateReply { group, epoch, version, first, result });
            return Ok(());
        }
        let place = place(space, &record);
        if self.applying.join(cx, (from, epoch), place) {
            return Ok(());
        }
        if record.fault(payload.len()).is_some() || record.version.epoch > epoch {
            return Err(Refusal::Malformed);
        }
        if let Content::Data { crcs } = &record.content
            && *crcs != block_crcs(&payload)
        {
            cx.shared.stats.damage.garbled += 1;
            return Err(Refusal::Malformed);
        }
        // R10: new client writes are refused early; what keeps acknowledged data safe may use the reserve.
        if cx.full && !must_fit {
            return Err(Refusal::NoSpace);
        }
        if matches!(space, Space::Offload { .. }) {
            cx.shared.stats.offloaded_bytes += payload.len() as u64;
        }
        self.commit_of(cx, epoch, committed);
        self.tail.push(TailRun { run: record.run(), request: record.request });
        let wait = Wait::Foreign { askers: vec![(from, epoch)], place };
        let committed = self.tail.committed();
        self.applying.apply(cx, wait, (space, record), payload, must_fit, committed);
        Ok(())
    }

    /// Gives the store the listings that others wait for. A record of an older epoch that the store is still applying may be
    /// on all other targets of that epoch and then be acknowledged, so a listing must not overtake it. Offload for a slot is
    /// listed only while the configuration says that it is kept: once dropped, it would list as nothing missed.
    pub fn give_listings(&mut self, cx: &mut Context) {
        if self.is_repairing() {
            return;
        }
        let (group, applying, entry) = (self.id, &self.applying, &self.entry);
        self.lists.retain(|&to, list| {
            let ListFor { epoch, token, space, since, after, .. } = *list;
            if applying.has_direct_before(epoch) {
                return true;
            }
            match space {
                Space::Offload { stands_for } if !entry.is_covered_by(cx.me, stands_for) => {
                    cx.send(to, PeerMessage::ListReply { group, token, result: Err(Refusal::NotReady) });
                }
                _ => {
                    let command = StoreCommand::List { space, group, since, after };
                    cx.store(group, Wait::ListFor { to, list: *list }, command);
                }
            }
            false
        });
    }

    /// A listing that meets lost blocks waits until their repair was tried. Blocks that cannot be repaired are listed as lost, so
    /// that the rest can still be copied. A listing of an ended epoch is refused: its runs may have been dropped while the
    /// store was listing them.
    fn on_listed_for(&mut self, cx: &mut Context, to: ServerId, mut list: ListFor, outcome: StoreOutcome) {
        let result = match outcome {
            _ if list.epoch < self.entry.epoch => Err(Refusal::Stale { newest: self.entry.epoch }),
            StoreOutcome::Listed(page) => {
                while let Some((lost, newest)) = first_lost(&page, list.tried) {
                    list.tried = Some(self.repair_around(cx, lost.chunk, lost.block, Some(newest)));
                    if self.is_repairing() {
                        // Only a server's latest request waits for a reply.
                        let waits = self.lists.entry(to).or_insert(list);
                        if waits.came < list.came {
                            *waits = list;
                        }
                        return;
                    }
                }
                Ok(page)
            }
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => unreachable!("the store answers a listing with a listing"),
        };
        cx.send(to, PeerMessage::ListReply { group: self.id, token: list.token, result });
    }

    pub fn on_stored(&mut self, cx: &mut Context, token: StoreToken, wait: Wait, outcome: StoreOutcome) {
        let group = self.id;
        let applied = self.applying.ended(token, &wait);
        if let Some(run) = applied {
            let failed = matches!(outcome, StoreOutcome::Failed(_));
            match wait {
                Wait::Own { seq, epoch } if failed => self.tail.remove(Version { epoch, seq }),
                Wait::Foreign { place: (_, _, version, ..), .. } if failed => self.tail.remove(version),
                _ => {}
            }
            if let Some(catch_up) = &mut self.catch_up {
                catch_up.ended(token, run.filter(|_| !failed));
            }
        }
        match wait {
            Wait::Own { seq, epoch } => self.on_own_stored(cx, epoch, seq, outcome),
            Wait::Foreign { askers, place: (_, _, version, first, _) } => {
                let result = match outcome {
                    StoreOutcome::Failed(refusal) => Err(refusal),
                    _ => Ok(()),
                };
                self.pump_catch_up(cx);
                for (to, epoch) in askers {
                    cx.send(to, PeerMessage::ReplicateReply { group, epoch, version, first, result });
                }
            }
            Wait::OpRead { op, epoch, first } => self.on_op_read(cx, epoch, op, first, outcome),
            Wait::RepairWritten { repair } => self.on_repair_written(cx, repair),
            Wait::RepairChecked { repair } => self.on_repair_checked(cx, repair, outcome),
            Wait::ScrubList { question } => self.on_own_scrub_list(cx, question, outcome),
            Wait::CheckFor { to, check } => self.on_check_read(cx, to, check, outcome),
            Wait::ListFor { to, list } => self.on_listed_for(cx, to, list, outcome),
            Wait::FetchFor { to, token, space } => {
                if let (StoreOutcome::Damaged { chunk, block, lost }, Space::Replica) = (&outcome, space) {
                    self.repair_around(cx, *chunk, *block, *lost);
                }
                let (result, payload) = match outcome {
                    StoreOutcome::Read { records, payload } => (Ok(records), payload),
                    StoreOutcome::Damaged { .. } => (Err(Refusal::Corrupt), Bytes::new()),
                    StoreOutcome::Failed(refusal) => (Err(refusal), Bytes::new()),
                    _ => unreachable!("the store answers a read with blocks"),
                };
                cx.send_with(to, PeerMessage::FetchReply { group, token, result }, payload);
            }
            Wait::Settlement { epoch } => self.on_compared(cx, epoch, outcome),
            Wait::CatchUpNewer { token } => self.on_catch_up_newer(cx, token, outcome),
            Wait::CatchUpOwn { token } => self.on_own_list(cx, token, outcome),
            Wait::CatchUpApplied { token } => self.on_catch_up_applied(cx, token, outcome),
            Wait::CoverList { epoch, stands_for } => self.on_cover_list(cx, epoch, stands_for, outcome),
            Wait::CoverRead { epoch, stands_for, run } => {
                self.on_cover_read(cx, epoch, stands_for, run, outcome);
            }
        }
        if applied.is_some() {
            self.give_listings(cx);
            self.go_on_activating(cx);
        }
    }
}

/// The first lost block after `after`, and the version that it was not newer than.
fn first_lost(page: &ListPage, after: Option<Cursor>) -> Option<(Cursor, Version)> {
    page.runs.iter().filter(|run| run.kind == Kind::Lost).find_map(|run| {
        let first = match after {
            Some(after) if after.chunk == run.chunk => run.first.max(after.block + 1),
            _ => run.first,
        };
        let behind = after.is_none_or(|after| after.chunk <= run.chunk) && first < run.first + run.count;
        behind.then_some((Cursor { chunk: run.chunk, block: first }, run.version))
    })
}

/// Splits the result of a read or fetch into records with their own payloads. `None`: the lengths do not add up.
pub(crate) fn split_payload(records: Vec<Record>, payload: &Bytes) -> Option<Vec<(Record, Bytes)>> {
    let mut at = 0usize;
    let mut parts = Vec::with_capacity(records.len());
    for record in records {
        let len = match record.content {
            Content::Data { .. } => record.count as usize * BLOCK_BYTES,
            _ => 0,
        };
        if payload.len() < at + len {
            return None;
        }
        parts.push((record, payload.slice(at..at + len)));
        at += len;
    }
    (at == payload.len()).then_some(parts)
}
