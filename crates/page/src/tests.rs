//! Tests of the page as a whole, on a made-up cluster: over a socket, and in a real browser.

mod browser;
mod http;
pub(crate) mod made_up;
mod shelf;

use crate::{Facts, Hosts, Page, Tokens, serve};
use made_up::Leader;
use shelf::Shelf;
use std::net::SocketAddr;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Tokens of the two kinds.
pub(crate) const LOOK: &str = "10c4bcb36fd3d434f5454ea3ca2ac68c";
pub(crate) const ACT: &str = "a11a1c4bcb36fd3d434f5454ea3ca2ac";

/// A page of a made-up cluster, on a thread of its own.
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
        let (stop, stopped) = oneshot::channel();
        let (say, said) = mpsc::channel();
        let kept = shelf.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(address).await.expect("listen");
                let address = listener.local_addr().expect("an address");
                say.send(address).expect("the test waits for it");
                let facts = Facts {
                    cluster: "c07ba8035aba914d".into(),
                    idle_watts: 61.8,
                    asleep_watts: 5.4,
                    cycles_per_day: 24.0,
                    has_co2_series: false,
                    has_meters: true,
                };
                let s3 = kept.serve().await;
                let page = Page {
                    s3,
                    tokens: Tokens::new(LOOK, ACT).expect("two tokens"),
                    hosts: Hosts::new(address, &[]),
                    facts,
                };
                let stopped = async { stopped.await.unwrap_or(()) };
                serve(listener, page, leader, stopped).await.expect("it serves");
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
