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

use crate::connection::Connection;
use crate::replies::{Backend, Replies};
use ebb_nbd::Export;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

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

/// Serves the clients of a listener, within a `LocalSet`. Every export must pass [`Export::check`]. Anyone who can
/// connect can read and write: listen on loopback or a Unix socket unless the network is trusted.
///
/// Ends only when the listener fails. Dropping the future closes its connections.
pub async fn serve<B: Backend>(
    listener: impl Into<Listener>,
    exports: Arc<[Export]>,
    backend: Rc<B>,
    replies: Replies,
) -> io::Error {
    let listener = listener.into();
    let mut server = Server { exports, backend, replies, tasks: JoinSet::new() };
    loop {
        let accepted = poll_fn(|context| {
            while let Poll::Ready(Some(ended)) = server.tasks.poll_join_next(context) {
                // A panic is a bug of this program: it does not serve on.
                ended.expect("a connection does not panic");
            }
            server.poll_accept(&listener, context)
        });
        let Err(error) = accepted.await else { continue };
        match error.raw_os_error() {
            // The client has gone again.
            Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) if !server.tasks.is_empty() => {
                tracing::warn!("no more NBD clients until one leaves: {error}");
                server.tasks.join_next().await.expect("there is one").expect("a connection does not panic");
            }
            _ => return error,
        }
    }
}

struct Server<B> {
    exports: Arc<[Export]>,
    backend: Rc<B>,
    replies: Replies,
    tasks: JoinSet<()>,
}

impl<B: Backend> Server<B> {
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

    fn begin(&mut self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static, from: String) {
        let backend = self.backend.clone();
        let mut connection = Connection::new(stream, self.exports.clone(), backend, self.replies.clone());
        self.tasks.spawn_local(async move {
            match poll_fn(|context| connection.poll(context)).await {
                Ok(ebb_nbd::CloseReason::Disconnected) => tracing::debug!("{from} has disconnected"),
                Ok(reason) => tracing::info!("the NBD connection of {from} is closed: {reason}"),
                Err(error) => tracing::info!("the NBD connection of {from} broke: {error}"),
            }
        });
    }
}
