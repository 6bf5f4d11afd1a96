//! Messages between evaluation host and agent. Every request is answered once, with its id; a run reports its rates
//! before.

use crate::{Draw, Live, Machine, Order, Performance, Place, Present, RunError};
use ebb_types::Moment;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Read the agent's clock.
    Clock,
    Prepare(Place),
    Run(Order),
    /// Whether this trace is in the agent's directory.
    Holds(PathBuf),
    /// Start sampling these meters, in place of the previous ones.
    Meters(Vec<String>),
    /// Read every meter now.
    Mark,
    /// What the meters measured, on the agent's clock.
    Draw {
        from: Moment,
        to: Moment,
    },
    /// What the meters read now.
    Present,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Clock(Moment),
    Prepared(Machine),
    /// Rates of a run in progress: any number of them before its answer.
    Live(Live),
    Ran(Performance),
    Holds(bool),
    Done,
    Drawn(Draw),
    Present(Present),
    Refused(RunError),
}
