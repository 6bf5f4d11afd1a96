//! The one-line description of a meter: `KIND[,OPTION[=VALUE]]...[:ADDRESS]`.
//!
//! Options precede the colon, so that everything after it is the address verbatim: URLs, queries and shell commands may
//! contain commas and equals signs. No option takes a password: command lines are visible to all users.

use super::sysfs::Machine;
use super::{Meter, MeterError, OpenMeter};
use super::{ata, battery, command, hwmon, ipmi, model, nvme, prometheus, rapl, redfish};
use std::path::PathBuf;
use std::time::Duration;

type Open = fn(&Machine, &mut Spec) -> Result<Box<dyn Meter>, MeterError>;

/// A kind of meter: its syntax, what it covers and what it does not.
pub struct Kind {
    pub name: &'static str,
    pub form: &'static str,
    /// Its own options, in addition to `name` and `interval`.
    pub options: &'static str,
    pub sees: &'static str,
    pub does_not_see: &'static str,
    /// Default time between readings: as often as the source is updated.
    pub interval: Duration,
    open: Open,
}

/// All kinds, in listing order.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "rapl",
        form: "rapl",
        options: "",
        sees: "energy of processor packages and, on servers, of memory, counted by the processor",
        does_not_see: "drives, fans, network cards, the mainboard, losses of the power supply",
        interval: Duration::from_millis(100),
        open: rapl::open,
    },
    Kind {
        name: "hwmon",
        form: "hwmon | hwmon:CHIP",
        options: "",
        sees: "whatever the sensor chips of the mainboard and of devices measure: watts, joules, volts, amperes, °C",
        does_not_see: "what no chip measures; chips may overlap: name the one that you mean",
        interval: Duration::from_millis(500),
        open: hwmon::open,
    },
    Kind {
        name: "battery",
        form: "battery",
        options: "",
        sees: "what the whole machine takes from its battery",
        does_not_see: "anything while the machine is plugged in",
        interval: Duration::from_secs(1),
        open: battery::open,
    },
    Kind {
        name: "redfish",
        form: "redfish:https://USER@HOST[/redfish/v1/Chassis/ID]",
        options: "password-file=FILE, password-env=VARIABLE, ca=FILE (authority to trust), insecure (trust anyone), timeout=TIME",
        sees: "the whole machine at its power supplies' inputs, and its temperatures, by the management controller",
        does_not_see: "changes faster than the controller's own averaging, a second or more",
        interval: Duration::from_secs(2),
        open: redfish::open,
    },
    Kind {
        name: "ipmi",
        form: "ipmi | ipmi:[USER@]HOST[:PORT]",
        options: "password-file=FILE, password-env=VARIABLE, sensors, cipher=N, level=L (as ipmitool's -C and -L), timeout=TIME",
        sees: "the whole machine at its power supplies' inputs by IPMI DCMI; with the option sensors, all watts and °C of \
               the controller's sensors",
        does_not_see: "changes faster than the controller's own averaging, a second or more",
        interval: Duration::from_secs(2),
        open: ipmi::open,
    },
    Kind {
        name: "nvme",
        form: "nvme:/dev/nvme0",
        options: "",
        sees: "an NVMe drive's temperature and, as root, its power state",
        does_not_see: "watts: a drive does not measure them",
        interval: Duration::from_secs(1),
        open: nvme::open,
    },
    Kind {
        name: "ata",
        form: "ata:/dev/sda",
        options: "",
        sees: "a SATA drive's temperature (module drivetemp) and, as root, its power state",
        does_not_see: "watts: a drive does not measure them",
        interval: Duration::from_secs(5),
        open: ata::open,
    },
    Kind {
        name: "prometheus",
        form: "prometheus:URL?QUERY",
        options: "quantity=energy|temperature|voltage|current, password-file=FILE, password-env=VARIABLE, ca=FILE, insecure, timeout=TIME",
        sees: "what the query answers, as watts unless the option quantity says otherwise",
        does_not_see: "changes between two scrapes",
        interval: Duration::from_secs(5),
        open: prometheus::open,
    },
    Kind {
        name: "command",
        form: "command:COMMAND",
        options: "quantity=energy|temperature|voltage|current, timeout=TIME",
        sees: "the number that a shell command prints, as watts unless the option quantity says otherwise",
        does_not_see: "what the command does not say",
        interval: Duration::from_secs(1),
        open: command::open,
    },
    Kind {
        name: "model",
        form: "model | model:FILE",
        options: "",
        sees: "nothing: it computes watts from how busy this machine is, with the figures of a measured storage node or \
               those in FILE",
        does_not_see: "any real watt",
        interval: Duration::from_millis(200),
        open: model::open,
    },
];

/// A parsed spec. Drivers take the options that they know; a remaining one is an error.
#[derive(Debug)]
pub(super) struct Spec {
    text: String,
    options: Vec<(String, Option<String>)>,
    address: Option<String>,
}

impl Spec {
    fn parse(text: &str) -> (String, Spec) {
        let (head, address) = match text.split_once(':') {
            Some((head, address)) => (head, Some(address.to_string())),
            None => (text, None),
        };
        let mut words = head.split(',');
        let kind = words.next().unwrap_or_default().trim().to_string();
        let option = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key.trim().to_string(), Some(value.trim().to_string())),
            None => (word.trim().to_string(), None),
        };
        (kind, Spec { text: text.to_string(), options: words.map(option).collect(), address })
    }

    /// An error about this spec.
    pub(super) fn wrong(&self, why: impl Into<String>) -> MeterError {
        MeterError::Spec { spec: self.text.clone(), why: why.into() }
    }

    pub(super) fn unavailable(&self, why: impl Into<String>, remedy: impl Into<String>) -> MeterError {
        MeterError::Unavailable { meter: self.text.clone(), why: why.into(), remedy: remedy.into() }
    }

    pub(super) fn address(&self) -> Option<&str> {
        self.address.as_deref().filter(|address| !address.is_empty())
    }

    /// The address of a kind that needs one.
    pub(super) fn needed(&self, what: &str) -> Result<String, MeterError> {
        self.address()
            .map(str::to_string)
            .ok_or_else(|| self.wrong(format!("after the colon belongs {what}")))
    }

    fn take(&mut self, key: &str) -> Option<Option<String>> {
        let index = self.options.iter().position(|(name, _)| name == key)?;
        Some(self.options.remove(index).1)
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Option<String>, MeterError> {
        match self.take(key) {
            None => Ok(None),
            Some(Some(value)) if !value.is_empty() => Ok(Some(value)),
            Some(_) => Err(self.wrong(format!("the option {key} needs a value: {key}=..."))),
        }
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, MeterError> {
        match self.take(key) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(_)) => Err(self.wrong(format!("the option {key} takes no value"))),
        }
    }

    pub(super) fn duration(&mut self, key: &str) -> Result<Option<Duration>, MeterError> {
        let Some(value) = self.value(key)? else { return Ok(None) };
        parse_interval(&value).map(Some).map_err(|error| self.wrong(format!("{key}: {error}")))
    }

    /// The password: from the file of the option `password-file`, else from the environment variable of the option
    /// `password-env`, else from EBB_METER_PASSWORD.
    pub(super) fn password(&mut self) -> Result<Option<String>, MeterError> {
        if let Some(path) = self.value("password-file")? {
            let path = PathBuf::from(path);
            let text = std::fs::read_to_string(&path).map_err(|source| MeterError::File { path, source })?;
            return Ok(Some(text.trim_end_matches(['\n', '\r']).to_string()));
        }
        match self.value("password-env")? {
            Some(name) => std::env::var(&name)
                .map(Some)
                .map_err(|_| self.wrong(format!("the environment variable {name} is not set"))),
            None => Ok(std::env::var("EBB_METER_PASSWORD").ok()),
        }
    }
}

/// A time between two readings: longer than zero, a day at most.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = ebb_types::parse_duration(text)?;
    let good = !time.is_zero() && time <= Duration::from_secs(86_400);
    good.then_some(time).ok_or_else(|| format!("{text:?} is not between zero and a day"))
}

fn forms() -> String {
    KINDS.iter().map(|kind| kind.form).collect::<Vec<_>>().join(", ")
}

/// Opens the meter that `spec` describes; see [`super::open`].
pub fn open_on(machine: &Machine, text: &str) -> Result<OpenMeter, MeterError> {
    let (kind, mut spec) = Spec::parse(text);
    let Some(kind) = KINDS.iter().find(|known| known.name == kind) else {
        return Err(spec.wrong(format!("it has one of these forms: {}", forms())));
    };
    let name = spec.value("name")?.unwrap_or_else(|| text.to_string());
    let interval = spec.duration("interval")?.unwrap_or(kind.interval);
    let meter = (kind.open)(machine, &mut spec)?;
    if let Some((option, _)) = spec.options.first() {
        return Err(spec.wrong(format!("{} has no option {option:?}", kind.name)));
    }
    Ok(OpenMeter { name, interval, meter })
}
