//! The sockets and the disks together: clients of our own and of QEMU's over loopback.

mod backend;
mod bounds;
mod client;
mod file;
mod handshakes;
mod qemu;

use ebb_blockdev::{Backend, Bounds, Replies, serve};
use ebb_nbd::Export;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

/// Runs a test on one thread, as the servers run.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Serves on loopback until the runtime ends.
async fn listen<B: Backend>(exports: Vec<Export>, backend: Rc<B>, replies: &Replies) -> SocketAddr {
    listen_within(Bounds::of_process(), exports, backend, replies).await
}

async fn listen_within<B: Backend>(
    bounds: Bounds,
    exports: Vec<Export>,
    backend: Rc<B>,
    replies: &Replies,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let replies = replies.clone();
    spawn_local(async move { panic!("{}", serve(listener, bounds, exports.into(), backend, replies).await) });
    address
}
