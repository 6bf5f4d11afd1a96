//! What Sierra's experiments share: the testbed's size, and load series in hours.

use ebb_sim::load::Series;
use std::time::Duration;

/// Servers of the load-level experiments, and replicas: the paper's testbed had thirty servers of three.
pub const SERVERS: u32 = 30;
pub const REPLICAS: u8 = 3;

pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY_HOURS: usize = 24;
/// Training and test days of Figure 8.
pub const WEEK: usize = 7 * DAY_HOURS;

/// A series in hours, and its weeks (seven whole days) without a gap.
pub struct Hourly {
    pub name: String,
    pub series: Series,
    pub weeks: Vec<Vec<f64>>,
}
