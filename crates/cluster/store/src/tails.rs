//! What a restart must find: the records that are not known to be on all targets (R4).
//!
//! Every record of the protocol carries its group's commit point: the version up to which everything was known to be on
//! all targets. Its head on disk has it too, so recovery knows as much as the store did.
//!
//! Invariant: from the time a record is durable here until it is known to be on all targets, or until its role of the
//! group is dropped, it is in a segment: in its own, or, once that one is retired, as a bare head in a newer one. What
//! was written since, and how much, does not matter; and no segment is kept for it, so a full store can always retire
//! segments.

use crate::layout::{Head, HeadKind};
use crate::overlay::Position;
use ebb_types::{ChunkId, GroupId, Kind, RecoveredTail, RequestId, Role, Run, TailRun, Version};
use std::collections::{BTreeMap, VecDeque};

/// Identifies a record within a group: pieces of one large write share a version.
type Place = (Version, Role, ChunkId, u32, u32);

/// A record that may be on only some copies.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// Where it is in the segments.
    at: Position,
    kind: Kind,
    request: Option<RequestId>,
}

#[derive(Default)]
struct Tail {
    committed: Version,
    open: BTreeMap<Place, Open>,
    /// The last records that have a request and are on all targets.
    done: VecDeque<TailRun>,
}

/// The open records of all groups.
#[derive(Default)]
pub struct Tails {
    groups: BTreeMap<GroupId, Tail>,
    /// Number of records on all targets to keep per group.
    pub keep_done: usize,
}

fn tail_run(&(version, _, chunk, first, count): &Place, open: &Open) -> TailRun {
    TailRun { run: Run { chunk, first, count, version, kind: open.kind }, request: open.request }
}

/// What a record sets; `None` if it is not a record of the protocol.
fn kind_of(head: &Head) -> Option<Kind> {
    match head.kind {
        _ if head.moved => None,
        HeadKind::Data | HeadKind::InFile => Some(Kind::Data),
        HeadKind::Zero => Some(Kind::Zero),
        HeadKind::Delete => Some(Kind::Delete),
        HeadKind::Note => Some(Kind::Note),
        // Data or zeroes: the tail does not care.
        HeadKind::Open => Some(if head.count > 0 { Kind::Data } else { Kind::Delete }),
        HeadKind::DropFiles | HeadKind::Drop | HeadKind::Settled => None,
    }
}

impl Tails {
    /// Adds a record that is durable at `at`. `changed` is called for each position that gains (true) or loses an open
    /// record.
    pub fn admit(&mut self, head: &Head, at: Position, changed: &mut impl FnMut(Position, bool)) {
        let Some(kind) = kind_of(head) else { return };
        let tail = self.groups.entry(head.group).or_default();
        tail.commit(head.committed, self.keep_done, changed);
        if head.version <= tail.committed {
            return;
        }
        let place = (head.version, head.role, head.chunk, head.first, head.count);
        changed(at, true);
        // A record that came twice, or whose segment is retired, counts at its last position.
        let old = tail.open.insert(place, Open { at, kind, request: head.request });
        if let Some(old) = old {
            changed(old.at, false);
        }
    }

    /// Up to which version the group's records are known to be on all targets. A repair writes it down again: the
    /// segment that says so may be retired first, and then a restart would find the repaired record open.
    pub fn committed(&self, group: GroupId) -> Version {
        self.groups.get(&group).map_or(Version::ZERO, |tail| tail.committed)
    }

    /// Removes everything of the role and group before `before`, which was dropped.
    pub fn void(
        &mut self,
        role: Role,
        group: GroupId,
        before: Position,
        changed: &mut impl FnMut(Position, bool),
    ) {
        let Some(tail) = self.groups.get_mut(&group) else { return };
        tail.open
            .extract_if(.., |place, open| place.1 == role && open.at < before)
            .for_each(|(_, open)| changed(open.at, false));
    }

    /// The open records of a segment.
    pub fn of_segment(&self, number: u32) -> impl Iterator<Item = (Role, GroupId, TailRun)> + '_ {
        let of_group = move |(group, tail): (&GroupId, &'_ Tail)| {
            let here = tail.open.iter().filter(|(_, open)| open.at.segment == number);
            here.map(|(place, open)| (place.1, *group, tail_run(place, open))).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(of_group)
    }

    /// In which role the groups have open records: all that is left of a role may be notes, or what a later deletion
    /// covers.
    pub fn roles(&self) -> impl Iterator<Item = (GroupId, Role)> + '_ {
        self.groups.iter().flat_map(|(group, tail)| tail.open.keys().map(|place| (*group, place.1)))
    }

    /// The tails for the protocol core at start.
    pub fn recovered(&mut self) -> BTreeMap<GroupId, RecoveredTail> {
        let of_group = |(group, tail): (&GroupId, &mut Tail)| {
            let open = tail.open.iter().map(|(place, open)| tail_run(place, open)).collect();
            let done = std::mem::take(&mut tail.done).into();
            (*group, RecoveredTail { committed: tail.committed, open, done })
        };
        self.keep_done = 0;
        self.groups.iter_mut().map(of_group).collect()
    }
}

impl Tail {
    /// As the protocol core does with its tails: records of this epoch are done, older ones were rewritten.
    fn commit(&mut self, committed: Version, keep_done: usize, changed: &mut impl FnMut(Position, bool)) {
        if committed <= self.committed {
            return;
        }
        self.committed = committed;
        while let Some(oldest) = self.open.first_entry().filter(|e| e.key().0 <= committed) {
            let (place, open) = oldest.remove_entry();
            changed(open.at, false);
            if open.request.is_some() && place.0.epoch == committed.epoch && keep_done > 0 {
                self.done.push_back(tail_run(&place, &open));
                if self.done.len() > keep_done {
                    self.done.pop_front();
                }
            }
        }
    }
}
