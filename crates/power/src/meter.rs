//! The meter: where watts are read, whatever the driver. Also the power model as a meter.

use crate::{Draw, EnergyMeter, ModelledEnergy};
use ebb_types::{Moment, ServerId, Watts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// Where a reading comes from. Shown wherever the reading is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Measured,
    Modelled,
}

/// One thing that a meter reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    pub name: String,
    /// The server that the reading is of, where it is of one.
    pub server: Option<ServerId>,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeterError {
    #[error("the meter has no channel {name:?}: use one of those that it lists")]
    UnknownChannel { name: String },
}

pub trait Meter: Send + Sync {
    fn channels(&self) -> Vec<Channel>;
    /// The reading at `now` (the caller's clock). `None`: the meter has no reading now; that is not zero
    /// watts.
    fn read(&self, channel: &str, now: Moment) -> Result<Option<Watts>, MeterError>;
}

/// [`EnergyMeter`] as a meter with one channel per server, named as the server is shown.
#[derive(Debug)]
pub struct MeterModel {
    servers: BTreeSet<ServerId>,
    energy: Mutex<EnergyMeter>,
}

impl MeterModel {
    pub fn new(energy: EnergyMeter, servers: impl IntoIterator<Item = ServerId>) -> MeterModel {
        MeterModel { servers: servers.into_iter().collect(), energy: Mutex::new(energy) }
    }

    /// See [`EnergyMeter::set`].
    pub fn set(&self, now: Moment, server: ServerId, draw: Draw) {
        self.lock().set(now, server, draw);
    }

    /// Modelled energy of all servers up to `now`.
    pub fn energy(&self, now: Moment) -> ModelledEnergy {
        self.lock().energy(now)
    }

    fn lock(&self) -> MutexGuard<'_, EnergyMeter> {
        self.energy.lock().expect("no one panics while the account is changed")
    }
}

impl Meter for MeterModel {
    fn channels(&self) -> Vec<Channel> {
        let channel =
            |id: &ServerId| Channel { name: id.to_string(), server: Some(*id), source: Source::Modelled };
        self.servers.iter().map(channel).collect()
    }

    fn read(&self, channel: &str, now: Moment) -> Result<Option<Watts>, MeterError> {
        let server = self.servers.iter().find(|id| id.to_string() == channel);
        let server = server.ok_or_else(|| MeterError::UnknownChannel { name: channel.to_string() })?;
        Ok(self.lock().watts(now, *server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PowerModel;

    #[test]
    fn absent_is_not_zero_and_a_wrong_name_is_not_absent() {
        let energy = EnergyMeter::new(PowerModel::default(), 1.0).unwrap();
        let meter = MeterModel::new(energy, [ServerId(1), ServerId(2)]);
        meter.set(Moment::ZERO, ServerId(1), Draw::Off);
        assert_eq!(meter.read("server-1", Moment::ZERO), Ok(Some(Watts(0.0))));
        assert_eq!(meter.read("server-2", Moment::ZERO), Ok(None));
        let error = meter.read("server-3", Moment::ZERO).unwrap_err();
        assert_eq!(error, MeterError::UnknownChannel { name: "server-3".into() });
        assert!(meter.channels().iter().all(|channel| channel.source == Source::Modelled));
    }
}
