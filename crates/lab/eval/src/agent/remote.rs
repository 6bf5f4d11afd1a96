//! The evaluation host's side: agents as generators and analyzers.

use super::message::{Reply, Request};
use super::serve::IDENTITY;
use crate::{
    AgentSpec, Analyzer, Draw, Generator, Live, Machine, Order, Performance, Place, Present, RunError,
};
use bytes::Bytes;
use ebb_client::Secret;
use ebb_client::transport::{Connection, connect, kind};
use ebb_types::Moment;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Round trips; the shortest one determines the clock offset.
const ROUND_TRIPS: usize = 8;
/// Longest wait for a reply, beyond the time of the work itself. A meter may be slow, and another host's run goes
/// first.
const PATIENCE: Duration = Duration::from_secs(600);
/// A new target is filled at this rate at least.
const FILL_BYTES_PER_SECOND: u64 = 10_000_000;

const STRANGE: &str = "its reply does not match the request";

/// A connection to an agent.
struct Link {
    name: String,
    runtime: Runtime,
    connection: Connection,
    next: u64,
}

impl Link {
    fn connect(agent: &AgentSpec) -> Result<Link, RunError> {
        let lost = |why: String| RunError::Lost(format!("agent {}: {why}", agent.name));
        let secret = Secret::load(&agent.secret_file).map_err(|error| lost(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| lost(format!("cannot start the runtime: {error}")))?;
        let connection = runtime
            .block_on(connect(&agent.address, &secret, IDENTITY))
            .map_err(|error| lost(error.to_string()))?;
        Ok(Link { name: agent.name.clone(), runtime, connection, next: 1 })
    }

    /// Sends a request and waits for the reply. A refusal by the agent is an error.
    fn ask(&mut self, request: &Request, patience: Duration) -> Result<Reply, RunError> {
        self.ask_and_hear(request, patience, &mut |_| {})
    }

    /// The same; `tell` hears the rates that come before the reply.
    fn ask_and_hear(
        &mut self,
        request: &Request,
        patience: Duration,
        tell: &mut dyn FnMut(Live),
    ) -> Result<Reply, RunError> {
        let id = self.next;
        self.next += 1;
        let Link { name, runtime, connection, .. } = self;
        let lost = |why: String| RunError::Lost(format!("agent {name}: {why}"));
        connection
            .sender
            .send(kind::AGENT_REQUEST, id, request, Bytes::new())
            .map_err(|error| lost(error.to_string()))?;
        loop {
            let answered =
                runtime.block_on(async { tokio::time::timeout(patience, connection.receiver.next()).await });
            let frame = answered
                .map_err(|_| lost(format!("no answer within {patience:?}")))?
                .map_err(|error| lost(error.to_string()))?
                .ok_or_else(|| lost("it closed the connection".into()))?;
            match frame.decode::<Reply>() {
                Ok((answered, reply)) if frame.kind == kind::AGENT_REPLY && answered == id => match reply {
                    Reply::Live(live) => tell(live),
                    Reply::Refused(RunError::Lost(why)) => return Err(lost(why)),
                    Reply::Refused(failed) => return Err(failed),
                    reply => return Ok(reply),
                },
                Ok(_) => return Err(lost(STRANGE.into())),
                Err(error) => return Err(lost(error.to_string())),
            }
        }
    }

    /// A reply that does not belong to the request.
    fn strange(&self) -> RunError {
        RunError::Lost(format!("agent {}: {STRANGE}", self.name))
    }

    /// The agent's clock minus ours, in nanoseconds: from the quickest of a few round trips, with an error of at most
    /// half of it.
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        let mut best: Option<(Duration, i64)> = None;
        for _ in 0..ROUND_TRIPS {
            let before = ebb_meter::now();
            let reply = self.ask(&Request::Clock, PATIENCE)?;
            let after = ebb_meter::now();
            let Reply::Clock(there) = reply else { return Err(self.strange()) };
            let round_trip = after.since(before);
            let middle = before + round_trip / 2;
            let offset = there.0.wrapping_sub(middle.0) as i64;
            if best.is_none_or(|(shortest, _)| round_trip < shortest) {
                best = Some((round_trip, offset));
            }
        }
        Ok(best.expect("there was a round trip").1)
    }
}

/// An agent that generates load.
pub struct RemoteGenerator(Link);

impl RemoteGenerator {
    pub fn connect(agent: &AgentSpec) -> Result<RemoteGenerator, RunError> {
        Link::connect(agent).map(RemoteGenerator)
    }
}

impl Generator for RemoteGenerator {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        self.0.clock_offset()
    }

    fn prepare(&mut self, place: &Place) -> Result<Machine, RunError> {
        let filling = Duration::from_secs(place.size_bytes / FILL_BYTES_PER_SECOND);
        let reply = self.0.ask(&Request::Prepare(place.clone()), PATIENCE + filling)?;
        let Reply::Prepared(machine) = reply else { return Err(self.0.strange()) };
        Ok(machine)
    }

    fn holds(&mut self, trace: &Path) -> Result<bool, RunError> {
        let reply = self.0.ask(&Request::Holds(trace.to_owned()), PATIENCE)?;
        let Reply::Holds(holds) = reply else { return Err(self.0.strange()) };
        Ok(holds)
    }

    fn run(&mut self, order: &Order, tell: &mut dyn FnMut(Live)) -> Result<Performance, RunError> {
        let patience = PATIENCE.saturating_add(order.length);
        let reply = self.0.ask_and_hear(&Request::Run(order.clone()), patience, tell)?;
        let Reply::Ran(performance) = reply else { return Err(self.0.strange()) };
        Ok(performance)
    }
}

/// An agent that reads power.
pub struct RemoteAnalyzer(Link);

impl RemoteAnalyzer {
    /// Connects, and makes the agent sample these of its meters.
    pub fn connect(agent: &AgentSpec, meters: &[String]) -> Result<RemoteAnalyzer, RunError> {
        let mut link = Link::connect(agent)?;
        match link.ask(&Request::Meters(meters.to_vec()), PATIENCE)? {
            Reply::Done => Ok(RemoteAnalyzer(link)),
            _ => Err(link.strange()),
        }
    }
}

impl Analyzer for RemoteAnalyzer {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        self.0.clock_offset()
    }

    fn mark(&mut self) -> Result<(), RunError> {
        match self.0.ask(&Request::Mark, PATIENCE)? {
            Reply::Done => Ok(()),
            _ => Err(self.0.strange()),
        }
    }

    fn draw(&mut self, from: Moment, to: Moment) -> Result<Draw, RunError> {
        match self.0.ask(&Request::Draw { from, to }, PATIENCE)? {
            Reply::Drawn(draw) => Ok(draw),
            _ => Err(self.0.strange()),
        }
    }

    fn present(&mut self) -> Present {
        match self.0.ask(&Request::Present, PATIENCE) {
            Ok(Reply::Present(present)) => present,
            // What is wrong shows when the run is measured.
            _ => Present::default(),
        }
    }
}
