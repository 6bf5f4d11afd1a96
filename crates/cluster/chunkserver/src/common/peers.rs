//! What a server knows of the others: when they were heard, and which of them are full.

use ebb_types::{Moment, ServerId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For this long after a server refused a write for lack of space, no new write is ordered to it.
const FULL_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Peers {
    heard: BTreeMap<ServerId, Moment>,
    /// Those of which a message lies unread.
    unread: BTreeSet<ServerId>,
    /// When each was last reported as silent.
    suspected: BTreeMap<ServerId, Moment>,
    /// When each refused a write for lack of space.
    full: BTreeMap<ServerId, Moment>,
}

impl Peers {
    pub fn hear(&mut self, peer: ServerId, now: Moment) {
        self.heard.insert(peer, now);
    }

    pub fn heard(&self, peer: ServerId) -> Moment {
        self.heard.get(&peer).copied().unwrap_or(Moment::ZERO)
    }

    /// A message of it has come, and is not read yet.
    pub fn leave_unread(&mut self, peer: ServerId) {
        self.unread.insert(peer);
    }

    /// What it sent was read, or its connection broke.
    pub fn forget_unread(&mut self, peer: ServerId) {
        self.unread.remove(&peer);
    }

    pub fn has_unread(&self, peer: ServerId) -> bool {
        self.unread.contains(&peer)
    }

    pub fn suspect(&mut self, peer: ServerId, now: Moment) {
        self.suspected.insert(peer, now);
    }

    pub fn suspected(&self, peer: ServerId) -> Moment {
        self.suspected.get(&peer).copied().unwrap_or(Moment::ZERO)
    }

    /// It refused a write for lack of space.
    pub fn fill(&mut self, peer: ServerId, now: Moment) {
        self.full.insert(peer, now);
    }

    pub fn is_full(&self, peer: ServerId) -> bool {
        self.full.contains_key(&peer)
    }

    /// Those that refused a write long ago may have room again.
    pub fn forget_full(&mut self, now: Moment) {
        self.full.retain(|_, since| now.since(*since) < FULL_PAUSE);
    }
}
