//! Scrub: every copy is read from disk, checked and compared with the others, in quiet times and at a bounded rate.
//!
//! Each server records when its replica was last found sound as a whole ([`due`]), and asks the group's primary to compare when
//! the next scrub is due. The primary does one page of one group at a time: it lists what every copy has, and takes windows of
//! blocks, one after another. Each copy reads and checks its own blocks and sends their versions and checksums, while the primary
//! orders no write to them: every earlier write is then on all targets, so a difference is a fault. If another copy has newer
//! blocks, they are fetched; then the primary orders its present content again, for all copies. A damaged replica repairs itself
//! (R9). Then each replica learns how far it was found sound: progress stays with the replica, whichever server is primary next.
//!
//! Sleeping copies are due when they are awake again. They are never woken for a scrub, not even for damage that only they could
//! repair: the damaged replica counts as unsound, and is retried from time to time.

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

/// Blocks that are compared at a time: writes to them wait meanwhile.
const WINDOW: u32 = 256;
/// Maximum windows per page.
const PAGE_WINDOWS: usize = 16;

/// A page of a group's copies under comparison, in one epoch.
pub(crate) struct Scrub {
    after: Option<Cursor>,
    end: Option<Cursor>,
    /// The other copies. A copy that cannot answer is removed, and counts as not scrubbed.
    others: BTreeMap<ServerId, Copy>,
    /// Whether the own copy has been sound so far.
    sound: bool,
    step: Step,
    listed: bool,
    windows: VecDeque<(ChunkId, u32)>,
    deleted: BTreeMap<ChunkId, Version>,
    /// Newer blocks were already fetched for the present window.
    fetched: bool,
}

struct Copy {
    space: Space,
    /// Nothing older than this epoch need be there (nonzero for a holder).
    since: Epoch,
    sound: bool,
}

enum Step {
    /// Waiting until the next window may start.
    Ready,
    Listing {
        question: u64,
        pages: BTreeMap<ServerId, ListPage>,
    },
    /// An operation waits for writes to the window, or reads the own blocks.
    Checking,
    /// The operation holds the window while the others read. An answer of `None`: damaged there.
    Comparing {
        op: u64,
        question: u64,
        own: Vec<Cell>,
        answers: BTreeMap<ServerId, Option<Vec<Cell>>>,
    },
    /// `blocks` blocks, in which the copies in `differ` differ, are being ordered again.
    Equalling {
        blocks: u64,
        differ: BTreeSet<ServerId>,
    },
}

/// Result of the scrub of a page for this server's replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scrubbed {
    pub group: GroupId,
    pub after: Option<Cursor>,
    pub end: Option<Cursor>,
    pub sound: bool,
}

/// A member of a group whose primary is this server wants its replica scrubbed from `after` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub after: Option<Cursor>,
    pub overdue: bool,
}

/// Scrub rate over all groups whose primary is this server.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes per second, counted over all copies.
    pub rate: u64,
    /// No window starts before this moment.
    next: ebb_types::Moment,
}

impl Pace {
    fn spend(&mut self, now: ebb_types::Moment, bytes: u64) {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.rate.max(1);
        self.next = now + Duration::from_nanos(nanos);
    }
}

/// Blocks that the primary asked for, to compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckFor {
    pub token: u64,
    pub space: Space,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
}

/// A block's version, and its checksum unless it is zeroes.
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

/// Result of comparing a window; blocks count from its first.
#[derive(Default)]
struct Verdict {
    differing: BTreeSet<u32>,
    /// Blocks to order again: those that differ, and those damaged at a holder.
    again: BTreeSet<u32>,
    /// Some copy has blocks of a chunk that others have deleted.
    undead: bool,
    /// A copy that has newer blocks than the primary, with the first and last of them.
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
                // A replica has already tried to repair itself. A holder is sent again what it must have.
                copy.sound = copy.space != Space::Replica;
                if copy.sound {
                    verdict.again.extend((0..).zip(own).filter(|(_, cell)| owed(cell)).map(|(n, _)| n));
                }
                continue;
            };
            // A holder may have left-over older offload, which is never read: a deletion since then may be forgotten.
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
    /// Begins to compare a page, unless this server is catching up or already compares one.
    pub fn begin_scrub(&mut self, cx: &mut Context, after: Option<Cursor>) {
        if self.scrub.is_some() || self.catch_up.is_some() {
            return;
        }
        let copy = |(server, space, since)| (server, Copy { space, since, sound: true });
        let others = self.entry.slots.iter().filter_map(|slot| match (slot.state, slot.holder) {
            (SlotState::InSync, _) => Some((slot.server, Space::Replica, Epoch(0))),
            (SlotState::Away { since }, Some(holder)) if holder.covered => {
                Some((holder.server, Space::Offload { stands_for: slot.server }, since))
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

    /// Lists, takes the next window, or ends the page, if no step is in progress and the pace allows it.
    pub fn go_on_scrubbing(&mut self, cx: &mut Context) {
        let serving =
            self.primary.as_ref().is_some_and(|p| p.takes_requests()) && self.fence == self.entry.epoch;
        let Some(scrub) = self.scrub.as_mut().filter(|s| matches!(s.step, Step::Ready)) else { return };
        if !serving || cx.draining || !cx.has_lease() {
            self.scrub = None; // the requester asks again
            return;
        }
        if cx.now < cx.shared.scrub_pace.next {
            return; // a later tick continues
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

    /// Finds the windows in which any copy has data, up to where all copies have listed.
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

    /// Reports to every replica how far it was scrubbed.
    fn end_page(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(Scrub { after, end, others, sound, .. }) = self.scrub.take() else { return };
        for (to, copy) in others.iter().filter(|(_, copy)| copy.space == Space::Replica) {
            cx.send(*to, PeerMessage::Scrubbed { group, epoch, after, end, sound: copy.sound });
        }
        cx.shared.scrubbed.push(Scrubbed { group, after, end, sound });
        // Another request for the same page is served by this one.
        if cx.shared.scrub_wanted.get(&group).is_some_and(|wanted| wanted.after == after) {
            cx.shared.scrub_wanted.remove(&group);
        }
    }

    /// The window's operation holds its blocks and has read the own copy: asks what the others have.
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

    /// Once all answers are there: compares the copies.
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
            // A newer version on another copy could not be fetched: nothing may replace it.
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

    /// The window's operation ended: after its blocks were ordered again (`done`), or because it failed.
    pub fn scrub_op_ended(&mut self, cx: &mut Context, done: bool) {
        let Some(scrub) = &mut self.scrub else { return };
        match std::mem::replace(&mut scrub.step, Step::Ready) {
            Step::Equalling { blocks, .. } if done => cx.shared.stats.scrub.equalled_blocks += blocks,
            Step::Equalling { differ, .. } => scrub.mark_unsound(&differ),
            _ => scrub.sound = false,
        }
        self.go_on_scrubbing(cx);
    }

    /// The connection to a copy's server broke: stops waiting for it.
    pub fn scrub_lost(&mut self, cx: &mut Context, peer: ServerId) {
        let Some(scrub) = &mut self.scrub else { return };
        if scrub.others.remove(&peer).is_some() {
            self.on_all_listed(cx);
            self.judge(cx);
        }
    }
}

/// The side of the other copies.
impl Group {
    /// Checks blocks for the primary. Only under the present configuration is it known what must be here.
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

    /// Sends the result. A damaged replica is repaired first, then the blocks are read again.
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

    /// Damaged blocks were repaired: reads them again.
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
