//! The S3 gateway: objects and buckets for S3 clients, on an Ebb cluster.
//!
//! The protocol (routing, signatures, XML) is `s3s`'s; here is what it means. A PUT takes in the body in one pass
//! ([`intake`]), makes it durable ([`store`]), and only then commits the key ([`names`]). A GET looks the key up and
//! reads its pieces ([`reader`]). What loses its name is freed by the [`janitor`].
//!
//! Many requests share one message wherever they can ([`batch`]), because messages and syncs are what small requests cost.

mod backend;
mod batch;
mod cluster;
mod convert;
mod intake;
mod janitor;
mod list;
mod multipart;
mod names;
mod objects;
mod reader;
mod s3;
mod store;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

pub use backend::Backend;
pub use cluster::Cluster;

use ebb_types::Extent;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use janitor::Janitor;
use names::Names;
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Who may use the gateway.
#[derive(Clone, Default)]
pub struct GatewayConfig {
    /// Secret key by access key id. Requests signed with another, or not at all, are refused.
    pub keys: BTreeMap<String, String>,
}

/// State that all requests share.
struct Gateway<B> {
    store: Arc<Store<B>>,
    names: Arc<Names<B>>,
}

struct Keys(BTreeMap<String, SecretKey>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0
            .get(access_key)
            .cloned()
            .ok_or_else(|| s3_error!(InvalidAccessKeyId, "the access key is not known"))
    }
}

impl<B: Backend> Gateway<B> {
    /// Also starts the janitor, on `tasks`.
    fn start(backend: Arc<B>, tasks: &mut JoinSet<()>) -> Gateway<B> {
        let (discards, discarded): (mpsc::UnboundedSender<Vec<Extent>>, _) = mpsc::unbounded_channel();
        let garbage = Arc::new(Notify::new());
        let names = Arc::new(Names::new(backend.clone(), discards.clone(), garbage.clone()));
        let store = Arc::new(Store::new(backend.clone(), names.clone(), discards));
        tasks.spawn(Janitor::new(backend, names.clone(), store.clone(), discarded, garbage).run());
        Gateway { store, names }
    }
}

/// Serves S3 on `listener` until the future is dropped. Requests under way then are cut off; none of them was answered.
pub async fn serve<B: Backend>(listener: TcpListener, config: GatewayConfig, backend: Arc<B>) {
    let mut tasks = JoinSet::new();
    let mut service = S3ServiceBuilder::new(Gateway::start(backend, &mut tasks));
    service
        .set_auth(Keys(config.keys.into_iter().map(|(id, secret)| (id, SecretKey::from(secret))).collect()));
    let service = service.build();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tasks.spawn(connection(stream, service.clone()));
            }
            Err(error) => {
                // Most often too many open files: that passes when connections end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, service: S3Service) {
    // Without it the end of an answer waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!(%error, "connection lost");
    }
    let service = service_fn(|request: Request<Incoming>| {
        crate::heap::used();
        let last = expects_without_body(&request);
        let answer = service.call(request.map(Body::from));
        async move {
            let mut answer = answer.await?;
            if last {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, HttpError>(answer)
        }
    });
    let served = http1::Builder::new().keep_alive(true).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// An empty PUT that asks for `100 Continue` gets its answer at once, as HTTP wants. AWS's Python clients then misread the
/// next answer on the same connection, and wait for it in vain: so there must be no next one.
fn expects_without_body(request: &Request<Incoming>) -> bool {
    let is = |name: HeaderName, value: &[u8]| {
        request.headers().get(name).is_some_and(|v: &HeaderValue| v.as_bytes() == value)
    };
    is(header::EXPECT, b"100-continue") && is(header::CONTENT_LENGTH, b"0")
}
