//! Fills columns: finds out what they lack from the listings of all live servers of the set, and has it rebuilt. One
//! pass per epoch serves all columns that this server fills.
//!
//! If one of them lacks everything while parity servers lack something, a pass over what those lack comes first: rows
//! of which the parity is only kept by data servers bear fewer losses than what is on all disks [ECS² Algorithm 2]. It
//! takes what can be had, and leaves every judgement to the pass over everything.
//!
//! The listings are merged chunk by chunk: a chunk is looked at when every listing is past it, so that memory does not
//! grow with the column. What cannot be had now makes the pass incomplete, and it is repeated after a pause.

use super::known::{Known, is_sane};
use super::plan::{Listed, Segment, living, segments};
use super::rebuild::{Blocks, Candidate, Rebuilds};
use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::config::PlantedBug;
use crate::common::context::Context;
use crate::common::wait::{ColumnWait, Wait};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, CHUNK_BYTES_MAX, ChunkId, Content, Cursor, Epoch, Kind, ListPage, Moment, PeerMessage,
    Record, Refusal, Role, Run, ServerId, Version,
};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Before an incomplete pass is repeated: twice as long each time.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Maximum jobs of one pass that are planned ahead or in progress.
const AHEAD: usize = 32;

#[derive(Default)]
pub(super) struct Fill {
    pass: u64,
    /// The columns, and the epoch from which on each may lack strips.
    columns: Vec<(usize, Epoch)>,
    /// The pass is over what is no older than this; `None`: over everything.
    recent: Option<Epoch>,
    members: Vec<ServerId>,
    listings: Vec<Listing>,
    /// Jobs and deletions that have not ended.
    in_progress: usize,
    incomplete: bool,
    again: Option<Moment>,
    pause: Duration,
}

/// The listing of one column on one server, as far as it is not merged yet.
#[derive(Default)]
struct Listing {
    server: ServerId,
    column: usize,
    /// Where the next page continues.
    after: Option<Cursor>,
    ended: bool,
    runs: VecDeque<Run>,
    /// The question that is not answered yet.
    token: Option<u64>,
    asked: Moment,
    /// After a refusal it is asked again from here on.
    due: Moment,
}

impl Listing {
    /// Whether all runs of the chunk are known.
    fn is_past(&self, chunk: ChunkId) -> bool {
        let end = Cursor { chunk, block: u32::MAX };
        self.ended || self.after.is_some_and(|after| after >= end)
    }
}

impl Fill {
    pub fn new(cx: &mut Context, known: &Known) -> Option<Fill> {
        let columns = known.to_fill(cx.me);
        if columns.is_empty() {
            return None;
        }
        let lacks_all = columns.iter().any(|(_, since)| *since == Epoch(0));
        let recent = known.parity_lacks_since().filter(|_| lacks_all);
        let mut fill = Fill { recent, columns, pause: PAUSE, ..Fill::default() };
        fill.begin(cx, known);
        Some(fill)
    }

    fn begin(&mut self, cx: &mut Context, known: &Known) {
        self.pass = cx.shared.token();
        (self.in_progress, self.again) = (0, None);
        self.members = known.others(cx.me, cx.map);
        let trusts = cx.config.has(PlantedBug::TrustAnyListing);
        self.incomplete = !trusts && !known.all_is_listed(cx.me, &self.members);
        let everything =
            self.members.iter().flat_map(|server| (0..known.entry.strips()).map(|column| (*server, column)));
        let own = known.kept_columns().into_iter().map(|column| (cx.me, column));
        let listing = |(server, column)| Listing { server, column, asked: cx.now, ..Listing::default() };
        self.listings = everything.chain(own).map(listing).collect();
    }

    /// How many columns it fills.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    pub fn is_complete(&self) -> bool {
        self.is_through() && self.recent.is_none() && !self.incomplete
    }

    fn is_through(&self) -> bool {
        self.in_progress == 0 && self.listings.iter().all(|l| l.ended && l.runs.is_empty())
    }

    /// Starts over if other servers can be asked than when it began. A server that fell asleep will not answer.
    pub fn follow_map(&mut self, cx: &mut Context, known: &Known, rebuilds: &mut Rebuilds) {
        if !self.is_complete() && self.members != known.others(cx.me, cx.map) {
            rebuilds.clear(cx, known, true);
            self.begin(cx, known);
        }
    }

    /// `may_list_own`: the store has everything that was taken under older epochs.
    pub fn pump(&mut self, cx: &mut Context, known: &Known, rebuilds: &mut Rebuilds, may_list_own: bool) {
        if self.again.is_some_and(|at| at <= cx.now) {
            self.begin(cx, known);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        while self.in_progress < AHEAD {
            let next = self.listings.iter().filter_map(|l| l.runs.front().map(|run| run.chunk)).min();
            let is_past = |l: &Listing| next.map_or(l.ended, |chunk| l.is_past(chunk));
            if !self.listings.iter().all(is_past) {
                self.ask(cx, known, next, may_list_own);
                break;
            }
            let Some(chunk) = next else { break };
            let listed = self.take(chunk);
            self.plan(cx, known, rebuilds, chunk, &listed);
        }
        if self.is_through() && self.recent.take().is_some() {
            self.begin(cx, known);
            return self.pump(cx, known, rebuilds, may_list_own);
        }
        if self.is_through() && self.incomplete && self.again.is_none() {
            self.again = Some(cx.now + self.pause);
        }
    }

    /// Asks for the next page of each listing that is not past the chunk.
    fn ask(&mut self, cx: &mut Context, known: &Known, next: Option<ChunkId>, may_list_own: bool) {
        let since = self.sought().map(|(_, since)| since).min().unwrap_or(Epoch(0));
        for listing in &mut self.listings {
            let behind = !listing.ended && next.is_none_or(|chunk| !listing.is_past(chunk));
            if !behind || listing.token.is_some() || listing.due > cx.now {
                continue;
            }
            let (group, after, column) = (known.group(listing.column), listing.after, listing.column);
            if listing.server != cx.me {
                let (epoch, token, role) = (known.epoch(), cx.shared.peer_token(), Role::Replica);
                let message = PeerMessage::List { group, epoch, token, role, since, after };
                (listing.token, listing.asked) = (Some(token), cx.now);
                cx.send(listing.server, message);
            } else if may_list_own {
                let Some(role) = known.role_of(cx.me, column) else {
                    listing.ended = true; // it was dropped
                    continue;
                };
                let token = cx.shared.peer_token();
                listing.token = Some(token);
                let command = StoreCommand::List { role, group, since, after };
                cx.store(Wait::Column(ColumnWait::FillList { token }), command);
            }
        }
    }

    pub fn on_list_reply(
        &mut self,
        cx: &Context,
        (from, token): (ServerId, u64),
        result: Result<ListPage, Refusal>,
    ) {
        let asked = |l: &&mut Listing| l.server == from && l.token == Some(token);
        // Late: it is not waited for any more.
        let Some(listing) = self.listings.iter_mut().find(asked) else { return };
        listing.token = None;
        let column_blocks = CHUNK_BYTES_MAX / BLOCK_BYTES as u32;
        let sane = |page: &ListPage| {
            page.next.is_none_or(|next| Some(next) > listing.after)
                && page.runs.iter().all(|run| is_sane(run, column_blocks))
        };
        match result {
            Ok(page) if sane(&page) => {
                listing.runs.extend(page.runs);
                listing.ended = page.next.is_none();
                listing.after = page.next;
            }
            _ => listing.due = cx.now + cx.config.resend_after, // the tick asks again
        }
    }

    pub fn on_own_list(&mut self, cx: &Context, token: u64, outcome: StoreOutcome) {
        let result = match outcome {
            StoreOutcome::Listed(page) => Ok(page),
            _ => Err(Refusal::NotReady),
        };
        self.on_list_reply(cx, (cx.me, token), result);
    }

    /// The connection to a server broke: the tick asks it again.
    pub fn peer_lost(&mut self, cx: &Context, peer: ServerId) {
        for listing in self.listings.iter_mut().filter(|l| l.server == peer && l.token.is_some()) {
            (listing.token, listing.due) = (None, cx.now + cx.config.resend_after);
        }
    }

    /// Reports servers that owe a page and are silent.
    pub fn tick(&self, cx: &mut Context, known: &Known) {
        let me = cx.me;
        for listing in self.listings.iter().filter(|l| l.token.is_some() && l.server != me) {
            cx.suspect_if_silent(known.epoch(), listing.server, listing.asked);
        }
    }

    /// The columns, and from which epoch on what they lack is looked for in this pass.
    fn sought(&self) -> impl Iterator<Item = (usize, Epoch)> {
        let recent = self.recent.unwrap_or(Epoch(0));
        self.columns.iter().map(move |(column, since)| (*column, recent.max(*since)))
    }

    fn take(&mut self, chunk: ChunkId) -> Vec<Listed> {
        let mut all = Vec::new();
        for listing in &mut self.listings {
            while let Some(run) = listing.runs.pop_front_if(|run| run.chunk == chunk) {
                all.push(Listed { column: listing.column, server: listing.server, run });
            }
        }
        all
    }

    /// What of the chunk is to be rebuilt or deleted here.
    fn plan(
        &mut self,
        cx: &mut Context,
        known: &Known,
        rebuilds: &mut Rebuilds,
        chunk: ChunkId,
        listed: &[Listed],
    ) {
        let (deleted, living) = living(listed);
        if let Some(version) = deleted {
            self.delete(cx, known, (chunk, version), listed, !living.is_empty());
        }
        if let Some(version) = self.left_over(cx, known, &living) {
            return self.delete(cx, known, (chunk, version), listed, false);
        }
        let targets = known.entry.targets(chunk);
        let mine = |column: usize| known.is_own(cx.me, column) || targets.get(column) == Some(&Some(cx.me));
        let columns: Vec<(usize, Epoch)> = self.sought().filter(|(column, _)| mine(*column)).collect();
        let segments = segments(&living);
        let rest = |s: &Segment| {
            known.is_remnant(cx.me, &self.members, |column| s.present.iter().any(|p| p.column == column))
        };
        if cx.config.has(PlantedBug::RemnantOfChunk) && segments.iter().any(rest) {
            return;
        }
        for segment in segments {
            for &(column, since) in &columns {
                self.plan_segment(cx, known, rebuilds, (chunk, column, since), &segment);
            }
        }
    }

    /// The newest version of a chunk that this server alone has, if everything is compared with a column in sync. That
    /// has a strip of each acknowledged row: so the chunk was deleted, which the others have forgotten, and the store
    /// here is an older copy that was put back; or it is the rest of a write of an epoch that has ended, and cannot
    /// succeed.
    fn left_over(&self, cx: &Context, known: &Known, listed: &[Listed]) -> Option<Version> {
        let whole = |(column, since): &(usize, Epoch)| *since == Epoch(0) && known.is_own(cx.me, *column);
        let older = |l: &Listed| l.server == cx.me && l.run.version.epoch < known.epoch();
        let compares = self.recent.is_none()
            && self.columns.iter().any(whole)
            && known.one_has_all(cx.me, &self.members);
        (compares && listed.iter().all(older)).then(|| listed.iter().map(|l| l.run.version).max())?
    }

    fn plan_segment(
        &mut self,
        cx: &mut Context,
        known: &Known,
        rebuilds: &mut Rebuilds,
        (chunk, column, since): (ChunkId, usize, Epoch),
        segment: &Segment,
    ) {
        let here = segment.present.iter().find(|p| p.server == cx.me && p.column == column);
        let versions = || segment.present.iter().filter(|p| !p.lost).map(|p| p.version);
        // Where it is, it is lost.
        let Some((newest, oldest)) = versions().max().zip(versions().min()) else { return };
        // What is here of an earlier try is stored again, as new as the row: a column that is in sync lists each row
        // that was acknowledged at least as new as then, so that who lacks what is newer finds it there.
        if newest.epoch < since || here.is_some_and(|here| !here.lost && here.version == newest) {
            return;
        }
        let (code, present) = (known.code(chunk), segment.columns());
        if column >= code.strips() {
            return;
        }
        let Segment { first, count, .. } = *segment;
        let of = Blocks { column, chunk, first, count };
        if !present.contains(&column) && code.sources(&present, &[column]).is_none() {
            if self.recent.is_some() {
                return;
            }
            let is_listed = |column| segment.present.iter().any(|p| p.column == column);
            let may = !known.is_remnant(cx.me, &self.members, is_listed)
                && known.may_be_elsewhere(cx.map, (chunk, column), &present, Some(oldest.epoch));
            self.incomplete |= may;
            // Rule 4: the rest of a failed write is passed over. Where a strip is beyond repair on another column, this
            // may as well be what is left of a row that was acknowledged: it counts as lost here, too.
            if !may && here.is_none() && segment.present.iter().any(|p| p.lost) {
                self.in_progress += 1;
                rebuilds.give_up(known, of, (self.pass, newest), oldest);
            }
            return;
        }
        let mut sources: Vec<_> = segment.present.iter().filter(|p| !p.lost).collect();
        // The strip itself, data before parity, and of each column its own server.
        sources.sort_by_key(|p| (p.column != column, p.column, !known.is_own(p.server, p.column)));
        let candidate =
            |p: &&super::plan::Present| Candidate { column: p.column, server: p.server, first, count };
        let candidates = sources.iter().map(candidate).collect();
        self.in_progress += 1;
        let repair = here.is_some_and(|here| here.lost);
        rebuilds.fill(known, (of, since == Epoch(0)), (self.pass, newest, repair), candidates);
    }

    /// A deletion anywhere deletes what is here and no newer. The own column remembers it, unless the chunk `lives` on.
    fn delete(
        &mut self,
        cx: &mut Context,
        known: &Known,
        (chunk, version): (ChunkId, Version),
        listed: &[Listed],
        lives: bool,
    ) {
        let here = || listed.iter().filter(|l| l.server == cx.me);
        let mut columns: BTreeSet<usize> =
            here().filter(|l| l.run.version <= version).map(|l| l.column).collect();
        if !lives {
            let filled = self.columns.iter().map(|(column, _)| *column);
            columns.extend(filled.filter(|column| known.is_own(cx.me, *column)));
        }
        for l in here().filter(|l| l.run.kind == Kind::Delete && l.run.version >= version) {
            columns.remove(&l.column);
        }
        for column in columns {
            let Some(role) = known.role_of(cx.me, column) else { continue };
            let (group, content) = (known.group(column), Content::Delete);
            let record = Record { group, chunk, first: 0, count: 0, version, request: None, content };
            let (payload, must_fit, committed) = (Bytes::new(), true, version);
            self.in_progress += 1;
            let wait = ColumnWait::FillDeleted { pass: self.pass, kept: (column, role) };
            cx.store(Wait::Column(wait), StoreCommand::Apply { role, record, payload, must_fit, committed });
        }
    }

    /// A job or a deletion of a pass ended.
    pub fn on_ended(&mut self, pass: u64, complete: bool) {
        if pass == self.pass {
            self.in_progress -= 1;
            self.incomplete |= !complete;
        }
    }
}
