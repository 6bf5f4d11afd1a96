//! Clients that connect and choose no export. Time is the runtime's own: it passes when nothing else happens.

use crate::client::Client;
use crate::listen_within;
use ebb_blockdev::{Backend, Bounds, Replies, RequestId};
use ebb_nbd::{BlockSizes, Export, Reply, Request};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::timeout;

const BOUNDS: Bounds = Bounds { handshake: Duration::from_secs(10), handshakes: 100, connections: 200 };

struct Answers(Replies);

impl Backend for Answers {
    fn request(&self, id: RequestId, _: usize, _: Request) {
        self.0.reply(id, Reply::Done);
    }
}

fn virtual_time(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

async fn server(bounds: Bounds) -> SocketAddr {
    let replies = Replies::new();
    let export = Export {
        name: String::new(),
        description: String::new(),
        size: 1 << 30,
        block: BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 },
        read_only: false,
        rotational: false,
        multi_conn: true,
    };
    listen_within(bounds, vec![export], Rc::new(Answers(replies.clone())), &replies).await
}

async fn idle(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.read_exact(&mut [0; 18]).await.unwrap();
    stream
}

/// Whether the server closes the connection, within a minute.
async fn is_closed(stream: &mut TcpStream) -> bool {
    timeout(Duration::from_secs(60), stream.read(&mut [0; 1])).await.is_ok_and(|read| !matches!(read, Ok(1)))
}

#[test]
fn a_client_that_chooses_no_export_is_closed() {
    virtual_time(async {
        let address = server(BOUNDS).await;
        let mut client = Client::connect(address).await;
        let mut streams = [idle(address).await, idle(address).await];
        for stream in &mut streams {
            assert!(is_closed(stream).await);
        }
        assert!(!is_closed(&mut client.stream).await, "it may be idle for as long as it wants");
        client.call(crate::client::FLUSH, 0, 0, 0, &[]).await;
    });
}

#[test]
fn clients_that_choose_no_export_keep_no_other_out() {
    let few = [Bounds { handshakes: 3, ..BOUNDS }, Bounds { connections: 4, ..BOUNDS }];
    for bounds in few.map(|bounds| Bounds { handshake: Duration::from_secs(1 << 30), ..bounds }) {
        virtual_time(async move {
            let address = server(bounds).await;
            let mut streams = Vec::new();
            let mut clients = Vec::new();
            for n in 0..20 {
                streams.push(idle(address).await);
                if n % 10 == 0 {
                    clients.push(Client::connect(address).await);
                }
            }
            assert!(is_closed(&mut streams[0]).await);
            assert!(!is_closed(streams.last_mut().unwrap()).await, "the newest may still choose");
            for client in &mut clients {
                client.call(crate::client::FLUSH, 0, 0, 0, &[]).await;
            }
        });
    }
}
