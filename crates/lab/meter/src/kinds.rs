//! The kinds of meters, and how a description opens one: a driver is a file and a row here.

use super::spec::Spec;
use super::{MeterError, OpenMeter, Opened};
use super::{ata, battery, command, hwmon, ipmi, model, nvme, prometheus, rapl, redfish};
use ebb_power::Machine;
use std::time::Duration;

type Open = fn(&Machine, &mut Spec) -> Result<Opened, MeterError>;

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
        options: "password-file=FILE, password-env=VARIABLE, ca=FILE (authority to trust), fingerprint=DIGITS (SHA-256 of the one \
                  certificate to trust), insecure (trust anyone), timeout=TIME",
        sees: "the whole machine at its power supplies' inputs, and its temperatures, by the management controller",
        does_not_see: "changes faster than the controller's own averaging, a second or more",
        interval: Duration::from_secs(2),
        open: redfish::open,
    },
    Kind {
        name: "ipmi",
        form: "ipmi | ipmi:[USER@]HOST[:PORT]",
        options: "password-file=FILE, password-env=VARIABLE, sensors, cipher=N, level=L (as ipmitool's -C and -L), program=PROGRAM \
                  (instead of ipmitool), timeout=TIME",
        sees: "the whole machine at its power supplies' inputs by IPMI DCMI; with the option sensors, all watts and °C of \
               the controller's sensors",
        does_not_see: "changes faster than the controller's own averaging, a second or more",
        interval: Duration::from_secs(5),
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
        options: "quantity=energy|temperature|voltage|current, password-file=FILE, password-env=VARIABLE, ca=FILE, fingerprint=DIGITS, insecure, timeout=TIME",
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
    let (channels, meter) = (kind.open)(machine, &mut spec)?;
    if let Some((option, _)) = spec.options.first() {
        return Err(spec.wrong(format!("{} has no option {option:?}", kind.name)));
    }
    Ok(OpenMeter { name, interval, channels, meter })
}
