//! The names of a store's files, and which of them are durable: those of new directories, and that something is gone.

use crate::disk::Disk;
use crate::index::{FileId, FileKey};
use ebb_types::GroupId;
use std::collections::BTreeSet;
use std::io;

pub(crate) fn segment_path(number: u32) -> String {
    format!("segments/{number:08x}.seg")
}

pub(crate) fn group_path(group: GroupId) -> String {
    format!("chunks/{:08x}", group.0)
}

pub(crate) fn chunk_path((group, chunk): FileKey) -> String {
    format!("chunks/{:08x}/{:016x}.{:08x}", group.0, chunk.object.0, chunk.index)
}

pub(crate) fn path_of(id: FileId) -> String {
    match id {
        FileId::Segment(number) => segment_path(number),
        FileId::Chunk(key) => chunk_path(key),
    }
}

pub(crate) struct Names {
    /// Groups whose directory of chunk files durably exists.
    groups: BTreeSet<GroupId>,
    /// Groups with chunk files whose removal is not durable yet: their tombstones are still needed.
    removed_in: BTreeSet<GroupId>,
    /// Chunk files that are still to be removed: a shortage prevented it.
    unneeded: BTreeSet<FileKey>,
    /// A segment was removed, and that is not durable yet.
    segment_removed: bool,
    /// Replicas whose removal a crash interrupted. Recovery removed their files, and that is to be recorded before
    /// anything else is written.
    half_dropped: BTreeSet<GroupId>,
}

impl Names {
    pub fn new(groups: BTreeSet<GroupId>, half_dropped: BTreeSet<GroupId>) -> Names {
        let (removed_in, unneeded) = (BTreeSet::new(), BTreeSet::new());
        Names { groups, removed_in, unneeded, segment_removed: false, half_dropped }
    }

    pub fn has_group(&self, group: GroupId) -> bool {
        self.groups.contains(&group)
    }

    pub fn add_group(&mut self, group: GroupId) {
        self.groups.insert(group);
    }

    /// A chunk file of the group is about to be removed.
    pub fn remove_in(&mut self, group: GroupId) {
        self.removed_in.insert(group);
    }

    /// A group with chunk files whose removal is not durable yet.
    pub fn removed_in(&self) -> Option<GroupId> {
        self.removed_in.first().copied()
    }

    /// Makes the removal of a group's chunk files durable.
    pub fn sync_group(&mut self, disk: &dyn Disk, group: GroupId) -> io::Result<()> {
        if self.removed_in.contains(&group) {
            disk.sync_dir(&group_path(group))?;
            self.removed_in.remove(&group);
        }
        Ok(())
    }

    /// The file could not be removed.
    pub fn owe_removal(&mut self, key: FileKey) {
        self.unneeded.insert(key);
    }

    /// A file that is still to be removed.
    pub fn owed_removal(&self) -> Option<FileKey> {
        self.unneeded.first().copied()
    }

    pub fn removed(&mut self, key: FileKey) {
        self.unneeded.remove(&key);
    }

    pub fn removed_segment(&mut self) {
        self.segment_removed = true;
    }

    /// Makes the removal of a segment durable.
    pub fn sync_segments(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if self.segment_removed {
            disk.sync_dir("segments")?;
            self.segment_removed = false;
        }
        Ok(())
    }

    /// A replica whose files are gone, and whose drop is not recorded.
    pub fn half_dropped(&self) -> Option<GroupId> {
        self.half_dropped.first().copied()
    }

    /// Its drop is recorded.
    pub fn dropped(&mut self, group: GroupId) {
        self.half_dropped.remove(&group);
    }
}
