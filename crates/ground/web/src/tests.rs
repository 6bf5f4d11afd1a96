//! Tests of the page as a whole, on a fake cluster: over a socket, and in a real browser.

mod browser;
mod http;
mod lab;
pub(crate) mod made_up;
mod made_up_lab;
mod shelf;

use crate::{Facts, Hosts, Page, Tokens, serve};
use made_up::Leader;
use shelf::Shelf;
use std::net::SocketAddr;
use std::sync::mpsc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Tokens of the two kinds.
pub(crate) const LOOK: &str = "10c4bcb36fd3d434f5454ea3ca2ac68c";
pub(crate) const ACT: &str = "a11a1c4bcb36fd3d434f5454ea3ca2ac";

/// A page of a fake cluster, on a thread of its own.
struct Served {
    address: SocketAddr,
    shelf: Shelf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn start(leader: Leader) -> Served {
        Served::on("127.0.0.1:0".parse().expect("an address"), leader, Shelf::default())
    }

    fn on(address: SocketAddr, leader: Leader, shelf: Shelf) -> Served {
        let kept = shelf.clone();
        Served::by(address, shelf, async move |listener, address, stopped| {
            let facts = Facts {
                cluster: "c07ba8035aba914d".into(),
                asleep_watts: 5.4,
                cycles_per_day: 24.0,
                has_co2_series: false,
                has_meters: true,
            };
            let page = Page {
                s3: kept.serve().await,
                tokens: Tokens::new(LOOK, ACT).expect("two tokens"),
                hosts: Hosts::new(address, &[]),
                facts,
            };
            serve(listener, page, leader, async { stopped.await.unwrap_or(()) }).await;
        })
    }

    /// A page that `serve` serves, with its listener and its address, until the last is told.
    fn by<F>(address: SocketAddr, shelf: Shelf, serve: F) -> Served
    where
        F: AsyncFnOnce(TcpListener, SocketAddr, oneshot::Receiver<()>) + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let (say, said) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind(address).await.expect("listen");
                let address = listener.local_addr().expect("an address");
                say.send(address).expect("the test waits for it");
                serve(listener, address, stopped).await;
            });
        });
        let address = said.recv().expect("it listens");
        Served { address, shelf, stop: Some(stop), thread: Some(thread) }
    }

    fn url(&self, token: &str) -> String {
        format!("http://{}/?token={token}", self.address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().expect("it ends once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the page's thread panicked");
    }
}
