//! What all clients need that send requests with the client library's own [`Request`].

use crate::world::happening::Message;
use ebb_client_core::{Event, Request, View};
use ebb_types::{ClientReply, MetaPush, MetaReply, ServerId, piece_crcs};
use std::collections::BTreeMap;

/// Number of answers from each server, whatever their content: shows whether it is silent.
#[derive(Default)]
pub struct Heard(BTreeMap<ServerId, u64>);

impl Heard {
    pub fn from(&mut self, server: ServerId) {
        *self.0.entry(server).or_default() += 1;
    }

    /// Looks at a request. There is always a connection.
    pub fn look(&self, request: &Request) -> Event {
        let heard = request.asked().map(|server| self.0.get(&server).copied().unwrap_or(0));
        Event::Look { heard }
    }
}

/// Takes in what a message says of the map. `None`: nothing; `false`: it leaves a gap.
pub fn learn(view: &mut View, message: Message) -> Option<bool> {
    match message {
        Message::Push(MetaPush::Map(map)) => Some(view.apply(&map)),
        Message::MetaReply { reply: MetaReply::Watch { params, map }, .. } => Some(view.learn(params, &map)),
        _ => None,
    }
}

/// Whether an answer's checksums are not those of its bytes.
pub fn answer_is_garbled(reply: &ClientReply, offset: u32, bytes: &[u8]) -> bool {
    matches!(reply, ClientReply::Data { crcs } if *crcs != piece_crcs(offset, bytes))
}
