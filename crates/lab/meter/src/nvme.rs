//! An NVMe drive: its temperature from hwmon, or else from the drive's SMART log; its power state from the admin
//! command Get Features, which requires root.

use super::hwmon::Sensors;
use super::spec::Spec;
use super::sysfs;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use ebb_power::passthrough::{Admin, AdminCommand, nvme_power_state};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const GET_LOG_PAGE: u8 = 0x02;
const SMART_LOG: u32 = 0x02;
const SMART_BYTES: u32 = 512;
const TIMEOUT: Duration = Duration::from_secs(5);

fn power_state(drive: &File) -> io::Result<Option<f64>> {
    nvme_power_state(drive, TIMEOUT).map(|state| Some(f64::from(state)))
}

fn smart_temperature(drive: &File) -> io::Result<Option<f64>> {
    let mut log = [0u8; SMART_BYTES as usize];
    let cdw10 = SMART_LOG | ((SMART_BYTES / 4 - 1) << 16);
    let command = AdminCommand { opcode: GET_LOG_PAGE, nsid: u32::MAX, cdw10, cdw11: 0 };
    drive.admin(command, &mut log, TIMEOUT)?;
    Ok(composite(&log))
}

/// The SMART log's composite temperature, stored in kelvin; zero means that the drive does not report it.
fn composite(log: &[u8; SMART_BYTES as usize]) -> Option<f64> {
    let kelvin = u16::from_le_bytes([log[1], log[2]]);
    (kelvin != 0).then(|| f64::from(kelvin) - 273.0)
}

/// A drive's answer; `None`: it failed, and `absent` says why.
fn or_why<T>(answer: io::Result<T>, what: &str, absent: &mut Option<String>) -> Option<T> {
    answer.inspect_err(|error| *absent = Some(format!("the drive does not tell its {what}: {error}"))).ok()
}

/// What a drive itself is asked: the name of the answer, and how.
pub(super) type Ask = (&'static str, fn(&File) -> io::Result<Option<f64>>);

/// A drive with its sensors, behind which stand the drive's own answers.
pub(super) struct Drive {
    pub sensors: Option<Sensors>,
    pub file: Option<File>,
    pub asks: Vec<Ask>,
}

/// `nvme0` of `/dev/nvme0`, `/dev/nvme0n1` and `nvme0`.
fn controller(address: &str) -> Option<&str> {
    let name = address.strip_prefix("/dev/").unwrap_or(address);
    let digits = name.strip_prefix("nvme")?;
    let end = digits.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    (end > 0 && !name.contains('/')).then(|| &name[.."nvme".len() + end])
}

/// The places where different kernel versions put the drive's hwmon chip.
fn hwmon_of(controller: &Path) -> Option<PathBuf> {
    let places = ["", "hwmon", "device", "device/hwmon"].map(|place| controller.join(place));
    places.iter().find_map(|place| {
        let chip = |name: &String| name.strip_prefix("hwmon").is_some_and(|n| !n.is_empty());
        sysfs::names(place).into_iter().find(chip).map(|name| place.join(name))
    })
}

/// All controllers of this machine.
pub(super) fn controllers(machine: &Machine) -> Vec<String> {
    sysfs::names(&machine.sys.join("class/nvme"))
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let address = spec.needed("the drive, such as /dev/nvme0")?;
    let name = controller(&address)
        .ok_or_else(|| spec.wrong(format!("{address} is not an NVMe drive: give /dev/nvme0")))?
        .to_string();
    let in_sysfs = machine.sys.join("class/nvme").join(&name);
    if !in_sysfs.is_dir() {
        return Err(spec.unavailable(
            format!("this machine has no NVMe drive {name}"),
            "`ebb lab meter list` shows the drives that it has",
        ));
    }
    let sensors = hwmon_of(&in_sysfs).map(|dir| Sensors::of_chip(&dir, &name, "temp")).transpose()?;
    let sensors = sensors.filter(|sensors| !sensors.channels.is_empty());
    let drive = File::open(machine.dev.join(&name)).and_then(|drive| power_state(&drive).map(|_| drive));
    let mut asks: Vec<Ask> = Vec::new();
    let mut channels = match (&sensors, &drive) {
        (Some(sensors), _) => sensors.channels.clone(),
        (None, Ok(_)) => {
            asks.push(("temperature", smart_temperature));
            let sees = "the drive's composite temperature";
            vec![Channel::measured("temperature", Quantity::Temperature, sees)]
        }
        (None, Err(error)) => {
            return Err(spec.unavailable(
                format!("neither hwmon nor the drive itself answers: {error}"),
                "run as root, or use a kernel with CONFIG_NVME_HWMON",
            ));
        }
    };
    if drive.is_ok() {
        asks.push(("power state", power_state));
        let sees = "number of the NVMe power state; 0 draws most";
        channels.push(Channel::measured("power-state", Quantity::PowerState, sees));
    }
    Ok((channels, Box::new(Drive { sensors, file: drive.ok(), asks })))
}

impl Meter for Drive {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let mut readings = self.sensors.as_mut().map_or(Ok(Vec::new()), |sensors| sensors.read(absent))?;
        if let Some(file) = &self.file {
            readings.extend(self.asks.iter().map(|(what, ask)| or_why(ask(file), what, absent).flatten()));
        }
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};
    use super::*;

    #[test]
    fn a_drive_that_fails_says_why() {
        let mut absent = None;
        assert_eq!(or_why(Ok(7), "power state", &mut absent), Some(7));
        assert_eq!(absent, None);
        assert_eq!(or_why(Err::<f64, _>(io::Error::other("it resets")), "power state", &mut absent), None);
        assert_eq!(absent.as_deref(), Some("the drive does not tell its power state: it resets"));
    }

    #[test]
    fn answers_are_decoded() {
        let mut log = [0u8; 512];
        assert_eq!(composite(&log), None);
        log[1..3].copy_from_slice(&314u16.to_le_bytes());
        assert_eq!(composite(&log), Some(41.0));
        assert_eq!(controller("/dev/nvme12n1p3"), Some("nvme12"));
        assert_eq!(controller("/dev/sda"), None);
        assert_eq!(controller("/dev/nvme"), None);
    }

    #[test]
    fn a_drive_whose_commands_are_not_allowed_still_has_its_temperature() {
        for place in ["hwmon2", "hwmon/hwmon2", "device/hwmon2", "device/hwmon/hwmon2"] {
            let (dir, machine) = machine();
            let at = format!("sys/class/nvme/nvme0/{place}");
            write(&dir, &format!("{at}/name"), "nvme");
            write(&dir, &format!("{at}/temp1_input"), "36850");
            write(&dir, &format!("{at}/temp1_label"), "Composite");
            let mut open = open_on(&machine, "nvme:/dev/nvme0n1").unwrap();
            assert_eq!(open.channels[0].name, "nvme0/Composite");
            assert_eq!(open.meter.read(&mut None).unwrap(), [Some(36.85)]);
        }
        let (dir, machine) = machine();
        let error = |spec| open_on(&machine, spec).map(|_| ()).unwrap_err().to_string();
        assert!(error("nvme:/dev/nvme0").contains("no NVMe drive nvme0"));
        write(&dir, "sys/class/nvme/nvme0/model", "X");
        assert!(error("nvme:/dev/nvme0").contains("run as root"));
    }
}
