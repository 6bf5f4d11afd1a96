//! Where the kernel keeps its files about a machine.

use std::path::PathBuf;

/// The kernel's files about this machine; tests use their own.
#[derive(Clone, Debug)]
pub struct Machine {
    pub sys: PathBuf,
    pub proc: PathBuf,
    pub dev: PathBuf,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}
