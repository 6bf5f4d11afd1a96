//! hwmon: sensor chips of mainboards, power supplies, processors, graphics cards and drives.
//!
//! A chip that does not know its power says 0xFFFFFFFF in its own unit, which is no reading.
//!
//! A chip is named after its driver and its device (`nvme@nvme0`), because the kernel renumbers chips at every boot.

use super::spec::Spec;
use super::sysfs;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use std::path::{Path, PathBuf};

/// The kinds of sensor files: prefix, suffix, quantity, and the file's unit in units of the quantity.
const SENSORS: &[(&str, &str, Quantity, f64)] = &[
    ("power", "_input", Quantity::Power, 1e-6),
    ("power", "_average", Quantity::Power, 1e-6),
    ("energy", "_input", Quantity::Energy { range: None }, 1e-6),
    ("temp", "_input", Quantity::Temperature, 1e-3),
    ("in", "_input", Quantity::Voltage, 1e-3),
    ("curr", "_input", Quantity::Current, 1e-3),
];

/// Sensor files with their channels; also used by other drivers that read a chip.
pub(super) struct Sensors {
    pub channels: Vec<Channel>,
    files: Vec<(PathBuf, f64)>,
}

/// A chip's "unknown" in microwatts: it counts in these, in milliwatts or in watts.
const UNKNOWN: [i64; 3] = [u32::MAX as i64, u32::MAX as i64 * 1_000, u32::MAX as i64 * 1_000_000];

/// `nvme@nvme0`: the driver's name and the device.
fn chip_name(dir: &Path) -> Result<Option<String>, MeterError> {
    let Some(name) = sysfs::text(&dir.join("name"))? else { return Ok(None) };
    let device = std::fs::read_link(dir.join("device")).ok();
    let device = device.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    Ok(Some(device.map_or(name.clone(), |device| format!("{name}@{device}"))))
}

impl Sensors {
    /// The sensors of the chip in `dir` whose files start with `prefix`; channels are named `CHIP/LABEL`.
    pub(super) fn of_chip(dir: &Path, chip: &str, prefix: &str) -> Result<Sensors, MeterError> {
        let mut sensors = Sensors { channels: Vec::new(), files: Vec::new() };
        let names = sysfs::names(dir);
        let present = |name: &str| names.iter().any(|other| other == name);
        for name in &names {
            let kind = SENSORS.iter().find_map(|kind| Some((kind, sysfs::number_of(name, kind.0, kind.1)?)));
            let Some(((kind, suffix, quantity, scale), number)) = kind else { continue };
            // A sensor with both files is one sensor.
            let twice = *suffix == "_average" && present(&format!("{kind}{number}_input"));
            if !kind.starts_with(prefix) || twice {
                continue;
            }
            let label = sysfs::text(&dir.join(format!("{kind}{number}_label")))?;
            let label = label.filter(|l| !l.is_empty()).unwrap_or_else(|| format!("{kind}{number}"));
            let counted = *kind == "power" && present(&format!("energy{number}_input"));
            let sees = format!("sensor {kind}{number} of the chip {chip}");
            sensors.channels.push(Channel {
                // A sensor that counts joules also reports its watts: the counter is preferred.
                part_of: counted.then(|| format!("{chip}/energy{number}")),
                ..Channel::measured(format!("{chip}/{label}"), *quantity, sees)
            });
            sensors.files.push((dir.join(name), *scale));
        }
        Ok(sensors)
    }

    fn append(&mut self, other: Sensors) {
        self.channels.extend(other.channels);
        self.files.extend(other.files);
    }

    /// Labels are chosen by the vendor: two of one chip may be equal.
    fn make_names_unique(&mut self) {
        for index in 1..self.channels.len() {
            let (before, after) = self.channels.split_at_mut(index);
            let taken = |name: &str| before.iter().any(|channel| channel.name == name);
            let name = after[0].name.clone();
            let mut number = 2;
            while taken(&after[0].name) {
                after[0].name = format!("{name} {number}");
                number += 1;
            }
        }
    }
}

impl Meter for Sensors {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let read = |(channel, (path, scale)): (&Channel, &(PathBuf, f64))| {
            let value = sysfs::sensor(path, *scale, absent)?;
            let unknown = |value: &f64| {
                channel.quantity == Quantity::Power && UNKNOWN.contains(&((value / scale).round() as i64))
            };
            if value.as_ref().is_some_and(unknown) {
                *absent =
                    Some(format!("{}: the chip says that it does not know (0xFFFFFFFF)", path.display()));
                return Ok(None);
            }
            Ok(value)
        };
        self.channels.iter().zip(&self.files).map(read).collect()
    }
}

/// Names of the chips with supported sensors.
pub(super) fn chips(machine: &Machine) -> Result<Vec<(PathBuf, String)>, MeterError> {
    let root = machine.sys.join("class/hwmon");
    let mut chips = Vec::new();
    for name in sysfs::names(&root) {
        let dir = root.join(name);
        if let Some(chip) = chip_name(&dir)? {
            chips.push((dir, chip));
        }
    }
    Ok(chips)
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let chips = chips(machine)?;
    let wanted = |chip: &str| {
        spec.address()
            .is_none_or(|a| chip == a || chip.split_once('@').is_some_and(|(driver, _)| driver == a))
    };
    let mut all = Sensors { channels: Vec::new(), files: Vec::new() };
    for (dir, chip) in chips.iter().filter(|(_, chip)| wanted(chip)) {
        all.append(Sensors::of_chip(dir, chip, "")?);
    }
    all.make_names_unique();
    if all.channels.is_empty() {
        let names: Vec<&str> = chips.iter().map(|(_, chip)| chip.as_str()).collect();
        let (why, remedy) = match spec.address() {
            Some(chip) if chips.iter().any(|(_, name)| wanted(name)) => {
                (format!("the chip {chip} measures nothing"), "use another one".into())
            }
            Some(chip) if !names.is_empty() => {
                (format!("there is no sensor chip {chip:?}"), format!("there are {}", names.join(", ")))
            }
            _ => (
                "the kernel shows no sensor chip in /sys/class/hwmon".into(),
                "on a physical machine run sensors-detect of lm-sensors; a virtual machine has none".into(),
            ),
        };
        return Err(spec.unavailable(why, remedy));
    }
    Ok((all.channels.clone(), Box::new(all)))
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};

    #[test]
    fn sensors_have_their_units_and_a_failing_one_is_absent() {
        let (dir, machine) = machine();
        let at = "sys/class/hwmon/hwmon3";
        write(&dir, &format!("{at}/name"), "amdgpu\n");
        write(&dir, &format!("{at}/power1_average"), "31000000\n");
        write(&dir, &format!("{at}/power1_label"), "slowPPT\n");
        write(&dir, &format!("{at}/temp1_input"), "41500\n");
        write(&dir, &format!("{at}/temp10_input"), "-2000\n");
        write(&dir, &format!("{at}/temp2_input"), "1\n");
        write(&dir, &format!("{at}/in0_input"), "1225\n");
        write(&dir, &format!("{at}/curr1_input"), "500\n");
        write(&dir, &format!("{at}/temp1_max"), "90000\n");
        std::os::unix::fs::symlink("../../0000:04:00.0", dir.path().join(at).join("device")).unwrap();
        let mut open = open_on(&machine, "hwmon:amdgpu").unwrap();
        let names: Vec<_> = open.channels.iter().map(|c| c.name.clone()).collect();
        let chip = "amdgpu@0000:04:00.0";
        let expected = ["curr1", "in0", "slowPPT", "temp1", "temp2", "temp10"];
        assert_eq!(names, expected.map(|label| format!("{chip}/{label}")));
        let expected = [Some(0.5), Some(1.225), Some(31.0), Some(41.5), Some(0.001), Some(-2.0)];
        let near = |a: &Option<f64>, b: &Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-9;
        assert!(open.meter.read(&mut None).unwrap().iter().zip(&expected).all(|(a, b)| near(a, b)));
        std::fs::remove_file(dir.path().join(at).join("power1_average")).unwrap();
        let mut why = None;
        assert_eq!(open.meter.read(&mut why).unwrap()[2], None);
        let why = why.unwrap();
        assert!(why.contains("power1_average: No such file"), "{why}");
        write(&dir, &format!("{at}/in0_input"), "much\n");
        assert!(open.meter.read(&mut None).unwrap_err().to_string().contains("much"));
        let error = open_on(&machine, "hwmon:k10temp").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("there are amdgpu@0000:04:00.0"), "{error}");
        write(&dir, "sys/class/hwmon/hwmon4/name", "acpitz");
        let error = open_on(&machine, "hwmon:acpitz").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("measures nothing"), "{error}");
    }

    #[test]
    fn what_a_chip_does_not_know_is_absent_with_its_reason() {
        let (dir, machine) = machine();
        let at = "sys/class/hwmon/hwmon0";
        write(&dir, &format!("{at}/name"), "amdgpu");
        write(&dir, &format!("{at}/power1_average"), "31000000\n");
        write(&dir, &format!("{at}/temp1_input"), "41500\n");
        let mut open = open_on(&machine, "hwmon").unwrap();
        for unknown in ["4294967295", "4294967295000", "4294967295000000"] {
            write(&dir, &format!("{at}/power1_average"), unknown);
            let mut why = None;
            assert_eq!(open.meter.read(&mut why).unwrap(), [None, Some(41.5)], "{unknown}");
            let why = why.unwrap();
            assert!(why.contains("power1_average") && why.contains("does not know"), "{why}");
        }
        write(&dir, &format!("{at}/power1_average"), "4294967294");
        let mut why = None;
        assert!(open.meter.read(&mut why).unwrap()[0].is_some());
        assert_eq!(why, None);
    }

    #[test]
    fn watts_that_are_also_counted_are_not_counted_twice() {
        let (dir, machine) = machine();
        let at = "sys/class/hwmon/hwmon0";
        for (file, value) in [
            ("name", "ina"),
            ("power1_input", "5000000"),
            ("power1_average", "4000000"),
            ("energy1_input", "7000000"),
        ] {
            write(&dir, &format!("{at}/{file}"), value);
        }
        let open = open_on(&machine, "hwmon").unwrap();
        let parts: Vec<_> = open.channels.iter().map(|c| (c.name.as_str(), c.part_of.as_deref())).collect();
        assert_eq!(parts, [("ina/energy1", None), ("ina/power1", Some("ina/energy1"))]);
    }
}
