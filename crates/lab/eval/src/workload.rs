//! What a run asks of its target.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// One workload: a row of the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// A mode of TRACER: request size in bytes, percentage of random requests, percentage of reads.
    Synthetic { size: u32, random: u8, reads: u8 },
    /// A recorded trace, in the file system of the machine that generates the load.
    Trace {
        name: String,
        file: PathBuf,
        /// Bad lines or records to skip.
        skip_bad: u64,
        /// Requests that arrive within this time of the first form a bunch, for TRACER's filter.
        bunch: Duration,
    },
    /// [`ebb_trace::HotBand`].
    HotBand,
    /// Writes the whole area once, from a place in it on, in requests of this many bytes, and ends.
    Fill { size: u32 },
}

impl Workload {
    /// The name of its results: `4KiB-random50-read0`, or the trace's.
    pub fn name(&self) -> String {
        match self {
            Workload::Synthetic { size, random, reads } => {
                let size = match size {
                    n if n % (1 << 20) == 0 => format!("{}MiB", n >> 20),
                    n if n % (1 << 10) == 0 => format!("{}KiB", n >> 10),
                    n => format!("{n}B"),
                };
                format!("{size}-random{random}-read{reads}")
            }
            Workload::Trace { name, .. } => name.clone(),
            Workload::HotBand => "hot-band".to_owned(),
            Workload::Fill { .. } => "fill".to_owned(),
        }
    }
}
