//! The tail: the records that a server has and does not know to be on all targets, and the memory of requests that are
//! done. (R4)

use crate::common::blocks::without;
use crate::common::deleted::Deleted;
use ebb_types::{ChunkId, Epoch, Kind, RecoveredTail, RequestId, Run, TailRun, Version};
use std::collections::BTreeMap;

/// The records that a server has and does not know to be on all targets (`runs`), and the last of those that are
/// (`done`), for their request ids.
///
/// Invariant: every request that took effect under a version after [`Tail::forgotten`] is in one of the two, by its own
/// record or by a later note.
#[derive(Default)]
pub(crate) struct Tail {
    runs: BTreeMap<TailPlace, TailRun>,
    done: BTreeMap<TailPlace, TailRun>,
    /// The records of each request in `done`.
    requests: BTreeMap<RequestId, Vec<TailPlace>>,
    remembered: usize,
    committed: Version,
    /// Anything received before this version was received by an earlier incarnation.
    began: Version,
    /// The newest record evicted from `done`.
    pub evicted: Version,
    newest_deletion: Version,
    /// The chunks deleted last, as far as is known here.
    pub deleted: Deleted,
    /// The store remembers no deletion of the group. False at start: what recovery found is not known here.
    forgot_deletions: bool,
}

/// Identifies a record within a tail: pieces of one large write share a version.
type TailPlace = (Version, ChunkId, u32, u32);

fn tail_place(run: &Run) -> TailPlace {
    (run.version, run.chunk, run.first, run.count)
}

impl Tail {
    pub fn new(remembered: usize) -> Tail {
        Tail { remembered, ..Tail::default() }
    }

    /// The tail found at start. It may be behind what this server knew before, as if messages had been lost.
    pub fn restored(remembered: usize, found: RecoveredTail) -> Tail {
        let RecoveredTail { committed, open, done } = found;
        let mut tail = Tail { committed, ..Tail::new(remembered) };
        open.into_iter().for_each(|run| tail.push(run));
        done.into_iter().for_each(|run| tail.remember(run));
        tail
    }

    /// The store is about to forget the deletions up to [`Tail::committed`]. Returns whether it remembers any.
    pub fn forget_deletions(&mut self) -> bool {
        let any = !self.forgot_deletions;
        self.forgot_deletions |= self.newest_deletion <= self.committed;
        any
    }

    pub fn committed(&self) -> Version {
        self.committed
    }

    /// The newest version in it.
    pub fn newest(&self) -> Version {
        let last = |runs: &BTreeMap<TailPlace, TailRun>| runs.last_key_value().map(|(place, _)| place.0);
        let all = [last(&self.runs), last(&self.done), Some(self.committed)];
        all.into_iter().flatten().max().unwrap_or_default()
    }

    pub fn push(&mut self, run: TailRun) {
        let Run { version, kind, .. } = run.run;
        if kind == Kind::Delete {
            self.deleted.note(run.run.chunk);
            self.newest_deletion = self.newest_deletion.max(version);
            self.forgot_deletions = false;
        }
        if version > self.committed {
            self.runs.entry(tail_place(&run.run)).or_insert(run);
        }
    }

    /// Whether the tail has a record of this version of the chunk, which therefore may not be on all targets.
    pub fn has(&self, chunk: ChunkId, version: Version) -> bool {
        let all = (version, chunk, 0, 0)..=(version, chunk, u32::MAX, u32::MAX);
        self.runs.range(all).next().is_some()
    }

    /// The newest version that any of these blocks of a chunk has had here, as far as the tail knows.
    pub fn newest_of(&self, chunk: ChunkId, (first, count): (u32, u32)) -> Version {
        let touches = |run: &&Run| {
            let sets = matches!(run.kind, Kind::Data | Kind::Zero) && run.chunk == chunk;
            sets && run.first < first + count && first < run.first + run.count
        };
        let mut runs = self.runs.values().map(|tail_run| &tail_run.run).rev();
        runs.find(touches).map_or(Version::ZERO, |run| run.version)
    }

    /// Removes a record that the store did not take: this server does not have it.
    pub fn remove(&mut self, version: Version) {
        self.runs.retain(|place, _| place.0 != version);
    }

    /// Every write up to `version` is on all targets of its epoch. A record of an older epoch leaves the tail: the
    /// primary of this epoch has rewritten its blocks, and has noted its request if the write took effect.
    pub fn commit(&mut self, version: Version) {
        if version <= self.committed {
            return;
        }
        self.committed = version;
        let after = Version { seq: version.seq + 1, ..version };
        let open = self.runs.split_off(&(after, ChunkId::default(), 0, 0));
        debug_assert!(
            open.keys().next().is_none_or(|place| place.0 > version),
            "what is committed leaves the tail"
        );
        let settled = std::mem::replace(&mut self.runs, open).into_values();
        settled.filter(|r| r.run.version.epoch == version.epoch).for_each(|r| self.remember(r));
    }

    /// Keeps a record that is on all targets, so that a retry of its request is recognised.
    pub fn remember(&mut self, run: TailRun) {
        if run.run.kind == Kind::Delete {
            self.deleted.note(run.run.chunk);
        }
        // Only requests are sent again.
        let (Some(request), place) = (run.request, tail_place(&run.run)) else { return };
        if self.done.insert(place, run).is_none() {
            self.requests.entry(request).or_default().push(place);
        }
        if self.done.len() > self.remembered
            && let Some((place, TailRun { request: Some(oldest), .. })) = self.done.pop_first()
        {
            self.evicted = self.evicted.max(place.0);
            let mut left = self.requests.remove(&oldest).unwrap_or_default();
            left.retain(|other| *other != place);
            if !left.is_empty() {
                self.requests.insert(oldest, left);
            }
        }
        debug_assert!(self.done.len() <= self.remembered, "no more is remembered than may be");
        debug_assert!(self.requests.len() <= self.done.len(), "a request that is remembered has a record");
    }

    /// The metadata service has counted on this incarnation since this epoch.
    pub fn begin(&mut self, epoch: Epoch) {
        self.began = Version::first_of(epoch);
    }

    /// Up to this version it may have seen requests that it does not remember.
    pub fn forgotten(&self) -> Version {
        self.began.max(self.evicted)
    }

    pub fn uncommitted(&self) -> Vec<TailRun> {
        self.runs.values().copied().collect()
    }

    pub fn done(&self) -> Vec<TailRun> {
        self.done.values().copied().collect()
    }

    /// Whether a record of the request may be on some targets.
    pub fn knows(&self, request: RequestId) -> bool {
        self.requests.contains_key(&request) || self.runs.values().any(|r| r.request == Some(request))
    }

    /// Whether the request's records cover these blocks, counting those done and those that are `settled`. A deletion
    /// covers no blocks.
    pub fn covers(
        &self,
        request: RequestId,
        (first, count): (u32, u32),
        settled: impl Fn(Version) -> bool,
    ) -> bool {
        let open = self.runs.values().filter(|r| r.request == Some(request) && settled(r.run.version));
        let done = self.requests.get(&request).into_iter().flatten().filter_map(|place| self.done.get(place));
        let mut found = false;
        let mut left = if count > 0 { vec![(first, first.saturating_add(count))] } else { Vec::new() };
        for TailRun { run, .. } in open.chain(done) {
            found = true;
            left = without(left, run.first, run.first + run.count);
        }
        found && left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(epoch: u32, seq: u64, request: u64) -> TailRun {
        let version = Version { epoch: Epoch(epoch), seq };
        let run = Run { chunk: ChunkId::default(), first: 0, count: 1, version, kind: Kind::Data };
        TailRun { run, request: Some(RequestId { client: 1, seq: request }) }
    }

    fn request(seq: u64) -> RequestId {
        RequestId { client: 1, seq }
    }

    fn is_done(tail: &Tail, seq: u64) -> bool {
        tail.covers(request(seq), (0, 1), |_| false)
    }

    #[test]
    fn a_request_is_done_when_its_own_epoch_says_so() {
        let mut tail = Tail::new(100);
        tail.push(run(3, 1, 10));
        tail.push(run(3, 2, 11));
        assert!(!is_done(&tail, 10));
        assert!(tail.covers(request(11), (0, 1), |v| v.seq == 2), "its own primary knows sooner");
        tail.commit(Version { epoch: Epoch(3), seq: 1 });
        assert!(is_done(&tail, 10) && !is_done(&tail, 11));
        assert_eq!(tail.uncommitted().len(), 1);
    }

    #[test]
    fn a_record_that_a_later_epoch_passed_over_is_not_done() {
        let mut tail = Tail::new(100);
        tail.push(run(3, 17, 10));
        tail.push(run(4, 1, 12));
        tail.commit(Version { epoch: Epoch(4), seq: 9 });
        assert!(!is_done(&tail, 10), "its blocks were overridden or ordered again");
        assert!(is_done(&tail, 12));
        assert!(tail.uncommitted().is_empty());
    }

    #[test]
    fn a_request_of_several_records_is_done_when_all_are() {
        let part = |seq, first| {
            let mut part = run(1, seq, 10);
            part.run.first = first;
            part
        };
        let mut tail = Tail::new(100);
        tail.push(part(1, 0));
        tail.push(part(2, 1));
        tail.commit(Version { epoch: Epoch(1), seq: 1 });
        let both = |tail: &Tail| tail.covers(request(10), (0, 2), |_| false);
        assert!(is_done(&tail, 10) && !both(&tail));
        tail.commit(Version { epoch: Epoch(1), seq: 2 });
        assert!(both(&tail));
    }

    #[test]
    fn the_memory_of_requests_is_bounded() {
        let mut tail = Tail::new(100);
        for n in 1..=1000 {
            tail.push(run(1, n, n));
        }
        tail.commit(Version { epoch: Epoch(1), seq: 1000 });
        assert_eq!((tail.done().len(), tail.requests.len()), (100, 100));
        assert_eq!(tail.forgotten(), Version { epoch: Epoch(1), seq: 900 });
        assert!(is_done(&tail, 1000) && !is_done(&tail, 1));
    }
}
