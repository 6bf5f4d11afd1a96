//! What of a connection replies reach: its session, its bounds, and what is to be sent.

use bytes::{Buf, Bytes, BytesMut};
use ebb_nbd::{CloseReason, Export, Output, Reply, Request, Session};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Beyond each of these bounds a connection begins no request, and reads nothing, until replies have been sent.
pub const REQUESTS_MAX: usize = 256;
/// Payload in flight, and bytes that are not sent.
pub const BYTES_MAX: u64 = 32 << 20;
pub const UNSENT_PIECES_MAX: usize = 1024;

/// The part of a connection that replies reach.
pub(crate) struct State {
    pub session: Session,
    pub export: usize,
    /// The client has chosen its export.
    pub opened: bool,
    /// Requests that wait for others of the connection to end, and their payload in bytes.
    pub waiting: VecDeque<(u64, Request)>,
    pub waiting_bytes: u64,
    pub outbox: VecDeque<Bytes>,
    pub outbox_bytes: u64,
    /// Close when everything is sent.
    pub closing: Option<CloseReason>,
    /// Present while the task sleeps.
    pub waker: Option<Waker>,
    outputs: Vec<Output>,
}

impl State {
    pub fn new(exports: Arc<[Export]>) -> State {
        let (session, greeting) = Session::new(exports);
        let mut state = State {
            session,
            export: 0,
            opened: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            closing: None,
            waker: None,
            outputs: vec![Output::Send(greeting)],
        };
        // The session says what it wants once it has been asked.
        state.receive(&mut BytesMut::new());
        state
    }

    pub fn receive(&mut self, input: &mut BytesMut) {
        self.session.on_bytes(input, &mut self.outputs);
        self.take_outputs();
    }

    pub fn reply(&mut self, id: u64, reply: Reply) {
        self.session.reply(id, reply, &mut self.outputs);
        self.take_outputs();
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn take_outputs(&mut self) {
        for output in self.outputs.drain(..) {
            match output {
                Output::Send(bytes) => {
                    debug_assert!(!bytes.is_empty(), "it would be sent for ever");
                    self.outbox_bytes += bytes.len() as u64;
                    self.outbox.push_back(bytes);
                }
                Output::Opened { export } => (self.export, self.opened) = (export, true),
                Output::Request { id, request } => {
                    self.waiting_bytes += payload_bytes(&request);
                    self.waiting.push_back((id, request));
                }
                Output::Close(reason) => self.closing = Some(reason),
            }
        }
    }

    /// Whether a request with a payload of `bytes` must wait. The only one of an empty connection never does.
    pub fn is_full(&self, bytes: u64) -> bool {
        let in_flight = self.session.in_flight();
        let begun = in_flight.requests - self.waiting.len();
        let held = in_flight.bytes - self.waiting_bytes + self.outbox_bytes;
        begun >= REQUESTS_MAX
            || self.outbox.len() >= UNSENT_PIECES_MAX
            || held > 0 && held + bytes > BYTES_MAX
    }

    /// The next request that may begin.
    pub fn next_request(&mut self) -> Option<(u64, Request)> {
        let bytes = payload_bytes(&self.waiting.front()?.1);
        if self.closing.is_some() || self.is_full(bytes) {
            return None;
        }
        self.waiting_bytes -= bytes;
        let next = self.waiting.pop_front();
        debug_assert!(!self.waiting.is_empty() || self.waiting_bytes == 0, "what waits is counted");
        next
    }

    pub fn may_receive(&self) -> bool {
        self.closing.is_none() && self.waiting.is_empty() && !self.is_full(1)
    }

    pub fn has_sent(&mut self, mut bytes: usize) {
        self.outbox_bytes -= bytes as u64;
        while bytes > 0 {
            let piece = self.outbox.front_mut().expect("no more is sent than there is");
            let part = bytes.min(piece.len());
            piece.advance(part);
            bytes -= part;
            if piece.is_empty() {
                self.outbox.pop_front();
            }
        }
        debug_assert!(!self.outbox.is_empty() || self.outbox_bytes == 0, "what is not sent is counted");
    }
}

/// Of a write, or of a read's reply.
fn payload_bytes(request: &Request) -> u64 {
    match request {
        Request::Read { length, .. } => (*length).into(),
        Request::Write { payload, .. } => payload.len() as u64,
        _ => 0,
    }
}
