//! What arrives from other servers and from the own store, and who takes it.

use super::Group;
use crate::common::api::{StoreCommand, StoreOutcome, StoreToken};
use crate::common::context::Context;
use crate::common::due::{Scrubbed, Wanted};
use crate::common::wait::{CheckFor, ListFor, Wait};
use bytes::Bytes;
use ebb_types::{ChunkId, Cursor, Epoch, ListPage, PeerMessage, Record, Refusal, Role, ServerId, Version};

impl Group {
    /// `ready`: the metadata service counts on this incarnation, and the store works.
    pub fn on_peer(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        message: PeerMessage,
        payload: Bytes,
        ready: bool,
    ) {
        let (group, current) = (self.member.id(), self.member.epoch());
        match message {
            PeerMessage::Fence { epoch, done, .. } if ready => self.member.on_fence(cx, from, epoch, done),
            PeerMessage::Fence { .. } => {}
            PeerMessage::FenceReply { epoch, tail, done, forgotten, .. } => {
                self.on_fence_reply(cx, (from, epoch), tail, (done, forgotten));
            }
            PeerMessage::Replicate { epoch, role, record, committed, must_fit } => {
                let (by, of) = ((from, epoch), (record.version, record.first));
                let admitted = match ready {
                    true => self.on_replicate(cx, by, (role, record), payload, (committed, must_fit)),
                    false => Err(Refusal::NotReady),
                };
                admitted.unwrap_or_else(|refusal| self.member.answer_record(cx, by, of, Err(refusal)));
            }
            PeerMessage::ReplicateReply { epoch, version, first, result, .. } => {
                self.on_replicate_reply(cx, (from, epoch), (version, first), result);
            }
            PeerMessage::Committed { epoch, committed, .. } if epoch == self.member.fence() => {
                self.member.commit_of(cx, epoch, committed, self.is_complete());
            }
            PeerMessage::Committed { .. } => {}
            PeerMessage::List { epoch, token, role, since, after, .. } => {
                self.list_for(cx, (from, ready), (epoch, token, role), (since, after));
            }
            PeerMessage::ListReply { token, result, .. } => self.on_list_reply(cx, (from, token), result),
            PeerMessage::Scrub { epoch, after, overdue, .. }
                if epoch == current && self.primary.is_some() =>
            {
                cx.shared.scrubs.want(group, Wanted { after, overdue });
            }
            PeerMessage::Scrub { .. } => {}
            PeerMessage::Check { epoch, token, role, chunk, first, count, .. } => {
                match self.member.admit(ready, epoch) {
                    Ok(()) => self.on_check(cx, from, CheckFor { epoch, token, role, chunk, first, count }),
                    Err(refusal) => self.member.answer_check(cx, from, token, Err(refusal)),
                }
            }
            PeerMessage::CheckReply { token, result, .. } => self.on_check_reply(cx, (from, token), result),
            PeerMessage::Scrubbed { epoch, after, end, sound, .. } if epoch == current => {
                cx.shared.scrubs.find(Scrubbed { group, after, end, sound });
            }
            PeerMessage::Scrubbed { .. } => {}
            PeerMessage::Fetch { epoch, token, role, chunk, first, count, whole, .. } => {
                let read = StoreCommand::Read { role, group, chunk, first, count };
                let whole = (whole && role == Role::Replica).then_some((chunk, first, count));
                match self.admit_fetch(ready, epoch, whole) {
                    Ok(()) => _ = cx.store(Wait::FetchFor { to: from, epoch, token, role }, read),
                    Err(refusal) => {
                        cx.send(from, PeerMessage::FetchReply { group, token, result: Err(refusal) })
                    }
                }
            }
            PeerMessage::FetchReply { token, result, .. } => {
                self.on_fetch_reply(cx, (from, token), result, payload);
            }
        }
    }

    fn list_for(
        &mut self,
        cx: &mut Context,
        (from, ready): (ServerId, bool),
        (epoch, token, role): (Epoch, u64, Role),
        (since, after): (Epoch, Option<Cursor>),
    ) {
        if let Err(refusal) = self.member.admit(ready, epoch) {
            let (group, result) = (self.member.id(), Err(refusal));
            return cx.send(from, PeerMessage::ListReply { group, token, result });
        }
        let came = cx.shared.token();
        self.member.list_for(from, ListFor { came, epoch, token, role, since, after, tried: None });
        self.give_listings(cx);
    }

    fn on_check_reply(
        &mut self,
        cx: &mut Context,
        of: (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
    ) {
        // The scrub that asked has ended.
        let Some(scrub) = &mut self.scrub else { return };
        let next = scrub.on_check_reply(cx, of, result);
        self.go_on_scrubbing(cx, next);
    }

    /// `whole`: the blocks that the reply must have as they are in a complete replica.
    fn admit_fetch(
        &mut self,
        ready: bool,
        epoch: Epoch,
        whole: Option<(ChunkId, u32, u32)>,
    ) -> Result<(), Refusal> {
        let behind = self.member.epoch() < epoch;
        self.member.admit(ready, epoch)?;
        let lacks = |(chunk, first, count)| {
            behind || self.catch_up.as_ref().is_some_and(|c| c.lacks(chunk, first, count))
        };
        if whole.is_some_and(lacks) { Err(Refusal::NotReady) } else { Ok(()) }
    }

    fn on_replicate(
        &mut self,
        cx: &mut Context,
        asker: (ServerId, Epoch),
        (role, record): (Role, Record),
        payload: Bytes,
        (committed, must_fit): (Version, bool),
    ) -> Result<(), Refusal> {
        if self.member.admit_record(cx, asker, (role, &record), &payload, must_fit)? {
            self.member.commit_of(cx, asker.1, committed, self.is_complete());
            self.member.take_record(cx, asker, (role, record), payload, must_fit);
        }
        Ok(())
    }

    fn on_list_reply(
        &mut self,
        cx: &mut Context,
        (from, token): (ServerId, u64),
        result: Result<ListPage, Refusal>,
    ) {
        if let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.is_listing(token)) {
            let next = scrub.on_listed(cx, from, result.ok());
            self.go_on_scrubbing(cx, next);
        } else if let Some(catch_up) = &mut self.catch_up {
            catch_up.on_list_reply(cx, &self.member, (from, token), result);
        }
    }

    fn on_fetch_reply(
        &mut self,
        cx: &mut Context,
        of: (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
        payload: Bytes,
    ) {
        if let Some(id) = self.repairs.awaiting(of.1) {
            let ended = self.repairs.on_reply(cx, &self.member, id, result, &payload);
            self.on_repair(cx, ended);
        } else if let Some(catch_up) = &mut self.catch_up {
            let fetched = catch_up.on_fetch_reply(cx, &mut self.member, of, result, payload);
            self.on_fetched(cx, fetched);
        }
    }

    /// The store completed a command.
    pub fn on_stored(&mut self, cx: &mut Context, token: StoreToken, wait: Wait, outcome: StoreOutcome) {
        let applied = self.member.applying.ended(token, &wait);
        if let Some(run) = applied {
            let failed = matches!(outcome, StoreOutcome::Failed(_));
            match wait {
                Wait::Own { seq, epoch } if failed => self.member.tail.remove(Version { epoch, seq }),
                Wait::Foreign { place: (_, _, version, ..), .. } if failed => {
                    self.member.tail.remove(version)
                }
                // It is stored, or the tail does not have it.
                _ => {}
            }
            if let Some(catch_up) = &mut self.catch_up {
                catch_up.record_ended(token, run.filter(|_| !failed));
            }
        }
        self.go_on(cx, wait, outcome);
        if applied.is_some() {
            self.give_listings(cx);
            self.go_on_activating(cx);
        }
    }

    pub fn note_commit(&mut self, cx: &mut Context) {
        self.member.note_commit(cx);
    }

    fn go_on(&mut self, cx: &mut Context, wait: Wait, outcome: StoreOutcome) {
        match wait {
            Wait::Own { seq, epoch } => self.on_own_stored(cx, (epoch, seq), outcome),
            Wait::CommitNoted => {
                self.member.commit_noted(!matches!(outcome, StoreOutcome::Failed(_)));
            }
            Wait::Foreign { askers, place: (_, _, version, first, _) } => {
                let result = match outcome {
                    StoreOutcome::Failed(refusal) => Err(refusal),
                    _ => Ok(()),
                };
                self.pump_catch_up(cx);
                for asker in askers {
                    self.member.answer_record(cx, asker, (version, first), result);
                }
            }
            Wait::OpRead { op, epoch, first } => self.on_op_read(cx, (epoch, op, first), outcome),
            Wait::RepairWritten { repair } => {
                let ended = self.repairs.on_written(cx, &self.member, repair);
                self.on_repair(cx, ended);
            }
            Wait::RepairChecked { repair } => {
                let ended = self.repairs.on_checked(cx, &self.member, repair, outcome);
                self.on_repair(cx, ended);
            }
            Wait::ScrubList { token } => {
                if let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.is_listing(token)) {
                    let page = if let StoreOutcome::Listed(page) = outcome { Some(page) } else { None };
                    let next = scrub.on_listed(cx, cx.me, page);
                    self.go_on_scrubbing(cx, next);
                }
            }
            Wait::CheckFor { to, check } => self.on_check_read(cx, to, check, outcome),
            Wait::ListFor { to, list } => self.on_listed_for(cx, to, list, outcome),
            Wait::FetchFor { to, epoch, token, role } => {
                self.on_fetched_for(cx, (to, token, role), epoch, outcome);
            }
            Wait::Settlement { epoch } => self.on_compared(cx, epoch, outcome),
            Wait::CatchUpNewer { token } => self.on_catch_up_newer(cx, token, outcome),
            Wait::CatchUpOwn { token } => {
                if let Some(catch_up) = &mut self.catch_up {
                    catch_up.on_own_list(cx, &self.member, token, outcome);
                }
            }
            Wait::CatchUpApplied { token } => {
                if let Some(catch_up) = &mut self.catch_up {
                    let fetched = catch_up.on_applied(cx, token, &outcome);
                    self.on_fetched(cx, fetched);
                }
            }
            Wait::CoverList { epoch, stands_for } => self.on_cover_list(cx, (epoch, stands_for), outcome),
            Wait::CoverRead { epoch, stands_for, run } => {
                self.on_cover_read(cx, (epoch, stands_for, run), outcome);
            }
            Wait::Column(_) => cx.bug("a set's command was given for a chunk group"),
        }
    }
}
