//! Requests and replies on one shared connection: many at once, in any order, matched by id.

use crate::transport::{Frame, Receiver, Sender, TransportError};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The connection ended before the reply came, or did not accept the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The requesting side of a connection whose replies are of type `R`.
#[derive(Debug)]
pub(crate) struct Link<R> {
    sender: Sender,
    waiting: Mutex<Waiting<R>>,
    /// Frames received: shows whether the other side is alive.
    heard: AtomicU64,
}

#[derive(Debug)]
struct Waiting<R> {
    answers: HashMap<u64, oneshot::Sender<(R, Bytes)>>,
    last_id: u64,
    lost: bool,
}

/// Removes a request that is no longer waited for.
struct Ticket<'a, R> {
    link: &'a Link<R>,
    id: u64,
}

impl<R> Drop for Ticket<'_, R> {
    fn drop(&mut self) {
        self.link.waiting().answers.remove(&self.id);
    }
}

impl<R> Link<R> {
    pub fn new(sender: Sender) -> Link<R> {
        let waiting = Waiting { answers: HashMap::new(), last_id: 0, lost: false };
        Link { sender, waiting: Mutex::new(waiting), heard: AtomicU64::new(0) }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<R>> {
        self.waiting.lock().expect("nothing panics under this lock")
    }

    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    pub fn is_lost(&self) -> bool {
        self.waiting().lost
    }

    /// Whether no reply is awaited.
    pub fn is_idle(&self) -> bool {
        self.waiting().answers.is_empty()
    }

    pub fn close(&self) {
        self.sender.close();
        let mut waiting = self.waiting();
        waiting.lost = true;
        waiting.answers.clear();
    }

    /// Sends a request and waits for its reply with payload. Cancel-safe.
    pub async fn request<T: Serialize>(
        &self,
        kind: u8,
        message: &T,
        payload: Bytes,
    ) -> Result<(R, Bytes), Lost> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting();
            if waiting.lost {
                return Err(Lost);
            }
            waiting.last_id += 1;
            let id = waiting.last_id;
            let before = waiting.answers.insert(id, answer);
            debug_assert!(before.is_none(), "an id is of one request");
            id
        };
        let ticket = Ticket { link: self, id };
        self.sender.send_wait(kind, id, message, payload).await.map_err(|_| Lost)?;
        let outcome = answered.await.map_err(|_| Lost);
        drop(ticket);
        outcome
    }

    /// Sends a frame whose reply, if any, has id zero and goes to no particular caller.
    pub fn tell<T: Serialize>(&self, kind: u8, message: &T) {
        // A connection that does not accept it is about to end, and a caller that needs the reply asks again on
        // the next one.
        let _ = self.sender.send(kind, 0, message, Bytes::new());
    }
}

impl<R: DeserializeOwned> Link<R> {
    /// Receives until the connection ends. Replies (`answer_kind`) with an id go to their callers;
    /// everything else goes to `other`, which ends the connection by returning an error.
    pub async fn run(
        &self,
        receiver: &mut Receiver,
        answer_kind: u8,
        mut other: impl FnMut(Frame) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        let outcome = loop {
            let frame = match receiver.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            self.heard.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = self.dispatch(frame, answer_kind, &mut other) {
                break Err(error);
            }
        };
        self.close();
        outcome
    }

    fn dispatch(
        &self,
        frame: Frame,
        answer_kind: u8,
        other: &mut impl FnMut(Frame) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        if frame.kind != answer_kind {
            return other(frame);
        }
        let (id, message) = frame.decode()?;
        if id == 0 {
            return other(frame);
        }
        let answer = self.waiting().answers.remove(&id);
        if let Some(answer) = answer {
            // Fails only if the caller has just given up.
            let _ = answer.send((message, frame.payload));
        }
        Ok(())
    }
}
