//! The chunk server's protocol core: order, replicate, offload, reclaim, hand over, fence, rebuild.
//!
//! [`Replica::on`] takes an event and returns commands. It has no clock, no randomness and no I/O; the driver
//! (`node` in the cluster, `sim` in the virtual world) does `select → on → carry out`. `ARCHITECTURE.md` summarizes the
//! protocol; comments name each rule (R1, R2, ...; listed in `docs/rules.md`) where the code keeps it.

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
