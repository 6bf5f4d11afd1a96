//! The virtual world: one queue of future events, one true time, and the nodes.
//!
//! Nothing here runs by itself or in parallel: the next event happens, its consequences are queued, the invariants are
//! checked. So a run is a function of its [`Scenario`], to the last byte.

mod agenda;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod coder;
pub(crate) mod member;
pub(crate) mod net;
mod own_sleep;
pub(crate) mod server;
mod standstill;
pub(crate) mod store;

use crate::request::{Later, Models};
use crate::search::faults::Mishaps;
use crate::search::history::History;
use crate::search::invariants::{BEYOND_LOSS, Invariants};
use crate::search::scenario::Scenario;
use crate::engine::{Agenda, Due};
use crate::world::client::Client;
use crate::engine::{Clock, MILLI, SECOND};
use crate::world::coder::{CODERS, Coder};
use crate::world::member::MetaNode;
use crate::world::net::{Net, Node};
use crate::world::server::Server;
use crate::world::standstill::Still;
use bytes::Bytes;
use ebb_chunkserver::{StoreCommand, StoreToken};
use ebb_gear::Mode;
use ebb_meta::SwitchAction;
use ebb_types::{
    ClientReply, ClientRequest, MetaPush, MetaReply, MetaRequest, PeerMessage, ServerId, ServerMessage,
    SleepOrder, SleepRefusal, StoreTask,
};
use ebb_types::{Random, mix};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// More events than any healthy run has.
const EVENTS_MAX: u64 = 1_000_000;
/// What the kernel allows a connection on which nothing comes back.
const UNANSWERED: u64 = 8 * SECOND;

/// What travels between nodes.
#[derive(Clone, Debug)]
pub enum Message {
    Peer { message: PeerMessage, payload: Bytes },
    Request { attempt: u64, op: usize, request: ClientRequest, payload: Bytes },
    Reply { attempt: u64, reply: ClientReply, payload: Bytes },
    ToMeta(ServerMessage),
    Push(MetaPush),
    Order(SleepOrder),
    Refuses(SleepRefusal),
    AskMeta { number: u64, request: MetaRequest },
    MetaReply { number: u64, reply: MetaReply },
    Raft(Vec<u8>),
}

/// A future event. `life` identifies one run of a process: events for an earlier run are void.
#[derive(Clone, Debug)]
pub enum Happening {
    Deliver {
        from: Node,
        to: Node,
        generation: u64,
        message: Message,
    },
    PeerLost {
        server: ServerId,
        life: u64,
        peer: ServerId,
    },
    LinkLost {
        client: u32,
        server: ServerId,
    },
    Effect {
        server: ServerId,
        life: u64,
        id: u64,
    },
    Complete {
        server: ServerId,
        life: u64,
        id: u64,
    },
    Answer {
        server: ServerId,
        life: u64,
        token: StoreToken,
        command: StoreCommand,
    },
    Lull {
        server: ServerId,
        life: u64,
        writes: u64,
        rest: bool,
    },
    Task {
        server: ServerId,
        life: u64,
        token: StoreToken,
        task: StoreTask,
    },
    /// A server knows whether its machine can be put to sleep.
    Checked {
        server: ServerId,
        life: u64,
        order: SleepOrder,
        outcome: Result<(), String>,
    },
    Tick {
        server: ServerId,
        life: u64,
        timer: u64,
    },
    Beat {
        server: ServerId,
        life: u64,
        timer: u64,
    },
    MemberWake {
        member: u64,
        stamp: u64,
    },
    Client {
        client: u32,
        stamp: u64,
    },
    Switch {
        member: u64,
        life: u64,
        server: ServerId,
        action: SwitchAction,
        /// It was thrown in the storm.
        stormy: bool,
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
    Fault,
    Restart {
        server: ServerId,
    },
    Resume {
        server: ServerId,
    },
    Reboot {
        server: ServerId,
        down: u64,
    },
    RestartMember {
        member: u64,
    },
    /// The operator restarts it, to read another configuration.
    CrashMember {
        member: u64,
        down: u64,
    },
    ResumeMember {
        member: u64,
    },
    /// It leads, and has just proposed something.
    LeaderStruck {
        member: u64,
        life: u64,
    },
    ResumeClient {
        client: u32,
    },
    HealMember {
        member: u64,
    },
    Calm,
    Heal {
        server: ServerId,
    },
    Admin {
        question: u64,
    },
    Modelled(Later),
}

/// A violated rule.
#[derive(Clone, Debug)]
pub struct Violation {
    /// `R1` to `R10`, `dwell`, `linearizability`, `liveness`.
    pub rule: &'static str,
    pub what: String,
}

/// The last lines of the transcript, and a digest of all of it.
#[derive(Default)]
pub struct Transcript {
    /// Most lines kept; zero: none are even formatted.
    pub keep: usize,
    pub lines: VecDeque<String>,
    /// The newest map that the lines report.
    pub map_version: u64,
    pub digest: u64,
}

/// A protocol core or a store that is about to start.
pub enum Core<'a> {
    Server(&'a mut ebb_chunkserver::Config),
    Store(&'a mut ebb_store::Config),
    Member(&'a mut ebb_meta::MemberConfig),
}

/// Configures the protocol cores beyond the scenario, for example with planted defects.
pub type Configure = dyn Fn(Core) + Sync;

pub struct World<'a> {
    pub scenario: Scenario,
    pub configure: &'a Configure,
    pub now: u64,
    /// The time of day at the start.
    pub unix_millis: u64,
    /// Models of time and stores of lengths, instead of random delays and stored bytes; then no faults are injected.
    pub modelled: Option<Box<Models<'a>>>,
    agenda: Agenda<Happening>,
    pub net: Net,
    /// Servers, by run, that are about to notice that a connection to another one broke. What they send on it before
    /// that is lost too.
    pub breaking: BTreeSet<(ServerId, u64, ServerId)>,
    /// Servers whose connection to another one broke long before they notice: what they send on it is lost.
    pub half_open: BTreeSet<(ServerId, ServerId)>,
    pub servers: BTreeMap<ServerId, Server>,
    pub members: BTreeMap<u64, MetaNode>,
    pub clients: Vec<Client>,
    pub coders: Vec<Coder>,
    /// Clients and coders that stand still.
    pub still: BTreeMap<u32, Still>,
    pub history: History,
    pub invariants: Invariants,
    pub violation: Option<Violation>,
    pub transcript: Transcript,
    /// Faults are being injected.
    pub stormy: bool,
    /// Something else is broken already: no wake-up comes late.
    pub prompt: bool,
    /// The administrator's gear request, until the metadata service confirms it.
    pub gear_wanted: Option<Mode>,
    pub lost_wanted: Option<ServerId>,
    /// Groups without a complete copy are to be served from what is left.
    pub force_wanted: bool,
    /// The administrator gives up what only lost servers have.
    pub accepts_loss: bool,
    /// Number of the administrator's present request.
    pub question: u64,
    pub lost: Option<ServerId>,
    /// Metadata members that were there from the beginning.
    pub founders: u64,
    pub net_random: Random,
    pub disk_random: Random,
    pub fault_random: Random,
    pub mishaps: Mishaps,
    pub events: u64,
}

impl<'a> World<'a> {
    pub fn new(scenario: Scenario, configure: &'a Configure, keep_lines: usize) -> World<'a> {
        let mut random = Random::new(scenario.seed ^ 0x5eed);
        let mut world = World::bare(scenario, configure, keep_lines, &mut random);
        for member in 1..=world.scenario.members {
            let clock = Clock::draw(&mut random);
            world.start_member(member, clock);
        }
        let ids: Vec<ServerId> = world.scenario.bootstrap.servers.iter().map(|s| s.id).collect();
        for id in ids {
            let clock = Clock::draw(&mut random);
            let server = Server::new(id, clock, &world.scenario);
            world.servers.insert(id, server);
            world.start_server(id);
        }
        let clients = world.scenario.clients;
        for id in 0..clients + world.scenario.burst_clients {
            world.clients.push(Client::new(id, random.fork(), id >= clients));
        }
        for id in CODERS..CODERS + world.scenario.coders {
            world.coders.push(Coder::new(id, random.fork()));
        }
        world
    }

    /// A world without nodes.
    pub fn bare(
        scenario: Scenario,
        configure: &'a Configure,
        keep_lines: usize,
        random: &mut Random,
    ) -> World<'a> {
        let net = Net::new(scenario.net);
        World {
            configure,
            now: 0,
            unix_millis: 1_700_000_000_000,
            modelled: None,
            agenda: Agenda::default(),
            net,
            breaking: BTreeSet::new(),
            half_open: BTreeSet::new(),
            servers: BTreeMap::new(),
            members: BTreeMap::new(),
            clients: Vec::new(),
            coders: Vec::new(),
            still: BTreeMap::new(),
            history: History::default(),
            invariants: Invariants::default(),
            violation: None,
            transcript: Transcript { keep: keep_lines, ..Transcript::default() },
            stormy: false,
            prompt: false,
            gear_wanted: None,
            lost_wanted: None,
            force_wanted: false,
            accepts_loss: false,
            question: 0,
            lost: None,
            founders: scenario.members,
            net_random: random.fork(),
            disk_random: random.fork(),
            fault_random: random.fork(),
            mishaps: Mishaps::default(),
            events: 0,
            scenario,
        }
    }

    pub fn at(&mut self, at: u64, what: Happening) {
        self.agenda.put(at.max(self.now), what);
    }

    pub fn after(&mut self, delay: u64, what: Happening) {
        self.at(self.now + delay, what);
    }

    pub fn send(&mut self, from: Node, to: Node, message: Message) {
        let generation = self.net.generation(from, to);
        if let Some(models) = &mut self.modelled {
            let at = models.transmit(self.now, from, to, &message);
            return self.at(at, Happening::Deliver { from, to, generation, message });
        }
        if self.is_half_open(from, to) {
            self.net.lost += 1;
            return;
        }
        if self.is_swallowed(from, to) {
            return;
        }
        let times = self.net.send(self.now, from, to, &mut self.net_random);
        if times.is_empty() {
            self.connection_breaks(from, to);
        }
        for at in times {
            self.at(at, Happening::Deliver { from, to, generation, message: message.clone() });
        }
    }

    pub fn heal_net(&mut self) {
        for (a, b) in self.net.heal(self.now) {
            self.connection_breaks(a, b);
        }
    }

    /// Both ends eventually notice that their connection broke.
    pub fn connection_breaks(&mut self, a: Node, b: Node) {
        for (node, peer) in [(a, b), (b, a)] {
            let delay = self.net_random.delay(20 * MILLI).min(UNANSWERED);
            match (node, peer) {
                (Node::Server(server), Node::Server(peer)) => {
                    let life = self.server(server).life;
                    let lost = Happening::PeerLost { server, life, peer };
                    if self.breaking.contains(&(server, life, peer)) {
                        continue;
                    }
                    if self.scenario.half_open && self.net_random.chance(200) {
                        self.count("connection half-open");
                        self.half_open.insert((server, peer));
                        self.after(UNANSWERED, lost);
                    } else {
                        self.breaking.insert((server, life, peer));
                        self.after(delay, lost);
                    }
                }
                (Node::Client(client), Node::Server(server)) => {
                    self.after(delay, Happening::LinkLost { client, server });
                }
                _ => {}
            }
        }
    }

    /// The sender does not know yet that its connection broke, and the other end has not opened another.
    fn is_half_open(&self, from: Node, to: Node) -> bool {
        matches!((from, to), (Node::Server(from), Node::Server(to)) if self.half_open.contains(&(from, to)))
    }

    /// Whether nothing becomes of what a node sends, while its connection lives on.
    fn is_swallowed(&mut self, from: Node, to: Node) -> bool {
        if self.net.is_full(self.now, from, to) {
            self.net.refused += 1;
            // A server closes a connection to a metadata member that does not read; all others drop the message.
            if matches!((from, to), (Node::Server(_), Node::Member(_))) {
                self.net.reset(from, to);
            }
            return true;
        }
        let is_mute = self.net.is_mute(self.now, from, to);
        self.net.lost += u64::from(is_mute);
        is_mute
    }

    /// Only the first violation counts.
    pub fn fail(&mut self, rule: &'static str, what: String) {
        if self.violation.is_none() && (!self.invariants.beyond || BEYOND_LOSS.contains(&rule)) {
            self.note(|| format!("VIOLATION of {rule}: {what}"));
            self.violation = Some(Violation { rule, what });
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.transcript.keep == 0 {
            return;
        }
        let mut text = String::new();
        let (seconds, micros) = (self.now / SECOND, self.now % SECOND / 1000);
        write!(text, "{seconds:4}.{micros:06} {}", line()).expect("a string takes everything");
        self.transcript.lines.push_back(text);
        if self.transcript.lines.len() > self.transcript.keep {
            self.transcript.lines.pop_front();
        }
    }

    /// Processes events until `end`, until a rule is violated, or until `done` is true (checked from time to time).
    /// Returns whether `done` was.
    pub fn run_until(&mut self, end: u64, mut done: impl FnMut(&World) -> bool) -> bool {
        let mut look = self.now;
        while self.violation.is_none() {
            let Some(at) = self.agenda.next_by(end) else { break };
            self.now = at;
            if self.now >= look {
                self.r8_peers_are_woken();
                if done(self) {
                    return true;
                }
                look = self.now + SECOND / 5;
            }
            if let Some(due) = self.agenda.take_by(end) {
                self.happen(due);
            }
        }
        self.now = self.now.max(end.min(self.now + 1));
        false
    }

    /// Processes the next event if it is due by `end`; otherwise advances the time to `end`.
    pub fn step(&mut self, end: u64) -> bool {
        let Some(due) = self.agenda.take_by(end) else {
            self.now = end;
            return false;
        };
        self.now = due.at;
        self.happen(due);
        true
    }

    fn happen(&mut self, due: Due<Happening>) {
        self.events += 1;
        if self.events > EVENTS_MAX && self.modelled.is_none() {
            self.fail("liveness", "the cluster never comes to rest".into());
        }
        self.transcript.digest = mix(self.transcript.digest ^ mix(due.at) ^ due.order.rotate_left(32));
        match due.what {
            Happening::Deliver { from, to, generation, message } => {
                self.deliver(from, to, generation, message)
            }
            Happening::PeerLost { server, .. }
            | Happening::Effect { server, .. }
            | Happening::Complete { server, .. }
            | Happening::Answer { server, .. }
            | Happening::Lull { server, .. }
            | Happening::Task { server, .. }
            | Happening::Checked { server, .. }
            | Happening::Tick { server, .. }
            | Happening::Beat { server, .. } => self.server_receives(server, due.what),
            Happening::MemberWake { member, stamp } => self.member_wakes(member, stamp),
            Happening::Client { client, stamp } => self.client_wakes(client, stamp),
            Happening::LinkLost { client, server } => self.client_link_lost(client, server),
            Happening::Switch { member, life, server, action, stormy } => {
                self.switch((member, life), server, action, stormy);
            }
            Happening::LateSwitch { server, action } => self.late_switch(server, action),
            Happening::DiskPauses { server, time } => self.pause_disk(server, time),
            Happening::DiskGoesOn { server } => {
                // Once faults have ended it was mended, and whatever hangs now hangs for another reason.
                if self.stormy {
                    self.disk_moves_again(server);
                }
            }
            Happening::Fault => self.next_fault(),
            Happening::Restart { server } => self.restart(server),
            Happening::Resume { server } => self.resume(server),
            Happening::Reboot { server, down } => self.boot_late(server, down),
            Happening::RestartMember { member } => self.restart_member(member),
            Happening::CrashMember { member, down } => self.operator_restarts(member, down),
            Happening::ResumeMember { member } => self.resume_member(member),
            Happening::LeaderStruck { member, life } => self.strike_leader(member, life),
            Happening::ResumeClient { client } => self.client_goes_on(client),
            Happening::HealMember { member } => self.heal_member(member),
            Happening::Calm => self.net.model = self.scenario.net,
            Happening::Heal { server } => self.heal_disk(server),
            Happening::Admin { question } => self.administer(question),
            Happening::Modelled(later) => self.modelled_happens(later),
        }
    }

    /// A connection broke. What a client had sent is in the server's socket all the same, now and then, and is read
    /// after what came on another connection.
    fn read_late(&mut self, from: Node, to: Node, message: Message) {
        let reads = matches!((from, to), (Node::Client(_), Node::Server(_))) && self.modelled.is_none();
        if reads && self.stormy && self.net_random.chance(700) {
            self.count("request read late");
            let generation = self.net.generation(from, to);
            let delay = self.net_random.between(0, 6 * SECOND);
            self.after(delay, Happening::Deliver { from, to, generation, message });
        }
    }

    pub(crate) fn deliver(&mut self, from: Node, to: Node, generation: u64, message: Message) {
        if self.net.generation(from, to) != generation {
            return self.read_late(from, to, message);
        }
        match to {
            Node::Server(id) => {
                self.server_receives(id, Happening::Deliver { from, to, generation, message })
            }
            Node::Member(id) => self.member_receives(id, from, message),
            Node::Client(id) if self.modelled.is_some() => self.host_receives(id, from, message),
            Node::Client(id) => {
                let deliver = || Happening::Deliver { from, to, generation, message: message.clone() };
                if !self.holds_back(id, deliver) {
                    self.client_receives(id, from, message);
                }
            }
        }
    }
}
