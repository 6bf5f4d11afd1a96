//! The fault search.
//!
//! A [`Cluster`] plays one seed: rounds of client work under faults; then everything is repaired, every operation must
//! end, and every replica must be identical to its peers. The rules R1–R14 are checked after every step
//! ([`invariants`]), and at the end every chunk's history must be linearizable ([`linear`]). The same seed repeats the
//! same run, to the last byte, so a failure is reproduced by its number.
//!
//! To the [`world`](crate::world) it is a [`harness`]: [`client`] and [`coder`] ask the cluster for something,
//! [`faults`] disturb it, [`invariants`] judge it, and [`delays`] says how long things take.

mod beyond;
pub(crate) mod brief;
pub(crate) mod client;
pub(crate) mod coder;
mod delays;
mod endure;
pub(crate) mod faults;
pub(crate) mod harm;
pub(crate) mod harness;
pub(crate) mod history;
pub(crate) mod invariants;
pub(crate) mod linear;
pub(crate) mod run;
pub(crate) mod scenario;
#[cfg(test)]
pub(crate) mod stories;

pub use run::{Cluster, Summary, cluster};
pub use scenario::Scenario;
