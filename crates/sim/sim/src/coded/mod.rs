//! One erasure-coded set of modelled servers under a trace: energy and response times while its parity servers sleep,
//! and of the same set with all servers always on [ECS² §5].
//!
//! When parity servers wake and sleep is decided by the production decision maker ([`ebb_erasure::standby::Standby`]).
//! Disks, network, clock and clients are models; no byte is coded.
//!
//! - Strips go around the data servers; a request is cut at strips. The client does what the trace says, whenever it
//!   says so.
//! - A write is an overwrite, as in a volume: the old bytes are read, the new ones written, and the change is sent to
//!   the servers that keep the parity: m parity servers, or m + Δm data servers in memory while those sleep. It is
//!   answered when the data is on its disk and all changes have arrived. A parity server has a change when it has
//!   arrived: as in the paper, it acknowledges from memory, and its disk follows.
//! - Changes of the same bytes are folded: they take memory once until they are sent. Formula (10) counts each write
//!   anew; so does a run that does not fold overwrites ([`Setup::folds_overwrites`]). Strips of one stripe that one
//!   write changes are folded either way, as in formula (16).
//! - There are two accounts of a run's energy: at the watts of [`Setup::power`], and at watts that follow the load of
//!   each server's disk ([`Setup::by_load`]). Neither changes what happens.
//! - A network interface sends and receives one message after another, what is synchronised included.
//! - A set may sleep as a whole ([`Setup::hibernate`]): requests that come meanwhile wait until all data servers are
//!   up. What is kept for parity servers stays where it is.
//! - While a data server is lost, its replacement is filled at a limited rate, with what the disks have left. Reads of
//!   it are decoded from the others and P1.

mod hibernation;
mod kept;
mod report;
mod run;
mod server;
mod setup;
#[cfg(test)]
mod tests;

pub use report::{Energies, Hibernations, Report, Sample};
pub use setup::{CodedError, Failure, Setup};

use ebb_trace::{Request, TraceError};

/// Runs a trace, in order of time, to its end.
pub fn simulate(
    trace: &mut dyn Iterator<Item = Result<Request, TraceError>>,
    setup: &Setup,
) -> Result<Report, CodedError> {
    setup.check()?;
    run::Run::new(setup)?.play(trace)
}
