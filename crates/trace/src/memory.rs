//! Requests that are held in memory, as a trace: what several passes need.

use crate::{Format, Request, TraceError, TraceReader};

/// A trace over requests that are in order of time, and the names of their devices.
#[derive(Clone)]
pub struct InMemory<'a> {
    requests: std::slice::Iter<'a, Request>,
    devices: &'a [String],
}

impl<'a> InMemory<'a> {
    pub fn new(requests: &'a [Request], devices: &'a [String]) -> Self {
        Self { requests: requests.iter(), devices }
    }
}

impl Iterator for InMemory<'_> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.requests.next().copied().map(Ok)
    }
}

impl TraceReader for InMemory<'_> {
    fn format(&self) -> Option<Format> {
        None
    }
    fn devices(&self) -> &[String] {
        self.devices
    }
    fn skipped(&self) -> u64 {
        0
    }
    fn backwards(&self) -> u64 {
        0
    }
}
