//! Reads and places the trace on another thread, some batches ahead of the clock: parsing and decompressing come in
//! bursts, and a burst on the thread that keeps the schedule would cause lateness.

use super::options::DriveError;
use super::place::{Op, Placer};
use super::report::PlacedReport;
use ebb_trace::{Request, TraceError};
use std::vec;
use tokio::sync::mpsc;

/// Requests per batch, and batches kept ready.
const BATCH: usize = 1024;
const AHEAD: usize = 16;

enum Message {
    /// With the placement statistics up to the end of this batch.
    Ops(Vec<Op>, PlacedReport),
    End(Result<(), DriveError>),
}

/// The operations to issue, in order of time.
pub(crate) struct Feed {
    messages: mpsc::Receiver<Message>,
    batch: vec::IntoIter<Op>,
    placed: PlacedReport,
    end: Option<Result<(), DriveError>>,
}

impl Feed {
    /// Starts reading. Must be called on a tokio runtime. The thread ends when the feed is dropped.
    /// `count` adds what `requests` has not passed on so far.
    pub fn start<I>(
        requests: I,
        mut placer: Placer,
        count: impl Fn(&I, &mut PlacedReport) + Send + 'static,
    ) -> Feed
    where
        I: Iterator<Item = Result<Request, TraceError>> + Send + 'static,
    {
        let (sender, messages) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            let end = send_all(requests, &mut placer, count, &sender);
            // The replay may have ended before its trace; then there is no receiver.
            let _ = sender.blocking_send(Message::End(end));
        });
        Feed { messages, batch: Vec::new().into_iter(), placed: PlacedReport::default(), end: None }
    }

    /// The next operation already fetched.
    pub fn peek(&self) -> Option<&Op> {
        self.batch.as_slice().first()
    }

    pub fn next(&mut self) -> Option<Op> {
        self.batch.next()
    }

    /// Fetches more if there is nothing left to [`peek`](Feed::peek) at; returns whether there is something then.
    pub fn fetch_blocking(&mut self) -> bool {
        while self.peek().is_none() && self.end.is_none() {
            let message = self.messages.blocking_recv();
            self.take(message);
        }
        self.peek().is_some()
    }

    /// The same, asynchronously.
    pub async fn fetch(&mut self) -> bool {
        while self.peek().is_none() && self.end.is_none() {
            let message = self.messages.recv().await;
            self.take(message);
        }
        self.peek().is_some()
    }

    fn take(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Ops(ops, placed)) => (self.batch, self.placed) = (ops.into_iter(), placed),
            Some(Message::End(end)) => self.end = Some(end),
            None => panic!("the thread that reads the trace died"),
        }
    }

    /// Placement statistics to the end of the batch that was reached, or the error that ended the trace.
    pub fn finish(self) -> Result<PlacedReport, DriveError> {
        self.end.unwrap_or(Ok(())).map(|()| self.placed)
    }
}

fn send_all<I>(
    mut requests: I,
    placer: &mut Placer,
    count: impl Fn(&I, &mut PlacedReport),
    sender: &mpsc::Sender<Message>,
) -> Result<(), DriveError>
where
    I: Iterator<Item = Result<Request, TraceError>>,
{
    let mut ops = Vec::with_capacity(BATCH);
    while let Some(request) = requests.next() {
        placer.place(&request?, &mut ops)?;
        if ops.len() >= BATCH {
            count(&requests, &mut placer.report);
            let full = std::mem::replace(&mut ops, Vec::with_capacity(BATCH));
            if sender.blocking_send(Message::Ops(full, placer.report)).is_err() {
                return Ok(());
            }
        }
    }
    count(&requests, &mut placer.report);
    let _ = sender.blocking_send(Message::Ops(ops, placer.report));
    Ok(())
}
