//! What a server knows of the others: when they were heard, and which of them are full.

use ebb_types::{Moment, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For this long after a server refused a write for lack of space, no new write is ordered to it.
const FULL_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Peers {
    heard: BTreeMap<ServerId, Moment>,
    /// Those of which a message has come and is not read yet.
    pub unread: BTreeSet<ServerId>,
    /// When each was last reported as silent.
    suspected: BTreeMap<ServerId, Moment>,
    /// When each refused a write for lack of space.
    pub full: BTreeMap<ServerId, Moment>,
}

impl Peers {
    pub fn hear(&mut self, peer: ServerId, now: Moment) {
        self.heard.insert(peer, now);
    }

    pub fn heard(&self, peer: ServerId) -> Moment {
        self.heard.get(&peer).copied().unwrap_or(Moment::ZERO)
    }

    pub fn suspect(&mut self, peer: ServerId, now: Moment) {
        self.suspected.insert(peer, now);
    }

    pub fn suspected(&self, peer: ServerId) -> Moment {
        self.suspected.get(&peer).copied().unwrap_or(Moment::ZERO)
    }

    /// Those that refused a write long ago may have room again.
    pub fn forget_full(&mut self, now: Moment) {
        self.full.retain(|_, since| now.since(*since) < FULL_PAUSE);
    }
}
