//! What is in flight over all groups and sets of a server, and what may begin beside it: bounds memory, and the share
//! that catch-up takes from clients. Who begins something ends it.

use ebb_types::GroupId;
use std::collections::BTreeSet;

/// Maximum fetches in flight on a server, without and with client operations to yield to.
pub const FETCHES_MAX: usize = 8;
const FETCHES_MAX_BESIDE_CLIENTS: usize = 2;
const _: () = assert!(FETCHES_MAX_BESIDE_CLIENTS <= FETCHES_MAX);

/// Maximum bytes of strips in memory for rebuilds (R12).
const REBUILD_BYTES_MAX: usize = 16 << 20;

#[derive(Default)]
pub(crate) struct Budget {
    /// Client operations: while there are any, catch-up takes less.
    clients: usize,
    fetches: usize,
    rebuild_bytes: usize,
    /// Groups that would fetch more if allowed to, with their number of complete copies.
    waiting: BTreeSet<(usize, GroupId)>,
}

impl Budget {
    pub fn clients(&self) -> usize {
        self.clients
    }

    pub fn begin_client(&mut self) {
        self.clients += 1;
    }

    pub fn end_clients(&mut self, count: usize) {
        debug_assert!(self.clients >= count, "what ends was counted");
        self.clients -= count;
    }

    pub fn may_fetch(&self) -> bool {
        let max = if self.clients > 0 { FETCHES_MAX_BESIDE_CLIENTS } else { FETCHES_MAX };
        self.fetches < max
    }

    pub fn begin_fetch(&mut self) {
        self.fetches += 1;
    }

    pub fn end_fetches(&mut self, count: usize) {
        debug_assert!(self.fetches >= count, "each fetch counts");
        self.fetches -= count;
    }

    /// Whether a group waits that has fewer copies.
    pub fn others_first(&self, copies: usize) -> bool {
        self.waiting.first().is_some_and(|(fewer, _)| *fewer < copies)
    }

    pub fn wait_to_fetch(&mut self, copies: usize, group: GroupId) {
        self.waiting.insert((copies, group));
    }

    /// The group that may fetch now: the one with the fewest copies.
    pub fn take_next(&mut self) -> Option<GroupId> {
        let next = if self.may_fetch() { self.waiting.pop_first() } else { None };
        next.map(|(_, group)| group)
    }

    pub fn may_rebuild(&self, bytes: usize) -> bool {
        self.rebuild_bytes == 0 || self.rebuild_bytes + bytes <= REBUILD_BYTES_MAX
    }

    /// `fetches`: it counts as a fetch, too.
    pub fn begin_rebuild(&mut self, bytes: usize, fetches: bool) {
        debug_assert!(self.may_rebuild(bytes), "rebuilds keep to their memory");
        self.rebuild_bytes += bytes;
        self.fetches += usize::from(fetches);
    }

    pub fn end_rebuild(&mut self, bytes: usize, fetches: bool) {
        debug_assert!(self.rebuild_bytes >= bytes, "a rebuild gives back what it took");
        self.rebuild_bytes -= bytes;
        self.end_fetches(usize::from(fetches));
    }
}
