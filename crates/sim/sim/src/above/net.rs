//! Time, the queue of future events, the network's delays, and what a run notes of itself.

use crate::above::messages::Event;
use crate::above::scenario::Scenario;
use crate::engine::{Agenda, Due};
use ebb_testing::search::{Tally, Transcript, Violation};
use ebb_types::{Random, mix};

pub(super) struct Net {
    pub now: u64,
    pub scenario: Scenario,
    agenda: Agenda<Event>,
    pub random: Random,
    pub storm_until: u64,
    /// No fault begins any more.
    pub is_calm: bool,
    pub violation: Option<Violation>,
    pub digest: u64,
    pub tally: Tally,
    pub transcript: Transcript,
}

impl Net {
    pub fn new(scenario: Scenario, keep: usize) -> Net {
        Net {
            now: 0,
            agenda: Agenda::default(),
            random: Random::new(mix(scenario.seed ^ 0xab0e)),
            storm_until: 0,
            is_calm: false,
            violation: None,
            digest: 0,
            tally: Tally::new(),
            transcript: Transcript::of(keep),
            scenario,
        }
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.agenda.put(time.max(self.now), event);
    }

    pub fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now as f64 / 1000.0;
        self.transcript.note(|| format!("{now:>10.3} {}", line()));
    }

    pub fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub fn break_rule(&mut self, rule: &'static str, what: String) {
        self.note(|| format!("broken: {rule}: {what}"));
        self.violation.get_or_insert(Violation { rule, what });
    }

    fn is_stormy(&self) -> bool {
        self.now < self.storm_until
    }

    /// How long a message is under way.
    pub fn delay(&mut self) -> u64 {
        match self.is_stormy() {
            true => self.random.delay(self.scenario.storm_delay).max(1),
            false => self.random.between(1, 8),
        }
    }

    pub fn losses(&self) -> u64 {
        if self.is_stormy() { self.scenario.storm_losses } else { 4 }
    }

    pub fn repeats(&self) -> u64 {
        if self.is_stormy() { 150 } else { 10 }
    }

    /// When the next event happens.
    pub fn next(&self) -> Option<u64> {
        self.agenda.next_by(u64::MAX)
    }

    /// The next event, if it happens by then. Time has come so far.
    pub fn take(&mut self, until: u64) -> Option<Event> {
        let Some(Due { at, order, what }) = self.agenda.take_by(until) else {
            self.now = until;
            return None;
        };
        self.now = at;
        self.digest = mix(self.digest ^ at ^ order.rotate_left(40));
        Some(what)
    }
}
