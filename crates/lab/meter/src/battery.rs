//! A battery: the power that the machine draws from it. Only while it discharges: on mains its watts are those of
//! charging, and say nothing about the machine.

use super::spec::Spec;
use super::sysfs;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use std::path::{Path, PathBuf};

struct Battery {
    dirs: Vec<PathBuf>,
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let root = machine.sys.join("class/power_supply");
    let (mut channels, mut dirs) = (Vec::new(), Vec::new());
    for name in sysfs::names(&root) {
        let dir = root.join(&name);
        let is = |file: &str, word: &str| Ok(sysfs::text(&dir.join(file))?.as_deref() == Some(word));
        // Mice and headsets have batteries of their own.
        if !is("type", "Battery")? || is("scope", "Device")? {
            continue;
        }
        let mut channel = |quantity: Quantity, sees: &str| {
            let name = format!("{name}/{}", quantity.name());
            channels.push(Channel::measured(name, quantity, sees));
        };
        channel(Quantity::Power, "what the machine takes from the battery while it discharges");
        channel(Quantity::Voltage, "at the battery");
        channel(Quantity::Current, "out of the battery while it discharges");
        channel(Quantity::Temperature, "of the battery");
        dirs.push(dir);
    }
    if dirs.is_empty() {
        return Err(spec.unavailable("this machine has no battery", "use another meter"));
    }
    Ok((channels, Box::new(Battery { dirs })))
}

fn read(dir: &Path, absent: &mut Option<String>) -> Result<[Option<f64>; 4], MeterError> {
    // A battery has some of these files.
    let sensor = |file: &str, scale: f64| sysfs::sensor(&dir.join(file), scale, &mut None);
    let status = sysfs::text(&dir.join("status"))?.unwrap_or_default();
    let discharging = status == "Discharging";
    if !discharging {
        *absent = Some(format!("{} says {status:?}: it has watts while it discharges", dir.display()));
    }
    let volts = sensor("voltage_now", 1e-6)?;
    // Some drivers report discharge current as negative.
    let amperes = sensor("current_now", 1e-6)?.map(f64::abs).filter(|_| discharging);
    let watts = match sensor("power_now", 1e-6)?.map(f64::abs) {
        Some(watts) => Some(watts).filter(|_| discharging),
        None => volts.zip(amperes).map(|(volts, amperes)| volts * amperes),
    };
    Ok([watts, volts, amperes, sensor("temp", 0.1)?])
}

impl Meter for Battery {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let mut readings = Vec::new();
        for dir in &self.dirs {
            readings.extend(read(dir, absent)?);
        }
        Ok(readings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};

    #[test]
    fn it_is_absent_on_mains_and_volts_times_amperes_on_the_way() {
        let (dir, machine) = machine();
        let at = "sys/class/power_supply";
        write(&dir, &format!("{at}/AC/type"), "Mains");
        write(&dir, &format!("{at}/mouse/type"), "Battery");
        write(&dir, &format!("{at}/mouse/scope"), "Device");
        let error = open_on(&machine, "battery").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no battery"), "{error}");
        for (file, text) in [
            ("type", "Battery"),
            ("status", "Discharging"),
            ("voltage_now", "12000000"),
            ("current_now", "-1500000"),
        ] {
            write(&dir, &format!("{at}/BAT0/{file}"), text);
        }
        let mut open = open_on(&machine, "battery").unwrap();
        let mut why = None;
        assert_eq!(open.meter.read(&mut why).unwrap(), [Some(18.0), Some(12.0), Some(1.5), None]);
        write(&dir, &format!("{at}/BAT0/power_now"), "17000000");
        assert_eq!(open.meter.read(&mut why).unwrap()[0], Some(17.0));
        assert_eq!(why, None);
        write(&dir, &format!("{at}/BAT0/status"), "Charging");
        assert_eq!(open.meter.read(&mut why).unwrap(), [None, Some(12.0), None, None]);
        assert!(why.unwrap().contains("BAT0 says \"Charging\""));
    }
}
