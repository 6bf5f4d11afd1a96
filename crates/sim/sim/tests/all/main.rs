//! Whole runs: the fault search over its seeds and its planted bugs, and the request level.

mod above;
mod determinism;
mod planted;
mod request;
mod sweep;
