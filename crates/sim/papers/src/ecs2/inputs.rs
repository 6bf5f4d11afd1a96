//! What is run.

use ebb_trace::Trace;

/// What the user gives.
pub struct Ecs2Inputs {
    /// Block traces that are run, too: the part of DTRS that is public.
    pub traces: Vec<Trace>,
    /// Seconds of each generated trace; 3,600 in the paper.
    pub seconds: u64,
    pub seed: u64,
}
