//! The metadata server: drives a member of the metadata service with real sockets, a real log and real switches.
//!
//! The driver owns the member, the switches and the connections' senders, and takes from a queue what happened
//! ([`crate::daemon::queue`]). What arrived while the member worked is passed to it as a batch, so that everything that
//! arrived during one sync of the log shares the next sync. One thread, except for the power switches, which have their
//! own: a slow switch must not delay a lease. No timer runs with a single member and nothing to decide.

mod power;
mod relay;
mod rescue;

use crate::cluster::config::{Config, MetaSection};
use crate::cluster::launch::{Stop, private_directory};
use crate::cluster::{pools, random};
use crate::daemon::clock;
use crate::daemon::files;
use crate::daemon::heap;
use crate::daemon::metrics::leader::NoticeCounts;
use crate::daemon::metrics::{self, Page, Source, Targets, names};
use crate::daemon::queue::Queue;
use crate::daemon::relay::{Guard, Way};
use crate::error::{IN_THE_FILE, NodeError, listen, refused};
use bytes::Bytes;
use ebb_client::transport::{Connection, Identity, Listener, Party, Sender, connect, kind};
use ebb_client::{Clock, Key, Secret};
use ebb_meta::{
    Birth, Bootstrap, DiskLog, Input, LOG_BYTES, Member, MemberConfig, NewServer, Outcome, SwitchAction,
    Token, joining_id, raft,
};
use ebb_power::SwitchError;
use ebb_power::switch::send_magic;
use ebb_types::{
    AdminReply, Bug, ClusterParams, MachineOrder, MetaPush, MetaReply, MetaRequest, Moment, NO_GEAR, PoolId,
    RackId, ServerEntry, ServerId, ServerMessage, SleepRefusal,
};
use power::{Heard, Power};
use serde::Serialize;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::spawn_local;

const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// Facts that never change while the member runs.
struct About {
    own: Identity,
    secret: Secret,
    /// Of all members.
    addresses: BTreeMap<u64, String>,
}

/// What connections have of the driver.
struct Handle {
    about: About,
    queue: Queue<Event>,
    /// How many connections were served.
    served: Cell<u64>,
}

type Shared = Rc<Handle>;

/// Something that happened.
enum Event {
    Input(Input),
    /// A chunk server said something over this connection.
    Server {
        sender: Sender,
        message: ServerMessage,
    },
    Opened {
        connection: u64,
        sender: Sender,
    },
    Closed {
        connection: u64,
    },
    /// The connection that this member opened to another one.
    Member {
        id: u64,
        sender: Sender,
    },
    /// Someone wants to be passed on to the leader.
    Relay {
        party: Party,
        answer: oneshot::Sender<Option<Way>>,
    },
    Page(oneshot::Sender<Page>),
    Targets(oneshot::Sender<String>),
}

/// How a metadata server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From its log.
    Resume,
    /// As the first member of a new cluster; the others join it.
    Create,
    /// As a new member, with an empty directory, of a running cluster: the first time, or replacing one that lost its
    /// data.
    Join,
    /// As the only member of a new generation, because the majority of the others is lost for good.
    Rescue { accept_loss: bool },
}

/// Creates the logs of all members of a new cluster; possible only if one machine has all of them.
pub fn found(config: &Config) -> Result<(), NodeError> {
    let instance = random::identity()?;
    let voters: Vec<u64> = config.meta.iter().map(|m| m.id).collect();
    config.meta.iter().try_for_each(|section| {
        create_log(config, section, Birth { id: section.id, instance, voters: voters.clone() })
    })
}

fn create_log(config: &Config, section: &MetaSection, birth: Birth) -> Result<(), NodeError> {
    let data = config.path(&section.data);
    let created = DiskLog::open(&data).and_then(|mut log| raft::create(&mut log, birth));
    created.map_err(|source| NodeError::Metadata { data, source })
}

/// Runs metadata server `id` (optional if there is only one) until it is stopped.
pub async fn run(config: &Config, id: Option<u64>, start: Start) -> Result<(), NodeError> {
    let section = config.meta_section(id)?;
    let secret = Secret::load(&config.path(&config.cluster.secret_file))?;
    secret.require(Key::Meta)?;
    let cluster = config.cluster_id()?;
    let data = config.path(&section.data);
    private_directory(&data)?;
    let own = Identity { cluster, party: Party::Meta };
    begin(config, section, (&secret, own), start).await?;
    let bootstrap = config.bootstrap()?;
    let power = Power::new(config)?;
    let addresses: BTreeMap<u64, String> = config.meta.iter().map(|m| (m.id, m.address.clone())).collect();
    let member_config = MemberConfig {
        id: section.id,
        members: addresses.clone(),
        seed: section.id,
        log_bytes: LOG_BYTES,
        bootstrap: Some(bootstrap.clone()),
        timing: config.timing(),
        switches: power.paths(),
    };
    let in_place = |source| NodeError::Metadata { data: data.clone(), source };
    let log = DiskLog::open(&data).map_err(in_place)?;
    let member = Member::open(member_config, log, clock::now(), clock::unix_millis()).map_err(in_place)?;
    files::announce(&data)?;
    files::raise_limit();
    let listener = Listener::bind(&section.address, &secret, own)
        .await
        .map_err(listen(&section.address, IN_THE_FILE))?;
    let (queue, events) = Queue::new();
    let about = About { own, secret, addresses };
    let shared: Shared = Rc::new(Handle { about, queue, served: Cell::new(0) });
    spawn_local(accept(shared.clone(), listener));
    spawn_local(heap::give_back_when_quiet());
    for other in config.meta.iter().filter(|m| m.id != section.id) {
        spawn_local(follow_member(shared.clone(), other.id));
    }
    let mut driver = Driver {
        id: section.id,
        params: config.params()?,
        racks: bootstrap.servers.iter().map(|server| (server.id, server.rack)).collect(),
        unchecked: Some(bootstrap),
        data: data.clone(),
        member,
        power,
        shared: shared.clone(),
        inputs: Vec::new(),
        servers: BTreeMap::new(),
        members: BTreeMap::new(),
        connections: BTreeMap::new(),
        notices: NoticeCounts::default(),
        bugs: 0,
        targets: Targets::of(config),
    };
    metrics::open(section.metrics.as_deref(), Scraped(shared)).await?;
    driver.run(events).await?;
    ebb_power::remove_pid_file(&data, std::process::id())?;
    Ok(())
}

/// Prepares the log for this start.
async fn begin(
    config: &Config,
    section: &MetaSection,
    as_whom: (&Secret, Identity),
    start: Start,
) -> Result<(), NodeError> {
    match start {
        Start::Resume => Ok(()),
        Start::Create => {
            let voters = vec![section.id];
            create_log(config, section, Birth { id: section.id, instance: random::identity()?, voters })
        }
        Start::Join if config.meta.len() == 1 => Err(refused(
            "there is only one [[meta]], so there is no cluster to join: restore its directory, or create a new \
             cluster with --create",
        )),
        Start::Join => {
            let id = joining_id(section.id, random::identity()?);
            create_log(config, section, Birth { id, instance: 0, voters: Vec::new() })
        }
        Start::Rescue { accept_loss } => rescue::rescue(config, section, as_whom, accept_loss).await,
    }
}

/// One note per server that is in another rack than the configuration file has it in.
fn other_racks(
    file: &BTreeMap<ServerId, RackId>,
    there: impl IntoIterator<Item = (ServerId, RackId)>,
) -> Vec<String> {
    let other = there.into_iter().filter_map(|(id, rack)| {
        let named = file.get(&id).filter(|named| **named != rack)?;
        Some(format!(
            "the file has {id} in {named}, the cluster in {rack}: racks are read when a cluster is founded, so the file is not \
             followed; set it back"
        ))
    });
    other.collect()
}

/// Why the file's servers of the replicated pool, without loggers, are not those that the cluster was founded with.
fn other_servers(file: &[NewServer], founded: &[ServerEntry]) -> Option<String> {
    let is_meant = |pool, gear_group| pool == PoolId::REPLICATED && gear_group != NO_GEAR;
    let file = file.iter().filter(|server| is_meant(server.pool, server.gear_group));
    let file: BTreeSet<ServerId> = file.map(|server| server.id).collect();
    let founded = founded.iter().filter(|server| is_meant(server.pool, server.gear_group));
    let founded: BTreeSet<ServerId> = founded.map(|server| server.id).collect();
    let named =
        |what: &str, ids: Vec<String>| (!ids.is_empty()).then(|| format!("{what} {}", ids.join(", ")));
    let new = named("the cluster lacks", file.difference(&founded).map(ServerId::to_string).collect());
    let gone = named("the file lacks", founded.difference(&file).map(ServerId::to_string).collect());
    let ids: Vec<String> = new.into_iter().chain(gone).collect();
    (!ids.is_empty()).then(|| {
        format!(
            "the file has {} servers without a pool, the cluster has {}: {}; servers come and go with `ebb server add` and \
             `ebb server drain`, and then the file needs cluster.groups, the number of chunk groups of the cluster",
            file.len(),
            founded.len(),
            ids.join("; ")
        )
    })
}

struct Driver {
    id: u64,
    /// The cluster's parameters in the configuration file.
    params: ClusterParams,
    /// The configuration file's racks. They are read when the cluster is founded.
    racks: BTreeMap<ServerId, RackId>,
    /// The configuration file's pools, until they have been compared with those of the cluster.
    unchecked: Option<Bootstrap>,
    data: PathBuf,
    member: Member<DiskLog>,
    power: Power,
    /// For tasks that it starts.
    shared: Shared,
    /// For the member's next turn.
    inputs: Vec<Input>,
    /// Chunk servers with a connection.
    servers: BTreeMap<ServerId, Sender>,
    members: BTreeMap<u64, Sender>,
    /// All that are served, by their numbers.
    connections: BTreeMap<u64, Sender>,
    notices: NoticeCounts,
    /// What cannot happen, counted since the start.
    bugs: u64,
    targets: Targets,
}

/// This metadata server, for scrapers.
struct Scraped(Shared);

impl Source for Scraped {
    async fn page(&self) -> Page {
        self.0.queue.ask(Event::Page).await
    }

    async fn targets(&self) -> Option<String> {
        Some(self.0.queue.ask(Event::Targets).await)
    }
}

impl Driver {
    /// Runs until this is stopped.
    async fn run(&mut self, mut events: UnboundedReceiver<Event>) -> Result<(), NodeError> {
        let mut stop = Stop::new()?;
        loop {
            // Inputs that arrived while this process did not run are read before any server's silence is judged.
            tokio::task::yield_now().await;
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            let next = self.turn()?;
            let pause = next.map(|at| at.since(clock::now()));
            tokio::select! {
                Some(event) = events.recv() => self.take(event),
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = stop.asked() => return Ok(()),
            }
        }
    }

    /// Who asked may be gone: then the answer is dropped.
    fn take(&mut self, event: Event) {
        match event {
            Event::Input(input) => self.inputs.push(input),
            Event::Server { sender, message } => {
                self.servers.insert(message.server(), sender);
                self.inputs.push(Input::Server(message));
            }
            Event::Opened { connection, sender } => drop(self.connections.insert(connection, sender)),
            Event::Closed { connection } => {
                self.connections.remove(&connection);
                self.member.unwatch(connection);
                self.members.retain(|_, sender| !sender.is_closed());
                self.servers.retain(|_, sender| !sender.is_closed());
            }
            Event::Member { id, sender } => drop(self.members.insert(id, sender)),
            Event::Relay { party, answer } => drop(answer.send(self.way_to_leader(party))),
            Event::Page(answer) => {
                let mut page = metrics::of_process();
                self.report(&mut page);
                drop(answer.send(page));
            }
            Event::Targets(answer) => {
                let state = self.member.state();
                drop(answer.send(self.targets.list(|server| state.server(server).map(|entry| entry.state))));
            }
        }
    }

    /// Passes the inputs to the member and carries out the outcomes; returns when to be called again if no input
    /// arrives.
    fn turn(&mut self) -> Result<Option<Moment>, NodeError> {
        let inputs = std::mem::take(&mut self.inputs);
        let (heard, mut outcomes) = (power::heard(&inputs), Vec::new());
        let (leads, known) = (self.member.is_leader(), self.member.state().version());
        let now = clock::now();
        self.member.set_clock(now, clock::unix_millis());
        let done = self.member.on(now, inputs, &mut outcomes);
        done.map_err(|source| NodeError::Metadata { data: self.data.clone(), source })?;
        self.refuse_another_cluster()?;
        // Servers' states may have changed, or how deep they sleep.
        let throws = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Switch { .. }));
        self.follow_power(leads, throws || self.member.state().version() != known, heard);
        outcomes.into_iter().for_each(|outcome| self.carry_out(outcome));
        Ok(self.member.next_wake())
    }

    fn report(&self, page: &mut Page) {
        let (term, leader) = self.member.term();
        for (metric, holds) in [
            (names::LEADER, self.member.is_leader()),
            (names::VOTER, self.member.votes()),
            (names::FULL, self.member.is_full()),
        ] {
            page.put(metric, &[], holds.into());
        }
        page.put(names::TERM, &[], term as f64);
        page.put_known(names::LEADER_ID, &[], leader.map(|id| id as f64));
        self.notices.report(page);
        page.put(names::BUGS, &[], self.bugs as f64);
        for (action, count) in self.member.actions() {
            page.put(names::ACTIONS, &[&"meta", &action], count as f64);
        }
        let now = clock::now();
        if let Some(mut status) = self.member.status(now) {
            self.power.fill(now, &mut status);
            metrics::leader::report(&status, page);
        }
    }

    /// `led`: this member was leader before. `changed`: what servers draw may differ.
    fn follow_power(&mut self, led: bool, changed: bool, heard: Heard) {
        if !self.member.is_leader() {
            if led {
                self.power.switches.give_up_sleeps();
            }
            return self.power.forget();
        }
        let now = clock::now();
        if !led || changed {
            self.power.follow(now, &self.member);
        }
        self.power.hear(now, &self.member, heard);
    }

    /// Runs before any decision is carried out.
    fn refuse_another_cluster(&mut self) -> Result<(), NodeError> {
        let data = self.data.display();
        let params = self.member.state().params();
        // First: other pools mean other parameters too, and this error says more. A founded pool never changes.
        if let Some(found) = params.filter(|found| found.cluster == self.params.cluster)
            && let Some(file) = self.unchecked.take()
        {
            let founded = self.member.delta(0);
            pools::unchanged(&file, &founded).map_err(|why| refused(format!("{data}: {why}")))?;
            // The number of chunk groups follows from that of servers, which says more, too.
            if !found.is_described_by(&self.params)
                && let Some(why) = other_servers(&file.servers, &founded.servers)
            {
                return Err(refused(format!("{data}: {why}")));
            }
            let there = self.member.state().servers().map(|entry| (entry.id, entry.rack));
            other_racks(&self.racks, there).iter().for_each(|note| tracing::warn!("{note}"));
        }
        match params {
            Some(found) if found.cluster != self.params.cluster => Err(refused(format!(
                "{data} belongs to cluster {:016x}, not {:016x}: name another directory, or remove this one",
                found.cluster, self.params.cluster
            ))),
            Some(found) if !found.is_described_by(&self.params) => Err(refused(format!(
                "{data} was created with other parameters: {}; they cannot be changed: restore the file, or create a new cluster",
                found.unlike(&self.params)
            ))),
            _ => Ok(()),
        }
    }

    fn carry_out(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::SendRaft { to, message } => {
                if let Some(sender) = self.members.get(&to) {
                    // Raft resends lost messages.
                    let _ = sender.send(kind::RAFT, self.id, &message, Bytes::new());
                }
            }
            Outcome::Push { to, push } => self.tell(to, kind::META_PUSH, &push),
            Outcome::Reply { token: Token { connection, id }, mut reply } => {
                if let MetaReply::Admin(AdminReply::Status(status)) = &mut reply {
                    self.power.fill(clock::now(), status);
                    let there: Vec<_> = status.servers.iter().map(|s| (s.id, s.rack)).collect();
                    status.notes.extend(other_racks(&self.racks, there));
                }
                match self.connections.get(&connection) {
                    Some(sender) => drop(sender.send(kind::META_REPLY, id, &reply, Bytes::new())),
                    // It ended meanwhile, and watches nothing.
                    None => self.member.unwatch(connection),
                }
            }
            Outcome::Map { to, delta } => {
                let (sender, push) = (self.connections.get(&to), MetaPush::Map(delta));
                if sender.is_none_or(|s| s.send(kind::META_PUSH, 0, &push, Bytes::new()).is_err()) {
                    self.member.unwatch(to);
                }
            }
            Outcome::Order { to, order } => self.tell(to, kind::MACHINE_ORDER, &MachineOrder::Sleep(order)),
            Outcome::Switch { server, action } => self.throw(server, action),
            Outcome::Magic { server, path, by } => {
                let Some(magic) = self.power.switches.magic(server, path) else { return };
                if let Err(error) = send_magic(magic) {
                    tracing::warn!("{error}");
                }
                let order = MachineOrder::Magic { mac: magic.mac.0, to: magic.to.to_string() };
                by.iter().for_each(|neighbour| self.tell(*neighbour, kind::MACHINE_ORDER, &order));
            }
            Outcome::Notice(notice) => {
                tracing::info!("{notice}");
                self.notices.add(&notice);
            }
            Outcome::Broken(rule) => {
                self.bugs += 1;
                tracing::error!("a decision was refused, please report this: {rule}");
            }
            Outcome::Bug(Bug(what)) => {
                self.bugs += 1;
                tracing::error!(
                    "a bug in this program: {what}. It continues; please report it with this log"
                );
            }
        }
    }

    /// The drivers have threads of their own, and their results come back as inputs.
    fn throw(&self, server: ServerId, action: SwitchAction) {
        let (done, outcome) = oneshot::channel();
        // The receiver waits as long as this process runs.
        let done = move |result: Result<(), SwitchError>| drop(done.send(result));
        match action {
            SwitchAction::Sleep(depth) => self.power.switches.sleep(server, depth, done),
            SwitchAction::Wake { path } => self.power.switches.wake(server, path, done),
        }
        let shared = self.shared.clone();
        spawn_local(async move {
            // No result: a newer order has taken the place of this one.
            if let Ok(result) = outcome.await {
                let result = result.map_err(|error| error.to_string());
                shared.queue.give(Event::Input(Input::Switched { server, action, result }));
            }
        });
    }

    /// A chunk server without a connection is down, or is told again when it is heard of.
    fn tell<T: Serialize>(&self, to: ServerId, kind: u8, message: &T) {
        if let Some(sender) = self.servers.get(&to) {
            let _ = sender.send(kind, 0, message, Bytes::new());
        }
    }

    /// How to call the leader as this party, if it is another member and connected to this one.
    fn way_to_leader(&self, party: Party) -> Option<Way> {
        let is_linked = |id: &u64| self.members.get(id).is_some_and(|link| !link.is_closed());
        let leader = self.member.term().1.filter(is_linked)?;
        let About { own, secret, addresses } = &self.shared.about;
        let (address, secret) = (addresses.get(&leader)?.clone(), secret.clone());
        Some(Way { address, secret, own: Identity { party, ..*own } })
    }
}

async fn accept(shared: Shared, listener: Listener) {
    loop {
        let incoming = listener.accept().await;
        let shared = shared.clone();
        spawn_local(async move {
            match incoming.handshake().await {
                Ok(connection) => serve(shared, connection).await,
                Err(error) => tracing::debug!("a caller was refused: {error}"),
            }
        });
    }
}

/// Maintains the connection that carries the Raft library's messages to another member; that member's messages arrive
/// on its own connection. The frames' id is the sender.
async fn follow_member(shared: Shared, to: u64) {
    let About { own, secret, addresses } = &shared.about;
    loop {
        match connect(&addresses[&to], secret, *own).await {
            Ok(connection) => {
                shared.queue.give(Event::Member { id: to, sender: connection.sender.clone() });
                serve(shared.clone(), connection).await;
            }
            Err(error) => tracing::debug!("metadata server {to}: {error}"),
        }
        tokio::time::sleep(DIAL_PAUSE).await;
    }
}

async fn serve(shared: Shared, connection: Connection) {
    let Connection { sender, mut receiver, peer, .. } = connection;
    let connection = shared.served.get() + 1;
    shared.served.set(connection);
    shared.queue.give(Event::Opened { connection, sender: sender.clone() });
    let give = |input| shared.queue.give(Event::Input(input));
    while let Ok(Some(frame)) = receiver.next().await {
        if matches!(frame.kind, kind::META_REQUEST | kind::RAFT) {
            heap::used();
        }
        let is_client = matches!(peer.party, Party::Client | Party::Admin);
        if frame.kind == kind::META_RELAY && is_client && frame.decode::<()>().is_ok() {
            let guard = Guard::new(Clock::new());
            let way = shared.queue.ask(|answer| Event::Relay { party: peer.party, answer }).await;
            // Without one its requests are answered here.
            let Some(way) = way else { continue };
            relay::relay(way, &sender, &mut receiver, &guard).await;
            break;
        }
        let understood = match (frame.kind, peer.party) {
            (kind::SERVER_MESSAGE, Party::Server(server)) => match frame.decode::<ServerMessage>() {
                Ok((_, message)) if message.server() != server => {
                    tracing::warn!("{server} sent a message in the name of {}: ignored", message.server());
                    break;
                }
                decoded => decoded.map(|(_, message)| {
                    shared.queue.give(Event::Server { sender: sender.clone(), message });
                }),
            },
            (kind::SLEEP_REFUSAL, Party::Server(server)) => {
                let refusal = frame.decode::<SleepRefusal>();
                refusal.map(|(_, refusal)| give(Input::Refuses { server, refusal }))
            }
            (kind::META_REQUEST, party) => frame.decode::<MetaRequest>().map(|(id, request)| {
                let (token, is_admin) = (Token { connection, id }, party == Party::Admin);
                give(Input::Client { token, is_admin, request });
            }),
            (kind::RAFT, Party::Meta) => {
                frame.decode::<Vec<u8>>().map(|(from, message)| give(Input::Raft { from, message }))
            }
            _ => break,
        };
        if let Err(error) = understood {
            tracing::warn!("{:?}: {error}", peer.party);
            break;
        }
    }
    sender.close();
    shared.queue.give(Event::Closed { connection });
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearGroup, Incarnation, ServerState, StoreId};

    #[test]
    fn a_rack_that_was_changed_in_the_file_is_noted() {
        let file = BTreeMap::from([(ServerId(1), RackId(1)), (ServerId(5), RackId(1))]);
        let there = |rack| [(ServerId(1), RackId(1)), (ServerId(5), RackId(rack)), (ServerId(9), RackId(3))];
        assert_eq!(other_racks(&file, there(1)), [""; 0]);
        let notes = other_racks(&file, there(2));
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("the file has server-5 in rack-1, the cluster in rack-2"), "{notes:?}");
    }

    #[test]
    fn servers_that_the_cluster_was_not_founded_with_are_named() {
        let new = |id, pool, gear_group| NewServer {
            id: ServerId(id),
            rack: RackId(1),
            pool: PoolId(pool),
            gear_group,
            address: "here:1".into(),
        };
        let entry = |server: &NewServer| ServerEntry {
            id: server.id,
            rack: server.rack,
            pool: server.pool,
            gear_group: server.gear_group,
            address: server.address.clone(),
            state: ServerState::Lost,
            incarnation: Incarnation(0),
            store: StoreId(0),
        };
        let file = |ids: &[u16]| ids.iter().map(|id| new(*id, 0, GearGroup(0))).collect::<Vec<_>>();
        let founded: Vec<ServerEntry> = file(&[1, 2, 3, 4, 5]).iter().map(entry).collect();
        assert_eq!(other_servers(&file(&[1, 2, 3, 4, 5]), &founded), None);
        let said = |servers: &[NewServer]| other_servers(servers, &founded).unwrap();
        let more = said(&file(&[1, 2, 3, 4, 5, 6]));
        let start = "the file has 6 servers without a pool, the cluster was founded with 5: the cluster lacks server-6; their";
        assert!(more.starts_with(start), "{more}");
        let other = said(&file(&[1, 2, 3, 7]));
        assert!(
            other.contains("with 5: the cluster lacks server-7; the file lacks server-4, server-5;"),
            "{other}"
        );
        let mut beside = file(&[1, 2, 3, 4, 5]);
        beside.extend([new(6, 1, NO_GEAR), new(7, 0, NO_GEAR)]);
        assert_eq!(other_servers(&beside, &founded), None, "one of a pool, and a logger");
    }
}
