//! A client's read, from its arrival until every block of it is here: what was asked for, what was tried, and what the
//! rebuilds have brought together.

use super::known::is_no_strip;
use super::rebuild::{Blocks, Ended};
use crate::common::api::ClientToken;
use crate::common::blocks::{BLOCK, crcs_of, whole};
use bytes::Bytes;
use ebb_types::{ChunkError, ClientReply, Record, Unready, piece_crcs};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Read {
    pub token: ClientToken,
    pub of: Blocks,
    /// In bytes of the column.
    offset: u32,
    len: u32,
    must_exist: bool,
    /// Blocks whose rebuild was tried.
    pub tried: BTreeSet<u32>,
    /// The block that is damaged here, and whether not even its version is known.
    damaged: Option<(u32, bool)>,
    /// Rebuilds in progress.
    pub waiting: usize,
    lacking: bool,
    /// Some blocks are lost for good.
    ruined: bool,
    stale: bool,
    failed: bool,
}

/// What follows when all rebuilds of a read have ended.
pub(super) enum Next {
    Retry,
    /// Too few strips can be had now.
    Lacks,
    /// The damaged block, of which no version is known, was never written as a whole.
    Clear(u32),
    End(ClientReply),
}

impl Read {
    pub fn new(token: ClientToken, of: Blocks, (offset, len): (u32, u32), must_exist: bool) -> Read {
        Read { token, of, offset, len, must_exist, ..Read::default() }
    }

    /// Blocks that are not here, and whose rebuild was not tried. What was tried, is still not here, and could not be
    /// had was never written or is deleted.
    pub fn gaps(&self, found: &[Record]) -> Vec<u32> {
        let blocks = found.iter().filter(|r| r.is_never_written()).flat_map(|r| r.first..r.first + r.count);
        blocks.filter(|block| !self.tried.contains(block)).collect()
    }

    /// Whether what was found is no answer, because it must exist.
    pub fn misses(&self, found: &[Record]) -> bool {
        self.must_exist && found.iter().any(is_no_strip)
    }

    /// The bytes that were asked for, with their checksums.
    pub fn cut_out(&self, found: &[Record], payload: Bytes) -> (Vec<u32>, Bytes) {
        let start = (self.offset - self.of.first * BLOCK) as usize;
        let bytes = whole(found, payload).slice(start..start + self.len as usize);
        let aligned = self.offset.is_multiple_of(BLOCK) && self.len.is_multiple_of(BLOCK);
        let crcs = if aligned { crcs_of(found) } else { piece_crcs(self.offset, &bytes) };
        (crcs, bytes)
    }

    /// A block is damaged here. Returns whether its rebuild is still to be tried.
    pub fn met_damage(&mut self, block: u32, lost: bool) -> bool {
        if self.damaged.is_some_and(|(before, _)| before == block) {
            return false;
        }
        self.damaged = Some((block, lost));
        true
    }

    /// One of its rebuilds has ended. `None`: others have not.
    pub fn on_rebuilt(&mut self, ended: &Ended) -> Option<Next> {
        debug_assert!(self.waiting > 0, "it waits for each of its rebuilds");
        self.waiting -= 1;
        self.lacking |= !ended.lacking.is_empty();
        self.ruined |= !ended.ruined.is_empty();
        self.stale |= ended.stale;
        self.failed |= ended.failed;
        if self.waiting > 0 {
            return None;
        }
        let end = |reply| Some(Next::End(reply));
        match self.damaged.filter(|(block, _)| ended.absent.contains(block)) {
            _ if self.lacking && self.stale => end(ClientReply::Retry { why: Unready::Behind }),
            _ if self.lacking => Some(Next::Lacks),
            _ if self.failed => end(ClientReply::Retry { why: Unready::Busy }),
            _ if self.ruined => end(ClientReply::Failed { why: ChunkError::Corrupt }),
            Some((block, true)) => Some(Next::Clear(block)),
            Some((_, false)) => end(ClientReply::Failed { why: ChunkError::Corrupt }),
            None => Some(Next::Retry),
        }
    }
}
