//! A set without load sleeps as a whole; the first request wakes it.
//!
//! It sleeps when it has been quiet for as long as the shortest sleep that pays. So it takes at most twice what a set
//! would that knew how long each quiet spell lasts: it has waited no longer than a sleep costs.

use super::report::Hibernations;
use ebb_output::Histogram;
use ebb_trace::Request;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awake,
    GoingDown,
    Asleep,
    Waking,
}

/// The sleep of one set's data servers.
pub struct Hibernation {
    after: Duration,
    state: State,
    /// Requests that wait, by their ids, and when they came.
    held: Vec<(u64, u64, Request)>,
    times: u64,
    waited: Histogram,
}

impl Hibernation {
    pub fn new(after: Duration) -> Hibernation {
        Hibernation { after, state: State::Awake, held: Vec::new(), times: 0, waited: Histogram::default() }
    }

    pub fn is_awake(&self) -> bool {
        self.state == State::Awake
    }

    /// Whether the data servers draw as if they slept.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::GoingDown | State::Asleep)
    }

    /// Nothing has been in progress for `since`. Returns whether the set is to sleep now.
    pub fn quiet(&mut self, since: Duration) -> bool {
        let sleeps = self.is_awake() && since >= self.after;
        if sleeps {
            (self.state, self.times) = (State::GoingDown, self.times + 1);
        }
        sleeps
    }

    /// A request that cannot be served now. Returns whether the set is to wake for it.
    pub fn hold(&mut self, now: u64, id: u64, request: Request) -> bool {
        self.held.push((id, now, request));
        self.wake()
    }

    /// The set is down. Returns whether it is to wake: a transition cannot be aborted, so requests may have come
    /// meanwhile.
    pub fn down(&mut self) -> bool {
        self.state = State::Asleep;
        !self.held.is_empty() && self.wake()
    }

    fn wake(&mut self) -> bool {
        let wakes = self.state == State::Asleep;
        if wakes {
            self.state = State::Waking;
        }
        wakes
    }

    /// The set is up. Returns the requests that waited.
    pub fn up(&mut self, now: u64) -> Vec<(u64, Request)> {
        self.state = State::Awake;
        let mut serve = |(id, came, request)| {
            self.waited.record(Duration::from_nanos(now - came));
            (id, request)
        };
        self.held.drain(..).map(&mut serve).collect()
    }

    pub fn report(&self) -> Hibernations {
        Hibernations { times: self.times, waited: self.waited.latency() }
    }
}
