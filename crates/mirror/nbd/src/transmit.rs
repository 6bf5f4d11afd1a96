//! The second phase: requests and their replies.

use crate::errno::Refusal;
use crate::export::Export;
use crate::output::{CloseReason, InFlight, Output, Step};
use crate::reply::{self, Reply};
use crate::request;
use crate::terms::Terms;
use crate::wire::{self, Header, REQUEST_BYTES};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::BTreeMap;

/// The payload of a refused write is skipped up to this length: the protocol calls no shorter one an attack.
const SKIPPED_MAX: u32 = 32 << 20;

/// A refused request, some of whose payload is still to come.
struct Refused {
    left: usize,
    cookie: u64,
    refusal: Refusal,
}

pub(crate) struct Transmission {
    terms: Terms,
    /// By id. Clients may use a cookie several times, so it cannot be the id.
    in_flight: BTreeMap<u64, Header>,
    /// Bytes of payload in flight.
    held: u64,
    next_id: u64,
    refused: Option<Refused>,
    /// The client has said goodbye.
    leaving: bool,
}

impl Transmission {
    pub fn new(terms: Terms) -> Transmission {
        Transmission { terms, in_flight: BTreeMap::new(), held: 0, next_id: 0, refused: None, leaving: false }
    }

    pub fn in_flight(&self) -> InFlight {
        InFlight { requests: self.in_flight.len(), bytes: self.held }
    }

    /// Whether the client left and has all its answers.
    pub fn has_ended(&self) -> bool {
        self.leaving && self.in_flight.is_empty()
    }

    /// Takes one message.
    pub fn step(&mut self, exports: &[Export], input: &mut BytesMut, out: &mut Vec<Output>) -> Step {
        if self.leaving {
            return Step::Missing(0);
        }
        if let Some(refused) = self.refused.take() {
            return self.skip(refused, input, out);
        }
        let Some(bytes) = input.first_chunk() else { return Step::Missing(REQUEST_BYTES) };
        let Some(header) = Header::parse(bytes) else { return Step::Close(CloseReason::NotARequest) };
        if header.command == wire::CMD_DISC {
            input.advance(REQUEST_BYTES);
            self.leaving = true;
            return if self.has_ended() { Step::Close(CloseReason::Disconnected) } else { Step::Done };
        }
        let export = &exports[self.terms.export];
        let payload = if header.command == wire::CMD_WRITE { header.length } else { 0 };
        if payload > SKIPPED_MAX.max(export.block.maximum) {
            return Step::Close(CloseReason::PayloadTooLong { length: payload });
        }
        let payload = payload as usize;
        match request::check(&header, export, &self.terms) {
            Err(refusal) => {
                input.advance(REQUEST_BYTES);
                self.skip(Refused { left: payload, cookie: header.cookie, refusal }, input, out)
            }
            Ok(()) if input.len() < REQUEST_BYTES + payload => Step::Missing(REQUEST_BYTES + payload),
            Ok(()) => {
                input.advance(REQUEST_BYTES);
                self.begin(header, input.split_to(payload).freeze(), out)
            }
        }
    }

    /// Skips what has come of a refused request's payload; the reply follows the last byte.
    fn skip(&mut self, mut refused: Refused, input: &mut BytesMut, out: &mut Vec<Output>) -> Step {
        let part = refused.left.min(input.len());
        input.advance(part);
        refused.left -= part;
        if refused.left > 0 {
            self.refused = Some(refused);
            return Step::Missing(1);
        }
        reply::encode_refusal(refused.cookie, &refused.refusal, self.terms.structured, &mut send_to(out));
        Step::Done
    }

    fn begin(&mut self, header: Header, payload: Bytes, out: &mut Vec<Output>) -> Step {
        let id = self.next_id;
        self.next_id += 1;
        self.held += payload_bytes(&header);
        self.in_flight.insert(id, header);
        out.push(Output::Request { id, request: request::request(&header, payload) });
        Step::Done
    }

    /// A request is no longer in flight.
    pub fn end(&mut self, id: u64) -> Header {
        let header = self.in_flight.remove(&id);
        let header = header.unwrap_or_else(|| panic!("request {id} is answered but not in flight"));
        self.held -= payload_bytes(&header);
        debug_assert!(!self.in_flight.is_empty() || self.held == 0, "what is held is held for a request");
        header
    }

    pub fn reply(&self, exports: &[Export], header: &Header, reply: Reply, out: &mut Vec<Output>) {
        let block = exports[self.terms.export].block.minimum;
        reply::encode(header, reply, self.terms.structured, block, &mut send_to(out));
    }
}

/// The payload of a write, or of a read's reply.
fn payload_bytes(header: &Header) -> u64 {
    match header.command {
        wire::CMD_READ | wire::CMD_WRITE => header.length.into(),
        _ => 0,
    }
}

fn send_to(out: &mut Vec<Output>) -> impl FnMut(Bytes) {
    |bytes| out.push(Output::Send(bytes))
}
