//! What of one chunk is where: the listings of all servers, cut into runs of blocks that are alike.

use super::known::is_cleared;
use ebb_types::{Kind, RECORD_BLOCKS_MAX, Run, ServerId, Version};
use std::collections::BTreeSet;

/// Maximum blocks that are rebuilt at once.
pub(super) const REBUILD_BLOCKS: u32 = 64;
const _: () = assert!(REBUILD_BLOCKS <= RECORD_BLOCKS_MAX);

/// A run of a column as a server listed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub column: usize,
    pub server: ServerId,
    pub run: Run,
}

/// Blocks of which the same strips are on the same servers, at the same versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u32,
    pub count: u32,
    pub present: Vec<Present>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub column: usize,
    pub server: ServerId,
    pub version: Version,
    /// The content is no longer known there.
    pub lost: bool,
}

impl Segment {
    /// The columns of which some server has sound blocks.
    pub fn columns(&self) -> Vec<usize> {
        let sound: BTreeSet<usize> = self.present.iter().filter(|p| !p.lost).map(|p| p.column).collect();
        sound.into_iter().collect()
    }
}

/// The newest deletion of a chunk, and what is newer than it. Also that was written: what looked like the rest of a
/// failed write, and was deleted as such, may have been taken while the write went on, and it succeeded under a newer
/// epoch (seed 33600018681).
pub(super) fn living(listed: &[Listed]) -> (Option<Version>, Vec<Listed>) {
    let deleted = listed.iter().filter(|l| l.run.kind == Kind::Delete).map(|l| l.run.version).max();
    let lives = |l: &&Listed| deleted.is_none_or(|deleted| is_strip(&l.run) && l.run.version > deleted);
    (deleted, listed.iter().filter(lives).copied().collect())
}

/// `listed`: runs of one chunk. Deletions and what was cleared are no part of it.
pub(super) fn segments(listed: &[Listed]) -> Vec<Segment> {
    let blocks: Vec<&Listed> = listed.iter().filter(|l| is_strip(&l.run)).collect();
    let cuts: BTreeSet<u32> = blocks.iter().flat_map(|l| [l.run.first, l.run.first + l.run.count]).collect();
    let mut all: Vec<Segment> = Vec::new();
    for (first, end) in cuts.iter().zip(cuts.iter().skip(1)) {
        let here = blocks.iter().filter(|l| l.run.first <= *first && *end <= l.run.first + l.run.count);
        let present = |l: &&Listed| Present {
            column: l.column,
            server: l.server,
            version: l.run.version,
            lost: l.run.kind == Kind::Lost,
        };
        let mut present: Vec<Present> = here.map(present).collect();
        present.sort_by_key(|p| (p.column, p.server));
        let next = Segment { first: *first, count: end - first, present };
        let is_like = |last: &&mut Segment| last.first + last.count == *first && last.present == next.present;
        match all.last_mut().filter(is_like) {
            Some(last) => last.count += next.count,
            None => all.push(next),
        }
    }
    all.retain(|segment| !segment.present.is_empty());
    all.into_iter().flat_map(in_parts).collect()
}

fn is_strip(run: &Run) -> bool {
    run.kind != Kind::Delete && !is_cleared(run.kind, run.version)
}

fn in_parts(segment: Segment) -> impl Iterator<Item = Segment> {
    let end = segment.first + segment.count;
    (segment.first..end).step_by(REBUILD_BLOCKS as usize).map(move |first| Segment {
        first,
        count: REBUILD_BLOCKS.min(end - first),
        present: segment.present.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ChunkId, Epoch};

    fn listed(column: usize, first: u32, count: u32, kind: Kind) -> Listed {
        let version = Version { epoch: Epoch(3), seq: 1 };
        let run = Run { chunk: ChunkId::default(), first, count, version, kind };
        Listed { column, server: ServerId(column as u16), run }
    }

    #[test]
    fn what_is_newer_than_a_deletion_lives() {
        let at = |epoch: u32, of: Listed| {
            let version = Version { epoch: Epoch(epoch), seq: 1 };
            Listed { run: Run { version, ..of.run }, ..of }
        };
        let (old, new) = (at(3, listed(0, 0, 4, Kind::Data)), at(5, listed(1, 0, 4, Kind::Data)));
        let deleted = at(4, listed(2, 0, 0, Kind::Delete));
        let of = |listed: &[Listed]| {
            let (deleted, living) = living(listed);
            (deleted.map(|version| version.epoch.0), living.iter().map(|l| l.column).collect::<Vec<_>>())
        };
        assert_eq!(of(&[old, new]), (None, vec![0, 1]));
        assert_eq!(of(&[old, new, deleted]), (Some(4), vec![1]));
        assert_eq!(of(&[old, deleted, at(2, deleted)]), (Some(4), vec![]));
        assert_eq!(of(&[at(4, old), deleted]), (Some(4), vec![]), "as old as the deletion");
        let version = Version { epoch: Epoch(5), seq: 2 };
        let cleared = Listed { run: Run { version, kind: Kind::Zero, ..new.run }, ..new };
        assert_eq!(of(&[cleared, deleted]), (Some(4), vec![]), "no strip");
    }

    #[test]
    fn blocks_that_are_alike_lie_in_one_segment() {
        let all = [
            listed(0, 0, 4, Kind::Data),
            listed(0, 4, 70, Kind::Zero),
            listed(1, 0, 8, Kind::Data),
            listed(2, 0, 0, Kind::Delete),
            listed(2, 80, 1, Kind::Lost),
        ];
        let found: Vec<(u32, u32, Vec<usize>)> =
            segments(&all).into_iter().map(|s| (s.first, s.count, s.columns())).collect();
        let wanted = [(0, 8, vec![0, 1]), (8, 64, vec![0]), (72, 2, vec![0]), (80, 1, vec![])];
        assert_eq!(found, wanted, "lost blocks are no strip");
    }
}
