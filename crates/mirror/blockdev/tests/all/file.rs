//! A file behind sockets, with clients of our own.

use crate::backend::{FileBackend, export};
use crate::client::{Client, FLUSH, FUA, READ, WRITE, ZEROES, header};
use crate::{listen, on_one_thread};
use ebb_blockdev::{Bounds, Caching, DiskFile, Replies, Ring, serve};
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_local;

/// A sparse file that is served.
pub struct Served {
    pub address: SocketAddr,
    pub path: PathBuf,
    replies: Replies,
    backend: Rc<FileBackend>,
    exports: Vec<ebb_nbd::Export>,
    dir: TempDir,
}

pub async fn served(bytes: u64) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    let disk = DiskFile::open(&path, Caching::Cached).unwrap();
    let (replies, exports) = (Replies::new(), vec![export(&disk)]);
    let backend = Rc::new(FileBackend::new(Ring::new().unwrap(), disk, replies.clone()));
    let driver = backend.clone();
    spawn_local(async move { panic!("{}", driver.run().await) });
    let address = listen(exports.clone(), backend.clone(), &replies).await;
    Served { address, path, replies, backend, exports, dir }
}

#[test]
fn a_write_is_seen_by_every_connection_once_it_is_answered() {
    on_one_thread(async {
        let served = served(64 << 20).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(Client::connect(served.address).await);
        }
        for round in 0..60u64 {
            let (writer, reader) = (round as usize % 3, (round as usize + 1) % 3);
            let (offset, data) = (round % 7 * 8192, vec![round as u8; 8192]);
            let flags = if round % 5 == 0 { FUA } else { 0 };
            clients[writer].call(WRITE, flags, offset, 8192, &data).await;
            assert!(clients[reader].read(offset, 8192).await == data, "round {round}");
        }
        clients[0].call(ZEROES, 0, 4096, 8192, &[]).await;
        clients[1].call(FLUSH, 0, 0, 0, &[]).await;
        let found = clients[2].read(4096, 8192).await;
        assert!(found.iter().all(|byte| *byte == 0));
        // Longer than any buffer, in both directions.
        let long: Vec<u8> = (0..32u32 << 20).map(|at| (at / 4096 + at) as u8).collect();
        clients[0].write(1 << 20, &long).await;
        assert!(clients[1].read(1 << 20, 32 << 20).await == long);
        assert!(std::fs::read(&served.path).unwrap()[1 << 20..33 << 20] == long);
    });
}

#[test]
fn many_connections_with_many_requests_each() {
    on_one_thread(async {
        let served = served(16 << 20).await;
        let mut tasks = Vec::new();
        for number in 0..64u64 {
            let address = served.address;
            tasks.push(spawn_local(async move {
                let mut client = Client::connect(address).await;
                let block = |at: u64| (number * 64 + at) * 4096;
                let mut bytes = Vec::new();
                for at in 0..64 {
                    bytes.extend(header(WRITE, 0, at, block(at), 4096));
                    bytes.extend([(number + at) as u8; 4096]);
                }
                client.send(&bytes).await;
                let mut cookies = Vec::new();
                for _ in 0..64 {
                    let (cookie, error) = client.reply().await.unwrap();
                    assert_eq!(error, 0);
                    cookies.push(cookie);
                }
                cookies.sort();
                assert!(cookies.into_iter().eq(0..64), "each is answered once");
                let reads = (0..64).flat_map(|at| header(READ, 0, at, block(at), 4096));
                client.send(&reads.collect::<Vec<u8>>()).await;
                for _ in 0..64 {
                    let (cookie, error) = client.reply().await.unwrap();
                    assert_eq!(error, 0);
                    assert_eq!(client.payload(4096).await, [(number + cookie) as u8; 4096]);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        while served.replies.connections() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn clients_that_stall_hold_up_no_other() {
    on_one_thread(async {
        let served = served(16 << 20).await;
        // Asks for 4 GiB and reads none of it.
        let mut greedy = Client::connect(served.address).await;
        let reads = (0..1000).flat_map(|cookie| header(READ, 0, cookie, 0, 4 << 20));
        greedy.send(&reads.collect::<Vec<u8>>()).await;
        // Ends in the middle of a payload.
        let mut slow = Client::connect(served.address).await;
        slow.send(&header(WRITE, 0, 1, 0, 1 << 20)).await;
        slow.send(&[9; 5000]).await;
        let mut other = Client::connect(served.address).await;
        for round in 0..100 {
            let data = [round; 4096];
            other.write(8 << 20, &data).await;
            assert_eq!(other.read(8 << 20, 4096).await, data);
        }
        slow.send(&vec![9; (1 << 20) - 5000]).await;
        assert_eq!(slow.reply().await.unwrap(), (1, 0));
        assert_eq!(other.read(4096, 4096).await, [9; 4096]);
        for _ in 0..20 {
            greedy.reply().await.unwrap();
            assert_eq!(greedy.payload(4 << 20).await[4 << 19], 0);
        }
    });
}

#[test]
fn a_unix_socket_serves_the_same_disk() {
    on_one_thread(async {
        let served = served(1 << 20).await;
        let path = served.dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (exports, backend) = (served.exports.clone().into(), served.backend.clone());
        let server =
            spawn_local(serve(listener, Bounds::of_process(), exports, backend, served.replies.clone()));
        let mut local = Client::open(UnixStream::connect(&path).await.unwrap(), "disk").await;
        let mut remote = Client::connect(served.address).await;
        local.write(4096, &[5; 4096]).await;
        assert_eq!(remote.read(4096, 4096).await, [5; 4096]);
        // Ending a server ends its connections, and no others.
        server.abort();
        assert_eq!(local.stream.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(remote.read(4096, 4096).await, [5; 4096]);
    });
}

#[test]
fn a_client_that_speaks_something_else_is_left() {
    on_one_thread(async {
        let served = served(1 << 20).await;
        let mut client = Client::connect(served.address).await;
        client.send(&[0; 28]).await;
        assert_eq!(client.stream.read(&mut [0; 1]).await.unwrap(), 0);
        let mut other = Client::connect(served.address).await;
        assert_eq!(other.read(0, 4096).await, [0; 4096]);
        // A farewell is answered by the end of the connection, after the replies.
        let mut bytes = header(READ, 0, 3, 0, 4096);
        bytes.extend(header(2, 0, 0, 0, 0));
        other.send(&bytes).await;
        assert_eq!(other.reply().await.unwrap(), (3, 0));
        other.payload(4096).await;
        assert_eq!(other.stream.read(&mut [0; 1]).await.unwrap(), 0);
    });
}
