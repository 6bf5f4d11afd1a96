//! Energy of a replay, in trace time: what was seen, what a cluster that never sleeps would draw, and what the schedule of
//! one who knew the peaks would.
//!
//! All three come from the same power model and the same load, and count the seconds of the trace, not of the clock: a
//! state that lasted one second at speed 2000 lasted 2000. A transition costs its joules once, whatever the speed. So a
//! wake-up that takes half a second of the clock is charged as 1000 seconds of being on: that is the price of the
//! rehearsal, not of the cluster, and it makes the savings look smaller, never larger.

use super::plan::LoadSeries;
use ebb_power::{Draw, EnergyMeter, ModelError, ModelledEnergy, PowerModel};
use ebb_types::{GearGroup, Moment, ServerId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A server is switched on or to standby, at a moment of the trace. In order of time; at time zero every server has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: Duration,
    pub server: ServerId,
    pub on: bool,
}

/// Modelled energy over the replayed span. Never measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnergyReport {
    pub cluster: ModelledEnergy,
    /// Every server on throughout, under the same load.
    pub always_on: ModelledEnergy,
    /// Whole gears by the peak of each hour, known beforehand; shifts take no time.
    pub oracle: ModelledEnergy,
    /// Share of `always_on` that the cluster saves, in percent.
    pub saved_percent: f64,
    pub oracle_saved_percent: f64,
    /// Percentage points that the cluster saves less than the oracle.
    pub behind_oracle_points: f64,
}

impl EnergyReport {
    pub fn new(cluster: ModelledEnergy, always_on: ModelledEnergy, oracle: ModelledEnergy) -> EnergyReport {
        let saved = |energy: &ModelledEnergy| match always_on.total().0 {
            0.0 => 0.0,
            whole => 100.0 * (1.0 - energy.total().0 / whole),
        };
        let (saved_percent, oracle_saved_percent) = (saved(&cluster), saved(&oracle));
        let behind_oracle_points = oracle_saved_percent - saved_percent;
        EnergyReport { cluster, always_on, oracle, saved_percent, oracle_saved_percent, behind_oracle_points }
    }
}

/// Modelled energy from time zero to `end`. The load is spread evenly over the servers that are on.
pub fn modelled(
    model: &PowerModel,
    load: &LoadSeries,
    changes: &[Change],
    end: Duration,
) -> Result<ModelledEnergy, ModelError> {
    let mut meter = EnergyMeter::new(*model, 1.0)?;
    let mut on: BTreeMap<ServerId, bool> = BTreeMap::new();
    let mut changes = changes.iter().peekable();
    let (mut now, mut sample, mut drawn) = (Duration::ZERO, 0u32, f64::NAN);
    while now <= end {
        let mut changed = false;
        while let Some(change) = changes.next_if(|change| change.at <= now) {
            on.insert(change.server, change.on);
            changed = true;
        }
        let awake = on.values().filter(|on| **on).count().max(1);
        let utilisation = load.at(now).0 / awake as f64;
        if changed || utilisation != drawn {
            for (server, on) in &on {
                let draw = if *on { Draw::On { utilisation } } else { Draw::Standby };
                meter.set(moment(now), *server, draw);
            }
            drawn = utilisation;
        }
        while load.interval * sample <= now {
            sample += 1;
        }
        let next = load.interval * sample;
        now = changes.peek().map_or(next, |change| change.at.min(next));
    }
    Ok(meter.energy(moment(end)))
}

fn moment(at: Duration) -> Moment {
    Moment::ZERO + at
}

/// The changes that a gear per hour makes; shifts happen at the start of hours. Gear groups are awake in their order.
pub fn changes_of(gears: &[u8], hour: Duration, servers: &[(ServerId, GearGroup)]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut last = None;
    for (index, gear) in gears.iter().enumerate() {
        let on = |group: GearGroup, gear: u8| group.0 < gear;
        for (server, group) in servers {
            if last.is_none_or(|last| on(*group, last) != on(*group, *gear)) {
                changes.push(Change { at: hour * index as u32, server: *server, on: on(*group, *gear) });
            }
        }
        last = Some(*gear);
    }
    changes
}
