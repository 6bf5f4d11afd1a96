//! Which operations run now, and which wait.
//!
//! Operations that touch the same blocks, at least one of them writing, run one after another in order of arrival; all
//! others run concurrently. So a read never sees a write that is not on all targets, and a write that needs the old
//! edges of its first and last block still finds them.

use super::op::{Op, Plan};
use crate::common::context::Waiting;
use crate::replicated::settlement::{Rewrite, Unsettled};
use ebb_types::{ChunkId, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// Maximum blocks of tails being rewritten at a time: a tail may exceed memory.
const REWRITE_BLOCKS: u32 = 256;

#[derive(Default)]
pub(crate) struct Ops {
    next: u64,
    /// Admitted operations. Their block ranges do not conflict.
    running: BTreeMap<u64, Op>,
    /// Operations that wait for a range, in order of arrival.
    blocked: VecDeque<Op>,
    /// Blocks from tails that must be rewritten before any other operation touches them.
    unsettled: Unsettled,
}

impl Ops {
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.blocked.is_empty() && self.unsettled.is_empty()
    }

    pub fn any_running(&self) -> bool {
        !self.running.is_empty()
    }

    pub fn get(&self, id: u64) -> Option<&Op> {
        self.running.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Op> {
        self.running.get_mut(&id)
    }

    fn all(&self) -> impl Iterator<Item = &Op> {
        self.running.values().chain(&self.blocked)
    }

    pub fn clients(&self) -> usize {
        self.all().filter(|op| op.is_client()).count()
    }

    /// Whether anything of an older epoch's tails is left to settle.
    pub fn any_unsettled(&self) -> bool {
        !self.unsettled.is_empty() || self.all().any(Op::settles)
    }

    /// The client's operation that carries out this request.
    pub fn of_request(&mut self, request: RequestId) -> Option<&mut Op> {
        let mut all = self.running.values_mut().chain(&mut self.blocked);
        all.find(|op| op.is_client() && op.request() == Some(request))
    }

    /// The operation that reads the newest claim from this chunk.
    pub fn of_claim(&mut self, chunk: ChunkId) -> Option<&mut Op> {
        let mut all = self.running.values_mut().chain(&mut self.blocked);
        all.find(|op| op.is_claim() && op.chunk() == chunk)
    }

    /// The operations that wait for blocks.
    pub fn fetching(&self) -> Vec<u64> {
        self.running.values().filter(|op| op.is_fetching()).map(Op::id).collect()
    }

    /// Returns the operation's number if it runs now.
    pub fn admit(&mut self, plan: Plan) -> Option<u64> {
        self.next += 1;
        let op = Op::new(self.next, plan);
        match self.conflicts(&op) {
            true if op.settles() => self.blocked.push_front(op),
            true => self.blocked.push_back(op),
            false => {
                self.running.insert(self.next, op);
                return Some(self.next);
            }
        }
        None
    }

    /// Releases an operation's blocks. Returns the operation, and the numbers of those that waited for them and run
    /// now.
    pub fn end(&mut self, id: u64) -> (Option<Op>, Vec<u64>) {
        let ended = self.running.remove(&id);
        let mut admitted = Vec::new();
        for op in std::mem::take(&mut self.blocked) {
            if self.conflicts(&op) {
                self.blocked.push_back(op);
            } else {
                admitted.push(op.id());
                self.running.insert(op.id(), op);
            }
        }
        let is_idle = self.running.is_empty() && self.unsettled.is_empty();
        debug_assert!(!is_idle || self.blocked.is_empty(), "something is in the way of what waits");
        (ended, admitted)
    }

    /// These blocks are to be rewritten before anything else touches them.
    pub fn settle(&mut self, unsettled: Unsettled) {
        debug_assert!(self.unsettled.is_empty(), "tails are settled once");
        self.unsettled = unsettled;
    }

    pub fn has_rewrites(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// The next rewrite, if one may start now.
    pub fn next_rewrite(&mut self) -> Option<Rewrite> {
        let under_way = self.all().filter(|op| op.settles());
        // A deletion has no blocks; it counts as one.
        let blocks: u32 = under_way.map(|op| if op.blocks().1 == u32::MAX { 1 } else { op.blocks().1 }).sum();
        if blocks < REWRITE_BLOCKS { self.unsettled.pop() } else { None }
    }

    /// Whether a rewrite of any of these blocks is pending or in flight.
    pub fn is_settling(&self, chunk: ChunkId, blocks: (u32, u32)) -> bool {
        let under_way = self.all().any(|op| op.is_rewrite() && op.touches(chunk, blocks));
        under_way || self.unsettled.touches(chunk, blocks)
    }

    /// The unanswered client requests, in order of arrival.
    pub fn into_requests(self) -> impl Iterator<Item = Waiting> {
        self.running.into_values().chain(self.blocked).flat_map(Op::into_requests)
    }

    /// No operation that could order a record overtakes a note: a server that has any record of this epoch has all its
    /// notes.
    fn conflicts(&self, op: &Op) -> bool {
        let waits_for = |other: &Op| match (other.is_note(), op.is_note()) {
            (_, true) => false,
            (true, false) => !op.is_read(),
            _ => (other.writes() || op.writes()) && other.touches(op.chunk(), op.blocks()),
        };
        let unsettled = !op.settles() && self.unsettled.touches(op.chunk(), op.blocks());
        // A settling operation never waits for an operation that waits for it.
        let waiting = self.blocked.iter().filter(|other| other.settles() || !op.settles());
        unsettled || self.running.values().chain(waiting).any(waits_for)
    }
}
