//! The missing set: which blocks a replica lacks, at what version, and which source has them.
//!
//! Runs do not overlap. Adding a newer run replaces what it covers of older ones; adding an older one fills the gaps.

use crate::common::blocks::{cut, without};
use ebb_types::{ChunkId, Kind, Role, Run, ServerId, Version};
use std::collections::BTreeMap;

/// Where a missing run can be fetched.
pub(crate) type Source = (ServerId, Role);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub run: Run,
    pub source: Source,
    /// A fetch of it is in flight.
    pub asked: bool,
    /// No copy has it, as far as is known.
    pub lost: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RunMap {
    /// By chunk and first block. A deletion stands at block 0 with count 0, under a key of its own.
    runs: BTreeMap<(ChunkId, u32), Missing>,
    deletions: BTreeMap<ChunkId, Missing>,
    /// Blocks in `runs`.
    blocks: u64,
}

impl RunMap {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.deletions.is_empty()
    }

    /// Missing blocks, of any kind.
    pub fn blocks(&self) -> u64 {
        debug_assert!(!self.runs.is_empty() || self.blocks == 0, "blocks are counted as they come and go");
        self.blocks
    }

    pub fn runs(self) -> impl Iterator<Item = Run> {
        self.runs.into_values().map(|missing| missing.run)
    }

    /// Adds a run that is newer than what the replica has.
    pub fn add(&mut self, run: Run, source: Source) {
        if run.kind == Kind::Delete {
            let newer = self.deletions.get(&run.chunk).is_none_or(|m| m.run.version < run.version);
            if newer {
                self.deletions.insert(run.chunk, Missing { run, source, asked: false, lost: false });
            }
            return;
        }
        let mut pieces = vec![(run.first, run.first + run.count)];
        for old in self.overlapping(run.chunk, run.first, run.count) {
            let (start, end) = (old.run.first, old.run.first + old.run.count);
            if old.run.version >= run.version {
                pieces = without(pieces, start, end);
            } else {
                self.carve(old, run.first, run.first + run.count);
            }
        }
        for (start, end) in pieces {
            let run = Run { first: start, count: end - start, ..run };
            let lost = run.kind == Kind::Lost;
            self.put(Missing { run, source, asked: false, lost });
        }
    }

    /// The replica now has these blocks at `version`: runs missing at an equal or older version are no longer missing.
    pub fn remove(&mut self, chunk: ChunkId, first: u32, count: u32, version: Version) {
        for old in self.overlapping(chunk, first, count) {
            if old.run.version <= version {
                self.carve(old, first, first + count);
            }
        }
    }

    /// The replica now has the deletion of `chunk` at `version`.
    pub fn remove_deleted(&mut self, chunk: ChunkId, version: Version) {
        self.remove(chunk, 0, u32::MAX, version);
        if self.deletions.get(&chunk).is_some_and(|m| m.run.version <= version) {
            self.deletions.remove(&chunk);
        }
    }

    pub fn overlaps(&self, chunk: ChunkId, first: u32, count: u32) -> bool {
        self.deletions.contains_key(&chunk) || !self.overlapping(chunk, first, count).is_empty()
    }

    /// The missing runs that touch these blocks.
    pub fn overlapping(&self, chunk: ChunkId, first: u32, count: u32) -> Vec<Missing> {
        let end = first.saturating_add(count);
        let before = self.runs.range(..(chunk, first)).next_back().filter(|((c, _), _)| *c == chunk);
        before
            .into_iter()
            .chain(self.runs.range((chunk, first)..(chunk, end)))
            .map(|(_, m)| *m)
            .filter(|m| m.run.first < end && first < m.run.first + m.run.count)
            .collect()
    }

    /// Takes the next run that some copy may have and that is not being fetched, deletions first; at most `blocks` of
    /// it.
    pub fn take_unasked(&mut self, blocks: u32) -> Option<Missing> {
        if let Some(m) = self.deletions.values_mut().find(|m| !m.asked) {
            m.asked = true;
            return Some(*m);
        }
        let found = *self.runs.values().find(|m| !m.asked && !m.lost)?;
        Some(self.ask_part(found, found.run.first, blocks.min(found.run.count)))
    }

    /// Marks blocks `first..first + count` of `whole` as asked for and returns that part.
    pub fn ask_part(&mut self, whole: Missing, first: u32, count: u32) -> Missing {
        let end = whole.run.first + whole.run.count;
        debug_assert!(whole.run.first <= first && first + count <= end, "a part of what is missing");
        let run = Run { first, count, ..whole.run };
        self.replace(whole, Missing { run, asked: true, ..whole })
    }

    fn replace(&mut self, whole: Missing, part: Missing) -> Missing {
        self.carve(whole, part.run.first, part.run.first + part.run.count);
        self.put(part);
        part
    }

    /// Marks what is missing of `run` as lost: no copy has it.
    pub fn lose(&mut self, run: Run) {
        for (whole, first, count) in self.parts_in(run) {
            let run = Run { first, count, ..whole.run };
            self.replace(whole, Missing { run, asked: false, lost: true, ..whole });
        }
    }

    /// Marks everything as not lost: whether a copy has it is to be found out.
    pub fn seek_lost(&mut self) {
        self.runs.values_mut().for_each(|m| m.lost = false);
    }

    /// What is missing of `run`, at its version: each with first and count of its blocks that are in `run`.
    pub fn parts_in(&self, run: Run) -> Vec<(Missing, u32, u32)> {
        let mut parts = self.within(run.chunk, run.first, run.count);
        parts.retain(|(m, ..)| m.run.version == run.version);
        parts
    }

    /// The missing runs that touch these blocks: each with first and count of its blocks that are among them.
    pub fn within(&self, chunk: ChunkId, first: u32, count: u32) -> Vec<(Missing, u32, u32)> {
        let part = |m: Missing| {
            let start = m.run.first.max(first);
            (m, start, (m.run.first + m.run.count).min(first.saturating_add(count)) - start)
        };
        self.overlapping(chunk, first, count).into_iter().map(part).collect()
    }

    /// Whether only blocks that no copy has are missing.
    pub fn is_lost(&self) -> bool {
        self.deletions.is_empty() && self.runs.values().all(|m| m.lost)
    }

    /// The source asked for `run` will not answer.
    pub fn forget_asked_of(&mut self, run: Run) {
        self.parts_of(run).for_each(|m| m.asked = false);
    }

    /// What is missing of `run`.
    fn parts_of(&mut self, run: Run) -> impl Iterator<Item = &mut Missing> {
        let end = run.first + run.count;
        let same = move |m: &&mut Missing| {
            m.run.version == run.version && m.run.first < end && run.first < m.run.first + m.run.count
        };
        self.runs.range_mut((run.chunk, 0)..(run.chunk, u32::MAX)).map(|(_, m)| m).filter(same)
    }

    /// Marks everything as not asked for, and retries lost blocks: after a source failed or an epoch ended.
    pub fn forget_asked(&mut self) {
        for m in self.runs.values_mut().chain(self.deletions.values_mut()) {
            (m.asked, m.lost) = (false, m.run.kind == Kind::Lost);
        }
    }

    /// Removes the part of `old` that lies in `start..end`.
    fn carve(&mut self, old: Missing, start: u32, end: u32) {
        if let Some(old) = self.runs.remove(&(old.run.chunk, old.run.first)) {
            self.blocks -= u64::from(old.run.count);
        }
        for (s, e) in cut((old.run.first, old.run.first + old.run.count), start, end) {
            let run = Run { first: s, count: e - s, ..old.run };
            self.put(Missing { run, ..old });
        }
    }

    /// Nothing else stands in its place.
    fn put(&mut self, missing: Missing) {
        let Run { chunk, first, count, .. } = missing.run;
        self.blocks += u64::from(count);
        let before = self.runs.insert((chunk, first), missing);
        debug_assert!(before.is_none(), "{chunk}: two runs begin at {first}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Epoch, ObjectId};

    fn chunk() -> ChunkId {
        ChunkId { object: ObjectId(1), index: 0 }
    }

    fn run(first: u32, count: u32, seq: u64) -> Run {
        Run { chunk: chunk(), first, count, version: Version { epoch: Epoch(1), seq }, kind: Kind::Data }
    }

    const SOURCE: Source = (ServerId(1), Role::Replica);

    /// Checked against an array of versions, over many random sequences.
    #[test]
    fn it_is_a_map_from_block_to_newest_missing_version() {
        let mut state = 1u64;
        let mut next = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let (mut map, mut model) = (RunMap::default(), [0u64; 32]);
            for _ in 0..12 {
                let first = next(30) as u32;
                let count = 1 + next(31 - u64::from(first)) as u32;
                let seq = 1 + next(6);
                let blocks = &mut model[first as usize..(first + count) as usize];
                match next(3) {
                    0 => {
                        map.remove(chunk(), first, count, Version { epoch: Epoch(1), seq });
                        blocks.iter_mut().filter(|v| **v <= seq).for_each(|v| *v = 0);
                    }
                    1 => drop(map.take_unasked(count)),
                    _ => {
                        map.add(run(first, count, seq), SOURCE);
                        blocks.iter_mut().for_each(|v| *v = (*v).max(seq));
                    }
                }
                let mut seen = [0u64; 32];
                for m in map.overlapping(chunk(), 0, 32) {
                    for b in m.run.first..m.run.first + m.run.count {
                        assert_eq!(seen[b as usize], 0, "runs overlap");
                        seen[b as usize] = m.run.version.seq;
                    }
                }
                assert_eq!(seen, model);
                assert_eq!(map.blocks(), model.iter().filter(|v| **v > 0).count() as u64);
            }
        }
    }
}
