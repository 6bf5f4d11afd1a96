//! The client: carries each request to its chunk group's primary. [`ebb_client_core::Request`] decides what to do next;
//! this module has the sockets and the clock. Between requests it is idle: the map is pushed, and connections are
//! opened on demand.

use crate::clock::Clock;
use crate::error::ClientError;
use crate::link::Lost;
use crate::meta::follow;
use crate::run;
use crate::secret::{Key, SecretError};
use crate::shared::{ChunkLink, ClientConfig, Counters, Shared};
use crate::transport::kind;
use bytes::Bytes;
use ebb_client_core::{Command, Event, Failure, Request, Summed, Trouble};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientRequest, ClusterMap, ClusterParams, GroupId, Looked, MetaReply,
    MetaRequest, Moment, NamespaceAnswer, NamespaceCommand, NamespaceError, NamespaceOp, NamespaceQuery,
    NamespaceReply, OPS_MAX, ObjectId, PoolEntry, RECORD_BLOCKS_MAX, RequestId, ServerId, Version,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// A client of one cluster. Cheap to clone; all clones share connections and map. Dropping the last clone closes
/// the connections.
#[derive(Clone, Debug)]
pub struct Client {
    guard: Arc<Guard>,
    /// The claim under which this clone's requests are sent; zero: none.
    claim: u64,
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
        self.shared.close_links();
    }
}

/// This machine's wall clock, to be compared with others'.
fn wall_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The outcome of a request.
pub(crate) struct Carried {
    pub data: Summed,
    /// See [`Request::done`].
    pub version: Option<Version>,
    /// See [`Request::looked`].
    pub looked: Option<Looked>,
}

/// What a request waits for.
enum Next {
    /// The reply of a server.
    Answer(ServerId, ClientRequest),
    /// A change of the map, or [`Request::due`].
    Change,
    End(Result<Summed, Failure>),
}

impl Client {
    /// Finds the metadata leader and fetches the map. Waits for a leader until the deadline; fails at once
    /// if the secret, the cluster or the release does not match.
    pub async fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        if config.meta.is_empty() {
            return Err(ClientError::NoAddresses);
        }
        let clock = Clock::new();
        let deadline = clock.now() + config.patience.deadline;
        let shared = Arc::new(Shared::new(config, clock));
        let follower = tokio::spawn(follow(shared.clone())).abort_handle();
        let client = Client { guard: Arc::new(Guard { shared, follower }), claim: 0 };
        client.shared().first_leader(deadline).await?;
        Ok(client)
    }

    /// A clone whose requests to chunk servers are carried out only under this claim, once [`Client::raise_claim`] has
    /// noted it.
    pub fn claimed(&self, claim: u64) -> Client {
        debug_assert!(claim > 0, "zero is no claim");
        Client { claim, ..self.clone() }
    }

    pub(crate) fn claim(&self) -> u64 {
        self.claim
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.guard.shared
    }

    pub fn params(&self) -> ClusterParams {
        self.shared().view().params().cloned().expect("known since connect")
    }

    /// Whether this run of a client, by its id, was one of this machine and has ended.
    pub fn run_has_ended(&self, run: u64) -> bool {
        run::has_ended(run)
    }

    /// The clock of this client's deadlines, which runs while the machine is suspended.
    pub fn clock(&self) -> &Clock {
        &self.shared().clock
    }

    /// A code over `parts` that all clients of this cluster can make, and nobody else. The first part says what it is
    /// for.
    pub fn code(&self, parts: &[&[u8]]) -> Result<[u8; 32], SecretError> {
        self.shared().config.secret.code(Key::Client, parts)
    }

    /// The newest map known here.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.shared().view().map().clone()
    }

    /// The erasure-coded pools.
    pub fn pools(&self) -> Vec<PoolEntry> {
        self.map().pools.values().cloned().collect()
    }

    /// The erasure-coded pool with this name.
    pub fn pool(&self, name: &str) -> Option<PoolEntry> {
        self.map().pools.values().find(|pool| pool.name == name).cloned()
    }

    /// Waits for the next change of map or parameters.
    pub async fn map_changed(&self) {
        // Cannot fail: we hold the sender.
        let _ = self.shared().changes().changed().await;
    }

    /// Waits for what a server answers, for as long as it is live: one that was put to sleep or has failed may never
    /// answer, nor end the connection. `None`: it is not live any more.
    pub async fn while_live<T>(&self, server: ServerId, answer: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(answer);
        let mut changes = self.shared().changes();
        while self.map().is_live(server) {
            tokio::select! {
                answer = &mut answer => return Some(answer),
                // Cannot fail: we hold the sender.
                _ = changes.changed() => {}
            }
        }
        None
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
        RequestId { client: self.shared().run.id, seq }
    }

    /// Allocates `count` fresh consecutive object ids; returns the first.
    pub async fn allocate_objects(&self, count: u32) -> Result<ObjectId, ClientError> {
        match self.call(MetaRequest::AllocateObjects { count }).await? {
            MetaReply::Objects { first, count: given } if given == count => Ok(first),
            _ => Err(self.nonsense()),
        }
    }

    /// Changes the namespace; see [`NamespaceCommand`] for the results. They are [`NamespaceError::Expired`] if it was
    /// not answered before the namespace forgot this client: then whether it was carried out is not known.
    pub async fn namespace(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, ClientError> {
        debug_assert!(ops.len() <= OPS_MAX, "a command that is longer is refused");
        let deadline = self.shared().now() + self.shared().config.patience.deadline;
        loop {
            let session = self.session(deadline).await?;
            let (request, clock_millis) = (self.next_request(), wall_millis());
            let command =
                NamespaceCommand { request, session: Some(session), clock_millis, ops: ops.clone() };
            let (reply, repeated) = self.command(command, deadline).await?;
            if reply.session == session {
                return Ok(reply);
            }
            self.forget_session(session).await;
            // Sent once and refused, it was never carried out: in another session it is a new command.
            if repeated || self.shared().now() >= deadline {
                return Ok(reply);
            }
        }
    }

    /// The session of this client with the namespace. Begins one if there is none.
    async fn session(&self, deadline: Moment) -> Result<u64, ClientError> {
        let mut session = self.shared().session.lock().await;
        if let Some(known) = *session {
            return Ok(known);
        }
        let first = NamespaceCommand::first(self.next_request(), wall_millis());
        let (reply, _) = self.command(first, deadline).await?;
        *session = Some(reply.session);
        Ok(reply.session)
    }

    /// The namespace does not know this session any more.
    async fn forget_session(&self, which: u64) {
        let mut session = self.shared().session.lock().await;
        *session = session.filter(|known| *known != which);
    }

    /// The answer, and whether the command may have arrived more than once.
    async fn command(
        &self,
        command: NamespaceCommand,
        deadline: Moment,
    ) -> Result<(NamespaceReply, bool), ClientError> {
        let ops = command.ops.len();
        match self.shared().ask_meta_counting(&MetaRequest::Namespace(command), deadline).await? {
            (MetaReply::Namespace(reply), repeated) if reply.results.len() == ops => Ok((reply, repeated)),
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

    /// Sends a request to the metadata service. Follows the leader and retries until the deadline: every request is
    /// idempotent, or carries an id (`Namespace`).
    pub async fn call(&self, request: MetaRequest) -> Result<MetaReply, ClientError> {
        let deadline = self.shared().now() + self.shared().config.patience.deadline;
        self.shared().ask_meta(&request, deadline).await
    }

    fn nonsense(&self) -> ClientError {
        let addresses = self.shared().config.meta.clone();
        ClientError::NoMeta { addresses, waited: Duration::ZERO, last: Trouble::Nonsense }
    }

    /// Carries an op to the server that its group is served by, with retries until it is answered or the deadline
    /// passes, which counts from `began`.
    pub(crate) async fn carry(
        &self,
        began: Moment,
        group: GroupId,
        op: ChunkOp,
        payload: Bytes,
    ) -> Result<Carried, ClientError> {
        let carries = if matches!(op, ChunkOp::Write { .. }) { op.range().1 as usize } else { 0 };
        debug_assert_eq!(payload.len(), carries, "writes have their bytes, and only they");
        let tally = &self.shared().tally;
        tally.requests.fetch_add(1, Ordering::Relaxed);
        let request = Request::new(began, group, op, self.shared().config.patience).under(self.claim);
        let outcome = self.carry_counted(group, request, payload).await;
        if outcome.is_err() {
            tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn carry_counted(
        &self,
        group: GroupId,
        mut request: Request,
        payload: Bytes,
    ) -> Result<Carried, ClientError> {
        let chunk = request.op().chunk();
        if !fits_one_record(request.op().range()) {
            return Err(ClientError::TooLong { chunk });
        }
        let mut changes = self.shared().changes();
        let mut next = self.step(&mut request, Event::Look { heard: None }, None);
        loop {
            next = match next {
                Some(Next::End(Ok(data))) => {
                    return Ok(Carried { data, version: request.done(), looked: request.looked().cloned() });
                }
                Some(Next::End(Err(failure))) => return Err(self.failed(chunk, group, failure)),
                Some(Next::Answer(server, message)) => {
                    Some(self.attempt(&mut request, server, message, &payload, &mut changes).await)
                }
                Some(Next::Change) | None => {
                    self.look_again(&request, &mut changes).await;
                    self.step(&mut request, Event::Look { heard: None }, None)
                }
            };
        }
    }

    fn failed(&self, chunk: ChunkId, group: GroupId, failure: Failure) -> ClientError {
        match failure {
            Failure::Chunk(why) => ClientError::Chunk { chunk, why },
            Failure::Gone => ClientError::Gone { chunk },
            Failure::Unserved { waited, last: Trouble::Hibernates(set), .. } => {
                let within = self.shared().wakes_within_millis.load(Ordering::Relaxed);
                ClientError::Hibernates { set, waited, retry_after: Duration::from_millis(within) }
            }
            Failure::Unserved { tries, waited, server, last } => {
                ClientError::Unserved { group, tries, waited, server, last }
            }
            Failure::Unknown { tries, waited, server } => {
                ClientError::Unknown { chunk, tries, waited, server }
            }
        }
    }

    /// Passes an event to the request and carries out its commands. `link`: that of the present try. `None`: it still
    /// waits for the same.
    fn step(&self, request: &mut Request, event: Event, link: Option<&Arc<ChunkLink>>) -> Option<Next> {
        let shared = self.shared();
        let mut next = None;
        let mut commands = Vec::new();
        request.on(shared.now(), &shared.view(), event, &mut commands);
        for command in commands {
            match command {
                Command::Send { server, message } => {
                    let again = u64::from(request.tries() > 1);
                    shared.tally.retries.fetch_add(again, Ordering::Relaxed);
                    next = Some(Next::Answer(server, message));
                }
                Command::TryFailed(trouble) => {
                    shared.count(&trouble);
                    next = Some(Next::Change);
                }
                Command::Adopt { group, entry } => shared.update(|view| view.adopt(group, entry)),
                Command::AdoptSet { set, entry } => shared.update(|view| view.adopt_set(set, entry)),
                // No request waits for this: no notification.
                Command::Heard { group, newest } => {
                    shared.hear(group, newest);
                }
                Command::Wake { set } => shared.wake(set),
                Command::Refresh => shared.refresh(),
                // Not the one that new tries use: that may be another way, on which much is heard.
                Command::Close { .. } => drop(link.inspect(|link| link.link.close())),
                Command::End(result) => next = Some(Next::End(result)),
            }
        }
        next
    }

    /// Waits for a change of the map, or until it is time to look at the request.
    async fn look_again(&self, request: &Request, changes: &mut watch::Receiver<()>) {
        let due = self.shared().clock.timer(request.due());
        // Cannot fail: we hold the sender.
        let _ = tokio::time::timeout_at(due, changes.changed()).await;
    }

    /// Runs one try to its end.
    async fn attempt(
        &self,
        request: &mut Request,
        server: ServerId,
        message: ClientRequest,
        payload: &Bytes,
        changes: &mut watch::Receiver<()>,
    ) -> Next {
        let shared = self.shared();
        let used = OnceLock::new();
        let mut exchange = std::pin::pin!(async {
            let link = shared.link(server).await?;
            let link = used.get_or_init(|| link);
            let _share = link.share(&message.op).await;
            let answer = link.link.request(kind::CLIENT_REQUEST, &message, payload.clone());
            shared.watch(server, link, answer).await.map_err(|Lost| Trouble::Lost)
        });
        loop {
            let event = tokio::select! {
                biased;
                answer = &mut exchange => match answer {
                    Ok((reply, bytes)) => Event::Answered { reply, bytes },
                    Err(trouble) => Event::Lost(trouble),
                },
                () = self.look_again(request, changes) => {
                    Event::Look { heard: used.get().map(|link: &Arc<ChunkLink>| link.link.heard()) }
                }
            };
            if let Some(next) = self.step(request, event, used.get()) {
                return next;
            }
        }
    }
}

/// Whether a byte range (offset, length) of a chunk fits into one record: the primary rounds it to whole
/// blocks.
fn fits_one_record((offset, len): (u32, u32)) -> bool {
    let (first, end) = (u64::from(offset), u64::from(offset) + u64::from(len));
    let block = BLOCK_BYTES as u64;
    end.div_ceil(block) - first / block <= u64::from(RECORD_BLOCKS_MAX)
}
