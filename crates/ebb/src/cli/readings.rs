//! Measured watts of every server, beside the modelled ones of a status: `ebb status --measured`.
//!
//! This program asks the servers' management controllers itself, and only when the user wishes it: the metadata service
//! asks no controller for a status. All are asked at the same time, one call at a time each. What is not there at the
//! deadline is absent, with the reason.

use crate::cluster::config::Config;
use crate::error::NodeError;
use ebb_meter::MeterError;
use ebb_meter::{Quantity, Source};
use ebb_types::{ServerId, Watts};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// For all controllers together; longer than one that does not answer takes to say so.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// What a server draws, or why that is not known.
type Answer = Result<Watts, String>;

/// The meter of a server.
pub struct ServerMeter {
    pub server: ServerId,
    /// As [`ebb_meter::open`] takes it, or why there is none.
    pub spec: Result<String, String>,
    /// What is asked one call at a time.
    controller: String,
}

/// The meter of each server: the first of its power paths that is one.
pub fn meters(config: &Config) -> Result<Vec<ServerMeter>, NodeError> {
    let switches = config.power_paths(|_| None)?;
    let meter = |(server, paths): (ServerId, &[ebb_power::switch::Path])| {
        let found = paths.iter().find_map(|path| {
            let about = path.about();
            Some((about.meter.clone()?, about.controller.clone()))
        });
        let drivers: Vec<&str> = paths.iter().map(|path| path.about().driver).collect();
        let none = match drivers.is_empty() {
            true => "it has no switch; [[server.power]] with redfish or ipmi also measures".to_owned(),
            false => {
                format!("{} measures nothing; [[server.power]] with redfish or ipmi does", drivers.join(", "))
            }
        };
        let (spec, controller) = found.map_or((Err(none), String::new()), |(spec, by)| (Ok(spec), by));
        ServerMeter { server, spec, controller }
    };
    Ok(switches.servers().map(meter).collect())
}

/// Reads each meter once.
pub fn read(meters: Vec<ServerMeter>, deadline: Duration) -> Result<BTreeMap<ServerId, Answer>, NodeError> {
    let until = Instant::now() + deadline;
    let mut readings = BTreeMap::new();
    let mut by_controller: BTreeMap<String, Vec<(ServerId, String)>> = BTreeMap::new();
    for ServerMeter { server, spec, controller } in meters {
        let late = || format!("no answer of {controller} within {} s", deadline.as_secs_f64());
        readings.insert(server, Err(spec.as_ref().map_or_else(Clone::clone, |_| late())));
        if let Ok(spec) = spec {
            by_controller.entry(controller).or_default().push((server, spec));
        }
    }
    let (send, received) = channel();
    for (meter, servers) in by_controller {
        let send = send.clone();
        let ask = move || {
            for (server, spec) in servers {
                // The receiver is gone after the deadline.
                let _ = send.send((server, watts(&spec)));
            }
        };
        // One that hangs ends with this program.
        let started = std::thread::Builder::new().name("meter".into()).spawn(ask);
        started.map_err(|source| MeterError::Thread { meter, source })?;
    }
    drop(send);
    while let Ok((server, reading)) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
        readings.insert(server, reading);
    }
    Ok(readings)
}

/// The power that the meter measures now.
fn watts(spec: &str) -> Answer {
    let mut open = ebb_meter::open(spec).map_err(|error| error.to_string())?;
    let readings = open.meter.read(&mut None).map_err(|error| error.to_string())?;
    let counts = |channel: &ebb_meter::Channel| {
        channel.quantity == Quantity::Power && channel.source == Source::Measured && channel.part_of.is_none()
    };
    let channels = open.channels.iter().zip(readings).filter(|(channel, _)| counts(channel));
    let all: Vec<Option<f64>> = channels.map(|(_, watts)| watts).collect();
    match all.iter().copied().collect::<Option<Vec<f64>>>() {
        Some(all) if !all.is_empty() => Ok(Watts(all.iter().sum())),
        Some(_) => Err(format!("{} measures no power", open.name)),
        None => Err(format!("{} has no reading of power now", open.name)),
    }
}

/// Measured watts beside modelled ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Readings {
    /// Servers with a reading, of how many.
    pub servers: usize,
    pub of: usize,
    /// Of those servers together; absent: there is none.
    pub watts: Option<Watts>,
    /// Of the same servers; absent: the model does not know one of them, or there is none.
    pub modelled_watts: Option<Watts>,
    /// By how much the model is above what was measured.
    pub model_error_percent: Option<f64>,
    /// In order of their ids.
    pub by_server: Vec<ServerReading>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerReading {
    pub id: ServerId,
    pub watts: Option<Watts>,
    pub modelled_watts: Option<Watts>,
    pub model_error_percent: Option<f64>,
    /// Why there is no reading.
    pub absent: Option<String>,
}

fn error_percent(watts: Option<Watts>, modelled: Option<Watts>) -> Option<f64> {
    let measured = watts.filter(|watts| watts.0 > 0.0)?;
    Some(100.0 * (modelled?.0 / measured.0 - 1.0))
}

impl Readings {
    /// `modelled`: what the model says of each server.
    pub fn new(
        modelled: impl Iterator<Item = (ServerId, Option<Watts>)>,
        mut answers: BTreeMap<ServerId, Answer>,
    ) -> Readings {
        let unknown = || Err("the configuration file does not have this server".to_owned());
        let one = |(id, modelled_watts): (ServerId, Option<Watts>)| {
            let (watts, absent) = match answers.remove(&id).unwrap_or_else(unknown) {
                Ok(watts) => (Some(watts), None),
                Err(why) => (None, Some(why)),
            };
            let model_error_percent = error_percent(watts, modelled_watts);
            ServerReading { id, watts, modelled_watts, model_error_percent, absent }
        };
        let by_server: Vec<ServerReading> = modelled.map(one).collect();
        let read: Vec<&ServerReading> = by_server.iter().filter(|server| server.watts.is_some()).collect();
        let (servers, of) = (read.len(), by_server.len());
        let sum = |watts: fn(&ServerReading) -> Option<Watts>| -> Option<Watts> {
            let all: Option<Vec<Watts>> = read.iter().map(|server| watts(server)).collect();
            all.filter(|all| !all.is_empty()).map(|all| all.into_iter().sum())
        };
        let (watts, modelled_watts) = (sum(|server| server.watts), sum(|server| server.modelled_watts));
        let model_error_percent = error_percent(watts, modelled_watts);
        Readings { servers, of, watts, modelled_watts, model_error_percent, by_server }
    }

    fn of(&self, id: ServerId) -> Option<&ServerReading> {
        self.by_server.iter().find(|server| server.id == id)
    }

    /// The columns of a server's row: measured watts, and the model's error.
    pub fn columns(&self, id: ServerId) -> [String; 2] {
        let server = self.of(id);
        let absent = || "–".to_owned();
        let watts = server.and_then(|server| server.watts);
        let error = server.and_then(|server| server.model_error_percent);
        [
            watts.map_or_else(absent, |watts| format!("{:.1}", watts.0)),
            error.map_or_else(absent, |error| format!("{error:+.1} %")),
        ]
    }

    /// Why the server has no reading.
    pub fn absent(&self, id: ServerId) -> Option<&str> {
        self.of(id)?.absent.as_deref()
    }
}

/// `300.1 W by the controllers of 5 of 9 servers; modelled for the same 290.0 W: the model is -3.4 % off`
impl fmt::Display for Readings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(watts) = self.watts else {
            return f.write_str("by no controller; the reasons are below");
        };
        write!(f, "{watts} by the controllers of {} of {} servers", self.servers, self.of)?;
        match (self.modelled_watts, self.model_error_percent) {
            (Some(modelled), Some(error)) => {
                write!(f, "; modelled for the same {modelled}: the model is {error:+.1} % off")
            }
            _ => f.write_str("; the model does not know all of them"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn meter(server: u16, spec: &str) -> ServerMeter {
        ServerMeter { server: ServerId(server), spec: Ok(spec.into()), controller: format!("bmc{server}") }
    }

    #[test]
    fn what_cannot_be_read_is_absent_with_the_reason_and_a_controller_that_hangs_is_left() {
        let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
        let hang = format!("redfish,timeout=1h:http://{}", hangs.local_addr().unwrap());
        let none = ServerMeter {
            server: ServerId(2),
            spec: Err("wol measures nothing".into()),
            controller: String::new(),
        };
        let readings = read(vec![meter(1, &hang), none], Duration::from_millis(50)).unwrap();
        assert_eq!(readings[&ServerId(1)], Err("no answer of bmc1 within 0.05 s".into()));
        assert_eq!(readings[&ServerId(2)], Err("wol measures nothing".into()));
        // Who prints a number has measured nothing, and all have answered before the deadline.
        let stated =
            read(vec![meter(1, "command:echo 42"), meter(3, "what")], Duration::from_secs(600)).unwrap();
        assert_eq!(stated[&ServerId(1)], Err("command:echo 42 measures no power".into()));
        assert!(stated[&ServerId(3)].as_ref().unwrap_err().contains("it has one of these forms"));
    }

    #[test]
    fn the_model_is_compared_with_what_the_same_servers_measured() {
        let watts = |watts: f64| Some(Watts(watts));
        let modelled = [watts(66.0), watts(5.5), watts(70.0), None];
        let modelled = (1..).map(ServerId).zip(modelled);
        let known = [(1, Ok(Watts(60.0))), (2, Ok(Watts(11.0))), (3, Err("no answer".to_owned()))];
        let answers = || known.clone().into_iter().map(|(id, answer)| (ServerId(id), answer));
        let readings = Readings::new(modelled.clone(), answers().collect());
        assert_eq!((readings.servers, readings.of, readings.watts), (2, 4, watts(71.0)));
        assert_eq!(readings.modelled_watts, watts(71.5));
        assert_eq!(readings.columns(ServerId(1)), ["60.0", "+10.0 %"]);
        assert_eq!(readings.columns(ServerId(2)), ["11.0", "-50.0 %"]);
        assert_eq!(readings.columns(ServerId(3)), ["–", "–"]);
        assert_eq!((readings.absent(ServerId(2)), readings.absent(ServerId(3))), (None, Some("no answer")));
        assert!(readings.absent(ServerId(4)).unwrap().contains("does not have this server"));
        let said = readings.to_string();
        assert!(
            said.starts_with("71.0 W by the controllers of 2 of 4 servers") && said.contains("+0.7 % off"),
            "{said}"
        );
        // A failed server is measured and not modelled.
        let failed = (ServerId(4), Ok(Watts(20.0)));
        let readings = Readings::new(modelled, answers().chain([failed]).collect());
        assert_eq!((readings.watts, readings.modelled_watts), (watts(91.0), None));
        assert_eq!(
            (readings.model_error_percent, readings.columns(ServerId(4))),
            (None, ["20.0", "–"].map(str::to_owned))
        );
        let none = Readings::new([(ServerId(1), watts(60.0))].into_iter(), BTreeMap::new());
        assert_eq!((none.servers, none.watts, none.modelled_watts), (0, None, None));
        assert!(none.to_string().contains("by no controller"));
    }
}
