//! What cannot happen ([`ebb_types::bug`]), at the edges: it is logged and counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering};

static BUGS: AtomicU64 = AtomicU64::new(0);

/// Reports something that cannot happen unless this program has a bug. The caller continues as well as it can. A debug
/// build stops here.
#[track_caller]
pub fn bug(what: &'static str) {
    debug_assert!(false, "{what}");
    BUGS.fetch_add(1, Ordering::Relaxed);
    tracing::error!("a bug in this program: {what}. It continues; please report it with this log");
}

/// How often this process has met what cannot happen.
pub fn bugs() -> u64 {
    BUGS.load(Ordering::Relaxed)
}
