//! Linearizability of one chunk's history: Wing and Gong's search with Lowe's memory of failed states.
//!
//! A chunk is an array of cells. A write or a zeroing takes effect at one moment between its beginning and its end; one
//! that was given up takes effect at any moment after its beginning, or never. A read sees the cells as they are at one
//! moment. A zeroing of several records may take effect record by record: each part counts as an operation. The same
//! holds for one that was given up, and for such a write, block by block: an interrupted settlement may have kept some
//! of them.
//!
//! What was sent under a claim takes effect before a newer claim on the object is acknowledged, or never (R16). A look
//! marks its blocks, and a write of any of them removes the marks; clearing zeroes the blocks that still have the mark.
//! It may leave some of these alone: a settlement gives blocks a new version that nobody wrote meanwhile.
//!
//! Two facts keep the search small. A read that matches the present state can go first: it changes nothing. A write
//! that was given up and never seen can be ignored: values are unique.

use crate::search::client::CELLS_PER_BLOCK;
use crate::search::history::{Action, Op, Outcome};
use ebb_types::RECORD_BLOCKS_MAX;
use ebb_types::mix;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// Steps after which the search gives up without a verdict.
const STEPS_MAX: u64 = 2_000_000;

#[derive(Clone, Debug)]
struct Part {
    op: usize,
    began: u64,
    /// It happened before, if at all.
    ended: u64,
    may_be_never: bool,
    first: u32,
    cells: u32,
    effect: Effect,
}

#[derive(Clone, Debug)]
enum Effect {
    Read(Vec<u64>),
    Set(u64),
    /// Which blocks have data; the look's number.
    Look(Vec<u64>, usize),
    /// What has the mark of this look becomes zero.
    Clear(usize),
}

/// Marks are cells from this number on, so that they are a part of the state.
const MARKS: u32 = 1 << 31;

/// The mark that this look leaves on a block.
fn mark(look: usize, block: u32) -> u32 {
    MARKS | (look as u32) << 11 | block
}

/// The block that a mark is on.
fn marked(mark: u32) -> u32 {
    mark & ((1 << 11) - 1)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// The numbers of the operations around the point where no order works.
    Broken {
        after: usize,
        stuck: Vec<usize>,
    },
    /// The search was too long.
    Unknown,
}

/// Judges the operations of one chunk, given with their numbers.
pub fn check(ops: &[(usize, &Op)]) -> Verdict {
    // A given-up write of which only some blocks are seen is rare, and expensive to search for.
    match search(&parts_of(ops, false)) {
        Verdict::Broken { .. } => search(&parts_of(ops, true)),
        verdict => verdict,
    }
}

fn search(parts: &[Part]) -> Verdict {
    let mut search = Search::new(parts);
    match search.run() {
        Some(true) => Verdict::Linearizable,
        Some(false) => {
            let stuck = search.stuck.iter().map(|&n| parts[n].op).collect();
            Verdict::Broken { after: search.deepest, stuck }
        }
        None => Verdict::Unknown,
    }
}

/// `by_block`: what was given up, and clearing, may have taken effect in some blocks only.
fn parts_of(ops: &[(usize, &Op)], by_block: bool) -> Vec<Part> {
    let seen: HashSet<u64> = ops.iter().flat_map(|(_, op)| op.seen.iter().copied()).collect();
    let mut parts = Vec::new();
    for &(n, op) in ops {
        let value = n as u64 + 1;
        let given_up = op.outcome == Outcome::Unknown;
        let ended = if given_up { u64::MAX } else { op.ended.expect("what was answered has ended") };
        let part = |first, cells, effect| Part {
            op: n,
            began: op.began,
            ended: ended.min(op.fenced),
            may_be_never: given_up,
            first,
            cells,
            effect,
        };
        let pieces =
            |first, cells, split| if by_block && split { blocks(first, cells) } else { vec![(first, cells)] };
        match op.action {
            _ if op.outcome == Outcome::Refused => {}
            Action::Read { .. } | Action::Look { .. } if given_up => {}
            Action::Read { first, cells } => parts.push(part(first, cells, Effect::Read(op.seen.clone()))),
            Action::Look { first, cells } => parts.push(part(first, cells, Effect::Look(op.seen.clone(), n))),
            Action::Write { .. } if given_up && !seen.contains(&value) => {}
            Action::Write { first, cells } => {
                let pieces = pieces(first, cells, given_up).into_iter();
                parts.extend(pieces.map(|(first, cells)| part(first, cells, Effect::Set(value))));
            }
            Action::Zero { first, cells } => {
                let records = zero_pieces(first, cells).into_iter();
                let pieces = records.flat_map(|(first, cells)| pieces(first, cells, given_up));
                parts.extend(pieces.map(|(first, cells)| part(first, cells, Effect::Set(0))));
            }
            Action::Clear { first, cells, look } => {
                let pieces = pieces(first, cells, true).into_iter();
                let piece = |(first, cells)| part(first, cells, Effect::Clear(look));
                parts.extend(pieces.map(|range| Part { may_be_never: given_up || by_block, ..piece(range) }));
            }
            Action::Delete => parts.push(part(0, MARKS, Effect::Set(0))),
        }
    }
    parts.sort_by_key(|p| (p.began, p.op, p.first));
    parts
}

/// The cells of each block: a settlement may have kept some blocks of a given-up write and not others.
fn blocks(first: u32, cells: u32) -> Vec<(u32, u32)> {
    let end = first + cells;
    let starts = first / CELLS_PER_BLOCK * CELLS_PER_BLOCK..end;
    let block = |at: u32| (at.max(first), (at + CELLS_PER_BLOCK).min(end) - at.max(first));
    starts.step_by(CELLS_PER_BLOCK as usize).map(block).collect()
}

/// The ranges of cells that a zeroing sets one record at a time.
fn zero_pieces(first: u32, cells: u32) -> Vec<(u32, u32)> {
    let end = first + cells;
    let (inner, outer) = (first.next_multiple_of(CELLS_PER_BLOCK), end / CELLS_PER_BLOCK * CELLS_PER_BLOCK);
    if inner > outer {
        return vec![(first, cells)];
    }
    let mut pieces = vec![(first, inner - first), (outer, end - outer)];
    let step = RECORD_BLOCKS_MAX * CELLS_PER_BLOCK;
    pieces.extend((inner..outer).step_by(step as usize).map(|at| (at, step.min(outer - at))));
    pieces.retain(|p| p.1 > 0);
    pieces
}

struct Search<'a> {
    parts: &'a [Part],
    done: Vec<bool>,
    /// All parts before this one are done.
    from: usize,
    left: usize,
    cells: BTreeMap<u32, u64>,
    /// Hash of the set of finished parts, and of the cells.
    done_hash: u64,
    cells_hash: u64,
    failed: HashSet<(u64, u64)>,
    steps: u64,
    deepest: usize,
    stuck: Vec<usize>,
}

/// A step that can be undone.
struct Step {
    part: usize,
    before: Vec<(u32, Option<u64>)>,
    /// Alternative writes for this step.
    others: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(parts: &'a [Part]) -> Search<'a> {
        let left = parts.iter().filter(|p| !p.may_be_never).count();
        Search {
            parts,
            done: vec![false; parts.len()],
            from: 0,
            left,
            cells: BTreeMap::new(),
            done_hash: 0,
            cells_hash: 0,
            failed: HashSet::new(),
            steps: 0,
            deepest: 0,
            stuck: Vec::new(),
        }
    }

    /// The parts that may be next: no unfinished part ended before they began, and no finished one began after they
    /// ended.
    fn candidates(&self) -> Vec<usize> {
        let mut earliest_end = u64::MAX;
        let mut found = Vec::new();
        for n in self.from..self.parts.len() {
            let part = &self.parts[n];
            if part.began > earliest_end {
                break;
            }
            if !self.done[n] {
                earliest_end = if part.may_be_never { earliest_end } else { earliest_end.min(part.ended) };
                found.push(n);
            }
        }
        found.retain(|&n| self.parts[n].began <= earliest_end);
        if found.iter().any(|&n| self.parts[n].may_be_never && self.parts[n].ended < u64::MAX) {
            let latest = (0..self.parts.len()).rev().find(|&n| self.done[n]);
            found.retain(|&n| latest.is_none_or(|latest| self.parts[n].ended >= self.parts[latest].began));
        }
        // Earliest deadline first, operations that may never happen last.
        found.sort_by_key(|&n| (self.parts[n].may_be_never, self.parts[n].ended, n));
        found
    }

    fn fits(&self, part: &Part) -> bool {
        let cell = |n: u32| self.cells.get(&n).copied().unwrap_or(0);
        match &part.effect {
            Effect::Read(seen) => {
                seen.iter().enumerate().all(|(k, value)| cell(part.first + k as u32) == *value)
            }
            // Where there is data, it may be zero.
            Effect::Look(seen, _) => {
                (0..part.cells).all(|k| seen[(k / CELLS_PER_BLOCK) as usize] > 0 || cell(part.first + k) == 0)
            }
            Effect::Set(_) | Effect::Clear(_) => false,
        }
    }

    /// `None`: no verdict within the bound.
    fn run(&mut self) -> Option<bool> {
        let mut path: Vec<Step> = Vec::new();
        let mut next = self.choices();
        loop {
            if self.left == 0 {
                return Some(true);
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return None;
            }
            if let Some(part) = next.pop() {
                let step = self.take(part, next);
                path.push(step);
                if path.len() > self.deepest {
                    self.deepest = path.len();
                    self.stuck = self.candidates();
                }
                next = if self.failed.insert((self.done_hash, self.cells_hash)) {
                    self.choices()
                } else {
                    Vec::new()
                };
                continue;
            }
            match path.pop() {
                Some(step) => next = self.undo(step),
                None => return Some(false),
            }
        }
    }

    /// What to try next, best last: one matching read, or anything else. Where the read would come too late for what
    /// must happen before it or never, both.
    fn choices(&self) -> Vec<usize> {
        let candidates = self.candidates();
        let is_read = |n: &usize| matches!(self.parts[*n].effect, Effect::Read(_));
        let read = candidates.iter().copied().find(|n| is_read(n) && self.fits(&self.parts[*n]));
        let too_late = |read: usize| candidates.iter().any(|n| self.parts[*n].ended < self.parts[read].began);
        if let Some(read) = read.filter(|read| !too_late(*read)) {
            return vec![read];
        }
        let may_be_next = |n: &usize| match self.parts[*n].effect {
            Effect::Read(_) => false,
            Effect::Look(..) => self.fits(&self.parts[*n]),
            Effect::Set(_) | Effect::Clear(_) => true,
        };
        candidates.into_iter().rev().filter(may_be_next).chain(read).collect()
    }

    fn take(&mut self, part: usize, others: Vec<usize>) -> Step {
        let p = &self.parts[part];
        self.done[part] = true;
        self.done_hash ^= mix(part as u64 + 1);
        self.left -= usize::from(!p.may_be_never);
        let changes = self.changes(p);
        let before = changes.into_iter().map(|(n, value)| (n, self.set(n, value))).collect();
        while self.from < self.parts.len() && self.done[self.from] {
            self.from += 1;
        }
        Step { part, before, others }
    }

    /// What a part does to cells and marks.
    fn changes(&self, part: &Part) -> Vec<(u32, Option<u64>)> {
        let (first, end) = (part.first, part.first + part.cells);
        let blocks = first / CELLS_PER_BLOCK..end.div_ceil(CELLS_PER_BLOCK);
        let present = |cells: Range<u32>| self.cells.range(cells).map(|(n, _)| (*n, None));
        match part.effect {
            Effect::Read(_) => Vec::new(),
            Effect::Set(value) => {
                let marks = present(MARKS..u32::MAX).filter(|(mark, _)| blocks.contains(&marked(*mark)));
                match value {
                    0 => present(first..end).chain(marks).collect(),
                    _ => (first..end).map(|n| (n, Some(value))).chain(marks).collect(),
                }
            }
            Effect::Look(_, look) => blocks.map(|block| (mark(look, block), Some(1))).collect(),
            Effect::Clear(look) => {
                let unwritten = |n: &(u32, _)| self.cells.contains_key(&mark(look, n.0 / CELLS_PER_BLOCK));
                present(first..end).filter(unwritten).collect()
            }
        }
    }

    fn undo(&mut self, step: Step) -> Vec<usize> {
        for (n, old) in step.before.into_iter().rev() {
            self.set(n, old);
        }
        self.done[step.part] = false;
        self.done_hash ^= mix(step.part as u64 + 1);
        self.left += usize::from(!self.parts[step.part].may_be_never);
        self.from = self.from.min(step.part);
        step.others
    }

    fn set(&mut self, cell: u32, value: Option<u64>) -> Option<u64> {
        let digest = |value: u64| mix(value ^ mix(u64::from(cell) + 1));
        let old = match value {
            Some(value) => {
                self.cells_hash ^= digest(value);
                self.cells.insert(cell, value)
            }
            None => self.cells.remove(&cell),
        };
        self.cells_hash ^= old.map_or(0, digest);
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::ChunkId;

    fn op(action: Action, began: u64, ended: Option<u64>, seen: &[u64]) -> Op {
        let outcome = if ended.is_some() { Outcome::Done } else { Outcome::Unknown };
        let seen = seen.to_vec();
        Op { chunk: ChunkId::default(), action, began, ended, outcome, seen, claim: 0, fenced: u64::MAX }
    }

    fn judge(ops: &[Op]) -> Verdict {
        check(&ops.iter().enumerate().collect::<Vec<_>>())
    }

    const WRITE: Action = Action::Write { first: 0, cells: 2 };
    const READ: Action = Action::Read { first: 0, cells: 2 };

    #[test]
    fn a_stale_read_is_found() {
        let good = [op(WRITE, 0, Some(1), &[]), op(READ, 2, Some(3), &[1, 1])];
        assert_eq!(judge(&good), Verdict::Linearizable);
        let stale = [op(WRITE, 0, Some(1), &[]), op(READ, 2, Some(3), &[0, 0])];
        assert!(matches!(judge(&stale), Verdict::Broken { .. }));
        let half = [op(WRITE, 0, Some(1), &[]), op(READ, 2, Some(3), &[1, 0])];
        assert!(matches!(judge(&half), Verdict::Broken { .. }));
    }

    #[test]
    fn what_was_given_up_may_happen_once_or_never() {
        let never = [op(WRITE, 0, None, &[]), op(READ, 2, Some(3), &[0, 0])];
        assert_eq!(judge(&never), Verdict::Linearizable);
        let late = [op(WRITE, 0, None, &[]), op(READ, 2, Some(3), &[0, 0]), op(READ, 4, Some(5), &[1, 1])];
        assert_eq!(judge(&late), Verdict::Linearizable);
        let twice = [
            op(WRITE, 0, None, &[]),
            op(READ, 2, Some(3), &[1, 1]),
            op(WRITE, 4, Some(5), &[]),
            op(READ, 6, Some(7), &[3, 3]),
            op(READ, 8, Some(9), &[1, 1]),
        ];
        assert!(matches!(judge(&twice), Verdict::Broken { .. }));
    }

    #[test]
    fn what_was_given_up_may_happen_block_by_block() {
        let (write, read) = (Action::Write { first: 0, cells: 8 }, Action::Read { first: 0, cells: 8 });
        let torn = |ended, seen: [u64; 8]| judge(&[op(write, 0, ended, &[]), op(read, 2, Some(3), &seen)]);
        assert_eq!(torn(None, [1, 1, 1, 1, 0, 0, 0, 0]), Verdict::Linearizable);
        assert!(matches!(torn(None, [1, 1, 0, 0, 0, 0, 0, 0]), Verdict::Broken { .. }));
        assert!(matches!(torn(Some(1), [1, 1, 1, 1, 0, 0, 0, 0]), Verdict::Broken { .. }));
    }

    #[test]
    fn concurrent_writes_take_any_order_but_one() {
        let both = |second: u64| {
            [
                op(WRITE, 0, Some(10), &[]),
                op(WRITE, 0, Some(10), &[]),
                op(READ, 11, Some(12), &[1, 1]),
                op(READ, 13, Some(14), &[second, second]),
            ]
        };
        assert_eq!(judge(&both(1)), Verdict::Linearizable);
        assert!(matches!(judge(&both(2)), Verdict::Broken { .. }));
    }

    #[test]
    fn a_zeroing_of_several_records_happens_piece_by_piece() {
        let whole = Action::Write { first: 0, cells: 8 };
        let zero = Action::Zero { first: 1, cells: 7 };
        let read = Action::Read { first: 0, cells: 8 };
        let piece = [
            op(whole, 0, Some(1), &[]),
            op(zero, 2, None, &[]),
            op(read, 3, Some(4), &[1, 1, 1, 1, 0, 0, 0, 0]),
            op(read, 5, Some(6), &[1, 0, 0, 0, 0, 0, 0, 0]),
        ];
        assert_eq!(judge(&piece), Verdict::Linearizable);
        let torn = [
            op(whole, 0, Some(1), &[]),
            op(zero, 2, None, &[]),
            op(read, 3, Some(4), &[1, 0, 1, 1, 1, 1, 1, 1]),
        ];
        assert!(matches!(judge(&torn), Verdict::Broken { .. }));
    }

    #[test]
    fn what_was_sent_under_a_claim_happens_before_a_newer_one_or_never() {
        let fenced = |op: Op| Op { fenced: 10, ..op };
        let late = |seen: [u64; 2], ended| {
            let (before, after) = (op(READ, 11, Some(12), &[0, 0]), op(READ, 13, Some(14), &seen));
            judge(&[fenced(op(WRITE, 5, ended, &[])), before, after])
        };
        assert_eq!(late([0, 0], None), Verdict::Linearizable);
        assert!(matches!(late([1, 1], None), Verdict::Broken { .. }));
        let first = [fenced(op(WRITE, 5, None, &[])), op(READ, 11, Some(12), &[1, 1])];
        assert_eq!(judge(&first), Verdict::Linearizable);
        let elsewhere = Action::Read { first: 4, cells: 1 };
        let unseen = [first[0].clone(), op(elsewhere, 11, Some(12), &[0]), op(READ, 13, Some(14), &[1, 1])];
        assert_eq!(judge(&unseen), Verdict::Linearizable);
        let served_on = [fenced(op(READ, 11, Some(12), &[0, 0]))];
        assert!(matches!(judge(&served_on), Verdict::Broken { .. }));
    }

    #[test]
    fn clearing_leaves_alone_what_was_written_since_the_look() {
        let (write, read) = (Action::Write { first: 0, cells: 8 }, Action::Read { first: 0, cells: 8 });
        let (look, half) = (Action::Look { first: 0, cells: 8 }, Action::Write { first: 4, cells: 4 });
        let clear = Action::Clear { first: 0, cells: 8, look: 1 };
        let seen = |has_data: &[u64], seen: [u64; 8]| {
            judge(&[
                op(write, 0, Some(1), &[]),
                op(look, 2, Some(3), has_data),
                op(half, 4, Some(5), &[]),
                op(clear, 6, Some(7), &[]),
                op(read, 8, Some(9), &seen),
            ])
        };
        assert_eq!(seen(&[1, 1], [0, 0, 0, 0, 3, 3, 3, 3]), Verdict::Linearizable);
        assert_eq!(seen(&[1, 1], [1, 1, 1, 1, 3, 3, 3, 3]), Verdict::Linearizable);
        assert!(matches!(seen(&[1, 1], [0; 8]), Verdict::Broken { .. }));
        assert!(matches!(seen(&[1, 1], [1; 8]), Verdict::Broken { .. }));
        assert!(matches!(seen(&[1, 0], [0, 0, 0, 0, 3, 3, 3, 3]), Verdict::Broken { .. }));
    }
}
