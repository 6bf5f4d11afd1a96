//! One operation of a primary, from admission to its end.
//!
//! | from | step | to |
//! |---|---|---|
//! | admitted, blocks arrived, repaired | `Fetching`: blocks that it needs are not here yet | `Reading` |
//! | nothing is missing | `Reading` its old blocks | `Repairing`, `Comparing`, `Replicating`, end |
//! | a block is damaged | `Repairing` | `Reading`, `Comparing` (a scrub can read nothing), end |
//! | a scrub's check has read | `Comparing` | `Reading` (newer blocks came, or cannot, or it became a heal), end |
//! | records are ordered | `Replicating` | end |
//!
//! Invariant: an ordered operation never steps back. It ends in this epoch, or is carried over to the next as a whole.

use crate::common::blocks::{BLOCK, without};
use crate::common::context::{Context, Waiting};
use bytes::Bytes;
use ebb_types::{ChunkId, ChunkOp, Kind, Record, RequestId};
use std::collections::BTreeMap;

/// What a store read returned, by first block.
pub(crate) type Got = BTreeMap<u32, (Vec<Record>, Bytes)>;

pub(crate) struct Op {
    id: u64,
    chunk: ChunkId,
    /// First block and number of blocks it touches. The whole chunk: `0..u32::MAX`.
    blocks: (u32, u32),
    work: Work,
    step: Step,
    /// Everyone to reply to: the sender, plus any client retrying the same request id.
    askers: Vec<Waiting>,
    request: Option<RequestId>,
    /// Blocks that no copy has any more (first, count): they are rewritten as lost, and left alone by a scrub.
    lost: Vec<(u32, u32)>,
}

pub(crate) enum Work {
    Client {
        op: ChunkOp,
        payload: Bytes,
    },
    /// Order the present content again: a tail has these blocks.
    Rewrite {
        kind: Kind,
    },
    /// Note that the request is in these blocks, before any of them is rewritten.
    Note,
    /// Read the newest claim on the chunk's object, for the requests that ask.
    Claim,
    /// Compare the copies of these blocks while none of them is written.
    Check,
    /// Order the present content again: some copy differs.
    Heal {
        kind: Kind,
    },
}

enum Step {
    Fetching,
    /// `left` reads outstanding.
    Reading {
        left: usize,
        got: Got,
    },
    Repairing,
    Comparing,
    /// `left` records are not yet on all targets.
    Replicating {
        left: usize,
    },
}

/// What the arrival of a read means for its operation.
pub(crate) enum Arrived {
    /// It belongs to an earlier round: a repair or a fetch intervened.
    Late,
    Some,
    All(Got),
}

/// What an operation is to do, before it has a number.
pub(crate) struct Plan {
    pub chunk: ChunkId,
    pub blocks: (u32, u32),
    pub work: Work,
    pub askers: Vec<Waiting>,
    pub request: Option<RequestId>,
}

impl Plan {
    /// Work of the primary itself.
    pub fn own(chunk: ChunkId, blocks: (u32, u32), work: Work) -> Plan {
        Plan { chunk, blocks, work, askers: Vec::new(), request: None }
    }
}

impl Op {
    pub fn new(id: u64, plan: Plan) -> Op {
        let Plan { chunk, blocks, work, askers, request } = plan;
        let (step, lost) = (Step::Fetching, Vec::new());
        Op { id, chunk, blocks, work, step, askers, request, lost }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn chunk(&self) -> ChunkId {
        self.chunk
    }

    pub fn blocks(&self) -> (u32, u32) {
        self.blocks
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    pub fn request(&self) -> Option<RequestId> {
        self.request
    }

    pub fn is_client(&self) -> bool {
        matches!(self.work, Work::Client { .. })
    }

    /// Whether it is a client's data, which a full server may refuse.
    pub fn takes_space(&self) -> bool {
        matches!(&self.work, Work::Client { op, .. } if op.takes_space())
    }

    pub fn is_read(&self) -> bool {
        matches!(&self.work, Work::Client { op, .. } if op.is_read())
    }

    pub fn writes(&self) -> bool {
        !self.is_read() && !matches!(self.work, Work::Check | Work::Note | Work::Claim)
    }

    pub fn is_note(&self) -> bool {
        matches!(self.work, Work::Note)
    }

    pub fn is_claim(&self) -> bool {
        matches!(self.work, Work::Claim)
    }

    pub fn is_rewrite(&self) -> bool {
        matches!(self.work, Work::Rewrite { .. })
    }

    pub fn is_check(&self) -> bool {
        matches!(self.work, Work::Check)
    }

    /// Whether it settles what an older epoch left open: it must be ordered, and is retried until it is.
    pub fn settles(&self) -> bool {
        self.is_rewrite() || self.is_note()
    }

    pub fn is_scrub(&self) -> bool {
        matches!(self.work, Work::Check | Work::Heal { .. })
    }

    /// Whether the operation touches any of these blocks. The whole chunk: `0..u32::MAX`.
    pub fn touches(&self, chunk: ChunkId, (first, count): (u32, u32)) -> bool {
        self.chunk == chunk
            && self.blocks.0 < first.saturating_add(count)
            && first < self.blocks.0.saturating_add(self.blocks.1)
    }

    /// Runs of blocks (first, count) whose present content it needs: all its blocks, or the partly written ones at its
    /// ends.
    pub fn needs(&self) -> Vec<(u32, u32)> {
        let (first, count) = self.blocks;
        match &self.work {
            Work::Note
            | Work::Rewrite { kind: Kind::Delete }
            | Work::Heal { kind: Kind::Delete }
            | Work::Client { op: ChunkOp::Delete { .. }, .. } => Vec::new(),
            Work::Rewrite { .. } | Work::Heal { .. } | Work::Check => {
                let all = vec![(first, first + count)];
                let left =
                    self.lost.iter().fold(all, |left, (first, count)| without(left, *first, first + count));
                left.into_iter().map(|(first, end)| (first, end - first)).collect()
            }
            Work::Claim => vec![self.blocks],
            // Which blocks are old enough, their versions say.
            Work::Client { op: ChunkOp::Zero { up_to: Some(_), .. }, .. } => vec![self.blocks],
            Work::Client { op, .. } if op.is_read() => vec![self.blocks],
            Work::Client { op, .. } => {
                let (offset, len) = op.range();
                let end = offset + len;
                let mut edges = Vec::new();
                if !offset.is_multiple_of(BLOCK) {
                    edges.push((offset / BLOCK, 1));
                }
                if !end.is_multiple_of(BLOCK) && edges.last() != Some(&(end / BLOCK, 1)) {
                    edges.push((end / BLOCK, 1));
                }
                edges
            }
        }
    }

    pub fn is_fetching(&self) -> bool {
        matches!(self.step, Step::Fetching)
    }

    /// Waits for blocks, or for another try.
    pub fn become_fetching(&mut self, cx: &mut Context) {
        self.leave(cx);
        self.step = Step::Fetching;
    }

    /// Returns the runs of blocks to read.
    pub fn become_reading(&mut self, cx: &mut Context) -> Vec<(u32, u32)> {
        self.leave(cx);
        let needs = self.needs();
        self.step = Step::Reading { left: needs.len(), got: Got::new() };
        needs
    }

    pub fn become_repairing(&mut self, cx: &mut Context) {
        self.leave(cx);
        self.step = Step::Repairing;
    }

    pub fn become_comparing(&mut self, cx: &mut Context) {
        self.leave(cx);
        self.step = Step::Comparing;
    }

    pub fn become_replicating(&mut self, cx: &mut Context, records: usize) {
        debug_assert!(records > 0, "what orders nothing is done");
        self.leave(cx);
        self.step = Step::Replicating { left: records };
    }

    /// A check turns into the rewrite of those of its blocks in which copies differ.
    pub fn become_heal(&mut self, cx: &mut Context, blocks: (u32, u32)) {
        if !self.is_check() {
            cx.bug("an operation that checks nothing became a heal");
        }
        let end = |(first, count): (u32, u32)| first + count;
        if blocks.0 < self.blocks.0 || end(blocks) > end(self.blocks) {
            return cx.bug("a heal would order blocks that it does not hold");
        }
        (self.blocks, self.work) = (blocks, Work::Heal { kind: Kind::Data });
    }

    fn leave(&self, cx: &mut Context) {
        if let Step::Replicating { .. } = self.step {
            cx.bug("an ordered operation stepped back");
        }
    }

    /// Whether it waits for the read of the blocks from `first` on.
    pub fn awaits_read(&self, first: u32) -> bool {
        matches!(&self.step, Step::Reading { got, .. } if !got.contains_key(&first))
    }

    /// Blocks from `first` on were read.
    pub fn take_read(&mut self, first: u32, records: Vec<Record>, payload: Bytes) -> Arrived {
        let Step::Reading { left, got } = &mut self.step else { return Arrived::Late };
        got.insert(first, (records, payload));
        *left -= 1;
        if *left > 0 { Arrived::Some } else { Arrived::All(std::mem::take(got)) }
    }

    /// One of its records is on all targets. Returns whether all are.
    pub fn take_committed(&mut self, cx: &mut Context) -> bool {
        match &mut self.step {
            Step::Replicating { left } if *left > 0 => {
                *left -= 1;
                *left == 0
            }
            _ => {
                cx.bug("a record of an operation that ordered none");
                false
            }
        }
    }

    /// No copy has these blocks.
    pub fn give_up_blocks(&mut self, parts: &[(u32, u32)]) {
        self.lost.extend(parts);
    }

    /// The blocks that no copy has.
    pub fn lost(&self) -> &[(u32, u32)] {
        &self.lost
    }

    pub fn join(&mut self, waiting: Waiting) {
        self.askers.push(waiting);
    }

    pub fn take_askers(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.askers)
    }

    /// Of the askers whose request was ordered before: the oldest version from which on it may have been.
    pub fn ordered_since(&self) -> Option<ebb_types::Version> {
        self.askers.iter().filter(|waiting| waiting.ordered).map(|waiting| waiting.since).min()
    }

    /// The requests to carry over to the next epoch.
    pub fn into_requests(self) -> impl Iterator<Item = Waiting> {
        let ordered = matches!(self.step, Step::Replicating { .. });
        self.askers.into_iter().map(move |w| Waiting { ordered: ordered || w.ordered, ..w })
    }
}
