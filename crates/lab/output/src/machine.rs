//! The machine that figures were made on, as the kernel describes it: one description for all reports.

use serde::{Deserialize, Serialize};

/// What the kernel does not say is absent. The host's name is not in it ([`host`]): reports are passed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name, and whether this is a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// That the program may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Machine {
    pub fn this() -> Machine {
        let cores = std::thread::available_parallelism().ok().map(std::num::NonZeroUsize::get);
        Machine { cores, ..Machine::described(read) }
    }

    /// By what is read at a path.
    fn described(read: impl Fn(&str) -> Option<String>) -> Machine {
        let kib = |text: String| field(&text, "MemTotal")?.split(' ').next()?.parse::<u64>().ok();
        Machine {
            cpu: read("/proc/cpuinfo").and_then(|text| cpu(&text)),
            cores: None,
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            memory_bytes: read("/proc/meminfo").and_then(kib).map(|kib| kib << 10),
        }
    }
}

/// The name of this machine.
pub fn host() -> Option<String> {
    read("/proc/sys/kernel/hostname").map(|text| text.trim().to_owned())
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn cpu(cpuinfo: &str) -> Option<String> {
    let guest =
        field(cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let model = field(cpuinfo, "model name")?;
    Some(if guest { format!("{model} (virtual machine)") } else { model.to_owned() })
}

/// The value of the first line `NAME: VALUE`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_by_the_kernel_and_what_it_does_not_say_is_absent() {
        let cpu =
            "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t: fpu hypervisor lm\nmodel name\t: B\n";
        let read = |path: &str| match path {
            "/proc/cpuinfo" => Some(cpu.to_owned()),
            "/proc/meminfo" => Some("MemFree:  1 kB\nMemTotal:       2048 kB\n".to_owned()),
            "/proc/sys/kernel/osrelease" => Some("6.1.0\n".to_owned()),
            _ => None,
        };
        let right = Machine {
            cpu: Some("A CPU @ 2 GHz (virtual machine)".into()),
            cores: None,
            kernel: Some("6.1.0".into()),
            memory_bytes: Some(2 << 20),
        };
        assert_eq!(Machine::described(read), right);
        let bare =
            Machine::described(|path| (path == "/proc/cpuinfo").then(|| cpu.replace("hypervisor", "vmx")));
        assert_eq!(bare, Machine { cpu: Some("A CPU @ 2 GHz".into()), ..Machine::default() });
    }
}
