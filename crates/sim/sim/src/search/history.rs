//! Clients' operations with their times and answers: the input of the linearizability check.

use ebb_types::ChunkId;
use std::collections::BTreeMap;

/// An operation on cells `first..first + cells` of a chunk. A write puts its own number, plus one, into every cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Read {
        first: u32,
        cells: u32,
    },
    Write {
        first: u32,
        cells: u32,
    },
    Zero {
        first: u32,
        cells: u32,
    },
    Delete,
    /// Asks which blocks have data; `cells` are those of whole blocks.
    Look {
        first: u32,
        cells: u32,
    },
    /// Zeroes the blocks that were not written since this look.
    Clear {
        first: u32,
        cells: u32,
        look: usize,
    },
}

impl Action {
    /// First cell and number of cells; none for a deletion.
    pub fn range(&self) -> (u32, u32) {
        match *self {
            Action::Read { first, cells }
            | Action::Write { first, cells }
            | Action::Zero { first, cells }
            | Action::Look { first, cells }
            | Action::Clear { first, cells, .. } => (first, cells),
            Action::Delete => (0, 0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Done,
    /// Answered: not carried out.
    Refused,
    /// Given up: it takes effect at most once, at any time after it began.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Op {
    pub chunk: ChunkId,
    pub action: Action,
    pub began: u64,
    pub ended: Option<u64>,
    pub outcome: Outcome,
    /// The values that a read saw; of a look, one or zero for each block.
    pub seen: Vec<u64>,
    /// Number of the claim under which it was sent; zero: none.
    pub claim: u64,
    /// When a newer claim on its object was acknowledged: from then on it takes no effect (R16).
    pub fenced: u64,
}

impl Op {
    fn writes(&self) -> bool {
        matches!(self.action, Action::Write { .. } | Action::Zero { .. } | Action::Clear { .. })
    }

    /// The number of the claim that it notes, if it does.
    fn raises(&self) -> Option<u64> {
        (self.chunk.is_of_claim() && self.writes()).then_some(self.claim)
    }
}

#[derive(Default)]
pub struct History {
    pub ops: Vec<Op>,
}

impl History {
    pub fn begin(&mut self, chunk: ChunkId, action: Action, now: u64) -> usize {
        self.begin_under(0, chunk, action, now)
    }

    /// Under the claim of this number on the chunk's object.
    pub fn begin_under(&mut self, claim: u64, chunk: ChunkId, action: Action, now: u64) -> usize {
        let newer = |op: &&Op| {
            let raised = op.raises().filter(|_| op.outcome == Outcome::Done);
            op.chunk.object == chunk.object && raised.is_some_and(|other| other > claim)
        };
        let ops = if claim > 0 { &self.ops[..] } else { &[] };
        let fenced = ops.iter().filter(newer).filter_map(|op| op.ended).min();
        self.ops.push(Op {
            chunk,
            action,
            began: now,
            ended: None,
            outcome: Outcome::Unknown,
            seen: Vec::new(),
            claim,
            fenced: fenced.unwrap_or(u64::MAX),
        });
        self.ops.len() - 1
    }

    pub fn end(&mut self, op: usize, now: u64, outcome: Outcome, seen: Vec<u64>) {
        let op = &mut self.ops[op];
        op.ended = Some(now);
        op.outcome = outcome;
        op.seen = seen;
        if let (Some(claim), Outcome::Done) = (op.raises(), outcome) {
            let object = op.chunk.object;
            let older = self
                .ops
                .iter_mut()
                .filter(|op| op.chunk.object == object && op.claim > 0 && op.claim < claim);
            older.for_each(|op| op.fenced = op.fenced.min(now));
        }
    }

    /// If the operation was not carried out until now, it never is.
    pub fn fence(&mut self, op: usize, now: u64) {
        self.ops[op].fenced = self.ops[op].fenced.min(now);
    }

    /// The operations on each chunk, with their numbers.
    pub fn by_chunk(&self) -> BTreeMap<ChunkId, Vec<(usize, &Op)>> {
        let mut chunks: BTreeMap<ChunkId, Vec<(usize, &Op)>> = BTreeMap::new();
        for (n, op) in self.ops.iter().enumerate() {
            chunks.entry(op.chunk).or_default().push((n, op));
        }
        chunks
    }

    /// Chunks whose deletion was acknowledged, and that no write may have followed. A write that its client gave up may
    /// take effect after the deletion (seed 4044986).
    pub fn deleted(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let deletions =
            self.ops.iter().filter(|op| op.action == Action::Delete && op.outcome == Outcome::Done);
        let last = deletions.filter(|deletion| {
            let may_follow = |op: &Op| {
                let ended = op.ended.filter(|_| op.outcome != Outcome::Unknown);
                op.chunk == deletion.chunk && op.writes() && ended.is_none_or(|at| at > deletion.began)
            };
            !self.ops.iter().any(may_follow)
        });
        last.map(|op| op.chunk)
    }

    /// Whether any client requested the chunk's deletion.
    pub fn was_to_be_deleted(&self, chunk: ChunkId) -> bool {
        self.ops.iter().any(|op| op.action == Action::Delete && op.chunk == chunk)
    }

    /// Whether anything that this read asks for may have been zeroed since it was last written as a whole.
    pub fn may_be_zeroed(&self, read: usize) -> bool {
        let Op { chunk, action: Action::Read { first, cells }, began, .. } = self.ops[read] else {
            return false;
        };
        let write = Action::Write { first, cells };
        let is_before =
            |op: &&Op| op.outcome == Outcome::Done && op.ended.is_some_and(|ended| ended <= began);
        let written = self.ops.iter().filter(|op| (op.chunk, op.action) == (chunk, write)).filter(is_before);
        let since = written.map(|op| op.began).max().unwrap_or(0);
        self.ops.iter().any(|op| {
            let (start, count) = op.action.range();
            let ended = op.ended.filter(|_| op.outcome != Outcome::Unknown);
            op.chunk == chunk
                && matches!(op.action, Action::Zero { .. } | Action::Clear { .. })
                && start < first + cells
                && first < start + count
                && op.outcome != Outcome::Refused
                && ended.is_none_or(|at| at >= since)
        })
    }

    /// Whether the write identified by a cell's value was acknowledged.
    pub fn is_acknowledged(&self, value: u64) -> bool {
        value > 0 && self.ops.get(value as usize - 1).is_some_and(|op| op.outcome == Outcome::Done)
    }
}
