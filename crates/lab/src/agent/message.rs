//! What evaluation host and agent say to each other. Every request is answered once, with its id.

use crate::eval::{Draw, Machine, Order, Performance, Place, RunError};
use ebb_types::Moment;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// What does the agent's clock say?
    Clock,
    Prepare(Place),
    Run(Order),
    /// Begin to sample these meters, in place of those before.
    Meters(Vec<String>),
    /// Read every meter now.
    Mark,
    /// What did the meters see, on the agent's clock?
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
