//! Switches of a disk's speed. Like the switches of servers, they act and report, and never decide.
//!
//! | switch | the disk at low speed |
//! |---|---|
//! | [`Nvme`]: an operational power state of less power | serves, slower |
//! | [`Ata`]: standby, or a low idle condition, of an ATA or SAS disk that spins | sleeps |
//! | [`Program`]: whatever a program of the user's does | as the user says |
//!
//! A call blocks until the disk has changed, or the time limit is over. An error means that the disk may be at either
//! speed; the next call settles that.

mod ata;
mod nvme;
mod program;
mod rate;

pub use ata::{Ata, Condition};
pub use nvme::Nvme;
pub use program::{Program, Programs};

use ebb_types::Watts;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Changes one disk's speed.
pub trait DiskSwitch {
    fn go_low(&mut self) -> Result<(), DiskError>;
    fn go_high(&mut self) -> Result<(), DiskError>;
    fn about(&self) -> &About;
}

/// What a switch knows of its disk.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// The disk and its two speeds, for people.
    pub what: String,
    /// How many times as long its operations take at low speed; at least 1.
    pub slowdown: f64,
    /// By the vendor's tables, not measured.
    pub rated: Option<Rated>,
    /// Longest times of a change, as far as the disk says.
    pub change: Change,
}

/// Power by the vendor's tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rated {
    pub low: Watts,
    pub high: Watts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub down: Duration,
    pub up: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot {action} {path}: {error}{}", remedy(.error))]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error("{path} has one speed: {why}; serve it with --driver none")]
    OneSpeed { path: PathBuf, why: String },
    #[error("{path} answers nonsense: {why}; serve it with --driver none")]
    Nonsense { path: PathBuf, why: String },
    #[error("{path} was asked for {wanted} and reports {found}")]
    Kept { path: PathBuf, wanted: String, found: String },
    #[error("{path} refused to {action}: {why}")]
    Refused { path: PathBuf, action: &'static str, why: String },
    #[error("the command {command:?} for {path}: {why}")]
    Program { command: String, path: PathBuf, why: String },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "; run as root",
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
            "; it is not a disk of this kind, or its controller or bridge does not pass the command on"
        }
        _ => "",
    }
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> DiskError + 'a {
    move |error| DiskError::Io { action, path: path.to_owned(), error }
}

/// Opened beside the mirror's own descriptor, which alone writes.
fn open(path: &Path) -> Result<File, DiskError> {
    File::open(path).map_err(io_error("open", path))
}
