//! A client's read, from its arrival until every block of it is here.

use crate::common::api::ClientToken;
use ebb_types::ChunkId;
use std::collections::BTreeSet;

/// A client's read.
pub(super) struct Read {
    pub token: ClientToken,
    pub column: usize,
    pub chunk: ChunkId,
    pub offset: u32,
    pub len: u32,
    pub must_exist: bool,
    pub first: u32,
    pub count: u32,
    /// Blocks whose rebuild was tried.
    pub tried: BTreeSet<u32>,
    /// Blocks that are damaged here, and whether not even their version is known.
    pub damaged: Option<(u32, bool)>,
    /// Rebuilds in progress.
    pub waiting: usize,
    pub lacking: bool,
    /// Some blocks are lost for good.
    pub ruined: bool,
    pub stale: bool,
    pub failed: bool,
}
