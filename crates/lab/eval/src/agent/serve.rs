//! The agent's side.

use super::message::{Reply, Request};
use crate::{
    Analyzer, Connect, Generator, Live, LocalAnalyzer, LocalGenerator, Order, Place, RunError, Workload,
};
use bytes::Bytes;
use ebb_client::Secret;
use ebb_client::transport::{
    Connection, Identity, Incoming, Listener, Party, TransportError, cannot_listen, kind,
};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc as mpsc_async, oneshot};

/// Connections at a time, authenticated or not; further ones wait.
const CALLERS_MAX: usize = 64;
/// Longest run that is accepted.
const RUN_MAX: Duration = Duration::from_secs(86_400);

/// Neither side belongs to a cluster.
pub(super) const IDENTITY: Identity = Identity { cluster: 0, party: Party::Client };

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{}", cannot_listen(.address, "give another address with --listen", .error))]
    Listen { address: String, error: TransportError },
    #[error("cannot start the generator: {0}")]
    Start(String),
}

/// What evaluation hosts may do here. Everything else is refused.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Targets, named as in the matrix.
    pub targets: Vec<String>,
    /// The directory of the traces that may be replayed, and where those of peak runs are kept.
    pub traces: Option<PathBuf>,
    /// Meters, named as in the matrix.
    pub meters: Vec<String>,
}

/// Events that a running agent reports to its operator.
#[derive(Debug)]
pub enum AgentEvent {
    Connected(SocketAddr),
    /// A caller that did not authenticate, or broke the protocol.
    Refused(SocketAddr, TransportError),
    Ended(SocketAddr),
}

/// Reports an event to the operator.
type Tell = Arc<dyn Fn(AgentEvent) + Send + Sync>;

/// A listening agent.
pub struct Agent {
    listener: Listener,
    host: Arc<Host>,
}

struct Host {
    allowed: Allowed,
    /// To the thread that owns the generator.
    jobs: mpsc::Sender<Job>,
}

struct Job {
    work: Work,
    answer: oneshot::Sender<Reply>,
}

enum Work {
    Prepare(Place),
    /// Rates go to the host during the run.
    Run(Order, mpsc_async::Sender<Live>),
}

impl Agent {
    /// Listens on `host:port`; port zero picks a free one. `connect`: for volumes of Ebb.
    pub async fn listen(
        address: &str,
        secret: &Secret,
        allowed: Allowed,
        connect: Option<Connect>,
    ) -> Result<Agent, AgentError> {
        let listener = Listener::bind(address, secret, IDENTITY)
            .await
            .map_err(|error| AgentError::Listen { address: address.to_owned(), error })?;
        let (jobs, todo) = mpsc::channel();
        std::thread::Builder::new()
            .name("generator".into())
            .spawn(move || generate(&todo, connect))
            .map_err(|error| AgentError::Start(error.to_string()))?;
        Ok(Agent { listener, host: Arc::new(Host { allowed, jobs }) })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.address()
    }

    /// Serves evaluation hosts until it is dropped. Needs a tokio runtime with time and I/O.
    pub async fn serve(&self, tell: impl Fn(AgentEvent) + Send + Sync + 'static) {
        let tell: Tell = Arc::new(tell);
        let room = Arc::new(Semaphore::new(CALLERS_MAX));
        let mut callers = tokio::task::JoinSet::new();
        loop {
            let permit = room.clone().acquire_owned().await.expect("it is never closed");
            while callers.try_join_next().is_some() {}
            let incoming = self.listener.accept().await;
            let (host, tell) = (self.host.clone(), tell.clone());
            callers.spawn(async move {
                serve_caller(incoming, &host, &tell).await;
                drop(permit);
            });
        }
    }
}

/// The thread that owns the generator: one run at a time.
fn generate(todo: &mpsc::Receiver<Job>, connect: Option<Connect>) {
    let mut generator = LocalGenerator::new(connect);
    while let Ok(Job { work, answer }) = todo.recv() {
        let outcome = match (&mut generator, work) {
            (Err(error), _) => Err(error.clone()),
            (Ok(generator), Work::Prepare(place)) => generator.prepare(&place).map(Reply::Prepared),
            (Ok(generator), Work::Run(order, live)) => {
                // A host that is slow to read misses some.
                let mut tell = |now| {
                    let _ = live.try_send(now);
                };
                generator.run(&order, &mut tell).map(Reply::Ran)
            }
        };
        // The host may have disconnected.
        let _ = answer.send(outcome.unwrap_or_else(Reply::Refused));
    }
}

async fn serve_caller(incoming: Incoming, host: &Host, tell: &Tell) {
    let address = incoming.address;
    match incoming.handshake().await {
        Ok(connection) => {
            tell(AgentEvent::Connected(address));
            match converse(connection, host).await {
                Ok(()) => tell(AgentEvent::Ended(address)),
                Err(error) => tell(AgentEvent::Refused(address, error)),
            }
        }
        Err(error) => tell(AgentEvent::Refused(address, error)),
    }
}

/// Answers one host's requests, one after another.
async fn converse(mut connection: Connection, host: &Host) -> Result<(), TransportError> {
    let mut analyzer: Option<LocalAnalyzer> = None;
    while let Some(frame) = connection.receiver.next().await? {
        if frame.kind != kind::AGENT_REQUEST {
            return Err(TransportError::NotEbb);
        }
        let (id, request) = frame.decode::<Request>()?;
        let (live, mut lives) = mpsc_async::channel(1);
        let mut answer = pin!(host.answer(request, live, &mut analyzer));
        let send = |reply: &Reply| connection.sender.send(kind::AGENT_REPLY, id, reply, Bytes::new());
        let reply = loop {
            tokio::select! {
                reply = &mut answer => break reply.unwrap_or_else(Reply::Refused),
                Some(live) = lives.recv() => drop(send(&Reply::Live(live))),
            }
        };
        if send(&reply).is_err() {
            break;
        }
    }
    Ok(())
}

impl Host {
    async fn answer(
        &self,
        request: Request,
        live: mpsc_async::Sender<Live>,
        analyzer: &mut Option<LocalAnalyzer>,
    ) -> Result<Reply, RunError> {
        match request {
            Request::Clock => Ok(Reply::Clock(ebb_meter::now())),
            Request::Prepare(place) => {
                self.allowed.place(&place)?;
                self.generate(Work::Prepare(place)).await
            }
            Request::Run(order) => self.generate(Work::Run(self.allowed.order(order)?, live)).await,
            Request::Holds(trace) => Ok(Reply::Holds(self.allowed.inside(&trace)?.exists())),
            Request::Meters(meters) => {
                self.allowed.meters(&meters)?;
                // Close the old ones first: a device can be open only once.
                *analyzer = None;
                *analyzer = Some(blocking(move || LocalAnalyzer::open(&meters)).await?);
                Ok(Reply::Done)
            }
            Request::Mark => with(analyzer, |analyzer| analyzer.mark().map(|()| Reply::Done)).await,
            Request::Draw { from, to } => {
                with(analyzer, move |analyzer| analyzer.draw(from, to).map(Reply::Drawn)).await
            }
            Request::Present => with(analyzer, |analyzer| Ok(Reply::Present(analyzer.present()))).await,
        }
    }

    async fn generate(&self, work: Work) -> Result<Reply, RunError> {
        let gone = || RunError::Lost("the agent's generator has ended; restart the agent".into());
        let (answer, answered) = oneshot::channel();
        self.jobs.send(Job { work, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

/// Moves the analyzer to a thread that may block: a meter takes its time.
async fn with(
    analyzer: &mut Option<LocalAnalyzer>,
    ask: impl FnOnce(&mut LocalAnalyzer) -> Result<Reply, RunError> + Send + 'static,
) -> Result<Reply, RunError> {
    let Some(mut lent) = analyzer.take() else {
        return Err(RunError::Lost("no meters were requested".into()));
    };
    let (outcome, lent) = blocking(move || {
        let outcome = ask(&mut lent);
        Ok((outcome, lent))
    })
    .await?;
    *analyzer = Some(lent);
    outcome
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RunError> + Send + 'static,
) -> Result<T, RunError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(RunError::Lost(format!("a meter's driver failed: {error}"))))
}

impl Allowed {
    fn place(&self, place: &Place) -> Result<(), RunError> {
        if self.targets.contains(&place.at) {
            return Ok(());
        }
        let at = &place.at;
        Err(RunError::Lost(format!("this agent does not drive {at:?}; start it with --target {at:?}")))
    }

    /// The order as it is carried out: traces are taken from the agent's directory.
    fn order(&self, mut order: Order) -> Result<Order, RunError> {
        self.place(&order.place)?;
        if order.length > RUN_MAX {
            return Err(RunError::Failed(format!("a run of {:?} is too long", order.length)));
        }
        let recorded = match &mut order.workload {
            Workload::Trace { file, .. } => Some(file),
            Workload::Synthetic { .. } | Workload::HotBand | Workload::Fill { .. } => None,
        };
        for file in recorded.into_iter().chain(&mut order.trace) {
            *file = self.inside(file)?;
        }
        Ok(order)
    }

    /// A trace in the agent's directory.
    fn inside(&self, file: &Path) -> Result<PathBuf, RunError> {
        let dir = self.traces.as_ref().ok_or_else(|| {
            RunError::Lost("this agent keeps and replays no traces; start it with --traces DIR".into())
        })?;
        if !file.components().all(|part| matches!(part, Component::Normal(_))) {
            let why = format!("{} is not a path inside the agent's directory of traces", file.display());
            return Err(RunError::Lost(why));
        }
        Ok(dir.join(file))
    }

    fn meters(&self, meters: &[String]) -> Result<(), RunError> {
        match meters.iter().find(|meter| !self.meters.contains(meter)) {
            Some(meter) => Err(RunError::Lost(format!(
                "this agent does not read {meter:?}; start it with --meter {meter:?}"
            ))),
            None if meters.len() > self.meters.len() => Err(RunError::Lost("a meter is named twice".into())),
            None => Ok(()),
        }
    }
}
