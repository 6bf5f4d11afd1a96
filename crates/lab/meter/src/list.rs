//! Lists the meters of this machine, and why others are unavailable.

use super::kinds::{KINDS, Kind};
use super::{Channel, MeterError, ata, hwmon, nvme, open_on};
use ebb_power::Machine;
use serde::Serialize;

/// One meter of this machine, or one unavailable kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// As [`super::open`] expects it; for an unavailable kind, its form.
    pub spec: String,
    /// Of its kind, in addition to `name` and `interval`.
    pub options: &'static str,
    pub sees: &'static str,
    pub does_not_see: &'static str,
    /// Empty if unavailable.
    pub channels: Vec<Channel>,
    /// Why it is unavailable, and what to do about it.
    pub unavailable: Option<String>,
}

/// Tries every kind of meter that needs no address, and every drive and sensor chip of this machine. Kinds that need an
/// address are listed as unavailable, with their form.
pub fn list(machine: &Machine) -> Vec<Listed> {
    KINDS.iter().flat_map(|kind| listed(machine, kind)).collect()
}

fn listed(machine: &Machine, kind: &Kind) -> Vec<Listed> {
    let addresses: Vec<String> = match kind.name {
        "hwmon" => hwmon::chips(machine).unwrap_or_default().into_iter().map(|(_, chip)| chip).collect(),
        "nvme" => nvme::controllers(machine).into_iter().map(|name| format!("/dev/{name}")).collect(),
        "ata" => ata::disks(machine).into_iter().map(|name| format!("/dev/{name}")).collect(),
        _ => Vec::new(),
    };
    let one = |spec: String, outcome: Result<Vec<Channel>, String>| {
        let (channels, unavailable) = match outcome {
            Ok(channels) => (channels, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let Kind { options, sees, does_not_see, .. } = *kind;
        Listed { spec, options, sees, does_not_see, channels, unavailable }
    };
    let tried = |spec: String| {
        let outcome = open_on(machine, &spec).map(|open| open.channels).map_err(reason);
        one(spec, outcome)
    };
    match kind.name {
        _ if !addresses.is_empty() => {
            addresses.into_iter().map(|address| tried(format!("{}:{address}", kind.name))).collect()
        }
        "nvme" => vec![one(kind.form.into(), Err("this machine has no NVMe drive".into()))],
        "ata" => vec![one(kind.form.into(), Err("this machine has no SATA drive".into()))],
        "redfish" | "prometheus" | "command" => {
            vec![one(kind.form.into(), Err("it needs what comes after the colon".into()))]
        }
        _ => vec![tried(kind.name.into())],
    }
}

/// Without the name, which is shown next to it.
fn reason(error: MeterError) -> String {
    match error {
        MeterError::Unavailable { why, remedy, .. } => format!("{why}; {remedy}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, write};
    use super::*;

    #[test]
    fn every_kind_is_listed_with_its_channels_or_a_reason() {
        let (dir, machine) = machine();
        write(&dir, "sys/class/hwmon/hwmon0/name", "k10temp");
        write(&dir, "sys/class/hwmon/hwmon0/temp1_input", "41000");
        write(&dir, "sys/class/hwmon/hwmon1/name", "empty");
        write(&dir, "sys/class/nvme/nvme3/hwmon1/temp1_input", "30000");
        write(&dir, "proc/stat", "cpu  1 0 0 9 0 0 0 0 0 0\n");
        let all = list(&machine);
        let found =
            |spec: &str| all.iter().find(|l| l.spec == spec).unwrap_or_else(|| panic!("{spec} in {all:?}"));
        for kind in KINDS {
            assert!(all.iter().any(|l| l.spec.starts_with(kind.name)), "{} is not listed", kind.name);
        }
        assert_eq!(found("hwmon:k10temp").channels.len(), 1);
        assert!(found("hwmon:empty").unavailable.is_some());
        assert_eq!(found("nvme:/dev/nvme3").channels.len(), 1);
        assert_eq!(found("model").unavailable, None);
        let rapl = found("rapl").unavailable.as_deref().unwrap();
        assert!(rapl.contains("intel_rapl_msr") && !rapl.starts_with("rapl"), "{rapl}");
        assert!(found("ata:/dev/sda").unavailable.is_some());
    }
}
