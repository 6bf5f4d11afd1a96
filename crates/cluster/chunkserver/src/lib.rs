//! The chunk server's protocol core: order, replicate, offload, reclaim, hand over, fence, rebuild.
//!
//! [`Replica::on`] takes an event and returns commands. It has no clock, no randomness and no I/O; the driver
//! (`node` in the cluster, `sim` in the virtual world) does `select → on → carry out`. `ARCHITECTURE.md` summarizes the
//! protocol; comments name each rule (R1, R2, ...; listed in `docs/rules.md`) where the code keeps it.

mod api;
mod applying;
mod blocks;
mod catch_up;
mod columns;
mod config;
mod context;
mod cover;
mod due;
mod group;
mod member;
mod primary;
mod repair;
mod replica;
mod run_map;
mod scrub;
mod settlement;
mod tail;
mod wait;

pub use api::*;
pub use catch_up::{FETCH_BLOCKS, FETCHES_MAX};
pub use config::{Config, PlantedBug, REMEMBERED};
pub use replica::{Replica, TICK};
