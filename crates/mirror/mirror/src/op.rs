//! Operations in progress: clients' requests, and the mirror's own work on blocks.

use crate::BLOCK_BYTES;
use crate::api::Side;
use crate::locks::Use;
use bytes::Bytes;
use std::ops::Range;

/// What an operation does with its blocks.
#[derive(Debug)]
pub(crate) enum Work {
    /// `side`: the disk that serves it; `other`: the first one failed.
    Read {
        side: Side,
        other: bool,
    },
    Write {
        payload: Bytes,
        fua: bool,
    },
    Zero {
        may_trim: bool,
        fua: bool,
    },
    Flush,
    Status,
    /// The log's content goes to its own place on this disk.
    Replay {
        side: Side,
        slot: u64,
    },
    /// What was postponed is written to this disk.
    Return {
        side: Side,
    },
    /// What one disk has of the blocks is written to the other.
    Copy {
        from: Side,
    },
    /// What both disks have of the blocks is compared; `first`: what this one has, once it is read.
    Compare {
        first: Option<Bytes>,
    },
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Waits for its blocks, for room, or for a mark.
    Waiting,
    Reading,
    Writing,
    Syncing,
    /// Its log entries are being voided.
    Voiding,
}

#[derive(Debug)]
pub(crate) struct Op {
    /// The client's name for it; `None`: the mirror's own.
    pub client: Option<u64>,
    pub work: Work,
    pub blocks: Range<u64>,
    pub step: Step,
    /// Parts of the present step that have not ended, by disk.
    pub left: [u32; 2],
    /// What was read so far: first block, and data.
    pub found: Vec<(u64, Bytes)>,
    /// A part failed in a way that the other disk may mend.
    pub failed: bool,
    pub replied: bool,
    /// Blocks that it wrote to their own places on a disk whose log has some of them: they are voided at its end. Not
    /// all of its blocks: what a disk missed may have been written to its log since.
    pub overwrites: [Vec<Range<u64>>; 2],
}

impl Op {
    pub fn new(client: Option<u64>, work: Work, blocks: Range<u64>) -> Op {
        Op {
            client,
            work,
            blocks,
            step: Step::Waiting,
            left: [0; 2],
            found: Vec::new(),
            failed: false,
            replied: false,
            overwrites: Default::default(),
        }
    }

    pub fn is_clients_write(&self) -> bool {
        self.client.is_some() && matches!(self.work, Work::Write { .. } | Work::Zero { .. })
    }

    pub fn usage(&self) -> Use {
        match self.work {
            Work::Read { .. } | Work::Status | Work::Replay { .. } => Use::Shared,
            _ => Use::Alone,
        }
    }

    /// Whether it is durable when it ends.
    pub fn is_durable(&self) -> bool {
        matches!(self.work, Work::Write { fua: true, .. } | Work::Zero { fua: true, .. })
    }

    /// Whether its end voids entries of a log.
    pub fn voids(&self) -> bool {
        self.overwrites.iter().any(|blocks| !blocks.is_empty())
    }

    /// Whether it is under a mark of the intent map.
    pub fn is_marked(&self) -> bool {
        self.step != Step::Waiting && matches!(self.work, Work::Write { .. } | Work::Zero { .. })
    }

    /// Whether it has writes in flight on this disk.
    pub fn writes(&self, side: Side) -> bool {
        self.step == Step::Writing && self.left[side.index()] > 0
    }

    /// What was read, in the order of the blocks.
    pub fn take_found(&mut self) -> Vec<Bytes> {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|(block, _)| *block);
        let bytes: u64 = found.iter().map(|(_, data)| data.len() as u64).sum();
        debug_assert!(
            self.failed || bytes == (self.blocks.end - self.blocks.start) * BLOCK_BYTES,
            "what follows a gap would be taken for other blocks"
        );
        found.into_iter().map(|(_, data)| data).collect()
    }
}

/// What an operation of a disk was for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// A part of a read: its blocks; `slot`: it was read from the log, from there on.
    Read {
        op: u64,
        block: u64,
        slot: Option<u64>,
    },
    /// A part of an operation, to the blocks' own places, or a sync.
    Part {
        op: u64,
        write: bool,
    },
    Status {
        op: u64,
    },
    /// The log's batch.
    Batch,
    /// The intent map, the superblock, and the syncs of both.
    Map,
    Superblock,
    /// The sync before a group of replayed blocks is voided.
    ReplaySync,
    /// The sync before marks are cleared.
    ClearSync,
    /// The sync before a disk leaves, and the one after it has got what it missed.
    LeaveSync,
    ReturnSync,
    CloseSync,
    /// The sync before the progress of a rebuild is noted.
    RebuildSync,
}
