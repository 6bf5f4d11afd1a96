//! What LogStore's evaluation is repeated with.

use ebb_sim::mirror::Workload;
use ebb_trace::Trace;

/// What LogStore's evaluation is repeated with.
pub struct LogStoreInputs {
    /// Further traces on which the four systems are compared: the published parts of the paper's.
    pub traces: Vec<Trace>,
    /// The generated traces have one in this many of the requests, in as much less time: 1 for the whole day.
    pub part: u32,
    pub seed: u64,
}

/// Accelerations of each workload in the paper. It does not give Search's: that of Financial's peak is taken.
pub(super) const RATES: [(Workload, &[u32]); 3] =
    [(Workload::Financial, &[2, 4, 6]), (Workload::Proxy, &[7, 14, 21]), (Workload::Search, &[6])];
