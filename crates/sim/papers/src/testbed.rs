//! What Sierra's experiments share: the testbed's size, and load series in hours.

use ebb_sim::load::Series;
use ebb_sim::request::{DiskModel, NetworkModel, Setup};
use std::time::Duration;

/// Servers of the load-level experiments, and replicas: the paper's testbed had thirty servers of three.
pub const SERVERS: u32 = 30;
pub const REPLICAS: u8 = 3;

pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY_HOURS: usize = 24;
/// Training and test days of Figure 8.
pub const WEEK: usize = 7 * DAY_HOURS;

pub const MB: f64 = 1024.0 * 1024.0;

/// Servers like the testbed's, always on.
pub fn setup(servers: u16, racks: u16, replicas: u8, chunk_bytes: u32, seed: u64) -> Setup {
    Setup {
        servers,
        racks,
        replicas,
        chunk_bytes,
        disk: DiskModel::hdd_2009(),
        network: NetworkModel::gigabit(),
        seed,
        ..Setup::default()
    }
}

/// A series in hours, and its weeks (seven whole days) without a gap.
pub struct Hourly {
    pub name: String,
    pub series: Series,
    pub weeks: Vec<Vec<f64>>,
}
