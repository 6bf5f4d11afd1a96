//! One NBD connection: its socket, its session, and its bounds.

use crate::replies::{Backend, Replies, RequestId};
use crate::state::State;
use bytes::{BufMut, BytesMut};
use ebb_nbd::{CloseReason, Export};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Bytes that are read at once, unless the message at hand is longer.
const READ_BYTES: usize = 128 << 10;
/// A buffer with less room is replaced, or its rest is moved to the front.
const ROOM_MIN: usize = 16 << 10;
/// The longest buffer that is kept for the next connection: a long write leaves a longer one.
const KEPT_BYTES: usize = 2 * READ_BYTES;
/// Pieces sent with one call.
const SEND_PIECES: usize = 64;

const _: () =
    assert!(ROOM_MIN < READ_BYTES && READ_BYTES <= KEPT_BYTES, "a buffer that was not grown is kept");

/// A client's end may be closed while what it sent is still to be read.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {
    fn client_has_gone(&self) -> bool;
}

impl Stream for TcpStream {
    fn client_has_gone(&self) -> bool {
        is_closed(self)
    }
}

impl Stream for UnixStream {
    fn client_has_gone(&self) -> bool {
        is_closed(self)
    }
}

fn is_closed(socket: &impl AsFd) -> bool {
    let mut sockets = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut sockets, Some(&at_once)).is_ok_and(|found| found > 0)
}

/// The task of a connection.
pub(crate) struct Connection<S, B> {
    stream: S,
    /// Requests, or what is still to be read, wait for replies to be sent.
    holds_back: bool,
    input: BytesMut,
    state: Rc<RefCell<State>>,
    /// Its requests' names but for the last part.
    name: RequestId,
    backend: Rc<B>,
    replies: Replies,
}

impl<S: Stream, B: Backend> Connection<S, B> {
    pub fn new(stream: S, exports: Arc<[Export]>, backend: Rc<B>, replies: Replies) -> Connection<S, B> {
        let state = Rc::new(RefCell::new(State::new(exports)));
        let name = replies.add(state.clone());
        Connection { stream, holds_back: false, input: BytesMut::new(), state, name, backend, replies }
    }

    /// Gone with the connection.
    pub fn state(&self) -> Weak<RefCell<State>> {
        Rc::downgrade(&self.state)
    }

    /// Does everything that can be done now. Ready: the connection has ended.
    ///
    /// What was held back does not begin once the client has given the connection up. It may have sent that again on
    /// another, and newer writes of the same blocks after it (R16).
    pub fn poll(&mut self, context: &mut Context) -> Poll<io::Result<CloseReason>> {
        if std::mem::take(&mut self.holds_back) && self.stream.client_has_gone() {
            return Poll::Ready(Err(gone()));
        }
        loop {
            self.begin_requests();
            let sent = self.poll_send(context)?;
            let closing = self.state.borrow().closing.clone();
            if let Some(reason) = closing.filter(|_| sent.is_ready()) {
                return Poll::Ready(Ok(reason));
            }
            if !self.state.borrow().may_receive() {
                self.holds_back = true;
                break;
            }
            match self.poll_receive(context)? {
                Poll::Ready(()) => self.state.borrow_mut().receive(&mut self.input),
                Poll::Pending => break,
            }
        }
        let mut state = self.state.borrow_mut();
        state.waker = Some(context.waker().clone());
        if self.input.is_empty() && self.input.capacity() > 0 && state.session.in_flight().requests == 0 {
            let input = std::mem::take(&mut self.input);
            if input.capacity() <= KEPT_BYTES {
                self.replies.give_buffer(input);
            }
        }
        Poll::Pending
    }

    fn begin_requests(&mut self) {
        loop {
            // Not borrowed during the request: it may be answered at once.
            let mut state = self.state.borrow_mut();
            let Some((id, request)) = state.next_request() else { return };
            let export = state.export;
            drop(state);
            self.backend.request(RequestId { id, ..self.name }, export, request);
        }
    }

    /// Ready: everything is sent.
    fn poll_send(&mut self, context: &mut Context) -> Poll<io::Result<()>> {
        let mut state = self.state.borrow_mut();
        while !state.outbox.is_empty() {
            let mut pieces = [IoSlice::new(&[]); SEND_PIECES];
            let mut used = 0;
            for (piece, bytes) in pieces.iter_mut().zip(&state.outbox) {
                *piece = IoSlice::new(bytes);
                used += 1;
            }
            let stream = Pin::new(&mut self.stream);
            let sent = ready!(stream.poll_write_vectored(context, &pieces[..used]))?;
            state.has_sent(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Ready: there is more input.
    fn poll_receive(&mut self, context: &mut Context) -> Poll<io::Result<()>> {
        let wants = self.state.borrow().session.wants(self.input.len());
        if wants == 0 {
            return Poll::Pending;
        }
        if self.input.capacity() == 0 {
            self.input = self.replies.take_buffer();
        }
        if self.input.capacity() - self.input.len() < wants.max(ROOM_MIN) {
            self.input.reserve(wants.max(READ_BYTES));
        }
        let mut room = (&mut self.input).limit(wants.max(READ_BYTES));
        match ready!(pin!(self.stream.read_buf(&mut room)).poll(context))? {
            0 => Poll::Ready(Err(gone())),
            _ => Poll::Ready(Ok(())),
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the client has gone")
}

impl<S, B> Drop for Connection<S, B> {
    fn drop(&mut self) {
        self.replies.remove(self.name.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::*;
    use ebb_nbd::BlockSizes;
    use ebb_nbd::{Reply, Request};
    use std::task::Waker;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    impl Stream for DuplexStream {
        fn client_has_gone(&self) -> bool {
            false
        }
    }

    /// Keeps requests, or answers them at once.
    #[derive(Default)]
    struct Storage {
        replies: Option<Replies>,
        begun: RefCell<Vec<RequestId>>,
    }

    impl Backend for Storage {
        fn request(&self, id: RequestId, _: usize, _: Request) {
            self.begun.borrow_mut().push(id);
            if let Some(replies) = &self.replies {
                replies.reply(id, Reply::Done);
            }
        }
    }

    fn connect(
        room: usize,
        storage: Storage,
        replies: &Replies,
    ) -> (DuplexStream, Connection<DuplexStream, Storage>) {
        let (client, stream) = duplex(room);
        (client, Connection::new(stream, [export()].into(), Rc::new(storage), replies.clone()))
    }

    fn export() -> Export {
        Export {
            name: String::new(),
            description: String::new(),
            size: 1 << 20,
            block: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20 },
            read_only: false,
            rotational: false,
            multi_conn: true,
        }
    }

    const HELLO: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
    const FLUSH: &[u8; 28] = b"\x25\x60\x95\x13\0\0\0\x03acookie!\0\0\0\0\0\0\0\0\0\0\0\0";

    fn write(client: &mut DuplexStream, bytes: &[u8], context: &mut Context) -> bool {
        matches!(pin!(client.write_all(bytes)).poll(context), Poll::Ready(Ok(())))
    }

    #[test]
    fn an_idle_connection_holds_no_buffer() {
        let (context, replies) = (&mut Context::from_waker(Waker::noop()), Replies::new());
        let (mut client, mut connection) = connect(1 << 20, Storage::default(), &replies);
        for request in 0..3 {
            let hello = if request == 0 { HELLO } else { b"" };
            assert!(write(&mut client, &[hello, FLUSH].concat(), context));
            assert!(connection.poll(context).is_pending());
            assert!(connection.input.capacity() > 0, "it will be needed for the next request");
            let id = connection.backend.begun.borrow_mut().pop().unwrap();
            replies.reply(id, Reply::Done);
            assert!(connection.poll(context).is_pending());
            assert_eq!(connection.input.capacity(), 0);
        }
        let buffer = replies.take_buffer();
        assert!((ROOM_MIN..=KEPT_BYTES).contains(&buffer.capacity()), "one buffer is kept for all");
        drop(connection);
        assert_eq!(replies.connections(), 0);
    }

    #[test]
    fn what_was_held_back_does_not_begin_once_the_client_has_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        for leaves in [false, true] {
            runtime.block_on(holds_back(leaves));
        }
    }

    async fn holds_back(leaves: bool) {
        let (context, replies) = (&mut Context::from_waker(Waker::noop()), Replies::new());
        let (mut client, stream) = UnixStream::pair().unwrap();
        let storage = Rc::new(Storage::default());
        let mut connection = Connection::new(stream, [export()].into(), storage.clone(), replies.clone());
        client.write_all(HELLO).await.unwrap();
        let begun = || storage.begun.borrow().len();
        while begun() < REQUESTS_MAX {
            client.write_all(FLUSH).await.unwrap();
            tokio::task::yield_now().await;
            assert!(connection.poll(context).is_pending());
        }
        client.write_all(FLUSH).await.unwrap();
        if leaves {
            // Closing would not do: a child of another test may still have the socket.
            client.shutdown().await.unwrap();
        }
        let first = storage.begun.borrow()[0];
        replies.reply(first, Reply::Done);
        while begun() == REQUESTS_MAX && !(leaves && connection.poll(context).is_ready()) {
            tokio::task::yield_now().await;
            let _ = connection.poll(context);
        }
        assert_eq!(begun(), REQUESTS_MAX + usize::from(!leaves));
        drop(client);
    }

    #[test]
    fn replies_that_are_not_read_end_the_reading_of_requests() {
        let (context, replies) = (&mut Context::from_waker(Waker::noop()), Replies::new());
        let storage = Storage { replies: Some(replies.clone()), ..Storage::default() };
        let (mut client, mut connection) = connect(28 * 100, storage, &replies);
        assert!(write(&mut client, HELLO, context));
        for _ in 0..10_000 {
            assert!(connection.poll(context).is_pending());
            if !write(&mut client, FLUSH, context) {
                break;
            }
        }
        let begun = connection.backend.begun.borrow().len();
        assert!((UNSENT_PIECES_MAX..UNSENT_PIECES_MAX + 500).contains(&begun), "{begun} requests");
    }
}
