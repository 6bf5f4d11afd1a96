//! What volumes' clients do, and how it is judged: they read and write cells, each of which is a register. A request
//! that is sent again counts as one.

use crate::above::messages::{BlockRequest, Request, Wish};
use crate::above::net::Net;
use crate::above::scenario::SECOND;
use crate::search::history::{Action, History, Op, Outcome};
use crate::search::linear::{Verdict, check};
use bytes::Bytes;
use ebb_types::{BLOCK_BYTES, ChunkId, ObjectId, Random, SLICE_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is written and compared at a time: half a block.
const CELL: u64 = BLOCK_BYTES as u64 / 2;
const SLICE_CELLS: u64 = SLICE_BYTES as u64 / CELL;
/// The cells that are used: at both ends of slices.
pub(super) const USED: [Range<u64>; 3] =
    [0..4, SLICE_CELLS - 4..SLICE_CELLS + 4, 2 * SLICE_CELLS - 2..2 * SLICE_CELLS + 4];
/// What stands for all volumes in the history: no key does.
const DEVICES: ObjectId = ObjectId(0);
/// A request that failed may still be carried out for the rest of its last try.
const SLACK: u64 = 200;

/// The array of a volume's cells.
fn device(volume: usize) -> ChunkId {
    ChunkId { object: DEVICES, index: volume as u32 }
}

/// The first of some cells, and how many.
fn some(random: &mut Random) -> (u64, u64) {
    let used = &USED[random.index(USED.len())];
    let first = used.start + random.below(used.end - used.start);
    (first, 1 + random.below((used.end - first).min(6)))
}

/// The tries of an operation that are under way or were taken.
#[derive(Default)]
pub(super) struct Tries {
    pub sent: usize,
    /// The process, its life, and the time.
    pub taken: Vec<(usize, u64, u64)>,
}

impl Tries {
    /// The process that took all of them, and when the first and the last came there.
    pub fn taken_by_one(&self) -> Option<((usize, u64), u64, u64)> {
        let &(host, life, first) = self.taken.first()?;
        let is_one = self.taken.len() == self.sent
            && self.taken.iter().all(|taken| (taken.0, taken.1) == (host, life));
        let last = self.taken.iter().map(|(.., at)| *at).max()?;
        is_one.then_some(((host, life), first, last))
    }
}

fn read(volume: usize, first: u64, cells: u64) -> Wish {
    let action = Action::Read { first: first as u32, cells: cells as u32 };
    (device(volume), action, Request::Block(BlockRequest::Read { offset: first * CELL, len: cells * CELL }))
}

pub(super) fn draw_read(volume: usize, random: &mut Random) -> Wish {
    let (first, cells) = some(random);
    read(volume, first, cells.min(2))
}

/// What a client does next.
pub(super) fn draw(volume: usize, random: &mut Random, value: u64) -> Wish {
    let (first, cells) = some(random);
    let (offset, len) = (first * CELL, cells * CELL);
    let (first, cells) = (first as u32, cells as u32);
    let (action, request) = match random.below(20) {
        0..=7 => (Action::Read { first, cells }, BlockRequest::Read { offset, len }),
        8 | 9 => (Action::Zero { first, cells }, BlockRequest::Zero { offset, len }),
        10 => {
            let slice = random.below(2);
            let (offset, len) = (slice * u64::from(SLICE_BYTES), SLICE_BYTES.into());
            let (first, cells) = ((slice * SLICE_CELLS) as u32, SLICE_CELLS as u32);
            (Action::Zero { first, cells }, BlockRequest::Zero { offset, len })
        }
        11 => (Action::Read { first, cells: 0 }, BlockRequest::Flush),
        _ => {
            let bytes = value.to_le_bytes().repeat((len / 8) as usize).into();
            (Action::Write { first, cells }, BlockRequest::Write { offset, bytes })
        }
    };
    (device(volume), action, Request::Block(request))
}

/// One of the parts that are used is read.
pub(super) fn read_part(volume: usize, part: usize) -> Wish {
    let used = &USED[part];
    read(volume, used.start, used.end - used.start)
}

/// The values of the cells that a read returned.
pub(super) fn seen(history: &History, net: &mut Net, op: usize, bytes: &Bytes) -> Vec<u64> {
    let Op { chunk, action: Action::Read { first, cells }, .. } = history.ops[op] else { return Vec::new() };
    let mut seen = Vec::new();
    if bytes.len() as u64 != u64::from(cells) * CELL {
        net.break_rule("bytes", format!("op {op} reads {} bytes instead of {cells} cells", bytes.len()));
        return seen;
    }
    for (cell, bytes) in (first..).zip(bytes.chunks(CELL as usize)) {
        let value = u64::from_le_bytes(*bytes.first_chunk().expect("a cell is longer"));
        let is_one = bytes.as_chunks::<8>().0.iter().all(|word| u64::from_le_bytes(*word) == value);
        if !is_one || (value > 0 && !was_written(history, value, (chunk, cell))) {
            net.break_rule(
                "bytes",
                format!("op {op} reads {value} in cell {cell}: it was never written there"),
            );
        }
        seen.push(value);
    }
    seen
}

fn was_written(history: &History, value: u64, (device, cell): (ChunkId, u32)) -> bool {
    let op = history.ops.get(value as usize - 1).filter(|op| op.chunk == device);
    let range = op.and_then(|op| match op.action {
        Action::Write { first, cells } => Some(first..first + cells),
        _ => None,
    });
    range.is_some_and(|range| range.contains(&cell))
}

/// By when a write that was given up has taken effect, if it ever does: a flush that came after it has ended.
fn decided_at(history: &History, tries: &BTreeMap<usize, Tries>, write: usize) -> Option<u64> {
    if history.ops[write].outcome != Outcome::Unknown {
        return None;
    }
    let (process, _, last) = tries.get(&write)?.taken_by_one()?;
    let flushes = history.ops.iter().enumerate();
    let flushes = flushes.filter(|(_, op)| is_flush(op) && op.outcome == Outcome::Done);
    let after = flushes.filter(|(number, _)| {
        let taken = tries.get(number).and_then(Tries::taken_by_one);
        taken.is_some_and(|(by, first, _)| by == process && first > last)
    });
    after.filter_map(|(_, flush)| flush.ended).min().map(|ended| ended + SLACK)
}

/// Whether some order explains what was seen, cell by cell. Returns how many cells could not be decided.
pub(super) fn judge(history: &History, tries: &BTreeMap<usize, Tries>, net: &mut Net) -> usize {
    let decided: Vec<Option<u64>> = (0..history.ops.len())
        .map(|op| if is_of_a_volume(&history.ops[op]) { decided_at(history, tries, op) } else { None })
        .collect();
    decided.iter().flatten().for_each(|_| net.count("a write that a flush decided"));
    let mut undecided = 0;
    let volumes = 0..net.scenario.fronts.len();
    let cells = volumes.flat_map(|volume| USED.into_iter().flatten().map(move |cell| (volume, cell as u32)));
    for (volume, cell) in cells {
        let of_cell = |(number, op): (usize, &Op)| Some((number, at_cell(op, (device(volume), cell))?));
        let mut ops: Vec<(usize, Op)> = history.ops.iter().enumerate().filter_map(of_cell).collect();
        let seen: BTreeSet<u64> = ops.iter().flat_map(|(_, op)| op.seen.clone()).collect();
        for (number, op) in &mut ops {
            let is_open = op.outcome == Outcome::Unknown && matches!(op.action, Action::Write { .. });
            // It took effect: by when?
            if is_open
                && seen.contains(&(*number as u64 + 1))
                && let Some(ended) = decided[*number]
            {
                (op.outcome, op.ended) = (Outcome::Done, Some(ended));
            }
        }
        let ops: Vec<(usize, &Op)> = ops.iter().map(|(number, op)| (*number, op)).collect();
        match check(&ops) {
            Verdict::Linearizable => {}
            Verdict::Unknown => undecided += 1,
            Verdict::Broken { stuck, .. } => {
                let shown = near(history.ops[stuck[0]].began, &ops);
                let what =
                    format!("no order explains cell {cell} of volume {volume} at ops {stuck:?}:{shown}");
                net.break_rule("linearizability", what);
                break;
            }
        }
    }
    undecided
}

/// The operations at about this time.
fn near(time: u64, ops: &[(usize, &Op)]) -> String {
    let is_near =
        |op: &Op| op.began <= time + 60 * SECOND && op.ended.is_none_or(|at| at + 60 * SECOND > time);
    let show = |(number, op): &(usize, &Op)| {
        let Op { action, began, ended, outcome, seen, .. } = op;
        let what = match action {
            Action::Read { .. } => "read",
            Action::Zero { .. } => "zero",
            _ => "write",
        };
        format!("\n  op {number} {what} {began}..{} {outcome:?} {seen:?}", ended.unwrap_or(0))
    };
    ops.iter().filter(|(_, op)| is_near(op)).map(show).collect()
}

fn is_of_a_volume(op: &Op) -> bool {
    op.chunk.object == DEVICES
}

fn is_flush(op: &Op) -> bool {
    is_of_a_volume(op) && matches!(op.action, Action::Read { cells: 0, .. })
}

/// What an operation does to one cell of a volume.
fn at_cell(op: &Op, (device, cell): (ChunkId, u32)) -> Option<Op> {
    if op.chunk != device {
        return None;
    }
    let (first, cells) = match op.action {
        Action::Read { first, cells } | Action::Write { first, cells } | Action::Zero { first, cells } => {
            (first, cells)
        }
        Action::Delete | Action::Look { .. } | Action::Clear { .. } => return None,
    };
    if !(first..first + cells).contains(&cell) {
        return None;
    }
    let action = match op.action {
        Action::Read { .. } => Action::Read { first: 0, cells: 1 },
        Action::Write { .. } => Action::Write { first: 0, cells: 1 },
        _ => Action::Zero { first: 0, cells: 1 },
    };
    let seen = op.seen.get((cell - first) as usize).copied().into_iter().collect();
    Some(Op { action, seen, ..op.clone() })
}
