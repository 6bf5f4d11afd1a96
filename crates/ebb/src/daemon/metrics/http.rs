//! The endpoint: two pages by GET over HTTP/1.1, and nothing else.
//!
//! Bounded: few connections at a time, each for one request, a short head and a short while. A browser's page on
//! another origin cannot read it by a name that it has pointed here: `Host` must be an address, `localhost`, or the
//! configured name ([`Hosts`], as for the page).
//!
//! Not axum, which serves the page: what a daemon tells lives on its one thread, and the state of axum's routes must be
//! `Send` and `Sync`. What it would save is a `match` of two paths.

use super::{Format, Page};
use crate::error::{NodeError, listen};
use ebb_web::Hosts;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

/// Connections at a time; others wait.
const CONNECTIONS: usize = 8;
/// Longest request head.
const HEAD_BYTES: usize = 8 << 10;
/// For a connection, from its start to its end.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection that could not be accepted, mostly for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A process that can be scraped. What it tells may be with another task, which is asked for it.
pub trait Source {
    fn page(&self) -> impl Future<Output = Page>;

    /// What else there is to scrape, as Prometheus's `http_sd` wants it; `None`: this process does not know.
    fn targets(&self) -> impl Future<Output = Option<String>> {
        std::future::ready(None)
    }
}

impl<F: Fn() -> Page> Source for F {
    async fn page(&self) -> Page {
        self()
    }
}

/// Servers have the address in the file, volumes and mirrors on their command line.
const ELSEWHERE: &str = "give another one for /metrics: `metrics` in the configuration file, or --metrics";

/// Answers at this address for as long as the local task set runs. `None`: nowhere.
pub async fn open(address: Option<&str>, source: impl Source + 'static) -> Result<(), NodeError> {
    let Some(address) = address else { return Ok(()) };
    let listener = TcpListener::bind(address).await.map_err(listen(address, ELSEWHERE))?;
    spawn_local(accept(listener, Rc::new((source, Hosts::addresses(address)))));
    Ok(())
}

async fn accept<S: Source + 'static>(listener: TcpListener, source: Rc<(S, Hosts)>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = room.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                spawn_local(async move {
                    // Who is cut off or goes away gets no answer.
                    let _ = tokio::time::timeout(PATIENCE, serve(stream, source)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a scraper");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve<S: Source>(stream: TcpStream, source: Rc<(S, Hosts)>) {
    let (source, hosts) = &*source;
    let service = service_fn(move |request: Request<hyper::body::Incoming>| async move {
        let (parts, _) = request.into_parts();
        let answer = answer(source, hosts, &parts.method, parts.uri.path(), &parts.headers);
        Ok::<_, Infallible>(answer.await)
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEAD_BYTES);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a scraper's connection ended");
    }
}

async fn answer(
    source: &impl Source,
    hosts: &Hosts,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response<String> {
    let plain = |status, words: &str| told(status, "text/plain; charset=utf-8", format!("{words}\n"));
    if !hosts.admits(headers) {
        return plain(
            StatusCode::FORBIDDEN,
            "Host is neither an address, nor localhost, nor the name configured here",
        );
    }
    if method != Method::GET {
        let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return answer;
    }
    if path == "/metrics" {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        let format = Format::accepted(accept.unwrap_or_default());
        return told(StatusCode::OK, format.content_type(), source.page().await.write(format));
    }
    match (path, source.targets().await) {
        ("/sd", Some(targets)) => told(StatusCode::OK, "application/json", targets),
        (_, Some(_)) => plain(StatusCode::NOT_FOUND, "not found; this endpoint serves /metrics and /sd"),
        (_, None) => plain(StatusCode::NOT_FOUND, "not found; this endpoint serves /metrics"),
    }
}

fn told(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;
    use hyper::header::HOST;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Both;

    impl Source for Both {
        async fn page(&self) -> Page {
            page()
        }

        async fn targets(&self) -> Option<String> {
            Some("[]".to_owned())
        }
    }

    fn page() -> Page {
        let mut page = Page::default();
        page.put(names::GEAR, &[], 2.0);
        page
    }

    async fn asked(method: Method, path: &str, host: &str) -> (u16, String) {
        let mut headers = HeaderMap::new();
        if !host.is_empty() {
            headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        }
        let answer = answer(&Both, &Hosts::addresses("meta1.example"), &method, path, &headers).await;
        (answer.status().as_u16(), answer.into_body())
    }

    #[tokio::test]
    async fn only_its_two_pages_are_served_and_only_under_its_own_names() {
        for host in [
            "127.0.0.1:9301",
            "[::1]:9301",
            "::1",
            "localhost",
            "LocalHost:1",
            "meta1.example:9301",
            "10.1.2.3",
        ] {
            assert_eq!(asked(Method::GET, "/sd", host).await, (200, "[]".into()), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9301",
            "localhost.evil.example",
            ":9301",
            "127.0.0.1.evil.example",
        ] {
            assert_eq!(asked(Method::GET, "/metrics", host).await.0, 403, "{host}");
        }
        assert!(asked(Method::GET, "/metrics", "localhost").await.1.contains("ebb_gear 2.0\n"));
        assert_eq!(asked(Method::POST, "/metrics", "localhost").await.0, 405);
        assert_eq!(asked(Method::GET, "/", "localhost").await.0, 404);
    }

    #[tokio::test]
    async fn an_endpoint_answers_over_a_socket_once_per_connection_and_bounds_the_head() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let exchange = async |request: String| {
            let mut stream = TcpStream::connect(free).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            // A head that is too long may end in a reset.
            let _ = stream.read_to_string(&mut answer).await;
            answer
        };
        let tasks = tokio::task::LocalSet::new();
        tasks
            .run_until(async {
                open(Some(&free.to_string()), page).await.unwrap();
                let answer = exchange("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into()).await;
                assert!(
                    answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("connection: close"),
                    "{answer}"
                );
                assert!(
                    answer.contains("text/plain; version=0.0.4") && answer.ends_with("ebb_gear 2.0\n"),
                    "{answer}"
                );
                let answer = exchange("GET /sd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".into()).await;
                assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
                let long = format!(
                    "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nx: {}\r\n\r\n",
                    "y".repeat(2 * HEAD_BYTES)
                );
                assert!(!exchange(long).await.contains("200 OK"));
            })
            .await;
    }
}
