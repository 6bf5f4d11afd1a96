//! Catch-up: the one routine for reclaim, for the return of a crashed server, and for rebuild. [Sierra §3.6, §3.7]
//!
//! The replica lists what its sources have, page by page, and asks its own store which of it is news: that is missing,
//! and is fetched. When nothing is missing it says so, and becomes in sync under the next configuration. In a full
//! comparison (`since` is zero) it also lists its own older runs: what no source has was deleted.

mod fetches;
mod sources;

use crate::common::api::{StoreCommand, StoreOutcome, StoreToken};
use crate::common::context::Context;
use crate::common::run_map::{RunMap, Source};
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use bytes::Bytes;
use ebb_types::{
    ChunkId, Cursor, Epoch, Kind, ListPage, Moment, PeerMessage, Record, Refusal, Role, Run, ServerId,
    ServerReport, Version,
};
use fetches::Fetches;
use std::collections::BTreeSet;
use std::time::Duration;

pub use fetches::FETCH_BLOCKS;
pub(crate) use fetches::Fetched;

/// When only blocks that no copy has are missing, everything is listed again, since a copy may have been repaired:
/// after the first pause, then after twice as long each time.
const LOST_PAUSE: Duration = Duration::from_secs(1);
const LOST_PAUSE_MAX: Duration = Duration::from_secs(64);

pub(crate) struct CatchUp {
    since: Epoch,
    sources: Vec<Source>,
    /// Writes of this epoch or newer came here directly: no source need have them.
    began: Epoch,
    listing: Listing,
    /// In a full comparison: older runs that are here and that no source has listed so far.
    unlisted: RunMap,
    fetches: Fetches,
    /// Records that are not durable yet and that a comparison with the own store may have seen: if one fails, its
    /// blocks may be missing.
    awaited: BTreeSet<StoreToken>,
    reported: Option<Moment>,
    /// Every member has been there since the listing began. Else a source may have listed as lost what it could not
    /// repair for want of a copy that is back by now: its bound is no version that anything had.
    all_along: bool,
    /// Since when only blocks that no copy has are missing.
    lost_since: Option<Moment>,
    lost_pause: Duration,
}

enum Listing {
    /// Source `index` is to be asked from `due` on, or was asked with `token`, for what follows `after`. However long a
    /// source takes, it is not asked again while the connection stands: otherwise its reply would be too late every
    /// time.
    Asking {
        index: usize,
        after: Option<Cursor>,
        token: Option<u64>,
        due: Moment,
    },
    /// Listing the own store over the range of the first source's page.
    Own {
        token: u64,
        page: ListPage,
    },
    /// Comparing a page with the own store.
    Comparing {
        index: usize,
        next: Option<Cursor>,
        token: u64,
    },
    Done,
}

impl CatchUp {
    /// Begins in this epoch, with the sources that there are now.
    pub fn new(cx: &Context, member: &Member, since: Epoch) -> CatchUp {
        CatchUp::from_sources(cx, member, since, sources::sources(cx, member, None))
    }

    fn from_sources(cx: &Context, member: &Member, since: Epoch, sources: Vec<Source>) -> CatchUp {
        CatchUp {
            since,
            began: sources::began(cx, member, &sources),
            sources,
            listing: Listing::Asking { index: 0, after: None, token: None, due: Moment::ZERO },
            unlisted: RunMap::default(),
            fetches: Fetches::default(),
            awaited: BTreeSet::new(),
            reported: None,
            all_along: member.all_live(cx),
            lost_since: None,
            lost_pause: LOST_PAUSE,
        }
    }

    /// Begins again in this epoch, from other sources.
    fn restart(&mut self, cx: &mut Context, member: &Member, sources: Vec<Source>) {
        self.end(cx);
        *self = CatchUp::from_sources(cx, member, self.since, sources);
    }

    /// Gives back what it uses of the server.
    pub fn end(&mut self, cx: &mut Context) {
        self.fetches.end_all(cx);
    }

    /// Whether it continues as it is under this configuration. If not, it starts over as soon as there are sources.
    pub fn continues(&self, cx: &Context, member: &Member) -> bool {
        let waits = || self.is_listed() && sources::sources(cx, member, None).is_empty();
        let good = || sources::are_good(cx.map, member.entry(), &self.sources, self.is_listed());
        self.is_complete() || waits() || good()
    }

    /// Requests sent under an older epoch are sent again.
    pub fn new_epoch(&mut self, cx: &mut Context, member: &Member) {
        self.all_along &= member.all_live(cx);
        self.fetches.new_epoch(cx);
        self.reported = None;
        if let Listing::Asking { token, due, .. } = &mut self.listing {
            (*token, *due) = (None, Moment::ZERO);
        }
    }

    /// Whether the missing set is known. Then this replica can serve: it can fetch whatever it lacks.
    pub fn is_listed(&self) -> bool {
        matches!(self.listing, Listing::Done)
    }

    /// Blocks that a holder has for this server and that are fetched at the pace of reclaim; zero: it catches up for
    /// another reason.
    pub fn reclaims(&self) -> u64 {
        let kept = |(_, role): &Source| matches!(role, Role::Offload { .. });
        let is_reclaim = self.is_listed() && self.sources.iter().all(kept);
        if is_reclaim { self.missing().blocks() } else { 0 }
    }

    pub fn missing(&self) -> &RunMap {
        &self.fetches.missing
    }

    /// Whether it may miss any of these blocks: while it lists, perhaps from other sources than before, it may miss
    /// all.
    pub fn lacks(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        !self.is_listed() || self.missing().overlaps(chunk, first, count)
    }

    /// The first run (first, count) of these blocks that no copy has.
    pub fn lost(&self, chunk: ChunkId, first: u32, count: u32) -> Option<(u32, u32)> {
        let found = self.missing().within(chunk, first, count).into_iter().find(|(m, ..)| m.lost);
        found.map(|(_, first, count)| (first, count))
    }

    pub fn is_complete(&self) -> bool {
        self.is_listed() && self.fetches.is_empty() && self.awaited.is_empty()
    }

    /// The connection to a server broke: it is asked again.
    pub fn peer_lost(&mut self, cx: &mut Context, peer: ServerId) {
        if let Listing::Asking { token, index, due, .. } = &mut self.listing
            && self.sources.get(*index).is_some_and(|s| s.0 == peer)
        {
            (*token, *due) = (None, Moment::ZERO);
        }
        self.fetches.peer_lost(cx, peer);
    }

    /// The store is done with a record; `run`: what is now durable.
    pub fn record_ended(&mut self, token: StoreToken, run: Option<Run>) {
        self.awaited.remove(&token);
        if let Some(run) = run {
            self.fetches.has_now(run);
        }
    }

    /// Whether only blocks that no copy has have been missing for `lost_pause`.
    fn is_stuck(&mut self, now: Moment) -> bool {
        let missing = &self.fetches.missing;
        let stuck = self.is_listed() && !missing.is_empty() && missing.is_lost();
        self.lost_since = stuck.then(|| self.lost_since.unwrap_or(now));
        self.lost_since.is_some_and(|since| now.since(since) >= self.lost_pause)
    }

    pub fn tick(&mut self, cx: &mut Context, member: &Member) {
        let sources = sources::sources(cx, member, None);
        self.all_along &= member.all_live(cx);
        let mut stuck = self.is_stuck(cx.now) && !sources.is_empty();
        if stuck && self.all_along {
            // A source that has lost them lists them so. Every copy is asked before they are stored as lost here, too.
            self.fetches.missing.seek_lost();
            stuck = false;
        }
        if stuck || !self.continues(cx, member) {
            let pause = if stuck { (self.lost_pause * 2).min(LOST_PAUSE_MAX) } else { LOST_PAUSE };
            self.restart(cx, member, sources);
            self.lost_pause = pause;
        }
        self.fetches.tick(cx);
    }

    /// Asks for the next page, fetches as much as allowed, and reports when nothing is missing.
    pub fn pump(&mut self, cx: &mut Context, member: &mut Member) -> Fetched {
        self.ask_listing(cx, member);
        let is_paced = !cx.config.reclaim_within.is_zero() && !cx.draining && self.reclaims() > 0;
        let fetched =
            if self.is_listed() { self.fetches.pump(cx, member, is_paced) } else { Fetched::Nothing };
        let due = self.reported.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after);
        if self.is_complete() && due {
            self.reported = Some(cx.now);
            cx.report(ServerReport::CaughtUp { group: member.id(), epoch: member.epoch() });
        }
        fetched
    }

    /// Fetches missing blocks out of turn, for an operation that waits for them.
    pub fn demand(&mut self, cx: &mut Context, member: &mut Member, blocks: (ChunkId, u32, u32)) -> Fetched {
        if self.is_listed() { self.fetches.demand(cx, member, blocks) } else { Fetched::Nothing }
    }

    pub fn on_fetch_reply(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        of: (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
        payload: Bytes,
    ) -> Fetched {
        self.fetches.on_reply(cx, member, of, result, payload)
    }

    pub fn on_applied(&mut self, cx: &mut Context, token: u64, outcome: &StoreOutcome) -> Fetched {
        self.fetches.on_applied(cx, token, matches!(outcome, StoreOutcome::Failed(_)))
    }

    fn ask_listing(&mut self, cx: &mut Context, member: &Member) {
        // It is asked already, or being compared, or done.
        let Listing::Asking { index, after, token: token @ None, due } = &mut self.listing else { return };
        if *due > cx.now {
            return;
        }
        let Some(&source) = self.sources.get(*index) else {
            return; // no source to ask: the tick looks for sources again
        };
        let (new, after) = (cx.shared.peer_token(), *after);
        *token = Some(new);
        let ((to, role), since) = (source, member.asked_since(source, self.since));
        let (group, epoch) = (member.id(), member.epoch());
        cx.send(to, PeerMessage::List { group, epoch, token: new, role, since, after });
    }

    /// A source listed a page. A reply that is not waited for any more is ignored.
    pub fn on_list_reply(
        &mut self,
        cx: &mut Context,
        member: &Member,
        (from, answered): (ServerId, u64),
        result: Result<ListPage, Refusal>,
    ) {
        let Listing::Asking { index, token, due, after } = &mut self.listing else { return };
        let (index, after) = (*index, *after);
        if *token != Some(answered) || self.sources.get(index).is_none_or(|s| s.0 != from) {
            return;
        }
        match result {
            // In a salvage, another member may have what this one has lost.
            Ok(mut page) if member.entry().salvage => {
                page.runs.retain(|run| run.kind != Kind::Lost);
                self.compare_page(cx, member, index, page);
            }
            Ok(page) if self.since > Epoch(0) => self.compare_page(cx, member, index, page),
            Ok(page) if index == 0 => self.list_own(cx, member, after, page),
            Ok(page) => {
                self.found(&page.runs);
                self.compare_page(cx, member, index, page);
            }
            Err(refusal) => {
                (*token, *due) = (None, cx.now + cx.config.resend_after); // the tick asks again
                if refusal == Refusal::Poisoned {
                    let sources = sources::sources(cx, member, Some(from));
                    if !sources.is_empty() {
                        self.restart(cx, member, sources);
                    }
                }
            }
        }
    }

    fn compare_page(&mut self, cx: &mut Context, member: &Member, index: usize, page: ListPage) {
        let (token, ListPage { runs, next }) = (cx.shared.token(), page);
        self.listing = Listing::Comparing { index, next, token };
        let command = StoreCommand::Newer { role: Role::Replica, group: member.id(), runs };
        cx.store(Wait::CatchUpNewer { token }, command);
    }

    /// The own store said which runs of a page it lacks. Returns whether the page was waited for.
    pub fn on_newer(&mut self, cx: &mut Context, member: &Member, token: u64, outcome: StoreOutcome) -> bool {
        let Listing::Comparing { index, next, token: awaited } = self.listing else { return false };
        // A store that has failed answers nothing more.
        let StoreOutcome::Newer(runs) = outcome else { return false };
        if awaited != token {
            return false;
        }
        debug_assert!(index < self.sources.len(), "a page is of a source that is asked");
        let source = self.sources[index];
        self.awaited.extend(member.applying.tokens());
        for run in runs {
            self.fetches.missing.add(run, source);
        }
        let index = if next.is_some() { index } else { index + 1 };
        if index < self.sources.len() {
            self.listing = Listing::Asking { index, after: next, token: None, due: cx.now };
        } else {
            self.become_listed(cx);
        }
        true
    }

    /// What no source has listed was deleted: only a deletion removes blocks, so there was one, forgotten since
    /// ([`Member::forget_deletions`]).
    fn become_listed(&mut self, cx: &Context) {
        for Run { chunk, version, .. } in std::mem::take(&mut self.unlisted).runs() {
            let deletion = Run { chunk, first: 0, count: 0, version, kind: Kind::Delete };
            self.fetches.missing.add(deletion, (cx.me, Role::Replica));
        }
        self.listing = Listing::Done;
    }

    /// Lists the older runs that are here, over the range of the first source's page, from `after` on.
    fn list_own(&mut self, cx: &mut Context, member: &Member, after: Option<Cursor>, page: ListPage) {
        let (token, group) = (cx.shared.token(), member.id());
        self.listing = Listing::Own { token, page };
        let (role, since) = (Role::Replica, Epoch(0));
        cx.store(Wait::CatchUpOwn { token }, StoreCommand::List { role, group, since, after });
    }

    pub fn on_own_list(&mut self, cx: &mut Context, member: &Member, asked: u64, outcome: StoreOutcome) {
        // Late: the catch-up began again.
        let Listing::Own { token, page } = &mut self.listing else { return };
        if *token != asked {
            return;
        }
        let page = std::mem::take(page);
        // A store that has failed answers nothing more.
        let StoreOutcome::Listed(ListPage { runs, next }) = outcome else { return };
        // Nothing is known of blocks that are lost here: the scrub compares them.
        let known = runs.into_iter().filter(|run| run.kind != Kind::Lost);
        for run in known.filter_map(|run| up_to(run, page.next)) {
            // A run that may be on only some copies is rewritten by the primary.
            if run.version.epoch < self.began && !member.tail.has(run.chunk, run.version) {
                self.unlisted.add(run, (cx.me, Role::Replica));
            }
        }
        if next.is_some_and(|next| page.next.is_none_or(|end| next < end)) {
            return self.list_own(cx, member, next, page);
        }
        self.found(&page.runs);
        self.compare_page(cx, member, 0, page);
    }

    /// A source has listed these.
    fn found(&mut self, runs: &[Run]) {
        let newest = Version { epoch: Epoch(u32::MAX), seq: u64::MAX };
        runs.iter().for_each(|run| self.unlisted.remove(run.chunk, run.first, run.count, newest));
    }
}

/// The part of a run that a listing up to `end` contains; `None` for a deletion.
fn up_to(run: Run, end: Option<Cursor>) -> Option<Run> {
    let left = match end {
        Some(end) if run.chunk > end.chunk => 0,
        Some(end) if run.chunk == end.chunk => (end.block.saturating_add(1)).saturating_sub(run.first),
        _ => run.count,
    };
    let count = run.count.min(left);
    (count > 0).then_some(Run { count, ..run })
}
