//! Why a cost cannot be determined.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a cost cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    #[error("no command to measure: put it after `--`")]
    NoCommand,
    #[error("{asked} cores are requested, but this process may use {allowed}: choose from 1 to {allowed}")]
    Cores { asked: usize, allowed: usize },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} has {what}: is it the kernel's file?")]
    Strange { path: PathBuf, what: &'static str },
    #[error("cannot choose the cores of the command: {0}")]
    Pin(std::io::Error),
    #[error("cannot start {command}: {source}")]
    Start { command: String, source: std::io::Error },
    #[error("cannot wait for the command: {0}")]
    Wait(std::io::Error),
    #[error("{command} ended with {status}: its cost would be that of a failure; nothing is reported")]
    Failed { command: String, status: ExitStatus },
    #[error("there is no process {0}: name one that runs, as `pidof` shows them")]
    NoProcess(u32),
    #[error(
        "there is no cgroup {path}: name a directory below the cgroup v2 hierarchy, such as system.slice/NAME.service"
    )]
    NoGroup { path: PathBuf },
    #[error("no cgroup v2 hierarchy is mounted: attach to a process with --pid")]
    NoGroups,
    #[error("no process runs in the cgroup {path}")]
    EmptyGroup { path: PathBuf },
    #[error(
        "{what} ended {after:.1?} after the start of a window of {window:.1?}: choose a shorter window{}",
        if *.command { ", or measure it to its end, without --for" } else { "" }
    )]
    Ended { what: String, after: Duration, window: Duration, command: bool },
    #[error("cannot create {path}: {source}: name a directory on the disk to measure with --dir")]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the window has no length: give a time above 0")]
    NoWindow,
    #[error("the machine does not report the frequency of its CPUs: give it with --ghz")]
    NoFrequency,
    #[error("no I/O was seen as {0}: the command moved no data, or choose another --io")]
    NoIo(String),
    #[error("the report is of version {found}, and this program reads version {known}: measure again")]
    Version { found: u32, known: u32 },
    #[error("the report has no measured point")]
    Empty,
}
