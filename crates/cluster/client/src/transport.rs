//! Framed TCP between all programs of a cluster: chunk servers, metadata servers, gateways and clients.
//!
//! Every body is the postcard form of `(id, message)`: the id matches a reply to its request on a shared
//! connection, and is zero if no reply is expected. Sending only queues; one writer task per connection passes
//! everything queued to the kernel in one call, so that a burst of small frames costs one system call and
//! one packet. Nagle's algorithm is always off: with delayed acknowledgements it would add 40 ms to a small
//! read.
//!
//! Memory: an idle connection holds one read buffer of [`READ_BUFFER`] bytes. Bodies and payloads get buffers
//! of their exact size, so a small payload never pins a larger buffer, and most of a large one is
//! read directly into place.

use crate::handshake;
use crate::secret::Secret;
use crate::strangers::{Stranger, Strangers};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use ebb_types::frame::{self, BODY_MAX, FrameError, HEADER_BYTES, Header, PAYLOAD_MAX};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::coop::consume_budget;
use tokio::task::spawn_local;
use tokio::time::timeout;

pub use crate::error::{TransportError, cannot_listen};
pub use crate::handshake::{HANDSHAKE_DEADLINE, Identity, Party};

/// Frame kinds: the type of a frame's body.
pub mod kind {
    /// [`ebb_types::PeerMessage`], between chunk servers.
    pub const PEER: u8 = 1;
    /// [`ebb_types::ClientRequest`]; a write's bytes are the payload.
    pub const CLIENT_REQUEST: u8 = 2;
    /// [`ebb_types::ClientReply`] with the request's id; a read's bytes are the payload.
    pub const CLIENT_REPLY: u8 = 3;
    /// [`ebb_types::ServerMessage`], chunk server to metadata service.
    pub const SERVER_MESSAGE: u8 = 4;
    /// [`ebb_types::MetaPush`], metadata service to chunk servers and watchers.
    pub const META_PUSH: u8 = 5;
    /// `MetaRequest`, to the metadata service.
    pub const META_REQUEST: u8 = 6;
    /// `MetaReply` with the request's id.
    pub const META_REPLY: u8 = 7;
    /// A message of the Raft library between metadata servers: `Vec<u8>`.
    pub const RAFT: u8 = 8;
    /// [`ebb_types::InspectRequest`], administrator to chunk server.
    pub const INSPECT_REQUEST: u8 = 9;
    /// [`ebb_types::InspectReply`] with the request's id.
    pub const INSPECT_REPLY: u8 = 10;
    /// A request of an evaluation host to an `ebb lab agent`.
    pub const AGENT_REQUEST: u8 = 11;
    /// Its reply, with the request's id.
    pub const AGENT_REPLY: u8 = 12;
    /// [`ebb_types::MachineOrder`], metadata service to chunk server.
    pub const MACHINE_ORDER: u8 = 13;
    /// [`ebb_types::SleepRefusal`], chunk server to metadata service.
    pub const SLEEP_REFUSAL: u8 = 14;
    /// `()`, client to a metadata server: pass on to the leader what follows, and back what it says.
    pub const META_RELAY: u8 = 15;
    /// [`ebb_types::ServerId`], client to another chunk server: pass on to this one what follows, and back what it
    /// says. The same comes back when that server is reached.
    pub const CHUNK_RELAY: u8 = 16;
}

/// Maximum bytes in one connection's queue. One frame always fits into an empty queue.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// [`Sender::room`] waits while more than this is queued for a peer that is slow to read.
const ROOM_BYTES: usize = 8 << 20;
/// A connection breaks if its other end has acknowledged nothing, or taken nothing in, of what was sent for this long.
/// By itself the kernel repeats it for a quarter of an hour: a machine that lost its power, or a switch that forgot a
/// connection, tells nobody, and a fence that waits for an answer keeps its group from being served.
const UNANSWERED: Duration = Duration::from_secs(8);
/// After so much silence the kernel asks the other end for a sign of life: an answer may be what was lost, and its
/// sender knows nothing of who waits for it.
const SILENCE: Duration = Duration::from_secs(5);
/// Size of an idle connection's read buffer.
pub const READ_BUFFER: usize = 16 << 10;
/// Payloads up to this size are copied after their body: cheaper than one more piece for the kernel to gather.
const INLINE_PAYLOAD_MAX: usize = 1 << 10;
/// Payloads of at least this length are page-aligned.
const PAGED_PAYLOAD: usize = 64 << 10;
const PAGE: usize = 4096;
/// Maximum pieces gathered into one write.
const PIECES_MAX: usize = 64;

// Who waits for room is woken before the queue is full, and a header fits into what is read at a time.
const _: () = assert!(ROOM_BYTES < QUEUE_BYTES_MAX && HEADER_BYTES <= READ_BUFFER);
// The longest frame fits into an empty queue.
const _: () = assert!(HEADER_BYTES + BODY_MAX + PAYLOAD_MAX <= QUEUE_BYTES_MAX);
// Else a connection breaks before the kernel has asked for a sign of life.
const _: () = assert!(SILENCE.as_millis() < UNANSWERED.as_millis());

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("the connection is closed")]
    Closed,
    #[error("{QUEUE_BYTES_MAX} bytes wait already: the other side does not read")]
    Full,
    #[error("the frame is larger than allowed ({BODY_MAX} + {PAYLOAD_MAX} bytes)")]
    TooLarge,
}

/// A connection after the handshake. Dropping `receiver` closes it; dropping every `sender` sends what is
/// queued and then ends this side's stream.
#[derive(Debug)]
pub struct Connection {
    pub sender: Sender,
    pub receiver: Receiver,
    /// The peer's identity, as proven by the handshake.
    pub peer: Identity,
    pub address: SocketAddr,
}

/// Connects to `host:port` (`[address]:port` for IPv6) and runs the handshake.
pub async fn connect(address: &str, secret: &Secret, own: Identity) -> Result<Connection, TransportError> {
    let shake = async {
        let connect_error = |error| TransportError::Connect { address: address.to_owned(), error };
        let mut stream = TcpStream::connect(address).await.map_err(connect_error)?;
        prepare(&stream)?;
        let peer = handshake::call(&mut stream, own, secret).await?;
        Connection::start(stream, peer)
    };
    within_deadline(address, shake).await
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    own: Identity,
    secret: Secret,
    strangers: Strangers,
}

impl Listener {
    /// Listens on `host:port`; port zero picks a free one ([`Listener::address`]).
    pub async fn bind(address: &str, secret: &Secret, own: Identity) -> Result<Listener, TransportError> {
        let listener = TcpListener::bind(address).await?;
        Ok(Listener { listener, own, secret: secret.clone(), strangers: Strangers::new() })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves each caller that authenticates itself in a task of its own on the local set, for as long as this runs: a
    /// slow or hostile one does not hold up others.
    pub async fn serve<S: Future<Output = ()>>(self, serve: impl Fn(Connection) -> S + Clone + 'static) {
        loop {
            let (incoming, serve) = (self.accept().await, serve.clone());
            spawn_local(async move {
                match incoming.handshake().await {
                    Ok(connection) => serve(connection).await,
                    Err(error) => tracing::debug!("a caller was refused: {error}"),
                }
            });
        }
    }

    /// The next caller, not yet authenticated. Survives running out of file descriptors.
    pub async fn accept(&self) -> Incoming {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let (own, secret) = (self.own, self.secret.clone());
                    let stranger = self.strangers.admit().await;
                    return Incoming { stream, address, own, secret, stranger };
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

/// A caller that is not authenticated yet.
#[derive(Debug)]
pub struct Incoming {
    stream: TcpStream,
    pub address: SocketAddr,
    own: Identity,
    secret: Secret,
    stranger: Stranger,
}

impl Incoming {
    pub async fn handshake(self) -> Result<Connection, TransportError> {
        let Incoming { mut stream, address, own, secret, stranger } = self;
        let shake = async {
            prepare(&stream)?;
            let peer = handshake::answer(&mut stream, own, &secret).await?;
            Connection::start(stream, peer)
        };
        let address = address.to_string();
        tokio::select! {
            done = within_deadline(&address, shake) => done,
            () = stranger.gives_way() => Err(TransportError::Crowd { address: address.clone() }),
        }
    }
}

async fn within_deadline(
    address: &str,
    shake: impl Future<Output = Result<Connection, TransportError>>,
) -> Result<Connection, TransportError> {
    match timeout(HANDSHAKE_DEADLINE, shake).await {
        Ok(done) => done,
        Err(_) => {
            Err(TransportError::HandshakeTimeout { address: address.to_owned(), after: HANDSHAKE_DEADLINE })
        }
    }
}

/// Disables Nagle's algorithm, and has the kernel detect a machine that vanished silently, so that we need no periodic
/// work: [`UNANSWERED`] counts from what was sent last, and from the last sign of life on a connection that is silent.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_user_timeout(stream, UNANSWERED.as_millis() as u32)?;
    Ok(())
}

impl Connection {
    fn start(stream: TcpStream, peer: Identity) -> Result<Connection, TransportError> {
        let address = stream.peer_addr()?;
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            socket: write,
            queue: Mutex::new(Queue::default()),
            queued: Notify::new(),
            room: Notify::new(),
        });
        tokio::spawn(write_loop(shared.clone()));
        let sender = Sender { guard: Arc::new(SenderGuard { shared: shared.clone() }) };
        let receiver =
            Receiver { socket: read, buffer: BytesMut::with_capacity(READ_BUFFER), partial: None, shared };
        Ok(Connection { sender, receiver, peer, address })
    }
}

/// State shared by both halves and the writer task.
#[derive(Debug)]
struct Shared {
    socket: OwnedWriteHalf,
    queue: Mutex<Queue>,
    /// Wakes the writer.
    queued: Notify,
    /// Wakes tasks that wait for room.
    room: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Bytes that the kernel has not accepted yet, including those of the writer's current batch.
    bytes: usize,
    /// A recycled empty buffer to build small frames in.
    spare: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// No more frames come; what is queued is still sent.
    Finishing,
    Closed,
}

#[derive(Debug)]
enum Piece {
    /// Headers, bodies and small payloads of consecutive frames.
    Built(Vec<u8>),
    Payload(Bytes),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Built(bytes) => bytes,
            Piece::Payload(bytes) => bytes,
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under this lock")
    }

    fn close(&self) {
        let mut queue = self.queue();
        if queue.state != State::Closed {
            queue.state = State::Closed;
            queue.pieces.clear();
            drop(queue);
            // Ends a pending write and the receiver's read. It fails only if the connection has already
            // ended.
            let _ = rustix::net::shutdown(self.socket.as_ref(), rustix::net::Shutdown::Both);
            self.queued.notify_one();
            self.room.notify_waiters();
        }
    }
}

/// Sends frames. Cheap to clone; all clones share one queue, and order is kept.
#[derive(Clone, Debug)]
pub struct Sender {
    guard: Arc<SenderGuard>,
}

/// Ends the stream when the last [`Sender`] is dropped.
#[derive(Debug)]
struct SenderGuard {
    shared: Arc<Shared>,
}

impl Drop for SenderGuard {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        if queue.state == State::Open {
            queue.state = State::Finishing;
            self.shared.queued.notify_one();
        }
    }
}

impl Sender {
    /// Queues a frame without waiting. [`SendError::Full`]: nothing was queued; wait ([`Sender::send_wait`]),
    /// or treat the other side as lost and [`Sender::close`].
    pub fn send<T: Serialize>(
        &self,
        kind: u8,
        id: u64,
        message: &T,
        payload: Bytes,
    ) -> Result<(), SendError> {
        self.enqueue(QUEUE_BYTES_MAX, kind, id, message, payload)
    }

    /// [`Sender::send`] for messages that are bounded elsewhere: the queue is never full.
    pub fn send_bounded<T: Serialize>(
        &self,
        kind: u8,
        id: u64,
        message: &T,
        payload: Bytes,
    ) -> Result<(), SendError> {
        self.enqueue(usize::MAX, kind, id, message, payload)
    }

    fn enqueue<T: Serialize>(
        &self,
        most: usize,
        kind: u8,
        id: u64,
        message: &T,
        payload: Bytes,
    ) -> Result<(), SendError> {
        let shared = &self.guard.shared;
        let mut queue = shared.queue();
        if queue.state != State::Open {
            return Err(SendError::Closed);
        }
        if queue.bytes > 0 && queue.bytes + payload.len() > most {
            return Err(SendError::Full);
        }
        queue.push(kind, id, message, payload)?;
        drop(queue);
        shared.queued.notify_one();
        Ok(())
    }

    /// [`Sender::send`], but waits while the queue is full.
    pub async fn send_wait<T: Serialize>(
        &self,
        kind: u8,
        id: u64,
        message: &T,
        payload: Bytes,
    ) -> Result<(), SendError> {
        loop {
            match self.send(kind, id, message, payload.clone()) {
                Err(SendError::Full) => self.room().await,
                done => return done,
            }
        }
    }

    /// Waits until most of the queue has been sent, or the connection is closed. A server that reads a client's next
    /// request only then does not pile up replies for a client that does not read them.
    pub async fn room(&self) {
        loop {
            let room = self.guard.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.guard.shared.queue().has_room() {
                return;
            }
            room.await;
        }
    }

    /// Bytes that the kernel has not accepted yet.
    pub fn queued_bytes(&self) -> usize {
        self.guard.shared.queue().bytes
    }

    /// Closes both directions at once; what is queued is dropped.
    pub fn close(&self) {
        self.guard.shared.close();
    }

    pub fn is_closed(&self) -> bool {
        self.guard.shared.queue().state == State::Closed
    }
}

impl Queue {
    fn has_room(&self) -> bool {
        self.bytes <= ROOM_BYTES || self.state == State::Closed
    }

    fn push<T: Serialize>(
        &mut self,
        kind: u8,
        id: u64,
        message: &T,
        payload: Bytes,
    ) -> Result<(), SendError> {
        if payload.len() > PAYLOAD_MAX {
            return Err(SendError::TooLarge);
        }
        let mut built = match self.pieces.pop_back() {
            Some(Piece::Built(last)) if last.len() < READ_BUFFER => last,
            Some(other) => {
                self.pieces.push_back(other);
                std::mem::take(&mut self.spare)
            }
            None => std::mem::take(&mut self.spare),
        };
        let before = built.len();
        let body_len = frame::encode_into(&mut built, kind, 0, &(id, message), payload.len());
        let fits = body_len <= BODY_MAX;
        if !fits {
            built.truncate(before);
        }
        let inline = payload.len() <= INLINE_PAYLOAD_MAX;
        if fits && inline {
            built.extend_from_slice(&payload);
        }
        self.bytes += built.len() - before;
        if !built.is_empty() {
            self.pieces.push_back(Piece::Built(built));
        }
        if fits && !inline {
            self.bytes += payload.len();
            self.pieces.push_back(Piece::Payload(payload));
        }
        if fits { Ok(()) } else { Err(SendError::TooLarge) }
    }
}

/// Writes what is queued until the connection ends.
async fn write_loop(shared: Arc<Shared>) {
    let mut batch = VecDeque::new();
    let outcome = loop {
        debug_assert!(batch.is_empty(), "what was taken has been written");
        let state = {
            let mut queue = shared.queue();
            std::mem::swap(&mut batch, &mut queue.pieces);
            let is_counted = (queue.bytes > 0) != batch.is_empty();
            debug_assert!(is_counted || queue.state == State::Closed, "what is queued is counted");
            queue.state
        };
        if !batch.is_empty() {
            if let Err(error) = write_batch(&shared, &mut batch).await {
                break Err(error);
            }
            continue;
        }
        match state {
            State::Open => shared.queued.notified().await,
            State::Finishing => {
                break rustix::net::shutdown(shared.socket.as_ref(), rustix::net::Shutdown::Write)
                    .map_err(io::Error::from);
            }
            State::Closed => break Ok(()),
        }
    };
    match outcome {
        // Finished: the other side may still send until it ends its stream too.
        Ok(()) => shared.queue().state = State::Closed,
        Err(_) => shared.close(),
    }
    shared.room.notify_waiters();
}

/// Writes a whole batch. Pieces leave `batch` as the kernel accepts them, so that payloads are freed
/// early.
async fn write_batch(shared: &Shared, batch: &mut VecDeque<Piece>) -> io::Result<()> {
    // Bytes of the first piece that are already written.
    let mut done = 0;
    while !batch.is_empty() {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let count = batch.len().min(PIECES_MAX);
        for (slice, piece) in slices.iter_mut().zip(batch.iter()) {
            *slice = IoSlice::new(piece.bytes());
        }
        slices[0] = IoSlice::new(&batch[0].bytes()[done..]);
        let written = match shared.socket.as_ref().try_write_vectored(&slices[..count]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                shared.socket.as_ref().writable().await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        done += written;
        let mut emptied = None;
        while let Some(first) = batch.front() {
            if done < first.bytes().len() {
                break;
            }
            done -= first.bytes().len();
            if let Some(Piece::Built(buffer)) = batch.pop_front() {
                emptied = Some(buffer);
            }
        }
        let mut queue = shared.queue();
        let was_full = queue.bytes > ROOM_BYTES;
        queue.bytes -= written;
        if let Some(mut buffer) = emptied
            && buffer.capacity() <= 2 * READ_BUFFER
        {
            buffer.clear();
            queue.spare = buffer;
        }
        if was_full && queue.bytes <= ROOM_BYTES {
            shared.room.notify_waiters();
        }
    }
    Ok(())
}

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    /// Type of the body; one of [`kind`].
    pub kind: u8,
    pub payload: Bytes,
    header: Header,
    body: BytesMut,
}

impl Frame {
    /// Checks and decodes the body: the request's id (zero: none) and the message.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<(u64, T), FrameError> {
        frame::decode_body(&self.header, &self.body)
    }
}

/// Receives frames. Dropping it closes the connection.
#[derive(Debug)]
pub struct Receiver {
    socket: OwnedReadHalf,
    /// Read from the socket, not parsed yet.
    buffer: BytesMut,
    partial: Option<Partial>,
    shared: Arc<Shared>,
}

/// A frame whose header has been parsed.
#[derive(Debug)]
struct Partial {
    header: Header,
    body: BytesMut,
    payload: BytesMut,
}

/// A buffer for a payload. A large one is page-aligned, so that a store can pass it to its device without a copy.
fn room(len: usize) -> BytesMut {
    if len < PAGED_PAYLOAD {
        return BytesMut::with_capacity(len);
    }
    let mut room = BytesMut::with_capacity(len + PAGE);
    let skipped = room.as_ptr().align_offset(PAGE);
    room.resize(skipped, 0);
    room.advance(skipped);
    debug_assert_eq!(room.as_ptr().align_offset(PAGE), 0, "a store passes it to its device as it is");
    debug_assert!(room.capacity() >= len, "a buffer that grows is moved, and copied");
    room
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Receiver {
    /// Kind and payload length of the next frame, as soon as its header is here. Its payload stays in the socket until
    /// [`Receiver::next`]: a receiver that is short of memory stops reading here, and TCP makes the sender wait.
    pub async fn arriving(&mut self) -> Result<Option<(u8, usize)>, TransportError> {
        // A buffer holds thousands of small frames. Yields to other tasks in between, above all to heartbeats.
        consume_budget().await;
        loop {
            if let Some(Partial { header, .. }) = &self.partial {
                return Ok(Some((header.kind, header.payload_len)));
            }
            if let Some(bytes) = self.buffer.first_chunk::<HEADER_BYTES>() {
                let header = frame::decode_header(bytes)?;
                self.buffer.advance(HEADER_BYTES);
                self.partial = Some(Partial { header, body: BytesMut::new(), payload: BytesMut::new() });
                continue;
            }
            self.buffer.reserve(READ_BUFFER - self.buffer.len());
            match self.socket.read_buf(&mut self.buffer).await? {
                0 if self.buffer.is_empty() => return Ok(None),
                0 => return Err(TransportError::Truncated),
                _ => {}
            }
        }
    }

    /// The next frame; `None` when the other side ended the stream between two frames. Cancel-safe: dropped while
    /// it waits (`select!`), it loses nothing. After an error the stream is unusable.
    pub async fn next(&mut self) -> Result<Option<Frame>, TransportError> {
        if self.arriving().await?.is_none() {
            return Ok(None);
        }
        loop {
            let mut direct = None;
            if let Some(partial) = &mut self.partial {
                let (body_len, payload_len) = (partial.header.body_len, partial.header.payload_len);
                // Buffers of the exact size.
                partial.body.reserve(body_len - partial.body.len());
                if partial.payload.capacity() == 0 {
                    partial.payload = room(payload_len);
                }
                let body_missing = take(&mut self.buffer, &mut partial.body, body_len);
                let payload_missing = if body_missing == 0 {
                    take(&mut self.buffer, &mut partial.payload, payload_len)
                } else {
                    0
                };
                if body_missing + payload_missing == 0 {
                    let Partial { header, body, payload } = self.partial.take().expect("it is there");
                    return Ok(Some(Frame { kind: header.kind, payload: payload.freeze(), header, body }));
                }
                // Small remainders come through the buffer, with what follows them; large ones are read directly
                // into place.
                if body_missing >= READ_BUFFER {
                    direct = Some((&mut partial.body, body_missing));
                } else if payload_missing >= READ_BUFFER {
                    direct = Some((&mut partial.payload, payload_missing));
                }
            }
            let read = match direct {
                Some((part, missing)) => self.socket.read_buf(&mut part.limit(missing)).await,
                None => {
                    self.buffer.reserve(READ_BUFFER - self.buffer.len());
                    self.socket.read_buf(&mut self.buffer).await
                }
            };
            match read {
                Ok(0) => return Err(TransportError::Truncated),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub fn close(&self) {
        self.shared.close();
    }
}

/// Moves bytes from `buffer` to `part` until `part` has `wanted`. Returns how many are still missing.
fn take(buffer: &mut BytesMut, part: &mut BytesMut, wanted: usize) -> usize {
    let moved = buffer.len().min(wanted - part.len());
    if moved > 0 {
        part.extend_from_slice(&buffer[..moved]);
        buffer.advance(moved);
    }
    wanted - part.len()
}

#[cfg(test)]
mod tests;
