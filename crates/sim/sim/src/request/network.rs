//! Timing model of the network: every node has a full-duplex link to its rack's switch, every rack an uplink to the
//! core.
//!
//! A message takes each lane on its path (the sender's link, the two uplinks if it crosses racks, the receiver's link)
//! in sending order, for as long as its bytes take there. Lanes are pipelined: it arrives when the last lane has passed
//! its last byte, plus one latency per switch. So an idle path costs latency and one transmission, and an overloaded
//! lane grows a queue.

use crate::engine::SECOND;
use crate::request::settings::{SettingsError, check_positive};
use crate::world::net::Node;
use ebb_types::ServerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The parameters of a network. Read from configuration: call [`NetworkModel::check`] before use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkModel {
    pub name: String,
    /// Source of the figures.
    pub source: String,
    /// One way through one switch and both ends' software, in seconds.
    pub latency_seconds: f64,
    /// Of a server's or client's link, in each direction.
    pub link_bytes_per_second: f64,
    /// Of a rack's uplink, in each direction.
    pub uplink_bytes_per_second: f64,
}

impl NetworkModel {
    /// 1 Gbit/s ports and 10 Gbit/s uplinks. [Sierra §4.3]
    pub fn gigabit() -> NetworkModel {
        NetworkModel {
            name: "1g".into(),
            source:
                "Sierra §4.3: 1 Gbit/s ports, 10 Gbit/s uplinks; latency of a kernel TCP stack of that time"
                    .into(),
            latency_seconds: 100e-6,
            link_bytes_per_second: 125e6,
            uplink_bytes_per_second: 1.25e9,
        }
    }

    /// A present rack of storage servers.
    pub fn ten_gigabit() -> NetworkModel {
        NetworkModel {
            name: "10g".into(),
            source: "10 Gbit/s ports, 40 Gbit/s uplinks; latency of a kernel TCP stack through one switch"
                .into(),
            latency_seconds: 30e-6,
            link_bytes_per_second: 1.25e9,
            uplink_bytes_per_second: 5e9,
        }
    }

    pub fn check(&self) -> Result<(), SettingsError> {
        check_positive("network", "latency_seconds", self.latency_seconds)?;
        check_positive("network", "link_bytes_per_second", self.link_bytes_per_second)?;
        check_positive("network", "uplink_bytes_per_second", self.uplink_bytes_per_second)
    }
}

/// The purpose of a message, to account for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// Between clients and servers.
    Client,
    /// Copies of writes to the other replicas.
    Replication,
    /// Copies of writes to holders.
    Offload,
    /// Listings and fetches of reclaim, repair and rebuild.
    CatchUp,
    /// Everything else: fences, commits, heartbeats, maps.
    Control,
}

impl Traffic {
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Client => "clients",
            Traffic::Replication => "replication",
            Traffic::Offload => "offload",
            Traffic::CatchUp => "catch-up",
            Traffic::Control => "control",
        }
    }
}

pub const TRAFFICS: [Traffic; 5] =
    [Traffic::Client, Traffic::Replication, Traffic::Offload, Traffic::CatchUp, Traffic::Control];

/// When a lane becomes free, by direction: out of the node or rack, and into it.
#[derive(Clone, Copy, Default)]
struct Duplex {
    out: u64,
    into: u64,
}

pub struct Fabric {
    latency: u64,
    link_nanos_per_byte: f64,
    uplink_nanos_per_byte: f64,
    racks: Vec<Duplex>,
    /// Rack of each server, by id.
    rack_of: Vec<u16>,
    servers: Vec<Duplex>,
    others: BTreeMap<Node, Duplex>,
    /// Bytes by purpose: all, and those that crossed racks.
    pub bytes: [u64; TRAFFICS.len()],
    pub cross_rack_bytes: [u64; TRAFFICS.len()],
}

impl Fabric {
    /// `racks`: the rack of each server, as an index from zero.
    pub fn new(model: &NetworkModel, racks: &BTreeMap<ServerId, u16>) -> Fabric {
        let most = racks.keys().map(|s| usize::from(s.0) + 1).max().unwrap_or(0);
        let mut rack_of = vec![0; most];
        racks.iter().for_each(|(server, rack)| rack_of[usize::from(server.0)] = *rack);
        let count = racks.values().max().map_or(1, |r| usize::from(*r) + 1);
        Fabric {
            latency: (model.latency_seconds * SECOND as f64) as u64,
            link_nanos_per_byte: SECOND as f64 / model.link_bytes_per_second,
            uplink_nanos_per_byte: SECOND as f64 / model.uplink_bytes_per_second,
            racks: vec![Duplex::default(); count],
            rack_of,
            servers: vec![Duplex::default(); most],
            others: BTreeMap::new(),
            bytes: [0; TRAFFICS.len()],
            cross_rack_bytes: [0; TRAFFICS.len()],
        }
    }

    /// Resets the byte counts.
    pub fn forget_bytes(&mut self) {
        self.bytes = [0; TRAFFICS.len()];
        self.cross_rack_bytes = [0; TRAFFICS.len()];
    }

    pub fn racks(&self) -> usize {
        self.racks.len()
    }

    /// Clients are spread over all racks in turn, metadata members over the first ones.
    pub fn rack(&self, node: Node) -> usize {
        match node {
            Node::Server(id) => usize::from(self.rack_of[usize::from(id.0)]),
            Node::Member(id) => (id as usize).saturating_sub(1) % self.racks.len(),
            Node::Client(id) => id as usize % self.racks.len(),
        }
    }

    fn link(&mut self, node: Node) -> &mut Duplex {
        match node {
            Node::Server(id) => &mut self.servers[usize::from(id.0)],
            other => self.others.entry(other).or_default(),
        }
    }

    /// Sends a message; returns when it arrives.
    pub fn send(&mut self, now: u64, from: Node, to: Node, bytes: u64, traffic: Traffic) -> u64 {
        let (rack_from, rack_to) = (self.rack(from), self.rack(to));
        let crosses = rack_from != rack_to;
        self.bytes[traffic as usize] += bytes;
        let on_link = (bytes as f64 * self.link_nanos_per_byte) as u64;
        let mut path = Path { start: now, end: now };
        path.take(&mut self.link(from).out, on_link);
        if crosses {
            self.cross_rack_bytes[traffic as usize] += bytes;
            let on_uplink = (bytes as f64 * self.uplink_nanos_per_byte) as u64;
            path.take(&mut self.racks[rack_from].out, on_uplink);
            path.take(&mut self.racks[rack_to].into, on_uplink);
        }
        path.take(&mut self.link(to).into, on_link);
        path.end + self.latency * if crosses { 3 } else { 1 }
    }
}

/// A message's progress along its path.
struct Path {
    start: u64,
    end: u64,
}

impl Path {
    fn take(&mut self, lane: &mut u64, nanos: u64) {
        self.start = self.start.max(*lane);
        self.end = self.end.max(self.start + nanos);
        *lane = self.start + nanos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric() -> Fabric {
        let model = NetworkModel {
            latency_seconds: 1e-4,
            link_bytes_per_second: 100e6,
            uplink_bytes_per_second: 200e6,
            ..NetworkModel::gigabit()
        };
        Fabric::new(&model, &(1..=8).map(|n| (ServerId(n), (n - 1) / 4)).collect())
    }

    fn server(n: u16) -> Node {
        Node::Server(ServerId(n))
    }

    #[test]
    fn an_idle_path_costs_latency_and_one_transmission() {
        let mut fabric = fabric();
        // 1 MB at 100 MB/s is 10 ms; one switch within the rack, three between racks.
        assert_eq!(fabric.send(0, server(1), server(2), 1_000_000, Traffic::Client), 10_100_000);
        assert_eq!(fabric.send(0, server(3), server(5), 1_000_000, Traffic::Offload), 10_300_000);
        assert_eq!(fabric.bytes[Traffic::Offload as usize], 1_000_000);
        assert_eq!(fabric.cross_rack_bytes[Traffic::Client as usize], 0);
    }

    #[test]
    fn a_link_passes_one_message_after_another() {
        let mut fabric = fabric();
        let times: Vec<u64> =
            (0..3).map(|n| fabric.send(0, server(1), server(2 + n), 1_000_000, Traffic::Client)).collect();
        assert_eq!(times, [10_100_000, 20_100_000, 30_100_000]);
        // Into one server from three: its own link is the bottleneck.
        let last =
            (2..=4).map(|n| fabric.send(100_000_000, server(n), server(1), 1_000_000, Traffic::Client)).max();
        assert_eq!(last, Some(130_100_000));
    }

    #[test]
    fn an_uplink_saturates_at_its_bandwidth() {
        let mut fabric = fabric();
        // Four servers of a rack send 100 MB/s each to the other rack, whose uplink passes 200 MB/s: 40 messages of 1
        // MB from each are 160 MB, which takes 800 ms instead of the links' 400 ms.
        let mut last = 0;
        for _ in 0..40 {
            for n in 1..=4 {
                last = last.max(fabric.send(0, server(n), server(n + 4), 1_000_000, Traffic::CatchUp));
            }
        }
        let right = 160e6 / 200e6;
        assert!((last as f64 / 1e9 / right - 1.0).abs() < 0.02, "{last}");
        assert_eq!(fabric.cross_rack_bytes[Traffic::CatchUp as usize], 160_000_000);
    }
}
