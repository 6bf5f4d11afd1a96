//! A modelled two-speed disk: its figures ([`TwoSpeedModel`]), one such disk at work ([`TwoSpeedDisk`]), and what it
//! takes ([`Energy`]).
//!
//! Emulated disks and simulators serve a mirror with it. The mirror itself never asks it: what it knows of its disks is
//! [`DiskFacts`](crate::policy::DiskFacts), which a switch can tell of a real one too, and what each access took.

mod disk;
mod energy;
mod model;

pub use disk::TwoSpeedDisk;
pub use energy::{DiskEnergy, Energy, Share};
pub use model::{ChangeModel, ModelError, SpeedModel, TwoSpeedModel, seek_curve};
