//! The search as a world sees it: clients and coders, what faults have done so far, and what the checks know.
//!
//! What it does to a world stands in [`faults`](crate::search::faults), what it checks in
//! [`invariants`](crate::search::invariants), how long things take in [`delays`](crate::search::delays).

use crate::engine::Clock;
use crate::search::client::{Client, Still, Timer};
use crate::search::coder::{CODERS, Coder};
use crate::search::faults::Mishaps;
use crate::search::history::History;
use crate::search::invariants::Invariants;
use crate::search::scenario::{Plan, Scenario};
use crate::world::happening::{Happening, Message};
use crate::world::net::Node;
use crate::world::server::Server;
use crate::world::{Configure, Harness};
use ebb_meta::SwitchAction;
use ebb_types::{Random, ServerId};
use std::collections::BTreeMap;

/// A world in which faults are sought.
pub type World<'a> = crate::world::World<Search<'a>>;

pub struct Search<'a> {
    pub plan: Plan,
    pub configure: &'a Configure,
    pub clients: Vec<Client>,
    pub coders: Vec<Coder>,
    pub timers: BTreeMap<u32, Timer>,
    /// Clients and coders that stand still.
    pub still: BTreeMap<u32, Still>,
    pub history: History,
    pub invariants: Invariants,
    pub mishaps: Mishaps,
    /// The server that is gone for good.
    pub lost: Option<ServerId>,
    /// Something else is broken already: no wake-up comes late.
    pub prompt: bool,
}

/// What happens beside what the world itself knows.
pub enum Event {
    /// A client's timer ends.
    Client {
        client: u32,
        stamp: u64,
    },
    ResumeClient {
        client: u32,
    },
    Fault,
    Resume {
        server: ServerId,
    },
    Reboot {
        server: ServerId,
        down: u64,
    },
    /// Its disk works again.
    Heal {
        server: ServerId,
    },
    /// Under a load that is too heavy, a disk answers nothing for this long.
    DiskPauses {
        server: ServerId,
        time: u64,
    },
    DiskGoesOn {
        server: ServerId,
    },
    /// A switch acts again, or only now.
    LateSwitch {
        server: ServerId,
        action: SwitchAction,
    },
    HealMember {
        member: u64,
    },
    /// The operator restarts it, to read another configuration.
    CrashMember {
        member: u64,
        down: u64,
    },
    /// It leads, and has just proposed something.
    LeaderStruck {
        member: u64,
        life: u64,
    },
    /// A storm of the network ends.
    Calm,
    /// The operator looks who is part of the cluster.
    Roster,
}

impl<'a> World<'a> {
    pub fn new(scenario: Scenario, configure: &'a Configure, keep_lines: usize) -> World<'a> {
        let Scenario { settings, plan } = scenario;
        let mut random = Random::new(settings.seed ^ 0x5eed);
        let search = Search {
            plan,
            configure,
            clients: Vec::new(),
            coders: Vec::new(),
            timers: BTreeMap::new(),
            still: BTreeMap::new(),
            history: History::default(),
            invariants: Invariants::default(),
            mishaps: Mishaps::default(),
            lost: None,
            prompt: false,
        };
        let mut world = World::bare(settings, search, keep_lines, &mut random);
        for member in 1..=world.settings.members {
            let clock = Clock::draw(&mut random);
            world.start_member(member, clock);
        }
        let ids: Vec<ServerId> = world.settings.bootstrap.servers.iter().map(|s| s.id).collect();
        for id in ids {
            let clock = Clock::draw(&mut random);
            let server = Server::new(id, clock, &world.settings);
            world.servers.insert(id, server);
            world.start_server(id);
        }
        let Plan { clients, burst_clients, coders, .. } = world.harness.plan;
        for id in 0..clients + burst_clients {
            world.harness.clients.push(Client::new(id, random.fork(), id >= clients));
        }
        for id in CODERS..CODERS + coders {
            world.harness.coders.push(Coder::new(id, random.fork()));
        }
        world
    }
}

impl<'a> Harness for Search<'a> {
    type Event = Event;

    fn happens(world: &mut World<'a>, event: Event) {
        match event {
            Event::Client { client, stamp } => world.client_wakes(client, stamp),
            Event::ResumeClient { client } => world.client_goes_on(client),
            Event::Fault => world.next_fault(),
            Event::Resume { server } => world.resume(server),
            Event::Reboot { server, down } => world.boot_late(server, down),
            Event::Heal { server } => world.heal_disk(server),
            Event::DiskPauses { server, time } => world.pause_disk(server, time),
            Event::DiskGoesOn { server } => {
                // Once faults have ended it was mended, and whatever hangs now hangs for another reason.
                if world.stormy {
                    world.disk_moves_again(server);
                }
            }
            Event::LateSwitch { server, action } => world.late_switch(server, action),
            Event::HealMember { member } => world.member(member).mend_log(),
            Event::CrashMember { member, down } => world.operator_restarts(member, down),
            Event::LeaderStruck { member, life } => world.strike_leader(member, life),
            Event::Calm => world.net.model = world.settings.net,
            Event::Roster => world.follow_roster(),
        }
    }

    fn clients(&self) -> Vec<u32> {
        let coders = CODERS..CODERS + self.coders.len() as u32;
        (0..self.clients.len() as u32).chain(coders).collect()
    }

    fn client_receives(world: &mut World<'a>, client: u32, from: Node, message: Message) {
        let to = Node::Client(client);
        let generation = world.net.generation(from, to);
        let deliver = || Happening::Deliver { from, to, generation, message: message.clone() };
        if !world.holds_back(client, deliver) {
            world.client_receives(client, from, message);
        }
    }

    fn link_lost(world: &mut World<'a>, client: u32, server: ServerId) {
        world.client_link_lost(client, server);
    }
}
