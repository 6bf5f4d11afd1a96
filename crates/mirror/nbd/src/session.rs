//! One connection, from the greeting to its end.

use crate::export::Export;
use crate::negotiate::Negotiation;
use crate::output::{CloseReason, InFlight, Output, Step};
use crate::reply::Reply;
use crate::transmit::Transmission;
use crate::wire;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

enum Phase {
    Negotiating(Negotiation),
    Transmitting(Transmission),
}

/// The server's side of one connection.
///
/// The driver bounds what is in flight. It stops reading from the socket while [`Session::in_flight`] is above its
/// limits; what it had read by then may still hold requests, one per 28 bytes, and those wait with the driver.
pub struct Session {
    exports: Arc<[Export]>,
    phase: Phase,
    closed: bool,
    /// Bytes of the message at the head of the input, as far as known.
    message: usize,
}

impl Session {
    /// Begins a connection; the second value is to be sent first. The empty name stands for the first export. Every
    /// export must pass [`Export::check`].
    pub fn new(exports: Arc<[Export]>) -> (Session, Bytes) {
        for export in exports.iter() {
            assert_eq!(export.check(), Ok(()), "{} cannot be offered", export.name);
        }
        let phase = Phase::Negotiating(Negotiation::default());
        (Session { exports, phase, closed: false, message: 0 }, wire::greeting())
    }

    /// Takes the whole messages off the front of `input`, which is everything received and not yet taken, and leaves a
    /// partial one in place.
    pub fn on_bytes(&mut self, input: &mut BytesMut, out: &mut Vec<Output>) {
        while !self.closed {
            let step = match &mut self.phase {
                Phase::Negotiating(negotiation) => negotiation.step(&self.exports, input, out),
                Phase::Transmitting(transmission) => transmission.step(&self.exports, input, out),
            };
            match step {
                Step::Missing(message) => {
                    debug_assert!(message == 0 || message > input.len(), "it would wait for what it has");
                    self.message = message;
                    return;
                }
                Step::Done => {}
                Step::Opened(terms) => {
                    out.push(Output::Opened { export: terms.export });
                    self.phase = Phase::Transmitting(Transmission::new(terms));
                }
                Step::Close(reason) => self.close(reason, out),
            }
        }
    }

    /// How many bytes must at least be added to the `buffered` ones that [`Session::on_bytes`] left in its input, so
    /// that it gets further. 0: it takes nothing any more. It is at most the longest payload, in the negotiation 64
    /// KiB, and a header.
    pub fn wants(&self, buffered: usize) -> usize {
        if self.closed { 0 } else { self.message.saturating_sub(buffered) }
    }

    /// Ends a request. An id that is not in flight, or a reply of another kind, is a bug of the driver's. After a close
    /// the reply is dropped.
    pub fn reply(&mut self, id: u64, reply: Reply, out: &mut Vec<Output>) {
        let Phase::Transmitting(transmission) = &mut self.phase else {
            panic!("request {id} is answered before there was any");
        };
        let header = transmission.end(id);
        if self.closed {
            return;
        }
        transmission.reply(&self.exports, &header, reply, out);
        if transmission.has_ended() {
            self.close(CloseReason::Disconnected, out);
        }
    }

    pub fn in_flight(&self) -> InFlight {
        match &self.phase {
            Phase::Negotiating(_) => InFlight::default(),
            Phase::Transmitting(transmission) => transmission.in_flight(),
        }
    }

    fn close(&mut self, reason: CloseReason, out: &mut Vec<Output>) {
        debug_assert!(!self.closed, "nothing follows a close: {reason}");
        self.closed = true;
        out.push(Output::Close(reason));
    }
}
