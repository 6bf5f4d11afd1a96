//! The drivers: a driver is a file and a row here.

use super::fields::Fields;
use super::{Driver, SwitchError, command, ipmi, process, qemu, redfish, wol};
use ebb_types::Depth;

type Open = fn(&mut Fields) -> Result<Box<dyn Driver>, SwitchError>;

/// A driver: what it needs, and what it does.
pub struct Kind {
    pub name: &'static str,
    /// Fields without which it does not work.
    pub needs: &'static str,
    /// Its other fields.
    pub takes: &'static str,
    /// From which depths it wakes a server.
    pub depths: &'static [Depth],
    pub wakes: &'static str,
    pub sleeps: &'static str,
    pub observes: &'static str,
    /// `None`: a server with it is never switched.
    open: Option<Open>,
}

/// All drivers, in listing order.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "process",
        needs: "",
        takes: "",
        depths: &[Depth::Standby, Depth::Off],
        wakes: "continues the process (SIGCONT), or starts it",
        sleeps: "stops the process (SIGSTOP), or ends it (SIGTERM); for servers on the metadata server's machine",
        observes: "by pid file and /proc",
        open: Some(process::open),
    },
    Kind {
        name: "redfish",
        needs: "url = \"https://bmc7\"",
        takes: "user, password_file | password_env, system = \"/redfish/v1/Systems/1\", ca_file | fingerprint = \"sha256:...\" | insecure, reset_type, timeout",
        depths: &[Depth::Off],
        wakes: "has the management controller turn the machine on, by a reset type that it lists",
        sleeps: "the server itself does",
        observes: "by PowerState; what it measures: `ebb status --measured`",
        open: Some(redfish::open),
    },
    Kind {
        name: "ipmi",
        needs: "host = \"bmc7\"",
        takes: "user, password_file | password_env, program = \"ipmitool\", timeout",
        depths: &[Depth::Off],
        wakes: "`chassis power on` by ipmitool, cipher suite 17, else 3",
        sleeps: "the server itself does",
        observes: "by `chassis power status`; what it measures: `ebb status --measured`",
        open: Some(ipmi::open),
    },
    Kind {
        name: "wol",
        needs: "mac = \"52:54:00:12:34:56\"",
        takes: "broadcast = \"255.255.255.255:9\" (by IPv6 \"[ff02::1]:9\")",
        depths: &[Depth::Standby, Depth::Off],
        wakes: "magic packets, from every awake server of its rack",
        sleeps: "the server itself does, if its card listens for magic packets and nothing else",
        observes: "nothing: a server that sends heartbeats is up",
        open: Some(wol::open),
    },
    Kind {
        name: "command",
        needs: "wake = [\"PROGRAM\", \"ARGUMENT\"]",
        takes: "sleep = [...], state = [...] (prints on, off or standby), depths = [\"off\"], timeout",
        depths: &[Depth::Standby, Depth::Off],
        wakes: "by your program: a power distribution unit, a smart plug, a hypervisor",
        sleeps: "by your program; without one the server itself does",
        observes: "by your program",
        open: Some(command::open),
    },
    Kind {
        name: "qemu",
        needs: "qmp = \"/run/vm7.qmp\"",
        takes: "timeout",
        depths: &[Depth::Standby, Depth::Off],
        wakes: "system_wakeup, or system_reset and cont of a machine that was started with -no-shutdown",
        sleeps: "the server itself does",
        observes: "by query-status",
        open: Some(qemu::open),
    },
    Kind {
        name: "none",
        needs: "",
        takes: "",
        depths: &[],
        wakes: "nothing",
        sleeps: "never: such a server is not drained and not shown asleep",
        observes: "nothing",
        open: None,
    },
];

/// Opens one path of a server; touches nothing outside. `None`: the driver is `none`.
pub fn open(mut fields: Fields) -> Result<Option<Box<dyn Driver>>, SwitchError> {
    let names = || KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    let driver = fields
        .text("driver")?
        .ok_or_else(|| fields.wrong(format!("driver is missing: it is one of {}", names())))?;
    fields.driver = driver;
    let Some(kind) = KINDS.iter().find(|kind| kind.name == fields.driver) else {
        return Err(fields.wrong(format!("there is no such driver: it is one of {}", names())));
    };
    let opened = kind.open.map(|open| open(&mut fields)).transpose()?;
    match fields.table.keys().next() {
        None => Ok(opened),
        Some(name) => {
            let known = [kind.needs, kind.takes].join("; ");
            Err(fields.wrong(format!("it has no field {name:?}; its fields: {known}")))
        }
    }
}
