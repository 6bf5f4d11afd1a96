//! A process's access to the modelled cluster: what the client library is in a real one. It tries a request again until
//! it is answered or its deadline passes, under one id.

use crate::above::messages::{Answer, Ask, Outbox, Sent, Try};
use crate::above::meta::NEW_POOL;
use bytes::Bytes;
use ebb_client::{ClientError, Clock, Trouble};
use ebb_client_core::{Patience, Request};
use ebb_types::{
    ChunkOp, ClientReply, GroupId, MetaFailure, MetaReply, MetaRequest, Moment, NamespaceAnswer,
    NamespaceCommand, NamespaceError, NamespaceOp, NamespaceQuery, NamespaceReply, ObjectId, PoolId,
    RequestId, SetId,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout_at};

/// As in the client library.
const DEADLINE: Duration = Duration::from_secs(30);
const META_TRY: Duration = Duration::from_secs(2);
const CHUNK_TRY: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// In place of a new map, which would come as soon as a pool is awake.
const ASLEEP: Duration = Duration::from_secs(1);
/// By the world's time in milliseconds: when lifecycle rules are carried out.
pub(super) const MIDNIGHT: u64 = 150_000;
/// That midnight in seconds since 1970.
pub(super) const TOMORROW: u64 = 20_000 * 24 * 3600;
/// When the world begins, in milliseconds since 1970.
pub(super) const TODAY: u64 = TOMORROW * 1000 - MIDNIGHT;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// When the process started: true time in milliseconds.
    pub began: u64,
    pub groups: u32,
    /// How far its wall clock is ahead, in milliseconds.
    pub wall_ahead: i64,
    /// The pool that is created later is there.
    pub has_new_pool: bool,
    /// A planted defect: a namespace command of a forgotten session is sent again as a new client's.
    pub renews_sessions: bool,
}

pub(super) struct Library {
    run: u64,
    outbox: Arc<Outbox>,
    settings: Settings,
    wall_ahead: AtomicI64,
    /// It has heard of the pool that is created later.
    knows_new_pool: AtomicBool,
    pub clock: Clock,
    calls: Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>,
    last_call: AtomicU64,
    last_request: AtomicU64,
    session: tokio::sync::Mutex<Option<u64>>,
}

/// A handle of it. `claim`: under which the requests to chunks are sent; zero: none.
#[derive(Clone)]
pub(super) struct Remote {
    library: Arc<Library>,
    pub claim: u64,
}

impl Library {
    pub fn new(run: u64, outbox: Arc<Outbox>, settings: Settings) -> Arc<Library> {
        Arc::new(Library {
            run,
            outbox,
            settings,
            wall_ahead: AtomicI64::new(settings.wall_ahead),
            knows_new_pool: AtomicBool::new(settings.has_new_pool),
            clock: Clock::simulated(),
            calls: Mutex::default(),
            last_call: AtomicU64::new(0),
            last_request: AtomicU64::new(0),
            session: tokio::sync::Mutex::default(),
        })
    }

    /// The run of the program: its id as a client.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The answer to a try has arrived. One that is not awaited any more is dropped.
    pub fn answered(&self, call: u64, answer: Answer) {
        let caller = self.calls.lock().expect("nothing panics under this lock").remove(&call);
        if let Some(caller) = caller {
            // It may have ended.
            let _ = caller.send(answer);
        }
    }

    /// All its connections broke: what it waits for it asks for again.
    pub fn lose_connections(&self) {
        self.calls.lock().expect("nothing panics under this lock").clear();
    }

    pub fn set_wall(&self, ahead: i64) {
        self.wall_ahead.store(ahead, Ordering::Relaxed);
    }

    /// A new map has come.
    pub fn learn(&self) {
        self.knows_new_pool.store(true, Ordering::Relaxed);
    }

    pub fn knows(&self, pool: PoolId) -> bool {
        pool != NEW_POOL || self.knows_new_pool.load(Ordering::Relaxed)
    }

    /// This machine's wall clock: it runs on in a suspend.
    pub fn wall_millis(&self) -> u64 {
        let passed = self.clock.now().since(Moment::ZERO).as_millis() as i64;
        (TODAY as i64 + self.settings.began as i64 + passed + self.wall_ahead.load(Ordering::Relaxed)).max(0)
            as u64
    }
}

impl Remote {
    pub fn new(library: Arc<Library>) -> Remote {
        Remote { library, claim: 0 }
    }

    pub fn under(&self, claim: u64) -> Remote {
        Remote { claim, ..self.clone() }
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub fn groups(&self) -> u32 {
        self.library.settings.groups
    }

    pub fn next_request(&self) -> RequestId {
        let seq = self.library.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        RequestId { client: self.library.run, seq }
    }

    /// One try; `None`: no answer came in time.
    async fn ask_once(&self, ask: &Ask, deadline: Moment, longest: Duration) -> Option<Answer> {
        let library = &self.library;
        let call = library.last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        library.calls.lock().expect("nothing panics under this lock").insert(call, answer);
        let now = library.clock.now();
        let left = deadline.since(now).as_millis() as u64;
        library.outbox.send(Sent::Ask(Try { call, ask: ask.clone(), left }));
        let until = library.clock.timer(deadline.min(now + longest));
        let answer = timeout_at(until, answered).await.ok().and_then(Result::ok);
        library.calls.lock().expect("nothing panics under this lock").remove(&call);
        answer
    }

    /// Waits before the next try. Returns `false` if the deadline comes first, also if it came in a suspend.
    async fn pause(&self, pause: &mut Duration, deadline: Moment) -> bool {
        let clock = &self.library.clock;
        if clock.now() + *pause >= deadline {
            return false;
        }
        sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
        clock.now() < deadline
    }

    pub async fn chunk(&self, op: ChunkOp, payload: Bytes) -> Result<(ClientReply, Bytes), ClientError> {
        let clock = &self.library.clock;
        let (began, chunk) = (clock.now(), op.chunk());
        if !self.library.knows(chunk.object.pool()) {
            return Err(ClientError::NoPool { chunk });
        }
        let request = Request::new(began, GroupId(0), op.clone(), Patience::default()).under(self.claim);
        let (mut deadline, mut pause, mut tries) = (began + DEADLINE, PAUSE_MIN, 0);
        let ask = Ask::Chunk { op, payload, claim: self.claim };
        loop {
            tries += 1;
            let answer = self.ask_once(&ask, deadline, CHUNK_TRY).await;
            if answer.is_none() && request.is_ordered() {
                // It may still be carried out.
                deadline = Moment(u64::MAX / 2);
            }
            let sleeps = match answer {
                Some(Answer::Chunk(ClientReply::Failed { why }, _)) => {
                    return Err(ClientError::Chunk { chunk, why });
                }
                Some(Answer::Chunk(ClientReply::Forgotten { .. }, _)) => {
                    let waited = clock.now().since(began);
                    return Err(ClientError::Unknown { chunk, tries, waited, server: None });
                }
                Some(Answer::Chunk(ClientReply::Retry { .. }, _)) | None => false,
                Some(Answer::Chunk(reply, bytes)) => return Ok((reply, bytes)),
                Some(Answer::Asleep) => {
                    pause = ASLEEP;
                    self.ask_once(&Ask::Wake(chunk.object.pool()), deadline, META_TRY).await;
                    true
                }
                Some(Answer::Meta(_) | Answer::Woken(_)) => unreachable!("a chunk server does not answer so"),
            };
            if !self.pause(&mut pause, deadline).await {
                if sleeps {
                    let (set, waited, retry_after) = (SetId(0), clock.now().since(began), ASLEEP);
                    return Err(ClientError::Hibernates { set, waited, retry_after });
                }
                let (group, waited) = (GroupId(0), clock.now().since(began));
                return Err(ClientError::Unserved {
                    group,
                    tries,
                    waited,
                    server: None,
                    last: Trouble::NoAnswer,
                });
            }
        }
    }

    /// Has a pool woken. Returns whether it slept.
    pub async fn wake(&self, pool: PoolId) -> Result<bool, ClientError> {
        let clock = &self.library.clock;
        let (began, mut pause) = (clock.now(), PAUSE_MIN);
        let deadline = began + DEADLINE;
        loop {
            if let Some(Answer::Woken(slept)) = self.ask_once(&Ask::Wake(pool), deadline, META_TRY).await {
                return Ok(slept);
            }
            if !self.pause(&mut pause, deadline).await {
                return Err(self.no_meta(clock.now().since(began), Trouble::NoAnswer));
            }
        }
    }

    /// The answer, and whether the request may have arrived more than once.
    async fn meta(&self, request: MetaRequest, deadline: Moment) -> Result<(MetaReply, bool), ClientError> {
        let clock = &self.library.clock;
        let (began, mut pause, mut repeated) = (clock.now(), PAUSE_MIN, false);
        let ask = Ask::Meta(request);
        loop {
            match self.ask_once(&ask, deadline, META_TRY).await {
                Some(Answer::Meta(MetaReply::Failed(MetaFailure::Unknown))) | None => repeated = true,
                Some(Answer::Meta(MetaReply::NotLeader { .. })) => {}
                Some(Answer::Meta(MetaReply::Failed(why))) => return Err(ClientError::Meta(why)),
                Some(Answer::Meta(reply)) => return Ok((reply, repeated)),
                Some(_) => unreachable!("the metadata service does not answer so"),
            }
            if !self.pause(&mut pause, deadline).await {
                return Err(self.no_meta(clock.now().since(began), Trouble::NoAnswer));
            }
        }
    }

    fn no_meta(&self, waited: Duration, last: Trouble) -> ClientError {
        ClientError::NoMeta { addresses: Vec::new(), waited, last }
    }

    pub async fn allocate(&self, count: u32) -> Result<ObjectId, ClientError> {
        let deadline = self.library.clock.now() + DEADLINE;
        match self.meta(MetaRequest::AllocateObjects { count }, deadline).await? {
            (MetaReply::Objects { first, .. }, _) => Ok(first),
            _ => Err(self.no_meta(Duration::ZERO, Trouble::Nonsense)),
        }
    }

    pub async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, ClientError> {
        let deadline = self.library.clock.now() + DEADLINE;
        match self.meta(MetaRequest::Query(query), deadline).await? {
            (MetaReply::Query(answer), _) => Ok(answer),
            _ => Err(self.no_meta(Duration::ZERO, Trouble::Nonsense)),
        }
    }

    /// As `Client::namespace` of the client library.
    pub async fn namespace(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, ClientError> {
        let deadline = self.library.clock.now() + DEADLINE;
        loop {
            let session = self.session(deadline).await?;
            let (request, clock_millis) = (self.next_request(), self.library.wall_millis());
            let command =
                NamespaceCommand { request, session: Some(session), clock_millis, ops: ops.clone() };
            let (reply, repeated) = self.command(command, deadline).await?;
            if reply.session == session {
                return Ok(reply);
            }
            let mut known = self.library.session.lock().await;
            *known = known.filter(|known| *known != session);
            drop(known);
            let may_repeat = !repeated || self.library.settings.renews_sessions;
            if !may_repeat || self.library.clock.now() >= deadline {
                return Ok(reply);
            }
        }
    }

    async fn session(&self, deadline: Moment) -> Result<u64, ClientError> {
        let mut session = self.library.session.lock().await;
        if let Some(known) = *session {
            return Ok(known);
        }
        let first = NamespaceCommand::first(self.next_request(), self.library.wall_millis());
        let (reply, _) = self.command(first, deadline).await?;
        *session = Some(reply.session);
        Ok(reply.session)
    }

    async fn command(
        &self,
        command: NamespaceCommand,
        deadline: Moment,
    ) -> Result<(NamespaceReply, bool), ClientError> {
        match self.meta(MetaRequest::Namespace(command), deadline).await? {
            (MetaReply::Namespace(reply), repeated) => Ok((reply, repeated)),
            _ => Err(self.no_meta(Duration::ZERO, Trouble::Nonsense)),
        }
    }
}
