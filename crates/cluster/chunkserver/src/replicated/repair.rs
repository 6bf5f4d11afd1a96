//! Repair: blocks that are damaged here are fetched from other copies (R9), by the primary for an operation that needs
//! them, or by any member for its own copy. It ends when they can be read again, or when no copy is left to ask.
//!
//! A block that fails its checksum still has a version, and the store takes no older one for it: any copy may be tried.
//! Of a *lost* block (its metadata is damaged, or its file is gone) not even the version is known, so any reply would
//! be believed. Therefore only copies that surely have everything are asked: a replica that is in sync; one that was in
//! sync until an epoch that the block is older than; or one that was in sync, together with the covered holder that has
//! everything since then, or until the replica took part again. Of such a pair both must reply before anything is
//! stored: either may have the newer version. From other copies only a version as new as the block can have been is
//! accepted. A replica that still misses some of the blocks refuses,
//! unless they are older than what it misses: then it must answer, because it could be waiting for a listing of this
//! replica, which waits for the repair.
//!
//! A copy with one damaged block refuses all blocks that it is asked for. When no copy is left to ask, the blocks are
//! therefore asked for in halves, down to the single blocks that no copy has: only these are given up. A copy that has
//! lost all of them says so, and is no reason for halves. Who has none of all the blocks is not asked for halves:
//! in a large cluster that is nearly everyone (seed 32000001331).
//!
//! Of the blocks of an operation that no copy has, those that are sound here are not given up: one that is damaged
//! makes the store refuse all that were read with it, and what a settlement gives up is lost for good
//! (seed 40000060231).
//!
//! Meanwhile the store may lose more of them, which were newer: it replaces lost blocks only up to the version that
//! is known here.
//!
//! A record in the own tail says more of a lost block than the store does: it was at least as new as that. Nothing
//! older is believed of anybody, for its request counts as carried out.

use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::blocks::{split_payload, without};
use crate::common::context::Context;
use crate::common::run_map::Source;
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Moment, PeerMessage, RECORD_BLOCKS_MAX, Record,
    Refusal, Role, ServerId, Slot, SlotState, Version, block_crcs,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Lost blocks that are repaired together: the store loses a metadata page as a whole.
const AROUND: u32 = 256;
const _: () = assert!(AROUND <= RECORD_BLOCKS_MAX);

/// After a repair of the own copy was given up, before damage that another server's fetch meets is repaired again. If
/// no copy has a block, each server's repair asks the others, who meet the damage: without a pause their repairs would
/// ask back at the speed of the network, for ever.
const PAUSE: Duration = Duration::from_secs(10);

/// The repairs of one group.
#[derive(Default)]
pub(crate) struct Repairs {
    /// In progress, in one epoch.
    running: BTreeMap<u64, Repair>,
    /// When a repair of the own copy was given up last.
    given_up: Option<Moment>,
}

struct Repair {
    wanted: Wanted,
    /// Parts of the blocks that are still to be repaired: first block and count. The last one is in progress.
    parts: Vec<(u32, u32)>,
    /// Parts that no copy has.
    given_up: Vec<(u32, u32)>,
    /// Those of them that are still to be read here. The last one is being read.
    unread: Vec<(u32, u32)>,
    /// Copies to ask for the part in progress, and how many were asked.
    copies: Vec<Copy>,
    tried: usize,
    /// What the first of a pair replied, while the second is asked.
    held: Vec<(Record, Bytes)>,
    /// A copy has only some of the part in progress: the rest is damaged or older there.
    refused: bool,
    /// A copy did not say whether it has the blocks.
    unsure: bool,
    /// A copy knows a newer configuration, under which the blocks may be had.
    stale: bool,
    step: Step,
}

impl Repair {
    fn part(&self) -> (ChunkId, u32, u32) {
        let (first, count) = self.parts.last().copied().unwrap_or_default();
        (self.wanted.chunk, first, count)
    }

    /// What the copy that was asked last replied about the part in progress, if that is all of the blocks. One of a
    /// pair is needed for the other.
    fn note_barren(&mut self, result: &Result<Vec<Record>, Refusal>) {
        let nth = self.tried - 1;
        let Copy { whole, second, .. } = self.copies[nth];
        let paired = second || self.copies.get(self.tried).is_some_and(|next| next.second);
        let has_none = match result {
            Ok(records) => !whole && records.iter().all(Record::is_never_written),
            Err(refusal) => *refusal == Refusal::Lost,
        };
        let all = self.parts.last() == Some(&(self.wanted.first, self.wanted.count));
        self.copies[nth].barren |= has_none && all && !paired;
    }

    /// No copy has the whole part in progress: its halves go on, if a copy may have one of them.
    fn give_up_part(&mut self) {
        // All parts are done.
        let Some((first, count)) = self.parts.pop() else { return };
        match self.refused && count > 1 {
            true => self.parts.extend([(first + count / 2, count - count / 2), (first, count / 2)]),
            false => self.given_up.push((first, count)),
        }
    }
}

/// The blocks to repair.
#[derive(Clone, Copy)]
struct Wanted {
    /// The operation that waits for it. `None`: the member repairs its own copy.
    op: Option<u64>,
    chunk: ChunkId,
    first: u32,
    count: u32,
    /// The version of some blocks is not known: they were not newer than this one.
    lost: Option<Version>,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Some of them are damaged here.
    Damaged,
    /// They are missing here, as if never written, and the client of `op` knows that they were written.
    Missing,
    /// They are older here.
    Older,
}

enum Step {
    /// About to ask a copy, or waiting for the reply of the last copy asked under this token.
    Asking { token: Option<u64> },
    /// `left` records are still being written.
    Writing { left: usize },
    /// Reading the blocks back.
    Checking,
    /// Reading what would be given up.
    Looking,
}

/// How a repair ended.
#[must_use]
pub(crate) enum Ended {
    /// It did not.
    Not,
    /// The blocks can be read again. With the operation that waits for them.
    Repaired(Option<u64>),
    /// No live copy has some of them.
    GivenUp(GivenUp),
}

pub(crate) struct GivenUp {
    pub op: Option<u64>,
    /// First block and count of each part that no copy has.
    pub parts: Vec<(u32, u32)>,
    /// Each copy that was asked said that it has none of them.
    pub sure: bool,
    /// One of them knows a newer configuration.
    pub stale: bool,
    /// They are missing here, as if never written.
    pub sought: bool,
}

/// A copy that may have the blocks.
#[derive(Clone, Copy)]
struct Copy {
    source: Source,
    /// Blocks that it does not have were never written, apart from writes that the preceding copy in the list has.
    whole: bool,
    /// The blocks are older than everything it misses.
    older: bool,
    /// It may miss blocks or have older ones: only a version as new as a lost block can have been is believed.
    partial: bool,
    /// Asked only if the preceding copy in the list has answered: only both together are complete.
    second: bool,
    /// It said that it has none of the blocks.
    barren: bool,
}

impl Copy {
    fn any(source: Source) -> Copy {
        Copy { source, whole: false, older: false, partial: false, second: false, barren: false }
    }
}

/// The copies to ask: first those that have everything, then all others.
fn copies(cx: &Context, member: &Member, lost: Option<Version>) -> Vec<Copy> {
    let live = |server| server != cx.me && cx.map.is_live(server);
    let replica = |slot: &Slot, older, second| {
        let source = (slot.server, Role::Replica);
        Copy { whole: true, older, second, ..Copy::any(source) }
    };
    let older =
        |slot: &Slot| slot.state.lacks_since().zip(lost).is_some_and(|(since, newest)| newest.epoch < since);
    let is_whole = |slot: &Slot| slot.state == SlotState::InSync || older(slot);
    let slots = member.entry().slots.iter().filter(|slot| live(slot.server));
    let (complete, partial): (Vec<&Slot>, Vec<&Slot>) = slots.partition(|slot| is_whole(slot));
    let mut copies: Vec<Copy> = complete.iter().map(|slot| replica(slot, older(slot), false)).collect();
    for slot in partial {
        if let Some(holder) = slot.holder.filter(|s| s.covered && live(s.server)) {
            let kept = (holder.server, Role::Offload { stands_for: slot.server });
            copies.push(Copy::any(kept));
            let own = || Copy::any((slot.server, Role::Replica));
            copies.push(lost.map_or_else(own, |_| replica(slot, false, true)));
        }
    }
    // In a complete group nobody keeps anything for it any more.
    let former = if member.entry().is_complete() { Vec::new() } else { member.former_holders(cx) };
    for source in member.other_copies(cx).into_iter().chain(former) {
        if !copies.iter().any(|c| c.source == source && !c.second) {
            copies.push(Copy { partial: lost.is_some(), ..Copy::any(source) });
        }
    }
    copies
}

impl Repairs {
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether this member is repairing blocks for its own copy: listings wait for that.
    pub fn any_own(&self) -> bool {
        self.running.values().any(|r| r.wanted.op.is_none())
    }

    /// Whether damage that another server's fetch met is to be repaired now.
    pub fn may_follow_a_fetch(&self, now: Moment) -> bool {
        self.given_up.is_none_or(|at| now.since(at) >= PAUSE)
    }

    /// The epoch ended: its operations are carried over, and its replies are not waited for.
    pub fn new_epoch(&mut self) {
        self.running.clear();
    }

    /// Repairs damaged blocks for an operation, unless the same repair is already in progress.
    pub fn repair(
        &mut self,
        cx: &mut Context,
        member: &Member,
        op: Option<u64>,
        (chunk, first, count): (ChunkId, u32, u32),
        lost: Option<Version>,
    ) -> Ended {
        let same = |r: &Repair| (r.wanted.op, r.wanted.chunk, r.wanted.first) == (op, chunk, first);
        if self.running.values().any(same) {
            return Ended::Not;
        }
        let wanted = Wanted { op, chunk, first, count, lost, why: Why::Damaged };
        self.begin(cx, member, wanted, copies(cx, member, lost))
    }

    /// Repairs a block for this member's own copy, and if it is lost its neighbours too, which usually are as well.
    /// Returns the last block.
    pub fn repair_around(
        &mut self,
        cx: &mut Context,
        member: &Member,
        (chunk, block): (ChunkId, u32),
        lost: Option<Version>,
    ) -> (Cursor, Ended) {
        let blocks = cx.config.chunk_bytes / BLOCK_BYTES as u32;
        let first = if lost.is_some() { block / AROUND * AROUND } else { block };
        let count = if lost.is_some() { AROUND.min(blocks.saturating_sub(first)).max(1) } else { 1 };
        let ended = self.repair(cx, member, None, (chunk, first, count), lost);
        (Cursor { chunk, block: first + count - 1 }, ended)
    }

    /// Looks for blocks that are not here, as if never written, and that the client of `op` knows to be written. Any
    /// copy, including this one, may have lost them without noticing: so only copies that should have everything are
    /// asked.
    pub fn seek(
        &mut self,
        cx: &mut Context,
        member: &Member,
        op: u64,
        (chunk, first, count): (ChunkId, u32, u32),
    ) -> Ended {
        let lost = Some(Version::MAX);
        cx.shared.stats.damage.sought += 1;
        let mut copies = copies(cx, member, lost);
        copies.retain(|copy| !copy.partial);
        let wanted = Wanted { op: Some(op), chunk, first, count, lost, why: Why::Missing };
        self.begin(cx, member, wanted, copies)
    }

    /// Fetches blocks for an operation from a copy that has a newer version.
    pub fn fetch_newer(
        &mut self,
        cx: &mut Context,
        member: &Member,
        (op, source): (u64, Source),
        (chunk, first, count): (ChunkId, u32, u32),
    ) -> Ended {
        let wanted = Wanted { op: Some(op), chunk, first, count, lost: None, why: Why::Older };
        self.begin(cx, member, wanted, vec![Copy::any(source)])
    }

    fn begin(&mut self, cx: &mut Context, member: &Member, wanted: Wanted, copies: Vec<Copy>) -> Ended {
        let id = cx.shared.token();
        let repair = Repair {
            parts: vec![(wanted.first, wanted.count)],
            given_up: Vec::new(),
            unread: Vec::new(),
            copies,
            tried: 0,
            held: Vec::new(),
            refused: false,
            // Who comes back while it runs was not asked.
            unsure: !member.all_live(cx),
            stale: false,
            step: Step::Asking { token: None },
            wanted,
        };
        let before = self.running.insert(id, repair);
        debug_assert!(before.is_none(), "a number is of one repair");
        self.ask_next(cx, member, id, false)
    }

    /// Asks the next copy. `answered`: whether the preceding copy sent a usable reply.
    fn ask_next(&mut self, cx: &mut Context, member: &Member, id: u64, answered: bool) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else {
            cx.bug("a repair that does not exist asked a copy");
            return Ended::Not;
        };
        // The second of a pair is asked right after the first, or not at all.
        let tried = repair.tried;
        let may = |(n, copy): &(usize, &Copy)| {
            cx.map.is_live(copy.source.0) && !copy.barren && (!copy.second || (answered && *n == tried))
        };
        let next = repair.copies.iter().enumerate().skip(tried).find(may).map(|(n, copy)| (n, *copy));
        // Who went away meanwhile is not asked.
        let passed = tried..next.map_or(repair.copies.len(), |(n, _)| n);
        repair.unsure |= repair.copies[passed].iter().any(|copy| !cx.map.is_live(copy.source.0));
        if next.is_none_or(|(_, copy)| !copy.second) {
            repair.held.clear();
        }
        let Some((n, Copy { source: (to, role), whole, older, .. })) = next else {
            repair.give_up_part();
            return self.go_on(cx, member, id);
        };
        let whole = whole && !older;
        let token = cx.shared.peer_token();
        repair.tried = n + 1;
        repair.step = Step::Asking { token: Some(token) };
        let (chunk, first, count) = repair.part();
        let (group, epoch) = (member.id(), member.epoch());
        cx.send(to, PeerMessage::Fetch { group, epoch, token, role, chunk, first, count, whole });
        Ended::Not
    }

    /// A part was repaired or given up: goes on with the next one.
    fn go_on(&mut self, cx: &mut Context, member: &Member, id: u64) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        if repair.parts.is_empty() {
            // A single block is known to be damaged.
            let Wanted { op, count, why, .. } = repair.wanted;
            if why == Why::Damaged && op.is_some() && count > 1 {
                repair.unread = std::mem::take(&mut repair.given_up);
            }
            return self.look(cx, member, id);
        }
        (repair.tried, repair.refused) = (0, false);
        self.ask_next(cx, member, id, false)
    }

    /// Reads the next part that would be given up, and ends when none is left.
    fn look(&mut self, cx: &mut Context, member: &Member, id: u64) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        let Some(&(first, count)) = repair.unread.last() else { return self.end(cx, id) };
        repair.step = Step::Looking;
        let (group, chunk) = (member.id(), repair.wanted.chunk);
        let command = StoreCommand::Read { role: Role::Replica, group, chunk, first, count };
        cx.store(Wait::RepairChecked { repair: id }, command);
        Ended::Not
    }

    /// What would be given up was read: the damaged block is, and what lies on both sides of it is read.
    fn on_looked(&mut self, cx: &mut Context, member: &Member, id: u64, outcome: &StoreOutcome) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        let Some((first, count)) = repair.unread.pop() else {
            cx.bug("a repair that reads nothing has read");
            return Ended::Not;
        };
        match *outcome {
            StoreOutcome::Read { .. } => {}
            StoreOutcome::Damaged { block, all: false, lost, .. }
                if (first..first + count).contains(&block) =>
            {
                // A damaged block among lost ones has a version still: the operation reads again, and it is repaired by
                // itself.
                if lost.is_some() || repair.wanted.lost.is_none() {
                    repair.given_up.push((block, 1));
                }
                let sides = [(block + 1, first + count), (first, block)];
                let sides = sides.into_iter().filter(|(start, end)| start < end);
                repair.unread.extend(sides.map(|(start, end)| (start, end - start)));
            }
            StoreOutcome::Damaged { .. } => repair.given_up.push((first, count)),
            _ => {
                repair.unsure = true;
                repair.given_up.push((first, count));
            }
        }
        self.look(cx, member, id)
    }

    fn end(&mut self, cx: &mut Context, id: u64) -> Ended {
        let Some(Repair { wanted, given_up, unsure, stale, .. }) = self.running.remove(&id) else {
            return Ended::Not;
        };
        let Wanted { op, why, .. } = wanted;
        if given_up.is_empty() {
            return Ended::Repaired(op);
        }
        cx.shared.stats.damage.unrepaired += 1;
        if op.is_none() && !stale {
            self.given_up = Some(cx.now);
        }
        let sought = why == Why::Missing;
        Ended::GivenUp(GivenUp { op, parts: given_up, sure: !unsure, stale, sought })
    }

    /// The repair that this token's reply is for.
    pub fn awaiting(&self, token: u64) -> Option<u64> {
        let asked = |r: &Repair| matches!(r.step, Step::Asking { token: Some(asked) } if asked == token);
        self.running.iter().find(|(_, r)| asked(r)).map(|(id, _)| *id)
    }

    /// The copy that was asked replied.
    pub fn on_reply(
        &mut self,
        cx: &mut Context,
        member: &Member,
        id: u64,
        result: Result<Vec<Record>, Refusal>,
        payload: &Bytes,
    ) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        repair.note_barren(&result);
        let Wanted { lost, why, .. } = repair.wanted;
        let Copy { source, whole, partial, .. } = repair.copies[repair.tried - 1];
        repair.refused |= matches!(result, Err(Refusal::Corrupt));
        let has_none = |refusal: &Refusal| matches!(refusal, Refusal::Corrupt | Refusal::Lost);
        repair.unsure |= result.as_ref().is_err_and(|refusal| !has_none(refusal));
        repair.stale |= matches!(result, Err(Refusal::Stale { .. }));
        let answered = result.is_ok();
        let parts = result.ok().and_then(|r| sound_parts(cx.group, repair.part(), r, payload));
        // What was garbled on the way says nothing of the copy.
        repair.unsure |= answered && parts.is_none();
        let Some(mut parts) = parts else { return self.ask_next(cx, member, id, false) };
        // "Never written" counts only from a copy that would have the block.
        parts.retain(|(record, _)| {
            !record.is_never_written() || (whole && lost.is_some() && why != Why::Missing)
        });
        let since = member.asked_since(source, Epoch(0));
        parts.retain(|(record, _)| record.is_never_written() || record.version.epoch >= since);
        parts.retain(|(record, _)| !partial || lost.is_none_or(|newest| record.version >= newest));
        parts.append(&mut repair.held);
        if repair.copies.get(repair.tried).is_some_and(|next| next.second) {
            repair.held = parts;
            return self.ask_next(cx, member, id, true);
        }
        // Of a pair only the newer part of a block counts, and where that is refused, the older one is all the more.
        let mut parts = newest(&parts);
        if lost.is_some() {
            let sent = blocks(&parts);
            parts = as_new_as_was_here(&parts, member);
            repair.refused |= blocks(&parts) < sent;
        }
        if parts.is_empty() {
            return self.ask_next(cx, member, id, true);
        }
        repair.step = Step::Writing { left: parts.len() };
        for (record, payload) in parts {
            if record.version > Version::ZERO {
                cx.shared.stats.repaired_blocks += u64::from(record.count);
            }
            let lost = lost.unwrap_or(Version::ZERO);
            let command = StoreCommand::Repair { role: Role::Replica, record, payload, lost };
            cx.store(Wait::RepairWritten { repair: id }, command);
        }
        Ended::Not
    }

    /// A record is written. One of a repair that ended with its epoch is not waited for any more.
    pub fn on_written(&mut self, cx: &mut Context, member: &Member, id: u64) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        let Step::Writing { left } = &mut repair.step else {
            cx.bug("a repair that writes nothing has written");
            return Ended::Not;
        };
        *left -= 1;
        if *left > 0 {
            return Ended::Not;
        }
        repair.step = Step::Checking;
        let (group, (chunk, first, count)) = (member.id(), repair.part());
        let command = StoreCommand::Read { role: Role::Replica, group, chunk, first, count };
        cx.store(Wait::RepairChecked { repair: id }, command);
        Ended::Not
    }

    /// The blocks were read back.
    pub fn on_checked(&mut self, cx: &mut Context, member: &Member, id: u64, outcome: StoreOutcome) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        if let Step::Looking = repair.step {
            return self.on_looked(cx, member, id, &outcome);
        }
        match outcome {
            // The copy was older than the damaged blocks, or had only some of them.
            StoreOutcome::Damaged { lost, .. } => {
                if lost > repair.wanted.lost {
                    (repair.copies, repair.tried) = (copies(cx, member, lost), 0);
                    repair.wanted.lost = lost;
                }
                self.ask_next(cx, member, id, false)
            }
            StoreOutcome::Read { records, .. } => {
                if repair.wanted.why == Why::Missing && records.iter().any(Record::is_never_written) {
                    return self.ask_next(cx, member, id, false);
                }
                repair.parts.pop();
                self.go_on(cx, member, id)
            }
            _ => {
                repair.unsure = true;
                repair.given_up.append(&mut repair.parts);
                self.end(cx, id)
            }
        }
    }

    /// The repairs that wait for this server, whose connection broke, or which sleeps: its copy counts as useless. Any
    /// other server is waited for, however long it takes.
    pub fn waiting_for(&self, peer: ServerId) -> Vec<u64> {
        let waits = |r: &Repair| {
            matches!(r.step, Step::Asking { token: Some(_) }) && r.copies[r.tried - 1].source.0 == peer
        };
        self.running.iter().filter(|(_, r)| waits(r)).map(|(id, _)| *id).collect()
    }

    /// The copy asked last will not answer. A repair may have ended meanwhile: one that ended let operations continue.
    pub fn copy_lost(&mut self, cx: &mut Context, member: &Member, id: u64) -> Ended {
        let Some(repair) = self.running.get_mut(&id) else { return Ended::Not };
        repair.unsure = true;
        self.ask_next(cx, member, id, false)
    }
}

/// Of each block the newest record, in pieces.
fn newest(parts: &[(Record, Bytes)]) -> Vec<(Record, Bytes)> {
    let mut all = Vec::new();
    for (nth, (record, payload)) in parts.iter().enumerate() {
        let mut pieces = vec![(record.first, record.first + record.count)];
        for (other, (covers, _)) in parts.iter().enumerate() {
            if (covers.version, other) > (record.version, nth) {
                pieces = without(pieces, covers.first, covers.first + covers.count);
            }
        }
        all.extend(pieces.into_iter().map(|piece| part_of(record, payload, piece)));
    }
    all
}

fn blocks(parts: &[(Record, Bytes)]) -> u32 {
    parts.iter().map(|(record, _)| record.count).sum()
}

/// The blocks that are not older than what is known to have been here, one by one: a record may have one of each kind.
fn as_new_as_was_here(parts: &[(Record, Bytes)], member: &Member) -> Vec<(Record, Bytes)> {
    let mut all = Vec::new();
    for (record, payload) in parts {
        let end = record.first + record.count;
        let is_older = |block: &u32| record.version < member.tail.newest_of(record.chunk, (*block, 1));
        let mut pieces = vec![(record.first, end)];
        for block in (record.first..end).filter(is_older) {
            pieces = without(pieces, block, block + 1);
        }
        all.extend(pieces.into_iter().map(|piece| part_of(record, payload, piece)));
    }
    all
}

/// The part of a record in the blocks `start..end`.
fn part_of(record: &Record, payload: &Bytes, (start, end): (u32, u32)) -> (Record, Bytes) {
    let (from, to) = ((start - record.first) as usize, (end - record.first) as usize);
    let (content, payload) = match &record.content {
        Content::Data { crcs } => {
            let crcs = crcs[from..to].to_vec();
            (Content::Data { crcs }, payload.slice(from * BLOCK_BYTES..to * BLOCK_BYTES))
        }
        content => (content.clone(), Bytes::new()),
    };
    (Record { first: start, count: end - start, content, ..record.clone() }, payload)
}

/// The records that another server sent of blocks `first..first + count`, if they are of these blocks and sound.
fn sound_parts(
    group: GroupId,
    (chunk, first, count): (ChunkId, u32, u32),
    records: Vec<Record>,
    payload: &Bytes,
) -> Option<Vec<(Record, Bytes)>> {
    let sound = |(record, payload): &(Record, Bytes)| {
        let inside = record.first >= first && record.first + record.count <= first + count;
        let fits = match &record.content {
            Content::Data { crcs } => *crcs == block_crcs(payload),
            content => *content == Content::Zero,
        };
        record.fault(payload.len()).is_none()
            && (record.group, record.chunk) == (group, chunk)
            && inside
            && fits
    };
    split_payload(records, payload).filter(|parts| parts.iter().all(sound))
}
