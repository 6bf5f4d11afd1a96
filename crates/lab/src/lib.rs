//! Evaluation: what a cluster does under a real trace, and what an S3 endpoint costs per operation.
//!
//! - [`replay`] runs a block trace on a cluster, verifies every byte that it reads, and compares the energy with a
//!   cluster that never sleeps and with the schedule of an oracle that knows the load.
//! - [`drive`] replays requests on any storage and reports its performance.
//! - [`eval`] runs a matrix of workloads and load levels unattended and stores every result with the power drawn.
//! - [`traces`] analyses the workload of a trace, and derives other traces from it.
//! - [`agent`] has other machines generate the load or read the power.
//! - [`cost`] runs any command and reports the cost of each I/O in cycles and joules, layer by layer.
//! - [`mod@bench`] loads any S3 endpoint and reports what the servers spent per operation.
//!
//! Reports are plain data: `Display` is the text for people, `Serialize` the JSON for machines (`docs/json.md`).
//! Energy is modelled, and every place that shows it says so.

pub mod agent;
pub mod bench;
mod content;
pub mod cost;
pub mod drive;
pub mod eval;
pub mod replay;
pub mod traces;
