//! Scrub: every copy is read from disk, checked and compared with the others, in quiet times and at a bounded rate.
//!
//! Each server records when its replica was last found sound as a whole ([`crate::common::due`]), and asks the group's
//! primary to compare when the next scrub is due. The primary does one page of one group at a time: it lists what every
//! copy has, and takes windows of blocks, one after another. Each copy reads and checks its own blocks and sends their
//! versions and checksums, while the primary orders no write to them: every earlier write is then on all targets, so a
//! difference is a fault. If another copy has newer blocks, they are fetched; then the primary orders its present
//! content again, for all copies. A damaged replica repairs itself (R9). Then each replica learns how far it was found
//! sound: progress stays with the replica, whichever server is primary next.
//!
//! Blocks that the primary cannot read, and that no copy could repair, are compared with nothing and left as they are.
//! Every copy still reads its own and judges them by their checksums, but no replica counts as sound on that page.
//!
//! Sleeping copies are due when they are awake again. They are never woken for a scrub, not even for damage that only
//! they could repair: the damaged replica counts as unsound, and is retried from time to time.

use crate::common::api::StoreCommand;
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::due::Scrubbed;
use crate::common::run_map::Source;
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Epoch, Kind, ListPage, Moment, PeerMessage, RECORD_BLOCKS_MAX,
    Record, Refusal, Role, Run, ServerId, SlotState, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Blocks that are compared at a time: writes to them wait meanwhile.
const WINDOW: u32 = 256;
const _: () = assert!(WINDOW <= RECORD_BLOCKS_MAX);
/// Maximum windows per page.
const PAGE_WINDOWS: usize = 16;
/// A copy that has not answered for so long is left out: clients' writes to the window wait for it. Its disk may take
/// many seconds for a bad sector, and a connection as long to break.
const PATIENCE: Duration = Duration::from_secs(2);

/// A page of a group's copies under comparison, in one epoch.
#[derive(Default)]
pub(crate) struct Scrub {
    after: Option<Cursor>,
    end: Option<Cursor>,
    /// The other copies. A copy that cannot answer is removed, and counts as not scrubbed.
    others: BTreeMap<ServerId, Copy>,
    /// Whether the own copy has been sound so far.
    sound: bool,
    step: Step,
    /// When the other copies were asked last.
    asked: Moment,
    listed: bool,
    windows: VecDeque<(ChunkId, u32)>,
    deleted: BTreeMap<ChunkId, Version>,
    /// The present window, and whether newer blocks were already fetched for it.
    window: (ChunkId, u32, u32),
    fetched: bool,
}

struct Copy {
    role: Role,
    /// Nothing older than this epoch need be there (nonzero for a holder).
    since: Epoch,
    sound: bool,
}

#[derive(Default)]
enum Step {
    /// Waiting until the next window may start.
    #[default]
    Ready,
    Listing {
        token: u64,
        pages: BTreeMap<ServerId, ListPage>,
    },
    /// An operation waits for writes to the window, or reads the own blocks.
    Checking,
    /// The operation holds the window while the others read. An answer of `None`: damaged there.
    Comparing {
        op: u64,
        token: u64,
        own: Vec<Cell>,
        /// Blocks that could not be read here, counted from the window's first.
        unread: BTreeSet<u32>,
        answers: BTreeMap<ServerId, Option<Vec<Cell>>>,
    },
    /// `blocks` blocks, in which the copies in `differ` differ, are being ordered again.
    Equalling {
        blocks: u64,
        differ: BTreeSet<ServerId>,
    },
}

/// What the scrub needs next from its primary.
#[must_use]
pub(crate) enum Next {
    /// Nothing: it waits.
    Wait,
    /// The next window may start ([`Scrub::advance`]).
    Advance,
    /// The page is done, or given up: the requester asks again.
    End,
    /// An operation that compares these blocks.
    Check { chunk: ChunkId, blocks: (u32, u32) },
    /// Blocks for the operation from a copy that has a newer version; then it reads again.
    FetchNewer { op: u64, source: Source, blocks: (ChunkId, u32, u32) },
    /// The operation orders these of its blocks again.
    Heal { op: u64, blocks: (u32, u32) },
    /// The operation ends, and the chunk's deletion is ordered again.
    HealDeletion { op: u64, chunk: ChunkId },
    /// The operation ends, and the next window may start.
    Release { op: u64 },
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

/// The cells of a window of `count` blocks from `first` on, and which of them no record has: they could not be read.
fn cells_of_window(records: &[Record], (first, count): (u32, u32)) -> (Vec<Cell>, BTreeSet<u32>) {
    let mut window = vec![(Version::ZERO, None); count as usize];
    let mut unread: BTreeSet<u32> = (0..count).collect();
    for record in records {
        let from = record.first.saturating_sub(first);
        for (n, cell) in (from..count).zip(cells(std::slice::from_ref(record))) {
            window[n as usize] = cell;
            unread.remove(&n);
        }
    }
    (window, unread)
}

fn data_bytes(cells: &[Cell]) -> u64 {
    cells.iter().filter(|cell| cell.1.is_some()).count() as u64 * BLOCK_BYTES as u64
}

/// Bytes of data in these records, for the figures.
pub(crate) fn checked_bytes(records: &[Record]) -> u64 {
    data_bytes(&cells(records))
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
    fn verdict(
        &mut self,
        chunk: ChunkId,
        (own, unread): (&[Cell], &BTreeSet<u32>),
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
                copy.sound = copy.role != Role::Replica;
                if copy.sound {
                    verdict.again.extend((0..).zip(own).filter(|(_, cell)| owed(cell)).map(|(n, _)| n));
                }
                continue;
            };
            // A holder may have left-over older offload, which is never read: a deletion since then may be forgotten.
            let valid = |theirs: &Cell| if owed(theirs) { *theirs } else { (Version::ZERO, None) };
            for (n, (theirs, own)) in (0..).zip(theirs.iter().map(valid).zip(own)) {
                if unread.contains(&n) || theirs == *own || (theirs.0 <= own.0 && !owed(own)) {
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
    /// Begins to compare a page of all live copies.
    pub fn new(cx: &Context, member: &Member, after: Option<Cursor>) -> Scrub {
        let copy = |(server, role, since)| (server, Copy { role, since, sound: true });
        let others = member.entry().slots.iter().filter_map(|slot| match (slot.state, slot.holder) {
            (SlotState::InSync, _) => Some((slot.server, Role::Replica, Epoch(0))),
            (SlotState::Away { since }, Some(holder)) if holder.covered => {
                Some((holder.server, Role::Offload { stands_for: slot.server }, since))
            }
            _ => None,
        });
        let others = others.filter(|(server, ..)| *server != cx.me && cx.map.is_live(*server));
        let others = others.map(copy).collect();
        Scrub { after, others, sound: true, asked: cx.now, ..Scrub::default() }
    }

    /// Lists, takes the next window, or ends the page, if no step is in progress and the pace allows it. `may`: the
    /// primary serves, and may begin new work.
    pub fn advance(&mut self, cx: &mut Context, member: &Member, may: bool) -> Next {
        if cx.now.since(self.asked) >= PATIENCE {
            let next = self.leave_out_the_silent(cx);
            if !matches!(next, Next::Wait) {
                return next;
            }
        }
        if !matches!(self.step, Step::Ready) {
            return Next::Wait;
        }
        if !may {
            return Next::End;
        }
        if !cx.shared.scrubs.may_read(cx.now) {
            return Next::Wait; // a later tick continues
        }
        match self.windows.pop_front() {
            Some((chunk, window)) => {
                let first = window * WINDOW;
                let all = cx.config.chunk_bytes / BLOCK_BYTES as u32;
                let count = WINDOW.min(all.saturating_sub(first)).max(1);
                (self.step, self.fetched) = (Step::Checking, false);
                self.window = (chunk, first, count);
                Next::Check { chunk, blocks: (first, count) }
            }
            None if self.listed => {
                self.end_page(cx, member);
                Next::End
            }
            None => {
                self.list_copies(cx, member);
                Next::Wait
            }
        }
    }

    /// Goes on without the copies that owe an answer. Nothing is said of them: they are scrubbed another time.
    fn leave_out_the_silent(&mut self, cx: &mut Context) -> Next {
        match &self.step {
            Step::Listing { pages, .. } => self.others.retain(|server, _| pages.contains_key(server)),
            Step::Comparing { answers, .. } => self.others.retain(|server, _| answers.contains_key(server)),
            _ => return Next::Wait,
        }
        if self.take_windows(cx) { Next::Advance } else { self.judge(cx) }
    }

    fn list_copies(&mut self, cx: &mut Context, member: &Member) {
        let (group, epoch, after) = (member.id(), member.epoch(), self.after);
        let token = cx.shared.peer_token();
        (self.step, self.asked) = (Step::Listing { token, pages: BTreeMap::new() }, cx.now);
        for (&to, &Copy { role, since, .. }) in &self.others {
            cx.send(to, PeerMessage::List { group, epoch, token, role, since, after });
        }
        let command = StoreCommand::List { role: Role::Replica, group, since: Epoch(0), after };
        cx.store(Wait::ScrubList { token }, command);
    }

    /// Whether the listing under this token is for this scrub.
    pub fn is_listing(&self, asked: u64) -> bool {
        matches!(self.step, Step::Listing { token, .. } if token == asked)
    }

    /// A copy listed its page, or cannot. The scrub is given up if the own store cannot.
    pub fn on_listed(&mut self, cx: &Context, from: ServerId, page: Option<ListPage>) -> Next {
        let Step::Listing { pages, .. } = &mut self.step else { return Next::Wait };
        match page {
            Some(page) => drop(pages.insert(from, page)),
            None if from == cx.me => return Next::End,
            None => drop(self.others.remove(&from)),
        }
        if self.take_windows(cx) { Next::Advance } else { Next::Wait }
    }

    /// Once all copies have listed: finds the windows in which any has data, up to where all have listed. Returns
    /// whether all have.
    fn take_windows(&mut self, cx: &Context) -> bool {
        let Step::Listing { pages, .. } = &mut self.step else { return false };
        if !pages.contains_key(&cx.me) || self.others.keys().any(|server| !pages.contains_key(server)) {
            return false;
        }
        pages.retain(|server, _| *server == cx.me || self.others.contains_key(server));
        let mut end = pages.values().filter_map(|page| page.next).min();
        let mut windows = BTreeSet::new();
        let within = |run: &&Run| end.is_none_or(|end| run.chunk <= end.chunk);
        for run in pages.values().flat_map(|page| &page.runs).filter(within) {
            if run.kind == Kind::Delete {
                let version = self.deleted.entry(run.chunk).or_insert(run.version);
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
        self.end = end;
        self.windows = windows.into_iter().collect();
        (self.listed, self.step) = (true, Step::Ready);
        true
    }

    /// Reports to every replica how far it was scrubbed.
    fn end_page(&mut self, cx: &mut Context, member: &Member) {
        let (group, epoch) = (member.id(), member.epoch());
        let Scrub { after, end, others, sound, .. } = self;
        let (after, end, sound) = (*after, *end, *sound);
        for (to, copy) in others.iter().filter(|(_, copy)| copy.role == Role::Replica) {
            cx.send(*to, PeerMessage::Scrubbed { group, epoch, after, end, sound: copy.sound });
        }
        cx.shared.scrubs.find(Scrubbed { group, after, end, sound });
        cx.shared.scrubs.end(group, after);
    }

    /// The window's operation holds its blocks and has read the own copy, as far as that can be read: asks what the
    /// others have.
    pub fn compare(&mut self, cx: &mut Context, member: &Member, op: u64, own: &[Record]) -> Next {
        if !matches!(self.step, Step::Checking) {
            cx.bug("a scrub that checks nothing was given blocks");
        }
        let (group, epoch, (chunk, first, count)) = (member.id(), member.epoch(), self.window);
        let token = cx.shared.peer_token();
        let (own, unread) = cells_of_window(own, (first, count));
        for (&to, &Copy { role, .. }) in &self.others {
            cx.send(to, PeerMessage::Check { group, epoch, token, role, chunk, first, count });
        }
        cx.shared.stats.scrub.checked_bytes += data_bytes(&own);
        self.step = Step::Comparing { op, token, own, unread, answers: BTreeMap::new() };
        self.asked = cx.now;
        self.judge(cx)
    }

    /// A copy sent what it has of the window. A reply that is not waited for any more is ignored.
    pub fn on_check_reply(
        &mut self,
        cx: &mut Context,
        (from, asked): (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
    ) -> Next {
        let Step::Comparing { token, own, answers, .. } = &mut self.step else { return Next::Wait };
        if *token != asked {
            return Next::Wait;
        }
        match result.map(|records| cells(&records)) {
            Ok(theirs) if theirs.len() == own.len() => drop(answers.insert(from, Some(theirs))),
            Err(Refusal::Corrupt) if cx.config.has(PlantedBug::OverlookDamage) => {
                drop(answers.insert(from, Some(own.clone())));
            }
            Err(Refusal::Corrupt) => drop(answers.insert(from, None)),
            _ => drop(self.others.remove(&from)),
        }
        self.judge(cx)
    }

    /// Once all answers are there: compares the copies.
    fn judge(&mut self, cx: &mut Context) -> Next {
        let Step::Comparing { op, own, unread, answers, .. } = &mut self.step else { return Next::Wait };
        if self.others.keys().any(|server| !answers.contains_key(server)) {
            return Next::Wait;
        }
        let (op, own, unread) = (*op, std::mem::take(own), std::mem::take(unread));
        let answers = std::mem::take(answers);
        let (chunk, first, _) = self.window;
        let theirs = answers.values().flatten().map(|cells| data_bytes(cells)).max().unwrap_or(0);
        cx.shared.scrubs.spend(cx.now, data_bytes(&own).max(theirs) * (1 + answers.len() as u64));
        let verdict = self.verdict(chunk, (&own, &unread), &answers);
        if !unread.is_empty() {
            // None of the copies is known to have what the newest write put there.
            self.sound = false;
            self.others.values_mut().for_each(|copy| copy.sound = false);
        }
        if let (Some((from, n, last)), false, false) = (verdict.newer, verdict.undead, self.fetched) {
            (self.step, self.fetched) = (Step::Checking, true);
            let Some(&Copy { role, .. }) = self.others.get(&from) else {
                cx.bug("a copy that is not compared has newer blocks");
                return Next::Release { op };
            };
            let blocks = (chunk, first + n, last - n + 1);
            return Next::FetchNewer { op, source: (from, role), blocks };
        }
        cx.shared.stats.scrub.differing_blocks += verdict.differing.len() as u64;
        let span = verdict.again.first().zip(verdict.again.last());
        if let (true, Some(_)) = (verdict.newer.is_some() && !verdict.undead, span) {
            // A newer version on another copy could not be fetched: nothing may replace it.
            self.sound = false;
            self.mark_unsound(&verdict.differ);
        } else if let Some((n, last)) = span {
            let blocks = (first + n, last - n + 1);
            self.step = Step::Equalling { blocks: verdict.differing.len() as u64, differ: verdict.differ };
            return match verdict.undead {
                true => Next::HealDeletion { op, chunk },
                false => Next::Heal { op, blocks },
            };
        }
        self.step = Step::Ready;
        Next::Release { op }
    }

    /// The window's operation ended: after its blocks were ordered again (`done`), or because it failed.
    pub fn op_ended(&mut self, cx: &mut Context, done: bool) {
        match std::mem::replace(&mut self.step, Step::Ready) {
            Step::Equalling { blocks, .. } if done => cx.shared.stats.scrub.equalled_blocks += blocks,
            Step::Equalling { differ, .. } => self.mark_unsound(&differ),
            // The own store failed, so nothing was compared: nothing is said of the other copies.
            _ => {
                self.sound = false;
                self.others.clear();
            }
        }
    }

    /// The connection to a copy's server broke: stops waiting for it.
    pub fn peer_lost(&mut self, cx: &mut Context, peer: ServerId) -> Next {
        if self.others.remove(&peer).is_none() {
            return Next::Wait;
        }
        if self.take_windows(cx) { Next::Advance } else { self.judge(cx) }
    }
}
