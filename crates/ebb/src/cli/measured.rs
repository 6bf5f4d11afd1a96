//! What the servers' management controllers measure while a trace is replayed, beside what the power model says.
//!
//! Controllers are asked only when the user wishes it (`--measure`): some are slow, and asking them all the time loses
//! answers. A machine that is off is measured too: its controller draws what it draws.

use crate::cli::readings;
use crate::cluster::config::Config;
use crate::error::{NodeError, refused};
use ebb_meter::{Energy, Recorder, Source};
use ebb_replay::EnergyFigures;
use ebb_types::Moment;
use serde::Serialize;
use std::fmt;

/// Meters at work.
pub struct Measuring {
    recorder: Recorder,
    meters: Vec<String>,
    servers: usize,
    from: Option<Moment>,
    to: Option<Moment>,
}

/// Mean power of the replayed span, measured and modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Servers with a meter, of how many.
    pub servers: usize,
    pub of: usize,
    /// Of the servers with a meter together; absent: one of them gave no reading.
    pub mean_watts: Option<f64>,
    /// The least share of the span for which a meter has readings.
    pub coverage: Option<f64>,
    /// Of all servers.
    pub modelled_mean_watts: f64,
    /// By how much the model is above what was measured; absent unless every server was measured, at speed 1.
    pub model_error_percent: Option<f64>,
}

impl Measuring {
    /// Opens the meter of each server that has one.
    pub fn start(config: &Config) -> Result<Measuring, NodeError> {
        let meters = readings::meters(config)?;
        let specs: Vec<String> = meters.into_iter().filter_map(|meter| meter.spec.ok()).collect();
        if specs.is_empty() {
            let why = "no server has a management controller: --measure needs [[server.power]] with redfish or ipmi";
            return Err(refused(why));
        }
        let opened = specs.iter().map(|spec| ebb_meter::open(spec)).collect::<Result<Vec<_>, _>>()?;
        let meters = opened.iter().map(|open| open.name.clone()).collect();
        let servers = config.server.len();
        Ok(Measuring { recorder: Recorder::start(opened)?, meters, servers, from: None, to: None })
    }

    /// The replay has begun; later calls change nothing.
    pub fn begin(&mut self) {
        self.from.get_or_insert_with(ebb_meter::now);
    }

    pub fn end(&mut self) {
        if self.from.is_some() {
            self.to.get_or_insert_with(ebb_meter::now);
        }
    }

    pub fn stop(mut self, modelled: &EnergyFigures, speed: f64) -> Measured {
        self.begin();
        self.end();
        let recording = self.recorder.stop();
        let (from, to) = (self.from.expect("it began"), self.to.expect("it ended"));
        let window = recording.window(from, to);
        let energies: Vec<Option<Energy>> = self.meters.iter().map(|name| window.energy(name)).collect();
        Measured::new(&energies, self.servers, modelled, speed)
    }
}

impl Measured {
    fn new(energies: &[Option<Energy>], of: usize, modelled: &EnergyFigures, speed: f64) -> Measured {
        let measured = |energy: &Option<Energy>| energy.filter(|energy| energy.source == Source::Measured);
        let all: Option<Vec<Energy>> = energies.iter().map(measured).collect();
        let mean_watts = all.as_ref().map(|all| all.iter().map(|energy| energy.power.0).sum());
        let coverage = all.map(|all| all.iter().map(|energy| energy.coverage).fold(1.0, f64::min));
        let server_seconds = modelled.on_seconds + modelled.standby_seconds + modelled.transition_seconds;
        let modelled_mean_watts = of as f64 * modelled.total_joules / server_seconds.max(f64::MIN_POSITIVE);
        // At another speed a transition lasts `speed` times as long in trace time, and its joules count once.
        let comparable = energies.len() == of && speed == 1.0;
        let error = |watts: f64| 100.0 * (modelled_mean_watts / watts - 1.0);
        let model_error_percent = mean_watts.filter(|watts| comparable && *watts > 0.0).map(error);
        Measured {
            servers: energies.len(),
            of,
            mean_watts,
            coverage,
            modelled_mean_watts,
            model_error_percent,
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { servers, of, modelled_mean_watts, .. } = self;
        write!(f, "measured  ")?;
        match (self.mean_watts, self.coverage) {
            (Some(watts), Some(coverage)) => {
                write!(
                    f,
                    "{watts:.1} W on average by {servers} of {of} servers' controllers ({:.0} % of the time)",
                    coverage * 100.0
                )?;
            }
            _ => write!(f, "nothing: a controller of {servers} gave no reading; see `ebb lab meter read`")?,
        }
        write!(f, "; modelled {modelled_mean_watts:.1} W")?;
        match self.model_error_percent {
            Some(error) => writeln!(f, ": the model is {error:+.1} % off"),
            None => writeln!(f, " of all; they can be compared at --speed 1 with every server measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Joules, Watts};

    fn energy(watts: f64, coverage: f64) -> Option<Energy> {
        Some(Energy { energy: Joules(watts * 10.0), power: Watts(watts), coverage, source: Source::Measured })
    }

    #[test]
    fn the_model_is_compared_with_what_all_servers_measured_and_with_nothing_else() {
        // Two servers for 10 s, one of them asleep for half of it.
        let modelled = EnergyFigures {
            total_joules: 1_100.0,
            on_seconds: 15.0,
            standby_seconds: 5.0,
            ..Default::default()
        };
        let both = [energy(80.0, 0.9), energy(20.0, 1.0)];
        let found = Measured::new(&both, 2, &modelled, 1.0);
        assert_eq!((found.mean_watts, found.coverage), (Some(100.0), Some(0.9)));
        assert!((found.modelled_mean_watts - 110.0).abs() < 1e-9);
        assert!((found.model_error_percent.unwrap() - 10.0).abs() < 1e-9);
        assert!(found.to_string().contains("+10.0 % off"), "{found}");
        assert_eq!(Measured::new(&both, 3, &modelled, 1.0).model_error_percent, None, "one has no meter");
        assert_eq!(Measured::new(&both, 2, &modelled, 60.0).model_error_percent, None, "another speed");
        let silent = Measured::new(&[energy(80.0, 1.0), None], 2, &modelled, 1.0);
        assert_eq!((silent.mean_watts, silent.model_error_percent), (None, None));
        assert!(silent.to_string().contains("gave no reading"), "{silent}");
    }
}
