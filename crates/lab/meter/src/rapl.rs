//! RAPL: energy counters of the processor, read through the kernel's powercap tree. Intel and AMD processors use the
//! same files.
//!
//! A counter wraps to zero after `max_energy_range_uj`; the channel keeps the range, so that differences are correct. A
//! package's energy contains that of its cores and its graphics, not that of memory; `psys`, if present, contains all.
//! The same domains under `intel-rapl-mmio` are a second path to the same counters, and are left out.

use super::spec::Spec;
use super::sysfs;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use std::path::PathBuf;

struct Rapl {
    counters: Vec<PathBuf>,
}

struct Zone {
    /// `intel-rapl:0` or `intel-rapl:0:1`
    id: String,
    name: String,
}

impl Zone {
    fn parent<'a>(&self, zones: &'a [Zone]) -> Option<&'a Zone> {
        let (parent, _) = self.id.rsplit_once(':')?;
        zones.iter().find(|zone| zone.id == parent)
    }

    fn full_name(&self, zones: &[Zone]) -> String {
        match self.parent(zones) {
            Some(parent) => format!("{}/{}", parent.full_name(zones), self.name),
            None => self.name.clone(),
        }
    }

    fn part_of(&self, zones: &[Zone]) -> Option<String> {
        match self.parent(zones) {
            Some(package) if self.name != "dram" => Some(package.full_name(zones)),
            _ if self.name == "psys" => None,
            _ => zones.iter().find(|zone| zone.name == "psys").map(|zone| zone.name.clone()),
        }
    }

    fn sees(&self) -> &'static str {
        match self.name.as_str() {
            "core" => "the package's cores",
            "uncore" => "the package's graphics",
            "dram" => "the package's memory",
            "psys" => "the platform: packages, memory and what else the vendor wired to it",
            _ => "one processor package: cores, caches, memory controller; not memory",
        }
    }
}

pub(super) fn open(machine: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let root = machine.sys.join("class/powercap");
    let mut zones = Vec::new();
    for id in sysfs::names(&root) {
        if id.starts_with("intel-rapl:")
            && let Some(name) = sysfs::text(&root.join(&id).join("name"))?
        {
            zones.push(Zone { id, name });
        }
    }
    if zones.is_empty() {
        return Err(spec.unavailable(
            "the kernel shows no RAPL domain in /sys/class/powercap",
            "on a physical machine load the module intel_rapl_msr; a virtual machine has none",
        ));
    }
    let (mut channels, mut counters) = (Vec::new(), Vec::new());
    for zone in &zones {
        let dir = root.join(&zone.id);
        let range =
            sysfs::sensor(&dir.join("max_energy_range_uj"), 1e-6, &mut None)?.filter(|range| *range > 0.0);
        let counter = dir.join("energy_uj");
        if let Err(MeterError::File { .. }) = sysfs::sensor(&counter, 1.0, &mut None) {
            return Err(spec.unavailable(
                format!("only root may read {}", counter.display()),
                "run as root, or allow it until the next boot: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj",
            ));
        }
        channels.push(Channel {
            part_of: zone.part_of(&zones),
            ..Channel::measured(zone.full_name(&zones), Quantity::Energy { range }, zone.sees())
        });
        counters.push(counter);
    }
    Ok((channels, Box::new(Rapl { counters })))
}

impl Meter for Rapl {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        self.counters.iter().map(|path| sysfs::sensor(path, 1e-6, absent)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::{machine, write};
    use super::*;

    #[test]
    fn domains_know_what_contains_them() {
        let (dir, machine) = machine();
        let zone = |id: &str, name: &str, uj: &str| {
            let at = format!("sys/class/powercap/{id}");
            write(&dir, &format!("{at}/name"), name);
            write(&dir, &format!("{at}/energy_uj"), uj);
            write(&dir, &format!("{at}/max_energy_range_uj"), "262143328850");
        };
        zone("intel-rapl:0", "package-0", "5000000");
        zone("intel-rapl:0:0", "core", "2000000");
        zone("intel-rapl:0:1", "dram", "1000000");
        zone("intel-rapl-mmio:0", "package-0", "5000000");
        write(&dir, "sys/class/powercap/intel-rapl/enabled", "1");
        let mut open = open_on(&machine, "rapl").unwrap();
        let parts: Vec<_> = open.channels.iter().map(|c| (c.name.as_str(), c.part_of.as_deref())).collect();
        assert_eq!(
            parts,
            [("package-0", None), ("package-0/core", Some("package-0")), ("package-0/dram", None)]
        );
        assert_eq!(open.channels[0].quantity, Quantity::Energy { range: Some(262143.32885) });
        assert_eq!(open.meter.read(&mut None).unwrap(), [Some(5.0), Some(2.0), Some(1.0)]);

        zone("intel-rapl:1", "psys", "9000000");
        let open = open_on(&machine, "rapl").unwrap();
        let parts: Vec<_> = open.channels.iter().map(|c| c.part_of.as_deref()).collect();
        assert_eq!(parts, [Some("psys"), None, Some("package-0"), Some("psys")]);
    }

    #[test]
    fn a_machine_without_it_says_why() {
        let (_dir, machine) = machine();
        let error = open_on(&machine, "rapl").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no RAPL domain") && error.contains("intel_rapl_msr"), "{error}");
    }
}
