//! NBD sockets: accepts clients, hands their requests to a backend, and sends its replies.
//!
//! A connection is one task that owns its socket. A reply is put into the connection's outbox and wakes the task once;
//! the task runs when the backend has paused, and sends everything that has gathered with one call. There is no task,
//! channel or allocation per request besides the session's.
//!
//! - One connection does not hold up another: each has bounds for what it has in flight and unsent, and stops reading
//!   beyond.
//! - An idle connection holds no buffer.
//! - When a connection ends, its requests continue and their replies are dropped.
//! - A client that chooses no export keeps no other one out: it has a deadline, and before that it makes room when too
//!   many are like it ([`Bounds`]).

use crate::connection::{Connection, Stream};
use crate::replies::{Backend, Replies};
use crate::state::State;
use ebb_nbd::Export;
use rustix::process::{Resource, getrlimit};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

/// A socket on which clients connect.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Listener {
        Listener::Unix(listener)
    }
}

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Within this time a client has chosen its export.
    pub handshake: Duration,
    /// Connections whose clients have not; one more closes the oldest of them.
    pub handshakes: usize,
    /// All connections. One more closes the oldest whose client has not chosen its export, or waits.
    pub connections: usize,
}

impl Bounds {
    /// Three quarters of the files that the process may open: the rest is for disks and what else it opens.
    pub fn of_process() -> Bounds {
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
        let connections = files.map_or(usize::MAX, |files| (files / 4 * 3).max(1));
        Bounds { handshake: Duration::from_secs(10), handshakes: 64, connections }
    }
}

/// Serves the clients of a listener, within a `LocalSet`. Every export must pass [`Export::check`]. Anyone who can
/// connect can read and write: listen on loopback or a Unix socket unless the network is trusted.
///
/// Ends only when the listener fails. Dropping the future closes its connections.
pub async fn serve<B: Backend>(
    listener: impl Into<Listener>,
    bounds: Bounds,
    exports: Arc<[Export]>,
    backend: Rc<B>,
    replies: Replies,
) -> io::Error {
    let listener = listener.into();
    let (tasks, handshakes) = (JoinSet::new(), VecDeque::new());
    let mut server = Server { exports, backend, replies, tasks, bounds, handshakes };
    loop {
        server.end_handshakes();
        if server.tasks.len() >= bounds.connections {
            server.make_room(&"there are as many as the process can have").await;
            continue;
        }
        let deadline = server.handshakes.front().map(|handshake| handshake.deadline);
        let accepted = poll_fn(|context| {
            while let Poll::Ready(Some(task)) = server.tasks.poll_join_next(context) {
                ended(task);
            }
            server.poll_accept(&listener, context)
        });
        let accepted = match deadline {
            Some(deadline) => timeout_at(deadline, accepted).await.unwrap_or(Ok(())),
            None => accepted.await,
        };
        let Err(error) = accepted else { continue };
        match error.raw_os_error() {
            // The client has gone again.
            Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) if !server.tasks.is_empty() => {
                server.make_room(&error).await;
            }
            _ => return error,
        }
    }
}

/// A panic is a bug of this program: it does not serve on.
fn ended(task: Result<(), JoinError>) {
    if let Err(error) = task
        && !error.is_cancelled()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// A connection whose client had not chosen an export when last looked at.
struct Handshake {
    deadline: Instant,
    state: Weak<RefCell<State>>,
    task: AbortHandle,
}

struct Server<B> {
    exports: Arc<[Export]>,
    backend: Rc<B>,
    replies: Replies,
    tasks: JoinSet<()>,
    bounds: Bounds,
    /// In order of their deadlines.
    handshakes: VecDeque<Handshake>,
}

impl<B: Backend> Server<B> {
    /// Closes connections whose deadline has passed, and the oldest ones if there are too many.
    fn end_handshakes(&mut self) {
        self.handshakes
            .retain(|handshake| handshake.state.upgrade().is_some_and(|state| !state.borrow().opened));
        let (now, many) = (Instant::now(), self.handshakes.len().saturating_sub(self.bounds.handshakes));
        let late = self.handshakes.iter().take_while(|handshake| handshake.deadline <= now).count();
        for handshake in self.handshakes.drain(..many.max(late)) {
            tracing::info!("an NBD connection is closed: its client has not chosen an export");
            handshake.task.abort();
        }
    }

    /// Waits until a connection has ended; one whose client has not chosen an export is closed for that.
    async fn make_room(&mut self, why: &(dyn std::fmt::Display + Sync)) {
        match self.handshakes.pop_front() {
            Some(handshake) => handshake.task.abort(),
            None => tracing::warn!("no more NBD clients until one leaves: {why}"),
        }
        ended(self.tasks.join_next().await.expect("there is one"));
    }

    /// Takes one client.
    fn poll_accept(&mut self, listener: &Listener, context: &mut Context) -> Poll<io::Result<()>> {
        match listener {
            Listener::Tcp(listener) => {
                let (stream, from) = ready!(listener.poll_accept(context))?;
                // A reply is not to wait for the next one. It fails only if the client has gone already.
                let _ = stream.set_nodelay(true);
                self.begin(stream, from.to_string());
            }
            Listener::Unix(listener) => {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                self.begin(stream, "a local client".to_owned());
            }
        }
        Poll::Ready(Ok(()))
    }

    fn begin(&mut self, stream: impl Stream + 'static, from: String) {
        let backend = self.backend.clone();
        let mut connection = Connection::new(stream, self.exports.clone(), backend, self.replies.clone());
        let state = connection.state();
        let task = self.tasks.spawn_local(async move {
            match poll_fn(|context| connection.poll(context)).await {
                Ok(ebb_nbd::CloseReason::Disconnected) => tracing::debug!("{from} has disconnected"),
                Ok(reason) => tracing::info!("the NBD connection of {from} is closed: {reason}"),
                Err(error) => tracing::info!("the NBD connection of {from} broke: {error}"),
            }
        });
        let deadline = Instant::now() + self.bounds.handshake;
        debug_assert!(
            self.handshakes.back().is_none_or(|last| last.deadline <= deadline),
            "they are in order"
        );
        self.handshakes.push_back(Handshake { deadline, state, task });
    }
}
