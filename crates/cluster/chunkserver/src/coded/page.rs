//! A page of this server's column under scrub: its windows, and the step that it is at.

use super::plan::REBUILD_BLOCKS;
use crate::common::blocks::split_payload;
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Cursor, Kind, ListPage, Moment, Record, Run, ServerId, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks that are read at a time: one bit each in a mask.
pub(super) const WINDOW: u32 = REBUILD_BLOCKS;
const _: () = assert!(WINDOW <= u64::BITS, "a bit for each block");
/// Maximum windows per page.
const PAGE_WINDOWS: usize = 64;

/// A page of this server's column under scrub, in one epoch.
#[derive(Default)]
pub(super) struct Scrub {
    pub column: usize,
    pub after: Option<Cursor>,
    pub end: Option<Cursor>,
    pub sound: bool,
    pub listed: bool,
    /// What is here, as it was listed.
    pub own: Vec<Run>,
    pub windows: VecDeque<Window>,
    pub step: Step,
}

/// Why blocks are rebuilt.
#[derive(Clone, Copy)]
pub(super) enum Why {
    Missing,
    /// `lost`: not even its version is known here.
    Damaged {
        block: u32,
        lost: bool,
    },
    /// This number of blocks differs from the data, from which alone they are then rebuilt; no block here is newer than
    /// this.
    Differing {
        blocks: u64,
        newest: Version,
    },
}

#[derive(Clone, Copy)]
pub(super) struct Window {
    pub chunk: ChunkId,
    pub first: u32,
    /// Blocks that the other column has.
    pub others: u64,
    /// Blocks that were rebuilt, or could not be.
    pub tried: u64,
}

#[derive(Default)]
pub(super) enum Step {
    /// Waiting until the next window may start.
    #[default]
    Ready,
    Listing {
        token: u64,
        asked: Option<(ServerId, Moment)>,
        own: Option<ListPage>,
        other: Option<ListPage>,
    },
    Reading {
        token: u64,
        window: Window,
    },
    /// Then the window is read again.
    Rebuilding {
        token: u64,
        window: Window,
        jobs: usize,
        why: Why,
    },
    Comparing {
        token: u64,
        window: Window,
        newest: Version,
        own: BTreeMap<u32, Bytes>,
    },
}

impl Scrub {
    /// A page that continues after that; nothing of it is listed yet.
    pub fn begin(column: usize, after: Option<Cursor>) -> Scrub {
        Scrub { column, after, sound: true, ..Scrub::default() }
    }

    /// Finds the windows in which either column has blocks, up to where both have listed. Returns the chunks to be
    /// deleted here.
    pub fn take_windows(&mut self, own: &ListPage, other: &ListPage) -> Vec<(ChunkId, Version)> {
        let mut end = own.next.into_iter().chain(other.next).min();
        let within = |run: &&Run| end.is_none_or(|end| run.chunk <= end.chunk);
        let deletions = |page: &ListPage| -> BTreeMap<ChunkId, Version> {
            let runs = page.runs.iter().filter(within).filter(|run| run.kind == Kind::Delete);
            runs.map(|run| (run.chunk, run.version)).collect()
        };
        let (here, there) = (deletions(own), deletions(other));
        let mut windows: BTreeMap<(ChunkId, u32), u64> = BTreeMap::new();
        for (is_own, run) in
            own.runs.iter().map(|run| (true, run)).chain(other.runs.iter().map(|run| (false, run)))
        {
            let is_deleted = [&here, &there].into_iter().any(|deletions| is_dead(run, deletions));
            if run.kind == Kind::Delete || is_deleted || !within(&run) {
                continue;
            }
            for block in run.first..run.first.saturating_add(run.count) {
                if end.is_none_or(|end| Cursor { chunk: run.chunk, block } <= end) {
                    let mask = windows.entry((run.chunk, block / WINDOW)).or_default();
                    *mask |= if is_own { 0 } else { 1 << (block % WINDOW) };
                }
            }
        }
        if let Some(&rest) = windows.keys().nth(PAGE_WINDOWS) {
            windows.split_off(&rest);
            end = windows
                .last_key_value()
                .map(|((chunk, nth), _)| Cursor { chunk: *chunk, block: nth * WINDOW + WINDOW - 1 });
        }
        let window = |((chunk, nth), others)| Window { chunk, first: nth * WINDOW, others, tried: 0 };
        self.windows = windows.into_iter().map(window).collect();
        (self.end, self.listed, self.step) = (end, true, Step::Ready);
        let own = own.runs.iter().filter(|run| run.kind != Kind::Delete);
        let dead: BTreeSet<ChunkId> = own.filter(|run| is_dead(run, &there)).map(|run| run.chunk).collect();
        let is_news = |chunk: &ChunkId, version: &Version| here.get(chunk).is_none_or(|here| here < version);
        there.into_iter().filter(|(chunk, version)| dead.contains(chunk) && is_news(chunk, version)).collect()
    }

    /// The version of a block that is here.
    pub fn version_of(&self, window: Window, block: u32) -> Option<Version> {
        let has = |run: &&Run| {
            run.chunk == window.chunk && (run.first..run.first.saturating_add(run.count)).contains(&block)
        };
        self.own.iter().find(has).map(|run| run.version)
    }
}

/// Whether its chunk was deleted since: what is newer than the deletion lives ([`super::plan::living`]).
fn is_dead(run: &Run, deletions: &BTreeMap<ChunkId, Version>) -> bool {
    deletions.get(&run.chunk).is_some_and(|deleted| run.version <= *deleted)
}

impl Window {
    pub fn bit(&self, block: u32) -> u64 {
        1 << (block - self.first)
    }

    pub fn is_untried(&self, block: u32) -> bool {
        self.tried & self.bit(block) == 0
    }
}

/// Every block that was written; zeroes are empty.
pub(super) fn blocks_of(records: Vec<Record>, payload: &Bytes) -> BTreeMap<u32, Bytes> {
    let parts = split_payload(records, payload).unwrap_or_default();
    let written = parts.into_iter().filter(|(record, _)| !record.is_never_written());
    let blocks = written.flat_map(|(record, bytes)| {
        (0..record.count).map(move |nth| {
            let at = nth as usize * BLOCK_BYTES;
            let data = matches!(record.content, Content::Data { .. });
            (record.first + nth, if data { bytes.slice(at..at + BLOCK_BYTES) } else { Bytes::new() })
        })
    });
    blocks.collect()
}

/// `own`: zeroes are empty.
pub(super) fn same(own: &Bytes, found: &Bytes) -> bool {
    if own.is_empty() { found.iter().all(|byte| *byte == 0) } else { own == found }
}

/// As runs, each no longer than what is rebuilt at once. Those of a window never are.
pub(super) fn runs_of(blocks: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &block in blocks {
        match runs.last_mut().filter(|(first, count)| first + count == block && *count < REBUILD_BLOCKS) {
            Some((_, count)) => *count += 1,
            None => runs.push((block, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Epoch, ObjectId};

    const CHUNK: ChunkId = ChunkId { object: ObjectId(7), index: 0 };

    fn run(epoch: u32, kind: Kind) -> Run {
        let count = if kind == Kind::Delete { 0 } else { 4 };
        Run { chunk: CHUNK, first: 0, count, version: Version { epoch: Epoch(epoch), seq: 1 }, kind }
    }

    /// What is deleted here, and whether the chunk is scrubbed.
    fn seen(own: &[Run], other: &[Run]) -> (Vec<u32>, bool) {
        let mut scrub = Scrub::begin(0, None);
        let page = |runs: &[Run]| ListPage { runs: runs.to_vec(), next: None };
        let deleted = scrub.take_windows(&page(own), &page(other));
        (deleted.iter().map(|(_, version)| version.epoch.0).collect(), !scrub.windows.is_empty())
    }

    #[test]
    fn a_deletion_covers_what_is_no_newer() {
        let (old, new) = (run(3, Kind::Data), run(5, Kind::Data));
        let deleted = |epoch| run(epoch, Kind::Delete);
        assert_eq!(seen(&[old], &[old]), (vec![], true));
        assert_eq!(seen(&[old], &[deleted(4)]), (vec![4], false));
        assert_eq!(seen(&[new], &[deleted(4)]), (vec![], true), "it was written since");
        assert_eq!(seen(&[deleted(4), new], &[new]), (vec![], true));
        assert_eq!(seen(&[deleted(4), new], &[deleted(6)]), (vec![6], false), "and deleted again");
        assert_eq!(seen(&[deleted(6), new], &[deleted(6)]), (vec![], false), "it is about to be");
    }
}
