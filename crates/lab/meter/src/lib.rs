//! Meters: drivers that read watts, joules and temperatures, one file per driver, and the recorder that samples several
//! of them at once.
//!
//! A meter has channels; a channel has one [`Quantity`], and its readings are numbers in that quantity's unit. A
//! missing reading is absent, never zero. Every channel says whether it is measured, stated or modelled, what it
//! covers, and which other channel already contains it, so that nothing is counted twice.
//!
//! All samples are stamped with `CLOCK_MONOTONIC` ([`now`]); [`Clock`] relates it to the wall clock once, so that
//! stepping the wall clock during a run has no effect.

mod ata;
mod battery;
mod clock;
mod command;
mod csv;
mod http;
mod hwmon;
mod ipmi;
mod kinds;
mod list;
mod model;
mod nvme;
mod prometheus;
mod rapl;
mod recorder;
mod recording;
mod redfish;
mod spec;
mod sysfs;

pub use clock::{Clock, now};
pub use command::parse_quantity;
pub use csv::{Import, export, import, parse_unix_nanos};
pub use kinds::{KINDS, Kind, open_on};
pub use list::{Listed, list};
pub use recorder::Recorder;
pub use recording::{Energy, Figures, MeterRecord, Recording, Sample, Track, Window};
pub use spec::parse_interval;

use ebb_power::Machine;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The origin of a reading. Shown wherever the reading is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    Measured,
    /// A program of the user's printed it; whether that was measured, only the program knows.
    Stated,
    Modelled,
}

impl Source {
    /// `measured`, `stated` or `modelled`.
    pub fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Stated => "stated",
            Source::Modelled => "modelled",
        }
    }
}

/// The quantity of a channel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Watts.
    Power,
    /// Joules since some time in the past; a counter.
    Energy {
        /// Joules at which the counter wraps to zero. `None`: it is not known to wrap.
        range: Option<f64>,
    },
    /// Degrees Celsius.
    Temperature,
    /// Volts.
    Voltage,
    /// Amperes.
    Current,
    /// A device's own number for its power state; numbers of different kinds of devices cannot be compared.
    PowerState,
}

impl Quantity {
    /// The unit of the channel's numbers, as shown: `W`, `J`, `°C`, `V`, `A`, or nothing.
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::Power => "W",
            Quantity::Energy { .. } => "J",
            Quantity::Temperature => "°C",
            Quantity::Voltage => "V",
            Quantity::Current => "A",
            Quantity::PowerState => "",
        }
    }

    /// `power`, `energy`, `temperature`, `voltage`, `current`, `power-state`.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Power => "power",
            Quantity::Energy { .. } => "energy",
            Quantity::Temperature => "temperature",
            Quantity::Voltage => "voltage",
            Quantity::Current => "current",
            Quantity::PowerState => "power-state",
        }
    }
}

/// One value that a meter reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Unique within its meter.
    pub name: String,
    pub quantity: Quantity,
    pub source: Source,
    /// The channel of the same meter that contains this one's energy; sums leave this one out.
    pub part_of: Option<String>,
    /// In words: what this number covers.
    pub sees: String,
}

impl Channel {
    /// Of a device that measures it, and no part of another channel.
    fn measured(name: impl Into<String>, quantity: Quantity, sees: impl Into<String>) -> Channel {
        let (name, sees) = (name.into(), sees.into());
        Channel { name, quantity, source: Source::Measured, part_of: None, sees }
    }
}

/// A driver. It may block up to its own timeout; the recorder gives each meter a thread.
pub trait Meter: Send {
    /// One reading per channel, in the order of [`OpenMeter::channels`], each in its quantity's unit. `None`: that
    /// channel has no reading now; `absent` then says why, where the driver knows. An error: no channel has one.
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError>;
}

/// What a driver opens: its channels, and what reads them.
type Opened = (Vec<Channel>, Box<dyn Meter>);

/// A meter that is ready to be read.
pub struct OpenMeter {
    /// The name under which its channels are filed; the caller keeps names unique.
    pub name: String,
    /// Time between readings.
    pub interval: Duration,
    pub channels: Vec<Channel>,
    pub meter: Box<dyn Meter>,
}

#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    #[error("{spec:?} is not a meter: {why}")]
    Spec { spec: String, why: String },
    #[error("{meter}: {why}; {remedy}")]
    Unavailable { meter: String, why: String, remedy: String },
    #[error("cannot read {path}: {source}; check that the device is still there and that you may read it")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} says {text:?} where a number belongs; this driver does not understand that device")]
    Number { path: PathBuf, text: String },
    #[error("{url}: {why}; {remedy}")]
    Http { url: String, why: String, remedy: String },
    #[error("the command {command:?} gave no reading: {why}")]
    Command { command: String, why: String },
    #[error("line {line} of the samples: {why}")]
    Import { line: u64, why: String },
    #[error("cannot start the thread that samples {meter}: {source}")]
    Thread { meter: String, source: std::io::Error },
    #[error("cannot write the samples: {source}")]
    Export { source: std::io::Error },
}

/// Opens the meter that `spec` describes: `KIND[,OPTION[=VALUE]]...[:ADDRESS]`.
///
/// | spec | reads |
/// |---|---|
/// | `rapl` | processor packages and memory |
/// | `hwmon`, `hwmon:CHIP` | sensors of the mainboard and of devices |
/// | `battery` | what a battery gives |
/// | `redfish:https://USER@HOST[/redfish/v1/Chassis/ID]` | the management controller's power and temperatures |
/// | `ipmi`, `ipmi:[USER@]HOST` | the same by IPMI DCMI (runs `ipmitool`) |
/// | `nvme:/dev/nvme0`, `ata:/dev/sda` | a drive's temperature and power state |
/// | `prometheus:URL?QUERY` | the answer to an instant query |
/// | `command:COMMAND` | a shell command that prints watts |
/// | `model`, `model:FILE` | modelled watts of this machine; FILE is a [`ebb_power::PowerModel`] in TOML |
///
/// Options of every kind: `name=` (what its channels are filed under; else the spec), `interval=` (such as `200ms`).
pub fn open(spec: &str) -> Result<OpenMeter, MeterError> {
    open_on(&Machine::default(), spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A machine with an empty sysfs and procfs, and the directory to fill in.
    pub fn machine() -> (TempDir, Machine) {
        let dir = TempDir::new().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        let machine = Machine { sys: at("sys"), proc: at("proc"), dev: at("dev") };
        (dir, machine)
    }

    pub fn write(dir: &TempDir, path: &str, text: &str) {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    #[test]
    fn a_wrong_spec_is_explained() {
        let (_dir, machine) = machine();
        let error = |spec: &str| open_on(&machine, spec).map(|_| ()).unwrap_err().to_string();
        assert!(error("raple").contains("redfish:https://"), "{}", error("raple"));
        assert!(error("command,interval=soon:echo 1").contains("invalid duration \"soon\""));
        assert!(error("command,name=:echo 1").contains("needs a value"));
        assert!(error("redfish:https://admin:secret@bmc").contains("password-file"));
        assert!(error("ipmi:admin:secret@bmc").contains("password-file"));
        assert!(error("redfish,password-env=EBB_TEST_UNSET:https://admin@bmc").contains("EBB_TEST_UNSET"));
        assert!(error("redfish:ftp://bmc").contains("https://"));
        assert!(error("prometheus:http://127.0.0.1:9090").contains("query is missing"));
    }

    #[test]
    fn name_and_interval_are_options_of_every_kind() {
        let (_dir, machine) = machine();
        let open = open_on(&machine, "command,name=plug,interval=250ms:echo 1,2=3").unwrap();
        assert_eq!((open.name.as_str(), open.interval), ("plug", Duration::from_millis(250)));
        assert_eq!(open_on(&machine, "command:echo 1").unwrap().name, "command:echo 1");
        assert_eq!(parse_interval("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["0", "-1s", "infs", "2parsecs", "25h"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
