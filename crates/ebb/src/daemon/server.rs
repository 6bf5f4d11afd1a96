//! The chunk server: drives the protocol core (`ebb_chunkserver`) with real sockets, a real store and a real clock.
//!
//! One thread runs everything except the store's disk I/O. Every input (a frame, a completion, a timer) becomes an
//! event for one task, the [`driver`]; the core answers with commands, which are carried out at once, before the next
//! input. So there are no locks, and no context switch between a request and its answer if the blocks are in memory. An
//! idle server does one thing: it sends heartbeats.

mod disks;
mod driver;
mod machine;
mod news;
mod relay;
mod scrubs;

use crate::cluster::config::Config;
use crate::cluster::launch::Stop;
use crate::cluster::random;
use crate::daemon::clock;
use crate::daemon::files;
use crate::daemon::heap;
use crate::daemon::metrics::{self, Page, Source};
use crate::error::{IN_THE_FILE, NodeError, io, listen, refused};
use disks::Ground;
use driver::{About, Handle, Input, Server, Shared, inbox_has_room};
use ebb_chunkserver::Replica;
use ebb_chunkserver::shell::{self, Ended, Event, Shell};
use ebb_client::transport::{
    Connection, Frame, Identity, Listener, Party, Receiver, Sender, TransportError, connect, kind,
};
use ebb_client::{Key, Secret};
use ebb_power::OwnMachine;
use ebb_store::{Completion, StoreCore, StoreHandle};
use ebb_types::frame::{FrameError, PAYLOAD_MAX};
use ebb_types::{ChunkOp, ClientRequest, Depth, Incarnation, MachineOrder, ServerId, StoreId};
use scrubs::Scrubs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};

const META_PAUSE_MIN: Duration = Duration::from_millis(20);
const META_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs the chunk server with this id until it is stopped.
pub async fn run(config: &Config, id: u16) -> Result<(), NodeError> {
    let section = config.server_section(id)?;
    // From here on, so that a mirror that has been opened is closed in order.
    let mut stop = Stop::new()?;
    let own_machine = Arc::new(config.own_machine(section)?);
    loop {
        let ground = Ground::open(config, section)?;
        let outcome = run_on(config, id, &ground, &mut stop, &own_machine).await;
        // The disks are free before the next process may start.
        drop(ground);
        ebb_power::remove_pid_file(&config.path(&section.data), std::process::id())?;
        if outcome? == End::Stopped {
            return Ok(());
        }
        tracing::info!("the store is closed: the machine powers off");
        let outcome = tokio::select! {
            outcome = machine::sleep(&own_machine, Depth::Off) => outcome,
            // By the machine, for one: it goes down.
            () = stop.asked() => return Ok(()),
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(why) => tracing::error!("the machine does not power off, and the server starts again: {why}"),
        }
    }
}

/// Why there is no further run in this process, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    /// The machine is to power off.
    PowerOff,
}

async fn run_on(
    config: &Config,
    id: u16,
    ground: &Ground,
    stop: &mut Stop,
    own_machine: &Arc<OwnMachine>,
) -> Result<End, NodeError> {
    let mut supersedes = None;
    loop {
        // All tasks of a run end with it, and so does its store.
        let tasks = LocalSet::new();
        match tasks.run_until(run_once(config, id, ground, stop, own_machine, supersedes)).await? {
            None => return Ok(End::Stopped),
            Some(Ended::PowerOff) => return Ok(End::PowerOff),
            Some(Ended::Rejected { why }) => {
                return Err(refused(format!("the metadata service rejects this server: {why}")));
            }
            Some(Ended::Superseded { known }) => {
                tracing::warn!(
                    "the directory does not continue {known} of this server, the last that the cluster knows: it was emptied, \
                     replaced or restored. It takes a new identity, and the cluster copies to it what it lacks"
                );
                supersedes = Some(known);
            }
        }
    }
}

/// One run of the protocol on one opening of the store.
async fn run_once(
    config: &Config,
    id: u16,
    ground: &Ground,
    stop: &mut Stop,
    own_machine: &Arc<OwnMachine>,
    supersedes: Option<Incarnation>,
) -> Result<Option<Ended>, NodeError> {
    let section = config.server_section(id)?;
    let secret = Secret::load(&config.path(config.cluster.secret_of_servers()))?;
    secret.require(Key::Server)?;
    let params = config.params()?;
    let me = ServerId(id);
    let data = config.path(&section.data);
    let fresh_id = StoreId(random::identity()?);
    let store_config = ebb_store::Config {
        supersedes,
        chunk_bytes: params.chunk_bytes,
        capacity: section.capacity_mib.map(ebb_types::Bytes::mib),
        open_files: open_files(),
        ..ebb_store::Config::new(params.cluster, me, fresh_id)
    };
    let (core, recovered) = StoreCore::open(ground.disk()?, store_config)?;
    files::announce(&data)?;
    let own = Identity { cluster: params.cluster, party: Party::Server(me) };
    let listener = Listener::bind(&section.address, &secret, own).await;
    let listener = listener.map_err(listen(&section.address, IN_THE_FILE))?;

    let (completed, completions) = mpsc::unbounded_channel::<Vec<Completion>>();
    let store = StoreHandle::start(core, move |batch| {
        // The receiver is gone only while the process is exiting.
        let _ = completed.send(batch);
    })
    .map_err(io("start", "the store's thread"))?;
    let incarnation = recovered.incarnation;
    let scrubs = Scrubs::new(data.join("scrubs.json"));
    let shell = shell_of(config, &params, (me, store.figures().mark.store), recovered, &scrubs);
    let (shared, inputs) = Handle::new(About {
        me,
        incarnation,
        cluster: params.cluster,
        secret,
        scrubs,
        own_machine: own_machine.clone(),
        dial: |shared, to, address, pause| drop(spawn_local(dial(shared, to, address, pause))),
    });
    let server = Server::new(shared.clone(), shell, store, config.meta.len());
    for (index, address) in config.meta_addresses().into_iter().enumerate() {
        spawn_local(follow_meta(shared.clone(), index, address, own, params.lease_millis));
    }
    let served = shared.clone();
    spawn_local(listener.serve(move |connection| serve(served.clone(), connection)));
    spawn_local(heap::give_back_when_quiet());
    metrics::open(section.metrics.as_deref(), Scraped(shared.clone())).await?;
    // A task of the same set as the connections: waking it costs no more than an entry in the set's queue.
    let mut run = spawn_local(server.run(inputs, completions));
    let ended = tokio::select! {
        ended = &mut run => ended,
        () = stop.asked() => {
            shared.queue.give(Input::Stop);
            run.await
        }
    };
    // A bug: what is in memory may be wrong, and the next start does not have it.
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// The pure part of this run, from what the store recovered.
fn shell_of(
    config: &Config,
    params: &ebb_types::ClusterParams,
    (me, store): (ServerId, StoreId),
    recovered: ebb_store::Recovered,
    scrubs: &Scrubs,
) -> Shell {
    let (incarnation, membership) = (recovered.incarnation, recovered.membership);
    let core_config = ebb_chunkserver::Config {
        known_map: membership.map_version,
        scrub_period: Duration::from_secs(config.scrub.period_seconds),
        scrub_bytes_per_second: config.scrub.bytes_per_second,
        reclaim_within: Duration::from_secs(config.reclaim.within_seconds),
        ..ebb_chunkserver::Config::new(me, incarnation, store, params.chunk_bytes, params.groups)
    };
    let recovered = ebb_chunkserver::Recovered { scrubs: scrubs.load(), ..recovered.for_the_core() };
    let replica = Replica::new(core_config, recovered);
    let heartbeat = Duration::from_millis(config.cluster.heartbeat_millis.into());
    let about = shell::About { me, incarnation, params: params.clone(), heartbeat, membership };
    Shell::new(clock::now(), about, replica)
}

/// This chunk server, for scrapers.
struct Scraped(Shared);

impl Source for Scraped {
    async fn page(&self) -> Page {
        self.0.queue.ask(Input::Page).await
    }
}

/// Number of files the store may keep open: half of those that the process may have is left for connections.
fn open_files() -> usize {
    const ENOUGH: u64 = 4096;
    files::raise_limit().map_or(ENOUGH, |files| ENOUGH.min(files / 2)) as usize
}

/// Serves one connection, whichever side opened it.
async fn serve(shared: Shared, connection: Connection) {
    let Connection { sender, mut receiver, peer, .. } = connection;
    if let Party::Server(from) = peer.party {
        shared.queue.give(Input::PeerUp { peer: from, sender: sender.clone() });
    }
    match receive(&shared, peer.party, &sender, &mut receiver).await {
        Ok(()) => {}
        Err(TransportError::Frame(error)) => tracing::warn!("{:?}: {error}", peer.party),
        Err(error) => tracing::debug!("{:?}: {error}", peer.party),
    }
    sender.close();
    if let Party::Server(from) = peer.party {
        shared.queue.give(Input::PeerLost { peer: from });
    }
}

/// Receives frames while there is room for them.
async fn receive(
    shared: &Handle,
    party: Party,
    sender: &Sender,
    receiver: &mut Receiver,
) -> Result<(), TransportError> {
    let flow = &shared.flow;
    while let Some((kind, payload_len)) = receiver.arriving().await? {
        if kind == kind::CLIENT_REQUEST {
            sender.room().await;
            let mut share = flow.writes.share(payload_len).await;
            let Some(frame) = receiver.next().await? else { break };
            let (id, request) = frame.decode::<ClientRequest>()?;
            if let ChunkOp::Read { len, .. } | ChunkOp::Look { len, .. } = request.op {
                share = flow.reads.share((len as usize).min(PAYLOAD_MAX)).await;
            }
            shared.on_request((sender, id), request, frame.payload, share);
            continue;
        }
        if kind == kind::CHUNK_RELAY {
            let Some(frame) = receiver.next().await? else { break };
            relay::relay(shared, party, &frame, sender, receiver).await?;
            break;
        }
        inbox_has_room(shared, party).await;
        let Some(frame) = receiver.next().await? else { break };
        shared.on_frame(party, sender, frame)?;
    }
    Ok(())
}

/// Connects after a pause.
async fn dial(shared: Shared, to: ServerId, address: String, pause: Duration) {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    let About { me, cluster, secret, .. } = &shared.about;
    let own = Identity { cluster: *cluster, party: Party::Server(*me) };
    match connect(&address, secret, own).await {
        Ok(connection) if connection.peer.party == Party::Server(to) => {
            return serve(shared, connection).await;
        }
        Ok(_) => {}
        Err(error) => tracing::debug!("{to}: {error}"),
    }
    shared.queue.give(Input::DialFailed { peer: to });
}

/// Maintains a connection to one metadata server.
async fn follow_meta(shared: Shared, index: usize, address: String, own: Identity, lease_millis: u32) {
    let lease = Duration::from_millis(lease_millis.into());
    let mut pause = META_PAUSE_MIN;
    loop {
        match connect(&address, &shared.about.secret, own).await {
            Ok(Connection { sender, mut receiver, .. }) => {
                pause = META_PAUSE_MIN;
                shared.queue.give(Input::MetaUp { index, sender: sender.clone() });
                let mut spoke = false;
                while let Some(frame) = next_frame(&mut receiver, spoke.then_some(lease)).await {
                    spoke = true;
                    if let Err(error) = on_meta_frame(&shared, &frame) {
                        tracing::warn!("metadata server {address}: {error}");
                    }
                }
                sender.close();
                shared.queue.give(Input::MetaLost { index });
            }
            Err(error) => tracing::debug!("metadata server {address}: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(META_PAUSE_MAX);
    }
}

fn on_meta_frame(shared: &Handle, frame: &Frame) -> Result<(), FrameError> {
    match frame.kind {
        kind::MACHINE_ORDER => match frame.decode()? {
            (_, MachineOrder::Sleep(order)) => shared.tell_shell(Event::Order(order)),
            (_, MachineOrder::Magic { mac, to }) => machine::send(mac, &to),
        },
        _ => {
            let (_, push) = frame.decode()?;
            shared.tell_shell(Event::Push(push));
        }
    }
    Ok(())
}

/// `None`: the connection has ended, or nothing came for that long from a member that spoke before. It may be the
/// leader, whom this server reaches but does not hear: it would grant leases that never arrive, and call nobody failed.
/// Where only this connection is broken, the next one is not; otherwise the leader hears nothing more, either, and
/// others take over. One that has ceased to lead is silent, too, and loses nothing by another connection.
async fn next_frame(receiver: &mut Receiver, patience: Option<Duration>) -> Option<Frame> {
    let next = receiver.next();
    let next = match patience {
        Some(patience) => tokio::time::timeout(patience, next).await.ok()?,
        None => next.await,
    };
    next.ok().flatten()
}
