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

#[derive(Default)]
pub(crate) struct Names {
    /// Groups whose directory of chunk files durably exists.
    pub groups: BTreeSet<GroupId>,
    /// Groups with chunk files whose removal is not durable yet: their tombstones are still needed.
    pub removed_in: BTreeSet<GroupId>,
    /// Chunk files that are still to be removed: a shortage prevented it.
    pub unneeded: BTreeSet<FileKey>,
    /// A segment was removed, and that is not durable yet.
    pub segment_removed: bool,
    /// Replicas whose removal a crash interrupted. Recovery removed their files, and that is to be recorded before
    /// anything else is written.
    pub half_dropped: BTreeSet<GroupId>,
}

impl Names {
    /// Makes the removal of a group's chunk files durable.
    pub fn sync_group(&mut self, disk: &dyn Disk, group: GroupId) -> io::Result<()> {
        if self.removed_in.contains(&group) {
            disk.sync_dir(&group_path(group))?;
            self.removed_in.remove(&group);
        }
        Ok(())
    }

    /// Makes the removal of a segment durable.
    pub fn sync_segments(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if self.segment_removed {
            disk.sync_dir("segments")?;
            self.segment_removed = false;
        }
        Ok(())
    }
}
