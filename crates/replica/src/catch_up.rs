//! Catch-up: the one routine for reclaim, for the return of a crashed server, and for rebuild; and its mirror image,
//! cover, which gives a new holder the offload that the old one kept. [Sierra §3.6, §3.7]

use crate::api::{StoreCommand, StoreOutcome, StoreToken};
use crate::group::{Context, Group, Shared, Wait};
use crate::run_map::{Missing, RunMap, Source};
use bytes::Bytes;
use ebb_types::{
    ChunkId, ClusterMap, Content, Cursor, Epoch, GroupEntry, Kind, ListPage, Moment, PeerMessage, Record,
    Refusal, Run, ServerId, ServerReport, Slot, SlotState, Space, TailRun, Version, block_crcs,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Maximum blocks per fetch.
const FETCH_BLOCKS: u32 = 256;
/// Maximum fetches in flight on a server, without and with client operations to yield to.
const FETCHES_MAX: usize = 8;
const FETCHES_MAX_BESIDE_CLIENTS: usize = 2;
/// When only blocks that no copy has are missing, everything is listed again, since a copy may have been repaired: after the
/// first pause, then after twice as long each time.
const LOST_PAUSE: Duration = Duration::from_secs(1);
const LOST_PAUSE_MAX: Duration = Duration::from_secs(64);

pub(crate) struct CatchUp {
    since: Epoch,
    sources: Vec<Source>,
    /// The epoch in which the listing began: writes of this epoch or newer came here directly.
    began: Epoch,
    listing: Listing,
    /// In a full comparison: older runs that are here and that no source has listed so far.
    unlisted: RunMap,
    missing: RunMap,
    fetches: BTreeMap<u64, Fetch>,
    /// Records that are not durable yet and that a comparison with the own store may have seen: if one fails, its blocks may be
    /// missing.
    awaited: BTreeSet<StoreToken>,
    /// The store did not take a fetched record: the next tick fetches it again.
    failed: bool,
    reported: Option<Moment>,
    /// Since when only blocks that no copy has are missing.
    lost_since: Option<Moment>,
    lost_pause: Duration,
}

enum Listing {
    /// Source `index` is to be asked from `due` on, or was asked with `token`, for what follows `after`. However long a source
    /// takes, it is not asked again while the connection stands: otherwise its reply would be too late every time.
    Asking {
        index: usize,
        after: Option<Cursor>,
        token: Option<u64>,
        due: Moment,
    },
    /// Comparing a page with the own store.
    Comparing {
        index: usize,
        next: Option<Cursor>,
        token: u64,
    },
    /// Listing the own store over the range of this page.
    Own {
        token: u64,
        page: ListPage,
    },
    Done,
}

struct Fetch {
    missing: Missing,
    /// Records being made durable; zero until the reply has come.
    applying: usize,
    /// The source asked last cannot answer now: the tick starts over.
    refused: bool,
    /// Sources asked so far; the last one owes the reply.
    asked: Vec<Source>,
}

impl Fetch {
    fn is_of(&self, peer: ServerId) -> bool {
        self.asked.last().is_some_and(|source| source.0 == peer)
    }
}

impl Shared {
    pub fn may_fetch(&self) -> bool {
        let max = if self.client_ops > 0 { FETCHES_MAX_BESIDE_CLIENTS } else { FETCHES_MAX };
        self.fetches < max
    }
}

impl CatchUp {
    pub fn new(since: Epoch, sources: Vec<Source>, began: Epoch) -> CatchUp {
        let listing = Listing::Asking { index: 0, after: None, token: None, due: Moment::ZERO };
        CatchUp {
            since,
            sources,
            began,
            listing,
            unlisted: RunMap::default(),
            missing: RunMap::default(),
            fetches: BTreeMap::new(),
            awaited: BTreeSet::new(),
            failed: false,
            reported: None,
            lost_since: None,
            lost_pause: LOST_PAUSE,
        }
    }

    /// Whether it continues as it is. If not, it starts over, from `sources` or, while there are none, once there are some.
    pub fn goes_on(&self, map: &ClusterMap, entry: &GroupEntry, sources: &[Source]) -> bool {
        let waits = self.is_listed() && sources.is_empty();
        self.is_complete() || waits || self.can_go_on(map, entry)
    }

    /// Whether its sources are still good. A source must list what was complete when the listing began; every later write comes
    /// here directly. So a replica used alone must have stayed in sync, or it may have come back with less than it had; a holder
    /// must keep what it has, and the configuration stops naming it before it drops anything. Once listed, any copy will do.
    fn can_go_on(&self, map: &ClusterMap, entry: &GroupEntry) -> bool {
        let kept = |server| {
            let of = |(_, space): &Source| *space == Space::Offload { stands_for: server };
            self.sources.iter().any(of)
        };
        let in_sync = |server| entry.slot_of(server).is_some_and(|slot| slot.state == SlotState::InSync);
        let good = |&(server, space): &Source| match space {
            _ if !map.is_live(server) => false,
            _ if entry.salvage || self.is_listed() => true,
            Space::Offload { stands_for } => entry.is_covered_by(server, stands_for),
            Space::Replica => in_sync(server) || kept(server),
        };
        !self.sources.is_empty() && self.sources.iter().all(good)
    }

    pub fn fetches_under_way(&self) -> usize {
        self.fetches.len()
    }

    /// Whether the missing set is known. Then this replica can serve: it can fetch whatever it lacks.
    pub fn is_listed(&self) -> bool {
        matches!(self.listing, Listing::Done)
    }

    pub fn missing(&self) -> &RunMap {
        &self.missing
    }

    /// Whether it may miss any of these blocks: while it lists, perhaps from other sources than before, it may miss all.
    pub fn lacks(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        !self.is_listed() || self.missing.overlaps(chunk, first, count)
    }

    /// The first run (first, count) of these blocks that no copy has.
    pub fn lost(&self, chunk: ChunkId, first: u32, count: u32) -> Option<(u32, u32)> {
        let found = self.missing.within(chunk, first, count).into_iter().find(|(m, ..)| m.lost);
        found.map(|(_, first, count)| (first, count))
    }

    /// Requests sent under an older epoch are sent again.
    pub fn new_epoch(&mut self) {
        self.fetches.clear();
        self.missing.forget_asked();
        self.reported = None;
        match &mut self.listing {
            Listing::Asking { token, due, .. } => (*token, *due) = (None, Moment::ZERO),
            Listing::Comparing { .. } | Listing::Own { .. } | Listing::Done => {}
        }
    }

    /// Returns the number of fetches given up.
    pub fn source_lost(&mut self, peer: ServerId) -> usize {
        if let Listing::Asking { token, index, due, .. } = &mut self.listing
            && self.sources.get(*index).is_some_and(|s| s.0 == peer)
        {
            (*token, *due) = (None, Moment::ZERO);
        }
        self.give_up(|f| f.is_of(peer))
    }

    fn give_up(&mut self, which: impl Fn(&Fetch) -> bool) -> usize {
        let before = self.fetches.len();
        for (_, fetch) in self.fetches.extract_if(.., |_, f| f.applying == 0 && which(f)) {
            self.missing.forget_asked_of(fetch.missing.run);
        }
        before - self.fetches.len()
    }

    /// The store is done with a record; `run`: what is now durable.
    pub fn ended(&mut self, token: StoreToken, run: Option<Run>) {
        self.awaited.remove(&token);
        if let Some(run) = run {
            self.has_now(run);
        }
    }

    fn has_now(&mut self, run: Run) {
        match run.kind {
            Kind::Delete => self.missing.remove_deleted(run.chunk, run.version),
            _ => self.missing.remove(run.chunk, run.first, run.count, run.version),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.is_listed() && self.missing.is_empty() && self.fetches.is_empty() && self.awaited.is_empty()
    }

    /// Whether only blocks that no copy has have been missing for `lost_pause`.
    fn is_stuck(&mut self, now: Moment) -> bool {
        let stuck = self.is_listed() && !self.missing.is_empty() && self.missing.is_lost();
        self.lost_since = stuck.then(|| self.lost_since.unwrap_or(now));
        self.lost_since.is_some_and(|since| now.since(since) >= self.lost_pause)
    }

    /// A source has listed these.
    fn found(&mut self, runs: &[Run]) {
        let newest = Version { epoch: Epoch(u32::MAX), seq: u64::MAX };
        runs.iter().for_each(|run| self.unlisted.remove(run.chunk, run.first, run.count, newest));
    }

    /// Starts over, from other sources, in this epoch.
    fn restart(&mut self, sources: Vec<Source>, epoch: Epoch) -> usize {
        let given_up = self.fetches.len();
        *self = CatchUp::new(self.since, sources, epoch);
        given_up
    }
}

impl Group {
    /// Where this server, which is catching up, finds everything it lacks: its own covered holder; a replica that is in sync; or
    /// a replica that was complete until it went away, together with its covered holder. Nothing less will do: a listing
    /// that misses an acknowledged write would lead to a false `InSync`. Empty: there is no source now, and it waits.
    ///
    /// In a salvage (no complete copy is left and the newest of the rest is wanted) the sources are all members that take part,
    /// or none while one of them is missing: what one member alone has must not be left out.
    pub fn sources(&self, cx: &Context, without: Option<ServerId>) -> Vec<Source> {
        if self.entry.salvage {
            let away = |id| self.entry.slot_of(id).is_some_and(|s| matches!(s.state, SlotState::Away { .. }));
            let others: Vec<Source> =
                self.entry.members().filter(|(id, _)| *id != cx.me && !away(*id)).collect();
            let all = others.iter().all(|(id, _)| Some(*id) != without && cx.map.is_live(*id));
            return if all { others } else { Vec::new() };
        }
        let live = |server: ServerId| server != cx.me && Some(server) != without && cx.map.is_live(server);
        let kept = |slot: &Slot| {
            let holder = slot.holder.filter(|s| s.covered && live(s.server))?;
            Some((holder.server, Space::Offload { stands_for: slot.server }))
        };
        let own = self.entry.slot_of(cx.me).and_then(|slot| Some((slot.state, kept(slot)?)));
        let everything = SlotState::CatchingUp { since: Epoch(0) };
        if let Some((_, own)) = own.filter(|(state, _)| *state != everything) {
            return vec![own];
        }
        let in_sync = self.entry.slots.iter().filter(|s| s.state == SlotState::InSync && live(s.server));
        // The primary first: it is the one that is sure to be complete soonest.
        if let Some(slot) = in_sync.max_by_key(|s| Some(s.server) == self.entry.primary) {
            return vec![(slot.server, Space::Replica)];
        }
        let others = self.entry.slots.iter().filter(|s| live(s.server));
        let pair = |slot: &Slot| Some(vec![(slot.server, Space::Replica), kept(slot)?]);
        let pair = others.map(pair).find_map(|p| p);
        pair.or(own.map(|(_, own)| vec![own])).unwrap_or_default()
    }

    /// The epoch from which on a source is asked. Offload from before its slot went away should have been dropped, and may have
    /// been deleted elsewhere since.
    pub fn asked_since(&self, (_, space): Source, since: Epoch) -> Epoch {
        let Space::Offload { stands_for } = space else { return since };
        match self.entry.slot_of(stands_for).map(|slot| slot.state) {
            Some(SlotState::CatchingUp { since: other } | SlotState::Away { since: other })
                if !self.entry.salvage =>
            {
                since.max(other)
            }
            _ => since,
        }
    }

    /// Every live member but this one, replicas first.
    pub fn other_copies(&self, cx: &Context) -> Vec<Source> {
        let mut all: Vec<Source> =
            self.entry.members().filter(|(s, _)| *s != cx.me && cx.map.is_live(*s)).collect();
        all.sort_by_key(|(server, space)| (*space != Space::Replica, *server));
        all
    }

    /// Asks for the next page, fetches as much as allowed, and reports when nothing is missing.
    pub fn pump_catch_up(&mut self, cx: &mut Context) {
        self.ask_listing(cx);
        self.pump_fetches(cx);
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(catch_up) = &mut self.catch_up else { return };
        let due = catch_up.reported.is_none_or(|at| cx.now.since(at) >= cx.config.resend_after);
        if catch_up.is_complete() && due {
            catch_up.reported = Some(cx.now);
            cx.report(ServerReport::CaughtUp { group, epoch });
        }
    }

    fn ask_listing(&mut self, cx: &mut Context) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(catch_up) = &mut self.catch_up else { return };
        let Listing::Asking { index, after, token: token @ None, due } = &mut catch_up.listing else {
            return;
        };
        if *due > cx.now {
            return;
        }
        let Some(&source) = catch_up.sources.get(*index) else {
            return; // no source to ask: the tick looks for sources again
        };
        let (new, after) = (cx.shared.question(), *after);
        *token = Some(new);
        let ((to, space), since) = (source, catch_up.since);
        let since = self.asked_since(source, since);
        cx.send(to, PeerMessage::List { group, epoch, token: new, space, since, after });
    }

    pub fn on_list_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        answered: u64,
        result: Result<ListPage, Refusal>,
    ) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let Listing::Asking { index, token, due, after } = &mut catch_up.listing else { return };
        if *token != Some(answered) || catch_up.sources.get(*index).is_none_or(|s| s.0 != from) {
            return;
        }
        match result {
            // In a salvage, another member may have what this one has lost.
            Ok(mut page) if self.entry.salvage => {
                let index = *index;
                page.runs.retain(|run| run.kind != Kind::Lost);
                self.compare_page(cx, index, page);
            }
            Ok(page) if catch_up.since > Epoch(0) => {
                let index = *index;
                self.compare_page(cx, index, page);
            }
            Ok(page) if *index == 0 => {
                let after = *after;
                self.list_own(cx, after, page);
            }
            Ok(page) => {
                let index = *index;
                catch_up.found(&page.runs);
                self.compare_page(cx, index, page);
            }
            Err(refusal) => {
                (*token, *due) = (None, cx.now + cx.config.resend_after); // the tick asks again
                if refusal == Refusal::Poisoned {
                    self.look_elsewhere(cx, from);
                }
            }
        }
    }

    pub fn on_catch_up_newer(&mut self, cx: &mut Context, token: u64, outcome: StoreOutcome) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let Listing::Comparing { index, next, token: awaited } = catch_up.listing else { return };
        let StoreOutcome::Newer(runs) = outcome else { return };
        if awaited != token {
            return;
        }
        let source = catch_up.sources[index];
        catch_up.awaited.extend(self.applying.tokens());
        for run in runs {
            catch_up.missing.add(run, source);
        }
        let index = if next.is_some() { index } else { index + 1 };
        catch_up.listing = if index < catch_up.sources.len() {
            Listing::Asking { index, after: next, token: None, due: cx.now }
        } else {
            // Only a deletion removes blocks, so there was one, forgotten since ([`Group::forget_deletions`]).
            for Run { chunk, version, .. } in std::mem::take(&mut catch_up.unlisted).runs() {
                let deletion = Run { chunk, first: 0, count: 0, version, kind: Kind::Delete };
                catch_up.missing.add(deletion, (cx.me, Space::Replica));
            }
            Listing::Done
        };
        self.pump_catch_up(cx);
        self.go_on_activating(cx);
        self.advance_fetching(cx);
    }

    fn compare_page(&mut self, cx: &mut Context, index: usize, ListPage { runs, next }: ListPage) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let token = cx.shared.token();
        catch_up.listing = Listing::Comparing { index, next, token };
        let command = StoreCommand::Newer { space: Space::Replica, group: self.id, runs };
        cx.store(self.id, Wait::CatchUpNewer { token }, command);
    }

    /// Lists the older runs that are here, over the range of the first source's page, from `after` on.
    fn list_own(&mut self, cx: &mut Context, after: Option<Cursor>, page: ListPage) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let token = cx.shared.token();
        catch_up.listing = Listing::Own { token, page };
        let (space, group, since) = (Space::Replica, self.id, Epoch(0));
        cx.store(group, Wait::CatchUpOwn { token }, StoreCommand::List { space, group, since, after });
    }

    pub fn on_own_list(&mut self, cx: &mut Context, asked: u64, outcome: StoreOutcome) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let Listing::Own { token, page } = &mut catch_up.listing else { return };
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
            if run.version.epoch < catch_up.began && !self.tail.has(run.chunk, run.version) {
                catch_up.unlisted.add(run, (cx.me, Space::Replica));
            }
        }
        if next.is_some_and(|next| page.next.is_none_or(|end| next < end)) {
            return self.list_own(cx, next, page);
        }
        catch_up.found(&page.runs);
        self.compare_page(cx, 0, page);
    }

    /// The group with the fewest copies goes first, whichever began first. [Sierra §3.7]
    fn pump_fetches(&mut self, cx: &mut Context) {
        let copies = complete_copies(&self.entry, cx.map);
        loop {
            let Some(catch_up) = self.catch_up.as_mut().filter(|c| c.is_listed()) else { return };
            let others_first = cx.shared.hungry.first().is_some_and(|(fewer, _)| *fewer < copies);
            if !cx.shared.may_fetch() || others_first {
                cx.shared.hungry.insert((copies, self.id));
                return;
            }
            let Some(missing) = catch_up.missing.take_unasked(FETCH_BLOCKS) else { return };
            self.fetch(cx, missing);
        }
    }

    /// Fetches missing blocks out of turn, for an operation that waits for them.
    pub fn demand(&mut self, cx: &mut Context, chunk: ChunkId, first: u32, count: u32) {
        loop {
            let Some(catch_up) = self.catch_up.as_mut().filter(|c| c.is_listed()) else { return };
            let found = catch_up.missing.within(chunk, first, count);
            let Some((whole, first, count)) = found.into_iter().find(|(m, ..)| !m.asked && !m.lost) else {
                return;
            };
            let part = catch_up.missing.ask_part(whole, first, count.min(FETCH_BLOCKS));
            self.fetch(cx, part);
        }
    }

    /// Zeroes and deletions are known from the run alone; data must be fetched.
    fn fetch(&mut self, cx: &mut Context, missing: Missing) {
        let group = self.id;
        let Some(catch_up) = &mut self.catch_up else { return };
        let token = cx.shared.question();
        cx.shared.fetches += 1;
        let Run { chunk, first, count, version, kind } = missing.run;
        let content = match kind {
            // Notes are not listed and lost blocks are not fetched. A source that listed one anyway is asked what it has.
            Kind::Data | Kind::Note | Kind::Lost => {
                let fetch = Fetch { missing, applying: 0, refused: false, asked: Vec::new() };
                catch_up.fetches.insert(token, fetch);
                return match cx.map.is_live(missing.source.0) {
                    true => self.fetch_from(cx, token, missing.source),
                    false => self.fetch_elsewhere(cx, token),
                };
            }
            Kind::Zero => Content::Zero,
            Kind::Delete => Content::Delete,
        };
        catch_up.fetches.insert(token, Fetch { missing, applying: 1, refused: false, asked: Vec::new() });
        let record = Record { group, chunk, first, count, version, request: None, content };
        self.apply_fetched(cx, token, record, Bytes::new());
    }

    fn fetch_from(&mut self, cx: &mut Context, token: u64, source: Source) {
        let (group, epoch) = (self.id, self.entry.epoch);
        let Some(fetch) = self.catch_up.as_mut().and_then(|c| c.fetches.get_mut(&token)) else { return };
        fetch.asked.push(source);
        let ((to, space), Run { chunk, first, count, .. }) = (source, fetch.missing.run);
        let whole = false; // the listed version suffices
        cx.send(to, PeerMessage::Fetch { group, epoch, token, space, chunk, first, count, whole });
    }

    fn apply_fetched(&mut self, cx: &mut Context, token: u64, record: Record, payload: Bytes) {
        // It may not be on all targets: the next primary must learn of it (R4).
        self.tail.push(TailRun { run: record.run(), request: None });
        let wait = Wait::CatchUpApplied { token };
        let committed = self.tail.committed();
        self.applying.apply(cx, wait, (Space::Replica, record), payload, true, committed);
    }

    pub fn on_fetch_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        token: u64,
        result: Result<Vec<Record>, Refusal>,
        payload: Bytes,
    ) {
        if self.on_repair_reply(cx, token, &result, &payload) {
            return;
        }
        let Some(fetch) = self.catch_up.as_mut().and_then(|c| c.fetches.get_mut(&token)) else { return };
        if !fetch.is_of(from) || fetch.applying > 0 {
            return;
        }
        let parts = match result {
            Ok(records) => crate::secondary::split_payload(records, &payload),
            // Usually one block is damaged: the others can be fetched from there.
            Err(Refusal::Corrupt) if fetch.missing.run.count > 1 => return self.fetch_halves(cx, token),
            Err(Refusal::Corrupt | Refusal::Poisoned) => None,
            Err(_) => {
                fetch.refused = true;
                return;
            }
        };
        let listed = fetch.missing.run.version;
        let sound = |(record, payload): &(Record, Bytes)| match &record.content {
            _ if record.version < listed => false,
            Content::Data { crcs } => record.fault(payload.len()).is_none() && *crcs == block_crcs(payload),
            _ => record.count > 0,
        };
        let Some(parts) = parts.filter(|p| !p.is_empty() && p.iter().all(sound)) else {
            return self.fetch_elsewhere(cx, token);
        };
        fetch.applying = parts.len();
        if matches!(fetch.asked.last(), Some((_, Space::Offload { .. }))) {
            cx.shared.stats.reclaimed_bytes += payload.len() as u64;
        }
        for (record, payload) in parts {
            self.apply_fetched(cx, token, record, payload);
        }
    }

    pub fn on_catch_up_applied(&mut self, cx: &mut Context, token: u64, outcome: StoreOutcome) {
        let Some(catch_up) = &mut self.catch_up else { return };
        let Some(fetch) = catch_up.fetches.get_mut(&token) else { return };
        if matches!(outcome, StoreOutcome::Failed(_)) {
            catch_up.fetches.remove(&token);
            catch_up.failed = true;
            cx.shared.fetches -= 1;
            return;
        }
        fetch.applying -= 1;
        if fetch.applying > 0 {
            return;
        }
        let missing = fetch.missing;
        catch_up.fetches.remove(&token);
        cx.shared.fetches -= 1;
        // The source had the run at the listed version or newer: now so does this replica.
        catch_up.has_now(missing.run);
        self.advance_fetching(cx);
        self.pump_catch_up(cx);
    }

    /// A source cannot list what it has: looks for other sources.
    fn look_elsewhere(&mut self, cx: &mut Context, without: ServerId) {
        let sources = self.sources(cx, Some(without));
        if let Some(catch_up) = self.catch_up.as_mut().filter(|_| !sources.is_empty()) {
            cx.shared.fetches -= catch_up.restart(sources, self.entry.epoch);
        }
    }

    /// The copy asked for is damaged there: any other at the listed version or newer will do. The last resort is a former holder
    /// that was replaced while it was gone: it keeps what may be needed.
    fn fetch_elsewhere(&mut self, cx: &mut Context, token: u64) {
        let mut copies = self.other_copies(cx);
        for stands_for in self.entry.slots.iter().map(|s| s.server) {
            let live = cx.map.servers.values().filter(|s| s.id != cx.me && s.state.is_live());
            copies.extend(live.map(|s| (s.id, Space::Offload { stands_for })));
        }
        let Some(fetch) = self.catch_up.as_ref().and_then(|c| c.fetches.get(&token)) else { return };
        match copies.into_iter().find(|source| !fetch.asked.contains(source)) {
            Some(source) => self.fetch_from(cx, token, source),
            None if fetch.missing.run.count > 1 => self.fetch_halves(cx, token),
            None => self.give_up_block(cx, token),
        }
    }

    /// Retries with each half of the blocks.
    fn fetch_halves(&mut self, cx: &mut Context, token: u64) {
        let Some(Fetch { missing, .. }) = self.end_fetch(cx, token) else { return };
        let half = missing.run.count / 2;
        let halves = [(missing.run.first, half), (missing.run.first + half, missing.run.count - half)];
        for (first, count) in halves {
            let Some(catch_up) = &mut self.catch_up else { return };
            for (whole, first, count) in catch_up.missing.parts_in(Run { first, count, ..missing.run }) {
                let Some(catch_up) = &mut self.catch_up else { return };
                let part = catch_up.missing.ask_part(whole, first, count);
                self.fetch(cx, part);
            }
        }
    }

    /// No live copy has the block. If members sleep, they are woken; until then the block is missing, and the rest continues.
    fn give_up_block(&mut self, cx: &mut Context, token: u64) {
        let Some(Fetch { missing, .. }) = self.end_fetch(cx, token) else { return };
        let Some(catch_up) = &mut self.catch_up else { return };
        catch_up.missing.lose(missing.run);
        cx.shared.stats.damage.unrepaired += 1;
        if self.primary.is_some() && self.others_sleep(cx) {
            cx.report(ServerReport::Damaged { group: self.id, epoch: self.entry.epoch });
        }
        self.advance_fetching(cx);
        self.pump_catch_up(cx);
    }

    fn end_fetch(&mut self, cx: &mut Context, token: u64) -> Option<Fetch> {
        let fetch = self.catch_up.as_mut()?.fetches.remove(&token)?;
        cx.shared.fetches -= 1;
        Some(fetch)
    }

    pub fn tick_catch_up(&mut self, cx: &mut Context) {
        let sources = self.sources(cx, None);
        let Some(catch_up) = &mut self.catch_up else { return };
        let stuck = catch_up.is_stuck(cx.now) && !sources.is_empty();
        if stuck || !catch_up.goes_on(cx.map, &self.entry, &sources) {
            let pause = if stuck { (catch_up.lost_pause * 2).min(LOST_PAUSE_MAX) } else { LOST_PAUSE };
            cx.shared.fetches -= catch_up.restart(sources, self.entry.epoch);
            catch_up.lost_pause = pause;
        }
        if std::mem::take(&mut catch_up.failed) {
            catch_up.missing.forget_asked();
        }
        cx.shared.fetches -= catch_up.give_up(|f| f.refused);
        self.pump_catch_up(cx);
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

/// Number of complete copies of the group, on live servers or on servers that can be woken.
fn complete_copies(entry: &GroupEntry, map: &ClusterMap) -> usize {
    let there = |server| map.is_live(server) || map.sleeps(server);
    let kept = |slot: &Slot| slot.holder.is_some_and(|s| s.covered && map.is_live(s.server));
    let complete = |slot: &&Slot| match slot.state {
        SlotState::InSync => there(slot.server),
        SlotState::Away { .. } => there(slot.server) && kept(slot),
        SlotState::CatchingUp { since } => since > Epoch(0) && there(slot.server) && kept(slot),
    };
    entry.slots.iter().filter(complete).count()
}

/// Brings a new holder up to date from this primary's own blocks: at-risk data first (R8). [Sierra §3.7]
pub(crate) struct Cover {
    to: ServerId,
    since: Epoch,
    step: CoverStep,
    /// Listed runs to read, and records to send; one is in progress at a time.
    runs: VecDeque<Run>,
    records: VecDeque<(Record, Bytes)>,
    after: Option<Cursor>,
    listed: bool,
    /// Set when all listed records are there: records in flight then, below this sequence, must still arrive.
    until: Option<u64>,
}

#[derive(Clone, Copy)]
enum CoverStep {
    Ready,
    Storing,
    /// It met a damaged block, which is being repaired.
    Repairing,
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

impl Cover {
    pub fn peer_lost(&mut self, peer: ServerId) {
        if self.to == peer && matches!(self.step, CoverStep::Sent { .. }) {
            self.step = CoverStep::Refused { at: Moment::ZERO };
        }
    }
}

impl Group {
    pub fn start_covers(&mut self, cx: &mut Context) {
        let mut wanted = Vec::new();
        for slot in &self.entry.slots {
            if let (SlotState::Away { since }, Some(holder)) = (slot.state, slot.holder)
                && !holder.covered
            {
                wanted.push((slot.server, holder.server, since));
            }
        }
        let Some(primary) = &mut self.primary else { return };
        for &(stands_for, to, since) in &wanted {
            let (runs, records) = (VecDeque::new(), VecDeque::new());
            let cover = Cover {
                to,
                since,
                step: CoverStep::Ready,
                runs,
                records,
                after: None,
                listed: false,
                until: None,
            };
            primary.covers.insert(stands_for, cover);
        }
        for (stands_for, ..) in wanted {
            self.pump_cover(cx, stands_for);
        }
    }

    fn cover_mut(&mut self, stands_for: ServerId) -> Option<&mut Cover> {
        self.primary.as_mut()?.covers.get_mut(&stands_for)
    }

    fn pump_cover(&mut self, cx: &mut Context, stands_for: ServerId) {
        // A replica cannot pass on what it lacks itself: it catches up first.
        if self.catch_up.is_some() {
            return;
        }
        let (group, epoch, committed) = (self.id, self.entry.epoch, self.tail.committed());
        let Some(cover) = self.cover_mut(stands_for) else { return };
        if !matches!(cover.step, CoverStep::Ready) {
            return;
        }
        if let Some((record, payload)) = cover.records.front().cloned() {
            cover.step = CoverStep::Sent { version: record.version, first: record.first };
            let space = Space::Offload { stands_for };
            let message = PeerMessage::Replicate { epoch, space, record, committed, must_fit: true };
            cx.send_with(cover.to, message, payload);
        } else if let Some(run) = cover.runs.pop_front() {
            if run.kind == Kind::Delete {
                let Run { chunk, first, count, version, .. } = run;
                let record =
                    Record { group, chunk, first, count, version, request: None, content: Content::Delete };
                cover.records.push_back((record, Bytes::new()));
                return self.pump_cover(cx, stands_for);
            }
            let now = Run { count: run.count.min(FETCH_BLOCKS), ..run };
            if run.count > FETCH_BLOCKS {
                let rest = Run { first: run.first + FETCH_BLOCKS, count: run.count - FETCH_BLOCKS, ..run };
                cover.runs.push_front(rest);
            }
            cover.step = CoverStep::Storing;
            let Run { chunk, first, count, .. } = now;
            let command = StoreCommand::Read { space: Space::Replica, group, chunk, first, count };
            cx.store(group, Wait::CoverRead { epoch, stands_for, run: now }, command);
        } else if !cover.listed {
            cover.step = CoverStep::Storing;
            let (since, after) = (cover.since, cover.after);
            let command = StoreCommand::List { space: Space::Replica, group, since, after };
            cx.store(group, Wait::CoverList { epoch, stands_for }, command);
        } else if self.has_arrived(stands_for) {
            let Some(cover) = self.cover_mut(stands_for) else { return };
            cover.step = CoverStep::Reported { at: cx.now };
            cx.report(ServerReport::Covered { group, epoch, stands_for });
        }
    }

    /// Whether the records of this epoch that replaced listed ones have arrived too. If not, the next tick checks again.
    fn has_arrived(&mut self, stands_for: ServerId) -> bool {
        let Some(primary) = &mut self.primary else { return false };
        let (next, oldest) = (primary.next_seq(), primary.oldest_in_flight());
        let Some(cover) = primary.covers.get_mut(&stands_for) else { return false };
        let until = *cover.until.get_or_insert(next);
        oldest.is_none_or(|seq| seq >= until)
    }

    pub fn on_cover_list(
        &mut self,
        cx: &mut Context,
        epoch: Epoch,
        stands_for: ServerId,
        outcome: StoreOutcome,
    ) {
        if epoch != self.entry.epoch {
            return;
        }
        let Some(cover) = self.cover_mut(stands_for) else { return };
        cover.step = CoverStep::Ready;
        if let StoreOutcome::Listed(page) = outcome {
            // The holder gets records of this epoch anyway.
            cover.runs = page.runs.into_iter().filter(|r| r.version.epoch < epoch).collect();
            cover.after = page.next;
            cover.listed = page.next.is_none();
        }
        self.pump_cover(cx, stands_for);
    }

    pub fn on_cover_read(
        &mut self,
        cx: &mut Context,
        epoch: Epoch,
        stands_for: ServerId,
        run: Run,
        outcome: StoreOutcome,
    ) {
        if epoch != self.entry.epoch {
            return;
        }
        let Some(cover) = self.cover_mut(stands_for) else { return };
        cover.step = CoverStep::Ready;
        match outcome {
            StoreOutcome::Read { records, payload } => {
                let parts = crate::secondary::split_payload(records, &payload).unwrap_or_default();
                let since = cover.since;
                let wanted = |r: &Record| r.version.epoch < epoch && r.version.epoch >= since;
                cover.records.extend(parts.into_iter().filter(|(r, _)| wanted(r)));
            }
            StoreOutcome::Damaged { chunk, block, lost } => {
                cover.runs.push_front(run);
                cover.step = CoverStep::Repairing;
                self.repair_around(cx, chunk, block, lost);
                return;
            }
            // The tick retries it.
            _ => return cover.runs.push_front(run),
        }
        self.pump_cover(cx, stands_for);
    }

    pub fn on_cover_reply(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        answered: (Version, u32),
        result: Result<(), Refusal>,
    ) {
        let Some(primary) = &mut self.primary else { return };
        let sent = |step: &CoverStep| match *step {
            CoverStep::Sent { version, first } => Some((version, first)),
            _ => None,
        };
        let matches =
            |(_, cover): &(&ServerId, &mut Cover)| cover.to == from && sent(&cover.step) == Some(answered);
        let Some((&stands_for, cover)) = primary.covers.iter_mut().find(matches) else { return };
        if result.is_err() {
            cover.step = CoverStep::Refused { at: cx.now };
            return;
        }
        cover.records.pop_front();
        cover.step = CoverStep::Ready;
        self.pump_cover(cx, stands_for);
    }

    pub fn tick_covers(&mut self, cx: &mut Context) {
        let repairing = self.is_repairing();
        let Some(primary) = &mut self.primary else { return };
        let after = cx.config.resend_after;
        let late = |at: Moment| cx.now.since(at) >= after;
        for cover in primary.covers.values_mut() {
            match cover.step {
                CoverStep::Refused { at } | CoverStep::Reported { at } if late(at) => {
                    cover.step = CoverStep::Ready
                }
                CoverStep::Repairing if !repairing => cover.step = CoverStep::Ready,
                _ => {}
            }
        }
        for stands_for in primary.covers.keys().copied().collect::<Vec<_>>() {
            self.pump_cover(cx, stands_for);
        }
    }
}
