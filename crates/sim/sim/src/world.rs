//! The virtual world: one queue of future events, one true time, the servers and metadata members of a cluster, and the
//! network between them and their clients.
//!
//! Nothing here runs by itself or in parallel: the next event happens, its consequences are queued, the judge looks at
//! them. So a run is a function of its [`Settings`] and its harness, to the last byte.
//!
//! The world knows nothing of those who use it. They are its [`Harness`]: it has the clients, and may have events of
//! its own. What faults do to the world is [`Disturb`], what is checked of it [`Judge`], and how long things take
//! [`Delays`]: their functions get the whole world, with the harness in it.
//!
//! ```text
//!  search (faults, invariants)    request (models of time)
//!            └─────── Harness, Disturb, Judge, Delays ──────┐
//!                                                           ▼
//!             World: servers, members, administrator, network
//!                                                           │
//!                                      engine: agenda, clocks
//! ```

mod admin;
pub(crate) mod brief;
pub(crate) mod client;
pub(crate) mod happening;
pub(crate) mod member;
pub(crate) mod net;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod store;
pub(crate) mod wishes;

use crate::engine::{Agenda, Due, MILLI, SECOND};
use crate::world::happening::{Happening, Message, Next};
use crate::world::member::MetaNode;
use crate::world::net::{ADMIN, Net, Node};
use crate::world::server::Server;
use crate::world::settings::Settings;
use crate::world::wishes::Wishes;
use ebb_chunkserver::{Recovered, StoreCommand, StoreToken};
use ebb_meta::SwitchAction;
use ebb_testing::search::{Transcript, Violation};
use ebb_types::{
    ClientReply, GroupId, MetaPush, PeerMessage, Random, Role, ServerId, ServerReport, StoreTask, mix,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the kernel allows a connection on which nothing comes back.
const UNANSWERED: u64 = 8 * SECOND;

/// A protocol core or a store that is about to start.
pub enum Core<'a> {
    Server(&'a mut ebb_chunkserver::Config),
    Store(&'a mut ebb_store::Config),
    Member(&'a mut ebb_meta::MemberConfig),
}

/// Configures the protocol cores beyond the settings, for example with planted defects.
pub type Configure = dyn Fn(Core) + Sync;

/// Who uses a world: its clients, and events that only they know.
pub trait Harness: Sized {
    type Event;

    fn happens(world: &mut World<Self>, event: Self::Event);

    /// The numbers of the clients that notice it when a server dies.
    fn clients(&self) -> Vec<u32>;

    fn client_receives(world: &mut World<Self>, client: u32, from: Node, message: Message);

    /// A client's connection to a server broke.
    fn link_lost(world: &mut World<Self>, client: u32, server: ServerId);
}

/// What faults do to a world, where it does not happen by itself. By default there are none.
pub trait Disturb: Harness {
    fn configure(&self, _core: Core) {}

    /// A connection broke before this arrived on it.
    fn comes_late(_world: &mut World<Self>, _from: Node, _to: Node, _message: Message) {}

    /// Whether the server that is about to start crashes meanwhile.
    fn crashes_at_start(_world: &mut World<Self>) -> bool {
        false
    }

    /// Whether a server's clock is wrong when it is examined.
    fn exam_is_wrong(_world: &mut World<Self>) -> bool {
        false
    }

    /// Whether a machine cannot put itself to sleep.
    fn cannot_sleep(_world: &mut World<Self>) -> bool {
        false
    }

    /// Milliseconds by which the wall clock of a member that starts is wrong. `was`: before, if it ran before.
    fn wall_of(_world: &mut World<Self>, _was: Option<i64>) -> i64 {
        0
    }

    /// What a switch that a member threw does instead of the action, and reports. `None`: it does what it is told.
    /// `stormy`: it was thrown while faults were injected.
    fn misthrow(
        _world: &mut World<Self>,
        _member: u64,
        _action: (ServerId, SwitchAction),
        _stormy: bool,
    ) -> Option<Result<(), String>> {
        None
    }

    /// A metadata member has taken its inputs.
    fn member_acted(_world: &mut World<Self>, _member: u64) {}
}

/// What is observed of a world, and checked. By default nothing is.
pub trait Judge: Harness {
    /// More events than any healthy run has.
    const EVENTS_MAX: u64 = u64::MAX;

    /// Whether it does not matter any more that this rule is broken.
    fn excuses(&self, _rule: &str) -> bool {
        false
    }

    /// Now and then.
    fn check_peers(_world: &mut World<Self>) {}

    /// After every event of a server.
    fn check_server(_world: &mut World<Self>, _server: ServerId) {}

    /// After a push reached a server.
    fn check_pushed(_world: &mut World<Self>, _server: ServerId) {}

    /// After every input of a metadata member.
    fn check_map(_world: &mut World<Self>, _member: u64) {}

    /// After an input of a metadata member whose log hangs.
    fn check_gear(_world: &mut World<Self>, _member: u64) {}

    /// Before a member sends a push to a server.
    fn check_push(_world: &mut World<Self>, _member: u64, _push: &MetaPush) {}

    /// Before a leader's order to a power switch.
    fn check_order(_world: &mut World<Self>, _member: u64, _server: ServerId, _action: SwitchAction) {}

    /// Before a message leaves a server.
    fn check_send(_world: &mut World<Self>, _from: ServerId, _message: &PeerMessage) {}

    /// Before an answer leaves a server.
    fn check_reply(_world: &mut World<Self>, _from: ServerId, _op: usize, _reply: &ClientReply) {}

    /// Before a report leaves a server.
    fn check_report(_world: &mut World<Self>, _from: ServerId, _report: &ServerReport) {}

    /// Before a store gets a command.
    fn check_submit(_world: &mut World<Self>, _command: &StoreCommand) {}

    /// Before a role is dropped.
    fn check_drop(_world: &mut World<Self>, _server: ServerId, _group: GroupId, _role: Role) {}

    /// When a power switch turns a server off.
    fn check_sleep(_world: &mut World<Self>, _server: ServerId) {}
}

/// How long things take, and what stores keep. By default the network is that of the settings, which draws delays and
/// losses, and stores keep bytes.
pub trait Delays: Harness {
    /// When a message arrives, if that is known: then it is not lost either.
    fn transmit(&mut self, _now: u64, _from: Node, _to: Node, _message: &Message) -> Option<u64> {
        None
    }

    /// A store gets a command, which is answered later.
    fn submit(world: &mut World<Self>, server: ServerId, token: StoreToken, command: StoreCommand);

    fn give_task(world: &mut World<Self>, server: ServerId, token: StoreToken, task: StoreTask);

    /// A run of a member throws a switch.
    fn throw_switch(world: &mut World<Self>, by: (u64, u64), server: ServerId, action: SwitchAction);

    /// A server's process has started.
    fn started(_world: &mut World<Self>, _server: ServerId) {}

    /// What a server that starts has in its store.
    fn recovered(&self, _server: ServerId, found: Recovered) -> Recovered {
        found
    }

    /// Commands in flight in a store beside those that it was given.
    fn queued(&self, _server: ServerId) -> usize {
        0
    }

    /// Bytes used in a store, those of own columns, and those of offload; `None`: what it keeps.
    fn figures(&self, _server: ServerId) -> Option<(u64, u64, u64)> {
        None
    }
}

pub struct World<H: Harness> {
    pub settings: Settings,
    pub harness: H,
    pub now: u64,
    /// The time of day at the start.
    unix_millis: u64,
    agenda: Agenda<Next<H::Event>>,
    pub net: Net,
    /// Servers, by run, that are about to notice that a connection to another one broke. What they send on it before
    /// that is lost too.
    breaking: BTreeSet<(ServerId, u64, ServerId)>,
    /// Servers whose connection to another one broke long before they notice: what they send on it is lost.
    half_open: BTreeSet<(ServerId, ServerId)>,
    pub servers: BTreeMap<ServerId, Server>,
    pub members: BTreeMap<u64, MetaNode>,
    pub violation: Option<Violation>,
    pub transcript: Transcript,
    /// The newest map that it reports.
    noted_map: u64,
    /// Of all events.
    digest: u64,
    /// Number of occurrences: faults, and the cluster's reactions to them.
    tally: BTreeMap<&'static str, u64>,
    /// Faults are being injected: the administrator waits with what can wait.
    pub stormy: bool,
    /// The newest map that any member ever had. Those that start again have it once they know what was committed.
    newest_map: u64,
    pub wishes: Wishes,
    /// Number of the administrator's present request.
    question: u64,
    /// Metadata members that were there from the beginning.
    founders: u64,
    pub disk_random: Random,
    pub fault_random: Random,
    events: u64,
}

impl<H: Disturb + Judge + Delays> World<H> {
    /// A world without nodes.
    pub fn bare(settings: Settings, harness: H, keep_lines: usize, random: &mut Random) -> World<H> {
        World {
            harness,
            now: 0,
            unix_millis: 1_700_000_000_000,
            agenda: Agenda::default(),
            net: Net::new(settings.net, random.fork()),
            breaking: BTreeSet::new(),
            half_open: BTreeSet::new(),
            servers: BTreeMap::new(),
            members: BTreeMap::new(),
            violation: None,
            transcript: Transcript::of(keep_lines),
            noted_map: 0,
            digest: 0,
            tally: BTreeMap::new(),
            stormy: false,
            newest_map: 0,
            wishes: Wishes::default(),
            question: 0,
            founders: settings.members,
            disk_random: random.fork(),
            fault_random: random.fork(),
            events: 0,
            settings,
        }
    }

    /// Sets the true time and the time of day at which it begins.
    pub fn begin_at(&mut self, now: u64, unix_millis: u64) {
        (self.now, self.unix_millis) = (now, unix_millis);
    }

    pub fn unix_millis(&self) -> u64 {
        self.unix_millis
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Servers, each with one to which its connection broke long before it notices.
    pub fn half_open(&self) -> impl Iterator<Item = &(ServerId, ServerId)> {
        self.half_open.iter()
    }

    pub fn at(&mut self, at: u64, what: Happening) {
        self.agenda.put(at.max(self.now), Next::World(what));
    }

    pub fn after(&mut self, delay: u64, what: Happening) {
        self.at(self.now + delay, what);
    }

    /// An event of the harness.
    pub fn its_at(&mut self, at: u64, what: H::Event) {
        self.agenda.put(at.max(self.now), Next::Harness(what));
    }

    pub fn its_after(&mut self, delay: u64, what: H::Event) {
        self.its_at(self.now + delay, what);
    }

    pub fn send(&mut self, from: Node, to: Node, message: Message) {
        let generation = self.net.generation(from, to);
        if let Some(at) = self.harness.transmit(self.now, from, to, &message) {
            return self.at(at, Happening::Deliver { from, to, generation, message });
        }
        if self.is_half_open(from, to) {
            self.net.lost += 1;
            return;
        }
        if self.is_swallowed(from, to) {
            return;
        }
        let times = self.net.send(self.now, from, to);
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
            let delay = self.net.random.delay(20 * MILLI).min(UNANSWERED);
            match (node, peer) {
                (Node::Server(server), Node::Server(peer)) => {
                    let life = self.server(server).life;
                    let lost = Happening::PeerLost { server, life, peer };
                    if self.breaking.contains(&(server, life, peer)) {
                        continue;
                    }
                    if self.settings.half_open && self.net.random.chance(200) {
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
        if self.violation.is_none() && !self.harness.excuses(rule) {
            self.note(|| format!("VIOLATION of {rule}: {what}"));
            self.violation = Some(Violation { rule, what });
        }
    }

    /// The same, if there is something.
    pub fn fail_if(&mut self, rule: &'static str, what: Option<String>) {
        if let Some(what) = what {
            self.fail(rule, what);
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let (seconds, micros) = (self.now / SECOND, self.now % SECOND / 1000);
        self.transcript.note(|| format!("{seconds:4}.{micros:06} {}", line()));
    }

    pub fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// How often each of the things occurred that are counted.
    pub fn tally(&self) -> BTreeMap<&'static str, u64> {
        let mut tally = self.tally.clone();
        let clocks = self.servers.values().map(|s| s.clock).chain(self.members.values().map(|m| m.clock));
        tally.insert("clock fast or slow", clocks.filter(|c| c.is_off()).count() as u64);
        tally.insert("message late", self.net.late);
        tally.insert("message lost", self.net.lost);
        tally.insert("message refused", self.net.refused);
        tally.insert("message repeated", self.net.repeated);
        tally.insert("message out of order", self.net.reordered);
        tally.insert("gear shift", self.newest_state().shifts().count() as u64);
        tally.insert("metadata log replaced", self.logs_replaced());
        tally.retain(|_, times| *times > 0);
        tally
    }

    /// Processes events until `end`, until a rule is violated, or until `done` is true (checked from time to time).
    /// Returns whether `done` was.
    pub fn run_until(&mut self, end: u64, mut done: impl FnMut(&World<H>) -> bool) -> bool {
        let mut look = self.now;
        while self.violation.is_none() {
            let Some(at) = self.agenda.next_by(end) else { break };
            self.now = at;
            if self.now >= look {
                H::check_peers(self);
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

    /// Of all events so far.
    pub fn digest(&self) -> u64 {
        self.digest
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

    fn happen(&mut self, due: Due<Next<H::Event>>) {
        self.events += 1;
        if self.events > H::EVENTS_MAX {
            self.fail("liveness", "the cluster never comes to rest".into());
        }
        self.digest = mix(self.digest ^ mix(due.at) ^ due.order.rotate_left(32));
        match due.what {
            Next::World(what) => self.happens_here(what),
            Next::Harness(event) => H::happens(self, event),
        }
    }

    fn happens_here(&mut self, what: Happening) {
        match what {
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
            | Happening::Beat { server, .. } => self.server_receives(server, what),
            Happening::MemberWake { member, stamp } => self.member_wakes(member, stamp),
            Happening::LinkLost { client, server } => H::link_lost(self, client, server),
            Happening::Switch { member, life, server, action, stormy } => {
                self.switch((member, life), server, action, stormy);
            }
            Happening::Restart { server } => self.restart(server),
            Happening::RestartMember { member } => self.restart_member(member),
            Happening::ResumeMember { member } => self.resume_member(member),
            Happening::Admin { question } => self.administer(question),
        }
    }

    pub(crate) fn deliver(&mut self, from: Node, to: Node, generation: u64, message: Message) {
        if self.net.generation(from, to) != generation {
            return H::comes_late(self, from, to, message);
        }
        match to {
            Node::Server(id) => {
                self.server_receives(id, Happening::Deliver { from, to, generation, message })
            }
            Node::Member(id) => self.member_receives(id, from, message),
            Node::Client(ADMIN) => self.admin_receives(message),
            Node::Client(id) => H::client_receives(self, id, from, message),
        }
    }
}
