//! The body of a request under a deadline, so that a client that stalls does not hold resources for long.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::Extensions;
use s3s::StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// A client may take as long as its bytes need at this rate, in bytes per second, plus a grace period.
const RATE_MIN: u64 = 1 << 10;

/// What is there of a body.
pub type Polled = Poll<Option<Result<Frame<Bytes>, StdError>>>;

/// A request's id.
#[derive(Clone, Default)]
pub struct Id(pub String);

/// Progress of a request.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<State>>);

struct State {
    /// When the last byte of its body arrived, or the last piece of its copy was made.
    last: Instant,
    /// The client was asked for its body, or sent it unasked.
    body_wanted: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress(Arc::new(Mutex::new(State { last: Instant::now(), body_wanted: false })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    pub fn body_wanted(&self) -> bool {
        self.state().body_wanted
    }

    /// The progress of the request with these extensions.
    pub fn of(extensions: &Extensions) -> Progress {
        extensions.get().cloned().unwrap_or_else(Progress::new)
    }

    pub fn touch(&self) {
        self.state().last = Instant::now();
    }

    /// Returns when there was no progress for this long.
    pub async fn silent_for(&self, limit: Duration) {
        loop {
            let end = self.state().last + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
#[error("the client sent too little for too long")]
pub struct Stalled;

/// The body bytes from a client, as long as it keeps sending.
pub struct Paced {
    inner: Incoming,
    progress: Progress,
    /// Longest time without a byte.
    grace: Duration,
    /// Time that the gateway has waited for the client, without the present wait.
    waited: Duration,
    received: u64,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Paced {
    pub fn new(inner: Incoming, progress: Progress, grace: Duration) -> Paced {
        Paced { inner, progress, grace, waited: Duration::ZERO, received: 0, waiting: None }
    }

    /// How long the present wait may last.
    fn patience(&self) -> Duration {
        let allowed = self.grace + Duration::from_secs(self.received / RATE_MIN);
        self.grace.min(allowed.saturating_sub(self.waited))
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            self.progress.state().body_wanted = true;
            let patience = self.patience();
            let begun = || (Instant::now(), Box::pin(tokio::time::sleep(patience)));
            let (_, timer) = self.waiting.get_or_insert_with(begun);
            std::task::ready!(timer.as_mut().poll(context));
            return Poll::Ready(Some(Err(Stalled.into())));
        };
        self.progress.touch();
        // The end of an empty body does not ask the client for anything.
        self.progress.state().body_wanted |= frame.is_some();
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        if let Some(Ok(frame)) = &frame {
            self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(StdError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
