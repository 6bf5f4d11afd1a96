//! The commands that people type: each reads its arguments, asks the cluster or calls a library, and prints the result.
//! What prints figures prints them with `provenance`, so that they say where they come from.

pub mod admin;
#[cfg(feature = "lab")]
pub mod bench;
pub mod co2;
#[cfg(feature = "lab")]
pub mod cost;
pub mod dev;
#[cfg(feature = "lab")]
pub mod eval;
#[cfg(feature = "lab")]
pub mod interrupt;
pub mod key;
#[cfg(feature = "lab")]
pub mod lab;
pub mod losses;
#[cfg(feature = "lab")]
pub mod measured;
#[cfg(feature = "lab")]
pub mod meter;
pub mod mirror;
pub mod page;
pub mod plan;
pub mod pool;
pub mod power;
#[cfg(feature = "lab")]
pub mod provenance;
pub mod readings;
#[cfg(feature = "lab")]
pub mod replay;
#[cfg(feature = "lab")]
pub mod report;
#[cfg(feature = "lab")]
pub mod series;
pub mod servers;
#[cfg(feature = "lab")]
pub mod simulate;
#[cfg(feature = "lab")]
pub mod simulated;
pub mod space;
pub mod status;
pub mod tool;
#[cfg(feature = "lab")]
pub mod trace;
#[cfg(feature = "lab")]
pub mod trace_options;
pub mod trust;
pub mod verify;
pub mod volume;
#[cfg(feature = "lab")]
pub mod what_if;
pub mod words;

#[cfg(not(feature = "lab"))]
mod without_lab;
#[cfg(not(feature = "lab"))]
pub use without_lab::{lab, series, simulate, what_if};
