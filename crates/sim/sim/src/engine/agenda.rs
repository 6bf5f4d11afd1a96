//! Future events in the order in which they happen: by time, and those of one moment in the order in which they were
//! put down.
//!
//! What happens lies apart from the times that are sorted: events are large, and most runs spend their time here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub struct Agenda<T> {
    /// Time, number, and place in `events`.
    times: BinaryHeap<Reverse<(u64, u64, u32)>>,
    events: Vec<Option<T>>,
    free: Vec<u32>,
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
        Agenda { times: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), number: 0 }
    }
}

impl<T> Agenda<T> {
    pub fn put(&mut self, at: u64, what: T) {
        self.number += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() as u32 - 1
        });
        self.events[place as usize] = Some(what);
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
        self.free.push(place);
        let what = self.events[place as usize].take().expect("each time has its event");
        Some(Due { at, order, what })
    }
}
