//! Future events in the order in which they happen: by time, and those of one moment in the order in which they were
//! put down.
//!
//! What happens lies apart from the times that are sorted: events are large, and most runs spend their time here.

use super::slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub struct Agenda<T> {
    /// Time, number, and place in `events`.
    times: BinaryHeap<Reverse<(u64, u64, u32)>>,
    events: Slab<T>,
    /// Of events so far.
    number: u64,
}

/// An event that is due.
pub struct Due<T> {
    pub at: u64,
    pub order: u64,
    pub what: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda { times: BinaryHeap::new(), events: Slab::default(), number: 0 }
    }
}

impl<T> Agenda<T> {
    pub fn put(&mut self, at: u64, what: T) {
        self.number += 1;
        let place = self.events.put(what);
        self.times.push(Reverse((at, self.number, place)));
    }

    /// When the next event happens, if that is by `end`.
    pub fn next_by(&self, end: u64) -> Option<u64> {
        self.times.peek().map(|Reverse((at, ..))| *at).filter(|at| *at <= end)
    }

    /// The next event, if it happens by `end`.
    pub fn take_by(&mut self, end: u64) -> Option<Due<T>> {
        self.next_by(end)?;
        let Reverse((at, order, place)) = self.times.pop()?;
        let what = self.events.take(place).expect("each time has its event");
        Some(Due { at, order, what })
    }
}
