//! A SATA drive: its temperature from the kernel module drivetemp, its power state from the ATA command CHECK POWER
//! MODE, sent through SCSI pass-through, which requires root. The command does not wake a drive in standby.

use super::hwmon::Sensors;
use super::nvme::{Ask, Drive};
use super::spec::Spec;
use super::sysfs;
use super::{Channel, MeterError, Opened, Quantity};
use ebb_power::Machine;
use ebb_power::passthrough::ata_power_mode;
use std::fs::File;
use std::io;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

fn power_mode(drive: &File) -> io::Result<Option<f64>> {
    ata_power_mode(drive, TIMEOUT).map(|mode| Some(f64::from(mode)))
}

/// Disks that may be ATA drives.
pub(super) fn disks(machine: &Machine) -> Vec<String> {
    let names = sysfs::names(&machine.sys.join("block"));
    names.into_iter().filter(|name| name.starts_with("sd")).collect()
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let address = spec.needed("the drive, such as /dev/sda")?;
    let name = address.strip_prefix("/dev/").unwrap_or(&address).to_string();
    let in_sysfs = machine.sys.join("block").join(&name);
    if name.contains('/') || name.starts_with('.') || !in_sysfs.is_dir() {
        return Err(spec.unavailable(
            format!("this machine has no drive {name}"),
            "give the whole drive, such as /dev/sda, not a partition",
        ));
    }
    let chips = in_sysfs.join("device/hwmon");
    let chip = sysfs::names(&chips).into_iter().next();
    let sensors = chip.map(|chip| Sensors::of_chip(&chips.join(chip), &name, "temp")).transpose()?;
    let sensors = sensors.filter(|sensors| !sensors.channels.is_empty());
    let drive = File::open(machine.dev.join(&name)).and_then(|drive| power_mode(&drive).map(|_| drive));
    let mut channels = Vec::new();
    match (&sensors, &drive) {
        (None, Err(error)) => {
            return Err(spec.unavailable(
                format!("no temperature in hwmon, and no power state: {error}"),
                "load the module drivetemp for the temperature, and run as root for the power state",
            ));
        }
        (Some(sensors), _) => channels.extend_from_slice(&sensors.channels),
        (None, Ok(_)) => {}
    }
    if drive.is_ok() {
        channels.push(Channel::measured(
            "power-state",
            Quantity::PowerState,
            "answer to CHECK POWER MODE: 0 standby, 128 to 131 idle, 255 active",
        ));
    }
    let ask: Ask = ("power mode", power_mode);
    Ok((channels, Box::new(Drive { sensors, file: drive.ok(), asks: vec![ask] })))
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};

    #[test]
    fn a_drive_has_its_temperature_from_drivetemp() {
        let (dir, machine) = machine();
        write(&dir, "sys/block/sda/size", "1");
        let error = open_on(&machine, "ata:/dev/sda").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("drivetemp"), "{error}");
        write(&dir, "sys/block/sda/device/hwmon/hwmon4/name", "drivetemp");
        write(&dir, "sys/block/sda/device/hwmon/hwmon4/temp1_input", "33000");
        let mut open = open_on(&machine, "ata:/dev/sda").unwrap();
        assert_eq!(open.channels[0].name, "sda/temp1");
        assert_eq!(open.meter.read(&mut None).unwrap(), [Some(33.0)]);
        let error = open_on(&machine, "ata:/dev/../etc").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no drive"), "{error}");
    }
}
