//! The missing blocks of a replica, and the fetches that bring them.
//!
//! Invariant: the [`Budget`](crate::common::budget::Budget) counts the entries of `fetches` over all groups.

use super::sources::complete_copies;
use crate::common::blocks::split_payload;
use crate::common::context::Context;
use crate::common::run_map::{Missing, RunMap, Source};
use crate::common::wait::Wait;
use crate::replicated::member::Member;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Kind, PeerMessage, RECORD_BLOCKS_MAX, Record, Refusal, Role, Run,
    ServerId, SlotState, TailRun, Version, block_crcs, lost_block_crc,
};
use std::collections::BTreeMap;

/// Maximum blocks per fetch.
pub const FETCH_BLOCKS: u32 = 256;
const _: () = assert!(FETCH_BLOCKS <= RECORD_BLOCKS_MAX);

#[derive(Default)]
pub(super) struct Fetches {
    pub missing: RunMap,
    fetches: BTreeMap<u64, Fetch>,
    /// The store did not take a fetched record: the next tick fetches it again.
    failed: bool,
}

struct Fetch {
    missing: Missing,
    /// Records being made durable; zero until the reply has come.
    applying: usize,
    /// The source asked last cannot answer now: the tick starts over.
    refused: bool,
    /// Sources asked so far; the last one owes the reply.
    asked: Vec<Source>,
    /// Those that have none of the blocks: they are not asked for a part of them.
    barren: Vec<Source>,
}

/// What became of missing blocks. In order of weight.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fetched {
    Nothing,
    /// Blocks are here, so operations that wait for them can continue.
    Arrived,
    /// No live copy has them.
    Lost,
}

impl Fetch {
    fn is_of(&self, peer: ServerId) -> bool {
        self.asked.last().is_some_and(|source| source.0 == peer)
    }

    /// The source that was asked last replied: perhaps it has none of the blocks as new as `least`.
    fn note_barren(&mut self, result: &Result<Vec<Record>, Refusal>, least: Version) {
        let has_none = match result {
            Ok(records) => records.iter().all(|record| record.version < least),
            Err(refusal) => *refusal == Refusal::Lost,
        };
        self.barren.extend(self.asked.last().filter(|_| has_none));
    }
}

impl Fetches {
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.fetches.is_empty()
    }

    /// Gives up all fetches: their replies are not waited for.
    pub fn end_all(&mut self, cx: &mut Context) {
        cx.shared.budget.end_fetches(self.fetches.len());
        self.fetches.clear();
    }

    /// Requests sent under an older epoch are sent again.
    pub fn new_epoch(&mut self, cx: &mut Context) {
        self.end_all(cx);
        self.missing.forget_asked();
    }

    /// The connection to a server broke.
    pub fn peer_lost(&mut self, cx: &mut Context, peer: ServerId) {
        self.give_up(cx, |f| f.is_of(peer));
    }

    fn give_up(&mut self, cx: &mut Context, which: impl Fn(&Fetch) -> bool) {
        for (_, fetch) in self.fetches.extract_if(.., |_, f| f.applying == 0 && which(f)) {
            self.missing.forget_asked_of(fetch.missing.run);
            cx.shared.budget.end_fetches(1);
        }
    }

    /// Starts over what was refused or failed.
    pub fn tick(&mut self, cx: &mut Context) {
        if std::mem::take(&mut self.failed) {
            self.missing.forget_asked();
        }
        self.give_up(cx, |f| f.refused);
    }

    pub fn has_now(&mut self, run: Run) {
        match run.kind {
            Kind::Delete => self.missing.remove_deleted(run.chunk, run.version),
            _ => self.missing.remove(run.chunk, run.first, run.count, run.version),
        }
    }

    /// Fetches as much as allowed. The group with the fewest copies goes first, whichever began first. [Sierra §3.7]
    /// What `is_paced` goes on with the next tick.
    pub fn pump(&mut self, cx: &mut Context, member: &mut Member, is_paced: bool) -> Fetched {
        let copies = complete_copies(member.entry(), cx.map);
        let is_paced = is_paced && copies >= member.entry().copies().len();
        let mut fetched = Fetched::Nothing;
        loop {
            let budget = &mut cx.shared.budget;
            if !budget.may_fetch() || budget.others_first(copies) {
                budget.wait_to_fetch(copies, member.id());
                return fetched;
            }
            if is_paced && !cx.shared.reclaim.allows(cx.now) {
                return fetched;
            }
            let Some(missing) = self.missing.take_unasked(FETCH_BLOCKS) else { return fetched };
            if is_paced {
                cx.shared.reclaim.spend(cx.now, missing.run.count);
            }
            fetched = fetched.max(self.fetch(cx, member, missing, Vec::new()));
        }
    }

    /// Fetches missing blocks out of turn, for an operation that waits for them.
    pub fn demand(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        (chunk, first, count): (ChunkId, u32, u32),
    ) -> Fetched {
        let mut fetched = Fetched::Nothing;
        loop {
            let found = self.missing.within(chunk, first, count);
            let Some((whole, first, count)) = found.into_iter().find(|(m, ..)| !m.asked && !m.lost) else {
                return fetched;
            };
            let part = self.missing.ask_part(whole, first, count.min(FETCH_BLOCKS));
            fetched = fetched.max(self.fetch(cx, member, part, Vec::new()));
        }
    }

    /// Zeroes and deletions are known from the run alone; data must be fetched, but from no `barren` source.
    fn fetch(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        missing: Missing,
        barren: Vec<Source>,
    ) -> Fetched {
        let token = cx.shared.peer_token();
        cx.shared.budget.begin_fetch();
        let Run { chunk, first, count, version, kind } = missing.run;
        let content = match kind {
            // Notes are not listed and lost blocks are not fetched. A source that listed one anyway is asked what it
            // has.
            Kind::Data | Kind::Note | Kind::Lost => {
                let may = cx.map.is_live(missing.source.0) && !barren.contains(&missing.source);
                let fetch = Fetch { missing, applying: 0, refused: false, asked: barren.clone(), barren };
                let before = self.fetches.insert(token, fetch);
                debug_assert!(before.is_none(), "a token is of one fetch");
                if may {
                    self.fetch_from(cx, member, token, missing.source);
                    return Fetched::Nothing;
                }
                return self.fetch_elsewhere(cx, member, token);
            }
            Kind::Zero => Content::Zero,
            Kind::Delete => Content::Delete,
        };
        let (asked, barren) = (Vec::new(), Vec::new());
        self.fetches.insert(token, Fetch { missing, applying: 1, refused: false, asked, barren });
        let record = Record { group: member.id(), chunk, first, count, version, request: None, content };
        apply(cx, member, token, record, Bytes::new());
        Fetched::Nothing
    }

    fn fetch_from(&mut self, cx: &mut Context, member: &Member, token: u64, source: Source) {
        let (group, epoch) = (member.id(), member.epoch());
        let Some(fetch) = self.fetches.get_mut(&token) else {
            return cx.bug("a fetch that does not exist was sent");
        };
        fetch.asked.push(source);
        let ((to, role), Run { chunk, first, count, .. }) = (source, fetch.missing.run);
        let whole = false; // the listed version suffices
        cx.send(to, PeerMessage::Fetch { group, epoch, token, role, chunk, first, count, whole });
    }

    /// A source replied. A reply to a fetch that was given up, or sent elsewhere since, is ignored.
    pub fn on_reply(
        &mut self,
        cx: &mut Context,
        member: &mut Member,
        (from, token): (ServerId, u64),
        result: Result<Vec<Record>, Refusal>,
        payload: Bytes,
    ) -> Fetched {
        let Some(fetch) = self.fetches.get_mut(&token) else { return Fetched::Nothing };
        if !fetch.is_of(from) || fetch.applying > 0 {
            return Fetched::Nothing;
        }
        // A lost block was listed with the version that nothing in it can have exceeded. What a complete copy has of
        // it, perhaps since it was repaired there, is all that was acknowledged.
        let run = fetch.missing.run;
        let is_bound = run.kind == Kind::Lost && fetch.asked.last() == Some(&(from, Role::Replica));
        let in_sync = member.entry().slot_of(from).is_some_and(|slot| slot.state == SlotState::InSync);
        let least = if is_bound && in_sync { Version::ZERO } else { run.version };
        fetch.note_barren(&result, least);
        let parts = match result {
            Ok(records) => split_payload(records, &payload),
            // Usually one block is damaged: the others can be fetched from there.
            Err(Refusal::Corrupt) if fetch.missing.run.count > 1 => {
                return self.fetch_halves(cx, member, token);
            }
            Err(Refusal::Corrupt | Refusal::Lost | Refusal::Poisoned) => None,
            Err(_) => {
                fetch.refused = true;
                return Fetched::Nothing;
            }
        };
        let sound = |(record, payload): &(Record, Bytes)| match &record.content {
            _ if record.version < least => false,
            Content::Data { crcs } => record.fault(payload.len()).is_none() && *crcs == block_crcs(payload),
            _ => record.count > 0,
        };
        let Some(mut parts) = parts.filter(|p| !p.is_empty() && p.iter().all(sound)) else {
            return self.fetch_elsewhere(cx, member, token);
        };
        parts.retain(|(record, _)| !record.is_never_written());
        if parts.is_empty() {
            self.end(cx, token);
            self.has_now(run);
            return Fetched::Arrived;
        }
        fetch.applying = parts.len();
        if matches!(fetch.asked.last(), Some((_, Role::Offload { .. }))) {
            cx.shared.stats.reclaimed_bytes += payload.len() as u64;
        }
        for (record, payload) in parts {
            apply(cx, member, token, record, payload);
        }
        Fetched::Nothing
    }

    /// The store is done with a fetched record. A fetch that ended with its epoch is not known any more.
    pub fn on_applied(&mut self, cx: &mut Context, token: u64, failed: bool) -> Fetched {
        let Some(fetch) = self.fetches.get_mut(&token) else { return Fetched::Nothing };
        if failed {
            self.fetches.remove(&token);
            self.failed = true;
            cx.shared.budget.end_fetches(1);
            return Fetched::Nothing;
        }
        fetch.applying -= 1;
        if fetch.applying > 0 {
            return Fetched::Nothing;
        }
        let run = fetch.missing.run;
        self.fetches.remove(&token);
        cx.shared.budget.end_fetches(1);
        // The source had the run at the listed version or newer: now so does this replica.
        self.has_now(run);
        Fetched::Arrived
    }

    /// The copy asked for is damaged there: any other at the listed version or newer will do. The last resort is a
    /// former holder that was replaced while it was gone: it keeps what may be needed.
    fn fetch_elsewhere(&mut self, cx: &mut Context, member: &mut Member, token: u64) -> Fetched {
        let mut copies = member.other_copies(cx).into_iter().chain(member.former_holders(cx));
        let Some(fetch) = self.fetches.get(&token) else {
            cx.bug("a fetch that does not exist was sent elsewhere");
            return Fetched::Nothing;
        };
        match copies.find(|source| !fetch.asked.contains(source)) {
            Some(source) => {
                self.fetch_from(cx, member, token, source);
                Fetched::Nothing
            }
            // All that were asked are among these.
            None if fetch.missing.run.count > 1 && fetch.asked.len() > fetch.barren.len() => {
                self.fetch_halves(cx, member, token)
            }
            None => self.give_up_blocks(cx, member, token),
        }
    }

    /// Retries with each half of the blocks.
    fn fetch_halves(&mut self, cx: &mut Context, member: &mut Member, token: u64) -> Fetched {
        let Some(Fetch { missing, barren, .. }) = self.end(cx, token) else { return Fetched::Nothing };
        let half = missing.run.count / 2;
        let halves = [(missing.run.first, half), (missing.run.first + half, missing.run.count - half)];
        let mut fetched = Fetched::Nothing;
        for (first, count) in halves {
            for (whole, first, count) in self.missing.parts_in(Run { first, count, ..missing.run }) {
                let part = self.missing.ask_part(whole, first, count);
                fetched = fetched.max(self.fetch(cx, member, part, barren.clone()));
            }
        }
        fetched
    }

    /// No live copy has any of the blocks. They stay missing while a member is away that may have them, and the rest
    /// continues. Else they are stored as lost, so that they are here what they are on the others.
    fn give_up_blocks(&mut self, cx: &mut Context, member: &mut Member, token: u64) -> Fetched {
        if let Some(fetch) = self.fetches.get_mut(&token).filter(|_| member.all_live(cx)) {
            fetch.applying = 1;
            let (Run { chunk, first, count, version, .. }, group) = (fetch.missing.run, member.id());
            let content = Content::Data { crcs: vec![lost_block_crc(); count as usize] };
            let record = Record { group, chunk, first, count, version, request: None, content };
            cx.shared.stats.damage.unrepaired += u64::from(count);
            apply(cx, member, token, record, Bytes::from(vec![0; count as usize * BLOCK_BYTES]));
            return Fetched::Nothing;
        }
        let Some(Fetch { missing, .. }) = self.end(cx, token) else { return Fetched::Nothing };
        self.missing.lose(missing.run);
        cx.shared.stats.damage.unrepaired += u64::from(missing.run.count);
        Fetched::Lost
    }

    fn end(&mut self, cx: &mut Context, token: u64) -> Option<Fetch> {
        let fetch = self.fetches.remove(&token)?;
        cx.shared.budget.end_fetches(1);
        Some(fetch)
    }
}

fn apply(cx: &mut Context, member: &mut Member, token: u64, record: Record, payload: Bytes) {
    // It may not be on all targets: the next primary must learn of it (R4).
    member.tail.push(TailRun { run: record.run(), request: None });
    let (wait, committed) = (Wait::CatchUpApplied { token }, member.tail.committed());
    member.applying.apply(cx, wait, (Role::Replica, record), payload, true, committed);
}
