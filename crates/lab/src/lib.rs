//! Evaluation: what a cluster does under a real trace, and what an S3 endpoint costs per operation.
//!
//! - [`replay`] runs a block trace on a cluster, checks every byte that it reads, and compares the energy with a
//!   cluster that never sleeps and with the schedule of one who knew the load beforehand.
//! - [`drive`] replays requests on any storage and says how it answered.
//! - [`eval`] runs a matrix of workloads and load levels unattended and keeps every result with the power drawn.
//! - [`traces`] says what a trace asks of storage, and makes others out of it.
//! - [`agent`] has other machines generate the load or read the power.
//! - [`cost`] runs any command and says what each I/O costs in cycles and joules, layer by layer.
//! - [`bench`] loads any S3 endpoint and says what the servers spent per operation.
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
