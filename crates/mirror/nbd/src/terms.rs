//! What client and server agreed on.

/// What was agreed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Its place among the session's.
    pub export: usize,
    /// Replies are structured.
    pub structured: bool,
    /// `base:allocation` may be asked for.
    pub status: bool,
}
