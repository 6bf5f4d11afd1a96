//! The world's only source of randomness: a run is a function of its seed.

pub use ebb_types::{Random, mix};
