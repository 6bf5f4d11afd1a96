//! The world's only source of chance: a run is a function of its seed.

pub use ebb_types::{Random, mix};
