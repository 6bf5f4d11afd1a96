//! What putting a server to sleep means.

use serde::{Deserialize, Serialize};

/// How deep a server sleeps, the shallowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Depth {
    /// It keeps its memory and runs nothing: a suspended machine, a stopped process.
    #[default]
    Standby,
    /// A machine that is powered off, or a process that has ended: it starts again.
    Off,
}

/// What a power test waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestStep {
    /// Its chunk groups are handed over.
    Draining,
    /// It is asleep on record and is to fall silent.
    GoingDown,
    Waking,
    /// It is awake; its replicas and its exam are awaited.
    CatchingUp,
    Ended,
}
