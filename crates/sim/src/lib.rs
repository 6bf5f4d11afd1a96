//! The virtual world: the production protocol cores (`ebb_replica::Replica`, `ebb_meta::Member`) and the production
//! store (`ebb_store::StoreCore`) under a virtual clock, over disks in memory and a model network, with every fault
//! that a seed can draw.
//!
//! [`run()`] plays one seed: rounds of client work under faults; then everything is repaired, every operation must end,
//! and every replica must be identical to its peers. The rules R1–R14 are checked after every step ([`invariants`]),
//! and at the end every chunk's history must be linearizable ([`linear`]). The same seed repeats the same run, to the
//! last byte, so a failure is reproduced by its number.
//!
//! [`request`] adds models of time to the same world, to predict how a trace would fare on a cluster: latency, energy,
//! traffic.

mod brief;
mod client;
mod clock;
mod faults;
mod harm;
mod history;
mod invariants;
mod linear;
pub mod load;
mod member;
mod net;
pub mod paper;
mod random;
pub mod request;
mod run;
mod scenario;
mod server;
mod shrink;
mod store;
#[cfg(test)]
mod stories;
mod world;

pub use run::{Failure, Summary, run, run_with_transcript};
pub use scenario::Scenario;
pub use shrink::{Case, Shrunk, shrink};
pub use world::{Configure, Core, Violation};
