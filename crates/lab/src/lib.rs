//! Evaluation: what a cluster does under a real trace, and what an S3 endpoint costs per operation.
//!
//! - [`replay`] runs a block trace on a cluster, checks every byte that it reads, and compares the energy with a
//!   cluster that never sleeps and with the schedule of one who knew the load beforehand.
//! - [`drive`] replays requests on any storage and says how it answered.
//! - [`bench`] loads any S3 endpoint and says what the servers spent per operation.
//!
//! Reports are plain data: `Display` is the text for people, `Serialize` the JSON for machines (`docs/json.md`).
//! Energy is modelled, and every place that shows it says so.

pub mod bench;
mod content;
pub mod drive;
mod latency;
pub mod page;
pub mod replay;

pub use latency::Latency;
