//! The chunk server's protocol core: order, replicate, offload, reclaim, hand over, fence, rebuild.
//!
//! [`Replica::on`] takes an event and returns commands. It has no clock, no randomness and no I/O; the driver (the
//! program in a cluster, `sim` in the virtual world) does `select → on → carry out`. `ARCHITECTURE.md` summarizes the
//! protocol; comments name each rule (R1, R2, ...; listed in `docs/rules.md`) where the code keeps it. [`replicated`]
//! groups and [`coded`] sets build on what is [`common`] to both; [`replica`] gives each event to whom it concerns.

mod coded;
mod common;
mod replica;
mod replicated;
pub mod shell;

pub use common::api::*;
pub use common::budget::FETCHES_MAX;
pub use common::config::{Config, PlantedBug, REMEMBERED, WAITING};
pub use common::stall::Moves;
pub use replica::Replica;
pub use replicated::catch_up::FETCH_BLOCKS;
pub use replicated::primary::claims::{Claims, Judged};
