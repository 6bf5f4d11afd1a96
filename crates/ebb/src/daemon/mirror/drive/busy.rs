//! How busy a disk is that is served as it is.
//!
//! How long an operation kept it busy cannot be seen from outside while several are in flight, so the time with any
//! operation in flight is busy time, and each completion reports what has passed of it since the last one. The sum is
//! right, and so is the utilisation; the parts are not known, and all of it is given as transfer.

use ebb_mirror::{Parts, Spent};
use ebb_types::Moment;

/// Time with at least one operation in flight.
#[derive(Default)]
pub struct Busy {
    in_flight: u32,
    /// Up to here everything is reported.
    since: Moment,
}

impl Busy {
    pub fn begin(&mut self, now: Moment) {
        if self.in_flight == 0 {
            self.since = now;
        }
        self.in_flight += 1;
    }

    pub fn end(&mut self, now: Moment) -> Spent {
        self.in_flight -= 1;
        let transfer = now.since(std::mem::replace(&mut self.since, now));
        Spent { parts: Parts { transfer, ..Parts::default() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn busy_time_is_the_time_with_something_in_flight() {
        let at = |millis: u64| Moment(millis * 1_000_000);
        let mut busy = Busy::default();
        busy.begin(at(10));
        busy.begin(at(12));
        let mut total = busy.end(at(15)).total() + busy.end(at(20)).total();
        busy.begin(at(100));
        total += busy.end(at(101)).total();
        assert_eq!(total, Duration::from_millis(11));
    }
}
