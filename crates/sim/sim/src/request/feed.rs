//! Where the requests come from: from a trace, each at its time, or from clients in a closed loop.

mod drive;

use ebb_trace::Request;

/// The trace that is replayed.
pub struct Feed<'a> {
    pub requests: &'a [Request],
    pub next: usize,
    /// Simulated time of the trace's start.
    pub start: u64,
    /// Trace time per simulated time.
    pub speed: f64,
}

impl Feed<'_> {
    /// When a request arrives, in simulated time.
    fn at(&self, index: usize) -> Option<u64> {
        let at = self.requests.get(index)?.at.as_nanos() as f64 / self.speed;
        Some(self.start + at as u64)
    }

    /// Nothing more arrives.
    pub(super) fn end(&mut self) {
        self.requests = &self.requests[..self.next];
    }
}

/// The work of clients in a closed loop.
pub struct Closed<'a> {
    clients: &'a [Vec<Request>],
    /// Per client: the next request, and its answers so far with the moment of the last.
    next: Vec<usize>,
    pub(super) ended: Vec<(u64, u64)>,
    since: u64,
}

impl<'a> Closed<'a> {
    /// Each client begins with its first request.
    pub(super) fn new(clients: &'a [Vec<Request>], since: u64) -> Closed<'a> {
        let count = clients.len();
        Closed { clients, next: vec![0; count], ended: vec![(0, since); count], since }
    }
}
