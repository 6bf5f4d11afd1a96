//! The S3 gateway: objects and buckets for S3 clients, on an Ebb cluster.
//!
//! `s3s` implements the protocol (routing, signatures, XML); this crate implements its meaning. A PUT receives the body
//! in one pass ([`intake`]), makes it durable in its bucket's pool ([`pools`], [`store`]), and only then commits the
//! key ([`names`]). A GET looks the key up and reads its pieces ([`reader`]). Data that loses its name is freed by the
//! [`janitor`].
//!
//! Many requests share one message wherever possible ([`batch`]), because messages and syncs dominate the cost of small
//! requests.

mod answer;
mod backend;
mod batch;
mod body;
mod bucket;
mod chunked;
mod cluster;
mod compact;
mod conditions;
mod connections;
mod convert;
mod cors;
mod direct;
mod form;
mod front;
mod intake;
mod janitor;
mod lifecycle;
mod limits;
mod list;
mod md5;
mod moves;
mod multipart;
mod names;
mod objects;
mod place;
mod pools;
mod reader;
mod rights;
mod s3;
mod store;
mod tags;
mod understood;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

pub use backend::{Backend, BackendError, Pool};
pub use cluster::Cluster;
pub use direct::{Body, Direct, Refused};
pub use limits::Limits;
pub use rights::{Key, KeyTable, Keys, Right};

use answer::Front;
use ebb_types::Extent;
use front::{BucketNames, Domains};
use hyper::{Method, StatusCode};
use janitor::Janitor;
use lifecycle::Rule;
use moves::Mover;
use names::Names;
use pools::Remembered;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Largest XML request body: 10,000 parts of an upload with their checksums.
const XML_BYTES_MAX: usize = 8 << 20;

/// Who may use the gateway, and how.
pub struct GatewayConfig {
    pub keys: Keys,
    /// Domains whose host names begin with a bucket's name.
    pub domains: Vec<String>,
    pub limits: Limits,
    /// At this rate objects move to other pools by lifecycle rules; zero: this gateway moves none.
    pub move_bytes_per_second: u64,
    /// Objects and uploads that one round of the lifecycle rules may remove.
    pub expire_most: u64,
    pub watcher: Arc<dyn Watcher>,
}

/// Called for every request. Must be cheap: it is called on the way to the answer.
pub trait Watcher: Send + Sync {
    fn asked(&self);
    /// `status`: `None`: the client went away before its answer. `took`: until the answer's head.
    fn answered(&self, method: &Method, status: Option<StatusCode>, took: Duration);
}

/// State shared by all requests.
pub struct Gateway<B> {
    store: Arc<Store<B>>,
    names: Arc<Names<B>>,
    keys: Keys,
    backend: Arc<B>,
    /// The pool or region of each bucket.
    locations: Remembered<Option<String>>,
    /// The rules by which objects of each bucket expire.
    expiry: Remembered<Arc<Vec<Rule>>>,
}

impl<B: Backend> Gateway<B> {
    /// Also starts the janitor, on `tasks`.
    fn start(backend: Arc<B>, keys: Keys, tasks: &mut JoinSet<()>) -> Gateway<B> {
        let (store, names, janitor) = with_janitor(&backend);
        tasks.spawn(janitor.run());
        let (locations, expiry) = (Remembered::default(), Remembered::default());
        Gateway { store, names, keys, backend, locations, expiry }
    }
}

type WithJanitor<B> = (Arc<Store<B>>, Arc<Names<B>>, Janitor<B>);

fn with_janitor<B: Backend>(backend: &Arc<B>) -> WithJanitor<B> {
    let (discards, discarded): (mpsc::UnboundedSender<Vec<Extent>>, _) = mpsc::unbounded_channel();
    let garbage = Arc::new(Notify::new());
    let names = Arc::new(Names::new(backend.clone(), discards.clone(), garbage.clone()));
    let store = Arc::new(Store::new(backend.clone(), names.clone(), discards));
    let janitor = Janitor::new(backend.clone(), names.clone(), store.clone(), discarded, garbage);
    (store, names, janitor)
}

/// Ends the runs of processes that fell silent, and frees garbage, as a gateway does. For programs that write to the
/// cluster without one; never returns.
pub async fn tend<B: Backend>(backend: Arc<B>) {
    let (_store, _names, janitor) = with_janitor(&backend);
    janitor.alone().run().await;
}

/// Starts what carries out the lifecycle rules.
fn run_beside<B: Backend>(gateway: &Gateway<B>, most: u64, mover: Option<Mover<B>>, tasks: &mut JoinSet<()>) {
    let names = gateway.names.clone();
    tasks.spawn(async move {
        let names = &*names;
        let round = |now| lifecycle::clear_out(names, now, most);
        lifecycle::daily(names, "remove objects", round).await;
    });
    if let Some(mover) = mover {
        tasks.spawn(mover.run());
    }
}

/// Serves S3 on `listener` until `stop` returns and the requests in flight are finished.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    config: GatewayConfig,
    backend: Arc<B>,
    stop: impl Future<Output = ()>,
) {
    let mut tasks = JoinSet::new();
    let gateway = Arc::new(Gateway::start(backend, config.keys.clone(), &mut tasks));
    let moves = config.move_bytes_per_second > 0;
    let mover = moves.then(|| Mover::new(&gateway, config.move_bytes_per_second));
    run_beside(&gateway, config.expire_most, mover, &mut tasks);
    let domains = Arc::new(config.domains);
    let mut service = S3ServiceBuilder::new(s3::Operations(gateway.clone()));
    service.set_auth(config.keys.clone());
    service.set_access(config.keys);
    service.set_host(Domains(domains.clone()));
    service.set_validation(BucketNames);
    let mut bounds = S3Config::default();
    bounds.xml_max_body_size = XML_BYTES_MAX;
    bounds.post_object_max_file_size = form::FILE_BYTES_MAX;
    bounds.form_max_field_size = form::FIELDS_BYTES_MAX;
    bounds.form_max_fields_size = form::FIELDS_BYTES_MAX;
    service.set_config(Arc::new(StaticConfigProvider::new(Arc::new(bounds))));
    let front = Arc::new(Front::new(gateway, service.build(), domains, config.limits, config.watcher));
    connections::serve(listener, front, config.limits, stop).await;
}
