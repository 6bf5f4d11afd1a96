//! Load, as counted on servers and summed by the metadata service. [Sierra §3.4]

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Client work counted over an interval. Writes are counted once, not once per copy: the load formula weighs them by r.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCount {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl AddAssign for LoadCount {
    fn add_assign(&mut self, other: LoadCount) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}
