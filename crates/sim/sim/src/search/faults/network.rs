//! Connections that break, partitions, networks that part some nodes and not others, connections that are dead in one
//! direction, queues that are full, and storms.

use crate::engine::{MILLI, SECOND};
use crate::search::coder::CODERS;
use crate::search::harness::{Event, World};
use crate::world::happening::{Happening, Message};
use crate::world::net::{ADMIN, NetModel, Node};
use ebb_types::{Random, ServerId};

impl World<'_> {
    pub fn all_nodes(&self) -> Vec<Node> {
        let servers = self.servers.keys().map(|s| Node::Server(*s));
        let members = self.members.keys().map(|m| Node::Member(*m));
        let coders = (CODERS..).take(self.harness.coders.len());
        let clients = self.harness.clients.iter().map(|c| c.id).chain(coders).map(Node::Client);
        servers.chain(members).chain(clients).chain([Node::Client(ADMIN)]).collect()
    }

    /// One node, or half of them, cannot reach the others; or one pair, possibly in one direction only.
    pub(super) fn partition(&mut self, id: ServerId) {
        let until = self.now + self.fault_random.delay(700 * MILLI).min(8 * SECOND);
        let nodes = self.all_nodes();
        let both = self.fault_random.chance(700);
        let pair = self.fault_random.chance(400);
        let one = Node::Server(id);
        let other = *self.fault_random.pick(&nodes).expect("there are nodes");
        let side: Vec<Node> = if self.fault_random.chance(500) {
            vec![one]
        } else {
            nodes.iter().copied().filter(|_| self.fault_random.chance(500)).collect()
        };
        self.count("partition");
        self.note(|| match pair {
            true => format!("{one} is cut off from {other} ({})", ways(both)),
            false => format!("{} cut off from the others ({})", names(&side), ways(both)),
        });
        let pairs: Vec<(Node, Node)> = if pair {
            vec![(one, other)]
        } else {
            let rest = nodes.iter().filter(|n| !side.contains(n));
            rest.flat_map(|r| side.iter().map(|s| (*s, *r))).collect()
        };
        let outlasted = self.fault_random.chance(500);
        for pair in pairs {
            self.net.cut_pair(pair, both, until, outlasted);
        }
    }

    /// A client cannot send to any server, or receives from none, for as long as it may retry: meanwhile others write
    /// to the same cells.
    pub(super) fn cut_off_client(&mut self) {
        let until = self.now + self.fault_random.delay(3 * SECOND).min(12 * SECOND);
        let client = Node::Client(self.fault_random.below(self.harness.clients.len() as u64) as u32);
        let deaf = self.fault_random.chance(600);
        let outlasted = self.fault_random.chance(300);
        self.count("client cut off");
        self.note(|| format!("{client} is cut off from all servers ({})", ways(!deaf)));
        for id in self.servers.keys().copied() {
            self.net.cut_pair((Node::Server(id), client), !deaf, until, outlasted);
        }
    }

    pub(super) fn reset_connection(&mut self, id: ServerId) {
        let nodes = self.all_nodes();
        let other = *self.fault_random.pick(&nodes).expect("there are nodes");
        self.note(|| format!("the connection of {id} and {other} breaks"));
        self.count("connection reset");
        if other != Node::Server(id) {
            self.net.reset(Node::Server(id), other);
            self.connection_breaks(Node::Server(id), other);
        }
    }

    pub(super) fn storm(&mut self) {
        let most = |r: &mut Random, n| if r.chance(500) { r.below(n) } else { 0 };
        let r = &mut self.fault_random;
        self.net.model = NetModel {
            delay: self.settings.net.delay * r.between(1, 30),
            loss: most(r, 300),
            repeat: most(r, 300),
            reorder: most(r, 600),
        };
        let model = self.net.model;
        self.note(|| format!("the network is in a storm: {model}"));
        self.count("network storm");
        let time = self.fault_random.delay(SECOND).min(8 * SECOND);
        self.its_after(time, Event::Calm);
    }

    /// A connection broke. What a client had sent is in the server's socket all the same, now and then, and is read
    /// after what came on another connection.
    pub(super) fn read_late(&mut self, from: Node, to: Node, message: Message) {
        let reads = matches!((from, to), (Node::Client(_), Node::Server(_)));
        if reads && self.stormy && self.net.random.chance(700) {
            self.count("request read late");
            let generation = self.net.generation(from, to);
            let delay = self.net.random.between(0, 6 * SECOND);
            self.after(delay, Happening::Deliver { from, to, generation, message });
        }
    }

    /// Two sides do not hear each other, and the rest hears both; or what one side sends does not reach the other. Or a
    /// metadata member is cut off from all but the other members.
    pub(super) fn split(&mut self) {
        let time = self.fault_random.delay(1500 * MILLI).min(15 * SECOND);
        let until = self.now + time;
        let nodes = self.all_nodes();
        let members: Vec<u64> = self.members.keys().copied().collect();
        let deaf =
            self.fault_random.chance(300).then(|| *self.fault_random.pick(&members).expect("one member"));
        let (one, other): (Vec<Node>, Vec<Node>) = match deaf {
            Some(member) => {
                let others = nodes.iter().copied().filter(|node| !matches!(node, Node::Member(_)));
                (vec![Node::Member(member)], others.collect())
            }
            None => {
                let mut sides = [Vec::new(), Vec::new(), Vec::new()];
                for node in nodes {
                    sides[self.fault_random.index(3)].push(node);
                }
                let [one, other, _] = sides;
                (one, other)
            }
        };
        let (both, outlasted) = (self.fault_random.chance(600), self.fault_random.chance(400));
        self.count(if deaf.is_some() { "deaf metadata member" } else { "partition that is not transitive" });
        self.note(|| {
            let names = |side: &[Node]| side.iter().map(Node::to_string).collect::<Vec<_>>().join(", ");
            format!("cut off from each other are {} and {}", names(&one), names(&other))
        });
        for pair in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            self.net.cut_pair(pair, both, until, outlasted);
        }
    }

    /// For a while the metadata leader does not hear some servers, which the other members hear.
    pub(super) fn deafen_in_part(&mut self) {
        let mut random = self.fault_random.fork();
        let until = self.now + random.between(SECOND, 30 * SECOND);
        let outlasted = random.chance(300);
        if self.deafen_leader(&mut random, until, outlasted) {
            self.count("metadata leader deaf in part");
        }
    }

    /// What a third of the servers says does not reach the metadata leader, and reaches the other members: one of them
    /// is to lead. Returns `false` if there is no leader, or it is alone.
    pub fn deafen_leader(&mut self, random: &mut Random, until: u64, outlasted: bool) -> bool {
        let leads = self.members.iter().filter(|(_, m)| m.up && m.member.is_leader());
        let newest = leads.max_by_key(|(_, m)| m.member.term().0).map(|(id, _)| *id);
        let Some(leader) = newest.filter(|_| self.members.len() > 1) else { return false };
        let mut ids: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
        random.shuffle(&mut ids);
        ids.truncate((ids.len() / 3).max(1));
        self.note(|| {
            let names = ids.iter().map(ServerId::to_string).collect::<Vec<_>>().join(", ");
            format!("member-{leader}, which leads, does not hear {names}")
        });
        for id in ids {
            self.net.cut(Node::Server(id), Node::Member(leader), until, outlasted);
        }
        true
    }

    /// Nothing that one node sends to another arrives, and neither gets an error: a machine between them has forgotten
    /// the connection, or lets one direction pass. One of the two is a client or a metadata member; of two servers
    /// [`crate::world::World::connection_breaks`] does it.
    pub(super) fn mute(&mut self, id: ServerId) {
        let nodes = self.all_nodes();
        let apart = |node: &Node| !matches!(node, Node::Server(_) | Node::Client(ADMIN));
        let others: Vec<Node> = nodes.into_iter().filter(apart).collect();
        let one = *self.fault_random.pick(&others).expect("there is a member");
        let members: Vec<u64> = self.members.keys().copied().collect();
        let member = *self.fault_random.pick(&members).expect("there is a member");
        let other = match one {
            Node::Member(_) if self.fault_random.chance(300) => Node::Member(member),
            Node::Client(_) if self.fault_random.chance(200) => Node::Member(member),
            _ => Node::Server(id),
        };
        if one == other {
            return;
        }
        let (from, to) = if self.fault_random.chance(500) { (one, other) } else { (other, one) };
        let until = self.now + self.fault_random.between(SECOND, 30 * SECOND);
        self.count("connection dead in one direction");
        self.note(|| format!("nothing of {from} arrives at {to}, and neither notices"));
        self.net.mute(from, to, until);
    }

    /// What a member sends to another node, or a node to a member, is refused for a while, for the other side does not
    /// read. Only these queues refuse: what chunk servers send to each other and answer to clients is bounded
    /// elsewhere.
    pub(super) fn fill_queue(&mut self) {
        let nodes = self.all_nodes();
        let members: Vec<u64> = self.members.keys().copied().collect();
        let member = Node::Member(*self.fault_random.pick(&members).expect("there is a member"));
        let other = *self.fault_random.pick(&nodes).expect("there are nodes");
        if member == other {
            return;
        }
        let (from, to) = if self.fault_random.chance(700) { (member, other) } else { (other, member) };
        let until = self.now + self.fault_random.delay(1500 * MILLI).min(10 * SECOND);
        self.count("queue full");
        self.note(|| format!("the queue of {from} for {to} is full"));
        self.net.fill_queue(from, to, until);
    }
}

fn ways(both: bool) -> &'static str {
    if both { "both ways" } else { "one way" }
}

fn names(side: &[Node]) -> String {
    let names: Vec<String> = side.iter().map(Node::to_string).collect();
    format!("{} {}", names.join(", "), if side.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{ask, begin, cluster, primary, read, write};
    use ebb_types::{ServerEntry, ServerState};

    #[test]
    fn a_client_gives_up_a_connection_on_which_nothing_comes_back() {
        let mut world = cluster();
        let server = Node::Server(primary(&world));
        world.net.mute(server, Node::Client(0), world.now + 3600 * SECOND);
        begin(&mut world, write(0, 1));
        world.run_until(world.now + 100 * MILLI, |_| false);
        assert!(world.harness.clients[0].under_way().is_some(), "the answer is lost");
        world.run_until(world.now + 60 * SECOND, |world| world.harness.clients[0].is_done());
        assert!(world.harness.clients[0].is_done() && world.violation.is_none());
    }

    #[test]
    fn a_leader_that_is_deaf_in_part_hands_over_before_it_calls_a_server_failed() {
        let mut world = cluster();
        world.grow();
        world.run_until(world.now + 60 * SECOND, |world| world.members.values().all(|m| !m.broken));
        world.run_until(world.now + 10 * SECOND, |_| false);
        let leads =
            |world: &World| world.members.iter().find(|(_, m)| m.member.is_leader()).map(|(id, _)| *id);
        let fails = |s: &&ServerEntry| s.state == ServerState::Failed;
        let failed = |world: &World| world.newest_state().servers().filter(fails).count();
        let deaf = leads(&world);
        let until = world.now + 20 * SECOND;
        assert!(world.deafen_leader(&mut Random::new(1), until, false));
        let calls_failed = world.run_until(until, |world| failed(world) > 0);
        assert!(!calls_failed);
        assert!(leads(&world).is_some() && leads(&world) != deaf);
        ask(&mut world, write(0, 1));
        ask(&mut world, read(0, 2));
        assert!(world.violation.is_none());
    }

    #[test]
    fn what_a_full_queue_refused_is_said_again() {
        for to_server in [true, false] {
            let mut world = cluster();
            let (server, member) = (Node::Server(primary(&world)), Node::Member(1));
            let (from, to) = if to_server { (member, server) } else { (server, member) };
            world.net.fill_queue(from, to, world.now + 8 * SECOND);
            world.run_until(world.now + 20 * SECOND, |_| false);
            assert!(world.net.refused > 0);
            ask(&mut world, write(0, 1));
            ask(&mut world, read(0, 2));
            assert!(world.violation.is_none());
        }
    }
}
