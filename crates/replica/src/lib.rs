//! The chunk server's protocol, without a chunk server: order, replicate, offload, reclaim, hand over, fence, rebuild.
//!
//! [`Replica::on`] takes what happened and says what to do. It has no clock, no randomness and no I/O; the driver
//! (`node` in the cluster, `sim` in the virtual world) does `select → on → carry out`. `ARCHITECTURE.md` tells the
//! protocol; the rules R1–R10 that it keeps are named where they are kept.

mod activate;
mod api;
mod catch_up;
mod group;
mod primary;
mod repair;
mod replica;
mod run_map;
mod scrub;
mod secondary;
mod settlement;

pub use api::*;
pub use replica::{Config, PlantedBug, REMEMBERED, Replica, TICK};
