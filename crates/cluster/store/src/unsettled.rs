//! How much is to be moved from segments to chunk files, and the checkpoint that moves it ([`crate::settle`]).

use crate::index::FileKey;
use crate::overlay::Position;

/// A checkpoint in progress.
pub(crate) struct Checkpoint {
    /// Chunks still to be moved, each from this page on.
    pub chunks: Vec<(FileKey, u32)>,
    /// Segments still to be retired; known when all chunks are moved.
    pub segments: Option<Vec<u32>>,
    /// What was in the segments before this position is in the file of every chunk that was moved.
    pub began: Position,
}

#[derive(Default)]
pub(crate) struct Unsettled {
    /// Written to segments since the last checkpoint began.
    pub bytes: u64,
    /// Taken for a step: it ends unless it is put back.
    pub checkpoint: Option<Checkpoint>,
    /// Value of `bytes` at which the checkpoint's next step is due.
    pub step_due: u64,
}

impl Unsettled {
    /// It is at least this much, at which a checkpoint is due.
    pub fn raise(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
    }

    /// Whether a checkpoint is in progress.
    pub fn is_moving(&self) -> bool {
        self.checkpoint.is_some()
    }

    pub fn begin(&mut self, checkpoint: Checkpoint) {
        debug_assert!(!self.is_moving(), "one at a time");
        (self.bytes, self.checkpoint) = (0, Some(checkpoint));
    }

    /// Whether the next step is not due yet.
    pub fn is_early(&self) -> bool {
        self.is_moving() && self.bytes < self.step_due
    }

    /// The next step is due after this much more.
    pub fn pace(&mut self, bytes: u64) {
        self.step_due = self.bytes + bytes;
    }
}
