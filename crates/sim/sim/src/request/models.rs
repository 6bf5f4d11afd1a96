//! The models of time of one world, with its clients, its feed and its watch.

use crate::request::client::Clients;
use crate::request::energy::{Meters, Taken, Way};
use crate::request::feed::{Closed, Feed};
use crate::request::follow::Watch;
use crate::request::machine::Machine;
use crate::request::network::{Fabric, Traffic};
use crate::world::happening::Message;
use ebb_types::{Depth, MetaPush, MetaReply, Moment, PeerMessage, Role, ServerId};
use std::collections::{BTreeMap, BTreeSet};

/// Approximate bytes of a message's head on the wire: frame, body, TCP/IP.
pub(super) const MESSAGE_BYTES: u64 = 150;
/// Approximate bytes of a slot in a map, a run in a listing, a record in a tail.
const ITEM_BYTES: u64 = 40;

/// The models of time of one world, and what they measure.
pub struct Models<'a> {
    pub fabric: Fabric,
    pub machines: BTreeMap<ServerId, Machine>,
    pub clients: Clients,
    pub feed: Feed<'a>,
    /// Clients that send as fast as they are answered; `None`: requests arrive at the trace's times.
    pub closed: Option<Closed<'a>>,
    pub energy: Meters,
    /// Servers that are switched on.
    pub on: BTreeSet<ServerId>,
    /// How deep each server was put to sleep last.
    pub slept: BTreeMap<ServerId, Depth>,
    pub watch: Watch,
    /// How long the switch takes.
    pub ways: BTreeMap<Depth, Way>,
    /// Time between two samples.
    pub sample_every: u64,
    /// The last moment at which one is taken.
    pub sample_until: u64,
}

impl Models<'_> {
    pub(super) fn machine(&mut self, server: ServerId) -> &mut Machine {
        self.machines.get_mut(&server).expect("every server has a machine")
    }

    /// What the servers have taken since the start of the trace.
    pub(super) fn taken(&self, now: u64) -> Taken {
        let (meters, now) = (&self.energy, Moment(now));
        let mut taken = Taken { clock: meters.clock.energy(now), own: meters.own.energy(now) };
        taken.clock.on += self.watch.work;
        taken.own.on += self.watch.own_work;
        taken
    }

    pub fn debt_bytes(&self) -> u64 {
        self.machines.values().map(|m| m.store.offload_bytes()).sum()
    }
}

/// A message's kind of traffic, and its bytes beyond the head.
pub(super) fn weigh(message: &Message) -> (Traffic, u64) {
    let items = |count: usize| count as u64 * ITEM_BYTES;
    match message {
        Message::Peer { message, payload } => match message {
            PeerMessage::Replicate { role, record, .. } => {
                let traffic = if *role == Role::Replica { Traffic::Replication } else { Traffic::Offload };
                (traffic, payload.len() as u64 + 4 * u64::from(record.count))
            }
            PeerMessage::List { .. }
            | PeerMessage::Fetch { .. }
            | PeerMessage::Scrub { .. }
            | PeerMessage::Check { .. }
            | PeerMessage::CheckReply { .. }
            | PeerMessage::Scrubbed { .. } => (Traffic::CatchUp, 0),
            PeerMessage::ListReply { result, .. } => {
                (Traffic::CatchUp, result.as_ref().map_or(0, |page| items(page.runs.len())))
            }
            PeerMessage::FetchReply { .. } => (Traffic::CatchUp, payload.len() as u64),
            PeerMessage::Fence { done, .. } => (Traffic::Control, items(done.len())),
            PeerMessage::FenceReply { tail, done, .. } => (Traffic::Control, items(tail.len() + done.len())),
            PeerMessage::ReplicateReply { .. } | PeerMessage::Committed { .. } => (Traffic::Control, 0),
        },
        Message::Request { payload, .. } | Message::Reply { payload, .. } => {
            (Traffic::Client, payload.len() as u64)
        }
        Message::Push(MetaPush::Map(map))
        | Message::MetaReply { reply: MetaReply::Watch { map, .. }, .. } => {
            let slots: usize = map.groups.iter().map(|(_, entry)| 1 + entry.slots.len()).sum();
            (Traffic::Control, items(slots + map.servers.len()))
        }
        Message::Raft(bytes) => (Traffic::Control, bytes.len() as u64),
        _ => (Traffic::Control, 0),
    }
}
