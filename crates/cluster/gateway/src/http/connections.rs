//! The gateway's connections: how many, for how long, and how they end.
//!
//! A connection costs a file and memory, and anyone may open one. So their number stays below the file limit, and at
//! the limit one is closed for the next: that which has been idle longest, else that whose client has not read its
//! response for longest. One that sends no request, stalls in its headers or reads nothing for long is closed. When the
//! gateway stops, requests in flight are finished.

use crate::bytes::backend::Backend;
use crate::http::answer::Front;
use crate::http::body::Polled;
use crate::http::limits::Limits;
use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use hyper::body::{Body as HttpBody, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::{Body, StdError};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

/// Most bytes that a connection reads ahead, and so the longest request head.
const READ_AHEAD: usize = 64 << 10;

/// A connection that has been idle for this long has sent all of its last response.
const SETTLED: Duration = Duration::from_millis(500);

/// One connection, as seen by the others.
#[derive(Default)]
struct Connection {
    /// When the last request ended; `None` while one is in flight.
    idle_since: Mutex<Option<Instant>>,
    /// Since when its client has acknowledged nothing of a response, if that is long enough to be seen.
    unread_since: Mutex<Option<Instant>>,
    give_way: Notify,
}

impl Connection {
    fn idle_since(&self) -> Option<Instant> {
        *self.idle_since.lock().expect("no panic under this lock")
    }

    fn set_idle(&self, idle: bool) {
        *self.idle_since.lock().expect("no panic under this lock") = idle.then(Instant::now);
    }

    fn unread_since(&self) -> Option<Instant> {
        *self.unread_since.lock().expect("no panic under this lock")
    }

    fn set_unread(&self, since: Option<Instant>) {
        *self.unread_since.lock().expect("no panic under this lock") = since;
    }
}

/// All open connections, by number.
#[derive(Default)]
struct Open(Mutex<BTreeMap<u64, Arc<Connection>>>);

impl Open {
    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Connection>>> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Closes the connection that has been idle longest, else the one whose client has not read for longest.
    fn make_room(&self) {
        let all = self.all();
        // A connection that became idle just now may still be sending the end of a response.
        let idle = all.values().filter_map(|open| Some((open.idle_since()?, open)));
        let idle = idle.filter(|(since, _)| since.elapsed() >= SETTLED);
        let unread = all.values().filter_map(|open| Some((open.unread_since()?, open)));
        let longest = idle.min_by_key(|(since, _)| *since).or(unread.min_by_key(|(since, _)| *since));
        if let Some((_, longest)) = longest {
            longest.set_idle(false);
            longest.set_unread(None);
            longest.give_way.notify_one();
        }
    }
}

/// Accepts connections until `stop` returns, then finishes the requests in flight.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    front: Arc<Front<B>>,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    debug_assert!(limits.connections > 0, "no client would be served");
    let mut stop = pin!(stop);
    let (draining, drained) = watch::channel(false);
    let open = Arc::new(Open::default());
    let mut tasks = JoinSet::new();
    for number in 0.. {
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= limits.connections {
            open.make_room();
            tokio::select! {
                () = &mut stop => break,
                _ = tasks.join_next() => {}
                () = tokio::time::sleep(SETTLED) => {}
            }
            continue;
        }
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually too many open files on the whole machine, which passes when connections end.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let connection = Arc::new(Connection::default());
        connection.set_idle(true);
        open.all().insert(number, connection.clone());
        debug_assert!(open.all().len() <= limits.connections, "each takes a file");
        let (open, front, drained) = (open.clone(), front.clone(), drained.clone());
        tasks.spawn(async move {
            run(stream, front, limits, &connection, drained).await;
            open.all().remove(&number);
        });
    }
    drop(listener);
    draining.send_replace(true);
    let finished =
        tokio::time::timeout(limits.drain, async { while tasks.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        tracing::warn!(requests = tasks.len(), "aborted requests that took too long to finish");
    }
}

async fn run<B: Backend>(
    stream: TcpStream,
    front: Arc<Front<B>>,
    limits: Limits,
    connection: &Arc<Connection>,
    mut drained: watch::Receiver<bool>,
) {
    // Otherwise the end of a response waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!(%error, "connection lost");
    }
    let service = service_fn(|request: Request<Incoming>| {
        connection.set_idle(false);
        let answer = front.answer(request);
        async move {
            let answer = answer.await?;
            Ok::<_, s3s::HttpError>(answer.map(|body| Answer { body, connection: connection.clone() }))
        }
    });
    let io = TokioIo::new(Taken { stream, limits, connection: connection.clone(), waits: None });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(READ_AHEAD).keep_alive(true);
    let mut served = pin!(http.serve_connection(io, service));
    let outcome = tokio::select! {
        outcome = served.as_mut() => outcome,
        () = connection.give_way.notified() => return,
        () = async { drop(drained.wait_for(|draining| *draining).await) } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended");
    }
}

/// The body of a response. At its end the connection is idle again.
struct Answer {
    body: Body,
    connection: Arc<Connection>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.set_idle(true);
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}

/// A socket that reports what its peer has not acknowledged.
trait Peer: AsyncRead + AsyncWrite + Unpin {
    /// Bytes written and not acknowledged.
    fn unread(&self) -> std::io::Result<u64>;
}

impl Peer for TcpStream {
    fn unread(&self) -> std::io::Result<u64> {
        // SIOCOUTQ, which is TIOCOUTQ.
        const UNREAD: rustix::ioctl::Opcode = 0x5411;
        // SAFETY: by tcp(7) the kernel writes an int there, and nothing else.
        let unread =
            unsafe { rustix::ioctl::ioctl(self, rustix::ioctl::Getter::<UNREAD, std::ffi::c_int>::new()) };
        Ok(unread?.max(0) as u64)
    }
}

/// A socket whose peer must keep reading: if it acknowledges nothing for too long, writing fails, and if for a while,
/// the connection may have to give way.
///
/// That the socket takes more bytes says too little: Linux waits until a third of its buffer is free, which may be
/// megabytes and, for a slow client, minutes. Nor does a slow reader's machine acknowledge each byte: it waits for room
/// for a sixteenth of its buffer, of up to 32 MiB.
struct Taken<S> {
    stream: S,
    limits: Limits,
    connection: Arc<Connection>,
    waits: Option<Wait>,
}

/// A wait for room in the socket's buffer.
struct Wait {
    /// When to look again what the peer has acknowledged.
    look: Pin<Box<Sleep>>,
    /// What it had not when it last had acknowledged something, and when that was.
    unread: u64,
    since: Instant,
}

/// How many bytes were.
type Written = Poll<std::io::Result<usize>>;

impl<S: Peer> Taken<S> {
    fn paced(&mut self, written: Written, context: &mut Context<'_>) -> Written {
        if written.is_ready() {
            if self.waits.take().is_some() {
                self.connection.set_unread(None);
            }
            return written;
        }
        loop {
            let now = Instant::now();
            let wait = match &mut self.waits {
                Some(wait) => wait,
                None => {
                    let look = Box::pin(tokio::time::sleep_until(now + self.limits.stall));
                    self.waits.insert(Wait { look, unread: self.stream.unread()?, since: now })
                }
            };
            std::task::ready!(wait.look.as_mut().poll(context));
            let unread = self.stream.unread()?;
            if unread < wait.unread {
                (wait.unread, wait.since) = (unread, now);
            }
            let silent = now - wait.since;
            if silent >= self.limits.unread {
                let why = "the client does not read its response";
                return Poll::Ready(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, why)));
            }
            self.connection.set_unread((silent >= self.limits.stall).then_some(wait.since));
            wait.look.as_mut().reset(now + self.limits.stall.min(self.limits.unread - silent));
        }
    }
}

impl<S: Peer> AsyncRead for Taken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Peer> AsyncWrite for Taken<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Written {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.paced(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Written {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.paced(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A socket that is never ready, whose peer acknowledges a byte a second until it has some number left.
    struct Slow {
        since: Instant,
        queued: u64,
        left: u64,
    }

    impl Peer for Slow {
        fn unread(&self) -> std::io::Result<u64> {
            Ok(self.queued.saturating_sub(self.since.elapsed().as_secs()).max(self.left))
        }
    }

    impl AsyncRead for Slow {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_served_for_as_long_as_it_reads_and_no_longer() {
        let (stall, unread) = (Duration::from_secs(30), Duration::from_secs(600));
        let limits = Limits { stall, unread, ..Limits::of_process() };
        for (reads, ends) in [(0, 600), (6000, 6600), (6005, 6630)] {
            let (since, connection) = (Instant::now(), Arc::new(Connection::default()));
            let stream = Slow { since, queued: 10_000, left: 10_000 - reads };
            let mut taken = Taken { stream, limits, connection: connection.clone(), waits: None };
            let error = taken.write_all(b"x").await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
            assert_eq!(since.elapsed().as_secs(), ends, "{reads} bytes are read");
            assert_eq!(connection.unread_since(), Some(since + Duration::from_secs(ends) - unread));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_gives_way_after_those_that_are_idle() {
        let (open, limits) = (Open::default(), Limits::of_process());
        let [idle, slow, busy] = [0, 1, 2].map(|number| {
            let connection = Arc::new(Connection::default());
            open.all().insert(number, connection.clone());
            connection
        });
        idle.set_idle(true);
        let stream = Slow { since: Instant::now(), queued: 10, left: 10 };
        let mut taken = Taken { stream, limits, connection: slow.clone(), waits: None };
        let _ = tokio::time::timeout(limits.stall * 2, taken.write_all(b"x")).await;
        let gone = || {
            open.make_room();
            [&idle, &slow, &busy].map(|one| one.give_way.notified().now_or_never().is_some())
        };
        assert_eq!(gone(), [true, false, false]);
        assert_eq!(gone(), [false, true, false]);
        assert_eq!(gone(), [false, false, false], "the last one works");
    }

    #[tokio::test]
    async fn what_a_peer_has_not_acknowledged_falls_as_it_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (reader, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut reader, writer) = (reader.unwrap(), accepted.unwrap().0);
        assert_eq!(writer.unread().unwrap(), 0);
        writer.writable().await.unwrap();
        let mut sent = 0;
        // Until both buffers are full. A wait would end as soon as there is room.
        while let Ok(some) = writer.try_write(&[7; 1 << 16]) {
            sent += some;
        }
        assert!(writer.unread().unwrap() > 0);
        reader.read_exact(&mut vec![0; sent]).await.unwrap();
        // The last acknowledgement may be on its way.
        while writer.unread().unwrap() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
