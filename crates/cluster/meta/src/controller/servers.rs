//! The cluster's servers as a plan decides about them.

use ebb_types::{ServerEntry, ServerId, ServerState};
use std::collections::BTreeMap;

/// Servers as they will be once the batch is applied: those of the replicated pool, or those of erasure-coded ones.
pub(crate) type Servers = BTreeMap<ServerId, ServerEntry>;

/// Whether the server can do nothing for now.
pub(crate) fn is_gone(entry: &ServerEntry) -> bool {
    matches!(entry.state, ServerState::Failed | ServerState::Lost)
}
