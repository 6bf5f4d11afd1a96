//! The one clock that programs hand to decision makers: it runs on while the machine is suspended, so that a server that
//! slept through the end of its lease sees that it has ended.

use ebb_types::Moment;
use rustix::time::{ClockId, clock_gettime};

pub fn now() -> Moment {
    let t = clock_gettime(ClockId::Boottime);
    Moment(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Wall clock, for dates that people read and for the hour of day. Never for order or leases.
pub fn unix_millis() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_millis() as u64)
}
