//! Cover: brings a new holder up to date from the primary's own blocks, the mirror image of catch-up. At-risk data
//! first (R8). [Sierra §3.7]

use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::blocks::split_payload;
use crate::common::context::Context;
use crate::common::wait::Wait;
use crate::replicated::catch_up::FETCH_BLOCKS;
use crate::replicated::member::Member;
use crate::replicated::primary::Primary;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Kind, Moment, PeerMessage, Record, Refusal, Role,
    Run, ServerId, ServerReport, SlotState, Version, lost_block_crc,
};
use std::collections::{BTreeMap, VecDeque};

/// The covers of one primary, by the server that is stood in for.
#[derive(Default)]
pub(crate) struct Covers(BTreeMap<ServerId, Cover>);

struct Cover {
    to: ServerId,
    since: Epoch,
    step: Step,
    /// Listed runs to read, and records to send; one is in progress at a time.
    runs: VecDeque<Run>,
    records: VecDeque<(Record, Bytes)>,
    after: Option<Cursor>,
    listed: bool,
    /// Set when all listed records are there: what was ordered until then must still arrive.
    until: Option<Version>,
}

#[derive(Clone, Copy)]
enum Step {
    Ready,
    Storing,
    /// It met a damaged block at this time, which is being repaired.
    Repairing {
        since: Moment,
    },
    /// Pieces of one large write share a version: the first block tells them apart.
    Sent {
        version: Version,
        first: u32,
    },
    /// The holder refused the record at this time, or the connection broke: the tick resends it.
    Refused {
        at: Moment,
    },
    Reported {
        at: Moment,
    },
}

/// A damaged block of the own store that is to be repaired: chunk, block, and the version that a lost one was not newer
/// than.
pub(crate) type Damage = (ChunkId, u32, Option<Version>);

impl Covers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins with every holder that the configuration says lacks older writes. Only for a replica that lacks nothing:
    /// another one cannot pass on what it lacks itself. It catches up first, and is in sync under the next
    /// configuration.
    pub fn start(&mut self, cx: &mut Context, member: &Member, primary: &Primary) {
        for slot in &member.entry().slots {
            if let (SlotState::Away { since }, Some(holder)) = (slot.state, slot.holder)
                && !holder.covered
            {
                self.0.insert(slot.server, Cover::new(holder.server, since));
            }
        }
        self.pump(cx, member, primary);
    }

    fn pump(&mut self, cx: &mut Context, member: &Member, primary: &Primary) {
        for (&stands_for, cover) in &mut self.0 {
            cover.pump(cx, member, primary, stands_for);
        }
    }

    /// `repairing`: blocks of this replica are being repaired.
    pub fn tick(&mut self, cx: &mut Context, member: &Member, primary: &Primary, repairing: bool) {
        for cover in self.0.values_mut() {
            cover.tick(cx, repairing);
        }
        self.pump(cx, member, primary);
    }

    pub fn peer_lost(&mut self, peer: ServerId) {
        for cover in self.0.values_mut() {
            if cover.to == peer && matches!(cover.step, Step::Sent { .. }) {
                cover.step = Step::Refused { at: Moment::ZERO };
            }
        }
    }

    pub fn on_list(
        &mut self,
        cx: &mut Context,
        member: &Member,
        primary: &Primary,
        stands_for: ServerId,
        outcome: StoreOutcome,
    ) {
        let Some(cover) = self.0.get_mut(&stands_for) else {
            return cx.bug("a cover that does not exist listed its store");
        };
        cover.step = Step::Ready;
        if let StoreOutcome::Listed(page) = outcome {
            cover.runs = page.runs.into_iter().filter(|run| is_wanted(run, member.epoch())).collect();
            cover.after = page.next;
            cover.listed = page.next.is_none();
        }
        cover.pump(cx, member, primary, stands_for);
    }

    /// Returns the damage that it met, which must be repaired first.
    pub fn on_read(
        &mut self,
        cx: &mut Context,
        member: &Member,
        primary: &Primary,
        (stands_for, run): (ServerId, Run),
        outcome: StoreOutcome,
    ) -> Option<Damage> {
        let Some(cover) = self.0.get_mut(&stands_for) else {
            cx.bug("a cover that does not exist read its store");
            return None;
        };
        cover.step = Step::Ready;
        match outcome {
            StoreOutcome::Read { records, payload } => {
                let parts = split_payload(records, &payload).unwrap_or_default();
                let since = cover.since;
                let wanted = |r: &Record| r.version.epoch < member.epoch() && r.version.epoch >= since;
                cover.records.extend(parts.into_iter().filter(|(r, _)| wanted(r)));
            }
            StoreOutcome::Damaged { block, given_up: true, .. } => {
                cover.runs.extend(around(run, block));
                cover.records.push_back(given_up(member.id(), run, block));
            }
            StoreOutcome::Damaged { chunk, block, lost, .. } => {
                cover.runs.push_front(run);
                cover.step = Step::Repairing { since: cx.now };
                return Some((chunk, block, lost));
            }
            // The tick retries it.
            _ => {
                cover.runs.push_front(run);
                return None;
            }
        }
        cover.pump(cx, member, primary, stands_for);
        None
    }

    /// A holder has a record of an older epoch, or refused it.
    pub fn on_reply(
        &mut self,
        cx: &mut Context,
        member: &Member,
        primary: &Primary,
        from: ServerId,
        answered: (Version, u32),
        result: Result<(), Refusal>,
    ) {
        let sent = |step: &Step| match *step {
            Step::Sent { version, first } => Some((version, first)),
            _ => None,
        };
        let matches =
            |(_, cover): &(&ServerId, &mut Cover)| cover.to == from && sent(&cover.step) == Some(answered);
        // Late, or twice: it waits for another answer.
        let Some((&stands_for, cover)) = self.0.iter_mut().find(matches) else { return };
        if result.is_err() {
            cover.step = Step::Refused { at: cx.now };
            return;
        }
        let sent = cover.records.pop_front().map(|(record, _)| (record.version, record.first));
        debug_assert_eq!(sent, Some(answered), "the first was sent");
        cover.step = Step::Ready;
        cover.pump(cx, member, primary, stands_for);
    }
}

impl Cover {
    fn new(to: ServerId, since: Epoch) -> Cover {
        let (runs, records) = (VecDeque::new(), VecDeque::new());
        Cover { to, since, step: Step::Ready, runs, records, after: None, listed: false, until: None }
    }

    fn tick(&mut self, cx: &Context, repairing: bool) {
        let late = |at: Moment| cx.now.since(at) >= cx.config.resend_after;
        match self.step {
            Step::Refused { at } | Step::Reported { at } if late(at) => self.step = Step::Ready,
            // A repair that was given up is tried again, but not at the speed of the network.
            Step::Repairing { since } if !repairing && late(since) => self.step = Step::Ready,
            // It goes on by itself, or waits for an answer.
            _ => {}
        }
    }

    /// Does the next thing, if nothing is in progress: sends a record, reads a run, lists a page, or reports that all
    /// is there.
    fn pump(&mut self, cx: &mut Context, member: &Member, primary: &Primary, stands_for: ServerId) {
        let (group, epoch) = (member.id(), member.epoch());
        if !matches!(self.step, Step::Ready) {
            return;
        }
        let deletion = self.runs.front().copied().filter(|run| run.kind == Kind::Delete);
        if let (true, Some(Run { chunk, first, count, version, .. })) = (self.records.is_empty(), deletion) {
            self.runs.pop_front();
            let content = Content::Delete;
            let record = Record { group, chunk, first, count, version, request: None, content };
            self.records.push_back((record, Bytes::new()));
        }
        if let Some((record, payload)) = self.records.front().cloned() {
            self.step = Step::Sent { version: record.version, first: record.first };
            let (role, committed) = (Role::Offload { stands_for }, member.tail.committed());
            let message = PeerMessage::Replicate { epoch, role, record, committed, must_fit: true };
            cx.send_with(self.to, message, payload);
        } else if let Some(run) = self.runs.pop_front() {
            if run.count > FETCH_BLOCKS {
                let rest = Run { first: run.first + FETCH_BLOCKS, count: run.count - FETCH_BLOCKS, ..run };
                self.runs.push_front(rest);
            }
            self.step = Step::Storing;
            let run = Run { count: run.count.min(FETCH_BLOCKS), ..run };
            let Run { chunk, first, count, .. } = run;
            let command = StoreCommand::Read { role: Role::Replica, group, chunk, first, count };
            cx.store(Wait::CoverRead { epoch, stands_for, run }, command);
        } else if !self.listed {
            self.step = Step::Storing;
            let (since, after) = (self.since, self.after);
            let command = StoreCommand::List { role: Role::Replica, group, since, after };
            cx.store(Wait::CoverList { epoch, stands_for }, command);
        } else if primary.replicated() >= *self.until.get_or_insert(primary.newest()) {
            // The records of this epoch that replaced listed ones have arrived too. If not, the next tick checks again.
            self.step = Step::Reported { at: cx.now };
            cx.report(ServerReport::Covered { group, epoch, stands_for });
        }
    }
}

/// The run without a block.
fn around(run: Run, block: u32) -> impl Iterator<Item = Run> {
    let before = Run { count: block - run.first, ..run };
    let behind = Run { first: block + 1, count: run.first + run.count - block - 1, ..run };
    [before, behind].into_iter().filter(|run| run.count > 0)
}

/// A block that is stored as lost here: so it is at the holder, which else would never have all.
fn given_up(group: GroupId, run: Run, block: u32) -> (Record, Bytes) {
    let Run { chunk, version, .. } = run;
    let content = Content::Data { crcs: vec![lost_block_crc()] };
    let record = Record { group, chunk, first: block, count: 1, version, request: None, content };
    (record, Bytes::from_static(&[0; BLOCK_BYTES]))
}

/// The holder gets records of this epoch anyway. Of what is lost the listing says only how new it was at most: once it
/// was passed over, and its repair came too late for the holder (seed 33200005893).
fn is_wanted(run: &Run, epoch: Epoch) -> bool {
    run.kind == Kind::Lost || run.version.epoch < epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_passed_over_in_no_epoch() {
        let run = |kind, epoch| {
            let version = Version { epoch: Epoch(epoch), seq: 3 };
            Run { chunk: ChunkId::default(), first: 0, count: 1, version, kind }
        };
        for kind in [Kind::Data, Kind::Zero, Kind::Delete] {
            assert!(is_wanted(&run(kind, 7), Epoch(8)));
            assert!(!is_wanted(&run(kind, 8), Epoch(8)), "it was sent when it was written");
        }
        assert!(is_wanted(&run(Kind::Lost, 7), Epoch(8)) && is_wanted(&run(Kind::Lost, 8), Epoch(8)));
    }
}
