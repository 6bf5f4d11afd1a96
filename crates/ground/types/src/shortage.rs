//! Shortages, which are no damage.

use std::io;

/// Whether the file system, or the share of it that this user may have, has no room left.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
