//! A trace on a whole cluster, request by request: the virtual world with models of time instead of random delays, and
//! stores that keep lengths instead of bytes.
//!
//! It is the world of the fault search: the same clock, servers and metadata members run the same production cores
//! (`ebb_chunkserver::Replica`, `ebb_meta::Member`, and in it the gear scheduler). With [`Models`], the world asks them
//! how long a message takes ([`network`]), what a store command costs on the disk ([`disk`]) and how long a power
//! switch takes, and measures the results ([`measure`]). Its clients replay a trace; no faults are injected, so the
//! invariants are not checked: that is the fault search's job.
//!
//! Every figure names its models: disks and networks by [`DiskModel`] and [`NetworkModel`], power by
//! [`ebb_power::PowerModel`]; processor time is assumed to be free.

mod client;
mod closed;
mod copies;
mod device;
pub mod disk;
mod energy;
mod feed;
mod follow;
mod harness;
mod later;
mod machine;
pub mod measure;
mod models;
pub mod network;
#[cfg(test)]
mod overload;
mod pair;
mod pairs;
mod rebuild;
pub mod report;
mod run;
pub mod settings;
mod setup;
mod store;
pub mod workload;

pub use crate::depths::Suspend;
pub use client::Retries;
pub use closed::{Pace, Work, closed};
pub use copies::{Copied, copy_chunks, whole_chunks};
pub use device::Mirroring;
pub use disk::{DiskModel, Hdd, Ssd};
pub use energy::{DepthRow, Energy, NO_SAVINGS};
pub use later::Later;
pub use measure::{Done, Migration, PHASES, Phase, Reclaim, Sample};
pub use models::Models;
pub use network::{NetworkModel, TRAFFICS, Traffic};
pub use pairs::{HourRow, PairsReport, Spread};
pub use rebuild::{Rebuilt, rebuild};
pub use report::{LatencyRow, Report};
pub use run::{hours, minutes, servers_for_peak, simulate};
pub use settings::SettingsError;
pub use setup::{Existing, Gears, Setup, SimError};
pub use store::ChunkData;
