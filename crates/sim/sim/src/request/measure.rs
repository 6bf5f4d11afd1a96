//! Measurements of a run: every request's latency with the gear and phase of its arrival, queue lengths over time, gear
//! shifts, and samples of the whole cluster.

use serde::Serialize;

/// The cluster's phase with respect to its gears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every server is where its gear wants it. Below the top gear, writes leave offload on holders.
    #[default]
    Steady,
    /// Servers hand over their primaries and go to sleep.
    Down,
    /// Servers wake.
    Up,
    /// Returned servers fetch what they missed.
    Reclaim,
}

pub const PHASES: [Phase; 4] = [Phase::Steady, Phase::Down, Phase::Up, Phase::Reclaim];

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Steady => "steady",
            Phase::Down => "down-shift",
            Phase::Up => "up-shift",
            Phase::Reclaim => "reclaim",
        }
    }
}

/// A length over time: its integral and its maximum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauge {
    level: i64,
    since: u64,
    area: u128,
    most: i64,
}

impl Gauge {
    pub fn add(&mut self, now: u64, change: i64) {
        self.area = self.area_at(now);
        self.since = now;
        self.level += change;
        self.most = self.most.max(self.level);
    }

    /// The maximum since the last call.
    pub fn take_most(&mut self) -> u32 {
        std::mem::replace(&mut self.most, self.level).max(0) as u32
    }

    pub fn level(&self) -> i64 {
        self.level
    }

    /// Level times nanoseconds so far.
    pub fn area_at(&self, now: u64) -> u128 {
        self.area + u128::from(self.level.max(0) as u64) * u128::from(now - self.since)
    }
}

/// One request that was answered or given up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Simulated time of its arrival since the start of the trace, and until its answer, in nanoseconds.
    pub at: u64,
    pub took: u64,
    pub read: bool,
    /// Number of awake gear groups, and the phase, when it arrived.
    pub gear: u8,
    pub phase: Phase,
    /// Tries beyond the first, over all its pieces.
    pub retries: u16,
    pub failed: bool,
}

/// The cluster at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Simulated seconds since the start of the trace.
    pub at_seconds: f64,
    /// Requests that arrived since the last sample, per second.
    pub requests_per_second: f64,
    pub gear: u8,
    pub servers_awake: u32,
    /// The same by rack.
    pub awake_by_rack: Vec<u32>,
    /// Modelled; the mean since the last sample.
    pub watts: f64,
    /// Offload kept for others.
    pub debt_bytes: u64,
    /// Mean share of their time that the disks of awake servers were busy since the last sample; of a pair, as if at
    /// high speed.
    pub disk_busy: f64,
    /// Share of their time that the disks of pairs were at low speed since the last sample. `None`: no pair was awake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disks_low: Option<f64>,
    pub phase: Phase,
}

/// A down-shift's migration of primaries. [Sierra Table 3]
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Migration {
    pub at_seconds: f64,
    /// Primaries that moved, and the time from the first hand-over request until the last had moved.
    pub migrations: u32,
    pub took_millis: f64,
}

/// An up-shift's reclaim. [Sierra Table 2]
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reclaim {
    pub at_seconds: f64,
    /// Offload held in the cluster when the servers began to wake.
    pub debt_bytes: u64,
    /// Bytes fetched by returning servers.
    pub fetched_bytes: u64,
    /// From the first server's return until all were in sync.
    pub took_seconds: f64,
    pub bytes_per_second: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_integrates() {
        let mut gauge = Gauge::default();
        gauge.add(10, 2);
        gauge.add(20, -1);
        assert_eq!((gauge.area_at(30), gauge.level()), (30, 1));
        assert_eq!((gauge.take_most(), gauge.take_most()), (2, 1));
    }
}
