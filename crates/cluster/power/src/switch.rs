//! Switches: drivers that put a server to sleep and wake it, one file per driver, and what throws them.
//!
//! A server has an ordered list of *paths*, each a driver with its settings: `[[server.power]]` of the configuration.
//! The first is the usual one; the others are for when it fails. The caller that orders a sleep has made sure that the
//! server holds nothing that is needed (R7); a switch does not check again.
//!
//! **A machine is only ever put to sleep by itself**: its server runs the command ([`crate::OwnMachine`]), and the
//! switch looks whether it has gone down. Only the drivers `process` and `command` put a server to sleep themselves.
//! There is no way here to force a running machine off: that is fencing, not sleep.
//!
//! **An answer is not a result**: management controllers say yes and do nothing, or say that a machine is on while it
//! goes down. So [`settle`] orders, reads the state back until it stays, orders again, and gives up at a deadline.
//! Controllers are asked only then, never without a transition: some lose packets or crash if they are polled.
//!
//! **No call runs on its caller's thread** ([`Switches`]): a controller that hangs holds up only its own server.

mod command;
mod fields;
mod ipmi;
mod kinds;
mod lanes;
mod process;
mod qemu;
mod redfish;
mod settle;
mod switches;
mod wol;

pub use fields::{Fields, Launch, Managed};
pub use kinds::{KINDS, Kind, open};
pub use lanes::THREADS as SWITCH_THREADS;
pub use process::{launch, remove_pid_file, running_pid, write_pid_file};
pub use switches::{Path, Switches};
pub use wol::{Mac, Magic, MagicTo, send_magic};

use ebb_types::{Depth, ServerId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A server's observed power state. It does not say whether that state was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PowerState {
    On,
    /// On its way there; it may take minutes, or never arrive.
    PoweringOn,
    PoweringOff,
    /// Suspended: it keeps its memory and runs nothing.
    Standby,
    Off,
    /// The driver cannot determine it.
    Unknown,
}

impl PowerState {
    pub fn is_down(self) -> bool {
        matches!(self, PowerState::Standby | PowerState::Off)
    }
}

/// One way to switch one server. Every call may block, but not for ever: it has its own time limit.
pub trait Driver: Send {
    fn about(&self) -> &About;
    /// Why it cannot work on this machine, as far as that can be known without asking the controller: a program or a
    /// file is missing.
    fn available(&self) -> Result<(), SwitchError> {
        Ok(())
    }
    /// Puts the server to sleep; called only if [`About::puts_to_sleep`]. It asks the clock as late as it can whether
    /// the order is still wanted.
    fn sleep(&mut self, depth: Depth, _: &mut dyn Clock) -> Result<(), SwitchError> {
        Err(SwitchError::Refused {
            what: self.about().machine.clone(),
            why: format!("it cannot order {depth:?}"),
        })
    }
    /// Orders the server to wake, once: repeated until it is up, also while it is. [`SwitchError::GoingDown`]: ordered
    /// too early.
    fn wake(&mut self, clock: &mut dyn Clock) -> Result<(), SwitchError>;
    fn observe(&mut self, clock: &mut dyn Clock) -> Result<PowerState, SwitchError>;
}

/// What a driver with its settings can do.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// The driver's name, as in the configuration.
    pub driver: &'static str,
    /// The machine as this driver knows it, without secrets: no two servers have the same.
    pub machine: String,
    /// What is asked one call at a time, whatever the driver. The same text if it controls this machine alone.
    pub controller: String,
    /// The depths from which it wakes.
    pub depths: Vec<Depth>,
    /// It puts the server to sleep itself; otherwise it puts itself to sleep.
    pub puts_to_sleep: bool,
    /// How the state is read back; `None`: it is not, and an order is done when it has been given.
    pub settle: Option<Settle>,
    /// The packet that wakes it, which other servers send, too.
    pub magic: Option<Magic>,
    /// The meter that the same controller is, as `ebb_meter::open` takes it.
    pub meter: Option<String>,
}

impl About {
    /// Of one that controls this machine alone, and can no more than wake it.
    pub fn new(driver: &'static str, machine: String, depths: Vec<Depth>) -> About {
        let controller = machine.clone();
        let (puts_to_sleep, settle, magic, meter) = (false, None, None, None);
        About { driver, machine, controller, depths, puts_to_sleep, settle, magic, meter }
    }

    /// Whether both switch one machine, or one a machine of the controller that the other has to itself.
    fn is_same_machine(&self, other: &About) -> bool {
        let whole = self.machine == self.controller || other.machine == other.controller;
        self.machine == other.machine || (whole && self.controller == other.controller)
    }
}

/// How the effect of an order is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Time between two looks.
    pub poll: Duration,
    /// How long a machine is watched that reports on without a wake command: it may still be going down.
    pub watch: Duration,
    /// An order without an effect in this time is repeated.
    pub patience: Duration,
    /// The time for all of it.
    pub deadline: Duration,
}

impl Settle {
    /// For a machine behind a management controller. "Some servers can take 8-10 minutes to power on": until then they
    /// say that they power on, or are on at once, long before their operating system runs.
    pub const MACHINE: Settle = Settle {
        poll: Duration::from_secs(2),
        watch: Duration::from_secs(8),
        patience: Duration::from_secs(20),
        deadline: Duration::from_secs(180),
    };
}

/// The time, and waiting for it, as the thread of an order sees it.
pub trait Clock {
    /// Since some moment in the past.
    fn now(&self) -> Duration;
    /// Waits. `false`: the order is no longer wanted, because another one has come.
    fn pause(&mut self, time: Duration) -> bool;
}

#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    #[error("{server} has no power path {path}: its [[server.power]] sections give it {paths}")]
    NoPath { server: ServerId, path: u8, paths: usize },
    #[error(
        "no power path of {server} can wake it from {depth:?}: add a [[server.power]] whose driver can, or change power.depth"
    )]
    NoDepth { server: ServerId, depth: Depth },
    #[error(
        "{first} and {second} are one machine, {machine}: give each its own controller, or name the system of each"
    )]
    SameMachine { first: ServerId, second: ServerId, machine: String },
    #[error("[[server.power]] of {server}, driver {driver:?}: {why}")]
    Field { server: ServerId, driver: String, why: String },
    #[error("{what}: {why}")]
    Unavailable { what: String, why: String },
    #[error("{machine} cannot be asked: {why}")]
    Unreachable { machine: String, why: String },
    #[error("{what} refuses: {why}")]
    Refused { what: String, why: String },
    #[error("{machine} is still going down: it is woken when that has ended")]
    GoingDown { machine: String },
    #[error(
        "{machine} still reports {state:?} {seconds} s after the {order} command; see its console and its own log"
    )]
    NoEffect { machine: String, order: &'static str, state: PowerState, seconds: u64 },
    #[error("another order came before this one had an effect")]
    Replaced,
    #[error(
        "the thread that switches {server} cannot be started: {source}; the machine is out of threads or memory"
    )]
    Thread { server: ServerId, source: std::io::Error },
    #[error(
        "{machine} does not run (looked for in {path}): start its process, or configure the command that starts it"
    )]
    NotRunning { machine: String, path: PathBuf },
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

#[cfg(test)]
mod tests;
