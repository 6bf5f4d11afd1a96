//! The leader's memory of a power test ([`super::power_test`]).

use ebb_types::{Moment, PowerTest, ServerId, TestStep};

/// A test that runs, or the last one.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub server: ServerId,
    pub status: PowerTest,
    /// When the present step began.
    pub since: Moment,
    /// When the server was ordered to wake.
    pub ordered: Moment,
}

impl Trial {
    pub fn runs(&self) -> bool {
        self.status.step != TestStep::Ended
    }

    pub fn step(&mut self, now: Moment, step: TestStep) {
        debug_assert!(self.runs(), "a test that has ended puts nothing to sleep any more");
        (self.status.step, self.since) = (step, now);
    }

    pub fn give_up(&mut self, now: Moment, why: String) {
        self.status.given_up = Some(why);
        self.step(now, TestStep::Ended);
    }
}
