//! How a new primary settles the tails: which blocks it rewrites (orders again), and which requests it notes as done.
//! (R4)
//!
//! Invariant: while the client of a request that took effect may retry it, every later primary finds the request's id.
//! A record proves that its request is in a block, or was overwritten there since, to any server that has the block at
//! an equal or newer version of the record's epoch: one primary ordered both. At a version of a later epoch it proves
//! nothing, because that epoch's primary may never have had the record. So before a primary orders anything else, it
//! has every target note the requests that are in its own blocks: any server that has a block of its epoch then has the
//! notes too. Notes are records of its epoch, and serve the next primary as such. However often a settlement is
//! interrupted, nothing is lost: blocks that were not rewritten yet still have their earlier versions and records.

use crate::common::blocks::{in_records, joined, without};
use crate::common::run_map::{Missing, RunMap};
use ebb_types::{ChunkId, Kind, RequestId, Run, TailRun, Version};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) struct Settlement {
    /// Records up to this version are settled, unless this server missed the settlement.
    committed: Version,
    /// Records that this server, and records that the others, do not know to be on all targets.
    own: Vec<TailRun>,
    foreign: Vec<TailRun>,
}

/// The block ranges (start, end) that a request wrote.
type Claimed = ((RequestId, ChunkId), Vec<(u32, u32)>);

/// A request that is in these blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub request: RequestId,
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
}

impl Settlement {
    pub fn new(committed: Version, own: Vec<TailRun>, foreign: Vec<TailRun>) -> Settlement {
        Settlement { committed, own, foreign }
    }

    /// Takes the tails of the others, for another settlement.
    pub fn take_foreign(&mut self) -> Vec<TailRun> {
        std::mem::take(&mut self.foreign)
    }

    /// The runs to ask the own store about: which parts of them are newer than what it has?
    pub fn questions(&self) -> Vec<Run> {
        let foreign = self.foreign.iter().map(|t| self.beyond(t.run)).filter(|run| run.kind != Kind::Note);
        let claims = self.claims().flat_map(|(_, run)| [run, end_of_epoch(run)]);
        let written = self.own.iter().chain(&self.foreign).map(|t| t.run);
        let written = written.filter(|run| matches!(run.kind, Kind::Data | Kind::Zero));
        let chunks: BTreeSet<ChunkId> = written.map(|run| run.chunk).collect();
        foreign.chain(claims).chain(chunks.into_iter().map(any_deletion)).collect()
    }

    /// What this replica must have of a record's blocks for the record to count as settled: the record; or something
    /// newer, if it is of an earlier epoch than what is committed here. A deletion stays what it is: what is newer than
    /// that is not deleted again.
    fn beyond(&self, run: Run) -> Run {
        let is_earlier = run.kind != Kind::Delete && run.version.epoch < self.committed.epoch;
        let seq = run.version.seq + u64::from(is_earlier);
        Run { version: Version { seq, ..run.version }, ..run }
    }

    /// The records that may show that a request took effect, newest first.
    fn claims(&self) -> impl Iterator<Item = (RequestId, Run)> {
        let open = self.foreign.iter().filter(|t| t.run.version > self.committed).chain(&self.own);
        let mut claims: Vec<(RequestId, Run)> =
            open.filter(|t| t.run.kind != Kind::Delete).filter_map(|t| Some((t.request?, t.run))).collect();
        claims.sort_by_key(|(request, run)| Reverse((run.version, run.chunk, run.first, *request)));
        claims.dedup();
        claims.into_iter()
    }

    /// The notes to order, given the runs `newer` than the own store and those it is known to miss. All of them,
    /// however many: if one were left out, no server would know that it is forgotten. Oldest first, as a later
    /// settlement finds them.
    pub fn notes(&self, newer: &[Run], missing: Option<&RunMap>) -> Vec<Noted> {
        let newer = Newer::new(newer);
        let mut places: BTreeMap<(RequestId, ChunkId), usize> = BTreeMap::new();
        let mut noted: Vec<Claimed> = Vec::new();
        for (request, run) in self.claims() {
            let held = held(run, &newer, missing);
            let of = (request, run.chunk);
            match places.get(&of) {
                Some(&at) => noted[at].1.extend(held),
                None if !held.is_empty() => {
                    places.insert(of, noted.len());
                    noted.push((of, held));
                }
                None => {}
            }
        }
        let note = |((request, chunk), pieces): Claimed| {
            let parts = in_records(joined(pieces));
            parts.map(move |(start, end)| Noted { request, chunk, first: start, count: end - start })
        };
        noted.into_iter().rev().flat_map(note).collect()
    }

    /// The rewrites to order: every block in any tail that some target may not have at the version that this replica
    /// has. This replica has every acknowledged write; a write that it does not have was never acknowledged.
    ///
    /// A record of another tail and of an earlier epoch than what is committed here may be on all targets, or have been
    /// left out. This replica has that very version in either case, if a settlement repaired its block with that record
    /// and was interrupted before it ordered the block again (seed 39000030859). So only something newer settles it.
    pub fn rewrites(&self, newer: &[Run]) -> Unsettled {
        let newer = Newer::new(newer);
        let is_open = |t: &&TailRun| t.run.version > self.committed || newer.meets(&self.beyond(t.run));
        let open = self.foreign.iter().filter(is_open);
        // One for each request, however many records of it earlier settlements left: else each would double them.
        let mut deletions: BTreeSet<(ChunkId, Option<RequestId>)> = BTreeSet::new();
        let mut blocks: BTreeMap<ChunkId, Vec<(u32, u32)>> = BTreeMap::new();
        for TailRun { run, request } in self.own.iter().chain(open) {
            match run.kind {
                Kind::Note | Kind::Lost => {}
                Kind::Delete => _ = deletions.insert((run.chunk, *request)),
                Kind::Data | Kind::Zero => {
                    blocks.entry(run.chunk).or_default().push((run.first, run.first + run.count));
                }
            }
        }
        for chunk in blocks.keys().filter(|chunk| !newer.meets(&any_deletion(**chunk))) {
            deletions.insert((*chunk, None)); // the chunk is deleted here
        }
        let requested: BTreeSet<ChunkId> =
            deletions.iter().filter(|(_, request)| request.is_some()).map(|(chunk, _)| *chunk).collect();
        deletions.retain(|(chunk, request)| request.is_some() || !requested.contains(chunk));
        // A deletion is rolled forward, and no block of its chunk is rewritten after it.
        deletions.iter().for_each(|(chunk, _)| _ = blocks.remove(chunk));
        let deletion =
            |(chunk, request)| Rewrite { chunk, first: 0, count: u32::MAX, kind: Kind::Delete, request };
        let of_chunk = |(chunk, pieces)| {
            let parts = in_records(joined(pieces));
            parts.map(move |(first, end)| Rewrite {
                chunk,
                first,
                count: end - first,
                kind: Kind::Data,
                request: None,
            })
        };
        let mut unsettled = Unsettled::default();
        let all = deletions.into_iter().map(deletion).chain(blocks.into_iter().flat_map(of_chunk));
        all.for_each(|rewrite| unsettled.0.entry(rewrite.chunk).or_default().push_back(rewrite));
        let in_order = |one: &&Rewrite, next: &&Rewrite| {
            next.kind == Kind::Delete || one.first.saturating_add(one.count) <= next.first
        };
        debug_assert!(
            unsettled.0.values().all(|of_chunk| of_chunk.iter().is_sorted_by(in_order)),
            "they are searched by their blocks"
        );
        unsettled
    }
}

/// Blocks whose present content is to be ordered again. A deletion covers the whole chunk and keeps its request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub chunk: ChunkId,
    pub first: u32,
    pub count: u32,
    pub kind: Kind,
    pub request: Option<RequestId>,
}

/// Pending rewrites: per chunk either deletions, or blocks in order without overlap.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(BTreeMap<ChunkId, VecDeque<Rewrite>>);

impl Unsettled {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn pop(&mut self) -> Option<Rewrite> {
        let mut chunk = self.0.first_entry()?;
        let next = chunk.get_mut().pop_front();
        debug_assert!(next.is_some(), "a chunk without rewrites is not kept");
        if chunk.get().is_empty() {
            chunk.remove();
        }
        next
    }

    pub fn touches(&self, chunk: ChunkId, (first, count): (u32, u32)) -> bool {
        let Some(rewrites) = self.0.get(&chunk) else { return false };
        let at = rewrites.partition_point(|r| r.first.saturating_add(r.count) <= first);
        rewrites.get(at).is_some_and(|r| r.first < first.saturating_add(count))
    }
}

/// The store's answer: per chunk and version asked for, the blocks (start, end) in which it has an older one. In order,
/// without overlap.
struct Newer(BTreeMap<(ChunkId, Version), Vec<(u32, u32)>>);

impl Newer {
    fn new(runs: &[Run]) -> Newer {
        let mut all: BTreeMap<(ChunkId, Version), Vec<(u32, u32)>> = BTreeMap::new();
        for run in runs {
            all.entry((run.chunk, run.version)).or_default().push((run.first, run.first + run.count));
        }
        Newer(all.into_iter().map(|(of, pieces)| (of, joined(pieces))).collect())
    }

    /// The parts of these blocks in which the store has something older than `version`.
    fn parts(&self, run: &Run, version: Version) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (first, end) = (run.first, run.first + run.count);
        let pieces = self.0.get(&(run.chunk, version)).map_or(&[][..], |pieces| pieces);
        let from = pieces.partition_point(|piece| piece.1 <= first);
        let meeting = pieces[from..].iter().take_while(move |piece| piece.0 < end);
        meeting.map(move |piece| (piece.0.max(first), piece.1.min(end)))
    }

    /// Whether the store lacks any of the run. A deletion has no blocks.
    fn meets(&self, run: &Run) -> bool {
        let deletes = run.kind == Kind::Delete && self.0.contains_key(&(run.chunk, run.version));
        deletes || self.parts(run, run.version).next().is_some()
    }
}

/// A deletion that is newer than what a store has, unless the store remembers a deletion of the chunk.
fn any_deletion(chunk: ChunkId) -> Run {
    Run { chunk, first: 0, count: 0, version: Version::ZERO, kind: Kind::Delete }
}

/// The same blocks, newer than anything of the run's epoch.
fn end_of_epoch(run: Run) -> Run {
    Run { version: Version::first_of(run.version.epoch.next()), ..run }
}

/// The blocks of a record that this replica has, or is about to fetch, at an equal or newer version of the record's
/// epoch.
fn held(run: Run, newer: &Newer, missing: Option<&RunMap>) -> Vec<(u32, u32)> {
    let missing = missing.map_or(Vec::new(), |m| m.overlapping(run.chunk, run.first, run.count));
    let blocks = |m: &Missing| (m.run.first, m.run.first + m.run.count);
    let mut held: Vec<(u32, u32)> = newer.parts(&run, end_of_epoch(run).version).collect();
    for (start, end) in newer.parts(&run, run.version).chain(missing.iter().map(blocks)) {
        held = without(held, start, end);
    }
    let fits = |m: &&Missing| m.run.version.epoch == run.version.epoch && m.run.version >= run.version;
    let within = |(start, end): (u32, u32)| (start.max(run.first), end.min(run.first + run.count));
    held.extend(missing.iter().filter(fits).map(|m| within(blocks(m))));
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Epoch, Role, ServerId};

    fn record(epoch: u32, seq: u64, first: u32, count: u32, request: u64) -> TailRun {
        let version = Version { epoch: Epoch(epoch), seq };
        let run = Run { chunk: ChunkId::default(), first, count, version, kind: Kind::Data };
        TailRun { run, request: Some(RequestId { client: 1, seq: request }) }
    }

    /// What is noted if block `n` has version `store[n]`.
    fn notes(tails: &[TailRun], store: &[(u32, u64)], missing: Option<&RunMap>) -> Vec<(u64, u32, u32)> {
        let settlement = Settlement::new(Version::ZERO, tails.to_vec(), Vec::new());
        let blocks =
            |run: Run| (run.first..run.first + run.count).map(move |n| Run { first: n, count: 1, ..run });
        let older = |run: &Run| {
            let (epoch, seq) = store[run.first as usize];
            Version { epoch: Epoch(epoch), seq } < run.version
        };
        let newer: Vec<Run> = settlement.questions().into_iter().flat_map(blocks).filter(older).collect();
        let mut notes: Vec<(u64, u32, u32)> =
            settlement.notes(&newer, missing).iter().map(|n| (n.request.seq, n.first, n.count)).collect();
        notes.sort();
        notes
    }

    /// Zeroes written in place of the deletion would stay forever.
    #[test]
    fn of_a_deleted_chunk_the_deletion_is_ordered_again() {
        let rewrites = |newer: &[Run]| {
            let own = vec![record(1, 1, 0, 2, 10)];
            let mut unsettled = Settlement::new(Version::ZERO, own, Vec::new()).rewrites(newer);
            let kinds: Vec<Kind> = std::iter::from_fn(|| unsettled.pop()).map(|r| r.kind).collect();
            kinds
        };
        assert_eq!(rewrites(&[any_deletion(ChunkId::default())]), [Kind::Data]);
        assert_eq!(rewrites(&[]), [Kind::Delete]);
    }

    /// The very version may be here by a repair alone, of a settlement that was interrupted (seed 39000030859).
    #[test]
    fn what_others_doubt_is_ordered_again_unless_something_newer_is_here() {
        let rewritten = |committed: u32, has: u64| {
            let foreign = vec![record(3, 2, 0, 1, 10)];
            let settlement =
                Settlement::new(Version { epoch: Epoch(committed), seq: 5 }, Vec::new(), foreign);
            let has = Version { epoch: Epoch(3), seq: has };
            let is_news = |run: &Run| run.version > has || run.kind == Kind::Delete;
            let newer: Vec<Run> = settlement.questions().into_iter().filter(is_news).collect();
            !settlement.rewrites(&newer).is_empty()
        };
        assert_eq!([1, 2, 3].map(|has| rewritten(9, has)), [true, true, false]);
        assert_eq!(
            [1, 2, 3].map(|has| rewritten(3, has)),
            [true, false, false],
            "on all targets of its epoch"
        );
    }

    #[test]
    fn a_deletion_is_ordered_again_once_however_often_it_was_before() {
        let deletion = |epoch, seq, request: Option<u64>| {
            let TailRun { run, .. } = record(epoch, seq, 0, 0, 0);
            let request = request.map(|seq| RequestId { client: 1, seq });
            TailRun { run: Run { kind: Kind::Delete, ..run }, request }
        };
        let again = |tails: &[TailRun]| {
            let mut unsettled = Settlement::new(Version::ZERO, tails.to_vec(), Vec::new()).rewrites(&[]);
            let requests =
                std::iter::from_fn(|| unsettled.pop()).map(|r| r.request.map(|request| request.seq));
            requests.collect::<Vec<Option<u64>>>()
        };
        // Each settlement was cut off by the next crash.
        let left = [deletion(1, 1, Some(10)), deletion(2, 1, Some(10)), deletion(3, 1, Some(10))];
        assert_eq!(again(&left), [Some(10)]);
        assert_eq!(again(&[deletion(1, 1, None), deletion(2, 1, None)]), [None]);
        assert_eq!(again(&[deletion(1, 1, None), left[0], deletion(1, 3, Some(11))]), [Some(10), Some(11)]);
    }

    #[test]
    fn what_is_under_newer_writes_of_its_epoch_is_noted() {
        let tails = [record(1, 1, 0, 1, 10), record(1, 2, 0, 1, 11), record(1, 3, 0, 1, 12)];
        assert_eq!(notes(&tails, &[(1, 2)], None), [(10, 0, 1), (11, 0, 1)]);
        assert_eq!(notes(&tails, &[(0, 0)], None), []);
    }

    #[test]
    fn under_a_later_epoch_only_its_own_notes_count() {
        let tails = [record(1, 1, 0, 1, 10), record(1, 2, 0, 1, 11)];
        assert_eq!(notes(&tails, &[(2, 5)], None), [], "that epoch's primary may never have had them");
        let noted = [tails[0], tails[1], record(2, 1, 0, 1, 10)];
        assert_eq!(notes(&noted, &[(2, 5)], None), [(10, 0, 1)]);
        assert_eq!(
            notes(&noted, &[(1, 1)], None),
            [(10, 0, 1)],
            "by the record: this block is of the epoch before"
        );
    }

    #[test]
    fn the_blocks_of_a_request_are_noted_once() {
        // Half of it was rewritten when the settlement was interrupted.
        let tails = [record(1, 1, 0, 4, 10), record(2, 1, 0, 4, 10)];
        assert_eq!(notes(&tails, &[(2, 3), (2, 3), (1, 1), (1, 1)], None), [(10, 0, 4)]);
        assert_eq!(notes(&tails, &[(2, 3), (3, 1), (0, 0), (1, 1)], None), [(10, 0, 1), (10, 3, 1)]);
    }

    /// However many there are, and however often settlements are interrupted.
    #[test]
    fn all_requests_are_noted_oldest_first() {
        let many = 3000;
        let mut tails: Vec<TailRun> = (1..=many).map(|n| record(1, n, 0, 1, n)).collect();
        for epoch in 2..5 {
            let version = Version { epoch: Epoch(epoch - 1), seq: many };
            let settlement = Settlement::new(Version::ZERO, tails.clone(), Vec::new());
            let newer: Vec<Run> =
                settlement.questions().into_iter().filter(|run| run.version > version).collect();
            let notes = settlement.notes(&newer, None);
            let requests: Vec<u64> = notes.iter().map(|n| n.request.seq).collect();
            assert_eq!(requests, (1..=many).collect::<Vec<u64>>());
            tails.extend((1..).zip(requests).map(|(seq, request)| record(epoch, seq, 0, 1, request)));
        }
    }

    #[test]
    fn what_is_about_to_be_fetched_counts_as_held() {
        let source = (ServerId(2), Role::Replica);
        let mut missing = RunMap::default();
        missing.add(Run { first: 1, count: 1, ..record(1, 2, 0, 1, 0).run }, source);
        missing.add(Run { first: 2, count: 1, ..record(2, 1, 0, 1, 0).run }, source);
        let tails = [record(1, 1, 0, 3, 10)];
        assert_eq!(notes(&tails, &[(0, 0), (0, 0), (1, 1)], Some(&missing)), [(10, 1, 1)]);
    }
}
