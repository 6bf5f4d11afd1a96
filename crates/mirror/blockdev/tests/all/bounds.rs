//! What a backend sees of a client: a storage that answers only when the test says so.

use crate::client::{Client, FLUSH, FUA, READ, WRITE, header};
use crate::{listen, on_one_thread};
use bytes::Bytes;
use ebb_blockdev::{Backend, Replies, RequestId};
use ebb_nbd::{BlockSizes, Export, Piece, Reply, Request};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::task::{spawn_local, yield_now};

#[derive(Default)]
struct Held {
    requests: RefCell<Vec<(RequestId, usize, Request)>>,
}

impl Backend for Held {
    fn request(&self, id: RequestId, export: usize, request: Request) {
        self.requests.borrow_mut().push((id, export, request));
    }
}

struct Server {
    held: Rc<Held>,
    replies: Replies,
    address: SocketAddr,
}

impl Server {
    async fn new() -> Server {
        let (held, replies) = (Rc::new(Held::default()), Replies::new());
        let export = |name: &str| Export {
            name: name.to_owned(),
            description: String::new(),
            size: 1 << 30,
            block: BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 },
            read_only: false,
            rotational: false,
            multi_conn: true,
        };
        let exports = vec![export("one"), export("two")];
        let address = listen(exports, held.clone(), &replies).await;
        Server { held, replies, address }
    }

    /// Waits until the backend holds `requests` requests.
    async fn holds(&self, requests: usize) {
        while self.held.requests.borrow().len() < requests {
            yield_now().await;
        }
    }

    /// Waits until another client's request has come and gone: whatever was sent before it has been read by then.
    async fn barrier(&self) {
        let before = self.held.requests.borrow().len();
        let mut other = Client::connect(self.address).await;
        other.send(&header(FLUSH, 0, 1, 0, 0)).await;
        let id = loop {
            let flushes = |held: &(RequestId, usize, Request)| held.2 == Request::Flush;
            if let Some(at) = self.held.requests.borrow().iter().position(flushes) {
                break at;
            }
            yield_now().await;
        };
        let (id, ..) = self.held.requests.borrow_mut().remove(id);
        self.replies.reply(id, Reply::Done);
        assert_eq!(other.reply().await.unwrap(), (1, 0));
        assert!(self.held.requests.borrow().len() >= before);
    }

    fn answer(&self) -> usize {
        let requests = std::mem::take(&mut *self.held.requests.borrow_mut());
        let answered = requests.len();
        // In any order.
        for (id, _, request) in requests.into_iter().rev() {
            self.replies.reply(id, reply(&request));
        }
        answered
    }
}

fn reply(request: &Request) -> Reply {
    match request {
        Request::Read { length, .. } => {
            Reply::Data(vec![Piece::Data(Bytes::from(vec![b'r'; *length as usize]))])
        }
        _ => Reply::Done,
    }
}

#[test]
fn a_connection_has_a_bounded_number_of_requests_in_flight() {
    on_one_thread(async {
        let server = Server::new().await;
        let mut client = Client::connect(server.address).await;
        let reads = (0..2000).flat_map(|cookie| header(READ, 0, cookie, cookie * 512, 512));
        client.send(&reads.collect::<Vec<u8>>()).await;
        let mut answered = 0;
        while answered < 2000 {
            server.holds(256.min(2000 - answered)).await;
            server.barrier().await;
            assert!(server.held.requests.borrow().len() <= 256);
            let now = server.answer();
            for _ in 0..now {
                assert_eq!(client.reply().await.unwrap().1, 0);
                client.payload(512).await;
            }
            answered += now;
        }
    });
}

#[test]
fn a_connection_has_a_bounded_payload_in_flight_and_unsent() {
    on_one_thread(async {
        let server = Server::new().await;
        let mut client = Client::connect(server.address).await;
        let reads = (0..200).flat_map(|cookie| header(READ, 0, cookie, 0, 4 << 20));
        client.send(&reads.collect::<Vec<u8>>()).await;
        server.holds(8).await;
        server.barrier().await;
        assert_eq!(server.answer(), 8, "32 MiB");
        // The client reads none of it: the sockets take some megabytes.
        server.barrier().await;
        server.barrier().await;
        let unread = server.held.requests.borrow().len();
        assert!(unread < 8, "{unread} requests begin while the replies wait");
        let answering = spawn_local(async move {
            loop {
                server.answer();
                yield_now().await;
            }
        });
        for _ in 0..200 {
            client.reply().await.unwrap();
            assert_eq!(client.payload(4 << 20).await[4 << 19], b'r');
        }
        answering.abort();
    });
}

#[test]
fn replies_to_a_client_that_has_gone_reach_no_other() {
    on_one_thread(async {
        let server = Server::new().await;
        let mut client = Client::connect(server.address).await;
        for cookie in 0..10 {
            client.send(&header(READ, 0, cookie, 0, 512)).await;
        }
        server.holds(10).await;
        drop(client);
        while server.replies.connections() > 0 {
            yield_now().await;
        }
        let old = std::mem::take(&mut *server.held.requests.borrow_mut());
        // It takes the place of the one before, and its requests have the same numbers.
        let mut client = Client::connect(server.address).await;
        client.send(&header(WRITE, FUA, 5, 512, 512)).await;
        client.send(&[b'w'; 512]).await;
        server.holds(1).await;
        for (id, _, request) in old {
            assert_ne!(id, server.held.requests.borrow()[0].0);
            server.replies.reply(id, reply(&request));
        }
        let write = Request::Write { offset: 512, payload: Bytes::from(vec![b'w'; 512]), fua: true };
        assert_eq!(server.held.requests.borrow()[0].2, write);
        server.answer();
        assert_eq!(client.reply().await.unwrap(), (5, 0));
    });
}

#[test]
fn requests_carry_the_export_that_was_opened() {
    on_one_thread(async {
        let server = Server::new().await;
        for (name, index) in [("two", 1), ("one", 0), ("", 0)] {
            let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
            let mut client = Client::open(stream, name).await;
            client.send(&header(FLUSH, 0, 8, 0, 0)).await;
            server.holds(1).await;
            assert_eq!(server.held.requests.borrow()[0].1, index);
            server.answer();
            assert_eq!(client.reply().await.unwrap(), (8, 0));
        }
    });
}
