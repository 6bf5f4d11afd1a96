//! The result of a run as plain data.

use ebb_output::Latency;
use ebb_power::EnergyMeter;
use ebb_types::{Joules, Moment, Watts};
use serde::Serialize;

/// A trace on a coded set. Everything is modelled.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub requests: u64,
    pub writes: u64,
    /// Until the last request or the last answer.
    pub span_seconds: f64,
    /// Response times, queues included. `None`: there was no such request.
    pub all: Option<Latency>,
    pub reads: Option<Latency>,
    pub written: Option<Latency>,
    /// Requests that arrived while a parity server was being synchronised.
    pub synchronising: Option<Latency>,
    pub energy_modelled: Energies,
    /// The same at watts that follow the load.
    pub by_load_modelled: Energies,
    /// Absent: data servers never sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hibernation: Option<Hibernations>,
    /// By a change of a strip, on average: accesses of data servers' disks, and of their memory for parity that sleeps.
    /// `None`: nothing was written.
    pub asked_of_data_servers: Option<f64>,
    /// Times that all parity servers were woken because buffers were full.
    pub synchronisations: u64,
    /// Mean seconds of one parity server's synchronisation.
    pub synchronise_seconds: Option<f64>,
    /// Highest share of the buffers that was filled, 0 to 1; above 1, there was not enough memory.
    pub most_filled: f64,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energies {
    #[serde(rename = "total_joules")]
    pub total: Joules,
    pub mean_watts: f64,
    /// Of servers, going up and down.
    pub transitions: u64,
    /// Server-seconds in standby.
    pub standby_seconds: f64,
}

impl Energies {
    pub(super) fn of(meter: &EnergyMeter, now: Moment, span_seconds: f64) -> Energies {
        let energy = meter.energy(now);
        Energies {
            total: energy.total(),
            mean_watts: energy.total().0 / span_seconds,
            transitions: energy.standby.transitions(),
            standby_seconds: energy.standby.asleep_seconds,
        }
    }
}

/// Quiet spells in which the whole set slept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hibernations {
    pub times: u64,
    /// How long requests waited for the set to wake; it is part of their response times. `None`: none did.
    pub waited: Option<Latency>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    pub at_seconds: f64,
    pub watts: Watts,
    /// Share of the buffers, 0 to 1.
    pub filled: f64,
    pub parity_awake: usize,
}
