//! The S3 gateway: objects and buckets for S3 clients, on an Ebb cluster.
//!
//! `s3s` implements the protocol (routing, signatures, XML); this crate implements its meaning. A PUT receives the body
//! in one pass ([`bytes::intake`]), makes it durable in its bucket's pool ([`ops::pools`], [`bytes::store`]), and only
//! then commits the key ([`bytes::names`]). A GET looks the key up and reads its pieces ([`bytes::reader`]). Data that
//! loses its name is freed by the [`upkeep::janitor`].
//!
//! Many requests share one message wherever possible ([`bytes::batch`]), because messages and syncs dominate the cost
//! of small requests.

mod bytes;
mod convert;
mod direct;
mod gateway;
mod http;
mod ops;
mod upkeep;

#[cfg(test)]
mod memory;
#[cfg(test)]
mod tests;

pub use crate::bytes::backend::{Backend, BackendError, Pool};
pub use crate::bytes::cluster::Cluster;
pub use direct::{Body, Direct, Parts, Refused};
pub use http::answer::Watcher;
pub use http::limits::Limits;
pub use http::rights::{Key, KeyTable, Keys, Right};

use gateway::{Base, Gateway, run_beside};
use http::answer::Front;
use http::front::{BucketNames, Domains};
use http::{connections, form};
use ops::s3;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::S3ServiceBuilder;
use std::future::Future;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

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

/// Ends the runs of processes that fell silent, and frees garbage, as a gateway does. For programs that write to the
/// cluster without one; never returns.
pub async fn tend<B: Backend>(backend: Arc<B>) {
    let Base { janitor, leases, garbage, .. } = Base::new(&backend);
    tokio::join!(janitor.run(), leases.alone(garbage).run());
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
    let mover = moves.then(|| gateway.mover(config.move_bytes_per_second));
    run_beside(&gateway, config.expire_most, mover, &mut tasks);
    let domains = Arc::new(config.domains);
    let mut service = S3ServiceBuilder::new(s3::Operations(gateway.clone()));
    service.set_auth(config.keys.clone());
    service.set_access(config.keys);
    service.set_host(Domains(domains.clone()));
    service.set_validation(BucketNames);
    let mut bounds = S3Config::default();
    bounds.xml_max_body_size = http::document::BYTES_MAX;
    bounds.post_object_max_file_size = form::FILE_BYTES_MAX;
    bounds.form_max_field_size = form::FIELDS_BYTES_MAX;
    bounds.form_max_fields_size = form::FIELDS_BYTES_MAX;
    service.set_config(Arc::new(StaticConfigProvider::new(Arc::new(bounds))));
    let front = Arc::new(Front::new(gateway, service.build(), domains, config.limits, config.watcher));
    connections::serve(listener, front, config.limits, stop).await;
}
