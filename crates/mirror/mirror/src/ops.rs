//! Operations in progress, and what they wait for.
//!
//! One that waits for its blocks, or for a mark, is in no list: it becomes ready when it has them. One that is *held*
//! keeps its blocks; one that is *stuck* has given them away, because what it waits for needs them.

use crate::locks::Locks;
use crate::op::{Op, Step};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut, Range};

#[derive(Default)]
pub(crate) struct Ops {
    all: BTreeMap<u64, Op>,
    next: u64,
    locks: Locks,
    /// Those whose blocks or marks have become free.
    ready: VecDeque<u64>,
    /// Those that wait for a disk, for the end of a change, or for room.
    held: Vec<u64>,
    /// Those that wait for room in a log, without their blocks.
    stuck: Vec<u64>,
}

impl Index<u64> for Ops {
    type Output = Op;

    fn index(&self, id: u64) -> &Op {
        self.get(id).expect("it is in progress")
    }
}

impl IndexMut<u64> for Ops {
    fn index_mut(&mut self, id: u64) -> &mut Op {
        self.get_mut(id).expect("it is in progress")
    }
}

impl Ops {
    /// Begins an operation: it runs as soon as it has its blocks.
    pub fn start(&mut self, op: Op) -> u64 {
        let id = self.next;
        self.next += 1;
        if op.blocks.is_empty() || self.locks.take(id, op.blocks.clone(), op.usage()) {
            self.ready.push_back(id);
        }
        self.all.insert(id, op);
        id
    }

    pub fn get(&self, id: u64) -> Option<&Op> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Op> {
        self.all.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Op)> {
        self.all.iter().map(|(id, op)| (*id, op))
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn take_ready(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    pub fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// These have their marks.
    pub fn make_ready(&mut self, ids: Vec<u64>) {
        self.ready.extend(ids);
    }

    /// Ends an operation, and gives back its blocks.
    pub fn end(&mut self, id: u64) -> Op {
        let op = self.all.remove(&id).expect("it is in progress");
        debug_assert_eq!(op.left, [0; 2], "nothing is acknowledged before its last part has ended");
        if !op.blocks.is_empty() {
            self.release(id, &op.blocks);
        }
        op
    }

    /// Gives up an operation that waits for its blocks. Returns whether it did.
    pub fn cancel(&mut self, id: u64) -> bool {
        if self[id].step != Step::Waiting || self.ready.contains(&id) {
            return false;
        }
        let mut ready = Vec::new();
        self.locks.cancel(id, &mut ready);
        self.ready.extend(ready);
        self.all.remove(&id);
        true
    }

    /// Ends all of them.
    pub fn abandon(&mut self) -> Vec<Op> {
        let next = self.next;
        std::mem::replace(self, Ops { next, ..Ops::default() }).all.into_values().collect()
    }

    fn release(&mut self, id: u64, blocks: &Range<u64>) {
        let mut ready = Vec::new();
        self.locks.release(id, blocks, &mut ready);
        self.ready.extend(ready);
    }

    /// Puts an operation aside until something changes: a disk returns, a change ends, a log has room.
    pub fn hold(&mut self, id: u64) {
        self.held.push(id);
    }

    /// As [`Ops::hold`], without the operation's blocks: what it waits for needs them.
    pub fn give_way(&mut self, id: u64) {
        let op = &mut self[id];
        debug_assert_eq!(op.left, [0; 2], "what gives its blocks away writes none of them");
        op.step = Step::Waiting;
        let blocks = op.blocks.clone();
        self.release(id, &blocks);
        self.stuck.push(id);
    }

    /// Whether any was put aside.
    pub fn any_aside(&self) -> bool {
        !self.held.is_empty() || !self.stuck.is_empty()
    }

    pub fn release_held(&mut self) {
        self.stuck.sort_unstable();
        self.ready.extend(self.held.drain(..));
        for id in std::mem::take(&mut self.stuck) {
            let (blocks, usage) = (self[id].blocks.clone(), self[id].usage());
            if self.locks.take(id, blocks, usage) {
                self.ready.push_back(id);
            }
        }
    }

    /// Whether another one waits for its blocks.
    pub fn is_waited_for(&self, id: u64) -> bool {
        self.locks.waiting(&self[id].blocks).next().is_some()
    }

    /// Whether an earlier write of a client gave way that writes some of the same blocks. Its connection may have gone:
    /// what is newer must come after it all the same.
    pub fn overtakes(&self, id: u64) -> bool {
        let op = &self[id];
        op.is_clients_write()
            && self.stuck.iter().any(|earlier| {
                let other = &self[*earlier];
                let overlaps = other.blocks.start < op.blocks.end && op.blocks.start < other.blocks.end;
                *earlier < id && overlaps && other.is_clients_write()
            })
    }

    /// Whether an earlier write of a client, which gave way, waits for some of these blocks again.
    pub fn has_passed(&self, id: u64) -> bool {
        let op = &self[id];
        op.is_clients_write()
            && self.locks.waiting(&op.blocks).any(|other| other < id && self[other].is_clients_write())
    }

    /// Gives back an operation's blocks, and takes them after those that wait for them.
    pub fn queue_again(&mut self, id: u64) {
        let (blocks, usage) = (self[id].blocks.clone(), self[id].usage());
        self.release(id, &blocks);
        if self.locks.take(id, blocks, usage) {
            self.ready.push_back(id);
        }
    }
}
