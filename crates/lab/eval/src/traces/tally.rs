//! Counts a stream of requests, so that a filter's effect can be reported.

use ebb_trace::{Request, TraceError, TraceReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Requests and bytes that have passed.
#[derive(Debug, Default)]
pub struct Tally {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// A trace that is counted as it passes.
pub struct Tallied<R> {
    inner: R,
    tally: Arc<Tally>,
}

impl<R: TraceReader> Tallied<R> {
    pub fn new(inner: R) -> (Tallied<R>, Arc<Tally>) {
        let tally = Arc::new(Tally::default());
        (Tallied { inner, tally: tally.clone() }, tally)
    }
}

impl<R: TraceReader> Iterator for Tallied<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.inner.next();
        if let Some(Ok(request)) = &item {
            self.tally.requests.fetch_add(1, Relaxed);
            self.tally.bytes.fetch_add(request.len.into(), Relaxed);
        }
        item
    }
}

ebb_trace::pass_on!(Tallied);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_counted_and_what_fails_is_not() {
        let text = "0,0,512,R,1\n0,0,1024,R,1\nbad\n";
        let (mut counted, tally) = Tallied::new(ebb_trace::open("t.spc", text.as_bytes()).unwrap());
        assert_eq!(counted.by_ref().count(), 3);
        assert_eq!((tally.requests(), tally.bytes(), counted.devices().len()), (2, 1536, 1));
    }
}
