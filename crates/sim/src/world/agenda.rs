//! Future events in the order in which they happen: by time, and those of one moment in the order in which they were put down.
//!
//! What happens lies apart from the times that are sorted: events are large, and most runs spend their time here.

use crate::world::Happening;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default)]
pub struct Agenda {
    /// Time, number, and place in `events`.
    times: BinaryHeap<Reverse<(u64, u64, u32)>>,
    events: Vec<Option<Happening>>,
    free: Vec<u32>,
    /// Of events so far.
    number: u64,
}

/// An event that is due.
pub struct Due {
    pub at: u64,
    pub order: u64,
    pub what: Happening,
}

impl Agenda {
    pub fn put(&mut self, at: u64, what: Happening) {
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
    pub fn take_by(&mut self, end: u64) -> Option<Due> {
        self.next_by(end)?;
        let Reverse((at, order, place)) = self.times.pop()?;
        self.free.push(place);
        let what = self.events[place as usize].take().expect("each time has its event");
        Some(Due { at, order, what })
    }
}
