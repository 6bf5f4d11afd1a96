//! Clients that replay a trace: each request is sent at the trace's time, whatever the outcome of earlier ones.
//!
//! A client host has its own map. The client library's own [`Request`](ebb_client_core::Request) decides how a piece of
//! a request finds its primary and when it is retried. A request over several chunks is split into one piece per chunk,
//! and ends with the last one.

mod drive;

use crate::engine::Slab;
use crate::request::measure::Done;
use crate::world::client::Heard;
use ebb_client_core::{Trouble, View};
use ebb_types::Unready;

/// A machine that clients run on.
#[derive(Default)]
pub struct Host {
    view: View,
    heard: Heard,
    seq: u64,
}

/// One piece of a request in flight.
struct Piece {
    whole: u32,
    host: u32,
    request: ebb_client_core::Request,
    attempt: u64,
}

/// A request with pieces in flight.
struct Whole {
    done: Done,
    left: u32,
}

#[derive(Default)]
pub struct Clients {
    pub hosts: Vec<Host>,
    pieces: Slab<Piece>,
    wholes: Slab<Whole>,
    attempts: u64,
    /// Requests of the trace that have arrived.
    pub arrived: u64,
    pub answered: Vec<Done>,
    pub retries: Retries,
}

/// Why requests were retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Retries {
    /// The group has another primary.
    pub moved: u64,
    /// The server could not serve it: no lease, an outdated map, too few copies, overload.
    pub no_lease: u64,
    pub behind: u64,
    pub too_few_copies: u64,
    pub busy: u64,
    /// No answer in time.
    pub timeouts: u64,
}

impl Clients {
    pub fn new(hosts: u32) -> Clients {
        Clients { hosts: (0..hosts).map(|_| Host::default()).collect(), ..Clients::default() }
    }

    pub fn under_way(&self) -> usize {
        self.wholes.len()
    }
}

impl Retries {
    fn of(&mut self, why: &Trouble) -> &mut u64 {
        match why {
            Trouble::NotReady(Unready::NoLease) => &mut self.no_lease,
            Trouble::NotReady(Unready::Behind) => &mut self.behind,
            Trouble::NotReady(Unready::TooFewCopies | Unready::Exposed) => &mut self.too_few_copies,
            Trouble::Superseded | Trouble::Elsewhere(_) => &mut self.moved,
            Trouble::NoAnswer => &mut self.timeouts,
            _ => &mut self.busy,
        }
    }

    /// Counts by reason, in words.
    pub fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("the primary moved", self.moved),
            ("no lease", self.no_lease),
            ("the server's map was behind", self.behind),
            ("too few copies", self.too_few_copies),
            ("busy", self.busy),
            ("no answer in time", self.timeouts),
        ]
    }

    pub fn total(&self) -> u64 {
        self.rows().iter().map(|(_, count)| count).sum()
    }

    /// The reasons that occurred, in brackets.
    pub fn reasons(&self) -> String {
        let there = self.rows().into_iter().filter(|(_, count)| *count > 0);
        let there: Vec<String> = there.map(|(why, count)| format!("{why}: {count}")).collect();
        if there.is_empty() { String::new() } else { format!(" ({})", there.join(", ")) }
    }
}
