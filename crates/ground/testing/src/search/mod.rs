//! One harness for searches of faults.
//!
//! What is searched is a [`Subject`]: a world that a seed builds, disturbs and judges. The harness plays seeds on all
//! cores ([`sweep`]), repeats one that breaks a rule with its transcript kept ([`run`]), looks for the least part of it
//! that still breaks the rule ([`shrink()`]), and shows that a defect is found which was planted on purpose
//! ([`is_found`]). In tests, the environment chooses:
//!
//! - `EBB_FIRST`, `EBB_SEEDS`: the first seed, and how many.
//! - `EBB_SEED`: the only one, for a test that plays one seed; if it breaks a rule, it is shrunk.
//! - `EBB_LINES`: the last lines to show of its transcript, instead.
//!
//! **Invariant:** a case gives the same run each time, to the last line of its transcript.

mod seeds;
mod shrink;
mod subject;

pub use seeds::{
    Failure, Hunt, Outcome, Tally, cores, is_found, one_seed, run, seeds, sound, spread, sweep, tally,
};
pub use shrink::{Shrunk, shrink};
pub use subject::{ASSERTION, Case, Faults, Subject, Transcript, Violation, broken, with_transcript};
