//! Scrub: every copy is read from disk, checked and compared with the others, in quiet times and at a bounded rate.
//!
//! Whoever has a replica knows when all of it was last found right ([`due`]), and asks the group's primary to compare when it is
//! time. The primary does one page of one group at a time: it lists what every copy has, and takes windows of blocks, one after
//! another. Each copy reads and checks its own blocks and says their versions and checksums, while the primary orders no write of
//! them: all that was ordered before is on all targets then. So a difference is a fault. What another copy has newer is fetched; then
//! the primary orders its present content again, for all. A replica that is damaged repairs itself (R9). Then each
//! replica hears how far it was found right: progress stays with the replica, whoever is primary next.
//!
//! Copies that sleep are due when they are awake again, and are never woken for it: also not for damage that only they could repair.
//! The replica that has it counts as unsound, and is tried again from time to time.

pub(crate) mod due;

use crate::api::{StoreCommand, StoreOutcome};
use crate::group::{Context, Group, Wait};
use crate::replica::PlantedBug;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, GroupId, Kind, ListPage, PeerMessage, Record, Refusal, Run,
    ServerId, SlotState, Space, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Blocks that are compared at a time: writes of them wait meanwhile.
const WINDOW: u32 = 256;
/// Windows of a page, at most.
const PAGE_WINDOWS: usize = 16;

/// A page of a group's copies under comparison, in one epoch.
pub(crate) struct Scrub {
    after: Option<Cursor>,
    end: Option<Cursor>,
    /// The other copies. One that cannot answer is left out, and counts as not looked at.
    others: BTreeMap<ServerId, Copy>,
    /// Whether all is well with the own copy.
    sound: bool,
    step: Step,
    listed: bool,
    windows: VecDeque<(ChunkId, u32)>,
    deleted: BTreeMap<ChunkId, Version>,
    /// For the present window, newer blocks were fetched already.
    fetched: bool,
}

struct Copy {
    space: Space,
    /// Nothing older than this epoch need be there: it is a stand-in's.
    since: Epoch,
    sound: bool,
}

enum Step {
    /// Until it is time for the next window.
    Ready,
    Listing {
        question: u64,
        pages: BTreeMap<ServerId, ListPage>,
    },
    /// An operation waits for writes of the window, or reads the own blocks.
    Checking,
    /// The operation holds the window while the others read. `None`: damaged there.
    Comparing {
        op: u64,
        question: u64,
        own: Vec<Cell>,
        answers: BTreeMap<ServerId, Option<Vec<Cell>>>,
    },
    /// Blocks in which these copies differ are ordered again.
    Equalling {
        blocks: u64,
        differ: BTreeSet<ServerId>,
    },
}

/// What the scrub of a page found out about this server's replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scrubbed {
    pub group: GroupId,
    pub after: Option<Cursor>,
    pub end: Option<Cursor>,
    pub sound: bool,
}

/// A member of a group that this server is primary of wants its replica scrubbed from here on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub after: Option<Cursor>,
    pub overdue: bool,
}

/// How fast, over all groups of which this server is primary.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes per second, counted over all copies.
    pub rate: u64,
    /// No window is taken before.
    next: ebb_types::Moment,
}

impl Pace {
    fn spend(&mut self, now: ebb_types::Moment, bytes: u64) {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.rate.max(1);
        self.next = now + Duration::from_nanos(nanos);
    }
}

/// Blocks that the primary asked for, to compare them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckFor {
    pub token: u64,
    pub space: Space,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
}

/// A block's version, and its checksum if it is not zeroes.
type Cell = (Version, Option<u32>);

fn cells(records: &[Record]) -> Vec<Cell> {
    let of = |r: &Record| -> Vec<Cell> {
        match &r.content {
            Content::Data { crcs } => crcs.iter().map(|crc| (r.version, Some(*crc))).collect(),
            _ => vec![(r.version, None); r.count as usize],
        }
    };
    records.iter().flat_map(of).collect()
}

fn data_bytes(cells: &[Cell]) -> u64 {
    cells.iter().filter(|cell| cell.1.is_some()).count() as u64 * BLOCK_BYTES as u64
}

/// What a comparison of a window showed; blocks are counted from its first.
#[derive(Default)]
struct Verdict {
    differing: BTreeSet<u32>,
    /// These are to be ordered again: those that differ, and what is damaged at a stand-in.
    again: BTreeSet<u32>,
    /// Somebody has blocks of a chunk that others have deleted.
    undead: bool,
    /// Who has something newer than the primary, and where.
    newer: Option<(ServerId, u32, u32)>,
    differ: BTreeSet<ServerId>,
}

impl Scrub {
    fn judge(
        &mut self,
        chunk: ChunkId,
        own: &[Cell],
        answers: &BTreeMap<ServerId, Option<Vec<Cell>>>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let deleted = self.deleted.get(&chunk).copied().unwrap_or(Version::ZERO);
        let dead = |cell: &Cell| cell.0 > Version::ZERO && cell.0 <= deleted;
        for (&server, theirs) in answers {
            let Some(copy) = self.others.get_mut(&server) else { continue };
            let owed = |cell: &Cell| cell.0 > Version::ZERO && cell.0.epoch >= copy.since;
            let Some(theirs) = theirs else {
                // A replica has tried to repair itself. What a stand-in must have, it gets again.
                copy.sound = copy.space != Space::Replica;
                if copy.sound {
                    verdict.again.extend((0..).zip(own).filter(|(_, cell)| owed(cell)).map(|(n, _)| n));
                }
                continue;
            };
            // A stand-in may have older offload left of an earlier time, which nobody reads: a deletion since then may be forgotten.
            let valid = |theirs: &Cell| if owed(theirs) { *theirs } else { (Version::ZERO, None) };
            for (n, (theirs, own)) in (0..).zip(theirs.iter().map(valid).zip(own)) {
                if theirs == *own || (theirs.0 <= own.0 && !owed(own)) {
                    continue;
                }
                verdict.differing.insert(n);
                verdict.differ.insert(server);
                verdict.undead |= dead(&theirs) || dead(own);
                if theirs.0 > own.0 {
                    let (from, first) = verdict.newer.map_or((server, n), |(from, first, _)| (from, first));
                    if from == server {
                        verdict.newer = Some((server, first, n));
                    }
                }
            }
        }
        verdict.again.extend(&verdict.differing);
        verdict
    }

    fn mark_unsound(&mut self, servers: &BTreeSet<ServerId>) {
        for (_, copy) in self.others.iter_mut().filter(|(server, _)| servers.contains(server)) {
            copy.sound = false;
        }
    }
}

/// The primary's side.
impl Group {
    /// Begins to compare a page, if this server can.
    pub fn begin_scrub(&mut self, cx: &mut Context, after: Option<Cursor>) {
        if self.scrub.is_some() || self.catch_up.is_some() {
            return;
        }
        let copy = |(server, space, since)| (server, Copy { space, since, sound: true });
        let others = self.entry.slots.iter().filter_map(|slot| match (slot.state, slot.stand_in) {
            (SlotState::InSync, _) => Some((slot.server, Space::Replica, Epoch(0))),
            (SlotState::Away { since }, Some(stand_in)) if stand_in.covered => {
                Some((stand_in.server, Space::Offload { stands_for: slot.server }, since))
            }
            _ => None,
        });
        let others =
            others.filter(|(server, ..)| *server != cx.me && cx.map.is_live(*server)).map(copy).collect();
        self.scrub = Some(Scrub {
            after,
            end: None,
            others,
            sound: true,
            step: Step::Ready,
            listed: false,
            windows: VecDeque::new(),
            deleted: BTreeMap::new(),
            fetched: false,
        });
        self.go_on_scrubbing(cx);
    }

    /// Lists, takes the next window, or ends the page, if nothing is under way and it is time.
    pub fn go_on_scrubbing(&mut self, cx: &mut Context) {
        let serving =
            self.primary.as_ref().is_some_and(|p| p.takes_requests()) && self.fence == self.entry.epoch;
        let Some(scrub) = self.scrub.as_mut().filter(|s| matches!(s.step, Step::Ready)) else { return };
        if !serving || cx.draining || !cx.has_lease() {
            self.scrub = None; // whoever wants it asks again
            return;
        }
        if cx.now < cx.shared.scrub_pace.next {
            return; // the tick goes on
        }
        match scrub.windows.pop_front() {
            Some((chunk, window)) => {
                (scrub.step, scrub.fetched) = (Step::Checking, false);
                let first = window * WINDOW;
                let blocks = cx.config.chunk_bytes / BLOCK_BYTES as u32;
                self.admit_check(cx, chunk, (first, WINDOW.min(blocks.saturating_sub(first)).max(1)));
            }
            None if scrub.listed => self.end_page(cx),
            None => self.list_copies(cx),
        }
    }

    fn list_copies(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(scrub) = &mut self.scrub else { return };
        let (token, after) = (cx.shared.question(), scrub.after);
        scrub.step = Step::Listing { question: token, pages: BTreeMap::new() };
        for (&to, &Copy { space, since, .. }) in &scrub.others {
            cx.send(to, PeerMessage::List { group, epoch, token, space, since, after });
        }
        let command = StoreCommand::List { space: Space::Replica, group, since: Epoch(0), after };
        cx.store(group, Wait::ScrubList { question: token }, command);
    }

    pub fn on_own_scrub_list(&mut self, cx: &mut Context, asked: u64, outcome: StoreOutcome) {
        let Some(scrub) = &mut self.scrub else { return };
        let Step::Listing { question, pages } = &mut scrub.step else { return };
        if *question != asked {
            return;
        }
        match outcome {
            StoreOutcome::Listed(page) => {
                pages.insert(cx.me, page);
                self.on_all_listed(cx);
            }
            _ => self.scrub = None,
        }
    }

    /// Returns whether the listing was for the scrub.
    pub fn on_scrub_list(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        token: u64,
        result: &Result<ListPage, Refusal>,
    ) -> bool {
        let Some(scrub) = &mut self.scrub else { return false };
        let Step::Listing { question, pages } = &mut scrub.step else { return false };
        if *question != token {
            return false;
        }
        match result {
            Ok(page) => drop(pages.insert(from, page.clone())),
            Err(_) => drop(scrub.others.remove(&from)),
        }
        self.on_all_listed(cx);
        true
    }

    /// Finds the windows in which any copy has anything, as far as all of them have listed.
    fn on_all_listed(&mut self, cx: &mut Context) {
        let Some(scrub) = &mut self.scrub else { return };
        let Step::Listing { pages, .. } = &mut scrub.step else { return };
        if !pages.contains_key(&cx.me) || scrub.others.keys().any(|server| !pages.contains_key(server)) {
            return;
        }
        pages.retain(|server, _| *server == cx.me || scrub.others.contains_key(server));
        let mut end = pages.values().filter_map(|page| page.next).min();
        let mut windows = BTreeSet::new();
        let within = |run: &&Run| end.is_none_or(|end| run.chunk <= end.chunk);
        for run in pages.values().flat_map(|page| &page.runs).filter(within) {
            if run.kind == Kind::Delete {
                let version = scrub.deleted.entry(run.chunk).or_insert(run.version);
                *version = (*version).max(run.version);
                continue;
            }
            let last = run.first.saturating_add(run.count.max(1) - 1);
            for window in run.first / WINDOW..=last / WINDOW {
                let begin = Cursor { chunk: run.chunk, block: window * WINDOW };
                if end.is_none_or(|end| begin <= end) {
                    windows.insert((run.chunk, window));
                }
            }
        }
        if let Some(&(chunk, window)) = windows.iter().nth(PAGE_WINDOWS) {
            windows.split_off(&(chunk, window));
            if let Some(&(chunk, window)) = windows.last() {
                end = Some(Cursor { chunk, block: window * WINDOW + (WINDOW - 1) });
            }
        }
        scrub.end = end;
        scrub.windows = windows.into_iter().collect();
        (scrub.listed, scrub.step) = (true, Step::Ready);
        self.go_on_scrubbing(cx);
    }

    /// Every copy hears how far it was looked at.
    fn end_page(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(Scrub { after, end, others, sound, .. }) = self.scrub.take() else { return };
        for (to, copy) in others.iter().filter(|(_, copy)| copy.space == Space::Replica) {
            cx.send(*to, PeerMessage::Scrubbed { group, epoch, after, end, sound: copy.sound });
        }
        cx.shared.scrubbed.push(Scrubbed { group, after, end, sound });
        // Others that want the same page need not have it compared again.
        if cx.shared.scrub_wanted.get(&group).is_some_and(|wanted| wanted.after == after) {
            cx.shared.scrub_wanted.remove(&group);
        }
    }

    /// The window's operation holds its blocks and has read the own copy: what do the others have?
    pub fn compare(&mut self, cx: &mut Context, op: u64, own: &[Record]) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let blocks = self.blocks_of_check(op);
        let (Some(scrub), Some((chunk, first, count))) = (&mut self.scrub, blocks) else {
            return self.end_op(cx, op);
        };
        let (token, own) = (cx.shared.question(), cells(own));
        for (&to, &Copy { space, .. }) in &scrub.others {
            cx.send(to, PeerMessage::Check { group, epoch, token, space, chunk, first, count });
        }
        cx.shared.stats.scrub.checked_bytes += data_bytes(&own);
        scrub.step = Step::Comparing { op, question: token, own, answers: BTreeMap::new() };
        self.judge(cx);
    }

    pub fn on_check_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
    ) {
        let Some(scrub) = &mut self.scrub else { return };
        let Step::Comparing { question, own, answers, .. } = &mut scrub.step else { return };
        if *question != token {
            return;
        }
        match result.map(|records| cells(&records)) {
            Ok(theirs) if theirs.len() == own.len() => drop(answers.insert(from, Some(theirs))),
            Err(Refusal::Corrupt) if cx.config.has(PlantedBug::OverlookDamage) => {
                drop(answers.insert(from, Some(own.clone())));
            }
            Err(Refusal::Corrupt) => drop(answers.insert(from, None)),
            _ => drop(scrub.others.remove(&from)),
        }
        self.judge(cx);
    }

    /// All answers are there: are the copies alike?
    fn judge(&mut self, cx: &mut Context) {
        let Some(scrub) = &mut self.scrub else { return };
        let Step::Comparing { op, own, answers, .. } = &mut scrub.step else { return };
        if scrub.others.keys().any(|server| !answers.contains_key(server)) {
            return;
        }
        let (op, own, answers) = (*op, std::mem::take(own), std::mem::take(answers));
        let Some((chunk, first, _)) = self.blocks_of_check(op) else { return };
        let Some(scrub) = &mut self.scrub else { return };
        cx.shared.scrub_pace.spend(cx.now, data_bytes(&own) * (1 + answers.len() as u64));
        let verdict = scrub.judge(chunk, &own, &answers);
        if let (Some((from, n, last)), false, false) = (verdict.newer, verdict.undead, scrub.fetched) {
            (scrub.step, scrub.fetched) = (Step::Checking, true);
            let Some(&Copy { space, .. }) = scrub.others.get(&from) else { return };
            return self.fetch_newer(cx, op, (from, space), (first + n, last - n + 1));
        }
        cx.shared.stats.scrub.differing_blocks += verdict.differing.len() as u64;
        let span = verdict.again.first().zip(verdict.again.last());
        if let (true, Some(_)) = (verdict.newer.is_some() && !verdict.undead, span) {
            // What somebody has newer could not be had: nothing may be put in its place.
            scrub.sound = false;
            scrub.mark_unsound(&verdict.differ);
        } else if let Some((n, last)) = span {
            scrub.step = Step::Equalling { blocks: verdict.differing.len() as u64, differ: verdict.differ };
            if verdict.undead {
                self.end_op(cx, op);
                return self.admit_heal(cx, chunk);
            }
            return self.heal(cx, op, (first + n, last - n + 1));
        }
        scrub.step = Step::Ready;
        self.end_op(cx, op);
        self.go_on_scrubbing(cx);
    }

    /// The window's operation ended: after its blocks were ordered again, or without having read them.
    pub fn scrub_op_ended(&mut self, cx: &mut Context, done: bool) {
        let Some(scrub) = &mut self.scrub else { return };
        match std::mem::replace(&mut scrub.step, Step::Ready) {
            Step::Equalling { blocks, .. } if done => cx.shared.stats.scrub.equalled_blocks += blocks,
            Step::Equalling { differ, .. } => scrub.mark_unsound(&differ),
            _ => scrub.sound = false,
        }
        self.go_on_scrubbing(cx);
    }

    /// The connection to a copy's server broke: it is not waited for.
    pub fn scrub_lost(&mut self, cx: &mut Context, peer: ServerId) {
        let Some(scrub) = &mut self.scrub else { return };
        if scrub.others.remove(&peer).is_some() {
            self.on_all_listed(cx);
            self.judge(cx);
        }
    }
}

/// The side of those who have the copies.
impl Group {
    /// Checks blocks for the primary. Only of the present configuration it is clear what must be there.
    pub fn on_check(&mut self, cx: &mut Context, to: ServerId, epoch: Epoch, check: CheckFor) {
        let complete = epoch == self.entry.epoch
            && match check.space {
                Space::Replica => self.catch_up.is_none(),
                Space::Offload { stands_for } => self.entry.is_covered_by(cx.me, stands_for),
            };
        if complete {
            self.read_check(cx, to, check);
        } else {
            self.answer_check(cx, to, check.token, Err(Refusal::NotReady));
        }
    }

    fn read_check(&mut self, cx: &mut Context, to: ServerId, check: CheckFor) {
        let CheckFor { space, chunk, first, count, .. } = check;
        let command = StoreCommand::Check { space, group: self.id, chunk, first, count };
        cx.store(self.id, Wait::CheckFor { to, check }, command);
    }

    fn answer_check(&self, cx: &mut Context, to: ServerId, token: u64, result: Result<Vec<Record>, Refusal>) {
        cx.send(to, PeerMessage::CheckReply { group: self.id, token, result });
    }

    /// A damaged replica is repaired first, and the blocks are read again.
    pub fn on_check_read(&mut self, cx: &mut Context, to: ServerId, check: CheckFor, outcome: StoreOutcome) {
        let result = match outcome {
            StoreOutcome::Read { records, .. } => {
                cx.shared.stats.scrub.checked_bytes += data_bytes(&cells(&records));
                Ok(records)
            }
            StoreOutcome::Damaged { chunk, block, lost } => {
                if check.space == Space::Replica && !cx.config.has(PlantedBug::OverlookDamage) {
                    self.repair_around(cx, chunk, block, lost);
                    if self.is_repairing() {
                        self.checks.insert(to, check);
                        return;
                    }
                }
                Err(Refusal::Corrupt)
            }
            StoreOutcome::Failed(refusal) => Err(refusal),
            _ => unreachable!("the store answers a check with blocks"),
        };
        self.answer_check(cx, to, check.token, result);
    }

    /// What was damaged is repaired: reads the blocks again.
    pub fn give_checks(&mut self, cx: &mut Context) {
        for (to, check) in std::mem::take(&mut self.checks) {
            self.read_check(cx, to, check);
        }
    }

    pub fn refuse_checks(&mut self, cx: &mut Context, refusal: Refusal) {
        for (to, check) in std::mem::take(&mut self.checks) {
            self.answer_check(cx, to, check.token, Err(refusal));
        }
    }
}
