//! The client: routes each request to its chunk group's primary and retries until it is answered.
//!
//! A request keeps its id through all its tries, so that a write is carried out once however often it is
//! sent. Two things end a try early: the connection breaks, or the map names another primary. So a server that
//! was put to sleep or stopped in the middle of an answer holds a request up no longer than the metadata
//! service does, and one that is slow gets no request twice (R12). One deadline covers all tries. Between
//! requests there is no work: the map is pushed, connections are opened when they are needed.

use crate::budget::{Budget, Share};
use crate::error::{ClientError, Trouble};
use crate::link::{Link, Lost};
use crate::meta::{Leader, follow};
use crate::secret::{Key, Secret, random};
use crate::transport::{Identity, Role, Sender, connect, kind};
use bytes::Bytes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, ClientRequest, ClusterMap, ClusterParams, Epoch, GroupEntry,
    GroupId, MapDelta, MetaReply, MetaRequest, NamespaceAnswer, NamespaceCommand, NamespaceError,
    NamespaceOp, NamespaceQuery, NamespaceReply, ObjectId, RECORD_BLOCKS_MAX, RequestId, ServerId, Unready,
    group_of, piece_crcs,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep_until};

/// Bounds of the pause between two tries.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(1);
pub(crate) const RETRY_MAX: Duration = Duration::from_millis(100);
/// Bytes under way to one server, and from it.
const IN_FLIGHT_BYTES: usize = 16 << 20;
/// A connection on which nothing came for so many times [`ClientConfig::try_timeout`] is closed.
const SILENT_LOOKS: u32 = 3;
/// The map is asked for at most this often, whatever the number of requests in trouble.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// How a client finds its cluster, and its patience.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of the metadata servers: one is enough if it runs, all are better.
    pub meta: Vec<String>,
    pub secret: Secret,
    /// The cluster to insist on; zero takes the one that is found.
    pub cluster: u64,
    /// How long a request is tried before it fails.
    pub deadline: Duration,
    /// How long a connection may take to come about, and how often one is looked at on which an answer is awaited.
    pub try_timeout: Duration,
}

impl ClientConfig {
    pub fn new(meta: Vec<String>, secret: Secret) -> ClientConfig {
        ClientConfig {
            meta,
            secret,
            cluster: 0,
            deadline: Duration::from_secs(30),
            try_timeout: Duration::from_secs(5),
        }
    }

    /// Towards the metadata service: an administrator where the secret allows it.
    pub(crate) fn role(&self) -> Role {
        if self.secret.has(Key::Admin) { Role::Admin } else { Role::Client }
    }
}

/// What a client has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests to chunk servers.
    pub requests: u64,
    /// Tries after the first, of requests to chunk servers and to the metadata service.
    pub retries: u64,
    /// Answers that named another primary.
    pub moved: u64,
    /// Requests to chunk servers that failed for good.
    pub failures: u64,
    /// Tries whose bytes did not fit their checksums when they arrived, there or here.
    pub garbled: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub moved: AtomicU64,
    pub failures: AtomicU64,
    pub garbled: AtomicU64,
}

/// Bytes with their checksums: one per block of the chunk that they touch, as of [`piece_crcs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summed {
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
}

/// A connection to a chunk server, and how much may be under way on it: what a server does not take in yet waits here,
/// reads not behind writes.
#[derive(Debug)]
struct ChunkLink {
    link: Link<ClientReply>,
    reads: Budget,
    writes: Budget,
}

impl ChunkLink {
    fn new(sender: Sender) -> ChunkLink {
        let all = || Budget::new(IN_FLIGHT_BYTES);
        ChunkLink { link: Link::new(sender), reads: all(), writes: all() }
    }

    /// Waits until there is room for the op's bytes.
    async fn share(&self, op: &ChunkOp) -> Share {
        let bytes = if matches!(op, ChunkOp::Zero { .. }) { 0 } else { op.range().1 as usize };
        let all = if matches!(op, ChunkOp::Read { .. }) { &self.reads } else { &self.writes };
        all.share(bytes).await
    }
}

/// A client of one cluster. Cheap to clone; all clones share connections and map. The last clone's end closes
/// them.
#[derive(Clone, Debug)]
pub struct Client {
    guard: Arc<Guard>,
}

/// Stops the background work with the last clone.
#[derive(Debug)]
struct Guard {
    shared: Arc<Shared>,
    follower: tokio::task::AbortHandle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.follower.abort();
        for server in self.shared.links().values() {
            if let Some(link) = server.get() {
                link.link.close();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub config: ClientConfig,
    pub tally: Tally,
    pub leader: watch::Sender<Leader>,
    /// Where the leader is said to be.
    hint: Mutex<Option<String>>,
    view: RwLock<View>,
    /// Marked whenever the view changes.
    changes: watch::Sender<()>,
    links: Mutex<BTreeMap<ServerId, Arc<OnceCell<Arc<ChunkLink>>>>>,
    refreshing: AtomicBool,
    /// Names this run of the client in request ids.
    id: u64,
    last_request: AtomicU64,
}

/// What is known of the cluster. `params` is absent until the first leader answered.
#[derive(Debug, Default)]
struct View {
    params: Option<ClusterParams>,
    map: Arc<ClusterMap>,
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, BTreeMap<ServerId, Arc<OnceCell<Arc<ChunkLink>>>>> {
        self.links.lock().expect("nothing panics under this lock")
    }

    fn view(&self) -> std::sync::RwLockReadGuard<'_, View> {
        self.view.read().expect("nothing panics under this lock")
    }

    /// Changes the view and tells all who wait for a change.
    fn update<T>(&self, change: impl FnOnce(&mut View) -> T) -> T {
        let outcome = change(&mut self.view.write().expect("nothing panics under this lock"));
        self.changes.send_replace(());
        outcome
    }

    pub fn hint(&self) -> MutexGuard<'_, Option<String>> {
        self.hint.lock().expect("nothing panics under this lock")
    }

    pub fn identity(&self, role: Role) -> Identity {
        let known = self.view().params.as_ref().map_or(self.config.cluster, |params| params.cluster);
        Identity { cluster: known, role }
    }

    pub fn map_version(&self) -> u64 {
        self.view().map.version
    }

    /// Takes the answer to a question for the map. Returns whether it fitted.
    pub fn learn(&self, params: ClusterParams, delta: &MapDelta) -> bool {
        self.update(|view| {
            view.params = Some(params);
            Arc::make_mut(&mut view.map).apply(delta)
        })
    }

    pub fn set_params(&self, params: ClusterParams) -> bool {
        self.update(|view| view.params = Some(params));
        true
    }

    pub fn apply(&self, delta: &MapDelta) -> bool {
        self.update(|view| Arc::make_mut(&mut view.map).apply(delta))
    }

    /// Takes the entry that a server answered with, if it is news.
    fn adopt(&self, group: GroupId, entry: GroupEntry) -> bool {
        let known = |map: &ClusterMap| map.group(group).map(|known| known.epoch);
        if known(&self.view().map).is_none_or(|epoch| epoch >= entry.epoch) {
            return false;
        }
        self.update(|view| {
            let newest = &mut Arc::make_mut(&mut view.map).groups[group.0 as usize];
            if newest.epoch < entry.epoch {
                *newest = entry;
            }
        });
        true
    }

    /// Epoch and primary of a group.
    fn route(&self, group: GroupId) -> Option<(Epoch, ServerId)> {
        let view = self.view();
        let entry = view.map.group(group)?;
        Some((entry.epoch, entry.primary?))
    }

    /// Waits until `server` is not the group's primary any more.
    async fn superseded(&self, group: GroupId, server: ServerId, changes: &mut watch::Receiver<()>) {
        while self.route(group).is_some_and(|(_, primary)| primary == server) {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The connection to a server, opened if there is none.
    async fn link(self: &Arc<Self>, server: ServerId) -> Result<Arc<ChunkLink>, Trouble> {
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

    async fn open(self: &Arc<Self>, server: ServerId) -> Result<Arc<ChunkLink>, Trouble> {
        let address = self.view().map.servers.get(&server).map(|entry| entry.address.clone());
        let address = address.ok_or(Trouble::NoPrimary)?;
        let mut connection = connect(&address, &self.config.secret, self.identity(Role::Client))
            .await
            .map_err(|error| Trouble::NoConnection(Arc::new(error)))?;
        if connection.peer.role != Role::Server(server) {
            return Err(Trouble::WrongServer);
        }
        let link = Arc::new(ChunkLink::new(connection.sender.clone()));
        let running = link.clone();
        tokio::spawn(async move {
            // How it ended is seen by the requests that it ends.
            let _ = running.link.run(&mut connection.receiver, kind::CLIENT_REPLY, |_| Ok(())).await;
        });
        Ok(link)
    }

    /// Asks for the map in the background, at most once at a time: it is pushed anyway, but a leader that is
    /// stopped pushes nothing, and is noticed by this.
    fn refresh(self: &Arc<Self>) {
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            let started = Instant::now();
            let request = MetaRequest::Watch { map_version: shared.map_version() };
            let deadline = started + shared.config.try_timeout;
            if let Ok(MetaReply::Watch { params, map }) = shared.ask_meta(&request, deadline).await {
                shared.learn(params, &map);
            }
            sleep_until(started + REFRESH_PAUSE).await;
            shared.refreshing.store(false, Ordering::Relaxed);
        });
    }
}

/// How a try ended that brought no result.
enum Next {
    /// Go on at once: the route has changed.
    AtOnce(Trouble),
    /// Pause first.
    Pause(Trouble),
    Fail(ClientError),
}

impl Client {
    /// Finds the metadata leader and learns the map. Waits for a leader until the deadline; fails at once
    /// where the secret, the cluster or the release is another.
    pub async fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        if config.meta.is_empty() {
            return Err(ClientError::NoAddresses);
        }
        let deadline = Instant::now() + config.deadline;
        let shared = Arc::new(Shared {
            config,
            tally: Tally::default(),
            leader: watch::Sender::new(Leader::Searched { last: Trouble::NoAnswer, refused: None }),
            hint: Mutex::default(),
            view: RwLock::default(),
            changes: watch::Sender::new(()),
            links: Mutex::default(),
            refreshing: AtomicBool::new(false),
            id: u64::from_le_bytes(random()),
            last_request: AtomicU64::new(0),
        });
        let follower = tokio::spawn(follow(shared.clone())).abort_handle();
        let client = Client { guard: Arc::new(Guard { shared, follower }) };
        client.shared().first_leader(deadline).await?;
        Ok(client)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.guard.shared
    }

    pub fn params(&self) -> ClusterParams {
        self.shared().view().params.clone().expect("known since connect")
    }

    /// The newest map that is known here.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.shared().view().map.clone()
    }

    /// Waits for the next change of map or parameters.
    pub async fn map_changed(&self) {
        // Cannot fail: we hold the sender.
        let _ = self.shared().changes.subscribe().changed().await;
    }

    pub fn counters(&self) -> Counters {
        let tally = &self.shared().tally;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            requests: load(&tally.requests),
            retries: load(&tally.retries),
            moved: load(&tally.moved),
            failures: load(&tally.failures),
            garbled: load(&tally.garbled),
        }
    }

    /// A fresh request id, for a [`NamespaceCommand`].
    pub fn next_request(&self) -> RequestId {
        let seq = self.shared().last_request.fetch_add(1, Ordering::Relaxed) + 1;
        RequestId { client: self.shared().id, seq }
    }

    /// Reads `len` bytes at `offset` of a chunk. Never-written bytes are zero.
    pub async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Bytes, ClientError> {
        Ok(self.carry(ChunkOp::Read { chunk, offset, len, must_exist: false }, Bytes::new()).await?.bytes)
    }

    /// Reads bytes that are known to be written: where no copy has them, that is an error. With their checksums.
    pub async fn read_written(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, ClientError> {
        self.carry(ChunkOp::Read { chunk, offset, len, must_exist: true }, Bytes::new()).await
    }

    /// Writes at `offset` of a chunk. Returns when all r copies are durable.
    pub async fn write(&self, chunk: ChunkId, offset: u32, bytes: Bytes) -> Result<(), ClientError> {
        let crcs = piece_crcs(offset, &bytes);
        self.write_summed(chunk, offset, Summed { bytes, crcs }).await
    }

    /// The same with checksums that were made before.
    pub async fn write_summed(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), ClientError> {
        let Summed { bytes, crcs } = data;
        let Ok(len) = u32::try_from(bytes.len()) else { return Err(ClientError::TooLong { chunk }) };
        let request = self.next_request();
        self.carry(ChunkOp::Write { chunk, offset, len, request, crcs }, bytes).await.map(drop)
    }

    /// Sets a range of a chunk to zero and frees its whole blocks.
    pub async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), ClientError> {
        let request = self.next_request();
        self.carry(ChunkOp::Zero { chunk, offset, len, request }, Bytes::new()).await.map(drop)
    }

    /// Removes a chunk for good.
    pub async fn delete(&self, chunk: ChunkId) -> Result<(), ClientError> {
        let request = self.next_request();
        self.carry(ChunkOp::Delete { chunk, request }, Bytes::new()).await.map(drop)
    }

    /// Takes `count` fresh object ids; returns the first, the others follow it.
    pub async fn allocate_objects(&self, count: u32) -> Result<ObjectId, ClientError> {
        match self.call(MetaRequest::AllocateObjects { count }).await? {
            MetaReply::Objects { first, count: given } if given == count => Ok(first),
            _ => Err(self.nonsense()),
        }
    }

    /// Changes the namespace; see [`NamespaceCommand`] for what comes back.
    pub async fn namespace(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, ClientError> {
        let ops_len = ops.len();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let command =
            NamespaceCommand { request: self.next_request(), now_millis: now.as_millis() as u64, ops };
        match self.call(MetaRequest::Namespace(command)).await? {
            MetaReply::Namespace(reply) if reply.results.len() == ops_len => Ok(reply),
            _ => Err(self.nonsense()),
        }
    }

    pub async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, ClientError> {
        match self.call(MetaRequest::Query(query)).await? {
            MetaReply::Query(answer) => Ok(answer),
            _ => Err(self.nonsense()),
        }
    }

    /// Asks the metadata service. Follows the leader and retries until the deadline: every request may be
    /// carried out twice without harm, or carries an id (`Namespace`).
    pub async fn call(&self, request: MetaRequest) -> Result<MetaReply, ClientError> {
        self.shared().ask_meta(&request, Instant::now() + self.shared().config.deadline).await
    }

    fn nonsense(&self) -> ClientError {
        let addresses = self.shared().config.meta.clone();
        ClientError::NoMeta { addresses, waited: Duration::ZERO, last: Trouble::Nonsense }
    }

    /// Carries an op to its primary, again and again until it is answered or the deadline passes.
    async fn carry(&self, op: ChunkOp, payload: Bytes) -> Result<Summed, ClientError> {
        let shared = self.shared();
        shared.tally.requests.fetch_add(1, Ordering::Relaxed);
        let outcome = self.carry_counted(op, payload).await;
        if outcome.is_err() {
            shared.tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn carry_counted(&self, op: ChunkOp, payload: Bytes) -> Result<Summed, ClientError> {
        let shared = self.shared();
        let chunk = op.chunk();
        if !fits_one_record(op.range()) {
            return Err(ClientError::TooLong { chunk });
        }
        let groups = shared.view().params.as_ref().expect("known since connect").groups;
        let group = group_of(chunk, groups);
        let started = Instant::now();
        let deadline = started + shared.config.deadline;
        let mut request = ClientRequest { group, epoch: Epoch(0), op };
        let mut changes = shared.changes.subscribe();
        let mut pause = RETRY_MIN;
        let mut tries = 0;
        let mut server = None;
        loop {
            changes.mark_unchanged();
            let route = shared.route(group);
            let next = match route {
                None => Next::Pause(Trouble::NoPrimary),
                Some((epoch, primary)) => {
                    tries += 1;
                    if tries > 1 {
                        shared.tally.retries.fetch_add(1, Ordering::Relaxed);
                    }
                    server = Some(primary);
                    request.epoch = epoch;
                    match self.attempt(primary, &request, &payload, &mut changes, deadline).await {
                        Ok(data) => return Ok(data),
                        Err(next) => next,
                    }
                }
            };
            let (last, at_once) = match next {
                Next::Fail(error) => return Err(error),
                Next::AtOnce(trouble) => (trouble, true),
                Next::Pause(trouble) => (trouble, false),
            };
            let now = Instant::now();
            let until = if at_once { now } else { now + pause };
            if until >= deadline {
                return Err(ClientError::Unserved { group, tries, waited: now - started, server, last });
            }
            if !at_once {
                shared.refresh();
                self.route_changes(group, route, &mut changes, until).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }

    /// Waits for another route than this, or until the moment comes.
    async fn route_changes(
        &self,
        group: GroupId,
        route: Option<(Epoch, ServerId)>,
        changes: &mut watch::Receiver<()>,
        until: Instant,
    ) {
        let shared = self.shared();
        let _ = tokio::time::timeout_at(until, async {
            while shared.route(group) == route {
                // Cannot fail: we hold the sender.
                let _ = changes.changed().await;
            }
        })
        .await;
    }

    /// Returns when the try is in vain: no connection came about, or it was closed because nothing at all came on it. However
    /// long a server takes that answers anybody, the request is on its way, and is not sent twice.
    async fn silence(&self, used: &OnceLock<Arc<ChunkLink>>) {
        let shared = self.shared();
        let (mut last, mut silent) = (0, 0);
        loop {
            tokio::time::sleep(shared.config.try_timeout).await;
            let Some(link) = used.get() else { return };
            let heard = link.link.heard();
            silent = if std::mem::replace(&mut last, heard) == heard { silent + 1 } else { 0 };
            if silent >= SILENT_LOOKS {
                return link.link.close();
            }
            shared.refresh();
        }
    }

    /// One try.
    async fn attempt(
        &self,
        server: ServerId,
        request: &ClientRequest,
        payload: &Bytes,
        changes: &mut watch::Receiver<()>,
        deadline: Instant,
    ) -> Result<Summed, Next> {
        let shared = self.shared();
        let used = OnceLock::new();
        let exchange = async {
            let link = shared.link(server).await?;
            let link = used.get_or_init(|| link);
            let _share = link.share(&request.op).await;
            let message = link.link.request(kind::CLIENT_REQUEST, request, payload.clone());
            message.await.map_err(|Lost| Trouble::Lost)
        };
        let answer = tokio::select! {
            biased;
            answer = exchange => answer,
            () = shared.superseded(request.group, server, changes) => return Err(Next::AtOnce(Trouble::NoAnswer)),
            () = self.silence(&used) => return Err(Next::Pause(Trouble::NoAnswer)),
            () = sleep_until(deadline) => return Err(Next::Pause(Trouble::NoAnswer)),
        };
        let (reply, bytes) = answer.map_err(Next::Pause)?;
        let is_read = matches!(request.op, ChunkOp::Read { .. });
        let (offset, len) = request.op.range();
        match reply {
            ClientReply::Data { crcs } if is_read && bytes.len() == len as usize => {
                if crcs != piece_crcs(offset, &bytes) {
                    shared.tally.garbled.fetch_add(1, Ordering::Relaxed);
                    return Err(Next::Pause(Trouble::Garbled));
                }
                Ok(Summed { bytes, crcs })
            }
            ClientReply::Done if !is_read => Ok(Summed::default()),
            ClientReply::Data { .. } | ClientReply::Done => Err(Next::Pause(Trouble::Nonsense)),
            ClientReply::Retry { why } => {
                let garbled = u64::from(why == Unready::Garbled);
                shared.tally.garbled.fetch_add(garbled, Ordering::Relaxed);
                Err(Next::Pause(Trouble::NotReady(why)))
            }
            ClientReply::Failed { why } => {
                Err(Next::Fail(ClientError::Chunk { chunk: request.op.chunk(), why }))
            }
            ClientReply::Moved { entry } => {
                shared.tally.moved.fetch_add(1, Ordering::Relaxed);
                let trouble = Trouble::Elsewhere(entry.epoch);
                let news = shared.adopt(request.group, entry);
                Err(if news { Next::AtOnce(trouble) } else { Next::Pause(trouble) })
            }
        }
    }
}

/// Whether a byte range (offset, length) of a chunk lies in one record: the primary rounds it to whole
/// blocks.
fn fits_one_record((offset, len): (u32, u32)) -> bool {
    let (first, end) = (u64::from(offset), u64::from(offset) + u64::from(len));
    let block = BLOCK_BYTES as u64;
    end.div_ceil(block) - first / block <= u64::from(RECORD_BLOCKS_MAX)
}
