//! The virtual world: the production protocol cores (`ebb_chunkserver::Replica`, `ebb_meta::Member`) and the production
//! store (`ebb_store::StoreCore`) under a virtual clock, over disks in memory and a model network. It knows nothing of
//! what disturbs it, who judges it and how long things take: those who use it say so.
//!
//! - [`search`] is the fault search: random work under every fault that a seed can draw, and the rules that must hold.
//! - [`above`] is the fault search above chunks: production gateways and volume servers on a modelled cluster.
//! - [`request`] adds models of time to the same world, to predict how a trace would fare on a cluster: latency,
//!   energy, traffic.
//! - [`load`] computes from a load series alone what a service would save.
//! - [`mirror`] runs a trace on a mirror of two modelled two-speed disks.
//! - [`coded`] runs a trace on an erasure-coded set whose parity servers sleep.
//!
//! Whatever has events has them on one kind of agenda.

pub mod above;
pub mod coded;
mod depths;
mod engine;
pub mod load;
pub mod mirror;
pub mod request;
pub mod search;
mod world;

pub use ebb_testing::search as harness;
pub use search::{Cluster, Scenario, Summary, cluster};
pub use world::{Configure, Core};
