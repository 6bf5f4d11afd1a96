//! What all clones of a client share: the map, the connections, and what was counted.

use crate::budget::{Budget, Share};
use crate::clock::Clock;
use crate::error::ClientError;
use crate::link::Link;
use crate::run::Run;
use crate::secret::{Key, Secret};
use crate::transport::{Identity, Party, Sender};
use crate::unreached::Unreached;
use ebb_client_core::{Patience, Trouble, View};
use ebb_erasure::Codes;
use ebb_types::frame::PAYLOAD_MAX;
use ebb_types::{
    ChunkOp, ClientReply, ClusterParams, GroupId, MapDelta, MetaReply, MetaRequest, Moment, ServerId, SetId,
    Shape, Unready, Version,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use tokio::sync::{OnceCell, watch};

/// Maximum bytes in flight to one server, and likewise from it.
const IN_FLIGHT_BYTES: usize = 16 << 20;
// A request that is larger would wait forever.
const _: () = assert!(IN_FLIGHT_BYTES >= 2 * PAYLOAD_MAX);

/// How a client finds its cluster, and how long it retries.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of the metadata servers: one that runs is enough, all are better.
    pub meta: Vec<String>,
    pub secret: Secret,
    /// The cluster to insist on; zero accepts any.
    pub cluster: u64,
    pub patience: Patience,
}

impl ClientConfig {
    pub fn new(meta: Vec<String>, secret: Secret) -> ClientConfig {
        ClientConfig { meta, secret, cluster: 0, patience: Patience::default() }
    }

    /// What this is towards the metadata service: administrator if the secret allows it.
    pub(crate) fn party(&self) -> Party {
        if self.secret.has(Key::Admin) { Party::Admin } else { Party::Client }
    }
}

/// What a client has done since it started. While it counts, `T` is atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters<T = u64> {
    /// Requests to chunk servers.
    pub requests: T,
    /// Tries after the first, of requests to chunk servers and to the metadata service.
    pub retries: T,
    /// Replies that named another primary.
    pub moved: T,
    /// Requests to chunk servers that failed for good.
    pub failures: T,
    /// Tries whose bytes did not match their checksums on arrival, there or here.
    pub garbled: T,
}

/// A connection to a chunk server, with the bounds on what may be in flight on it: requests that the server does not
/// admit yet wait here. Reads do not wait behind writes.
#[derive(Debug)]
pub(crate) struct ChunkLink {
    pub link: Link<ClientReply>,
    /// Passes on what is sent on it; `None`: it goes to the server itself.
    pub through: Option<ServerId>,
    /// It was silent, and whether its server is reached has just been looked at, or is now.
    pub doubted: AtomicBool,
    reads: Budget,
    writes: Budget,
}

impl ChunkLink {
    pub fn new(sender: Sender, through: Option<ServerId>) -> ChunkLink {
        let all = || Budget::new(IN_FLIGHT_BYTES);
        let (reads, writes) = (all(), all());
        ChunkLink { link: Link::new(sender), through, doubted: AtomicBool::new(false), reads, writes }
    }

    /// Waits until the op's bytes are within the bound.
    pub async fn share(&self, op: &ChunkOp) -> Share {
        let carries = matches!(op, ChunkOp::Read { .. } | ChunkOp::Write { .. });
        let bytes = if carries { op.range().1 as usize } else { 0 };
        let all = if op.is_read() { &self.reads } else { &self.writes };
        all.share(bytes).await
    }
}

pub(crate) type Links = BTreeMap<ServerId, Arc<OnceCell<Arc<ChunkLink>>>>;
pub(crate) type MetaLink = Link<MetaReply>;

/// Whether there is a leader to talk to.
#[derive(Clone, Debug)]
pub(crate) enum Leader {
    /// Why there is none, as far as known. `refused`: the configuration is wrong.
    Searched {
        last: Trouble,
        refused: Option<ClientError>,
    },
    Found(Arc<MetaLink>),
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub config: ClientConfig,
    pub tally: Counters<AtomicU64>,
    pub leader: watch::Sender<Leader>,
    /// Reported address of the leader.
    hint: Mutex<Option<String>>,
    view: RwLock<View>,
    /// Notified whenever the view changes.
    changes: watch::Sender<()>,
    links: Mutex<Links>,
    pub unreached: Unreached,
    /// Within what time sets wake, as the metadata service last said.
    pub wakes_within_millis: AtomicU64,
    refreshing: AtomicBool,
    codes: Mutex<BTreeMap<Shape, Arc<Codes>>>,
    pub clock: Clock,
    /// Its id identifies this run of the client in request ids.
    pub run: Run,
    pub last_request: AtomicU64,
    /// In which the namespace remembers this client's commands.
    pub session: tokio::sync::Mutex<Option<u64>>,
}

/// A connection may have been replaced after the last clone had closed the others.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close_links();
    }
}

impl Shared {
    /// Nothing is known of the cluster yet.
    pub fn new(config: ClientConfig, clock: Clock) -> Shared {
        let run = Run::begin();
        Shared {
            config,
            tally: Counters::default(),
            leader: watch::Sender::new(Leader::Searched { last: Trouble::NoAnswer, refused: None }),
            hint: Mutex::default(),
            view: RwLock::default(),
            changes: watch::Sender::new(()),
            links: Mutex::default(),
            unreached: Unreached::new(run.id),
            wakes_within_millis: AtomicU64::new(0),
            refreshing: AtomicBool::new(false),
            codes: Mutex::default(),
            clock,
            run,
            last_request: AtomicU64::new(0),
            session: tokio::sync::Mutex::default(),
        }
    }

    pub fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().expect("nothing panics under this lock")
    }

    pub fn close_links(&self) {
        for server in self.links().values() {
            if let Some(link) = server.get() {
                link.link.close();
            }
        }
    }

    pub fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().expect("nothing panics under this lock")
    }

    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Notified whenever the view changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The code tables of a shape, made once.
    pub fn codes(&self, shape: Shape) -> Arc<Codes> {
        let mut codes = self.codes.lock().expect("nothing panics under this lock");
        codes.entry(shape).or_insert_with(|| Arc::new(Codes::new(shape))).clone()
    }

    /// [`View::hear`], which changes nothing that anybody waits for.
    pub fn hear(&self, group: GroupId, newest: Version) {
        self.view.write().expect("nothing panics under this lock").hear(group, newest);
    }

    /// Changes the view and notifies all waiters.
    pub fn update<T>(&self, change: impl FnOnce(&mut View) -> T) -> T {
        let outcome = change(&mut self.view.write().expect("nothing panics under this lock"));
        self.changes.send_replace(());
        outcome
    }

    pub fn hint(&self) -> MutexGuard<'_, Option<String>> {
        self.hint.lock().expect("nothing panics under this lock")
    }

    pub fn identity(&self, party: Party) -> Identity {
        let known = self.view().params().map_or(self.config.cluster, |params| params.cluster);
        Identity { cluster: known, party }
    }

    /// The request for what is new in the map.
    pub fn question(&self) -> MetaRequest {
        self.view().question()
    }

    /// Applies the reply to that. `false`: it leaves a gap.
    pub fn learn(&self, params: ClusterParams, delta: &MapDelta) -> bool {
        self.update(|view| view.learn(params, delta))
    }

    /// The connection to a server; opens one if there is none.
    pub async fn link(self: &Arc<Self>, server: ServerId) -> Result<Arc<ChunkLink>, Trouble> {
        let cell = {
            let mut links = self.links();
            let cell = links.entry(server).or_default();
            if cell.get().is_some_and(|link| link.link.is_lost()) {
                *cell = Arc::default();
            }
            cell.clone()
        };
        cell.get_or_try_init(|| self.open(server)).await.cloned()
    }

    /// Asks for the map in the background, one request at a time. The map is pushed anyway, but a stopped leader
    /// pushes nothing, and this notices it.
    pub fn refresh(self: &Arc<Self>) {
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let question = self.view.write().expect("nothing panics under this lock").refresh(self.now());
        let Some(question) = question else { return self.refreshing.store(false, Ordering::Relaxed) };
        let shared = self.clone();
        tokio::spawn(async move {
            let deadline = shared.now() + shared.config.patience.look;
            if let Ok(MetaReply::Watch { params, map }) = shared.ask_meta(&question, deadline).await {
                shared.learn(params, &map);
            }
            shared.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Has a set that hibernates woken, in the background.
    pub fn wake(self: &Arc<Self>, set: SetId) {
        let request = self.view.write().expect("nothing panics under this lock").wake(self.now(), set);
        let Some(request) = request else { return };
        let shared = self.clone();
        tokio::spawn(async move {
            let deadline = shared.now() + shared.config.patience.look;
            if let Ok(MetaReply::Wakes { within_millis }) = shared.ask_meta(&request, deadline).await {
                shared.wakes_within_millis.store(within_millis, Ordering::Relaxed);
            }
        });
    }

    /// Counts the trouble that ended a try.
    pub fn count(&self, trouble: &Trouble) {
        let counter = match trouble {
            Trouble::Elsewhere(_) => &self.tally.moved,
            Trouble::Garbled | Trouble::NotReady(Unready::Garbled) => &self.tally.garbled,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
