//! Runs of blocks: those of a file, and those that are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// Consecutive blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub start: u64,
    pub count: u64,
}

/// Runs that an allocation looks at before it takes smaller ones.
const LOOKED_AT: usize = 64;

/// Where the blocks of a file are. A block that is nowhere is a hole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extents {
    /// By first block of the file: first block of the device, and count.
    runs: BTreeMap<u64, (u64, u64)>,
    blocks: u64,
}

impl Extents {
    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Blocks that are somewhere.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// (block of the file, run).
    pub fn iter(&self) -> impl Iterator<Item = (u64, Run)> + '_ {
        self.runs.iter().map(|(file, (start, count))| (*file, Run { start: *start, count: *count }))
    }

    /// The range in pieces, in order: (block of the file, where, count).
    pub fn pieces(&self, range: Range<u64>) -> Vec<(u64, Option<u64>, u64)> {
        let mut all = Vec::new();
        let mut at = range.start;
        let before = self.runs.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(file, _)| *file);
        for (file, (start, count)) in self.runs.range(first..range.end.max(first)) {
            let (from, to) = ((*file).max(range.start), (file + count).min(range.end));
            if from >= to {
                continue;
            }
            if at < from {
                all.push((at, None, from - at));
            }
            all.push((from, Some(start + from - file), to - from));
            at = to;
        }
        if at < range.end {
            all.push((at, None, range.end - at));
        }
        all
    }

    /// Adds blocks that were a hole.
    pub fn insert(&mut self, file: u64, run: Run) {
        debug_assert!(
            self.runs.range(..file + run.count).next_back().is_none_or(|(at, (_, count))| at + count <= file),
            "it was a hole"
        );
        self.blocks += run.count;
        if let Some((before, (start, count))) = self.runs.range_mut(..file).next_back()
            && before + *count == file
            && *start + *count == run.start
        {
            *count += run.count;
            return;
        }
        self.runs.insert(file, (run.start, run.count));
    }

    /// Makes a range a hole; returns what it had.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Run> {
        let mut gone = Vec::new();
        for (file, start, count) in self.pieces(range.clone()) {
            let Some(start) = start else { continue };
            let (whole, (run, length)) =
                self.runs.range(..=file).next_back().map(|(f, r)| (*f, *r)).expect("the piece is of a run");
            self.runs.remove(&whole);
            if whole < file {
                self.runs.insert(whole, (run, file - whole));
            }
            if file + count < whole + length {
                self.runs.insert(file + count, (start + count, whole + length - file - count));
            }
            self.blocks -= count;
            gone.push(Run { start, count });
        }
        gone
    }

    /// The block of the device behind the last one before `file`: where a file grows without a seek.
    pub fn near(&self, file: u64) -> Option<u64> {
        let (first, (start, count)) = self.runs.range(..file).next_back()?;
        Some(start + count + (file - first - count))
    }
}

/// Free blocks of the device.
#[derive(Clone, Debug, Default)]
pub struct Free {
    runs: BTreeMap<u64, u64>,
    blocks: u64,
    /// Where the last allocation ended.
    next: u64,
}

impl Free {
    pub fn new(blocks: Range<u64>) -> Free {
        let count = blocks.end - blocks.start;
        Free { runs: [(blocks.start, count)].into(), blocks: count, next: blocks.start }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes out a run; `false`: not all of it is free, and nothing has changed.
    pub fn take(&mut self, run: Run) -> bool {
        let Some((start, count)) = self.runs.range(..=run.start).next_back().map(|(s, c)| (*s, *c)) else {
            return false;
        };
        let Some(end) = run.start.checked_add(run.count).filter(|end| *end <= start + count) else {
            return false;
        };
        self.runs.remove(&start);
        if start < run.start {
            self.runs.insert(start, run.start - start);
        }
        if end < start + count {
            self.runs.insert(end, start + count - end);
        }
        self.blocks -= run.count;
        true
    }

    pub fn release(&mut self, run: Run) {
        let mut merged = run;
        if let Some((start, count)) = self.runs.range(..run.start).next_back().map(|(s, c)| (*s, *c)) {
            assert!(start + count <= run.start, "a block is freed once");
            if start + count == run.start {
                self.runs.remove(&start);
                merged = Run { start, count: count + run.count };
            }
        }
        if let Some((start, count)) = self.runs.range(run.start..).next().map(|(s, c)| (*s, *c)) {
            assert!(run.start + run.count <= start, "a block is freed once");
            if run.start + run.count == start {
                self.runs.remove(&start);
                merged.count += count;
            }
        }
        self.runs.insert(merged.start, merged.count);
        self.blocks += run.count;
    }

    /// Takes `count` blocks, at `near` if that is free, in as few runs as a short search finds. `None`: there are not
    /// as many.
    pub fn allocate(&mut self, count: u64, near: Option<u64>) -> Option<Vec<Run>> {
        if count > self.blocks {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = count;
        while left > 0 {
            let near = near.filter(|_| runs.is_empty());
            let run = self.choose(left, near);
            debug_assert!(run.count > 0 && run.count <= left, "each step comes further");
            assert!(self.take(run), "it was found free");
            left -= run.count;
            self.next = run.start + run.count;
            runs.push(run);
        }
        Some(runs)
    }

    fn choose(&self, wanted: u64, near: Option<u64>) -> Run {
        if let Some(at) = near
            && let Some((start, count)) = self.runs.range(..=at).next_back()
            && start + count > at
        {
            return Run { start: at, count: wanted.min(start + count - at) };
        }
        let all = self.runs.range(self.next..).chain(self.runs.range(..self.next));
        let looked = all.map(|(start, count)| Run { start: *start, count: *count }).take(LOOKED_AT);
        let mut best = Run { start: 0, count: 0 };
        for run in looked {
            if run.count >= wanted {
                return Run { count: wanted, ..run };
            }
            if run.count > best.count {
                best = run;
            }
        }
        best
    }
}
