//! The switch: puts servers to sleep and wakes them, whatever the driver.
//!
//! The caller of `sleep` has made sure that the server holds nothing that is needed (R7); the switch does not check
//! again.

use ebb_types::{Depth, ServerId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A server's observed power state. It does not say whether that state was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerState {
    On,
    /// Suspended: it keeps its memory and runs nothing.
    Standby,
    Off,
    /// The driver cannot determine it.
    Unknown,
}

/// Switches servers. Calls do not wait until a server is up or down: repeat them until [`Switch::observe`] shows it. A
/// server that is woken while it is still going down needs a second call; [`SwitchError::GoingDown`] reports that if
/// the driver can tell.
pub trait Switch: Send + Sync {
    fn sleep(&self, server: ServerId, depth: Depth) -> Result<(), SwitchError>;
    fn wake(&self, server: ServerId) -> Result<(), SwitchError>;
    fn observe(&self, server: ServerId) -> PowerState;
}

#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    #[error(
        "no switch is configured for {server}: name its data directory in the power section of the configuration"
    )]
    UnknownServer { server: ServerId },
    #[error(
        "{server} does not run (looked for in {path}): start its process, or configure the command that starts it"
    )]
    NotRunning { server: ServerId, path: PathBuf },
    #[error("{server} is still going down (process {pid}): wake it again when it has ended")]
    GoingDown { server: ServerId, pid: u32 },
    #[error(
        "cannot use the pid file {path}: {source}; check that the data directory is there and may be written"
    )]
    PidFile { path: PathBuf, source: std::io::Error },
    #[error("the pid file {path} is not one of Ebb's: remove it and restart that server")]
    BadPidFile { path: PathBuf },
    #[error("cannot look at process {pid}: {source}; check that /proc is mounted and readable")]
    Process { pid: u32, source: std::io::Error },
    #[error(
        "cannot send {signal} to process {pid}: {source}; run the metadata service as the user of the server processes"
    )]
    Signal { pid: u32, signal: &'static str, source: std::io::Error },
    #[error("cannot start {program}: {source}; check the configured command")]
    Start { program: PathBuf, source: std::io::Error },
    #[error(
        "cannot open the log file {path}: {source}; check that its directory is there and may be written"
    )]
    Log { path: PathBuf, source: std::io::Error },
}
