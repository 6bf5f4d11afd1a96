//! Serves a page's routes to a bounded number of connections: `axum::serve` has no limit of them, nor of the time that
//! a request's head may take. Who says nothing gives way after a while, so strangers cannot keep people out for long.

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// After a connection that could not be accepted, mostly for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// At a time; others wait.
    pub connections: usize,
    /// For a request's head, and between two requests of a connection.
    pub head_within: Duration,
}

/// A browser has a stream and a few more for each page.
impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: 256, head_within: Duration::from_secs(10) }
    }
}

/// Serves until it is dropped, and with it all connections.
pub(crate) async fn serve(listener: TcpListener, app: Router, bounds: Bounds) {
    let room = Arc::new(Semaphore::new(bounds.connections));
    let mut open = JoinSet::new();
    loop {
        let place = room.clone().acquire_owned().await.expect("it is never closed");
        while open.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let app = app.clone();
                open.spawn(async move {
                    connection(stream, from, app, bounds.head_within).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a browser's connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, from: SocketAddr, app: Router, head_within: Duration) {
    let routes = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        routes.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_within);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, %from, "a browser's connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn strangers_who_say_nothing_give_way() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let from = |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.port().to_string() };
        let app = Router::new().route("/", get(from));
        let bounds = Bounds { connections: 2, head_within: Duration::from_millis(200) };
        let served = tokio::spawn(serve(listener, app, bounds));
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut asks = TcpStream::connect(address).await.unwrap();
        asks.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        asks.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with(&asks.local_addr().unwrap().port().to_string()), "{answer}");
        served.abort();
    }
}
