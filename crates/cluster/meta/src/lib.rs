//! The metadata service: the role of each server, and what names refer to. Nothing is stored per chunk.
//!
//! Four parts. [`State`] is what the cluster agreed on: a deterministic state machine, identical on every member.
//! [`Controller`] makes the leader's decisions: leases, suspicion, holders, primaries, gear shifts. It keeps only what
//! may be lost, reads the state and proposes [`Command`]s; it never changes the state. [`raft`] replicates commands and
//! alone knows the Raft library. [`Member`] ties the three together and says what is to be sent to whom, so that the
//! node program and the simulator run the same code, and only carry that out.

mod api;
mod clocks;
mod controller;
mod hearing;
mod member;
mod namespace;
mod parts;
pub mod raft;
mod rescue;
mod shell;
mod state;

pub use api::*;
pub use controller::{Controller, Event, Output, plan_after};
pub use member::Member;
pub use namespace::Namespace;
pub use namespace::table::{Blob, TableError};
pub use raft::{
    Birth, DiskLog, LOG_BYTES, LogEnd, LogFile, MemoryLog, RaftError, SEAT_MAX, joining_id, log_end,
};
pub use state::{
    Change, Command, Joiner, PathRecord, PowerFact, PowerRecord, Recalled, Reply, SeatChange, SeatRefusal,
    SetChange, Slept, State,
};

#[cfg(test)]
mod tests;
