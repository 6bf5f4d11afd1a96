//! The commands that people type: each reads its arguments, asks the cluster or calls a library, and prints the result.

pub mod admin;
pub mod bench;
pub mod co2;
pub mod cost;
pub mod dev;
pub mod eval;
pub mod key;
pub mod lab;
pub mod measured;
pub mod meter;
pub mod mirror;
pub mod page;
pub mod pool;
pub mod power;
pub mod readings;
pub mod replay;
pub mod simulate;
pub mod status;
pub mod tool;
pub mod trace;
pub mod trace_options;
pub mod trust;
pub mod verify;
pub mod volume;
pub mod what_if;
pub mod words;
