//! Messages between evaluation host and agent. Every request is answered once, with its id.

use crate::eval::{Draw, Machine, Order, Performance, Place, RunError};
use ebb_types::Moment;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Read the agent's clock.
    Clock,
    Prepare(Place),
    Run(Order),
    /// Start sampling these meters, in place of the previous ones.
    Meters(Vec<String>),
    /// Read every meter now.
    Mark,
    /// What the meters measured, on the agent's clock.
    Draw {
        from: Moment,
        to: Moment,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Clock(Moment),
    Prepared(Machine),
    Ran(Performance),
    Done,
    Drawn(Draw),
    Refused(RunError),
}
