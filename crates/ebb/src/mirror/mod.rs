//! Mirrors of this machine: where they are noted, their disks before they are served, and how new ones begin.
//! [`crate::daemon::mirror`] serves one.

pub mod create;
pub mod disks;
pub mod drivers;
pub mod error;
pub mod registry;
pub mod switches;

pub use error::MirrorError;
